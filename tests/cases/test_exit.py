"""What is said about an end is true, and said in time."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

from outlive_testing import processes
from outlive_testing.api import output, types
from outlive_testing.server import wait_until


def last(session, seconds=30):
    return session.wait_exit(seconds)


def test_each_cause_has_its_own_reason(sandbox):  # case B4
    def reason_after(session, end):
        end(session)
        exited = last(session)
        return exited["reason"], exited.get("signal")

    sleeper = lambda **more: sandbox.session("/bin/sleep", "1000", **more)
    nothing = lambda session: None
    assert reason_after(sleeper(), lambda s: s.signal("TERM")) == ("killed", "SIGTERM")
    assert reason_after(sleeper(), lambda s: s.signal("KILL")) == ("killed", "SIGKILL")
    assert reason_after(sleeper(), lambda s: s.stop())[0] == "desired_state_stopped"
    assert reason_after(sleeper(lifecycle={"max_lifetime_seconds": 1}), nothing)[0] == "session_expired"
    assert reason_after(sleeper(lifecycle={"idle_timeout_seconds": 1}), nothing)[0] == "session_expired"
    unready = sleeper(readiness={"type": "output", "output": "no", "timeout_ms": 100})
    assert reason_after(unready, nothing)[0] == "readiness_timeout"
    deleted = sleeper()
    with deleted.follow() as stream:
        deleted.delete()
        ends = [event["reason"] for event in stream if event["type"] == "attempt.exited"]
    assert ends in ([], ["session_deleted"])


def test_idle_and_lifetime_are_told_apart(sandbox):  # case B4
    for limit, word in (("idle_timeout_seconds", "idle_timeout"), ("max_lifetime_seconds", "max_lifetime")):
        session = sandbox.session("/bin/sleep", "1000", lifecycle={limit: 1})
        last(session)
        (expired,) = [event for event in session.events() if event["type"] == "session.expired"]
        assert word.split("_")[0] in expired.get("reason", "") or word in str(expired), expired


def test_the_end_is_kept_as_long_as_its_events(sandbox):  # case B5
    session = sandbox.sh("echo out; exit 7", event_retention={"max_age_seconds": 2})
    assert last(session)["exit_code"] == 7
    assert output(session.events()) == b"out\n"
    wait_until(lambda: session.page()["events"] == [], 15, "the events to age away")
    assert session.get()["attempt"]["exit_code"] == 7
    cursor = session.get()["cursor"]
    assert cursor["earliest"] == cursor["latest"] + 1


def test_a_descendant_that_still_writes_is_heard(sandbox):  # case S6
    session = sandbox.sh("(for i in 1 2 3 4 5 6 7 8; do sleep .08; echo $i; done)& exit 0")
    begun = time.monotonic()
    exited = last(session)
    assert exited["exit_code"] == 0
    assert time.monotonic() - begun < 6
    assert output(session.events()) == b"1\n2\n3\n4\n5\n6\n7\n8\n"


def test_a_grandchild_with_the_pipe_does_not_hold_the_exit(sandbox):  # cases S7, F4
    begun = time.monotonic()
    session = sandbox.sh("sleep 30 & echo hi")
    exited = last(session)
    assert time.monotonic() - begun < 2
    assert exited["exit_code"] == 0
    assert output(session.events()) == b"hi\n"
    session.delete()


def test_delete_right_after_the_exit_is_quick(sandbox):  # case S8
    (supervisor,) = processes.supervisors(sandbox.id)
    before = None
    for _ in range(5):
        session = sandbox.sh("sleep 300 & echo hi")
        session.wait_output(b"hi\n")
        begun = time.monotonic()
        session.delete()
        assert time.monotonic() - begun < 6
        before = before or processes.open_files(supervisor)
    wait_until(lambda: processes.open_files(supervisor) <= before, 10, "the files to be closed")


def test_death_by_signal_is_no_success(sandbox):  # case S9
    session = sandbox.session("/bin/sleep", "60", lifecycle={
        "restart": {"policy": "on_failure", "initial_backoff_ms": 50}})
    session.signal("TERM")
    exited = last(session)
    assert (exited["exit_code"], exited["signal"]) == (-1, "SIGTERM")
    wait_until(lambda: session.get()["attempt"]["number"] == 2, 10, "the restart")
    session.stop()
    assert session.get()["phase"] == "stopped"
    session.delete()


def test_no_zombies_are_left(own):  # cases S14, F3
    session = own.sh("i=0; while [ $i -lt 2000 ]; do (sleep .01 &); i=$((i+1)); done; echo done; sleep 1000")
    session.wait_output(b"done\n", 60)
    (keeper,) = processes.keepers(own.id)

    def zombies():
        states = [processes.status(pid, "State") or "" for pid in processes.children(keeper)]
        return sum(state.startswith("Z") for state in states)

    wait_until(lambda: zombies() < 5, 3, "the orphans to be reaped")


def test_an_exit_in_a_storm_of_short_sessions(sandbox):  # case S18
    long = sandbox.session("/bin/sleep", "1000")
    with ThreadPoolExecutor(16) as pool:
        storm = [pool.submit(lambda: sandbox.session("/bin/true").delete()) for _ in range(200)]
        begun = time.monotonic()
        long.signal("KILL")
        exited = last(long)
        took = time.monotonic() - begun
        for short in storm:
            short.result()
    assert exited["signal"] == "SIGKILL"
    assert took < 2


def test_an_exit_while_the_supervisor_was_gone(own):  # case S15
    session = own.session("/bin/sleep", "1000")
    pid_inside = session.get()["attempt"]["pid"]
    (supervisor,) = processes.supervisors(own.id)
    processes.kill(supervisor, signal.SIGSTOP)
    (child,) = processes.with_argument("1000") and [
        pid for pid in processes.children(supervisor) if processes.status(pid, "Name") == "sleep"]
    processes.kill(child)
    processes.kill(supervisor)
    exited = last(session)
    assert exited["exit_code"] == -1
    assert types(session.events()).count("attempt.exited") == 1
    assert pid_inside


def test_a_lost_runtime_invents_no_code(own):  # case S12
    session = own.sh("echo up; sleep 1000", lifecycle={"runtime_recovery": "stop"})
    session.wait_output(b"up\n")
    (keeper,) = processes.keepers(own.id)
    processes.kill(keeper)
    session.wait_phase("stopped", seconds=30)
    (exited,) = [event for event in session.events() if event["type"] == "attempt.exited"]
    assert "exit_code" not in exited
    assert exited["reason"] == "runtime_replaced"


def test_end_of_stream_follows_the_exit_at_once(sandbox):  # case H9
    waits = []
    for _ in range(100):
        session = sandbox.session("/bin/true")
        with session.follow(until_exit=True) as stream:
            for event in stream:
                if event["type"] == "attempt.exited":
                    begun = time.monotonic()
            waits.append(time.monotonic() - begun)
        session.delete()
    assert sorted(waits)[98] < 0.1, sorted(waits)[-5:]
