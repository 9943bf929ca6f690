"""How headers and records of a fixed size are declared, and what follows from a declaration.

    HEADER = Layout(
        number(flags=4, words=28),         one big-endian number of 8, 16, 32 or 64 bits, most significant field first
        number(queue_id=32),
        raw(guid=16),                      so many bytes
        skip(4),                           reserved bytes: written 0, read over
    )

Two readers follow from it, and no layout is written down twice:

- `HEADER.struct` is a precompiled `struct.Struct` with one value per number and per `raw`, for what happens once per
  message. `shift`, `mask` and `word` say where the fields of a number lie in it.
- `HEADER.parse` and `HEADER.build` know every field by its name. They are construct's and need some 50 us, so they
  serve where a header is read once per file. construct is imported when they are first used: an application that only
  posts and consumes never loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Any

_NUMBERS = {8: "B", 16: "H", 32: "I", 64: "Q"}


@dataclass(frozen=True, slots=True)
class Part:
    """What one value of the struct, or a run of skipped bytes, holds.

    `code`: as the struct has it; `fields`: names and bits, most significant first; `constant`: what must stand there.
    """

    code: str
    size: int
    fields: tuple[tuple[str, int], ...] = ()
    constant: bytes = b""

    @property
    def is_number(self) -> bool:
        """Does the struct give an integer, signed or not?"""
        return self.code in "BHIQbhiq"


def number(**bits: int) -> Part:
    """An unsigned number made of the fields given, most significant first. Names that begin with `_` are reserved."""
    total = sum(bits.values())
    if total not in _NUMBERS:
        raise ValueError(f"{', '.join(bits)}: {total} bits make no number, use 8, 16, 32 or 64")
    return Part(_NUMBERS[total], total // 8, tuple(bits.items()))


def signed(**bits: int) -> Part:
    """A signed number: one field of 8, 16, 32 or 64 bits."""
    part = number(**bits)
    if len(bits) != 1:
        raise ValueError(f"{', '.join(bits)}: a signed number is one field")
    return Part(part.code.lower(), part.size, part.fields)


def raw(**sizes: int) -> Part:
    """A field of so many bytes."""
    (name, size), = sizes.items()
    return Part(f"{size}s", size, ((name, size * 8),))


def null(**sizes: int) -> Part:
    """A field of so many bytes that every writer fills with zeros: it has a name, but the struct steps over it."""
    (name, size), = sizes.items()
    return Part(f"{size}x", size, ((name, size * 8),))


def skip(size: int) -> Part:
    """So many reserved bytes: written 0 and not looked at."""
    return Part(f"{size}x", size)


def magic(**values: bytes) -> Part:
    """Bytes that are always the same. Nobody checks this while reading; to the struct they are a number, which is
    `Layout.constant` if all is well."""
    (name, value), = values.items()
    part = number(**{name: len(value) * 8})
    return Part(part.code, part.size, part.fields, value)


class Layout:
    """A row of parts. `size`: bytes of all of them; `struct`: reads and writes their values."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts
        self.size = sum(part.size for part in parts)
        self.struct = Struct(">" + "".join(part.code for part in parts))
        self._places: dict[str, tuple[Part, int, int, int]] = {}  # field: its part, offset in bytes, shift, mask
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
        """Byte at which the field, or the number that holds it, begins."""
        return self._places[name][1]

    def shift(self, name: str) -> int:
        """Bits to the right of a field within its number."""
        return self._places[name][2]

    def bits(self, name: str) -> int:
        return self._places[name][3].bit_length()

    def mask(self, name: str) -> int:
        """The largest value of a field, which is also the mask of its bits once they are shifted down."""
        return self._places[name][3]

    def constant(self, name: str) -> int:
        """The value of a `magic` as the struct reads it."""
        return int.from_bytes(self._places[name][0].constant, "big")

    def word(self, **values: int) -> int:
        """The number in which these fields, all of one number, have these values and all others are 0."""
        found = 0
        if len({self.offset(name) for name in values}) != 1:
            raise ValueError(f"{', '.join(values)} are not in one number")
        for name, value in values.items():
            if not 0 <= value <= self.mask(name):
                raise ValueError(f"{value} does not fit into {name}")
            found |= value << self.shift(name)
        return found

    def between(self, before: str, behind: str) -> Struct:
        """The struct of the parts that lie between those of two fields."""
        first, last = (self.parts.index(self._places[name][0]) for name in (before, behind))
        return Struct(">" + "".join(part.code for part in self.parts[first + 1:last]))

    @cached_property
    def construct(self) -> Any:
        """The same as construct declares it: one flat struct of named fields."""
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
        """The fields at the start of `data`, by name; construct.StreamError if it is too short."""
        return self.construct.parse(data)

    def build(self, **values: int | bytes) -> bytes:
        """The bytes of all the fields, given by name; `magic` and `null` ones need not be."""
        built: bytes = self.construct.build(values)
        return built
