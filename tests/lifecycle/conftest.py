"""How many sequences are drawn, and by which dice."""

import random
import time

import pytest


def pytest_addoption(parser):
    parser.addoption("--sequences", type=int, default=6, help="random sequences")
    parser.addoption("--steps", type=int, default=50, help="steps of each sequence")
    parser.addoption("--seed", type=int, default=None, help="repeats an earlier run's sequences")


def pytest_configure(config):
    if config.option.seed is None:
        config.option.seed = time.time_ns() % 1_000_000


def pytest_sessionstart(session):
    """Says it first, for a run may be cut off; the workers beside it have no reporter."""
    option = session.config.option
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"lifecycle: --sequences {option.sequences} --steps {option.steps} "
                            f"--seed {option.seed}")


def pytest_generate_tests(metafunc):
    if "sequence" in metafunc.fixturenames:
        metafunc.parametrize("sequence", range(metafunc.config.option.sequences))


@pytest.fixture
def steps(request):
    return request.config.option.steps


@pytest.fixture
def dice(request):
    """The same dice for the same test and seed."""
    return random.Random(f"{request.config.option.seed} {request.node.name}")
