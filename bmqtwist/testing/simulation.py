"""Simulated time: one heap of events, one source of chance and one trace for all that takes part.

    network.py          connections between clients and nodes
    simulated_node.py   nodes: one life of a broker after another, each over a disk of its own

Nothing happens but at its moment, and every moment is drawn from one seed: the same seed is the same life, byte for byte.
Whatever happens goes into the trace, whose hash (`digest`) two runs are compared by.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Protocol

from bmqtwist.testing.clock import START_S

SLICE_BYTES_MAX = 700


class Participant(Protocol):
    """Who takes part with timers of its own: a node."""

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""

    def tick(self) -> None:
        """The moment has come."""

    def tell(self) -> None:
        """Put into the trace what happened since the last call."""


class Simulation:
    """Everything that happens. `now`: seconds."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = START_S
        self.nodes: list[Participant] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = count()
        self._hash = hashlib.sha256()

    # -- time -------------------------------------------------------------------------------------------------------

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._ticket), action))

    def play(self, until: float) -> None:
        """Let everything happen up to a moment."""
        events, nodes = self._events, self.nodes
        while True:
            deadline, late = until, None
            for node in nodes:
                moment = node.next_deadline()
                if moment is not None and (moment < deadline or late is None and moment <= deadline):
                    deadline, late = moment, node
            at = min(events[0][0], deadline) if events else deadline
            self.now = max(self.now, min(at, until))
            if events and events[0][0] <= self.now and events[0][0] <= until:
                heapq.heappop(events)[2]()
            elif late is not None:
                late.tick()
            else:
                return
            for node in nodes:
                node.tell()

    # -- trace ------------------------------------------------------------------------------------------------------

    def trace(self, what: str, data: bytes = b"") -> None:
        self._hash.update(b"%s %.9f %d " % (what.encode(), self.now, len(data)))
        self._hash.update(data)

    @property
    def digest(self) -> str:
        """A hash of all that happened so far."""
        return self._hash.hexdigest()

    # -- chance -----------------------------------------------------------------------------------------------------

    def delay(self) -> float:
        """Seconds that bytes are under way; seldom long."""
        drawn = self.random.random()
        return 0.02 + drawn * 0.05 if self.random.random() < 0.02 else drawn * 0.002

    def sync_seconds(self) -> float:
        """Seconds that a sync of a disk takes; seldom long."""
        drawn = self.random.random()
        return 0.1 + drawn * 0.3 if self.random.random() < 0.05 else 0.0005 + drawn * 0.01

    def slices(self, data: bytes) -> list[bytes]:
        """Bytes as they arrive: cut anywhere, often not at all."""
        if self.random.random() < 0.6:
            return [data] if data else []
        pieces, at = [], 0
        while at < len(data):
            size = self.random.randint(1, SLICE_BYTES_MAX)
            pieces.append(data[at:at + size])
            at += size
        return pieces
