"""Precompiled packers and parsers of the storage files; tests hold them equal to the drawings of `layout.py`.

A journal record's first eight bytes are read as one number, the *head*: type in the top 4 bits, 12 bits of flags,
48 bits of sequence number.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

MAGIC = 0x2A724563  # "*rEc", ends every journal record
QLIST_MAGIC = b"qUrI"
RECORD_BYTES = 60
SEQUENCE_MASK = (1 << 48) - 1
REF_COUNT_MAX = (1 << 20) - 1


class RecordType(IntEnum):
    """Top 4 bits of a journal record."""

    UNDEFINED = 0
    MESSAGE = 1
    CONFIRM = 2
    DELETION = 3
    QUEUE_OP = 4
    JOURNAL_OP = 5


class ConfirmReason(IntEnum):
    """Why an app is done with a message."""

    CONFIRMED = 0
    REJECTED = 1
    AUTO_CONFIRMED = 2


class DeletionReason(IntEnum):
    """Why a message is gone."""

    NONE = 0
    IMPLICIT_CONFIRM = 1
    TTL_EXPIRATION = 2
    NO_SC_QUORUM = 4


class QueueOp(IntEnum):
    """What a QUEUE_OP record does."""

    UNDEFINED = 0
    PURGE = 1
    CREATION = 2
    DELETION = 3
    ADDITION = 4


class SyncPoint(IntEnum):
    """Kind of a sync point."""

    UNDEFINED = 0
    REGULAR = 1
    ROLLOVER = 2


class FileType(IntEnum):
    """Low 7 bits of byte 9 of a file header."""

    UNDEFINED = 0
    DATA = 1
    JOURNAL = 2
    QLIST = 3


SYNC_POINT_OP = 2

MESSAGE_HEAD, CONFIRM_HEAD, DELETION_HEAD, QUEUE_OP_HEAD, JOURNAL_OP_HEAD = (kind << 60 for kind in range(1, 6))

# head, lease, wall, refCount bits 19..12, compression, queueKey, (fileKey), offset in dwords, GUID, CRC, magic
MESSAGE = Struct(">QIQBB5s5xI16sII")
# head, lease, wall, queueKey, appKey, GUID, magic
CONFIRM = Struct(">QIQ2x5s5s16s8xI")
# head, lease, wall, queueKey, GUID, magic
DELETION = Struct(">QIQ3x5s16s12xI")
# head, lease, wall, queueKey, appKey, op, offset in words, start sequence, start lease, magic
QUEUE_OP = Struct(">QIQ2x5s5siIQI4xI")
# head, lease, wall, sync point type, op, sequence, node, lease, DATA in dwords, QLIST in words, magic
JOURNAL_OP = Struct(">QIQ3xBiQiIII4xI")
# head, lease, wall, body, magic: any record
RECORD = Struct(">QIQ36sI")
# words: header 3 bits, message 29; options 24 bits, flags 8; schema wire id; reserved
DATA_HEADER = Struct(">IIHH")
FILE_HEADER = Struct(">4s4sBB10xi8x")
JOURNAL_FILE_HEADER = Struct(">BB2xQ")
DATA_FILE_HEADER = Struct(">Bx5sx")
QLIST_FILE_HEADER = Struct(">B3x")
QUEUE_RECORD_HEADER = Struct(">HHI12x")
APP_ID_HEADER = Struct(">2xH")

FILE_MAGIC = b"!bmq", b"BMQ!"
PROPERTIES_FLAG = 1
DATA_HEADER_WORDS = 3
MARK_OFFSET = 36  # of the u64 in the journal's headers that is written last in a rollover

PADS = tuple(bytes([n]) * n for n in range(9))  # the n bytes of value n


def pad_words(data: bytes) -> bytes:
    """`data` padded to words: 1..4 bytes, each holding their number."""
    return data + PADS[4 - len(data) % 4]


def data_record_bytes(content: int) -> int:
    """Bytes of a DATA record whose header, options and application data take `content` bytes."""
    return (content & -8) + 8


def pack_queue_op(sequence: int, lease: int, wall: int, queue_key: bytes, app_key: bytes, op: QueueOp,
                  qlist_offset: int = 0, start_sequence: int = 0, start_lease: int = 0) -> bytes:
    """A QUEUE_OP record; `qlist_offset` in bytes."""
    return QUEUE_OP.pack(QUEUE_OP_HEAD | sequence, lease, wall, queue_key, app_key, op, qlist_offset >> 2,
                         start_sequence, start_lease, MAGIC)


def pack_sync_point(sequence: int, lease: int, wall: int, kind: SyncPoint, node: int, data_position: int,
                    qlist_position: int) -> bytes:
    """A JOURNAL_OP record of op SYNCPOINT whose body names its own PSN; positions in bytes."""
    return JOURNAL_OP.pack(JOURNAL_OP_HEAD | sequence, lease, wall, kind, SYNC_POINT_OP, sequence, node, lease,
                           data_position >> 3, qlist_position >> 2, MAGIC)


def pack_queue_record(uri: str, queue_key: bytes, apps: list[tuple[str, bytes]]) -> bytes:
    """A QLIST record: the queue's URI and key, then (appId, appKey) of each app."""
    name = pad_words(uri.encode())
    parts = [name, queue_key, bytes(11)]
    for app_id, app_key in apps:
        text = pad_words(app_id.encode())
        parts += (APP_ID_HEADER.pack(len(text) >> 2), text, app_key, bytes(11))
    body = b"".join(parts)
    words = (QUEUE_RECORD_HEADER.size + len(body) + len(QLIST_MAGIC)) >> 2
    return QUEUE_RECORD_HEADER.pack(len(name) >> 2, len(apps), 5 << 24 | words) + body + QLIST_MAGIC


def parse_queue_record(data: bytes, offset: int = 0) -> tuple[str, bytes, list[tuple[str, bytes]], int]:
    """(URI, queueKey, [(appId, appKey)], size in bytes) of the QLIST record at `offset`; ValueError if it is none."""
    if offset + QUEUE_RECORD_HEADER.size > len(data):
        raise ValueError("QLIST record header is cut")
    uri_words, count, words = QUEUE_RECORD_HEADER.unpack_from(data, offset)
    header, size = words >> 24 << 2, (words & 0xFFFFFF) << 2
    end = offset + size
    if not header or not size or end > len(data):
        raise ValueError("QLIST record has no size, or is cut")
    position = offset + header
    uri, position = _padded_text(data, position, uri_words << 2, end)
    queue_key = data[position:position + 5]
    position += 16
    apps = []
    for _ in range(count):
        if position + APP_ID_HEADER.size > end:
            raise ValueError("QLIST record: appId is cut")
        app_id, position = _padded_text(data, position + APP_ID_HEADER.size,
                                        APP_ID_HEADER.unpack_from(data, position)[0] << 2, end)
        apps.append((app_id, bytes(data[position:position + 5])))
        position += 16
    if position + len(QLIST_MAGIC) > end:
        raise ValueError("QLIST record: too short for its fields")
    return uri, bytes(queue_key), apps, size


def _padded_text(data: bytes, position: int, size: int, end: int) -> tuple[str, int]:
    stop = position + size
    if not size or stop > end:
        raise ValueError("QLIST record: text reaches beyond the record")
    pad = data[stop - 1]
    if not 1 <= pad <= 4 or pad > size:
        raise ValueError(f"QLIST record: padding {pad}")
    return bytes(data[position:stop - pad]).decode(), stop


def file_headers(kind: FileType, partition_id: int) -> bytes:
    """Both headers of a new, empty file."""
    general = FILE_HEADER.pack(*FILE_MAGIC, 1 << 6 | FILE_HEADER.size >> 2, 0x80 | kind, partition_id)
    if kind is FileType.JOURNAL:
        return general + JOURNAL_FILE_HEADER.pack(JOURNAL_FILE_HEADER.size >> 2, RECORD_BYTES >> 2, 0)
    if kind is FileType.DATA:
        return general + DATA_FILE_HEADER.pack(DATA_FILE_HEADER.size >> 2, bytes(5))
    return general + QLIST_FILE_HEADER.pack(QLIST_FILE_HEADER.size >> 2)


def pack_mark(offset: int) -> bytes:
    """The journal header's field that tells a finished rollover; `offset` of its sync point in bytes."""
    return (offset >> 2).to_bytes(8, "big")
