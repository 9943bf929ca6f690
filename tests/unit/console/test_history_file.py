"""File of the console's history: restarts, damage, bounds, and a disk that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.console import ConsoleWorld

from bmqtwist.console.history_file import FILE, FILE_BYTES_MAX, WRITE_S, HistoryFile, valid_rows
from bmqtwist.console.samples import HISTORY_ROWS, HISTORY_STEP_S, NODE_COLUMNS
from bmqtwist.report import ListReport


def rows(count: int, end: int = 10_000) -> list[list[float | None]]:
    """Return `count` rows up to the time `end`."""
    return [[end - HISTORY_STEP_S * number, 1.5, *(None,) * (NODE_COLUMNS - 2)] for number in range(count)][::-1]


def test_a_written_history_is_read_after_a_restart(tmp_path: Path) -> None:
    file = HistoryFile(str(tmp_path), ListReport())
    assert file.read(10_000.0) == [], "there is no file yet"
    file.write_if_due(rows(3), 100.0)
    file.write_if_due(rows(4), 100.0 + WRITE_S / 2)
    assert HistoryFile(str(tmp_path), ListReport()).read(10_002.0) == rows(3)
    file.write_if_due(rows(4), 100.0 + WRITE_S)
    assert HistoryFile(str(tmp_path), ListReport()).read(10_002.0) == rows(4)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("content", [b"", b"[[1,2", b"{}", b"\xff", b"[" * 100_000, b"3"])
def test_a_damaged_file_is_an_empty_history_with_a_line_of_the_log(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    report = ListReport()
    assert HistoryFile(str(tmp_path), report).read(10_000.0) == []
    assert [FILE in text and "begin again" in text for _, text in report.lines] == [True]


def test_rows_of_another_form_or_time_are_dropped() -> None:
    good, (old,), (later,) = rows(2), rows(1, 10_000 - HISTORY_ROWS * HISTORY_STEP_S), rows(1, 10_005)
    others = [["x"] * NODE_COLUMNS, [1, 2], 7, None, {}, [None] * NODE_COLUMNS, [True] * NODE_COLUMNS]
    assert valid_rows([later, *others, *good[::-1], old], 10_000.0) == good


def test_the_file_of_a_full_history_is_far_below_the_bound(tmp_path: Path) -> None:
    full: list[list[float | None]] = [[1_790_000_000 + number, *(123_456_789.9,) * (NODE_COLUMNS - 1)]
                                      for number in range(HISTORY_ROWS)]
    HistoryFile(str(tmp_path), ListReport()).write(full)
    assert (tmp_path / FILE).stat().st_size < FILE_BYTES_MAX / 2


def test_a_file_that_cannot_be_written_is_reported_until_it_can(tmp_path: Path) -> None:
    folder, report = tmp_path / "missing", ListReport()
    HistoryFile(str(folder), report).write(rows(1))
    ((path, (reason, retry)),) = report.failed_files.items()
    assert path.endswith(FILE) and "cannot be written" in reason
    folder.mkdir()
    retry()
    assert not report.failed_files.items() and json.loads((folder / FILE).read_text()) == rows(1)


def test_without_a_directory_nothing_is_stored() -> None:
    file = HistoryFile("", ListReport())
    file.write(rows(1))
    assert file.read(10_000.0) == []


def test_the_charts_of_a_restarted_node_continue(tmp_path: Path) -> None:
    console = ConsoleWorld(tmp_path)
    for _ in range(4):
        console.advance(5.0)
    before = list(console.service.collector.sampler.history)
    console.service.stop()
    (path,) = tmp_path.rglob(FILE)
    newest = before[-1][0]
    assert len(before) == 4 and newest and HistoryFile(str(path.parent), ListReport()).read(newest) == before
    path.write_text(json.dumps([[each - 3600 * (n == 0) if each else each for n, each in enumerate(row)] for row in before]))
    assert not ConsoleWorld(tmp_path).service.collector.sampler.history, "rows of an hour ago are dropped"
    path.write_text(json.dumps([[each - 60 * (n == 0) if each else each for n, each in enumerate(row)] for row in before]))
    assert len(ConsoleWorld(tmp_path).service.collector.sampler.history) == 4
