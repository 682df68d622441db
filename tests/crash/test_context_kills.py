"""An interpreter keeps its state, and a command its output, whoever of us is killed."""

from __future__ import annotations

import pytest
from outlive_testing import processes
from outlive_testing.api import Api
from outlive_testing.clients import retried
from outlive_testing.server import Server, wait_until


@pytest.mark.timeout(120)
def test_contexts_outlive_server_and_supervisor():
    with Server() as server:
        api = Api(server)
        sandbox = api.sandbox()
        contexts = f"{sandbox.path}/contexts"
        kept = api.call("POST", contexts, {"type": "repl", "repl": {"alias": "sh"}})["id"]
        told = api.call("POST", contexts, {"type": "cmd", "cmd": {"command": [
            "sh", "-c", "echo before; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo after; exit 6",
        ]}})["id"]

        def chunk(code: str) -> dict:
            return api.call("POST", f"{contexts}/{kept}/exec", {"data": code})

        assert chunk("count=1")["exit_code"] == 0
        for kill in ("server", "supervisor", "both"):
            if kill in ("supervisor", "both"):
                processes.kill(processes.supervisors(sandbox.id)[0])
            if kill in ("server", "both"):
                server.restart()
            retried(lambda: api.call("GET", contexts))
            before = retried(lambda: chunk("echo $count; count=$((count+1))"))
            assert before["exit_code"] == 0, kill
        assert chunk("echo $count")["stdout"] == "4\n"
        chunk("touch /tmp/go")
        ended = wait_until(lambda: (now := api.call("GET", f"{contexts}/{told}")).get("state") and now,
                           20, "the end of the command")
        assert (ended["stdout"], ended["exit_code"]) == ("before\nafter\n", 6)
