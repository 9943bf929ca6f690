"""Upgrade test of a cluster: nodes of an earlier release and of this one together, under load.

    python -m tests.soak upgrade --from REF [--period 8] [--nodes 3] [--durability group] [--seed N]
    make test-upgrade [FROM=REF]                                   REF: the last tag, or any commit

The earlier release is built from git in a temporary directory with a virtual environment of its own. Its nodes start with
the load of `failover`: producers and consumers at nodes and at a proxy of this release, and a probe.

upgrade    each node in turn stops and starts again with this release, over its files
rollback   each node in turn stops and starts again with the earlier release
activate   upgraded again, without time for a rollback: the features of this release become active
refusal    a node of the earlier release, if it lacks them, is refused by the other nodes, which name both releases

`restart_judge` checks that each post was acknowledged exactly once and is in its queue exactly once, `failover` that the
files of all nodes are equal at the end. The slowest acknowledgement must not take more than ACK_SECONDS_MAX.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import ExitStack
from pathlib import Path

from bmqtwist.versions import BASELINE, OWN
from soak.failover import AVAILABLE_SECONDS_MAX, Run
from soak.restart_judge import Verdict

ACK_SECONDS_MAX = 20.0
ROOT = Path(__file__).resolve().parent.parent.parent
_UNREACHABLE_S = 5.0
_FEATURES = "from bmqtwist.versions import OWN; print(*OWN.features)"


class EarlierRelease:
    """Broker of a commit in its own virtual environment below `place`. `features`: cluster features that it supports."""

    def __init__(self, reference: str, place: Path) -> None:
        source, environment = place / "source", place / "venv"
        source.mkdir()
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", reference], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
        venv.create(environment, with_pip=True)
        self.python = str(environment / "bin" / "python")
        subprocess.run([self.python, "-m", "pip", "install", "-q", str(source)], check=True)
        self.command = [str(environment / "bin" / "bmqbrkr")]
        found = subprocess.run([self.python, "-c", _FEATURES], cwd=place, capture_output=True, text=True, check=False)
        self.features = tuple(found.stdout.split()) or BASELINE


class Upgrade(Run):
    """A cluster whose nodes begin with an earlier release."""

    def begin_with(self, release: EarlierRelease) -> None:
        """Let all nodes start with the earlier release; the proxy is one of this release."""
        self.release = release
        for name in self.cluster.names:
            self.cluster[name].command = release.command

    def install(self, kind: str, name: str, command: list[str] | None) -> None:
        """Stop a node gracefully, and start it over its files with another release."""
        self.faults[kind] += 1
        self.fault_starts.append((time.monotonic(), kind, name == self.cluster.leader))
        node = self.cluster[name]
        if node.stop():
            raise RuntimeError(f"{name} did not stop with exit code 0")
        node.command = command
        node.launch()

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
                               for name in self.cluster.names), "the features to become active", AVAILABLE_SECONDS_MAX)
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
                   "the refusal of the earlier release", AVAILABLE_SECONDS_MAX)
        time.sleep(_UNREACHABLE_S)
        if self.ready(name):
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
        verdict = test_run.run(lambda: test_run.run_all(period))
    _judge_waits(test_run, verdict)
    if not verdict.violations:
        shutil.rmtree(root)
    return {"run": "upgrade", "from": reference, "features of it": release.features, "nodes": nodes,
            "durability": durability, "seed": seed, "seconds": round(time.monotonic() - began),
            "changes": dict(test_run.faults),
            "slowest acknowledgement ms": test_run.waits, "slowest recovery s": round(test_run.slowest_recovery_s, 1),
            **verdict.numbers, "violations": dict(verdict.violations), "examples": verdict.examples,
            **({"files": str(root)} if verdict.violations else {})}


def _judge_waits(test_run: Upgrade, verdict: Verdict) -> None:
    for at, duration_ms in test_run.slowest:
        if duration_ms > 1000 * ACK_SECONDS_MAX:
            verdict.report("unanswered", f"no acknowledgement for {duration_ms} ms after {at} s")


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
