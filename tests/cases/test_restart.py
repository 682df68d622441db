"""Restarts wait, grow, stop at their limit, and lose against a stop."""

from __future__ import annotations

import random
import time
from datetime import datetime

from outlive_testing import processes
from outlive_testing.api import types
from outlive_testing.server import wait_until


def at(event) -> float:
    return datetime.fromisoformat(event["occurred_at"]).timestamp()


def follow_to(session, kind, seconds=60):
    with session.follow(timeout=seconds) as stream:
        events = []
        for event in stream:
            events.append(event)
            if event["type"] == kind:
                return events
    raise AssertionError(f"no {kind} in {types(events)}")


def restart(**fields) -> dict:
    return {"restart": fields}


def test_the_first_restart_waits_too(sandbox):  # case S74
    session = sandbox.sh("exit 1", lifecycle=restart(policy="on_failure", max_restarts=2))
    events = follow_to(session, "session.failed")
    exits = [at(event) for event in events if event["type"] == "attempt.exited"]
    starts = [at(event) for event in events if event["type"] == "attempt.starting"]
    assert starts[1] - exits[0] >= 0.25
    assert starts[2] - exits[1] >= 0.5


def test_a_ready_crash_loop_gives_up(sandbox):  # case J6
    session = sandbox.sh("echo READY; sleep 0.1; exit 1",
                         lifecycle=restart(policy="on_failure"),
                         readiness={"type": "output", "output": "READY"})
    events = follow_to(session, "session.failed")
    assert [event["reason"] for event in events if event["type"] == "session.backoff"] == [
        "250ms", "500ms", "1s", "2s", "4s"]
    assert types(events).count("attempt.starting") == 6
    assert events[-1]["reason"] == "restart_limit_exceeded"
    latest = session.get()["cursor"]["latest"]
    assert session.page(after=latest, wait_ms=1000)["events"] == []


def test_clean_exits_are_no_crash_loop(sandbox):  # case S75
    session = sandbox.sh("sleep 0.3; exit 0", lifecycle=restart(
        policy="always", max_restarts=4, window_seconds=1, initial_backoff_ms=50, max_backoff_ms=200))
    wait_until(lambda: session.get()["restart_count"] >= 6, 30, "six restarts")
    assert "session.failed" not in types(session.events())
    session.delete()


def test_readiness_timeouts_back_off(sandbox):  # cases S76, S77
    session = sandbox.sh("sleep 1000", readiness={"type": "output", "output": "no", "timeout_ms": 100},
                         lifecycle=restart(policy="on_failure", max_restarts=3, initial_backoff_ms=50))
    events = follow_to(session, "session.failed")
    assert [event["reason"] for event in events if event["type"] == "session.backoff"] == [
        "50ms", "100ms", "200ms"]
    exits = [event["reason"] for event in events if event["type"] == "attempt.exited"]
    assert exits == ["readiness_timeout"] * 4
    assert session.wait_phase("failed")


def test_a_signal_restarts_and_a_stop_does_not(sandbox):  # case J7
    session = sandbox.session("/bin/sleep", "1000", lifecycle=restart(
        policy="always", initial_backoff_ms=50))
    session.signal("TERM")
    wait_until(lambda: session.get()["attempt"]["number"] == 2, 10, "the new attempt")
    session.stop()
    assert session.get()["attempt"]["number"] == 2
    session.delete()


def test_a_stop_right_after_the_exit_wins(sandbox):  # case J7
    for _ in range(100):
        session = sandbox.sh("exit 0", lifecycle=restart(policy="always", initial_backoff_ms=1,
                                                        max_backoff_ms=1, max_restarts=100))
        follow_to(session, "attempt.exited")
        session.stop()
        now = session.get()
        assert now["phase"] == "stopped", now
        latest = now["cursor"]["latest"]
        assert session.page(after=latest)["events"] == []
        session.delete()


def test_unlimited_restarts_can_be_said(sandbox):
    session = sandbox.sh("exit 1", lifecycle=restart(
        policy="on_failure", max_restarts=-1, initial_backoff_ms=10, max_backoff_ms=10))
    wait_until(lambda: session.get()["restart_count"] > 12, 30, "more restarts than the default")
    session.delete()


def test_a_crash_storm_shows_no_pid_zero(own):  # case S25
    dice = random.Random(25)
    sessions = [own.session("/bin/sleep", "1000", lifecycle=restart(
        policy="always", max_restarts=3, window_seconds=60, initial_backoff_ms=20, max_backoff_ms=50))
        for _ in range(5)]
    (keeper,) = processes.keepers(own.id)
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        victims = [pid for pid in processes.children(keeper) if processes.status(pid, "Name") == "sleep"]
        if victims:
            processes.kill(dice.choice(victims))
        for session in own.sessions():
            assert session.get("attempt", {}).get("pid") != 0
        time.sleep(0.1)  # The row's own rhythm: ten kills a second.
    for session in sessions:
        now = session.get()
        assert now["restart_count"] <= 3
        if now["phase"] == "failed":
            assert types(session.events())[-1] == "session.failed"
