"""Reconfiguration of a domain at all nodes of a simulated cluster.

Used by `test_queue_lifecycle.py` and `test_failover_clients.py`.
"""

from __future__ import annotations

from sim.replicated import ReplicatingCluster


def reconfigure(nodes: ReplicatingCluster, domain: str, text: str) -> None:
    """Replace the configuration file of a domain and reconfigure it at all running members."""
    nodes.domains.texts[domain] = text
    for node in nodes.machines:
        if node.up:
            assert nodes.admin(node, f"DOMAINS RECONFIGURE {domain}") == "SUCCESS"
