"""Journal records as objects to ask and to print; `storage/journal.py` decides which bytes are records."""

from __future__ import annotations

from collections.abc import Iterator

from bmqtwist.storage.journal import Entry, JournalScan
from bmqtwist.storage.layout import MESSAGE_RECORD, RECORD_HEADER
from bmqtwist.storage.records import (
    COMPRESSION_MASK,
    CONFIRM_BODY,
    DELETION_BODY,
    FLAGS_MASK,
    FLAGS_SHIFT,
    JOURNAL_OP_BODY,
    MESSAGE_BODY,
    QUEUE_OP_BODY,
    RECORD_BYTES,
    REF_COUNT_LOW_BITS,
    SEQUENCE_MASK,
    TYPE_SHIFT,
    RecordType,
)
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

NO_KEY = b""  # of records that belong to no queue
_FILE_KEY = slice(MESSAGE_RECORD.offset("file_key") - RECORD_HEADER.size,
                  MESSAGE_RECORD.offset("data_dwords") - RECORD_HEADER.size)  # within the body of a MESSAGE


class JournalRecord:
    """Any record. offset: bytes from the start of the file; wall: seconds since the epoch; flags: 12 header bits."""

    __slots__ = ("flags", "lease", "offset", "sequence", "type", "wall")
    queue_key = NO_KEY

    def __init__(self, entry: Entry) -> None:
        self.offset, head, self.lease, self.wall, _ = entry
        self.type, self.flags, self.sequence = head >> TYPE_SHIFT, head >> FLAGS_SHIFT & FLAGS_MASK, head & SEQUENCE_MASK

    @property
    def index(self) -> int:
        """Number of the record in its file, from 0."""
        return (self.offset - JOURNAL_HEADER_BYTES) // RECORD_BYTES

    @property
    def psn(self) -> tuple[int, int]:
        """(lease, sequence)."""
        return self.lease, self.sequence

    @property
    def type_name(self) -> str:
        """As it is printed."""
        return RecordType(self.type).name if self.type in _TYPES else f"UNKNOWN ({self.type})"


class MessageRecord(JournalRecord):
    """MESSAGE. data_dwords: offset of the DATA record, in units of 8 bytes."""

    __slots__ = ("compression", "crc", "data_dwords", "file_key", "guid", "queue_key", "ref_count")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        body = entry[4]
        high, compression, self.queue_key, self.data_dwords, self.guid, self.crc = MESSAGE_BODY.unpack(body)
        self.ref_count, self.compression = high << REF_COUNT_LOW_BITS | self.flags, compression & COMPRESSION_MASK
        self.file_key = body[_FILE_KEY]  # always null so far, so the struct steps over it


class ConfirmRecord(JournalRecord):
    """CONFIRM; flags are the reason."""

    __slots__ = ("app_key", "guid", "queue_key")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.queue_key, self.app_key, self.guid = CONFIRM_BODY.unpack(entry[4])


class DeletionRecord(JournalRecord):
    """DELETION; flags are the reason."""

    __slots__ = ("guid", "queue_key")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.queue_key, self.guid = DELETION_BODY.unpack(entry[4])


class QueueOpRecord(JournalRecord):
    """QUEUE_OP. qlist_words: offset of the QLIST record, in units of 4 bytes."""

    __slots__ = ("app_key", "op", "qlist_words", "queue_key", "start_lease", "start_sequence")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        (self.queue_key, self.app_key, self.op, self.qlist_words, self.start_sequence,
         self.start_lease) = QUEUE_OP_BODY.unpack(entry[4])


class JournalOpRecord(JournalRecord):
    """JOURNAL_OP; the inner PSN is that of the body. Positions in dwords and words."""

    __slots__ = ("data_dwords", "inner_lease", "inner_sequence", "kind", "node", "op", "qlist_words")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        (self.kind, self.op, self.inner_sequence, self.node, self.inner_lease, self.data_dwords,
         self.qlist_words) = JOURNAL_OP_BODY.unpack(entry[4])


_TYPES: dict[int, type[JournalRecord]] = {
    RecordType.MESSAGE: MessageRecord, RecordType.CONFIRM: ConfirmRecord, RecordType.DELETION: DeletionRecord,
    RecordType.QUEUE_OP: QueueOpRecord, RecordType.JOURNAL_OP: JournalOpRecord}


def view(entry: Entry) -> JournalRecord:
    """The record of an entry of a scan."""
    return _TYPES.get(entry[1] >> TYPE_SHIFT, JournalRecord)(entry)


def records(scan: JournalScan) -> Iterator[JournalRecord]:
    """All accepted records."""
    return map(view, scan)
