"""Records of the metadata log as objects: the body of CLUSTER_STATE events, and what the ledger file holds.

As in `events.py` a decoder takes the body of one event and gives the good records before the first bad one, with the
PeerError that ended it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from bmqtwist.errors import PeerError
from bmqtwist.wire import ber, layout
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.cluster_schema import ClusterMessage
from bmqtwist.wire.fast import PAD4

CLUSTER_STATE_HEADER_BYTES = layout.CLUSTER_STATE_HEADER.size
_CLUSTER_STATE = layout.CLUSTER_STATE_HEADER.struct  # header words and type; body words; term; sequence number; time
_LEDGER_HEADER_WORDS_SHIFT = layout.CLUSTER_STATE_HEADER.shift("header_words")
_LEDGER_TYPE_MASK = layout.CLUSTER_STATE_HEADER.mask("type")
_LEDGER_BODY_WORDS_MASK = layout.CLUSTER_STATE_HEADER.mask("body_words")
_CRC_BYTES = 4


class LedgerRecordType(IntEnum):
    """Kind of a record of the metadata log."""

    SNAPSHOT = 1
    UPDATE = 2
    COMMIT = 3
    ACK = 4


@dataclass(slots=True)
class ClusterStateRecord:
    """A record of the metadata log; `timestamp`: seconds since the epoch."""

    type: LedgerRecordType
    term: int
    sequence_number: int
    timestamp: int
    message: ClusterMessage


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
        raise PeerError("record header cut short", "CLUSTER_STATE", pos)
    sizes, words, term, sequence_number, timestamp = _CLUSTER_STATE.unpack_from(buffer, pos)
    header_words = sizes >> _LEDGER_HEADER_WORDS_SHIFT
    body = pos + header_words * 4
    stop = body + (words & _LEDGER_BODY_WORDS_MASK) * 4
    if stop > end:
        raise PeerError("record cut short", "CLUSTER_STATE", pos)
    if header_words < layout.CLUSTER_STATE_HEADER.words or stop - body <= _CRC_BYTES:
        raise PeerError("sizes do not fit", "CLUSTER_STATE", pos)
    kind = _LEDGER_TYPES.get(sizes & _LEDGER_TYPE_MASK)
    if kind is None:
        raise PeerError(f"unknown type {sizes & _LEDGER_TYPE_MASK}", "CLUSTER_STATE", pos)
    crc_at = stop - _CRC_BYTES
    record = buffer[pos:crc_at]
    if crc32c(record) != int.from_bytes(buffer[crc_at:stop], "big"):
        raise PeerError("wrong checksum", "CLUSTER_STATE", crc_at)
    try:
        message = ber.decode(ClusterMessage, record, body - pos)
    except PeerError as error:
        raise PeerError(error.reason, error.field, pos + error.offset) from None
    return ClusterStateRecord(kind, term, sequence_number, timestamp, message), stop


_LEDGER_TYPES = {int(each): each for each in LedgerRecordType}


def encode_cluster_state_record(record: ClusterStateRecord) -> bytes:
    """One record, as it is sent and as it is written to the ledger file."""
    raw = ber.encode(record.message)
    body = raw + PAD4[len(raw) & 3]
    words = (len(body) + _CRC_BYTES) // 4
    sizes = layout.CLUSTER_STATE_HEADER.words << _LEDGER_HEADER_WORDS_SHIFT | record.type
    head = _CLUSTER_STATE.pack(sizes, words, record.term, record.sequence_number, record.timestamp)
    return head + body + crc32c(head + body).to_bytes(_CRC_BYTES, "big")
