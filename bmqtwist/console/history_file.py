"""File of a node's history of the last 15 minutes, so that charts continue after a restart.

    file       console-history.json in the directory of the log: the rows of `samples.py` as a JSON list
    write      every WRITE_S and at a stop, to a new file that replaces the old one; not synced: a loss of power may lose it
    read       at the start; a missing file is an empty history, a damaged one too, with a line of the log; rows of another
               form, older than the chart or later than now are dropped
    size       at most FILE_BYTES_MAX are read; HISTORY_ROWS rows have 20 KiB at most

`collector.py` creates one; the rows are made in `samples.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bmqtwist.console.documents import compact
from bmqtwist.console.samples import HISTORY_ROWS, HISTORY_STEP_S, NODE_COLUMNS, Row
from bmqtwist.report import Report

FILE = "console-history.json"
FILE_BYTES_MAX = 64 << 10
WRITE_S = 15.0


class HistoryFile:
    """History file in `folder`; "" = no file."""

    def __init__(self, folder: str, report: Report) -> None:
        self._path, self._report = Path(folder) / FILE if folder else None, report
        self._written_at = float("-inf")

    def read(self, wall: float) -> list[Row]:
        """Return the rows of the last 15 minutes."""
        if self._path is None:
            return []
        try:
            with open(self._path, "rb") as file:
                return valid_rows(json.loads(file.read(FILE_BYTES_MAX)), wall)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            self._report.warn(f"The history of the console '{self._path}' cannot be read: {error}. The charts begin again.")
            return []

    def write_if_due(self, rows: Iterable[Row], now: float) -> None:
        """Write the rows if the last write is older than WRITE_S."""
        if now - self._written_at >= WRITE_S:
            self._written_at = now
            self.write(rows)

    def write(self, rows: Iterable[Row]) -> None:
        """Replace the file."""
        if self._path is None:
            return
        new, kept = self._path.with_name(f"{FILE}.new"), list(rows)
        try:
            new.write_text(compact(kept))
            os.replace(new, self._path)
            self._report.failed_files.discard(str(self._path))
        except OSError as error:
            self._report.failed_files.add(str(self._path), "the history of the console cannot be written: "
                                          f"{error.strerror or error}", lambda: self.write(kept))


def valid_rows(found: Any, wall: float) -> list[Row]:
    """Return the rows of the last 15 minutes in a decoded file, in order of time. ValueError: it is no list."""
    if not isinstance(found, list):
        raise ValueError("expected a list")
    oldest = wall - HISTORY_ROWS * HISTORY_STEP_S
    rows = [row for row in found if isinstance(row, list) and len(row) == NODE_COLUMNS and all(
        value is None or isinstance(value, (int, float)) and not isinstance(value, bool) for value in row)]
    return sorted((row for row in rows if row[0] is not None and oldest < row[0] <= wall), key=lambda row: row[0])
