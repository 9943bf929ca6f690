"""Fakes for tests of the ReactorPerformer: a broker, a reactor and sessions that record their calls.

Used by `unit/reactor/test_reactor_performer.py` and `test_watchdog.py`; connections are in `connections.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from twisted.internet.task import Clock

from bmqtwist.link.unauthenticated import UnauthenticatedConnections
from bmqtwist.loop.scheduler import Priority, Scheduler
from bmqtwist.steps import Steps


class Reactor(Clock):
    """A reactor whose rounds the test runs; `work` has the actions of the next round."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[Any] = []
        self.delays: list[float | None] = []
        self.from_threads: SimpleQueue[Any] = SimpleQueue()
        self.callFromThread = self.from_threads.put

    def doIteration(self, delay: float | None) -> None:
        self.delays.append(delay)
        work, self.work = self.work, []
        for action in work:
            action()


class Session:
    """Fake session with the members that the performer uses."""

    description = "task:1"
    transport: Any = None
    has_jobs = pausable = False
    outgoing: Any = None

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.channel = SimpleNamespace(negotiated_at=0.0)

    def receive(self, data: bytes, now: float, wall: int) -> None:
        """Ignore received bytes."""

    def on_lost(self, now: float, wall: int) -> None:
        self.closed.append("lost")

    def close(self, reason: str, *args: object) -> None:
        self.closed.append(reason % args)


class Broker:
    """Fake broker that counts turns and ticks; `broken`: its turns raise."""

    serving = True

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.scheduler = Scheduler(clock, lambda: self.request_turn())
        self.request_turn: Callable[[], None] = lambda: None
        self.sessions, self.open = self, dict[Any, None]()
        self.unauthenticated = UnauthenticatedConnections(0, 0)
        self.turns, self.ticks = 0, 0
        self.broken = False
        self.deadline: float | None = None
        self.failed: list[Exception] = []

    def turn(self, now: float) -> None:
        self.turns += 1
        self.scheduler.run(Priority.INPUT)
        self.scheduler.run(Priority.UNAUTHENTICATED)
        self.scheduler.end_turn()
        if self.broken:
            raise ZeroDivisionError("planted")

    def tick(self, now: float) -> None:
        self.ticks += 1
        self.deadline = now + 1.0 if self.broken else None
        self.turn(now)

    def on_received(self, session: Session, data: bytes, now: float, later: bool = False) -> None:
        if later or self._class_of(session) is not None:
            self._add(session, lambda: session.receive(data, now, self.wall(now)))
        else:
            session.receive(data, now, self.wall(now))

    def on_lost(self, session: Session, now: float) -> None:
        if self._class_of(session) is not None:
            self._add(session, lambda: session.on_lost(now, self.wall(now)))
        else:
            session.on_lost(now, self.wall(now))

    def _class_of(self, session: Session) -> Priority | None:
        both = Priority.INPUT, Priority.UNAUTHENTICATED
        return next((each for each in both if self.scheduler.has_job(each, session)), None)

    def _add(self, session: Session, action: Callable[[], None]) -> None:
        def steps() -> Steps[None]:
            action()
            yield from ()

        is_unauthenticated = session.channel.negotiated_at is None
        priority = self._class_of(session) or (Priority.UNAUTHENTICATED if is_unauthenticated else Priority.INPUT)
        self.scheduler.add(priority, session, steps(), self.failed.append)

    def next_deadline(self) -> float | None:
        return self.deadline

    def wall(self, now: float) -> int:
        return int(now)

    def add_accepted(self, peer: str, now: float) -> Any:
        session = Session()
        self.open[session] = None
        return session

