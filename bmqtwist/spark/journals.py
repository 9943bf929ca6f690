"""Ranges of a journal for parallel tasks. Blocks are checked with numpy; from an invalid block on `storage/journal.py` scans
the file record by record.

A range is valid if the PSNs at its edges differ by its number of records: damage inside then affects only this range.
Otherwise all its records are checked, and if they are not consecutive, one task scans the whole file. Called by
`storage.py` and `positions.py`; the columns are made in `records.py`, journals are found by `filesets.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bmqtwist.spark.records import Block
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.records import MAGIC, RECORD, RECORD_BYTES, SEQUENCE_MASK, TYPE_SHIFT
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.storagetool.inputs import ReadOnlyFile

_CHUNK_BYTES = 4 << 20
_NEAR_RECORDS = (64, 4096)  # search distance for the next message or sync point


@dataclass(frozen=True, slots=True)
class Range:
    """Records from byte `start` to before byte `stop`. `exact`: scan record by record. `area_end`: PSNs up to it only rise
    (storage/journal.py). `copied`: end of the records that a rollover copied from an older journal."""

    start: int
    stop: int
    area_end: int
    exact: bool
    copied: int = JOURNAL_HEADER_BYTES


def _is_record(file: ReadOnlyFile, index: int) -> bool:
    data = file.read(JOURNAL_HEADER_BYTES + index * RECORD_BYTES, RECORD_BYTES)
    if len(data) < RECORD_BYTES:
        return False
    head, _, _, _, magic = RECORD.unpack(data)
    return head >> TYPE_SHIFT > 0 and magic == MAGIC


def _record_count(file: ReadOnlyFile) -> int:
    """Return the number of records by binary search, assuming that there are no gaps."""
    low, high = 0, max(file.size - JOURNAL_HEADER_BYTES, 0) // RECORD_BYTES
    while low < high:
        middle = (low + high) // 2
        if _is_record(file, middle):
            low = middle + 1
        else:
            high = middle
    return low


def _only_zeros_after(file: ReadOnlyFile, offset: int) -> bool:
    """Return whether the file contains only zeros from `offset` on."""
    while offset < file.size:
        written = file.data_after(offset)
        if written is None:
            return True
        chunk = file.read(written, _CHUNK_BYTES)
        if chunk.count(0) != len(chunk):
            return False
        offset = written + len(chunk)
    return True


def _is_consecutive(file: ReadOnlyFile, start: int, stop: int, area_end: int) -> bool:
    """Return whether all records from the one before `start` up to `stop` are consecutive."""
    at = max(start - RECORD_BYTES, JOURNAL_HEADER_BYTES)
    step = _CHUNK_BYTES // RECORD_BYTES * RECORD_BYTES
    while at < stop:
        block = Block(file.read(at, min(step, stop - at)), at)
        if not block.is_consecutive(area_end):
            return False
        if at + step >= stop:
            break
        at += step - RECORD_BYTES  # one record overlap: the predecessor of the next block
    return True


def _psn(file: ReadOnlyFile, offset: int) -> tuple[int, int]:
    head, lease, _, _, _ = RECORD.unpack(file.read(offset, RECORD_BYTES))
    return lease, head & SEQUENCE_MASK


def ranges(file: ReadOnlyFile, records_max: int) -> list[Range]:
    """Return ranges of about equal size; none if the journal contains no records."""
    scan = JournalScan(file.read, file.size, file.data_after)
    count, area_end = _record_count(file), scan.area_end
    end = JOURNAL_HEADER_BYTES + count * RECORD_BYTES
    copied = scan.mark + RECORD_BYTES if scan.marked else JOURNAL_HEADER_BYTES
    whole = [Range(JOURNAL_HEADER_BYTES, file.size, area_end, True, copied)]
    if not _only_zeros_after(file, end):
        return whole
    if not count:
        return []
    parts = -(-count // records_max)
    edges = [JOURNAL_HEADER_BYTES + count * number // parts * RECORD_BYTES for number in range(parts)] + [end]
    for start, stop in zip(edges[:-2], edges[1:-1], strict=True):
        base = max(start, area_end)
        if base < stop:
            lease, sequence = _psn(file, base)
            consistent = _psn(file, stop) == (lease, sequence + (stop - base) // RECORD_BYTES)
        else:
            consistent = False
        if not consistent and not _is_consecutive(file, start, stop, area_end):
            return whole
    return [Range(start, stop, area_end, False, copied) for start, stop in zip(edges, edges[1:], strict=False)]


def data_offset_after(file: ReadOnlyFile, offset: int) -> int:
    """Return the DATA file offset of the first message or sync point at or after `offset`, bytes; -1 if none is near."""
    for count in _NEAR_RECORDS:
        data = file.read(offset, count * RECORD_BYTES)
        block = Block(data[:len(data) // RECORD_BYTES * RECORD_BYTES], offset)
        offsets = block.data_offsets()
        known = (offsets >= 0) & block.well_formed().cumprod().astype(bool)
        if known.any():
            return int(offsets[known.argmax()])
    return -1


def blocks(file: ReadOnlyFile, span: Range, batch_records: int, problems: list[str]) -> Iterator[Block]:
    """Yield the records of a range. Problems found by a record-by-record scan are added to `problems`."""
    at, exact = span.start, span.exact
    while at < span.stop and not exact:
        size = min(batch_records * RECORD_BYTES, span.stop - at)
        before = RECORD_BYTES if at > JOURNAL_HEADER_BYTES else 0
        data = memoryview(file.read(at - before, before + size))
        if len(data) < before + size or not Block(data, at - before).is_consecutive(span.area_end):
            exact = True
            break
        yield Block(data[before:], at)
        at += size
    if exact:
        yield from _scanned(file, at, span.stop, batch_records, problems)


def _scanned(file: ReadOnlyFile, start: int, stop: int, batch_records: int, problems: list[str]) -> Iterator[Block]:
    scan = JournalScan(file.read, file.size, file.data_after)
    offsets: list[int] = []
    parts: list[bytes] = []
    for offset, head, lease, wall, body in scan:
        if start <= offset < stop:
            offsets.append(offset)
            parts.append(RECORD.pack(head, lease, wall, body, MAGIC))
            if len(offsets) >= batch_records:
                yield Block(b"".join(parts), offsets)
                offsets, parts = [], []
    problems += scan.problems
    if offsets:
        yield Block(b"".join(parts), offsets)
