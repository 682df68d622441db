"""Limits of disks on file systems that count by project."""

from __future__ import annotations

import re

import pytest
from outlive_testing.api import Api, Sandbox, output
from outlive_testing.server import wait_until

from stories import ended

UNIT = "system.slice/outlive.service"
DEVICES = {"ext4": "/dev/vdb", "xfs": "/dev/vdc"}
# XFS says of a project what others say of a disk.
TOLD = {"ext4": b"Disk quota exceeded", "xfs": b"No space left on device"}
SNAPSHOTS = "/api/v1/sandbox-rootfs-snapshots"
FILL = "dd if=/dev/zero of=/root/big bs=64k"


class Disk:
    """A mounted file system, on which a server keeps its data."""

    def __init__(self, machine, kind: str):
        self._machine, self.kind = machine, kind
        self.folder = f"/mnt/{kind}"
        self.mount("prjquota")

    def mount(self, option: str) -> None:
        self._machine.sh(f"mkdir -p {self.folder} && "
                         f"mount -t {self.kind} -o {option} {DEVICES[self.kind]} {self.folder}")

    def unmount(self) -> None:
        self._machine.sh(f"umount {self.folder}")

    def limits(self, word: str) -> None:
        """Has the kernel `enable` or `disable` them; it goes on to count."""
        self._machine.sh(f"xfs_quota -x -c '{word} -p' {self.folder}")

    def projects(self) -> dict[int, list[int]]:
        """What the kernel knows of ours: KiB that are used, KiB and files that may be."""
        found: dict[int, list[int]] = {}
        for what in ("b", "i"):
            report = f"xfs_quota -f -x -c 'report -p -n -{what}' {self.folder}"
            for line in self._machine.sh(report).splitlines():
                row = re.match(r"#(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", line)
                if row and int(row[1]) >> 24 == 0x4F:
                    found.setdefault(int(row[1]), []).extend((int(row[2]), int(row[4])))
        found = {number: told for number, told in found.items() if any(told)}
        return {number: [told[0], told[1], told[3]] for number, told in found.items()}


@pytest.fixture(params=["ext4", "xfs"])
def disk(request, machine):
    made = Disk(machine, request.param)
    yield made
    made.unmount()


@pytest.fixture
def server(disk, serve):
    return serve(UNIT, data=f"{disk.folder}/data")


@pytest.fixture
def api(server):
    return Api(server)


def limited(api: Api, disk: str | None) -> Sandbox:
    return api.sandbox(resources={"disk": disk} if disk else {})


def said(sandbox: Sandbox, line: str) -> tuple[int, bytes]:
    session = sandbox.sh(line)
    code = session.wait_exit()["exit_code"]
    return code, output(session.events())


def fills(disk: Disk, sandbox: Sandbox, mebibytes: int) -> None:
    code, told = said(sandbox, FILL)
    assert code == 1 and TOLD[disk.kind] in told, told
    size = int(said(sandbox, "stat -c %s /root/big")[1])
    assert mebibytes - 2 <= size >> 20 <= mebibytes


def change(sandbox: Sandbox, disk: str) -> None:
    sandbox.api.call("PUT", sandbox.path, {"config": {"resources": {"disk": disk}}})


def enforced_by(sandbox: Sandbox) -> str:
    return sandbox.get()["disk"]["enforced_by"]


def test_a_workload_at_its_limit_is_told_so_and_hurts_nobody(disk, server, api):
    assert api.bare("GET", "/healthz")["capabilities"]["disk_limit"] == "quota"
    assert re.search("disk limits by the file system +yes  project", server.doctor())
    sandbox, neighbour, free = limited(api, "16Mi"), limited(api, "16Mi"), limited(api, None)
    going_on = sandbox.sh("while read line; do echo $line; done")
    assert said(sandbox, "dd if=/dev/zero of=/root/some bs=1M count=8")[0] == 0
    used = lambda: sandbox.get()["disk"].get("used_bytes", 0)
    wait_until(lambda: used() >= 8 << 20, 30, "the kernel's count")
    assert used() < 10 << 20
    assert said(sandbox, "rm /root/some")[0] == 0
    fills(disk, sandbox, 16)
    told = sandbox.get()["disk"]
    assert (told["full"], told["enforced_by"]) == (False, "quota")
    # Neither those beside it nor its own sessions notice.
    for other, size in ((neighbour, 8), (free, 32)):
        assert said(other, f"dd if=/dev/zero of=/root/file bs=1M count={size}")[0] == 0
    counter = sandbox.sh("seq 200000")
    assert counter.wait_exit()["exit_code"] == 0
    assert output(counter.events()).endswith(b"\n200000\n")
    going_on.input(b"still here\n")
    going_on.wait_output(b"still here")
    # A file that goes makes room, in /tmp too.
    assert said(sandbox, "dd if=/dev/zero of=/tmp/file bs=1M count=4")[0] != 0
    assert said(sandbox, "rm /root/big && dd if=/dev/zero of=/tmp/file bs=1M count=4")[0] == 0


def test_another_limit_holds_at_once_and_stays(disk, server, api):
    sandbox = limited(api, "16Mi")
    fills(disk, sandbox, 16)
    change(sandbox, "24Mi")
    fills(disk, sandbox, 24)
    change(sandbox, "8Mi")
    assert said(sandbox, "dd if=/dev/zero of=/root/more bs=1M count=1")[0] != 0
    # More lies on it than may, which stops nobody.
    wait_until(lambda: sandbox.get()["disk"]["full"], 60, "a count")
    assert sandbox.activity()["disk_full"] is False
    # A start gives the disk away and mounts it, which takes room.
    for _ in range(2):
        sandbox.pause()
        sandbox.resume()
        assert said(sandbox, "dd if=/dev/zero of=/root/more bs=1M count=1")[0] != 0
        server.restart()
    assert enforced_by(sandbox) == "quota"
    assert said(sandbox, "rm /root/big")[0] == 0
    fills(disk, sandbox, 8)


def test_copies_have_limits_of_their_own_and_leave_none(disk, api):
    sandbox = limited(api, "16Mi")
    assert said(sandbox, "dd if=/dev/zero of=/root/first bs=1M count=6")[0] == 0
    snapshot = api.call("POST", f"{sandbox.path}/snapshots", None)
    assert len(disk.projects()) == 1, "nobody writes to a snapshot"
    fork = sandbox.fork()
    made = Sandbox(api, api.call("POST", "/api/v1/sandboxes",
                                 {"snapshot_id": snapshot["id"]})["sandbox_id"])
    change(made, "20Mi")
    api.call("POST", f"{sandbox.path}/rootfs/restore", {"snapshot_id": snapshot["id"]})
    for copy, mebibytes in ((fork, 16), (made, 20), (sandbox, 16)):
        assert enforced_by(copy) == "quota"
        assert said(copy, "stat -c %s /root/first")[1] == b"6291456\n"
        assert said(copy, "rm /root/first")[0] == 0
        fills(disk, copy, mebibytes)
    known = disk.projects().values()
    assert sorted(limit >> 10 for _, limit, _ in known) == [16, 16, 20]
    assert {entries for _, _, entries in known} == {65536}
    for copy in (fork, made, sandbox):
        copy.delete()
    api.call("DELETE", f"{SNAPSHOTS}/{snapshot['id']}")
    assert disk.projects() == {}


def test_nobody_leaves_the_project_from_inside(disk, api):
    sandbox = limited(api, "16Mi")
    [number] = disk.projects()
    assert said(sandbox, "echo text > /root/file; mkdir /root/dir")[0] == 0
    for path in ("/root/file", "/root/dir"):
        assert f"projid = {number}".encode() in said(sandbox, f"xfs_io -r -c lsproj {path}")[1]
        _, told = said(sandbox, f"xfs_io -r -c 'chproj 7' {path}; xfs_io -r -c 'chattr -P' {path}")
        assert b"Invalid argument" in told or b"not permitted" in told, told
        assert f"projid = {number}".encode() in said(sandbox, f"xfs_io -r -c lsproj {path}")[1]
    fills(disk, sandbox, 16)


# The tool turns off those of XFS alone.
@pytest.mark.parametrize("disk", ["xfs"], indirect=True)
def test_limits_that_are_turned_off_are_checked_until_they_are_back(disk, api):
    sandbox = limited(api, "16Mi")
    assert enforced_by(sandbox) == "quota"
    disk.limits("disable")
    assert enforced_by(sandbox) == "checked"
    sandbox.pause()
    sandbox.resume()
    another = limited(api, "16Mi")
    for each in (sandbox, another):
        assert said(each, "dd if=/dev/zero of=/root/some bs=1M count=20")[0] == 0
        wait_until(lambda each=each: each.activity()["disk_full"], 60, "a disk that is full")
    disk.limits("enable")
    assert (enforced_by(sandbox), enforced_by(another)) == ("quota", "checked")
    sandbox.resume()
    code, told = said(sandbox, "dd if=/dev/zero of=/root/more bs=1M count=1")
    assert code != 0 and TOLD[disk.kind] in told


def test_what_is_counted_only_is_checked(disk, serve):
    disk.unmount()
    disk.mount({"ext4": "defaults", "xfs": "pqnoenforce"}[disk.kind])
    server = serve(UNIT, data=f"{disk.folder}/counted")
    assert "counts projects and limits none: mount it with prjquota" in server.doctor()
    api = Api(server)
    assert api.bare("GET", "/healthz")["capabilities"]["disk_limit"] == "checked"
    sandbox = limited(api, "16Mi")
    assert ended(sandbox, "echo text > /root/file")["exit_code"] == 0
    assert enforced_by(sandbox) == "checked"
    assert disk.projects() == {}
