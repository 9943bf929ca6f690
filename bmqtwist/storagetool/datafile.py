"""DATA records, decoded for tools: their index in the file, options, properties and payload.

Used by the storage tool, `bmq tail` and the Spark data source; a broker reads DATA with `storage/partition.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bmqtwist.errors import PeerError
from bmqtwist.storage.records import (
    DATA_FLAGS_MASK,
    DATA_HEADER,
    DATA_HEADER_WORDS_SHIFT,
    DATA_OPTIONS_SHIFT,
    DATA_WORDS_MASK,
    PROPERTIES_FLAG,
)
from bmqtwist.storage.store import DATA_HEADER_BYTES
from bmqtwist.wire import options as wire_options
from bmqtwist.wire import properties as wire_properties
from bmqtwist.wire.application_data import inflate
from bmqtwist.wire.fast import CAT_ZLIB

_WINDOW_BYTES = 1 << 20


class DataError(ValueError):
    """No valid DATA record at an offset; the text is a sentence."""


@dataclass(slots=True)
class DataRecord:
    """One DATA record. Sizes in words, `offset` in bytes; `data`: properties and payload as stored."""

    index: int | None
    offset: int
    header_words: int
    options_words: int
    message_words: int
    flags: int
    schema_wire_id: int
    options: bytes
    data: bytes

    @property
    def has_properties(self) -> bool:
        return bool(self.flags & PROPERTIES_FLAG)


@dataclass(slots=True)
class MessageContent:
    """Properties and payload of a message. `inflated`: the payload was decompressed, because properties were within it."""

    properties: wire_properties.Properties
    payload: bytes
    inflated: bool = False
    problem: str = ""


class DataFile:
    """Random access to the records of a DATA file. `read(offset, size)` reads it."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self.size = read, size
        self._indexes: dict[int, int] = {}  # offset -> number
        self._walk, self._walked = self.walk(), 0

    def record(self, offset: int, numbered: bool = False) -> DataRecord:
        """Return the record at `offset`; DataError if it is invalid. `numbered`: find its index, which reads all headers
        before it."""
        header = self._read(offset, DATA_HEADER.size)
        if offset < DATA_HEADER_BYTES or len(header) < DATA_HEADER.size:
            raise DataError(f"offset {offset} is outside of the DATA file ({self.size} B)")
        words, options_and_flags, schema_wire_id, _ = DATA_HEADER.unpack(header)
        size, start = (words & DATA_WORDS_MASK) << 2, words >> DATA_HEADER_WORDS_SHIFT << 2
        options = options_and_flags >> DATA_OPTIONS_SHIFT << 2
        raw = self._read(offset, size) if start and size <= self.size else b""
        if not raw or len(raw) < size or start + options >= size or not 1 <= raw[-1] <= 8:
            raise DataError(f"the DATA record at offset {offset} is damaged")
        index = self._index(offset) if numbered else None
        return DataRecord(index, offset, start >> 2, options >> 2, size >> 2, options_and_flags & DATA_FLAGS_MASK,
                          schema_wire_id, raw[start:start + options], raw[start + options:size - raw[-1]])

    def walk(self) -> Iterator[tuple[int, int]]:
        """Iterate over (offset, size) of the records from the start of the file to the first invalid one."""
        offset, base, window = DATA_HEADER_BYTES, 0, b""
        while True:
            if not base <= offset <= base + len(window) - DATA_HEADER.size:
                base, window = offset, self._read(offset, _WINDOW_BYTES)
                if len(window) < DATA_HEADER.size:
                    return
            size = (DATA_HEADER.unpack_from(window, offset - base)[0] & DATA_WORDS_MASK) << 2
            if size < DATA_HEADER.size:
                return
            yield offset, size
            offset += size

    def _index(self, wanted: int) -> int | None:
        """Return the number of the record at an offset, counted from the start of the file."""
        while self._walked < wanted:
            self._walked, _ = next(self._walk, (self.size, 0))
            self._indexes[self._walked] = len(self._indexes)
        return self._indexes.get(wanted)


def content_of(record: DataRecord, compression: int) -> MessageContent:
    """Decode properties and payload. A compressed payload is inflated only if it includes old-style properties."""
    if not record.has_properties:
        return MessageContent({}, record.data)
    data, inflated = record.data, False
    try:
        if compression == CAT_ZLIB and not record.schema_wire_id:
            data, inflated = inflate(data), True
        length = wire_properties.area_length(data)
        return MessageContent(wire_properties.decode(data, bool(record.schema_wire_id)), bytes(data[length:]), inflated)
    except PeerError as error:
        return MessageContent({}, record.data, False, f"properties cannot be read: {error}")


def options_text(record: DataRecord) -> list[str]:
    try:
        return [str(option) for option in wire_options.decode(record.options)]
    except PeerError as error:
        return [f"options cannot be read: {error}"]


def value_text(value: wire_properties.Value) -> str:
    """Format the value of a property."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex().upper()
    return str(value).encode("utf-8", "replace").decode()  # strings that are not UTF-8 hold surrogates


def hex_dump(data: bytes) -> str:
    """Format 16 bytes per line: offset, four groups of digits, characters."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start:start + 16]
        digits = " ".join(part[at:at + 4].hex().upper() for at in range(0, len(part), 4))
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:6}:   {digits:<35}     |{text:<16}|\n")
    return "".join(lines)
