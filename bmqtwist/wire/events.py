"""Data events of clients as objects: PUT, ACK, CONFIRM, REJECT, for code off the hot path.

A decoder returns the messages before the first malformed one, and a PeerError for the malformed one; later messages are
lost, since their position is unknown. Offsets count from the start of the given buffer. Fields are declared in
`layout.py`, options in `options.py`; `walk.py` finds the messages of a PUT. Called by the SDK, which packs old PUTs
again, by `relay/messages.py`, `member/member_relays.py` and `bmqtwist.testing`; the hot path uses `fast.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from bmqtwist.errors import PeerError
from bmqtwist.wire.fast import (
    ACK_MESSAGE,
    ACK_STATUS_MASK,
    ACK_STATUS_SHIFT,
    COMPRESSION_SHIFT,
    CONFIRM_MESSAGE,
    CORRELATION_ID_MASK,
    FLAGS_SHIFT,
    HEADER_WORDS_SHIFT,
    ITEM_BYTES,
    ITEM_WORDS_MASK,
    ITEMS_HEADER_BYTES,
    OPTIONS_SHIFT,
    PAD4,
    PUT_HEADER,
    PUT_HEADER_WORDS,
    EventType,
    ack_message,
    event_header,
    items_event,
)
from bmqtwist.wire.walk import walk_puts


@dataclass(slots=True)
class PutMessage:
    """One message of a PUT event. `data`: application data without padding; `crc` None = compute when encoding.

    `guid`: the message GUID or, from clients without GUIDs, the correlation id in bytes 1..3.
    """

    queue_id: int
    guid: bytes
    data: bytes
    flags: int = 0
    crc: int | None = None
    compression: int = 0
    schema_id: int = 0
    options: bytes = b""
    header_words: int = PUT_HEADER_WORDS  # 8 = without schema id

    @property
    def correlation_id(self) -> int:
        """The 24-bit id of clients without GUIDs."""
        return int.from_bytes(self.guid[1:4], "big")


@dataclass(slots=True)
class AckMessage:
    """One message of an ACK event; correlation_id 0 = none."""

    status: int
    correlation_id: int
    guid: bytes
    queue_id: int


@dataclass(slots=True)
class ConfirmMessage:
    """One message of a CONFIRM or REJECT event."""

    queue_id: int
    guid: bytes
    sub_queue_id: int


def decode_put(buffer: bytes, start: int, end: int) -> tuple[list[PutMessage], PeerError | None]:
    """Decode the messages of a PUT event whose body is buffer[start:end]."""
    found: list[PutMessage] = []
    try:
        for queue_id, guid, data, flags, crc, compression, schema_id, options, words, _ in walk_puts(buffer, start, end):
            found.append(PutMessage(queue_id, guid, data, flags, crc, compression, schema_id, options,
                             min(words, PUT_HEADER_WORDS)))
    except PeerError as error:
        return found, error
    return found, None


def encode_put(messages: Sequence[PutMessage]) -> bytes:
    parts = [_encode_put(message) for message in messages]
    return b"".join((event_header(EventType.PUT, sum(map(len, parts))), *parts))


def _encode_put(message: PutMessage) -> bytes:
    data, options, header_words = message.data, message.options, message.header_words
    pad = PAD4[len(data) & 3]
    words = header_words + (len(options) + len(data) + len(pad)) // 4
    sizes = len(options) // 4 << OPTIONS_SHIFT | message.compression << COMPRESSION_SHIFT | header_words
    crc = crc32c(data) if message.crc is None else message.crc
    header = PUT_HEADER.pack(message.flags << FLAGS_SHIFT | words, sizes, message.queue_id, message.guid, crc,
                             message.schema_id, 0)
    return b"".join((header[:header_words * 4], options, data, pad))


# -- ACK, CONFIRM, REJECT ----------------------------------------------------------------------------------------


def decode_ack(buffer: bytes, start: int, end: int) -> tuple[list[AckMessage], PeerError | None]:
    """Decode the messages of an ACK event whose body is buffer[start:end]."""
    positions, error = _items(buffer, start, end, "ACK")
    found = []
    for pos in positions:
        word, guid, queue_id = ACK_MESSAGE.unpack_from(buffer, pos)
        found.append(AckMessage(word >> ACK_STATUS_SHIFT & ACK_STATUS_MASK, word & CORRELATION_ID_MASK, guid, queue_id))
    return found, error


def decode_confirm(buffer: bytes, start: int, end: int) -> tuple[list[ConfirmMessage], PeerError | None]:
    """Decode the messages of a CONFIRM or REJECT event whose body is buffer[start:end]."""
    positions, error = _items(buffer, start, end, "CONFIRM")
    return [ConfirmMessage(*CONFIRM_MESSAGE.unpack_from(buffer, pos)) for pos in positions], error


def _items(buffer: bytes, start: int, end: int, name: str) -> tuple[range, PeerError | None]:
    """Return the positions of the complete messages of an event with a four-byte header, which may declare larger sizes."""
    if end - start < ITEMS_HEADER_BYTES:
        return range(0), PeerError("event cut short", name, start)
    head, step = (buffer[start] >> HEADER_WORDS_SHIFT) * 4, (buffer[start] & ITEM_WORDS_MASK) * 4
    if head < ITEMS_HEADER_BYTES or step < ITEM_BYTES:
        return range(0), PeerError(f"header of {head} bytes, messages of {step}", name, start)
    first = start + head
    count, rest = divmod(max(end - first, 0), step)
    error: PeerError | None = None
    if rest:
        error = PeerError("message cut short", name, end - rest)
    elif not count:
        error = PeerError("no messages", name, start)
    return range(first, first + count * step, step), error


def encode_ack(messages: Iterable[AckMessage]) -> bytes:
    return items_event(EventType.ACK, [ack_message(each.status, each.correlation_id, each.guid, each.queue_id)
                                       for each in messages])
