"""Rate of queue creations, by owner: QUEUE_CREATIONS_AT_ONCE, then a configured number per second. Pure.

An owner is a principal, or the address of a peer without a credential of its own (`link/authentication.py: owner`). Called
by `access.py` for each open that creates a queue; the number of queues of a domain is limited in `member/queue_changes.py`.
"""

from __future__ import annotations

from collections import OrderedDict

from bmqtwist.limits import QUEUE_CREATIONS_AT_ONCE

OWNERS_MAX = 10_000  # with a count; the one that created the least recently is dropped


class CreationRate:
    """Rate of one broker. `per_second` 0 = no limit."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # creations left, negative = reserved; time

    def reserve(self, owner: str, wait_max: float, now: float) -> float | None:
        """Reserve a creation; return the seconds until it is due, None = more than `wait_max`, and nothing is reserved."""
        if not self._per_second:
            return 0.0
        left, at = self._left.get(owner, (float(QUEUE_CREATIONS_AT_ONCE), now))
        left = min(QUEUE_CREATIONS_AT_ONCE, left + (now - at) * self._per_second) - 1.0
        wait = max(0.0, -left / self._per_second)
        if wait > wait_max:
            return None
        self._left[owner] = left, now
        self._left.move_to_end(owner)
        while len(self._left) > OWNERS_MAX:
            self._left.popitem(last=False)
        return wait
