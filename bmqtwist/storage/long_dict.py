"""A dictionary for a million entries: as `dict`, in order of insertion, but it never moves more than PART_MAX at once.

A `dict` that grows moves all it has: 25 ms at 700,000 entries. This one goes on in another part when the last one is full.
An entry is looked for where the last one was found, since most are asked for in order, then among the newest, then part by
part, oldest first: 0.1 to 0.3 us for each part of what is not there. Where keys rise, `RisingDict` knows the part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Final, Generic, TypeVar, overload

PART_MAX: Final = 20_000  # a dict of so many has grown for the last time at 10,922, into 0.6 MiB of new memory, in 1 to 3 ms

K = TypeVar("K")
V = TypeVar("V")


class LongDict(Generic[K, V]):
    """See above. As with a `dict`, nothing may change while it is iterated over."""

    __slots__ = ("_parts", "_last", "_found", "_before", "_taken")

    def __init__(self) -> None:
        self._last: dict[K, V] = {}
        self._parts: list[dict[K, V]] = [self._last]  # none is empty but the last one
        self._found = self._last  # where something was found last; empty if it is no part any more
        self._before = 0  # entries in the others
        self._taken: list[dict[K, V]] = []  # parts that a snapshot has: they are copied before they change

    def __len__(self) -> int:
        return self._before + len(self._last)

    def __bool__(self) -> bool:
        return self._before > 0 or bool(self._last)

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
        """There is a part more, or less."""

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
        """As of a `dict`."""
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
            (self._own(part) if self._taken else part)[key] = value
        else:
            self.add(key, value)

    def add(self, key: K, value: V) -> None:
        """An entry that is not there yet."""
        last = self._last
        if len(last) >= PART_MAX:
            self._before += len(last)
            self._last = last = {}
            self._parts.append(last)
            self._parts_changed()
        elif self._taken:
            last = self._own(last)
        last[key] = value

    def __delitem__(self, key: K) -> None:
        part = self._last if len(self._parts) == 1 else self._part_of(key)
        if part is None:
            raise KeyError(key)
        if self._taken:
            part = self._own(part)
        del part[key]
        if part is not self._last:
            self._before -= 1
            if not part:
                self._parts = [each for each in self._parts if each is not part]
                self._parts_changed()

    def pop(self, key: K) -> V:
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[K, V]:
        """The newest entry, which is gone then. KeyError if there is none."""
        if not self._last and len(self._parts) > 1:
            self._parts.pop()
            self._last = self._parts[-1]
            self._before -= len(self._last)
            self._parts_changed()
        return (self._own(self._last) if self._taken else self._last).popitem()

    def snapshot(self) -> Iterator[list[V]]:
        """The values as they are now, whatever becomes of them meanwhile: oldest first, in lists of PART_MAX at most."""
        self._taken = list(self._parts)
        return map(list, [part.values() for part in self._parts])

    def _own(self, part: dict[K, V]) -> dict[K, V]:
        """The same part, or what stands for it from now on, which no snapshot has."""
        for index, each in enumerate(self._taken):
            if each is part:
                del self._taken[index]
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
        """Oldest first."""
        return chain.from_iterable(self._parts)

    def values(self) -> Iterator[V]:
        """Oldest first."""
        return chain.from_iterable([part.values() for part in self._parts])

    def items(self) -> Iterator[tuple[K, V]]:
        """Oldest first."""
        return chain.from_iterable([part.items() for part in self._parts])

    def newest_first(self) -> Iterator[V]:
        """The values the other way round."""
        return chain.from_iterable([reversed(part.values()) for part in reversed(self._parts)])

    def slices(self) -> Iterator[list[V]]:
        """The values oldest first, in lists of PART_MAX at most, each as it is when it is asked for: entries may come and go
        meanwhile."""
        for part in list(self._parts):
            yield list(part.values())

    def __repr__(self) -> str:
        return f"LongDict({dict(self.items())})"


class RisingDict(LongDict[int, V]):
    """Each key that is added is higher than all before: so the first keys of the parts tell which one has it."""

    __slots__ = ("_firsts",)

    def __init__(self) -> None:
        super().__init__()
        self._firsts: list[int] = []  # of all parts but the last one: no key there is lower; empty = to be made anew

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
