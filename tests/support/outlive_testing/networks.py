"""What sandboxes' networks are on the host: devices and rules."""

from __future__ import annotations

import ctypes
import os
import subprocess
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _must(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def of_another_machine():
    """This thread, and what it starts, has a network where nobody else is."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _must(_libc.unshare(_CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            _must(_libc.setns(before, _CLONE_NEWNET))
    finally:
        os.close(before)


def device(sandbox: str) -> str:
    """The host's end of a sandbox's link."""
    return "olv" + sandbox.removeprefix("sbx-").replace("-", "")


def devices() -> set[str]:
    return {name for name in os.listdir("/sys/class/net") if name.startswith("olv")}


def listed(*what: str) -> str:
    return nft("list", *what)


def nft(*words: str) -> str:
    done = subprocess.run(["nft", *words], capture_output=True, text=True, check=True,
                          env={**os.environ, "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    return done.stdout


def rules() -> str:
    """All rules of all sandboxes; nothing where there is no sandbox."""
    return listed("ruleset")


def verdicts(sandbox: str) -> list[str]:
    """What becomes of a sandbox's packets, rule by rule."""
    lines = listed("chain", "inet", "outlive", device(sandbox)).splitlines()[2:-2]
    return [next(word for word in line.split() if word in ("accept", "reject")) for line in lines]


def is_cut(sandbox: str) -> bool:
    """Whether the link carries nothing at all."""
    return device(sandbox) in listed("set", "inet", "outlive", "cut")


def left(sandboxes) -> list[str]:
    """Devices and rules of these sandboxes."""
    there, text = devices(), rules()
    return [f"{kind} {name}" for name in map(device, sorted(sandboxes))
            for kind, found in [("device", name in there), ("rules of", name in text)] if found]
