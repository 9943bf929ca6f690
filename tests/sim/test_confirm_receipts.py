"""CONFIRMs at a relay: kept until a majority has them, and sent again after a failover or reconnect.

Tests `bmqtwist/link/receipts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bmqtwist.relay.relays import Relays
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import STRONG, ReplicatingCluster

DELAY_S = 0.5


def relays(node: SimulatedNode) -> Relays:
    """Return the relays of a member or proxy."""
    cluster = node.broker.clusters.get(CLUSTER)
    found = cluster.relays if cluster is not None else node.broker.proxies[CLUSTER].relays
    assert found is not None
    return found


def pending_confirms(node: SimulatedNode) -> int:
    """Return the number of CONFIRMs that a node has sent and still keeps."""
    sessions = (session.kind for session in node.broker.sessions.open)
    outputs = (getattr(kind, "upstream_batch", None) for kind in sessions)
    return sum(len(output.sent) for output in outputs if output is not None)


def stored_counts(nodes: ReplicatingCluster, among: Iterable[SimulatedNode]) -> set[int]:
    """Return the numbers of stored messages at running nodes."""
    return {len(nodes.stored(node)) for node in among if node.up}


def start(seed: int, place: str) -> tuple[ReplicatingCluster, SimulatedNode, SimulatedNode]:
    """Return a cluster with 5 messages, the node for consumers, and its upstream node."""
    nodes = ReplicatingCluster(seed, 3, proxies={"p1": ["n1", "n2", "n3"]})
    nodes.run_until_stable()
    nodes.post(5)
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[STRONG].partition_id)
    if place == "member":
        return nodes, next(node for node in nodes.machines if node is not primary), primary
    proxy = nodes.proxies[0]
    nodes.client(proxy.name).open(STRONG, read=1)
    return nodes, proxy, nodes.node(f"n{proxy.broker.proxies[CLUSTER].selector.active}")


@pytest.mark.parametrize("place", ["member", "proxy"])
@pytest.mark.parametrize("seed", range(3))
def test_confirms_in_flight_to_a_crashed_upstream_prevent_redelivery(place: str, seed: int) -> None:
    nodes, node, upstream = start(seed, place)
    reader = nodes.client(node.name).consume(STRONG)
    got = reader.take(5)
    nodes.network.slow(node.name, upstream.name, DELAY_S)
    reader.confirm(*got)
    nodes.run(0.1)
    upstream.crash(power=False, down=None)
    nodes.run_until_stable()
    assert not reader.pushes(), "they were confirmed"
    assert stored_counts(nodes, nodes.machines) == {0}
    other = next(each for each in nodes.machines if each.up and each is not node)
    assert not nodes.client(other.name).consume(STRONG).pushes()


@pytest.mark.parametrize("place", ["member", "proxy"])
def test_a_relay_keeps_confirms_until_a_majority_has_them(place: str) -> None:
    nodes, node, upstream = start(1, place)
    reader = nodes.client(node.name).consume(STRONG)
    got = reader.take(5)
    others = [each for each in nodes.machines if each is not upstream]
    for each in others:
        nodes.network.slow(each.name, upstream.name, DELAY_S)
    for message in got[:3]:
        reader.confirm(message)
        nodes.run(0.01)
    assert pending_confirms(node) == 3 or place == "proxy", "no receipt for them was received"
    reader.confirm(*got[3:])
    nodes.run(4.0)
    assert pending_confirms(node) == 0 and stored_counts(nodes, nodes.machines) == {0}


def test_a_relay_sends_pending_confirms_again_after_a_reconnect() -> None:
    nodes, node, upstream = start(2, "member")
    reader = nodes.client(node.name).consume(STRONG)
    got = reader.take(5)
    nodes.network.cut(node.name, upstream.name)
    reader.confirm(*got)
    nodes.run(8.0)  # both ends detect the silence
    nodes.network.heal(node.name, upstream.name)
    nodes.run_until_stable()
    assert stored_counts(nodes, nodes.machines) == {0} and not reader.pushes() and pending_confirms(node) == 0
