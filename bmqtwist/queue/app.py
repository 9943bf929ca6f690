"""One app of a queue: its position in the stored messages, and its consumers.

A message an app has not finished with is in exactly one of: `fresh` (not looked at yet), `aside` (no subscription
matched), `waiting` (the matching ones were full), `again` (both of these, to be looked at again), `redelivery` (came back
from a lost consumer), or unconfirmed at one of the substreams. `fresh` and `again` may still hold messages that are gone;
they are skipped when met.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from bmqtwist.queue.counters import AppStats
from bmqtwist.queue.handle import Substream
from bmqtwist.queue.returned import Returned
from bmqtwist.queue.routing import Matcher, Router
from bmqtwist.storage.partition import Message

Place = deque[Message] | dict[bytes, Message]

_NOBODY = Router()  # nothing is kept for the sake of consumers that are gone


class App:
    """The state of one appId; a priority or broadcast queue has one, `__default`."""

    __slots__ = ("app_id", "key", "ordinal", "bit", "first_order", "registered", "alarmed", "condition", "substreams",
                 "router", "unrouted", "fresh", "again", "aside", "waiting", "redelivery", "stopped_at", "recheck_aside",
                 "recheck_waiting", "stats", "returning", "purged", "lease", "sequence", "_unsorted")

    def __init__(self, app_id: str, key: bytes, ordinal: int, first_order: int = 0) -> None:
        self.app_id = app_id
        self.condition: Matcher | None = None  # application subscription: false = this app never sees the message
        self.substreams: list[Substream] = []
        self.router, self.unrouted = _NOBODY, False  # and whether consumers have changed since it was made
        self.alarmed = False  # the unregistered-appId alarm was raised for the present consumers
        self.stats = AppStats()
        self.returning = 0  # consumers whose messages come back in slices: until then nothing is delivered
        self.purged = 0  # the messages of an earlier arrival order were purged
        self.lease = self.sequence = 0  # PSN of the newest message that consumers here were given as a new one; 0 = unknown
        self.register(key, ordinal, first_order)

    def register(self, key: bytes, ordinal: int, first_order: int) -> None:
        """Start (again) as an app of the queue that sees the messages of arrival order `first_order` and later."""
        self.key, self.ordinal, self.first_order = key, ordinal, first_order
        self.bit = 1 << ordinal if ordinal >= 0 else 0
        self.registered = ordinal >= 0
        self.fresh: deque[Message] = deque()
        self.again: deque[Message] = deque()
        self.aside: dict[bytes, Message] = {}
        self.waiting: dict[bytes, Message] = {}
        self.redelivery = Returned()
        self.recheck_aside = self.recheck_waiting = self._unsorted = False
        self.stopped_at = b""  # GUID of the message for which nobody had room, as the log was told

    def unregister(self) -> list[Place]:
        """Forget every message; consumers stay connected and get nothing. Where messages were kept."""
        places = self._places()
        self.register(b"", -1, 0)
        return places

    def purge(self, order: int) -> list[Place]:
        """The messages that came before this arrival order are gone; where they were kept."""
        places = self._places()
        self.register(self.key, self.ordinal, self.first_order)
        self.purged = order
        return places

    def overtaken(self, message: Message) -> bool:
        """Whether consumers here were given newer ones before: another primary had meant this one for somebody else."""
        return message.lease > 0 and (message.lease, message.sequence) < (self.lease, self.sequence)

    def follow(self, other: App) -> None:
        """Consumers of the other app are this one's from now on."""
        if (self.lease, self.sequence) < (other.lease, other.sequence):
            self.lease, self.sequence = other.lease, other.sequence

    def _places(self) -> list[Place]:
        return [self.fresh, self.again, self.aside, self.waiting, self.redelivery]

    def routes(self) -> Router:
        """`router` as it is now. It is made when it is looked at, since a thousand consumers may change in one turn."""
        if self.unrouted:
            self.unrouted = False
            self.router = Router(each for substream in self.substreams for each in substream.subscriptions)
        return self.router

    def reroute(self) -> None:
        """Route anew after a consumer changed; everything put aside is looked at again."""
        self.router, self.unrouted = _NOBODY, True
        self.recheck_aside = self.recheck_waiting = bool(self.aside or self.waiting or self.again)
        self.stopped_at = b""

    def give_back(self, messages: list[Message]) -> None:
        """Messages of a lost consumer join the redelivery list, in arrival order."""
        for message in messages:
            self.redelivery.add(message)

    def set_aside(self, message: Message) -> None:
        """Keep a message nobody wants now; one that comes late finds its place in `sort_aside`."""
        aside = self.aside
        if aside and aside[next(reversed(aside))].order > message.order:
            self._unsorted = True
        aside[message.guid] = message

    def look_again(self) -> None:
        """Have messages that were put aside looked at again, in the order of their arrival."""
        found = list(self.again)
        if self.recheck_aside:
            found += self.aside.values()
            self.aside, self._unsorted = {}, False
        if self.recheck_waiting:
            found += self.waiting.values()
            self.waiting = {}
        found.sort(key=_order)
        self.again = deque(found)
        self.recheck_aside = self.recheck_waiting = False

    def sort_aside(self) -> None:
        """Put the messages that nobody wants now in the order of their arrival: once a turn, however many came back."""
        if self._unsorted:
            self._unsorted = False
            self.aside = {kept.guid: kept for kept in sorted(self.aside.values(), key=_order)}

    def forget(self, messages: Iterable[Message]) -> None:
        """Messages are gone for this app without having been confirmed by a consumer."""
        for place in (self.aside, self.waiting, self.redelivery):
            if place:
                for message in messages:
                    place.pop(message.guid, None)
        self.trim()

    def trim(self) -> None:
        """Drop what is gone from the heads of `fresh` and `again`, so that they cannot grow without consumers."""
        bit = self.bit
        for place in (self.fresh, self.again):
            while place and not place[0].pending & bit:
                place.popleft()

    def undelivered(self) -> list[Message]:
        """The oldest message of each place where undelivered ones are kept, oldest first (stuck-queue check)."""
        self.trim()
        self.sort_aside()
        heads = [next(iter(place.values())) for place in (self.aside, self.waiting) if place]
        oldest = self.redelivery.first()
        heads += [oldest] if oldest is not None else []
        heads += [place[0] for place in (self.fresh, self.again) if place]
        return sorted(heads, key=_order)

    def put_aside_count(self) -> int:
        """How many messages were passed over because no subscription could take them."""
        return len(self.aside) + len(self.waiting) + len(self.again)

    def consumers(self) -> int:
        """How many readers have the app open (sum of read counts)."""
        return sum(substream.read_count for substream in self.substreams)


def _order(message: Message) -> int:
    return message.order
