"""Log of one partition at this node: records are added to the tail; `write` writes the records of a turn to the files.

Every record has a position, counted from 1 over the records that this process has appended, and a PSN (lease, sequence).
Both are unique and without gaps: a record whose write failed stays in the tail. `partition.py` and `queue_records.py` add
records; `partition.py` writes them at the end of a turn. The files are in `fileset.py`, received records of a replica in
`replica.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bmqtwist import alarms
from bmqtwist.storage.availability import Availability, WriterEvent, WriterState
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.gate import Gate
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import RECORD_BYTES, SyncPoint, pack_sync_point
from bmqtwist.storage.state import PartitionState
from bmqtwist.storage.store import PURGE_RESERVE_BYTES, SYNC_POINT_RESERVE_BYTES

# After the last record of a member of several: damage of any one record leaves a sync point that shows the records before it
# to have been durable, or to be missing (`found_log.py`).
SYNC_POINTS: Final = 2
NORMAL_RESERVE: Final = RECORD_BYTES + SYNC_POINT_RESERVE_BYTES + PURGE_RESERVE_BYTES
ROLLOVER_BEGIN_PERCENT = 70  # used part of a file at which a large partition begins to roll over

Mirror = Callable[[list[bytes], list[bytes], list[bytes]], None]


class Tail:
    """End of a partition's files, with the unwritten records.

    journal, data, qlist: unwritten bytes. *_end: bytes in use, unwritten ones included. journal_limit, data_limit: offsets
    up to which records are appended without a further check; below 0 every append is checked. large: the batch is written
    over several turns. dropped: messages whose payload is freed after the write, as more than `cache_max` bytes are cached.
    """

    __slots__ = ("journal", "data", "qlist", "journal_end", "data_end", "qlist_end", "data_written", "journal_limit",
                 "data_limit", "large", "dropped", "cache_max")

    def __init__(self, data_limit: int, cache_max: int) -> None:
        self.journal, self.data, self.qlist = list[bytes](), list[bytes](), list[bytes]()
        self.journal_end = self.data_end = self.qlist_end = self.data_written = 0
        self.journal_limit, self.data_limit, self.cache_max = -1, data_limit, cache_max
        self.large = False
        self.dropped = list[Message]()

    @property
    def unwritten_bytes(self) -> int:
        """Unwritten bytes of DATA."""
        return self.data_end - self.data_written

    def positions(self) -> tuple[int, int, int]:
        """Return the bytes of JOURNAL, DATA, QLIST in use."""
        return self.journal_end, self.data_end, self.qlist_end

    def clear(self) -> None:
        self.journal, self.data, self.qlist = [], [], []
        self.data_written = self.data_end


@dataclass(slots=True)
class Batch:
    """Records of one turn in order, as written. `first`: position of the first record.

    journal: records of 60 bytes. data: parts of the DATA records of the MESSAGEs, in order; qlist: QLIST records of the
    CREATIONs and ADDITIONs.
    """

    first: int
    journal: list[bytes]
    data: list[bytes]
    qlist: list[bytes]

    def __init__(self, first: int, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        self.first, self.journal, self.data, self.qlist = first, journal, data, qlist


def merge_batches(batches: list[Batch], records_max: int) -> list[Batch]:
    """Merge each batch without messages with the batch after it, up to `records_max` records per batch."""
    whole: list[Batch] = []
    for batch in batches:
        before = whole[-1] if whole else None
        if before is not None and not before.data and len(before.journal) + len(batch.journal) <= records_max:
            whole[-1] = Batch(before.first, before.journal + batch.journal, batch.data, before.qlist + batch.qlist)
        else:
            whole.append(batch)
    return whole


class PartitionLog:
    """Log shared by the parts of a `storage.partition.Partition`.

    is_primary: this node is primary. primary_id: id of the primary. has_replicas: replicas wait for each record (a cluster
    of several nodes). pending_records: functions that append the pending records, oldest first.
    """

    def __init__(self, node_id: int, files: FileSets, state: PartitionState, cache_max: int) -> None:
        self.node_id = self.primary_id = node_id
        self.files, self.state, self.reports = files, state, files.reports
        self.is_primary, self.has_replicas = True, False
        self.base = 0  # position = base + sequence
        self.wall = 0  # of the last turn, epoch seconds
        self.tail = Tail(files.sizes.data, cache_max)
        self.gate = Gate()
        self.availability = Availability()
        self.closed = False  # closed until a restart
        self.pending_records: deque[Callable[[int], None]] = deque()
        self.retains_batches = False  # for `take_batches`
        self.batches: list[Batch] = []
        self.roll_due = False  # `Rollover.step` has work
        self.mirror: Mirror | None = None  # also writes each batch to the next file set
        sizes = files.sizes
        self._roll_at = tuple(size * ROLLOVER_BEGIN_PERCENT // 100 for size in (sizes.journal, sizes.data, sizes.qlist))
        self._sync_points_due = 0  # to write before the log is idle
        self._write_failing = False  # the last write failed
        self.reset_positions()

    def reset_positions(self) -> None:
        """Set the tail to the end of the current file set."""
        tail = self.tail
        tail.journal_end, tail.data_end, tail.qlist_end = self.files.current.positions()
        tail.data_written = tail.data_end

    # ---- availability --------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """True if records are taken: not disabled by an operator, not full, no failed disk."""
        return self.availability.state is WriterState.OPEN

    def on_event(self, event: WriterEvent, cause: str = "") -> None:
        self.availability.step(event, self.wall, cause)
        self.closed = self.availability.state is WriterState.CLOSED
        self.update_journal_limit()

    def update_journal_limit(self) -> None:
        """Set `Tail.journal_limit` from the availability: up to it, hot paths append without a check. Below 0 every append
        calls `Room.make_room`, which refuses it or appends pending records first."""
        free = self.available and self.is_primary and not self.pending_records
        self.tail.journal_limit = self.files.sizes.journal - NORMAL_RESERVE if free else -1

    def close(self, event: WriterEvent, error: BaseException | None = None) -> None:
        """Refuse all records and writes until a restart."""
        self.on_event(event, str(error or ""))
        if isinstance(error, OSError):
            self.reports.on_write_failed(error)
        if event is WriterEvent.SYNC_FAILS:
            self.reports.alarm(
                alarms.SYNC_FAILED,
                f" cannot be synced: {error}. It is closed to producers; check the disk and"
                " restart.")

    # ---- writing -------------------------------------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        """Add a record with the next sequence number to the tail."""
        self.state.sequence += 1
        self.tail.journal.append(record)
        self.tail.journal_end += RECORD_BYTES

    def write(self, awaited: bool = True) -> bool:
        """Write the tail as one batch; `awaited` False if no effect depends on its records. False if the write failed."""
        tail = self.tail
        tail.large = False
        try:
            self.files.append(tail.journal, tail.data, tail.qlist)
        except OSError as error:
            self.reports.on_write_failed(error)
            if not self._write_failing:
                self._write_failing = True
                self.reports.alarm(alarms.WRITE_FAILED,
                                   f" cannot be written: {error}. PUTs wait for another primary, or are refused until a "
                                   "retry succeeds.")
                self.on_event(WriterEvent.WRITE_FAILS, str(error))
            return False
        position = self.base + self.state.sequence
        if self.retains_batches:
            self.batches.append(Batch(position - len(tail.journal) + 1, tail.journal, tail.data, tail.qlist))
        if self.mirror is not None:
            self.mirror(tail.journal, tail.data, tail.qlist)
        tail.clear()
        self.gate.mark_written(position, awaited or self.has_replicas)
        self._sync_points_due = SYNC_POINTS if self.has_replicas else 1
        if (tail.journal_end >= self._roll_at[0] or tail.data_end >= self._roll_at[1]
                or tail.qlist_end >= self._roll_at[2]):
            self.roll_due = True
        if self._write_failing:
            self._write_failing = False
            self.on_event(WriterEvent.WRITTEN)
        for message in tail.dropped:
            self.state.drop_payload(message)
        tail.dropped.clear()
        if self.has_replicas and not self.is_primary:
            self.gate.sync_due = True
        return True

    def write_rest(self) -> bool:
        """Write the tail unless it is empty; False if the write failed."""
        return not self.tail.journal or self.write()

    def sync(self) -> bool:
        """Sync within this call; False if it failed and the log is closed, because the content of the disk is unknown."""
        try:
            self.files.sync()
        except OSError as error:
            self.close(WriterEvent.SYNC_FAILS, error)
            return False
        return True

    def take_batches(self) -> list[Batch]:
        """Return the batches written since the last call, oldest first; empty unless `retains_batches`."""
        batches, self.batches = self.batches, []
        return batches

    # ---- sync points ---------------------------------------------------------------------------------------------

    def append_sync_point(self, kind: SyncPoint, wall: int) -> None:
        state, tail = self.state, self.tail
        self.append(pack_sync_point(state.sequence + 1, state.lease, wall, kind, self.node_id, tail.data_end,
                                    tail.qlist_end))

    def write_sync_point(self, wall: int, force: bool) -> None:
        """Write a REGULAR sync point if one is due (1 s timer), or always with `force`."""
        tail, due = self.tail, self._sync_points_due
        if not force and not due and not tail.journal or self.closed or not self.state.lease:
            return
        if tail.journal_end + SYNC_POINT_RESERVE_BYTES > self.files.sizes.journal:
            return
        awaited = bool(tail.journal)
        self.append_sync_point(SyncPoint.REGULAR, wall)
        if (force or not tail.large) and self.write(awaited):  # the sync point of a large batch is written with it
            self._sync_points_due = (self._sync_points_due if awaited else max(1, due)) - 1
            self.gate.sync_due = True
