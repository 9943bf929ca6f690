"""Partitions of a cluster of several nodes at one of them: state machine, log, and transfers to replicas.

`PartitionLogs` opens logs at the start, appends to them, and reads them again in a thread after a cut or an image. Meanwhile
the partition is *busy*: it ignores records, which the primary repeats. `Feeding` sends a replica the records that it lacks,
or an image of all live records. Recent records are sent from memory at once; older ones are read from the files, one
message every PAUSE_S. `storage.replica` limits the size of a message.

Called by `partition_runner.py`, which performs the outputs of the partition's machine with it.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from bmqtwist import alarms
from bmqtwist.cluster.partition_events import (
    Append,
    ImageLost,
    LogAdvanced,
    LogFailed,
    LogReady,
    PartitionInput,
    PartitionMessage,
    Records,
    ReplicaReceipt,
    SendCompleted,
    SendFailed,
    SendImagePart,
    SendRecords,
    StoreImagePart,
    encode_partition_message,
)
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.cluster.write_times import WriteTimes
from bmqtwist.errors import PeerError
from bmqtwist.loop.loop import Loop, Timers
from bmqtwist.member.interfaces import ReplicatedCluster
from bmqtwist.member.promises import Promises
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import Report
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.found_log import FoundLog, RecoveryClock, find_log
from bmqtwist.storage.image import ImageFiles, ImageSource
from bmqtwist.storage.partition import Durability, PartitionUnavailable
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn, RecordRun
from bmqtwist.storage.replay import RecordMismatch
from bmqtwist.storage.replica import ReplicatedPartition
from bmqtwist.storage.slot_file import Doubt
from bmqtwist.wire.cluster_schema import ImagePart

REREAD_S = 2.0  # from a failed attempt to read a log again to the next one
PAUSE_S = 0.001  # after a message with records that were read from files


class HostedPartition:
    """One partition at this node: state machine, log and transfers in progress; `cluster.partition_events.LogView` of its
    machine."""

    def __init__(self, partition: ReplicatedPartition) -> None:
        self.partition = partition
        self.machine: PartitionMachine
        self.inputs: deque[PartitionInput] = deque()
        self.stepping = self.busy = False
        self.delays_records = False  # a timer is set that sends delayed records
        self.acked_early = False  # an early acknowledgement has come since the last receipt
        self.announced_commit = NO_PSN  # a timer is set that notifies replicas of this commit
        self.image: ImageFiles | None = None  # being received
        self.write_times = WriteTimes()  # of records that this node writes as primary
        self.images: dict[int, ImageSource] = {}  # being sent, by node
        self.unreadable = NO_PSN  # a record up to this one could not be read for another node

    @property
    def index(self) -> int:
        """The id of the partition."""
        return self.partition.partition_id

    @property
    def summary(self) -> LogSummary:
        return self.partition.summary

    @property
    def written(self) -> Psn:
        return self.partition.collected_psn

    @property
    def durable(self) -> Psn:
        return self.partition.durable_psn

    def can_send_after(self, after: Psn) -> bool:
        return self.partition.can_send_after(after)

    @property
    def broken(self) -> bool:
        return self.partition.log.closed

    def is_urgent(self, message: PartitionMessage) -> bool:
        """Return whether a message must leave in this turn. A receipt need not after an early acknowledgement, if another
        replica's receipt completes the majority."""
        if not isinstance(message, ReplicaReceipt) or not self.acked_early:
            return True
        self.acked_early = False
        return len(self.machine.connected_nodes) < 2 or self.machine.leads

    def update_pair_commits(self) -> None:
        """Update, as primary, whether two copies of a record commit it."""
        standing = self.machine.standing
        self.partition.copies.pair_commits = max(standing.majority, standing.replication_factor) <= 2


class PartitionLogs:
    """The logs of one cluster's partitions. `step(hosted, now, input)`: an input for the machine of a partition;
    `replaced(hosted)`: the partition has another log object."""

    def __init__(self, name: str, node_id: int, cluster: ReplicatedCluster, loop: Loop,
                 step: Callable[[HostedPartition, float, PartitionInput], None],
                 replaced: Callable[[HostedPartition], None]) -> None:
        self._name, self._node_id, self._cluster, self._loop = name, node_id, cluster, loop
        self._step, self._replaced = step, replaced
        self._durability: Durability = "group"
        self._cache_bytes = 0
        self._epoch = 0.0  # wall clock when the monotonic clock was 0, seconds

    def open(self, files: list[FileSets], durability: Durability, cache_bytes: int, promises: Promises,
             now: float, wall: int) -> Iterator[ReplicatedPartition]:
        """Recover the partitions in order; raises OSError."""
        self._durability, self._cache_bytes, self._epoch = durability, cache_bytes, wall - now
        report = self._loop.report
        for index, each in enumerate(files):
            found = find_log(each, self._cluster.queue_records(index), self._clock(now), index, wall)
            title = f"Cluster ({self._name}) Partition [{index}]"
            if found.doubtful:
                promises.mark_doubtful(index, Doubt.LOST if found.set_damaged else Doubt.TAIL)  # before the files change
                damage = (
                    "its file set is damaged and was archived: all records are fetched from the other nodes"
                    if found.set_damaged
                    else f"its JOURNAL is damaged, {found.cut_bytes} B of it are ignored and fetched from the other nodes")
                report.alarm(alarms.REPLICA_DAMAGED, "%s", f"{title}: {damage}")
            elif found.cut_bytes:
                report.warn(f"{title}: the last {found.cut_bytes} B of JOURNAL are no complete records and are cut off; the "
                            "primary sends the records that this node lacks")
            yield self._make_partition(each, found)

    def _clock(self, now: float) -> RecoveryClock:
        return RecoveryClock(self._epoch, self._loop.wall(now))

    def _make_partition(self, files: FileSets, found: FoundLog) -> ReplicatedPartition:
        return ReplicatedPartition(self._node_id, files, found, self._durability, self._cache_bytes, self._epoch,
                                   self._loop.wall(self._loop.now))

    def append(self, hosted: HostedPartition, output: Append, wall: int) -> None:
        """Append records of another node."""
        try:
            hosted.partition.append_run(output.run, output.after, wall)
        except (PeerError, RecordMismatch) as error:
            hosted.inputs.append(LogFailed(f"records of the primary cannot be appended: {error}. Compare the copies of both "
                                           "nodes with `bmq storage compare`"))
        except OSError as error:
            hosted.inputs.append(LogFailed(f"records cannot be appended: {error}. Check space, permissions and disk of "
                                           "`location`; this node fetches the records as soon as it can write"))
        self._loop.performer.request_turn()

    def begin_lease(self, hosted: HostedPartition, lease: int, wall: int) -> None:
        """Append the first record of a lease of this node."""
        try:
            hosted.partition.activate(lease, wall)
        except PartitionUnavailable as error:
            hosted.inputs.append(LogFailed(str(error)))
            return
        hosted.partition.collect_runs()
        hosted.update_pair_commits()
        hosted.write_times = WriteTimes()
        hosted.write_times.add(hosted.written, self._loop.now)
        hosted.inputs.append(LogAdvanced())
        self._loop.performer.request_turn()

    def store_image_part(self, hosted: HostedPartition, output: StoreImagePart, now: float) -> None:
        """Store a part of an image beside the log; the last part replaces the log."""
        part, wall, install = output.part, self._loop.wall(now), None
        try:
            if part.number == 0:
                hosted.image = ImageFiles(hosted.partition, wall)
            if hosted.image is None:
                raise OSError("its beginning is missing")
            hosted.image.write_part(RecordRun(part.at, part.at, part.journal, part.data, part.qlist))
            if part.final:
                image, hosted.image = hosted.image, None
                install = image.complete(part.at, wall)
        except (PeerError, RecordMismatch, OSError) as error:
            hosted.image = None
            hosted.partition.files.discard_next()
            hosted.inputs.append(LogFailed(f"an image cannot be stored: {error}"))
        if install is not None:
            self.reread(hosted, None, now, install)

    def reread(self, hosted: HostedPartition, psn: Psn | None, now: float,
               install: Callable[[], None] | None = None) -> None:
        """Read the log again in a thread, cut after `psn`, or with the image that `install` installs; busy until then."""
        if hosted.busy:
            return
        old, index, wall, clock = hosted.partition, hosted.index, self._loop.wall(now), self._clock(now)
        if psn is not None:
            self._loop.report.info(f"{hosted.machine.name}: records after {psn[0]}-{psn[1]} are cut off")
            old.log.write_rest()
        known, made = self._cluster.queue_records(index), list[ReplicatedPartition]()
        limit = old.journal_end_at(psn) if install is None else None
        hosted.busy = True
        hosted.images.clear()
        old.abandon(wall)

        def work() -> None:
            if install is not None:
                install()
            found = find_log(old.files, known, clock, index, wall, limit)
            try:
                made.append(self._make_partition(old.files, found))
            except PartitionUnavailable as error:  # the files cannot be copied now
                raise OSError(errno.EIO, str(error)) from error
        done = partial(self._on_reread, hosted, made)
        if install is not None:
            self._loop.run_in_thread(work, done, partial(self._on_install_failed, hosted))
        else:
            self._loop.run_in_thread(work, done, partial(self._on_reread_failed, hosted, work, done))

    def follow(self, hosted: HostedPartition, clean: bool, now: float) -> None:
        """Use the log of a former primary as a replica's; it is read again unless `clean`. The partition is busy until
        retired queues have read their unacknowledged PUTs from the log."""
        if self._cluster.retirement.reads_log(hosted.index) and not hosted.busy:
            hosted.busy = True
            self._cluster.retirement.call_when_log_read(hosted.index, partial(self._on_log_read, hosted, clean))
        elif not clean:
            self.reread(hosted, None, now)

    def _on_log_read(self, hosted: HostedPartition, clean: bool, now: float) -> None:
        hosted.busy = False
        if clean:
            self._step(hosted, now, LogReady())
        else:
            self.reread(hosted, None, now)

    def _on_reread(self, hosted: HostedPartition, made: list[ReplicatedPartition], now: float) -> None:
        hosted.partition, hosted.busy = made[0], False
        self._cluster.partitions[hosted.index] = made[0]
        self._replaced(hosted)
        self._step(hosted, now, LogReady())

    def _on_reread_failed(self, hosted: HostedPartition, work: Callable[[], None], done: Callable[[float], None],
                          error: OSError, now: float) -> None:
        """Read the log again later: the disk is full or read-only, for example. The partition stays busy."""
        hosted.partition.files.reports.on_write_failed(error)
        self._step(hosted, now, LogFailed(f"its files cannot be read: {error}"))
        failed = partial(self._on_reread_failed, hosted, work, done)
        self._loop.timers.at(now + REREAD_S, lambda now: self._loop.run_in_thread(work, done, failed))

    def _on_install_failed(self, hosted: HostedPartition, error: OSError, now: float) -> None:
        hosted.busy = False
        hosted.partition.on_exception()
        self._step(hosted, now, LogFailed(f"its files cannot be read: {error}"))
        self._step(hosted, now, LogReady())


class Feeding:
    """Records and images for replicas. `node_id`: this node's; `step(hosted, now, input)`: an input for a machine."""

    def __init__(self, node_id: int, links: ClusterLinks, timers: Timers, report: Report,
                 step: Callable[[HostedPartition, float, PartitionInput], None]) -> None:
        self._node_id, self._links, self._timers, self._report, self._step = node_id, links, timers, report, step
        self._encoded: tuple[RecordRun | None, Psn, bytes] = (None, NO_PSN, b"")  # the last event with records

    def send_records(self, hosted: HostedPartition, output: SendRecords, now: float) -> None:
        """Send a node the next records after `output.after`."""
        recent = hosted.partition.recent_run(output.after)
        try:
            run = recent or hosted.partition.read_run(output.after)
        except OSError as error:
            self._on_read_failed(hosted, output.node_id, f"node {self._links.name(output.node_id)} gets an image, since "
                                                         f"records that it lacks cannot be read: {error}")
            return
        if run is None:
            hosted.inputs.append(SendCompleted(output.node_id, output.after, 0))
            return
        machine = hosted.machine
        message = Records(self._node_id, machine.lease, machine.committed, run)
        if self._encoded[0] is not run or self._encoded[1] != machine.committed:
            self._encoded = run, machine.committed, encode_partition_message(hosted.index, message)
        self._links.send(output.node_id, self._encoded[2])  # usually the same bytes for all replicas
        fed = SendCompleted(output.node_id, run.last, run.size)
        if recent is not None:
            hosted.inputs.append(fed)
        else:
            self._continue_later(hosted, fed, now)

    def send_image(self, hosted: HostedPartition, output: SendImagePart, now: float) -> None:
        """Send a node the next part of an image."""
        node_id, name = output.node_id, self._links.name(output.node_id)
        try:
            if output.number == 0:
                hosted.images[node_id] = ImageSource(hosted.partition, max(hosted.unreadable, output.ends_after))
                self._report.info(f"{hosted.machine.name}: node {name} gets an image of all live records")
            source = hosted.images.get(node_id)
            if source is None:
                raise OSError(errno.ESTALE, "the transfer was cancelled")
            run, final = source.next_part()
        except OSError as error:
            hosted.images.pop(node_id, None)
            if error.errno == errno.ESTALE:
                hosted.inputs.append(ImageLost(node_id))
            else:
                self._on_read_failed(hosted, node_id, f"an image cannot be made for node {name}: {error}")
            return
        if final:
            del hosted.images[node_id]
        part = ImagePart(self._node_id, hosted.machine.lease, output.number, source.at, final, run.journal, run.data,
                         run.qlist)
        self._links.send(node_id, encode_partition_message(hosted.index, part))
        self._continue_later(hosted, SendCompleted(node_id, None, run.size, final), now)

    def _on_read_failed(self, hosted: HostedPartition, node_id: int, reason: str) -> None:
        hosted.unreadable = hosted.summary.last
        hosted.inputs.append(SendFailed(node_id, reason))

    def _continue_later(self, hosted: HostedPartition, fed: SendCompleted, now: float) -> None:
        target = hosted.machine.targets.by_node.get(fed.node_id)

        def resume(now: float) -> None:
            if hosted.machine.targets.by_node.get(fed.node_id) is target:  # else the transfer was restarted
                self._step(hosted, now, fed)
        self._timers.at(now + PAUSE_S, resume)
