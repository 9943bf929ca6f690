"""The file with what a node has promised to the primaries of its partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from bmqtwist.storage.slot_file import SlotFile
from bmqtwist.storage.store import Disk
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
SLOT_DISTANCE_BYTES = 1 << 16
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
        self._slots: SlotFile[Sequence[StoredPromise]] = SlotFile(disk, f"{directory}/{NAME}", SLOT_DISTANCE_BYTES, _encode,
                                                                  _decode)
        self.close = self._slots.close

    def read(self) -> tuple[list[StoredPromise], bool]:
        """The promises by partition, and whether they are lost; ([], False) if there were none yet."""
        promises, lost = self._slots.read()
        return list(promises or ()), lost

    def write(self, promises: Sequence[StoredPromise]) -> None:
        """Return when the promises survive a loss of power."""
        self._slots.write(promises)


def _encode(write: int, promises: Sequence[StoredPromise]) -> bytes:
    head = PROMISE_SLOT.build(version=_VERSION, number=write, partitions=len(promises))
    body = head + b"".join(PROMISE.build(lease=each.lease, flags=_DOUBTFUL * each.doubtful) for each in promises)
    return body + crc32(body).to_bytes(_CRC_BYTES, "big")


def _decode(slot: bytes) -> tuple[int, Sequence[StoredPromise]] | None:
    if len(slot) < PROMISE_SLOT.size or slot[:4] != b"BMQP":
        return None
    head = PROMISE_SLOT.parse(slot[:PROMISE_SLOT.size])
    end = PROMISE_SLOT.size + PROMISE.size * head.partitions
    if (head.version != _VERSION or end + _CRC_BYTES > len(slot)
            or crc32(slot[:end]) != int.from_bytes(slot[end:end + _CRC_BYTES], "big")):
        return None
    each = [PROMISE.parse(slot[at:at + PROMISE.size]) for at in range(PROMISE_SLOT.size, end, PROMISE.size)]
    return head.number, [StoredPromise(one.lease, bool(one.flags & _DOUBTFUL)) for one in each]
