"""Simulation: event queue in simulated time, source of random numbers, and trace, shared by all nodes.

    network.py          connections between clients and nodes
    simulated_node.py   nodes: successive runs of a broker over one disk

All times are drawn from one seed, so that runs with the same seed are equal, byte by byte. The trace contains every event;
tests compare runs by its hash (`digest`). `cluster.py` creates the simulation and advances its time.
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
    """A node with timers."""

    def next_deadline(self) -> float | None:
        """Return the time of the next `tick`, None = no timer."""

    def tick(self) -> None:
        """Run the due timers."""

    def record_events(self) -> None:
        """Add the events since the last call to the trace."""


class Simulation:
    """Event queue and trace. `now`: simulated time in seconds."""

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
        """Process all events up to a time."""
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
                node.record_events()

    # -- trace ------------------------------------------------------------------------------------------------------

    def trace(self, what: str, data: bytes = b"") -> None:
        self._hash.update(b"%s %.9f %d " % (what.encode(), self.now, len(data)))
        self._hash.update(data)

    @property
    def digest(self) -> str:
        """Hash of the trace."""
        return self._hash.hexdigest()

    # -- random values ----------------------------------------------------------------------------------------------

    def delay(self) -> float:
        """Return a network delay in seconds: below 2 ms, in 2 % of cases 20 to 70 ms."""
        drawn = self.random.random()
        return 0.02 + drawn * 0.05 if self.random.random() < 0.02 else drawn * 0.002

    def sync_seconds(self) -> float:
        """Return the duration of a disk sync in seconds: 0.5 to 10.5 ms, in 5 % of cases 100 to 400 ms."""
        drawn = self.random.random()
        return 0.1 + drawn * 0.3 if self.random.random() < 0.05 else 0.0005 + drawn * 0.01

    def split_randomly(self, data: bytes) -> list[bytes]:
        """Split data at random positions; in 60 % of cases not at all."""
        if self.random.random() < 0.6:
            return [data] if data else []
        pieces, at = [], 0
        while at < len(data):
            size = self.random.randint(1, SLICE_BYTES_MAX)
            pieces.append(data[at:at + size])
            at += size
        return pieces
