"""The storage part of a turn: the records of each partition are written once, then synced and replicated as configured.

    run               flush each partition, or leave the write to a later turn; release the PUTs that are durable enough
    synced            a sync is done: release its PUTs, ask for the next sync
    run_rollovers     continue the rollovers, jobs of the scheduler
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, cast

from bmqtwist.broker.sync_pace import PAUSE_S, SyncPace
from bmqtwist.broker.write_coalescing import Gathering
from bmqtwist.link.pace import WAIT_S
from bmqtwist.loop.error_isolation import Containment
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.scheduler import ROLLOVER_LATE_S, Priority, Scheduler
from bmqtwist.loop.timers import Timers
from bmqtwist.member.partition_runner import PartitionRunner
from bmqtwist.queue.queue import Put
from bmqtwist.queue.root import RootQueue
from bmqtwist.steps import Steps
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.rollover import Job

GATHERED_BYTES_MAX = 128 << 10  # of DATA that are not written while more is waited for: they are in the cache still
UNSYNCED_BYTES_MAX = 1 << 20  # of DATA: when there are more, a sync waits for nothing else


def _nothing(now: float) -> None:
    """A turn follows."""


def _may_gather(partition: Partition) -> bool:
    """Whether what is stored may be written later, with what else comes until then."""
    return not (partition.tail.unwritten_bytes > GATHERED_BYTES_MAX or partition.log.roll_due or partition.files.rolling)


class StorageHost(Protocol):
    """The broker, as far as it is needed here."""

    now: float

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""

    def in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run `work` off the reactor's thread, then `done(now)` or `failed(error, now)`, and a turn."""


class StorageTurn:
    """The partitions of one broker, each with its replication; None in a cluster of one node."""

    def __init__(self, host: StorageHost, performer: Performer, contain: Containment, scheduler: Scheduler,
                 timers: Timers) -> None:
        self._host, self._performer = host, performer
        self._contain, self._scheduler, self._timers = contain, scheduler, timers
        self.partitions: dict[Partition, PartitionRunner | None] = {}
        self._paces: dict[Partition, SyncPace] = {}  # of the syncs of each partition
        self._gatherings: dict[Partition, Gathering] = {}
        self.write_by = 0.0  # when something that is gathered has to be written; 0.0 = nothing is
        self._writes_now = False

    def add(self, partitions: Iterable[Partition], replication: PartitionRunner | None) -> None:
        """The partitions of a cluster."""
        self.partitions.update(dict.fromkeys(partitions, replication))

    def replace(self, old: Partition, new: Partition) -> None:
        """Another object stands for a partition now."""
        self.partitions = {new if each is old else each: replication for each, replication in self.partitions.items()}

    def write_now(self) -> None:
        """Whatever is stored is written in this turn, before its output."""
        self._writes_now = True

    def run(self, now: float) -> None:
        """Write what is stored."""
        wall = self._host.wall(now)
        for partition, replication in self.partitions.items():
            try:
                if not partition.busy():
                    continue
                pauses = self._pauses(partition, now)
                if pauses and _may_gather(partition) or self._gathers(partition, now):
                    continue
                released = partition.flush(wall)
                if partition.tail.large:
                    self._performer.turn_due()
            except Exception as error:
                self._contain.partition_failed(partition, "writing the turn", error)
                continue
            if released:
                self.release(released, now)
            if replication is not None:
                self._replicate(partition, replication)
            if not pauses:
                self._sync(partition)
        self._writes_now = False

    def close(self, wall: int, sync: bool) -> OSError | None:
        """The last turn: every partition is stopped. The first error, if any."""
        failed: OSError | None = None
        for partition in self.partitions:
            try:
                self.release(partition.stop(wall, sync), self._host.now)
            except OSError as error:
                failed = failed or error
            except Exception as error:
                self._contain.partition_failed(partition, "stop", error)
                partition.files.close(truncate=False)
        return failed

    def release(self, puts: list[Put], now: float) -> None:
        """The records of these PUTs are written, durable or committed, as asked for: acknowledge, and hand their messages on
        for delivery."""
        for put in puts:
            try:
                put.queue.release(put, now)
            except Exception as error:
                self._contain.queue_failed(put.queue, "release of a message", error)

    def _replicate(self, partition: Partition, replication: PartitionRunner) -> None:
        """Send the written records to the other nodes, before they are synced here."""
        try:
            replication.on_written(partition)
        except Exception as error:
            self._contain.partition_failed(partition, "replication", error)

    # -- syncs ------------------------------------------------------------------------------------------------------

    def _sync(self, partition: Partition) -> None:
        """Ask for a sync if one is due."""
        try:
            token = partition.wants_sync()
            if token is not None:
                if (pace := self._paces.get(partition)) is not None:
                    pace.synced_to = partition.files.data_position
                self._host.in_thread(partition.sync, partial(self.synced, partition, token),
                                          partial(self.sync_failed, partition, token))
        except Exception as error:
            self._contain.partition_failed(partition, "asking for a sync", error)

    def synced(self, partition: Partition, token: int, now: float) -> None:
        """A sync is done: release what waited for it, ask for the next."""
        try:
            released = partition.synced(token, self._host.wall(now))
        except Exception as error:
            self._contain.partition_failed(partition, "after a sync", error)
            return
        self.release(released, now)
        replication = self.partitions.get(partition)
        if replication is not None:
            self._replicate(partition, replication)
        if not self._pauses(partition, now):
            self._sync(partition)

    def sync_failed(self, partition: Partition, token: int, error: OSError, now: float) -> None:
        """A sync has failed: the partition takes nothing more."""
        try:
            partition.sync_failed(token, error)
        except Exception as mistake:
            self._contain.partition_failed(partition, "after a failed sync", mistake)

    def _pauses(self, partition: Partition, now: float) -> bool:
        """True if the next sync is delayed to cover more messages; a turn at the end of the delay requests it."""
        if partition.durability != "group" or partition.replicated:
            return False
        pace = self._paces.setdefault(partition, SyncPace())
        pausing = pace.until
        newest, syncing = partition.awaited
        pauses = pace.pauses(now, newest, syncing)
        if pauses and not pausing:
            self._timers.at(now + PAUSE_S, _nothing)
        unsynced = partition.files.data_position - pace.synced_to + partition.tail.unwritten_bytes
        return (pauses or syncing and pace.calm) and unsynced <= UNSYNCED_BYTES_MAX

    # -- writes that wait -------------------------------------------------------------------------------------------

    def _gathers(self, partition: Partition, now: float) -> bool:
        """Whether what is stored is written in one of the next turns; its messages are delivered in this one."""
        if partition.durability != "none" or partition.replicated:
            return False
        gathering = self._gatherings.get(partition)
        if gathering is None:
            gathering = self._gatherings[partition] = Gathering()
        waiting, seen, since = partition.gate.waiting, gathering.seen, gathering.since
        goes_on = bool(waiting) and partition.available and not self._writes_now and _may_gather(
            partition) and gathering.goes_on(waiting, now)
        if goes_on:
            self._hand_on(waiting, seen)
        else:
            gathering.end(now)
        if gathering.since != since:
            self.write_by = min([each.since + WAIT_S for each in self._gatherings.values() if each.since], default=0.0)
        return goes_on

    def _hand_on(self, puts: list[Any], first: int) -> None:
        """The messages of these PUTs may be delivered, from that one on; they are acknowledged when they are written."""
        for index in range(first, len(puts)):
            put: Put = puts[index]
            try:
                cast(RootQueue, put.queue).hand_on(put)
            except Exception as error:
                self._contain.queue_failed(put.queue, "delivery of a message", error)

    # -- rollovers --------------------------------------------------------------------------------------------------

    def run_rollovers(self) -> None:
        """Continue rollovers in progress, and start a rollover for each partition that needs one."""
        scheduler, late = self._scheduler, False
        for partition in self.partitions:
            if partition.log.roll_due:
                late = late or partition.roll.late
                if not scheduler.holds(Priority.ROLLOVER, partition):
                    scheduler.add(Priority.ROLLOVER, partition, self._rolling(partition), partial(
                        self._contain.partition_failed, partition, "rolling over"))
        scheduler.run(Priority.ROLLOVER, ROLLOVER_LATE_S if late else 0.0)

    def _rolling(self, partition: Partition) -> Steps[None]:
        """The steps of a rollover until it has to wait for a thread."""
        more = True
        while more and partition.log.roll_due:
            more = partition.roll.step(self._host.wall(self._host.now))
            job = partition.roll.take_job()
            if job is not None:
                self._host.in_thread(job.run, partial(self._rolled, partition, job),
                                          partial(self._roll_failed, partition, job))
            yield

    def _rolled(self, partition: Partition, job: Job, now: float) -> None:
        """A job of a rollover was done."""
        try:
            partition.roll.done(job, self._host.wall(now))
        except Exception as error:
            self._contain.partition_failed(partition, "after a job of its rollover", error)

    def _roll_failed(self, partition: Partition, job: Job, error: OSError, now: float) -> None:
        """A job of a rollover has failed: the file set stays as it is."""
        try:
            partition.roll.failed(job, error, self._host.wall(now))
        except Exception as mistake:
            self._contain.partition_failed(partition, "after a failed job of its rollover", mistake)

    # -- from time to time ------------------------------------------------------------------------------------------

    def write_sync_points(self, now: float) -> None:
        """A sync point in each partition."""
        wall = self._host.wall(now)
        for partition, replication in self.partitions.items():
            try:
                partition.sync_point(wall)
            except Exception as error:
                self._contain.partition_failed(partition, "its sync point", error)
            if replication is not None:
                self._replicate(partition, replication)
            self._sync(partition)

    def check_space(self, now: float) -> None:
        """Say whether a partition is about to be full."""
        for partition in self.partitions:
            try:
                partition.check_space(self._host.wall(now))
            except Exception as error:
                self._contain.told(f"Partition [{partition.partition_id}]: the check of its space", error)
