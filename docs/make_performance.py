"""Writes the tables of docs/performance.md from the printed results of the benchmarks in docs/results/.

A table of the page is a pair of comments; its columns are those of the benchmark, optionally under other names:

    <!-- table: compare.txt: cell, x rate = rate, x CPU = CPU per message -->
    <!-- end -->

`python docs/make_performance.py` rewrites the page; a test compares the page with `render()`.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).with_name("performance.md")
RESULTS = Path(__file__).with_name("results")
_TABLE = re.compile(r"(<!-- table: (\S+): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def _rows(text: str) -> list[list[str]]:
    """Split the printed lines of a table, which begins with its head, at two or more spaces; trailing cells may be empty."""
    lines = [re.split(r" {2,}", line.strip()) for line in text[text.index("cell "):].splitlines()]
    return [line + [""] * (len(lines[0]) - len(line)) for line in lines if len(line) > 1]


def _table(file: str, columns: str) -> str:
    """Return a Markdown table of some columns of a result. ValueError names a column that the result lacks."""
    head, *rows = _rows((RESULTS / file).read_text(encoding="utf-8"))
    chosen = [part.partition(" = ")[::2] for part in columns.split(", ")]
    places = [head.index(name) for name, _ in chosen]
    table = [[title or name for name, title in chosen], ["---"] * len(chosen), *([row[at] for at in places] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def render(page: str) -> str:
    """Return the page with its tables made anew."""
    return _TABLE.sub(lambda found: found[1] + _table(found[2], found[3]) + found[4], page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
