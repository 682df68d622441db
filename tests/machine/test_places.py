"""Who a server's control group belongs to, and what follows for the limits of its sandboxes."""

from __future__ import annotations

import pytest
from outlive_testing.api import Api, Failure

from service import GROUPS
from stories import ended, nothing_is_left, runs_out_of_memory, runs_out_of_processes

MANAGER = "user.slice/user-1000.slice/user@1000.service"
# What systemd gives to whom a group is delegated.
DELEGATED = ("", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads")
NO_LIMITS = [f"limit of {name}: no controller to enforce it" for name in ("memory", "pids", "cpu")]
# What a program is told that systemd starts as a unit.
MAIN = "export SYSTEMD_EXEC_PID=$$"
LIMITS = {"memory": "64Mi", "pids": 24, "cpu": "0.5"}


def delegate(machine, group: str, user: str = "user") -> None:
    machine.sh(f"mkdir -p {GROUPS}/{group}")
    parent = GROUPS
    for name in group.split("/")[:-1]:
        parent = f"{parent}/{name}"
        machine.sh(f"echo '+memory +pids +cpu' > {parent}/cgroup.subtree_control")
    files = " ".join(f"{GROUPS}/{group}{file}" for file in DELEGATED)
    machine.sh(f"chown {user}:{user} {files}")


def limits_hold(server, sandbox) -> None:
    assert runs_out_of_memory(sandbox)
    assert runs_out_of_processes(sandbox)
    assert server.reads(sandbox, "cpu.max") == "50000 100000"


def it_sleeps_wakes_and_goes(machine, server, sandbox) -> None:
    sandbox.suspend()
    assert "frozen 1" in server.reads(sandbox, "cgroup.events")
    sandbox.wake()
    assert ended(sandbox, "true")["exit_code"] == 0
    sandbox.delete()
    nothing_is_left(machine)


def test_an_ordinary_user_limits_what_is_delegated_to_the_user_manager(machine, serve):
    delegate(machine, MANAGER)
    slice_ = f"{GROUPS}/{MANAGER}/app.slice"
    machine.sh(f"echo '+memory +pids +cpu' > {GROUPS}/{MANAGER}/cgroup.subtree_control")
    machine.sh(f"su user -s /bin/sh -c 'mkdir -p {slice_}/outlive.service'")
    server = serve(f"{MANAGER}/app.slice/outlive.service", user="user")
    api = Api(server)
    health = api.bare("GET", "/healthz")["capabilities"]
    assert api.bare("GET", "/healthz")["isolation"] == "nested"
    assert not [word for word in health["off"] if word.startswith("limit")]
    sandbox = api.sandbox(resources=LIMITS)
    limits_hold(server, sandbox)
    server.restart()
    limits_hold(server, sandbox)
    assert server.places(sandbox).startswith(slice_)
    it_sleeps_wakes_and_goes(machine, server, sandbox)


def test_an_ordinary_user_without_delegation_is_told_what_is_weaker(machine, serve):
    server = serve("user.slice/user-1000.slice/session-1.scope", user="user")
    api = Api(server)
    off = api.bare("GET", "/healthz")["capabilities"]["off"]
    assert {*NO_LIMITS, "freeze and kill as a whole: no cgroup2 group of our own"} <= set(off)
    said = server.doctor()
    for line in [*NO_LIMITS, "systemd-run --user -p Delegate=yes outlive serve"]:
        assert line in said
    for name, value in LIMITS.items():
        with pytest.raises(Failure) as refused:
            api.sandbox(resources={name: value})
        assert refused.value.code == "unsupported"
        assert f"resources.{name} can't be enforced" in refused.value.error["message"]
    sandbox = api.sandbox()
    session = sandbox.sh("echo still works; read line")
    session.wait_output(b"still works")
    sandbox.suspend()
    sandbox.wake()
    session.input(b"\n")
    session.wait_exit()


def test_a_group_that_was_given_to_the_server_has_it_in_a_leaf(machine, serve):
    """It could limit nothing: it stood in its own way."""
    delegate(machine, "given")
    server = serve("given", user="user")
    assert server.where() == f"{GROUPS}/given/outlive-server"
    sandbox = Api(server).sandbox(resources=LIMITS)
    assert server.places(sandbox) == f"{GROUPS}/given/outlive/{sandbox.id}"
    limits_hold(server, sandbox)
    # What starts it again is in there, too, as a container's first process.
    server.group = server.where()
    assert "memory limits                               yes" in server.doctor()
    server.restart()
    limits_hold(server, sandbox)


def test_a_container_has_all_of_its_processes_in_a_leaf(machine, serve):
    """The whole of it is in the group that it takes for the root of all."""
    server = serve("box.scope", within="/usr/bin/unshare --cgroup --mount",
                   first=f"umount {GROUPS} && mount -t cgroup2 cgroup2 {GROUPS}; sleep 1000 & true")
    assert server.where() == f"{GROUPS}/box.scope/outlive-server"
    assert machine.sh(f"cat {GROUPS}/box.scope/cgroup.procs") == ""
    sandbox = Api(server).sandbox(resources=LIMITS)
    assert "populated 1" in machine.sh(f"cat {GROUPS}/box.scope/outlive/{sandbox.id}/cgroup.events")
    assert runs_out_of_memory(sandbox)
    assert runs_out_of_processes(sandbox)
    machine.sh(f"kill $(grep -v {server.pid} {GROUPS}/box.scope/outlive-server/cgroup.procs)")


@pytest.mark.parametrize(("runtime", "user"),
                         [("two-uid", "root"), ("process", "root"), ("process", "user")])
def test_without_namespaces_limits_hold_all_the_same(machine, serve, runtime, user):
    slice_ = f"{runtime}-{user}.slice"
    delegate(machine, slice_, user)
    machine.sh(f"su {user} -s /bin/sh -c 'mkdir {GROUPS}/{slice_}/outlive.service'")
    server = serve(f"{slice_}/outlive.service", user=user, options=f"--runtime {runtime}")
    sandbox = Api(server).sandbox(resources=LIMITS)
    limits_hold(server, sandbox)
    it_sleeps_wakes_and_goes(machine, server, sandbox)


def test_a_unit_of_a_user_of_its_own_is_not_divided(machine, serve):
    """systemd could not start it again: it puts the server into the unit's group first."""
    delegate(machine, "own.slice/outlive.service")
    server = serve("own.slice/outlive.service", user="user", first=MAIN)
    assert server.where() == server.group
    api = Api(server)
    with pytest.raises(Failure) as refused:
        api.sandbox(resources={"memory": "64Mi"})
    assert "DelegateSubgroup=server" in refused.value.error["message"]
    session = api.sandbox().sh("while read line; do echo got $line; done")
    server.restart()
    session.input(b"this\n")
    session.wait_output(b"got this")


def test_a_unit_with_a_subgroup_limits_what_is_in_it(machine, serve):
    unit = "sub.slice/outlive.service"
    delegate(machine, unit)
    machine.sh(f"su user -s /bin/sh -c 'mkdir {GROUPS}/{unit}/server'")
    server = serve(f"{unit}/server", user="user", first=MAIN)
    sandbox = Api(server).sandbox(resources=LIMITS)
    limits_hold(server, sandbox)
    server.restart()
    limits_hold(server, sandbox)
    code, said = machine.tries(f"echo $$ > {GROUPS}/{unit}/cgroup.procs")
    assert code != 0 and "busy" in said, "so it would be without"


def test_two_servers_side_by_side_leave_each_other_alone(machine, serve):
    one, other = serve("system.slice/one.service"), serve("system.slice/other.service")
    sandboxes = [Api(server).sandbox(resources=LIMITS) for server in (one, other)]
    other.restart()
    one.restart()
    for server, sandbox in zip((one, other), sandboxes):
        limits_hold(server, sandbox)
        assert "populated 1" in machine.sh(f"cat {server.places(sandbox)}/cgroup.events")
    sandboxes[0].delete()
    limits_hold(other, sandboxes[1])
    sandboxes[1].delete()
    nothing_is_left(machine)
