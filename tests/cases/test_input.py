"""Input is written once, in order, or refused in words."""

from __future__ import annotations

import base64
import json
import time

import pytest
from outlive_testing.api import Failure, output, payload, types
from outlive_testing.server import wait_until

MIB = 1 << 20


def refused(call, *arguments, **more) -> Failure:
    with pytest.raises(Failure) as failure:
        call(*arguments, **more)
    return failure.value


def test_a_retry_writes_once(sandbox):  # case C5
    session = sandbox.session("/bin/cat")
    answers = [session.input(b"once\n", input_id="same") for _ in range(4)]
    assert [answer["duplicate"] for answer in answers] == [False, True, True, True]
    assert refused(session.input, b"other\n", input_id="same").code == "session_conflict"
    session.input(eof=True)
    session.wait_exit()
    events = session.events()
    assert output(events) == b"once\n"
    accepted = [event for event in events if event["type"] == "input.accepted"]
    assert [event["input_id"] for event in accepted].count("same") == 1


def test_a_race_with_the_exit_is_a_conflict(sandbox):  # case C8
    for _ in range(100):
        session = sandbox.session("/usr/bin/head", "-c1")
        session.input(b"a")
        try:
            session.input(b"b")
        except Failure as failure:
            assert (failure.status, failure.code) == (409, "session_conflict")
        session.wait_exit()
        assert refused(session.input, b"c").status == 409
        session.delete()


def test_the_queue_has_a_limit_in_bytes(sandbox):  # case C10
    session = sandbox.session("/bin/sleep", "600")
    block = b"x" * (256 * 1024)
    taken = 0
    with pytest.raises(Failure) as full:
        for _ in range(64):
            session.input(block)
            taken += len(block)
    assert (full.value.status, full.value.code) == (429, "input_buffer_full")
    assert full.value.headers["Retry-After"] == "1"
    assert taken <= 5 * MIB
    for call in (session.get, lambda: session.signal("CONT"), lambda: session.input(eof=True, input_id="e")):
        begun = time.monotonic()
        try:
            call()
        except Failure as failure:
            assert failure.status == 429
        assert time.monotonic() - begun < 0.5
    begun = time.monotonic()
    session.delete()
    assert time.monotonic() - begun < 3


def test_too_much_at_once_is_said(sandbox):  # cases C10, S66
    session = sandbox.session("/bin/cat")
    assert refused(session.input, b"x" * (4 * MIB + 1)).status == 413
    assert session.input(b"fine\n")["accepted"]
    session.delete()


def test_receipts_outlive_a_thousand_inputs(sandbox):  # case C10
    session = sandbox.session("/bin/cat")
    with session.websocket() as socket:
        for number in range(5000):
            socket.send(json.dumps({
                "type": "input", "request_id": str(number), "input_id": f"id-{number}",
                "data_base64": base64.b64encode(b"%d\n" % number).decode()}))
            if number % 100 == 99:
                wait_for_ack(socket, str(number))
    assert session.input(b"0\n", input_id="id-0")["duplicate"] is True
    session.input(eof=True)
    session.wait_exit()
    assert output(session.events(limit=1000)) == b"".join(b"%d\n" % n for n in range(5000))


def wait_for_ack(socket, request_id):
    for text in socket:
        message = json.loads(text)
        assert message["type"] != "error", message
        if message.get("request_id") == request_id:
            return


@pytest.mark.timeout(180)
def test_a_paste_into_a_slow_reader_is_whole(sandbox):  # case C11
    session = sandbox.sh("stty -echo; echo go; while read l; do echo \"$l\"; done", pty=True)
    session.wait_output(b"go\r\n")
    lines = [b"%05d %s\n" % (number, b"p" * 40) for number in range(4000)]
    with session.websocket(after=session.get()["cursor"]["latest"]) as socket:
        for at in range(0, len(lines), 50):
            type_block(socket, f"paste-{at}", b"".join(lines[at:at + 50]))
    session.wait_output(lines[-1].strip() + b"\r\n", 60)
    assert output(session.events()).replace(b"\r\n", b"\n") == b"go\n" + b"".join(lines)
    session.delete()


def type_block(socket, name: str, block: bytes) -> None:
    """Sends a block until it is acknowledged; a full queue is said, never silent."""
    while True:
        socket.send(json.dumps({"type": "input", "request_id": name, "input_id": name,
                                "data_base64": base64.b64encode(block).decode()}))
        answer = next(message for message in map(json.loads, socket)
                      if message.get("request_id") == name)
        if answer["type"] == "ack":
            return
        assert answer["code"] == "input_buffer_full", answer


def test_a_big_paste_does_not_deadlock(sandbox):  # cases S59, S60
    session = sandbox.sh("stty raw -echo; echo go; tr a bc", pty=True)
    seq = session.wait_output(b"go\n")
    block = b"a" * (64 * 1024)
    for number in range(4):
        deadline = time.monotonic() + 30
        while True:
            try:
                session.input(block, input_id=f"paste-{number}")
                break
            except Failure as failure:
                assert failure.status == 429 and time.monotonic() < deadline
                time.sleep(0.05)

    def echoed():
        return len(b"".join(payload(event) for event in session.page(after=seq, limit=10000)["events"]))

    # `tr` keeps the last of its output to itself until a line ends.
    session.input(b"\n", input_id="paste-end")
    wait_until(lambda: echoed() == 4 * len(block) + 1, 30, "the whole echo")
    session.delete()


def test_a_long_line_through_a_pipe_is_whole(sandbox):  # case S62
    session = sandbox.session("/bin/cat")
    line = b"l" * 8192 + b"\n"
    session.input(line, eof=True)
    session.wait_exit()
    assert output(session.events()) == line


def test_a_line_that_a_terminal_cuts_is_warned_of(sandbox):  # case S62
    session = sandbox.sh("stty -echo; echo up; head -n 1 | tr -d '\\n' | wc -c", pty=True)
    session.wait_output(b"up")
    session.input(b"l" * 8192 + b"\n", input_id="long")
    session.wait_exit()
    (accepted,) = [event for event in session.events() if event["type"] == "input.accepted"]
    assert accepted["truncated_line"] is True
    assert output(session.events()).split() == [b"up", b"4095"]


def test_data_and_eof_in_one_call(sandbox):  # case S64
    session = sandbox.session("/bin/cat")
    begun = time.monotonic()
    session.input(b"data", eof=True)
    assert session.wait_exit()["exit_code"] == 0
    assert time.monotonic() - begun < 1
    assert refused(session.input, b"more").status == 409


def test_data_after_eof_is_a_conflict(sandbox):
    session = sandbox.sh("exec 0<&-; sleep 1000")
    session.input(eof=True)
    assert refused(session.input, b"late").code == "session_conflict"
    assert session.input(eof=True)["accepted"]
    session.delete()


def test_detaching_is_never_eof(sandbox):  # cases S65, C4
    session = sandbox.session("/bin/cat")
    for _ in range(3):
        with session.websocket() as socket:
            socket.recv(timeout=5)
        with session.follow() as stream:
            next(iter(stream))
    assert session.get()["phase"] == "running"
    assert "input.accepted" not in types(session.events())
    session.input(eof=True)
    assert session.wait_exit()["exit_code"] == 0


def test_forty_megabytes_to_a_slow_reader(sandbox):  # case S66
    session = sandbox.sh("while head -c 1048576 | wc -c | grep -v '^0$'; do sleep 0.01; done")
    block = b"s" * MIB
    for number in range(20):
        deadline = time.monotonic() + 60
        while True:
            try:
                session.input(block, input_id=f"block-{number}")
                break
            except Failure as failure:
                assert failure.status == 429 and time.monotonic() < deadline
                time.sleep(0.02)
    session.input(eof=True)
    session.wait_exit()
    assert sum(int(count) for count in output(session.events()).split()) == 20 * MIB
