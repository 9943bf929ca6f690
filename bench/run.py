"""The load harness: cells against our broker and against RabbitMQ in one run, as a table and as JSON lines.

    python -m bench.run [--cells quick|all|NAME,PREFIX*] [--durability none] [--seconds 8] [--repeat 1]
                        [--nodes 1] [--no-rabbit] [--nice -20] [--json FILE]

With `--nodes 3` the brokers are clusters: queues of ours are strongly consistent, RabbitMQ's are quorum queues, and clients
are at a node that does not lead them. CPU is then that of all nodes together, memory that of the largest.

Every cell runs against a fresh broker, ours and RabbitMQ's in turn, so that a ratio joins neighbours in time. With
several repetitions the row of a cell is the one with the median rate. `turn` and `late`: the longest turn of our brokers
since their start, and how late they were at most for what was due, in all repetitions; `machine`: how long the machine was
away at most meanwhile (`bench.machine`). `foreign` says how many cores were busy with anything else.

All brokers, RabbitMQ too, have precedence over their clients, as `--nice` says and if the system allows it; the first line
tells it. At `--nice 0` twenty busy clients share a few processors with them, and what a turn takes is mostly waiting.

BMQBRKR names another command for our broker.
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
from bench.machine import Machine
from bench.nodes import BrokerCluster, RabbitCluster
from bench.precedence import give_precedence, may_precede
from bench.rabbit import Missing, Rabbit

_COLUMNS = (("cell", 18), ("broker", 18), ("msg/s", 8), ("p50 ms", 9), ("p99 ms", 9), ("p99.9 ms", 9), ("us/msg", 7),
            ("client us", 9),
            ("cores", 6), ("RSS MiB", 8), ("turn ms", 8), ("late ms", 8), ("machine", 8), ("foreign", 7), ("x rabbit", 9))


def _target(root: Path, durability: str | None, nodes: int) -> Broker | BrokerCluster | Rabbit | RabbitCluster:
    """What is measured; durability None means RabbitMQ, `floor` the yardstick."""
    if durability is None:
        return Rabbit(root) if nodes == 1 else RabbitCluster(root, nodes)
    if durability == "floor":
        return FloorBroker(root) if nodes == 1 else FloorRelay(root)
    return Broker(root, durability) if nodes == 1 else BrokerCluster(root, durability, nodes)


def _measure(cell: Cell, durability: str | None, seconds: float, nodes: int, nice: int) -> dict[str, Any]:
    """One cell once."""
    with tempfile.TemporaryDirectory(prefix="bmq-bench-broker-") as name:
        with _target(Path(name), durability, nodes) as target, Machine() as machine:
            give_precedence(target.pids, nice)
            row = run_cell(target, cell, seconds)
            if isinstance(target, Broker | BrokerCluster) and not isinstance(target, FloorBroker):
                row["stalls_ms"] = {**target.stalls_ms(), "machine": machine.longest_ms()}
    row["durability"], row["nice"] = durability or "confirms", nice
    return row


def _median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ordered = sorted(rows, key=lambda row: row["messages_per_s"])
    row = ordered[len(ordered) // 2]
    row["all_messages_per_s"] = [each["messages_per_s"] for each in rows]
    for name in row.get("stalls_ms", ()):
        row["stalls_ms"][name] = max((each["stalls_ms"][name] for each in rows), key=lambda ms: ms or 0.0)
    return row


def _print(values: tuple[object, ...]) -> None:
    print("  ".join(f"{value!s:<{width}}" if index < 2 else f"{value!s:>{width}}"
                    for index, (value, (_, width)) in enumerate(zip(values, _COLUMNS, strict=True))), flush=True)


def _line(row: dict[str, Any]) -> None:
    latency, stalls = row["latency_ms"], row.get("stalls_ms", {})
    label = f"{row['target']} {row['durability']}" if row["target"] == "bmqtwist" else row["target"]
    _print((row["cell"], label, row["messages_per_s"] if row["complete"] else "LOST", latency["p50"], latency["p99"],
            latency["p99.9"], row["broker_cpu_us_per_message"], row["client_cpu_us_per_message"],
            row["broker_cpu_share"], row["rss_mib"]["peak"], stalls.get("turn", ""), stalls.get("late", ""),
            stalls.get("machine", ""), row["foreign_cores"], row.get("rate_vs_rabbit", "")))


def main() -> int:
    """Command line; the exit code says whether every cell was complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="quick", help=f"of: {', '.join(CELLS)}")
    parser.add_argument("--durability", default="none", help="none, group, always; several separated by commas")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long producers post")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--no-rabbit", action="store_true")
    parser.add_argument("--only-rabbit", action="store_true")
    parser.add_argument("--floor", action="store_true", help="also measure bench.floor, the yardstick")
    parser.add_argument("--nice", type=int, default=-20, help="of the brokers; clients have 0")
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
    nice = options.nice if may_precede(options.nice) else 0
    print(f"brokers: nice {nice}" + (", since the system allows no other" if nice != options.nice else ""))
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
