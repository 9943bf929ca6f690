"""Soak test of a cluster: faults of processes, links, disks, files and operators, with clients at nodes and at a proxy.

    python -m tests.soak failover [--minutes 30] [--faults kill,pause,...] [--nodes 3] [--period 10] [--durability group]
                                  [--from REF] [--seed N]

Three nodes and a proxy as processes, with the times of the profile `fast` and strong consistency. While all nodes are
available, one fault every `--period` seconds, all kinds equally often in random order:

kill      kill -9 of a node, started again after up to 3 s       isolate   no data between a node and all other nodes
pause     SIGSTOP of the leader for 2 to 6 s                     inbound   a node receives no data from other nodes
stop      SIGTERM of a node, started again after up to 3 s       outbound  other nodes receive no data from a node
versions  a node restarts with the release REF, and again        pair      no data between two nodes
          with this one; only with `--from`                      narrow    1 MB/s between two nodes
                                                                 delay     300 +- 250 ms between all nodes
storage   files of a killed node are lost: all, ledger, vote,    list      a node starts with a wrong list of nodes
          promises, journals, file sets, those of a partition,   full      a node cannot write beyond 4 KiB of a file
          or the identity                                        readonly  a node starts with a read-only directory
copy      a node starts with an older copy of its directory      add, remove, replace   members change: `clusters.json` of
swapped   two nodes start with each other's directory            all brokers is written, and they restart one by one

All connections between nodes use relays (`cutting`) if a kind of fault needs them. `cluster_load.py` has the clients. A node
that does not serve because of its storage, list of nodes or disk must say so. `load_evaluation.py` has the checks and the
histogram of the times without acknowledgements for each kind of fault. After a violation files and logs remain; the result
has their directory. Called by `command.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bmqtwist.testing.config import CLUSTER
from bmqtwist.versions import OWN
from soak.cluster_faults import FAULTS, cause
from soak.cluster_load import LoadedCluster
from soak.cutting import CuttingRelays
from soak.earlier_release import EarlierRelease
from soak.load_evaluation import evaluate, table

WITHOUT_MAJORITY = [kind for kind, fault in FAULTS.items() if not fault.majority]


def cause_faults(load: LoadedCluster, seconds: float, period: float, kinds: list[str]) -> None:
    """Cause faults for `seconds`."""
    end, remaining = time.monotonic() + seconds, list[str]()
    while time.monotonic() < end:
        next_fault = time.monotonic() + period
        remaining = remaining or load.random.sample(kinds, len(kinds))
        kind = next((each for each in remaining if FAULTS[each].possible(load)), "")
        if kind:
            remaining.remove(kind)
            cause(load, kind)
            print(f"{time.monotonic() - load.started:.0f} s: {kind}, {len(load.spans)} faults, slowest recovery "
                  f"{load.slowest_recovery_s:.1f} s", file=sys.stderr, flush=True)
        else:
            remaining = []
        time.sleep(max(0.0, next_fault - time.monotonic()))


def run(seconds: float, *, nodes: int = 3, kinds: list[str] | None = None, period: float = 10.0,
        durability: str = "group", seed: int = 0, earlier: str = "") -> dict[str, Any]:
    """Run the test for `seconds`; return the counts, with violations under "violations". `earlier`: a commit."""
    fault_kinds = kinds or list(FAULTS)
    root = Path(tempfile.mkdtemp(prefix="bmq-failover-"))
    print(f"files and logs are in {root}", file=sys.stderr, flush=True)
    with ExitStack() as stack:
        release = EarlierRelease(earlier, Path(stack.enter_context(tempfile.TemporaryDirectory(
            prefix="bmq-release-")))) if earlier else None
        if release is not None and (missing := set(OWN.features) - set(release.features)):
            raise ValueError(f"{earlier} lacks {', '.join(sorted(missing))}, which a new cluster uses at once: "
                             "`tests.soak upgrade` tests it")
        began = time.monotonic()
        relays = stack.enter_context(CuttingRelays()) if any(FAULTS[kind].relays for kind in fault_kinds) else None
        load = LoadedCluster(root, nodes, durability, seed, relays)
        load.earlier_command = release.command if release is not None else None
        stack.callback(load.close)
        load.run(lambda: cause_faults(load, seconds, period, fault_kinds))
        verdict, waits = evaluate(load, WITHOUT_MAJORITY)
    if not verdict.violations:
        shutil.rmtree(root)
    return {"run": "failover", "cluster": CLUSTER, "nodes": nodes, "durability": durability, "seed": seed,
            "seconds": round(time.monotonic() - began), "faults": Counter(span.kind for span in load.spans),
            "lost": load.losses, "not ready": load.reasons, "without acknowledgements": waits,
            "slowest recovery s": round(load.slowest_recovery_s, 1),
            **verdict.numbers, "violations": dict(verdict.violations), "examples": verdict.examples,
            **({"files": str(root)} if verdict.violations else {})}


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="tests.soak failover", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--period", type=float, default=10.0)
    parser.add_argument("--durability", default="group")
    parser.add_argument("--from", dest="earlier", default="", metavar="REF")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    kinds = options.faults.split(",")
    if unknown := set(kinds) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    result = run(options.minutes * 60, nodes=options.nodes, kinds=kinds, period=options.period,
                 durability=options.durability, seed=options.seed, earlier=options.earlier)
    print(table(result["without acknowledgements"]), file=sys.stderr, flush=True)
    print(json.dumps(result), flush=True)
    return 1 if result["violations"] else 0
