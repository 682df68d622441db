"""Debian's own kernel: its package is fetched once and unpacked, and never installed."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

PACKAGE = "linux-image-cloud-amd64"
# What we need that is no part of the kernel itself.
MODULES = ["virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "overlay",
           "xfs", "quota_v2"]


class Kernel:
    """An unpacked package."""

    def __init__(self, folder: Path):
        [self.image] = folder.glob("boot/vmlinuz-*")
        self._files = {path.stem.replace("-", "_"): path for path in folder.rglob("*.ko")}

    def modules(self) -> list[Path]:
        """Those that we need, each after what it needs itself."""
        found: list[Path] = []

        def add(name: str) -> None:
            path = self._files[name.replace("-", "_")]
            for other in needs(path):
                add(other)
            if path not in found:
                found.append(path)

        for name in MODULES:
            add(name)
        return found


def needs(module: Path) -> list[str]:
    told = re.search(rb"\0depends=([^\0]*)\0", module.read_bytes())
    assert told, f"{module} does not say what it needs"
    return [name for name in told[1].decode().split(",") if name]


def fetched(cache: Path) -> Kernel:
    """The kernel that Debian has now, from the cache where it is there."""
    told = subprocess.run(["apt-cache", "depends", PACKAGE], check=True, capture_output=True,
                          text=True)
    [name] = re.findall(r"Depends: (linux-image-\S+)", told.stdout)
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / name).exists():
            fetch(name, cache / name)
    return Kernel(cache / name)


def fetch(name: str, folder: Path) -> None:
    making = folder.with_name("making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    subprocess.run(["apt-get", "download", "--quiet", name], check=True, cwd=making)
    [package] = making.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, making], check=True)
    package.unlink()
    making.rename(folder)
