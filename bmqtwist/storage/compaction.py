"""Copies what is live into the next file set: the long part of a rollover.

PSNs and timestamps stay as they are, DATA and QLIST offsets are those of the new files. Neighbouring DATA records are
read with one call.
"""

from __future__ import annotations

from array import array

from bmqtwist.storage.layout import QUEUE_OP_RECORD
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    DATA_HEADER,
    FLAGS_MASK,
    FLAGS_SHIFT,
    MAGIC,
    MESSAGE,
    MESSAGE_HEAD,
    RECORD_BYTES,
    REF_COUNT_LOW_BITS,
    REF_COUNT_MAX,
    data_record_bytes,
)
from bmqtwist.storage.state import Live
from bmqtwist.storage.store import ROLLOVER_CHUNK_BYTES, PartitionFiles

_QLIST_WORDS = slice(QUEUE_OP_RECORD.offset("qlist_words"), QUEUE_OP_RECORD.offset("start_sequence"))


class LiveCopy:
    """Writes live records into the next file set, in order, with their new DATA and QLIST offsets."""

    def __init__(self, files: PartitionFiles) -> None:
        self._files = files
        _, self._data_end, self._qlist_end = files.next_positions()
        self._journal: list[bytes] = []
        self._qlist: list[bytes] = []
        self._runs: list[tuple[int, int]] = []  # (offset, size) of neighbouring DATA records in the old file
        self._pending = 0  # bytes in _runs

    def run(self, live: dict[int, Live]) -> array[int]:
        """Copy all; the new DATA offsets (dwords) of the messages, in order."""
        offsets = array("I")
        for item in live.values():
            if type(item) is Message:
                offsets.append(self._data_end >> 3)
                self._copy_message(item)
            elif type(item) is tuple:
                record, entry = item
                self._journal.append(record[:_QLIST_WORDS.start] + (self._qlist_end >> 2).to_bytes(4, "big")
                                     + record[_QLIST_WORDS.stop:])
                self._qlist.append(entry)
                self._qlist_end += len(entry)
            else:
                self._journal.append(item)  # type: ignore[arg-type]
            if self._pending >= ROLLOVER_CHUNK_BYTES or len(self._journal) >= ROLLOVER_CHUNK_BYTES // RECORD_BYTES:
                self._flush()
        self._flush()
        return offsets

    def _copy_message(self, message: Message) -> None:
        size = data_record_bytes(DATA_HEADER.size + len(message.options) + message.size)
        ref_count = min(message.ref_count, REF_COUNT_MAX)
        self._journal.append(MESSAGE.pack(
            MESSAGE_HEAD | (ref_count & FLAGS_MASK) << FLAGS_SHIFT | message.sequence, message.lease, message.wall,
            ref_count >> REF_COUNT_LOW_BITS, message.compression, message.queue_key, self._data_end >> 3, message.guid,
            message.crc, MAGIC))
        offset = message.data_offset * 8
        if self._runs and sum(self._runs[-1]) == offset:
            self._runs[-1] = (self._runs[-1][0], self._runs[-1][1] + size)
        else:
            self._runs.append((offset, size))
        self._data_end += size
        self._pending += size

    def _flush(self) -> None:
        if not self._journal:
            return
        data = [self._files.read_data(offset, size) for offset, size in self._runs]
        if sum(map(len, data)) != self._pending:
            raise OSError("DATA file is shorter than its records")
        self._files.append_next(self._journal, data, self._qlist)
        self._journal, self._qlist, self._runs, self._pending = [], [], [], 0
