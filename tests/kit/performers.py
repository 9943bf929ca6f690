"""Stand-ins around a ReactorPerformer: a broker, a reactor and sessions that record their calls."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

from twisted.internet.task import Clock

from bmqtwist.link.newcomers import Newcomers


class Reactor(Clock):
    """A reactor whose rounds are ours: `work` is what happens in the next one."""

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
    """As far as the performer looks."""

    description = "task:1"
    negotiated_at = 0.0
    transport: Any = None
    under_way = unhurried = False
    outgoing: Any = None

    def __init__(self) -> None:
        self.closed: list[str] = []

    def receive(self, data: bytes, now: float, wall: int) -> None:
        """Nothing to do."""

    def lost(self, now: float, wall: int) -> None:
        self.closed.append("lost")

    def close(self, reason: str, *args: object) -> None:
        self.closed.append(reason % args)


class Broker:
    """Counts what it is asked for."""

    serving = True

    def __init__(self) -> None:
        self.sessions: dict[Any, None] = {}
        self.newcomers = Newcomers(0, 0)
        self.turns, self.ticks = 0, 0
        self.broken = False
        self.deadline: float | None = None
        self.failed: list[OSError] = []

    def turn(self, now: float) -> None:
        self.turns += 1
        if self.broken:
            raise ZeroDivisionError("planted")

    def tick(self, now: float) -> None:
        self.ticks += 1
        self.deadline = now + 1.0 if self.broken else None
        self.turn(now)

    def received(self, session: Session, data: bytes, now: float) -> None:
        session.receive(data, now, self.wall(now))

    def lost(self, session: Session, now: float) -> None:
        session.lost(now, self.wall(now))

    def next_deadline(self) -> float | None:
        return self.deadline

    def wall(self, now: float) -> int:
        return int(now)

    def connect(self, peer: str, now: float) -> Any:
        session = Session()
        self.sessions[session] = None
        return session

    def sync_failed(self, partition: Any, token: int, error: OSError, now: float) -> None:
        self.failed.append(error)
