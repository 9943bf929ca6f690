"""Requests to the upstream that are not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bmqtwist.errors import Category, Refused
from bmqtwist.wire.control import ControlMessage


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: what comes back is given to `answer`. `deadline`: seconds, monotonic."""

    expected: str
    answer: Callable[[object], None]
    deadline: float


class UpstreamRequests:
    """Those of one connection. One that is not answered in time means that the other side is not to be relied on."""

    def __init__(self) -> None:
        self._next = 1
        self._asked: dict[int, Asked] = {}

    def add(self, expected: str, answer: Callable[[object], None], deadline: float) -> int:
        """A request is made; its number."""
        number, self._next = self._next, self._next + 1
        self._asked[number] = Asked(expected, answer, deadline)
        return number

    def answered(self, message: ControlMessage) -> bool:
        """An answer has come; False = to nothing that was asked. Unknown numbers are of an earlier connection."""
        asked = self._asked.get(message.r_id or 0)
        if asked is None or message.choice not in (asked.expected, "status"):
            return False
        del self._asked[message.r_id or 0]
        value = message.value
        if message.choice == "status":
            value = Refused(value.category or Category.E_UNKNOWN, value.message, value.code)
        asked.answer(value)
        return True

    def overdue(self, now: float) -> str:
        """What should have been answered by now; empty = nothing."""
        return next((each.expected for each in self._asked.values() if each.deadline <= now), "")

    def forget(self) -> None:
        """The connection is gone."""
        self._asked.clear()
