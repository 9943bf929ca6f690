"""Helpers of tests that transfer the lead or move partitions of a simulated cluster.

Used by `test_assignment.py`, `test_moves.py`, `test_moves_many.py` and `test_queue_lifecycle.py`.
"""

from __future__ import annotations

from bmqtwist.broker.commands import BEGUN
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import ReplicatingCluster

LEAST = "E_LEAST_ASSIGNED"


def number(node: SimulatedNode) -> int:
    """Return the node id of a member."""
    return int(node.name[1:])


def transfer(nodes: ReplicatingCluster, node: SimulatedNode) -> None:
    """Transfer the lead to a node and wait until all running members follow it."""
    if nodes.leader is not node:
        assert nodes.admin(nodes.leader, f"CLUSTERS CLUSTER c3 STATE ELECTOR TRANSFER {node.name}") == BEGUN
        nodes.until(lambda: all(nodes.cluster(each.name).leadership.active_leader() == number(node)
                                for each in nodes.machines if each.up))


def move(nodes: ReplicatingCluster, index: int, node: SimulatedNode, at: SimulatedNode | None = None) -> str:
    """Request the move of a partition to `node` at the leader, or at the node `at`, and return the answer."""
    return nodes.admin(at or nodes.leader, f"CLUSTERS CLUSTER c3 STORAGE PARTITION {index} MOVE {node.name}")


def wait_for_primary(nodes: ReplicatingCluster, index: int, node: SimulatedNode) -> None:
    """Run until all running members know a node as active primary of a partition, at most 10 s."""
    def everywhere() -> bool:
        known = [nodes.replication(each).known_primaries.active.find(index) for each in nodes.machines if each.up]
        return all(each is not None and each.node_id == number(node) for each in known)
    nodes.until(everywhere, 10.0)
