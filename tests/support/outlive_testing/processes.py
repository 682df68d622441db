"""Finds the product's processes by their titles, as an operator's `ps` would."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def titles() -> list[tuple[int, list[str]]]:
    """Every process of the machine with its argument list."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        found.append((int(entry.name), [part.decode(errors="replace") for part in arguments]))
    return found


def _named(name: str, sandbox: str) -> list[int]:
    # An attempt that is being started bears its supervisor's title until it becomes its program,
    # but not the name that a supervisor gives itself.
    return [pid for pid, arguments in titles()
            if arguments[:2] == [name, sandbox] and status(pid, "Name") == name[:15]]


def keepers(sandbox: str) -> list[int]:
    return _named("outlive-keeper", sandbox)


def supervisors(sandbox: str) -> list[int]:
    return _named("outlive-supervisor", sandbox)


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Signals one process; false when it was gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def with_argument(text: str) -> list[int]:
    """Processes that carry `text` in an argument; a test marks its own children so."""
    return [pid for pid, arguments in titles() if any(text in part for part in arguments)]


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    parents: dict[int, list[int]] = {}
    for other, _ in titles():
        parent = status(other, "PPid")
        if parent is not None:
            parents.setdefault(int(parent), []).append(other)
    found, queue = [], [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def status(pid: int, field: str) -> str | None:
    """One field of /proc/PID/status."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key == field:
            return value.strip()
    return None


def resident_bytes(pid: int) -> int:
    value = status(pid, "VmRSS")
    return int(value.split()[0]) * 1024 if value else 0


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
