"""Which bytes of a JOURNAL are its records: the end, the gaps and the stale rest, found going forward.

There is no checksum in a journal, but two things are known: records lie 60 bytes apart, and their sequence numbers rise
by one. So a slot that cannot be read is damage, not the end, when a later slot holds exactly the PSN that the distance
says; and bytes behind the last record that continue nothing are a stale rest.

```
 44            area_end                                     end            length
  | live records | sync point | PSN +1 each, bad slots skipped | zeros/stale |
  '- compacted: PSNs rise with gaps
```

A record whose PSN alone is wrong, between good neighbours, is given the PSN its place says.
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

_CHUNK_BYTES = RECORD_BYTES << 16
_JUMPS_MAX = 64  # unexplained jumps of the PSN that are followed before the rest counts as stale
_TYPE_AND_FLAGS = RECORD_HEADER.word(type=RECORD_HEADER.mask("type"), flags=RECORD_HEADER.mask("flags"))
_OP = slice(JOURNAL_OP_RECORD.offset("op") - RECORD_HEADER.size,
            JOURNAL_OP_RECORD.offset("inner_sequence") - RECORD_HEADER.size)  # within the body of a JOURNAL_OP


def is_sync_point(record: tuple[int, int, int, bytes, int]) -> bool:
    """Is this unpacked RECORD a valid sync point?"""
    head, lease, _, body, magic = record
    return (magic == MAGIC and head >> TYPE_SHIFT == RecordType.JOURNAL_OP and head & SEQUENCE_MASK > 0 and lease > 0
            and int.from_bytes(body[_OP], "big") == SYNC_POINT_OP)


def check_file_header(data: bytes, kind: FileType, partition_id: int | None) -> str | None:
    """What is wrong with the 32-byte file header at the start of `data`; None if nothing is."""
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
    """Iterate once; then the attributes are final. `data_after` (File.data_after) spares the reading of what was never
    written: a preallocated file is mostly that.

    lease, sequence: PSN of the last accepted record, 0 if none. end: offset behind it. last_head: its head.
    marked: the header's mark points at a sync point. problems: sentences for the operator. damaged: slots were lost or
    repaired. stale: bytes that are not zero behind the end. preallocated: room for another record follows the end.
    """

    def __init__(self, read: Callable[[int, int], bytes], length: int,
                 data_after: Callable[[int], int | None] = lambda offset: offset) -> None:
        self._read, self._length, self._data_after = read, length, data_after
        self.lease = self.sequence = self.last_head = 0
        self.start = self.end = JOURNAL_HEADER_BYTES
        self.problems: list[str] = []
        self.damaged = self.stale = False
        self._jumps = 0
        self._resync = 0  # offset of the record that ends the present run of bad slots
        self.mark = self._find_mark()
        self.marked = self.mark > 0
        self.area_end = self.mark or self._find_area_end()

    @property
    def preallocated(self) -> bool:
        """Whether a whole empty slot follows the end: not a cleanly closed file."""
        return self._length - self.end >= RECORD_BYTES

    def _slot(self, offset: int) -> tuple[int, int, int, bytes, int] | None:
        data = self._read(offset, RECORD_BYTES)
        return RECORD.unpack(data) if len(data) == RECORD_BYTES else None

    def _slots(self, offset: int) -> Iterator[tuple[int, tuple[int, int, int, bytes, int]]]:
        """(offset, unpacked record) of every slot from `offset` on that is not all zero."""
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
        """Offset of the sync point that ended the last rollover, 0 if there was none; problems of the header."""
        header = self._read(0, JOURNAL_HEADER_BYTES)
        if len(header) < JOURNAL_HEADER_BYTES:
            self.damaged = self._length > 0
            self.problems.append("JOURNAL: the file ends within its headers")
            return 0
        sizes = JOURNAL_FILE_HEADER.parse(header[FILE_HEADER.size:])
        if sizes.header_words != JOURNAL_FILE_HEADER.words or sizes.record_words != RECORD_BYTES >> 2:
            self.damaged = True
            self.problems.append(f"JOURNAL: header words {sizes.header_words} and record words {sizes.record_words} are"
                                 f" not {JOURNAL_FILE_HEADER.words} and {RECORD_BYTES >> 2}; read as if they were")
        if not sizes.mark:
            return 0
        offset: int = sizes.mark * 4
        if (offset - self.start) % RECORD_BYTES == 0 and self.start <= offset < self._length:
            record = self._slot(offset)
            if record is not None and is_sync_point(record):
                return offset
        self.damaged = True
        self.problems.append(f"JOURNAL: the header points at offset {offset}, where no sync point is")
        return 0

    def _find_area_end(self) -> int:
        """Offset of the first sync point: before it PSNs may have gaps. Without any: behind the last record."""
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
                        self._problem(f"JOURNAL: the PSN of the record at offset {offset} is smaller than its"
                                      " predecessor's")
                    if offset == area_end:
                        record_lease, sequence = self._anchor(offset, record)
                        head = head & _TYPE_AND_FLAGS | sequence
                    lease = record_lease
                elif offset < area_end:
                    self._problem(f"JOURNAL: the record at offset {offset} is unreadable: skipped")
                    offset += RECORD_BYTES
                    continue
                else:
                    verdict = self._judge(offset, record, lease, expected)
                    if verdict is None:
                        self._finish(offset)
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
        self._finish(offset)

    def _judge(self, offset: int, record: tuple[int, int, int, bytes, int], lease: int,
               expected: int) -> tuple[int, int] | None:
        """The PSN to accept a record with that is not simply the next; (0, 0) = skip the slot; None = the end."""
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
                return self._jump(offset, record, lease, expected)
            self._report_run(offset)
        return (lease, expected) if _repairable(record) else (0, 0)

    def _jump(self, offset: int, record: tuple[int, int, int, bytes, int], lease: int,
              expected: int) -> tuple[int, int] | None:
        """Nothing continues the journal at its distance: records may be missing, or it ends here (None)."""
        psn = record[1], record[0] & SEQUENCE_MASK
        after = self._slot(offset + RECORD_BYTES)
        if (not _well_formed(record) or psn <= (lease, expected) or self._jumps >= _JUMPS_MAX or after is None
                or not _well_formed(after) or (after[1], after[0] & SEQUENCE_MASK) != (psn[0], psn[1] + 1)):
            return None
        self._jumps += 1
        self._problem(f"JOURNAL: the PSN jumps from {lease}-{expected - 1} to {psn[0]}-{psn[1]} at offset {offset}:"
                      " records are missing")
        return psn

    def _find_resync(self, bad: int, lease: int, expected: int) -> int:
        """Offset of the first record behind `bad` that continues the journal at its distance; 0 if there is none."""
        for offset, record in self._slots(bad + RECORD_BYTES):
            distance = (offset - bad) // RECORD_BYTES
            sequence = record[0] & SEQUENCE_MASK
            if _well_formed(record) and (record[1] == lease and sequence == expected + distance
                                         or record[1] > lease and sequence <= distance + 1):
                return offset
        return 0

    def _report_run(self, start: int) -> None:
        """Say what happens to the slots from `start` up to the record that continues the journal."""
        slots = [self._slot(offset) for offset in range(start, self._resync, RECORD_BYTES)]
        repaired = sum(slot is not None and _repairable(slot) for slot in slots)
        if repaired < len(slots):
            self._problem(f"JOURNAL: {len(slots) - repaired} record(s) between offsets {start} and {self._resync} are"
                          " unreadable: skipped")
        if repaired:
            self._problem(f"JOURNAL: {repaired} record(s) between offsets {start} and {self._resync} had a wrong PSN:"
                          " kept with the PSN of their place")

    def _anchor(self, offset: int, record: tuple[int, int, int, bytes, int]) -> tuple[int, int]:
        """PSN of the first sync point: that of its header, or of its body if only that one fits the next record."""
        head, lease, _, body, _ = record
        header, after = (lease, head & SEQUENCE_MASK), self._slot(offset + RECORD_BYTES)
        if after is None or not _well_formed(after) or not is_sync_point(record):
            return header
        _, _, sequence, _, inner_lease, _, _ = JOURNAL_OP_BODY.unpack(body)
        inner = inner_lease, sequence
        following = after[1], (after[0] & SEQUENCE_MASK) - 1
        if following != header and following == inner and inner[1]:
            self._problem(f"JOURNAL: the sync point at offset {offset} had a wrong PSN: kept with that of its body")
            return inner
        return header

    def _problem(self, text: str) -> None:
        self.damaged = True
        self.problems.append(text)

    def _finish(self, offset: int) -> None:
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
        if stale and any(_well_formed(record) for _, record in self._slots(self.end)):
            self.damaged = True  # it may be worth a look: keep it
        if stale:
            self.problems.append(f"JOURNAL: up to {stale} B behind the last record, at offset {self.end}, continue"
                                 " nothing and are cut off")


def _well_formed(record: tuple[int, int, int, bytes, int]) -> bool:
    """Type 1..15, lease, sequence and magic: what makes a slot a record. (Types 6..15 are unknown but records.)"""
    head, lease, _, _, magic = record
    return magic == MAGIC and head >= MESSAGE_HEAD and lease > 0 and head & SEQUENCE_MASK > 0


def _repairable(record: tuple[int, int, int, bytes, int]) -> bool:
    """A record of a known type, whatever its PSN."""
    return record[4] == MAGIC and MESSAGE_HEAD <= record[0] < JOURNAL_OP_HEAD + (1 << TYPE_SHIFT)
