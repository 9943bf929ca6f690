"""Gates between two members: the message types that one may send to the other, by the statuses of both.

`member/node_status.py` looks them up in `GATES`. The durability gate of a partition is a different thing: `storage/gate.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmqtwist.wire.cluster_schema import NodeStatus


@dataclass(frozen=True, slots=True)
class Gates:
    """Message types that this node may send to another one."""

    put: bool
    push: bool
    ack: bool
    confirm: bool


CLOSED = Gates(False, False, False, False)
_OPEN = Gates(True, True, True, True)
_OWN_STOPPING = Gates(True, False, True, True)
_PEER_STOPPING = Gates(False, False, True, True)

GATES: dict[tuple[NodeStatus, NodeStatus], Gates] = {  # (own status, status of the other node)
    **{(own, peer): CLOSED for own in NodeStatus for peer in NodeStatus},
    (NodeStatus.E_AVAILABLE, NodeStatus.E_AVAILABLE): _OPEN,
    (NodeStatus.E_STOPPING, NodeStatus.E_AVAILABLE): _OWN_STOPPING,
    (NodeStatus.E_AVAILABLE, NodeStatus.E_STOPPING): _PEER_STOPPING,
    (NodeStatus.E_STOPPING, NodeStatus.E_STOPPING): _PEER_STOPPING,
}
