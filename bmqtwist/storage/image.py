"""All that is live in a partition, on its way to a node that cannot be given records.

    ImageSource    all of it, as of one record, in parts
    ImageFiles     puts it beside the present files, which stay until it is complete

After a rollover that is what the rollover has copied, as it lies in the files, up to its sync point: with the records that
follow, which are sent as to any other node, that one's files become equal to those of the primary.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from bmqtwist.storage.exchange import READ_BYTES, FilesAhead, checked, records_of, run_from
from bmqtwist.storage.message import Message
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
    placed,
)
from bmqtwist.storage.replica import MESSAGE_RECORDS_MAX, ReplicatedPartition
from bmqtwist.storage.state import Live
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

_MESSAGE, _JOURNAL_OP = int(RecordType.MESSAGE), int(RecordType.JOURNAL_OP)


class ImageSource:
    """All that is live in a partition as of the end of its last rollover, or as of its last record if there was none, or
    none behind the record `behind`, in parts. The partition may go on; once it has moved to another file set, `OSError`
    (ESTALE).
    """

    def __init__(self, partition: ReplicatedPartition, behind: Psn = NO_PSN) -> None:
        if not partition.log.write_rest():
            raise OSError(errno.EIO, "its last records cannot be written")
        if partition.roll.moved is not None:
            partition.roll.moved.settle(1 << 62)
        self._files, self._set = partition.files, partition.files.current.base
        self._ahead = FilesAhead(self._files, self._files.current.data.end)
        base = partition.summary.base
        copied_to = partition.cut_at(base) if base > behind else None
        self.at = partition.summary.last if copied_to is None else base
        self._slices: Iterator[list[Live]] = partition.state.live.snapshot() if copied_to is None else iter(())
        self._items, self._next = list[Live](), 0  # of the present slice
        self._next_slice()
        self._copied_at, self._copied_to = JOURNAL_HEADER_BYTES, copied_to  # of the JOURNAL, its sync point included
        self.parts = 0  # so far

    def part(self) -> tuple[RecordRun, bool]:
        """The next one, and whether it is the last."""
        if self._files.current.base != self._set:
            raise OSError(errno.ESTALE, "the partition has rolled over")
        self.parts += 1
        return self._live_part() if self._copied_to is None else self._copied_part(self._copied_to)

    def _copied_part(self, end: int) -> tuple[RecordRun, bool]:
        wanted = min(end - self._copied_at, RECORD_BYTES * MESSAGE_RECORDS_MAX)
        journal = self._files.read_journal(self._copied_at, wanted)
        if len(journal) < wanted:
            raise OSError(errno.EIO, "JOURNAL is shorter than its records")
        run = run_from(self._ahead, journal, self.at, self._copied_at)
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
                content = self._ahead.read_data(item.data_offset * 8, length)
                if len(content) < length:
                    raise OSError(errno.EIO, "DATA is shorter than its records")
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

    def _next_slice(self) -> None:
        self._items, self._next = next(self._slices, []), 0


class ImageFiles:
    """The next file set of a partition, as it is filled with an image. OSError, PeerError: it is of no use."""

    def __init__(self, partition: ReplicatedPartition, wall: int) -> None:
        partition.roll.stop(wall)
        partition.log.roll_due = False
        self._files, self._node_id = partition.files, partition.log.node_id
        self._files.abandon_roll()
        self._files.begin_roll(wall)
        self._mark: int | None = None  # where the sync point is that came with the image

    def take(self, run: RecordRun) -> None:
        """One part, in order."""
        _, data_end, qlist_end = self._files.coming.positions()
        journal = []
        journal_end, self._mark = self._files.coming.positions()[0], None
        for record, belongs in records_of(run):
            head = int.from_bytes(record[:8], "big")
            journal.append(placed(record, head, data_end, qlist_end))
            if head >> TYPE_SHIFT == _MESSAGE:
                message = Message(b"", None, crc=int.from_bytes(record[52:56], "big"))
                checked(message, belongs)
                data_end += len(belongs)
            else:
                qlist_end += len(belongs)
                psn = int.from_bytes(record[8:12], "big"), head & SEQUENCE_MASK
                self._mark = journal_end if head >> TYPE_SHIFT == _JOURNAL_OP and psn == run.last else None
            journal_end += RECORD_BYTES
        self._files.coming.append(journal, [run.data], [run.qlist])
        if not self._files.sizes.hold(self._files.coming.positions()):
            raise OSError(errno.ENOSPC, "an image is larger than the files may be")

    def complete(self, at: Psn, wall: int) -> Callable[[], None]:
        """All parts are here. What makes them the current file set, for a thread: the old one goes to the archive."""
        mark, data, qlist = self._files.coming.positions()
        if self._mark is not None:
            mark = self._mark
        else:
            point = pack_sync_point(at[1], at[0], wall, SyncPoint.REGULAR, self._node_id, data, qlist)
            self._files.coming.append([point], [], [])
        return lambda: self._files.finish_roll(mark, damaged=False)

    def abandon(self) -> None:
        self._files.abandon_roll()
