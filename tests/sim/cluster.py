"""Simulated cluster in one network, with clients of the wire protocol at any of its nodes.

A client is a `kit.client.Client`; while it waits for a response, the simulation runs. Base class of `elected.py` and used by
tests of links and virtual clusters. The same with real processes is `bmqtwist/testing/cluster_process.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from kit.client import Client

from bmqtwist.testing.cluster import PORT, make_nodes
from bmqtwist.testing.config import DomainTable, proxy_configuration, sample_domains
from bmqtwist.testing.network import LOOPBACK, ConnectionEnd, ConnectionHandler, Network
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.testing.simulation import Simulation

STEP_S = 0.001  # simulated time between two checks for received data
PARTITION = {"maxJournalFileSize": 1 << 20, "maxDataFileSize": 1 << 22, "maxQlistFileSize": 1 << 16,
             "maxCSLFileSize": 1 << 18}


class SimulatedLink(ConnectionHandler):
    """`kit.client.ClientLink` over a connection of the simulated network."""

    def __init__(self, simulation: Simulation, end: ConnectionEnd) -> None:
        self._simulation, self.end = simulation, end
        self.closed = False
        self._arrived = b""
        end.handler = self

    def on_data(self, data: bytes) -> None:
        """From the network: store received bytes."""
        self._arrived += data

    def on_end(self) -> None:
        """From the network: the connection is closed."""
        self.closed = True

    def send(self, data: bytes) -> None:
        """Send bytes to the node."""
        self.end.send(data)

    def receive(self, deadline: float) -> bytes:
        """Run the simulation until bytes are received, and return them; b"" if none within `deadline` seconds."""
        until = self._simulation.now + deadline
        while not self._arrived and not self.closed and self._simulation.now < until:
            self._simulation.play(min(until, self._simulation.now + STEP_S))
        data, self._arrived = self._arrived, b""
        return data

    def drop(self) -> None:
        """Cut the connection."""
        self.closed = True
        self.end.drop()


class SimulatedCluster(Simulation):
    """`count` running members n1, n2, ... with `options` of `SimulatedNode` by name.

    `alone`: each member is its own cluster. `proxies`: name of each proxy -> names of its upstream nodes.
    """

    def __init__(self, seed: int, count: int, options: dict[str, dict[str, Any]] | None = None,
                 alone: bool = False, proxies: dict[str, list[str]] | None = None,
                 texts: dict[str, str] | None = None, **configured: Any) -> None:
        super().__init__(Random(f"{seed}/cluster"))
        self.network = Network(self)
        self.proxies: list[SimulatedNode] = []
        configured.setdefault("cluster", {"partition": PARTITION})
        self.domains = domains = DomainTable()
        domains.texts.update(sample_domains())
        domains.texts.update(texts or {})
        self.configured = {key: value for key, value in configured.items() if not key.startswith("proxy_")}  # of members
        for node in make_nodes(self.network, count, options or {}, alone, domains, **self.configured):
            self.on_node_created(node)
            node.boot()
        for name, upstream in (proxies or {}).items():
            numbers = {each: number for number, each in enumerate(upstream, 1)}
            node = SimulatedNode(self.network, name, f"{name}:{PORT}", partial(
                proxy_configuration, name, PORT, numbers, app=configured.get("proxy_app"),
                cluster=configured.get("proxy_cluster"), virtual=configured.get("proxy_virtual", ())),
                lambda configuration: domains, **(options or {}).get(name, {}))
            self.proxies.append(node)
            self.on_node_created(node)
            node.boot()
        self.clients = 0

    def on_node_created(self, node: SimulatedNode) -> None:
        """Called for each node before its first boot."""

    def node(self, name: str) -> SimulatedNode:
        """Return a node by its name."""
        return next(node for node in self.nodes if node.name == name)

    def run(self, seconds: float) -> None:
        """Run the simulation for some seconds."""
        self.play(self.now + seconds)

    def until(self, condition: Callable[[], object], seconds: float = 60.0, step: float = 0.02) -> None:
        """Run the simulation until a condition, checked every `step` seconds, holds; AssertionError after `seconds`."""
        end = self.now + seconds
        while not condition():
            assert self.now < end, f"the condition does not hold within {seconds:g} s"
            self.run(step)

    def client(self, name: str, place: str = LOOPBACK) -> Client:
        """Return a client with a negotiated session at a node."""
        end = self.network.connect(self.node(name).address, place)
        assert end is not None, f"{name} does not listen"
        self.clients += 1
        client = Client(SimulatedLink(self, end), f"client{self.clients}")
        assert client.negotiate()["result"]["category"] == "E_SUCCESS"
        return client
