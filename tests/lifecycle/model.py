"""What must be true of sandboxes and sessions after each step of a sequence."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Session:
    """A `cat` that echoes what it is told; every echo was waited for."""

    handle: object
    attempts: int = 1
    echoed: bytes = b""


@dataclasses.dataclass
class Sandbox:
    handle: object
    mark: bytes
    state: str = "running"
    generation: int = 1
    sessions: list[Session] = dataclasses.field(default_factory=list)

    def replaced(self) -> None:
        """Its runtime is another one: every session was started once more."""
        self.state = "running"
        self.generation += 1
        for session in self.sessions:
            session.attempts += 1

    def woken(self) -> None:
        """Somebody needs it."""
        if self.state == "released":
            self.replaced()
        self.state = "running"

    def frozen(self) -> None:
        if self.state == "running":
            self.state = "frozen"

    def released(self) -> None:
        self.state = "released"

    def lost(self) -> None:
        """Its runtime died: one that ran is replaced at once, one that stood still waits."""
        if self.state == "running":
            self.replaced()
        elif self.state == "frozen":
            self.state = "released"

    @property
    def status(self) -> str:
        """The supervised dialect's word: what only stands still still runs."""
        return "paused" if self.state == "released" else "running"

    @property
    def phase(self) -> str:
        return {"running": "running", "frozen": "paused", "released": "suspended"}[self.state]
