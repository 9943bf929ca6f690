"""Benchmark of the SDK of bmqtwist and the official SDK on the same broker, as a table and JSON lines.

    python -m bench.sdk [--cells one-process-1k,1q1p1c-1k] [--seconds 6] [--repeat 3] [--durability none] [--json FILE]

For each cell: the official SDK, then the SDK of bmqtwist with single posts, with many tasks, and with `post_many` (see
bench.bmqtwist_worker). A repetition is one round of all of them; ratios are those of the medians. At the end the event
loop of the bmqtwist client is measured at 10,000 messages/s: its longest callback. Cells are declared in `cells.py` and
run by `load.py`; the clients are `sdk_worker.py` and `bmqtwist_worker.py`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.broker import Broker
from bench.cells import choose
from bench.load import run_cell

STYLES = ("", "single", "tasks", "many")
_PACED = 10_000  # messages/s


def _row(broker: Broker, cell: Any, style: str, seconds: float, measure_loop: bool = False) -> dict[str, Any]:
    broker.style, broker.measure_loop = style, measure_loop
    row = run_cell(broker, cell, seconds)
    row["client"] = f"bmqtwist {style}" if style else "blazingmq"
    if not row["complete"] or row["acked"] != row["posted"]:
        raise RuntimeError(f"messages are missing: {row}")
    return row


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="one-process-1k,1q1p1c-1k", help="cells (default: %(default)s)")
    parser.add_argument("--durability", default="none", help="none, group or always (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="posting time per run (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds per cell (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="append one JSON object per row to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")

    with tempfile.TemporaryDirectory(prefix="bmq-bench-sdk-") as name, Broker(Path(name), options.durability) as broker:
        print(f"{'cell':<18}{'client':<18}{'msg/s (each round)':<28}{'vs blazingmq':>13}{'p50 ms':>9}{'client us/msg':>15}"
              f"{'other cores':>13}")
        for cell in choose(options.cells):
            for _ in range(options.repeat):
                for style in STYLES:
                    add(_row(broker, cell, style, options.seconds))
            rates = {}
            for style in STYLES:
                client = f"bmqtwist {style}" if style else "blazingmq"
                mine = [row for row in rows if row["cell"] == cell.name and row["client"] == client]
                rates[style] = median(row["messages_per_s"] for row in mine)
                middle = [median(row[key] for row in mine) for key in ("client_cpu_us_per_message", "other_cores")]
                p50 = median(row["latency_ms"]["p50"] for row in mine)
                print(f"{cell.name:<18}{client:<18}{' '.join(str(row['messages_per_s']) for row in mine):<28}"
                      f"{rates[style] / rates['']:>13.2f}{p50:>9}{middle[0]:>15}{middle[1]:>13}", flush=True)
            for style in STYLES[1:]:
                paced = replace(cell, name=f"{cell.name}-{_PACED}", rate=_PACED)
                row = _row(broker, paced, style, options.seconds, measure_loop=True)
                add(row)
                print(f"{paced.name:<24} {row['client']:<18}{row['messages_per_s']:>8}/s  p50 {row['latency_ms']['p50']} ms"
                      f"  longest callback of each process, ms: {row['longest_callback_ms']}", flush=True)


if __name__ == "__main__":
    main()
