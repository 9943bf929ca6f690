"""Data events of the original's brokers as objects: STORAGE, PARTITION_SYNC, RECOVERY, REPLICATION_RECEIPT, CLUSTER_STATE.

Brokers of this product replicate with other messages; only recordings of the original contain these. Journal, DATA and
QLIST records in them have the format of the files, and are not decoded here. Used by tests of `wire` and by the fuzz tests;
events of clients are in `data_events.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from bmqtwist.errors import PeerError
from bmqtwist.wire import layout
from bmqtwist.wire.cluster_schema import (
    ClusterStateRecord,
    LedgerRecordType,
    decode_cluster_state,
    encode_cluster_state_record,
    read_cluster_state_record,
)
from bmqtwist.wire.declare import Layout, number, raw, skip
from bmqtwist.wire.fast import EventType, event_header

__all__ = ["ClusterStateRecord", "LedgerRecordType", "Receipt", "RecoveryChunk", "RecoveryFile", "StorageMessage",
           "StorageType", "decode_cluster_state", "decode_receipt", "decode_recovery", "decode_storage",
           "encode_cluster_state", "encode_cluster_state_record", "encode_receipt", "encode_recovery", "encode_storage",
           "read_cluster_state_record"]

# flags: 1 RECEIPT_REQUESTED; words: header included; version: of the storage, 1; header_words: 3; journal_words: place of
# the record in the journal
STORAGE_HEADER = Layout(
    number(flags=5, words=27),
    number(_reserved=2, version=2, header_words=4),
    number(type=8),
    number(partition_id=16),
    number(journal_words=32),
)

# final: the last chunk of its file; words: header included; header_words: 7; file: 1 data, 2 journal, 3 qlist; digest: MD5
# of the chunk
RECOVERY_HEADER = Layout(
    number(final=1, _reserved=3, words=28),
    skip(1),
    number(header_words=4, file=4),
    number(partition_id=16),
    number(number=32),
    raw(digest=16),
)

JOURNAL_RECORD_BYTES = 60
_STORAGE = STORAGE_HEADER.struct  # flags and words; version and header words; type; partition; journal words
_STORAGE_FLAGS_SHIFT = STORAGE_HEADER.shift("flags")
_STORAGE_WORDS_MASK = STORAGE_HEADER.mask("words")
_STORAGE_HEADER_WORDS_MASK = STORAGE_HEADER.mask("header_words")
_STORAGE_VERSION_AND_WORDS = STORAGE_HEADER.word(version=1, header_words=STORAGE_HEADER.words)
_RECEIPT = layout.RECEIPT.struct


class StorageType(IntEnum):
    """Type of the record in a STORAGE message."""

    DATA = 1
    QLIST = 2
    CONFIRM = 3
    DELETION = 4
    JOURNAL_OP = 5
    QUEUE_OP = 6


class RecoveryFile(IntEnum):
    """File of a RECOVERY chunk."""

    DATA = 1
    JOURNAL = 2
    QLIST = 3


@dataclass(slots=True)
class StorageMessage:
    """A replicated journal record (60 bytes), with its DATA or QLIST record.

    `journal_words`: offset of the record in the sender's journal, in words.
    """

    type: StorageType
    partition_id: int
    journal_words: int
    record: bytes
    payload: bytes = b""
    flags: int = 0


@dataclass(slots=True)
class RecoveryChunk:
    """A part of a file, a multiple of four bytes; `digest`: MD5 of the part."""

    file: RecoveryFile
    partition_id: int
    number: int
    digest: bytes
    data: bytes
    final: bool = False


@dataclass(slots=True)
class Receipt:
    """Position up to which a replica has all records of a partition."""

    partition_id: int
    sequence_number: int
    lease: int


def decode_storage(buffer: bytes, start: int, end: int) -> tuple[list[StorageMessage], PeerError | None]:
    """Decode a STORAGE or PARTITION_SYNC event whose body is buffer[start:end]; return messages and error."""
    found: list[StorageMessage] = []
    pos = start
    while pos < end:
        if end - pos < STORAGE_HEADER.size:
            return found, PeerError("message cut short", "STORAGE", pos)
        first, version, kind, partition_id, journal_words = _STORAGE.unpack_from(buffer, pos)
        stop = pos + (first & _STORAGE_WORDS_MASK) * 4
        header_words = version & _STORAGE_HEADER_WORDS_MASK
        record = pos + header_words * 4
        payload = record + JOURNAL_RECORD_BYTES
        if header_words < STORAGE_HEADER.words or payload > stop or stop > end:
            return found, PeerError("sizes do not fit the event", "STORAGE", pos)
        if kind not in _STORAGE_TYPES:
            return found, PeerError(f"unknown type {kind}", "STORAGE", pos + 5)
        found.append(StorageMessage(_STORAGE_TYPES[kind], partition_id, journal_words, buffer[record:payload],
                                    buffer[payload:stop], first >> _STORAGE_FLAGS_SHIFT))
        pos = stop
    return found, None if found else PeerError("no messages", "STORAGE", start)


_STORAGE_TYPES = {int(each): each for each in StorageType}


def encode_storage(messages: Sequence[StorageMessage], kind: EventType = EventType.STORAGE) -> bytes:
    """Encode a STORAGE or PARTITION_SYNC event."""
    parts: list[bytes] = []
    for each in messages:
        words = (STORAGE_HEADER.size + len(each.record) + len(each.payload)) // 4
        parts += (_STORAGE.pack(each.flags << _STORAGE_FLAGS_SHIFT | words, _STORAGE_VERSION_AND_WORDS, each.type,
                                each.partition_id, each.journal_words), each.record, each.payload)
    return _event(kind, parts)


def decode_recovery(buffer: bytes, start: int, end: int) -> tuple[list[RecoveryChunk], PeerError | None]:
    """Decode a RECOVERY event whose body is buffer[start:end], without a check of digests; return chunks and error."""
    found: list[RecoveryChunk] = []
    pos = start
    while pos < end:
        if end - pos < RECOVERY_HEADER.size:
            return found, PeerError("message cut short", "RECOVERY", pos)
        header = RECOVERY_HEADER.parse(buffer[pos:pos + RECOVERY_HEADER.size])
        data, stop = pos + header.header_words * 4, pos + header.words * 4
        if header.header_words < RECOVERY_HEADER.words or data > stop or stop > end:
            return found, PeerError("sizes do not fit the event", "RECOVERY", pos)
        if header.file not in _RECOVERY_FILES:
            return found, PeerError(f"unknown file {header.file}", "RECOVERY", pos + RECOVERY_HEADER.offset("file"))
        if data == stop and not header.final:
            return found, PeerError("empty chunk that is not the last", "RECOVERY", pos)
        found.append(RecoveryChunk(_RECOVERY_FILES[header.file], header.partition_id, header.number, header.digest,
                                   buffer[data:stop], bool(header.final)))
        pos = stop
    return found, None if found else PeerError("no messages", "RECOVERY", start)


_RECOVERY_FILES = {int(each): each for each in RecoveryFile}


def encode_recovery(chunks: Iterable[RecoveryChunk]) -> bytes:
    """Encode a RECOVERY event."""
    parts: list[bytes] = []
    for each in chunks:
        words = (RECOVERY_HEADER.size + len(each.data)) // 4
        parts += (RECOVERY_HEADER.build(
            final=each.final, words=words, header_words=RECOVERY_HEADER.words, file=each.file,
            partition_id=each.partition_id, number=each.number, digest=each.digest), each.data)
    return _event(EventType.RECOVERY, parts)


def decode_receipt(buffer: bytes, start: int, end: int) -> tuple[list[Receipt], PeerError | None]:
    """Decode the receipt of a REPLICATION_RECEIPT event whose body is buffer[start:end]; return at most one, and error."""
    if end - start < _RECEIPT.size:
        return [], PeerError("event cut short", "REPLICATION_RECEIPT", start)
    return [Receipt(*_RECEIPT.unpack_from(buffer, start))], None


def encode_receipt(receipt: Receipt) -> bytes:
    """Encode a REPLICATION_RECEIPT event."""
    body = _RECEIPT.pack(receipt.partition_id, receipt.sequence_number, receipt.lease)
    return event_header(EventType.REPLICATION_RECEIPT, len(body)) + body


def encode_cluster_state(records: Iterable[ClusterStateRecord]) -> bytes:
    """Encode a CLUSTER_STATE event."""
    return _event(EventType.CLUSTER_STATE, [encode_cluster_state_record(record) for record in records])


def _event(kind: EventType, parts: list[bytes]) -> bytes:
    return b"".join((event_header(kind, sum(map(len, parts))), *parts))
