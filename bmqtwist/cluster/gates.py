"""What one member may send another about queues: it depends on how both of them are."""

from __future__ import annotations

from dataclasses import dataclass

from bmqtwist.wire.cluster_schema import NodeStatus


@dataclass(frozen=True, slots=True)
class Gates:
    """Towards one node: True = open."""

    put: bool
    push: bool
    ack: bool
    confirm: bool


CLOSED = Gates(False, False, False, False)
_OPEN = Gates(True, True, True, True)
_OWN_STOPPING = Gates(True, False, True, True)
_PEER_STOPPING = Gates(False, False, True, True)

GATES: dict[tuple[NodeStatus, NodeStatus], Gates] = {  # (our status, that of the other node)
    **{(own, peer): CLOSED for own in NodeStatus for peer in NodeStatus},
    (NodeStatus.E_AVAILABLE, NodeStatus.E_AVAILABLE): _OPEN,
    (NodeStatus.E_STOPPING, NodeStatus.E_AVAILABLE): _OWN_STOPPING,
    (NodeStatus.E_AVAILABLE, NodeStatus.E_STOPPING): _PEER_STOPPING,
    (NodeStatus.E_STOPPING, NodeStatus.E_STOPPING): _PEER_STOPPING,
}
