"""Attachments come, go, hang and race; the session and the others do not care."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from outlive_testing.api import Failure, output, types
from outlive_testing.server import wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect


def test_a_quiet_session_keeps_its_connections(sandbox):  # cases H2, H4
    session = sandbox.sh("sleep 40; echo ok")
    url = sandbox.api.server.url.replace("http", "ws", 1) + f"{session.path}/ws?until=exit"
    watched: list = []

    def watch():
        with session.follow(until_exit=True, timeout=60) as stream:
            watched.extend(stream)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with connect(url, additional_headers=sandbox.api.headers(), ping_interval=2, ping_timeout=2) as socket:
        talked = [json.loads(text)["event"] for text in socket]
        assert socket.close_code == 1000
    watcher.join(30)
    assert talked == watched
    assert output(talked) == b"ok\n"
    assert {event["type"] for event in talked} <= {
        "session.created", "attempt.starting", "attempt.started", "session.ready", "output",
        "attempt.exited"}


def test_heartbeats_are_no_events(sandbox):  # case H2
    session = sandbox.session("/bin/sleep", "1000")
    with session.follow(timeout=30) as stream:
        lines = iter(stream.response)
        while not next(lines).startswith(b": "):
            pass
    session.delete()


@pytest.mark.timeout(150)
def test_a_reader_that_stands_still_is_cut_and_the_session_lives(sandbox):  # cases S24, G6
    session = sandbox.sh("while :; do head -c 65536 /dev/zero; done",
                         event_retention={"max_bytes": 4 << 20})
    raw = session.api.connection()
    raw.request("GET", f"{session.path}/events/stream", headers=session.api.headers())
    raw.getresponse().read(1)
    begun = time.monotonic()
    wait_until(lambda: peer_closed(raw.sock), 60, "the stalled reader to be cut")
    assert time.monotonic() - begun > 20
    raw.close()
    assert session.get()["phase"] == "running"
    session.delete()


def peer_closed(sock) -> bool:
    """Whether the server has ended this connection, seen at its own end and without reading."""
    def name(address):
        host, port = address
        return "%08X:%04X" % (int.from_bytes(socket.inet_aton(host), "little"), port)

    ours, theirs = name(sock.getsockname()), name(sock.getpeername())
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    established = "01"
    return [theirs, ours, established] not in [row[1:4] for row in rows]


def test_reconnecting_with_the_header_goes_on(sandbox):  # case S42
    session = sandbox.sh("seq 1 100")
    session.wait_exit()
    whole = session.events()
    with session.follow(after=1, until_exit=True, headers={"Last-Event-ID": "3"}) as stream:
        assert list(stream) == whole[3:]


def test_an_old_cursor_does_not_read_a_new_session(sandbox):  # case S43
    first = sandbox.sh("seq 1 1000", name="same")
    first.wait_exit()
    first.delete()
    second = sandbox.sh("echo other", name="same")
    second.wait_exit()
    with pytest.raises(Failure) as refused:
        first.page(after=2)
    assert (refused.value.status, refused.value.code) == (404, "session_not_found")
    assert output(second.events()) == b"other\n"


def test_deleting_and_creating_at_once(sandbox):  # case J2
    ids = set()
    for number in range(100):
        session = sandbox.sh(f"echo {number}", name="again", key="again")
        session.wait_exit()
        events = session.events()
        assert events[0]["seq"] == 1
        assert output(events) == b"%d\n" % number
        ids.add(session.id)
        session.delete()
    assert len(ids) == 100


def test_output_resumes_after_every_reconnect(sandbox):  # case S49
    session = sandbox.session("/usr/bin/yes", pty=True, event_retention={"max_bytes": 8 << 20})
    for _ in range(100):
        after = session.get()["cursor"]["latest"]
        begun = time.monotonic()
        with session.websocket(after=after) as socket:
            event = json.loads(socket.recv(timeout=5))["event"]
        assert event["seq"] == after + 1
        assert time.monotonic() - begun < 1
    session.delete()


def test_attaching_at_the_instant_of_the_exit(sandbox):  # case S50
    def once(number):
        session = sandbox.sh("exit 0")
        begun = time.monotonic()
        if number % 2:
            with session.follow(until_exit=True, timeout=10) as stream:
                kinds = types(list(stream))
        else:
            with session.websocket(until="exit") as socket:
                kinds = [json.loads(text)["event"]["type"] for text in socket]
        took = time.monotonic() - begun
        session.delete()
        return kinds.count("attempt.exited"), kinds[-1], took < 2

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(once, range(300))) == {(1, "attempt.exited", True)}


def test_a_session_that_never_speaks_holds_up_nobody(own):  # case S51
    own.sh("sleep 1000", readiness={"type": "output", "output": "never", "timeout_ms": 600000})
    begun = time.monotonic()
    assert [session["phase"] for session in own.sessions()] == ["starting"]
    other = own.sh("echo fine")
    with other.follow(until_exit=True) as stream:
        assert output(list(stream)) == b"fine\n"
    assert time.monotonic() - begun < 3


def test_a_websocket_ends_with_a_reason(sandbox):
    session = sandbox.session("/bin/sleep", "1000")
    with session.websocket() as socket:
        session.delete()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                socket.recv(timeout=10)
    assert closed.value.rcvd.code == 1000
    assert closed.value.rcvd.reason


def test_session_stream_survives_pause_and_resume(own):  # case S81
    session = own.sh("echo up; sleep 1000")
    session.wait_output(b"up\n")
    after = session.get()["cursor"]["latest"]
    own.pause()
    own.resume()
    with session.follow(after=after) as stream:
        events = []
        for event in stream:
            events.append(event)
            if event["type"] == "output":
                break
    assert [event["seq"] for event in events] == list(range(after + 1, after + 1 + len(events)))
    assert output(events) == b"up\n"
