"""Limits of disks that a file system enforces: a data directory on a btrfs of the suite's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, Failure, Sandbox, output
from outlive_testing.server import Server, binary, wait_until

IMAGE_BYTES = 2 << 30
SMALL_BYTES = 300 << 20
SNAPSHOTS = "/api/v1/sandbox-rootfs-snapshots"
FILL = "cat /dev/zero > /root/big"
TOLD = b"Disk quota exceeded"
MANY = "mkdir /root/many; for d in $(seq 20); do mkdir /root/many/$d; " \
       "for f in $(seq 100); do echo $d-$f > /root/many/$d/$f; done; done"

# Takes all at once as soon as nothing forbids it; to be used by several at a time.
GRAB = "while :; do fallocate -l 100M /root/grab$$ 2>/dev/null; sleep 0.01; done"

# Deeper than any path can say.
DEEP = 'import os; [(os.mkdir("d" * 200), os.chdir("d" * 200)) for _ in range(50)]'


def tool(*words) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Btrfs:
    """A mounted file system; it commits every second, so that what is deleted is soon forgotten."""

    def __init__(self, folder: Path):
        self.folder = folder

    def quotas(self, word: str) -> None:
        tool("btrfs", "quota", word, self.folder)
        if word == "enable":
            # What is there is counted first.
            tool("btrfs", "quota", "rescan", "-W", self.folder)

    def subvolumes(self) -> set[str]:
        lines = tool("btrfs", "subvolume", "list", self.folder).splitlines()
        return {line.split(" path ")[1] for line in lines}

    def counted(self) -> int:
        """How many accounts there are, also of what is gone."""
        [one] = Path("/sys/fs/btrfs").glob(f"{self.id()}/qgroups")
        return sum(1 for name in os.listdir(one) if name.startswith("0_"))

    def id(self) -> str:
        return tool("findmnt", "--noheadings", "--output", "UUID", self.folder).strip()

    def disk_of(self, sandbox) -> Path:
        return self.folder / "sandboxes" / sandbox.id / "disk"

    def number_of(self, sandbox) -> str:
        return tool("btrfs", "inspect-internal", "rootid", self.disk_of(sandbox)).strip()

    def holds(self, sandbox) -> str:
        """What the kernel holds a disk to; `none` while it has no limit."""
        lines = tool("btrfs", "qgroup", "show", "-r", "--raw", self.folder).splitlines()
        [row] = [line.split() for line in lines if line.startswith(f"0/{self.number_of(sandbox)} ")]
        return row[3]

    def grabbed(self, sandbox) -> list[Path]:
        return list(self.disk_of(sandbox).glob("upper/root/root/grab*"))

    def lies_on(self, sandbox) -> int:
        """How many bytes were grabbed, also of what the kernel has not counted yet."""
        return sum(file.stat().st_blocks * 512 for file in self.grabbed(sandbox))


def mounted(size: int):
    if os.geteuid() != 0:
        assert os.environ.get("CI") != "true", "mounting a btrfs needs root in CI"
        pytest.skip("mounting a btrfs needs root")
    with tempfile.TemporaryDirectory(prefix="outlive-btrfs-") as around:
        image, folder = Path(around) / "image", Path(around) / "data"
        folder.mkdir()
        with open(image, "wb") as file:
            file.truncate(size)
        tool("mkfs.btrfs", "--quiet", image)
        try:
            # The loop device goes with the mount.
            tool("mount", "-o", "loop,commit=1", image, folder)
        except subprocess.CalledProcessError as error:
            assert os.environ.get("CI") != "true", f"no btrfs can be mounted in CI: {error.stderr}"
            pytest.skip(f"no btrfs can be mounted here: {error.stderr}")
        try:
            yield Btrfs(folder)
        finally:
            tool("umount", "--lazy", folder)


@pytest.fixture(scope="module")
def btrfs():
    yield from mounted(IMAGE_BYTES)


@pytest.fixture
def small_btrfs():
    yield from mounted(SMALL_BYTES)


@pytest.fixture
def counting(btrfs):
    """With its quotas on."""
    btrfs.quotas("enable")
    yield btrfs
    btrfs.quotas("disable")


@pytest.fixture
def server(counting):
    with Server(data=counting.folder) as running:
        yield running


@pytest.fixture
def api(server):
    return Api(server)


@pytest.fixture
def limited(api):
    made = []

    def make(disk: str | None):
        made.append(api.sandbox(resources={"disk": disk} if disk else {}))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.delete()


def said(sandbox: Sandbox, line: str) -> tuple[int, bytes]:
    session = sandbox.sh(line)
    code = session.wait_exit()["exit_code"]
    return code, output(session.events())


def works(sandbox: Sandbox, line: str) -> None:
    code, told = said(sandbox, line)
    assert code == 0, told


def fills(sandbox: Sandbox, mebibytes: int) -> None:
    """A program writes to its end, which is near the limit."""
    code, told = said(sandbox, FILL)
    assert code == 1 and TOLD in told, told
    size = int(said(sandbox, "stat -c %s /root/big")[1])
    assert mebibytes - 4 <= size >> 20 <= mebibytes


def change(sandbox: Sandbox, disk: str) -> None:
    sandbox.api.call("PUT", sandbox.path, {"config": {"resources": {"disk": disk}}})


def enforced_by(sandbox: Sandbox) -> str:
    return sandbox.get()["disk"]["enforced_by"]


@pytest.mark.timeout(180)
def test_a_workload_at_its_limit_is_told_so_and_hurts_nobody(api, limited):
    assert api.bare("GET", "/healthz")["capabilities"]["disk_limit"] == "quota"
    sandbox, neighbour, free = limited("16Mi"), limited("16Mi"), limited(None)
    going_on = sandbox.sh("while read line; do echo $line; done")
    fills(sandbox, 16)
    # What the kernel tells includes what the file system needs for itself.
    wait_until(lambda: sandbox.get()["disk"].get("used_bytes", 0) > 15 << 20, 30, "the kernel's count")
    disk = sandbox.get()["disk"]
    assert disk["used_bytes"] <= 16 << 20
    assert (disk["full"], disk["enforced_by"]) == (False, "quota")
    # Neither those beside it nor its own sessions notice; what they say is more than the limit.
    works(neighbour, "head -c 8000000 /dev/zero > /root/file")
    works(free, "head -c 64000000 /dev/zero > /root/file")
    counter = sandbox.session("/usr/bin/seq", "3000000", event_retention={"max_bytes": 1 << 30})
    assert counter.wait_exit()["exit_code"] == 0
    assert output(counter.events()).endswith(b"2999999\n3000000\n")
    assert len(output(counter.events())) == sum(len(f"{n}\n") for n in range(1, 3000001))
    going_on.input(b"still here\n")
    going_on.wait_output(b"still here")
    # /tmp counts, too; a file that goes makes room.
    assert said(sandbox, "head -c 4000000 /dev/zero > /tmp/file")[0] != 0
    works(sandbox, "rm /root/big && head -c 4000000 /dev/zero > /tmp/file")
    assert sandbox.activity()["disk_full"] is False
    assert sandbox.sh("true").get()["phase"] != "paused"


@pytest.mark.timeout(180)
def test_another_limit_holds_at_once_and_stays(limited):
    sandbox = limited("16Mi")
    fills(sandbox, 16)
    change(sandbox, "48Mi")
    fills(sandbox, 48)
    change(sandbox, "16Mi")
    assert said(sandbox, "head -c 1000000 /dev/zero > /root/more")[0] != 0
    # More lies on it than may, which stops nobody.
    wait_until(lambda: sandbox.get()["disk"]["full"], 60, "the kernel's count")
    assert enforced_by(sandbox) == "quota"
    activity = sandbox.activity()
    assert (activity["state"], activity["disk_full"]) == ("running", False)
    assert int(said(sandbox, "stat -c %s /root/big")[1]) > 40 << 20
    sandbox.pause()
    change(sandbox, "24Mi")
    sandbox.resume()
    works(sandbox, "rm /root/big")
    fills(sandbox, 24)
    wait_until(lambda: not sandbox.get()["disk"]["full"], 60, "the kernel's count")


@pytest.mark.timeout(180)
def test_a_limit_comes_and_goes(limited):
    sandbox = limited(None)
    works(sandbox, "head -c 20000000 /dev/zero > /root/file")
    change(sandbox, "32Mi")
    assert enforced_by(sandbox) == "quota"
    assert said(sandbox, "head -c 20000000 /dev/zero > /root/other")[0] != 0
    sandbox.api.call("PUT", sandbox.path, {"config": {"resources": {}}})
    works(sandbox, "head -c 40000000 /dev/zero > /root/other")


@pytest.mark.timeout(180)
def test_a_full_disk_can_be_written_to_after_a_start(limited):
    """An overlay whose own directories found no room was read-only, so that nobody could remove
    anything."""
    sandbox = limited("16Mi")
    fills(sandbox, 16)
    said(sandbox, "i=0; while echo $i > /root/small-$i; do i=$((i + 1)); done")
    for _ in range(3):
        sandbox.pause()
        sandbox.resume()
        code, told = said(sandbox, "head -c 8000000 /dev/zero > /root/more")
        assert code != 0 and TOLD in told, told
    works(sandbox, "rm /root/big; echo room > /root/room")
    fills(sandbox, 16)


class Resuming:
    """A call that resumes a sandbox, caught as soon as there is a keeper; its server may be killed."""

    def __init__(self, server: Server, sandbox: Sandbox):
        self._sandbox = sandbox
        self._thread = threading.Thread(target=self._resume)
        self._thread.start()
        wait_until(lambda: processes.keepers(sandbox.id), 30, "a keeper")
        self._launchers = [pid for pid, _ in processes.titles()
                           if processes.status(pid, "PPid") == str(server.pid)]

    def _resume(self) -> None:
        try:
            self._sandbox.resume()
        except (OSError, Failure):
            pass  # Its server was killed.

    def signal(self, number: int) -> None:
        for launcher in self._launchers:
            processes.kill(launcher, number)

    def join(self) -> None:
        self._thread.join()


@pytest.mark.timeout(180)
def test_recovered_sessions_never_run_before_the_limit_is_back(counting, server, limited):
    """It was lifted for a start, and came back when what the start recovered wrote already; the
    slower its launcher, the more."""
    sandbox = limited("32Mi")
    for _ in range(3):
        sandbox.sh(GRAB, lifecycle={"runtime_recovery": "restart"})
    for _ in range(6):
        sandbox.pause()
        for file in counting.grabbed(sandbox):
            file.unlink()
        resuming = Resuming(server, sandbox)
        resuming.signal(signal.SIGSTOP)
        try:
            wait_until(lambda: len(counting.grabbed(sandbox)) == 3, 30, "all sessions")
        finally:
            resuming.signal(signal.SIGCONT)
            resuming.join()
        assert counting.lies_on(sandbox) <= 32 << 20


@pytest.mark.timeout(180)
def test_a_runtime_whose_launcher_is_killed_has_its_limit_or_ends(counting, server, limited):
    """It ran without, for as long as no server was there to look."""
    sandbox = limited("32Mi")
    sandbox.sh(GRAB, lifecycle={"runtime_recovery": "restart"})
    for _ in range(6):
        sandbox.pause()
        resuming = Resuming(server, sandbox)
        server.kill()
        resuming.signal(signal.SIGKILL)
        resuming.join()
        held, runs = counting.holds(sandbox), processes.keepers(sandbox.id)
        server.start()
        assert held == str(32 << 20) or not runs
        sandbox.sh("true").wait_exit()
        assert enforced_by(sandbox) == "quota"
        assert counting.holds(sandbox) == str(32 << 20)
        assert counting.lies_on(sandbox) <= 32 << 20


@pytest.mark.timeout(180)
def test_copies_have_limits_of_their_own(counting, api, limited):
    sandbox = limited("16Mi")
    works(sandbox, "head -c 8000000 /dev/zero > /root/first; echo before > /root/text")
    before = counting.subvolumes()
    snapshot = api.call("POST", f"{sandbox.path}/snapshots", None)
    assert counting.subvolumes() == before, "nobody writes to a snapshot"
    fork = sandbox.fork()
    made = Sandbox(api, api.call("POST", "/api/v1/sandboxes",
                                 {"snapshot_id": snapshot["id"]})["sandbox_id"])
    change(made, "32Mi")
    works(sandbox, "rm /root/first")
    fills(sandbox, 16)
    for copy, first, mebibytes in [(fork, 8000000, 16), (made, 8000000, 32)]:
        assert enforced_by(copy) == "quota"
        assert int(said(copy, "stat -c %s /root/first")[1]) == first
        works(copy, "rm /root/first")
        fills(copy, mebibytes)
    # Back to what it was, and limited as before.
    api.call("POST", f"{sandbox.path}/rootfs/restore", {"snapshot_id": snapshot["id"]})
    assert said(sandbox, "cat /root/text; ls /root/big")[1].startswith(b"before\n")
    assert enforced_by(sandbox) == "quota"
    works(sandbox, "rm /root/first")
    fills(sandbox, 16)
    for copy in (fork, made):
        copy.delete()
    api.call("DELETE", f"{SNAPSHOTS}/{snapshot['id']}")
    assert counting.subvolumes() == before


@pytest.mark.timeout(180)
def test_what_is_deleted_leaves_nothing_behind(counting, api):
    subvolumes, counted = counting.subvolumes(), counting.counted()
    made = [api.sandbox(resources={"disk": "16Mi"}) for _ in range(3)]
    for sandbox in made:
        works(sandbox, "mkdir -p /root/d/e/f/g && touch /root/d/e/h && chmod 0 /root/d")
        works(sandbox, f"cd /root && python3 -c '{DEEP}'")
        fills(sandbox, 16)
        said(sandbox, "i=0; while mkdir /root/dir-$i; do i=$((i + 1)); done")
    assert len(counting.subvolumes()) == len(subvolumes) + 3
    for sandbox in made:
        sandbox.delete()
    assert counting.subvolumes() == subvolumes
    assert os.listdir(counting.folder / "sandboxes") == []
    # The kernel forgets accounts once it has removed what they counted.
    wait_until(lambda: counting.counted() == counted, 60, "the end of the accounts")


@pytest.mark.timeout(180)
def test_a_server_that_is_killed_over_a_copy_leaves_nothing_behind(counting, server, api):
    before = counting.subvolumes()
    sandbox = api.sandbox(resources={"disk": "64Mi"})
    works(sandbox, MANY)

    def fork():
        try:
            sandbox.fork()
        except (OSError, Failure):
            pass  # Its server was killed.

    sandboxes = counting.folder / "sandboxes"
    for _ in range(5):
        ours = counting.subvolumes()
        forking = threading.Thread(target=fork)
        forking.start()
        wait_until(lambda: list(sandboxes.glob("*/disk")) != [sandboxes / sandbox.id / "disk"], 30,
                   "the subvolume of a copy")
        server.restart()
        forking.join()
        wait_until(lambda: os.listdir(sandboxes) == [sandbox.id], 60, "the end of a copy")
        assert counting.subvolumes() == ours
    assert enforced_by(sandbox) == "quota"
    sandbox.delete()
    assert counting.subvolumes() == before


@pytest.mark.timeout(180)
def test_a_restore_whose_server_is_killed_is_finished_and_limited(counting, server, api):
    before = counting.subvolumes()
    sandbox = api.sandbox(resources={"disk": "64Mi"})
    place = counting.folder / "sandboxes" / sandbox.id
    works(sandbox, f"{MANY}; echo whole > /root/text")
    snapshot = api.call("POST", f"{sandbox.path}/snapshots", None)

    def restore():
        try:
            api.call("POST", f"{sandbox.path}/rootfs/restore", {"snapshot_id": snapshot["id"]})
        except (OSError, Failure):
            pass  # Its server was killed.

    for at in ("restore.draft/disk", "restored-*/disk", "restored-*") * 2:
        works(sandbox, "rm -r /root/many; echo changed > /root/text")
        fills(sandbox, 64)
        restoring = threading.Thread(target=restore)
        restoring.start()
        wait_until(lambda: list(place.glob(at)) or not restoring.is_alive(), 30, at)
        server.restart()
        restoring.join()
        # Asked once more, as its client would.
        restore()
        assert said(sandbox, "cat /root/text; ls /root/many/* | wc -l; ls /root/big")[1].startswith(
            b"whole\n")
        assert len(counting.subvolumes()) == len(before) + 1
        assert enforced_by(sandbox) == "quota"
    api.call("DELETE", f"{SNAPSHOTS}/{snapshot['id']}")
    sandbox.delete()
    assert counting.subvolumes() == before


def doctor(btrfs: Btrfs) -> dict:
    told = tool(binary(), "doctor", "--json", "--data", btrfs.folder)
    return json.loads(told)["looked_at"]["disk_quota"]


@pytest.mark.timeout(180)
def test_whoever_has_no_quotas_is_told_and_disks_from_then_stay_checked(btrfs):
    assert doctor(btrfs)["next"] == f"sudo btrfs quota enable '{btrfs.folder}'"
    with Server(data=btrfs.folder) as server:
        api = Api(server)

        def limit() -> str:
            return api.bare("GET", "/healthz")["capabilities"]["disk_limit"]

        assert limit() == "checked"
        old = api.sandbox(resources={"disk": "64Mi"})
        assert enforced_by(old) == "checked"
        btrfs.quotas("enable")
        try:
            assert doctor(btrfs)["works"] is True
            server.restart()
            assert limit() == "quota"
            new = api.sandbox(resources={"disk": "64Mi"})
            assert (enforced_by(old), enforced_by(new)) == ("checked", "quota")
            old.pause()
            old.resume()
            assert enforced_by(old) == "checked"
            # A copy of it is counted.
            forked = old.fork()
            assert enforced_by(forked) == "quota"
            forked.delete()
            snapshot = api.call("POST", f"{old.path}/snapshots", None)
            api.call("POST", f"{old.path}/rootfs/restore", {"snapshot_id": snapshot["id"]})
            works(old, "true")
            assert enforced_by(old) == "quota"
            api.call("DELETE", f"{SNAPSHOTS}/{snapshot['id']}")
            # Limits go with the quotas, and come back with the next runtime, or server.
            for again in (lambda: (new.pause(), new.resume()), server.restart):
                btrfs.quotas("disable")
                btrfs.quotas("enable")
                assert (limit(), enforced_by(new)) == ("quota", "checked")
                again()
                wait_until(lambda: enforced_by(new) == "quota", 30, "the limit")
            # Somebody has the kernel lose count: what two disks share is in no account of both.
            works(new, "head -c 1000000 /dev/urandom > /root/shared")
            fork = new.fork()
            tool("btrfs", "filesystem", "sync", btrfs.folder)
            tool("btrfs", "qgroup", "create", "1/1", btrfs.folder)
            account = f"0/{btrfs.number_of(new)}"
            tool("btrfs", "qgroup", "assign", "--no-rescan", account, "1/1", btrfs.folder)
            assert (limit(), enforced_by(new)) == ("checked", "checked")
            tool("btrfs", "quota", "rescan", "-w", btrfs.folder)
            assert (limit(), enforced_by(new)) == ("quota", "quota")
        finally:
            btrfs.quotas("disable")
        # Turned off under a server that runs.
        assert limit() == "checked"
        assert (enforced_by(old), enforced_by(new)) == ("checked", "checked")
        new.sh("head -c 80000000 /dev/zero > /root/big")  # It may stand still before its end.
        new.wait_state("frozen", 60)
        for sandbox in (old, new, fork):
            sandbox.delete()
        assert btrfs.subvolumes() == set()


@pytest.mark.timeout(180)
def test_a_server_on_a_full_btrfs_answers(small_btrfs):
    # It died of SIGBUS: a store into a mapping of a file needs blocks on a file system like this.
    with Server(data=small_btrfs.folder) as server:
        api = Api(server)
        culprit, other = api.sandbox(), api.sandbox()
        culprit.sh(FILL)
        wait_until(lambda: api.bare("GET", "/readyz").get("disk_full"), 60, "a full disk")
        for ttl in range(3600, 3610):
            assert len(api.call("GET", "/api/v1/sandboxes")["sandboxes"]) == 2
            api.call("PUT", other.path, {"config": {"ttl": ttl}})
        culprit.delete()
        other.delete()
