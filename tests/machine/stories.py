"""What several stories tell."""

from __future__ import annotations

from outlive_testing.api import Sandbox, output
from outlive_testing.server import wait_until

TAKE = "dd if=/dev/zero of=/dev/null bs={}M count=1"


def ended(sandbox: Sandbox, line: str) -> dict:
    return sandbox.sh(line).wait_exit()


def runs_out_of_memory(sandbox: Sandbox) -> bool:
    """Whether a program that takes 200 MiB ends for it."""
    return ended(sandbox, f"exec {TAKE.format(200)}").get("oom") is True


def runs_out_of_processes(sandbox: Sandbox) -> bool:
    """Whether a program that starts 40 others can't start all of them."""
    session = sandbox.sh("for i in $(seq 40); do sleep 1000 > /dev/null 2>&1 & done")
    session.wait_exit()
    return b"can't fork" in output(session.events())


def nothing_is_left(machine) -> None:
    left = "find /sys/fs/cgroup -type d -name 'sbx-*'"
    wait_until(lambda: machine.sh(left) == "", 30, "an end of all groups of sandboxes")
