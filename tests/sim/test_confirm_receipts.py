"""CONFIRMs on their way up are kept until the cluster has them, and go up again where the way goes on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bmqtwist.relay.relays import Relays
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import STRONG, ReplicatingCluster

ON_THE_WAY_S = 0.5


def relays(node: SimulatedNode) -> Relays:
    cluster = node.broker.clusters.get(CLUSTER)
    found = cluster.relays if cluster is not None else node.broker.proxies[CLUSTER].relays
    assert found is not None
    return found


def kept(node: SimulatedNode) -> int:
    """CONFIRMs that it has sent and does not know to be safe."""
    sessions = (session.kind for session in node.broker.sessions.open)
    return sum(len(kind.upstream_batch.sent) for kind in sessions if getattr(kind, "upstream_batch", None) is not None)  # type: ignore[attr-defined]


def left(nodes: ReplicatingCluster, among: Iterable[SimulatedNode]) -> set[int]:
    return {len(nodes.stored(node)) for node in among if node.up}


def start(seed: int, place: str) -> tuple[ReplicatingCluster, SimulatedNode, SimulatedNode]:
    """The cluster, whose consumers are to be where, and the broker above."""
    nodes = ReplicatingCluster(seed, 3, proxies={"p1": ["n1", "n2", "n3"]})
    nodes.settle()
    nodes.post(5)
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[STRONG].partition_id)
    if place == "member":
        return nodes, next(node for node in nodes.machines if node is not primary), primary
    proxy = nodes.proxies[0]
    nodes.client(proxy.name).open(STRONG, read=1)
    return nodes, proxy, nodes.node(f"n{proxy.broker.proxies[CLUSTER].selector.active}")


@pytest.mark.parametrize("place", ["member", "proxy"])
@pytest.mark.parametrize("seed", range(3))
def test_what_was_just_confirmed_does_not_come_again_when_the_way_up_is_lost(place: str, seed: int) -> None:
    nodes, node, above = start(seed, place)
    reader = nodes.client(node.name).consume(STRONG)
    got = reader.take(5)
    nodes.network.slow(node.name, above.name, ON_THE_WAY_S)
    reader.confirm(*got)
    nodes.run(0.1)
    above.crash(power=False, down=None)
    nodes.settle()
    assert not reader.pushes(), "it was confirmed"
    assert left(nodes, nodes.machines) == {0}
    other = next(each for each in nodes.machines if each.up and each is not node)
    assert not nodes.client(other.name).consume(STRONG).pushes()


@pytest.mark.parametrize("place", ["member", "proxy"])
def test_they_are_kept_until_the_cluster_has_them_and_no_longer(place: str) -> None:
    nodes, node, above = start(1, place)
    reader = nodes.client(node.name).consume(STRONG)
    got = reader.take(5)
    others = [each for each in nodes.machines if each is not above]
    for each in others:
        nodes.network.slow(each.name, above.name, ON_THE_WAY_S)
    for message in got[:3]:
        reader.confirm(message)
        nodes.run(0.01)
    assert kept(node) == 3 or place == "proxy", "no other node has said that it has them"
    reader.confirm(*got[3:])
    nodes.run(4.0)
    assert kept(node) == 0 and left(nodes, nodes.machines) == {0}


def test_a_connection_that_breaks_and_is_made_anew_brings_them_again() -> None:
    nodes, node, above = start(2, "member")
    reader = nodes.client(node.name).consume(STRONG)
    got = reader.take(5)
    nodes.network.cut(node.name, above.name)
    reader.confirm(*got)
    nodes.run(8.0)  # both notice that the other one is silent
    nodes.network.heal(node.name, above.name)
    nodes.settle()
    assert left(nodes, nodes.machines) == {0} and not reader.pushes() and kept(node) == 0
