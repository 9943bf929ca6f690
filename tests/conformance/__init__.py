"""Conformance count: the specification items that the passed tests of a run prove, by their `spec` markers.

`<document>.txt` beside this file holds the checklist of a specification, one `number. sentence` per line.
An item is proven when at least one test marked with it passed in this run and none failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def read_checklist(path: Path) -> dict[int, str]:
    """Return number -> sentence of a checklist file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {int(m[1]): m[2] for m in (re.match(r"(\d+)\. (.*)", line) for line in lines) if m}


CHECKLISTS = {path.stem: read_checklist(path) for path in sorted(HERE.glob("*.txt"))}


class Conformance:
    """Pytest plugin that counts proven items; the reporting process (with xdist: the controller) receives all results."""

    def __init__(self) -> None:
        self.passed: set[tuple[str, int]] = set()
        self.failed: set[tuple[str, int]] = set()

    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        """Add the markers to the reports; refuse markers that name no item."""
        for item in items:
            for mark in item.iter_markers("spec"):
                document, *numbers = mark.args
                for number in numbers:
                    if number not in CHECKLISTS.get(document, {}):
                        raise pytest.UsageError(f"{item.nodeid}: {document} has no checklist item {number}")
                    item.user_properties.append(("spec", f"{document}:{number}"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test: a pass in its call phase, a failure in any phase."""
        items = {(str(value).partition(":")[0], int(str(value).partition(":")[2]))
                 for name, value in report.user_properties if name == "spec"}
        if report.failed:
            self.failed |= items
        elif report.when == "call" and report.passed:
            self.passed |= items

    def proven(self, document: str) -> set[int]:
        """Return the numbers of the proven items of a document."""
        return {number for name, number in self.passed - self.failed if name == document}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Print one line per document, with --conformance also each item that is not proven."""
        if not (config.getoption("conformance") or self.passed):
            return
        terminalreporter.section("conformance")
        for document, checklist in CHECKLISTS.items():
            terminalreporter.write_line(f"{document}.md: {len(self.proven(document))} of {len(checklist)}")
        if not config.getoption("conformance"):
            return
        for document, checklist in CHECKLISTS.items():
            proven = self.proven(document)
            terminalreporter.write_line(f"\nNot proven, {document}.md:")
            for number, sentence in checklist.items():
                if number not in proven:
                    failing = " (a test of it FAILED)" if (document, number) in self.failed else ""
                    terminalreporter.write_line(f"  {number}. {sentence}{failing}")
