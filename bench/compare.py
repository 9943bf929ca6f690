"""Comparison of two versions of the broker in one run, cell by cell.

    python -m bench.compare --old PATH/bmqbrkr --new PATH/bmqbrkr [--cells NAME,PREFIX*] [--durability none]
                            [--seconds 6] [--turns 5] [--nodes 1] [--json FILE]

The speed of a shared machine can change by half within a second. In cells without a rate, both brokers therefore run at the
same time with their own clients, and one side is stopped (SIGSTOP) while the other one runs, alternating every
SLICE_SECONDS: changes of the machine affect both sides, and a broker compared with itself gives ratios of 0.97 to 1.03.
Each side has half of the time, so its messages/s are half of its usual throughput. In cells with a rate, the sides run one
after the other in each turn, in alternating order; these ratios vary by 0.1 and need more turns. `--durability none,group`
gives the old side the first and the new side the second durability: with the same broker on both sides it measures the cost
of a durability.

A row has the medians over all turns, and the medians of the ratios new/old of each turn. `other cores`: the largest
number of cores that other processes used in a turn (not meaningful when both sides run). Cells are declared in
`cells.py` and run by `load.py`; bmqtwist and RabbitMQ are compared by `run.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from threading import Barrier
from typing import Any, Final, NamedTuple

from bench.broker import Broker
from bench.cells import CELLS, Cell, choose
from bench.load import run_cell
from bench.nodes import BrokerCluster

_COLUMNS = (("cell", 18), ("old msg/s", 10), ("new msg/s", 10), ("rate ratio", 10), ("old us/msg", 10),
            ("new us/msg", 10), ("CPU ratio", 9), ("old p50 ms", 10), ("new p50 ms", 10), ("p50 ratio", 9),
            ("other cores", 11))


SLICE_SECONDS: Final = 0.2
SIDES: Final = ("old", "new")


class Side(NamedTuple):
    """One side of the comparison: the command of a broker, and its durability."""

    command: Path
    durability: str


def _start(side: Side, nodes: int, stack: ExitStack) -> Broker | BrokerCluster:
    os.environ["BMQBRKR"] = shlex.quote(str(side.command))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bmq-bench-broker-")))
    durability = side.durability
    return stack.enter_context(Broker(folder, durability) if nodes == 1 else BrokerCluster(folder, durability, nodes))


def _measure_in_sequence(sides: dict[str, Side], order: Iterable[str], cell: Cell, nodes: int,
                seconds: float) -> dict[str, dict[str, Any]]:
    rows = {}
    for side in order:
        with ExitStack() as stack:
            rows[side] = run_cell(_start(sides[side], nodes, stack), cell, seconds)
    return rows


def _measure_alternating(sides: dict[str, Side], order: Iterable[str], cell: Cell, nodes: int,
              seconds: float) -> dict[str, dict[str, Any]]:
    """Run both sides at the same time, with one of them stopped, alternating every SLICE_SECONDS."""
    both = Barrier(3)
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        brokers = {side: _start(sides[side], nodes, stack) for side in SIDES}
        pids = {side: list(broker.pids) for side, broker in brokers.items()}

        def run(side: str) -> dict[str, Any]:
            def ready(clients: list[int]) -> None:
                pids[side] += clients
                both.wait(60)

            return run_cell(brokers[side], cell, seconds, ready)

        rows = {side: threads.submit(run, side) for side in SIDES}
        both.wait(60)
        deadline = time.monotonic() + seconds
        first, second = order
        try:
            while time.monotonic() < deadline:
                for runs, waits in ((first, second), (second, first)):
                    _signal(pids[waits], signal.SIGSTOP)
                    _signal(pids[runs], signal.SIGCONT)
                    time.sleep(SLICE_SECONDS)
        finally:
            for side in SIDES:
                _signal(pids[side], signal.SIGCONT)
        return {side: row.result() for side, row in rows.items()}


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a client that has finished
            os.kill(pid, number)


def _row(cell: Cell, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> tuple[object, ...]:
    def all_of(rows: list[dict[str, Any]], name: str) -> list[float]:
        return [float(row["latency_ms"]["p50"] or 0 if name == "p50" else row[name]) for row in rows]

    def of(rows: list[dict[str, Any]], name: str) -> float:
        return median(all_of(rows, name))

    def ratio(name: str) -> float:
        pairs = zip(all_of(old, name), all_of(new, name), strict=True)
        return round(median([after / before for before, after in pairs if before] or [0.0]), 3)

    values: list[object] = [cell.name]
    for name, digits in (("messages_per_s", 0), ("broker_cpu_us_per_message", 2), ("p50", 3)):
        values += [round(of(old, name), digits), round(of(new, name), digits), ratio(name)]
    return (*values, max(row["other_cores"] for row in old + new))


def _print(values: tuple[object, ...]) -> None:
    print("  ".join(f"{value!s:<{width}}" if index == 0 else f"{value!s:>{width}}"
                    for index, (value, (_, width)) in enumerate(zip(values, _COLUMNS, strict=True))), flush=True)


def main() -> int:
    """Run from the command line; return 1 if a message was lost or refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="command of the old broker")
    parser.add_argument("--new", type=Path, required=True, help="command of the new broker")
    parser.add_argument("--cells", default="quick", help=f"quick, all, or names of cells: {', '.join(CELLS)}")
    parser.add_argument("--durability", default="none", help="durability, or two: of the old and the new side")
    parser.add_argument("--seconds", type=float, default=6.0, help="posting time per turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="turns per cell (default: %(default)s)")
    parser.add_argument(
        "--nodes", type=int, default=1, help="nodes of each side; clients at a replica (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="append one JSON object for each measurement to this file")
    options = parser.parse_args()
    _print(tuple(name for name, _ in _COLUMNS))
    durabilities = options.durability.split(",")
    sides = {"old": Side(options.old, durabilities[0]), "new": Side(options.new, durabilities[-1])}
    complete = True
    for cell in choose(options.cells):
        rows: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        measure = _measure_in_sequence if cell.rate else _measure_alternating
        for turn in range(options.turns):
            order = SIDES if turn % 2 == 0 else SIDES[::-1]
            for side, row in measure(sides, order, cell, options.nodes, options.seconds).items():
                complete = complete and row["complete"] and not row["nacked"]
                rows[side].append(row)
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps({"side": side, "turn": turn} | row) + "\n")
        _print(_row(cell, rows["old"], rows["new"]))
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
