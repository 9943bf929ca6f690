"""Moves of a domain between two clusters through a proxy: n1 is the cluster `old`, n2 the cluster `new`, p1 a proxy of both.

Tests `bmqtwist/relay/moves.py` and `bmqtwist/relay/drain.py` with the brokers of a node; real processes are in
`tests/integration/test_domain_moves.py`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import PurePosixPath
from random import Random
from typing import Any

from kit.client import Client, Queue, payloads

from bmqtwist.config.broker import Configuration
from bmqtwist.relay.drain import QUIET_S
from bmqtwist.testing.config import (
    DomainTable,
    broker_config,
    clusters_config,
    configuration,
    domain_config,
    member_configuration,
    node_config,
)
from bmqtwist.testing.network import Network
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.testing.simulation import Simulation
from sim.cluster import PARTITION, PORT, SimulatedCluster
from sim.test_operators import run_command

OLD, NEW = "old", "new"
MODES = {"d": "priority", "f": "fanout", "b": "broadcast"}
URI, FANOUT, BROADCAST = "bmq://d/q", "bmq://f/q", "bmq://b/q"


def proxy_of_both() -> Configuration:
    """Return the configuration of a proxy of both clusters."""
    made = clusters_config(PurePosixPath("/memory"), PORT)["myClusters"][0]
    proxied = [{"name": name, "queueOperations": made["queueOperations"], "nodes": [node_config(number, f"n{number}", f"n{number}:{PORT}")]}
               for number, name in enumerate((OLD, NEW), 1)]
    clusters = {"myClusters": [], "myVirtualClusters": [], "proxyClusters": proxied}
    return configuration(broker_config(PurePosixPath("/memory/p1/storage"), PORT, hostName="p1"), clusters)


class TwoClusters(SimulatedCluster):
    """Two single-node clusters and a proxy of both, each with its own domain files."""

    def __init__(self, seed: int = 1, **parameters: Any) -> None:
        Simulation.__init__(self, Random(f"{seed}/moves"))
        self.network, self.clients, self.proxies = Network(self), 0, []
        self.tables: dict[str, DomainTable] = {}
        self._parameters = parameters
        for name, configure in (("n1", self._member(1, OLD)), ("n2", self._member(2, NEW)), ("p1", proxy_of_both)):
            self.tables[name] = table = DomainTable()
            for domain in MODES:
                self.locate(name, domain, NEW if name == "n2" else OLD)
            SimulatedNode(self.network, name, f"{name}:{PORT}", configure, lambda configuration, table=table: table).boot()

    def _member(self, number: int, name: str) -> Any:
        return partial(member_configuration, number, 1, PORT, alone=True, cluster={"name": name, "partition": PARTITION})

    def locate(self, node: str, domain: str, cluster: str) -> None:
        """Write the location of a domain at one node."""
        mode = MODES[domain]
        self.tables[node].texts[domain] = json.dumps(domain_config(
            domain, mode, cluster=cluster, in_memory=mode == "broadcast", **self._parameters))

    def move(self, cluster: str, domain: str = "d") -> str:
        """Move a domain at the proxy; return the answer."""
        self.locate("p1", domain, cluster)
        return run_command(self.node("p1"), f"DOMAINS RECONFIGURE {domain}")

    def stored(self, node: str, uri: str = URI) -> int:
        """Return the number of messages of a queue that are stored at a node."""
        queues = self.node(node).broker.clusters[OLD if node == "n1" else NEW].queues
        return len(queues[uri].messages) if uri in queues else 0

    def is_moved(self) -> bool:
        """Return whether no domain is drained any more."""
        return not any(proxy.relays.leaving or proxy.moves.departures for proxy in self.node("p1").broker.proxies.values())

    def until_moved(self) -> None:
        """Run until no domain is drained any more, and check that nothing is left behind at the proxy."""
        self.until(self.is_moved)
        self.run(1.0)
        for proxy in self.node("p1").broker.proxies.values():
            assert set(proxy.relays._by_id.values()) == set(proxy.relays.opened.values())
            assert not proxy.relays.requests._pending
            for opened in proxy.relays.opened.values():
                assert opened.sources == [opened] and opened.drain is None and opened.relay is not None
                assert opened.relay.domain.cluster == proxy.name and opened.relay.uplink is proxy.relays.uplink
                for stream in opened.streams.values():
                    assert stream.counts == opened.counts(stream.app_id) and not stream.is_changing
            pending = [put.message.size + len(put.message.options)
                       for queue in proxy.queues.values() for put in queue.pending.values()]
            assert proxy.relays.uplink._bytes == sum(pending)


def take_and_confirm(reader: Queue, count: int) -> list[bytes]:
    """Receive and confirm messages; return their payloads."""
    got = reader.take(count)
    reader.confirm(*got)
    return payloads(got)


def test_a_queue_moves_with_its_producer_and_consumer() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(URI, write=1), world.client("p1").consume(URI)
    queue.post(b"1")
    assert take_and_confirm(reader, 1) == [b"1"]
    assert "SUCCESS" in world.move(NEW).upper()
    queue.post_all(b"2", b"3")
    assert world.stored("n1") == 0 and world.stored("n2") == 2
    assert not reader.pushes(), "the consumer reads the old cluster until it is quiet"
    world.until_moved()
    assert take_and_confirm(reader, 2) == [b"2", b"3"]
    queue.post(b"4")
    assert take_and_confirm(reader, 1) == [b"4"]
    world.run(1.0)
    assert world.stored("n1") == world.stored("n2") == 0
