"""Pauses, deadlines, lists and updates of sandboxes through the vendor's Python client."""

from drive import (EVER_SECONDS, all_events, attempt, create, kinds, plain, refused, shell, to_exit,
                   to_output, wait_phase, written)
from outlive_testing.server import wait_until
from sandbox0 import APIError
from sandbox0.apispec.models.create_sandbox_root_fs_snapshot_request import (
    CreateSandboxRootFSSnapshotRequest)
from sandbox0.apispec.models.fork_sandbox_request import ForkSandboxRequest
from sandbox0.apispec.models.restore_sandbox_root_fs_request import RestoreSandboxRootFSRequest
from sandbox0.apispec.models.sandbox_config import SandboxConfig
from sandbox0.apispec.models.sandbox_refresh_request import SandboxRefreshRequest
from sandbox0.apispec.models.sandbox_update_request import SandboxUpdateRequest

OVER_A_PAUSE = ("session.paused", "attempt.exited", "attempt.starting")


def claim(client, **config):
    return client.claim_sandbox("default", SandboxConfig.from_dict(config))


def state(client, sandbox):
    got = client.get_sandbox(sandbox.id)
    return got.status.value, got.paused, got.runtime_generation


def is_gone(client, sandbox_id):
    try:
        client.get_sandbox(sandbox_id)
    except APIError as error:
        assert error.status_code == 404, error
        return True
    return False


def test_pause_and_resume_are_waited_for(client):
    sandbox = claim(client)
    paused = client.sandboxes.pause_and_wait(sandbox.id)
    assert (paused.status.value, paused.paused, paused.runtime_generation) == ("paused", True, 1)
    resumed = client.sandboxes.resume_and_wait(sandbox.id)
    assert (resumed.status.value, resumed.paused, resumed.runtime_generation) == ("running", False, 2)
    # One that runs is there already: nothing is waited for, and nothing is replaced.
    assert client.sandboxes.resume_and_wait(sandbox.id).runtime_generation == 2
    client.delete_sandbox(sandbox.id)


def test_pause_and_resume_twice_change_nothing(client):
    sandbox = claim(client)
    for _ in range(2):
        assert client.pause_sandbox(sandbox.id).paused is True
        assert state(client, sandbox) == ("paused", True, 1)
    for _ in range(2):
        assert client.resume_sandbox(sandbox.id).resumed is True
        assert state(client, sandbox) == ("running", False, 2)
    client.delete_sandbox(sandbox.id)


def test_status_over_a_pause(client):
    sandbox = claim(client)
    before = plain(client.status_sandbox(sandbox.id))
    client.pause_sandbox(sandbox.id)
    assert plain(client.status_sandbox(sandbox.id))["status"] == "paused"
    client.resume_sandbox(sandbox.id)
    after = plain(client.status_sandbox(sandbox.id))
    assert (before["status"], after["status"]) == ("running", "running")
    assert after["runtime_id"] != before["runtime_id"]
    assert after["created_at"] == before["created_at"]
    client.delete_sandbox(sandbox.id)


def test_list_filters_by_what_is_so(client):
    awake, asleep = claim(client), claim(client)
    client.pause_sandbox(asleep.id)

    def both(**filters):
        listed = [item.id for item in client.list_sandboxes(limit=200, **filters)]
        return awake.id in listed, asleep.id in listed

    assert both() == (True, True)
    assert both(status="running") == (True, False)
    assert both(status="paused") == (False, True)
    assert both(paused=True) == (False, True)
    assert both(paused=False) == (True, False)
    assert both(template_id="default") == (True, True)
    assert both(template_id="another") == (False, False)
    assert both(status="paused", paused=False) == (False, False)
    assert state(client, asleep)[0] == "paused"
    for sandbox in (awake, asleep):
        client.delete_sandbox(sandbox.id)


def test_list_pages_show_each_once(client):
    made = [claim(client).id for _ in range(5)]
    client.pause_sandbox(made[2])
    listed, offset = [], 0
    while page := client.list_sandboxes(limit=2, offset=offset):
        assert len(page) <= 2
        listed += [item.id for item in page]
        offset += len(page)
    assert [item for item in listed if item in made] == made
    assert len(set(listed)) == len(listed)
    assert listed == [item.id for item in client.list_sandboxes(limit=200)]
    refused(400, "bad_request", lambda: client.list_sandboxes(limit=201))
    for sandbox_id in made:
        client.delete_sandbox(sandbox_id)


def test_ttl_pauses(client):
    sandbox = claim(client, ttl=1)
    session = create(sandbox, shell("echo up; exec sleep 1000"))
    client.sandboxes.wait_for_lifecycle(sandbox.id, lambda now: now.paused, poll_interval_sec=0.05)
    assert state(client, sandbox) == ("paused", True, 1)
    assert written(all_events(sandbox, session.id)) == b"up\n"
    client.delete_sandbox(sandbox.id)


def test_hard_ttl_deletes(client):
    sandbox = claim(client, hard_ttl=1)
    session = create(sandbox, shell("exec sleep 1000"))
    wait_until(lambda: is_gone(client, sandbox.id), EVER_SECONDS, "the deletion")
    refused(404, "not_found", sandbox.get_session, session.id)
    assert sandbox.id not in [item.id for item in client.list_sandboxes(limit=200)]


def test_refresh_puts_the_pause_off(client):
    sandbox = claim(client, ttl=600)
    first = client.get_sandbox(sandbox.id).expires_at
    again = client.refresh_sandbox(sandbox.id).expires_at
    assert 0 <= (again - first).total_seconds() < EVER_SECONDS
    longer = client.refresh_sandbox(sandbox.id, SandboxRefreshRequest(duration=3600)).expires_at
    assert 2900 < (longer - again).total_seconds() < 3000 + EVER_SECONDS
    assert client.get_sandbox(sandbox.id).expires_at == longer
    client.refresh_sandbox(sandbox.id, SandboxRefreshRequest(duration=1))
    client.sandboxes.wait_for_lifecycle(sandbox.id, lambda now: now.paused, poll_interval_sec=0.05)
    client.delete_sandbox(sandbox.id)


def test_update_env_reaches_the_next_attempt(client):
    sandbox = claim(client, env_vars={"COLOUR": "red"})
    session = create(sandbox, shell("echo $COLOUR; exec sleep 1000"))
    seen = to_output(sandbox, session.id, b"red\n")
    client.update_sandbox(sandbox.id, SandboxUpdateRequest.from_dict(
        {"config": {"env_vars": {"COLOUR": "blue"}}}))
    assert attempt(sandbox.get_session(session.id))["id"] == attempt(session)["id"]
    sandbox.create_session_attempt(session.id, replace_current=True)
    later = to_output(sandbox, session.id, b"blue\n", after=seen[-1]["seq"])
    assert written(later) == b"blue\n"
    # What a pause keeps, an update changes too, and changes nothing else.
    client.pause_sandbox(sandbox.id)
    updated = client.update_sandbox(sandbox.id, SandboxUpdateRequest.from_dict(
        {"config": {"env_vars": {"COLOUR": "green"}, "auto_resume": False}}))
    assert (updated.status.value, updated.auto_resume) == ("paused", False)
    client.resume_sandbox(sandbox.id)
    to_output(sandbox, session.id, b"green\n", after=later[-1]["seq"])
    client.delete_sandbox(sandbox.id)


def test_session_over_a_pause_keeps_its_order(client):
    sandbox = claim(client)
    session = create(sandbox, shell("echo up; exec sleep 1000"))
    seen = to_output(sandbox, session.id, b"up\n")
    client.pause_sandbox(sandbox.id)
    assert plain(sandbox.get_session(session.id))["phase"] == "suspended"
    client.resume_sandbox(sandbox.id)
    to_output(sandbox, session.id, b"up\n", after=seen[-1]["seq"])
    events = all_events(sandbox, session.id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    later = [event for event in events[len(seen):] if event["type"] in OVER_A_PAUSE]
    assert kinds(later) == list(OVER_A_PAUSE)
    assert [event.get("reason") for event in later[1:]] == ["runtime_replaced", "runtime_recovered"]
    assert "exit_code" not in later[1]
    assert [event["runtime_generation"] for event in later] == [1, 1, 2]
    assert later[1]["attempt_id"] == attempt(session)["id"] != later[2]["attempt_id"]
    now = wait_phase(sandbox, session.id, "running")
    assert (now["id"], now["runtime_generation"], now["attempt"]["number"]) == (session.id, 2, 2)
    client.delete_sandbox(sandbox.id)


def test_session_that_stops_at_a_pause_stays_stopped(client):
    sandbox = claim(client)
    session = create(sandbox, shell("echo up; exec sleep 1000", lifecycle={"runtime_recovery": "stop"}))
    to_output(sandbox, session.id, b"up\n")
    client.sandboxes.pause_and_wait(sandbox.id)
    client.sandboxes.resume_and_wait(sandbox.id)
    now = wait_phase(sandbox, session.id, "stopped")
    assert now["spec"]["lifecycle"]["desired_state"] == "stopped"
    events = all_events(sandbox, session.id)
    assert kinds(events).count("attempt.starting") == 1
    assert [event["reason"] for event in events if event["type"] == "session.stopped"] == [
        "runtime_recovery_policy"]
    assert written(events) == b"up\n"
    client.delete_sandbox(sandbox.id)


def test_fork_has_the_files_and_no_sessions(client):
    source = claim(client, env_vars={"COLOUR": "red"})
    session = create(source, shell("echo kept > /root/kept; echo up; exec sleep 1000"))
    to_output(source, session.id, b"up\n")
    forked = client.sandboxes.fork(
        source.id, ForkSandboxRequest.from_dict({"config": {"ttl": 600, "hard_ttl": 7200}}))
    child = forked.sandbox
    assert (forked.source_sandbox_id, child.id != source.id) == (source.id, True)
    assert (child.status.value, child.paused, child.runtime_generation) == ("paused", True, 1)
    assert child.hard_expires_at > child.created_at
    fork = client.sandbox(child.id)
    assert fork.list_sessions() == []
    found = create(fork, shell("cat /root/kept; echo $COLOUR"))
    assert written(to_exit(fork, found.id)) == b"kept\nred\n"
    assert state(client, fork)[0] == "running"
    # The source's command runs where it ran, and nowhere else.
    assert attempt(source.get_session(session.id))["id"] == attempt(session)["id"]
    assert [item.id for item in fork.list_sessions()] == [found.id]
    for sandbox in (source, fork):
        client.delete_sandbox(sandbox.id)


def test_snapshot_makes_a_sandbox_and_brings_one_back(client):
    source = claim(client)
    to_exit(source, create(source, shell("echo old > /root/kept")).id)
    snapshot = client.sandboxes.create_rootfs_snapshot(
        source.id, CreateSandboxRootFSSnapshotRequest(name=source.id, description="before it all"))
    assert (snapshot.sandbox_id, snapshot.name) == (source.id, source.id)
    assert [item.id for item in client.sandboxes.list_rootfs_snapshots(source.id)] == [snapshot.id]
    got = client.sandboxes.get_rootfs_snapshot(snapshot.id)
    assert (got.description, got.created_at) == ("before it all", snapshot.created_at)
    to_exit(source, create(source, shell("echo new > /root/kept")).id)
    client.sandboxes.pause_and_wait(source.id)
    restored = client.sandboxes.restore_rootfs(source.id, RestoreSandboxRootFSRequest(snapshot.id))
    assert (restored.sandbox_id, restored.snapshot_id) == (source.id, snapshot.id)
    assert restored.status.value == "paused"
    client.sandboxes.resume_and_wait(source.id)
    read = shell("cat /root/kept")
    assert written(to_exit(source, create(source, read).id)) == b"old\n"
    client.delete_sandbox(source.id)
    made = client.sandboxes.claim("default", snapshot_id=snapshot.id)
    assert made.list_sessions() == []
    assert written(to_exit(made, create(made, read).id)) == b"old\n"
    client.sandboxes.delete_rootfs_snapshot(snapshot.id)
    refused(404, "snapshot_not_found", client.sandboxes.get_rootfs_snapshot, snapshot.id)
    client.delete_sandbox(made.id)
