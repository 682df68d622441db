"""Attachments, restarts, readiness, limits and recovery through the vendor's Python client."""

import base64
import time
from datetime import datetime

from drive import (all_events, attempt, create, is_exit, kinds, plain, shell, spec, terminal,
                   to_exit, to_output, to_type, wait_phase, written, send)
from outlive_testing import processes
from outlive_testing.server import wait_until
from sandbox0 import SessionWebSocketOptions
from sandbox0.apispec.models.execution_session_desired_state import ExecutionSessionDesiredState
from sandbox0.apispec.models.execution_session_web_socket_input import (
    ExecutionSessionWebSocketInput)
from sandbox0.apispec.models.execution_session_web_socket_input_type import (
    ExecutionSessionWebSocketInputType)
from sandbox0.apispec.models.execution_session_web_socket_resize import (
    ExecutionSessionWebSocketResize)
from sandbox0.apispec.models.execution_session_web_socket_resize_type import (
    ExecutionSessionWebSocketResizeType)
from sandbox0.apispec.models.execution_session_web_socket_signal import (
    ExecutionSessionWebSocketSignal)
from sandbox0.apispec.models.execution_session_web_socket_signal_type import (
    ExecutionSessionWebSocketSignalType)


def ws_input(request_id, content, expected=None):
    message = ExecutionSessionWebSocketInput(
        type_=ExecutionSessionWebSocketInputType.INPUT, input_id=request_id, request_id=request_id,
        data_base64=base64.b64encode(content).decode())
    if expected is not None:
        message.expected_attempt_id = expected
    return message


def ws_resize(request_id, rows, cols):
    return ExecutionSessionWebSocketResize(
        type_=ExecutionSessionWebSocketResizeType.RESIZE, request_id=request_id, rows=rows, cols=cols)


def ws_signal(request_id, name):
    return ExecutionSessionWebSocketSignal(
        type_=ExecutionSessionWebSocketSignalType.SIGNAL, request_id=request_id, signal=name)


def collect(connection, last):
    """Receives until `last(messages)`; events, acknowledged requests and errors."""
    events, acks, errors = [], [], {}
    for message in connection.iter_messages():
        if message.type == "event":
            events.append(plain(message.event))
        elif message.type == "ack":
            acks.append(message.request_id)
        else:
            errors[message.request_id] = message.error
        if last(events, acks, errors):
            return events, acks, errors
    raise AssertionError(f"the connection ended early: {kinds(events)}")


def exited(events, _acks, _errors):
    return bool(events) and is_exit(events[-1])


def seconds_between(first, second):
    def parse(event):
        return datetime.fromisoformat(event["occurred_at"]).timestamp()
    return parse(second) - parse(first)


def test_websocket_replays_and_talks(sandbox):
    session = create(sandbox, terminal("stty -echo; echo go; while read l; do echo got $l; stty size; done"))
    to_output(sandbox, session.id, b"go\r\n")
    with sandbox.connect_session(session.id) as connection:
        connection.send(ws_input("a", b"one\n"))
        connection.send(ws_resize("b", 40, 100))
        connection.send(ws_input("c", b"two\n"))

        def both(events, acks, _errors):
            return b"got two\r\n40 100\r\n" in written(events) and acks == ["a", "b", "c"]

        events, _, errors = collect(connection, both)
        assert errors == {}
        assert events[0]["seq"] == 1
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        connection.send(ws_signal("d", "KILL"))
        events, acks, _ = collect(connection, lambda e, a, _: exited(e, a, _) and a == ["d"])
        assert events[-1]["exit_code"] == -1


def test_websocket_resumes_after_seq(sandbox):
    session = create(sandbox, shell("echo a; read x; echo b"))
    seen = to_output(sandbox, session.id, b"a\n")
    options = SessionWebSocketOptions(after=seen[-1]["seq"])
    with sandbox.connect_session(session.id, options) as connection:
        connection.send(ws_input("go", b"\n"))
        events, _, _ = collect(connection, exited)
    assert events[0]["seq"] == seen[-1]["seq"] + 1
    assert written(seen + events) == b"a\nb\n"


def test_websocket_reports_errors(sandbox):
    session = create(sandbox, spec("/bin/cat"))
    with sandbox.connect_session(session.id) as connection:
        connection.send(ws_input("stale", b"x", expected="att-00000000-000"))
        connection.send(ws_resize("pipes", 40, 100))
        connection.send(ws_signal("name", "NOPE"))
        connection.send(ws_input("fine", b"x"))
        _, acks, errors = collect(connection, lambda _e, acks, _r: acks == ["fine"])
    assert set(errors) == {"stale", "pipes", "name"}
    assert errors["stale"] == "session attempt mismatch"
    assert errors["name"] == "unsupported signal"
    sandbox.delete_session(session.id)


def test_websocket_close_is_not_eof(sandbox):
    session = create(sandbox, spec("/bin/cat"))
    with sandbox.connect_session(session.id) as connection:
        connection.send(ws_input("a", b"before\n"))
        collect(connection, lambda _e, acks, _r: acks == ["a"])
    assert wait_phase(sandbox, session.id, "running")["attempt"]["id"] == attempt(session)["id"]
    send(sandbox, session.id, b"after\n", eof=True)
    assert written(to_exit(sandbox, session.id)) == b"before\nafter\n"


def restarting(policy, line, **more):
    return shell(line, lifecycle={"restart": {
        "policy": policy, "max_restarts": 3, "initial_backoff_ms": 50, "max_backoff_ms": 150, **more}})


def test_restart_on_failure_until_the_limit(sandbox):
    session = create(sandbox, restarting("on_failure", "exit 9"))
    events = to_type(sandbox, session.id, "session.failed")
    assert events[-1]["reason"] == "restart_limit_exceeded"
    assert [e["reason"] for e in events if e["type"] == "session.backoff"] == [
        "50ms", "100ms", "150ms"]
    assert [e["exit_code"] for e in events if is_exit(e)] == [9, 9, 9, 9]
    now = wait_phase(sandbox, session.id, "failed")
    assert now["restart_count"] == 3
    session = create(sandbox, restarting("on_failure", "exit 0"))
    to_exit(sandbox, session.id)
    assert wait_phase(sandbox, session.id, "exited")["restart_count"] == 0


def test_restart_always_until_stopped(sandbox):
    session = create(sandbox, restarting("always", "exit 0", initial_backoff_ms=20000,
                                         max_backoff_ms=20000))
    to_type(sandbox, session.id, "session.backoff")
    wait_phase(sandbox, session.id, "backoff")
    stopped = sandbox.set_session_desired_state(session.id, ExecutionSessionDesiredState.STOPPED)
    assert stopped.phase.value == "stopped"
    assert kinds(all_events(sandbox, session.id)).count("attempt.starting") == 1


def test_readiness_process(sandbox):
    session = create(sandbox, shell("sleep 1000"))
    assert session.phase.value == "running"
    sandbox.delete_session(session.id)


def test_readiness_delay(sandbox):
    session = create(sandbox, shell("sleep 1000", readiness={"type": "delay", "delay_ms": 300}))
    assert session.phase.value == "starting"
    events = to_type(sandbox, session.id, "session.ready")
    started = next(event for event in events if event["type"] == "attempt.started")
    assert 0.29 <= seconds_between(started, events[-1]) < 2
    assert wait_phase(sandbox, session.id, "running")
    sandbox.delete_session(session.id)


def test_readiness_output(sandbox):
    session = create(sandbox, shell("printf REA; sleep 0.3; printf DY; sleep 1000",
                                    readiness={"type": "output", "output": "READY"}))
    assert session.phase.value == "starting"
    events = to_type(sandbox, session.id, "session.ready")
    assert written(events) == b"READY"
    assert wait_phase(sandbox, session.id, "running")
    sandbox.delete_session(session.id)


def test_readiness_timeout(sandbox):
    session = create(sandbox, shell("sleep 1000", readiness={
        "type": "output", "output": "never", "timeout_ms": 200}))
    events = to_type(sandbox, session.id, "session.failed")
    assert events[-1]["reason"] == "readiness_timeout"
    assert [event["reason"] for event in events if is_exit(event)] == ["readiness_timeout"]
    assert wait_phase(sandbox, session.id, "failed")


def test_idle_timeout_stops(sandbox):
    session = create(sandbox, shell("echo up; sleep 1000", lifecycle={"idle_timeout_seconds": 1}))
    begun = time.monotonic()
    events = to_exit(sandbox, session.id)
    assert 0.9 < time.monotonic() - begun < 5
    assert events[-1]["reason"] == "session_expired"
    assert "session.expired" in kinds(events)
    now = wait_phase(sandbox, session.id, "stopped")
    assert now["spec"]["lifecycle"]["desired_state"] == "stopped"


def test_lifetime_stops(sandbox):
    session = create(sandbox, shell("while :; do echo busy; sleep 0.1; done",
                                    lifecycle={"max_lifetime_seconds": 1}))
    events = to_exit(sandbox, session.id)
    assert events[-1]["reason"] == "session_expired"
    assert 0.9 < seconds_between(events[0], events[-1]) < 5
    assert wait_phase(sandbox, session.id, "stopped")


def kill_the_runtime(client, sandbox):
    (keeper,) = processes.keepers(sandbox.id)
    processes.kill(keeper)
    wait_until(lambda: client.get_sandbox(sandbox.id).runtime_generation == 2, 30,
               "the replacement of the runtime")


def test_recovery_restarts_after_the_runtime_died(client):
    sandbox = client.claim_sandbox("default")
    session = create(sandbox, shell("echo up; sleep 1000"))
    done = create(sandbox, shell("exit 5"))
    to_exit(sandbox, done.id)
    seen = to_output(sandbox, session.id, b"up\n")
    kill_the_runtime(client, sandbox)
    later = to_output(sandbox, session.id, b"up\n", after=seen[-1]["seq"])
    assert later[0]["seq"] == seen[-1]["seq"] + 1
    ended = next(event for event in later if is_exit(event))
    assert ended["reason"] == "runtime_replaced"
    assert "exit_code" not in ended
    again = next(event for event in later if event["type"] == "attempt.starting")
    assert (again["reason"], again["runtime_generation"]) == ("runtime_recovered", 2)
    assert plain(sandbox.get_session(done.id))["phase"] == "exited"
    client.delete_sandbox(sandbox.id)


def test_recovery_stop_keeps_the_journal(client):
    sandbox = client.claim_sandbox("default")
    session = create(sandbox, shell("echo up; sleep 1000", lifecycle={"runtime_recovery": "stop"}))
    to_output(sandbox, session.id, b"up\n")
    kill_the_runtime(client, sandbox)
    now = wait_phase(sandbox, session.id, "stopped")
    assert now["spec"]["lifecycle"]["desired_state"] == "stopped"
    events = all_events(sandbox, session.id)
    assert written(events) == b"up\n"
    assert (events[-1]["type"], events[-1]["reason"]) == (
        "session.stopped", "runtime_recovery_policy")
    client.delete_sandbox(sandbox.id)
