"""Journal records as objects to ask and to print; `storage/journal.py` decides which bytes are records."""

from __future__ import annotations

from collections.abc import Iterator

from bmqtwist.storage.journal import Entry, JournalScan
from bmqtwist.storage.records import (
    CONFIRM,
    DELETION,
    JOURNAL_OP,
    MAGIC,
    MESSAGE,
    QUEUE_OP,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    RecordType,
)
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

NO_KEY = b""  # of records that belong to no queue


class JournalRecord:
    """Any record. offset: bytes from the start of the file; wall: seconds since the epoch; flags: 12 header bits."""

    __slots__ = ("flags", "lease", "offset", "sequence", "type", "wall")
    queue_key = NO_KEY

    def __init__(self, entry: Entry) -> None:
        self.offset, head, self.lease, self.wall, _ = entry
        self.type, self.flags, self.sequence = head >> 60, head >> 48 & 0xFFF, head & SEQUENCE_MASK

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
        (_, _, _, high, compression, self.queue_key, self.data_dwords, self.guid, self.crc,
         _) = MESSAGE.unpack(_raw(entry))
        self.ref_count, self.compression = high << 12 | self.flags, compression & 7
        self.file_key = entry[4][7:12]  # always null so far, so the broker's parser steps over it


class ConfirmRecord(JournalRecord):
    """CONFIRM; flags are the reason."""

    __slots__ = ("app_key", "guid", "queue_key")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        _, _, _, self.queue_key, self.app_key, self.guid, _ = CONFIRM.unpack(_raw(entry))


class DeletionRecord(JournalRecord):
    """DELETION; flags are the reason."""

    __slots__ = ("guid", "queue_key")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        _, _, _, self.queue_key, self.guid, _ = DELETION.unpack(_raw(entry))


class QueueOpRecord(JournalRecord):
    """QUEUE_OP. qlist_words: offset of the QLIST record, in units of 4 bytes."""

    __slots__ = ("app_key", "op", "qlist_words", "queue_key", "start_lease", "start_sequence")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        (_, _, _, self.queue_key, self.app_key, self.op, self.qlist_words, self.start_sequence, self.start_lease,
         _) = QUEUE_OP.unpack(_raw(entry))


class JournalOpRecord(JournalRecord):
    """JOURNAL_OP; the inner PSN is that of the body. Positions in dwords and words."""

    __slots__ = ("data_dwords", "inner_lease", "inner_sequence", "kind", "node", "op", "qlist_words")

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        (_, _, _, self.kind, self.op, self.inner_sequence, self.node, self.inner_lease, self.data_dwords,
         self.qlist_words, _) = JOURNAL_OP.unpack(_raw(entry))


_TYPES: dict[int, type[JournalRecord]] = {1: MessageRecord, 2: ConfirmRecord, 3: DeletionRecord, 4: QueueOpRecord,
                                          5: JournalOpRecord}


def _raw(entry: Entry) -> bytes:
    return RECORD.pack(*entry[1:], MAGIC)


def view(entry: Entry) -> JournalRecord:
    """The record of an entry of a scan."""
    return _TYPES.get(entry[1] >> 60, JournalRecord)(entry)


def records(scan: JournalScan) -> Iterator[JournalRecord]:
    """All accepted records."""
    return map(view, scan)
