"""Statistics log: tables, JSON or both, written to files every printInterval.

Called by `service.py`, with the tables that `view/` formats. The log of lines is in `logs/observer.py`. The interval
and the files are configured (`config/broker.py: StatsPrinter`).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from bmqtwist.config.broker import StatsPrinter
from bmqtwist.errors import LocalError
from bmqtwist.logs.format import date_text
from bmqtwist.logs.observer import LogFile
from bmqtwist.report import Report


class StatisticsLog:
    """Files of `stats.printer`. `tables`, `json`: None = off. If a file cannot be opened, a warning is logged and it stays
    off."""

    def __init__(self, settings: StatsPrinter, wall: Callable[[], float], report: Report) -> None:
        self._wall = wall
        self.tables: LogFile | None = None
        self.json: LogFile | None = None
        if not settings.file or settings.encoding == "NONE":
            return
        rotation = (settings.rotate_bytes, settings.max_age_days, wall, settings.rotate_days * 86400.0,
                    report.failed_files)
        try:
            if settings.encoding != "JSON":
                self.tables = LogFile(settings.file, *rotation)
            if settings.encoding != "TABLE":
                self.json = LogFile(f"{settings.file}.json", *rotation)
        except LocalError:
            report.warn("The statistics log '%s' cannot be opened in '%s': create its directory", settings.file,
                        os.getcwd())

    @property
    def files(self) -> list[LogFile]:
        return [file for file in (self.tables, self.json) if file is not None]

    def write(self, tables: str, json_text: str) -> None:
        """Append one print; the text of a file that is off may be empty."""
        if self.tables is not None:
            self.tables.write(f"{date_text(self._wall())}\n{tables}\n")
        if self.json is not None:
            self.json.write(f"{json_text}\n")

    def reopen(self) -> None:
        """Reopen the files after an external rotation. OSError: the present files stay open."""
        for file in self.files:
            file.reopen()

    def close(self) -> None:
        for file in self.files:
            file.close()
