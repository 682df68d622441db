"""A full disk blocks the writer and loses nothing (the data directory is a small tmpfs)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from outlive_testing.api import Api
from outlive_testing.clients import Follower
from outlive_testing.lines import EXIT_CODE, Check, command
from outlive_testing.server import Server, wait_until

DISK_BYTES = 64 << 20


@pytest.fixture
def small_disk():
    if os.geteuid() != 0:
        assert os.environ.get("CI") != "true", "mounting a small disk needs root in CI"
        pytest.skip("mounting a small disk needs root")
    folder = Path(tempfile.mkdtemp(prefix="outlive-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


def free_bytes(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


@pytest.mark.timeout(180)
def test_a_full_disk_blocks_and_loses_nothing(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (DISK_BYTES // 2))
    with Server(data=small_disk) as server:
        sandbox = Api(server).sandbox()
        session = sandbox.session(*command(0), event_retention={"max_bytes": 1 << 40})
        arrived = Check(b"\n")
        follower = Follower(session, arrived.feed)
        follower.start()
        wait_until(lambda: free_bytes(small_disk) < 8 << 20, 60, "a full disk")
        # While the writer is blocked the session is still answered and can be told what to do.
        assert session.get()["phase"] == "running"
        session.signal("USR1")
        ballast.unlink()
        assert follower.finish(90)["exit_code"] == EXIT_CODE
        arrived.finish()
        assert sandbox.sh("echo room").wait_exit()["exit_code"] == 0
        sandbox.delete()
