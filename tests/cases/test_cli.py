"""The command line: it never hangs on its own input, and a cut connection is not an exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

from outlive_testing import processes
from outlive_testing.api import output, types
from outlive_testing.proxy import CuttingProxy
from outlive_testing.server import binary, wait_until


def cli(api, *arguments, url=None, **options):
    """A command of `outlive`, told by the environment where the server is."""
    environment = {**os.environ, "OUTLIVE_URL": url or api.server.url, "OUTLIVE_TOKEN": api.token,
                   "XDG_CONFIG_HOME": "/nonexistent"}
    return subprocess.Popen([binary(), *arguments], env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **options)


def finished(process, seconds=30):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def test_an_open_stdin_does_not_hold_the_command(api, sandbox):  # case C1
    feeder, held = os.pipe()
    try:
        begun = time.monotonic()
        code, out, err = finished(cli(api, "run", "-s", sandbox.id, "--", "echo", "hi", stdin=feeder))
        assert (code, out) == (0, b"hi\n"), err
        assert time.monotonic() - begun < 2
        begun = time.monotonic()
        code, _, err = finished(
            cli(api, "run", "-s", sandbox.id, "--timeout", "2s", "--", "sleep", "60", stdin=feeder))
        assert code == 124, err
        assert 1.9 < time.monotonic() - begun < 5
    finally:
        os.close(feeder)
        os.close(held)


def test_commands_that_read_see_the_end_at_once(api, sandbox):  # case C2
    for command in (["cat"], ["grep", "x"], ["sh", "-c", "read v"]):
        begun = time.monotonic()
        finished(cli(api, "run", "-s", sandbox.id, "--", *command, stdin=subprocess.DEVNULL))
        assert time.monotonic() - begun < 2


def test_the_exit_code_is_passed_on(api, sandbox):  # case B3
    for code in (0, 1, 7, 255):
        got, _, err = finished(cli(api, "run", "-s", sandbox.id, "--", "sh", "-c", f"exit {code}",
                                   stdin=subprocess.DEVNULL))
        assert got == code, err


def test_following_through_cuts_sees_every_event_once(api, sandbox):  # cases A5, B2, H5
    session = sandbox.sh("i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; "
                         "[ $((i % 100)) = 0 ] && sleep 0.05; done; sleep 1; exit 5")
    with CuttingProxy(api.server.url, [1, 300, 2000, 4000, 6000]) as proxy:
        code, out, err = finished(cli(
            api, "session", "events", sandbox.id, session.id, "--follow", "--until-exit", "--json",
            url=proxy.url, stdin=subprocess.DEVNULL), 60)
        assert proxy.cut >= 4, proxy.cut
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), err
    assert output(events) == b"".join(b"%d\n" % number for number in range(1, 3001))
    assert events[-1]["exit_code"] == 5
    assert types(events).count("attempt.exited") == 1
    assert code == 0, err


def test_killed_clients_leave_nothing_behind(api, sandbox):  # case F7
    session = sandbox.sh("while :; do echo tick; sleep 0.05; done")
    session.wait_output(b"tick\n")
    files = processes.open_files(api.server.pid)
    threads = processes.status(api.server.pid, "Threads")
    for _ in range(30):
        client = cli(api, "session", "events", sandbox.id, session.id, "--follow", stdin=subprocess.DEVNULL)
        client.stdout.read(64)
        client.send_signal(signal.SIGKILL)
        finished(client)
    wait_until(lambda: processes.open_files(api.server.pid) <= files + 2, 20, "the sockets to be closed")
    assert int(processes.status(api.server.pid, "Threads")) <= int(threads) + 4
    assert session.get()["phase"] == "running"
    session.delete()
