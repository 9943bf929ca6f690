"""Two brokers of ours side by side in one run: an old commit beside a new one, cell by cell, in turn.

    python -m bench.compare --old PATH/bmqbrkr --new PATH/bmqbrkr [--cells NAME,PREFIX*] [--durability none]
                            [--seconds 6] [--turns 5] [--json FILE]

In each turn one broker follows the other, and every second turn begins with the other one, so that what changes on the
machine meanwhile hits both. A row gives the medians over the turns and their ratios, new : old; `foreign` is the most that
anything else kept busy in a turn, in cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from bench.broker import Broker
from bench.cells import CELLS, Cell, choose
from bench.load import run_cell

_COLUMNS = (("cell", 18), ("old msg/s", 10), ("new msg/s", 10), ("x rate", 7), ("old us", 8), ("new us", 8), ("x CPU", 7),
            ("old p50", 8), ("new p50", 8), ("x p50", 7), ("foreign", 8))


def _measure(command: Path, cell: Cell, durability: str, seconds: float) -> dict[str, Any]:
    """One cell once against the broker that `command` starts."""
    os.environ["BMQBRKR"] = str(command)
    with tempfile.TemporaryDirectory(prefix="bmq-bench-broker-") as name, Broker(Path(name), durability) as target:
        return run_cell(target, cell, seconds)


def _row(cell: Cell, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> tuple[object, ...]:
    def of(rows: list[dict[str, Any]], name: str) -> float:
        return float(median(row["latency_ms"]["p50"] or 0 if name == "p50" else row[name] for row in rows))

    def ratio(name: str) -> float:
        return round(of(new, name) / of(old, name), 3) if of(old, name) else 0.0

    values: list[object] = [cell.name]
    for name, digits in (("messages_per_s", 0), ("broker_cpu_us_per_message", 2), ("p50", 3)):
        values += [round(of(old, name), digits), round(of(new, name), digits), ratio(name)]
    return (*values, max(row["foreign_cores"] for row in old + new))


def _print(values: tuple[object, ...]) -> None:
    print("  ".join(f"{value!s:<{width}}" if index == 0 else f"{value!s:>{width}}"
                    for index, (value, (_, width)) in enumerate(zip(values, _COLUMNS, strict=True))), flush=True)


def main() -> int:
    """Command line; the exit code says whether every message arrived in every turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--cells", default="quick", help=f"of: {', '.join(CELLS)}")
    parser.add_argument("--durability", default="none")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long producers post")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="append one JSON object for each measurement to this file")
    options = parser.parse_args()
    _print(tuple(name for name, _ in _COLUMNS))
    complete = True
    for cell in choose(options.cells):
        rows: dict[str, list[dict[str, Any]]] = {"old": [], "new": []}
        for turn in range(options.turns):
            for which in ("old", "new") if turn % 2 == 0 else ("new", "old"):
                row = _measure(getattr(options, which), cell, options.durability, options.seconds)
                complete = complete and row["complete"] and not row["nacked"]
                rows[which].append(row)
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps({"which": which, "turn": turn} | row) + "\n")
        _print(_row(cell, rows["old"], rows["new"]))
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
