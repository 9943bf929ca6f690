"""Which broker is tried next, and after what pause."""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.sdk.options import Address


class Backoff:
    """Rotates over the addresses: no pause within a round, a growing one (with chance in it) between rounds.

    `random` gives numbers in [0, 1). The first pause after a loss is at most `first_s`; each round doubles it up to
    `max_s`; half of a pause is chance, so that many clients of one broker do not come back in step.
    """

    __slots__ = ("_addresses", "_first_s", "_max_s", "_next", "_pause_s", "_random", "_tried")

    def __init__(self, addresses: tuple[Address, ...], first_s: float, max_s: float,
                 random: Callable[[], float]) -> None:
        self._addresses, self._first_s, self._max_s, self._random = addresses, first_s, max_s, random
        self._next = self._tried = 0
        self._pause_s = first_s

    def address(self) -> Address:
        """The address of the next attempt."""
        found = self._addresses[self._next]
        self._next = (self._next + 1) % len(self._addresses)
        self._tried += 1
        return found

    @property
    def rounds(self) -> int:
        """How often has every address been tried since the last success?"""
        return self._tried // len(self._addresses)

    @property
    def left(self) -> int:
        """Addresses that this round has not finished with: the last one given, and those after it."""
        return len(self._addresses) - (self._tried - 1) % len(self._addresses)

    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        if self._tried and self._tried % len(self._addresses):
            return 0.0
        pause = self._pause_s
        self._pause_s = min(self._pause_s * 2, self._max_s)
        return pause * (0.5 + self._random() / 2)

    def succeeded(self) -> None:
        """A session came up: start over."""
        self._tried, self._pause_s = 0, self._first_s
