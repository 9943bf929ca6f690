"""Load benchmark: runs cells on bmqtwist and on RabbitMQ, and prints a table and JSON lines.

    python -m bench.run [--cells quick|all|NAME,PREFIX*] [--durability none] [--seconds 8] [--repeat 1]
                        [--nodes 1] [--no-rabbit] [--nice -20] [--json FILE]

With `--nodes 3` the brokers are clusters: queues of bmqtwist are strongly consistent, those of RabbitMQ are quorum queues,
and clients connect to a node that is not the leader. CPU is then the sum of all nodes, memory that of the largest node.

Each cell runs on a new broker, bmqtwist and RabbitMQ in turn. With several repetitions the row of a cell is the one with the
median rate. Columns:

    broker us/msg, client us/msg   CPU time per message of the broker, and of all clients
    broker cores                   average number of cores that the broker used
    max turn ms, max delay ms      longest turn of the broker's event loop, and longest delay of a timer, in all repetitions
    host pause ms                  longest pause of the machine itself meanwhile (`bench.machine`)
    other cores                    average number of cores that other processes used
    vs RabbitMQ                    messages/s relative to RabbitMQ

Brokers, RabbitMQ too, get a higher priority than their clients if the system allows `--nice`; the first line shows it. With
`--nice 0` the brokers compete with twenty busy clients for a few processors, and turns are mostly waiting.

The environment variable BMQBRKR names another command for the broker. Cells are declared in `cells.py` and run by
`load.py`, which makes the fields of a row; columns are declared here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.broker import Broker
from bench.cells import CELLS, Cell, choose
from bench.floor import FloorBroker, FloorRelay
from bench.load import run_cell
from bench.machine import HostPauseMonitor
from bench.nodes import BrokerCluster, RabbitCluster
from bench.precedence import can_set_nice, set_nice
from bench.rabbit import Missing, Rabbit

_COLUMNS = (("cell", 18), ("broker", 18), ("msg/s", 8), ("p50 ms", 9), ("p99 ms", 9), ("p99.9 ms", 9), ("broker us/msg", 13),
            ("client us/msg", 13), ("broker cores", 12), ("RSS MiB", 8), ("max turn ms", 11), ("max delay ms", 12),
            ("host pause ms", 13), ("other cores", 11), ("vs RabbitMQ", 11))


def _target(root: Path, durability: str | None, nodes: int) -> Broker | BrokerCluster | Rabbit | RabbitCluster:
    """Return the target of a run: RabbitMQ for durability None, the baseline server for "floor"."""
    if durability is None:
        return Rabbit(root) if nodes == 1 else RabbitCluster(root, nodes)
    if durability == "floor":
        return FloorBroker(root) if nodes == 1 else FloorRelay(root)
    return Broker(root, durability) if nodes == 1 else BrokerCluster(root, durability, nodes)


def _measure(cell: Cell, durability: str | None, seconds: float, nodes: int, nice: int) -> dict[str, Any]:
    """Run one cell once and return its row."""
    with tempfile.TemporaryDirectory(prefix="bmq-bench-broker-") as name:
        with _target(Path(name), durability, nodes) as target, HostPauseMonitor() as pauses:
            set_nice(target.pids, nice)
            row = run_cell(target, cell, seconds)
            if isinstance(target, Broker | BrokerCluster) and not isinstance(target, FloorBroker):
                row["loop_stalls_ms"] = {**target.loop_stalls_ms(), "host_pause": pauses.longest_ms()}
    row["durability"], row["nice"] = durability or "confirms", nice
    return row


def _median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ordered = sorted(rows, key=lambda row: row["messages_per_s"])
    row = ordered[len(ordered) // 2]
    row["all_messages_per_s"] = [each["messages_per_s"] for each in rows]
    for name in row.get("loop_stalls_ms", ()):
        row["loop_stalls_ms"][name] = max((each["loop_stalls_ms"][name] for each in rows), key=lambda ms: ms or 0.0)
    return row


def _print(values: tuple[object, ...]) -> None:
    print("  ".join(f"{value!s:<{width}}" if index < 2 else f"{value!s:>{width}}"
                    for index, (value, (_, width)) in enumerate(zip(values, _COLUMNS, strict=True))), flush=True)


def _line(row: dict[str, Any]) -> None:
    latency, stalls = row["latency_ms"], row.get("loop_stalls_ms", {})
    label = f"{row['target']} {row['durability']}" if row["target"] == "bmqtwist" else row["target"]
    _print((row["cell"], label, row["messages_per_s"] if row["complete"] else "LOST", latency["p50"], latency["p99"],
            latency["p99.9"], row["broker_cpu_us_per_message"], row["client_cpu_us_per_message"],
            row["broker_cpu_share"], row["rss_mib"]["peak"], stalls.get("max_turn", ""), stalls.get("max_delay", ""),
            stalls.get("host_pause", ""), row["other_cores"], row.get("rate_vs_rabbit", "")))


def main() -> int:
    """Run from the command line; return 1 if a message was lost or refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="quick", help=f"quick, all, or names of cells: {', '.join(CELLS)}")
    parser.add_argument("--durability", default="none", help="none, group or always; several separated by commas")
    parser.add_argument("--seconds", type=float, default=8.0, help="posting time per cell (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="runs per cell (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=1, help="nodes per broker cluster (default: %(default)s)")
    parser.add_argument("--no-rabbit", action="store_true", help="without RabbitMQ")
    parser.add_argument("--only-rabbit", action="store_true", help="only RabbitMQ")
    parser.add_argument("--floor", action="store_true", help="also measure the baseline server (bench.floor)")
    parser.add_argument("--nice", type=int, default=-20, help="nice value of the brokers (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="append one JSON object per row to this file")
    options = parser.parse_args()
    durabilities: list[str | None] = [] if options.only_rabbit else list(options.durability.split(","))
    if options.floor:
        durabilities.append("floor")
    if not options.no_rabbit:
        try:
            with tempfile.TemporaryDirectory() as name:
                Rabbit(Path(name))
            durabilities.append(None)
        except Missing as reason:
            print(f"Without RabbitMQ: {reason}", file=sys.stderr)
    nice = options.nice if can_set_nice(options.nice) else 0
    print(f"brokers: nice {nice}" + (", the system does not allow another value" if nice != options.nice else ""))
    _print(tuple(name for name, _ in _COLUMNS))
    complete = True
    for cell in choose(options.cells):
        taken: dict[str | None, list[dict[str, Any]]] = {durability: [] for durability in durabilities}
        if cell.mode != "priority" or cell.queues > 1:
            taken.pop("floor", None)
        for _ in range(options.repeat):
            for durability, rows in taken.items():
                rows.append(_measure(cell, durability, options.seconds, options.nodes, nice))
        rows = [_median(each) for each in taken.values()]
        rabbit = next((row for row in rows if row["target"] == "rabbitmq"), None)
        for row in rows:
            if rabbit is not None and row is not rabbit and rabbit["messages_per_s"]:
                row["rate_vs_rabbit"] = round(row["messages_per_s"] / rabbit["messages_per_s"], 2)
                if rabbit["latency_ms"]["p50"] and row["latency_ms"]["p50"]:
                    row["p50_vs_rabbit"] = round(row["latency_ms"]["p50"] / rabbit["latency_ms"]["p50"], 3)
            complete = complete and row["complete"] and not row["nacked"]
            _line(row)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
