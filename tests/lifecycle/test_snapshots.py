"""Snapshots on a real host: one instant, whole or not there, and a way back."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, Failure, Sandbox, output, types
from outlive_testing.server import Server, wait_until

SNAPSHOTS = "/api/v1/sandbox-rootfs-snapshots"
# Enough that a copy lasts until it is interrupted: many small files, and they are not shared.
MANY = "mkdir /root/many; for d in $(seq 20); do mkdir /root/many/$d; " \
       "for f in $(seq 100); do echo $d-$f > /root/many/$d/$f; done; done"
FILES = 20 * 100


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def api(server):
    return Api(server)


@pytest.fixture
def own(api):
    made = api.sandbox()
    yield made
    made.delete()


def take(sandbox: Sandbox, **asked) -> dict:
    return sandbox.api.call("POST", f"{sandbox.path}/snapshots", asked or None)


def made_from(api: Api, snapshot: dict) -> Sandbox:
    body = {"snapshot_id": snapshot["id"]}
    return Sandbox(api, api.call("POST", "/api/v1/sandboxes", body)["sandbox_id"])


def restore(sandbox: Sandbox, snapshot: dict) -> dict:
    return sandbox.api.call("POST", f"{sandbox.path}/rootfs/restore", {"snapshot_id": snapshot["id"]})


def remove(api: Api, snapshot: dict) -> None:
    api.call("DELETE", f"{SNAPSHOTS}/{snapshot['id']}")


def printed(sandbox: Sandbox, line: str) -> bytes:
    session = sandbox.sh(line)
    ended = session.wait_exit()
    assert ended["exit_code"] == 0, output(session.events())
    return output(session.events(), "stdout")


def copiers() -> list[int]:
    return [pid for pid, arguments in processes.titles()
            if len(arguments) == 2 and arguments[0].endswith("outlive-agent") and arguments[1] == "copy"]


def test_a_snapshot_under_a_flood_is_one_instant_and_outlives_its_source(api):
    source = api.sandbox()
    # Two files that a program writes one after the other are never further apart than that.
    writer = source.sh("i=0; echo 0 > /root/a; echo 0 > /root/b; echo up; "
                       "while :; do i=$((i+1)); echo $i > /root/a; echo $i > /root/b; done")
    writer.wait_output(b"up\n")
    snapshots = [take(source) for _ in range(5)]
    assert writer.get()["phase"] == "running", "the source went on"
    assert writer.get()["attempt"]["number"] == 1
    source.delete()
    counted = []
    for snapshot in snapshots:
        made = made_from(api, snapshot)
        assert made.sessions() == []
        first, second = (part.strip() for part in printed(made, "cat /root/a; echo -; cat /root/b").split(b"-"))
        # Opening a file anew empties it for a moment, in which the picture may be taken.
        assert first and second or (first == b"") != (second == b"")
        if first and second:
            assert 0 <= int(first) - int(second) <= 1
        counted.append(int(first or second))
        made.delete()
        remove(api, snapshot)
    assert counted == sorted(counted) and counted[0] < counted[-1]


def test_a_restore_goes_back_to_the_files_and_not_to_the_events(own, api):
    printed(own, "echo old > /root/file; touch /usr/kept; echo 1 > /root/count")
    snapshot = take(own, name=f"base-{own.id}")
    counter = own.sh("n=$(cat /root/count); echo $((n+1)) > /root/count; cat /root/count; exec sleep 1000",
                     lifecycle={"runtime_recovery": "restart"})
    counter.wait_output(b"2\n")
    printed(own, "echo new > /root/file; rm /usr/kept; touch /root/extra")
    before = counter.events()
    answer = restore(own, snapshot)
    assert answer == {"sandbox_id": own.id, "snapshot_id": snapshot["id"], "status": "running"}
    assert own.get()["runtime_generation"] == 2
    # The events before it are all there; the session began again, on the files of the snapshot.
    counter.wait_output(b"2\n", after=before[-1]["seq"])
    after = counter.events()
    assert after[:len(before)] == before
    later = types(after[len(before):])
    assert later.index("attempt.exited") < later.index("attempt.started"), later
    assert counter.get()["attempt"]["number"] == 2
    assert printed(own, "cat /root/file; ls /usr/kept; ls /root") == b"old\n/usr/kept\ncount\nfile\n"
    # One that is paused stays so, and its next runtime has the files.
    printed(own, "echo newer > /root/file")
    own.pause()
    assert restore(own, snapshot)["status"] == "paused"
    assert own.get()["status"] == "paused"
    assert printed(own, "cat /root/file") == b"old\n"
    own.suspend()
    assert restore(own, snapshot)["status"] == "paused"
    own.resume()
    assert counter.wait_phase("running")["attempt"]["number"] == 4
    remove(api, snapshot)


@pytest.fixture
def full(api):
    """A sandbox with many files, and what tells them from others."""
    made = api.sandbox()
    printed(made, MANY)
    yield made
    made.delete()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def cut_off(server: Server, api: Api, path: str, body: dict, begun) -> None:
    """Makes a call and kills the server in the midst of its copy; the next one is up then."""
    def ask():
        try:
            api.call("POST", path, body)
        except (OSError, Failure, json.JSONDecodeError):
            pass  # The server is gone.

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(begun, 30, "the copy")
    server.kill()
    asking.join()
    server.start()
    wait_until(lambda: not copiers(), 30, "the end of the copier")


def test_a_server_killed_in_the_midst_of_a_copy_leaves_no_half(server, api, full):
    folder = server.data / "snapshots"
    sandboxes = server.data / "sandboxes"

    def some(root):
        return lambda: sum(1 for _ in root().glob("upper/root/root/many/*/*")) > 100

    def new_in(parent, before):
        return lambda: next(path for path in [*parent.iterdir(), parent / "none"] if path.name not in before)

    def snapshots():
        return api.call("GET", SNAPSHOTS)["snapshots"]

    cut_off(server, api, f"{full.path}/snapshots", {"name": "half"}, some(new_in(folder, set())))
    # One that was done by then is whole; everything else goes.
    wait_until(lambda: names(folder) == {one["id"] for one in snapshots()}, 30, "the end of the half snapshot")
    for one in snapshots():
        assert one["files"] >= FILES
        remove(api, one)
    # Its source goes on, and the name is free.
    whole = take(full, name="half")
    assert whole["files"] >= FILES and whole["size_bytes"] > FILES

    before = names(sandboxes)
    cut_off(server, api, "/api/v1/sandboxes", {"snapshot_id": whole["id"]}, some(new_in(sandboxes, before)))

    def running():
        found = api.call("GET", "/api/v1/sandboxes")["sandboxes"]
        return {one["id"] for one in found if one["status"] == "running"}
    wait_until(lambda: names(sandboxes) == running(), 30, "the end of the half sandbox")
    for made in (Sandbox(api, name) for name in names(sandboxes) - before):
        assert printed(made, "find /root/many -type f | wc -l") == b"%d\n" % FILES
        made.delete()

    # A restore is finished by the next server.
    printed(full, "rm -r /root/many; echo new > /root/file")
    draft = sandboxes / full.id / "restore.draft"
    cut_off(server, api, f"{full.path}/rootfs/restore", {"snapshot_id": whole["id"]}, some(lambda: draft))
    wait_until(lambda: full.get()["runtime_generation"] == 2, 30, "the end of the restore")
    assert printed(full, "find /root/many -type f | wc -l; ls /root") == b"%d\nmany\n" % FILES
    left = names(sandboxes / full.id)
    assert not {name for name in left if name.startswith("restore")}, left
    remove(api, whole)


def test_a_copy_is_followed_and_its_source_is_seen_meanwhile(own, api):
    lines = []

    def follow():
        connection = api.connection()
        connection.request("POST", f"{own.path}/snapshots",
                           headers=api.headers({"Accept": "application/x-ndjson"}))
        response = connection.getresponse()
        assert response.status == 200
        lines.extend(json.loads(line) for line in response)
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        wait_until(lambda: lines or copiers(), 10, "the copy")
        assert own.get()["status"] == "running"
        assert own.sessions() == []
        following.result()
    assert lines[-1]["type"] == "done", lines
    snapshot = lines[-1]["result"]
    files = [line["files"] for line in lines[:-1]]
    assert files == sorted(files) and (files == [] or files[-1] <= snapshot["files"])
    remove(api, snapshot)


# One other user reads and writes; the owner's group may nothing.
SHARE = """
import os, struct
nobody = 2**32 - 1
entries = (1, 6, nobody), (2, 6, 2000), (4, 0, nobody), (16, 6, nobody), (32, 0, nobody)
value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
os.close(os.open("/root/shared", os.O_CREAT))
os.setxattr("/root/shared", "system.posix_acl_access", value)
"""
SHOWN = "stat -c '%a %u' /root/shared; /usr/bin/python3 -c 'import os; " \
        "print(os.getxattr(\"/root/shared\", \"system.posix_acl_access\").hex())'"


# Copies had the mode 660 and no list: the group could read and write.
def test_copies_keep_access_lists_for_their_own_users(api, own):
    assert own.session("/usr/bin/python3", "-c", SHARE).wait_exit()["exit_code"] == 0
    before = printed(own, SHOWN)
    assert before.startswith(b"660 0\n")
    snapshot = take(own)
    printed(own, "rm /root/shared")
    restore(own, snapshot)
    assert printed(own, SHOWN) == before
    for copy in (own.fork(), made_from(api, snapshot)):
        assert printed(copy, SHOWN) == before
        copy.delete()
    remove(api, snapshot)


def test_another_tenants_snapshot_is_not_there(server, api, own):
    snapshot = take(own)
    stranger = Api(server, api.key("stranger"))
    theirs = stranger.sandbox()
    for call in (
        lambda: stranger.call("GET", f"{SNAPSHOTS}/{snapshot['id']}"),
        lambda: remove(stranger, snapshot),
        lambda: made_from(stranger, snapshot),
        lambda: restore(theirs, snapshot),
    ):
        with pytest.raises(Failure) as refused:
            call()
        assert (refused.value.status, refused.value.code) == (404, "snapshot_not_found")
    assert stranger.call("GET", SNAPSHOTS) == {"snapshots": [], "count": 0}
    theirs.delete()
    remove(api, snapshot)
