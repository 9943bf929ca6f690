"""Stable cluster of members, for tests of clients at several members.

Used by `test_members.py`, `test_ahead.py` and `test_node_facts.py`; a cluster with leader changes is in `replicated.py`.
"""

from __future__ import annotations

from typing import Any

from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import ReplicatingCluster


class Members(ReplicatingCluster):
    """A cluster after SETTLE_S."""

    def __init__(self, seed: int = 1, count: int = 3, **options: Any) -> None:
        super().__init__(seed, count, **options)
        self.run_until_stable()

    def relayed_queues(self, node: SimulatedNode) -> dict[str, Any]:
        """Return the queues that a node relays, by URI."""
        relays = self.cluster(node.name).relays
        assert relays is not None
        return relays.queues
