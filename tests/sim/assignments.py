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
        nodes.until(lambda: all(nodes.cluster(each.name).leadership.whom_to_ask() == number(node)
                                for each in nodes.machines if each.up))
