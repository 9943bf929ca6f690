"""Precompiled codecs of the hot headers. `layout.py` draws and declares the same bytes; a test keeps both equal.

Queue ids are handled unsigned everywhere: the 32 bits of openQueue's qId are those of the data headers.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct


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


# -- events ------------------------------------------------------------------------------------------------------

EVENT_HEADER = Struct(">IBBBB")  # length, version << 6 | type, header words, type specific, reserved
EVENT_HEADER_BYTES = 8
EVENT_HEADER_WORDS = 2
EVENT_VERSION = 1 << 6  # protocol version 1 in its place beside the event type

HEARTBEAT_REQ = EVENT_HEADER.pack(8, EVENT_VERSION | EventType.HEARTBEAT_REQ, EVENT_HEADER_WORDS, 0, 0)
HEARTBEAT_RSP = EVENT_HEADER.pack(8, EVENT_VERSION | EventType.HEARTBEAT_RSP, EVENT_HEADER_WORDS, 0, 0)

PAD4 = (b"\4\4\4\4", b"\3\3\3", b"\2\2", b"\1")  # word padding, by length & 3
PAD8 = tuple(bytes((8 - n,)) * (8 - n) for n in range(8))  # dword padding, by length & 7


def event_header(event_type: int, body_bytes: int, type_specific: int = 0) -> bytes:
    """The header of an event whose body (padding included) has `body_bytes` bytes."""
    return EVENT_HEADER.pack(8 + body_bytes, EVENT_VERSION | event_type, EVENT_HEADER_WORDS, type_specific, 0)


# -- PUT and PUSH ------------------------------------------------------------------------------------------------

PUT_HEADER = Struct(">III16sIHH")  # flags << 28 | words, options words << 8 | CAT << 5 | header words, queue id,
PUT_HEADER_BYTES = 36  # GUID, crc32c, schema id, reserved
PUT_HEADER_WORDS = 9
PUT_HEADER_WORDS_MIN = 8  # without schema id

PUSH_HEADER = Struct(">III16sHH")  # as PUT, without the checksum
PUSH_HEADER_BYTES = 32
PUSH_HEADER_WORDS = 8
PUSH_HEADER_WORDS_MIN = 7  # without schema id

ACK_REQUESTED = 1  # flag of PUT
IMPLICIT_PAYLOAD = 1  # flag of PUSH
MESSAGE_PROPERTIES = 2  # flag of both
OUT_OF_ORDER = 4  # flag of PUSH
WORDS_MASK = (1 << 28) - 1

CAT_NONE = 0
CAT_ZLIB = 1

OPTION_SUB_QUEUE_ID = Struct(">II")  # a SUB_QUEUE_IDS_OLD option with one id
OPTION_ONE_ID_HEAD = 0x04000002  # its first word


def put_message(queue_id: int, guid: bytes, data: bytes, crc: int, flags: int = 0, compression: int = CAT_NONE,
                schema_id: int = 0, options: bytes = b"") -> bytes:
    """One message of a PUT event: header, options, application data, padding."""
    pad = PAD4[len(data) & 3]
    words = (PUT_HEADER_BYTES + len(options) + len(data) + len(pad)) >> 2
    return b"".join((
        PUT_HEADER.pack(flags << 28 | words, len(options) << 6 | compression << 5 | PUT_HEADER_WORDS, queue_id, guid,
                        crc, schema_id, 0),
        options, data, pad))


def push_head(queue_id: int, guid: bytes, padded_bytes: int, flags: int = 0, compression: int = CAT_NONE,
              schema_id: int = 0, options: bytes = b"") -> bytes:
    """What stands before the padded application data (`padded_bytes` long) of one message of a PUSH event."""
    words = (PUSH_HEADER_BYTES + len(options) + padded_bytes) >> 2
    return PUSH_HEADER.pack(flags << 28 | words, len(options) << 6 | compression << 5 | PUSH_HEADER_WORDS, queue_id,
                            guid, schema_id, 0) + options


def sub_queue_ids(ids: Iterable[int]) -> bytes:
    """The option that names the subscriptions of a PUSH, as every SDK understands it."""
    ids = tuple(ids)
    if len(ids) == 1:
        return OPTION_SUB_QUEUE_ID.pack(OPTION_ONE_ID_HEAD, ids[0])
    return Struct(f">I{len(ids)}I").pack(1 << 26 | 1 + len(ids), *ids)


# -- ACK, CONFIRM, REJECT ----------------------------------------------------------------------------------------

ITEMS_HEADER = b"\x16\x00\x00\x00"  # one header word, six words per message
ITEMS_HEADER_BYTES = 4
ACK_MESSAGE = Struct(">I16sI")  # status << 24 | correlation id, GUID, queue id
CONFIRM_MESSAGE = Struct(">I16sI")  # queue id, GUID, sub-queue id
ITEM_BYTES = 24


def ack_message(status: int, correlation_id: int, guid: bytes, queue_id: int) -> bytes:
    """One message of an ACK event."""
    return ACK_MESSAGE.pack(status << 24 | correlation_id, guid, queue_id)


def items_event(event_type: int, items: list[bytes]) -> bytes:
    """An ACK, CONFIRM or REJECT event of packed messages."""
    return b"".join((event_header(event_type, 4 + ITEM_BYTES * len(items)), ITEMS_HEADER, *items))


# -- between brokers ---------------------------------------------------------------------------------------------

STORAGE_HEADER = Struct(">IBBHI")  # flags << 27 | words, version << 4 | header words, type, partition, journal words
STORAGE_HEADER_BYTES = 12
STORAGE_VERSION_AND_WORDS = 1 << 4 | 3
RECEIPT_REQUESTED = 1  # flag of a STORAGE message

RECOVERY_HEADER = Struct(">IBBHI16s")  # final << 31 | words, reserved, words << 4 | file, partition, number, MD5
RECOVERY_HEADER_BYTES = 28

RECEIPT = Struct(">IQI")  # partition, sequence number, lease
RECEIPT_BYTES = 16

CLUSTER_STATE_HEADER = Struct(">B3xIQQQ")  # words << 4 | type, body words, term, sequence number, epoch seconds
CLUSTER_STATE_HEADER_BYTES = 32
CLUSTER_STATE_HEADER_WORDS = 8
