"""Soak test of a cluster: crashes, pauses and network partitions of nodes, with clients at nodes and at a proxy.

    python -m tests.soak failover [--minutes 30] [--faults kill,pause,stop,isolate,inbound,outbound,pair] [--nodes 3]
                                  [--period 10] [--durability group] [--seed N]

Three nodes and a proxy as processes, with the times of the profile `fast` and strong consistency. While all nodes are
available, one fault every `--period` seconds:

kill      kill -9 of a node, started again after up to 3 s       isolate   no data between a node and all other nodes
pause     SIGSTOP of the leader for 2 to 6 s                     inbound   a node receives no data from other nodes
stop      SIGTERM of a node, started again after up to 3 s       outbound  other nodes receive no data from a node
                                                                 pair      no data between two nodes

For the last four all connections between nodes use relays (`cutting`). Two producers, at the proxy and at nodes, post
numbered messages to three queues; one queue is read at the proxy, one by two apps at the nodes, one only at the end.
`restart_judge` checks that each post was acknowledged exactly once, is in its queue exactly once, and in order; sessions at
the proxy must have no connection events. A probe posts continuously and measures the longest time to an acknowledgement
around each fault. At the end all nodes are stopped, and `bmq storage compare` must find their files equal. After a violation
files and logs remain; the result has their directory. Called by `command.py`. The clients are processes of
`restart_clients.py`, the probe is `probe.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from kit.profiles import FAST_APP

from bmqtwist.testing import ClusterProcess
from bmqtwist.testing.config import CLUSTER
from soak.cutting import CuttingRelays
from soak.restart_judge import Consumed, Produced, Verdict, judge

LIVE, FAN, LATE = "bmq://p/live", "bmq://f/fan", "bmq://p/late"
APPS = ("foo", "bar")
PROBES = tuple(f"bmq://probe/{number}" for number in range(4))
PRODUCERS = {"at the proxy": "producer0", "at a node": "producer1"}
CUTS = ("isolate", "inbound", "outbound", "pair")
FAULTS = ("kill", "pause", "stop", *CUTS)
AVAILABLE_SECONDS_MAX = 60.0
FINISH_SECONDS_MAX = 240.0
SLOWEST_SHOWN = 5  # slowest acknowledgements in the result, at least AFTERMATH_S apart
AFTERMATH_S = 10.0  # slow acknowledgements until this time after the start of a fault are attributed to it
_TESTS = Path(__file__).resolve().parent.parent
_POLL_S = 0.05


class Run:
    """A cluster, its client processes and its faults."""

    def __init__(self, root: Path, nodes: int, durability: str, seed: int, relays: CuttingRelays | None) -> None:
        self.root, self.random, self.relays = root, Random(seed), relays
        self.cluster = ClusterProcess(root, nodes, proxies=1, app={**FAST_APP, "bmqtwist": {"durability": durability}},
                                      cluster={"partition": {"maxJournalFileSize": 16 << 20}})
        for name in (*self.cluster.names, *self.cluster.proxies):
            for domain, options in (("p", {}), ("f", {"mode": "fanout", "app_ids": list(APPS)}), ("probe", {})):
                self.cluster[name].domain(domain, consistency="strong", **options)
        if relays is not None:
            relays.insert(self.cluster)
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.faults: Counter[str] = Counter()
        self.fault_starts: list[tuple[float, str, bool]] = []  # time, kind, whether the node was the primary
        self.slowest_recovery_s = 0.0
        self.slowest: list[tuple[float, int]] = []  # acknowledgements: s after the start, duration in ms
        self.started = time.monotonic()

    # -- clients ----------------------------------------------------------------------------------------------------

    def client(self, name: str, module: str, /, **spec: Any) -> None:
        """Start a client process."""
        spec["out"] = str(self.root / f"{name}.json")
        with (self.root / f"{name}.log").open("wb") as log:
            self.clients[name] = subprocess.Popen([sys.executable, "-m", module, json.dumps(spec)], cwd=_TESTS,
                                                  stdin=subprocess.PIPE, stdout=log, stderr=log)

    def worker(self, name: str, role: str, broker: str, queues: list[str]) -> None:
        """Start a producer or a consumer."""
        self.client(name, "soak.restart_clients", front="aio", role=role, broker=broker, name=name, queues=queues,
                    seed=self.random.randrange(1 << 30), pause=0.05)

    def finish(self, *names: str) -> None:
        """End the standard input of clients and wait for their end."""
        for name in names:
            pipe = self.clients[name].stdin
            assert pipe is not None
            pipe.close()
        for name in names:
            if self.clients[name].wait(FINISH_SECONDS_MAX):
                raise RuntimeError(f"{name} failed: {(self.root / f'{name}.log').read_text()[-3000:]}")

    def record(self, name: str) -> Any:
        """Return the record of a client."""
        return json.loads((self.root / f"{name}.json").read_text(encoding="utf-8"))

    def stored(self, uri: str) -> int:
        """Return the number of messages in a queue from the leader; -1 if it gives no answer."""
        domain = uri.removeprefix("bmq://").partition("/")[0]
        try:
            answer = json.loads(self.cluster[self.cluster.leader or "n1"].admin(
                f"ENCODING JSON_COMPACT DOMAINS DOMAIN {domain} INFOS"))
        except (OSError, ValueError, AssertionError):
            return -1
        return sum(each["numMessages"] for each in answer["domainInfo"]["storageContent"]["storages"]
                   if each["queueUri"] == uri)

    # -- faults ------------------------------------------------------------------------------------------------

    def ready(self, name: str) -> bool:
        """Return whether a node reports readiness: it serves clients, and every partition has a primary."""
        try:
            with urllib.request.urlopen(f"{self.cluster.consoles[name]}/readyz", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def until(self, done: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait for a condition; raises RuntimeError after `seconds`, or if a client fails."""
        end = time.monotonic() + seconds
        while not done():
            for name, process in self.clients.items():
                if process.poll():
                    raise RuntimeError(f"{name} failed: {(self.root / f'{name}.log').read_text()[-3000:]}")
            if time.monotonic() > end:
                raise RuntimeError(f"timeout after {seconds:g} s while waiting for {what}")
            time.sleep(_POLL_S)

    def wait_available(self) -> None:
        """Wait until every node is ready."""
        began = time.monotonic()
        self.until(lambda: all(map(self.ready, self.cluster.names)) and bool(self.cluster.leader), "all nodes to be ready",
                   AVAILABLE_SECONDS_MAX)
        self.slowest_recovery_s = max(self.slowest_recovery_s, time.monotonic() - began)

    def fault(self, kind: str) -> None:
        """Cause one fault, end it, and wait until all nodes are ready."""
        leader = self.cluster.leader
        target_node = leader if kind == "pause" else self.random.choice(self.cluster.names)
        self.faults[kind] += 1
        self.fault_starts.append((time.monotonic(), kind, target_node == leader))
        node = self.cluster[target_node]
        if kind in ("kill", "stop"):
            if kind == "kill":
                node.kill()
            elif node.stop():
                raise RuntimeError(f"{target_node} did not stop with exit code 0")
            time.sleep(self.random.uniform(0.1, 3.0))
            node.launch()
        elif kind == "pause":
            node.pause()
            time.sleep(self.random.uniform(2.0, 6.0))
            node.resume()
        else:
            self._cut(kind, target_node)
            time.sleep(self.random.uniform(2.0, 8.0))
            assert self.relays is not None
            self.relays.heal()
        self.wait_available()

    def _cut(self, kind: str, target_node: str) -> None:
        assert self.relays is not None
        others = [name for name in self.cluster.names if name != target_node]
        if kind == "pair":
            others = [self.random.choice(others)]
        for other in others:
            if kind != "inbound":
                self.relays.cut(target_node, other)
            if kind != "outbound":
                self.relays.cut(other, target_node)

    # -- the test ---------------------------------------------------------------------------------------------------

    def cause_faults(self, seconds: float, period: float, kinds: list[str]) -> None:
        """Cause faults for `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            next_fault = time.monotonic() + period
            self.fault(self.random.choice(kinds))
            time.sleep(max(0.0, next_fault - time.monotonic()))
            print(f"{sum(self.faults.values())} faults {dict(self.faults)}, slowest recovery "
                  f"{self.slowest_recovery_s:.1f} s", file=sys.stderr, flush=True)

    def run(self, act: Callable[[], None]) -> Verdict:
        """Start the cluster and the clients, perform `act`, end the clients; return the verdict."""
        self.cluster.start()
        self.wait_available()
        proxy, anywhere = self.cluster["p1"].url, ",".join(self.cluster.urls)
        self.worker("producer0", "produce", proxy, [LIVE, FAN, LATE])
        self.worker("producer1", "produce", anywhere, [LIVE, FAN, LATE])
        self.worker("live", "consume", proxy, [LIVE])
        self.worker("fan", "consume", anywhere, [f"{FAN}?id={app}" for app in APPS])
        self.client("probe", "soak.probe", broker=proxy, queues=PROBES)
        self.until(lambda: all((self.root / f"{name}.open").exists() for name in (*PRODUCERS.values(), "live", "fan")),
                   "clients to open their queues", AVAILABLE_SECONDS_MAX)
        self.until(lambda: all(self.stored(uri) > 0 for uri in (FAN, LATE)), "the first messages", AVAILABLE_SECONDS_MAX)
        act()
        producers = list(PRODUCERS.values())
        self.finish("probe", *producers)
        records = [self.record(name) for name in producers]
        self.until(lambda: self.stored(LIVE) == 0 == self.stored(FAN), "the consumers", FINISH_SECONDS_MAX)
        self.finish("live", "fan")
        stored = self.stored(LATE)
        self.worker("late", "consume", proxy, [LATE])
        self.until(lambda: self.stored(LATE) == 0, "the late consumer", FINISH_SECONDS_MAX)
        self.finish("late")
        verdict = self._judge(records)
        if stored != (posted := sum(each["posts"][LATE] for each in records)):
            verdict.report("duplicated" if stored > posted else "lost", f"{LATE} holds {stored} messages of {posted} posts")
        self._evaluate_probe(verdict)
        self._compare(verdict)
        for name in (*self.cluster.names, *self.cluster.proxies):
            for line in self.cluster[name].log():
                if "Traceback" in line or "INTERNAL_ERROR" in line:
                    verdict.report("unexpected", f"{name}: {line}")
        return verdict

    def _judge(self, records: list[dict[str, Any]]) -> Verdict:
        produced = [Produced(each["name"], uri, each["posts"][uri], [tuple(ack) for ack in acks])
                    for each in records for uri, acks in each["acks"].items()]
        consumers = [self.record(name) for name in ("live", "fan", "late")]
        consumed = []
        for each in consumers:
            for uri, deliveries in each["deliveries"].items():
                base, _, app = uri.partition("?id=")
                consumed.append(Consumed(base, app, [tuple(delivery) for delivery in deliveries]))
        verdict = judge(produced, consumed, [(each["name"], each["letters"], each["queues"])
                                             for each in (*records, *consumers)], moves=True)
        for each in (*records, *consumers):
            if each["name"] in ("producer0", "live", "late") and each["letters"] != "CD":
                verdict.report("events", f"{each['name']}, at the proxy: {each['letters']}")
        return verdict

    def _evaluate_probe(self, verdict: Verdict) -> None:
        """Find the slowest acknowledgement around each fault, in ms, by kind and by role of the node."""
        posts = [tuple(post) for taken in self.record("probe").values() for post in taken]
        for _, _, status in posts:
            if status != "SUCCESS":
                verdict.report("refused", f"probe: {status}")
        verdict.numbers["probes"] += len(posts)
        for began, duration, _ in sorted(posts, key=lambda post: -post[1]):
            at = round(began - self.started, 1)
            if len(self.slowest) < SLOWEST_SHOWN and all(abs(at - other) > AFTERMATH_S for other, _ in self.slowest):
                self.slowest.append((at, _ms(duration)))
        waits: dict[str, list[float]] = {}
        for at, kind, primary in self.fault_starts:
            worst = max((duration for began, duration, _ in posts if at - 1 <= began <= at + AFTERMATH_S), default=0.0)
            waits.setdefault(f"{kind} of {'the primary' if primary else 'a replica'}", []).append(worst)
        self.waits = {name: {"faults": len(found), "p50": _ms(sorted(found)[len(found) // 2]),
                             "p99": _ms(sorted(found)[int(len(found) * 0.99)]), "max": _ms(max(found))}
                      for name, found in sorted(waits.items())}

    def _compare(self, verdict: Verdict) -> None:
        """Check that all replicas have equal files; count the images sent to nodes whose missing records were compacted."""
        self.wait_available()
        verdict.numbers["images"] = sum((self.root / name / "logs" / "bmqbrkr.log").read_text(errors="replace").count(
            "gets an image") for name in self.cluster.names)
        for name in (*self.cluster.proxies, *self.cluster.names):
            if self.cluster[name].stop():
                verdict.report("unexpected", f"{name} did not stop with exit code 0")
        for left, right in combinations(self.cluster.names, 2):
            result = subprocess.run([sys.executable, "-c", "from bmqtwist.cli.main import main; main()", "storage",
                                   "compare", *(str(self.cluster[name].config.storage) for name in (left, right))],
                                  capture_output=True, text=True, check=False)
            verdict.numbers["comparisons"] += 1
            if result.returncode:
                verdict.report("unexpected", f"{left} and {right} differ: {result.stdout[-500:]}{result.stderr[-500:]}")

    def close(self) -> None:
        """Kill the clients and end the cluster."""
        for process in self.clients.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self.cluster.close()


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def run(seconds: float, *, nodes: int = 3, kinds: list[str] | None = None, period: float = 10.0,
        durability: str = "group", seed: int = 0) -> dict[str, Any]:
    """Run the test for `seconds`; return the counts, with violations under "violations"."""
    fault_kinds = kinds or list(FAULTS)
    root = Path(tempfile.mkdtemp(prefix="bmq-failover-"))
    with ExitStack() as stack:
        began = time.monotonic()
        relays = stack.enter_context(CuttingRelays()) if set(fault_kinds) & set(CUTS) else None
        test_run = Run(root, nodes, durability, seed, relays)
        stack.callback(test_run.close)
        verdict = test_run.run(lambda: test_run.cause_faults(seconds, period, fault_kinds))
    if not verdict.violations:
        shutil.rmtree(root)
    return {"run": "failover", "cluster": CLUSTER, "nodes": nodes, "durability": durability, "seed": seed,
            "seconds": round(time.monotonic() - began), "faults": dict(test_run.faults),
            "slowest acknowledgement ms": test_run.waits, "slowest of all, at s, ms": test_run.slowest,
            "slowest recovery s": round(test_run.slowest_recovery_s, 1),
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
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    kinds = options.faults.split(",")
    if unknown := set(kinds) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    result = run(options.minutes * 60, nodes=options.nodes, kinds=kinds, period=options.period,
                 durability=options.durability, seed=options.seed)
    print(json.dumps(result), flush=True)
    return 1 if result["violations"] else 0
