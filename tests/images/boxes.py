"""The server under test as this suite drives it."""

import json
import os
import subprocess

from outlive_testing.api import Api, Sandbox
from outlive_testing.server import binary


class Box:
    """The server under test, with images through the command line and sandboxes through HTTP."""

    def __init__(self, server):
        self.server = server
        self.api = Api(server)

    def outlive(self, *arguments, data: bytes | None = None, fails: bool = False):
        """Runs a command of the command line with `--json`; its answer, or its error."""
        environment = {**os.environ, "OUTLIVE_URL": self.server.url,
                       "OUTLIVE_TOKEN": self.server.token}
        done = subprocess.run([binary(), *map(str, arguments), "--json"], input=data,
                              capture_output=True, env=environment, timeout=120)
        assert (done.returncode != 0) == fails, (done.stdout, done.stderr)
        return json.loads(done.stderr if fails else done.stdout)

    def sandbox(self, image: str | None = None, template: str = "default", **config):
        more = {**config, **({"image": image} if image else {})}
        body = {"template": template, "config": more}
        return Sandbox(self.api, self.api.call("POST", "/api/v1/sandboxes", body)["sandbox_id"])

    def layers(self) -> set[str]:
        return {path.name for path in (self.server.data / "images/layers").iterdir()}

    def drafts(self) -> list[str]:
        return [path.name for path in (self.server.data / "images/tmp").iterdir()]
