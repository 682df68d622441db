"""Limits where cgroup2 is all there is, as systemd has it: each group is a unit's."""

from __future__ import annotations

import pytest
from outlive_testing.api import Api, Failure, Sandbox, output
from outlive_testing.server import wait_until

from stories import TAKE, ended, nothing_is_left, runs_out_of_memory, \
    runs_out_of_processes

UNIT = "system.slice/outlive.service"
WASTE = "while :; do :; done"


@pytest.fixture
def server(serve):
    return serve(UNIT)


@pytest.fixture
def api(server):
    return Api(server)


def change(sandbox: Sandbox, **resources) -> None:
    sandbox.api.call("PUT", sandbox.path, {"config": {"resources": resources}})


def throttled(server, sandbox) -> int:
    words = server.reads(sandbox, "cpu.stat").split()
    return int(words[words.index("nr_throttled") + 1])


def test_memory_that_runs_out_is_the_reason(api):
    """A server in a unit could start no sandbox at all."""
    sandbox = api.sandbox(resources={"memory": "64Mi"})
    exited = ended(sandbox, f"exec {TAKE.format(200)}")
    assert (exited["reason"], exited["signal"], exited["oom"]) == ("killed", "SIGKILL", True)
    exited = ended(sandbox, TAKE.format(16))
    assert (exited["exit_code"], exited.get("oom", False)) == (0, False)
    exited = ended(sandbox, "kill -KILL $$")
    assert (exited["signal"], exited["oom"]) == ("SIGKILL", False)


@pytest.fixture
def swap(machine):
    machine.sh("dd if=/dev/zero of=/swap bs=1M count=128 && mkswap /swap && swapon /swap")
    yield
    machine.sh("swapoff /swap && rm /swap")


def test_swap_is_no_way_round_the_limit_of_memory(swap, server, api):
    """A sandbox took the machine's swap instead of running out."""
    sandbox = api.sandbox(resources={"memory": "64Mi"})
    assert ended(sandbox, f"exec {TAKE.format(100)}").get("oom") is True
    assert server.reads(sandbox, "memory.swap.max") == "0"
    change(sandbox, memory="128Mi")
    assert ended(sandbox, f"exec {TAKE.format(100)}")["exit_code"] == 0
    assert ended(sandbox, f"exec {TAKE.format(150)}").get("oom") is True


def test_processor_time_and_processes_are_bounded(server, api):
    sandbox = api.sandbox(resources={"cpu": "0.25", "pids": 24})
    assert server.reads(sandbox, "cpu.max") == "25000 100000"
    waster = sandbox.sh(WASTE)
    wait_until(lambda: throttled(server, sandbox) > 3, 30, "a program that is held back")
    waster.stop()
    assert runs_out_of_processes(sandbox)
    assert server.reads(sandbox, "pids.max") == "24"


def test_other_limits_hold_at_once(server, api):
    sandbox = api.sandbox(resources={"memory": "64Mi", "cpu": "0.5", "pids": 24})
    change(sandbox, memory="256Mi", cpu="1.5", pids=60)
    assert ended(sandbox, TAKE.format(100))["exit_code"] == 0
    assert server.reads(sandbox, "cpu.max") == "150000 100000"
    assert server.reads(sandbox, "pids.max") == "60"
    # What the kernel can take back is no obstacle: pages of files.
    assert ended(sandbox, "head -c 80000000 /dev/zero > /root/file")["exit_code"] == 0
    change(sandbox, memory="48Mi", pids=60, cpu="1.5")
    assert server.reads(sandbox, "memory.max") == str(48 << 20)
    assert runs_out_of_memory(sandbox)


def test_less_than_what_is_in_use_is_refused_and_hurts_nobody(server, api):
    sandbox = api.sandbox(resources={"memory": "256Mi", "cpu": "1"})
    holder = sandbox.sh("head -c 90000000 /dev/zero > /dev/shm/file; echo holding; read line; "
                        "stat -c %s /dev/shm/file")
    holder.wait_output(b"holding")
    with pytest.raises(Failure) as refused:
        change(sandbox, memory="32Mi", cpu="0.5")
    assert "more than that is in use" in refused.value.error["message"]
    assert server.reads(sandbox, "memory.max") == str(256 << 20)
    assert server.reads(sandbox, "cpu.max") == "100000 100000"
    holder.input(b"\n")
    assert holder.wait_exit()["exit_code"] == 0
    assert b"90000000" in output(holder.events())


def test_a_sandbox_stands_still_and_goes_on(server, api):
    sandbox = api.sandbox(resources={"memory": "64Mi"})
    counter = sandbox.sh("i=0; while usleep 10000; do i=$((i + 1)); echo $i; done")
    counter.wait_output(b"\n5\n")
    sandbox.suspend()
    assert "frozen 1" in server.reads(sandbox, "cgroup.events")
    sandbox.wake()
    assert "frozen 0" in server.reads(sandbox, "cgroup.events")
    latest = counter.page(limit=1)["cursor"]["latest"]
    counter.wait_output(b"\n", after=latest)


def test_a_limit_that_no_controller_is_there_for_refuses_the_sandbox(machine, serve):
    parent = "/sys/fs/cgroup/narrow.slice"
    machine.sh(f"mkdir -p {parent}/inner.slice")
    machine.sh(f"echo '+memory +pids' > {parent}/cgroup.subtree_control")
    server = serve("narrow.slice/inner.slice/outlive.service")
    api = Api(server)
    off = api.bare("GET", "/healthz")["capabilities"]["off"]
    assert [word for word in off if "limit" in word] == ["limit of cpu: no controller to enforce it"]
    with pytest.raises(Failure) as refused:
        api.sandbox(resources={"cpu": "0.5"})
    assert refused.value.code == "unsupported"
    assert "not delegated to us" in refused.value.error["message"]
    sandbox = api.sandbox(resources={"memory": "64Mi"})
    assert runs_out_of_memory(sandbox)


def test_a_server_that_was_killed_comes_back_to_its_group(machine, server, api):
    sandbox = api.sandbox(resources={"memory": "64Mi", "pids": 50})
    session = sandbox.sh("while read line; do echo got $line; done")
    for _ in range(2):
        server.restart()
        session.input(b"this\n")
        session.wait_output(b"got this")
        change(sandbox, memory="80Mi", pids=50)
        assert server.reads(sandbox, "memory.max") == str(80 << 20)
    assert runs_out_of_memory(sandbox)
    another = api.sandbox(resources={"memory": "64Mi"})
    assert runs_out_of_memory(another)
    for each in (sandbox, another):
        each.delete()
    nothing_is_left(machine)
