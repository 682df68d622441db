"""Forks: what a copy has of its source, and what it has for itself alone."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from outlive_testing import processes
from outlive_testing.api import Failure, output
from outlive_testing.server import wait_until

FORKS = 8
# Everything that must not be the same in two sandboxes, as one line of JSON.
IDENTITY = """
import json, os, socket, uuid
print(json.dumps({
    "random": os.urandom(16).hex(), "uuid": str(uuid.uuid4()), "machine": open("/etc/machine-id").read().strip(),
    "boot": socket.gethostname(), "file": open("/root/kept").read(),
}))
"""


def identity(sandbox) -> dict:
    session = sandbox.session("python3", "-c", IDENTITY)
    ended = session.wait_exit()
    assert ended["exit_code"] == 0, output(session.events())
    return json.loads(output(session.events(), "stdout"))


def test_forks_share_files_and_nothing_else(api, own, server):  # case J9
    mark = f"forked-{own.id}"
    source = own.sh(f"echo kept > /root/kept; echo up; : {mark}; exec sleep 1000", key="a-key")
    source.wait_output(b"up\n")
    first = identity(own)
    with ThreadPoolExecutor(FORKS) as pool:
        forks = list(pool.map(lambda _: own.fork(), range(FORKS)))
    try:
        assert len({own.id, *(fork.id for fork in forks)}) == FORKS + 1
        for fork in forks:
            got = fork.get()
            assert (got["status"], got["paused"], got["runtime_generation"]) == ("paused", True, 1)
            assert fork.sessions() == []
            assert processes.supervisors(fork.id) == [], "a fork that nobody used runs"
        found = [identity(fork) for fork in forks]
        for kind in ("random", "uuid", "machine", "boot"):
            assert len({one[kind] for one in [first, *found]}) == FORKS + 1, kind
        assert {one["file"] for one in found} == {"kept\n"}
        # The source's command runs once, where it ran before, and its key belongs to it alone.
        assert source.get()["attempt"]["id"] == source.made["attempt"]["id"]
        assert source.get()["phase"] == "running"
        for fork in forks:
            assert [one["id"] for one in fork.sessions() if one["id"] == source.id] == []
            owner = (server.data / "sandboxes" / fork.id / "state/owner").read_text()
            assert owner.strip() == fork.id
            again = fork.session("/bin/true", key="a-key")
            assert again.id != source.id
    finally:
        for fork in forks:
            fork.delete()


def test_a_fork_is_a_picture_of_one_instant(own):
    # Two files that a program writes one after the other are never further apart than that.
    writer = own.sh("i=0; echo 0 > /root/a; echo 0 > /root/b; echo up; "
                    "while :; do i=$((i+1)); echo $i > /root/a; echo $i > /root/b; done")
    writer.wait_output(b"up\n")
    fork = own.fork()
    try:
        session = fork.sh("cat /root/a; echo -; cat /root/b")
        session.wait_exit()
        first, second = (part.strip() for part in output(session.events()).split(b"-"))
        # Opening a file anew empties it for a moment, in which the picture may be taken.
        assert first and second or (first == b"") != (second == b"")
        if first and second:
            assert 0 <= int(first) - int(second) <= 1
        assert writer.get()["phase"] == "running", "the source went on"
    finally:
        fork.delete()


def test_directories_nested_too_deep_to_copy_are_told_as_the_callers_to_mend(own):
    source = own
    dig = (
        "import os; os.chdir('/root'); "
        "[(os.mkdir('d' * 100), os.chdir('d' * 100)) for _ in range(500)]"
    )
    assert source.session("/usr/bin/python3", "-c", dig).wait_exit(60)["exit_code"] == 0
    with pytest.raises(Failure) as refused:
        source.fork()
    assert (refused.value.status, refused.value.code) == (409, "conflict")
    assert "nested deeper than 400" in str(refused.value) and len(str(refused.value)) < 1000
    assert source.sh("rm -rf /root/d*").wait_exit(60)["exit_code"] == 0
    source.fork().delete()


def test_a_resting_source_is_forked_as_it_rests(own, api):
    own.sh("echo kept > /root/kept").wait_exit()
    for rest, state in ((own.suspend, "frozen"), (own.pause, "released")):
        rest()
        fork = own.fork(ttl=600, hard_ttl=7200)
        got = fork.get()
        assert own.activity()["state"] == state, "the fork woke it"
        # Deletion is due from its making on, the pause from its first start on.
        assert got["hard_expires_at"] > got["created_at"] > got["expires_at"] == "0001-01-01T00:00:00Z"
        session = fork.sh("cat /root/kept")
        session.wait_exit()
        assert output(session.events()) == b"kept\n"
        started = fork.get()
        assert started["hard_expires_at"] == got["hard_expires_at"] > started["expires_at"]
        assert started["expires_at"] > got["created_at"]
        fork.delete()


def halt_copier(server) -> int:
    """Has a copy that goes on stand still; its process."""
    found: list[int] = []

    def is_met() -> bool:
        found.extend(pid for pid, arguments in processes.titles()
                     if arguments[1:2] == ["copy"] and processes.status(pid, "PPid") == str(server.pid)
                     and processes.kill(pid, signal.SIGSTOP))
        return bool(found)

    wait_until(is_met, 30, "a copier")
    return found[0]


def test_a_source_is_deleted_under_a_copy_that_takes_long(api, server):
    places = set((server.data / "sandboxes").iterdir())
    script = "mkdir /root/many; cd /root/many; i=0; while [ $i -lt 50000 ]; do : > $i; i=$((i + 1)); done"
    for copy in ("fork", "restore"):
        source = api.sandbox()
        assert source.sh(script).wait_exit(120)["exit_code"] == 0
        snapshot = None
        if copy == "restore":
            snapshot = api.call("POST", f"{source.path}/snapshots", {})["id"]
        with ThreadPoolExecutor(1) as pool:
            restore = ("POST", f"{source.path}/rootfs/restore", {"snapshot_id": snapshot})
            copying = pool.submit(source.fork if copy == "fork" else lambda: api.call(*restore))
            copier = halt_copier(server)
            source.delete()
            with pytest.raises(Failure) as gone:
                copying.result()
        assert (gone.value.status, gone.value.code) == (404, "not_found"), copy
        assert processes.status(copier, "PPid") is None, copy
        if snapshot:
            api.call("DELETE", f"/api/v1/sandbox-rootfs-snapshots/{snapshot}")
    wait_until(lambda: set((server.data / "sandboxes").iterdir()) <= places, 30, "half a fork gone")
