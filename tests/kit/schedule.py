"""Distribution of the tests over workers (pytest-xdist) by measured duration: the longest units first.

Each unit runs on one worker. A unit is a test file, a folder that shares an expensive session (JVM, browser), or a
single long test. `tests/durations.json` has the durations of at least a second, by file and by node id;
`--note-durations` measures and writes it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

NOTED = Path(__file__).resolve().parents[1] / "durations.json"
NOTED_S = 1.0  # s; shorter durations are not written
ALONE_S = 4.0  # s; a test of at least this duration is a unit
FOLDERS = ("tests/browser/", "tests/spark/")  # one unit each


class Units:
    """The unit of each test, and the duration of each unit in seconds."""

    def __init__(self, noted: dict[str, float]) -> None:
        self._alone = {name for name, seconds in noted.items() if "::" in name and seconds >= ALONE_S
                       and not name.startswith(FOLDERS)}
        self.seconds: defaultdict[str, float] = defaultdict(float)
        for name, seconds in noted.items():
            if name in self._alone:
                self.seconds[name] += seconds
                self.seconds[self.unit(name.partition("::")[0])] -= seconds
            elif "::" not in name:
                self.seconds[self.unit(name)] += seconds

    def unit(self, nodeid: str) -> str:
        """Return the unit of a test."""
        if nodeid in self._alone:
            return nodeid
        return next((folder for folder in FOLDERS if nodeid.startswith(folder)), nodeid.partition("::")[0])


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns units to workers in the order of the collection, which is sorted by duration."""

    def __init__(self, units: Units, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._units = units

    def _split_scope(self, nodeid: str) -> str:
        return self._units.unit(nodeid)


class Schedule:
    """Pytest plugin that sorts tests by the duration of their units and measures durations."""

    def __init__(self, config: pytest.Config) -> None:
        self._units = Units(json.loads(NOTED.read_text(encoding="utf-8")) if NOTED.exists() else {})
        self._is_worker = hasattr(config, "workerinput")
        self._measured: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the tests in a worker by unit, the longest first; the order is the same in all workers."""
        if self._is_worker:
            units = {item: self._units.unit(item.nodeid) for item in items}
            items.sort(key=lambda item: (-self._units.seconds.get(units[item], 0.0), units[item]))

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> UnitScheduling:
        """Return the scheduler of the controller."""
        return UnitScheduling(self._units, config, log)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the durations of setup, call and teardown."""
        self._measured[report.nodeid] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the durations with `--note-durations`."""
        if self._is_worker or not session.config.getoption("note_durations"):
            return
        files: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self._measured.items():
            files[name.partition("::")[0]] += seconds
        noted = {name: round(seconds, 1) for name, seconds in sorted({**files, **self._measured}.items())
                 if seconds >= NOTED_S}
        NOTED.write_text(json.dumps(noted, indent=0, ensure_ascii=True) + "\n", encoding="utf-8")
