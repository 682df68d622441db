"""Sandboxes without namespaces, each with a user of the host: `--runtime two-uid`."""

from __future__ import annotations

import pytest
from leaks import leaks
from outlive_testing import processes
from outlive_testing.api import Api, Failure, output
from outlive_testing.server import Server, wait_until


@pytest.fixture(scope="module")
def server():
    server = Server(arguments=["--runtime", "two-uid"])
    # Users of sandboxes pass through to their files.
    server.data.chmod(0o711)
    with server:
        yield server


def run(sandbox, line: str) -> str:
    session = sandbox.sh(line)
    session.wait_exit()
    return output(session.events()).decode()


def test_a_sandbox_of_its_own_user_outlives_server_and_supervisor(server):
    api = Api(server)
    told = api.bare("GET", "/healthz")
    assert (told["isolation"], told["journal_protected"]) == ("two-uid", True)
    assert told["capabilities"]["runtime"] == "two-uid"
    sandbox, other = api.sandbox(), api.sandbox()
    session = sandbox.sh("umask 077; [ -e kept ] || echo mine > kept; pwd; while read -r line; do echo $line; done")
    home = f"{server.data}/sandboxes/{sandbox.id}/files"
    session.wait_output(home.encode())
    assert any(off.startswith("users:") for off in api.bare("GET", "/healthz")["capabilities"]["off"])

    user = run(sandbox, "id -u")
    assert int(user) != int(run(other, "id -u")) != 0
    assert run(other, f"cat {home}/kept {server.data}/admin.token 2>/dev/null; "
                      f"ls {home} {server.data}/sandboxes {home}/../state 2>/dev/null; "
                      f"kill -9 {session.get()['attempt']['pid']} 2>/dev/null || echo refused") == "refused\n"

    supervisor, = processes.supervisors(sandbox.id)
    processes.kill(supervisor)
    server.restart()
    wait_until(lambda: processes.supervisors(sandbox.id) not in ([], [supervisor]), 15, "another one")
    session.input(b"once\n")
    session.wait_output(b"once\n")

    sandbox.suspend()
    sandbox.wake()
    sandbox.pause()
    sandbox.resume()
    assert run(sandbox, "cat ~/kept") == "mine\n"
    child = sandbox.fork()
    child.resume()
    assert run(child, "cat ~/kept") == "mine\n"
    owner, own = run(child, "stat -c %u kept; id -u").split()
    assert owner == own != user.strip()

    for each in (sandbox, other, child):
        each.delete()
    ids = [sandbox.id, other.id, child.id]
    wait_until(lambda: not leaks(server.data, ids), 15, "an end without leaks")


def test_what_needs_namespaces_is_refused(server):
    api = Api(server)
    for config in ({"user": "1000"}, {"network": {"mode": "none"}}):
        with pytest.raises(Failure) as failure:
            api.sandbox(**config)
        assert "two-uid" in failure.value.error["message"]
