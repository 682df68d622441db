"""A sandbox whose next server can't isolate it any more."""

from __future__ import annotations

import pytest
from leaks import leaks
from outlive_testing.api import Api, Failure, output
from outlive_testing.server import Server, binary, wait_until

# Once the file `lost` is there, something lies over a file of /proc: no namespace gets a /proc of
# its own then, which is what a host or a container does that allows none.
PROGRAM = """#!/bin/sh
test -e {lost} || exec {outlive} "$@"
exec unshare --mount sh -c 'mount --bind /dev/null /proc/interrupts; exec {outlive} "$@"' sh "$@"
"""


@pytest.fixture
def host(tmp_path):
    """A server, and the file that takes namespaces away from the next one."""
    lost, program = tmp_path / "lost", tmp_path / "serve"
    program.write_text(PROGRAM.format(lost=lost, outlive=binary()))
    program.chmod(0o755)
    with Server(program=program) as server:
        yield server, lost


def uid(sandbox) -> bytes:
    """Whom its root is on the host."""
    session = sandbox.sh("cat /proc/self/uid_map | tr -s ' '")
    session.wait_exit()
    return output(session.events())


# The sandbox woke up as a plain process of the host's root, and could read the admin's key.
def test_a_sandbox_never_wakes_up_with_less_isolation_than_it_was_made_with(host):
    server, lost = host
    server.data.chmod(0o711)  # Another user finds the way to its files.
    api = Api(server)
    sandbox = api.sandbox()
    assert sandbox.get()["runtime"] == {"kind": "namespace", "isolation": "nested"}
    apart = uid(sandbox)
    session = sandbox.sh("while read -r line; do echo got $line; done")
    sandbox.pause()

    lost.touch()
    server.restart()
    for call in (sandbox.resume, lambda: session.signal("CONT")):
        with pytest.raises(Failure) as failure:
            call()
        error = failure.value.error
        assert (failure.value.status, error["code"]) == (503, "sandbox_resume_failed")
        assert "made with isolation nested" in error["message"]
        assert "`outlive doctor`" in error["message"]
    shown = sandbox.get()
    assert shown["status"] == "failed"
    assert shown["runtime"] == {"kind": "namespace", "isolation": "nested"}
    assert session.get()["id"] == session.id
    assert session.events()
    new = api.sandbox()
    assert new.get()["runtime"]["isolation"] == "two-uid"
    assert uid(new) != apart
    new.delete()

    lost.unlink()
    server.restart()
    sandbox.resume()
    assert uid(sandbox) == apart
    sandbox.delete()
    wait_until(lambda: not leaks(server.data, [sandbox.id, new.id]), 15, "an end without leaks")
