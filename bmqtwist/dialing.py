"""Race of connection attempts over several addresses, as in RFC 8305 (Happy Eyeballs): order and times, without I/O.

    add(candidates)         candidates that a resolver has found, in order of preference
    take(now)               the candidate to start now; None = none is due
    next_at                 time of the next start
    on_failed(reason)       an attempt failed: the next one starts at once
    is_lost                 every candidate has failed

An attempt starts ATTEMPT_DELAY_S after the one before, or as soon as that one fails. The first that connects wins, and its
owner abandons all others. Candidates are socket addresses, or brokers whose addresses an inner race tries. Owners:
`sdk/_adapters/event_loop.py`, `sdk/_adapters/dialing.py` and `reactor/dialing.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

ATTEMPT_DELAY_S: Final = 0.25  # "Connection Attempt Delay", the recommended value
CANDIDATES_MAX: Final = 64  # of one race; further ones are ignored
T = TypeVar("T")


class Race(Generic[T]):
    """One race. `resolving`: number of names whose candidates are still to be added. Times: seconds, monotonic."""

    def __init__(self, candidates: Iterable[T] = (), resolving: int = 0) -> None:
        self._waiting: deque[T] = deque()
        self._seen = self._running = 0
        self._resolving = resolving
        self._start_at = float("-inf")
        self._reasons: dict[str, None] = {}
        self._append(candidates)

    def add(self, candidates: Iterable[T], reason: str = "") -> None:
        """Add the candidates of a name; `reason`: the name was not resolved."""
        self._resolving -= 1
        self._append(candidates)
        if reason:
            self._reasons[reason] = None

    def _append(self, candidates: Iterable[T]) -> None:
        for candidate in candidates:
            if self._seen < CANDIDATES_MAX:
                self._seen += 1
                self._waiting.append(candidate)

    def take(self, now: float) -> T | None:
        if not self._waiting or now < self._start_at:
            return None
        self._running += 1
        self._start_at = now + ATTEMPT_DELAY_S
        return self._waiting.popleft()

    @property
    def next_at(self) -> float | None:
        return self._start_at if self._waiting else None

    def on_failed(self, reason: str) -> None:
        self._running -= 1
        self._reasons[reason] = None
        self._start_at = float("-inf")

    @property
    def is_lost(self) -> bool:
        return not (self._waiting or self._running or self._resolving)

    @property
    def reason(self) -> str:
        """The reasons of all failures."""
        return "; ".join(self._reasons) or "no address"


def interleave(found: Iterable[Any], family_at: int = 0) -> list[Any]:
    """Order resolved addresses: the families alternate, beginning with that of the first one; duplicates are removed.
    `family_at`: index of the family in an address, as in the results of `getaddrinfo`.

    >>> interleave([(6, "a"), (6, "b"), (4, "c"), (6, "b")])
    [(6, 'a'), (4, 'c'), (6, 'b')]
    """
    groups: dict[Any, list[Any]] = {}
    for each in dict.fromkeys(found):
        groups.setdefault(each[family_at], []).append(each)
    rows = max(map(len, groups.values()), default=0)
    return [group[row] for row in range(rows) for group in groups.values() if row < len(group)]
