"""`outlive serve` in the machine, in a control group as a service manager would put it there."""

from __future__ import annotations

import shlex

from outlive_testing.api import Api

from machine import Machine

GROUPS = "/sys/fs/cgroup"
START = """
mkdir -p {group} && rm -f {data}/endpoint
(echo 0 > {group}/cgroup.procs && exec setsid {within} {command} >> {log} 2>&1 < /dev/null) &
pid=$!
until [ -s {data}/endpoint ]; do
    kill -0 $pid || {{ cat {log}; exit 1; }}
    usleep 20000
done
echo $pid
"""


class Service:
    """A unit: it comes back to the same group with each start. `Api` takes it for a server."""

    def __init__(self, machine: Machine, group: str, data: str, user: str = "root",
                 first: str = "true", within: str = "", options: str = ""):
        self.machine = machine
        self.group = f"{GROUPS}/{group}"
        self.data = data
        self.user = user
        self.log = f"{data}.log"
        self._first, self._within, self._options = first, within, options
        self._port = machine.port()
        self.pid: int | None = None
        owner = f"chown {user}:{user} {data}"
        machine.sh(f"mkdir -p {data} && {owner} && : > {self.log} && chmod 666 {self.log}")

    def start(self) -> "Service":
        serve = f"{self._first}; exec outlive serve --listen 0.0.0.0:{self._port} " \
                f"--data {self.data} {self._options}"
        command = f"su {self.user} -s /bin/sh -c {shlex.quote(serve)}"
        start = START.format(group=self.group, data=self.data, log=self.log, command=command,
                             within=self._within)
        self.pid = int(self.machine.sh(start).split()[-1])
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.machine.ports[self._port]}"

    @property
    def token(self) -> str:
        return self.machine.sh(f"cat {self.data}/admin.token").strip()

    def where(self) -> str:
        """The group that the server is in now."""
        return GROUPS + self.machine.sh(f"cat /proc/{self.pid}/cgroup").strip().removeprefix("0::")

    def signal(self, name: str) -> None:
        gone = f"while [ -e /proc/{self.pid} ]; do usleep 5000; done"
        self.machine.sh(f"kill -{name} {self.pid} && {gone}")

    def restart(self) -> None:
        """As after a crash."""
        self.signal("KILL")
        self.start()

    def doctor(self) -> str:
        doctor = shlex.quote(f"outlive doctor --data {self.data}")
        move = f"echo 0 > {self.group}/cgroup.procs"
        return self.machine.sh(f"({move} && su {self.user} -s /bin/sh -c {doctor})")

    def places(self, sandbox) -> str:
        """The sandbox's control group."""
        around = self.machine.sh(f"cat {self.data}/sandboxes/{sandbox.id}/cgroups").strip()
        return f"{around}/outlive/{sandbox.id}"

    def reads(self, sandbox, file: str) -> str:
        """A file of the control group of the sandbox's programs."""
        return self.machine.sh(f"cat {self.places(sandbox)}/work/{file}").strip()

    def log_text(self) -> str:
        return self.machine.tries(f"tail -n 60 {self.log}")[1]

    def end(self) -> None:
        """Ends what runs in here, then the server; nothing of it is left but its own group."""
        self.machine.release(self._port)
        if self.pid is None:
            return  # It never started.
        api = Api(self)
        listed = api.call("GET", "/api/v1/sandboxes")["sandboxes"]
        for sandbox in listed:
            api.call("DELETE", f"/api/v1/sandboxes/{sandbox['id']}")
        self.signal("TERM")
