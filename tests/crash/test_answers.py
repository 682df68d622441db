"""A change is made once and its caller hears of it, whatever is killed before the answer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from outlive_testing.api import Api, Failure
from outlive_testing.server import Server, kill_supervisor

STUBBORN = "trap '' TERM; echo up; read never"


@pytest.fixture
def sandbox():
    with Server() as server:
        yield Api(server).sandbox()


def stubborn(sandbox):
    """A session that only a kill ends."""
    session = sandbox.sh(STUBBORN, lifecycle={"stop_grace_period_seconds": 600})
    session.wait_output(b"up")
    return session


def killed_under(session, change):
    """Calls; once the change has begun its supervisor is killed, then its attempt ends."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(change)
        with session.follow() as stream:
            assert any(event["type"] == "attempt.stopping" for event in stream)
        kill_supervisor(session.sandbox)
        session.signal("KILL")
        return answer.result()


def counted(session) -> Counter:
    return Counter(event["type"] for event in session.events())


# It was answered 503, and whoever asked did not know whether the attempt had been replaced.
def test_a_replacement_is_answered_over_the_death_of_its_supervisor(sandbox):
    session = stubborn(sandbox)
    killed_under(session, lambda: session.attempt(replace=True))
    now = session.get()
    assert (now["attempt"]["number"], now["phase"]) == (2, "running")
    assert counted(session)["attempt.stopping"] == 1


# The stop was carried out by one supervisor, and a second time by the next.
def test_a_stop_happens_once_over_the_death_of_its_supervisor(sandbox):
    session = stubborn(sandbox)
    stopped = killed_under(session, session.stop)
    assert stopped["phase"] == "stopped"
    assert counted(session)["session.desired_state"] == 1


def change(session, kind: str) -> bool:
    """Makes a change; false when it made no sense just then."""
    try:
        if kind == "signal":
            session.signal("CONT")
        elif kind == "replace":
            session.attempt(replace=True)
        else:
            getattr(session, kind)()
    except Failure as failure:
        if failure.status == 409:
            return False
        raise
    return True


@pytest.mark.timeout(1800)
def test_every_change_happens_once_and_is_answered(sandbox, kills, dice):
    session = sandbox.session("cat", lifecycle={"restart": {"policy": "never"}})
    is_over = threading.Event()

    def killer():
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.0, 0.05))
                kill_supervisor(sandbox)
        finally:
            is_over.set()

    made = Counter()
    with ThreadPoolExecutor(1) as pool:
        kills_done = pool.submit(killer)
        while not is_over.is_set():
            kind = dice.choice(("start", "stop", "replace", "signal"))
            made[kind] += change(session, kind)
        kills_done.result()
    told = counted(session)
    print(f"\n{kills} kills, {dict(made)}")
    assert told["signal.sent"] == made["signal"]
    assert told["session.desired_state"] == made["start"] + made["stop"]
    versions = 1 + made["start"] + made["stop"] + made["replace"]
    assert session.get()["spec_version"] == versions
