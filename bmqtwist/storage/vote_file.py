"""The file with a node's term and vote."""

from __future__ import annotations

from zlib import crc32

from bmqtwist.storage.slot_file import SlotFile
from bmqtwist.storage.store import Disk
from bmqtwist.wire.declare import Layout, magic, number, signed

#  0               4               8                       16                      24              28              32
# +---------------+---------------+-----------------------+-----------------------+---------------+---------------+
# |     BMQV      |    version    |  number of the write  |         term          |     vote      |  CRC32 of all |
# +---------------+---------------+-----------------------+-----------------------+---------------+  before it    |
#   vote: id of the node, -1 = none                                                               +---------------+
VOTE_SLOT = Layout(magic(magic=b"BMQV"), number(version=32), number(number=64), number(term=64), signed(vote=32),
                   number(crc=32))
NAME = "bmqtwist_vote"
SLOT_DISTANCE_BYTES = 4096
_VERSION, _NO_VOTE = 1, -1
_CRC_BYTES = 4

Vote = tuple[int, int | None]  # term; id of the node


class VoteFile:
    """In `directory`. All methods may raise OSError; `write` is for any thread, one call at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._slots: SlotFile[Vote] = SlotFile(disk, f"{directory}/{NAME}", SLOT_DISTANCE_BYTES, _encode, _decode)
        self.close = self._slots.close

    def read(self) -> tuple[int, int | None, bool]:
        """Term and vote, and whether they are lost; (0, None, False) if there was no vote yet."""
        found, lost = self._slots.read()
        term, vote = found or (0, None)
        return term, vote, lost

    def write(self, term: int, vote: int | None) -> None:
        """Return when term and vote survive a loss of power."""
        self._slots.write((term, vote))


def _encode(write: int, told: Vote) -> bytes:
    term, vote = told
    head = VOTE_SLOT.build(version=_VERSION, number=write, term=term, vote=_NO_VOTE if vote is None else vote,
                           crc=0)[:-_CRC_BYTES]
    return head + crc32(head).to_bytes(_CRC_BYTES, "big")


def _decode(slot: bytes) -> tuple[int, Vote] | None:
    slot = slot[:VOTE_SLOT.size]
    if len(slot) < VOTE_SLOT.size or crc32(slot[:-_CRC_BYTES]) != int.from_bytes(slot[-_CRC_BYTES:], "big"):
        return None
    found = VOTE_SLOT.parse(slot)
    vote = None if found.vote == _NO_VOTE else found.vote
    return (found.number, (found.term, vote)) if found.version == _VERSION else None
