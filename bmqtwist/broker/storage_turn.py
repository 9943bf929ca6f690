"""Storage work of a turn: write the records of each partition once, then sync and replicate them as configured.

    run               flush each partition, or leave the write to a later turn; release the PUTs whose records are
                      written, durable or committed, as configured
    on_synced         after a sync: release its PUTs, request the next sync
    run_rollovers     continue the rollovers, jobs of the scheduler

Called by `broker.py` in each turn. The files of one partition are written by `storage/partition.py`; delays are decided in
`batching.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from bmqtwist.broker.batching import SYNC_DELAY_S, SyncBatching, WriteCoalescing
from bmqtwist.link.batching import BATCH_MAX_S
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import ROLLOVER_LATE_S, Priority
from bmqtwist.member.partition_runner import PartitionRunner
from bmqtwist.queue.queue import Put
from bmqtwist.queue.root import RootQueue
from bmqtwist.steps import Steps
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.rollover import RolloverJob

COALESCED_BYTES_MAX = 128 << 10  # unwritten DATA of a partition: they fit into the processor's cache
UNSYNCED_BYTES_MAX = 1 << 20  # DATA above which a sync is not delayed


def _no_action(now: float) -> None:
    """Do nothing: the timer only requests a turn."""


def _may_coalesce(partition: Partition) -> bool:
    """Return whether the write of the partition may be left to a later turn."""
    return not (partition.tail.unwritten_bytes > COALESCED_BYTES_MAX or partition.log.roll_due or partition.files.has_next)


class StorageTurn:
    """The partitions of one broker by cluster, and their replication (None in a cluster of one node)."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._isolation = loop, loop.isolation
        self._clusters: list[tuple[list[Partition], PartitionRunner | None]] = []
        self._sync_batching: dict[Partition, SyncBatching] = {}
        self._coalescing: dict[Partition, WriteCoalescing] = {}
        self.write_by = 0.0  # the latest moment for the write of coalesced records; 0.0 = there are none
        self._writes_now = False

    def add(self, partitions: list[Partition], replication: PartitionRunner | None) -> None:
        """Add the partitions of a cluster. The list is the cluster's own, which may replace a partition in it."""
        self._clusters.append((partitions, replication))

    def run(self, now: float, writes_now: bool) -> None:
        """Write the records of all partitions; `writes_now`: without coalescing."""
        self._writes_now = writes_now
        wall = self._loop.wall(now)
        for partitions, replication in self._clusters:
            for partition in partitions:
                try:
                    if not partition.has_work():
                        continue
                    delayed = self._delays_sync(partition, now)
                    if delayed and _may_coalesce(partition) or self._coalesces(partition, now):
                        continue
                    released = partition.flush(wall)
                    if partition.tail.large:
                        self._loop.performer.request_turn()
                except Exception as error:
                    self._isolation.isolate_partition(partition, "writing the turn", error)
                    continue
                if released:
                    self.release(released, now)
                if replication is not None:
                    self._replicate(partition, replication)
                if not delayed:
                    self._sync(partition, replication)

    def close(self, wall: int, sync: bool) -> OSError | None:
        """Stop every partition; return the first OSError, if any."""
        failed: OSError | None = None
        for partition in self.partitions():
            try:
                self.release(partition.stop(wall, sync), self._loop.now)
            except OSError as error:
                failed = failed or error
            except Exception as error:
                self._isolation.isolate_partition(partition, "stop", error)
                partition.files.close(truncate=False)
        return failed

    def partitions(self) -> list[Partition]:
        """Return the partitions of all clusters."""
        return [partition for partitions, _ in self._clusters for partition in partitions]

    def release(self, puts: list[Put], now: float) -> None:
        """Acknowledge PUTs whose records are written, durable or committed, as configured, and deliver their messages."""
        for put in puts:
            try:
                put.queue.release(put, now)
            except Exception as error:
                self._isolation.isolate_queue(put.queue, "release of a message", error)

    def _replicate(self, partition: Partition, replication: PartitionRunner) -> None:
        """Send the written records to the replicas, before the local sync."""
        try:
            replication.on_written(partition)
        except Exception as error:
            self._isolation.isolate_partition(partition, "replication", error)

    # -- syncs ------------------------------------------------------------------------------------------------------

    def _sync(self, partition: Partition, replication: PartitionRunner | None) -> None:
        """Request a sync if one is due."""
        try:
            token = partition.begin_sync()
            if token is not None:
                if (batching := self._sync_batching.get(partition)) is not None:
                    batching.synced_to = partition.files.current.data.end
                self._loop.run_in_thread(partition.sync, partial(self.on_synced, partition, replication, token),
                                     partial(self.on_sync_failed, partition, token))
        except Exception as error:
            self._isolation.isolate_partition(partition, "asking for a sync", error)

    def on_synced(self, partition: Partition, replication: PartitionRunner | None, token: int, now: float) -> None:
        """After a sync: release its PUTs and request the next sync."""
        try:
            released = partition.on_synced(token, self._loop.wall(now))
        except Exception as error:
            self._isolation.isolate_partition(partition, "after a sync", error)
            return
        self.release(released, now)
        if replication is not None:
            self._replicate(partition, replication)
        if not self._delays_sync(partition, now):
            self._sync(partition, replication)

    def on_sync_failed(self, partition: Partition, token: int, error: OSError, now: float) -> None:
        """After a failed sync: close the partition to producers."""
        self._run_guarded(partition, "after a failed sync", partition.on_sync_failed, token, error)

    def _run_guarded(self, partition: Partition, doing: str, action: Callable[..., object], *arguments: object) -> None:
        try:
            action(*arguments)
        except Exception as error:
            self._isolation.isolate_partition(partition, doing, error)

    def _delays_sync(self, partition: Partition, now: float) -> bool:
        """True if the next sync is delayed to cover more messages; a turn at the end of the delay requests it."""
        if partition.durability != "group" or partition.replicated:
            return False
        batching = self._sync_batching.setdefault(partition, SyncBatching())
        delayed_until = batching.until
        newest, syncing = partition.gate.newest_position, partition.gate.sync_running
        delayed = batching.delays(now, newest, syncing)
        if delayed and not delayed_until:
            self._loop.timers.at(now + SYNC_DELAY_S, _no_action)
        unsynced = partition.files.current.data.end - batching.synced_to + partition.tail.unwritten_bytes
        return (delayed or syncing and batching.delays_next) and unsynced <= UNSYNCED_BYTES_MAX

    # -- write coalescing -------------------------------------------------------------------------------------------

    def _coalesces(self, partition: Partition, now: float) -> bool:
        """Return whether the write is left to a later turn; the messages are delivered in this one."""
        if partition.durability != "none" or partition.replicated:
            return False
        coalescing = self._coalescing.get(partition)
        if coalescing is None:
            coalescing = self._coalescing[partition] = WriteCoalescing()
        waiting, inspected, since = partition.gate.effects, coalescing.inspected, coalescing.since
        later = bool(waiting) and partition.available and not self._writes_now and _may_coalesce(
            partition) and coalescing.may_delay(waiting, now)
        if later:
            self._deliver_early(waiting, inspected)
        else:
            coalescing.on_write(now)
        if coalescing.since != since:
            self.write_by = min([each.since + BATCH_MAX_S for each in self._coalescing.values() if each.since], default=0.0)
        return later

    def _deliver_early(self, puts: list[Any], first: int) -> None:
        """Deliver the messages of these PUTs, from index `first` on, before their write; the ACKs follow it."""
        for index in range(first, len(puts)):
            put: Put = puts[index]
            try:
                cast(RootQueue, put.queue).deliver_early(put)
            except Exception as error:
                self._isolation.isolate_queue(put.queue, "delivery of a message", error)

    # -- rollovers --------------------------------------------------------------------------------------------------

    def run_rollovers(self) -> None:
        """Continue rollovers in progress, and start a rollover for each partition that needs one."""
        scheduler, late = self._loop.scheduler, False
        for partitions, _ in self._clusters:
            for partition in partitions:
                if partition.log.roll_due:
                    late = late or partition.roll.is_late
                    if not scheduler.has_job(Priority.ROLLOVER, partition):
                        scheduler.add(Priority.ROLLOVER, partition, self._roll_over(partition), partial(
                            self._isolation.isolate_partition, partition, "rolling over"))
        scheduler.run(Priority.ROLLOVER, ROLLOVER_LATE_S if late else 0.0)

    def _roll_over(self, partition: Partition) -> Steps[None]:
        """Run a rollover in steps until it needs the result of a thread."""
        more = True
        while more and partition.log.roll_due:
            more = partition.roll.step(self._loop.wall(self._loop.now))
            job = partition.roll.take_job()
            if job is not None:
                self._loop.run_in_thread(job.run, partial(self._on_job_done, partition, job),
                                     partial(self._on_job_failed, partition, job))
            yield

    def _on_job_done(self, partition: Partition, job: RolloverJob, now: float) -> None:
        self._run_guarded(partition, "after a job of its rollover", partition.roll.on_job_done, job, self._loop.wall(now))

    def _on_job_failed(self, partition: Partition, job: RolloverJob, error: OSError, now: float) -> None:
        """After a failed job of a rollover: the partition keeps its file set."""
        self._run_guarded(partition, "after a failed job of its rollover", partition.roll.on_job_failed, job, error,
                          self._loop.wall(now))

    # -- periodic ---------------------------------------------------------------------------------------------------

    def write_sync_points(self, now: float) -> None:
        """Append a sync point in each partition."""
        wall = self._loop.wall(now)
        for partitions, replication in self._clusters:
            for partition in partitions:
                self._run_guarded(partition, "its sync point", partition.write_sync_point, wall)
                if replication is not None:
                    self._replicate(partition, replication)
                self._sync(partition, replication)

    def check_space(self, now: float) -> None:
        """Report the partitions that are nearly full."""
        for partition in self.partitions():
            self._isolation.run(f"Partition [{partition.partition_id}]: the check of its space",
                              partial(partition.check_space, self._loop.wall(now)))
