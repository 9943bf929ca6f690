"""Structs, constants and functions for headers on the hot paths of broker and client, derived from `layout.py`.

A struct gives one value for each number of a header; the constants beside it select the fields of a number. Queue ids are
unsigned everywhere: the 32 bits of openQueue's qId are those of the data headers.

`struct` creates an object for each number, the largest part of its cost. In the compiled module, the functions for every
message use `librt.strings` instead, which compiles to loads and stores. Both give the same bytes, which the unit tests of
this module compare. All packing shares one buffer, which one call fills and reads without interruption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

from bmqtwist.wire import layout

if TYPE_CHECKING:
    from mypy_extensions import i32, i64

try:
    from librt.strings import BytesWriter, read_i32_be, write_i32_be, write_i64_be
except ImportError:  # not compiled, so not used
    pass

COMPILED: Final = not __file__.endswith(".py")
_LOW32: Final = 0xFFFFFFFF
if COMPILED:
    _buffer: Final = BytesWriter()


class EventType(IntEnum):
    """Low six bits of the fifth byte of an event."""

    UNDEFINED = 0
    CONTROL = 1
    PUT = 2
    CONFIRM = 3
    PUSH = 4
    ACK = 5
    CLUSTER_STATE = 6
    ELECTOR = 7
    STORAGE = 8
    RECOVERY = 9
    PARTITION_SYNC = 10
    HEARTBEAT_REQ = 11
    HEARTBEAT_RSP = 12
    REJECT = 13
    REPLICATION_RECEIPT = 14
    AUTHENTICATION = 15
    FRAGMENT = 63  # extension: between brokers that have announced CONTROL_FIRST


# -- events ------------------------------------------------------------------------------------------------------

EVENT_HEADER: Final = layout.EVENT_HEADER.struct  # length; version and type; header words; type specific; reserved
EVENT_HEADER_BYTES: Final = layout.EVENT_HEADER.size
EVENT_HEADER_WORDS: Final = layout.EVENT_HEADER.words
EVENT_TYPE_MASK: Final = layout.EVENT_HEADER.mask("type")
EVENT_VERSION: Final = layout.EVENT_HEADER.word(version=1)  # shifted to its position beside the event type

_GUID_BYTES: Final = 16

PAD4: Final = (b"\4\4\4\4", b"\3\3\3", b"\2\2", b"\1")  # word padding, by length & 3


def event_header(event_type: int, body_bytes: int, type_specific: int = 0) -> bytes:
    """Encode the header of an event whose body (padding included) has `body_bytes` bytes."""
    if COMPILED:
        length: i64 = EVENT_HEADER_BYTES + body_bytes
        rest: i64 = (EVENT_VERSION | event_type) << 24 | EVENT_HEADER_WORDS << 16 | type_specific << 8
        writer = _buffer
        writer.truncate(0)
        write_i64_be(writer, length << 32 | rest)
        return writer.getvalue()
    return EVENT_HEADER.pack(EVENT_HEADER_BYTES + body_bytes, EVENT_VERSION | event_type, EVENT_HEADER_WORDS,
                             type_specific, 0)


def event_header_at(buffer: bytes, position: int) -> tuple[int, int, int, int]:
    """Return length, version and type, header words, type-specific byte of the complete event header at `position`."""
    if COMPILED:
        at: i64 = position
        rest: i64 = i64(read_i32_be(buffer, at + 4)) & _LOW32
        return i64(read_i32_be(buffer, at)) & _LOW32, rest >> 24, rest >> 16 & 0xFF, rest >> 8 & 0xFF
    length, version_type, words, specific, _ = EVENT_HEADER.unpack_from(buffer, position)
    return length, version_type, words, specific


HEARTBEAT_REQ: Final = event_header(EventType.HEARTBEAT_REQ, 0)
HEARTBEAT_RSP: Final = event_header(EventType.HEARTBEAT_RSP, 0)


# -- PUT and PUSH ------------------------------------------------------------------------------------------------

PUT_HEADER: Final = layout.PUT_HEADER.struct  # flags and words; options words, CAT, header words; queue id; GUID; crc32c;
PUT_HEADER_BYTES: Final = layout.PUT_HEADER.size  # schema id; reserved
PUT_HEADER_WORDS: Final = layout.PUT_HEADER.words
PUT_HEADER_WORDS_MIN: Final = layout.PUT_HEADER.offset("schema_id") // 4  # without schema id

PUSH_HEADER: Final = layout.PUSH_HEADER.struct  # as PUT, without the checksum
PUSH_HEADER_BYTES: Final = layout.PUSH_HEADER.size
PUSH_HEADER_WORDS: Final = layout.PUSH_HEADER.words
PUSH_HEADER_WORDS_MIN: Final = layout.PUSH_HEADER.offset("schema_id") // 4  # without schema id

FLAGS_SHIFT: Final = layout.MESSAGE_START.shift("flags")  # the following are of PUT and PUSH
WORDS_MASK: Final = layout.MESSAGE_START.mask("words")
OPTIONS_SHIFT: Final = layout.MESSAGE_START.shift("options_words")
COMPRESSION_SHIFT: Final = layout.MESSAGE_START.shift("compression")
COMPRESSION_MASK: Final = layout.MESSAGE_START.mask("compression")
HEADER_WORDS_MASK: Final = layout.MESSAGE_START.mask("header_words")
OPTION_BYTES_SHIFT: Final = OPTIONS_SHIFT - 2  # converts bytes to words in the position of options_words

ACK_REQUESTED: Final = 1  # flag of PUT
IMPLICIT_PAYLOAD: Final = 1  # flag of PUSH
MESSAGE_PROPERTIES: Final = 2  # flag of both
OUT_OF_ORDER: Final = 4  # flag of PUSH

CAT_NONE: Final = 0
CAT_ZLIB: Final = 1

OPTION_SUB_QUEUE_ID: Final = Struct(layout.OPTION_HEADER.struct.format + "I")  # a SUB_QUEUE_IDS_OLD option with one id
SUB_QUEUE_IDS_OLD: Final = 1  # type of that option
_IDS_HEAD: Final = layout.OPTION_HEADER.word(type=SUB_QUEUE_IDS_OLD)  # its first word, without the number of words
OPTION_ONE_ID_HEAD: Final = _IDS_HEAD | 2
SUB_QUEUE_INFOS: Final = 3  # type of the option with remaining attempts, for other brokers
_INFOS_HEAD: Final = layout.OPTION_HEADER.word(type=SUB_QUEUE_INFOS, type_specific=layout.SUB_QUEUE_INFO.words)
OPTION_UNNAMED: Final = layout.OPTION_HEADER.word(type=SUB_QUEUE_INFOS, packed=1,  # id 0, any number of attempts
                                                  words=layout.SUB_QUEUE_INFO.word(unlimited=1))
OPTION_ONE_INFO_HEAD: Final = _INFOS_HEAD | 1 + layout.SUB_QUEUE_INFO.words
PSN_INFO_WORDS: Final = layout.SUB_QUEUE_INFO_WITH_PSN.words
_PSN_INFO_HEAD: Final = layout.OPTION_HEADER.word(type=SUB_QUEUE_INFOS, type_specific=PSN_INFO_WORDS)
OPTION_ONE_PSN_INFO_HEAD: Final = _PSN_INFO_HEAD | 1 + PSN_INFO_WORDS


def put_header_at(buffer: bytes, position: int) -> tuple[int, int, int, bytes, int, int]:
    """Return flags and words, sizes and CAT, queue id, GUID, crc32c, schema id of the complete PUT header at `position`."""
    if COMPILED:
        at: i64 = position
        return (i64(read_i32_be(buffer, at)) & _LOW32, i64(read_i32_be(buffer, at + 4)) & _LOW32,
                i64(read_i32_be(buffer, at + 8)) & _LOW32, buffer[position + 12:position + 28],
                i64(read_i32_be(buffer, at + 28)) & _LOW32, i64(read_i32_be(buffer, at + 32)) >> 16 & 0xFFFF)
    first, second, queue_id, guid, crc, schema_id, _ = PUT_HEADER.unpack_from(buffer, position)
    return first, second, queue_id, guid, crc, schema_id


_PUSH_ONE: Final = Struct(PUSH_HEADER.format + "II")


def push_header_to_one(first: int, second: int, queue_id: int, guid: bytes, schema_id: int, sub_id: int) -> bytes:
    """Encode a PUSH header with the option of one subscription; `first`: flags and words, `second`: sizes and CAT."""
    if COMPILED and len(guid) == _GUID_BYTES:
        numbers: i64 = first
        sizes: i64 = second
        number: i64 = queue_id
        schema: i64 = schema_id
        subscription: i64 = sub_id
        writer = _buffer
        writer.truncate(0)
        write_i64_be(writer, numbers << 32 | sizes)
        write_i32_be(writer, i32(number))
        writer.write(guid)
        write_i64_be(writer, schema << 48 | i64(OPTION_ONE_ID_HEAD))
        write_i32_be(writer, i32(subscription))
        return writer.getvalue()
    return _PUSH_ONE.pack(first, second, queue_id, guid, schema_id, 0, OPTION_ONE_ID_HEAD, sub_id)


def put_message(queue_id: int, guid: bytes, data: bytes, crc: int, flags: int = 0, compression: int = CAT_NONE,
                schema_id: int = 0) -> bytes:
    """Encode one message of a PUT event: header, application data, padding."""
    pad = PAD4[len(data) & 3]
    words = (PUT_HEADER_BYTES + len(data) + len(pad)) >> 2
    header = PUT_HEADER.pack(flags << FLAGS_SHIFT | words, compression << COMPRESSION_SHIFT | PUT_HEADER_WORDS, queue_id,
                             guid, crc, schema_id, 0)
    return b"".join((header, data, pad))


def sub_queue_ids(ids: Iterable[int]) -> bytes:
    """Encode the option with the subscriptions of a PUSH, for SDKs."""
    ids = tuple(ids)
    if len(ids) == 1:
        return OPTION_SUB_QUEUE_ID.pack(OPTION_ONE_ID_HEAD, ids[0])
    return Struct(f">I{len(ids)}I").pack(_IDS_HEAD | 1 + len(ids), *ids)


def sub_queue_infos(infos: Sequence[tuple[int, int]], lease: int = 0, sequence: int = 0) -> bytes:
    """Encode the option with the subscriptions of a PUSH and their delivery attempts, for brokers; with a lease, also the
    PSN of the message (an extension)."""
    if lease:
        head = layout.OPTION_HEADER.struct.pack(_PSN_INFO_HEAD | 1 + PSN_INFO_WORDS * len(infos))
        return head + b"".join([layout.SUB_QUEUE_INFO_WITH_PSN.struct.pack(*info, lease, sequence) for info in infos])
    head = layout.OPTION_HEADER.struct.pack(_INFOS_HEAD | 1 + layout.SUB_QUEUE_INFO.words * len(infos))
    return head + b"".join([layout.SUB_QUEUE_INFO.struct.pack(*info) for info in infos])


# -- ACK, CONFIRM, REJECT ----------------------------------------------------------------------------------------

ITEMS_HEADER: Final = layout.ITEMS_HEADER.struct.pack(layout.ITEMS_HEADER.word(header_words=layout.ITEMS_HEADER.words,
                                                                       item_words=layout.ACK_MESSAGE.words))
REJECT_RETURNED: Final = 1  # type-specific byte of a REJECT event (extension): messages return without using an attempt
ACK_EARLY: Final = 1  # of an ACK event (extension): valid once the receiver has the record of its RECEIPT durable
RECEIPT: Final = layout.RECEIPT.struct  # partition; sequence number and lease of a record
ITEMS_HEADER_BYTES: Final = layout.ITEMS_HEADER.size
HEADER_WORDS_SHIFT: Final = layout.ITEMS_HEADER.shift("header_words")  # in the first byte of an ITEMS_HEADER
ITEM_WORDS_MASK: Final = layout.ITEMS_HEADER.mask("item_words")
ITEM_BYTES: Final = layout.ACK_MESSAGE.size
ACK_MESSAGE: Final = layout.ACK_MESSAGE.struct  # status and correlation id; GUID; queue id
ACK_STATUS_SHIFT: Final = layout.ACK_MESSAGE.shift("status")
ACK_STATUS_MASK: Final = layout.ACK_MESSAGE.mask("status")
CORRELATION_ID_MASK: Final = layout.ACK_MESSAGE.mask("correlation_id")
CONFIRM_MESSAGE: Final = layout.CONFIRM_MESSAGE.struct  # queue id; GUID; sub-queue id


def ack_message(status: int, correlation_id: int, guid: bytes, queue_id: int) -> bytes:
    """Encode one message of an ACK event."""
    if COMPILED and len(guid) == _GUID_BYTES:
        first: i64 = status << ACK_STATUS_SHIFT | correlation_id
        number: i64 = queue_id
        writer = _buffer
        writer.truncate(0)
        write_i32_be(writer, i32(first))
        writer.write(guid)
        write_i32_be(writer, i32(number))
        return writer.getvalue()
    return ACK_MESSAGE.pack(status << ACK_STATUS_SHIFT | correlation_id, guid, queue_id)


def confirm_message_at(buffer: bytes, position: int) -> tuple[int, bytes, int]:
    """Return queue id, GUID, sub-queue id of the complete message of a CONFIRM or REJECT event at `position`."""
    if COMPILED:
        at: i64 = position
        return (i64(read_i32_be(buffer, at)) & _LOW32, buffer[position + 4:position + 20],
                i64(read_i32_be(buffer, at + 20)) & _LOW32)
    queue_id, guid, sub_id = CONFIRM_MESSAGE.unpack_from(buffer, position)
    return queue_id, guid, sub_id


def items_event(event_type: int, items: list[bytes], type_specific: int = 0) -> bytes:
    """Encode an ACK, CONFIRM or REJECT event of packed messages."""
    head = event_header(event_type, ITEMS_HEADER_BYTES + ITEM_BYTES * len(items), type_specific)
    return b"".join((head, ITEMS_HEADER, *items))
