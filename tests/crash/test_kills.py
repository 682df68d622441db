"""Nothing is lost while the supervisor, the server, or both are killed with -9 (cases J5, S17, S20)."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from outlive_testing.api import Api, output, payload
from outlive_testing.clients import Follower, Typist, retried
from outlive_testing.lines import EXIT_CODE, Check, command
from outlive_testing.server import Server, kill_supervisor

RETENTION = {"max_bytes": 1 << 40}
# Each mode: how fast the child writes, and how long our processes live between two kills.
MODES = {
    "throttled": (100_000_000, (0.010, 0.500)),
    "flood": (0, (0.001, 0.016)),
}


def kill(target: str, server: Server, sandbox) -> None:
    if target in ("supervisor", "both"):
        kill_supervisor(sandbox)
    if target in ("server", "both"):
        server.restart()
    retried(sandbox.sessions)


# One sandbox with its journals lives through so many kills; then the next one begins, so that the
# disk holds one round of a flood and not all of them.
KILLS_A_ROUND = 25


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("io", ["pipes", "pty"])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_lost(mode, io, kills, dice):
    total, left = Counter(), kills
    while left > 0:
        total += one_round(mode, io, min(left, KILLS_A_ROUND), dice)
        left -= KILLS_A_ROUND
    print(f"\n{mode} {io}, all rounds: " + ", ".join(f"{n} {what}" for what, n in total.items()))


def one_round(mode, io, kills, dice) -> Counter:
    rate, pause = MODES[mode]
    newline = b"\r\n" if io == "pty" else b"\n"
    with Server() as server:
        sandbox = Api(server).sandbox()
        writer = sandbox.session(*command(rate), pty=io == "pty", event_retention=RETENTION)
        echo = sandbox.sh("stty raw -echo 2>/dev/null; echo go; exec cat", pty=io == "pty")
        # What is typed before would be echoed by the terminal, too.
        echo.wait_output(b"go")
        followed = Check(newline)
        follower, typist = Follower(writer, followed.feed), Typist(echo)
        follower.start()
        typist.start()

        pid = writer.made["attempt"]["pid"]
        for _ in range(kills):
            time.sleep(dice.uniform(*pause))
            kill(dice.choice(("supervisor", "server", "both")), server, sandbox)
        now = retried(writer.get)
        assert now["attempt"]["number"] == 1, "the child was restarted"
        assert now["attempt"]["pid"] == pid

        retried(lambda: writer.signal("USR1"))
        end = follower.finish(900)
        followed.finish()
        assert end["exit_code"] == EXIT_CODE
        assert follower.connections > kills // 5, "the client was never disconnected"
        check_pages(writer, Check(newline), followed)
        typist.finish()
        last = Typist.line(typist.acknowledged[-1])
        echo.wait_output(last.rstrip(b"\n"), 30)
        typist.check(output(echo.events()).replace(b"\r\n", b"\n").removeprefix(b"go\n"))
        counts = Counter({"kills": kills, "bytes": followed.bytes, "events": follower.seq,
                          "connections": follower.connections,
                          "inputs": len(typist.acknowledged),
                          "uncertain inputs": len(typist.uncertain)})
        print(f"\n{mode} {io}: {dict(counts)}, sha256 {followed.digest.hexdigest()}")
        return counts


def check_pages(writer, paged: Check, followed: Check) -> None:
    """The journal read page by page holds the same bytes under the same numbers."""
    seq = 0
    while True:
        page = writer.page(after=seq, limit=100) if seq else writer.page(limit=100)
        for event in page["events"]:
            assert event["seq"] == seq + 1, f"seq {event['seq']} follows {seq}"
            seq = event["seq"]
            if event["type"] == "output":
                paged.feed(payload(event))
        if seq >= page["cursor"]["latest"]:
            break
    paged.finish()
    assert paged.digest.hexdigest() == followed.digest.hexdigest()
