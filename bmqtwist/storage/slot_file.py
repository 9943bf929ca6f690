"""Files of a node's vote, of its promises, and of the storage version: two slots, written alternately.

A value is synced before it takes effect.

After a torn write the other slot holds the previous value. If both slots are damaged, the value is lost.
`member/leadership.py` writes votes, `member/promises.py` promises. `layout.py` declares the bytes of both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import error as StructError
from typing import Generic, TypeVar
from zlib import crc32

from bmqtwist.storage.layout import PROMISE, PROMISES, SLOT, STORAGE_VERSION, VOTE
from bmqtwist.storage.store import Disk, File

_VERSION, _NO_VOTE = 1, -1

V = TypeVar("V")
Vote = tuple[int, int | None]  # term; id of the node


class SlotFile(ABC, Generic[V]):
    """File `name` in `directory`. Methods raise OSError; `write` is for any thread, one call at a time.

    initial: the value before the first write. slot_distance: offset of the second slot, bytes; the slots share no sector.
    """

    name: str
    magic: bytes
    slot_distance: int
    initial: V

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk, self._directory = disk, directory
        self._file: File | None = None
        self._number = 0  # number of the last write
        self.value: V = self.initial  # as read or written last
        self._name_durable = False  # the file's name is known to be durable

    @abstractmethod
    def _pack(self, value: V) -> bytes:
        """Encode a value without magic, number and checksum."""

    @abstractmethod
    def _unpack(self, data: bytes) -> tuple[V, int]:
        """Decode the value at the start of `data`; return it with its size in bytes. StructError."""

    def read(self) -> tuple[V, bool]:
        """Return (value, lost). Syncs the file first, since the last writer may have been killed before its sync."""
        if self.name not in self._disk.names(self._directory):
            return self.initial, False
        self._file = self._disk.open(f"{self._directory}/{self.name}")
        self._file.sync()
        self._disk.sync_directory(self._directory)
        self._name_durable = True
        slots = [self._file.read(at, self.slot_distance) for at in (0, self.slot_distance)]
        found = [each for each in map(self._decode_slot, slots) if each is not None]
        if not found:
            return self.initial, any(any(slot) for slot in slots)
        self._number, self.value = max(found, key=lambda each: each[0])
        return self.value, False

    @property
    def has_value(self) -> bool:
        """True once a value was found or written."""
        return self._number > 0

    def _decode_slot(self, slot: bytes) -> tuple[int, V] | None:
        """Return (number of the write, value) of a slot; None if it is damaged."""
        try:
            magic, version, write = SLOT.struct.unpack_from(slot)
            value, size = self._unpack(slot[SLOT.size:])
        except StructError:
            return None
        end = SLOT.size + size
        whole = (magic, version) == (self.magic, _VERSION) and slot[end:end + 4] == crc32(slot[:end]).to_bytes(4, "big")
        return (write, value) if whole else None

    def write(self, value: V) -> None:
        """Write a value; return when it is durable."""
        if self._file is None:
            self._file = self._disk.create(f"{self._directory}/{self.name}")
        slot = SLOT.struct.pack(self.magic, _VERSION, self._number + 1) + self._pack(value)
        self._file.write((self._number + 1) % 2 * self.slot_distance, [slot + crc32(slot).to_bytes(4, "big")])
        self._file.sync()
        if not self._name_durable:  # also if the file's creator was killed before this call
            self._disk.sync_directory(self._directory)
            self._name_durable = True
        self._number += 1
        self.value = value

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class VoteFile(SlotFile[Vote]):
    """File of a node's term and vote."""

    name, magic, slot_distance, initial = "bmqtwist_vote", b"BMQV", 4096, (0, None)

    def _pack(self, value: Vote) -> bytes:
        term, vote = value
        return VOTE.struct.pack(term, _NO_VOTE if vote is None else vote)

    def _unpack(self, data: bytes) -> tuple[Vote, int]:
        term, vote = VOTE.struct.unpack_from(data)
        return (term, None if vote == _NO_VOTE else vote), VOTE.size


class StorageVersionFile(SlotFile[int]):
    """File of the storage version: releases that do not understand it must not use the directory."""

    name, magic, slot_distance, initial = "bmqtwist_version", b"BMQS", 4096, 0

    def _pack(self, value: int) -> bytes:
        return STORAGE_VERSION.struct.pack(value)

    def _unpack(self, data: bytes) -> tuple[int, int]:
        version, = STORAGE_VERSION.struct.unpack_from(data)
        return version, STORAGE_VERSION.size


class Doubt(IntEnum):
    """Doubt about the log of one partition, until it is healed."""

    NONE = 0
    TAIL = 1  # durable records at its end may be missing
    LOST = 3  # files are missing or damaged

    @classmethod
    def of(cls, flags: int) -> Doubt:
        """Return the doubt in the flags of a promise."""
        return cls.LOST if flags & 2 else cls(flags & 1)


@dataclass(frozen=True, slots=True)
class StoredPromise:
    """Promise for one partition: records of leases below `lease` are refused. `doubt`: about its log."""

    lease: int = 0
    doubt: Doubt = Doubt.NONE


class PromiseFile(SlotFile[Sequence[StoredPromise]]):
    """File of a node's promises to the primaries, by partition."""

    name, magic, slot_distance, initial = "bmqtwist_promises", b"BMQP", 1 << 16, ()

    def _pack(self, value: Sequence[StoredPromise]) -> bytes:
        return PROMISES.struct.pack(len(value)) + b"".join(
            PROMISE.struct.pack(each.lease, each.doubt) for each in value)

    def _unpack(self, data: bytes) -> tuple[Sequence[StoredPromise], int]:
        count, = PROMISES.struct.unpack_from(data)
        end = PROMISES.size + PROMISE.size * count
        return [StoredPromise(lease, Doubt.of(flags))
                for lease, flags in PROMISE.struct.iter_unpack(data[PROMISES.size:end])], end
