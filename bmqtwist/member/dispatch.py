"""Dispatch of the traffic between members of a cluster: passes each event of another member to its handler.

`peers/links.py` calls it for each event and each change of a connection.

    EVENTS             by event type: records and receipts of partitions, messages and acknowledgements, elections
    CLUSTER_MESSAGES   by kind of a control message of the cluster: metadata log, proposals, partitions, node status

Messages are declared in `wire/cluster_schema.py`. `link/peer.py` handles the PUTs, CONFIRMs and REJECTs that a member
forwards for its clients. docs/architecture.md shows the way of a PUT through three nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Received
from bmqtwist.cluster.log_events import log_message_of
from bmqtwist.cluster.partition_events import partition_event_of, partition_message_of
from bmqtwist.errors import PeerError
from bmqtwist.link.peer import PeerSession
from bmqtwist.loop.loop import Loop
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.member_relays import MemberRelays
from bmqtwist.member.metadata import ClusterMetadata
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.member.proposals import Proposals
from bmqtwist.member.replication import Replication
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import LineLimiter
from bmqtwist.wire.cluster_schema import ClusterMessage
from bmqtwist.wire.control import ControlMessage, decode_control, decode_elector, encoding_of
from bmqtwist.wire.fast import EventType


class MemberDispatch:
    """`peers.links.LinkUser` of one cluster."""

    def __init__(self, leadership: Leadership, replication: Replication, proposals: Proposals, relays: MemberRelays,
                 links: ClusterLinks, loop: Loop) -> None:
        self.leadership, self.replication, self.proposals, self.relays = leadership, replication, proposals, relays
        self.metadata: ClusterMetadata = leadership.metadata
        self.statuses: NodeStatuses = relays.statuses
        self._links, self._loop = links, loop
        self._lines = LineLimiter()

    def on_peer_up(self, node_id: int, now: float) -> None:
        """Handle the connection of a member."""
        self.leadership.step(now, PeerUp(node_id))
        self.replication.on_peer_up(node_id, now)

    def on_peer_down(self, node_id: int, now: float) -> None:
        """Handle the loss of a connection."""
        self.leadership.step(now, PeerDown(node_id))
        self.replication.on_peer_down(node_id, now)

    def on_peer_event(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """Handle one event of a member; a malformed event is logged and dropped."""
        try:
            if kind not in EVENTS:
                raise PeerError(f"{kind.name} event dropped")
            EVENTS[kind](self, peer, kind, specific, body)
        except PeerError as error:
            if self._lines.admits(peer.session.now):
                self._loop.report.error(f"#CORRUPTED_EVENT {self.leadership.title}: node "
                                        f"{self._links.name(peer.node_id)}: {error}")

    def on_partition_event(self, peer: PeerSession, kind: EventType, body: bytes) -> None:
        """Handle records or a receipt of a partition; raises PeerError."""
        self.replication.on_message(peer.node_id, *partition_event_of(peer.node_id, kind, body), peer.session.now)

    def on_control_message(self, peer: PeerSession, specific: int, body: bytes) -> None:
        """Handle a control message of a member; raises PeerError."""
        message = decode_control(body, encoding_of(specific))
        if message.choice != "clusterMessage":
            self.relays.on_control_message(peer, message)
            return
        about: ClusterMessage = message.value
        kind = about.value.choice if about.choice == "metadataLogMessage" else about.choice
        if kind in CLUSTER_MESSAGES:
            CLUSTER_MESSAGES[kind](self, peer, message, about)
        if kind in _TURN_DUE:
            self._loop.performer.request_turn()

    def on_log_message(self, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
        """Handle a message of the metadata log."""
        found = log_message_of(peer.node_id, about)
        if found is not None:
            self.metadata.step(found, self._loop.wall(peer.session.now))

    def on_proposal(self, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
        """Handle a proposal of another node, or the leader's answer."""
        self.proposals.on_message(peer.node_id, about.value.value, self._loop.wall(peer.session.now))

    def on_partition_message(self, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
        """Handle a message about a partition."""
        found = partition_message_of(peer.node_id, about)
        if found is not None:
            self.replication.on_message(peer.node_id, *found, peer.session.now)


EVENTS: dict[EventType, Callable[[MemberDispatch, PeerSession, EventType, int, bytes], None]] = {
    EventType.STORAGE: lambda to, peer, kind, specific, body: to.on_partition_event(peer, kind, body),
    EventType.REPLICATION_RECEIPT: lambda to, peer, kind, specific, body: to.on_partition_event(peer, kind, body),
    EventType.PUSH: lambda to, peer, kind, specific, body: to.relays.relays.incoming.on_pushes(peer, body, peer.session.now),
    EventType.ACK: lambda to, peer, kind, specific, body: to.relays.on_acks(peer, specific, body, peer.session.now),
    EventType.CONTROL: lambda to, peer, kind, specific, body: to.on_control_message(peer, specific, body),
    EventType.ELECTOR: lambda to, peer, kind, specific, body: to.leadership.step(
        peer.session.now, Received(peer.node_id, decode_elector(body))),
}
_TURN_DUE = frozenset(("request", "answer", "nodeStatusAdvisory", "stopRequest", "stopResponse"))  # need a turn
CLUSTER_MESSAGES: dict[str, Callable[[MemberDispatch, PeerSession, ControlMessage, ClusterMessage], None]] = {
    **dict.fromkeys(("entries", "snapshot", "acknowledgement", "catchUp"), MemberDispatch.on_log_message),
    **dict.fromkeys(("request", "answer"), MemberDispatch.on_proposal),
    "partition": MemberDispatch.on_partition_message,
    "primaryStatusAdvisory": lambda to, peer, message, about: to.replication.on_primary_status(peer.node_id, about),
    "nodeStatusAdvisory": lambda to, peer, message, about: to.statuses.on_advisory(peer.node_id, about.value),
    "stopRequest": lambda to, peer, message, about: to.statuses.on_stop_request(peer, message),
    "stopResponse": lambda to, peer, message, about: to.statuses.stop_awaited.discard(peer.node_id),
    "quotaAdvisory": lambda to, peer, message, about: to.relays.relays.incoming.on_quota(peer, about.value),
    "confirmReceipt": lambda to, peer, message, about: to.relays.relays.on_receipt(peer, about.value.count),
}
