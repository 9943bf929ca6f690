"""Clients at any node of a cluster: what they post and consume, and what they see when primaries move."""

from __future__ import annotations

from typing import Any

import pytest
from kit.client import Client, payloads

from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import EVENTUAL, FANOUT, STRONG, ReplicatingCluster

BROADCAST = "bmq://bmq.test.mem.broadcast/b"
IN_MEMORY = "bmq://bmq.test.mem.priority/q"


class Members(ReplicatingCluster):
    """Three members that have settled."""

    def __init__(self, seed: int = 1, count: int = 3, **options: Any) -> None:
        super().__init__(seed, count, **options)
        self.settle()

    def replicas(self, index: int = 0) -> list[SimulatedNode]:
        """Nodes that are up and not primary."""
        primary = self.primary(index)
        return [node for node in self.machines if node.up and node is not primary]

    def relayed(self, node: SimulatedNode) -> dict[str, Any]:
        """The queues that a node relays."""
        relays = self.cluster(node.name).relays
        assert relays is not None
        return relays.queues


def quiet(*clients: Client) -> None:
    """Nothing has happened to their sessions."""
    for client in clients:
        assert not client.link.closed


@pytest.mark.spec("cluster", 93)
@pytest.mark.spec("cluster", 94)
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL, IN_MEMORY])
def test_messages_go_from_any_member_to_any_member(uri: str) -> None:
    nodes = Members()
    primary, (one, two) = nodes.primary(), nodes.replicas()
    for source, sink in ((one, two), (one, one), (primary, one), (two, primary)):
        writer, reader = nodes.client(source.name), nodes.client(sink.name)
        queue, consumer = writer.open(uri, write=1), reader.consume(uri)
        guids = [queue.post(b"message %d" % number) for number in range(10)]
        got = consumer.take(10)
        assert [each.guid for each in got] == guids and payloads(got) == [b"message %d" % number for number in range(10)]
        consumer.confirm(*got)
        nodes.run(1.0)
        writer.disconnect()
        reader.disconnect()
        nodes.run(1.0)
        assert not any(nodes.relayed(node) for node in nodes.machines)
        if uri is not IN_MEMORY:
            assert all(nodes.stored(node, uri) == [] for node in nodes.machines)
