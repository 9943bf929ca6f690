"""Deadlines by key, in seconds of the caller's clock; used by session cores and `simple.Session`. `now` is the time of the
current call: the caller sets it for all parts that share these deadlines. `pop_expired` returns one key; the caller repeats
it until no deadline has passed (`session.SessionCore.tick`). Requests without an answer are in `requests.py`.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush

_VOID_ENTRIES_MAX = 64  # void heap entries allowed, in addition to one per deadline


class Deadlines:
    """Holds at most one deadline per key; void heap entries are removed lazily, their number is bounded."""

    __slots__ = ("_count", "_due", "_heap", "now")

    def __init__(self, now: float = 0.0) -> None:
        self.now: float = now
        self._due: dict[Hashable, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._due

    def get(self, key: Hashable) -> float | None:
        """Return the time of a deadline, None = not set."""
        found = self._due.get(key)
        return None if found is None else found[0]

    def set(self, key: Hashable, due: float) -> None:
        """Set a deadline; it replaces one with the same key."""
        self._count += 1
        self._due[key] = due, self._count
        heappush(self._heap, (due, self._count, key))
        if len(self._heap) > 2 * len(self._due) + _VOID_ENTRIES_MAX:
            self._heap = [(at, number, each) for each, (at, number) in self._due.items()]
            heapify(self._heap)

    def set_after(self, key: Hashable, seconds: float) -> None:
        self.set(key, self.now + seconds)

    def clear(self, key: Hashable) -> None:
        self._due.pop(key, None)

    def earliest(self) -> float | None:
        """Return the time of the earliest deadline, None = there is none."""
        heap = self._heap
        while heap:
            due, number, key = heap[0]
            if self._due.get(key) == (due, number):
                return due
            heappop(heap)
        return None

    def pop_expired(self, now: float) -> Hashable | None:
        """Remove the earliest deadline and return its key if it has passed; else return None."""
        due = self.earliest()
        if due is None or due > now:
            return None
        key = heappop(self._heap)[2]
        del self._due[key]
        return key
