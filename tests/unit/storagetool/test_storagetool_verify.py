"""`bmq storage verify`: no findings for valid files of both brokers; every detectable kind of damage is found.

The damaged set: sync point, CREATION, 8 MESSAGEs, 2 DELETIONs, 2 sync points; closed cleanly. The rows have the names of
the table of the original's reactions to damaged files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.storage_kit import DEFAULT, KEY, OTHER, WALL, make_message, start
from kit.storagetool_kit import SETS, bmq, change, flip, one, spill, storage_directory, write_ledger

from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storagetool.inputs import JournalSnapshot, SetView, file_sets
from bmqtwist.storagetool.verify import NOTE, WARNING, verify_set

URI = "bmq://d/q"
SLOT = {"sync": 0, "creation": 1, "first": 2, "middle": 5, "last": 9, "deletion": 10, "end": 13}
CASES = sorted(f"{path.parent.name}.{path.name}" for path in SETS.glob("*/n*") if path.is_dir())


def build_directory(directory: Path, *, stop: bool = True) -> Path:
    """Create a set and its ledger in a directory; without `stop`, as a killed broker leaves them."""
    disk = MemoryDisk()
    partition, _ = start(disk)
    partition.queues.create(KEY, URI, DEFAULT, WALL)
    messages = [make_message(number, b"x" * (40 + number)) for number in range(1, 9)]
    for message in messages:
        partition.append_message(KEY, message, WALL)
    for message in messages[:2]:
        partition.append_deletion(KEY, message, 0, WALL)
    partition.write_sync_point(WALL + 1)
    partition.flush(WALL + 1)
    if stop:
        partition.stop(WALL + 2)
    else:
        for number in (9, 10):
            partition.append_message(KEY, make_message(number, b"late"), WALL + 2)
        partition.flush(WALL + 2)
        disk.kill()
    spill(disk, directory)
    write_ledger(directory, WALL, [(URI, KEY, DEFAULT)])
    return directory


def field_offset(name: str, field: int = 0) -> int:
    """Return the offset of a field of a journal record."""
    return 44 + 60 * SLOT[name] + field


def overwrite_journal(name: str, field: int, data: bytes) -> Callable[[Path], None]:
    """Damage: other bytes in a journal record."""
    return lambda directory: change(one(directory, "journal"), field_offset(name, field), data)


def overwrite_file(kind: str, offset: int, data: bytes) -> Callable[[Path], None]:
    """Damage: other bytes in a file."""
    return lambda directory: change(one(directory, kind), offset, data)


def flip_byte(kind: str, offset: int) -> Callable[[Path], None]:
    """Damage: one inverted byte; a negative offset counts from the end."""

    def damage(directory: Path) -> None:
        path = one(directory, kind)
        flip(path, offset if offset >= 0 else path.stat().st_size + offset)

    return damage


def truncate(kind: str, size: int) -> Callable[[Path], None]:
    """Damage: a shorter file; a negative size counts from the end."""

    def damage(directory: Path) -> None:
        path = one(directory, kind)
        path.write_bytes(path.read_bytes()[:size])

    return damage


def remove_files(*kinds: str) -> Callable[[Path], None]:
    """Damage: files are missing."""

    def damage(directory: Path) -> None:
        for kind in kinds:
            one(directory, kind).unlink()

    return damage


def data_offset(name: str) -> int:
    """Return the offset of a message's DATA record: 40, then records of 56, 56, 56, 56, 64 ... bytes."""
    offset = 40
    for number in range(1, SLOT[name] - 1):
        offset += (12 + 40 + number) // 8 * 8 + 8
    return offset


MIDDLE, LAST, FIRST = data_offset("middle"), data_offset("last"), data_offset("first")
END = {"zeroed lease": (8, bytes(4)), "sequence + 1": (7, b"\x0f"), "magic flipped": (56, b"\xd5")}

CLEAN = {
    "journal cut inside the last record": (truncate("journal", -7), "ends without a sync point|belong to no record"),
    "journal cut inside a middle MESSAGE": (truncate("journal", field_offset("middle", 30)), "ends without a sync point"),
    "journal cut after its headers": (truncate("journal", 44), "ends without a sync point"),
    "record words 14": (overwrite_file("journal", 33, b"\x0e"), "record words 14"),
    "journal empty": (truncate("journal", 0), "JOURNAL file is empty"),
    "DATA missing": (remove_files("data"), "DATA file is missing"),
    "DATA empty": (truncate("data", 0), "DATA file is empty"),
    "QLIST missing": (remove_files("qlist"), "QLIST file is missing"),
    "journal missing": (remove_files("journal"), "JOURNAL file is missing"),
    "all three missing": (remove_files("journal", "data", "qlist"), "partition 0 has queues in the ledger, but no journal"),
    "journal cut inside its header": (truncate("journal", 20), "shorter than its header"),
    "journal file magic flipped": (flip_byte("journal", 0), "JOURNAL: file magic is wrong"),
    "DATA file magic flipped": (flip_byte("data", 0), "DATA: file magic is wrong"),
    "partition id changed": (overwrite_file("data", 23, b"\x07"), "partition id is 7, not 0"),
    **{f"last record: {name}": (overwrite_journal("end", *where), "belong to no record") for name, where in END.items()},
    "last MESSAGE: magic flipped": (overwrite_journal("last", 56, b"\xd5"), "unreadable"),
    "middle MESSAGE: magic flipped": (overwrite_journal("middle", 56, b"\xd5"), "unreadable"),
    "middle MESSAGE: type 0": (overwrite_journal("middle", 0, b"\x00"), "unreadable"),
    "CREATION: magic flipped": (overwrite_journal("creation", 56, b"\xd5"), "unreadable"),
    "middle MESSAGE: type 9": (overwrite_journal("middle", 0, b"\x90"), "unknown type 9"),
    "middle MESSAGE: sequence + 1": (overwrite_journal("middle", 7, b"\x07"), "had a wrong PSN"),
    "middle MESSAGE: lease + 1": (overwrite_journal("middle", 11, b"\x02"), "had a wrong PSN"),
    "middle MESSAGE: queueKey changed": (overwrite_journal("middle", 22, OTHER), "which has no CREATION"),
    "first MESSAGE: GUID changed": (overwrite_journal("first", 36, b"\x40" + b"\x11" * 15),
                                    "1 DELETION record.s. name messages that are not in the journal"),
    "middle MESSAGE: timestamp later": (overwrite_journal("middle", 15, b"\xff"), "older than records before them"),
    "middle MESSAGE: timestamp earlier": (overwrite_journal("middle", 16, b"\x00"), "older than records before them"),
    "middle MESSAGE: refCount 3": (overwrite_journal("middle", 1, b"\x03"), "more apps than their queue ever had"),
    "middle MESSAGE: GUID zeroed": (overwrite_journal("middle", 36, bytes(16)), "no GUID"),
    "middle MESSAGE: DATA offset out of range": (overwrite_journal("middle", 32, b"\x00\x10\x00\x00"),
                                                 "outside of the file"),
    "CRC field": (overwrite_journal("middle", 52, b"\0\0\0\0"), "does not match its checksum"),
    "a payload byte of a live message": (flip_byte("data", MIDDLE + 20), "does not match its checksum"),
    "a payload byte of a dead message": (flip_byte("data", FIRST + 20), r"deleted message\(s\) are damaged"),
    "DataHeader of a dead message": (overwrite_file("data", FIRST, bytes(12)), r"deleted message\(s\) are damaged"),
    "DataHeader zeroed": (overwrite_file("data", MIDDLE, bytes(12)), "header of its DATA record is wrong"),
    "message words + 1": (overwrite_file("data", MIDDLE + 3, b"\x0f"), "DATA record is wrong"),
    "pad byte 9": (overwrite_file("data", LAST + 63, b"\x09"), "padding of its DATA record is wrong"),
    "DATA cut in the middle": (truncate("data", MIDDLE), "outside of (DATA|the file)|is unreadable"),
    "DATA 8 bytes short": (truncate("data", -8), "but the sync point"),
    "DATA record without a MESSAGE": (overwrite_journal("middle", 0, b"\x90"), "belong to no message of the journal"),
    "sync point: inner sequence": (overwrite_journal("end", 35, b"\x77"), "in its header and 1-119 in its body"),
    "sync point: DATA position": (overwrite_journal("end", 47, b"\x10"), "says that DATA ends at 128"),
    "QLIST: URI byte": (flip_byte("qlist", 36 + 20 + 6), "QLIST"),
    "QLIST: queue key byte": (flip_byte("qlist", 36 + 20 + 12), "wrong queue key or end mark"),
    "QLIST: end magic": (flip_byte("qlist", -1), "wrong queue key or end mark"),
    "CSL: CRC of the last record": (flip_byte("csl", -1), "incomplete record"),
    "CSL: a body byte of the first record": (flip_byte("csl", 60), "wrong checksum"),
    "CSL: last record cut in its body": (truncate("csl", -6), "incomplete record"),
    "CSL: cut inside a record header": (truncate("csl", -50), "incomplete record"),
    "CSL: the queue's assignment cut off": (truncate("csl", 160), "is in the journal, but not in the ledger"),
    "CSL: type 9 in the assignment": (overwrite_file("csl", 160, b"\x89"), "unknown type 9"),
    "CSL: missing": (remove_files("csl"), "no cluster state ledger"),
    "CSL: file header zeroed": (overwrite_file("csl", 0, bytes(8)), "header of the ledger file cannot be read"),
    "CSL: log id is not that of the name": (overwrite_file("csl", 1, b"\x77"), "name says log id 0102030405"),
}

IMAGE = {
    "last MESSAGE: magic flipped": (overwrite_journal("end", 60 + 56, b"\xd5"), "belong to no record"),
    "last record: lease zeroed": (overwrite_journal("end", 60 + 8, bytes(4)), "belong to no record"),
    "last but one: magic flipped": (overwrite_journal("end", 56, b"\xd5"), "unreadable"),
    "DataHeader of the last MESSAGE zero": (lambda path: change(one(path, "data"), data_offset("last") + 64 + 24,
                                                                bytes(12)), "header of its DATA record is wrong"),
    "an old MESSAGE behind the end": (
        lambda path: change(one(path, "journal"), field_offset("end", 180),
                            one(path, "journal").read_bytes()[field_offset("first"):][:60]),
        "belong to no record"),
}


@pytest.mark.parametrize("case", CASES)
def test_recorded_file_sets_of_the_original_have_no_findings(case: str, tmp_path: Path) -> None:
    """Files of stopped, running and killed brokers give notes only."""
    outcome = bmq("verify", storage_directory(case, tmp_path / "s"))
    assert (outcome.code, outcome.err) == (0, ""), outcome.out
    assert outcome.out.endswith("No damage found.\n")
    assert "error" not in outcome.out and "warning" not in outcome.out


@pytest.mark.parametrize("journal", sorted(SETS.rglob("archive/*.bmq_journal")), ids=lambda path: path.name[4:21])
def test_recorded_archived_file_sets_of_the_original_have_no_findings(journal: Path, tmp_path: Path) -> None:
    """An archive has no ledger; its sets are given by file names."""
    paths = [journal.with_suffix(f".bmq_{kind}") for kind in ("journal", "data", "qlist")]
    outcome = bmq("verify", *paths)
    assert outcome.code == 0, outcome.out
    for path in paths:
        shutil.copy(path, tmp_path)
    assert bmq("verify", tmp_path, "--no-ledger").code == 0
    assert bmq("verify", tmp_path).code == 1  # a storage directory would have one


def test_file_sets_of_stopped_and_killed_brokers_have_no_findings(tmp_path: Path) -> None:
    """Files of a stopped and of a killed broker give notes only."""
    stopped = bmq("verify", build_directory(tmp_path / "stopped"))
    assert (stopped.code, stopped.out) == (0, "No damage found.\n")
    killed = bmq("verify", build_directory(tmp_path / "killed", stop=False))
    assert killed.code == 0
    assert "2 record(s) follow the last sync point" in killed.out


@pytest.mark.parametrize(("damage", "text"), CLEAN.values(), ids=CLEAN)
def test_damage_to_a_closed_file_set_is_found(damage: Callable[[Path], None], text: str, tmp_path: Path) -> None:
    """The verification changes no file."""
    directory = build_directory(tmp_path / "s")
    damage(directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    outcome = bmq("verify", directory)
    assert outcome.code == 1
    assert any(_matches(text, line) for line in outcome.out.splitlines()), outcome.out
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize(("damage", "text"), IMAGE.values(), ids=IMAGE)
def test_damage_to_a_crash_image_is_found(damage: Callable[[Path], None], text: str, tmp_path: Path) -> None:
    """Zeros after the end are no damage; other bytes are reported."""
    directory = build_directory(tmp_path / "s", stop=False)
    damage(directory)
    outcome = bmq("verify", directory)
    assert outcome.code == 1
    assert any(_matches(text, line) for line in outcome.out.splitlines()), outcome.out


def _matches(text: str, line: str) -> bool:
    return not line.startswith("note") and re.search(text, line) is not None


def test_zeros_after_a_ledger_are_a_note(tmp_path: Path) -> None:
    """The file of a running broker has its configured maximum size."""
    directory = build_directory(tmp_path / "s")
    ledger = one(directory, "csl")
    ledger.write_bytes(ledger.read_bytes() + bytes(4096))
    outcome = bmq("verify", directory)
    assert outcome.code == 0 and "4096 zero bytes" in outcome.out


def test_a_journal_ahead_of_the_ledger_is_found(tmp_path: Path) -> None:
    """The lease of the journal is in no ledger record."""
    directory = build_directory(tmp_path / "s")
    one(directory, "csl").unlink()
    write_ledger(directory, WALL, [(URI, KEY, DEFAULT)], lease=0)
    outcome = bmq("verify", directory)
    assert outcome.code == 1 and "the journal has lease 1, the highest in the ledger is 0" in outcome.out


def test_findings_in_json_have_location_and_severity(tmp_path: Path) -> None:
    """Both forms hold the same object."""
    directory = build_directory(tmp_path / "s")
    flip(one(directory, "data"), MIDDLE + 20)
    findings = json.loads(bmq("verify", directory, "--json", "line").out)
    assert findings == json.loads(bmq("verify", directory, "--json", "pretty").out)
    assert findings["Good"] is False
    (finding,) = findings["Findings"]
    assert finding["Severity"] == "error" and finding["Where"] == "bmq_0.20261121_050206"
    assert "40000000000000000000000000000004" in finding["Text"]


@pytest.mark.parametrize("arguments", [(), ("nothing-there.bmq_journal",), ("README.md",)])
def test_an_unreadable_file_is_an_error_with_its_name(arguments: tuple[str, ...]) -> None:
    """The exit code is 2, without a traceback."""
    outcome = bmq("verify", *arguments)
    assert outcome.code == 2 and outcome.err


def test_a_directory_without_storage_files_is_an_error(tmp_path: Path) -> None:
    """It must not pass as valid."""
    outcome = bmq("verify", tmp_path)
    assert outcome.code == 2 and "holds no storage files" in outcome.err


def test_one_file_selects_its_whole_file_set(tmp_path: Path) -> None:
    """The other files are found in its directory; the ledger is given by an option."""
    directory = build_directory(tmp_path / "s")
    outcome = bmq("verify", one(directory, "data"), "--csl-file", one(directory, "csl"))
    assert (outcome.code, outcome.out) == (0, "No damage found.\n")
    flip(one(directory, "data"), MIDDLE + 20)
    assert bmq("verify", one(directory, "journal")).code == 1


def test_a_file_set_written_without_qlist_has_no_findings(tmp_path: Path) -> None:
    """A broker may be configured without QLIST; then no record refers to it, and the ledger has the queues."""
    directory = build_directory(tmp_path / "s")
    one(directory, "qlist").unlink()
    path = one(directory, "journal")
    for offset in range(44, path.stat().st_size, 60):
        kind = path.read_bytes()[offset] >> 4
        if kind in (4, 5):
            change(path, offset + (36 if kind == 4 else 48), bytes(4))
    outcome = bmq("verify", directory)
    assert (outcome.code, outcome.out) == (0, "No damage found.\n")


def test_a_restarted_ledger_is_valid_and_decreasing_sequence_numbers_are_found(tmp_path: Path) -> None:
    """A cluster without its last term starts with a snapshot; any other repeated LSN is an error."""
    directory = build_directory(tmp_path / "s")
    ledger = one(directory, "csl")
    content = ledger.read_bytes()
    ledger.write_bytes(content + content[8:])
    assert bmq("verify", directory).code == 0
    ledger.write_bytes(content + content[88:])
    outcome = bmq("verify", directory)
    assert outcome.code == 1 and "has LSN 1-2, after 1-4" in outcome.out


def test_a_journal_that_grows_during_the_verification_is_read_to_its_initial_end(tmp_path: Path) -> None:
    """Records that a running broker appends after the snapshot of the journal are not stale bytes."""
    path = tmp_path / "journal"
    path.write_bytes(b"r" * 100 + bytes(900))  # headers of 44 bytes, 56 of the first record's 60
    snapshot = JournalSnapshot(str(path))
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"s" * 124)
    assert snapshot.size == 1000
    assert snapshot.read(0, 2000) == b"r" * 100 + b"s" * 4 + bytes(896)
    assert snapshot.read(60, 100) == b"r" * 40 + b"s" * 4 + bytes(56)
    assert snapshot.read(150, 10) == bytes(10)
    assert snapshot.read(990, 20) == bytes(10) and snapshot.read(1000, 5) == b""


def test_data_of_messages_appended_during_the_verification_is_a_note(tmp_path: Path) -> None:
    """DATA is read after the journal, so it may hold more; without a running broker that is a warning."""
    directory = build_directory(tmp_path / "s", stop=False)
    journal = one(directory, "journal")
    complete = journal.read_bytes()
    change(journal, field_offset("end", 60), bytes(60))  # the second of the two late messages
    assert ": an interrupted write, cut off" in bmq("verify", directory).out
    with ExitStack() as stack:
        view = SetView(file_sets(str(directory))[0], stack)
        assert [each.severity for each in verify_set(view, None, 0)[0] if "after offset" in each.text] == [WARNING]
        change(journal, 0, complete)  # the missing record
        findings = [each for each in verify_set(view, None, 0)[0] if "after offset" in each.text]
    assert [each.severity for each in findings] == [NOTE]
    assert findings[0].text.endswith(": appended during this check")
