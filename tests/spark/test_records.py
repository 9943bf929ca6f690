"""Journal columns equal the storage tool's output row by row, for the original's files and for damaged ones.

The tested modules are `bmqtwist/spark/records.py`, `journals.py` and `filesets.py`; Spark reads them in `test_storage.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bmqtwist.spark.filesets import Journal, find_journals
from bmqtwist.spark.journals import blocks, data_offset_after, ranges
from bmqtwist.spark.records import COLUMNS, KeyNames, Origin, columns_of
from bmqtwist.storage.journal import JournalScan
from bmqtwist.storage.records import RECORD_BYTES, QueueOp, RecordType, SyncPoint, pack_queue_op, pack_sync_point
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.storagetool.datafile import DataFile
from bmqtwist.storagetool.inputs import ReadOnlyFile
from spark.recorded_journals import SETS, TOOL_OUTPUT, as_tool_row, tool_rows

JOURNALS = sorted(SETS.rglob("*.bmq_journal"))
NOTHING = KeyNames({}, {})


def rows_of(journal: Journal, records_max: int = 1 << 20, batch: int = 1 << 16) -> list[dict[str, Any]]:
    """Return the table of one journal as dictionaries."""
    file = ReadOnlyFile(journal.path)
    found: list[dict[str, Any]] = []
    try:
        for each in ranges(file, records_max):
            for block in blocks(file, each, batch, []):
                rows = block.select(block.types >= 0)
                made = columns_of(rows, list(COLUMNS), Origin(journal.partition, journal.file_set),
                                  KeyNames(journal.queues, journal.apps))
                columns = {name: array.to_pylist() for name, array in made.items()}
                found += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    finally:
        file.close()
    return found


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: str(path.relative_to(SETS)))
@pytest.mark.parametrize("records_max", [1 << 20, 7])
def test_a_recorded_journal_has_the_rows_of_the_storage_tool(path: Path, records_max: int) -> None:
    """In one range or in many."""
    journal = find_journals((str(path),), False)[0]
    assert [as_tool_row(row) for row in rows_of(journal, records_max, 5)] == tool_rows(path)


@pytest.mark.parametrize("output", sorted(TOOL_OUTPUT.glob("*/p0.journal.json.txt")), ids=lambda path: path.parent.name)
def test_a_recorded_journal_has_the_rows_of_the_original_tool(output: Path) -> None:
    """It prints the records of a message together, and hides those of apps that never wanted it."""
    case, node = output.parent.name.split(".", 1)
    path = next((SETS / case / node).glob("bmq_0.*.bmq_journal"))
    rows = [as_tool_row(row) for row in rows_of(find_journals((str(path),), False)[0]) if row["reason"] != "AUTO_CONFIRMED"]
    expected = json.loads(output.read_text())["Records"]
    assert sorted(rows, key=str) == sorted(expected, key=str)


def test_queue_and_app_names_come_from_qlist_and_ledger() -> None:
    journal = find_journals((str(SETS / "fanout-partial" / "n1"),), False)[0]
    found = rows_of(journal)
    assert {row["queue"] for row in found if row["queueKey"]} == {"bmq://d.fan/f"}
    assert {row["appId"] for row in found if row["type"] == "CONFIRM"} == {"foo", "bar"}  # the last one has no record


@pytest.mark.parametrize("batch", [1, 3, 1 << 16])
def test_data_bytes_of_a_message_are_the_length_of_its_data_record(batch: int) -> None:
    """In blocks of any size, including the last, followed by a sync point."""
    journal = find_journals((str(SETS / "payload-60k" / "n1"),), False)[0]
    file, data = ReadOnlyFile(journal.path), ReadOnlyFile(journal.data)
    found = {}
    for each in ranges(file, 1 << 20):
        for block in blocks(file, each, batch, []):
            block.data_after = data_offset_after(file, int(block.offsets[-1]) + RECORD_BYTES)
            sizes = zip(block.data_offsets(), block.data_bytes(), block.types, strict=True)
            found |= {int(at): int(size) for at, size, kind in sizes if kind == RecordType.MESSAGE}
    expected = {at: DataFile(data.read, data.size).record(at).message_words * 4 for at in found}
    file.close()
    data.close()
    assert len(found) == 2 and found == expected


def test_file_sets_of_a_directory_and_its_archive_are_found() -> None:
    place = str(SETS / "rollover" / "n1")
    assert len(find_journals((place,), False)) == 1
    stamps = [each.file_set for each in find_journals((place,), True)]
    assert len(stamps) == 3 and stamps == sorted(stamps)


# -- files that are not as they should be ---------------------------------------------------------------------------------


def journal_of(count: int, lease: int = 1, first: int = 1) -> bytes:
    """Return a journal of a sync point and `count` other records."""
    header = bytes.fromhex("21626d71424d51214882") + bytes(22)
    body = bytes.fromhex("030f0000") + bytes(8)
    parts = [pack_sync_point(first, lease, 1795237326, SyncPoint.REGULAR, 1, 40, 36)]
    parts += [pack_queue_op((lease, number), 1795237326 + number, b"queue", bytes(5), QueueOp.PURGE)
              for number in range(first + 1, first + count + 1)]
    return header + body + b"".join(parts)


def check(tmp_path: Path, data: bytes, records_max: int = 7, batch: int = 5) -> int:
    """Check that the rows equal those of the record-by-record scan; return their number."""
    path = tmp_path / "bmq_0.20261121_000000.bmq_journal"
    path.write_bytes(data)
    file = ReadOnlyFile(str(path))
    expected = [(offset, lease, head & ((1 << 48) - 1)) for offset, head, lease, _, _ in JournalScan(file.read, file.size)]
    file.close()
    rows = rows_of(Journal(str(path), "", "", 0, "x"), records_max, batch)
    assert [(row["offset"], row["lease"], row["sequence"]) for row in rows] == expected
    return len(rows)


def test_a_live_journal_ends_at_its_first_zeros(tmp_path: Path) -> None:
    assert check(tmp_path, journal_of(30) + bytes(60 * 1000)) == 31


def test_an_empty_journal_has_no_rows(tmp_path: Path) -> None:
    assert check(tmp_path, journal_of(30)[:JOURNAL_HEADER_BYTES]) == 0
    assert check(tmp_path, journal_of(30)[:JOURNAL_HEADER_BYTES] + bytes(6000)) == 0
    assert check(tmp_path, b"") == 0


@pytest.mark.parametrize("cut", [1, 4, 30, 59])
def test_an_incomplete_last_record_is_omitted(tmp_path: Path, cut: int) -> None:
    assert check(tmp_path, journal_of(30)[:-cut]) == 30
    assert check(tmp_path, journal_of(30)[:-cut] + bytes(600)) == 30


def test_records_continue_with_a_new_lease(tmp_path: Path) -> None:
    data = journal_of(20) + journal_of(20, 2)[JOURNAL_HEADER_BYTES:]
    assert check(tmp_path, data) == 42 and check(tmp_path, data + bytes(6000), 1 << 20) == 42


def test_old_bytes_after_the_last_record_are_no_records(tmp_path: Path) -> None:
    rest = journal_of(10, 1, 500)[JOURNAL_HEADER_BYTES + RECORD_BYTES * 3:]
    assert check(tmp_path, journal_of(20) + rest + bytes(60)) >= 21
    assert check(tmp_path, journal_of(20) + bytes(120) + b"rest of something" + bytes(600)) == 21


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_a_damaged_journal_equal_those_of_the_record_by_record_scan(tmp_path: Path, seed: int) -> None:
    """With changed bytes and with zeroed, swapped and removed ranges, in live and closed files."""
    chance = random.Random(seed)
    data = bytearray(journal_of(chance.randrange(5, 60)))
    if chance.random() < 0.3:
        data += journal_of(chance.randrange(1, 30), 2)[JOURNAL_HEADER_BYTES:]
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(JOURNAL_HEADER_BYTES, len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            size = chance.choice([1, 60, 180])
            data[at:at + size] = bytes(len(data[at:at + size]))
        elif kind == 2:
            slot = JOURNAL_HEADER_BYTES + (at - JOURNAL_HEADER_BYTES) // RECORD_BYTES * RECORD_BYTES
            data[slot:slot + RECORD_BYTES] = chance.randbytes(RECORD_BYTES)
        else:
            del data[at:at + chance.choice([1, 60, 60, 120])]
    tail = bytes(chance.choice([0, 60, 6000]))
    check(tmp_path, bytes(data) + tail, chance.choice([3, 7, 1000]), chance.choice([2, 5, 1000]))
