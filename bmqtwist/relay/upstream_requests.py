"""Requests to nodes above that are not answered yet."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bmqtwist.errors import Category, Refused
from bmqtwist.link.peer import PeerSession
from bmqtwist.relay.upstream_queue import Upstream, UpstreamQueue
from bmqtwist.wire.control import ControlMessage


@dataclass(frozen=True, slots=True)
class Asked:
    """One request about a queue: what comes back from `upstream` is given to `answer`, with the number of the request.
    `deadline`: seconds, monotonic."""

    expected: str
    answer: Callable[[object, int], None]
    deadline: float
    upstream: Upstream
    queue: UpstreamQueue


class UpstreamRequests:
    """Those of all connections. One that is not answered in time means that the other side is not to be relied on."""

    def __init__(self) -> None:
        self._next = 1
        self._asked: dict[int, Asked] = {}

    def add(self, expected: str, answer: Callable[[object, int], None], deadline: float, upstream: Upstream,
            queue: UpstreamQueue) -> int:
        """A request is made; its number."""
        number, self._next = self._next, self._next + 1
        self._asked[number] = Asked(expected, answer, deadline, upstream, queue)
        return number

    def answered(self, peer: PeerSession, message: ControlMessage) -> bool:
        """An answer has come; False = to nothing that was asked there. Unknown numbers are of an earlier upstream."""
        number = message.r_id or 0
        asked = self._asked.get(number)
        if asked is None or asked.upstream.peer is not peer or message.choice not in (asked.expected, "status"):
            return False
        del self._asked[number]
        value = message.value
        if message.choice == "status":
            value = Refused(value.category or Category.E_UNKNOWN, value.message, value.code)
        asked.answer(value, number)
        return True

    def overdue(self, now: float) -> list[Asked]:
        """What should have been answered by now, one for each upstream."""
        return list({id(each.upstream): each for each in self._asked.values() if each.deadline <= now}.values())

    def forget(self, queues: Collection[UpstreamQueue]) -> None:
        """The upstream of these queues is gone."""
        gone = frozenset(queues)
        for number in [number for number, each in self._asked.items() if each.queue in gone]:
            del self._asked[number]
