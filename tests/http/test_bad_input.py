"""Every endpoint answers nonsense with the contract's error."""

from __future__ import annotations

import json
import os
import socket
import struct
from urllib.parse import urlsplit

import pytest
from outlive_testing import processes
from outlive_testing.api import Api, Failure
from outlive_testing.server import wait_until

MIB = 1 << 20
UNKNOWN = {"sandbox": "sbx-00000000-000", "session": "ses-00000000-000"}
GATEWAY = {"bad_request": (400, 414, 431), "unauthorized": (401,), "forbidden": (403,), "not_found": (404,), "conflict": (409,),
           "quota_exceeded": (429,), "unavailable": (503,), "not_implemented": (501,)}
SUPERVISOR = {"invalid_request": (400, 413), "session_not_found": (404,), "session_conflict": (409,),
              "event_cursor_expired": (410,), "input_buffer_full": (429,)}

# Every call that takes a body: method, path, a body that is right.
BODIES = [
    ("POST", "/api/v1/sandboxes", {"template": "default"}),
    ("PUT", "/api/v1/sandboxes/{sandbox}", {"config": {"ttl": 600}}),
    ("POST", "/api/v1/sandboxes/{sandbox}/refresh", {"duration": 600}),
    ("POST", "/api/v1/sandboxes/{sandbox}/fork", {"config": {"ttl": 600}}),
    ("POST", "/api/v1/sandboxes/{sandbox}/sessions", {"command": ["/bin/true"]}),
    ("PUT", "/api/v1/sandboxes/{sandbox}/sessions/{session}", {"command": ["/bin/true"]}),
    ("PUT", "/api/v1/sandboxes/{sandbox}/sessions/{session}/desired-state", {"state": "stopped"}),
    ("POST", "/api/v1/sandboxes/{sandbox}/sessions/{session}/attempts", {"replace_current": True}),
    ("POST", "/api/v1/sandboxes/{sandbox}/sessions/{session}/inputs", {"input_id": "a", "eof": True}),
    ("POST", "/api/v1/sandboxes/{sandbox}/sessions/{session}/signals", {"signal": "CONT"}),
    ("PUT", "/api/v1/sandboxes/{sandbox}/sessions/{session}/terminal", {"rows": 24, "cols": 80}),
    ("POST", "/v1/keys", {"owner": "somebody", "role": "member"}),
]
SESSION_READS = ["", "/events", "/events/stream", "/attempts"]
# Bodies that are no JSON object of any call.
NO_OBJECT = [b"", b"{", b"nul", b"[]", b"17", b'"text"', b"\xff\xfe", b"{]", b'{"a":1}}', b"[" * 100_000]
# Values that no field of any call accepts where another type is meant.
ODD = [None, 17, -1, 1.5, "text", "", [], [[]], {}, {"a": {}}, True, 2**63, -(2**63), 1e300, "\0", "x" * 70000]


@pytest.fixture(scope="module")
def session(sandbox):
    return sandbox.session("/bin/cat")


def fill(path, sandbox, session) -> str:
    return path.format(sandbox=sandbox.id, session=session.id)


def send(api, method, path, body: bytes, kind="application/json"):
    return api.raw(method, path, body, {"Content-Type": kind}, timeout=30)


def expect_error(answer, what=""):
    """An error envelope whose code belongs to its status."""
    status, headers, text = answer
    assert 400 <= status < 500 or status == 501, f"{what}: {status} {text[:300]!r}"
    assert "application/json" in headers["Content-Type"], f"{what}: {headers['Content-Type']}"
    envelope = json.loads(text)
    assert envelope["success"] is False, what
    code = envelope["error"]["code"]
    assert envelope["error"]["message"], what
    if code in SUPERVISOR:
        assert status in SUPERVISOR[code], f"{what}: {status} {code}"
    else:
        assert status in GATEWAY.get(code, ()), f"{what}: {status} {code}"
    assert headers["X-Request-Id"], what


def expect_no_fault(answer, what=""):
    status, headers, text = answer
    if status >= 400:
        expect_error(answer, what)
    else:
        assert json.loads(text)["success"] is True, what


@pytest.mark.parametrize("method, path, right", BODIES, ids=lambda value: value if isinstance(value, str) else "")
def test_bodies_that_are_no_object(api, sandbox, session, method, path, right):
    optional = path.endswith(("/attempts", "/refresh", "/fork", "{sandbox}"))
    for body in NO_OBJECT:
        answer = send(api, method, fill(path, sandbox, session), body)
        if body == b"" and optional:
            expect_no_fault(answer, path)
        else:
            expect_error(answer, f"{method} {path} {body[:20]!r}")


@pytest.mark.parametrize("method, path, right", BODIES, ids=lambda value: value if isinstance(value, str) else "")
def test_fields_of_the_wrong_type(api, method, path, right):
    sandbox = api.sandbox()  # Its own: 17 is a right duration to refresh for, and soon over.
    victim = sandbox.session("/bin/cat")
    for field in right:
        for odd in ODD:
            body = json.dumps({**right, field: odd}).encode()
            answer = send(api, method, fill(path, sandbox, victim), body)
            expect_no_fault(answer, f"{method} {path} {field}={odd!r:.40}")


SPEC_FIELDS = [
    "name", "command", "cwd", "env", "io", "io.mode", "io.terminal", "io.terminal.rows", "io.terminal.cols",
    "io.terminal.term", "lifecycle", "lifecycle.desired_state", "lifecycle.restart",
    "lifecycle.restart.policy", "lifecycle.restart.max_restarts", "lifecycle.restart.window_seconds",
    "lifecycle.restart.initial_backoff_ms", "lifecycle.restart.max_backoff_ms",
    "lifecycle.runtime_recovery", "lifecycle.idle_timeout_seconds", "lifecycle.max_lifetime_seconds",
    "lifecycle.stop_grace_period_seconds", "readiness", "readiness.type", "readiness.delay_ms",
    "readiness.output", "readiness.timeout_ms", "event_retention", "event_retention.max_bytes",
    "event_retention.max_age_seconds",
]


@pytest.mark.parametrize("field", SPEC_FIELDS)
def test_spec_fields_of_the_wrong_type(api, sandbox, field):
    path = f"{sandbox.path}/sessions"
    for odd in ODD:
        spec: dict = {"command": ["/bin/true"], "io": {"mode": "pty"}}
        *parents, last = field.split(".")
        at = spec
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = odd
        answer = send(api, "POST", path, json.dumps(spec).encode())
        expect_no_fault(answer, f"{field}={odd!r:.40}")
        if answer[0] == 201:
            made = json.loads(answer[2])["data"]
            api.call("DELETE", f"{path}/{made['id']}")


@pytest.mark.parametrize("spec", [
    {"command": []}, {"command": [" "]}, {"command": ["a\0b"]}, {"command": ["x"] * 100_000},
    {"command": ["/bin/true"], "env": {"": "x"}}, {"command": ["/bin/true"], "env": {"a=b": "x"}},
    {"command": ["/bin/true"], "env": {"a": "x\0"}}, {"command": ["/bin/true"], "name": "n" * 129},
    {"command": ["/bin/true"], "io": {"mode": "telepathy"}},
    {"command": ["/bin/true"], "io": {"mode": "pty", "terminal": {"rows": 65536}}},
    {"command": ["/bin/true"], "lifecycle": {"restart": {"initial_backoff_ms": 10, "max_backoff_ms": 5}}},
    {"command": ["/bin/true"], "lifecycle": {"idle_timeout_seconds": -1}},
    {"command": ["/bin/true"], "readiness": {"type": "output"}},
    {"command": ["/bin/true"], "readiness": {"type": "output", "output": "r" * 65537}},
    {"command": ["/bin/true"], "event_retention": {"max_bytes": -1}},
    {"command": ["/bin/sh", "-c", "x" * (2 * MIB)]},
], ids=lambda spec: json.dumps(spec)[:60])
def test_specs_out_of_range_are_invalid(sandbox, spec):
    with pytest.raises(Failure) as refused:
        sandbox.api.call("POST", f"{sandbox.path}/sessions", spec)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


@pytest.mark.parametrize("body", [
    {"input_id": "a"}, {"input_id": "", "eof": True}, {"input_id": "  ", "eof": True}, {"eof": True},
    {"input_id": "i" * 129, "eof": True}, {"input_id": "a", "data_base64": "%%%"},
    {"input_id": "a", "data_base64": "YQ"}, {"input_id": "a", "data_base64": "YQ==\n"},
    {"input_id": "a", "data_base64": "-_-_"}, {"input_id": "a", "data_base64": 7},
])
def test_inputs_that_are_invalid(session, body):
    with pytest.raises(Failure) as refused:
        session.api.call("POST", f"{session.path}/inputs", body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


@pytest.mark.parametrize("signal", ["", "SIG", "NOPE", "0", "65", "-9", "9.5", "TER M", "KILL;", "\0"])
def test_signals_that_are_invalid(session, signal):
    with pytest.raises(Failure) as refused:
        session.signal(signal)
    assert (refused.value.status, refused.value.code) == (400, "invalid_request")


@pytest.mark.parametrize("query", [
    "limit=0", "limit=-1", "limit=10001", "limit=x", "after=-1", "after=x", "after=1.5",
    "tail=-1", "tail=x", "wait_ms=-1", "wait_ms=99999999", "stream=nope", "after=%00", "after=%FF",
])
def test_queries_that_are_invalid(session, query):
    expect_error(session.api.raw("GET", f"{session.path}/events?{query}"), query)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "offset=-1", "offset=x",
                                   "status=nope", "paused=maybe"])
def test_list_queries_that_are_invalid(api, query):
    answer = api.raw("GET", f"/api/v1/sandboxes?{query}")
    expect_error(answer, query)
    assert json.loads(answer[2])["error"]["code"] == "bad_request"


def test_bodies_of_ten_mebibytes(api, sandbox, session):
    before = processes.resident_bytes(api.server.pid)
    for method, path, right in BODIES:
        body = json.dumps({**right, "padding": "p" * (10 * MIB)}).encode()
        answer = send(api, method, fill(path, sandbox, session), body)
        assert answer[0] == 413, f"{path}: {answer[0]}"
        assert json.loads(answer[2])["error"]["code"] == "invalid_request", path
        expect_error(answer, path)
    assert processes.resident_bytes(api.server.pid) - before < 64 * MIB


def test_arrays_of_a_hundred_thousand(api, sandbox, session):
    array = list(range(100_000))
    for method, path, right in BODIES:
        for field in right:
            body = json.dumps({**right, field: array}).encode()
            expect_error(send(api, method, fill(path, sandbox, session), body), f"{path} {field}")


def test_unknown_ids(api, sandbox, session):
    for method, path, right in BODIES:
        if "{" not in path:
            continue
        for ids in ({**UNKNOWN}, {"sandbox": sandbox.id, "session": UNKNOWN["session"]},
                    {"sandbox": "%2e%2e", "session": "%00"}, {"sandbox": "x" * 4000, "session": "é"}):
            if "session" not in path and ids["sandbox"] == sandbox.id:
                continue
            where = path.format(**{key: value.replace("é", "%C3%A9") for key, value in ids.items()})
            if "{session}" not in path and ids["sandbox"] == sandbox.id:
                continue
            answer = send(api, method, where, json.dumps(right).encode())
            expect_error(answer, where[:80])
            assert answer[0] in (404, 414, 431), where[:80]
    for read in SESSION_READS:
        answer = api.raw("GET", f"{sandbox.path}/sessions/{UNKNOWN['session']}{read}")
        assert answer[0] == 404
        assert json.loads(answer[2])["error"]["code"] == "session_not_found"


def test_ids_of_another_tenant_do_not_exist(api, sandbox, session):
    stranger = Api(api.server, api.key("a-stranger"))
    for method, path, right in BODIES:
        if "{" not in path:
            continue
        answer = send(stranger, method, fill(path, sandbox, session), json.dumps(right).encode())
        assert answer[0] == 404, f"{method} {path}: {answer[0]}"
    for path in (sandbox.path, f"{sandbox.path}/status", f"{sandbox.path}/sessions",
                 *(f"{session.path}{read}" for read in SESSION_READS), f"{session.path}/ws"):
        assert stranger.raw("GET", path)[0] == 404, path
    for method, path in (("DELETE", sandbox.path), ("POST", f"{sandbox.path}/pause"),
                         ("DELETE", session.path)):
        assert stranger.raw(method, path)[0] == 404, path
    assert sandbox.id not in [item["id"] for item in stranger.call("GET", "/api/v1/sandboxes")["sandboxes"]]
    assert session.get()["phase"] == "running"


def test_calls_without_a_right_key(api, sandbox, session):
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"},
                   {"Authorization": f"Bearer {'k' * 5000}"}):
        for path in ("/api/v1/sandboxes", sandbox.path, session.path, f"{session.path}/events/stream",
                     f"{session.path}/ws"):
            connection = api.connection()
            connection.request("GET", path, headers=header)
            response = connection.getresponse()
            body = json.loads(response.read())
            assert (response.status, body["error"]["code"]) == (401, "unauthorized"), path
            connection.close()
    status, _, _ = Api(api.server, "wrong").raw("GET", f"/api/v1/sandboxes?token={api.token}")
    assert status == 401


def test_a_role_that_is_too_small_is_forbidden(api, sandbox):
    # Roles are of one owner; a reader of another owner would only see 404.
    reader = Api(api.server, api.key("readers", "read_only"))
    with pytest.raises(Failure) as refused:
        reader.call("POST", "/api/v1/sandboxes", {"template": "default"})
    assert (refused.value.status, refused.value.code) == (403, "forbidden")


def test_unknown_paths_and_methods(api, sandbox, session):
    for method, path in (("GET", "/"), ("GET", "/api/v1/nothing"), ("PATCH", session.path),
                         ("DELETE", "/api/v1/sandboxes"), ("TRACE", sandbox.path),
                         ("POST", f"{session.path}/events"), ("GET", f"{sandbox.path}//sessions")):
        status, headers, text = api.raw(method, path)
        assert 400 <= status < 500, f"{method} {path}: {status}"
        assert "application/json" in headers["Content-Type"], f"{method} {path}"
        assert json.loads(text)["success"] is False


@pytest.mark.parametrize("path", ["/services", "/files?path=/"])
def test_what_is_not_built_says_so(api, sandbox, path):
    status, _, text = api.raw("GET", f"{sandbox.path}{path}")
    assert (status, json.loads(text)["error"]["code"]) == (501, "not_implemented")


def test_requests_that_are_no_http(api):
    parts = urlsplit(api.server.url)
    for junk in (b"\0" * 4096, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", os.urandom(65536),
                 b"POST /api/v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
                 b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
                 b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 100_000 + b"\r\n"):
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as plain:
            try:
                plain.sendall(junk)
                plain.shutdown(socket.SHUT_WR)
                while plain.recv(65536):
                    pass
            except OSError:
                pass  # Cutting the connection is an answer to this.
    assert api.call("GET", "/api/v1/sandboxes")["count"] >= 0


def frame(opcode: int, payload: bytes, *, mask: bool = True, length: int | None = None, fin: bool = True,
          reserved: int = 0) -> bytes:
    """A WebSocket frame, right or wrong."""
    size = len(payload) if length is None else length
    head = bytes([(0x80 if fin else 0) | reserved | opcode])
    bit = 0x80 if mask else 0
    if size < 126:
        head += bytes([bit | size])
    elif size < 65536:
        head += bytes([bit | 126]) + struct.pack("!H", size)
    else:
        head += bytes([bit | 127]) + struct.pack("!Q", size)
    return head + (b"\0\0\0\0" if mask else b"") + payload


BAD_FRAMES = {
    "unmasked": frame(1, b"{}", mask=False),
    "reserved bits": frame(1, b"{}", reserved=0x70),
    "unknown opcode": frame(3, b"{}"),
    "huge length": frame(1, b"{}", length=1 << 62),
    "long ping": frame(9, b"p" * 200),
    "split ping": frame(9, b"p", fin=False),
    "stray continuation": frame(0, b"{}"),
    "no text": frame(1, b"\xff\xff\xff"),
    "no json": frame(1, b"{"),
    "no object": frame(1, b"[]"),
    "short close": frame(8, b"\x03"),
    "odd close code": frame(8, struct.pack("!H", 1)),
    "noise": os.urandom(4096),
    "big message": frame(1, b"x" * (16 * MIB)),
    "long request id": frame(1, json.dumps({"type": "signal", "signal": "CONT", "request_id": "r" * 300}).encode()),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_malformed_frames_end_the_connection_only(session, name):
    api = session.api
    parts = urlsplit(api.server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as plain:
        plain.sendall((f"GET {session.path}/ws HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n"
                       "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                       "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n").encode())
        assert plain.recv(4096).startswith(b"HTTP/1.1 101")
        try:
            plain.sendall(BAD_FRAMES[name])
            while plain.recv(65536):
                pass
        except ConnectionError:
            pass  # Cutting the connection is an answer to this.
    assert session.get()["phase"] == "running"


@pytest.mark.parametrize("message", [
    {}, {"type": 7}, {"type": "nope"}, {"type": "input"}, {"type": "input", "input_id": "a"},
    {"type": "input", "input_id": "a", "data_base64": "%"}, {"type": "signal"}, {"type": "signal", "signal": 9},
    {"type": "resize", "rows": 0, "cols": 0}, {"type": "resize", "rows": "a", "cols": 1},
])
def test_wrong_messages_are_answered(session, message):
    with session.websocket(after=session.get()["cursor"]["latest"]) as client:
        client.send(json.dumps({**message, "request_id": "it"}))
        answer = json.loads(client.recv(timeout=10))
        assert (answer["type"], answer["request_id"]) == ("error", "it"), answer
        assert answer["error"] and answer["code"]
        client.send(json.dumps({"type": "signal", "signal": "CONT", "request_id": "ok"}))
        wait_until(lambda: json.loads(client.recv(timeout=10)).get("type") == "ack", 10, "the next request")


def test_a_foreign_origin_is_refused(session):  # case L1
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Origin": "https://evil.example"}
    status, _, _ = session.api.raw("GET", f"{session.path}/ws", headers=headers)
    assert status == 403


def test_memory_stays_where_it_was(api, sandbox, session):
    path = f"{sandbox.path}/sessions"
    junk = json.dumps({"command": ["x"] * 100_000}).encode()
    for _ in range(20):
        send(api, "POST", path, junk)
    before = processes.resident_bytes(api.server.pid)
    for _ in range(200):
        expect_error(send(api, "POST", path, junk))
    assert processes.resident_bytes(api.server.pid) - before < 16 * MIB
