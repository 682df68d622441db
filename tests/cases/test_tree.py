"""Ending an attempt ends its whole tree, and nothing else."""

from __future__ import annotations

import time

from outlive_testing import processes
from outlive_testing.api import output, types
from outlive_testing.server import wait_until


def alive(mark: str) -> list[int]:
    return processes.with_argument(mark)


def test_stop_reaches_every_descendant(sandbox):  # cases F1, S69
    session = sandbox.sh("sleep 1000.31 & (setsid sleep 1001.31 &); echo up; wait",
                         lifecycle={"stop_grace_period_seconds": 1})
    session.wait_output(b"up\n")
    wait_until(lambda: alive("1001.31"), what="the child in its own session")
    session.stop()
    assert not alive("1000.31") and not alive("1001.31")


def test_a_lifetime_reaches_every_descendant(sandbox):  # case F2
    session = sandbox.sh("(sleep 300.32; echo late)", lifecycle={
        "max_lifetime_seconds": 2, "stop_grace_period_seconds": 1})
    begun = time.monotonic()
    exited = session.wait_exit()
    assert 1.5 < time.monotonic() - begun < 5
    assert exited["reason"] == "session_expired"
    assert not alive("300.32")
    assert output(session.events()) == b""


def test_a_normal_exit_leaves_or_kills_descendants(sandbox):  # case F6
    left = sandbox.sh("sleep 73.33 & exit 0")
    assert left.wait_exit()["exit_code"] == 0
    assert alive("73.33")
    left.delete()
    assert not alive("73.33")
    killed = sandbox.sh("sleep 74.33 & exit 0", lifecycle={"descendants": "kill"})
    killed.wait_exit()
    wait_until(lambda: not alive("74.33"), 1, "the end of the descendant")


def test_a_stubborn_command_is_killed_after_the_grace(sandbox):  # case F8
    session = sandbox.sh("trap '' TERM; echo up; while :; do sleep 0.1; done",
                         lifecycle={"stop_grace_period_seconds": 1})
    session.wait_output(b"up\n")
    begun = time.monotonic()
    assert session.stop()["phase"] == "stopped"
    assert 0.9 < time.monotonic() - begun < 3


def test_deleting_one_session_spares_the_others(sandbox):  # case F9
    doomed, *others = [sandbox.session("/bin/sleep", "1000") for _ in range(3)]
    pids = [session.get()["attempt"]["pid"] for session in others]
    doomed.delete()
    assert [session.get()["attempt"]["pid"] for session in others] == pids
    assert all("attempt.exited" not in types(session.events()) for session in others)


def test_the_grace_is_bound_to_the_tree_not_the_leader(sandbox):  # case S68
    session = sandbox.sh(
        "trap 'exit 0' TERM; (trap '' TERM; while :; do sleep 0.34; done) & echo up; wait",
        lifecycle={"stop_grace_period_seconds": 1})
    session.wait_output(b"up\n")
    session.stop()
    assert not alive("0.34")
    assert session.get()["phase"] == "stopped"


def test_killed_processes_stay_dead_over_a_resume(own):  # case S70
    session = own.sh("sleep 1000.35 & setsid sleep 1001.35 & echo up; wait")
    session.wait_output(b"up\n")
    session.stop()
    own.pause()
    own.resume()
    assert session.get()["phase"] == "stopped"
    assert not alive("1000.35") and not alive("1001.35")


def test_an_old_attempt_is_never_signalled(sandbox):  # case J8
    import pytest
    from outlive_testing.api import Failure
    session = sandbox.session("/bin/sleep", "1000", io={"mode": "pty"})
    stale = session.made["attempt"]["id"]
    session.attempt(replace=True)
    for call in (lambda: session.signal("KILL", expected_attempt_id=stale),
                 lambda: session.resize(10, 10, expected_attempt_id=stale),
                 lambda: session.input(b"x", expected_attempt_id=stale)):
        with pytest.raises(Failure) as refused:
            call()
        assert (refused.value.status, refused.value.code) == (409, "session_conflict")
    assert session.get()["phase"] == "running"
    session.delete()
