"""A supervisor is replaced by another executable while its sessions live on (case J4)."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
from pathlib import Path

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, output
from outlive_testing.server import Server, binary, wait_until

SESSIONS = 50
UPGRADE = 13
DONE = 0
LINK_VERSION = 1


def cbor(value) -> bytes:
    """The few CBOR forms that the link's requests need."""
    def head(major: int, size: int) -> bytes:
        if size < 24:
            return bytes([major << 5 | size])
        return bytes([major << 5 | 25]) + struct.pack("!H", size)

    if isinstance(value, int):
        return head(0, value)
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(4, len(value)) + b"".join(map(cbor, value))


def ask_for_upgrade(state: Path, sandbox_id: str, executable: Path) -> None:
    """Says to the supervisor of a sandbox what the server would say."""
    def frame(message) -> bytes:
        encoded = cbor(message)
        return struct.pack("<I", len(encoded)) + encoded

    folder = os.open(state, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(f"/proc/self/fd/{folder}/agent.sock")
        link.sendall(frame([[LINK_VERSION], sandbox_id]))
        assert link.recv(4096)
        link.sendall(frame([1, [UPGRADE, [str(executable)]]]))
        answer = link.recv(4096)
        assert answer.endswith(cbor([1, [DONE, []]])), answer
    os.close(folder)


@pytest.fixture
def agent():
    """A copy of the agent that may be deleted."""
    folder = Path(tempfile.mkdtemp(prefix="outlive-agent-"))
    folder.chmod(0o755)  # Supervisors run as users of their own.
    copy = folder / "outlive-agent"
    shutil.copy2(binary().with_name("outlive-agent"), copy)
    yield copy
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(300)
def test_fifty_sessions_live_through_an_upgrade(agent):  # case J4
    with Server(environment={"OUTLIVE_AGENT": str(agent)}) as server:
        sandbox = Api(server).sandbox()
        ticking = "i=0; while [ ! -e /tmp/enough ]; do i=$((i+1)); echo tick-$i; sleep 0.05; done; exit 9"
        sessions = [sandbox.sh(ticking, pty=number % 2 == 1) for number in range(SESSIONS)]
        before = [session.get()["attempt"] for session in sessions]
        for session in sessions[:2]:
            session.wait_output(b"tick-3")

        newer = agent.with_name("outlive-agent-2")
        shutil.copy2(agent, newer)
        agent.unlink()
        (old,) = processes.supervisors(sandbox.id)
        ask_for_upgrade(server.data / "sandboxes" / sandbox.id / "state", sandbox.id, newer)
        newer.unlink()
        wait_until(lambda: processes.supervisors(sandbox.id) not in ([], [old]), 30, "the new supervisor")

        # Neither path exists any more, so this start comes from what the keeper holds.
        (upgraded,) = processes.supervisors(sandbox.id)
        processes.kill(upgraded)
        assert [session.get()["attempt"] for session in sessions] == before
        sandbox.sh("touch /tmp/enough").wait_exit()
        for session in sessions:
            assert session.wait_exit()["exit_code"] == 9
            ticks = output(session.events()).split()
            assert ticks == [b"tick-%d" % number for number in range(1, len(ticks) + 1)]
