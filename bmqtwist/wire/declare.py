"""Declaration of headers and records of fixed size, and the encoders and decoders that follow from it.

    HEADER = Layout(
        number(flags=4, words=28),         one big-endian number of 8, 16, 32 or 64 bits, most significant field first
        number(queue_id=32),
        raw(guid=16),                      16 bytes
        skip(4),                           4 reserved bytes: written 0, skipped by readers
    )

One declaration gives two pairs of reader and writer:

- `HEADER.struct`, a precompiled `struct.Struct` with one value per number and per `raw`, for the hot path. `shift`, `mask`
  and `word` give the positions of fields in a number.
- `HEADER.parse` and `HEADER.build`, with named fields. They use construct and take about 50 us, for headers that are read
  once per file. The first use imports construct, so applications that only post and consume never load it.

The headers of the wire are declared with it in `layout.py`, the records of files in `storage/layout.py`. Schema messages
have declarations of another kind: `fields.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Any

_NUMBERS = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True, slots=True)
class LayoutPart:
    """One value of the struct, or a run of skipped bytes.

    `code`: format character of struct; `fields`: names and bits, most significant first; `constant`: the fixed content.
    """

    code: str
    size: int
    fields: tuple[tuple[str, int], ...] = ()
    constant: bytes = b""

    @property
    def is_number(self) -> bool:
        """True if the struct gives an integer, signed or not."""
        return self.code in "BHIQbhiq"


def number(**bits: int) -> LayoutPart:
    """Unsigned number of the given fields, most significant first. Names that begin with `_` are reserved bits."""
    total = sum(bits.values())
    if total not in _NUMBERS:
        raise ValueError(f"{', '.join(bits)}: {total} bits make no number, use 8, 16, 32 or 64")
    return LayoutPart(_NUMBERS[total], total // 8, tuple(bits.items()))


def signed(**bits: int) -> LayoutPart:
    """Signed number: one field of 8, 16, 32 or 64 bits."""
    part = number(**bits)
    if len(bits) != 1:
        raise ValueError(f"{', '.join(bits)}: a signed number is one field")
    return LayoutPart(part.code.lower(), part.size, part.fields)


def raw(**sizes: int) -> LayoutPart:
    """Field of the given size in bytes."""
    (name, size), = sizes.items()
    return LayoutPart(f"{size}s", size, ((name, size * 8),))


def null(**sizes: int) -> LayoutPart:
    """Field of the given size in bytes that writers fill with zeros: it has a name, but the struct skips it."""
    (name, size), = sizes.items()
    return LayoutPart(f"{size}x", size, ((name, size * 8),))


def skip(size: int) -> LayoutPart:
    """Reserved bytes: written 0, ignored by readers."""
    return LayoutPart(f"{size}x", size)


def magic(**values: bytes) -> LayoutPart:
    """Constant bytes. The struct reads them as a number, which the caller may compare with `Layout.constant`; readers do
    not check it."""
    (name, value), = values.items()
    part = number(**{name: len(value) * 8})
    return LayoutPart(part.code, part.size, part.fields, value)


class Layout:
    """Sequence of parts. `size`: total bytes; `struct`: reads and writes their values."""

    def __init__(self, *parts: LayoutPart) -> None:
        self.parts = parts
        self.size = sum(part.size for part in parts)
        self.struct = Struct(">" + "".join(part.code for part in parts))
        self._places: dict[str, tuple[LayoutPart, int, int, int]] = {}  # field -> its part, offset in bytes, shift, mask
        for part, offset in zip(parts, self._offsets(), strict=True):
            shift = part.size * 8
            for name, bits in part.fields:
                shift -= bits
                if name in self._places:
                    raise ValueError(f"two fields are called {name}")
                if not name.startswith("_"):
                    self._places[name] = part, offset, shift, (1 << bits) - 1

    def _offsets(self) -> Iterator[int]:
        at = 0
        for part in self.parts:
            yield at
            at += part.size

    @property
    def words(self) -> int:
        return self.size // 4

    def offset(self, name: str) -> int:
        """Offset in bytes of the field, or of the number that contains it."""
        return self._places[name][1]

    def shift(self, name: str) -> int:
        """Bits to the right of a field within its number."""
        return self._places[name][2]

    def bits(self, name: str) -> int:
        return self._places[name][3].bit_length()

    def mask(self, name: str) -> int:
        """Largest value of a field, which is also the mask of its bits after the shift."""
        return self._places[name][3]

    def constant(self, name: str) -> int:
        """Value of a `magic` as the struct reads it."""
        return int.from_bytes(self._places[name][0].constant, "big")

    def word(self, **values: int) -> int:
        """Return the number in which these fields, all of one number, have these values and all others are 0."""
        found = 0
        if len({self.offset(name) for name in values}) != 1:
            raise ValueError(f"{', '.join(values)} are not in one number")
        for name, value in values.items():
            if not 0 <= value <= self.mask(name):
                raise ValueError(f"{value} does not fit into {name}")
            found |= value << self.shift(name)
        return found

    def between(self, before: str, behind: str) -> Struct:
        """Return the struct of the parts between those of two fields."""
        first, last = (self.parts.index(self._places[name][0]) for name in (before, behind))
        return Struct(">" + "".join(part.code for part in self.parts[first + 1:last]))

    @cached_property
    def construct(self) -> Any:
        """The layout as a construct: one flat struct of named fields."""
        import construct as c  # type: ignore[import-untyped]

        fields = []
        for part in self.parts:
            if part.is_number and not part.constant:
                fields += [c.Padding(bits) if name.startswith("_") else
                           name / c.BitsInteger(bits, signed=part.code.islower()) for name, bits in part.fields]
            elif part.fields:
                content = c.Bytewise(c.Bytes(part.size))
                fields.append(part.fields[0][0] / (content if part.code.endswith("s") else
                                                   c.Default(content, part.constant or bytes(part.size))))
            else:
                fields.append(c.Padding(part.size * 8))
        return c.BitStruct(*fields)

    def parse(self, data: bytes) -> Any:
        """Return the fields at the start of `data`, by name; construct.StreamError if it is too short."""
        return self.construct.parse(data)

    def build(self, **values: int | bytes) -> bytes:
        """Encode all fields, given by name; `magic` and `null` fields may be omitted."""
        built: bytes = self.construct.build(values)
        return built
