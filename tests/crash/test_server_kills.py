"""The server may die at any time: sessions, numbers and cursors do not notice (cases J5, B1, C7)."""

from __future__ import annotations

import threading

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, Failure, output, payload
from outlive_testing.clients import LOST, Follower, retried
from outlive_testing.server import Server, wait_until


@pytest.mark.timeout(300)
def test_twenty_kills_of_the_server(dice):  # case J5
    with Server() as server:
        sandbox = Api(server).sandbox()
        ticking = "i=0; while :; do i=$((i+1)); echo tick-$i; sleep 0.01; done"
        sessions = [sandbox.sh(ticking) for _ in range(5)]
        pids = [session.get()["attempt"]["pid"] for session in sessions]
        seen = [bytearray() for _ in sessions]
        followers = [Follower(session, text.extend) for session, text in zip(sessions, seen)]
        for follower in followers:
            follower.start()
        for _ in range(20):
            highest = max(follower.seq for follower in followers)
            server.restart()
            wait_until(lambda: max(f.seq for f in followers) > highest + dice.randrange(5), 30,
                       "new events after the restart")
        assert [retried(session.get)["attempt"]["pid"] for session in sessions] == pids
        for session in sessions:
            session.stop()
        for follower, text in zip(followers, seen):
            follower.finish(30)
            ticks = bytes(text).split()
            assert ticks == [b"tick-%d" % number for number in range(1, len(ticks) + 1)]


@pytest.mark.timeout(120)
def test_no_client_sees_an_exit_of_a_living_process():  # case B1
    with Server() as server:
        sandbox = Api(server).sandbox()
        session = sandbox.sh("echo up; sleep 1000", name="b1")
        session.wait_output(b"up\n")
        for break_it in ("server", "supervisor", "client", "both", "server"):
            with session.follow(after=0, timeout=20) as stream:
                events = iter(stream)
                first = next(events)
                assert first["seq"] == 1
                if break_it in ("server", "both"):
                    server.restart()
                if break_it in ("supervisor", "both"):
                    for pid in processes.supervisors(sandbox.id):
                        processes.kill(pid)
                if break_it == "client":
                    continue
                rest = []
                if break_it != "supervisor":
                    try:
                        rest = list(events)
                    except LOST:
                        pass  # A broken transport is what this client must be told.
                assert "attempt.exited" not in [event["type"] for event in rest]
            assert retried(session.get)["phase"] == "running"


@pytest.mark.timeout(120)
def test_one_key_makes_one_session_across_a_kill():  # case C7
    with Server() as server:
        sandbox = Api(server).sandbox()
        answers: list[str] = []

        def create():
            made = retried(lambda: sandbox.sh("sleep 1000", key="the-one"))
            answers.append(made.id)

        callers = [threading.Thread(target=create) for _ in range(20)]
        for caller in callers:
            caller.start()
        server.restart()
        for caller in callers:
            caller.join(60)
        assert len(answers) == 20
        assert len(set(answers)) == 1
        assert [session["id"] for session in retried(sandbox.sessions)] == [answers[0]]
        with pytest.raises(Failure) as refused:
            sandbox.sh("sleep 1001", key="the-one")
        assert (refused.value.status, refused.value.code) == (409, "session_conflict")


@pytest.mark.timeout(120)
def test_exit_during_the_servers_absence_is_kept():  # cases S15, S20
    with Server() as server:
        sandbox = Api(server).sandbox()
        session = sandbox.sh("echo up; read line; echo $line; exit 6")
        seq = session.wait_output(b"up\n")
        session.input(b"bye\n")
        server.kill()
        server.start()
        with session.follow(after=seq, until_exit=True) as stream:
            events = list(stream)
        assert events[-1]["exit_code"] == 6
        assert b"".join(payload(event) for event in events) == b"bye\n"
        assert [event["type"] for event in session.events()].count("attempt.exited") == 1
        assert output(session.events()) == b"up\nbye\n"
