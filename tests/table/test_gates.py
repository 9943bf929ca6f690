"""Gates between members (cluster/gates.py): message types between members, for all 25 pairs of statuses."""

from __future__ import annotations

import pytest

from bmqtwist.cluster.gates import GATES, Gates
from bmqtwist.wire.cluster_schema import NodeStatus

SERVING = (NodeStatus.E_AVAILABLE, NodeStatus.E_STOPPING)


def rule(own: NodeStatus, peer: NodeStatus) -> Gates:
    """Return the gates by the rule: both nodes serve; a stopping node receives no PUTs; PUSHes need two available nodes."""
    if own not in SERVING or peer not in SERVING:
        return Gates(put=False, push=False, ack=False, confirm=False)
    both = own is peer is NodeStatus.E_AVAILABLE
    return Gates(put=peer is NodeStatus.E_AVAILABLE, push=both, ack=True, confirm=True)


@pytest.mark.spec("cluster", 8)
@pytest.mark.parametrize("own", NodeStatus)
@pytest.mark.parametrize("peer", NodeStatus)
def test_gates_are_open_between_serving_nodes_except_for_new_work_of_a_stopping_node(
        own: NodeStatus, peer: NodeStatus) -> None:
    assert len(GATES) == 25 and GATES[own, peer] == rule(own, peer)
