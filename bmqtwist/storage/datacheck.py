"""Holds DATA records against the messages that refer to them. Nothing but live messages is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    DATA_HEADER,
    DATA_HEADER_WORDS,
    DATA_HEADER_WORDS_SHIFT,
    DATA_OPTIONS_SHIFT,
    DATA_WORDS_MASK,
    PROPERTIES_FLAG,
    data_record_bytes,
)
from bmqtwist.storage.store import DATA_HEADER_BYTES, ROLLOVER_CHUNK_BYTES
from bmqtwist.wire.checksum import crc32c

DATA_RECORD_BYTES_MIN = 16  # a header of 12 and a dword of data and padding, in whole dwords


def check_messages(read: Callable[[int, int], bytes],
                   messages: Iterable[Message]) -> tuple[int, dict[str, list[Message]]]:
    """Set size, options, schema and the properties flag of `messages` from their DATA records.

    Returns the bytes of all good records, and what is wrong with the others: reason -> messages. `read(offset, size)`
    reads DATA; it is called with neighbouring ranges if the messages are in order of their offsets.
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
    """Likewise for one, whose DATA record begins at `at`; the bytes of the record. ValueError: what is wrong with it."""
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
    if crc32c(window[start + options:stop]) != message.crc:
        raise ValueError("its data does not match its checksum")
    message.size, message.has_properties, message.schema_id = length, bool(flags & PROPERTIES_FLAG), schema_id
    if options:
        message.options = bytes(window[start:start + options])
    return size
