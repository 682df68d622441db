"""Supervisor and keeper are replaced by another executable while sessions live on (case J4)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, output
from outlive_testing.server import Server, binary, wait_until

SESSIONS = 50
# Counts aloud and into a file of its own, until told to end; then takes its exit code as input.
TICKING = r"""
say() { echo "$1"; echo "$1" >> /tmp/said-NUMBER; }
i=0
while [ ! -e /tmp/enough ]; do i=$((i+1)); say tick-$i; sleep 0.05; done
read -r code
say got-$code
exit $code
"""


@pytest.fixture
def agent():
    """A copy of the agent that may be deleted, where no sandbox's user can reach it."""
    folder = Path(tempfile.mkdtemp(prefix="outlive-agent-"))
    copy = folder / "outlive-agent"
    shutil.copy2(binary().with_name("outlive-agent"), copy)
    # The launcher starts from it as the server's own user.
    assert folder.stat().st_mode & 0o077 == 0
    yield copy
    shutil.rmtree(folder, ignore_errors=True)


def outlive(server: Server, *arguments) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OUTLIVE_URL": server.url, "OUTLIVE_TOKEN": server.token}
    return subprocess.run([binary(), *arguments], env=environment, capture_output=True, text=True,
                          timeout=120, check=False)


def executable(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/exe")


@pytest.mark.timeout(300)
def test_fifty_sessions_live_through_an_upgrade_of_everything(agent):  # case J4
    with Server(environment={"OUTLIVE_AGENT": str(agent)}) as server:
        sandbox = Api(server).sandbox()
        sessions = [sandbox.sh(TICKING.replace("NUMBER", str(number)), pty=number % 2 == 1)
                    for number in range(SESSIONS)]
        before = [session.get()["attempt"] for session in sessions]
        for session in sessions[:2]:
            session.wait_output(b"tick-3")
        (keeper,), (old,) = processes.keepers(sandbox.id), processes.supervisors(sandbox.id)
        first = executable(keeper)

        newer = agent.with_name("outlive-agent-2")
        shutil.copy2(agent, newer)
        agent.unlink()
        done = outlive(server, "upgrade", "--agent", newer, "--json", sandbox.id)
        assert done.returncode == 0, done
        (told,) = json.loads(done.stdout)["sandboxes"]
        assert told["upgraded"] and told["sandbox_id"] == sandbox.id and told["build"], told
        newer.unlink()
        state = server.data / "sandboxes" / sandbox.id / "state"
        assert not [entry for entry in state.iterdir() if entry.name.startswith("agent.next")]

        # The same keeper by its number, another program; another supervisor; the same sessions.
        (upgraded,) = processes.supervisors(sandbox.id)
        assert upgraded != old
        assert processes.keepers(sandbox.id) == [keeper]
        assert executable(keeper) != first and "memfd" in executable(keeper)
        assert "memfd" in executable(upgraded)
        # Neither path exists any more, so this start comes from what the keeper holds.
        processes.kill(upgraded)
        wait_until(lambda: processes.supervisors(sandbox.id) not in ([], [upgraded]), 30,
                   "the next supervisor")
        assert [session.get()["attempt"] for session in sessions] == before

        sandbox.sh("touch /tmp/enough").wait_exit()
        for number, session in enumerate(sessions):
            assert session.input(b"%d\n" % (number + 1))["accepted"]
        for number, session in enumerate(sessions):
            assert session.wait_exit()["exit_code"] == number + 1
        sums = sandbox.sh("cd /tmp; for i in $(seq 0 %d); do sha256sum < said-$i; done" % (SESSIONS - 1))
        sums.wait_exit()
        said = [line.split()[0].decode() for line in output(sums.events()).splitlines()]
        for number, session in enumerate(sessions):
            seen = output(session.events()).replace(b"\r\n", b"\n").splitlines(keepends=True)
            if number % 2 == 1:
                seen.remove(b"%d\n" % (number + 1))  # The terminal's echo, between two lines.
            assert hashlib.sha256(b"".join(seen)).hexdigest() == said[number]


@pytest.mark.timeout(120)
def test_an_agent_that_does_not_serve_makes_way_for_the_one_before(agent):  # case J4
    with Server(environment={"OUTLIVE_AGENT": str(agent)}) as server:
        sandbox = Api(server).sandbox()
        session = sandbox.sh("echo up; read -r code; exit $code")
        session.wait_output(b"up")
        (keeper,) = processes.keepers(sandbox.id)
        first = executable(keeper)

        refused = outlive(server, "upgrade", "--all", "--agent", "/bin/true", "--json")
        assert refused.returncode != 0
        (told,) = json.loads(refused.stdout)["sandboxes"]
        assert not told["upgraded"] and "the one before runs again" in told["reason"], told
        assert processes.keepers(sandbox.id) == [keeper] and executable(keeper) == first
        session.input(b"9\n")
        assert session.wait_exit()["exit_code"] == 9
