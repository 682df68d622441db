"""Sandbox calls of the vendor's Python client."""

import uuid

from drive import create, plain, refused, shell, to_exit, wait_phase, written, kinds, all_events
from sandbox0.apispec.models.sandbox_config import SandboxConfig
from sandbox0.apispec.models.sandbox_refresh_request import SandboxRefreshRequest
from sandbox0.apispec.models.sandbox_update_request import SandboxUpdateRequest


def test_sandbox_create_get_status(client):
    sandbox = client.claim_sandbox("default", SandboxConfig.from_dict({"ttl": 600, "hard_ttl": 7200}))
    assert sandbox.template == "default"
    assert sandbox.status in ("starting", "running")
    assert sandbox.runtime_id
    got = plain(client.get_sandbox(sandbox.id))
    assert got["id"] == sandbox.id
    assert got["status"] == "running"
    assert got["paused"] is False
    assert got["runtime_generation"] == 1
    assert got["auto_resume"] is True
    status = plain(client.status_sandbox(sandbox.id))
    assert status["sandbox_id"] == sandbox.id
    assert status["status"] == "running"
    client.delete_sandbox(sandbox.id)


def test_sandbox_list(client):
    made = {client.claim_sandbox("default").id for _ in range(2)}
    assert made <= {item.id for item in client.list_sandboxes()}
    assert len(client.list_sandboxes(limit=1)) == 1
    assert not made & {item.id for item in client.list_sandboxes(paused=True)}
    assert made <= {item.id for item in client.list_sandboxes(status="running")}
    for sandbox_id in made:
        client.delete_sandbox(sandbox_id)


def test_sandbox_update_env(client):
    sandbox = client.claim_sandbox("default", SandboxConfig.from_dict({"env_vars": {"COLOUR": "red"}}))
    session = create(sandbox, shell("printf $COLOUR"))
    assert written(to_exit(sandbox, session.id)) == b"red"
    client.update_sandbox(sandbox.id, SandboxUpdateRequest.from_dict(
        {"config": {"env_vars": {"COLOUR": "blue"}}}))
    session = create(sandbox, shell("printf $COLOUR"))
    assert written(to_exit(sandbox, session.id)) == b"blue"
    client.delete_sandbox(sandbox.id)


def test_sandbox_refresh(client):
    sandbox = client.claim_sandbox("default", SandboxConfig.from_dict({"ttl": 600}))
    before = client.get_sandbox(sandbox.id).expires_at
    after = client.refresh_sandbox(sandbox.id, SandboxRefreshRequest(duration=3600)).expires_at
    assert (after - before).total_seconds() > 2000
    client.delete_sandbox(sandbox.id)


def test_sandbox_delete(client):
    sandbox = client.claim_sandbox("default")
    client.delete_sandbox(sandbox.id)
    refused(404, "not_found", client.get_sandbox, sandbox.id)


def test_sandbox_unknown_template(client):
    refused(404, "not_found", client.claim_sandbox, "no-such-template")


def test_sandbox_pause_and_resume(client):
    sandbox = client.claim_sandbox("default")
    session = create(sandbox, shell("echo $$; exec sleep 1000"))
    assert client.pause_sandbox(sandbox.id).paused is True
    got = client.get_sandbox(sandbox.id)
    assert (got.status, got.paused, got.runtime_generation) == ("paused", True, 1)
    assert client.resume_sandbox(sandbox.id).resumed is True
    got = client.get_sandbox(sandbox.id)
    assert (got.status, got.paused, got.runtime_generation) == ("running", False, 2)
    now = wait_phase(sandbox, session.id, "running")
    assert now["runtime_generation"] == 2
    assert now["attempt"]["number"] == 2
    events = all_events(sandbox, session.id)
    ended = [event for event in events if event["type"] == "attempt.exited"]
    assert [(event["reason"], event["runtime_generation"]) for event in ended] == [
        ("runtime_replaced", 1)]
    assert "exit_code" not in ended[0]
    assert kinds(events).index("session.paused") < kinds(events).index("attempt.exited")
    assert [event["reason"] for event in events if event["type"] == "attempt.starting"] == [
        "created", "runtime_recovered"]
    client.delete_sandbox(sandbox.id)


def test_paused_sandbox_is_read_without_waking(client):
    sandbox = client.claim_sandbox("default")
    session = create(sandbox, shell("echo kept; exit 4"))
    to_exit(sandbox, session.id)
    client.pause_sandbox(sandbox.id)
    assert [item.id for item in sandbox.list_sessions()] == [session.id]
    assert plain(sandbox.get_session(session.id))["attempt"]["exit_code"] == 4
    assert written(to_exit(sandbox, session.id)) == b"kept\n"
    assert written(all_events(sandbox, session.id)) == b"kept\n"
    assert client.get_sandbox(sandbox.id).paused is True
    client.delete_sandbox(sandbox.id)


def test_paused_sandbox_wakes_for_a_change(client):
    sandbox = client.claim_sandbox("default")
    client.pause_sandbox(sandbox.id)
    session = create(sandbox, shell("echo awake"))
    assert written(to_exit(sandbox, session.id)) == b"awake\n"
    got = client.get_sandbox(sandbox.id)
    assert (got.status, got.runtime_generation) == ("running", 2)
    client.delete_sandbox(sandbox.id)


def test_paused_sandbox_without_auto_resume_refuses(client):
    sandbox = client.claim_sandbox("default", SandboxConfig.from_dict({"auto_resume": False}))
    session = create(sandbox, shell("echo before"), key=uuid.uuid4().hex)
    to_exit(sandbox, session.id)
    client.pause_sandbox(sandbox.id)
    refused(503, "unavailable", create, sandbox, shell("echo never"))
    assert [item.id for item in sandbox.list_sessions()] == [session.id]
    assert client.get_sandbox(sandbox.id).paused is True
    client.delete_sandbox(sandbox.id)
