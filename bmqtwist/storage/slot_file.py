"""A small file of two slots, written in turn, each synced before anything is said of it.

A write that was torn leaves the other slot, which is what was durable before. Where no slot is whole, what was written is
lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from bmqtwist.storage.store import Disk, File

V = TypeVar("V")


class SlotFile(Generic[V]):
    """`decode` gives the number of the write and the value of a slot, None if it is not whole; `encode` the reverse.

    All methods may raise OSError; `write` is for any thread, one call at a time. `distance`: bytes between the slots, so
    many that no sector holds both.
    """

    def __init__(self, disk: Disk, path: str, distance: int, encode: Callable[[int, V], bytes],
                 decode: Callable[[bytes], tuple[int, V] | None]) -> None:
        self._disk, self._path, self._distance = disk, path, distance
        self._encode, self._decode = encode, decode
        self._directory, _, self._name = path.rpartition("/")
        self._file: File | None = None
        self._number = 0  # of the last write
        self._listed = False  # its name survives a loss of power, as far as this object knows

    def read(self) -> tuple[V | None, bool]:
        """The value, and whether it is lost; (None, False) if there was none yet. It is durable then, also if the process
        that wrote it was killed before it was."""
        if self._name not in self._disk.names(self._directory):
            return None, False
        self._file = self._disk.open(self._path)
        self._file.sync()
        self._disk.sync_directory(self._directory)
        self._listed = True
        slots = [self._file.read(at, self._distance) for at in (0, self._distance)]
        found = [each for each in map(self._decode, slots) if each is not None]
        if not found:
            return None, any(any(slot) for slot in slots)
        self._number, value = max(found, key=lambda each: each[0])
        return value, False

    def write(self, value: V) -> None:
        """Return when the value survives a loss of power."""
        if self._file is None:
            self._file = self._disk.create(self._path)
        self._file.write((self._number + 1) % 2 * self._distance, [self._encode(self._number + 1, value)])
        self._file.sync()
        if not self._listed:  # the process that made the file may have died, or failed, before it came to this
            self._disk.sync_directory(self._directory)
            self._listed = True
        self._number += 1

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
