"""Properties area of a message, in the old style (v1: lengths) and the new one (v2: offsets).

```
| PROPERTIES_HEADER | PROPERTY_V1 or _V2 of each | name1 value1 name2 value2 ... | padding, 1 to 4 bytes |
```

`layout.py` has the headers. They differ in one number, the *X* of this module: the length of the value (v1), or the
offset of the name from the first name (v2). The padding fills the words of the whole area. A reader accepts every
consistent area, also with larger headers; a writer validates names. `application_data.py` packs and converts areas with
it, `queue/queue.py` decodes them for subscription expressions. Number and names of properties are limited in
`bmqtwist/limits.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from struct import Struct

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.limits import PROPERTIES_MAX, PROPERTY_NAME_BYTES_MAX
from bmqtwist.wire import layout
from bmqtwist.wire.fast import PAD4


class PropertyType(IntEnum):
    """Type of a property's value. In Python: BOOL bool; CHAR (signed), SHORT, INT32, INT64 int; STRING str; BINARY
    bytes."""

    BOOL = 1
    CHAR = 2
    SHORT = 3
    INT32 = 4
    INT64 = 5
    STRING = 6
    BINARY = 7

    def __repr__(self) -> str:
        return f"<PropertyType.{self.name}>"


Value = int | str | bool | bytes
Properties = dict[str, tuple[PropertyType, Value]]

_HEADER = layout.PROPERTIES_HEADER.struct  # sizes of the headers and words of the area; count
_PROPERTY = layout.PROPERTY_V1.struct  # type and X; name length
_HEADER_BYTES = layout.PROPERTIES_HEADER.size
_SIZES = layout.PROPERTIES_HEADER.word(property_header_half=_PROPERTY.size // 2, header_half=_HEADER_BYTES // 2)
_PROPERTY_HALF_SHIFT = layout.PROPERTIES_HEADER.shift("property_header_half")
_HALF_SHIFT = layout.PROPERTIES_HEADER.shift("header_half")
_HALF_MASK = layout.PROPERTIES_HEADER.mask("header_half")
_WORDS_MASK = layout.PROPERTIES_HEADER.mask("area_words")
_TYPE_SHIFT = layout.PROPERTY_V1.shift("type")
_TYPE_MASK = layout.PROPERTY_V1.mask("type")
_X_MASK = layout.PROPERTY_V1.mask("value_length")
_NAME_LENGTH_MASK = layout.PROPERTY_V1.mask("name_length")

_ANY, _UNKNOWN = 0, -1
_VALUE_BYTES = (_UNKNOWN, 1, 1, 2, 4, 8, _ANY, _ANY, *[_UNKNOWN] * 24)  # by type; plain ints, since enumerations hash slowly
_BOOL, _STRING, _BINARY = int(PropertyType.BOOL), int(PropertyType.STRING), int(PropertyType.BINARY)
_MEMBERS = {int(each): each for each in PropertyType}
_HEADS = [Struct(">" + _PROPERTY.format[1:] * count) for count in range(PROPERTIES_MAX + 1)]  # all headers in one struct
_LOSSLESS = "surrogateescape"  # other bytes than UTF-8 survive a round trip, too

_Entry = tuple[int, int, int, int, int]  # type, start and end of the name, start and end of the value


def area_length(data: bytes | memoryview) -> int:
    """Return the length in bytes of the area at the start of application data, padding included."""
    if len(data) < _HEADER_BYTES:
        raise PeerError("properties cut short", "properties", len(data))
    length = announced_length(data)
    if not _HEADER_BYTES < length <= len(data):
        raise PeerError("size of the properties area does not fit the data", "properties", 1)
    return length


def announced_length(data: bytes | memoryview) -> int:
    """Return the length in bytes that the header of an area declares; 0 without a whole header."""
    return (_HEADER.unpack_from(data)[0] & _WORDS_MASK) * 4 if len(data) >= _HEADER_BYTES else 0


def _entries(area: bytes, v2: bool) -> tuple[list[_Entry], int, int]:
    """Return all properties as positions in `area`, and the sizes of its header and of a property header."""
    length = area_length(area)
    pad = area[length - 1]
    if not 1 <= pad <= 4:
        raise PeerError(f"padding byte {pad}", "properties", length - 1)
    end = length - pad
    sizes, count = _HEADER.unpack_from(area)
    head, step = (sizes >> _HALF_SHIFT & _HALF_MASK) * 2, (sizes >> _PROPERTY_HALF_SHIFT & _HALF_MASK) * 2
    if head < _HEADER_BYTES or step < _PROPERTY.size or not count:
        raise PeerError("bad header", "properties")
    base = head + step * count
    if base > end:
        raise PeerError("property headers do not fit the area", "properties", 5)
    heads = _property_heads(area, head, step, count)
    found: list[_Entry] = []
    at = base
    for index in range(count):
        type_and_x = heads[2 * index]
        x = type_and_x & _X_MASK
        name_end = at + (heads[2 * index + 1] & _NAME_LENGTH_MASK)
        if not v2:
            stop = name_end + x
        else:
            if at != base + x:
                raise PeerError("offset of a property out of order", "properties", head + step * index)
            if index + 1 == count:
                stop = end
            else:
                stop = base + (heads[2 * index + 2] & _X_MASK)
        if not at < name_end <= stop <= end:
            raise PeerError("property does not fit the area", "properties", head + step * index)
        kind = type_and_x >> _TYPE_SHIFT & _TYPE_MASK
        size = _VALUE_BYTES[kind]
        if size and size != stop - name_end:
            if size == _UNKNOWN:
                raise PeerError(f"unknown property type {kind}", "properties", head + step * index)
            raise PeerError(f"wrong length of a {_MEMBERS[kind].name} property", "properties", name_end)
        found.append((kind, at, name_end, name_end, stop))
        at = stop
    if at != end:
        raise PeerError("bytes after the last property", "properties", at)
    return found, head, step


def _property_heads(area: bytes, head: int, step: int, count: int) -> tuple[int, ...]:
    """Return both numbers of each property header, in order."""
    if step == _PROPERTY.size:
        return _HEADS[count].unpack_from(area, head)
    return tuple(part for at in range(head, head + step * count, step) for part in _PROPERTY.unpack_from(area, at))


def _value(area: bytes, kind: int, start: int, stop: int) -> Value:
    if kind == _STRING:
        return area[start:stop].decode("utf-8", _LOSSLESS)
    if kind == _BINARY:
        return area[start:stop]
    if kind == _BOOL:
        return area[start] != 0
    return int.from_bytes(area[start:stop], "big", signed=True)


def decode(area: bytes, v2: bool) -> Properties:
    """Decode all properties in order; bytes after the area are ignored."""
    found: Properties = {}
    for kind, start, name_end, begin, stop in _entries(area, v2)[0]:
        name = area[start:name_end].decode("utf-8", _LOSSLESS)
        if name in found:
            raise PeerError("property given twice", "properties", start)
        found[name] = _MEMBERS[kind], _value(area, kind, begin, stop)
    return found


def values(area: bytes, v2: bool, wanted: Callable[[str], object] | None = None) -> dict[str, Value]:
    """Return values by name, without types; with `wanted` only values whose names it accepts."""
    found: dict[str, Value] = {}
    for kind, start, name_end, begin, stop in _entries(area, v2)[0]:
        name = area[start:name_end].decode("utf-8", _LOSSLESS)
        if wanted is None or wanted(name):
            found[name] = _value(area, kind, begin, stop)
    return found


def to_v1(area: bytes) -> bytes:
    """Convert a v2 area to v1: the same bytes except the X of each property, without the bytes after the area."""
    entries, head, step = _entries(area, True)
    out = bytearray(area[:area_length(area)])
    for index, (kind, _, _, begin, stop) in enumerate(entries):
        at = head + step * index
        _PROPERTY.pack_into(out, at, kind << _TYPE_SHIFT | stop - begin, _PROPERTY.unpack_from(area, at)[1])
    return bytes(out)


def encode(properties: Mapping[str, tuple[PropertyType, Value]], v2: bool) -> bytes:
    """Encode the properties in the given order; LocalError names the invalid one."""
    if not 0 < len(properties) <= PROPERTIES_MAX:
        raise LocalError(f"{len(properties)} properties: a message takes 1 to {PROPERTIES_MAX}")
    heads: list[bytes] = []
    parts: list[bytes] = []
    offset = 0
    for name, (kind, value) in properties.items():
        raw_name, raw = _encode_text(name, name), _raw(name, kind, value)
        if not raw_name[:1].isalnum() or len(raw_name) > PROPERTY_NAME_BYTES_MAX:
            raise LocalError(f"property name {name[:40]!r}: begin it with a letter or a digit and keep it within "
                             f"{PROPERTY_NAME_BYTES_MAX} bytes")
        x = offset if v2 else len(raw)
        if x > _X_MASK:
            raise LocalError(f"property {name[:40]!r} is too large")
        heads.append(_PROPERTY.pack(kind << _TYPE_SHIFT | x, len(raw_name)))
        parts += (raw_name, raw)
        offset += len(raw_name) + len(raw)
    size = _HEADER_BYTES + _PROPERTY.size * len(heads) + offset
    words = (size >> 2) + 1
    if words > _WORDS_MASK:
        raise LocalError(f"{size} bytes of properties: keep them below {_WORDS_MASK * 4}")
    header = _HEADER.pack(_SIZES | words, len(heads))
    return b"".join((header, *heads, *parts, PAD4[size & 3]))


def _encode_text(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", _LOSSLESS)
    except UnicodeEncodeError as error:
        raise LocalError(f"property {name[:40]!r}: half a surrogate pair at character {error.start}") from None


def _raw(name: str, kind: PropertyType, value: Value) -> bytes:
    if kind == PropertyType.STRING and isinstance(value, str):
        return _encode_text(name, value)
    if kind == PropertyType.BINARY and isinstance(value, bytes):
        return value
    size = _VALUE_BYTES[kind]
    if size > 0 and isinstance(value, int):
        try:
            return bool(value).to_bytes(1, "big") if kind == PropertyType.BOOL else value.to_bytes(
                size, "big", signed=True)
        except OverflowError:
            raise LocalError(f"property {name[:40]!r}: {value} does not fit into {kind.name}") from None
    raise LocalError(f"property {name[:40]!r}: {type(value).__name__} is not a value of a {kind.name}")
