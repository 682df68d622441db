"""The whole life of a sandbox whose server is an ordinary user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from leaks import leaks
from outlive_testing import processes
from outlive_testing.api import Api, Failure, output
from outlive_testing.ordinary import OrdinaryServer
from outlive_testing.server import wait_until


@pytest.fixture(params=[True, False], ids=["granted-ids", "one-id"])
def server(request):
    with OrdinaryServer(granted=request.param) as server:
        server.granted = request.param
        yield server


def health(api: Api) -> dict:
    return api.bare("GET", "/healthz")


def owners(sandbox: str) -> set[int]:
    """Real users of the agent of a sandbox and of all below it."""
    keeper, = processes.keepers(sandbox)
    pids = [keeper, *processes.children(keeper)]
    return {int(processes.status(pid, "Uid").split()[0]) for pid in pids}


def test_a_sandbox_outlives_server_and_supervisor_and_leaves_nothing(server):
    api = Api(server)
    told = health(api)
    assert (told["isolation"], told["journal_protected"]) == ("nested", True)
    assert any(off.startswith("limit of memory") for off in told["capabilities"]["off"])
    sandbox = api.sandbox()
    assert sandbox.get()["network"]["mode"] == "none"
    session = sandbox.sh("id -u; while read -r line; do echo got $line; done")
    session.wait_output(b"0\n")
    pid = session.get()["attempt"]["pid"]
    assert owners(sandbox.id) <= server.ids()

    supervisor, = processes.supervisors(sandbox.id)
    processes.kill(supervisor)
    server.restart()
    wait_until(lambda: processes.supervisors(sandbox.id) not in ([], [supervisor]), 15, "another one")
    session.input(b"once\n")
    session.wait_output(b"got once\n")
    assert session.get()["attempt"]["pid"] == pid
    assert output(session.events()) == b"0\ngot once\n"

    sandbox.sh("echo kept > /root/kept").wait_exit()
    sandbox.pause()
    sandbox.resume()
    again = sandbox.sh("cat /root/kept; echo more >> /root/kept")
    again.wait_exit()
    assert output(again.events()) == b"kept\n"
    child = sandbox.fork()
    child.resume()
    copied = child.sh("cat /root/kept")
    copied.wait_exit()
    assert output(copied.events()) == b"kept\nmore\n"

    for each in (sandbox, child):
        each.delete()
    ids = [sandbox.id, child.id]
    wait_until(lambda: not leaks(server.data, ids), 15, "an end without leaks")


def test_what_an_ordinary_user_cannot_give_is_refused_with_its_reason(server):
    api = Api(server)

    def refused(**config) -> str:
        with pytest.raises(Failure) as failure:
            api.sandbox(**config)
        return failure.value.error["message"]

    assert "resources.memory can't be enforced" in refused(resources={"memory": "64Mi"})
    assert "needs root of the machine" in refused(network={"mode": "bridge"})
    if not server.granted:
        assert "/etc/subuid" in refused(user="1000")
        return
    sandbox = api.sandbox(user="1000")
    session = sandbox.sh("id -u; touch ~/mine && stat -c %u ~/mine")
    session.wait_exit()
    assert output(session.events()) == b"1000\n1000\n"
    sandbox.delete()


def test_files_of_the_server_belong_to_its_user(server):
    api = Api(server)
    api.sandbox().sh("chown 7:7 /root; mkfifo /root/fifo").wait_exit()
    found = {path.lstat().st_uid for path in Path(server.data).rglob("*")}
    assert found <= server.ids()
    assert os.stat(server.data / "admin.token").st_mode & 0o777 == 0o600
