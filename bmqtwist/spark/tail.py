"""How far a stream over journals has come, and what lies between two such positions.

A position counts the records of each journal that were read, by `<partition>/<name of the set>`; a name stays when the set
is retired into the archive (read it, too: option includeArchive, or name both directories). At a rollover what is still
needed is copied to the front of the new journal with the numbers it had: those records were read already and are left out.
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
    """A journal that was read in part is gone or shorter than it was."""


@dataclass(frozen=True, slots=True)
class StoragePosition:
    read: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"v": 1, "read": dict(sorted(self.read.items()))}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StoragePosition:
        if value.get("v") != 1 or not isinstance(value.get("read"), dict):
            raise LocalError(f"the checkpoint holds {value!r}, which is no position in storage files")
        return cls({str(key): int(count) for key, count in value["read"].items()})


def key_of(journal: Journal) -> str:
    """Return the name of a journal in a position."""
    return f"{journal.partition}/{journal.file_set or journal.path}"


def _reach(journal: Journal) -> list[Range]:
    with closing(ReadOnlyFile(journal.path)) as file:
        found = ranges(file, 1 << 62)
        if found and found[0].exact:  # not all of it are records
            scan = JournalScan(file.read, file.size)
            for _ in scan:
                pass
            return [replace(found[0], stop=scan.end)] if scan.end > JOURNAL_HEADER_BYTES else []
        return found


def _count(offset: int) -> int:
    return (offset - JOURNAL_HEADER_BYTES) // RECORD_BYTES


def is_finished(journal: Journal, reach: list[Range]) -> bool:
    """Return whether a rollover has ended this journal, so that it is complete."""
    if not reach:
        return False
    with closing(ReadOnlyFile(journal.path)) as file:
        last = Block(file.read(reach[0].stop - RECORD_BYTES, RECORD_BYTES), 0)
    kind = int(last.of(RecordType.JOURNAL_OP)["sync_point_type"][0])
    return bool(last.sync_points()[0]) and kind == SyncPoint.ROLLOVER


def advance(start: StoragePosition, journals: list[Journal], records_max: int | None, target: StoragePosition | None,
            finished_only: bool = False) -> StoragePosition:
    """Return the end of the next batch: at most `target`, and at most `records_max` records further."""
    read, left = dict(start.read), records_max if records_max is not None else 1 << 62
    for journal in journals:
        key = key_of(journal)
        done = read.get(key, 0)
        reach = _reach(journal)
        end = _count(reach[0].stop) if reach and (not finished_only or is_finished(journal, reach)) else 0
        if target is not None:
            end = min(end, target.read.get(key, 0))
        take = min(max(end - done, 0), left)
        if take:
            read[key] = done + take
            left -= take
    return StoragePosition(read)


def parts_between(start: StoragePosition, end: StoragePosition, journals: list[Journal], records_max: int,
                  fail_on_data_loss: bool) -> Iterator[tuple[Journal, Range]]:
    """The ranges between two positions."""
    known = {key_of(each): each for each in journals}
    for key, stop in end.read.items():
        begin = start.read.get(key, 0)
        if stop <= begin:
            continue
        journal = known.get(key)
        reach = _reach(journal) if journal is not None else []
        if journal is None or not reach or _count(reach[0].stop) < stop:
            if fail_on_data_loss:
                what = "is gone" if journal is None else "is shorter than it was"
                raise DataLoss(f"journal {key} {what}: records {begin} to "
                               f"{stop} cannot be read. With option failOnDataLoss false they are left out.")
            if journal is None or not reach:
                continue
        whole = reach[0]
        first = begin
        if known_before(journal, start, end, journals):
            first = max(first, _count(whole.copied))
        for at in range(first, min(stop, _count(whole.stop)), records_max):
            yield journal, replace(whole, start=JOURNAL_HEADER_BYTES + at * RECORD_BYTES,
                                   stop=JOURNAL_HEADER_BYTES + min(at + records_max, stop) * RECORD_BYTES)


def known_before(journal: Journal, start: StoragePosition, end: StoragePosition, journals: list[Journal]) -> bool:
    """Return whether an older journal of the partition was read, which has the copied records at the front of this one."""
    older = [key_of(each) for each in journals if each.partition == journal.partition and each.file_set < journal.file_set]
    prefix = f"{journal.partition}/"
    return bool(older) or any(key.startswith(prefix) and key < key_of(journal) for key in {*start.read, *end.read})
