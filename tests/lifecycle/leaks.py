"""Counts what a sandbox may leave behind on its host."""

from __future__ import annotations

import os
from pathlib import Path

from outlive_testing import processes

TITLES = ("outlive-keeper", "outlive-supervisor", "sbx-init")


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def cgroups() -> list[str]:
    """Groups of sandboxes, in every hierarchy."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] not in ("cgroup", "cgroup2"):
            continue
        for folder, below, _files in os.walk(fields[4]):
            found += [f"{folder}/{name}" for name in below if name.startswith("sbx-")]
            below[:] = [name for name in below if not name.startswith("sbx-")]
    return sorted(found)


def network_namespaces() -> int:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns/net"))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return len(found)


def network_devices() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


def of_sandboxes(ids: list[str]) -> list[tuple[int, list[str]]]:
    """Processes that belong to these sandboxes by their titles."""
    return [(pid, arguments) for pid, arguments in processes.titles()
            if arguments[0] in TITLES and len(arguments) > 1 and arguments[1] in ids]


class Census:
    """What the host has now, apart from the server itself."""

    def __init__(self):
        self.mounts = mounts()
        self.cgroups = cgroups()
        self.network_namespaces = network_namespaces()
        self.network_devices = network_devices()

    def __eq__(self, other) -> bool:
        return self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        return repr(self.__dict__)
