"""The file with a node's term and vote: two slots, written in turn, each synced before anything is said of it.

A write that was torn leaves the other slot, which is what was durable before. Where no slot is whole, it is not known any
more how the node has voted.
"""

from __future__ import annotations

from zlib import crc32

from bmqtwist.storage.store import Disk, File
from bmqtwist.wire.declare import Layout, magic, number, signed

#  0               4               8                       16                      24              28              32
# +---------------+---------------+-----------------------+-----------------------+---------------+---------------+
# |     BMQV      |    version    |  number of the write  |         term          |     vote      |  CRC32 of all |
# +---------------+---------------+-----------------------+-----------------------+---------------+  before it    |
#   vote: id of the node, -1 = none                                                               +---------------+
VOTE_SLOT = Layout(magic(magic=b"BMQV"), number(version=32), number(number=64), number(term=64), signed(vote=32),
                   number(crc=32))
NAME = "bmqtwist_vote"
SLOT_DISTANCE_BYTES = 4096  # no sector holds both
_VERSION, _NO_VOTE = 1, -1
_CRC_BYTES = 4


class VoteFile:
    """In `directory`. All methods may raise OSError; `write` is for any thread, one call at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk, self._directory = disk, directory
        self._file: File | None = None
        self._number = 0  # of the last write
        self._listed = False  # its name survives a loss of power, as far as this object knows

    def read(self) -> tuple[int, int | None, bool]:
        """Term and vote, and whether they are lost; (0, None, False) if there was no vote yet. They are durable then, also
        if the process that wrote them was killed before they were."""
        if NAME not in self._disk.names(self._directory):
            return 0, None, False
        self._file = self._disk.open(f"{self._directory}/{NAME}")
        self._file.sync()
        self._disk.sync_directory(self._directory)
        self._listed = True
        slots = [self._file.read(at, VOTE_SLOT.size) for at in (0, SLOT_DISTANCE_BYTES)]
        found = [each for each in map(_decode, slots) if each is not None]
        if not found:
            return 0, None, any(any(slot) for slot in slots)
        self._number, term, vote = max(found)
        return term, None if vote == _NO_VOTE else vote, False

    def write(self, term: int, vote: int | None) -> None:
        """Return when term and vote survive a loss of power."""
        if self._file is None:
            self._file = self._disk.create(f"{self._directory}/{NAME}")
        slot = _encode(self._number + 1, term, _NO_VOTE if vote is None else vote)
        self._file.write((self._number + 1) % 2 * SLOT_DISTANCE_BYTES, [slot])
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


def _encode(write: int, term: int, vote: int) -> bytes:
    head = VOTE_SLOT.build(version=_VERSION, number=write, term=term, vote=vote, crc=0)[:-_CRC_BYTES]
    return head + crc32(head).to_bytes(_CRC_BYTES, "big")


def _decode(slot: bytes) -> tuple[int, int, int] | None:
    """(number of the write, term, vote); None = it is not whole."""
    if len(slot) < VOTE_SLOT.size or crc32(slot[:-_CRC_BYTES]) != int.from_bytes(slot[-_CRC_BYTES:], "big"):
        return None
    found = VOTE_SLOT.parse(slot)
    return (found.number, found.term, found.vote) if found.version == _VERSION else None
