"""Soak test of a queue with many consumers at five nodes and two levels of proxies: deliveries, and output of the primary.

    python -m tests.soak spread [--consumers 50,500] [--messages 1000] [--nodes 5]

Consumers are connected to every broker except the primary: to the other nodes, to two proxies of the cluster, and to a proxy
of each of these. Every consumer must receive every message of a broadcast queue; each of the ten apps must receive every
message of a fanout queue once. The bytes that the primary sends per posted byte must grow by at most 10 % with the number of
consumers. Called by `command.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.rawclient import READ, WRITE, RawClient, confirm_event, pushes
from bmqtwist.testing import BrokerProcess, ClusterProcess
from bmqtwist.wire.fast import EventType
from soak.cluster_load import AVAILABLE_SECONDS_MAX

BROADCAST, FANOUT = "bmq://b/all", "bmq://f/apps"
APPS = tuple(f"app{number}" for number in range(10))
PAYLOAD_BYTES = 1024
DEADLINE_S = 120.0
GROWTH_MAX = 1.1  # limit of the output of the primary with most consumers, relative to that with fewest
_SENT = re.compile(r"^brkr_system_net_remote_out_bytes\{[^}]*\} (\S+)", re.MULTILINE)


def proxy_of_a_proxy(root: Path, name: str, upstream: BrokerProcess) -> BrokerProcess:
    """Create a proxy whose upstream broker is another proxy."""
    proxy = BrokerProcess(root / name, app={"hostName": name})
    definition = proxy.config.clusters["myClusters"][0]
    definition["nodes"][0]["transport"]["tcp"]["endpoint"] = f"tcp://127.0.0.1:{upstream.port}"
    proxy.config.clusters.update(myClusters=[], myVirtualClusters=[], proxyClusters=[
        {key: definition[key] for key in ("name", "nodes", "queueOperations")}])
    proxy.config.write()
    return proxy


class Readers:
    """Consumers of one queue, each of one of its apps."""

    def __init__(self, uri: str, ports: list[int], count: int, apps: tuple[str, ...]) -> None:
        self._uri, self._selector = uri, selectors.DefaultSelector()
        self.clients: list[RawClient] = []
        self.got: list[Counter[bytes]] = []
        self.app: list[str] = []
        for number in range(count):
            client, app = RawClient(ports[number % len(ports)], f"reader{number}"), apps[number % len(apps)]
            client.open(uri, 0, READ, app, 1 if app else 0)
            client.consume(0, 1, app or "__default")
            self._selector.register(client, selectors.EVENT_READ, number)
            self.clients.append(client)
            self.got.append(Counter())
            self.app.append(app)

    def work(self, seconds: float) -> None:
        """Receive messages for up to `seconds` and confirm them."""
        for key, _ in self._selector.select(seconds):
            client = self.clients[key.data]
            for buffer, (kind, _, start, end) in client.events(0.0):
                if kind == EventType.PUSH:
                    guids = [guid for guid, _ in pushes(buffer, start, end)]
                    self.got[key.data].update(guids)
                    if self.app[key.data]:
                        client.send(confirm_event(0, guids, 1))

    def close(self) -> None:
        """Close all connections."""
        for client in self.clients:
            client.close()
        self._selector.close()


class Run:
    """A cluster with proxies, and its consumers."""

    def __init__(self, root: Path, nodes: int, stack: ExitStack) -> None:
        self.cluster = ClusterProcess(root, nodes, 2)
        stack.callback(self.cluster.close)
        second_level = [proxy_of_a_proxy(root, f"second_level{number}", self.cluster[name])
               for number, name in enumerate(self.cluster.proxies, 1)]
        for broker in (*(self.cluster[name] for name in (*self.cluster.names, *self.cluster.proxies)), *second_level):
            broker.domain("b", "broadcast")
            broker.domain("f", "fanout", app_ids=list(APPS), consistency="strong")
        self.primary = self.cluster.start()
        for broker in second_level:
            stack.callback(broker.close)
            broker.start()
        self.consumer_brokers = [self.cluster[name] for name in (*self.cluster.names, *self.cluster.proxies)
                                 if name != self.primary]
        self.consumer_brokers += second_level

    def sent_bytes(self) -> float:
        """Return the bytes that the primary has sent since its start."""
        with urllib.request.urlopen(f"{self.cluster.consoles[self.primary]}/metrics", timeout=10) as answer:
            return sum(map(float, _SENT.findall(answer.read().decode())))

    def measure(self, uri: str, consumers: int, messages: int, apps: tuple[str, ...]) -> dict[str, Any]:
        """Post `messages` messages for `consumers` consumers; return a row of the result."""
        readers = Readers(uri, [broker.port for broker in self.consumer_brokers], consumers, apps)
        producer = RawClient(self.consumer_brokers[-1].port, "producer")
        producer.open(uri, 0, WRITE)
        readers.work(1.0)
        before, start_time = self.sent_bytes(), time.monotonic()
        posted: list[bytes] = []
        for number in range(messages):
            event, guids = producer.put_event(0, [b"%08d" % number + bytes(PAYLOAD_BYTES - 8)])
            producer.send(event)
            posted += guids
            readers.work(0.0)
        expected, end = set(posted), time.monotonic() + DEADLINE_S
        while not self._complete(readers, expected, apps) and time.monotonic() < end:
            readers.work(0.2)
        seconds = time.monotonic() - start_time
        by_app = {app: sum((readers.got[at] for at in range(consumers) if readers.app[at] == app), Counter[bytes]())
                  for app in apps}
        missing = (sum(len(expected - got.keys()) for got in readers.got) if apps == ("",)
                   else sum(len(expected - got.keys()) for got in by_app.values()))
        twice = (sum(got.total() - len(got) for got in readers.got) if apps == ("",)
                 else sum(got.total() - len(got) for got in by_app.values()))
        row = {"queue": uri, "consumers": consumers, "messages": messages, "missing": missing, "twice": twice,
               "deliveries": sum(got.total() for got in readers.got), "seconds": round(seconds, 1),
               "bytes sent by the primary per byte posted":
                   round((self.sent_bytes() - before) / (messages * PAYLOAD_BYTES), 2)}
        readers.close()
        producer.close()
        return row

    def _complete(self, readers: Readers, expected: set[bytes], apps: tuple[str, ...]) -> bool:
        if apps == ("",):
            return all(len(got) == len(expected) for got in readers.got)
        return sum(got.total() for got in readers.got) >= len(expected) * len(apps)


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="tests.soak spread", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--consumers", default="50,500")
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--nodes", type=int, default=5)
    options = parser.parse_args(arguments)
    counts = sorted(map(int, options.consumers.split(",")))
    violations = 0
    with tempfile.TemporaryDirectory(prefix="bmq-spread-") as name, ExitStack() as stack:
        run = Run(Path(name), options.nodes, stack)
        for broker in run.cluster.names:
            run.cluster[broker].expect("Transitioning to AVAILABLE", deadline=AVAILABLE_SECONDS_MAX)
        for uri, apps in ((BROADCAST, ("",)), (FANOUT, APPS)):
            rows = [run.measure(uri, count, options.messages, apps) for count in counts]
            share = [row["bytes sent by the primary per byte posted"] for row in rows]
            for row in rows:
                violations += row["missing"] + row["twice"]
                print(json.dumps({"run": "spread", "nodes": options.nodes, **row}), flush=True)
            if share[-1] > share[0] * GROWTH_MAX:
                violations += 1
                print(f"the output of the primary grows with the consumers: {share}", file=sys.stderr)
    return 1 if violations else 0
