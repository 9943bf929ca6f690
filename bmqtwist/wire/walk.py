"""Iteration over the messages of a PUT or PUSH event, with validation of every size before its use.

Broker, client and tools share one loop for PUT and one for PUSH. It yields the valid messages up to the first malformed one
and then raises, since the position of the next one is unknown. A message is a plain tuple for speed: the caller unpacks it
at once. Its `stop` is the position after the message, where the next one begins.

`link/puts.py` calls `put_at`, `relay/messages.py` `walk_pushes`. `events.py` makes objects from the tuples, `frames.py`
finds the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bmqtwist.errors import PeerError
from bmqtwist.wire import layout
from bmqtwist.wire.fast import (
    CAT_ZLIB,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    FLAGS_SHIFT,
    HEADER_WORDS_MASK,
    IMPLICIT_PAYLOAD,
    MESSAGE_PROPERTIES,
    OPTIONS_SHIFT,
    PUSH_HEADER,
    PUSH_HEADER_BYTES,
    PUSH_HEADER_WORDS,
    PUSH_HEADER_WORDS_MIN,
    PUT_HEADER_BYTES,
    PUT_HEADER_WORDS,
    PUT_HEADER_WORDS_MIN,
    WORDS_MASK,
    put_header_at,
)

# queue id, GUID, data without padding, flags, crc, compression, schema id, options, header words, stop
WalkedPut = tuple[int, bytes, bytes, int, int, int, int, bytes, int, int]
# as WalkedPut, without the crc
WalkedPush = tuple[int, bytes, bytes, int, int, int, bytes, int, int]

NO_MESSAGES: Final = -1
CUT_SHORT: Final = -2
BAD_SIZES: Final = -3
BAD_CONTENT: Final = -4

_PROPERTIES: Final = MESSAGE_PROPERTIES << FLAGS_SHIFT
_IMPLICIT: Final = IMPLICIT_PAYLOAD << FLAGS_SHIFT
_unpack_push: Final = PUSH_HEADER.unpack_from
_SIZES = layout.MESSAGE_START.offset("options_words"), layout.MESSAGE_START.offset("flags")


class MessageError(PeerError):
    """A malformed message, which ends its event. `code`: NO_MESSAGES, CUT_SHORT, BAD_SIZES or BAD_CONTENT, as in the log."""

    def __init__(self, code: int, reason: str, field: str, offset: int) -> None:
        super().__init__(reason, field, offset)
        self.code = code


def walk_puts(buffer: bytes, position: int, end: int) -> Iterator[WalkedPut]:
    """Yield the messages of a PUT event whose body is buffer[position:end]; raises MessageError."""
    if position >= end:
        raise MessageError(NO_MESSAGES, "no messages", "PUT", position)
    while position < end:
        put = put_at(buffer, position, end)
        yield put
        position = put[-1]


def put_at(buffer: bytes, position: int, end: int) -> WalkedPut:
    """Return the message at `position` of a PUT event that ends at `end`; raises MessageError. Avoids a generator."""
    if end - position < PUT_HEADER_BYTES:
        raise MessageError(CUT_SHORT, "message cut short", "MessageWords", position)
    first, second, queue_id, guid, crc, schema_id = put_header_at(buffer, position)
    stop = position + ((first & WORDS_MASK) << 2)
    if second == PUT_HEADER_WORDS:  # usual case: no options, not compressed
        header_words, compression, options, start = PUT_HEADER_WORDS, 0, b"", position + PUT_HEADER_BYTES
    else:
        header_words, compression = second & HEADER_WORDS_MASK, second >> COMPRESSION_SHIFT & COMPRESSION_MASK
        behind_header = position + (header_words << 2)
        start = behind_header + (second >> OPTIONS_SHIFT << 2)
        options = buffer[behind_header:start]
        if header_words < PUT_HEADER_WORDS:
            schema_id = 0
    if stop > end or start >= stop or header_words < PUT_HEADER_WORDS_MIN:
        raise _bad_sizes(position, stop, end, header_words, PUT_HEADER_WORDS_MIN)
    pad = buffer[stop - 1]
    if not 1 <= pad <= 4 or start >= stop - pad or compression > CAT_ZLIB or schema_id and not first & _PROPERTIES:
        raise _bad_content(position, stop, pad, compression, schema_id and not first & _PROPERTIES, "no application data")
    return (queue_id, guid, buffer[start:stop - pad], first >> FLAGS_SHIFT, crc, compression, schema_id, options,
            header_words, stop)


def walk_pushes(buffer: bytes, position: int, end: int) -> Iterator[WalkedPush]:
    """Yield the messages of a PUSH event whose body is buffer[position:end]; raises MessageError."""
    if position >= end:
        raise MessageError(NO_MESSAGES, "no messages", "PUSH", position)
    first: int
    second: int
    schema_id: int
    while position < end:
        if end - position >= PUSH_HEADER_BYTES:
            first, second, queue_id, guid, schema_id, _ = _unpack_push(buffer, position)
        elif end - position >= PUSH_HEADER_WORDS_MIN << 2:  # no schema id and no data
            first, second, queue_id, guid, schema_id, _ = _unpack_push(buffer[position:end].ljust(PUSH_HEADER_BYTES, b"\0"))
        else:
            raise MessageError(CUT_SHORT, "message cut short", "MessageWords", position)
        stop = position + ((first & WORDS_MASK) << 2)
        header_words, compression = second & HEADER_WORDS_MASK, second >> COMPRESSION_SHIFT & COMPRESSION_MASK
        behind_header = position + (header_words << 2)
        start = behind_header + (second >> OPTIONS_SHIFT << 2)
        if header_words < PUSH_HEADER_WORDS:
            schema_id = 0
        implicit = first & _IMPLICIT
        if stop > end or start > stop or header_words < PUSH_HEADER_WORDS_MIN:
            raise _bad_sizes(position, stop, end, header_words, PUSH_HEADER_WORDS_MIN)
        pad = buffer[stop - 1]
        if start == stop:
            pad = 0
        if (not (1 <= pad <= 4 or implicit and not pad) or compression > CAT_ZLIB or implicit and start < stop - pad
                or schema_id and not first & _PROPERTIES):
            raise _bad_content(position, stop, pad, compression, schema_id and not first & _PROPERTIES,
                               "data in spite of IMPLICIT_PAYLOAD")
        yield (queue_id, guid, buffer[start:stop - pad], first >> FLAGS_SHIFT, compression, schema_id,
               buffer[behind_header:start], header_words, stop)
        position = stop


def _bad_sizes(position: int, stop: int, end: int, header_words: int, header_words_min: int) -> MessageError:
    """Return the error of the sizes of the message at `position`."""
    sizes, words = (position + offset for offset in _SIZES)
    if stop > end:
        return MessageError(BAD_SIZES, "message longer than its event", "MessageWords", words)
    if header_words < header_words_min:
        return MessageError(BAD_SIZES, f"header of {header_words} words", "HeaderWords", sizes)
    return MessageError(BAD_SIZES, "header and options longer than the message", "OptionsWords", sizes)


def _bad_content(position: int, stop: int, pad: int, compression: int, schema_alone: int, otherwise: str) -> MessageError:
    """Return the error of the content of the message at `position`."""
    if compression > CAT_ZLIB:
        return MessageError(BAD_CONTENT, f"unknown compression {compression}", "CAT", position + _SIZES[0])
    if schema_alone:
        return MessageError(BAD_CONTENT, "schema id without properties", "SchemaWireId", position)
    if not 1 <= pad <= 4:
        return MessageError(BAD_CONTENT, f"padding byte {pad}", "padding", stop - 1)
    return MessageError(BAD_CONTENT, otherwise, "data", position)
