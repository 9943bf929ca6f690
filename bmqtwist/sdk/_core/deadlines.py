"""Named deadlines: set, cleared, asked for the next one. Pure; seconds on whatever clock the caller uses.

`now` is what that clock showed when it was last asked: the caller sets it, and everybody with these deadlines sees it.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush

_FORGOTTEN_MAX = 64  # entries of the heap that may be void, besides as many as there are deadlines


class Deadlines:
    """At most one deadline per key; void heap entries are removed lazily, their number is bounded."""

    __slots__ = ("_count", "_due", "_heap", "now")

    def __init__(self, now: float = 0.0) -> None:
        self.now: float = now
        self._due: dict[Hashable, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._due

    def due(self, key: Hashable) -> float | None:
        found = self._due.get(key)
        return None if found is None else found[0]

    def set(self, key: Hashable, due: float) -> None:
        self._count += 1
        self._due[key] = due, self._count
        heappush(self._heap, (due, self._count, key))
        if len(self._heap) > 2 * len(self._due) + _FORGOTTEN_MAX:
            self._heap = [(at, number, each) for each, (at, number) in self._due.items()]
            heapify(self._heap)

    def after(self, key: Hashable, seconds: float) -> None:
        self.set(key, self.now + seconds)

    def clear(self, key: Hashable) -> None:
        self._due.pop(key, None)

    def next(self) -> float | None:
        heap = self._heap
        while heap:
            due, number, key = heap[0]
            if self._due.get(key) == (due, number):
                return due
            heappop(heap)
        return None

    def expire(self, now: float) -> Hashable | None:
        due = self.next()
        if due is None or due > now:
            return None
        key = heappop(self._heap)[2]
        del self._due[key]
        return key
