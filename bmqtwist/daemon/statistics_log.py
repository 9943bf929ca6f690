"""The statistics log: tables, JSON or both, written to files every printInterval."""

from __future__ import annotations

import os
from collections.abc import Callable

from bmqtwist.config.broker import StatsPrinter
from bmqtwist.errors import LocalError
from bmqtwist.logs.format import date_text
from bmqtwist.logs.observer import LogFile
from bmqtwist.report import Report


class StatisticsLog:
    """The files of `stats.printer`. One that cannot be opened is warned about; the broker runs without it."""

    def __init__(self, settings: StatsPrinter, wall: Callable[[], float], report: Report) -> None:
        self._wall = wall
        self._tables = self._json = None
        if not settings.file or settings.encoding == "NONE":
            return
        rotation = settings.rotate_bytes, settings.max_age_days, wall, settings.rotate_days * 86400.0
        try:
            if settings.encoding != "JSON":
                self._tables = LogFile(settings.file, *rotation)
            if settings.encoding != "TABLE":
                self._json = LogFile(f"{settings.file}.json", *rotation)
        except LocalError:
            report.warn("The statistics log '%s' cannot be opened in '%s': create its directory", settings.file,
                        os.getcwd())

    @property
    def wants_tables(self) -> bool:
        """Whether `write` does something with tables."""
        return self._tables is not None

    @property
    def wants_json(self) -> bool:
        """Whether `write` does something with JSON."""
        return self._json is not None

    def write(self, tables: str, json_text: str) -> None:
        """One print; what is not wanted may be empty."""
        if self._tables is not None:
            self._tables.write(f"{date_text(self._wall())}\n{tables}\n")
        if self._json is not None:
            self._json.write(f"{json_text}\n")

    def reopen(self) -> None:
        """Open the files anew; OSError: the old ones stay."""
        for file in (self._tables, self._json):
            if file is not None:
                file.reopen()

    def close(self) -> None:
        """Close the files."""
        for file in (self._tables, self._json):
            if file is not None:
                file.close()
