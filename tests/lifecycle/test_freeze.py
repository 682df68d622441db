"""Freezing under load, and what frozen time counts for."""

from __future__ import annotations

import hashlib
import time

import pytest
from outlive_testing.api import Api, output, payload
from outlive_testing.clients import Follower
from outlive_testing.lines import EXIT_CODE, Check, command
from outlive_testing.server import Server

FREEZES = 50
MINUTE = 60
RETENTION = {"max_bytes": 1 << 40}


@pytest.fixture(scope="module")
def api():
    with Server() as server:
        yield Api(server)


@pytest.fixture(scope="module", autouse=True)
def frozen_for_a_minute(api):
    """A session that would expire after half a minute, frozen while the other stories are told;
    and when that was."""
    sandbox = api.sandbox()
    session = sandbox.sh("echo there; read line; echo got $line",
                         lifecycle={"idle_timeout_seconds": 30})
    session.wait_output(b"there")
    api.bare("POST", f"/v1/sandbox/{sandbox.id}/suspend")
    return session, time.monotonic()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("io", ["pipes", "pty"])
def test_a_flood_that_is_frozen_again_and_again_goes_on_to_the_byte(api, io):
    sandbox = api.sandbox()
    writer = sandbox.session(*command(0), pty=io == "pty", event_retention=RETENTION)
    check = Check(b"\r\n" if io == "pty" else b"\n")
    follower = Follower(writer, check.feed)
    follower.start()
    pid = writer.made["attempt"]["pid"]
    for _ in range(FREEZES):
        api.bare("POST", f"/v1/sandbox/{sandbox.id}/suspend")
        frozen = sandbox.sessions()
        assert frozen[0]["phase"] == "paused"
        # Nothing moves any more, and looking doesn't wake it.
        assert sandbox.sessions() == frozen
        latest = frozen[0]["cursor"]["latest"]
        assert writer.page(after=latest)["events"] == []
        assert sandbox.get()["status"] == "running"
        api.bare("POST", f"/v1/sandbox/{sandbox.id}/resume")
    now = writer.get()
    assert (now["attempt"]["number"], now["attempt"]["pid"]) == (1, pid)
    writer.signal("USR1")
    assert follower.finish(600)["exit_code"] == EXIT_CODE
    check.finish()
    sandbox.delete()


def test_the_list_while_frozen_is_the_list_before(api):
    sandbox = api.sandbox()
    quiet = [sandbox.sh("echo there; exec sleep 1000", name=f"s{number}") for number in range(8)]
    for session in quiet:
        session.wait_output(b"there")
    ended = sandbox.sh("exit 4")
    ended.wait_exit()
    before = sandbox.sessions()
    api.bare("POST", f"/v1/sandbox/{sandbox.id}/suspend")
    after = sandbox.sessions()
    for one, other in zip(before, after, strict=True):
        for moved in ("phase", "cursor", "updated_at"):
            one.pop(moved), other.pop(moved)
    assert after == before
    # A page of it never wakes it either.
    assert output(quiet[0].events()) == b"there\n"
    activity = api.bare("GET", f"/v1/sandbox/{sandbox.id}/activity")
    assert activity["state"] == "frozen"
    sandbox.delete()


def test_frozen_time_is_no_idle_time(api):
    """`idle_timeout_seconds` of 1, frozen for 3 seconds: it counts on where it stood."""
    sandbox = api.sandbox()
    session = sandbox.sh("echo there; exec sleep 1000",
                         lifecycle={"idle_timeout_seconds": 1})
    session.wait_output(b"there")
    api.bare("POST", f"/v1/sandbox/{sandbox.id}/suspend")
    time.sleep(3)
    assert session.get()["phase"] == "paused"
    api.bare("POST", f"/v1/sandbox/{sandbox.id}/resume")
    assert session.get()["phase"] == "running"
    assert session.wait_exit(30)["reason"] == "session_expired"
    sandbox.delete()


def test_a_thaw_of_a_hundred_processes_lets_all_of_them_go_on(api):
    sandbox = api.sandbox()
    sessions = [sandbox.session("/bin/cat") for _ in range(100)]
    api.bare("POST", f"/v1/sandbox/{sandbox.id}/suspend")
    assert {one["phase"] for one in sandbox.sessions()} == {"paused"}
    for number, session in enumerate(sessions):
        session.input(b"line %d\n" % number)
    for number, session in enumerate(sessions):
        session.wait_output(b"line %d" % number)
    digests = {hashlib.sha256(payload(event)).hexdigest() for session in sessions
               for event in session.events() if event["type"] == "output"}
    assert len(digests) == 100
    sandbox.delete()


def test_a_release_keeps_the_disk_and_not_tmp(api):
    sandbox = api.sandbox()
    made = sandbox.sh("echo kept > /root/kept && echo gone > /tmp/gone && mkdir /tmp/dir && "
                      "cat /etc/machine-id")
    assert made.wait_exit()["exit_code"] == 0
    machine = output(made.events())
    sandbox.pause()
    sandbox.resume()
    look = sandbox.sh("cat /root/kept && ls -A /tmp && stat -c %a /tmp && cat /etc/machine-id")
    assert look.wait_exit()["exit_code"] == 0
    assert output(look.events()) == b"kept\n1777\n" + machine
    sandbox.delete()


# Deeper than any path can name, and than a table of open files is long.
NEST = """
import os
for top in ("/root", "/tmp"):
    os.chdir(top)
    for _ in range(5000):
        os.mkdir("d")
        os.chdir("d")
"""


def test_directories_nested_for_ever_hold_nobody_up(api):
    """A hostile tenant nests directories: its sandbox is replaced and removed all the same."""
    sandbox = api.sandbox()
    assert sandbox.session("/usr/bin/python3", "-c", NEST).wait_exit()["exit_code"] == 0
    sandbox.pause()
    sandbox.resume()
    look = sandbox.sh("ls -A /tmp; ls /root")
    look.wait_exit()
    assert output(look.events()) == b"d\n"
    sandbox.delete()


# It was shown as paused, its restarts counted though none came about, and the third pause failed it.
def test_a_session_that_waits_for_its_restart_survives_every_pause(api):
    sandbox = api.sandbox()
    waiting = sandbox.session("false", lifecycle={"restart": {
        "policy": "always", "max_restarts": 2, "window_seconds": 600,
        "initial_backoff_ms": 60000, "max_backoff_ms": 60000}})
    by_hand = sandbox.session("cat", lifecycle={"desired_state": "stopped"})
    assert by_hand.get()["phase"] == "pending"
    for number in range(1, 5):
        assert waiting.wait_phase("backoff")["attempt"]["number"] == number
        sandbox.pause()
        assert waiting.get()["phase"] == "suspended"
        assert {one["id"]: one["phase"] for one in sandbox.sessions()}[waiting.id] == "suspended"
        sandbox.resume()
        assert "attempt" not in by_hand.wait_phase("stopped")
    assert waiting.wait_phase("backoff")["restart_count"] == 0
    sandbox.delete()


def test_a_minute_of_sleep_does_not_expire_a_session(frozen_for_a_minute):
    session, frozen_at = frozen_for_a_minute
    time.sleep(max(0, MINUTE - (time.monotonic() - frozen_at)))
    assert session.get()["phase"] == "paused"
    session.input(b"this\n")  # Wakes it.
    exited = session.wait_exit(30)
    assert (exited["reason"], exited["exit_code"]) == ("stopped", 0)
    assert output(session.events()) == b"there\ngot this\n"
    session.sandbox.delete()
