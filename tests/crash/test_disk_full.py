"""A full disk blocks the writer and loses nothing (the data directory is a small tmpfs)."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from outlive_testing.api import Api, Failure, Sandbox
from outlive_testing.clients import Follower
from outlive_testing.lines import EXIT_CODE, Check, command
from outlive_testing.server import Server, wait_until

DISK_BYTES = 64 << 20
RESERVE_BYTES = 8 << 20
RESERVE_STEP_BYTES = 1 << 20
# Beside the files of `/etc`, which the image `host` copies.
DISK_FILES = 1300
RESERVE_FILES = 256
CONTEXT = {"type": "cmd", "cmd": {"command": ["true"]}}


@pytest.fixture
def small_disk():
    yield from mounted(f"size={DISK_BYTES}")


@pytest.fixture
def disk_of_few_files():
    copied = sum(len(folders) + len(files) for _, folders, files in os.walk("/etc"))
    yield from mounted(f"size={2 * DISK_BYTES},nr_inodes={DISK_FILES + copied}")


def mounted(options: str):
    if os.geteuid() != 0:
        assert os.environ.get("CI") != "true", "mounting a small disk needs root in CI"
        pytest.skip("mounting a small disk needs root")
    folder = Path(tempfile.mkdtemp(prefix="outlive-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
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


def fill(sandbox: Sandbox) -> None:
    assert sandbox.sh("cat /dev/zero > /big").wait_exit()["exit_code"] == 1


def take_the_rest(file: Path) -> None:
    """Leaves no byte of the disk."""
    with open(file, "ab", buffering=0) as ballast:
        for size in (1 << 20, 4096):
            try:
                while ballast.write(b"\0" * size) == size:
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
    assert free_bytes(file.parent) == 0


def wait_reserve(folder: Path) -> None:
    reserve = folder / "reserve"
    wait_until(lambda: reserve.stat().st_blocks * 512 >= RESERVE_BYTES, 30, "a whole reserve")


def refused(call, folder: Path) -> None:
    with pytest.raises(Failure) as full:
        call()
    assert (full.value.status, full.value.code) == (507, "disk_full")
    assert str(folder) in full.value.error["message"]


@pytest.mark.timeout(180)
def test_a_sandbox_that_filled_the_disk_is_deleted_and_all_is_well_again(small_disk):
    with Server(data=small_disk) as server:
        api = Api(server)
        culprit, other = api.sandbox(), api.sandbox()
        wait_reserve(small_disk)
        fill(culprit)
        take_the_rest(small_disk / "ballast")
        assert api.bare("GET", "/readyz") == {"status": "ready", "disk_full": True}
        # What takes space is refused, what takes none works.
        refused(api.sandbox, small_disk)
        refused(other.fork, small_disk)
        refused(lambda: api.call("POST", f"{other.path}/snapshots", {}), small_disk)
        other.suspend()
        other.wake()
        other.pause()
        refused(other.resume, small_disk)
        take_the_rest(small_disk / "ballast")
        culprit.delete()
        (small_disk / "ballast").unlink()
        wait_reserve(small_disk)
        assert api.bare("GET", "/readyz") == {"status": "ready"}
        other.resume()
        assert other.sh("echo room").wait_exit()["exit_code"] == 0
        api.sandbox().delete()
        other.delete()


@pytest.mark.timeout(180)
def test_a_sandbox_that_takes_every_byte_that_is_freed_is_deleted(small_disk):
    with Server(data=small_disk) as server:
        api = Api(server)
        culprit, other = api.sandbox(), api.sandbox()
        wait_reserve(small_disk)
        culprit.sh("while :; do cat /dev/zero >> /big; done 2> /dev/null")
        wait_until(lambda: free_bytes(small_disk) == 0, 60, "a full disk")
        for ttl in range(3600, 3650):
            api.call("PUT", other.path, {"config": {"ttl": ttl}})
        culprit.delete()
        wait_reserve(small_disk)
        assert other.sh("echo room").wait_exit()["exit_code"] == 0
        other.delete()


@pytest.mark.timeout(180)
def test_a_sandbox_that_prints_is_suspended_on_a_full_disk(small_disk):
    # Its journals had no space, though the reserve had: 503, time and again.
    with Server(data=small_disk) as server:
        api = Api(server)
        flooding, printing = api.sandbox(), api.sandbox()
        wait_reserve(small_disk)
        printing.sh("while :; do echo line; sleep 0.02; done")
        flooding.session("cat", "/dev/zero", event_retention={"max_bytes": 1 << 40})
        wait_until(lambda: free_bytes(small_disk) == 0, 60, "a full disk")
        printing.suspend()
        printing.wake()
        flooding.suspend()
        take_the_rest(small_disk / "ballast")
        printing.suspend()
        take_the_rest(small_disk / "ballast")
        printing.pause()
        flooding.delete()
        printing.delete()


@pytest.mark.timeout(180)
def test_a_server_starts_on_a_full_disk_time_and_again(small_disk):
    with Server(data=small_disk) as server:
        culprit = Api(server).sandbox()
        wait_reserve(small_disk)
        fill(culprit)
        for end in (server.terminate, server.kill, server.terminate):
            take_the_rest(small_disk / "ballast")
            end()
            take_the_rest(small_disk / "ballast")
            server.start()
        assert "the disk of the data folder is full" in server.log_text()
        take_the_rest(small_disk / "ballast")
        Sandbox(Api(server), culprit.id).delete()
        assert free_bytes(small_disk) > 0
        (small_disk / "ballast").unlink()
        wait_reserve(small_disk)
        Api(server).sandbox().delete()


@pytest.mark.timeout(180)
def test_starts_under_a_greedy_workload_use_up_no_reserve(small_disk):
    # Each start gave a part of the reserve to whoever was faster; without any the server
    # couldn't write its address, and the culprit couldn't be deleted.
    with Server(data=small_disk) as server:
        culprit = Api(server).sandbox()
        wait_reserve(small_disk)
        culprit.sh("while :; do cat /dev/zero >> /big; done 2> /dev/null")
        wait_until(lambda: free_bytes(small_disk) == 0, 60, "a full disk")
        for _ in range(RESERVE_BYTES // RESERVE_STEP_BYTES + 2):
            server.kill()
            server.start()
        assert (small_disk / "reserve").stat().st_blocks * 512 >= RESERVE_BYTES // 2
        Sandbox(Api(server), culprit.id).delete()
        wait_reserve(small_disk)


@pytest.mark.timeout(180)
def test_a_first_start_without_room_for_a_reserve_makes_it_later(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (DISK_BYTES - (3 << 20)))
    with Server(data=small_disk) as server:
        refused(Api(server).sandbox, small_disk)
        ballast.unlink()
        wait_reserve(small_disk)
        Api(server).sandbox().delete()


def take_all_files(folder: Path) -> None:
    """Leaves no room for another file."""
    folder.mkdir(exist_ok=True)
    count = len(os.listdir(folder))
    with pytest.raises(OSError) as full:
        while True:
            (folder / str(count)).touch()
            count += 1
    assert full.value.errno == errno.ENOSPC


def give_back(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def wait_reserve_of_files(folder: Path) -> None:
    reserve = folder / "reserve.files"
    wait_until(lambda: reserve.exists() and len(os.listdir(reserve)) == RESERVE_FILES, 30,
               "a whole reserve of files")


@pytest.mark.timeout(180)
def test_a_disk_that_takes_no_more_files_can_be_freed(disk_of_few_files):
    # Bytes there were enough: suspending, pausing and starting the server failed all the same.
    disk = disk_of_few_files
    with Server(data=disk) as server:
        api = Api(server)
        culprit, other, third = api.sandbox(), api.sandbox(), api.sandbox()
        running = other.session("cat")
        wait_reserve_of_files(disk)
        ballast = disk / "ballast"
        ballast.mkdir()
        script = "i=0; while : > /f$i; do i=$((i + 1)); done"
        assert culprit.sh(script).wait_exit()["exit_code"] != 0
        take_all_files(ballast)
        assert api.bare("GET", "/readyz") == {"status": "ready", "disk_full": True}
        refused(api.sandbox, disk)
        refused(other.fork, disk)
        refused(lambda: api.call("POST", f"{other.path}/snapshots", {}), disk)
        # What is there takes input and ends; what has no files yet gets none.
        refused(lambda: other.sh("echo room"), disk)
        refused(lambda: api.call("POST", f"{other.path}/contexts", CONTEXT), disk)
        running.input(b"one\n")
        running.signal("TERM")
        assert running.wait_exit()["reason"] == "killed"
        for _ in range(2):
            other.suspend()
            take_all_files(ballast)
            other.wake()
            take_all_files(ballast)
        other.pause()
        take_all_files(ballast)
        refused(other.resume, disk)
        for end in (server.terminate, server.kill):
            take_all_files(ballast)
            end()
            take_all_files(ballast)
            server.start()
        take_all_files(ballast)
        api = Api(server)
        Sandbox(api, third.id).delete()
        Sandbox(api, culprit.id).delete()
        give_back(ballast)
        wait_reserve_of_files(disk)
        assert api.bare("GET", "/readyz") == {"status": "ready"}
        other = Sandbox(api, other.id)
        other.resume()
        assert other.sh("echo room").wait_exit()["exit_code"] == 0
        api.sandbox().delete()
        other.delete()
