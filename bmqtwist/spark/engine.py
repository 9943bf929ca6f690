"""Engine of a query over the queue source, without Spark: the calls of Spark's planner, in their order.

For each batch Spark calls `latest_offset(start)`, writes the result to its offset log, calls `commit` for the previous
batch and `parts(start, end)`, runs the tasks, writes its commit log, and calls `latest_offset(start = end)`. Both this last
call and `commit` prove that a batch is in the commit log, so both confirm all messages before their offset. (With `commit`
alone the last batch would never be confirmed, and a window smaller than a batch would block.) After a restart with an
unfinished batch `parts` is the first call. `latest_offset` also plans the next batch, of messages received so far. Called
by `source.py`; the batches are in `plan.py`, the sessions in `receiver.py`, the stored batches in `spool.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from bmqtwist.spark.messages import from_ipc, record_batch, split_batch, to_ipc
from bmqtwist.spark.options import SourceOptions
from bmqtwist.spark.plan import BatchPlan, CommitResult, Key, Offset, OffsetError, Segment, keys_of
from bmqtwist.spark.receiver import Receiver, Receivers
from bmqtwist.spark.spool import Spool, new_epoch

LOG = logging.getLogger("bmqtwist.spark")
POLL_S = 0.2  # maximum wait of `latest_offset` for messages; Spark calls it again at once


Source = Receiver | Receivers


class QueryEngine:
    """One running query over the queues of one source. The first call opens spool and sessions."""

    def __init__(self, options: SourceOptions, make_source: Callable[[SourceOptions], Source] | None = None,
                 clock: Callable[[], float] = time.time) -> None:
        self._options, self._clock = options, clock
        self._make_source = make_source or (Receivers if options.receivers > 1 else Receiver)
        self._plan = BatchPlan(options.guid_retention)
        self._spool: Spool | None = None
        self._source: Source | None = None
        self._epoch = ""
        self._started = False  # Spark has passed its start offset
        self._content: dict[int, bytes] = {}  # batches as Arrow IPC, by start of the planned segment
        self._drain_until: float | None = None  # end of availableNow
        self._draining = self._drained = False
        self._drain_taken = 0

    # -- calls of Spark ---------------------------------------------------------------------------------------------

    def initial_offset(self) -> Offset:
        """Return the first offset of a query without a checkpoint; the same at each call."""
        spool = self._open_spool()
        if not self._epoch:
            if spool is not None and spool.epoch:
                segments = spool.segments()
                if any(each.start and not index for index, each in enumerate(segments)) or any(
                        not spool.has_content(each) for each in segments):
                    raise OffsetError(f"spool {spool.directory} belongs to another checkpoint, which has committed some of "
                                      "its batches. Give the query the old checkpointLocation, or a new spoolDir.")
                self._epoch = spool.epoch
            else:
                self._set_epoch(new_epoch())
        return Offset(self._epoch, 0)

    def latest_offset(self, start: Offset, messages_max: int | None) -> Offset:
        """Confirm the messages before `start`, plan the next batch, and return its end; `start` = no batch is due."""
        self._start(start)
        self._commit_before(start.seq)
        planned = self._plan.segment_at(start.seq)
        if planned is not None:
            return Offset(self._epoch, planned.end)
        if start.seq > self._plan.end:
            self._plan.skip_to(start.seq)
        most = self._options.batch_messages_max if messages_max is None else messages_max
        self._wait_for_messages()
        if self._draining:
            most = min(most, self._drain_left())
        segment = self._plan.plan_segment(start.seq, most) if self._is_batch_due() else None
        if segment is None:
            if self._draining:
                self._drained = True
            return start
        self._drain_taken += segment.end - segment.start
        self._store(segment)
        return Offset(self._epoch, segment.end)

    def parts(self, start: Offset, end: Offset) -> list[bytes]:
        """Return the batch between two offsets, in parts for tasks."""
        self._start(start)
        if self._spool is None:
            self._epoch = end.epoch  # another process planned the first batch and created the epoch
        if end.seq <= start.seq:
            return []
        segments = self._plan.segments_between(start.seq, end.seq)
        contents = [self._content_of(each) for each in segments] if segments is not None else [None]
        if any(each is None for each in contents):
            if self._spool is not None and self._options.fail_on_data_loss:
                raise OffsetError(f"spool {self._spool.directory} does not contain the batch from {start.seq} to {end.seq}. "
                                  "With option failOnDataLoss false it is skipped; a later batch has its messages.")
            LOG.warning("the batch from %d to %d was planned by another process and is returned empty: its messages are "
                        "delivered again", start.seq, end.seq)
        options = self._options
        return [to_ipc(part) for each in contents if each is not None
                for part in split_batch(from_ipc(each), options.partitions_min, options.partition_messages_max,
                                        options.partition_bytes_max)]

    def commit(self, end: Offset) -> None:
        if self._started:
            self._commit_before(end.seq)

    def start_drain(self) -> None:
        """Handle the trigger availableNow: process messages until none arrives within the idle time, or to a limit."""
        self._draining = True

    def progress(self) -> dict[str, object]:
        """Return the latest offset with metrics, for Spark's progress reports. `lagSeconds`: age of the oldest message that
        is not in a batch."""
        oldest = self._plan.oldest_time()
        return {**Offset(self._epoch, self._plan.end + self._plan.waiting_count).as_json(),
                "buffered": self._plan.waiting_count, "unconfirmed": self._plan.unconfirmed_count,
                "repeated": self._plan.repeated,
                "lagSeconds": 0.0 if oldest is None else round(max(self._clock() - oldest, 0.0), 3)}

    def stop(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.stop()
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close()

    # -- implementation -----------------------------------------------------------------------------------------------

    def _open_spool(self) -> Spool | None:
        if self._spool is None and self._options.spool_dir:
            self._spool = Spool(self._options.spool_dir)
        return self._spool

    def _set_epoch(self, epoch: str) -> None:
        self._epoch = epoch
        if self._spool is not None:
            self._spool.set_epoch(epoch)

    def _start(self, start: Offset) -> None:
        if self._started:
            if start.epoch != self._epoch and self._spool is not None:
                raise OffsetError(f"offset {start} belongs to another checkpoint than {self._epoch}")
            self._epoch = start.epoch
            return
        spool = self._open_spool()
        if spool is None:
            LOG.warning("option spoolDir is not set: messages are processed at least once; the batch in progress at a crash "
                        "may be processed twice")
        elif spool.epoch and spool.epoch != start.epoch:
            raise OffsetError(f"spool {spool.directory} belongs to checkpoint {spool.epoch}, not to {start.epoch}: give the "
                              "query a spoolDir of its own")
        segments = spool.segments() if spool is not None else []
        if self._epoch != start.epoch or spool is not None and not spool.epoch:
            self._set_epoch(start.epoch)
        done = self._plan.restore(segments, start.seq)
        self._source = self._make_source(self._options)
        self._source.start()
        self._started = True
        self._apply_commit(done)

    def _commit_before(self, until: int) -> None:
        self._apply_commit(self._plan.commit(until))

    def _apply_commit(self, done: CommitResult) -> None:
        self._confirm(done.confirm)
        for segment in done.committed:
            self._content.pop(segment.start, None)
            if self._spool is not None:
                self._spool.remove_content(segment)
        if self._spool is not None:
            for segment in done.expired:
                self._spool.remove(segment)

    def _confirm(self, keys: list[Key]) -> None:
        if keys and self._source is not None:
            self._source.confirm(keys)

    def _wait_for_messages(self) -> None:
        self._take()
        if self._draining:
            idle_until = self._clock() + self._options.drain_idle_s
            if self._drain_until is None and self._options.drain_max_s:
                self._drain_until = self._clock() + self._options.drain_max_s
            while not self._plan.waiting_count and self._clock() < idle_until and self._drain_left():
                self._wait(POLL_S)
        elif not self._plan.waiting_count:
            self._wait(POLL_S)

    def _wait(self, timeout_s: float) -> None:
        if self._source is not None:
            self._source.wait(timeout_s)
        self._take()

    def _take(self) -> None:
        source, plan = self._source, self._plan
        if source is None:
            return
        source.raise_error()
        to_confirm: list[Key] = []
        now = self._clock()
        for each in source.take_messages():
            if each.messages:
                items = ((each.queue, message, each.arrived) for message in each.messages)
                to_confirm += plan.deliver(keys_of(each.queue, each.messages), items, each.receiver, now)
            else:
                plan.drop_waiting(each.receiver)
        self._confirm(to_confirm)

    def _is_batch_due(self) -> bool:
        least, oldest = self._options.batch_messages_min, self._plan.oldest_time()
        return self._draining or self._plan.waiting_count >= least or (
            oldest is not None and self._clock() - oldest >= self._options.delay_max_s)

    def _drain_left(self) -> int:
        if self._drained or self._drain_until is not None and self._clock() >= self._drain_until:
            return 0
        most = self._options.drain_messages_max
        return max(most - self._drain_taken, 0) if most else 1 << 62

    def _store(self, segment: Segment) -> None:
        content = to_ipc(record_batch(segment.items or [], segment.start, self._options.canonical_queues,
                                      self._options.include_properties))
        segment.items = None
        if self._spool is not None:
            self._spool.write(segment, content)
        self._content[segment.start] = content

    def _content_of(self, segment: Segment) -> bytes | None:
        known = self._content.get(segment.start)
        if known is None and self._spool is not None:
            known = self._spool.read(segment)
        return known
