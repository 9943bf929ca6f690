"""The BER dialect of schema messages, driven by the declarations of `fields.py`.

The writer emits constructed values with indefinite length, all defaults, and the shortest integers. The reader accepts
either form of length and any order of fields, skips unknown fields, sets missing ones to defaults, and ignores bytes after
the message.

```
 30 80 | 80 01 03 | a1 80 | aa 80 .. 00 00 | 00 00 | 00 00
 SEQUENCE field 0   field 1 selection 10 of the anonymous choice that is field 1
```

Every input gives a value or a PeerError. Nesting is limited to BER_DEPTH_MAX (`bmqtwist/limits.py`), the number of
values by `Budget`, whose size the caller passes. Enumerations and choices: an unknown enum value fails the message, an
unknown selection leaves the choice unset. Called by `control.py`, and by `cluster_schema.py` for records of the
metadata log; the other encoding is `jsoncodec.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from enum import IntEnum
from functools import cache
from typing import Any

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.limits import BER_DEPTH_MAX
from bmqtwist.steps import at_once
from bmqtwist.wire.fields import Choice, Field, Kind, choice_of, fields_of

RECORD_VALUES = 4  # additional cost of a record: about 5 us, that of a value 1 us
SLICE_VALUES = 1024  # values between two pauses of the reader, about 2 ms

_SEQUENCE = 0x30
_PRIMITIVE = 0x80  # context-specific tag, primitive
_CONSTRUCTED = 0xA0  # context-specific tag, constructed
_OPEN = b"\x80"  # indefinite length
_END = b"\x00\x00"
_LONG_TAG = 0x1F
_TAG_BYTES_MAX = 6
_SMALL = [bytes((1, n)) for n in range(128)]  # length and value of the integers that need one byte

Reader = Callable[[bytes, int, int, str], Any]  # (data, start, stop, name of the field) -> value
Writer = Callable[[list[bytes], Any], None]
Reading = Generator[None, None, tuple[Any, int]]  # with pauses: the value, and the position after it


class Budget:
    """Limit of the number of values in a message, since few bytes can encode many values; 0 = unlimited. A reader raises
    PeerError when `left` is below zero; below `pause` it calls `set_next_pause` and pauses."""

    __slots__ = ("left", "pause")

    def __init__(self, values_max: int) -> None:
        self.left = values_max or sys.maxsize
        self.set_next_pause()

    def set_next_pause(self) -> None:
        """Set the next pause SLICE_VALUES values from now."""
        self.pause = max(0, self.left - SLICE_VALUES)


def decode(cls: type, data: bytes, start: int = 0, values_max: int = 0) -> Any:
    """Decode the message of type `cls` at `start`, ignoring bytes after it. Offsets in errors count from data[0];
    `values_max`: see Budget."""
    return at_once(decode_in_steps(cls, data, start, values_max))


def decode_in_steps(cls: type, data: bytes, start: int = 0, values_max: int = 0) -> Generator[None, None, Any]:
    """Decode like `decode`, as a generator that pauses after every SLICE_VALUES values."""
    if len(data) <= start or data[start] != _SEQUENCE:
        raise PeerError("not a BER sequence", cls.__name__, start)
    _, body, stop, is_open = _header(data, start, len(data), cls.__name__)
    value, _ = yield from _codec(cls).read(data, body, stop, is_open, BER_DEPTH_MAX, Budget(values_max))
    return value


def encode(message: Any) -> bytes:
    """Encode the message as a top-level sequence, without padding."""
    out = [b"\x30\x80"]
    _codec(type(message)).write(out, message)
    return b"".join(out)


# -- reading -----------------------------------------------------------------------------------------------------


def _header(data: bytes, pos: int, limit: int, name: str) -> tuple[int, int, int, bool]:
    """Read tag and length at `pos`: (first tag byte, start of the content, its end or the limit, True if indefinite)."""
    try:
        tag = data[pos]
        at = pos + 1
        if tag & _LONG_TAG == _LONG_TAG:
            while data[at] & 0x80:
                at += 1
                if at - pos > _TAG_BYTES_MAX:
                    raise PeerError("tag too long", name, pos)
            at += 1
            tag = -1  # never a known field: tag numbers of the schema are below 31
            constructed = bool(data[pos] & 0x20)
        else:
            constructed = bool(tag & 0x20)
        length = data[at]
        at += 1
        if length == 0x80:
            if not constructed:
                raise PeerError("primitive value with indefinite length", name, pos)
            if at > limit:
                raise PeerError("message cut short", name, pos)
            return tag, at, limit, True
        if length > 0x80:
            count = length & 0x7F
            if count > 8:
                raise PeerError("length too long", name, pos)
            length = int.from_bytes(data[at:at + count], "big")
            at += count
    except IndexError:
        raise PeerError("message cut short", name, pos) from None
    if at + length > limit:
        raise PeerError("value longer than its container", name, pos)
    return tag, at, at + length, False


def _skip(data: bytes, pos: int, limit: int, depth: int, budget: Budget) -> int:
    budget.left -= 1
    if budget.left < 0:
        raise PeerError("too many values", "unknown field", pos)
    _, at, stop, is_open = _header(data, pos, limit, "unknown field")
    if not is_open:
        return stop
    if depth <= 0:
        raise PeerError("nested too deeply", "unknown field", pos)
    while (end := _end(data, at, limit, True, "unknown field")) < 0:
        at = _skip(data, at, limit, depth - 1, budget)
    return end


def _end(data: bytes, pos: int, limit: int, is_open: bool, name: str) -> int:
    """Return the position after a constructed value if it ends at `pos`, -1 if another part follows."""
    if pos + 2 > limit:
        if pos == limit and not is_open:
            return pos
        raise PeerError("message cut short", name, pos)
    return pos + 2 if is_open and data[pos] == 0 and data[pos + 1] == 0 else -1


def _read_signed(low: int, high: int) -> Reader:
    size_max = (high.bit_length() + 8) // 8

    def read(data: bytes, start: int, stop: int, name: str) -> int:
        if not 0 < stop - start <= size_max:
            raise PeerError("wrong length of an integer", name, start)
        if stop - start == 1:
            value = data[start]
            if value < 0x80:
                return value
        value = int.from_bytes(data[start:stop], "big", signed=True)
        if value < low:  # unsigned, written without its leading zero
            value += 1 << high.bit_length() if low == 0 else 0
        if not low <= value <= high:
            raise PeerError("integer out of range", name, start)
        return value

    return read


def _read_bool(data: bytes, start: int, stop: int, name: str) -> bool:
    if stop - start != 1:
        raise PeerError("wrong length of a boolean", name, start)
    return data[start] != 0


def _read_text(data: bytes, start: int, stop: int, name: str) -> str:
    return data[start:stop].decode("utf-8", "replace")


def _read_bytes(data: bytes, start: int, stop: int, name: str) -> bytes:
    return data[start:stop]


def _read_enum(cls: type[IntEnum], low: int, high: int) -> Reader:
    members, read_int = {member.value: member for member in cls}, _read_signed(low, high)

    def read(data: bytes, start: int, stop: int, name: str) -> IntEnum:
        value = members.get(read_int(data, start, stop, name))
        if value is None:
            raise PeerError(f"not a value of {cls.__name__}", name, start)
        return value

    return read


# -- writing -----------------------------------------------------------------------------------------------------


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes((size,))
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0x80 | len(digits),)) + digits


def _write_int(tag: bytes, entry: Field) -> Writer:
    low, high, name = entry.low, entry.high, entry.wire_name

    def write(out: list[bytes], value: int) -> None:
        out.append(tag)
        if 0 <= value < 128:
            out.append(_SMALL[value])
            return
        if not low <= value <= high:
            raise LocalError(f"{name}: {value} does not fit; use {low} to {high}")
        size = (value if value >= 0 else ~value).bit_length() // 8 + 1
        out.append(bytes((size,)) + value.to_bytes(size, "big", signed=True))

    return write


def _write_octets(tag: bytes, is_text: bool) -> Writer:
    def write(out: list[bytes], value: Any) -> None:
        raw = value.encode("utf-8", "replace") if is_text else value
        out += (tag, _length(len(raw)), raw)

    return write


# -- tables ------------------------------------------------------------------------------------------------------


class _BerCodec:
    """Reader and writer of one schema type, compiled from its declarations."""

    __slots__ = ("choice_head", "choice_tag", "cls", "fields", "is_tuple", "names", "selections", "writers")

    def __init__(self, cls: type) -> None:
        self.cls, self.is_tuple = cls, issubclass(cls, tuple)
        # tag byte -> (attribute, wire name, reader of a primitive | None, codec of a record | None, array?)
        self.fields: dict[int, tuple[str, str, Reader | None, _BerCodec | None, bool]] = {}
        self.writers: list[tuple[str, bool, Writer]] = []  # (attribute, optional?, writer)
        for entry in fields_of(cls):
            self._add(entry)
        choice: Choice | None = choice_of(cls)
        self.choice_tag = -1  # no tag byte
        self.choice_head = b""
        self.selections: dict[int, tuple[str, _BerCodec]] = {}  # tag byte -> (name, codec)
        self.names: dict[str, tuple[bytes, _BerCodec]] = {}  # name -> (tag and open length, codec)
        if choice is not None:
            self.choice_tag = _CONSTRUCTED + choice.wire_id
            self.choice_head = bytes((self.choice_tag, 0x80))
            for tag, name, type_ in choice.selections:
                codec = _codec(type_)
                self.selections[_CONSTRUCTED + tag] = (name, codec)
                self.names[name] = (bytes((_CONSTRUCTED + tag, 0x80)), codec)

    def _add(self, entry: Field) -> None:
        if entry.kind is Kind.RECORD:
            assert entry.type is not None
            codec = _codec(entry.type)
            tag = _CONSTRUCTED + entry.wire_id
            self.fields[tag] = (entry.attribute, entry.wire_name, None, codec, entry.array)
            head = bytes((tag, 0x80))
            write = codec.writer(head, entry.array)
        else:
            tag = _PRIMITIVE + entry.wire_id
            reader, write = _primitive(entry, bytes((tag,)))
            self.fields[tag] = (entry.attribute, entry.wire_name, reader, None, False)
        self.writers.append((entry.attribute, entry.optional, write))

    def read(self, data: bytes, pos: int, limit: int, is_open: bool, depth: int, budget: Budget) -> Reading:
        """Return the value whose content begins at `pos`, and the position after it."""
        if depth <= 0:
            raise PeerError("nested too deeply", self.cls.__name__, pos)
        budget.left -= RECORD_VALUES
        values: dict[str, Any] = {}
        fields, choice_tag = self.fields, self.choice_tag
        while True:
            if pos + 2 > limit:
                if pos == limit and not is_open:
                    return self.cls(**values), pos
                raise PeerError("message cut short", self.cls.__name__, pos)
            tag, length = data[pos], data[pos + 1]
            if is_open and tag == 0 and length == 0:
                return self.cls(**values), pos + 2
            budget.left -= 1
            if budget.left < budget.pause:
                if budget.left < 0:
                    raise PeerError("too many values", self.cls.__name__, pos)
                budget.set_next_pause()
                yield
            known = fields.get(tag)
            if known is None and tag != choice_tag:
                self._refuse_wrong_form(tag, pos)
                pos = _skip(data, pos, limit, depth - 1, budget)
                continue
            if length < 0x80:
                start, stop, open_inside = pos + 2, pos + 2 + length, False
                if stop > limit:
                    raise PeerError("value longer than its container", self.cls.__name__, pos)
            else:
                _, start, stop, open_inside = _header(data, pos, limit, self.cls.__name__)
            if known is None:
                pos = yield from self._read_choice(data, start, stop, open_inside, depth - 1, budget, values)
                continue
            attribute, name, reader, codec, is_array = known
            if reader is not None:
                values[attribute] = reader(data, start, stop, name)
                pos = stop
            elif codec is not None and is_array:
                values[attribute], pos = yield from codec.read_array(data, start, stop, open_inside, depth - 1, budget,
                                                                     name)
            elif codec is not None:
                values[attribute], pos = yield from codec.read(data, start, stop, open_inside, depth - 1, budget)

    def _refuse_wrong_form(self, tag: int, pos: int) -> None:
        """Raise PeerError for a known field in the other form, primitive for constructed or the reverse."""
        other = tag ^ 0x20
        if other in self.fields or other == self.choice_tag:
            raise PeerError("primitive where constructed is expected, or the reverse", self.cls.__name__, pos)

    def _read_choice(self, data: bytes, pos: int, limit: int, is_open: bool, depth: int, budget: Budget,
                     values: dict[str, Any]) -> Generator[None, None, int]:
        if depth <= 0:
            raise PeerError("nested too deeply", self.cls.__name__, pos)
        while (end := _end(data, pos, limit, is_open, self.cls.__name__)) < 0:
            selection = self.selections.get(data[pos])
            if selection is None:
                pos = _skip(data, pos, limit, depth - 1, budget)
                continue
            _, start, stop, open_inside = _header(data, pos, limit, selection[0])
            value, pos = yield from selection[1].read(data, start, stop, open_inside, depth - 1, budget)
            if budget.left < 0:
                raise PeerError("too many values", selection[0], pos)
            values["choice"], values["value"] = selection[0], value
        return end

    def read_array(self, data: bytes, pos: int, limit: int, is_open: bool, depth: int, budget: Budget,
                   name: str) -> Reading:
        """Return the elements whose content begins at `pos`; skip everything but sequences, such as a length hint."""
        items: list[Any] = []
        while (end := _end(data, pos, limit, is_open, name)) < 0:
            if data[pos] != _SEQUENCE:
                pos = _skip(data, pos, limit, depth - 1, budget)
                continue
            _, start, stop, open_inside = _header(data, pos, limit, name)
            item, pos = yield from self.read(data, start, stop, open_inside, depth - 1, budget)
            if budget.left < budget.pause:
                if budget.left < 0:
                    raise PeerError("too many values", name, pos)
                budget.set_next_pause()
                yield
            items.append(item)
        return items, end

    def write(self, out: list[bytes], message: Any) -> None:
        """Append the content of a sequence and its end."""
        if self.is_tuple:
            message = self.cls(*message)
        for attribute, is_optional, write in self.writers:
            value = getattr(message, attribute)
            if value is not None:
                write(out, value)
            elif not is_optional:
                raise LocalError(f"{self.cls.__name__}.{attribute} is not optional: give it a value")
        if self.choice_tag >= 0:
            known = self.names.get(message.choice)
            if known is None:
                raise LocalError(f"{self.cls.__name__} has no selection {message.choice!r}: choose one of "
                                 + ", ".join(self.names))
            head, codec = known
            if type(message.value) is not codec.cls:
                raise LocalError(f"{self.cls.__name__}.{message.choice} takes a {codec.cls.__name__}, "
                                 f"not a {type(message.value).__name__}")
            out += (self.choice_head, head)
            codec.write(out, message.value)
            out.append(_END)
        out.append(_END)

    def writer(self, head: bytes, is_array: bool) -> Writer:
        def write(out: list[bytes], value: Any) -> None:
            out.append(head)
            if not is_array:
                self.write(out, value)
                return
            for each in value:
                out.append(b"\x30\x80")
                self.write(out, each)
            out.append(_END)

        return write


def _primitive(entry: Field, tag: bytes) -> tuple[Reader, Writer]:
    if entry.kind is Kind.TEXT:
        return _read_text, _write_octets(tag, True)
    if entry.kind is Kind.BYTES:
        return _read_bytes, _write_octets(tag, False)
    write = _write_int(tag, entry)
    if entry.kind is Kind.INT:
        return _read_signed(entry.low, entry.high), write
    if entry.kind is Kind.BOOL:
        return _read_bool, write
    assert entry.kind is Kind.ENUM and entry.type is not None
    return _read_enum(entry.type, entry.low, entry.high), write


_codec: Callable[[Any], _BerCodec] = cache(_BerCodec)
