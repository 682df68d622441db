"""schemathesis makes requests out of `openapi.yaml` and checks the answers against it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from outlive_testing.api import Api
from outlive_testing.server import REPOSITORY, Server

DOCUMENT = REPOSITORY / "openapi.yaml"
METHODS = {"get", "put", "post", "delete", "patch"}
PATHS = {path: {method: calls[method] for method in sorted(METHODS & set(calls))}
         for path, calls in yaml.safe_load(DOCUMENT.read_text())["paths"].items()}
# The document's chapters: every operation has its tag.
TAGS = {call["tags"][0] for calls in PATHS.values() for call in calls.values()}
# These change one sandbox under each other's feet; every other chapter has a server for itself.
RESTLESS = ("named sandboxes", "sandboxes", "snapshots")
PARTS = [RESTLESS, *((tag,) for tag in sorted(TAGS.difference(RESTLESS)))]
EXAMPLES = os.environ.get("OUTLIVE_SCHEMA_EXAMPLES", "200")
CHECKS = ",".join(["not_a_server_error", "status_code_conformance", "content_type_conformance",
                   "response_schema_conformance"])
# Streams have no end that schemathesis could wait for; the suites read them. A pull asks whatever
# registry the name says, which nobody on this machine need be.
STREAMS = "(/events/stream|/ws|/images/pull)$"


def configuration(sandbox: str, session: str, restless: str, bare: str, context: str) -> str:
    """Ids of a living sandbox and session, but for calls that would end them for all others.

    Calls about a sandbox itself go to a restless one, which is paused and changed all the time.
    Those about contexts go to a bare one, where no interpreter is found: made-up code is not
    carried out.
    """
    alive = {"sandboxes": sandbox, "sessions": session, "contexts": context,
             "keys": "key-00000000-000"}
    unknown = {"sandboxes": "sbx-00000000-000", "sessions": "ses-00000000-000",
               "contexts": "ctx-00000000-000", "keys": alive["keys"]}
    # The contract answers 501 for what is not built yet, and 503 while a sandbox is being paused.
    lines = ["[checks.not_a_server_error]", 'expected-statuses = ["2xx", "3xx", "4xx", 501, 503]']
    for path, calls in PATHS.items():
        for method in calls:
            ids = unknown if method == "delete" else alive
            if ids is alive and "/contexts" in path:
                ids = {**alive, "sandboxes": bare}
            elif ids is alive and "/sessions" not in path:
                ids = {**alive, "sandboxes": restless}
            ids = {**ids, "sandbox": ids["sandboxes"]}
            given = [f'"path.{name}" = "{ids[kind]}"'
                     for kind, name in re.findall(r"/(\w+)/\{(\w+)\}", path) if kind in ids]
            if given:
                lines += ["[[operations]]", f'include-name = "{method.upper()} {path}"',
                          f"parameters = {{ {', '.join(given)} }}"]
                # A copy takes its time, and the second is like the first.
                if method == "post" and path.endswith(("/snapshots", "/fork")):
                    lines.append("generation.max-examples = 20")
    return "\n".join(lines) + "\n"


# On one server for all, each of the hundreds of upgrades would take in each of the hundreds of
# sandboxes that other calls had made.
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("tags", PARTS, ids=", ".join)
def test_every_operation_keeps_to_the_document(tags: tuple[str, ...], tmp_path: Path):
    program = Path(sys.executable).with_name("schemathesis")
    with Server() as server:
        api = Api(server)
        sandbox = api.sandbox()
        session = sandbox.session("/bin/cat")
        config = tmp_path / "schemathesis.toml"
        bare = api.sandbox(env_vars={"PATH": "/nonexistent"})
        context = api.call("POST", f"{bare.path}/contexts",
                           {"type": "cmd", "cmd": {"command": ["/bin/cat"]}})["id"]
        config.write_text(configuration(sandbox.id, session.id, api.sandbox().id, bare.id, context))
        done = subprocess.run(
            [program, "--config-file", config, "run", DOCUMENT, "--url", server.url,
             "--header", f"Authorization: Bearer {api.token}", "--checks", CHECKS,
             "--max-examples", EXAMPLES, "--phases", "examples,coverage,fuzzing", "--workers", "2",
             "--request-timeout", "30", "--suppress-health-check", "all", "--continue-on-failure",
             *(part for tag in tags for part in ("--include-tag", tag)),
             "--exclude-path-regex", STREAMS, "--generation-database", "none"],
            cwd=tmp_path, text=True, capture_output=True)
        assert server.answers(), server.log_text()[-4000:]
    print(done.stdout[-20000:])
    assert done.returncode == 0, done.stderr[-2000:]
