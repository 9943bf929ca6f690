"""Training loads of a profile-guided build: short runs of the loads in LOADS, by the SDK of bmqtwist and the raw client.

    BMQBRKR=PATH/bmqbrkr python -m bench.train [--seconds 2]

Each process of the broker of BMQBRKR writes its profile when it ends; `.ci/compile` compiles with these profiles. The
messages per second are printed, not compared. Run by `.ci/compile`; comparisons are made by `run.py` and `compare.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.broker import Broker
from bench.cells import CELLS
from bench.load import run_cell
from bench.nodes import BrokerCluster

# (cell, durability, nodes)
LOADS = (("one-process-5000", "none", 1), ("1q1p1c-5000", "none", 1), ("1q1p1c-1k", "none", 1), ("1q1p1c-1k", "group", 1),
         ("fanout5-1k", "none", 1), ("1q1p1c-x20-1k", "none", 1), ("1q1p1c-x20-1k", "group", 1), ("1q1p1c-5000", "group", 3))


def main() -> int:
    """Run from the command line; return 1 if a message was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="posting time per load (default: %(default)s)")
    seconds, complete = parser.parse_args().seconds, True
    for name, durability, nodes in LOADS:
        with tempfile.TemporaryDirectory(prefix="bmq-bench-broker-") as folder:
            target = Broker(Path(folder), durability) if nodes == 1 else BrokerCluster(Path(folder), durability, nodes)
            for broker in [target] if isinstance(target, Broker) else target.brokers:
                broker.style = "" if CELLS[name].batch > 1 else "single"
            with target:
                row = run_cell(target, CELLS[name], seconds)
        print(f"{name}, {durability}, {nodes} node(s): {row['messages_per_s']:.0f} messages/s", flush=True)
        complete = complete and row["complete"]
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
