"""Packers and parsers of the records and headers in storage files, derived from the declarations of `layout.py`.

A journal record's first eight bytes are read as one number, the *head*: type in the top 4 bits, 12 bits of flags,
48 bits of sequence number.

If this module is compiled, records of messages are packed without a call of `struct`, as in `wire/fast.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from bmqtwist.storage import layout
from bmqtwist.storage.message import Message
from bmqtwist.storage.store import DATA_HEADER_BYTES, ROLLOVER_CHUNK_BYTES
from bmqtwist.wire.fast import COMPILED

if TYPE_CHECKING:
    from mypy_extensions import i16, i32, i64

try:
    from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
except ImportError:  # only compiled code uses these names
    pass

if COMPILED:
    _buffer: Final = BytesWriter()

QLIST_MAGIC = b"qUrI"


class RecordType(IntEnum):
    """Top 4 bits of a journal record."""

    MESSAGE = 1
    CONFIRM = 2
    DELETION = 3
    QUEUE_OP = 4
    JOURNAL_OP = 5


class ConfirmReason(IntEnum):
    """Flags of a CONFIRM."""

    CONFIRMED = 0
    REJECTED = 1
    AUTO_CONFIRMED = 2


class DeletionReason(IntEnum):
    """Flags of a DELETION."""

    NONE = 0
    IMPLICIT_CONFIRM = 1
    TTL_EXPIRATION = 2
    NO_SC_QUORUM = 4


class QueueOp(IntEnum):
    """Operation of a QUEUE_OP record."""

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

TYPE_SHIFT: Final = layout.RECORD_HEADER.shift("type")
FLAGS_SHIFT: Final = layout.RECORD_HEADER.shift("flags")
FLAGS_MASK: Final = layout.RECORD_HEADER.mask("flags")
SEQUENCE_MASK: Final = layout.RECORD_HEADER.mask("sequence")
SEQUENCE_BITS: Final = SEQUENCE_MASK.bit_length()
MESSAGE_HEAD: Final = RecordType.MESSAGE << TYPE_SHIFT
CONFIRM_HEAD: Final = RecordType.CONFIRM << TYPE_SHIFT
DELETION_HEAD: Final = RecordType.DELETION << TYPE_SHIFT
QUEUE_OP_HEAD: Final = RecordType.QUEUE_OP << TYPE_SHIFT
JOURNAL_OP_HEAD: Final = RecordType.JOURNAL_OP << TYPE_SHIFT

RECORD = layout.JOURNAL_RECORD.struct
RECORD_BYTES: Final = layout.JOURNAL_RECORD.size
MAGIC: Final = layout.JOURNAL_RECORD.constant("magic")
MESSAGE = layout.MESSAGE_RECORD.struct
CONFIRM = layout.CONFIRM_RECORD.struct
DELETION = layout.DELETION_RECORD.struct
QUEUE_OP = layout.QUEUE_OP_RECORD.struct
JOURNAL_OP = layout.JOURNAL_OP_RECORD.struct
# the fields between `wall` and the magic
MESSAGE_BODY, CONFIRM_BODY, DELETION_BODY, QUEUE_OP_BODY, JOURNAL_OP_BODY = (
    each.between("wall", "magic") for each in (layout.MESSAGE_RECORD, layout.CONFIRM_RECORD, layout.DELETION_RECORD,
                                            layout.QUEUE_OP_RECORD, layout.JOURNAL_OP_RECORD))

REF_COUNT_LOW_BITS: Final = layout.RECORD_HEADER.bits("flags")  # of the reference count, in the flags of a MESSAGE
REF_COUNT_MAX: Final = layout.MESSAGE_RECORD.mask("ref_count_high") << REF_COUNT_LOW_BITS | FLAGS_MASK
COMPRESSION_MASK: Final = 7  # the low three bits of a MESSAGE's compression count

DATA_HEADER = layout.DATA_HEADER.struct
DATA_HEADER_WORDS: Final = layout.DATA_HEADER.words
DATA_HEADER_WORDS_SHIFT: Final = layout.DATA_HEADER.shift("header_words")
DATA_WORDS_MASK: Final = layout.DATA_HEADER.mask("record_words")
DATA_OPTIONS_SHIFT: Final = layout.DATA_HEADER.shift("options_words")
DATA_OPTION_BYTES_SHIFT: Final = DATA_OPTIONS_SHIFT - 2  # for a size in bytes
DATA_HEADER_START: Final = layout.DATA_HEADER.word(header_words=layout.DATA_HEADER.words)
DATA_FLAGS_MASK: Final = layout.DATA_HEADER.mask("flags")
PROPERTIES_FLAG = 1
DATA_RECORD_BYTES_MIN = 16  # a header of 12 bytes and at least 1 byte of padding, in dwords

QUEUE_RECORD_HEADER = layout.QUEUE_RECORD_HEADER.struct
QUEUE_RECORD_WORDS_MASK = layout.QUEUE_RECORD_HEADER.mask("record_words")
_QUEUE_HEADER_WORDS_SHIFT = layout.QUEUE_RECORD_HEADER.shift("header_words")
_APP_HEADER = layout.APP_HEADER.struct
_KEY = layout.QUEUE_KEY.struct
_KEY_BYTES = layout.QUEUE_KEY.bits("key") // 8
_NULL_KEY: Final = bytes(_KEY_BYTES)

MARK_OFFSET = layout.FILE_HEADER.size + layout.JOURNAL_FILE_HEADER.offset("mark")  # written last in a rollover

_MESSAGE, _QUEUE_OP, _JOURNAL_OP = int(RecordType.MESSAGE), int(RecordType.QUEUE_OP), int(RecordType.JOURNAL_OP)
_WITH_QLIST: Final = int(QueueOp.CREATION), int(QueueOp.ADDITION)
_DATA_AT: Final = layout.MESSAGE_RECORD.offset("data_dwords")
_QLIST_AT: Final = layout.QUEUE_OP_RECORD.offset("qlist_words")
_ENDS_AT: Final = layout.JOURNAL_OP_RECORD.offset("data_dwords")

PADS: Final = tuple(bytes([n]) * n for n in range(9))  # the n bytes of value n


def _begin_record(head: int, lease: int, wall: int) -> BytesWriter:
    """Return a writer with head, lease and wall of a record; compiled code only."""
    first: i64 = head
    term: i64 = lease
    seconds: i64 = wall
    writer = _buffer
    writer.truncate(0)
    write_i64_be(writer, first)
    write_i32_be(writer, i32(term))
    write_i64_be(writer, seconds)
    return writer


def pack_message_record(sequence: int, lease: int, wall: int, queue_key: bytes, data_dwords: int, message: Message) -> bytes:
    """Encode a MESSAGE record; `data_dwords`: offset of its DATA record."""
    ref_count = message.ref_count
    if ref_count > REF_COUNT_MAX:
        ref_count = REF_COUNT_MAX
    head = MESSAGE_HEAD | (ref_count & FLAGS_MASK) << FLAGS_SHIFT | sequence
    if COMPILED:
        counts: i64 = ref_count >> REF_COUNT_LOW_BITS << 8 | message.compression
        offset: i64 = data_dwords
        checksum: i64 = message.crc
        writer = _begin_record(head, lease, wall)
        write_i16_be(writer, i16(counts))
        writer.write(queue_key)
        writer.write(_NULL_KEY)
        write_i32_be(writer, i32(offset))
        writer.write(message.guid)
        write_i64_be(writer, checksum << 32 | i64(MAGIC))
        if len(writer) == RECORD_BYTES:
            return writer.getvalue()
    return MESSAGE.pack(head, lease, wall, ref_count >> REF_COUNT_LOW_BITS, message.compression, queue_key, data_dwords,
                        message.guid, message.crc, MAGIC)


def pack_confirm_record(head: int, lease: int, wall: int, queue_key: bytes, app_key: bytes, guid: bytes) -> bytes:
    """Encode a CONFIRM record."""
    if COMPILED:
        writer = _begin_record(head, lease, wall)
        write_i16_be(writer, 0)
        writer.write(queue_key)
        writer.write(app_key)
        writer.write(guid)
        write_i64_be(writer, 0)
        write_i32_be(writer, i32(i64(MAGIC)))
        if len(writer) == RECORD_BYTES:
            return writer.getvalue()
    return CONFIRM.pack(head, lease, wall, queue_key, app_key, guid, MAGIC)


def pack_deletion_record(head: int, lease: int, wall: int, queue_key: bytes, guid: bytes) -> bytes:
    """Encode a DELETION record."""
    if COMPILED:
        writer = _begin_record(head, lease, wall)
        write_i16_be(writer, 0)
        writer.append(0)
        writer.write(queue_key)
        writer.write(guid)
        write_i64_be(writer, 0)
        write_i64_be(writer, i64(MAGIC))
        if len(writer) == RECORD_BYTES:
            return writer.getvalue()
    return DELETION.pack(head, lease, wall, queue_key, guid, MAGIC)


def pack_data_header(first: int, second: int, schema_id: int) -> bytes:
    """Encode the header of a DATA record; `first`: words of header and record, `second`: words of options, and flags."""
    if COMPILED:
        sizes: i64 = first
        options: i64 = second
        schema: i64 = schema_id
        writer = _buffer
        writer.truncate(0)
        write_i64_be(writer, sizes << 32 | options)
        write_i32_be(writer, i32(schema << 16))
        return writer.getvalue()
    return DATA_HEADER.pack(first, second, schema_id, 0)


def with_offsets(record: bytes, head: int, data_end: int, qlist_end: int) -> bytes:
    """Return a record with its DATA and QLIST offsets replaced by these write positions, bytes."""
    kind = head >> TYPE_SHIFT
    if kind == _MESSAGE:
        return record[:_DATA_AT] + (data_end >> 3).to_bytes(4, "big") + record[_DATA_AT + 4:]
    if kind == _QUEUE_OP and record[_QLIST_AT - 1] in _WITH_QLIST:
        return record[:_QLIST_AT] + (qlist_end >> 2).to_bytes(4, "big") + record[_QLIST_AT + 4:]
    if kind == _JOURNAL_OP:
        return (record[:_ENDS_AT] + (data_end >> 3).to_bytes(4, "big") + (qlist_end >> 2).to_bytes(4, "big")
                + record[_ENDS_AT + 8:])
    return record


def pad_words(data: bytes) -> bytes:
    """Return `data` padded to words with 1..4 bytes, each holding their number."""
    return data + PADS[4 - len(data) % 4]


def data_record_bytes(content: int) -> int:
    """Return the size of a DATA record whose header, options and application data take `content` bytes."""
    return (content & -8) + 8


def pack_queue_op(psn: tuple[int, int], wall: int, queue_key: bytes, app_key: bytes, op: QueueOp, qlist_offset: int = 0,
                  start: tuple[int, int] = (0, 0)) -> bytes:
    """Encode a QUEUE_OP record; PSNs are (lease, sequence), `qlist_offset` in bytes."""
    return QUEUE_OP.pack(QUEUE_OP_HEAD | psn[1], psn[0], wall, queue_key, app_key, op, qlist_offset >> 2, start[1], start[0],
                         MAGIC)


def pack_sync_point(sequence: int, lease: int, wall: int, kind: SyncPoint, node: int, data_position: int,
                    qlist_position: int) -> bytes:
    """Encode a sync point (JOURNAL_OP), whose body repeats its PSN; positions in bytes."""
    return JOURNAL_OP.pack(JOURNAL_OP_HEAD | sequence, lease, wall, kind, SYNC_POINT_OP, sequence, node, lease,
                           data_position >> 3, qlist_position >> 2, MAGIC)


def pack_queue_record(uri: str, queue_key: bytes, apps: list[tuple[str, bytes]]) -> bytes:
    """Encode a QLIST record: the queue's URI and key, then (appId, appKey) of each app."""
    name = pad_words(uri.encode())
    parts = [name, _KEY.pack(queue_key)]
    for app_id, app_key in apps:
        text = pad_words(app_id.encode())
        parts += (_APP_HEADER.pack(len(text) >> 2), text, _KEY.pack(app_key))
    body = b"".join(parts)
    words = (QUEUE_RECORD_HEADER.size + len(body) + len(QLIST_MAGIC)) >> 2
    sizes = layout.QUEUE_RECORD_HEADER.words << _QUEUE_HEADER_WORDS_SHIFT | words
    return QUEUE_RECORD_HEADER.pack(len(name) >> 2, len(apps), sizes) + body + QLIST_MAGIC


def parse_queue_record(data: bytes, offset: int = 0) -> tuple[str, bytes, list[tuple[str, bytes]], int]:
    """Decode the QLIST record at `offset`: (URI, queueKey, [(appId, appKey)], size in bytes). ValueError."""
    if offset + QUEUE_RECORD_HEADER.size > len(data):
        raise ValueError("QLIST record header is cut")
    uri_words, count, words = QUEUE_RECORD_HEADER.unpack_from(data, offset)
    header, size = words >> _QUEUE_HEADER_WORDS_SHIFT << 2, (words & QUEUE_RECORD_WORDS_MASK) << 2
    end = offset + size
    if not header or not size or end > len(data):
        raise ValueError("QLIST record has no size, or is cut")
    position = offset + header
    uri, position = _padded_text(data, position, uri_words << 2, end)
    queue_key, position = _key(data, position)
    apps = []
    for _ in range(count):
        if position + _APP_HEADER.size > end:
            raise ValueError("QLIST record: appId is cut")
        app_id, position = _padded_text(data, position + _APP_HEADER.size,
                                        _APP_HEADER.unpack_from(data, position)[0] << 2, end)
        app_key, position = _key(data, position)
        apps.append((app_id, app_key))
    if position + len(QLIST_MAGIC) > end:
        raise ValueError("QLIST record: too short for its fields")
    return uri, queue_key, apps, size


def queue_records(data: bytes, offset: int) -> tuple[list[tuple[int, str, bytes, list[tuple[str, bytes]]]], int, str]:
    """Decode the QLIST records from `offset` on: [(offset, URI, queueKey, apps)], their end, the error there or ""."""
    found = []
    try:
        while offset < len(data):
            uri, key, apps, size = parse_queue_record(data, offset)
            found.append((offset, uri, key, apps))
            offset += size
    except ValueError as error:
        return found, offset, str(error)
    return found, offset, ""


def read_queue_record(read: Callable[[int, int], bytes], offset: int) -> bytes | None:
    """Read the QLIST record at `offset`, shorter at the end of the file; None if its header is incomplete."""
    head = read(offset, QUEUE_RECORD_HEADER.size)
    if len(head) < QUEUE_RECORD_HEADER.size:
        return None
    return read(offset, (QUEUE_RECORD_HEADER.unpack(head)[2] & QUEUE_RECORD_WORDS_MASK) << 2)


def _key(data: bytes, position: int) -> tuple[bytes, int]:
    """Return the queueKey or appKey at `position`, and the next position, which the caller must check."""
    return bytes(data[position:position + _KEY_BYTES]), position + _KEY.size


def _padded_text(data: bytes, position: int, size: int, end: int) -> tuple[str, int]:
    stop = position + size
    if not size or stop > end:
        raise ValueError("QLIST record: text reaches beyond the record")
    pad = data[stop - 1]
    if not 1 <= pad <= 4 or pad > size:
        raise ValueError(f"QLIST record: padding {pad}")
    return bytes(data[position:stop - pad]).decode(), stop


def file_headers(kind: FileType, partition_id: int) -> bytes:
    """Encode both headers of a new, empty file."""
    general = layout.FILE_HEADER.build(version=1, header_words=layout.FILE_HEADER.words, wide=1, type=kind,
                                       partition_id=partition_id)
    if kind is FileType.JOURNAL:
        return general + layout.JOURNAL_FILE_HEADER.build(header_words=layout.JOURNAL_FILE_HEADER.words,
                                                          record_words=RECORD_BYTES >> 2, mark=0)
    special = layout.DATA_FILE_HEADER if kind is FileType.DATA else layout.QLIST_FILE_HEADER
    return general + special.build(header_words=special.words)


def pack_mark(offset: int) -> bytes:
    """Encode the journal header's mark of a finished rollover; `offset` of its sync point in bytes."""
    return (offset >> 2).to_bytes(8, "big")


DATA_MISMATCH: Final = "its data does not match its checksum"


def check_messages(read: Callable[[int, int], bytes],
                   messages: Iterable[Message]) -> tuple[int, dict[str, list[Message]]]:
    """Set size, options, schema and the properties flag of `messages` from their DATA records.

    Return the total size of the valid records, and the messages of damaged ones: error -> messages. Those with the error
    DATA_MISMATCH are complete, too. `read(offset, size)` reads DATA; its ranges are consecutive if the messages are in order
    of their offsets.
    """
    damaged: dict[str, list[Message]] = {}
    window, base, top, good = memoryview(b""), 0, 0, 0
    for message in messages:
        offset = message.data_offset * 8
        if not base <= offset <= top - DATA_HEADER.size:
            base = offset
            window = memoryview(read(base, ROLLOVER_CHUNK_BYTES))
            top = base + len(window)
        try:
            if offset < DATA_HEADER_BYTES or offset + DATA_HEADER.size > top:
                raise ValueError("its DATA record is outside of the file")
            size = (DATA_HEADER.unpack_from(window, offset - base)[0] & DATA_WORDS_MASK) << 2
            if offset + size > top:
                base = offset
                window = memoryview(read(base, max(size, ROLLOVER_CHUNK_BYTES)))
                top = base + len(window)
            good += check_message(window, offset - base, message)
        except ValueError as error:
            damaged.setdefault(str(error), []).append(message)
    return good, damaged


def check_message(window: memoryview, at: int, message: Message) -> int:
    """Complete a message from its DATA record at `at`, see `check_messages`; return the record's size. ValueError."""
    words: int
    words, flags, schema_id, _ = DATA_HEADER.unpack_from(window, at)
    size, options = (words & DATA_WORDS_MASK) << 2, flags >> DATA_OPTIONS_SHIFT << 2
    start, stop = at + DATA_HEADER.size, at + size
    if words >> DATA_HEADER_WORDS_SHIFT != DATA_HEADER_WORDS or size < DATA_RECORD_BYTES_MIN or stop > len(window):
        raise ValueError("the header of its DATA record is wrong")
    stop -= window[stop - 1]
    length = stop - start - options
    if length < 0 or data_record_bytes(DATA_HEADER.size + options + length) != size:
        raise ValueError("the padding of its DATA record is wrong")
    message.size, message.has_properties, message.schema_id = length, bool(flags & PROPERTIES_FLAG), schema_id
    if options:
        message.options = bytes(window[start:start + options])
    found = crc32c(window[start + options:stop])
    if found != message.crc:
        if crc32c(PADS[4 - length % 4], found) != message.crc:  # of clients that include the padding
            raise ValueError(DATA_MISMATCH)
        message.crc = found
    return size
