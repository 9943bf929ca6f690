"""Scrub of one partition: a pass over the DATA records of its live messages that detects damage before they are read.

A pass consists of batches of up to BATCH_BYTES. The event loop lists the records of a batch (`ScrubPass.next_batch`), a
thread reads them from the disk and compares (`ScrubBatch.read`), and the event loop reads the suspects again
(`ScrubBatch.confirm`): a rollover or a deletion may have moved or removed them meanwhile. JOURNAL and QLIST have no
checksums.

Called by `broker/scrubbing.py`, which determines interval and rate; `payloads.py` compares and repairs.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from bmqtwist.storage.damage import PayloadDamaged
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition
from bmqtwist.storage.payloads import pack_head, record_bytes
from bmqtwist.storage.records import PADS
from bmqtwist.storage.state import Live
from bmqtwist.storage.store import File

BATCH_RECORDS = 4096  # live records that one batch visits
BATCH_BYTES = 1 << 20  # of DATA, except for one larger record
PIECE_BYTES = 1 << 20  # of one read
RECORD_COST_MIN = 4096  # bytes that a shorter record counts as: its processing takes as long as a page of a long one
DAMAGED_MAX = 1024  # repairs in progress in a partition, above which a pass waits


class ScrubBatch:
    """Records of one batch. cost: bytes, for the rate; suspects: messages whose record differs, set by `read`."""

    def __init__(self, partition: Partition, file: File) -> None:
        self._partition, self._file = partition, file
        self._records: list[tuple[Message, int, bytes, int, int]] = []  # message, offset, head, size of data, checksum
        self.cost = 0
        self.suspects: list[Message] = []

    def add(self, message: Message) -> None:
        """Add the record of a message that is written."""
        self._records.append((message, self._partition.payloads.offset(message), pack_head(message), message.size,
                              message.crc))
        self.cost += max(record_bytes(message), RECORD_COST_MIN)

    def read(self) -> None:
        """Read the records and find the suspects. For any thread; an unreadable record is a suspect."""
        for message, offset, head, size, crc in self._records:
            try:
                if not self._is_intact(offset, head, size, crc):
                    self.suspects.append(message)
            except OSError:
                self.suspects.append(message)

    def _is_intact(self, offset: int, head: bytes, size: int, crc: int) -> bool:
        file, end = self._file, len(head) + size
        total = (end & -8) + 8
        file.drop_cached(offset, total)
        piece = file.read(offset, min(total, PIECE_BYTES))
        if not piece.startswith(head):
            return False
        found, at = crc32c(piece[len(head):end]), len(piece)
        while piece and at < total:
            piece = file.read(offset + at, min(total - at, PIECE_BYTES))
            found, at = crc32c(piece[:max(0, end - at)], found), at + len(piece)
        return at == total and found == crc and piece.endswith(PADS[total - end])

    def confirm(self) -> int:
        """Read the suspects again; return the number of damaged messages, whose repairs have begun."""
        damaged = 0
        for message in self.suspects:
            try:
                if message.live_key >= 0:
                    self._partition.payloads.read_record(message)
            except PayloadDamaged:
                damaged += 1
            except OSError:
                return damaged  # the files were closed
        return damaged


class ScrubPass:
    """One pass over the messages that are live at its beginning or become live during it."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._slices: Iterator[list[Live]] = partition.state.live.slices()
        self._items: Iterator[Live] = iter(())

    def next_batch(self) -> ScrubBatch | None:
        """Return the next batch, which may be empty; None at the end of the pass, or if the partition was replaced."""
        partition = self.partition
        if partition.payloads.closed:
            return None
        batch = ScrubBatch(partition, partition.files.current.data.file)
        if len(partition.payloads.damaged) >= DAMAGED_MAX:
            return batch
        for _ in range(BATCH_RECORDS):
            item = next(self._items, None)
            if item is None:
                items = next(self._slices, None)
                if items is None:
                    return batch if batch.cost else None
                self._items = iter(items)
            elif type(item) is Message and partition.payloads.is_written(item):
                batch.add(item)
            if batch.cost >= BATCH_BYTES:
                break
        return batch
