"""Short words over the vendor's client, so that a story reads as one."""

import base64
import time
import uuid

from sandbox0 import (APIError, SessionCreateOptions, SessionEventOptions,
                      SessionEventStreamOptions)
from sandbox0.apispec.models.execution_session_input_request import ExecutionSessionInputRequest
from sandbox0.apispec.models.execution_session_spec import ExecutionSessionSpec

EVER_SECONDS = 60


def spec(*command, **fields):
    return ExecutionSessionSpec.from_dict({"command": list(command), **fields})


def shell(line, **fields):
    return spec("/bin/sh", "-c", line, **fields)


def terminal(line, **fields):
    return shell(line, io={"mode": "pty"}, **fields)


def create(sandbox, wanted, key=None):
    options = SessionCreateOptions(idempotency_key=key) if key else None
    return sandbox.create_session(wanted, options)


def plain(model):
    return model.to_dict()


def attempt(session):
    return plain(session)["attempt"]


def data(event):
    return base64.b64decode(event.get("data_base64", ""))


def written(events, stream=None):
    return b"".join(
        data(event) for event in events
        if event["type"] == "output" and stream in (None, event["stream"])
    )


def kinds(events):
    return [event["type"] for event in events]


def follow(sandbox, session_id, last, after=None):
    """Watches until `last(event)` is true; every event up to it, as plain values."""
    options = SessionEventStreamOptions(after=after) if after is not None else None
    events = []
    with sandbox.watch_session_events(session_id, options) as stream:
        for event in stream.iter_events():
            events.append(plain(event))
            if last(events[-1]):
                return events
    raise AssertionError(f"the stream ended early: {kinds(events)}")


def is_exit(event):
    return event["type"] == "attempt.exited"


def to_exit(sandbox, session_id, after=None):
    return follow(sandbox, session_id, is_exit, after)


def to_type(sandbox, session_id, kind, after=None):
    return follow(sandbox, session_id, lambda event: event["type"] == kind, after)


def to_output(sandbox, session_id, needle, after=None):
    seen = bytearray()

    def last(event):
        if event["type"] == "output":
            seen.extend(data(event))
        return needle in seen

    return follow(sandbox, session_id, last, after)


def send(sandbox, session_id, content=None, eof=None, input_id=None, expected=None):
    request = ExecutionSessionInputRequest(input_id=input_id or uuid.uuid4().hex)
    if content is not None:
        request.data_base64 = base64.b64encode(content).decode()
    if eof is not None:
        request.eof = eof
    if expected is not None:
        request.expected_attempt_id = expected
    return sandbox.write_session_input(session_id, request)


def all_events(sandbox, session_id, limit=100):
    events, after = [], None
    while True:
        page = sandbox.list_session_events(session_id, SessionEventOptions(after=after, limit=limit))
        events += [plain(event) for event in page.events]
        if not page.events or events[-1]["seq"] >= page.cursor.latest:
            return events
        after = events[-1]["seq"]


def wait_phase(sandbox, session_id, *phases):
    deadline = time.monotonic() + EVER_SECONDS
    while True:
        session = plain(sandbox.get_session(session_id))
        if session["phase"] in phases:
            return session
        assert time.monotonic() < deadline, f"{session['phase']} did not become {phases}"
        time.sleep(0.02)


def code(error: APIError):
    """The envelope's code; the client itself shows it only for statuses its model lists."""
    import json
    return error.code or json.loads(error.body)["error"]["code"]


def refused(status, wanted_code, call, *arguments):
    """Calls and expects this status and code; answers the error."""
    try:
        call(*arguments)
    except APIError as error:
        assert (error.status_code, code(error)) == (status, wanted_code), error.body
        return error
    raise AssertionError(f"expected {status} {wanted_code}")
