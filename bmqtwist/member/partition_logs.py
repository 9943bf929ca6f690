"""The logs of a cluster's partitions at this node: opened at the start, appended to, read anew after a cut or an image.

A log is read and cut in a thread; meanwhile the partition is *busy*, and records for it are ignored: they are sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bmqtwist.cluster.partition_events import Append, LogFailed, LogMoved, LogReady, PartitionInput, TakeImage
from bmqtwist.cluster.write_times import WriteTimes
from bmqtwist.errors import PeerError
from bmqtwist.loop.loop import Loop
from bmqtwist.member.cell import Cell
from bmqtwist.member.host import ReplicatedCluster
from bmqtwist.member.promises import Promises
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.found_log import FoundLog, RecoveryClock, find_log
from bmqtwist.storage.image import ImageFiles
from bmqtwist.storage.partition import Durability, PartitionUnavailable
from bmqtwist.storage.psn import Psn, RecordRun
from bmqtwist.storage.replay import RecordMismatch
from bmqtwist.storage.replica import ReplicatedPartition


class PartitionLogs:
    """`step(cell, now, input)`: an input for the machine of a partition; `replaced(cell)`: it has another log object."""

    def __init__(self, name: str, node_id: int, cluster: ReplicatedCluster, host: Loop,
                 step: Callable[[Cell, float, PartitionInput], None], replaced: Callable[[Cell], None]) -> None:
        self._name, self._node_id, self._cluster, self._host = name, node_id, cluster, host
        self._step, self._replaced = step, replaced
        self._durability: Durability = "group"
        self._cache_bytes = 0
        self._epoch = 0.0  # of the monotonic clock

    def open(self, files: list[FileSets], durability: Durability, cache_bytes: int, promises: Promises,
             now: float, wall: int) -> Iterator[ReplicatedPartition]:
        """Recover one partition after the other. OSError."""
        self._durability, self._cache_bytes, self._epoch = durability, cache_bytes, wall - now
        report = self._host.report
        for index, each in enumerate(files):
            found = find_log(each, self._cluster.queue_records(index), self._clock(now), index, wall)
            title = f"Cluster ({self._name}) Partition [{index}]"
            if found.doubtful:
                promises.doubt(index)  # before anything of the files changes
                what = ("its file set is damaged, and was put aside: the other nodes are asked for all of it" if found.lost
                        else f"its JOURNAL is damaged, {found.cut} B of it do not count: the other nodes are asked for them")
                report.alarm("RECOVERY", "%s", f"{title}: {what}")
            elif found.cut:
                report.warn(f"{title}: the last {found.cut} B of JOURNAL do not count: they were being written when the "
                            "node died")
            yield self._made(each, found)

    def _clock(self, now: float) -> RecoveryClock:
        return RecoveryClock(self._epoch, self._host.wall(now))

    def _made(self, files: FileSets, found: FoundLog) -> ReplicatedPartition:
        return ReplicatedPartition(self._node_id, files, found, self._durability, self._cache_bytes, self._epoch,
                                   self._host.wall(self._host.now))

    def append(self, cell: Cell, output: Append, wall: int) -> None:
        """Append records of another node."""
        try:
            cell.partition.append_run(output.run, output.behind, wall)
        except (PeerError, RecordMismatch, OSError) as error:
            cell.inputs.append(LogFailed(f"records are not taken: {error}"))
        self._host.performer.turn_due()

    def begin_lease(self, cell: Cell, lease: int, wall: int) -> None:
        """Append the first record of a lease of this node."""
        try:
            cell.partition.activate(lease, wall)
        except PartitionUnavailable as error:
            cell.inputs.append(LogFailed(str(error)))
            return
        cell.partition.keep_batches()
        cell.count_needed()
        cell.times = WriteTimes()
        cell.times.wrote(cell.written, self._host.now)
        cell.inputs.append(LogMoved())
        self._host.performer.turn_due()

    def take_image(self, cell: Cell, output: TakeImage, now: float) -> None:
        """Put a part of an image beside the log; the last one makes all of them the log."""
        part, wall, install = output.part, self._host.wall(now), None
        try:
            if part.number == 0:
                cell.image = ImageFiles(cell.partition, wall)
            if cell.image is None:
                raise OSError("its beginning is missing")
            cell.image.take(RecordRun(part.at, part.at, part.journal, part.data, part.qlist))
            if part.final:
                image, cell.image = cell.image, None
                install = image.complete(part.at, wall)
        except (PeerError, RecordMismatch, OSError) as error:
            cell.image = None
            cell.partition.files.abandon_roll()
            cell.inputs.append(LogFailed(f"an image is not taken: {error}"))
        if install is not None:
            self.replace(cell, None, now, install)

    def replace(self, cell: Cell, psn: Psn | None, now: float, install: Callable[[], None] | None = None) -> None:
        """Read the log anew: cut behind a record, or after `install` has brought an image. Until then it is busy."""
        if cell.busy:
            return
        old, index, wall, clock = cell.partition, cell.index, self._host.wall(now), self._clock(now)
        if psn is not None:
            self._host.report.info(f"{cell.machine.name}: what follows record {psn[0]}-{psn[1]} is cut off")
            old.log.write_rest()
        known, made = self._cluster.queue_records(index), list[ReplicatedPartition]()
        limit = old.cut_at(psn) if install is None else None
        cell.busy = True
        cell.images.clear()
        old.abandon(wall)

        def work() -> None:
            if install is not None:
                install()
            made.append(self._made(old.files, find_log(old.files, known, clock, index, wall, limit)))
        self._host.in_thread(work, partial(self._on_read, cell, made), partial(self._on_failed, cell))

    def release(self, cell: Cell, clean: bool, now: float) -> None:
        """This node leads the partition no longer: its log is used on, or read anew unless it is `clean`. Until queues have
        their unacknowledged PUTs from it, it is busy."""
        if self._cluster.retirement.reads_log(cell.index) and not cell.busy:
            cell.busy = True
            self._cluster.retirement.released(cell.index, partial(self._released, cell, clean))
        elif not clean:
            self.replace(cell, None, now)

    def _released(self, cell: Cell, clean: bool, now: float) -> None:
        cell.busy = False
        if clean:
            self._step(cell, now, LogReady())
        else:
            self.replace(cell, None, now)

    def _on_read(self, cell: Cell, made: list[ReplicatedPartition], now: float) -> None:
        cell.partition, cell.busy = made[0], False
        self._cluster.partitions[cell.index] = made[0]
        self._replaced(cell)
        self._step(cell, now, LogReady())

    def _on_failed(self, cell: Cell, error: OSError, now: float) -> None:
        cell.busy = False
        cell.partition.fail()
        self._step(cell, now, LogFailed(f"its files cannot be read: {error}"))
        self._step(cell, now, LogReady())
