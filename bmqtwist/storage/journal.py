"""Scan of a JOURNAL: finds its records, damaged slots, its end and stale bytes after it.

A journal has no checksums, but records lie 60 bytes apart and their sequence numbers rise by one. So an unreadable slot is
damage, not the end, if a later slot holds the PSN that its distance requires; other bytes after the last record are stale.

```
 44            area_end                                     end            length
  | live records | sync point | PSN +1 each, bad slots skipped | zeros/stale |
  '- compacted: PSNs rise with gaps
```

A record between valid ones whose PSN alone is wrong gets the PSN of its offset. `recovery.py` and `found_log.py` read
journals with it at the start, `fileset.py` chooses the file set, tools show it. The meaning of the records is in
`replay.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bmqtwist.storage.layout import FILE_HEADER, FILE_MAGIC, JOURNAL_FILE_HEADER, JOURNAL_OP_RECORD, RECORD_HEADER
from bmqtwist.storage.records import (
    JOURNAL_OP_BODY,
    JOURNAL_OP_HEAD,
    MAGIC,
    MESSAGE_HEAD,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    SYNC_POINT_OP,
    TYPE_SHIFT,
    FileType,
    RecordType,
)
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES

Entry = tuple[int, int, int, int, bytes]  # offset of the record, head, lease, wall, the 36 bytes of its body

UNFINISHED_TEXT = "an interrupted write, cut off"
_CHUNK_BYTES = RECORD_BYTES << 16
_JUMPS_MAX = 64  # accepted gaps of the PSN before the rest counts as stale
_TYPE_AND_FLAGS = RECORD_HEADER.word(type=RECORD_HEADER.mask("type"), flags=RECORD_HEADER.mask("flags"))
_OP = slice(JOURNAL_OP_RECORD.offset("op") - RECORD_HEADER.size,
            JOURNAL_OP_RECORD.offset("inner_sequence") - RECORD_HEADER.size)  # within the body of a JOURNAL_OP


def is_sync_point(record: tuple[int, int, int, bytes, int]) -> bool:
    """Return whether an unpacked RECORD is a valid sync point."""
    head, lease, _, body, magic = record
    return (magic == MAGIC and head >> TYPE_SHIFT == RecordType.JOURNAL_OP and head & SEQUENCE_MASK > 0 and lease > 0
            and int.from_bytes(body[_OP], "big") == SYNC_POINT_OP)


def check_file_header(data: bytes, kind: FileType, partition_id: int | None) -> str | None:
    """Return the error in the 32-byte file header at the start of `data`; None if it is valid."""
    if len(data) < FILE_HEADER.size:
        return "file is shorter than its header"
    header = FILE_HEADER.parse(data[:FILE_HEADER.size])
    if (header.magic1, header.magic2) != FILE_MAGIC:
        return "file magic is wrong"
    if header.header_words != FILE_HEADER.words:
        return f"header words are {header.header_words}"
    if header.type != kind:
        return f"file type is {header.type}, not {int(kind)}"
    if partition_id is not None and header.partition_id != partition_id:
        return f"partition id is {header.partition_id}, not {partition_id}"
    return None


class JournalScan:
    """Iterator over the records of one JOURNAL; iterate once, then the attributes are final. `data_after` (File.data_after)
    skips the unwritten blocks of a preallocated file.

    lease, sequence: PSN of the last accepted record, 0 if none. end: offset after it. last_head: its head. marked: the
    header's mark points at a sync point. problems: sentences for the operator. damaged: slots were lost or repaired. stale:
    bytes after the end are not zero; unfinished: a sentence if they contain no record. preallocated: an empty slot follows
    the end.
    """

    def __init__(self, read: Callable[[int, int], bytes], length: int,
                 data_after: Callable[[int], int | None] = lambda offset: offset) -> None:
        self._read, self._length, self._data_after = read, length, data_after
        self.lease = self.sequence = self.last_head = 0
        self.start = self.end = JOURNAL_HEADER_BYTES
        self.problems: list[str] = []
        self.unfinished = ""
        self.damaged = self.stale = False
        self._jumps = 0
        self._resync = 0  # offset of the record that ends the present run of damaged slots
        self.mark = self._find_mark()
        self.marked = self.mark > 0
        self.area_end = self.mark or self._find_area_end()

    @property
    def preallocated(self) -> bool:
        """True if an empty slot follows the end: the file was not closed by a clean stop."""
        return self._length - self.end >= RECORD_BYTES

    def _slot(self, offset: int) -> tuple[int, int, int, bytes, int] | None:
        data = self._read(offset, RECORD_BYTES)
        return RECORD.unpack(data) if len(data) == RECORD_BYTES else None

    def _slots(self, offset: int) -> Iterator[tuple[int, tuple[int, int, int, bytes, int]]]:
        """Iterate over (offset, unpacked record) of every non-zero slot from `offset` on."""
        while True:
            written = self._data_after(offset)
            if written is None:
                return
            offset += (written - offset) // RECORD_BYTES * RECORD_BYTES
            chunk = self._read(offset, _CHUNK_BYTES)
            whole = len(chunk) // RECORD_BYTES * RECORD_BYTES
            if not whole:
                return
            if chunk != bytes(len(chunk)):
                for position, record in enumerate(RECORD.iter_unpack(chunk[:whole])):
                    if record[0] or record[4]:
                        yield offset + position * RECORD_BYTES, record
            offset += whole

    def _find_mark(self) -> int:
        """Return the offset of the sync point that ended the last rollover, 0 if none; report errors of the header."""
        header = self._read(0, JOURNAL_HEADER_BYTES)
        if len(header) < JOURNAL_HEADER_BYTES:
            self.damaged = self._length > 0
            self.problems.append("JOURNAL: the file ends within its headers")
            return 0
        sizes = JOURNAL_FILE_HEADER.parse(header[FILE_HEADER.size:])
        if sizes.header_words != JOURNAL_FILE_HEADER.words or sizes.record_words != RECORD_BYTES >> 2:
            self.damaged = True
            self.problems.append(f"JOURNAL: header words {sizes.header_words} and record words {sizes.record_words} are"
                                 f" not {JOURNAL_FILE_HEADER.words} and {RECORD_BYTES >> 2}; the expected values are used")
        if not sizes.mark:
            return 0
        offset: int = sizes.mark * 4
        if (offset - self.start) % RECORD_BYTES == 0 and self.start <= offset < self._length:
            record = self._slot(offset)
            if record is not None and is_sync_point(record):
                return offset
        self.damaged = True
        self.problems.append(f"JOURNAL: the header's mark is offset {offset}, which is not a sync point")
        return 0

    def _find_area_end(self) -> int:
        """Return the offset of the first sync point, before which PSNs may have gaps; without one the end of records."""
        end = self.start
        for offset, record in self._slots(self.start):
            if is_sync_point(record):
                return offset
            if _well_formed(record):
                end = offset + RECORD_BYTES
        return end

    def __iter__(self) -> Iterator[Entry]:
        offset, lease, expected = self.start, 0, 0
        area_end = self.area_end
        while True:
            chunk = self._read(offset, _CHUNK_BYTES)
            whole = len(chunk) // RECORD_BYTES * RECORD_BYTES
            if not whole:
                break
            for record in RECORD.iter_unpack(chunk[:whole]):
                head, record_lease, wall, body, magic = record
                if (magic == MAGIC and record_lease == lease and head & SEQUENCE_MASK == expected
                        and head >= MESSAGE_HEAD and offset > area_end):
                    pass
                elif offset <= area_end and _well_formed(record):
                    if (record_lease, head & SEQUENCE_MASK) < (lease, expected - 1):  # equal: a CREATION made anew
                        self._add_problem(f"JOURNAL: the PSN of the record at offset {offset} is smaller than its"
                                          " predecessor's")
                    if offset == area_end:
                        record_lease, sequence = self._first_sync_psn(offset, record)
                        head = head & _TYPE_AND_FLAGS | sequence
                    lease = record_lease
                elif offset < area_end:
                    self._add_problem(f"JOURNAL: the record at offset {offset} is unreadable: skipped")
                    offset += RECORD_BYTES
                    continue
                else:
                    verdict = self._resolve_slot(offset, record, lease, expected)
                    if verdict is None:
                        self._find_stale_bytes(offset)
                        return
                    if verdict == (0, 0):
                        expected += 1
                        offset += RECORD_BYTES
                        continue
                    lease, sequence = verdict
                    head = head & _TYPE_AND_FLAGS | sequence
                    record_lease = lease
                expected = (head & SEQUENCE_MASK) + 1
                self.lease, self.sequence, self.last_head = lease, expected - 1, head
                self.end = offset + RECORD_BYTES
                yield offset, head, record_lease, wall, body
                offset += RECORD_BYTES
        self._find_stale_bytes(offset)

    def _resolve_slot(self, offset: int, record: tuple[int, int, int, bytes, int], lease: int,
                      expected: int) -> tuple[int, int] | None:
        """Return the PSN for a slot that does not hold the next record; (0, 0) to skip it; None if the journal ends."""
        head, record_lease, _, _, _ = record
        sequence = head & SEQUENCE_MASK
        if offset == self._resync:
            return record_lease, sequence
        if offset > self._resync:
            if record_lease > lease and sequence == 1 and is_sync_point(record):
                return record_lease, sequence
            if not expected:
                return None
            self._resync = self._find_resync(offset, lease, expected)
            if not self._resync:
                return self._accept_gap(offset, record, lease, expected)
            self._report_damaged_run(offset)
        return (lease, expected) if _repairable(record) else (0, 0)

    def _accept_gap(self, offset: int, record: tuple[int, int, int, bytes, int], lease: int,
                    expected: int) -> tuple[int, int] | None:
        """Return the PSN after a gap of missing records; None if the journal ends here."""
        psn = record[1], record[0] & SEQUENCE_MASK
        after = self._slot(offset + RECORD_BYTES)
        if (not _well_formed(record) or psn <= (lease, expected) or self._jumps >= _JUMPS_MAX or after is None
                or not _well_formed(after) or (after[1], after[0] & SEQUENCE_MASK) != (psn[0], psn[1] + 1)):
            return None
        self._jumps += 1
        self._add_problem(f"JOURNAL: the PSN jumps from {lease}-{expected - 1} to {psn[0]}-{psn[1]} at offset {offset}:"
                          " records are missing")
        return psn

    def _find_resync(self, bad: int, lease: int, expected: int) -> int:
        """Return the offset of the first record after `bad` with the PSN of its distance; 0 if there is none."""
        for offset, record in self._slots(bad + RECORD_BYTES):
            distance = (offset - bad) // RECORD_BYTES
            sequence = record[0] & SEQUENCE_MASK
            if _well_formed(record) and (record[1] == lease and sequence == expected + distance
                                         or record[1] > lease and sequence <= distance + 1):
                return offset
        return 0

    def _report_damaged_run(self, start: int) -> None:
        """Report skipped and repaired slots from `start` to the record that continues the journal."""
        slots = [self._slot(offset) for offset in range(start, self._resync, RECORD_BYTES)]
        repaired = sum(slot is not None and _repairable(slot) for slot in slots)
        if repaired < len(slots):
            self._add_problem(f"JOURNAL: {len(slots) - repaired} record(s) between offsets {start} and {self._resync} are"
                              " unreadable: skipped")
        if repaired:
            self._add_problem(f"JOURNAL: {repaired} record(s) between offsets {start} and {self._resync} had a wrong PSN:"
                              " kept with the PSN of their place")

    def _first_sync_psn(self, offset: int, record: tuple[int, int, int, bytes, int]) -> tuple[int, int]:
        """Return the PSN of the first sync point: from its header, or from its body if only that fits the next record."""
        head, lease, _, body, _ = record
        header, after = (lease, head & SEQUENCE_MASK), self._slot(offset + RECORD_BYTES)
        if after is None or not _well_formed(after) or not is_sync_point(record):
            return header
        _, _, sequence, _, inner_lease, _, _ = JOURNAL_OP_BODY.unpack(body)
        inner = inner_lease, sequence
        following = after[1], (after[0] & SEQUENCE_MASK) - 1
        if following != header and following == inner and inner[1]:
            self._add_problem(f"JOURNAL: the sync point at offset {offset} had a wrong PSN: kept with that of its body")
            return inner
        return header

    def _add_problem(self, text: str) -> None:
        self.damaged = True
        self.problems.append(text)

    def _find_stale_bytes(self, offset: int) -> None:
        position, stale = self.end, 0
        while True:
            written = self._data_after(position)
            if written is None:
                break
            position = written
            chunk = self._read(position, _CHUNK_BYTES)
            if not chunk:
                break
            if chunk != bytes(len(chunk)):
                stale += len(chunk.rstrip(b"\0"))
            position += len(chunk)
        self.stale = stale > 0
        text = f"JOURNAL: up to {stale} B after the last record, from offset {self.end} on, belong to no record"
        if stale and any(_well_formed(record) for _, record in self._slots(self.end)):
            self._add_problem(f"{text}: they contain records after a gap and are cut off")
        elif stale:
            self.unfinished = f"{text}: {UNFINISHED_TEXT}"


def _well_formed(record: tuple[int, int, int, bytes, int]) -> bool:
    """Return whether a slot holds a record: magic, type 1..15, lease and sequence. (Types 6..15 are unknown records.)"""
    head, lease, _, _, magic = record
    return magic == MAGIC and head >= MESSAGE_HEAD and lease > 0 and head & SEQUENCE_MASK > 0


def _repairable(record: tuple[int, int, int, bytes, int]) -> bool:
    """Return whether a slot holds a record of a known type, with any PSN."""
    return record[4] == MAGIC and MESSAGE_HEAD <= record[0] < JOURNAL_OP_HEAD + (1 << TYPE_SHIFT)
