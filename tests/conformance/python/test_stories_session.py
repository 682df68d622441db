"""Sessions through the vendor's Python client: creating, reading, input, control."""

import uuid

from drive import (all_events, attempt, create, data, follow, is_exit, kinds, plain, refused, send,
                   shell, spec, terminal, to_exit, to_output, wait_phase, written)
from sandbox0 import SessionEventOptions, SessionEventStreamOptions
from sandbox0.apispec.models.execution_session_desired_state import ExecutionSessionDesiredState
from sandbox0.apispec.models.execution_session_signal_request import ExecutionSessionSignalRequest
from sandbox0.apispec.models.execution_session_terminal_resize_request import (
    ExecutionSessionTerminalResizeRequest)

RUNNING = ExecutionSessionDesiredState.RUNNING
STOPPED = ExecutionSessionDesiredState.STOPPED
# A journal of 64 KiB that this prints over several times.
FLOOD = "head -c 400000 /dev/zero | tr '\\0' x"


def flooded(sandbox):
    session = create(sandbox, shell(FLOOD, event_retention={"max_bytes": 65536}))
    wait_phase(sandbox, session.id, "exited")
    return session


def test_create_runs_the_command(sandbox):
    session = create(sandbox, shell("echo hello; exit 3", name="greeter"))
    assert session.id.startswith("ses-")
    assert session.spec_version == 1
    events = to_exit(sandbox, session.id)
    assert events[0]["type"] == "session.created"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert written(events) == b"hello\n"
    assert (events[-1]["exit_code"], events[-1]["reason"]) == (3, "crashed")
    now = wait_phase(sandbox, session.id, "exited")
    assert now["attempt"]["exit_code"] == 3
    assert now["attempt"]["number"] == 1
    assert "pid" not in now["attempt"]


def test_create_fills_in_the_defaults(sandbox):
    got = plain(create(sandbox, spec("/bin/true", name="  padded "))) ["spec"]
    assert got["name"] == "padded"
    assert got["io"] == {"mode": "pipes"}
    assert got["lifecycle"] == {
        "desired_state": "running", "runtime_recovery": "restart", "stop_grace_period_seconds": 10,
        "restart": {"policy": "never", "max_restarts": 5, "window_seconds": 60,
                    "initial_backoff_ms": 250, "max_backoff_ms": 5000}}
    assert got["readiness"] == {"type": "process", "timeout_ms": 30000}
    assert got["event_retention"] == {"max_bytes": 67108864, "max_age_seconds": 86400}
    got = plain(create(sandbox, terminal("true")))["spec"]
    assert got["io"] == {
        "mode": "pty", "terminal": {"rows": 24, "cols": 80, "term": "xterm-256color"}}


def test_create_of_a_missing_program_is_failed(sandbox):
    session = plain(create(sandbox, spec("/no/such/program")))
    assert session["phase"] == "failed"
    assert session["attempt"]["reason"] == "start_failed"
    assert "exit_code" not in session["attempt"]


def test_create_refuses_a_blank_command(sandbox):
    refused(400, "invalid_request", create, sandbox, spec("  "))


def test_create_with_key_is_idempotent(sandbox):
    key = uuid.uuid4().hex
    first = create(sandbox, shell("sleep 1000"), key)
    again = create(sandbox, shell("sleep 1000"), key)
    assert again.id == first.id
    assert attempt(again)["id"] == attempt(first)["id"]
    sandbox.delete_session(first.id)


def test_create_with_key_conflicts_on_other_spec(sandbox):
    key = uuid.uuid4().hex
    session = create(sandbox, shell("sleep 1000"), key)
    refused(409, "session_conflict", create, sandbox, shell("sleep 1001"), key)
    sandbox.delete_session(session.id)


def test_create_with_key_after_stop_and_update(sandbox):
    key = uuid.uuid4().hex
    first = create(sandbox, shell("sleep 1000"), key)
    sandbox.set_session_desired_state(first.id, STOPPED)
    assert create(sandbox, shell("sleep 1000"), key).id == first.id
    sandbox.update_session(first.id, shell("sleep 1002"))
    again = plain(create(sandbox, shell("sleep 1000"), key))
    assert again["id"] == first.id
    assert again["spec"]["command"][-1] == "sleep 1002"
    sandbox.delete_session(first.id)


def test_key_is_free_after_delete(sandbox):
    key = uuid.uuid4().hex
    first = create(sandbox, shell("sleep 1000"), key)
    sandbox.delete_session(first.id)
    second = create(sandbox, shell("sleep 1001"), key)
    assert second.id != first.id
    sandbox.delete_session(second.id)


def test_sessions_are_listed_in_order(sandbox):
    made = [create(sandbox, spec("/bin/true")).id for _ in range(3)]
    listed = [item.id for item in sandbox.list_sessions()]
    assert [item for item in listed if item in made] == made


def test_unknown_session_is_not_found(sandbox):
    refused(404, "session_not_found", sandbox.get_session, "ses-00000000-000")


def test_streams_are_kept_apart(sandbox):
    session = create(sandbox, shell("echo out; echo err >&2"))
    events = to_exit(sandbox, session.id)
    assert written(events, "stdout") == b"out\n"
    assert written(events, "stderr") == b"err\n"
    session = create(sandbox, terminal("echo out; echo err >&2"))
    assert written(to_exit(sandbox, session.id), "pty") == b"out\r\nerr\r\n"


def test_bytes_survive(sandbox):
    every = bytes(range(256)) * 64
    session = create(sandbox, spec("/bin/cat"))
    send(sandbox, session.id, every, eof=True)
    assert written(to_exit(sandbox, session.id)) == every


def test_page_through_the_journal(sandbox):
    session = create(sandbox, shell("for i in 1 2 3 4 5; do echo $i; sleep 0.02; done"))
    whole = to_exit(sandbox, session.id)
    assert all_events(sandbox, session.id, limit=2) == whole
    page = sandbox.list_session_events(session.id, SessionEventOptions(after=whole[-1]["seq"]))
    assert page.events == []
    assert (page.cursor.earliest, page.cursor.latest) == (1, whole[-1]["seq"])


def test_page_refuses_a_cursor_ahead(sandbox):
    session = create(sandbox, spec("/bin/true"))
    wait_phase(sandbox, session.id, "exited")
    refused(400, "invalid_request", sandbox.list_session_events, session.id,
            SessionEventOptions(after=1_000_000))


def test_page_refuses_an_expired_cursor(sandbox):
    session = flooded(sandbox)
    error = refused(410, "event_cursor_expired", sandbox.list_session_events, session.id,
                    SessionEventOptions(after=1))
    earliest = sandbox.get_session(session.id).cursor.earliest
    assert str(earliest) in error.message
    page = sandbox.list_session_events(session.id, SessionEventOptions(after=earliest - 1))
    assert page.events[0].seq == earliest
    assert sandbox.list_session_events(session.id).events[0].seq == earliest


def test_watch_replays_and_follows(sandbox):
    session = create(sandbox, shell("echo first; read line; echo $line"))
    seen = []

    def talk(event):
        seen.append(event)
        if event["type"] == "output" and data(event) == b"first\n":
            send(sandbox, session.id, b"second\n")
        return is_exit(event)

    events = follow(sandbox, session.id, talk)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert written(events) == b"first\nsecond\n"
    assert kinds(events)[:3] == ["session.created", "attempt.starting", "attempt.started"]


def test_watch_resumes_after_seq(sandbox):
    session = create(sandbox, shell("echo a; sleep 0.1; echo b; sleep 0.1; echo c"))
    first = to_output(sandbox, session.id, b"a\n")
    rest = to_exit(sandbox, session.id, after=first[-1]["seq"])
    assert rest[0]["seq"] == first[-1]["seq"] + 1
    assert first + rest == all_events(sandbox, session.id)


def test_watch_prefers_last_event_id(sandbox):
    session = create(sandbox, shell("echo a"))
    whole = to_exit(sandbox, session.id)
    options = SessionEventStreamOptions(after=1, last_event_id=str(whole[-2]["seq"]))
    with sandbox.watch_session_events(session.id, options) as stream:
        assert plain(next(stream.iter_events())) == whole[-1]


def test_watch_refuses_an_expired_cursor(sandbox):
    session = flooded(sandbox)
    error = refused(410, "event_cursor_expired", sandbox.watch_session_events, session.id,
                    SessionEventStreamOptions(after=1))
    earliest = sandbox.get_session(session.id).cursor.earliest
    assert error.details["earliest"] == earliest
    with sandbox.watch_session_events(session.id) as stream:
        assert next(stream.iter_events()).seq == earliest


def test_input_is_accepted_once(sandbox):
    session = create(sandbox, spec("/bin/cat"))
    first = send(sandbox, session.id, b"once\n", input_id="line-1")
    again = send(sandbox, session.id, b"once\n", input_id="line-1")
    assert (first.accepted, first.duplicate) == (True, False)
    assert (again.accepted, again.duplicate) == (True, True)
    assert first.attempt_id == again.attempt_id == attempt(session)["id"]
    send(sandbox, session.id, eof=True)
    events = to_exit(sandbox, session.id)
    assert written(events) == b"once\n"
    assert kinds(events).count("input.accepted") == 2
    assert send(sandbox, session.id, b"once\n", input_id="line-1").duplicate is True


def test_input_conflicts_on_other_content(sandbox):
    session = create(sandbox, spec("/bin/cat"))
    send(sandbox, session.id, b"one\n", input_id="line-1")
    refused(409, "session_conflict", send, sandbox, session.id, b"two\n", None, "line-1")
    send(sandbox, session.id, eof=True)
    assert written(to_exit(sandbox, session.id)) == b"one\n"


def test_input_refuses_a_stale_attempt(sandbox):
    session = create(sandbox, spec("/bin/cat"))
    stale = attempt(session)["id"]
    sandbox.create_session_attempt(session.id, replace_current=True)
    refused(409, "session_conflict", send, sandbox, session.id, b"late\n", None, None, stale)
    sandbox.delete_session(session.id)


def test_input_after_exit_conflicts(sandbox):
    session = create(sandbox, spec("/bin/true"))
    wait_phase(sandbox, session.id, "exited")
    refused(409, "session_conflict", send, sandbox, session.id, b"late\n")


def test_eof_ends_a_pipe(sandbox):
    session = create(sandbox, spec("/bin/cat"))
    send(sandbox, session.id, b"hello\n", eof=True)
    events = to_exit(sandbox, session.id)
    assert written(events) == b"hello\n"
    assert events[-1]["exit_code"] == 0
    assert events[-1]["reason"] == "stopped"


def test_eof_ends_a_terminal(sandbox):
    session = create(sandbox, terminal("stty -echo; echo go; exec cat"))
    to_output(sandbox, session.id, b"go\r\n")
    send(sandbox, session.id, b"no newline", eof=True)
    events = to_exit(sandbox, session.id)
    assert written(events) == b"go\r\nno newline"
    assert events[-1]["exit_code"] == 0


def test_resize_reaches_the_program(sandbox):
    session = create(sandbox, terminal("stty size; read x; stty size"))
    to_output(sandbox, session.id, b"24 80\r\n")
    sandbox.resize_session_terminal(session.id, ExecutionSessionTerminalResizeRequest(
        rows=50, cols=132, expected_attempt_id=attempt(session)["id"]))
    send(sandbox, session.id, b"\n")
    events = to_exit(sandbox, session.id)
    assert b"50 132\r\n" in written(events)
    assert kinds(events).count("terminal.resized") == 1


def test_resize_refuses_a_stale_attempt(sandbox):
    session = create(sandbox, terminal("sleep 1000"))
    stale = attempt(session)["id"]
    sandbox.create_session_attempt(session.id, replace_current=True)
    refused(409, "session_conflict", sandbox.resize_session_terminal, session.id,
            ExecutionSessionTerminalResizeRequest(rows=50, cols=132, expected_attempt_id=stale))
    sandbox.delete_session(session.id)


def test_resize_refuses_pipes(sandbox):
    session = create(sandbox, shell("sleep 1000"))
    refused(409, "session_conflict", sandbox.resize_session_terminal, session.id,
            ExecutionSessionTerminalResizeRequest(rows=50, cols=132))
    sandbox.delete_session(session.id)


def test_stop_and_start(sandbox):
    session = create(sandbox, shell("sleep 1000"))
    stopped = plain(sandbox.set_session_desired_state(session.id, STOPPED))
    assert stopped["phase"] == "stopped"
    assert stopped["spec"]["lifecycle"]["desired_state"] == "stopped"
    assert stopped["spec_version"] == 2
    assert stopped["attempt"]["reason"] == "desired_state_stopped"
    assert plain(sandbox.set_session_desired_state(session.id, STOPPED))["phase"] == "stopped"
    started = plain(sandbox.set_session_desired_state(session.id, RUNNING))
    assert started["attempt"]["number"] == 2
    events = all_events(sandbox, session.id)
    assert [event["reason"] for event in events if event["type"] == "session.desired_state"] == [
        "stopped", "stopped", "running"]
    sandbox.delete_session(session.id)


def test_attempt_conflicts_while_one_runs(sandbox):
    session = create(sandbox, shell("sleep 1000"))
    refused(409, "session_conflict", sandbox.create_session_attempt, session.id)
    sandbox.delete_session(session.id)


def test_attempt_replaces(sandbox):
    session = create(sandbox, shell("sleep 1000"))
    replaced = plain(sandbox.create_session_attempt(session.id, replace_current=True))
    assert replaced["attempt"]["number"] == 2
    assert replaced["attempt"]["id"] != attempt(session)["id"]
    events = all_events(sandbox, session.id)
    assert [event["reason"] for event in events if event["type"] == "attempt.exited"] == [
        "attempt_replaced"]
    assert [event["reason"] for event in events if event["type"] == "attempt.starting"] == [
        "created", "attempt_created"]
    sandbox.delete_session(session.id)


def test_update_replaces_the_process(sandbox):
    session = create(sandbox, shell("sleep 1000", name="old"))
    updated = plain(sandbox.update_session(session.id, shell("sleep 1001")))
    assert updated["spec_version"] == 2
    assert updated["spec"].get("name", "") == ""
    assert updated["attempt"]["number"] == 2
    reasons = [event.get("reason") for event in all_events(sandbox, session.id)
               if event["type"] in ("session.updated", "attempt.exited", "attempt.starting")]
    assert reasons == ["created", None, "spec_replaced", "spec_updated"]
    sandbox.delete_session(session.id)


def test_update_keeps_the_process(sandbox):
    session = create(sandbox, shell("sleep 1000"))
    updated = plain(sandbox.update_session(session.id, shell(
        "sleep 1000", name="renamed", lifecycle={"restart": {"policy": "always"}})))
    assert updated["spec"]["name"] == "renamed"
    assert updated["attempt"]["id"] == attempt(session)["id"]
    assert updated["attempt"]["pid"] == attempt(session)["pid"]
    sandbox.delete_session(session.id)


def test_delete_ends_everything(sandbox):
    session = create(sandbox, shell("echo up; sleep 1000"))
    to_output(sandbox, session.id, b"up\n")
    with sandbox.watch_session_events(session.id) as stream:
        sandbox.delete_session(session.id)
        ended = [plain(event) for event in stream.iter_events()]
    assert [event["seq"] for event in ended] == list(range(1, len(ended) + 1))
    refused(404, "session_not_found", sandbox.get_session, session.id)
    refused(404, "session_not_found", sandbox.list_session_events, session.id)
    assert session.id not in [item.id for item in sandbox.list_sessions()]


def test_signal_reaches_the_program(sandbox):
    session = create(sandbox, shell(
        "trap 'echo caught; exit 0' USR1; echo up; while :; do sleep 0.05; done"))
    to_output(sandbox, session.id, b"up\n")
    sandbox.send_session_signal(session.id, ExecutionSessionSignalRequest(
        signal="usr1", expected_attempt_id=attempt(session)["id"]))
    events = to_exit(sandbox, session.id)
    assert written(events, "stdout") == b"up\ncaught\n"
    assert [event["reason"] for event in events if event["type"] == "signal.sent"] == ["SIGUSR1"]


def test_signal_refuses_unknown_names(sandbox):
    session = create(sandbox, shell("sleep 1000"))
    refused(400, "invalid_request", sandbox.send_session_signal, session.id,
            ExecutionSessionSignalRequest(signal="SIGNOPE"))
    sandbox.delete_session(session.id)


def test_signal_death_is_reported(sandbox):
    session = create(sandbox, spec("/bin/sleep", "1000"))
    sandbox.send_session_signal(session.id, ExecutionSessionSignalRequest(signal="9"))
    ended = to_exit(sandbox, session.id)[-1]
    assert (ended["exit_code"], ended["reason"]) == (-1, "killed")
    assert wait_phase(sandbox, session.id, "exited")["attempt"]["exit_code"] == -1
