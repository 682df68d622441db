"""Floods and stuck readers cost nobody else. Measured, so this file runs alone."""

from __future__ import annotations

import socket
import time

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, payload
from outlive_testing.server import Server, wait_until

MIB = 1 << 20
# Ten MB/s in blocks of 100 kB: a program that keeps its own pace.
PACED = "while (1) { syswrite(STDOUT, 'x' x 100_000); select(undef, undef, undef, 0.01) }"
SMALL = {"max_bytes": 16 * MIB}


@pytest.fixture
def quiet():
    """A server of this test's own, so that its numbers are its own."""
    with Server() as server:
        yield Api(server)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def timed(call) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def stuck_reader(session, path) -> socket.socket:
    """A connection that asks for a stream and never reads it."""
    connection = session.api.connection()
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.request("GET", f"{session.path}/{path}", headers=session.api.headers())
    return connection.sock


def printed_bytes_per_second(session, seconds=3.0) -> float:
    def written():
        return float(session.api.call("GET", f"{session.path}")["cursor"]["latest"])
    begun, first = time.monotonic(), written()
    while time.monotonic() - begun < seconds:
        time.sleep(0.1)
    return (written() - first) / (time.monotonic() - begun)


@pytest.mark.timeout(120)
def test_a_slow_reader_slows_nobody(quiet):  # case G1
    sandbox = quiet.sandbox()
    session = sandbox.session("/usr/bin/perl", "-e", PACED, event_retention=SMALL)
    session.wait_phase("running")
    alone = printed_bytes_per_second(session)
    slow = session.follow()
    slow.response.read(1024)
    after = session.get()["cursor"]["latest"]
    with session.follow(after=after) as fast:
        seqs, deadline = [], time.monotonic() + 4
        for event in fast:
            seqs.append(event["seq"])
            if time.monotonic() > deadline:
                break
    assert seqs == list(range(after + 1, after + 1 + len(seqs)))
    beside = printed_bytes_per_second(session)
    assert beside > 0.9 * alone, (beside, alone)
    slow.close()


@pytest.mark.timeout(180)
def test_control_answers_beside_200_stuck_readers(quiet):  # cases S47, G2, G6
    sandbox = quiet.sandbox()
    flood = sandbox.session("/usr/bin/yes", event_retention=SMALL)
    other = sandbox.session("/bin/cat")
    flood.wait_phase("running")
    before = processes.resident_bytes(quiet.server.pid)
    stuck = [stuck_reader(flood, "events/stream") for _ in range(200)]
    took, begun = [], time.monotonic()
    while time.monotonic() - begun < 15:
        took += [timed(flood.get), timed(sandbox.sessions), timed(lambda: other.signal("CONT"))]
    # A call that waited for a reader would take its 30 s; the bar for a quiet machine is 0.1 s.
    assert percentile(took, 0.99) < 1, percentile(took, 0.99)
    grown = processes.resident_bytes(quiet.server.pid) - before
    assert grown < 200 * MIB, f"{grown / MIB:.0f} MiB for 200 readers that never read"
    for sock in stuck:
        sock.close()


@pytest.mark.timeout(120)
def test_a_flood_does_not_delay_an_echo(quiet):  # case S46
    sandbox = quiet.sandbox()
    sandbox.session("/usr/bin/yes", event_retention=SMALL)
    echo = sandbox.session("/bin/cat")
    took = []
    with echo.follow(timeout=20) as stream:
        events = iter(stream)
        for number in range(200):
            line = b"%d\n" % number
            begun = time.monotonic()
            echo.input(line)
            while payload(next(events)) != line:
                pass
            took.append(time.monotonic() - begun)
    # A call that waited for a reader would take its 30 s; the bar for a quiet machine is 0.1 s.
    assert percentile(took, 0.99) < 1, percentile(took, 0.99)


@pytest.mark.timeout(120)
def test_a_flooding_session_leaves_no_growth(quiet):  # case G6
    sandbox = quiet.sandbox()
    session = sandbox.session("/usr/bin/yes", event_retention=SMALL)
    (supervisor,) = processes.supervisors(sandbox.id)
    session.wait_phase("running")
    wait_until(lambda: session.get()["cursor"]["earliest"] > 1, 30, "the first trim")
    first = processes.resident_bytes(supervisor)
    begun = time.monotonic()
    while time.monotonic() - begun < 8:
        session.page(tail=10)
    assert processes.resident_bytes(supervisor) - first < 8 * MIB
