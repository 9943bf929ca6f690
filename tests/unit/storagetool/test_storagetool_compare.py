"""`bmq storage compare`: equal copies of nodes, and differences with their PSN."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from kit.storage_kit import DEFAULT, FANOUT, KEY, WALL, make_message, open_files, start
from kit.storagetool_kit import SETS, bmq, change, flip, one, spill, storage_directory, write_ledger

from bmqtwist.storage.found_log import RecoveryClock, find_log
from bmqtwist.storage.layout import JOURNAL_OP_RECORD
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.psn import NO_PSN, RecordRun
from bmqtwist.storage.replica import ReplicatedPartition


def equal_directories(tmp_path: Path, messages: int = 4) -> tuple[Path, Path]:
    """Create two equal directories: sync point 1-1, CREATION 1-2, MESSAGEs from 1-3."""
    disk = MemoryDisk()
    partition, _ = start(disk)
    partition.queues.create(KEY, "bmq://d/q", FANOUT, WALL)
    for number in range(1, messages + 1):
        partition.append_message(KEY, make_message(number, b"payload %d" % number), WALL)
    partition.stop(WALL + 1)
    left = spill(disk, tmp_path / "left")
    write_ledger(left, WALL, [("bmq://d/q", KEY, FANOUT)])
    return left, Path(shutil.copytree(left, tmp_path / "right"))


@pytest.mark.parametrize("other", ["n2", "n3"])
def test_recorded_nodes_of_a_cluster_are_equal_in_their_common_range(other: str, tmp_path: Path) -> None:
    """The nodes stopped one after the other, so the later ones have more sync points."""
    outcome = bmq("compare", storage_directory("three-nodes.n1", tmp_path / "n1"),
                  storage_directory(f"three-nodes.{other}", tmp_path / other))
    assert outcome.code == 0
    assert outcome.out.endswith("The directories are equal, as far as both have records.\n")
    assert f"{other} ends at 1-" in outcome.out and "n1 has " in outcome.out


def test_a_rebuilt_replica_is_equal_to_its_primary(tmp_path: Path) -> None:
    """Names and ledgers differ; a later snapshot contains the records that the stopped node's ledger lacks."""
    outcome = bmq("compare", storage_directory("three-nodes-rollover-drop.n1", tmp_path / "n1"),
                  storage_directory("three-nodes-rollover-drop.n2", tmp_path / "n2"))
    assert outcome.code == 0 and "70 record(s) are in both" in outcome.out
    assert "UPDATE 1-7, COMMIT 1-8; a later snapshot covers them" in outcome.out


def test_records_omitted_by_a_rollover_are_not_differences(tmp_path: Path) -> None:
    """The sets before and after a rollover differ in offsets and in records that are not live."""
    before, after = tmp_path / "before", storage_directory("rollover.n1", tmp_path / "after")
    before.mkdir()
    for path in (SETS / "rollover" / "n1" / "archive").glob("bmq_0.20261121_050215.*"):
        shutil.copy(path, before)
    outcome = bmq("compare", before, after)
    assert outcome.code == 0, outcome.out
    assert "omitted by a rollover on one side only" in outcome.out
    assert "ledger: only in" in outcome.out


def empty_replica(disk: MemoryDisk, node_id: int) -> ReplicatedPartition:
    """Return the empty partition of a replica."""
    files = open_files(disk)
    return ReplicatedPartition(node_id, files, find_log(files, None, RecoveryClock(), 0, WALL), wall=WALL)


def record_runs() -> list[RecordRun]:
    """Return records of every type as a primary writes them, in runs of one record."""
    primary, message, runs = empty_replica(MemoryDisk(), 1), make_message(1, ref_count=2), list[RecordRun]()

    def write(append: Callable[[], Any]) -> None:
        append()
        primary.log.write()
        run = primary.read_run(runs[-1].last if runs else NO_PSN)
        assert run is not None
        runs.append(run)
    write(lambda: primary.activate(1, WALL))
    write(lambda: primary.queues.create(KEY, "bmq://d/q", FANOUT, WALL))
    write(lambda: primary.append_message(KEY, message, WALL))
    write(lambda: primary.append_message(KEY, make_message(2, ref_count=2), WALL))
    write(lambda: primary.append_confirm(KEY, FANOUT[0][1], message, 0, WALL))
    write(lambda: primary.append_deletion(KEY, message, 0, WALL))
    write(lambda: primary.append_message(KEY, make_message(3, ref_count=2), WALL))
    return runs


@pytest.mark.parametrize("ends", list(combinations(range(8), 2)), ids=str)
def test_replicas_rolled_over_at_different_records_are_equal(ends: tuple[int, int], tmp_path: Path) -> None:
    """Each replica rolls over after a record of any type, or one before all of them."""
    places = []
    for name, end in zip(("left", "right"), ends, strict=True):
        disk = MemoryDisk()
        copy = empty_replica(disk, 2)
        for number, run in enumerate(record_runs(), 1):
            copy.append_run(run, copy.summary.last, WALL)
            if number == end:
                assert copy.roll.finish_at_once(WALL)
        copy.stop(WALL)
        places.append(spill(disk, tmp_path / name))
    for first, second in (places, places[::-1]):
        outcome = bmq("compare", first, second)
        assert outcome.code == 0, outcome.out


def test_the_sync_points_that_two_nodes_wrote_at_their_own_time_are_no_differences(tmp_path: Path) -> None:
    """Both roll over after the same record, at another second. The right one has restarted since the primary's last sync
    point, so that it does not know the primary."""
    places = []
    for node_id, delay in ((1, 0), (2, 7)):
        disk = MemoryDisk()
        copy = empty_replica(disk, node_id)
        for run in record_runs():
            copy.append_run(run, copy.summary.last, WALL)
        copy.log.primary_id = node_id
        assert copy.roll.finish_at_once(WALL + delay)
        copy.stop(WALL)
        places.append(spill(disk, tmp_path / str(node_id)))
    outcome = bmq("compare", *places)
    assert outcome.code == 0, outcome.out
    found = [one(place, "journal").read_bytes() for place in places]
    mark = next(at for at in range(44, len(found[0]), 60) if found[0][at:at + 60] != found[1][at:at + 60])
    change(one(places[1], "journal"), mark + JOURNAL_OP_RECORD.offset("data_dwords"), bytes(4))
    outcome = bmq("compare", *places)
    assert outcome.code == 1 and "differs in DATA offset in dwords" in outcome.out, outcome.out


@pytest.mark.parametrize(("offset", "data", "text"), [
    (44 + 60 * 3 + 36, b"\x41", "MESSAGE 1-4 differs in GUID (4000000000000000"),
    (44 + 60 * 3 + 52, b"\xde\xad\xbe\xef", "MESSAGE 1-4 differs in CRC ("),
    (44 + 60 * 3 + 1, b"\x07", "MESSAGE 1-4 differs in flags (1, 7), ref count (1, 7)"),
    (44 + 60 * 2 + 16, b"\x00", "MESSAGE 1-3 differs in timestamp ("),
    (44 + 60 * 5, b"\x30", "MESSAGE 1-6 differs in type (MESSAGE, DELETION)"),
    (44 + 60 * 1 + 39, b"\x0a", "QUEUE_OP 1-2 differs in QLIST offset in words (9, 10)"),
])
def test_a_differing_record_is_reported_with_its_psn(offset: int, data: bytes, text: str, tmp_path: Path) -> None:
    """The finding lists the different fields."""
    left, right = equal_directories(tmp_path)
    change(one(right, "journal"), offset, data)
    outcome = bmq("compare", left, right)
    assert outcome.code == 1
    errors = [line for line in outcome.out.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and text in errors[0], outcome.out


def test_differing_data_of_equal_records_is_reported(tmp_path: Path) -> None:
    """A changed payload byte, and an invalid DATA record."""
    left, right = equal_directories(tmp_path)
    flip(one(right, "data"), 40 + 12)
    change(one(right, "data"), 40 + 24, bytes(12))
    outcome = bmq("compare", left, right)
    assert outcome.code == 1
    assert "the data of message 40000000000000000000000000000001 (1-3) differ" in outcome.out
    assert "message 40000000000000000000000000000002 (1-4) in" in outcome.out and "is damaged" in outcome.out


def test_differing_queue_records_are_reported(tmp_path: Path) -> None:
    """A changed letter of an app's name."""
    left, right = equal_directories(tmp_path)
    change(one(right, "qlist"), 36 + 20 + 12 + 16 + 4, b"g")
    outcome = bmq("compare", left, right)
    assert outcome.code == 1 and "the QLIST records of 1-2 differ" in outcome.out


def test_a_record_in_only_one_directory_is_reported(tmp_path: Path) -> None:
    """An unreadable slot between valid ones."""
    left, right = equal_directories(tmp_path)
    change(one(right, "journal"), 44 + 60 * 3 + 56, b"nope")
    outcome = bmq("compare", left, right)
    assert outcome.code == 1
    assert f"1 record(s) only in {left}: 1-4" in outcome.out and f"the journal in {right} is damaged" in outcome.out


def test_differences_after_the_first_twenty_are_counted(tmp_path: Path) -> None:
    """The first twenty are listed."""
    left, right = equal_directories(tmp_path, 30)
    path = one(right, "journal")
    for number in range(30):
        change(path, 44 + 60 * (2 + number) + 52, b"\xde\xad\xbe\xef")
    outcome = bmq("compare", left, right)
    assert outcome.code == 1 and "and 10 more records differ" in outcome.out
    assert outcome.out.count("differs in CRC") == 20


def test_the_directory_with_more_records_is_named(tmp_path: Path) -> None:
    """The order of the directories does not matter."""
    left, right = equal_directories(tmp_path)
    path = one(left, "journal")
    path.write_bytes(path.read_bytes()[:44 + 60 * 4])
    for first, second in ((left, right), (right, left)):
        outcome = bmq("compare", first, second)
        assert outcome.code == 0 and f"{left} ends at 1-4, {right} has " in outcome.out


def test_a_partition_or_queue_in_only_one_directory_is_a_difference(tmp_path: Path) -> None:
    """A queue in one ledger only is a difference, too."""
    left, right = equal_directories(tmp_path)
    one(right, "csl").unlink()
    write_ledger(right, WALL, [("bmq://d/other", KEY, DEFAULT)])
    outcome = bmq("compare", left, right)
    assert outcome.code == 1
    assert "ledger: UPDATE 1-3 differs" in outcome.out and "queue bmq://d/q differs" in outcome.out
    for kind in ("journal", "data", "qlist"):
        one(right, kind).unlink()
    assert f"partition 0: only in {left}" in bmq("compare", left, right).out


def test_the_file_set_with_the_highest_psn_is_compared(tmp_path: Path) -> None:
    """A broker selects the same set."""
    left, right = equal_directories(tmp_path)
    for path in right.glob("bmq_0.*"):
        cut = path.read_bytes()[:44 + 60 * 2] if path.suffix == ".bmq_journal" else path.read_bytes()
        (right / path.name.replace("20261121_050206", "20271121_050206")).write_bytes(cut)
    outcome = bmq("compare", left, right)
    assert outcome.code == 0 and "ends at" not in outcome.out


def test_the_comparison_as_json_has_findings_with_their_severity(tmp_path: Path) -> None:
    """JSON holds the same findings as the text."""
    left, right = equal_directories(tmp_path)
    assert json.loads(bmq("compare", left, right, "--print-mode", "json-line").out)["Good"] is True
    change(one(right, "journal"), 44 + 60 * 3 + 36, b"\x41")
    outcome = json.loads(bmq("compare", left, right, "--json", "pretty").out)
    assert [each["Where"] for each in outcome["Findings"] if each["Severity"] == "error"] == ["partition 0"]


def test_directories_without_files_are_an_error(tmp_path: Path) -> None:
    """A path that is no directory is an error, too."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert bmq("compare", tmp_path / "a", tmp_path / "b").code == 2
    assert bmq("compare", tmp_path / "a", tmp_path / "missing").code == 2
