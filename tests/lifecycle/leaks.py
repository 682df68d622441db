"""Counts what a sandbox may leave behind on its host."""

from __future__ import annotations

import os
from pathlib import Path

from outlive_testing import networks, processes

TITLES = ("outlive-keeper", "outlive-supervisor", "sbx-init")


def mounts(data: Path) -> list[str]:
    """What is mounted out of or into a server's directory."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(data) in line]


def cgroups(ids: list[str]) -> list[str]:
    """Groups of sandboxes, in every hierarchy."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] not in ("cgroup", "cgroup2"):
            continue
        for folder, below, _files in os.walk(fields[4]):
            found += [f"{folder}/{name}" for name in below if name in ids]
            below[:] = [name for name in below if not name.startswith("sbx-")]
    return sorted(found)


def of_sandboxes(ids: list[str]) -> list[tuple[int, list[str]]]:
    """Processes that belong to these sandboxes by their titles."""
    return [(pid, arguments) for pid, arguments in processes.titles()
            if arguments[0] in TITLES and len(arguments) > 1 and arguments[1] in ids]


def leaks(data: Path, ids: list[str]) -> list[str]:
    """Whatever is left of these sandboxes on their host."""
    return [
        *(f"process {pid} {arguments}" for pid, arguments in of_sandboxes(ids)),
        *(f"mount {line}" for line in mounts(data)),
        *(f"control group {group}" for group in cgroups(ids)),
        *networks.left(ids),
        *(f"file {path}" for path in (data / "sandboxes").iterdir()),
    ]
