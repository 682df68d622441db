"""Runs `outlive serve` for a suite: its own port, its own data directory, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from outlive_testing import processes

REPOSITORY = Path(__file__).resolve().parents[3]
START_SECONDS_MAX = 30.0


def binary() -> Path:
    """The `outlive` under test: `OUTLIVE_BIN`, else the debug build."""
    return Path(os.environ.get("OUTLIVE_BIN", REPOSITORY / "target/debug/outlive"))


def wait_until(condition, seconds: float = 10.0, what: str = "the condition"):
    """Polls until `condition()` is truthy and returns it; for facts that nothing announces."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.005)


def kill_supervisor(sandbox) -> None:
    """Kills the supervisor and waits until there is another."""
    def victim():
        found = processes.supervisors(sandbox.id)
        return found[0] if found else None

    old = wait_until(victim, 30, "a supervisor")
    processes.kill(old)
    wait_until(lambda: victim() not in (None, old), 30, "the next supervisor")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """One `outlive serve`. It can be killed and started again on the same port and directory."""

    def __init__(self, data: Path | None = None, arguments: list[str] | None = None,
                 environment: dict[str, str] | None = None, program: Path | None = None,
                 before_exec=None):
        self._owned = data is None
        self.data = Path(data or tempfile.mkdtemp(prefix="outlive-test-"))
        self._listen = f"127.0.0.1:{free_port()}"
        self._arguments = arguments or []
        self._environment = {**os.environ, **(environment or {})}
        self._program = program or binary()
        self._before_exec = before_exec
        self._child: subprocess.Popen | None = None
        self.log = self.data.with_name(self.data.name + ".log")

    def start(self) -> "Server":
        (self.data / "endpoint").unlink(missing_ok=True)
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                [self._program, "serve", "--listen", self._listen, "--data", self.data,
                 *self._arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                preexec_fn=self._before_exec, start_new_session=True,
            )
        wait_until(self.answers, START_SECONDS_MAX, f"the start of the server (see {self.log})")
        return self

    def answers(self) -> bool:
        if self._child.poll() is not None:
            raise AssertionError(f"the server ended with {self._child.returncode}:\n{self.log_text()}")
        return (self.data / "endpoint").exists() and (self.data / "admin.token").exists()

    @property
    def url(self) -> str:
        return (self.data / "endpoint").read_text().strip()

    @property
    def token(self) -> str:
        return (self.data / "admin.token").read_text().strip()

    @property
    def pid(self) -> int:
        return self._child.pid

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """Ends the server as a crash would."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    def kill_with_all_it_runs(self) -> None:
        """The same, and for its programs; sandboxes go on."""
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def terminate(self) -> None:
        """Ends the server as its operator does; sandboxes go on."""
        self._child.terminate()
        self._child.wait(30)

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        """Ends the server and every sandbox it made, then removes its directory."""
        if self._child and self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        sandboxes = self.data / "sandboxes"
        for sandbox in sandboxes.iterdir() if sandboxes.is_dir() else []:
            for pid in processes.keepers(sandbox.name):
                processes.kill(pid)
        if self._owned:
            shutil.rmtree(self.data, ignore_errors=True)
        if not os.environ.get("OUTLIVE_TEST_KEEP_LOGS"):
            self.log.unlink(missing_ok=True)

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, *_exc) -> None:
        self.stop()
