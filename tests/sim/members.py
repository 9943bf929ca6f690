"""Three members of a cluster and a client that moves between them."""

from __future__ import annotations

from typing import Any

from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import ReplicatingCluster


class Members(ReplicatingCluster):
    """Three members that have settled."""

    def __init__(self, seed: int = 1, count: int = 3, **options: Any) -> None:
        super().__init__(seed, count, **options)
        self.settle()

    def relayed(self, node: SimulatedNode) -> dict[str, Any]:
        """The queues that a node relays."""
        relays = self.cluster(node.name).relays
        assert relays is not None
        return relays.queues
