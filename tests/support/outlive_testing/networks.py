"""What sandboxes' networks are on the host: devices and rules."""

from __future__ import annotations

import os
import subprocess


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
