"""Hash table of GUIDs with their arrival times: constant time for each GUID, 20 bytes and no object for each.

The table consists of parts; a part has the entries whose hash has the same low bits, oldest first:

    entry     0                                     16         20
              +-------------------------------------+----------+
              | GUID                                | arrival  |      in units of 1/8 s since the first arrival
              +-------------------------------------+----------+

A lookup searches one part, of PART_ENTRIES entries on average. The table grows by one part at a time, which takes its
entries from one other part (linear hashing), so that a call never moves more than two parts. Each added GUID and `expire`
drop the expired entries of some parts. Used by `history.py` for GUIDs without a rising timer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

PART_ENTRIES: Final = 64  # on average, in a table that has grown
SWEPT_PARTS_MAX: Final = 1024  # by one `expire`: 1 to 3 ms
_GUID_BYTES: Final = 16
_ENTRY_BYTES: Final = 20
_STAMPS_PER_S: Final = 8
_STAMP_MAX: Final = 0xFFFFFFFF  # 17 years
_ADDED_PER_SWEEP: Final = 8  # entries added for each part that is swept: all parts within an eighth of the window


class GuidTable:
    """GUIDs held for `window` seconds from their arrival. `now`: seconds of one monotonic clock, never decreasing."""

    __slots__ = ("window", "_parts", "_level", "_count", "_start", "_stamp", "_stamp_bytes", "_swept")

    def __init__(self, window: float) -> None:
        self.window = window
        self._parts = [bytearray()]
        self._level = 1  # largest power of 2 that is not above the number of parts
        self._count = 0
        self._start = 0.0  # arrival of stamp 0
        self._stamp, self._stamp_bytes = -1, b""  # of the latest arrival
        self._swept = 0  # number of the part that is swept next

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            for at in range(0, len(part), _ENTRY_BYTES):
                yield bytes(part[at:at + _GUID_BYTES])

    def holds(self, guid: bytes, now: float) -> bool:
        """Return whether the GUID was added within the window."""
        part = self._parts[self._index(guid)]
        at = part.find(guid)
        while at >= 0:
            if at % _ENTRY_BYTES == 0 and part[at + _GUID_BYTES:at + _ENTRY_BYTES] >= self._oldest_stamp(now):
                return True
            at = part.find(guid, at + 1)
        return False

    def add(self, guid: bytes, now: float) -> None:
        """Add a GUID that the table does not hold."""
        if self._count == 0:
            self._start = now
        stamp = int((now - self._start) * _STAMPS_PER_S) + 1
        if stamp != self._stamp:
            self._stamp, self._stamp_bytes = stamp, _stamp_bytes(stamp)
        self._parts[self._index(guid)] += guid + self._stamp_bytes
        self._count += 1
        if self._count > PART_ENTRIES * len(self._parts):
            self._split()
        if self._count % _ADDED_PER_SWEEP == 0:
            self._sweep(now)

    def discard(self, guid: bytes) -> None:
        """Remove a GUID, if the table holds it."""
        part = self._parts[self._index(guid)]
        at = part.find(guid)
        while at >= 0:
            if at % _ENTRY_BYTES:  # a match across two entries
                at = part.find(guid, at + 1)
            else:
                del part[at:at + _ENTRY_BYTES]
                self._count -= 1
                at = part.find(guid, at)

    def shift_times(self, seconds: float) -> None:
        """Add `seconds` to all arrival times."""
        self._start += seconds

    def expire(self, now: float) -> bool:
        """Drop the expired GUIDs of at most SWEPT_PARTS_MAX parts; return whether this was the end of a pass."""
        for _ in range(min(SWEPT_PARTS_MAX, len(self._parts) - self._swept)):
            self._sweep(now)
        if self._swept:
            return False
        if self._count == 0 and self._level > 1:
            self._parts, self._level = [bytearray()], 1
        return True

    def _index(self, guid: bytes) -> int:
        """Return the number of the part of a GUID."""
        index = hash(guid) & 2 * self._level - 1
        return index if index < len(self._parts) else index - self._level

    def _split(self) -> None:
        """Add a part, and move the entries to it that belong there."""
        parts, level = self._parts, self._level
        number = len(parts) - level
        entries, stay, move = parts[number], bytearray(), bytearray()
        for at in range(0, len(entries), _ENTRY_BYTES):
            entry = bytes(entries[at:at + _ENTRY_BYTES])
            if hash(entry[:_GUID_BYTES]) & level:
                move += entry
            else:
                stay += entry
        parts[number] = stay
        parts.append(move)
        if len(parts) == 2 * level:
            self._level = 2 * level

    def _sweep(self, now: float) -> None:
        """Drop the expired entries of the next part."""
        part, oldest = self._parts[self._swept], self._oldest_stamp(now)
        self._swept = (self._swept + 1) % len(self._parts)
        low, high = 0, len(part) // _ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            at = middle * _ENTRY_BYTES + _GUID_BYTES
            if part[at:at + 4] < oldest:
                low = middle + 1
            else:
                high = middle
        if low:
            del part[:low * _ENTRY_BYTES]
            self._count -= low

    def _oldest_stamp(self, now: float) -> bytes:
        """Return the stamp of the oldest entry that is not expired."""
        return _stamp_bytes(int((now - self._start - self.window) * _STAMPS_PER_S))


def _stamp_bytes(stamp: int) -> bytes:
    return min(max(stamp, 0), _STAMP_MAX).to_bytes(4, "big")
