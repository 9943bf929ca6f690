"""Deterministic mutations of byte strings, from one seeded generator.

Used by all targets of this package and by `tests/soak/damage.py`; the seeds are in `corpus.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_BYTES = (0, 1, 2, 4, 9, 0x0C, 0x10, 0x1B, 0x30, 0x40, 0x7F, 0x80, 0x81, 0x84, 0xA0, 0xBF, 0xC0, 0xFE, 0xFF)
_WORDS = (0, 1, 2, 3, 4, 7, 8, 9, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0xFFFFFF, 0x0FFFFFFF, 0x10000000, 0x7FFFFFFF,
          0x80000000, 0xFFFFFFF0, 0xFFFFFFF6, 0xFFFFFFF8, 0xFFFFFFFF)
GROWTH_BYTES_MAX = 65536


class Mutator:
    """Mutations of byte strings; `donors`: inputs for splices."""

    def __init__(self, random: Random, donors: Sequence[bytes] = ()) -> None:
        self.random, self.donors = random, donors
        self._ways = (self._bit, self._byte, self._byte, self._word, self._word, self._cut, self._remove, self._insert,
                      self._double, self._splice, self._swap, self._add, self._zero)

    def mutate(self, data: bytes) -> bytes:
        """Return `data` with one to six changes."""
        changed = bytearray(data)
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 6))):
            if not changed:
                changed = bytearray(self.random.randbytes(8))
            self.random.choice(self._ways)(changed)
        return bytes(changed[:GROWTH_BYTES_MAX])

    def event(self, data: bytes) -> bytes:
        """Return a mutated event, mostly with a corrected length, so that the change reaches the decoder of the body."""
        random = self.random
        if random.random() < 0.15 or len(data) <= 8:
            changed = self.mutate(data)
        else:
            changed = data[:8] + self.mutate(data[8:])
        if len(changed) >= 8 and random.random() < 0.9:
            changed = len(changed).to_bytes(4, "big") + changed[4:]
        return changed

    def _at(self, data: bytearray) -> int:
        return self.random.randrange(len(data))

    def _bit(self, data: bytearray) -> None:
        data[self._at(data)] ^= 1 << self.random.randrange(8)

    def _byte(self, data: bytearray) -> None:
        data[self._at(data)] = self.random.choice(_BYTES)

    def _add(self, data: bytearray) -> None:
        at = self._at(data)
        data[at] = data[at] + self.random.randint(-4, 4) & 0xFF

    def _word(self, data: bytearray) -> None:
        at = self._at(data) & ~3
        size = self.random.choice((2, 4, 4, 8))
        data[at:at + size] = self.random.choice(_WORDS).to_bytes(8, "big")[8 - size:]

    def _cut(self, data: bytearray) -> None:
        del data[self._at(data):]

    def _remove(self, data: bytearray) -> None:
        at = self._at(data)
        del data[at:at + self.random.choice((1, 2, 4, 8, 24, 60))]

    def _insert(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self.random.randbytes(self.random.choice((1, 2, 4, 8, 24)))

    def _double(self, data: bytearray) -> None:
        at = self._at(data)
        part = data[at:at + self.random.choice((1, 4, 8, 24, 64, 512))]
        data[at:at] = part * self.random.choice((1, 1, 2, 40))

    def _splice(self, data: bytearray) -> None:
        if self.donors:
            other = self.random.choice(self.donors)
            start = self.random.randrange(len(other)) if other else 0
            at = self._at(data)
            piece = other[start:start + self.random.choice((4, 24, 128, 1024))]
            data[at:at + self.random.choice((0, 4, 64, 1 << 20))] = piece

    def _swap(self, data: bytearray) -> None:
        first, second = self._at(data) & ~3, self._at(data) & ~3
        if second - first >= 4 and second + 4 <= len(data):
            data[first:first + 4], data[second:second + 4] = data[second:second + 4], data[first:first + 4]

    def _zero(self, data: bytearray) -> None:
        at = self._at(data)
        end = min(len(data), at + self.random.choice((2, 4, 8, 32)))
        data[at:end] = bytes(end - at)
