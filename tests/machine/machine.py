"""A virtual machine without help of the processor's, and a shell in it."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
from pathlib import Path

from outlive_testing.server import binary, free_port

from kernel import Kernel

HERE = Path(__file__).parent
BUSYBOX = Path("/bin/busybox")
BOOT_SECONDS_MAX = 120
ANSWER_SECONDS_MAX = 90
MEMORY_MEBIBYTES = 1024
USER = 1000
# What busybox lacks, or has less of, each with the libraries that it names.
PROGRAMS = ["/usr/bin/newuidmap", "/usr/bin/newgidmap", "/usr/bin/unshare", "/usr/sbin/xfs_quota",
            "/usr/sbin/xfs_io"]
WITH_POWER = ["usr/bin/newuidmap", "usr/bin/newgidmap"]
FILES = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nuser:x:{USER}:{USER}::/home/user:/bin/sh\n",
    "etc/group": f"root:x:0:\nuser:x:{USER}:\n",
    "etc/subuid": "user:100000:65536\n",
    "etc/subgid": "user:100000:65536\n",
}


def tool(*words, **options) -> str:
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def libraries(program: Path) -> list[Path]:
    if "statically linked" in tool("ldd", program):
        return []
    words = tool("ldd", program).split()
    return [Path(word) for word in words if word.startswith("/")]


def cpio(folder: Path, to: Path) -> None:
    names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    with open(to, "wb") as archive:
        subprocess.run(["cpio", "--create", "--quiet", "--format=newc", "--owner=0:0"], check=True,
                       cwd=folder, input=names.encode(), stdout=archive)


def starter(kernel: Kernel, folder: Path) -> Path:
    """The few files with which a machine finds its disk."""
    root = folder / "starter"
    for name in ("bin", "dev", "modules", "root"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin/busybox")
    shutil.copy(HERE / "first.sh", root / "init")
    (root / "init").chmod(0o755)
    for number, module in enumerate(kernel.modules()):
        shutil.copy(module, root / f"modules/{number:02}-{module.name}")
    cpio(root, folder / "starter.cpio")
    return folder / "starter.cpio"


def system(folder: Path) -> Path:
    """The disk with everything: busybox and ours."""
    root = folder / "system"
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "tmp",
                 "run", "root", "home/user", "var", "data"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    shutil.copy(BUSYBOX, root / "bin/busybox")
    for name in tool(BUSYBOX, "--list").split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "sbin/init").unlink(missing_ok=True)
    shutil.copy(HERE / "init.sh", root / "sbin/init")
    (root / "sbin/init").chmod(0o755)
    outlive = binary()
    for program in [outlive, outlive.with_name("outlive-agent"), *map(Path, PROGRAMS)]:
        (root / "usr/bin" / program.name).unlink(missing_ok=True)
        shutil.copy(program, root / "usr/bin")
        for library in libraries(program):
            there = root / str(library).lstrip("/")
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, there)
    for name, text in FILES.items():
        (root / name).write_text(text)
    for path in root.rglob("*"):
        if not path.is_symlink():
            os.chown(path, 0, 0)
    for program in WITH_POWER:
        (root / program).chmod(0o4755)
    image = empty(folder / "system.img", 512 << 20)
    tool("mke2fs", "-q", "-t", "ext4", "-d", root, image)
    return image


def empty(path: Path, size: int) -> Path:
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def disks(folder: Path) -> list[Path]:
    """/dev/vdb is an ext4 and /dev/vdc an XFS; both can count by project."""
    ext4, xfs = empty(folder / "ext4.img", 256 << 20), empty(folder / "xfs.img", 512 << 20)
    tool("mke2fs", "-q", "-t", "ext4", "-O", "quota,project", "-E", "quotatype=prjquota", ext4)
    tool("mkfs.xfs", "-q", xfs)
    return [ext4, xfs]


class Machine:
    """One boot. The shell is there once the machine itself says so."""

    def __init__(self, kernel: Kernel, folder: Path, disks: list[Path], ports: int):
        self.console = folder / "console"
        self.ports = {7070 + number: free_port() for number in range(ports)}
        self._free = list(self.ports)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "shell"))
            listener.listen()
            listener.settimeout(BOOT_SECONDS_MAX)
            self._child = subprocess.Popen(
                self._command(kernel, folder, [system(folder), *disks]), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=open(self.console, "ab"))
            self._shell = listener.accept()[0]
        self._shell.settimeout(BOOT_SECONDS_MAX)
        self._answers = self._shell.makefile("rb")
        assert self._answers.readline() == b"ready\n", self.told()
        self._shell.settimeout(ANSWER_SECONDS_MAX)
        self.runs = True

    def _command(self, kernel: Kernel, folder: Path, disks: list[Path]) -> list:
        forward = "".join(f",hostfwd=tcp:127.0.0.1:{outside}-:{inside}"
                          for inside, outside in self.ports.items())
        drives = [f"file={disk},format=raw,if=virtio,cache=unsafe" for disk in disks]
        return [
            "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2",
            "-m", str(MEMORY_MEBIBYTES), "-nodefaults", "-display", "none", "-no-reboot",
            "-kernel", kernel.image, "-initrd", starter(kernel, folder),
            "-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off",
            "-serial", f"file:{self.console}",
            "-netdev", f"user,id=net,restrict=on{forward}", "-device", "virtio-net-pci,netdev=net",
            "-chardev", f"socket,id=shell,path={folder}/shell",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=shell",
            *(word for drive in drives for word in ("-drive", drive)),
        ]

    def port(self) -> int:
        """One on which a server in there is reached from here, for somebody alone."""
        return self._free.pop(0)

    def release(self, port: int) -> None:
        self._free.append(port)

    def told(self) -> str:
        """What the console says."""
        return self.console.read_text(errors="replace")

    def tries(self, script: str) -> tuple[int, str]:
        """Runs a script; its exit code, and what it printed."""
        self._shell.sendall(base64.b64encode(script.encode()) + b"\n")
        line = self._answers.readline()
        assert line, f"the machine is gone:\n{self.told()}"
        length, code = line.split()
        return int(code), self._answers.read(int(length)).decode(errors="replace")

    def sh(self, script: str) -> str:
        """Runs a script that succeeds; what it printed."""
        code, said = self.tries(script)
        assert code == 0, f"{script}\nended with {code}:\n{said}"
        return said

    def end(self) -> None:
        """As pulling the plug."""
        self.runs = False
        self._child.kill()
        self._child.wait()
        self._answers.close()
        self._shell.close()
