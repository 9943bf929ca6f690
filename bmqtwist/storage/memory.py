"""Simulated disk in memory, with the faults of a real one: unsynced data may be lost, torn or written out of order.

Used by `bmqtwist.testing` and by the simulation, unit, property, table and fuzz tests; a broker uses `files.py`.

Every file has two contents: the one that the running process reads (`content`) and the one that survives a crash
(`durable`). `crash` decides per 512-byte sector written since the last sync whether it survives. Creations, renames and
removals of files survive only after `sync_directory`: unsynced ones are always lost.

Faults: `capacity` (ENOSPC), `fail` (returns an errno for a call), `stop_after` = n (the process dies at the next operation
that changes the disk after n completed ones), `flip` (changes bits of a file).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from posixpath import normpath
from typing import Protocol

from bmqtwist.storage.store import DirectoryBusy

SECTOR = 512  # bytes that a disk writes atomically
UNLIMITED_BYTES = 1 << 50  # space that a disk without `capacity` reports


class RandomSource(Protocol):
    """Seeded random generator."""

    def random(self) -> float:
        """Return the next number, 0 <= n < 1."""


class ProcessKilled(BaseException):
    """The simulated process was killed. A BaseException, so that no error handler catches it."""


class _Node:
    """Content of one file, independent of its names. Bytes from `len(content)` up to `length` are zeros."""

    __slots__ = ("content", "durable", "length", "unsynced_sectors", "allocated")

    def __init__(self, data: bytes = b"") -> None:
        self.content, self.durable = bytearray(data), bytearray(data)
        self.length = self.allocated = len(data)  # length; bytes allocated on the disk
        self.unsynced_sectors: set[int] = set()  # sectors written since the last sync

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self.length - offset))
        return bytes(self.content[offset:offset + size]).ljust(size, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        _put(self.content, offset, data)
        self.length = max(self.length, end)
        self.unsynced_sectors.update(range(offset // SECTOR, (end + SECTOR - 1) // SECTOR))

    def persist(self, sectors: set[int]) -> None:
        for sector in sectors:
            start = sector * SECTOR
            _put(self.durable, start, self.content[start:start + SECTOR])

    def resize(self, size: int) -> None:
        """Truncate or extend with zeros; lengths survive a crash without a sync."""
        del self.content[size:]
        del self.durable[size:]
        self.length = size
        self.allocated = min(self.allocated, size)

    def crash(self, survivors: set[int]) -> None:
        """Drop the unsynced sectors except the survivors."""
        self.persist(survivors)
        self.content = bytearray(self.durable)
        self.unsynced_sectors = set()


def _put(target: bytearray, offset: int, data: bytes | bytearray) -> None:
    if data:
        target.extend(bytes(max(0, offset - len(target))))
        target[offset:offset + len(data)] = data


class MemoryDisk:
    """`store.Disk` in memory. `capacity`: bytes of all files together, None = unlimited."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.steps = 0  # number of operations that changed the disk
        self.stop_after: int | None = None  # the process dies at the next operation after so many `steps`
        self.fail: Callable[[str, str], int | None] = lambda operation, path: None  # errno to fail with
        self.log: list[tuple[str, str]] = []  # (operation, path) of the changes
        self.locked: set[str] = set()
        self._names: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}

    # ---- Disk ----------------------------------------------------------------------------------------------------

    def names(self, directory: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._names if path.rpartition("/")[0] == directory)

    def create(self, path: str) -> MemoryFile:
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self.count_operation("create", path)
        node = self._names[path] = _Node()
        return MemoryFile(self, path, node)

    def open(self, path: str) -> MemoryFile:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return MemoryFile(self, path, self._names[path])

    def rename(self, old: str, new: str) -> None:
        self.count_operation("rename", old)
        self._names[new] = self._names.pop(old)

    def remove(self, path: str) -> None:
        self.count_operation("remove", path)
        del self._names[path]

    def sync_directory(self, directory: str) -> None:
        self.count_operation("sync_directory", directory)
        for names in (self._durable_names, self._names):
            for path in [path for path in names if path.rpartition("/")[0] == directory]:
                if path in self._names:
                    self._durable_names[path] = self._names[path]
                else:
                    self._durable_names.pop(path, None)

    def space(self, directory: str) -> tuple[int, int]:
        total = UNLIMITED_BYTES if self.capacity is None else self.capacity
        return max(0, total - self.used_bytes()), total

    def identify(self, directory: str) -> str:
        """Return the normalized path; there are no links."""
        return normpath(directory)

    def lock(self, directory: str) -> ExitStack:
        if directory in self.locked:
            raise DirectoryBusy(directory)
        self.locked.add(directory)
        held = ExitStack()
        held.callback(self.locked.discard, directory)
        return held

    # ---- faults --------------------------------------------------------------------------------------------------

    def count_operation(self, operation: str, path: str) -> None:
        """Count an operation that changes the disk; die or fail as configured."""
        if self.stop_after is not None and self.steps >= self.stop_after:
            raise ProcessKilled(operation, path)
        code = self.fail(operation, path)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)), path)
        self.steps += 1
        self.log.append((operation, path))

    def allocate(self, node: _Node, size: int, path: str) -> None:
        """Allocate space so that `node` has at least `size` bytes on the disk."""
        more = size - node.allocated
        if more > 0 and self.capacity is not None and self.used_bytes() + more > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        node.allocated = max(node.allocated, size)

    def used_bytes(self) -> int:
        return sum(node.allocated for node in {id(node): node for node in self._names.values()}.values())

    def crash(self, random: RandomSource | None = None) -> None:
        """Simulate a loss of power. Unsynced names and writes are lost; with `random`, each unsynced sector survives with
        probability 0.5."""
        nodes = {id(node): node for node in [*self._names.values(), *self._durable_names.values()]}
        for node in nodes.values():
            node.crash({sector for sector in sorted(node.unsynced_sectors) if random is not None and random.random() < 0.5})
        self._names = dict(self._durable_names)
        self.stop_after = None
        self.locked.clear()

    @property
    def unsynced(self) -> bool:
        """True if a crash could lose written data."""
        return any(node.unsynced_sectors for node in self._names.values())

    def kill(self) -> None:
        """Simulate `kill -9`: all writes survive."""
        self.stop_after = None
        self.locked.clear()

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Invert the bits `mask` of one byte, durably."""
        node = self._names[path]
        changed = bytes([node.read(offset, 1)[0] ^ mask])
        _put(node.content, offset, changed)
        _put(node.durable, offset, changed)

    def content(self, path: str) -> bytes:
        """Return the content that the running process reads."""
        return self._names[path].read(0, self._names[path].length)

    def put(self, path: str, data: bytes) -> None:
        """Create a durable file with this content."""
        self._names[path] = self._durable_names[path] = _Node(data)

    def paths(self) -> list[str]:
        return sorted(self._names)


class MemoryFile:
    """`store.File` of a MemoryDisk."""

    __slots__ = ("_disk", "_path", "_node")

    def __init__(self, disk: MemoryDisk, path: str, node: _Node) -> None:
        self._disk, self._path, self._node = disk, path, node

    def size(self) -> int:
        return self._node.length

    def allocated(self) -> int:
        return self._node.allocated

    def read(self, offset: int, size: int) -> bytes:
        return self._node.read(offset, size)

    def drop_cached(self, offset: int, size: int) -> None:
        """Do nothing: there is no cache."""

    def data_after(self, offset: int) -> int | None:
        """Return `offset` if it lies before the last written byte, else None."""
        return offset if offset < len(self._node.content) else None

    def write(self, offset: int, parts: Sequence[bytes]) -> int:
        self._disk.count_operation("write", self._path)
        data = b"".join(parts)
        self._disk.allocate(self._node, offset + len(data), self._path)
        self._node.write(offset, data)
        return len(data)

    def sync(self) -> None:
        self._disk.count_operation("sync", self._path)
        self._node.persist(self._node.unsynced_sectors)
        self._node.unsynced_sectors.clear()

    def resize(self, size: int, allocate: bool) -> None:
        self._disk.count_operation("resize", self._path)
        if allocate:
            self._disk.allocate(self._node, size, self._path)
        self._node.resize(size)

    def close(self) -> None:
        """Do nothing: a file in memory has no descriptor."""
