"""Cluster of processes under load: nodes, a proxy, the client processes, and the readiness that each node reports.

Two producers, at the proxy and at nodes, post numbered messages to three queues; one queue is read at the proxy, one by two
apps at the nodes, one only at the end. A probe at the proxy posts to each of its queues every 50 ms. `begin` marks the
start of a fault; the probe's posts until the next one belong to it. A node that is not ready must say why: `reasons` counts
the answers of /readyz by fault. Used by `failover.py` and `upgrade.py`; faults are in `cluster_faults.py`, the checks in
`load_evaluation.py`. The clients are processes of `restart_clients.py`, the probe is `probe.py`.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from kit.profiles import FAST_APP

from bmqtwist.cli.cluster.processes import free_ports
from bmqtwist.config.sample import ELECTORS
from bmqtwist.testing import BrokerProcess, ClusterProcess
from soak.client_processes import ClientProcesses
from soak.cutting import CuttingRelays

LIVE, FAN, LATE = "bmq://p/live", "bmq://f/fan", "bmq://p/late"
APPS = ("foo", "bar")
PROBES = tuple(f"bmq://probe/{number}" for number in range(4))
PRODUCERS = {"at the proxy": "producer0", "at a node": "producer1"}
CONSUMERS = ("live", "fan", "late")
DOMAINS: dict[str, dict[str, Any]] = {"p": {}, "f": {"mode": "fanout", "app_ids": list(APPS)}, "probe": {}}
AVAILABLE_SECONDS_MAX = 120.0  # probes of a disk that failed twice within two minutes are up to 60 s apart
FINISH_SECONDS_MAX = 240.0
JOURNAL_BYTES = 64 << 20  # the messages of PROBES and of the consumer `late` are not confirmed before the end
TTL_S = 24 * 3600  # nor do they expire before it
SPARE_PORTS = 2  # for added nodes, and for new endpoints; clients know all ports
NO_ANSWER = "no answer"  # the process starts or stops, or is not scheduled
_REASON = re.compile(r"\((?:this node )?([^:;)[]+)")  # in "partitions not available: c3 (RECOVERING: waits for ...)"


@dataclass(slots=True)
class Span:
    """A fault. `at`: its start on the monotonic clock; `role`: that of the faulty node, empty for the whole cluster."""

    kind: str
    at: float
    role: str = ""


class LoadedCluster:
    """A cluster, its client processes, and the faults that have begun."""

    def __init__(self, root: Path, nodes: int, durability: str, seed: int, relays: CuttingRelays | None) -> None:
        self.root, self.random, self.relays = root, Random(seed), relays
        self.app = {**FAST_APP, "bmqtwist": {"durability": durability}}
        self.definition = {"elector": ELECTORS["fast"], "partition": {"maxJournalFileSize": JOURNAL_BYTES}}
        self.cluster = ClusterProcess(root, nodes, proxies=1, app=self.app, cluster=self.definition)
        for name in (*self.cluster.names, *self.cluster.proxies):
            self.add_domains(self.cluster[name])
        self.spare_ports = free_ports(SPARE_PORTS)
        self.urls = [*self.cluster.urls, *(f"tcp://127.0.0.1:{port}" for port in self.spare_ports)]
        self.size = nodes
        self.former: dict[str, BrokerProcess] = {}  # removed nodes
        self.earlier_command: list[str] | None = None  # of an earlier release of the broker
        self.losses: Counter[str] = Counter()  # of files, by kind
        self.proxy_restarts = 0
        if relays is not None:
            relays.insert(self.cluster)
        self.clients = ClientProcesses(root, FINISH_SECONDS_MAX)
        self.spans: list[Span] = []
        self.reasons: dict[str, Counter[str]] = {}  # of nodes that were not ready, by kind of fault
        self.silent: list[str] = []  # nodes that were not ready without a reason
        self.slowest_recovery_s = 0.0
        self.late_stored = 0  # messages in the queue that is read at the end
        self.started = time.monotonic()

    @staticmethod
    def add_domains(broker: BrokerProcess) -> None:
        """Write the files of the domains."""
        for domain, options in DOMAINS.items():
            broker.domain(domain, consistency="strong", ttl=TTL_S, **options)

    # -- clients ----------------------------------------------------------------------------------------------------

    def worker(self, name: str, role: str, broker: str, queues: list[str]) -> None:
        """Start a producer or a consumer."""
        self.clients.start(name, "soak.restart_clients", front="aio", role=role, broker=broker, name=name, queues=queues,
                    seed=self.random.randrange(1 << 30), pause=0.05)

    def stored(self, uri: str) -> int:
        """Return the number of messages in a queue from the leader; -1 if it gives no answer."""
        domain = uri.removeprefix("bmq://").partition("/")[0]
        try:
            answer = json.loads(self.cluster[self.cluster.leader].admin(
                f"ENCODING JSON_COMPACT DOMAINS DOMAIN {domain} INFOS"))
        except (OSError, ValueError, AssertionError, KeyError):
            return -1
        return sum(each["numMessages"] for each in answer["domainInfo"]["storageContent"]["storages"]
                   if each["queueUri"] == uri)

    # -- readiness ----------------------------------------------------------------------------------------------------

    def reason(self, name: str) -> str:
        """Return why a node or proxy is not ready, as /readyz says it; empty if it is ready."""
        try:
            with urllib.request.urlopen(f"{self.cluster.consoles[name]}/readyz", timeout=2):
                return ""
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace").strip()
            if not reason:
                self.silent.append(f"{name}: {error.code} without a reason")
            found = _REASON.search(reason)
            kind = self.spans[-1].kind if self.spans else "start"
            self.reasons.setdefault(kind, Counter())[found[1].strip() if found else reason.partition(":")[0]] += 1
            return reason or NO_ANSWER
        except OSError:
            return NO_ANSWER

    def until(self, done: Callable[[], object], what: str, seconds: float = AVAILABLE_SECONDS_MAX) -> None:
        """Wait for a condition; raises RuntimeError after `seconds`, or if a client fails."""
        self.clients.until(done, what, seconds, lambda: {name: self.reason(name) for name in self.cluster.names})

    def wait_available(self) -> None:
        """Wait until every node is ready."""
        began = time.monotonic()
        self.until(lambda: not any([self.reason(name) for name in self.cluster.names]) and bool(self.cluster.leader),
                   "all nodes to be ready")
        self.slowest_recovery_s = max(self.slowest_recovery_s, time.monotonic() - began)

    def stop(self, name: str) -> None:
        """Stop a broker gracefully."""
        if self.cluster[name].stop():
            raise RuntimeError(f"{name} did not stop with exit code 0")

    def sleep(self, least: float, most: float) -> None:
        """Wait for a random time."""
        time.sleep(self.random.uniform(least, most))

    def begin(self, kind: str, name: str = "") -> None:
        """Mark the start of a fault. `name`: the faulty node, empty for the whole cluster."""
        role = "" if not name else "the primary" if name == self.cluster.leader else "a replica"
        self.spans.append(Span(kind, time.monotonic(), role))

    # -- the test ---------------------------------------------------------------------------------------------------

    def run(self, act: Callable[[], None]) -> None:
        """Start the cluster and the clients, perform `act`, and end the clients; afterwards all nodes are ready."""
        self.cluster.start()
        self.wait_available()
        proxy, anywhere = self.cluster["p1"].url, ",".join(self.urls)
        self.worker("producer0", "produce", proxy, [LIVE, FAN, LATE])
        self.worker("producer1", "produce", anywhere, [LIVE, FAN, LATE])
        self.worker("live", "consume", proxy, [LIVE])
        self.worker("fan", "consume", anywhere, [f"{FAN}?id={app}" for app in APPS])
        self.clients.start("probe", "soak.probe", broker=proxy, queues=PROBES)
        self.until(lambda: self.clients.is_open(*PRODUCERS.values(), "live", "fan"),
                   "clients to open their queues")
        self.until(lambda: all(self.stored(uri) > 0 for uri in (FAN, LATE)), "the first messages")
        act()
        self.clients.finish("probe", *PRODUCERS.values())
        self.until(lambda: self.stored(LIVE) == 0 == self.stored(FAN), "the consumers", FINISH_SECONDS_MAX)
        self.clients.finish("live", "fan")
        self.late_stored = self.stored(LATE)
        self.worker("late", "consume", proxy, [LATE])
        self.until(lambda: self.stored(LATE) == 0, "the late consumer", FINISH_SECONDS_MAX)
        self.clients.finish("late")
        self.wait_available()

    def close(self) -> None:
        """Kill the clients and end the cluster."""
        self.clients.close()
        for broker in self.former.values():
            broker.close()
        self.cluster.close()
