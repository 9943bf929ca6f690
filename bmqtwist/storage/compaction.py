"""Copy of the live records into the next file set, in slices, while the partition takes new records.

PSNs and timestamps stay; DATA and QLIST offsets are those of the new files. Adjacent DATA records are read with one
call (`_copy_message`).

    first                  records live at the start of the copy, in journal order, except those deleted before their copy
    then                   records that became live since, in journal order, merged by PSN with the DELETIONs of copied
                           messages and queues (`on_deletion`)
    at last                `copy_slice` returns True: the next set has the present state

`rollover.py` runs the copy and has the size of a slice. After the switch to the next set, `Relocation` gives the new
DATA offset of each message until the offset in its `Message` is updated. In the next set the PSNs before the first sync
point ascend with gaps; recovery requires that they ascend.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import (
    DATA_HEADER,
    QUEUE_OP_HEAD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    data_record_bytes,
    pack_message_record,
    with_offsets,
)
from bmqtwist.storage.state import Live, PartitionState
from bmqtwist.storage.store import ROLLOVER_CHUNK_BYTES

_KEYS_PER_RECORD_MAX = 4  # keys per live record above which a list of the keys is used instead of their range


class LiveCopy:
    """Copy of one partition into the next file set. `keys`, `offsets`: live keys of the copied messages and their new DATA
    offsets in dwords."""

    def __init__(self, files: FileSets, state: PartitionState) -> None:
        self._files, self._state = files, state
        _, self._data_end, self._qlist_end = files.next_set.positions()
        self.keys, self.offsets = array("Q"), array("I")
        self.cursor = 0  # live key of the last copied record
        live = state.live
        first, last = next(iter(live), 1), state.last_key
        keys: Sequence[int] = range(first, last + 1)
        self._keys = keys if len(keys) <= _KEYS_PER_RECORD_MAX * len(live) else list(live)
        self._at, self._total = 0, len(self._keys)
        self._next_new_key = last + 1  # next key among the records that became live during the copy
        self._deletions: deque[tuple[int, bytes]] = deque()  # (sequence, record), ascending
        self._pending_deletions: set[bytes] = set()  # GUIDs of copied messages whose DELETION is pending
        self._large: tuple[Message, int] | None = None  # (message that is copied in pieces, bytes copied)
        self._journal: list[bytes] = []
        self._qlist: list[bytes] = []
        self._runs: list[tuple[int, int]] = []  # (offset, size) of adjacent DATA records in the old file
        self._pending = 0  # bytes in _runs

    @property
    def progress(self) -> float:
        """Copied part of the records that were live at the start, 0..1."""
        return self._at / self._total if self._total else 1.0

    # ---- deletions during the copy -------------------------------------------------------------------------------

    def on_deletion(self, key: int, sequence: int, record: bytes) -> None:
        """Report that `record` deletes the message, or the queue, whose first live record has `key`."""
        if key <= self.cursor:
            self._deletions.append((sequence, record))

    def on_pending_deletion(self, key: int, guid: bytes) -> None:
        """Report that a message was deleted and its DELETION is pending."""
        if key <= self.cursor:
            self._pending_deletions.add(guid)

    def on_deletion_appended(self, guid: bytes, sequence: int, record: bytes) -> None:
        """Report that a pending DELETION was appended."""
        if guid in self._pending_deletions:
            self._pending_deletions.remove(guid)
            self._deletions.append((sequence, record))

    # ---- copying -------------------------------------------------------------------------------------------------

    def copy_rest(self) -> None:
        """Copy all remaining records."""
        while not self.copy_slice(ROLLOVER_CHUNK_BYTES // RECORD_BYTES, ROLLOVER_CHUNK_BYTES):
            pass

    def copy_slice(self, records: int, size: int) -> bool:
        """Copy up to `records` records and about `size` bytes of DATA; True if the copy is complete. OSError."""
        live = self._state.live
        visited, visited_max = 0, records * _KEYS_PER_RECORD_MAX
        done = False
        while len(self._journal) < records and self._pending < size and visited < visited_max:
            visited += 1
            if self._large is not None:
                self._copy_piece(*self._large, size)
                break
            key = self._next_key()
            if not key:
                done = not self._copy_deletion(1 << 62)
                if done:
                    break
                continue
            item = live.get(key)
            if item is None:
                self._advance()
            elif not self._copy_deletion(_sequence(item)):
                self._advance()
                self._copy(key, item, size)
        self._flush()
        self._check_room()
        return done

    def _next_key(self) -> int:
        """Return the next key to visit; 0 if there is none."""
        if self._at < self._total:
            return self._keys[self._at]
        return self._next_new_key if self._next_new_key <= self._state.last_key else 0

    def _advance(self) -> None:
        if self._at < self._total:
            self._at += 1
        else:
            self._next_new_key += 1

    def _copy_deletion(self, sequence: int) -> bool:
        """Copy the oldest reported DELETION if its sequence number is below `sequence`; False if there is none."""
        if not self._deletions or self._at < self._total or self._deletions[0][0] > sequence:
            return False
        self._journal.append(self._deletions.popleft()[1])
        return True

    def _copy(self, key: int, item: Live, size: int) -> None:
        if type(item) is Message:
            if _record_bytes(item) > size:
                self._large = item, 0
                return
            self._copy_message(item)
        elif type(item) is tuple:
            record, entry = item
            self._journal.append(with_offsets(record, QUEUE_OP_HEAD, 0, self._qlist_end))
            self._qlist.append(entry)
            self._qlist_end += len(entry)
        else:
            self._journal.append(item)  # type: ignore[arg-type]
        self.cursor = key

    def _copy_message(self, message: Message) -> None:
        size = _record_bytes(message)
        offset = message.data_offset * 8
        if self._runs and sum(self._runs[-1]) == offset:
            self._runs[-1] = (self._runs[-1][0], self._runs[-1][1] + size)
        else:
            self._runs.append((offset, size))
        self._pending += size
        self._add_journal_record(message, size)

    def _add_journal_record(self, message: Message, size: int) -> None:
        """Add the MESSAGE record of a DATA record of `size` bytes at the end of the new DATA file."""
        self._journal.append(pack_message_record(message.sequence, message.lease, message.wall, message.queue_key,
                                                 self._data_end >> 3, message))
        self.keys.append(message.live_key)
        self.offsets.append(self._data_end >> 3)
        self._data_end += size

    def _copy_piece(self, message: Message, done: int, size: int) -> None:
        """Copy the next piece of a large message; after the last piece its journal record, if the message is still live."""
        self._flush()
        total = _record_bytes(message)
        piece = self._files.read_data(message.data_offset * 8 + done, min(size, total - done))
        if not piece:
            raise OSError(errno.EIO, "DATA file is shorter than its records")
        self._files.next_set.append([], [piece], [])
        done += len(piece)
        if done < total:
            self._large = message, done
            return
        self._large = None
        if message.live_key < 0:
            self._data_end += total  # an unreferenced DATA record remains
            return
        self.cursor = message.live_key
        self._add_journal_record(message, total)

    def _flush(self) -> None:
        if not self._journal:
            return
        data = [self._files.read_data(offset, size) for offset, size in self._runs]
        if sum(map(len, data)) != self._pending:
            raise OSError(errno.EIO, "DATA file is shorter than its records")
        self._files.next_set.append(self._journal, data, self._qlist)
        self._journal, self._qlist, self._runs, self._pending = [], [], [], 0

    def _check_room(self) -> None:
        if not self._files.sizes.fits(self._files.next_set.positions()):
            raise OSError(errno.ENOSPC, "the live records do not fit into a new file set")


class Relocation:
    """Present DATA offsets of messages whose `data_offset` still refers to the previous file set.

    copy: offsets of copied messages by live key. joined: live key of the last record before both sets were written; later
    records, up to key `last`, lie `distance` dwords further in the new set.
    """

    def __init__(self, state: PartitionState, copy: LiveCopy, joined: int, last: int, distance: int) -> None:
        self._state, self._keys, self._offsets = state, copy.keys, copy.offsets
        self._joined, self._last, self._distance = joined, last, distance
        self._updated = 0  # messages up to this key have their new offset
        self._at, self._next_new_key = 0, joined + 1

    def offset(self, message: Message) -> int:
        """Return the present DATA offset of a message, dwords."""
        key = message.live_key
        if key <= self._updated or key > self._last:
            return message.data_offset
        if key > self._joined:
            return message.data_offset + self._distance
        return self._offsets[bisect_left(self._keys, key)]

    def update(self, count: int) -> bool:
        """Set the new offset of up to `count` messages; True if all are updated."""
        live = self._state.live
        for at in range(self._at, min(self._at + count, len(self._keys))):
            item = live.get(self._keys[at])
            if type(item) is Message:
                item.data_offset = self._offsets[at]
            self._updated, self._at = self._keys[at], at + 1
            count -= 1
        for key in range(self._next_new_key, min(self._next_new_key + count, self._last + 1)):
            item = live.get(key)
            if type(item) is Message:
                item.data_offset += self._distance
            self._updated, self._next_new_key = key, key + 1
        return self._at == len(self._keys) and self._next_new_key > self._last


def _record_bytes(message: Message) -> int:
    return data_record_bytes(DATA_HEADER.size + len(message.options) + message.size)


def _sequence(item: Live) -> int:
    if type(item) is Message:
        return item.sequence
    record = item[0] if isinstance(item, tuple) else item
    return int.from_bytes(record[:8], "big") & SEQUENCE_MASK  # type: ignore[index]
