"""Random sequences of everything that happens to sandboxes, against a model, with nothing left."""

from __future__ import annotations

import pytest
from leaks import leaks
from model import Sandbox, Session
from outlive_testing import processes
from outlive_testing.api import Api, Failure, output
from outlive_testing.api import Sandbox as Handle
from outlive_testing.server import Server, wait_until

SANDBOXES_MAX = 3
SESSIONS_MAX = 3
# How often each step is drawn.
WEIGHTS = {
    "create_session": 3, "say": 6, "freeze": 4, "thaw": 3, "release": 2, "replace": 2, "fork": 1,
    "kill_server": 2, "kill_supervisor": 3, "kill_keeper": 2, "delete": 1,
}


class World:
    def __init__(self, server: Server, dice):
        self.server, self.dice = server, dice
        self.api = Api(server)
        self.sandboxes: list[Sandbox] = []
        self.ids: list[str] = []
        self.words = 0
        self.told: list[str] = []

    def create(self) -> None:
        handle = self.api.sandbox()
        mark = f"mark-{self.dice.randrange(1 << 40)}".encode()
        made = handle.sh(f"echo {mark.decode()} > /root/mark")
        assert made.wait_exit()["exit_code"] == 0
        made.delete()
        self.add(Sandbox(handle, mark))

    def add(self, sandbox: Sandbox) -> None:
        self.sandboxes.append(sandbox)
        self.ids.append(sandbox.handle.id)

    def step(self) -> None:
        name = self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        sandbox = self.dice.choice(self.sandboxes)
        self.told.append(f"{name} {sandbox.handle.id} ({sandbox.state})")
        getattr(self, name)(sandbox)
        for one in self.sandboxes:
            self.check(one)

    def create_session(self, sandbox: Sandbox) -> None:
        if len(sandbox.sessions) < SESSIONS_MAX:
            handle = sandbox.handle.session("/bin/cat")
            sandbox.woken()
            sandbox.sessions.append(Session(handle))

    def say(self, sandbox: Sandbox) -> None:
        """A line in, the same line out; whoever sleeps wakes for it."""
        if not sandbox.sessions:
            return
        session = self.dice.choice(sandbox.sessions)
        line = b"word %08d\n" % self.words
        self.words += 1
        after = session.handle.get()["cursor"]["latest"]
        assert session.handle.input(line)["accepted"]
        sandbox.woken()
        session.handle.wait_output(line.strip(), 60, after=after)
        session.echoed += line

    def freeze(self, sandbox: Sandbox) -> None:
        was = sandbox.handle.sessions()
        answer = self.api.bare("POST", f"/v1/sandbox/{sandbox.handle.id}/suspend")
        assert answer["sandbox"]["suspended"], answer
        if sandbox.state == "running":
            assert unmoved(sandbox.handle.sessions()) == unmoved(was)
        sandbox.frozen()

    def thaw(self, sandbox: Sandbox) -> None:
        answer = self.api.bare("POST", f"/v1/sandbox/{sandbox.handle.id}/resume")
        assert not answer["sandbox"]["suspended"], answer
        sandbox.woken()

    def release(self, sandbox: Sandbox) -> None:
        assert sandbox.handle.pause()["paused"]
        sandbox.released()

    def replace(self, sandbox: Sandbox) -> None:
        self.release(sandbox)
        assert sandbox.handle.resume()["resumed"]
        sandbox.woken()

    def fork(self, sandbox: Sandbox) -> None:
        if len(self.sandboxes) < SANDBOXES_MAX:
            answer = self.api.call("POST", f"{sandbox.handle.path}/fork")
            assert answer["source_sandbox_id"] == sandbox.handle.id
            child = answer["sandbox"]
            assert child["status"] == "paused", child
            self.add(Sandbox(Handle(self.api, child["id"]), sandbox.mark, state="released"))

    def kill_server(self, _sandbox: Sandbox) -> None:
        self.server.restart()

    def kill_supervisor(self, sandbox: Sandbox) -> None:
        if sandbox.state == "released":
            return
        [old] = processes.supervisors(sandbox.handle.id)
        processes.kill(old)
        wait_until(lambda: processes.supervisors(sandbox.handle.id) not in ([], [old]), 60,
                   "the next supervisor")

    def kill_keeper(self, sandbox: Sandbox) -> None:
        if sandbox.state == "released":
            return
        [keeper] = processes.keepers(sandbox.handle.id)
        processes.kill(keeper)
        sandbox.lost()

    def delete(self, sandbox: Sandbox) -> None:
        sandbox.handle.delete()
        self.sandboxes.remove(sandbox)
        with pytest.raises(Failure) as refused:
            sandbox.handle.get()
        assert refused.value.status == 404
        if not self.sandboxes:
            self.create()

    def check(self, sandbox: Sandbox) -> None:
        """The sandbox and its sessions are what the model says, in the end."""
        def agrees() -> bool:
            shown = sandbox.handle.get()
            sessions = {one["id"]: one for one in sandbox.handle.sessions()}
            phases = [sessions[one.handle.id]["phase"] for one in sandbox.sessions]
            self.shown = (shown["status"], shown["runtime_generation"], phases)
            return (shown["status"] == sandbox.status
                    and shown["runtime_generation"] == sandbox.generation
                    and len(sessions) == len(sandbox.sessions)
                    and all(phase == sandbox.phase for phase in phases))
        try:
            wait_until(agrees, 60, "the model's truth")
        except AssertionError as never:
            wanted = (sandbox.status, sandbox.generation, sandbox.phase)
            raise AssertionError(
                f"{sandbox.handle.id}: wanted {wanted}, shown {self.shown}; steps:\n"
                + "\n".join(self.told)) from never

    def finish(self) -> None:
        """Every journal is whole, every fork has the files, and everything can be removed."""
        for sandbox in self.sandboxes:
            for session in sandbox.sessions:
                events = session.handle.events()
                assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
                assert output(events) == session.echoed, "\n".join(self.told)
                attempts = {event["attempt_id"] for event in events if "attempt_id" in event}
                assert len(attempts) == session.attempts, "\n".join(self.told)
            look = sandbox.handle.session("/bin/cat", "/root/mark")
            assert look.wait_exit()["exit_code"] == 0
            assert output(look.events()).strip() == sandbox.mark
        for sandbox in self.sandboxes:
            sandbox.handle.delete()


def unmoved(sessions: list[dict]) -> list[dict]:
    """What a freeze may not change of a list: everything but the mark of the freeze itself."""
    def kept(session: dict) -> dict:
        moved = {"phase", "cursor", "updated_at"}
        return {key: value for key, value in session.items() if key not in moved}
    return [kept(session) for session in sessions]


@pytest.mark.timeout(900)
def test_any_sequence_of_events_leaves_sandboxes_as_the_model_says_and_nothing_behind(
        sequence, steps, dice):
    with Server() as server:
        world = World(server, dice)
        world.create()
        for _ in range(steps):
            world.step()
        world.finish()
        def left() -> list[str]:
            return leaks(server.data, world.ids)
        try:
            wait_until(lambda: not left(), 30, "a host without leaks")
        except AssertionError as never:
            raise AssertionError("\n".join(left() + world.told)) from never
        check_descriptors(world)


def check_descriptors(world: World) -> None:
    """More sandboxes leave no more descriptors open; the store's few connections may come."""
    store_connections = 3 * 3
    idle = processes.open_files(world.server.pid)
    for _ in range(2 * store_connections):
        Handle(world.api, world.api.sandbox().id).delete()
    wait_until(lambda: processes.open_files(world.server.pid) <= idle + store_connections, 30,
               "closed descriptors")
