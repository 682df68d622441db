"""The supervisor may die at any moment; the keeper holds what matters."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from outlive_testing import processes
from outlive_testing.api import Failure, output, payload, types
from outlive_testing.server import wait_until
from test_cli import cli, finished


def kill_supervisor(sandbox, number=signal.SIGKILL) -> None:
    (old,) = processes.supervisors(sandbox.id)
    processes.kill(old, number)
    wait_until(lambda: processes.supervisors(sandbox.id) not in ([], [old]), 15, "the next supervisor")


def test_a_stop_goes_on_after_a_crash(own):  # case S16
    import threading
    session = own.sh("trap '' TERM; echo up; while :; do sleep 0.1; done",
                     lifecycle={"stop_grace_period_seconds": 2})
    session.wait_output(b"up\n")

    def stop():
        try:
            session.stop()
        except AssertionError:
            pass  # The call may be cut by the crash; the stop itself must go on.

    caller = threading.Thread(target=stop)
    caller.start()
    with session.follow() as stream:
        for event in stream:
            if event["type"] == "attempt.stopping":
                break
    kill_supervisor(own)
    session.wait_phase("stopped", seconds=10)
    caller.join(20)


def test_a_writer_notices_nothing(own):  # case S17
    session = own.sh("i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line-$i; sleep 0.001; done; exit 11")
    session.wait_output(b"line-1\n")
    (supervisor,) = processes.supervisors(own.id)
    processes.kill(supervisor, signal.SIGSTOP)
    time.sleep(1)  # The row asks for a second without a supervisor.
    processes.kill(supervisor)
    exited = session.wait_exit(60)
    assert exited["exit_code"] == 11
    assert output(session.events()) == b"".join(b"line-%d\n" % n for n in range(1, 3001))


def test_a_supervisor_that_hangs_ends_calls_and_goes_on_as_if_nothing_had_been(own):
    """Calls waited for it without an end."""
    session = own.sh("i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo $i; sleep 0.1; done")
    reader = own.sh("read line; echo got $line; read line; echo got $line")
    session.wait_output(b"1\n")
    (supervisor,) = processes.supervisors(own.id)
    processes.kill(supervisor, signal.SIGSTOP)
    try:
        calls = [
            lambda: own.sh("echo made", key="once"),
            lambda: reader.input(b"hello\n", input_id="one"),
            lambda: reader.signal("WINCH"),
        ]
        with ThreadPoolExecutor(len(calls)) as several:
            begun = time.monotonic()
            asked = [several.submit(call) for call in calls]
            silent = [one.exception() for one in asked]
            assert 8 < time.monotonic() - begun < 25
        for failure in silent:
            assert isinstance(failure, Failure), failure
            assert (failure.status, failure.code) == (503, "unavailable"), failure
            assert failure.headers["Retry-After"] == "1"
            assert "does not answer" in str(failure)
        assert own.get()["runtime"]["silent"] is True
        _, told, _ = finished(cli(own.api, "sandbox", "get", own.id))
        assert b"running, but its supervisor does not answer" in told, told
        # Its files answer who only looks.
        assert session.get()["phase"] == "running"
    finally:
        processes.kill(supervisor, signal.SIGCONT)
    made = own.sh("echo made", key="once")
    assert made.wait_exit()["exit_code"] == 0
    assert output(made.events()) == b"made\n"
    assert len(own.sessions()) == 3
    assert reader.input(b"hello\n", input_id="one")["duplicate"] is True
    reader.input(b"again\n")
    assert reader.wait_exit()["exit_code"] == 0
    assert output(reader.events()) == b"got hello\ngot again\n"
    assert session.wait_exit()["exit_code"] == 0
    assert output(session.events()) == b"".join(b"%d\n" % n for n in range(1, 201))
    assert "silent" not in own.get()["runtime"]
    assert processes.supervisors(own.id) == [supervisor]


def test_a_freeze_that_met_a_supervisor_that_hung_leaves_the_sandbox_running(own):
    session = own.sh("while :; do echo up; sleep 0.1; done")
    session.wait_output(b"up\n")
    (supervisor,) = processes.supervisors(own.id)
    processes.kill(supervisor, signal.SIGSTOP)
    try:
        with pytest.raises(Failure) as refused:
            own.suspend()
        assert (refused.value.status, refused.value.code) == (503, "unavailable")
    finally:
        processes.kill(supervisor, signal.SIGCONT)
    own.wait_state("running", 30)
    session.wait_output(b"up\n", after=session.get()["cursor"]["latest"])
    # Nothing of the old one is left that could thaw it later.
    own.suspend()
    assert session.get()["phase"] == "paused"
    own.wake()
    session.wait_output(b"up\n", after=session.get()["cursor"]["latest"])


def test_attachments_go_on_from_their_cursor(own):  # case S20
    session = own.sh("i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done")
    after = session.wait_output(b"\n10\n")
    kill_supervisor(own)
    with session.follow(after=after) as stream:
        events = []
        for event in stream:
            events.append(event)
            if len(events) > 50:
                break
    assert [event["seq"] for event in events] == list(range(after + 1, after + 52))
    numbers = [int(n) for n in b"".join(map(payload, events)).split()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_the_keeper_keeps_every_descriptor(own):  # case S22
    sessions = [own.sh("stty -echo; echo go; while read l; do echo got $l; done", pty=True) for _ in range(5)]
    for session in sessions:
        session.wait_output(b"go\r\n")
    (keeper,) = processes.keepers(own.id)

    def held():
        return sorted(os.readlink(f"/proc/{keeper}/fd/{fd}").split(":")[0]
                      for fd in os.listdir(f"/proc/{keeper}/fd"))

    own.sessions()
    before = held()
    for _ in range(10):
        kill_supervisor(own)
        own.sessions()
    wait_until(lambda: held() == before, 10, "the same descriptors")
    for number, session in enumerate(sessions):
        session.input(b"%d\n" % number)
        session.wait_output(b"got %d\r\n" % number)


def test_a_poisoned_session_spares_the_others(own):  # case S23
    own.session("/usr/bin/yes", event_retention={"max_bytes": 1 << 20})
    others = [own.session("/bin/cat") for _ in range(9)]
    kill_supervisor(own)
    own.sessions()
    for session in others:
        begun = time.monotonic()
        session.input(b"hello\n")
        assert time.monotonic() - begun < 0.5
        session.wait_output(b"hello\n")


def test_a_clock_set_back_does_not_stop_a_follower(own):  # case S35
    # The journal's clock never goes back: times rise with seq even over a supervisor's restart.
    session = own.sh("while :; do echo tick; sleep 0.02; done")
    session.wait_output(b"tick\n")
    kill_supervisor(own)
    after = session.get()["cursor"]["latest"]
    with session.follow(after=after) as stream:
        assert next(iter(stream))["seq"] == after + 1
    times = [event["occurred_at"].rstrip("Z").ljust(29, "0") for event in session.events()]
    assert times == sorted(times)


def test_restart_windows_survive_the_supervisor(own):  # case S30
    session = own.sh("exit 1", lifecycle={"restart": {
        "policy": "on_failure", "max_restarts": 3, "initial_backoff_ms": 400, "max_backoff_ms": 400}})
    for _ in range(3):
        own.sessions()
        kill_supervisor(own)
    session.wait_phase("failed", seconds=30)
    assert types(session.events()).count("attempt.starting") == 4
