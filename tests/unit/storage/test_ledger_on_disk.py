"""Ledger file on a disk: append, replacement, and crashes at each step."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from bmqtwist.storage.files import RealDisk
from bmqtwist.storage.ledger_file import LedgerFile
from bmqtwist.storage.memory import MemoryDisk, ProcessKilled

WALL = 1795237237
A, B, C = b"AAAAA", b"BBBBB", b"CCCCC"


def open_ledger(tmp_path: Path) -> LedgerFile:
    """Return the ledger as a new process opens it."""
    ledger = LedgerFile(RealDisk(), str(tmp_path))
    ledger.open()
    return ledger


def test_appended_records_are_read_after_a_restart(tmp_path: Path) -> None:
    """Records are appended after the initial content; `truncate` cuts the file."""
    ledger = open_ledger(tmp_path)
    assert ledger.read_all() == b""
    ledger.replace(A, b"head", WALL)
    ledger.append(b"more")
    ledger.append(b"torn")
    ledger.sync()
    ledger.truncate(8)
    ledger.append(b"!")
    ledger.close()
    assert open_ledger(tmp_path).read_all() == b"headmore!"


def test_the_newest_file_is_read_and_one_older_file_is_kept(tmp_path: Path) -> None:
    """Log ids are random, so they must not determine the order."""
    ledger = open_ledger(tmp_path)
    for log_id, content in ((C, b"first"), (B, b"second"), (A, b"third")):
        ledger.replace(log_id, content, WALL)
    assert ledger.read_all() == b"third"
    assert open_ledger(tmp_path).read_all() == b"third"
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "bmq_csl_notes.txt").write_text("kept")
    open_ledger(tmp_path).replace(B, b"x", WALL + 9)
    assert (tmp_path / "bmq_csl_notes.txt").exists()


def test_append_without_a_file_is_an_error(tmp_path: Path) -> None:
    """The error is an OSError."""
    with pytest.raises(OSError):
        open_ledger(tmp_path).append(b"x")


def test_a_replacement_interrupted_by_a_crash_leaves_the_old_or_the_new_file() -> None:
    """After a crash at any step, the ledger is the complete old or new file."""
    seen = set()
    for operations in range(1, 12):
        disk = MemoryDisk()
        ledger = LedgerFile(disk, "d")
        ledger.open()
        ledger.replace(A, b"old", WALL)
        disk.stop_after = disk.steps + operations
        try:
            ledger.replace(B, b"new", WALL + 1)
        except ProcessKilled:
            pass
        disk.crash(Random(operations))
        again = LedgerFile(disk, "d")
        again.open()
        seen.add(again.read_all())
    assert seen == {b"old", b"new"}


@pytest.mark.spec("cluster", 34)
def test_records_read_by_a_new_process_are_durable_though_the_killed_one_had_not_synced() -> None:
    """The new process reports the records to the leader as durable."""
    disk = MemoryDisk()
    ledger = LedgerFile(disk, "/storage")
    ledger.open()
    ledger.replace(A, b"head", WALL)
    ledger.append(b"more")
    disk.kill()
    again = LedgerFile(disk, "/storage")
    again.open()
    assert again.read_all() == b"headmore"
    disk.crash()
    last = LedgerFile(disk, "/storage")
    last.open()
    assert last.read_all() == b"headmore"


def test_a_new_file_read_by_a_new_process_is_durable_though_its_name_was_not_synced() -> None:
    disk = MemoryDisk()
    ledger = LedgerFile(disk, "/storage")
    ledger.open()
    ledger.replace(A, b"old", WALL)
    disk.stop_after = disk.steps + 4  # create, write, sync, rename
    with pytest.raises(ProcessKilled):
        ledger.replace(B, b"new", WALL + 1)
    disk.kill()
    again = LedgerFile(disk, "/storage")
    again.open()
    found = again.read_all()
    disk.crash()
    last = LedgerFile(disk, "/storage")
    last.open()
    assert last.read_all() == found == b"new"
