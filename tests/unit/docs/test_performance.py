"""docs/performance.md: its generated tables are those of the printed results in docs/results/."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_tables_are_those_of_the_printed_results() -> None:
    page, script = (DOCS / "performance.md").read_text(encoding="utf-8"), runpy.run_path(str(DOCS / "make_performance.py"))
    assert script["render"](page) == page, "run: python docs/make_performance.py"
    assert {path.name for path in script["RESULTS"].glob("*.txt")} == set(re.findall(r"<!-- table: (\S+):", page))
