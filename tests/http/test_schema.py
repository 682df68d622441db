"""schemathesis makes requests out of `openapi.yaml` and checks the answers against it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from outlive_testing.api import Api
from outlive_testing.server import REPOSITORY, Server

EXAMPLES = os.environ.get("OUTLIVE_SCHEMA_EXAMPLES", "200")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.timeout(2400)
def test_every_operation_keeps_to_the_document(tmp_path: Path):
    program = Path(sys.executable).with_name("schemathesis")
    with Server() as server:
        token = Api(server).token
        done = subprocess.run(
            [program, "run", REPOSITORY / "openapi.yaml", "--url", server.url,
             "--header", f"Authorization: Bearer {token}", "--checks", CHECKS,
             "--max-examples", EXAMPLES, "--phases", "examples,coverage,fuzzing", "--workers", "4",
             "--request-timeout", "20", "--suppress-health-check", "all",
             "--exclude-path-regex", "(/events/stream|/ws)$", "--no-color"],
            cwd=tmp_path, text=True, capture_output=True)
    print(done.stdout[-12000:])
    assert done.returncode == 0, done.stderr[-2000:]
