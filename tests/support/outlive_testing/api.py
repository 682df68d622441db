"""A plain client of the supervised dialect: bytes on the wire, no convenience that hides a fault."""

from __future__ import annotations

import base64
import http.client
import json
import uuid
from urllib.parse import urlencode, urlsplit

from websockets.sync.client import connect

from outlive_testing.server import Server, wait_until


class Failure(AssertionError):
    """An answer that is not a success, with everything a test may want to look at."""

    def __init__(self, status: int, headers, body: dict):
        self.status = status
        self.headers = headers
        self.error = body.get("error", {})
        self.code = self.error.get("code")
        super().__init__(f"{status} {self.code}: {self.error.get('message')}")


class Api:
    """Calls the server with one key. A connection a call: slow, and nothing is shared."""

    def __init__(self, server: Server, token: str | None = None):
        self.server = server
        self.token = token or server.token

    def connection(self, timeout: float = 60.0) -> http.client.HTTPConnection:
        parts = urlsplit(self.server.url)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)

    def headers(self, extra: dict | None = None) -> dict:
        return {"Authorization": f"Bearer {self.token}", **(extra or {})}

    def raw(self, method: str, path: str, body: bytes | None = None, headers: dict | None = None,
            timeout: float = 60.0) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request; status, headers and body as they came."""
        connection = self.connection(timeout)
        try:
            try:
                connection.request(method, path, body=body, headers=self.headers(headers))
            except BrokenPipeError:
                pass  # The server answered without reading all of the body; the answer is there.
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, body=None, headers: dict | None = None,
             timeout: float = 60.0):
        """One JSON call; the envelope's data, or `Failure`."""
        encoded = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        status, answered, text = self.raw(method, path, encoded, {**kind, **(headers or {})}, timeout)
        envelope = json.loads(text)
        if status >= 400 or not envelope.get("success"):
            raise Failure(status, answered, envelope)
        return envelope["data"] if "data" in envelope else envelope

    def bare(self, method: str, path: str, body=None):
        """One call of a dialect without an envelope; its answer, or `Failure`."""
        encoded = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        status, answered, text = self.raw(method, path, encoded, kind)
        if status >= 400:
            raise Failure(status, answered, json.loads(text))
        return json.loads(text)

    def sandbox(self, **config) -> "Sandbox":
        body = {"template": "default", **({"config": config} if config else {})}
        return Sandbox(self, self.call("POST", "/api/v1/sandboxes", body)["sandbox_id"])

    def key(self, owner: str, role: str = "member") -> str:
        return self.call("POST", "/v1/keys", {"owner": owner, "role": role})["key"]


class Sandbox:
    def __init__(self, api: Api, sandbox_id: str):
        self.api = api
        self.id = sandbox_id
        self.path = f"/api/v1/sandboxes/{sandbox_id}"
        self.named = f"/v1/sandbox/{sandbox_id}"

    def suspend(self) -> dict:
        return self.api.bare("POST", f"{self.named}/suspend")["sandbox"]

    def wake(self) -> dict:
        return self.api.bare("POST", f"{self.named}/resume")["sandbox"]

    def show(self) -> dict:
        """As the named dialect has it, with `suspended`."""
        return self.api.bare("GET", self.named)["sandbox"]

    def activity(self) -> dict:
        return self.api.bare("GET", f"{self.named}/activity")

    def wait_state(self, state: str, seconds: float = 15.0) -> None:
        """Waits until the sandbox is `frozen`, `running`, …; looking never wakes it."""
        wait_until(lambda: self.activity()["state"] == state, seconds, f"{self.id} {state}")

    def fork(self, **config) -> "Sandbox":
        body = {"config": config} if config else {}
        return Sandbox(self.api, self.api.call("POST", f"{self.path}/fork", body)["sandbox"]["id"])

    def get(self) -> dict:
        return self.api.call("GET", self.path)

    def pause(self) -> dict:
        return self.api.call("POST", f"{self.path}/pause")

    def resume(self) -> dict:
        return self.api.call("POST", f"{self.path}/resume")

    def delete(self) -> None:
        self.api.call("DELETE", self.path)

    def sessions(self) -> list[dict]:
        return self.api.call("GET", f"{self.path}/sessions")["sessions"]

    def session(self, *command: str, key: str | None = None, pty: bool = False, **spec) -> "Session":
        """Creates a session; `sh` runs a shell line, everything else is the spec's own fields."""
        body = {"command": list(command), **spec}
        if pty:
            body.setdefault("io", {})["mode"] = "pty"
        headers = {"Idempotency-Key": key} if key else None
        made = self.api.call("POST", f"{self.path}/sessions", body, headers)
        return Session(self, made["id"], made)

    def sh(self, line: str, **options) -> "Session":
        return self.session("/bin/sh", "-c", line, **options)


class Session:
    def __init__(self, sandbox: Sandbox, session_id: str, made: dict):
        self.sandbox = sandbox
        self.api = sandbox.api
        self.id = session_id
        self.made = made
        self.path = f"{sandbox.path}/sessions/{session_id}"

    def get(self) -> dict:
        return self.api.call("GET", self.path)

    def delete(self, timeout: float = 60.0) -> None:
        self.api.call("DELETE", self.path, timeout=timeout)

    def stop(self) -> dict:
        return self.api.call("PUT", f"{self.path}/desired-state", {"state": "stopped"})

    def start(self) -> dict:
        return self.api.call("PUT", f"{self.path}/desired-state", {"state": "running"})

    def attempt(self, replace: bool = False) -> dict:
        return self.api.call("POST", f"{self.path}/attempts", {"replace_current": replace})

    def input(self, data: bytes = b"", eof: bool = False, input_id: str | None = None, **more) -> dict:
        body = {"input_id": input_id or uuid.uuid4().hex, **more}
        if data:
            body["data_base64"] = base64.b64encode(data).decode()
        if eof:
            body["eof"] = True
        return self.api.call("POST", f"{self.path}/inputs", body)

    def signal(self, name: str, **more) -> dict:
        return self.api.call("POST", f"{self.path}/signals", {"signal": name, **more})

    def resize(self, rows: int, cols: int, **more) -> dict:
        return self.api.call("PUT", f"{self.path}/terminal", {"rows": rows, "cols": cols, **more})

    def page(self, **query) -> dict:
        suffix = f"?{urlencode(query)}" if query else ""
        return self.api.call("GET", f"{self.path}/events{suffix}")

    def events(self, limit: int = 200) -> list[dict]:
        """The whole retained journal, page by page."""
        found: list[dict] = []
        query = {"limit": limit}
        while True:
            page = self.page(**query)
            found += page["events"]
            if not page["events"] or page["events"][-1]["seq"] >= page["cursor"]["latest"]:
                return found
            query["after"] = page["events"][-1]["seq"]

    def follow(self, after: int | None = None, until_exit: bool = False, timeout: float = 60.0,
               headers: dict | None = None) -> "Follow":
        return Follow(self, after, until_exit, timeout, headers)

    def websocket(self, **query):
        suffix = f"?{urlencode(query)}" if query else ""
        url = self.api.server.url.replace("http", "ws", 1) + f"{self.path}/ws{suffix}"
        return connect(url, additional_headers=self.api.headers(), max_size=None, max_queue=None)

    def wait_phase(self, *phases: str, seconds: float = 15.0) -> dict:
        def reached():
            now = self.get()
            return now if now["phase"] in phases else None
        return wait_until(reached, seconds, f"phase {phases} of {self.id}")

    def wait_exit(self, seconds: float = 60.0) -> dict:
        """Follows to the first `attempt.exited` and returns it."""
        with self.follow(until_exit=True, timeout=seconds) as stream:
            for event in stream:
                if event["type"] == "attempt.exited":
                    return event
        raise AssertionError(f"the stream of {self.id} ended without an exit")

    def wait_output(self, needle: bytes, seconds: float = 15.0, after: int | None = None) -> int:
        """Follows until `needle` was printed; the seq of the event that completed it."""
        seen = b""
        with self.follow(after, timeout=seconds) as stream:
            for event in stream:
                if event["type"] == "output":
                    seen += payload(event)
                    if needle in seen:
                        return event["seq"]
        raise AssertionError(f"{needle!r} was not printed; seen: {seen[-400:]!r}")


class Follow:
    """An SSE attachment. Iterating yields events; closing it detaches."""

    def __init__(self, session: Session, after: int | None, until_exit: bool, timeout: float,
                 headers: dict | None):
        query = {}
        if after is not None:
            query["after"] = after
        if until_exit:
            query["until"] = "exit"
        suffix = f"?{urlencode(query)}" if query else ""
        self._connection = session.api.connection(timeout)
        self._connection.request("GET", f"{session.path}/events/stream{suffix}",
                                 headers=session.api.headers(headers))
        self.response = self._connection.getresponse()
        if self.response.status != 200:
            text = self.response.read()
            self.close()
            raise Failure(self.response.status, self.response.headers, json.loads(text))

    def __iter__(self):
        for line in self.response:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])

    @property
    def socket(self):
        return self._connection.sock

    def close(self) -> None:
        self.response.close() if hasattr(self, "response") else None
        self._connection.close()

    def __enter__(self) -> "Follow":
        return self

    def __exit__(self, *_exc) -> None:
        self.close()


def payload(event: dict) -> bytes:
    return base64.b64decode(event.get("data_base64", ""))


def output(events: list[dict], stream: str | None = None) -> bytes:
    """The bytes of a list of events, of one stream or of all."""
    return b"".join(
        payload(event) for event in events
        if event["type"] == "output" and stream in (None, event["stream"])
    )


def types(events: list[dict]) -> list[str]:
    return [event["type"] for event in events]
