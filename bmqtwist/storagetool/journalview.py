"""Journal records, decoded for tools: their attributes, and the names and values that are printed, in order.

Used by the storage tool, `bmq tail` and the console (`view/storage_files.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum

from bmqtwist.ids import NULL_KEY
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
    SYNC_POINT_OP,
    TYPE_SHIFT,
    DeletionReason,
    QueueOp,
    RecordType,
    SyncPoint,
)
from bmqtwist.storage.recovery import KnownQueue
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

Fields = list[tuple[str, object]]

MESSAGE, CONFIRM, DELETION, QUEUE_OP, JOURNAL_OP = RecordType
NO_KEY = b""  # queue key of records of no queue
NULL_TEXT = "** NULL **"
_FILE_KEY = slice(MESSAGE_RECORD.offset("file_key") - RECORD_HEADER.size,
                  MESSAGE_RECORD.offset("data_dwords") - RECORD_HEADER.size)  # within the body of a MESSAGE
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX = 253402300799  # the last second of the year 9999


class JournalRecord:
    """A record of any type, with the attributes of its type; `queue_key` and `guid` are always set.

    offset: bytes from the start of the file. wall: seconds since the epoch. flags: 12 header bits, the reason of a CONFIRM
    or DELETION. data_dwords: offset of the DATA record, or the end of DATA, in units of 8 bytes. qlist_words: the same
    for QLIST, in units of 4 bytes. kind: of a sync point. inner_*: the PSN in the body of a JOURNAL_OP.
    """

    __slots__ = ("app_key", "compression", "crc", "data_dwords", "file_key", "flags", "guid", "inner_lease",
                 "inner_sequence", "kind", "lease", "node", "offset", "op", "qlist_words", "queue_key", "ref_count",
                 "sequence", "start_lease", "start_sequence", "type", "wall")
    app_key: bytes
    crc: int
    data_dwords: int
    inner_lease: int
    inner_sequence: int
    op: int
    qlist_words: int

    def __init__(self, entry: Entry) -> None:
        self.offset, head, self.lease, self.wall, body = entry
        self.type, self.flags, self.sequence = head >> TYPE_SHIFT, head >> FLAGS_SHIFT & FLAGS_MASK, head & SEQUENCE_MASK
        self.queue_key, self.guid = NO_KEY, b""
        if self.type == MESSAGE:
            high, compression, self.queue_key, self.data_dwords, self.guid, self.crc = MESSAGE_BODY.unpack(body)
            self.ref_count, self.compression = high << REF_COUNT_LOW_BITS | self.flags, compression & COMPRESSION_MASK
            self.file_key = body[_FILE_KEY]  # always null, so the struct skips it
        elif self.type == CONFIRM:
            self.queue_key, self.app_key, self.guid = CONFIRM_BODY.unpack(body)
        elif self.type == DELETION:
            self.queue_key, self.guid = DELETION_BODY.unpack(body)
        elif self.type == QUEUE_OP:
            (self.queue_key, self.app_key, self.op, self.qlist_words, self.start_sequence,
             self.start_lease) = QUEUE_OP_BODY.unpack(body)
        elif self.type == JOURNAL_OP:
            (self.kind, self.op, self.inner_sequence, self.node, self.inner_lease, self.data_dwords,
             self.qlist_words) = JOURNAL_OP_BODY.unpack(body)

    @property
    def index(self) -> int:
        """Number of the record in its file, from 0."""
        return (self.offset - JOURNAL_HEADER_BYTES) // RECORD_BYTES

    @property
    def psn(self) -> tuple[int, int]:
        return self.lease, self.sequence

    @property
    def type_name(self) -> str:
        """Printed name of the type."""
        return name_of(RecordType, self.type)

    @property
    def is_sync_point(self) -> bool:
        """True for a JOURNAL_OP of op SYNCPOINT."""
        return self.type == JOURNAL_OP and self.op == SYNC_POINT_OP

    @property
    def is_listed(self) -> bool:
        """True for a QUEUE_OP with a QLIST record: a CREATION or ADDITION."""
        return self.type == QUEUE_OP and self.op in (QueueOp.CREATION, QueueOp.ADDITION)


def records(scan: JournalScan) -> Iterator[JournalRecord]:
    return map(JournalRecord, scan)


def name_of(kind: type[IntEnum], value: int) -> str:
    """Return the printed name of a value."""
    try:
        return kind(value).name
    except ValueError:
        return f"UNKNOWN ({value})"


def timestamp(wall: int) -> str:
    """Format epoch seconds as `29OCT2024_14:01:24.000000`, UTC."""
    if not 0 <= wall <= _SECONDS_MAX:
        return f"** INVALID ({wall}) **"
    when = _EPOCH + timedelta(seconds=wall)
    return f"{when.day:02}{_MONTHS[when.month - 1]}{when.year:04}_{when:%H:%M:%S}.000000"


def hex_key(key: bytes) -> str:
    """Format a key or GUID in hexadecimal digits."""
    return key.hex().upper()


def app_id_of(queue: KnownQueue | None, app_key: bytes) -> str:
    """Return the appId of a key among the present apps of the queue."""
    names = [app_id for app_id, key in queue.apps.items() if key == app_key] if queue and app_key != NULL_KEY else []
    return names[0] if names else NULL_TEXT


def record_fields(record: JournalRecord, queues: Mapping[bytes, KnownQueue]) -> Fields:
    """Return the fields of one journal record, with URIs and appIds if the ledger (`queues`) has them."""
    found: Fields = [
        ("RecordType", record.type_name), ("Index", record.index), ("Offset", record.offset),
        ("PrimaryLeaseId", record.lease), ("SequenceNumber", record.sequence),
        ("Timestamp", timestamp(record.wall)), ("Epoch", record.wall),
    ]
    queue = queues.get(record.queue_key)
    if record.queue_key:
        found.append(("QueueKey", hex_key(record.queue_key)))
        if queue is not None:
            found.append(("QueueUri", queue.uri))
    if record.type in (CONFIRM, QUEUE_OP):
        found.append(("AppKey", hex_key(record.app_key)))
        if queue is not None:
            found.append(("AppId", app_id_of(queue, record.app_key)))
    guid = ("GUID", hex_key(record.guid))
    if record.type == MESSAGE:
        found += [("FileKey", hex_key(record.file_key)), ("RefCount", record.ref_count),
                  ("MsgOffsetDwords", record.data_dwords), guid, ("Crc32c", record.crc)]
    elif record.type == CONFIRM:
        found.append(guid)
    elif record.type == DELETION:
        found += [("DeletionFlag", name_of(DeletionReason, record.flags)), guid]
    elif record.type == QUEUE_OP:
        found.append(("QueueOpType", name_of(QueueOp, record.op)))
        if record.is_listed:
            found.append(("QLIST OffsetWords", record.qlist_words))
    elif record.type == JOURNAL_OP:
        found += [("JournalOpType", "SYNCPOINT" if record.is_sync_point else f"UNKNOWN ({record.op})"),
                  ("SyncPointType", name_of(SyncPoint, record.kind)), ("SyncPtPrimaryLeaseId", record.inner_lease),
                  ("SyncPtSequenceNumber", record.inner_sequence), ("PrimaryNodeId", record.node),
                  ("DataFileOffsetDwords", record.data_dwords)]
    return found
