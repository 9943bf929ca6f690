"""What is known of many queues: rates, depths of a while ago, and which of them come first in some order.

The counters of each queue are looked at now and then, STEP_QUEUES of them at a time, so that 50,000 queues hold nobody up;
the rows that are shown are looked at whenever they are shown. Pure: time is an argument, whoever calls `step` decides when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from bmqtwist.console.documents import Document
from bmqtwist.queue.root import RootQueue
from bmqtwist.steps import Steps
from bmqtwist.view.queue_facts import queue_view

STEP_QUEUES = 500  # looked at in one step: 1 to 3 ms
RANK_STEP_QUEUES = 2000  # put in order in one step
SPARK_ROWS = 30
PAGE_ROWS_MAX = 500
TOP_ROWS = 10
FILTER_CHARS_MAX = 200
LOOK_SECONDS_MIN = 0.2  # between two looks that a rate is made of

Key = tuple[float | str, str]  # what is sorted by, and the URI


class QueueRecord:
    """One queue, as it was when it was looked at last, and its depths and rates until then."""

    __slots__ = ("queue", "view", "put_rate", "push_rate", "confirm_rate", "depths")

    def __init__(self, queue: RootQueue, now: float) -> None:
        self.queue, self.view = queue, queue_view(queue, now)
        self.put_rate = self.push_rate = self.confirm_rate = 0.0
        self.depths: deque[int] = deque((self.view.messages,), SPARK_ROWS)

    def look(self, now: float) -> None:
        """Take the counters of now, unless that was done just before."""
        before, seconds = self.view, now - self.view.at
        if seconds < LOOK_SECONDS_MIN:
            return
        seen = self.view = queue_view(self.queue, now)
        self.put_rate, self.push_rate = (seen.put - before.put) / seconds, (seen.push - before.push) / seconds
        self.confirm_rate = (seen.confirm - before.confirm) / seconds
        self.depths.append(seen.messages)

    def row(self, wall: float) -> Document:
        seen = queue_view(self.queue)
        return {"uri": seen.uri, "domain": seen.domain, "mode": str(seen.mode), "partition": seen.partition_id,
                "messages": seen.messages, "bytes": seen.bytes, "messagesMax": seen.message_limit,
                "bytesMax": seen.byte_limit, "oldestSeconds": seen.age(wall), "putRate": round(self.put_rate, 1),
                "pushRate": round(self.push_rate, 1), "confirmRate": round(self.confirm_rate, 1),
                "consumers": seen.readers, "producers": seen.writers, "quota": round(seen.quota, 4),
                "spark": list(self.depths)}


# What rows can be sorted by, as of the last look.
SORTS: dict[str, Callable[[QueueRecord, float], float | str]] = {
    "messages": lambda record, wall: record.view.messages,
    "bytes": lambda record, wall: record.view.bytes,
    "oldestSeconds": lambda record, wall: record.view.age(wall) or 0.0,
    "quota": lambda record, wall: record.view.quota,
    "putRate": lambda record, wall: record.put_rate,
    "pushRate": lambda record, wall: record.push_rate,
    "confirmRate": lambda record, wall: record.confirm_rate,
    "consumers": lambda record, wall: record.view.readers,
    "producers": lambda record, wall: record.view.writers,
    "partition": lambda record, wall: record.view.partition_id,
    "domain": lambda record, wall: record.view.domain,
    "mode": lambda record, wall: str(record.view.mode),
    "uri": lambda record, wall: record.view.uri,
}


class Order:
    """How rows are sorted: by `sort`, and by URI where that is equal; the first `upto` of them count."""

    def __init__(self, sort: str, descending: bool) -> None:
        self.sort, self.descending = sort, descending
        self.value = SORTS[sort]

    def key(self, entry: Sequence[Any]) -> Any:
        """For `sorted`: of (value, URI)."""
        value, uri = entry
        if not self.descending:
            return (value, uri)
        return (-value, uri) if not isinstance(value, str) else _Backwards(value, uri)

    def first(self, entries: list[Key], upto: int) -> list[Key]:
        """The first of these, in order; without a call for each of them where they are numbers."""
        if not self.descending:
            return sorted(entries)[:upto]
        if entries and isinstance(entries[0][0], str):
            return sorted(entries, key=self.key)[:upto]
        return [(-value, uri) for value, uri in sorted([(-value, uri) for value, uri in entries])[:upto]]  # type: ignore[operator]


class _Backwards:
    """Texts in descending order, and URIs in ascending order where they are equal."""

    __slots__ = ("value", "uri")

    def __init__(self, value: str, uri: str) -> None:
        self.value, self.uri = value, uri

    def __lt__(self, other: _Backwards) -> bool:
        return self.value > other.value or self.value == other.value and self.uri < other.uri


def first_of(runs: Iterable[Iterable[Key]], order: Order, upto: int) -> list[Key]:
    """The first entries of several that are sorted."""
    return list(islice(merge(*runs, key=order.key), upto))


class QueueBook:
    """All queues that this node leads. `living` gives them as they are now."""

    def __init__(self, living: Callable[[], Iterable[RootQueue]]) -> None:
        self._living = living
        self._records: dict[str, QueueRecord] = {}
        self._sweep: Iterator[None] | None = None
        self.looked = 0  # at so many queues in all steps: what the work is measured by
        self.top: list[str] = []  # the deepest, as of the last sweep
        self.swept = float("-inf")  # when the last sweep ended

    def forget(self) -> None:
        """Nobody watches any more."""
        self._records, self._sweep, self.top, self.swept = {}, None, [], float("-inf")

    def begin(self, now: Callable[[], float]) -> bool:
        """Begin to look at all queues, unless that goes on already; whether it has begun now."""
        if self._sweep is not None:
            return False
        self._sweep = self._look_at_all(now)
        return True

    def step(self) -> bool:
        """Look at some more; whether that was not all."""
        if self._sweep is not None and next(self._sweep, self) is self:
            self._sweep = None
        return self._sweep is not None

    def _look_at_all(self, clock: Callable[[], float]) -> Iterator[None]:
        queues, records, old = iter(list(self._living())), dict[str, QueueRecord](), self._records
        best: list[tuple[int, str]] = []
        while True:
            now, count = clock(), 0
            for queue in islice(queues, STEP_QUEUES):
                count += 1
                record = old.get(queue.uri)
                if record is None or record.queue is not queue:
                    record = QueueRecord(queue, now)
                else:
                    record.look(now)
                records[queue.uri] = record
                if record.view.messages:
                    best.append((-record.view.messages, queue.uri))
            self.looked += count
            best = sorted(best)[:TOP_ROWS]
            if count < STEP_QUEUES:
                break
            yield
        self._records, self.top, self.swept = records, [uri for _, uri in best], clock()

    def rows(self, uris: Iterable[str], now: float, wall: float) -> list[Document]:
        """Rows of queues, as they are now; those that are gone are left out."""
        found = []
        for uri in islice(uris, PAGE_ROWS_MAX):
            record = self._records.get(uri)
            if record is not None:
                record.look(now)
                found.append(record.row(wall))
        return found

    def rank(self, text: str, order: Order, upto: int, wall: float) -> Steps[tuple[int, list[Key]]]:
        """How many queues there are with a text in their URI, and the first of them."""
        wanted, total, runs = text.lower(), 0, list[list[Key]]()
        records = iter(list(self._records.values()))
        while True:
            taken = list(islice(records, RANK_STEP_QUEUES))
            self.looked += len(taken)
            run = [(order.value(each, wall), each.queue.uri) for each in taken
                   if not wanted or wanted in each.queue.uri.lower()]
            total += len(run)
            runs.append(order.first(run, upto))
            if len(taken) < RANK_STEP_QUEUES:
                break
            yield
        merged, found = merge(*runs, key=order.key), list[Key]()
        while len(found) < upto:
            more = list(islice(merged, min(RANK_STEP_QUEUES, upto - len(found))))
            found += more
            if len(more) < RANK_STEP_QUEUES:
                break
            yield
        return total, found
