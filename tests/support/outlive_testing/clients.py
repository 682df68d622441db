"""Clients that outlive the server: they reconnect by their cursor and retry by their input id."""

from __future__ import annotations

import http.client
import threading
import time

from outlive_testing.api import Failure, Session, payload

# What a client may see of a server that was killed, and nothing else.
LOST = (OSError, http.client.HTTPException, FileNotFoundError)


def retried(call, seconds: float = 60.0):
    """Calls until the server answers; 503 is an answer of a server that comes up."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Failure as failure:
            if failure.status != 503 or time.monotonic() > deadline:
                raise
        except LOST:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.005)


class Follower(threading.Thread):
    """Follows a session over SSE to its exit, however often the connection breaks."""

    def __init__(self, session: Session, feed):
        super().__init__(daemon=True)
        self._session = session
        self._feed = feed
        self.seq = 0
        self.connections = 0
        self.exit: dict | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while self.exit is None:
                retried(self._attach)
        except BaseException as failure:  # Reported by `finish`, in the test's own thread.
            self.failure = failure

    def _attach(self) -> None:
        with self._session.follow(after=self.seq, timeout=30) as stream:
            self.connections += 1
            for event in stream:
                assert event["seq"] == self.seq + 1, f"seq {event['seq']} follows {self.seq}"
                self.seq = event["seq"]
                if event["type"] == "output":
                    self._feed(payload(event))
                if event["type"] == "attempt.exited":
                    self.exit = event
                    return

    def finish(self, seconds: float) -> dict:
        self.join(seconds)
        if self.failure:
            raise self.failure
        assert self.exit, f"the follower is at seq {self.seq} after {seconds} s"
        return self.exit


class Typist(threading.Thread):
    """Writes numbered lines to a session and knows which were acknowledged."""

    def __init__(self, session: Session):
        super().__init__(daemon=True)
        self._session = session
        self._enough = threading.Event()
        self.acknowledged: list[int] = []
        self.uncertain: set[int] = set()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self._enough.is_set():
                answer = retried(lambda: self._session.input(
                    self.line(number), input_id=f"line-{number}"))
                assert answer["accepted"], answer
                self.acknowledged.append(number)
                if answer.get("applied") == "unknown":
                    self.uncertain.add(number)
                number += 1
                self._enough.wait(0.001)
        except BaseException as failure:  # Reported by `finish`, in the test's own thread.
            self.failure = failure

    @staticmethod
    def line(number: int) -> bytes:
        return b"line %08d\n" % number

    def finish(self) -> None:
        self._enough.set()
        self.join(70)
        if self.failure:
            raise self.failure
        assert self.acknowledged, "no input was acknowledged"

    def check(self, echoed: bytes) -> None:
        """Every acknowledged line once and in order; an uncertain one at most once."""
        got = echoed.replace(b"\r\n", b"\n").splitlines(keepends=True)
        wanted = [self.line(number) for number in self.acknowledged]
        missing = set(wanted) - set(got)
        assert missing <= {self.line(number) for number in self.uncertain}, sorted(missing)[:5]
        assert got == [line for line in wanted if line not in missing], "repeated or out of order"
