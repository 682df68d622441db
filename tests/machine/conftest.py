"""One machine for all stories, with disks that count what projects write."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

import kernel
from machine import Machine, disks
from service import Service

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "tests/machine"
PORTS = 3
SERVICES = pytest.StashKey()
MACHINE = pytest.StashKey()


@pytest.fixture(scope="session")
def machine(request, tmp_path_factory):
    assert os.geteuid() == 0, "the files of the machine belong to its root"
    folder = tmp_path_factory.mktemp("machine")
    started = Machine(kernel.fetched(CACHE), folder, disks(folder), PORTS)
    request.config.stash[MACHINE] = started
    yield started
    started.end()


@pytest.fixture
def serve(request, machine):
    """Starts servers; ends them, and what they made, with the story."""
    made = []
    request.node.stash[SERVICES] = made
    with ExitStack() as ends:
        def start(group: str, **more) -> Service:
            name = request.node.name.removeprefix("test_").replace("[", "-").rstrip("]")
            data = more.pop("data", f"/data/{name}-{len(made)}")
            service = Service(machine, group, data, **more)
            made.append(service)
            ends.callback(service.end)
            return service.start()

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed and MACHINE in item.config.stash:
        machine = item.config.stash[MACHINE]
        report.sections.append(("the machine's console", machine.told()[-4000:]))
        for service in item.stash.get(SERVICES, []) if machine.runs else []:
            report.sections.append((f"log of {service.group}", service.log_text()))
    return report
