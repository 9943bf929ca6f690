"""Reconfiguration of a domain at all nodes of a simulated cluster."""

from __future__ import annotations

from sim.replicated import ReplicatingCluster


def reconfigure(nodes: ReplicatingCluster, domain: str, text: str) -> None:
    """A domain has another file, and every node that is up reads it."""
    nodes.domains.texts[domain] = text
    for node in nodes.machines:
        if node.up:
            assert nodes.admin(node, f"DOMAINS RECONFIGURE {domain}") == "SUCCESS"
