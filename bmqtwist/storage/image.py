"""Image of a partition: all its live records, sent to a replica that lacks too much to receive records one by one.

    ImageSource    reads the live records as of one record, in parts
    ImageFiles     writes them to a new file set; the current one stays until the image is complete

After a rollover the image is the copied part of the files, up to its sync point. With the records that follow, which are
sent as usual, the replica's files become equal to those of the primary.

Called by `member/partition_logs.py` at both ends. A replica that lacks few records receives them by `replica.py`. The
size of a part is READ_BYTES in `exchange.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from bmqtwist.storage.exchange import READ_BYTES, ReadAhead, build_run, complete_message, records_of
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PayloadDamaged
from bmqtwist.storage.payloads import is_intact
from bmqtwist.storage.psn import NO_PSN, Psn, RecordRun
from bmqtwist.storage.records import (
    DATA_HEADER,
    RECORD_BYTES,
    SEQUENCE_MASK,
    TYPE_SHIFT,
    RecordType,
    SyncPoint,
    data_record_bytes,
    pack_message_record,
    pack_sync_point,
    with_offsets,
)
from bmqtwist.storage.replica import MESSAGE_RECORDS_MAX, ReplicatedPartition
from bmqtwist.storage.state import Live
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

_MESSAGE, _JOURNAL_OP = int(RecordType.MESSAGE), int(RecordType.JOURNAL_OP)


class ImageSource:
    """Live records of a partition as of the end of its last rollover, in parts; as of its last record if the rollover ended
    at or before the record `after`. The partition may take records meanwhile; after its next rollover, `next_part` raises
    OSError (ESTALE).
    """

    def __init__(self, partition: ReplicatedPartition, after: Psn = NO_PSN) -> None:
        if not partition.log.write_rest():
            raise OSError(errno.EIO, "its last records cannot be written")
        if partition.roll.relocation is not None:
            partition.roll.relocation.update(1 << 62)
        self._partition = partition
        self._files, self._set = partition.files, partition.files.current.base
        self._reader = ReadAhead(self._files, self._files.current.data.end)
        base = partition.summary.base
        copied_to = partition.journal_end_at(base) if base > after else None
        self.at = partition.summary.last if copied_to is None else base
        self._slices: Iterator[list[Live]] = partition.state.live.snapshot() if copied_to is None else iter(())
        self._items, self._next = list[Live](), 0  # of the current slice
        self._next_slice()
        self._copied_at, self._copied_to = JOURNAL_HEADER_BYTES, copied_to  # JOURNAL offsets, the sync point included
        self.parts = 0  # returned so far

    def next_part(self) -> tuple[RecordRun, bool]:
        """Return the next part, and whether it is the last."""
        if self._files.current.base != self._set:
            raise OSError(errno.ESTALE, "the partition has rolled over")
        self.parts += 1
        return self._live_part() if self._copied_to is None else self._copied_part(self._copied_to)

    def _copied_part(self, end: int) -> tuple[RecordRun, bool]:
        wanted = min(end - self._copied_at, RECORD_BYTES * MESSAGE_RECORDS_MAX)
        journal = self._files.read_journal(self._copied_at, wanted)
        if len(journal) < wanted:
            raise OSError(errno.EIO, "JOURNAL is shorter than its records")
        try:
            run = build_run(self._reader, journal, self.at, self._copied_at)
        except OSError:
            self._partition.find_damage(journal)
            raise
        self._copied_at += len(run.journal)
        return RecordRun(self.at, self.at, run.journal, run.data, run.qlist), self._copied_at == end

    def _live_part(self) -> tuple[RecordRun, bool]:
        journal, data, qlist, size = list[bytes](), list[bytes](), list[bytes](), 0
        while self._next < len(self._items) and len(journal) < MESSAGE_RECORDS_MAX:
            item = self._items[self._next]
            if isinstance(item, Message):
                length = data_record_bytes(DATA_HEADER.size + len(item.options) + item.size)
                if journal and size + length > READ_BYTES:
                    break
                content = self._reader.read_data(item.data_offset * 8, length)
                if item.live_key >= 0 and not is_intact(content, item):
                    content = self._read_again(item)
                journal.append(pack_message_record(item.sequence, item.lease, item.wall, item.queue_key, item.data_offset,
                                                   item))
                data.append(content)
                size += length
            elif isinstance(item, tuple):
                journal.append(item[0])
                qlist.append(item[1])
                size += len(item[1])
            else:
                journal.append(item)
            size += RECORD_BYTES
            self._next += 1
        if self._next == len(self._items):
            self._next_slice()
        return (RecordRun(self.at, self.at, b"".join(journal), b"".join(data), b"".join(qlist)),
                self._next == len(self._items))

    def _read_again(self, message: Message) -> bytes:
        """Read a damaged record again, which begins its repair."""
        try:
            return self._partition.payloads.read_record(message)
        except PayloadDamaged as error:
            raise OSError(errno.EIO, str(error)) from None

    def _next_slice(self) -> None:
        self._items, self._next = next(self._slices, []), 0


class ImageFiles:
    """The next file set of a replica while it receives an image. OSError, PeerError: the image must be abandoned."""

    def __init__(self, partition: ReplicatedPartition, wall: int) -> None:
        partition.roll.stop(wall)
        partition.log.roll_due = False
        self._files, self._node_id = partition.files, partition.log.node_id
        self._files.discard_next()
        self._files.create_next(wall)
        self._mark: int | None = None  # JOURNAL offset of the image's own sync point

    def write_part(self, run: RecordRun) -> None:
        """Write one part; parts arrive in order."""
        _, data_end, qlist_end = self._files.next_set.positions()
        journal = []
        journal_end, self._mark = self._files.next_set.positions()[0], None
        for record, attached in records_of(run):
            head = int.from_bytes(record[:8], "big")
            journal.append(with_offsets(record, head, data_end, qlist_end))
            if head >> TYPE_SHIFT == _MESSAGE:
                message = Message(b"", None, crc=int.from_bytes(record[52:56], "big"))
                complete_message(message, attached)
                data_end += len(attached)
            else:
                qlist_end += len(attached)
                psn = int.from_bytes(record[8:12], "big"), head & SEQUENCE_MASK
                self._mark = journal_end if head >> TYPE_SHIFT == _JOURNAL_OP and psn == run.last else None
            journal_end += RECORD_BYTES
        self._files.next_set.append(journal, [run.data], [run.qlist])
        if not self._files.sizes.fits(self._files.next_set.positions()):
            raise OSError(errno.ENOSPC, "the image is larger than the configured file sizes")

    def complete(self, at: Psn, wall: int) -> Callable[[], None]:
        """Complete the image after its last part; return a function for a thread that makes it the current file set."""
        mark, data, qlist = self._files.next_set.positions()
        if self._mark is not None:
            mark = self._mark
        else:
            point = pack_sync_point(at[1], at[0], wall, SyncPoint.REGULAR, self._node_id, data, qlist)
            self._files.next_set.append([point], [], [])
        return lambda: self._files.complete_rollover(mark, damaged=False)

    def abandon(self) -> None:
        self._files.discard_next()
