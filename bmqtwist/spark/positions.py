"""Positions of a stream over journals, and the ranges between two positions.

A position contains the number of records read from each journal, by `<partition>/<name of the file set>`. The name does not
change when a rollover moves the file set to the archive, which the stream must also read (option includeArchive, or both
directories as paths). A rollover copies live records, with their PSNs, to the start of the new journal; the stream skips
the copies. Called by the stream reader of `storage.py`; offsets of queues are in `plan.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from bmqtwist.errors import LocalError
from bmqtwist.spark.filesets import Journal
from bmqtwist.spark.journals import Range, ranges
from bmqtwist.spark.records import Block
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.records import RECORD_BYTES, RecordType, SyncPoint
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.storagetool.inputs import ReadOnlyFile


class DataLoss(LocalError):
    """A journal that was read in part is missing or shorter than before."""


@dataclass(frozen=True, slots=True)
class StoragePosition:
    """Number of records read, by name of the journal (`key_of`)."""

    read: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"v": 1, "read": dict(sorted(self.read.items()))}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StoragePosition:
        if value.get("v") != 1 or not isinstance(value.get("read"), dict):
            raise LocalError(f"the checkpoint holds {value!r}, which is not a position in storage files")
        return cls({str(key): int(count) for key, count in value["read"].items()})


def key_of(journal: Journal) -> str:
    """Return the name of a journal in a position."""
    return f"{journal.partition}/{journal.file_set or journal.path}"


def _record_ranges(journal: Journal) -> list[Range]:
    with closing(ReadOnlyFile(journal.path)) as file:
        found = ranges(file, 1 << 62)
        if found and found[0].exact:  # the file is not a plain sequence of records
            scan = JournalScan(file.read, file.size)
            for _ in scan:
                pass
            return [replace(found[0], stop=scan.end)] if scan.end > JOURNAL_HEADER_BYTES else []
        return found


def _count(offset: int) -> int:
    return (offset - JOURNAL_HEADER_BYTES) // RECORD_BYTES


def is_finished(journal: Journal, spans: list[Range]) -> bool:
    """Return whether a rollover has ended this journal, so that it is complete."""
    if not spans:
        return False
    with closing(ReadOnlyFile(journal.path)) as file:
        last = Block(file.read(spans[0].stop - RECORD_BYTES, RECORD_BYTES), 0)
    kind = int(last.in_layout_of(RecordType.JOURNAL_OP)["sync_point_type"][0])
    return bool(last.sync_points()[0]) and kind == SyncPoint.ROLLOVER


def advance(start: StoragePosition, journals: list[Journal], records_max: int | None, target: StoragePosition | None,
            finished_only: bool = False) -> StoragePosition:
    """Return the end of the next batch: at most `target`, and at most `records_max` records further."""
    read, left = dict(start.read), records_max if records_max is not None else 1 << 62
    for journal in journals:
        key = key_of(journal)
        done = read.get(key, 0)
        spans = _record_ranges(journal)
        end = _count(spans[0].stop) if spans and (not finished_only or is_finished(journal, spans)) else 0
        if target is not None:
            end = min(end, target.read.get(key, 0))
        take = min(max(end - done, 0), left)
        if take:
            read[key] = done + take
            left -= take
    return StoragePosition(read)


def parts_between(start: StoragePosition, end: StoragePosition, journals: list[Journal], records_max: int,
                  fail_on_data_loss: bool) -> Iterator[tuple[Journal, Range]]:
    """Yield the ranges between two positions."""
    known = {key_of(each): each for each in journals}
    for key, stop in end.read.items():
        begin = start.read.get(key, 0)
        if stop <= begin:
            continue
        journal = known.get(key)
        spans = _record_ranges(journal) if journal is not None else []
        if journal is None or not spans or _count(spans[0].stop) < stop:
            if fail_on_data_loss:
                problem = "is missing" if journal is None else "is shorter than before"
                raise DataLoss(f"journal {key} {problem}: records {begin} to "
                               f"{stop} cannot be read. With option failOnDataLoss false they are skipped.")
            if journal is None or not spans:
                continue
        whole = spans[0]
        first = begin
        if copies_were_read(journal, start, end, journals):
            first = max(first, _count(whole.copied))
        for at in range(first, min(stop, _count(whole.stop)), records_max):
            yield journal, replace(whole, start=JOURNAL_HEADER_BYTES + at * RECORD_BYTES,
                                   stop=JOURNAL_HEADER_BYTES + min(at + records_max, stop) * RECORD_BYTES)


def copies_were_read(journal: Journal, start: StoragePosition, end: StoragePosition, journals: list[Journal]) -> bool:
    """Return whether an older journal of the partition was read: it contains the records copied to this one."""
    older = [key_of(each) for each in journals if each.partition == journal.partition and each.file_set < journal.file_set]
    prefix = f"{journal.partition}/"
    return bool(older) or any(key.startswith(prefix) and key < key_of(journal) for key in {*start.read, *end.read})
