"""Dictionary for a million entries, in order of insertion, that never moves more than PART_MAX entries at once.

A growing `dict` moves all its entries: 25 ms at 700,000. This one consists of parts and adds another part when the last is
full. A lookup searches the part of the last hit, since most lookups are in order, then the newest part, then the others,
oldest first: 0.1 to 0.3 us per part for an absent key. `RisingDict`, for ascending keys, finds the part by bisection.
`state.py` keeps stored messages and live records in them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, TypeVar, overload

PART_MAX: Final = 20_000  # a dict of this size grew last at 10,922 entries, to 0.6 MiB, in 1 to 3 ms

K = TypeVar("K")
V = TypeVar("V")


class LongDict(Generic[K, V]):
    """Dictionary in parts. As with a `dict`, entries must not change during an iteration."""

    __slots__ = ("_parts", "_last", "_found", "_earlier_count", "_snapshot_parts")

    def __init__(self) -> None:
        self._last: dict[K, V] = {}
        self._parts: list[dict[K, V]] = [self._last]  # only the last may be empty
        self._found = self._last  # part of the last hit; empty if it was removed
        self._earlier_count = 0  # entries in all parts but the last
        self._snapshot_parts: list[dict[K, V]] = []  # parts of a snapshot, copied before they change

    def __len__(self) -> int:
        return self._earlier_count + len(self._last)

    def __bool__(self) -> bool:
        return self._earlier_count > 0 or bool(self._last)

    def _part_of(self, key: K) -> dict[K, V] | None:
        if key in self._found:
            return self._found
        if key in self._last:
            return self._last
        for part in self._parts:
            if key in part:
                self._found = part
                return part
        return None

    def _parts_changed(self) -> None:
        """Handle an added or removed part."""

    def __contains__(self, key: object) -> bool:
        last = self._last
        if len(self._parts) == 1:
            return key in last
        return self._part_of(key) is not None  # type: ignore[arg-type]

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V) -> V: ...

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value of a key, or the default."""
        if len(self._parts) == 1:
            return self._last.get(key, default)
        part = self._part_of(key)
        return default if part is None else part[key]

    def __getitem__(self, key: K) -> V:
        if len(self._parts) == 1:
            return self._last[key]
        part = self._part_of(key)
        if part is None:
            raise KeyError(key)
        return part[key]

    def __setitem__(self, key: K, value: V) -> None:
        part = self._last if len(self._parts) == 1 else self._part_of(key)
        if part is not None and key in part:
            (self._own_part(part) if self._snapshot_parts else part)[key] = value
        else:
            self.add(key, value)

    def add(self, key: K, value: V) -> None:
        """Add an entry whose key is absent."""
        last = self._last
        if len(last) >= PART_MAX:
            self._earlier_count += len(last)
            self._last = last = {}
            self._parts.append(last)
            self._parts_changed()
        elif self._snapshot_parts:
            last = self._own_part(last)
        last[key] = value

    def __delitem__(self, key: K) -> None:
        part = self._last if len(self._parts) == 1 else self._part_of(key)
        if part is None:
            raise KeyError(key)
        if self._snapshot_parts:
            part = self._own_part(part)
        del part[key]
        if part is not self._last:
            self._earlier_count -= 1
            if not part:
                self._parts = [each for each in self._parts if each is not part]
                self._parts_changed()

    def pop(self, key: K) -> V:
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[K, V]:
        """Remove and return the newest entry. KeyError if there is none."""
        if not self._last and len(self._parts) > 1:
            self._parts.pop()
            self._last = self._parts[-1]
            self._earlier_count -= len(self._last)
            self._parts_changed()
        return (self._own_part(self._last) if self._snapshot_parts else self._last).popitem()

    def snapshot(self) -> Iterator[list[V]]:
        """Iterate over the present values, oldest first, in lists of at most PART_MAX; later changes do not affect them."""
        self._snapshot_parts = list(self._parts)
        return map(list, [part.values() for part in self._parts])

    def _own_part(self, part: dict[K, V]) -> dict[K, V]:
        """Return the part, replaced by a copy if a snapshot uses it."""
        for index, each in enumerate(self._snapshot_parts):
            if each is part:
                del self._snapshot_parts[index]
                break
        else:
            return part
        own = part.copy()
        self._parts = [own if each is part else each for each in self._parts]
        if part is self._last:
            self._last = own
        if part is self._found:
            self._found = own
        return own

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._parts)

    def keys(self) -> Iterator[K]:
        """Iterate over the keys, oldest first."""
        return chain.from_iterable(self._parts)

    def values(self) -> Iterator[V]:
        """Iterate over the values, oldest first."""
        return chain.from_iterable([part.values() for part in self._parts])

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over the items, oldest first."""
        return chain.from_iterable([part.items() for part in self._parts])

    def newest_first(self) -> Iterator[V]:
        """Iterate over the values, newest first."""
        return chain.from_iterable([reversed(part.values()) for part in reversed(self._parts)])

    def slices(self) -> Iterator[list[V]]:
        """Iterate over the values, oldest first, in lists of at most PART_MAX, each made on request; entries may be added
        and removed meanwhile."""
        for part in list(self._parts):
            yield list(part.values())

    def __repr__(self) -> str:
        return f"LongDict({dict(self.items())})"


class RisingDict(LongDict[int, V]):
    """`LongDict` with ascending integer keys: the first keys of the parts give the part of a key."""

    __slots__ = ("_firsts",)

    def __init__(self) -> None:
        super().__init__()
        self._firsts: list[int] = []  # lowest keys of all parts but the last; empty = not computed

    def _parts_changed(self) -> None:
        self._firsts = []

    def _part_of(self, key: int) -> dict[int, V] | None:
        if key in self._found:
            return self._found
        if key in self._last:
            return self._last
        if not self._firsts:
            self._firsts = [next(iter(part)) for part in self._parts[:-1]]
        part = self._parts[max(0, bisect_right(self._firsts, key) - 1)]
        if key in part:
            self._found = part
            return part
        return None
