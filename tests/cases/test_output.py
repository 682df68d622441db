"""Output is whole, in order, and the same for everybody who reads it."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from outlive_testing.api import Failure, output, payload, types
from outlive_testing.server import wait_until

MIB = 1 << 20
A_MIB = "head -c 1048576 /dev/zero | tr '\\0' m"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def seqs(events):
    return [event["seq"] for event in events]


def test_short_commands_never_lose_their_frames(sandbox):  # case A4
    def once(_):
        session = sandbox.sh("echo ok")
        with session.follow(until_exit=True) as stream:
            live = list(stream)
        return session, live

    with ThreadPoolExecutor(20) as pool:
        runs = list(pool.map(once, range(500)))
    for session, live in runs:
        assert output(live) == b"ok\n"
        assert types(live).count("attempt.exited") == 1
        assert (live[-1]["type"], live[-1]["exit_code"]) == ("attempt.exited", 0)
    for session, live in runs[::50]:
        assert session.events() == live
        with session.follow(after=0, until_exit=True) as stream:
            assert list(stream) == live
    for session, _ in runs:
        session.delete()


def test_every_replay_is_the_same(sandbox):  # case A6
    session = sandbox.sh(A_MIB)
    session.wait_exit()
    whole = output(session.events())
    assert len(whole) == MIB

    def read(index):
        with session.follow(after=0, until_exit=True) as stream:
            events = []
            for event in stream:
                events.append(event)
                if index % 5 == 0 and len(output(events)) > MIB // 3:
                    break
            return index, events

    with ThreadPoolExecutor(10) as pool:
        for index, events in pool.map(read, range(50)):
            data = output(events)
            if index % 5 == 0:
                assert whole.startswith(data)
            else:
                assert sha(data) == sha(whole)
                assert events[-1]["type"] == "attempt.exited"


def test_a_slow_link_gets_everything(sandbox):  # case A7
    session = sandbox.sh("seq 1 2000000")
    digest, last = hashlib.sha256(), b""
    with session.follow(until_exit=True, timeout=120) as stream:
        begun, got = time.monotonic(), 0
        for event in stream:
            data = payload(event)
            digest.update(data)
            last = (last + data)[-32:]
            got += len(data)
            ahead = got / (4 * MIB) - (time.monotonic() - begun)
            if ahead > 0.05:
                time.sleep(ahead)
    expected = b"".join(b"%d\n" % number for number in range(1, 2_000_001))
    assert last.endswith(b"\n2000000\n")
    assert digest.hexdigest() == sha(expected)


def test_an_expired_cursor_is_said(sandbox):  # cases A9, S40
    session = sandbox.sh("seq 1 1500000", event_retention={"max_bytes": MIB})
    session.wait_phase("exited", seconds=60)
    with pytest.raises(Failure) as refused:
        session.page(after=1)
    earliest = session.get()["cursor"]["earliest"]
    assert (refused.value.status, refused.value.code) == (410, "event_cursor_expired")
    assert refused.value.error["details"]["earliest"] == earliest
    tail = output(session.events())
    truth = b"".join(b"%d\n" % number for number in range(1, 1_500_001))
    assert truth.endswith(tail)
    assert MIB // 4 < len(tail) <= MIB


@pytest.mark.parametrize("after", ["1000000", str(2**63 - 1), "-1", "abc", "99999999999999999999"])
def test_a_wrong_cursor_is_refused(sandbox, after):  # cases A10, S27
    session = sandbox.sh("echo x")
    session.wait_exit()
    for path in ("events", "events/stream"):
        status, _, text = sandbox.api.raw("GET", f"{session.path}/{path}?after={after}", timeout=10)
        assert status == 400, text
        assert b"invalid_request" in text


def test_a_cursor_ahead_names_the_latest(sandbox):  # case S27
    session = sandbox.sh("echo x")
    session.wait_exit()
    latest = session.get()["cursor"]["latest"]
    with pytest.raises(Failure) as refused:
        session.page(after=latest + 1000)
    assert refused.value.error["details"] == {"reason": "cursor_ahead", "latest": latest}


def test_exit_is_the_last_event_of_both_streams(sandbox):  # case A11
    line = "head -c 1000000 /dev/zero | tr '\\0' a; echo E >&2; exit 3"

    def once(_):
        session = sandbox.sh(line)
        with session.follow(until_exit=True) as stream:
            events = list(stream)
        session.delete()
        return (len(output(events, "stdout")), output(events, "stderr"), events[-1]["exit_code"],
                types(events)[-1])

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(once, range(50))) == {(1_000_000, b"E\n", 3, "attempt.exited")}


def test_what_was_missed_comes_before_what_is_new(sandbox):  # case A12
    session = sandbox.sh("echo first; read x; seq 1 10000; read y; echo live")
    seq = session.wait_output(b"first\n")
    session.input(b"\n")
    wait_until(lambda: b"\n10000\n" in output(session.events()), 15, "the lines made meanwhile")
    with session.follow(after=seq, until_exit=True) as stream:
        events = []
        for event in stream:
            events.append(event)
            if event["type"] == "output" and output(events).endswith(b"\n10000\n"):
                session.input(b"\n")
    assert seqs(events) == list(range(seq + 1, seq + 1 + len(events)))
    assert output(events) == b"".join(b"%d\n" % n for n in range(1, 10001)) + b"live\n"


def test_a_reader_without_stdin_sees_everything(sandbox):  # case B9
    session = sandbox.sh("exec < /dev/null; echo a; sleep 1; echo b; exit 4")
    with session.follow(until_exit=True) as stream:
        watched = list(stream)
    with session.websocket(until="exit") as socket:
        import json
        talked = [json.loads(text)["event"] for text in socket]
    for events in (watched, talked):
        assert output(events) == b"a\nb\n"
        assert events[-1]["exit_code"] == 4


def test_exact_bytes_on_the_right_stream(sandbox):  # case E3
    line = (r"printf '\001\001\001out\000\002\002\002'; printf '\002\002\002err\000\001\001\001' >&2;"
            r"printf 'no newline'; printf 'none either' >&2")
    session = sandbox.sh(line)
    session.wait_exit()
    events = session.events()
    assert output(events, "stdout") == b"\1\1\1out\0\2\2\2no newline"
    assert output(events, "stderr") == b"\2\2\2err\0\1\1\1none either"


def test_chunks_may_split_a_character(sandbox):  # case S57
    session = sandbox.sh(r"printf '\342'; sleep 0.5; printf '\224\200'")
    session.wait_exit()
    events = [event for event in session.events() if event["type"] == "output"]
    assert len(events) == 2
    assert output(events).decode() == "─"


def test_one_huge_line_is_not_held_in_memory(sandbox):  # case E4
    from outlive_testing import processes
    (supervisor,) = processes.supervisors(sandbox.id)
    before = processes.resident_bytes(supervisor)
    session = sandbox.sh("head -c 209715200 /dev/zero; printf 'the end'; sleep 1000",
                         readiness={"type": "output", "output": "the end", "timeout_ms": 60000},
                         event_retention={"max_bytes": 8 * MIB})
    session.wait_phase("running", seconds=60)
    assert processes.resident_bytes(supervisor) - before < 16 * MIB
    sizes = [len(payload(event)) for event in session.events(limit=100)]
    assert max(sizes) <= 256 * 1024, max(sizes)
    session.delete()


@pytest.mark.timeout(300)
def test_the_last_chunk_is_there(sandbox):  # case S2
    def once(_):
        session = sandbox.session("/usr/bin/head", "-c", "70000", "/dev/zero")
        session.wait_exit()
        size = len(output(session.events()))
        session.delete()
        return size

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(once, range(400))) == {70000}


def test_the_tail_of_a_terminal_is_whole(sandbox):  # case S3
    session = sandbox.sh("seq 1 200000", pty=True)
    with session.follow(until_exit=True) as stream:
        events = iter(stream)
        got = [next(events)]
        wait_until(lambda: session.get()["phase"] == "exited", 60, "the exit")
        got += list(events)
    expected = b"".join(b"%d\r\n" % number for number in range(1, 200_001))
    assert sha(output(got)) == sha(expected)


def test_a_follower_at_the_head_while_it_is_trimmed(sandbox):  # case S34
    session = sandbox.sh("while :; do head -c 65536 /dev/zero; done",
                         event_retention={"max_bytes": 262144})
    deadline = time.monotonic() + 4
    reads = 0
    while time.monotonic() < deadline:
        after = session.get()["cursor"]["earliest"] - 1
        try:
            page = session.page(after=after, limit=5)
            found = seqs(page["events"])
            assert found == list(range(after + 1, after + 1 + len(found)))
            reads += 1
        except Failure as failure:
            assert (failure.status, failure.code) == (410, "event_cursor_expired")
    assert reads > 0
    session.delete()


def test_type_filters_have_no_hole(sandbox):  # case S36
    session = sandbox.sh("for i in 1 2 3 4 5 6; do echo $i; echo $i >&2; sleep 0.02; done")
    session.wait_exit()
    whole = session.events()
    wanted = [event for event in whole if event["type"] == "output" and event["stream"] == "stderr"]
    for after in seqs(whole):
        page = session.page(after=after, types="output", stream="stderr")
        assert page["events"] == [event for event in wanted if event["seq"] > after]


@pytest.mark.timeout(120)
def test_following_across_many_segments(sandbox):  # cases S37, S38, S39, S41
    line = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); seq 1 800; seq 1 800 >&2; done"
    session = sandbox.sh(line, event_retention={"max_bytes": 1 << 19})
    whole = sandbox.sh(line, event_retention={"max_bytes": 1 << 30})
    with whole.follow(until_exit=True) as stream:
        gaps, events, last = [], [], time.monotonic()
        for event in stream:
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
            events.append(event)
    burst = b"".join(b"%d\n" % number for number in range(1, 801)) * 100
    assert output(events, "stdout") == burst
    assert output(events, "stderr") == burst
    assert seqs(events) == list(range(1, len(events) + 1))
    assert max(gaps) < 1.0
    session.wait_phase("exited", seconds=60)
    kept = session.events()
    assert seqs(kept) == list(range(kept[0]["seq"], kept[0]["seq"] + len(kept)))
    assert kept[-1]["type"] == "attempt.exited"


def test_a_filtered_reader_does_not_stall(sandbox):  # case G8
    session = sandbox.sh("head -c 20000000 /dev/zero >&2; echo X")
    found = wait_until(lambda: session.page(types="output", stream="stdout", wait_ms=5000)["events"],
                       60, "X on stdout")
    assert output(found) == b"X\n"


def test_events_are_the_same_on_every_way(sandbox):  # case B3
    import json
    for code in (0, 1, 2, 125, 126, 127, 128, 137, 143, 255):
        session = sandbox.sh(f"exit {code}")
        with session.follow(until_exit=True) as stream:
            watched = list(stream)[-1]
        with session.websocket(until="exit") as socket:
            talked = [json.loads(text)["event"] for text in socket][-1]
        paged = session.events()[-1]
        assert watched == talked == paged
        assert paged["exit_code"] == code
        assert session.get()["attempt"]["exit_code"] == code


def test_a_long_poll_answers_when_something_happens(sandbox):
    session = sandbox.sh("read x; echo now; sleep 1000")
    after = session.get()["cursor"]["latest"]
    threading.Timer(0.3, lambda: session.input(b"\n")).start()
    begun = time.monotonic()
    page = session.page(after=after, wait_ms=20000)
    assert 0.2 < time.monotonic() - begun < 5
    assert page["events"][0]["seq"] == after + 1
    session.delete()


def test_a_raw_replay_splits_no_pair(sandbox):  # case S58
    session = sandbox.sh("head -c 65535 /dev/zero | tr '\\0' a; printf '\\360\\237\\230\\200'")
    session.wait_exit()
    assert output(session.events()).decode() == "a" * 65535 + "😀"
