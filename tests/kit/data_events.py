"""Data events as objects: the codecs of `bmqtwist.wire.events`, and codecs that only tests need.

The latter: PUSH events, options, and the encoding of CONFIRM and REJECT events from messages. Used by tests of `wire`, by
`sdk_kit.py` and by `sdk_playback.py`; an independent codec is `codec.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bmqtwist.errors import PeerError
from bmqtwist.wire import layout
from bmqtwist.wire.events import (
    AckMessage,
    ConfirmMessage,
    PutMessage,
    decode_ack,
    decode_confirm,
    decode_put,
    encode_ack,
    encode_put,
)
from bmqtwist.wire.fast import (
    COMPRESSION_SHIFT,
    CONFIRM_MESSAGE,
    FLAGS_SHIFT,
    OPTIONS_SHIFT,
    PAD4,
    PUSH_HEADER,
    PUSH_HEADER_WORDS,
    SUB_QUEUE_INFOS,
    EventType,
    event_header,
    items_event,
    sub_queue_ids,
    sub_queue_infos,
)
from bmqtwist.wire.options import MSG_GROUP_ID, GroupId, Option, SubQueueIds, rda_byte
from bmqtwist.wire.walk import walk_pushes

__all__ = ["AckMessage", "ConfirmMessage", "PushMessage", "PutMessage", "decode_ack", "decode_confirm", "decode_push",
           "decode_put", "encode_ack", "encode_confirm", "encode_options", "encode_push",
           "encode_put", "encode_reject"]


@dataclass(slots=True)
class PushMessage:
    """A message of a PUSH event.

    `data`: application data without padding; empty with flag IMPLICIT_PAYLOAD. The original writes four bytes of padding
    then; readers accept none, too.
    """

    queue_id: int
    guid: bytes
    data: bytes
    flags: int = 0
    compression: int = 0
    schema_id: int = 0
    options: bytes = b""
    header_words: int = PUSH_HEADER_WORDS  # 7 = without schema id


def decode_push(buffer: bytes, start: int, end: int) -> tuple[list[PushMessage], PeerError | None]:
    """Decode the messages of a PUSH event whose body is buffer[start:end]; return them, and the error that ended it."""
    found: list[PushMessage] = []
    try:
        for queue_id, guid, data, flags, compression, schema_id, options, words, _ in walk_pushes(buffer, start, end):
            found.append(PushMessage(queue_id, guid, data, flags, compression, schema_id, options,
                              min(words, PUSH_HEADER_WORDS)))
    except PeerError as error:
        return found, error
    return found, None


def encode_push(messages: Sequence[PushMessage]) -> bytes:
    """Encode a PUSH event."""
    parts = [_encode_push(message) for message in messages]
    return b"".join((event_header(EventType.PUSH, sum(map(len, parts))), *parts))


def _encode_push(message: PushMessage) -> bytes:
    data, options, header_words = message.data, message.options, message.header_words
    pad = PAD4[len(data) & 3]  # one word of it even for an implicit payload, as the original writes it
    words = header_words + (len(options) + len(data) + len(pad)) // 4
    sizes = len(options) // 4 << OPTIONS_SHIFT | message.compression << COMPRESSION_SHIFT | header_words
    header = PUSH_HEADER.pack(message.flags << FLAGS_SHIFT | words, sizes, message.queue_id, message.guid,
                              message.schema_id, 0)
    return b"".join((header[:header_words * 4], options, data, pad))


def encode_confirm(messages: Iterable[ConfirmMessage]) -> bytes:
    """Encode a CONFIRM event."""
    return _encode_confirms(EventType.CONFIRM, messages)


def encode_reject(messages: Iterable[ConfirmMessage]) -> bytes:
    """Encode a REJECT event."""
    return _encode_confirms(EventType.REJECT, messages)


def _encode_confirms(kind: EventType, messages: Iterable[ConfirmMessage]) -> bytes:
    return items_event(kind, [CONFIRM_MESSAGE.pack(each.queue_id, each.guid, each.sub_queue_id) for each in messages])


def encode_options(options: Sequence[Option]) -> bytes:
    """Encode an options area."""
    return b"".join(map(_encode_option, options))


def _encode_option(option: Option) -> bytes:
    if isinstance(option, SubQueueIds):
        return sub_queue_ids(option.ids)
    head = layout.OPTION_HEADER
    if isinstance(option, GroupId):
        body = option.text + PAD4[len(option.text) & 3]
        return head.struct.pack(head.word(type=MSG_GROUP_ID, words=1 + len(body) // 4)) + body
    if option.packed:
        return head.struct.pack(head.word(type=SUB_QUEUE_INFOS, packed=1, words=rda_byte(option.items[0])))
    first = option.items[0]
    return sub_queue_infos([(item.id, rda_byte(item)) for item in option.items], first.lease, first.sequence)
