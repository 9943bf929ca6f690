"""Upgrade test of a cluster: nodes of an earlier release and of this one together, under load.

    python -m tests.soak upgrade --from REF [--period 8] [--nodes 3] [--durability group] [--seed N]
    make test-upgrade [FROM=REF]                                   REF: the last tag, or any commit

`earlier_release.py` builds the earlier release. Its nodes start with the load of `cluster_load.py`: producers and consumers
at nodes and at a proxy of this release, and a probe.

upgrade    each node in turn stops and starts again with this release, over its files
rollback   each node in turn stops and starts again with the earlier release
activate   upgraded again, without time for a rollback: the features of this release become active
refusal    a node of the earlier release, if it lacks them, is refused by the other nodes, which name both releases

`load_evaluation.py` checks the posts, the files of all nodes at the end, and the times without acknowledgements. Called by
`command.py`.
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

from bmqtwist.versions import BASELINE, OWN
from soak.cluster_load import LoadedCluster
from soak.earlier_release import EarlierRelease
from soak.load_evaluation import evaluate

_UNREACHABLE_S = 5.0


class Upgrade(LoadedCluster):
    """A cluster whose nodes begin with an earlier release."""

    def begin_with(self, release: EarlierRelease) -> None:
        """Let all nodes start with the earlier release; the proxy is one of this release."""
        self.release = release
        for name in self.cluster.names:
            self.cluster[name].command = release.command

    def install(self, kind: str, name: str, command: list[str] | None) -> None:
        """Stop a node gracefully, and start it over its files with another release."""
        self.begin(kind, name)
        self.stop(name)
        self.cluster[name].command = command
        self.cluster[name].launch()

    def install_everywhere(self, kind: str, command: list[str] | None, period: float) -> None:
        """Change the release of all nodes, one after the other, under load."""
        for name in self.cluster.names:
            self.install(kind, name, command)
            self.wait_available()
            print(f"{kind}: {name}, slowest recovery {self.slowest_recovery_s:.1f} s", file=sys.stderr, flush=True)
            time.sleep(period)

    def run_all(self, period: float) -> None:
        """Upgrade, roll back, upgrade for good, and try to roll back one node."""
        self.install_everywhere("upgrade", None, period)
        self.install_everywhere("rollback", self.release.command, period)
        for name in self.cluster.names:
            config = self.cluster[name].config
            config.broker["appConfig"].setdefault("bmqtwist", {})["rollbackSeconds"] = 0
            config.write()
        self.install_everywhere("activate", None, period)
        self.until(lambda: all(self._active(name) == sorted(set(OWN.features) - set(BASELINE))
                               for name in self.cluster.names), "the features to become active")
        if set(OWN.features) - set(self.release.features):
            self._be_refused(self.cluster.names[-1])

    def _active(self, name: str) -> list[str]:
        answer = json.loads(self.cluster[name].admin("ENCODING JSON_COMPACT CLUSTERS CLUSTER c3 STATUS"))
        return list(answer["clusterStatus"]["features"]["active"])

    def _be_refused(self, name: str) -> None:
        """Start a node with the earlier release: it must not serve, and the reason is named; then install this one again.

        A release that knows features, but not all active ones, does not start; an older one is refused by the other nodes.
        """
        other, own = self.cluster[self.cluster.names[0]], self.cluster[name]
        since, own_since = len(other.records), len(own.records)
        config = self.cluster[name].config
        del config.broker["appConfig"]["bmqtwist"]["rollbackSeconds"]
        config.write()
        self.install("refusal", name, self.release.command)
        alarm = "node-version-differs", f"[{name}, ", f"that of this node is {OWN.release} with"
        self.until(lambda: any(all(text in line for text in alarm) for line in other.records[since:])
                   or any("which this release, " in line for line in own.records[own_since:]),
                   "the refusal of the earlier release")
        time.sleep(_UNREACHABLE_S)
        if not self.reason(name):
            raise RuntimeError(f"{name} serves with a release without active features")
        if self.cluster[name].running:
            self.cluster[name].kill()
        self.cluster[name].command = None
        self.cluster[name].launch()
        self.wait_available()


def run(reference: str, *, nodes: int = 3, period: float = 8.0, durability: str = "group",
        seed: int = 0) -> dict[str, object]:
    """Run the test; return the counts, with violations under "violations"."""
    root = Path(tempfile.mkdtemp(prefix="bmq-upgrade-"))
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bmq-release-")))
        release = EarlierRelease(reference, place)
        began = time.monotonic()
        test_run = Upgrade(root, nodes, durability, seed, None)
        stack.callback(test_run.close)
        test_run.begin_with(release)
        test_run.run(lambda: test_run.run_all(period))
        verdict, waits = evaluate(test_run)
    if not verdict.violations:
        shutil.rmtree(root)
    return {"run": "upgrade", "from": reference, "features of it": release.features, "nodes": nodes,
            "durability": durability, "seed": seed, "seconds": round(time.monotonic() - began),
            "changes": Counter(span.kind for span in test_run.spans), "without acknowledgements": waits,
            "slowest recovery s": round(test_run.slowest_recovery_s, 1),
            **verdict.numbers, "violations": dict(verdict.violations), "examples": verdict.examples,
            **({"files": str(root)} if verdict.violations else {})}


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="tests.soak upgrade", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="reference", required=True)
    parser.add_argument("--period", type=float, default=8.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--durability", default="group")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    result = run(options.reference, nodes=options.nodes, period=options.period, durability=options.durability,
                 seed=options.seed)
    print(json.dumps(result), flush=True)
    return 1 if result["violations"] else 0
