"""What sandboxes' networks are on the host: devices and rules."""

from __future__ import annotations

import os
import subprocess


def device(sandbox: str) -> str:
    """The host's end of a sandbox's link."""
    return "olv" + sandbox.removeprefix("sbx-").replace("-", "")


def devices() -> set[str]:
    return {name for name in os.listdir("/sys/class/net") if name.startswith("olv")}


def rules() -> str:
    """All rules of all sandboxes; nothing where there is no sandbox."""
    done = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True,
                          env={**os.environ, "PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    return done.stdout


def left(sandboxes) -> list[str]:
    """Devices and rules of these sandboxes."""
    there, text = devices(), rules()
    return [f"{kind} {name}" for name in map(device, sorted(sandboxes))
            for kind, found in [("device", name in there), ("rules of", name in text)] if found]
