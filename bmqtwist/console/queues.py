"""Table of the queues that this node reports: rates, past depths, and sorted pages.

A node reports the queues of the partitions that the requesting console names: those of which it is the primary, and for
a partition without a primary that answers those of its copy, without clients and rates.

Queues are sampled STEP_QUEUES at a time, so that 50,000 queues do not block the event loop; shown rows are sampled at each
request. Pure: time is an argument, and `local_queues.py` schedules the steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from bmqtwist.console.documents import Document
from bmqtwist.console.rates import Rates, RateWindow, in_tenths
from bmqtwist.steps import Steps
from bmqtwist.view.queue_facts import AnyQueue, StoredCopy, queue_view

STEP_QUEUES = 500  # sampled per step: 1 to 3 ms
RANK_STEP_QUEUES = 2000  # sorted per step
SPARK_ROWS = 30
PAGE_ROWS_MAX = 500
TOP_ROWS = 10
FILTER_CHARS_MAX = 200
SAMPLE_SECONDS_MIN = 0.2  # between two samples
UNKNOWN_RATES: Rates = (None, None, None)

Key = tuple[float | str, str]  # sort key and URI


class SampledQueue:
    """Queue with its last sample, rates (posted, delivered, confirmed) and past depths."""

    __slots__ = ("queue", "view", "rates", "depths", "_window")

    def __init__(self, queue: AnyQueue, now: float) -> None:
        self.queue, self.view = queue, queue_view(queue, now)
        self._window = RateWindow()
        self.rates = self._sample_rates(now)
        self.depths: deque[int | None] = deque((self.view.messages,), SPARK_ROWS)

    def is_of(self, queue: AnyQueue) -> bool:
        """Return whether this is the record of a queue; a copy is a new object at each look."""
        return self.queue is queue or isinstance(self.queue, StoredCopy) and self.queue == queue

    def sample(self, now: float) -> None:
        """Sample the counters, unless the last sample is younger than SAMPLE_SECONDS_MIN."""
        if now - self.view.at < SAMPLE_SECONDS_MIN:
            return
        self.view = queue_view(self.queue, now)
        self.rates = self._sample_rates(now)
        self.depths.append(self.view.messages)

    def _sample_rates(self, now: float) -> Rates:
        counters = self.view.counters
        return UNKNOWN_RATES if counters is None else self._window.sample(now, counters)

    def row(self, wall: float) -> Document:
        """Return the present row; None = not known to this node."""
        seen = queue_view(self.queue)
        put, push, confirm = in_tenths(self.rates)
        quota = seen.quota
        return {"uri": seen.uri, "domain": seen.domain, "mode": str(seen.mode), "partition": seen.partition_id,
                "messages": seen.messages, "bytes": seen.bytes, "messagesMax": seen.message_limit,
                "bytesMax": seen.byte_limit, "oldestSeconds": seen.age(wall), "putRate": put, "pushRate": push,
                "confirmRate": confirm, "consumers": seen.readers, "producers": seen.writers,
                "quota": None if quota is None else round(quota, 4), "spark": list(self.depths)}


# Sort keys of rows, as of the last sample; an unknown value sorts as 0.
SORTS: dict[str, Callable[[SampledQueue, float], float | str]] = {
    "messages": lambda record, wall: record.view.messages or 0,
    "bytes": lambda record, wall: record.view.bytes or 0,
    "oldestSeconds": lambda record, wall: record.view.age(wall) or 0.0,
    "quota": lambda record, wall: record.view.quota or 0.0,
    "putRate": lambda record, wall: record.rates[0] or 0.0,
    "pushRate": lambda record, wall: record.rates[1] or 0.0,
    "confirmRate": lambda record, wall: record.rates[2] or 0.0,
    "consumers": lambda record, wall: record.view.readers or 0,
    "producers": lambda record, wall: record.view.writers or 0,
    "partition": lambda record, wall: record.view.partition_id,
    "domain": lambda record, wall: record.view.domain,
    "mode": lambda record, wall: str(record.view.mode),
    "uri": lambda record, wall: record.view.uri,
}


class Order:
    """Order of rows: by `sort`, then by URI."""

    def __init__(self, sort: str, descending: bool) -> None:
        self.sort, self.descending = sort, descending
        self.value = SORTS[sort]

    def key(self, entry: Sequence[Any]) -> Any:
        """Return the key for `sorted` of an entry (value, URI)."""
        value, uri = entry
        if not self.descending:
            return (value, uri)
        return (-value, uri) if not isinstance(value, str) else _Descending(value, uri)

    def first(self, entries: list[Key], upto: int) -> list[Key]:
        """Return the first `upto` entries in order; numbers are sorted without a call per entry."""
        if not self.descending:
            return sorted(entries)[:upto]
        if entries and isinstance(entries[0][0], str):
            return sorted(entries, key=self.key)[:upto]
        return [(-value, uri) for value, uri in sorted([(-value, uri) for value, uri in entries])[:upto]]  # type: ignore[operator]


class _Descending:
    """Sort key: text in descending order, then URI in ascending order."""

    __slots__ = ("value", "uri")

    def __init__(self, value: str, uri: str) -> None:
        self.value, self.uri = value, uri

    def __lt__(self, other: _Descending) -> bool:
        return self.value > other.value or self.value == other.value and self.uri < other.uri


def merge_first(runs: Iterable[Iterable[Key]], order: Order, upto: int) -> list[Key]:
    """Return the first `upto` entries of several sorted runs."""
    return list(islice(merge(*runs, key=order.key), upto))


class QueueBook:
    """Records of queues; `present` returns these queues."""

    def __init__(self, present: Callable[[], Iterable[AnyQueue]]) -> None:
        self._present = present
        self._records: dict[str, SampledQueue] = {}
        self._sweep: Iterator[None] | None = None
        self.visited = 0  # queues sampled and sorted in all steps, a measure of the work
        self.top: list[str] = []  # the deepest queues in the last sweep
        self.sweep_end = float("-inf")  # end of the last sweep, monotonic seconds; -inf = none yet

    def clear(self) -> None:
        """Drop all records: no client requests queues any more."""
        self._records, self._sweep, self.top, self.sweep_end = {}, None, [], float("-inf")

    def restart(self) -> None:
        """Drop a sweep in progress: other queues are to be sampled."""
        self._sweep, self.sweep_end = None, float("-inf")

    def begin_sweep(self, now: Callable[[], float]) -> bool:
        """Begin a sweep over all queues; False if one is in progress."""
        if self._sweep is not None:
            return False
        self._sweep = self._sample_all(now)
        return True

    def step(self) -> bool:
        """Sample the next STEP_QUEUES; return whether the sweep continues."""
        if self._sweep is not None and next(self._sweep, self) is self:
            self._sweep = None
        return self._sweep is not None

    def _sample_all(self, clock: Callable[[], float]) -> Iterator[None]:
        queues, records, old = iter(self._present()), dict[str, SampledQueue](), self._records
        best: list[tuple[int, str]] = []
        while True:
            now, count = clock(), 0
            for queue in islice(queues, STEP_QUEUES):
                count += 1
                record = old.get(queue.uri)
                if record is None or not record.is_of(queue):
                    record = SampledQueue(queue, now)
                else:
                    record.sample(now)
                records[queue.uri] = record
                if record.view.messages:
                    best.append((-record.view.messages, queue.uri))
            self.visited += count
            best = sorted(best)[:TOP_ROWS]
            if count < STEP_QUEUES:
                break
            yield
        self._records, self.top, self.sweep_end = records, [uri for _, uri in best], clock()

    def rows(self, uris: Iterable[str], now: float, wall: float) -> list[Document]:
        """Return present rows of sampled queues; other queues are omitted."""
        found = []
        for uri in islice(uris, PAGE_ROWS_MAX):
            record = self._records.get(uri)
            if record is not None:
                record.sample(now)
                found.append(record.row(wall))
        return found

    def rank(self, text: str, order: Order, upto: int, wall: float,
             partitions: Container[int] | None = None) -> Steps[tuple[int, list[Key]]]:
        """Return the number of queues of some partitions (None = all) with `text` in their URI, and the first `upto`
        entries, in steps."""
        wanted, total, runs = text.lower(), 0, list[list[Key]]()
        records = iter(list(self._records.values()))
        while True:
            taken = list(islice(records, RANK_STEP_QUEUES))
            self.visited += len(taken)
            run = [(order.value(each, wall), each.queue.uri) for each in taken
                   if (partitions is None or each.view.partition_id in partitions)
                   and (not wanted or wanted in each.queue.uri.lower())]
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
