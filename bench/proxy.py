"""Benchmark of a proxy: the CPU cost of a message at a node, with clients at the node and with clients at a proxy.

    python -m bench.proxy [--cells 1q1p1c-1k,10q10p10c-1k,1q1p1c-x20-1k] [--seconds 4] [--repeat 3]

A proxy does the work of client sessions (frames, flow control, ACKs and PUSHes) and sends the messages of its clients
in fewer events. For each cell the benchmark prints the CPU time per message of each process, and the messages per
second that one core of the node could process, which tells whether a further core for a proxy would help. One JSON
object per line, of the median run. Cells are declared in `cells.py` and run by `load.py`. Nodes without a proxy are
measured by `run.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.broker import CLUSTER, Broker
from bench.cells import Cell, choose
from bench.gauge import cpu_seconds
from bench.load import run_cell


class Proxy(Broker):
    """A proxy of one node."""

    def __init__(self, root: Path, node: Broker) -> None:
        super().__init__(root)
        path = root / "etc/clusters.json"
        clusters = json.loads(path.read_text())
        nodes = json.loads((node.root / "etc/clusters.json").read_text())["myClusters"][0]["nodes"]
        operations = clusters["myClusters"][0]["queueOperations"]
        path.write_text(json.dumps({"myClusters": [], "myVirtualClusters": [], "proxyClusters": [
            {"name": CLUSTER, "nodes": nodes, "queueOperations": operations}]}))


def _measure(cell: Cell, proxied: bool, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bmq-proxy-") as name, ExitStack() as stack:
        processes = {"node": stack.enter_context(Broker(Path(name) / "node"))}
        if proxied:
            processes["proxy"] = stack.enter_context(Proxy(Path(name) / "proxy", processes["node"]))
        before: dict[str, float] = {}
        row = run_cell(list(processes.values())[-1], cell, seconds, lambda _: before.update(
            {role: sum(cpu_seconds(broker.pid)) for role, broker in processes.items()}))
        cost = {role: (sum(cpu_seconds(broker.pid)) - before[role]) / row["posted"] * 1e6
                for role, broker in processes.items()}
    return {"cell": cell.name, "clients_at": list(processes)[-1], "messages_per_s": row["messages_per_s"],
            "p50_ms": row["latency_ms"]["p50"], "cpu_us_per_message": {role: round(us, 1) for role, us in cost.items()},
            "node_messages_per_core_second": round(1e6 / cost["node"]), "other_cores": row["other_cores"]}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="1q1p1c-1k,10q10p10c-1k,1q1p1c-x20-1k", help="cells (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="posting time per run (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs per cell (default: %(default)s)")
    options = parser.parse_args()
    for cell in choose(options.cells):
        for proxied in (False, True):
            rows = sorted((_measure(cell, proxied, options.seconds) for _ in range(options.repeat)),
                          key=lambda row: row["node_messages_per_core_second"])
            print(json.dumps(rows[len(rows) // 2]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
