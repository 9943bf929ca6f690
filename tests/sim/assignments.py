"""Primaries and leaders of a simulated cluster: found, counted, transferred."""

from __future__ import annotations

from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import ReplicatingCluster

LEAST = "E_LEAST_ASSIGNED"


def number(node: SimulatedNode) -> int:
    return int(node.name[1:])


def transfer(nodes: ReplicatingCluster, node: SimulatedNode) -> None:
    """A node leads the cluster from now on."""
    if nodes.leader is not node:
        assert nodes.admin(nodes.leader, f"CLUSTERS CLUSTER c3 STATE ELECTOR TRANSFER {node.name}") == "SUCCESS"
        nodes.until(lambda: all(nodes.cluster(each.name).leadership.active_leader() == number(node)
                                for each in nodes.machines if each.up))


def move(nodes: ReplicatingCluster, index: int, node: SimulatedNode, at: SimulatedNode | None = None) -> str:
    """What the leader, or another node, answers."""
    return nodes.admin(at or nodes.leader, f"CLUSTERS CLUSTER c3 STORAGE PARTITION {index} MOVE {node.name}")


def moved(nodes: ReplicatingCluster, index: int, node: SimulatedNode) -> None:
    """Until a node is active primary of a partition for everybody."""
    def everywhere() -> bool:
        known = [nodes.replication(each).known_primaries.active.find(index) for each in nodes.machines if each.up]
        return all(each is not None and each.node_id == number(node) for each in known)
    nodes.until(everywhere, 10.0)
