"""Background scrub of the stored messages: one batch at a time, read by a thread, at a limited rate.

A pass covers the partitions of all clusters, one after the other, at primaries and replicas. It begins `interval` seconds
after the beginning of the last one, or at its end if that is later; the first one `interval` seconds after the start, which
has verified all messages. After each batch the scrub pauses until its average rate is at most `rate` bytes per second.

`config/broker.py` declares interval and rate. `Broker` creates and starts it; `storage/scrub.py` compares,
`member/repairs.py` repairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bmqtwist.loop.loop import Loop
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.scrub import ScrubBatch, ScrubPass

PAUSE_S = 0.05  # at least, between two batches


class Scrubbing:
    """The scrub of one broker. `partitions()`: those at this node. `interval` 0 = no scrub. `passes`: completed so far;
    `bytes`: read so far, short records counted as a page."""

    def __init__(self, loop: Loop, partitions: Callable[[], list[Partition]], interval: float, rate: int) -> None:
        self._loop, self._partitions, self._interval, self._rate = loop, partitions, interval, rate
        self.passes = self.bytes = 0
        self._began = self._due = 0.0
        self._left: Iterator[Partition] = iter(())
        self._pass: ScrubPass | None = None

    def start(self, now: float) -> None:
        """Start the timer of the first pass."""
        self._schedule(now + self._interval)

    def _schedule(self, due: float) -> None:
        self._due = due
        if self._interval:
            self._loop.timers.at(due, self._on_due)

    def _on_due(self, now: float) -> None:
        if now >= self._due:  # else a pass began earlier, and the next one has a timer of its own
            self.begin(now)

    def begin(self, now: float) -> None:
        """Begin a pass, unless one is in progress."""
        if self._pass is None:
            self._began, self._left = now, iter(self._partitions())
            self._next(now)

    def _next(self, now: float) -> None:
        """Read the next batch of the pass."""
        batch = self._pass.next_batch() if self._pass is not None else None
        while batch is None:
            partition = next(self._left, None)
            if partition is None:
                self._pass, self.passes = None, self.passes + 1
                self._schedule(max(now + PAUSE_S, self._began + self._interval))
                return
            self._pass = ScrubPass(partition)
            batch = self._pass.next_batch()
        self._loop.run_in_thread(batch.read, partial(self._on_read, batch), lambda error, now: self._pause(batch, now))

    def _on_read(self, batch: ScrubBatch, now: float) -> None:
        self._loop.isolation.run("scrub", batch.confirm)
        self._pause(batch, now)

    def _pause(self, batch: ScrubBatch, now: float) -> None:
        self.bytes += batch.cost
        self._loop.timers.at(now + max(PAUSE_S, batch.cost / self._rate), self._next)
