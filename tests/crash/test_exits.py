"""Exit codes and last bytes of short programs, by the thousand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from outlive_testing.api import Api, output, types
from outlive_testing.server import Server

EIGHT_AT_ONCE = 8


@pytest.fixture(scope="module")
def sandbox():
    with Server() as server:
        yield Api(server).sandbox()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pty", [False, True], ids=["pipes", "pty"])
def test_output_comes_before_the_exit_a_thousand_times(sandbox, pty):  # cases S1, S4, S5
    def once(_):
        session = sandbox.sh("printf X; exit 3", pty=pty)
        session.wait_exit()
        events = session.events()
        session.delete()
        return output(events), events[-1].get("exit_code"), types(events)[-1]

    with ThreadPoolExecutor(EIGHT_AT_ONCE) as pool:
        got = list(pool.map(once, range(1000)))
    wrong = [item for item in got if item != (b"X", 3, "attempt.exited")]
    assert not wrong, f"{len(wrong)} of 1000: {wrong[:5]}"


@pytest.mark.timeout(600)
def test_every_code_is_exact_while_orphans_die(sandbox):  # cases S13, B7
    orphans = "(sleep 0.0$(( $$ % 9 )) &) ; (sleep 0.1 &) ; (true &)"

    def once(code):
        return sandbox.sh(f"{orphans}; exit {code}").wait_exit().get("exit_code")

    codes = list(range(1, 201))
    with ThreadPoolExecutor(EIGHT_AT_ONCE) as pool:
        assert list(pool.map(once, codes)) == codes
