"""A user of this machine without any power, for servers that are not root's.

What a machine grants its users stands in `/etc`, so this user's processes have a mount namespace
of their own with other files there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from outlive_testing.server import Server, binary

USER = 54_321
FIRST = 7_000_000
COUNT = 65_536
PROGRAM = f"""#!/bin/sh
exec unshare --mount sh -c '
    set -e
    for file in passwd subuid subgid; do mount --bind {{tools}}/$file /etc/$file; done
    exec setpriv --reuid {USER} --regid {USER} --clear-groups {{tools}}/outlive "$@"' sh "$@"
"""


class OrdinaryServer(Server):
    """`outlive serve` as an ordinary user, whom the machine grants 65,536 ids or none."""

    def __init__(self, granted: bool, arguments: list[str] | None = None):
        self._tools = Path(tempfile.mkdtemp(prefix="outlive-ordinary-"))
        self._tools.chmod(0o755)
        for name in ("outlive", "outlive-agent"):
            shutil.copy(binary().with_name(name), self._tools / name)
        ids = f"tester:{FIRST}:{COUNT}\n" if granted else ""
        passwd = f"root:x:0:0::/root:/bin/sh\ntester:x:{USER}:{USER}::/:/bin/sh\n"
        for name, text in (("passwd", passwd), ("subuid", ids), ("subgid", ids)):
            (self._tools / name).write_text(text)
        program = self._tools / "as-tester"
        program.write_text(PROGRAM.format(tools=self._tools))
        program.chmod(0o755)
        super().__init__(program=program, arguments=arguments)
        os.chown(self.data, USER, USER)

    def ids(self) -> set[int]:
        """Who a process or a file of this server may belong to."""
        return {USER, *range(FIRST, FIRST + COUNT)}

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self._tools)
