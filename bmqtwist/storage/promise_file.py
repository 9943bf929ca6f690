"""The file with what a node has promised to the primaries of its partitions: two slots, written in turn, each synced before
anything is said of it.

A write that was torn leaves the other slot, which is what was durable before. Where no slot is whole, it is not known any
more what the node has promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from bmqtwist.storage.store import Disk, File
from bmqtwist.wire.declare import Layout, magic, number

#  0               4               8                       16              20
# +---------------+---------------+-----------------------+---------------+
# |     BMQP      |    version    |  number of the write  |   partitions  |   then, for each partition, its promise; then
# +---------------+---------------+-----------------------+---------------+   the CRC32 of all before it, 4 bytes
PROMISE_SLOT = Layout(magic(magic=b"BMQP"), number(version=32), number(number=64), number(partitions=32))
# +---------------+---------------+
# |     lease     |     flags     |   flags: 1 = records that were safe here may be missing
# +---------------+---------------+
PROMISE = Layout(number(lease=32), number(flags=32))
NAME = "bmqtwist_promises"
SLOT_DISTANCE_BYTES = 1 << 16  # no sector holds both
PARTITIONS_MAX = (SLOT_DISTANCE_BYTES - PROMISE_SLOT.size - 4) // PROMISE.size
_VERSION, _DOUBTFUL, _CRC_BYTES = 1, 1, 4


@dataclass(frozen=True, slots=True)
class StoredPromise:
    """Of one partition: nothing of a lease below this one is taken. `doubtful`: records that were safe may be missing."""

    lease: int = 0
    doubtful: bool = False


class PromiseFile:
    """In `directory`. All methods may raise OSError; `write` is for any thread, one call at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk, self._directory = disk, directory
        self._file: File | None = None
        self._number = 0  # of the last write
        self._listed = False  # its name survives a loss of power, as far as this object knows

    def read(self) -> tuple[list[StoredPromise], bool]:
        """The promises by partition, and whether they are lost; ([], False) if there were none yet. They are durable then,
        also if the process that wrote them was killed before they were."""
        if NAME not in self._disk.names(self._directory):
            return [], False
        self._file = self._disk.open(f"{self._directory}/{NAME}")
        self._file.sync()
        self._disk.sync_directory(self._directory)
        self._listed = True
        slots = [self._file.read(at, SLOT_DISTANCE_BYTES) for at in (0, SLOT_DISTANCE_BYTES)]
        found = [each for each in map(_decode, slots) if each is not None]
        if not found:
            return [], any(any(slot) for slot in slots)
        self._number, promises = max(found, key=lambda each: each[0])
        return promises, False

    def write(self, promises: Sequence[StoredPromise]) -> None:
        """Return when they survive a loss of power."""
        if self._file is None:
            self._file = self._disk.create(f"{self._directory}/{NAME}")
        self._file.write((self._number + 1) % 2 * SLOT_DISTANCE_BYTES, [_encode(self._number + 1, promises)])
        self._file.sync()
        if not self._listed:  # whoever made the file may have died, or failed, before it came to this
            self._disk.sync_directory(self._directory)
            self._listed = True
        self._number += 1

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _encode(write: int, promises: Sequence[StoredPromise]) -> bytes:
    head = PROMISE_SLOT.build(version=_VERSION, number=write, partitions=len(promises))
    body = head + b"".join(PROMISE.build(lease=each.lease, flags=_DOUBTFUL * each.doubtful) for each in promises)
    return body + crc32(body).to_bytes(_CRC_BYTES, "big")


def _decode(slot: bytes) -> tuple[int, list[StoredPromise]] | None:
    """(number of the write, promises); None = it is not whole."""
    if len(slot) < PROMISE_SLOT.size or slot[:4] != b"BMQP":
        return None
    head = PROMISE_SLOT.parse(slot[:PROMISE_SLOT.size])
    end = PROMISE_SLOT.size + PROMISE.size * head.partitions
    if (head.version != _VERSION or end + _CRC_BYTES > len(slot)
            or crc32(slot[:end]) != int.from_bytes(slot[end:end + _CRC_BYTES], "big")):
        return None
    each = [PROMISE.parse(slot[at:at + PROMISE.size]) for at in range(PROMISE_SLOT.size, end, PROMISE.size)]
    return head.number, [StoredPromise(one.lease, bool(one.flags & _DOUBTFUL)) for one in each]
