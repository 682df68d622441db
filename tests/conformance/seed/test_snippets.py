"""The documentation's own snippets run against us with only URL and token changed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from extract import programs
from outlive_testing.server import Server, binary

SUITES = Path(__file__).parents[1]
WORK = SUITES / ".work"


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def program(server):
    return programs(server.url, server.token)


def run(command: list, folder: Path, **environment) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150,
                          env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expect_the_page(printed: str) -> None:
    """What the page's reader would see: a session, two outputs, the way back, and the answer of cat."""
    assert re.search(r"^ses-", printed, re.M), printed
    assert "READY" in printed, printed
    assert "tick-1" in printed, printed
    assert re.search(r"^reattached at seq=\d+$", printed, re.M), printed
    assert re.search(r"^event output .*hello", printed, re.M), printed
    assert re.search(r"^event attempt.exited", printed, re.M), printed


def test_python_snippets(program):
    WORK.mkdir(exist_ok=True)
    (WORK / "snippets.py").write_text(program["python"])
    expect_the_page(run([sys.executable, "snippets.py"], WORK))


def test_typescript_snippets(program):
    path = SUITES / "typescript" / ".work-snippets.mjs"
    path.write_text(program["typescript"])
    try:
        expect_the_page(run([shutil.which("node") or "node", path.name], path.parent))
    finally:
        path.unlink()


def test_go_snippets(program):
    folder = SUITES / "go" / "snippets"
    folder.mkdir(exist_ok=True)
    (folder / "main.go").write_text(program["go"])
    try:
        expect_the_page(run([os.environ.get("GO", "go"), "run", "./snippets"], folder.parent))
    finally:
        shutil.rmtree(folder)


def test_command_line_snippets(program, server):
    WORK.mkdir(exist_ok=True)
    printed = run(["bash", "-c", program["bash"]], WORK, OUTLIVE=str(binary()), OUTLIVE_URL=server.url,
                  OUTLIVE_TOKEN=server.token, XDG_CONFIG_HOME="/nonexistent")
    assert re.search(r"^Session ID: ses-", printed, re.M), printed
    assert "READY" in printed and "tick-2" in printed, printed
    assert re.search(r"\tinput.accepted\t", printed), printed
    assert re.search(r"\toutput\tstdout\thello", printed), printed
