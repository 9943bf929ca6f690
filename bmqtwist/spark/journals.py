"""Which bytes of a journal are records, found so that many tasks can read one file: each block is checked at once with
numpy, and where one is not as it should be `storage/journal.py` decides, record by record.

A journal is cut into ranges. What lies at their edges is looked at when they are cut: if the PSN at each edge is what the
distance says, whatever damage lies between stays between. Otherwise that range is looked at as a whole, and if it is not in
order either, one task reads the whole file the slow way.
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
_NEAR_RECORDS = (64, 4096)  # behind a message the next one, or a sync point, as a rule; looked for so far


@dataclass(frozen=True, slots=True)
class Range:
    """Records from byte `start` to before byte `stop`. `exact`: to be read the slow way. `area_end`: up to there PSNs only
    rise (storage/journal.py). `copied`: what lies before it came from an older journal at a rollover."""

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


def _end(file: ReadOnlyFile) -> int:
    """Number of records, if they lie without a gap: found in about 25 steps."""
    low, high = 0, max(file.size - JOURNAL_HEADER_BYTES, 0) // RECORD_BYTES
    while low < high:
        middle = (low + high) // 2
        if _is_record(file, middle):
            low = middle + 1
        else:
            high = middle
    return low


def _empty_behind(file: ReadOnlyFile, offset: int) -> bool:
    """Are there only zeros from there on?"""
    while offset < file.size:
        written = file.data_after(offset)
        if written is None:
            return True
        chunk = file.read(written, _CHUNK_BYTES)
        if chunk.count(0) != len(chunk):
            return False
        offset = written + len(chunk)
    return True


def _in_order(file: ReadOnlyFile, start: int, stop: int, area_end: int) -> bool:
    """Is everything from the record before `start` up to `stop` in order?"""
    at = max(start - RECORD_BYTES, JOURNAL_HEADER_BYTES)
    step = _CHUNK_BYTES // RECORD_BYTES * RECORD_BYTES
    while at < stop:
        block = Block(file.read(at, min(step, stop - at)), at)
        if not block.orderly(area_end):
            return False
        if at + step >= stop:
            break
        at += step - RECORD_BYTES  # the last one again, as the first one's predecessor
    return True


def _psn(file: ReadOnlyFile, offset: int) -> tuple[int, int]:
    head, lease, _, _, _ = RECORD.unpack(file.read(offset, RECORD_BYTES))
    return lease, head & SEQUENCE_MASK


def ranges(file: ReadOnlyFile, records_max: int) -> list[Range]:
    """A journal cut into ranges of about equal size; none if it holds no records."""
    scan = JournalScan(file.read, file.size, file.data_after)
    count, area_end = _end(file), scan.area_end
    end = JOURNAL_HEADER_BYTES + count * RECORD_BYTES
    copied = scan.mark + RECORD_BYTES if scan.marked else JOURNAL_HEADER_BYTES
    whole = [Range(JOURNAL_HEADER_BYTES, file.size, area_end, True, copied)]
    if not _empty_behind(file, end):
        return whole
    if not count:
        return []
    parts = -(-count // records_max)
    edges = [JOURNAL_HEADER_BYTES + count * number // parts * RECORD_BYTES for number in range(parts)] + [end]
    for start, stop in zip(edges[:-2], edges[1:-1], strict=True):
        base = max(start, area_end)
        if base < stop:
            lease, sequence = _psn(file, base)
            as_far = _psn(file, stop) == (lease, sequence + (stop - base) // RECORD_BYTES)
        else:
            as_far = False
        if not as_far and not _in_order(file, start, stop, area_end):
            return whole
    return [Range(start, stop, area_end, False, copied) for start, stop in zip(edges, edges[1:], strict=False)]


def data_offset_after(file: ReadOnlyFile, offset: int) -> int:
    """The first offset in the DATA file that a record from there on tells of, bytes; -1 = there is none near."""
    for count in _NEAR_RECORDS:
        data = file.read(offset, count * RECORD_BYTES)
        block = Block(data[:len(data) // RECORD_BYTES * RECORD_BYTES], offset)
        offsets = block.data_offsets()
        told = (offsets >= 0) & block.well_formed().cumprod().astype(bool)
        if told.any():
            return int(offsets[told.argmax()])
    return -1


def blocks(file: ReadOnlyFile, wanted: Range, batch_records: int, problems: list[str]) -> Iterator[Block]:
    """The records of a range. What is wrong with the file, if it had to be read the slow way, is put into `problems`."""
    at, exact = wanted.start, wanted.exact
    while at < wanted.stop and not exact:
        size = min(batch_records * RECORD_BYTES, wanted.stop - at)
        before = RECORD_BYTES if at > JOURNAL_HEADER_BYTES else 0
        data = memoryview(file.read(at - before, before + size))
        if len(data) < before + size or not Block(data, at - before).orderly(wanted.area_end):
            exact = True
            break
        yield Block(data[before:], at)
        at += size
    if exact:
        yield from _scanned(file, at, wanted.stop, batch_records, problems)


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
