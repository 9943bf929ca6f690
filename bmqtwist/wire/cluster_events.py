"""Data events between brokers as objects: STORAGE, PARTITION_SYNC, RECOVERY, REPLICATION_RECEIPT, CLUSTER_STATE.

As in `events.py` a decoder takes the body of one event and gives the good messages before the first bad one, with the
PeerError that ended it. Journal, DATA and QLIST records are carried as they are on disk and not looked into here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from bmqtwist.errors import PeerError
from bmqtwist.wire import ber
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.cluster_schema import ClusterMessage
from bmqtwist.wire.fast import (
    CLUSTER_STATE_HEADER,
    CLUSTER_STATE_HEADER_BYTES,
    CLUSTER_STATE_HEADER_WORDS,
    PAD4,
    RECEIPT,
    RECEIPT_BYTES,
    RECOVERY_HEADER,
    RECOVERY_HEADER_BYTES,
    STORAGE_HEADER,
    STORAGE_HEADER_BYTES,
    STORAGE_VERSION_AND_WORDS,
    WORDS_MASK,
    EventType,
    event_header,
)

JOURNAL_RECORD_BYTES = 60
_STORAGE_WORDS_MASK = (1 << 27) - 1
_CRC_BYTES = 4


class StorageType(IntEnum):
    """What a STORAGE message carries."""

    DATA = 1
    QLIST = 2
    CONFIRM = 3
    DELETION = 4
    JOURNAL_OP = 5
    QUEUE_OP = 6


class RecoveryFile(IntEnum):
    """Which file a RECOVERY chunk is of."""

    DATA = 1
    JOURNAL = 2
    QLIST = 3


class LedgerRecordType(IntEnum):
    """Kind of a record of the metadata log."""

    SNAPSHOT = 1
    UPDATE = 2
    COMMIT = 3
    ACK = 4


@dataclass(slots=True)
class StorageMessage:
    """One journal record (60 bytes) on its way to a replica, with the DATA or QLIST record that belongs to it.

    `journal_words`: where the record lies in the sender's journal, in words.
    """

    type: StorageType
    partition_id: int
    journal_words: int
    record: bytes
    payload: bytes = b""
    flags: int = 0


@dataclass(slots=True)
class RecoveryChunk:
    """A piece of a file, a multiple of four bytes; `digest`: its MD5."""

    file: RecoveryFile
    partition_id: int
    number: int
    digest: bytes
    data: bytes
    final: bool = False


@dataclass(slots=True)
class Receipt:
    """A replica holds everything of a partition up to this position."""

    partition_id: int
    sequence_number: int
    lease: int


@dataclass(slots=True)
class ClusterStateRecord:
    """A record of the metadata log; `timestamp`: seconds since the epoch."""

    type: LedgerRecordType
    term: int
    sequence_number: int
    timestamp: int
    message: ClusterMessage


def decode_storage(buffer: bytes, start: int, end: int) -> tuple[list[StorageMessage], PeerError | None]:
    """Messages of a STORAGE or PARTITION_SYNC event whose body is buffer[start:end]."""
    found: list[StorageMessage] = []
    pos = start
    while pos < end:
        if end - pos < STORAGE_HEADER_BYTES:
            return found, PeerError("message cut short", "STORAGE", pos)
        first, version, kind, partition_id, journal_words = STORAGE_HEADER.unpack_from(buffer, pos)
        stop = pos + (first & _STORAGE_WORDS_MASK) * 4
        record = pos + (version & 0xF) * 4
        payload = record + JOURNAL_RECORD_BYTES
        if version & 0xF < 3 or payload > stop or stop > end:
            return found, PeerError("sizes do not fit the event", "STORAGE", pos)
        if kind not in _STORAGE_TYPES:
            return found, PeerError(f"unknown type {kind}", "STORAGE", pos + 5)
        found.append(StorageMessage(_STORAGE_TYPES[kind], partition_id, journal_words, buffer[record:payload],
                                    buffer[payload:stop], first >> 27))
        pos = stop
    return found, None if found else PeerError("no messages", "STORAGE", start)


_STORAGE_TYPES = {int(each): each for each in StorageType}


def encode_storage(messages: Sequence[StorageMessage], kind: EventType = EventType.STORAGE) -> bytes:
    """One STORAGE or PARTITION_SYNC event."""
    parts: list[bytes] = []
    for each in messages:
        words = (STORAGE_HEADER_BYTES + len(each.record) + len(each.payload)) // 4
        parts += (STORAGE_HEADER.pack(each.flags << 27 | words, STORAGE_VERSION_AND_WORDS, each.type,
                                      each.partition_id, each.journal_words), each.record, each.payload)
    return _event(kind, parts)


def decode_recovery(buffer: bytes, start: int, end: int) -> tuple[list[RecoveryChunk], PeerError | None]:
    """Chunks of a RECOVERY event whose body is buffer[start:end]. Digests are not checked here."""
    found: list[RecoveryChunk] = []
    pos = start
    while pos < end:
        if end - pos < RECOVERY_HEADER_BYTES:
            return found, PeerError("message cut short", "RECOVERY", pos)
        first, _, sizes, partition_id, number, digest = RECOVERY_HEADER.unpack_from(buffer, pos)
        stop = pos + (first & WORDS_MASK) * 4
        data = pos + (sizes >> 4) * 4
        if sizes >> 4 < 7 or data > stop or stop > end:
            return found, PeerError("sizes do not fit the event", "RECOVERY", pos)
        if sizes & 0xF not in _RECOVERY_FILES:
            return found, PeerError(f"unknown file {sizes & 0xF}", "RECOVERY", pos + 5)
        final = bool(first >> 31)
        if data == stop and not final:
            return found, PeerError("empty chunk that is not the last", "RECOVERY", pos)
        found.append(RecoveryChunk(_RECOVERY_FILES[sizes & 0xF], partition_id, number, digest, buffer[data:stop],
                                   final))
        pos = stop
    return found, None if found else PeerError("no messages", "RECOVERY", start)


_RECOVERY_FILES = {int(each): each for each in RecoveryFile}


def encode_recovery(chunks: Iterable[RecoveryChunk]) -> bytes:
    """One RECOVERY event."""
    parts: list[bytes] = []
    for each in chunks:
        words = (RECOVERY_HEADER_BYTES + len(each.data)) // 4
        parts += (RECOVERY_HEADER.pack(each.final << 31 | words, 0, 7 << 4 | each.file, each.partition_id, each.number,
                                       each.digest), each.data)
    return _event(EventType.RECOVERY, parts)


def decode_receipt(buffer: bytes, start: int, end: int) -> tuple[list[Receipt], PeerError | None]:
    """The receipt of a REPLICATION_RECEIPT event whose body is buffer[start:end]; at most one."""
    if end - start < RECEIPT_BYTES:
        return [], PeerError("event cut short", "REPLICATION_RECEIPT", start)
    return [Receipt(*RECEIPT.unpack_from(buffer, start))], None


def encode_receipt(receipt: Receipt) -> bytes:
    """One REPLICATION_RECEIPT event."""
    body = RECEIPT.pack(receipt.partition_id, receipt.sequence_number, receipt.lease)
    return event_header(EventType.REPLICATION_RECEIPT, RECEIPT_BYTES) + body


def decode_cluster_state(buffer: bytes, start: int, end: int) -> tuple[list[ClusterStateRecord], PeerError | None]:
    """Records of a CLUSTER_STATE event whose body is buffer[start:end], or of a ledger file's records."""
    found: list[ClusterStateRecord] = []
    pos = start
    try:
        while pos < end:
            record, pos = read_cluster_state_record(buffer, pos, end)
            found.append(record)
    except PeerError as error:
        return found, error
    return found, None if found else PeerError("no records", "CLUSTER_STATE", start)


def read_cluster_state_record(buffer: bytes, pos: int, end: int) -> tuple[ClusterStateRecord, int]:
    """The record at `pos` and the position after it."""
    if end - pos < CLUSTER_STATE_HEADER_BYTES:
        raise PeerError("record cut short", "CLUSTER_STATE", pos)
    sizes, words, term, sequence_number, timestamp = CLUSTER_STATE_HEADER.unpack_from(buffer, pos)
    body = pos + (sizes >> 4) * 4
    stop = body + (words & WORDS_MASK) * 4
    if sizes >> 4 < CLUSTER_STATE_HEADER_WORDS or stop > end or stop - body <= _CRC_BYTES:
        raise PeerError("sizes do not fit", "CLUSTER_STATE", pos)
    kind = _LEDGER_TYPES.get(sizes & 0xF)
    if kind is None:
        raise PeerError(f"unknown type {sizes & 0xF}", "CLUSTER_STATE", pos)
    crc_at = stop - _CRC_BYTES
    if crc32c(buffer[pos:crc_at]) != int.from_bytes(buffer[crc_at:stop], "big"):
        raise PeerError("wrong checksum", "CLUSTER_STATE", crc_at)
    message = ber.decode(ClusterMessage, buffer[:crc_at], body)
    return ClusterStateRecord(kind, term, sequence_number, timestamp, message), stop


_LEDGER_TYPES = {int(each): each for each in LedgerRecordType}


def encode_cluster_state_record(record: ClusterStateRecord) -> bytes:
    """One record, as it is sent and as it is written to the ledger file."""
    raw = ber.encode(record.message)
    body = raw + PAD4[len(raw) & 3]
    words = (len(body) + _CRC_BYTES) // 4
    head = CLUSTER_STATE_HEADER.pack(CLUSTER_STATE_HEADER_WORDS << 4 | record.type, words, record.term,
                                     record.sequence_number, record.timestamp)
    return head + body + crc32c(head + body).to_bytes(_CRC_BYTES, "big")


def encode_cluster_state(records: Iterable[ClusterStateRecord]) -> bytes:
    """One CLUSTER_STATE event."""
    return _event(EventType.CLUSTER_STATE, [encode_cluster_state_record(record) for record in records])


def _event(kind: EventType, parts: list[bytes]) -> bytes:
    return b"".join((event_header(kind, sum(map(len, parts))), *parts))
