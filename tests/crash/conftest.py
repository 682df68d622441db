"""How long the harness kills, and by which dice."""

import random
import time

import pytest


def pytest_addoption(parser):
    parser.addoption("--kills", type=int, default=25, help="kills in each mode")
    parser.addoption("--seed", type=int, default=None, help="repeats the kills of an earlier run")


def pytest_configure(config):
    if config.option.seed is None:
        config.option.seed = time.time_ns() % 1_000_000


def pytest_sessionstart(session):
    """Says it first, for a run may be cut off; the workers beside it have no reporter."""
    option = session.config.option
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"kill harness: --kills {option.kills} --seed {option.seed}")


@pytest.fixture
def kills(request):
    return request.config.option.kills


@pytest.fixture
def dice(request):
    """The same dice for the same test and seed."""
    return random.Random(f"{request.config.option.seed} {request.node.name}")
