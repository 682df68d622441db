"""Terminals: sizes, signals and keys reach the program as they would on a desk."""

from __future__ import annotations

import time

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, Failure, output, types
from outlive_testing.server import Server, wait_until


def printed(session) -> bytes:
    return output(session.events())


def wait_printed(session, needle: bytes, seconds=15):
    return wait_until(lambda: needle in printed(session), seconds, f"{needle!r} to be printed")


def test_a_resize_at_the_start_is_kept(sandbox):  # case D2
    for _ in range(50):
        session = sandbox.sh("sleep 0.1; stty size", pty=True)
        session.resize(43, 132)
        session.wait_exit()
        assert printed(session) == b"43 132\r\n"
        session.delete()


def test_winch_arrives_and_the_terminal_has_a_name(sandbox):  # case D3
    session = sandbox.sh("trap 'stty size' WINCH; tty; ps -o tty= -p $$ || true; echo up; "
                         "while :; do sleep .05; done", pty=True)
    session.wait_output(b"up\r\n")
    for rows, cols in ((30, 90), (31, 91), (32, 92)):
        session.resize(rows, cols)
        wait_printed(session, b"%d %d\r\n" % (rows, cols))
    first = printed(session).split(b"\r\n")
    assert first[0].startswith(b"/dev/pts/")
    assert b"?" not in first[1]
    session.delete()


def test_no_signal_is_inherited_as_ignored():  # case D4
    def ignore_all():
        import signal
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    with Server(before_exec=ignore_all) as server:
        sandbox = Api(server).sandbox()
        for pty in (False, True):
            session = sandbox.session("/bin/cat", "/proc/self/status", pty=pty)
            session.wait_exit()
            status = dict(line.split(b":\t", 1) for line in printed(session).split(b"\n") if b":\t" in line)
            assert int(status[b"SigIgn"], 16) == 0
            assert int(status[b"SigBlk"], 16) == 0
        session = sandbox.session("/bin/sleep", "100", pty=True)
        session.input(b"\x03")
        assert session.wait_exit()["signal"] == "SIGINT"


def test_control_c_reaches_the_foreground_job(sandbox):  # case D5
    session = sandbox.session("/bin/bash", "--norc", "-i", pty=True)
    session.input(b"/usr/bin/python3 -m http.server 9000\n")
    wait_printed(session, b"Serving HTTP")
    session.input(b"\x03")
    wait_printed(session, b"Keyboard interrupt")
    begun = time.monotonic()
    session.input(b"echo ali''ve\n")
    wait_printed(session, b"alive\r\n")
    assert time.monotonic() - begun < 1
    session.delete()


def test_int_reaches_the_group_in_pipes_mode(sandbox):  # case D5
    session = sandbox.sh("trap 'echo shell' INT; sleep 1000.75; echo after $?")
    wait_until(lambda: [pid for pid in processes.with_argument("1000.75")
                        if processes.status(pid, "Name") == "sleep"], what="the shell's child")
    session.signal("INT")
    session.wait_exit()
    assert printed(session) == b"shell\nafter 130\n"


def test_a_signal_ends_the_job_and_not_the_shell(sandbox):  # case S67
    session = sandbox.session("/bin/bash", "--norc", "-i", pty=True)
    session.input(b"sleep 100.25\n")
    wait_until(lambda: processes.with_argument("100.25"), what="the foreground job")
    session.signal("INT")
    wait_until(lambda: not processes.with_argument("100.25"), what="the end of the job")
    session.input(b"echo still''here\n")
    wait_printed(session, b"stillhere\r\n")
    assert session.get()["phase"] == "running"
    session.delete()


def test_reattaching_with_another_size(sandbox):  # case S52
    session = sandbox.sh("while read x; do stty size; done", pty=True)
    with session.websocket():
        session.resize(24, 80)
    with session.websocket():
        session.resize(50, 200)
        session.input(b"\n")
        wait_printed(session, b"50 200\r\n")
    assert types(session.events()).count("terminal.resized") == 2
    session.delete()


@pytest.mark.timeout(120)
def test_control_c_ends_a_flood(sandbox):  # case S61
    session = sandbox.session("/usr/bin/yes", pty=True, event_retention={"max_bytes": 4 << 20})
    with session.follow() as slow:
        events = iter(slow)
        next(events)
        session.wait_phase("running")
        wait_until(lambda: session.get()["cursor"]["latest"] > 200, what="the flood")
        begun = time.monotonic()
        session.input(b"\x03")
        exited = wait_until(lambda: session.page(tail=1)["events"][0]["type"] == "attempt.exited", 5,
                            "the exit at the tail")
        assert exited
        assert time.monotonic() - begun < 2
    assert session.get()["phase"] == "exited"


def test_raw_mode_refuses_eof_unless_it_is_a_hangup(sandbox):
    session = sandbox.sh("stty raw -echo; echo go; cat", pty=True)
    session.wait_output(b"go")
    with pytest.raises(Failure) as refused:
        session.input(eof=True)
    assert (refused.value.status, refused.value.code) == (409, "session_conflict")
    session.input(eof=True, eof_mode="hangup")
    session.wait_exit()
