"""The calls below `/v1/sandbox` answer nonsense with the contract's error, in their own envelope."""

from __future__ import annotations

import json

import pytest
from outlive_testing import processes
from outlive_testing.api import Api
from test_bad_input import MIB, NO_OBJECT, ODD, UNKNOWN, send

STATUS = {"invalid_request": (400, 413), "unauthorized": (401,), "forbidden": (403,),
          "not_found": (404,), "sandbox_not_found": (404,), "method_not_allowed": (405,),
          "unsupported": (400, 409, 422), "quota_exceeded": (429,), "not_implemented": (501,)}
BASE = "/v1/sandbox"
# Every call: method, path below a sandbox, a body that is right.
CALLS = [
    ("GET", "", None), ("POST", "/suspend", None), ("POST", "/resume", None), ("GET", "/activity", None),
    ("GET", "/holds", None), ("POST", "/holds", {"owner": "me", "ttl_seconds": 60}),
    ("DELETE", "/holds/hold-0000000000000000", None), ("DELETE", "", None),
]
CREATE = {"template": "default", "image": "host", "env": {"A": "1"}, "idle_suspend_seconds": 900}
HOLD = {"owner": "me", "ttl_seconds": 60}


def error(answer, what="") -> dict:
    """The error of an answer that is one, in the bare envelope."""
    status, headers, text = answer
    assert 400 <= status < 500, f"{what}: {status} {text[:300]!r}"
    assert "application/json" in headers["Content-Type"], what
    envelope = json.loads(text)
    assert set(envelope) == {"error"}, f"{what}: {envelope}"
    told = envelope["error"]
    assert told["message"], what
    assert status in STATUS.get(told["code"], ()), f"{what}: {status} {told['code']}"
    assert headers["X-Request-Id"], what
    return told


def refused(answer, status: int, code: str, what="") -> str:
    """The message of an error with this status and code."""
    told = error(answer, what)
    assert (answer[0], told["code"]) == (status, code), f"{what}: {told}"
    return told["message"]


def post(api, path: str, body) -> tuple:
    return send(api, "POST", path, json.dumps(body).encode())


@pytest.fixture
def made(api):
    """Notes the sandboxes that a call did make, and deletes them."""
    ids: list[str] = []
    yield ids
    for one in ids:
        assert api.raw("DELETE", f"{BASE}/{one}")[0] == 200


@pytest.mark.parametrize("path, optional", [(BASE, True), ("{}/holds", False)])
def test_bodies_that_are_no_object(api, sandbox, made, path, optional):
    path = path.format(sandbox.named)
    for body in NO_OBJECT:
        answer = send(api, "POST", path, body)
        if body == b"" and optional:
            assert answer[0] == 201
            made.append(json.loads(answer[2])["sandbox"]["id"])
        else:
            refused(answer, 400, "invalid_request", f"{path} {body[:20]!r}")


@pytest.mark.parametrize("field", CREATE)
def test_creates_with_fields_of_the_wrong_type(api, made, field):
    for odd in ODD:
        answer = post(api, BASE, {**CREATE, field: odd})
        what = f"{field}={odd!r:.40}"
        if answer[0] == 201:
            made.append(json.loads(answer[2])["sandbox"]["id"])
            # Left out, or what the type allows: nothing else is accepted.
            assert odd is None or (field, odd) in (("env", {}), ("idle_suspend_seconds", 17)), what
        else:
            error(answer, what)


@pytest.mark.parametrize("field", HOLD)
def test_holds_with_fields_of_the_wrong_type(api, sandbox, field):
    for odd in ODD:
        answer = post(api, f"{sandbox.named}/holds", {**HOLD, field: odd})
        what = f"{field}={odd!r:.40}"
        if answer[0] == 201:
            assert (field, odd) in (("owner", "text"), ("owner", "\0"), ("ttl_seconds", 17)), what
        else:
            refused(answer, 400, "invalid_request", what)


@pytest.mark.parametrize("body, names", [
    ({"idle_suspend_seconds": -1}, "idle_suspend_seconds"),
    ({"idle_suspend_seconds": 2**63 - 1}, "idle"),
    ({"idle_suspend_seconds": 1.5}, "1.5"),
    ({"env": {"": "x"}}, "env"), ({"env": {"a=b": "x"}}, "env"), ({"env": {"a": "x\0"}}, "env"),
    ({"env": {"a": 1}}, "integer"),
    ({"env": {"a": "x" * (2 * MIB)}}, "env"),
], ids=lambda value: str(value)[:40])
def test_creates_out_of_range_name_the_field(api, body, names):
    assert names in refused(post(api, BASE, body), 400, "invalid_request")


@pytest.mark.parametrize("body, names", [
    ({"owner": "", "ttl_seconds": 1}, "owner"), ({"owner": "o" * 129, "ttl_seconds": 1}, "owner"),
    ({"owner": "o", "ttl_seconds": 0}, "ttl_seconds"), ({"owner": "o", "ttl_seconds": -1}, "ttl_seconds"),
    ({"owner": "o", "ttl_seconds": 86401}, "ttl_seconds"), ({"owner": "o"}, "ttl_seconds"),
    ({"ttl_seconds": 1}, "owner"),
], ids=lambda value: str(value)[:40])
def test_holds_out_of_range_name_the_field(api, sandbox, body, names):
    assert names in refused(post(api, f"{sandbox.named}/holds", body), 400, "invalid_request")


def test_unknown_fields_are_named(api, sandbox):
    for path, right in ((BASE, CREATE), (f"{sandbox.named}/holds", HOLD)):
        for field in ("idle_suspend_second", "Owner", "replce", "é", ""):
            message = refused(post(api, path, {**right, field: 1}), 400, "invalid_request", path)
            assert f"`{field}`" in message, message


def test_unknown_templates_are_not_found(api):
    refused(post(api, BASE, {"template": "no-such-template"}), 404, "not_found")


def test_bodies_that_are_too_large(api, sandbox):
    before = processes.resident_bytes(api.server.pid)
    for path, right in ((BASE, CREATE), (f"{sandbox.named}/holds", HOLD)):
        refused(post(api, path, {**right, "padding": "p" * (10 * MIB)}), 413, "invalid_request", path)
        refused(post(api, path, {**right, next(iter(right)): list(range(100_000))}), 400,
                "invalid_request", path)
    assert processes.resident_bytes(api.server.pid) - before < 64 * MIB


@pytest.mark.parametrize("method, path, body", CALLS, ids=lambda value: str(value)[:20])
def test_unknown_ids(api, method, path, body):
    encoded = json.dumps(body).encode() if body else b""
    for unknown in (UNKNOWN["sandbox"], "sbx-", "%2e%2e", "%00", "x" * 4000, "%C3%A9", "ses-00000000-000"):
        refused(send(api, method, f"{BASE}/{unknown}{path}", encoded), 404, "sandbox_not_found", unknown[:40])


@pytest.mark.parametrize("method, path, body", CALLS, ids=lambda value: str(value)[:20])
def test_sandboxes_of_another_tenant_do_not_exist(api, sandbox, method, path, body):
    stranger = Api(api.server, api.key("a-sleepy-stranger"))
    encoded = json.dumps(body).encode() if body else b""
    refused(send(stranger, method, f"{sandbox.named}{path}", encoded), 404, "sandbox_not_found")
    assert stranger.bare("GET", BASE) == {"sandboxes": []}
    assert sandbox.activity()["state"] == "running", "it was touched all the same"


def test_a_hold_that_is_not_there_is_not_found(api, sandbox):
    for hold in ("hold-0000000000000000", "%00", "h" * 4000):
        refused(api.raw("DELETE", f"{sandbox.named}/holds/{hold}"), 404, "not_found", hold[:20])
    held = api.bare("POST", f"{sandbox.named}/holds", HOLD)["id"]
    assert api.bare("DELETE", f"{sandbox.named}/holds/{held}") == {"deleted": True}
    refused(api.raw("DELETE", f"{sandbox.named}/holds/{held}"), 404, "not_found", "a second end")


def test_calls_without_a_right_key(api, sandbox):
    for token in ("wrong", "k" * 5000):
        for method, path, body in [("POST", None, CREATE), ("GET", None, None), *CALLS]:
            where = BASE if path is None else f"{sandbox.named}{path}"
            encoded = json.dumps(body).encode() if body else b""
            refused(send(Api(api.server, token), method, where, encoded), 401, "unauthorized", where)


def test_a_key_that_may_only_read_changes_nothing(api):
    writer = Api(api.server, api.key("sleepy-readers"))
    reader = Api(api.server, api.key("sleepy-readers", "read_only"))
    refused(post(reader, BASE, {}), 403, "forbidden")
    named = f"{BASE}/{writer.bare('POST', BASE, {})['sandbox']['id']}"
    for method, path, body in CALLS:
        encoded = json.dumps(body).encode() if body else b""
        answer = send(reader, method, f"{named}{path}", encoded)
        if method == "GET":
            assert answer[0] == 200, path
        else:
            refused(answer, 403, "forbidden", f"{method} {path}")
    assert writer.bare("GET", f"{named}/activity")["state"] == "running"
    writer.bare("DELETE", named)


def test_methods_and_paths_that_are_not_there(api, sandbox):
    for method, path in (("PUT", sandbox.named), ("GET", f"{sandbox.named}/suspend"),
                         ("DELETE", BASE), ("POST", f"{sandbox.named}/activity"),
                         ("GET", f"{sandbox.named}/nothing"), ("PATCH", f"{sandbox.named}/holds")):
        status, headers, text = api.raw(method, path)
        assert status in (404, 405), f"{method} {path}: {status}"
        assert "application/json" in headers["Content-Type"], f"{method} {path}"
        assert json.loads(text)["error"]["code"] in ("not_found", "method_not_allowed")


def test_bodies_that_nobody_asked_for_do_no_harm(api):
    named = f"{BASE}/{api.bare('POST', BASE, {})['sandbox']['id']}"
    for body in (b"{", b"\xff" * 100, b"[" * 100_000):
        for call, suspended in (("suspend", True), ("resume", False)):
            status, _, text = send(api, "POST", f"{named}/{call}", body)
            assert (status, json.loads(text)["sandbox"]["suspended"]) == (200, suspended)
    api.bare("DELETE", named)
