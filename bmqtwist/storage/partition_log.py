"""The log of one partition at this node: records join the tail, a turn's records go to the files by one door, `write`.

Every record has a position, the number of records this process has appended before it and one, and a PSN (lease,
sequence). Neither is ever given twice, and none is left out: a record that could not be written stays in the tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bmqtwist.storage.availability import Availability, WriterEvent, WriterState
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.gate import Gate
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import RECORD_BYTES, SyncPoint, pack_sync_point
from bmqtwist.storage.state import PartitionState
from bmqtwist.storage.store import PURGE_RESERVE_BYTES, SYNC_POINT_RESERVE_BYTES

NORMAL_RESERVE: Final = RECORD_BYTES + SYNC_POINT_RESERVE_BYTES + PURGE_RESERVE_BYTES
BEGIN_PERCENT = 70  # used part of a file at which a large partition begins to roll over

Mirror = Callable[[list[bytes], list[bytes], list[bytes]], None]


class Tail:
    """The end of a partition's files: where the next records go, and those that are not written yet.

    journal, data, qlist: the bytes to be written. *_end: bytes in use, these included. journal_limit, data_limit: up to
    where records are appended without a further check; below 0 every append is checked. large: they are written over several
    turns. dropped: messages whose payload leaves memory once it is written, since there are more than `cache_max` bytes.
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
        """Of messages."""
        return self.data_end - self.data_written

    def positions(self) -> tuple[int, int, int]:
        """Bytes of JOURNAL, DATA, QLIST in use."""
        return self.journal_end, self.data_end, self.qlist_end

    def clear(self) -> None:
        self.journal, self.data, self.qlist = [], [], []
        self.data_written = self.data_end


@dataclass(slots=True)
class Batch:
    """The records of one turn in order, as they went to the files: `first` is the position of the first of them.

    journal: records of 60 bytes. data: the parts of the DATA records of its MESSAGEs, one behind the other; qlist: the
    QLIST records of its CREATIONs and ADDITIONs.
    """

    first: int
    journal: list[bytes]
    data: list[bytes]
    qlist: list[bytes]

    def __init__(self, first: int, journal: list[bytes], data: list[bytes], qlist: list[bytes]) -> None:
        self.first, self.journal, self.data, self.qlist = first, journal, data, qlist


def joined(batches: list[Batch], records_max: int) -> list[Batch]:
    """The same records in fewer batches: those without messages join what follows, as long as a batch has no more than
    `records_max` records."""
    whole: list[Batch] = []
    for batch in batches:
        before = whole[-1] if whole else None
        if before is not None and not before.data and len(before.journal) + len(batch.journal) <= records_max:
            whole[-1] = Batch(before.first, before.journal + batch.journal, batch.data, before.qlist + batch.qlist)
        else:
            whole.append(batch)
    return whole


class PartitionLog:
    """Shared by the parts of a `storage.partition.Partition`.

    leading: this node gives out PSNs. primary_id: the node whose records these are. shared: other nodes wait for each record
    (a cluster of several). owed: appends one after the other the records that found no room when their state was changed.
    """

    def __init__(self, node_id: int, files: FileSets, state: PartitionState, cache_max: int) -> None:
        self.node_id = self.primary_id = node_id
        self.files, self.state, self.reports = files, state, files.reports
        self.leading, self.shared = True, False
        self.base = 0  # position = base + sequence
        self.wall = 0  # of the last turn, epoch seconds
        self.tail = Tail(files.sizes.data, cache_max)
        self.gate = Gate()
        self.availability = Availability()
        self.broken = False  # closed until a restart: nothing more is written
        self.owed: deque[Callable[[int], None]] = deque()
        self.keeps_batches = False  # for `take_batches`
        self.batches: list[Batch] = []
        self.roll_due = False  # `Rollover.step` has something to do
        self.mirror: Mirror | None = None  # writes each batch into the next file set, too
        sizes = files.sizes
        self._roll_at = tuple(size * BEGIN_PERCENT // 100 for size in (sizes.journal, sizes.data, sizes.qlist))
        self._unmarked = False  # records since the last sync point
        self._unwritable = False  # the last write has failed
        self.take_positions()

    def take_positions(self) -> None:
        """The tail begins where the current file set ends."""
        tail = self.tail
        tail.journal_end, tail.data_end, tail.qlist_end = self.files.current.positions()
        tail.data_written = tail.data_end

    # ---- what may be written -------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """Whether records are taken: not disabled by an operator, not full, no failed disk."""
        return self.availability.state is WriterState.OPEN

    def happens(self, event: WriterEvent, cause: str = "") -> None:
        self.availability.on(event, self.wall, cause)
        self.broken = self.availability.state is WriterState.CLOSED
        self.set_limit()

    def set_limit(self) -> None:
        """Hot paths compare one number: below 0 sends every append the slow way, which says why or pays what is owed."""
        free = self.available and self.leading and not self.owed
        self.tail.journal_limit = self.files.sizes.journal - NORMAL_RESERVE if free else -1

    def close(self, event: WriterEvent, error: BaseException | None = None) -> None:
        """Nothing more is taken or written until a restart."""
        self.happens(event, str(error or ""))
        if event is WriterEvent.SYNC_FAILS:
            self.reports.alarm("FILE_IO", f" cannot be synced: {error}. It is closed to producers; check the disk and"
                                          " restart.")

    # ---- writing -------------------------------------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        """A record made with the next sequence number joins the tail."""
        self.state.sequence += 1
        self.tail.journal.append(record)
        self.tail.journal_end += RECORD_BYTES

    def write(self, matters: bool = True) -> bool:
        """The one door of a batch; `matters` False if no effect can wait for what is in it."""
        tail = self.tail
        tail.large = False
        try:
            self.files.append(tail.journal, tail.data, tail.qlist)
        except OSError as error:
            if not self._unwritable:
                self._unwritable = True
                self.reports.alarm("FILE_IO",
                                   f" cannot be written: {error}. Producers are refused until a retry succeeds.")
                self.happens(WriterEvent.WRITE_FAILS, str(error))
            return False
        position = self.base + self.state.sequence
        if self.keeps_batches:
            self.batches.append(Batch(position - len(tail.journal) + 1, tail.journal, tail.data, tail.qlist))
        if self.mirror is not None:
            self.mirror(tail.journal, tail.data, tail.qlist)
        tail.clear()
        self.gate.wrote(position, matters or self.shared)
        self._unmarked = True
        if (tail.journal_end >= self._roll_at[0] or tail.data_end >= self._roll_at[1]
                or tail.qlist_end >= self._roll_at[2]):
            self.roll_due = True
        if self._unwritable:
            self._unwritable = False
            self.happens(WriterEvent.WRITTEN)
        for message in tail.dropped:
            self.state.drop_payload(message)
        tail.dropped.clear()
        if self.shared and not self.leading:
            self.gate.due = True
        return True

    def write_rest(self) -> bool:
        """Write what is in the tail, if anything is; False: it is there still."""
        return not self.tail.journal or self.write()

    def sync(self) -> bool:
        """Sync within this call; False: the log is closed, since what the disk holds is unknown."""
        try:
            self.files.sync()
        except OSError as error:
            self.close(WriterEvent.SYNC_FAILS, error)
            return False
        return True

    def take_batches(self) -> list[Batch]:
        """What was written since the last call, oldest first; nothing unless `keeps_batches`."""
        batches, self.batches = self.batches, []
        return batches

    # ---- sync points ---------------------------------------------------------------------------------------------

    def append_sync_point(self, kind: SyncPoint, wall: int) -> None:
        state, tail = self.state, self.tail
        self.append(pack_sync_point(state.sequence + 1, state.lease, wall, kind, self.node_id, tail.data_end,
                                    tail.qlist_end))

    def sync_point(self, wall: int, force: bool) -> None:
        """A REGULAR sync point if anything was written since the last one (the 1 s tick), or always with `force`."""
        tail = self.tail
        if not force and not self._unmarked and not tail.journal or self.broken or not self.state.lease:
            return
        if tail.journal_end + SYNC_POINT_RESERVE_BYTES > self.files.sizes.journal:
            return
        matters = bool(tail.journal)
        self.append_sync_point(SyncPoint.REGULAR, wall)
        if (force or not tail.large) and self.write(matters):  # that of a large batch goes out with it
            self._unmarked = False
            self.gate.due = True
