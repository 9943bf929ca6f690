"""Records exchanged between nodes: runs read from the files of the sender, and their application to the state of a replica.

    build_run     sender: reads JOURNAL records with their DATA and QLIST records, up to READ_BYTES for one message
    divide_run    sender: splits a run of a written batch by number of records
    records_of    receiver: checks a run and pairs its records
    Applier       receiver: applies each record to the `PartitionState`

Called by `replica.py` and `image.py`; recovery (`found_log.py`) uses `read_attachment`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from bmqtwist.errors import PeerError
from bmqtwist.storage.journal import Entry
from bmqtwist.storage.layout import MESSAGE_RECORD, QUEUE_OP_RECORD
from bmqtwist.storage.message import Message
from bmqtwist.storage.psn import Psn, RecordRun
from bmqtwist.storage.records import (
    DATA_HEADER,
    DATA_WORDS_MASK,
    FLAGS_MASK,
    FLAGS_SHIFT,
    MAGIC,
    QUEUE_RECORD_HEADER,
    QUEUE_RECORD_WORDS_MASK,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    TYPE_SHIFT,
    DeletionReason,
    QueueOp,
    RecordType,
    check_message,
    read_queue_record,
)
from bmqtwist.storage.replay import Apps, RecordMismatch, Replay, qlist_entry
from bmqtwist.storage.rollover import Rollover
from bmqtwist.storage.state import PartitionState, StoredQueue
from bmqtwist.storage.store import PartitionReader

_MESSAGE, _QUEUE_OP, _JOURNAL_OP = int(RecordType.MESSAGE), int(RecordType.QUEUE_OP), int(RecordType.JOURNAL_OP)
_DATA_AT = MESSAGE_RECORD.offset("data_dwords")
_CRC_AT = MESSAGE_RECORD.offset("crc")
_QLIST_AT = QUEUE_OP_RECORD.offset("qlist_words")
READ_AHEAD_BYTES = 1 << 16  # of DATA per read
READ_BYTES = 1 << 16  # per message to another node, of records read back from the files; one record may be larger
_WITH_QLIST = (QueueOp.CREATION, QueueOp.ADDITION)


class Applier(Replay):
    """Replay of the records received from a primary."""

    def __init__(self, state: PartitionState, roll: Rollover, begin_lease: Callable[[int], None], epoch: float) -> None:
        super().__init__(state, epoch)
        self._roll, self._begin_lease = roll, begin_lease
        self._attached, self._record = b"", b""
        self.wall = 0  # this node's clock, epoch seconds

    def apply(self, record: bytes, attached: bytes) -> None:
        """Apply a JOURNAL record with offsets of this node's files, and its DATA or QLIST record."""
        head, lease, wall, body, _ = RECORD.unpack(record)
        self._attached, self._record = attached, record
        self.run([(0, head, lease, wall, body)])

    def read_data(self, queue: StoredQueue, message: Message) -> int:
        """Read the DATA record received with the JOURNAL record."""
        return complete_message(message, self._attached)

    def read_queue_record(self, offset: int) -> tuple[str, bytes, Apps, bytes]:
        """Read the QLIST record received with the JOURNAL record."""
        return qlist_entry(self._attached)

    def arrival_time(self, message: Message) -> float:
        """Return the present time, rounded up by up to a second: the first node's clock may be wrong."""
        return self.wall + 1 - self.epoch

    def on_stored(self, queue: StoredQueue, message: Message) -> None:
        """Add the GUID to the history; the application data is not cached."""
        super().on_stored(queue, message)
        self.state.cached_bytes -= message.size

    def apply_journal_op(self, entry: Entry) -> None:
        """Begin a newer lease with its first sync point."""
        if entry[2] > self.state.lease:
            self._begin_lease(entry[2])

    def apply_deletion(self, entry: Entry) -> None:
        """Report the DELETION to a copy in progress. Remove the GUID from the history if the message had no quorum, because
        its producer may post it again."""
        copy = self._roll.copy
        key, guid = self._record[23:28], self._record[28:44]
        queue = self.state.queues.get(key)
        message = queue.messages.get(guid) if queue is not None else None
        if copy is not None and message is not None:
            copy.on_deletion(message.live_key, entry[1] & SEQUENCE_MASK, self._record)
        super().apply_deletion(entry)
        if queue is not None and entry[1] >> FLAGS_SHIFT & FLAGS_MASK == DeletionReason.NO_SC_QUORUM:
            queue.history.remove({guid})

    def apply_queue_deletion(self, queue: StoredQueue | None, key: bytes) -> None:
        copy = self._roll.copy
        if copy is not None and queue is not None and queue.live_keys:
            sequence = int.from_bytes(self._record[:8], "big") & SEQUENCE_MASK
            copy.on_deletion(queue.live_keys[0], sequence, self._record)
        super().apply_queue_deletion(queue, key)


def records_of(run: RecordRun) -> list[tuple[bytes, bytes]]:
    """Return the JOURNAL records of a run, each with its DATA or QLIST record. PeerError if they do not fit."""
    found, data_at, qlist_at = list[tuple[bytes, bytes]](), 0, 0
    journal, data, qlist = run.journal, run.data, run.qlist
    if len(journal) % RECORD_BYTES:
        raise PeerError("no whole records", "journal", len(journal))
    for at in range(0, len(journal), RECORD_BYTES):
        record = journal[at:at + RECORD_BYTES]
        kind, attached = record[0] >> 4, b""
        if kind == _MESSAGE:
            if data_at + DATA_HEADER.size > len(data):
                raise PeerError("a DATA record is missing", "data", data_at)
            size = (DATA_HEADER.unpack_from(data, data_at)[0] & DATA_WORDS_MASK) << 2
            attached = data[data_at:data_at + size]
            data_at += size
            if size <= DATA_HEADER.size or data_at > len(data):
                raise PeerError("a DATA record is cut short", "data", data_at)
        elif kind == _QUEUE_OP and record[_QLIST_AT - 1] in _WITH_QLIST:
            if qlist_at + QUEUE_RECORD_HEADER.size > len(qlist):
                raise PeerError("a QLIST record is missing", "qlist", qlist_at)
            size = (QUEUE_RECORD_HEADER.unpack_from(qlist, qlist_at)[2] & QUEUE_RECORD_WORDS_MASK) << 2
            attached = qlist[qlist_at:qlist_at + size]
            qlist_at += size
            if not size or qlist_at > len(qlist):
                raise PeerError("a QLIST record is cut short", "qlist", qlist_at)
        found.append((record, attached))
    if data_at != len(data) or qlist_at != len(qlist):
        raise PeerError("more DATA or QLIST than records", "data", data_at)
    return found


def run_after(run: RecordRun, after: Psn) -> RecordRun:
    """Return the records of a run after `after`, where `RecordRun.continues(after)`."""
    return run if run.previous == after else _run_of(after, records_of(run)[after[1] - run.previous[1]:])


def divide_run(run: RecordRun, records_max: int) -> list[RecordRun]:
    """Split a run into runs of at most `records_max` records."""
    if len(run.journal) <= RECORD_BYTES * records_max:
        return [run]
    records, previous, found = records_of(run), run.previous, list[RecordRun]()
    for at in range(0, len(records), records_max):
        found.append(_run_of(previous, records[at:at + records_max]))
        previous = found[-1].last
    return found


def _run_of(previous: Psn, records: list[tuple[bytes, bytes]]) -> RecordRun:
    """Build a run of records, each given with its DATA or QLIST record."""
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for record, attached in records:
        parts[record[0] >> 4 == _MESSAGE].append(attached)
    head, lease, _, _, _ = RECORD.unpack(records[-1][0])
    return RecordRun(previous, (lease, head & SEQUENCE_MASK), b"".join([record for record, _ in records]),
                     b"".join(parts[True]), b"".join(parts[False]))


def complete_message(message: Message, data: bytes) -> int:
    """Complete a message from its DATA record; return its size, bytes. RecordMismatch if the record is damaged."""
    try:
        good = check_message(memoryview(data), 0, message)
        if good != len(data):
            raise ValueError("its DATA record has another size")
    except ValueError as error:
        raise RecordMismatch(f"the data of message {message.guid.hex().upper()}: {error}") from None
    return good


class ReadAhead:
    """Reader of DATA and QLIST with read-ahead of DATA, which is mostly in journal order. It never reads beyond `end`:
    reading unwritten preallocated blocks makes the kernel create pages of zeros, megabytes at a time."""

    def __init__(self, files: PartitionReader, end: int) -> None:
        self._files, self._end, self._start, self._data = files, end, 0, b""

    def read_qlist(self, offset: int, size: int) -> bytes:
        return self._files.read_qlist(offset, size)

    def read_data(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of DATA."""
        at = offset - self._start
        if at < 0 or at + size > len(self._data):
            wanted = max(size, min(READ_AHEAD_BYTES, self._end - offset))
            self._start, self._data, at = offset, self._files.read_data(offset, wanted), 0
        return self._data[at:at + size]


def read_attachment(files: ReadAhead, record: bytes, head: int) -> bytes:
    """Read the DATA or QLIST record of a JOURNAL record of the same files; b"" if it has none. OSError if it is damaged."""
    kind = head >> TYPE_SHIFT
    if kind == _MESSAGE:
        offset = int.from_bytes(record[_DATA_AT:_DATA_AT + 4], "big") * 8
        header = files.read_data(offset, DATA_HEADER.size)
        size = (DATA_HEADER.unpack(header)[0] & DATA_WORDS_MASK) << 2 if len(header) == DATA_HEADER.size else 0
        data = files.read_data(offset, size)
        if size <= DATA_HEADER.size or len(data) != size:
            raise OSError(errno.EIO, f"DATA holds no record at offset {offset}")
        try:
            complete_message(Message(b"", None, crc=int.from_bytes(record[_CRC_AT:_CRC_AT + 4], "big")), data)
        except RecordMismatch as error:
            raise OSError(errno.EIO, f"DATA at offset {offset}: {error}") from None
        return data
    if kind == _QUEUE_OP and record[_QLIST_AT - 1] in _WITH_QLIST:
        offset = int.from_bytes(record[_QLIST_AT:_QLIST_AT + 4], "big") * 4
        entry = read_queue_record(files.read_qlist, offset)
        if entry is None:
            raise OSError(errno.EIO, f"QLIST holds no record at offset {offset}")
        return entry
    return b""


def build_run(files: ReadAhead, journal: bytes, after: Psn, start: int) -> RecordRun:
    """Return the first records of `journal` (read from offset `start`) that fit in one message to another node. OSError."""
    last, end, data, qlist, size = after, 0, list[bytes](), list[bytes](), 0
    for at in range(0, len(journal) // RECORD_BYTES * RECORD_BYTES, RECORD_BYTES):
        record = journal[at:at + RECORD_BYTES]
        head: int
        lease: int
        head, lease, _, _, magic = RECORD.unpack(record)
        if magic != MAGIC:
            raise OSError(errno.EIO, f"JOURNAL holds no record at offset {start + at}")
        attached = read_attachment(files, record, head)
        if end and size + len(attached) > READ_BYTES:
            break
        (data if head >> TYPE_SHIFT == _MESSAGE else qlist).append(attached)
        last, end = (lease, head & SEQUENCE_MASK), at + RECORD_BYTES
        size += RECORD_BYTES + len(attached)
    return RecordRun(after, last, journal[:end], b"".join(data), b"".join(qlist))
