"""Sandboxes that sleep: what goes on while they do, what wakes them, what keeps them awake."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, Sandbox, output, payload, types
from outlive_testing.server import binary, wait_until

BIG = b"0" * 8000 + b"\n"
SMALL = b"0" * 9 + b"\n"
ECHO_SERVER = """while read line; do
  case $line in BIG) printf '%08000d\\n' 0 ;; s) printf '%09d\\n' 0 ;; esac
done"""


def idle(seconds: int, counts: list[str] | None = None) -> dict:
    rule: dict = {"freeze_after_seconds": seconds}
    return {"idle": rule if counts is None else {**rule, "counts": counts}}


@pytest.fixture
def boxes(api):
    """Makes sandboxes and deletes them."""
    made: list[Sandbox] = []

    def make(**config) -> Sandbox:
        made.append(api.sandbox(**config))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.delete()


def elapse(clock: Sandbox, seconds: float) -> None:
    """Lets time pass, by the clock of a command in a sandbox that is awake."""
    clock.session("/bin/sleep", str(seconds)).wait_exit()


def take(stream, size: int) -> tuple[bytes, list[int]]:
    """Reads an attachment until that much was printed; the bytes, and the seq of every event."""
    seen, seqs = b"", []
    for event in stream:
        seqs.append(event["seq"])
        if event["type"] == "output":
            seen += payload(event)
            if len(seen) >= size:
                return seen, seqs
    raise AssertionError(f"the attachment ended after {len(seen)} of {size} bytes")


def test_every_reply_arrives_after_every_sleep(boxes):  # case A1
    sandbox = boxes()
    session = sandbox.sh(ECHO_SERVER)
    last = session.get()["cursor"]["latest"]
    for cycle in range(20):
        sandbox.suspend()
        begun = time.monotonic()
        sandbox.wake()
        with session.follow(last, timeout=10) as stream:
            events = iter(stream)
            for request, reply in ((b"BIG\n", BIG), *[(b"s\n", SMALL)] * 3):
                session.input(request)
                seen, seqs = take(events, len(reply))
                assert seen == reply, f"cycle {cycle}"
                assert seqs[0] == last + 1 and seqs == list(range(seqs[0], seqs[-1] + 1))
                last = seqs[-1]
        took = time.monotonic() - begun
        assert took < 2, f"cycle {cycle} took {took:.2f} s"
    now = session.get()
    assert (now["attempt"]["id"], now["attempt"]["pid"]) == (
        session.made["attempt"]["id"], session.made["attempt"]["pid"])


def deaf(session) -> object:
    """A WebSocket attachment whose client never reads again: no pong, and no end either."""
    connection = session.api.connection()
    connection.request("GET", f"{session.path}/ws", headers=session.api.headers({
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}))
    assert connection.sock.recv(4096).startswith(b"HTTP/1.1 101")
    return connection


def attached(sandbox) -> int:
    return sum(one["kind"] == "attached" for one in sandbox.activity()["awake_because"])


def test_clients_that_went_deaf_hold_nobody_up(boxes):  # case A2
    sandbox = boxes()
    session = sandbox.sh(ECHO_SERVER)
    lost = [deaf(session), deaf(session)]
    with session.websocket() as third:
        third.recv(timeout=10)
        wait_until(lambda: attached(sandbox) == 3, 10, "three attachments")
        sandbox.suspend()
    sandbox.wake()
    with session.websocket(after=session.get()["cursor"]["latest"]) as fourth:
        begun = time.monotonic()
        session.input(b"s\n")
        seen = b""
        while SMALL not in seen:
            message = json.loads(fourth.recv(timeout=1))
            if message["type"] == "event" and message["event"]["type"] == "output":
                seen += payload(message["event"])
        assert time.monotonic() - begun < 1
        # A peer without a pong is given up after 45 s; until then nobody misses it.
        wait_until(lambda: attached(sandbox) == 1, 60, "the end of the deaf attachments")
        session.input(b"s\n")
        assert json.loads(fourth.recv(timeout=5))["type"] == "event"
    for connection in lost:
        connection.close()


@pytest.mark.parametrize("rest", ["suspend", "pause"])
def test_what_ended_is_read_while_the_sandbox_rests(boxes, rest):  # case B6
    sandbox = boxes()
    session = sandbox.sh("echo kept; exit 4")
    session.wait_exit()
    before = session.get()
    getattr(sandbox, rest)()
    state = sandbox.activity()["state"]
    assert state == {"suspend": "frozen", "pause": "released"}[rest]
    assert sandbox.sessions() == [before]
    assert session.get()["attempt"]["exit_code"] == 4
    assert output(session.events()) == b"kept\n"
    assert session.wait_exit()["exit_code"] == 4
    assert sandbox.show()["suspended"] is True
    listed = {item["id"]: item for item in sandbox.api.bare("GET", "/v1/sandbox")["sandboxes"]}
    assert listed[sandbox.id]["suspended"] is True
    assert sandbox.activity()["state"] == state, "reading woke it"


def test_a_quiet_process_sleeps_unless_the_rule_counts_it(boxes):  # case I1
    sleepy = boxes(**idle(1))
    busy = sleepy.sh("while :; do :; done")
    quiet = sleepy.sh("sleep 3; echo woke; exec sleep 1000")
    sleepy.wait_state("frozen")
    pids = [one.get()["attempt"]["pid"] for one in (busy, quiet)]
    # Both go on where they stood: the rest of the three seconds passes after the wake.
    sleepy.wake()
    quiet.wait_output(b"woke\n")
    assert [one.get()["attempt"]["pid"] for one in (busy, quiet)] == pids
    assert types(quiet.events()).count("attempt.starting") == 1

    restless = boxes(**idle(1, ["process"]))
    # Nothing else counts here, this follower neither: asleep it would never print.
    restless.sh("sleep 3; echo over").wait_output(b"over\n")
    restless.wait_state("frozen")


def ticks(pid: int) -> int:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_polling_keeps_nobody_awake(boxes):  # case I2
    sandbox = boxes(**idle(2))
    mark = f"poll-{os.getpid()}-{time.monotonic_ns()}"
    session = sandbox.sh("while :; do :; done", name="poll", env={"MARK": mark})
    begun = time.monotonic()

    def poll() -> bool:
        sandbox.get()
        sandbox.sessions()
        session.page()
        session.get()
        sandbox.api.call("GET", "/api/v1/sandboxes")
        return sandbox.show()["suspended"]

    wait_until(poll, 15, "sleep under polling")
    assert 1.5 < time.monotonic() - begun < 8
    (pid,) = [pid for pid, _ in processes.titles() if environment_has(pid, mark)]
    used = ticks(pid)
    for _ in range(50):
        assert poll(), "polling woke it"
    assert ticks(pid) == used, "it used the processor in its sleep"
    assert sandbox.activity()["state"] == "frozen"


def environment_has(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # It is gone, so it is not the one.


def test_frozen_time_counts_for_lifetimes_and_for_nothing_else(boxes, sandbox):  # case I5
    # The row freezes 60 s with limits of 30 s; here it is 4 s with limits of 2 s and 3 s.
    sleeper = boxes()
    drift = sleeper.sh("while read x; do date +%s%N; done")
    limited = sleeper.sh("exec sleep 1000", lifecycle={"idle_timeout_seconds": 2})
    mortal = sleeper.sh("exec sleep 1000", lifecycle={"max_lifetime_seconds": 3})
    sleeper.suspend()
    elapse(sandbox, 4)
    assert limited.get()["phase"] == mortal.get()["phase"] == "paused"
    sleeper.wake()
    # A lifetime is wall time: it fires at the thaw.
    assert mortal.wait_exit(5)["reason"] == "session_expired"
    assert limited.get()["phase"] == "running"
    after = drift.get()["cursor"]["latest"]
    with drift.follow(after) as stream:
        drift.input(b"\n")
        seen, _ = take(stream, 20)
    assert abs(time.time_ns() - int(seen)) < 500_000_000
    # The idle limit goes on where it stood, and nothing in between started it anew.
    ended = limited.wait_exit(10)
    assert ended["reason"] == "session_expired"
    marks = {event["type"]: when(event) for event in limited.events()}
    awake = marks["session.paused"] - marks["attempt.started"]
    awake += marks["session.expired"] - marks["session.resumed"]
    assert 1.9 < awake < 3.5, f"expired after {awake:.2f} s awake"


def when(event: dict) -> float:
    return datetime.fromisoformat(event["occurred_at"]).timestamp()


def command_line(api: Api, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "OUTLIVE_URL": api.server.url, "OUTLIVE_TOKEN": api.token}
    return subprocess.Popen([binary(), *arguments], env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)



@pytest.mark.parametrize("client", ["session attach", "session events --follow"])
def test_clients_that_left_hold_no_connection(api, boxes, client):  # case I6
    sandbox = boxes(**idle(1))
    session = sandbox.sh("echo up; exec sleep 1000")
    session.wait_output(b"up\n")
    noun, verb, *flags = client.split()
    follower = command_line(api, noun, verb, sandbox.id, session.id, *flags)
    wait_until(lambda: attached(sandbox) == 1, 10, "the attachment")
    assert sandbox.activity()["state"] == "running"
    follower.kill()
    follower.communicate()
    wait_until(lambda: attached(sandbox) == 0, 10, "the detach")
    begun = time.monotonic()
    sandbox.wait_state("frozen")
    assert time.monotonic() - begun < 5
    assert attached(sandbox) == 0, "somebody came back by himself"


def test_no_list_loses_a_sandbox_that_changes(api, boxes):  # case I7
    mine = [boxes() for _ in range(6)]
    ids = [one.id for one in mine]
    turns = [0]
    stop = threading.Event()
    failures: list[BaseException] = []

    def flip() -> None:
        try:
            while not stop.is_set():
                for number, one in enumerate(mine[:4]):
                    down, up = (one.suspend, one.wake) if number % 2 else (one.pause, one.resume)
                    (down if turns[0] % 2 == 0 else up)()
                turns[0] += 1
        except BaseException as error:  # Whatever it is, the test has to end with it.
            failures.append(error)

    def listed(query: str) -> tuple[list[str], bool]:
        page = api.call("GET", f"/api/v1/sandboxes?{query}")
        return [item["id"] for item in page["sandboxes"]], page["has_more"]

    def paged(query: str) -> list[str]:
        found, more = [], True
        while more:
            page, more = listed(f"{query}limit=2&offset={len(found)}")
            found += page
        return found

    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        while turns[0] < 4 and not failures:
            for whole in (listed("limit=200")[0], paged(""), named(api)):
                assert [one for one in whole if one in ids] == ids
                assert len(set(whole)) == len(whole)
            running = listed("limit=200&status=running")[0]
            assert len(set(running)) == len(running) and set(ids[4:]) <= set(running)
            assert not set(ids[4:]) & set(paged("paused=true&"))
    finally:
        stop.set()
        flipping.join()
    assert not failures, failures
    rest = set(listed("limit=200&paused=true")[0]) | set(listed("limit=200&paused=false")[0])
    assert set(ids) <= rest


def named(api: Api) -> list[str]:
    return [item["id"] for item in api.bare("GET", "/v1/sandbox")["sandboxes"]]


def test_waking_keeps_the_idle_rule_and_arms_it_anew(api):  # case I8
    made = api.bare("POST", "/v1/sandbox", {"idle_suspend_seconds": 2})["sandbox"]
    sandbox = Sandbox(api, made["id"])
    session = sandbox.session("/bin/cat")
    sandbox.suspend()
    with session.websocket() as client:
        client.recv(timeout=10)
        assert sandbox.activity()["state"] == "running"
        assert "sleeps_at" not in sandbox.activity(), "it would fall asleep under its client"
        left = time.time()
    wait_until(lambda: "sleeps_at" in sandbox.activity(), 10, "the timer")
    at = datetime.fromisoformat(sandbox.activity()["sleeps_at"]).timestamp()
    assert 1.9 < at - left < 4
    assert sandbox.show() == {**made, "sessions": 1}
    sandbox.wait_state("frozen")
    assert sandbox.show() == {**made, "sessions": 1, "suspended": True}
    sandbox.delete()


@pytest.mark.parametrize("client", ["sse", "ws"])
def test_whoever_waits_keeps_it_awake_all_the_time(boxes, client):  # case I9
    sandbox = boxes(**idle(1))
    session = sandbox.sh("sleep 3; exit 5")
    if client == "sse":
        ended = session.wait_exit()
    else:
        with session.websocket(until="exit") as socket:
            events = [json.loads(text)["event"] for text in socket]
        ended = events[-1]
    assert (ended["type"], ended["exit_code"]) == ("attempt.exited", 5)
    assert "session.paused" not in types(session.events()), "it slept in the middle of the wait"
    sandbox.wait_state("frozen")


def test_one_who_only_looks_on_keeps_nobody_awake(boxes):  # case I9: what opts out
    sandbox = boxes(**idle(1))
    session = sandbox.sh("exec sleep 1000")
    connection = api_stream(session, "hold=false")
    sandbox.wait_state("frozen")
    connection.close()


def api_stream(session, query: str):
    connection = session.api.connection()
    connection.request("GET", f"{session.path}/events/stream?{query}", headers=session.api.headers())
    assert connection.getresponse().status == 200
    return connection


@pytest.mark.parametrize("client", ["sse", "ws"])
def test_an_attachment_goes_on_over_a_sleep(boxes, client):  # case S81
    sandbox = boxes()
    session = sandbox.sh("echo up; while read line; do echo got $line; done")
    if client == "sse":
        with session.follow(timeout=20) as stream:
            seen = talk_over_a_sleep(sandbox, session, iter(stream))
    else:
        with session.websocket() as socket:
            messages = (json.loads(text) for text in socket)
            events = (one["event"] for one in messages if one["type"] == "event")
            seen = talk_over_a_sleep(sandbox, session, events)
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert output(seen) == b"up\ngot before\ngot after\n"
    kinds = types(seen)
    assert kinds.index("session.paused") < kinds.index("session.resumed")
    assert {event["attempt_id"] for event in seen if "attempt_id" in event} == {
        session.made["attempt"]["id"]}


def talk_over_a_sleep(sandbox, session, events) -> list[dict]:
    seen: list[dict] = []

    def until(condition) -> None:
        while not condition(seen):
            seen.append(next(events))

    session.input(b"before\n")
    until(lambda all_: b"got before\n" in output(all_))
    sandbox.suspend()
    until(lambda all_: "session.paused" in types(all_))
    sandbox.wake()
    session.input(b"after\n")
    until(lambda all_: b"got after\n" in output(all_))
    return seen


def test_the_list_is_the_same_before_in_and_after_a_sleep(boxes):  # case S82
    sandbox = boxes()
    sandbox.sh("exec sleep 1000", name="live").wait_phase("running")
    sandbox.sh("exit 3", name="over").wait_exit()
    sandbox.sh("exit 1", name="again", lifecycle={
        "restart": {"policy": "always", "initial_backoff_ms": 60000, "max_backoff_ms": 60000},
    }).wait_phase("backoff")

    def listed() -> list[tuple]:
        return [(one["id"], one["spec"], one["attempt"], one["restart_count"], one["last_activity_at"])
                for one in sandbox.sessions()]

    before, phases = listed(), [one["phase"] for one in sandbox.sessions()]
    sandbox.suspend()
    assert listed() == before
    assert sandbox.show()["sessions"] == 3
    assert [one["phase"] for one in sandbox.sessions()] == ["paused", "exited", "paused"]
    assert sandbox.activity()["state"] == "frozen", "the list woke it"
    sandbox.wake()
    assert listed() == before
    assert [one["phase"] for one in sandbox.sessions()] == phases == ["running", "exited", "backoff"]
