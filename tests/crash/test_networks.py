"""Networks over kills: what belongs to a sandbox stays, and nothing else does."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time

import pytest
from outlive_testing import networks, processes
from outlive_testing.api import Api, Failure, Sandbox
from outlive_testing.clients import LOST, retried
from outlive_testing.server import Server, wait_until

KILLS = 8
CALLERS = 2


def remove(sandbox: Sandbox) -> None:
    try:
        retried(sandbox.delete)
    except Failure as failure:
        if failure.status != 404:  # Its removal was begun before the kill.
            raise


def has_network(sandbox: Sandbox) -> bool:
    return networks.left([sandbox.id]) == [f"device {networks.device(sandbox.id)}",
                                           f"rules of {networks.device(sandbox.id)}"]


class Churn(threading.Thread):
    """Makes and deletes sandboxes until the server is killed under it."""

    def __init__(self, api: Api, ids: set[str]):
        super().__init__(daemon=True)
        self.api, self.ids = api, ids
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                sandbox = self.api.sandbox(network={"mode": "bridge"})
                self.ids.add(sandbox.id)
                sandbox.delete()
        except (Failure, *LOST, ValueError):
            pass  # The server was killed in the middle of an answer.
        except BaseException as failure:
            self.failure = failure


@pytest.mark.timeout(120)
def test_kills_of_the_server_leave_no_network_behind(dice):
    with Server() as server:
        api = Api(server)
        lasting = api.sandbox(network={"mode": "bridge"})
        ids: set[str] = set()
        for _ in range(KILLS):
            callers = [Churn(api, ids) for _ in range(CALLERS)]
            for caller in callers:
                caller.start()
            time.sleep(dice.uniform(0, 0.3))  # Anywhere in a creation or a removal.
            server.kill()
            for caller in callers:
                caller.join(60)
                assert caller.failure is None, caller.failure
            ids |= {path.name for path in (server.data / "sandboxes").iterdir()}
            server.start()
        listed = api.call("GET", "/api/v1/sandboxes?limit=200")["sandboxes"]
        for one in listed:
            if one["id"] != lasting.id:
                remove(Sandbox(api, one["id"]))
        ids.discard(lasting.id)
        assert len(ids) >= KILLS, "hardly anything was made"
        wait_until(lambda: networks.left(ids) == [], 30, "the end of all other networks")
        assert has_network(lasting)


@pytest.mark.timeout(60)
def test_a_server_removes_the_rules_of_sandboxes_that_no_server_knows():
    with Server() as lost, Server() as other:
        sandbox = Api(lost).sandbox(network={"mode": "bridge"})
        staying = Api(other).sandbox(network={"mode": "bridge"})
        lost.kill_with_all_it_runs()
        for pid in processes.keepers(sandbox.id):
            processes.kill(pid)
        device = networks.device(sandbox.id)
        wait_until(lambda: device not in networks.devices(), 10, "the end of the device")
        shutil.rmtree(lost.data / "sandboxes" / sandbox.id)
        assert networks.left([sandbox.id]) == [f"rules of {device}"]
        other.restart()
        assert networks.left([sandbox.id]) == []
        assert has_network(staying)


@pytest.mark.timeout(60)
def test_a_network_that_is_taken_away_stays_away():
    with Server() as server:
        sandbox = Api(server).sandbox(network={"mode": "bridge"})
        launched = server.data / "sandboxes" / sandbox.id / "launch.cbor"
        before = launched.read_bytes()
        sandbox.api.call("PUT", sandbox.path, {"config": {"network": {"mode": "none"}}})
        assert networks.is_cut(sandbox.id)
        server.kill()
        server.start()
        assert networks.is_cut(sandbox.id)
        # Killed when the change was stored and nothing was done about it.
        server.kill()
        launched.write_bytes(before)
        server.start()
        assert sandbox.get()["network"]["mode"] == "none"
        wait_until(lambda: networks.is_cut(sandbox.id), 10, "the cut")
        assert networks.verdicts(sandbox.id) == ["reject"]
        assert sandbox.get()["network"] == {"mode": "none"}


@pytest.fixture
def machine():
    with networks.of_another_machine():
        assert networks.rules() == ""
        yield


def bridged(server: Server) -> Sandbox:
    return Api(server).sandbox(network={"mode": "bridge"})


@pytest.mark.timeout(60)
def test_what_sandboxes_share_is_there_before_the_first_and_after_the_last(machine):
    with Server() as server:
        idle = networks.rules()
        assert "table inet outlive {" in idle
        for _ in range(2):
            bridged(server).delete()
            assert networks.rules() == idle
        with Server() as other:
            server.terminate()
            assert networks.rules() == idle
            bridged(other).delete()
            assert networks.rules() == idle
            other.terminate()
            assert networks.rules() == ""


@pytest.mark.timeout(60)
def test_sandboxes_that_outlive_their_server_keep_their_rules(machine):
    with Server() as server:
        idle = networks.rules()
        sandbox = bridged(server)
        busy = networks.rules()
        server.terminate()
        assert networks.rules() == busy
        assert networks.verdicts(sandbox.id) == ["accept"]
        server.start()
        assert networks.rules() == busy
        sandbox.delete()
        assert networks.rules() == idle
        server.terminate()
        assert networks.rules() == ""


@pytest.mark.timeout(60)
def test_a_server_that_is_killed_leaves_nothing_on_an_empty_machine(machine):
    with Server() as server:
        bridged(server).delete()
        server.kill()
        wait_until(lambda: networks.rules() == "", 10, "the end of the rules")
        # Where nobody is left to see to it, it goes with the next one.
        server.start()
        idle = networks.rules()
        server.kill_with_all_it_runs()
        assert networks.rules() == idle
        server.start()
        assert networks.rules() == idle
        # From a terminal all of them are told.
        os.killpg(server.pid, signal.SIGINT)
        server.terminate()
        assert networks.rules() == ""


@pytest.mark.timeout(60)
def test_a_server_whose_sandboxes_have_no_network_has_no_rules(machine):
    with Server(arguments=["--runtime", "process"]):
        wait_until(lambda: networks.rules() == "", 10, "the end of the rules")
