"""Dispatch of the traffic between members of a cluster: each event of another member goes to the part that it is for.

    EVENTS             by event type: records and receipts of partitions, messages and acknowledgements, elections
    CLUSTER_MESSAGES   by kind of a control message of the cluster: metadata log, proposals, partitions, node status

What a member asks for its own clients (PUT, CONFIRM, REJECT) goes to `link/peer.py` before it would come here. The way
of a PUT through three nodes is in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable

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
                 links: ClusterLinks, host: Loop) -> None:
        self.leadership, self.replication, self.proposals, self.relays = leadership, replication, proposals, relays
        self.metadata: ClusterMetadata = leadership.metadata
        self.statuses: NodeStatuses = relays.statuses
        self._links, self._host = links, host
        self._lines = LineLimiter()

    def peer_up(self, node_id: int, now: float) -> None:
        """A member is connected."""
        self.leadership.peer_up(node_id, now)
        self.replication.peer_up(node_id, now)

    def peer_down(self, node_id: int, now: float) -> None:
        """A member is connected no longer."""
        self.leadership.peer_down(node_id, now)
        self.replication.peer_down(node_id, now)

    def peer_said(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """One event of a member."""
        try:
            EVENTS.get(kind, _on_other)(self, peer, kind, specific, body)
        except PeerError as error:
            if self._lines.admits(peer.session.now):
                self._host.report.error(f"#CORRUPTED_EVENT {self.leadership.title}: node "
                                        f"{self._links.name(peer.node_id)}: {error}")

    def wall(self, peer: PeerSession) -> int:
        """Seconds since the epoch, of this turn."""
        return self._host.wall(peer.session.now)

    def turn_due(self) -> None:
        """What an event has changed takes effect in a turn."""
        self._host.performer.turn_due()


# -- events ---------------------------------------------------------------------------------------------------------


def _on_elector(to: MemberDispatch, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
    to.leadership.received(peer.node_id, decode_elector(body), peer.session.now)


def _on_partition(to: MemberDispatch, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
    partition_id, message = partition_event_of(peer.node_id, kind, body)
    to.replication.received(peer.node_id, partition_id, message, peer.session.now)


def _on_push(to: MemberDispatch, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
    to.relays.relays.incoming.pushes(peer, body, peer.session.now)


def _on_ack(to: MemberDispatch, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
    to.relays.acks(peer, specific, body, peer.session.now)


def _on_control(to: MemberDispatch, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
    message = decode_control(body, encoding_of(specific))
    if message.choice == "clusterMessage":
        about: ClusterMessage = message.value
        kind_of_message = about.value.choice if about.choice == "metadataLogMessage" else about.choice
        handler = CLUSTER_MESSAGES.get(kind_of_message)
        if handler is not None:
            handler(to, peer, message, about)
    else:
        to.relays.control(peer, message)


def _on_other(to: MemberDispatch, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
    raise PeerError(f"{kind.name} event dropped")


EVENTS: dict[EventType, Callable[[MemberDispatch, PeerSession, EventType, int, bytes], None]] = {
    EventType.STORAGE: _on_partition,
    EventType.REPLICATION_RECEIPT: _on_partition,
    EventType.PUSH: _on_push,
    EventType.ACK: _on_ack,
    EventType.CONTROL: _on_control,
    EventType.ELECTOR: _on_elector,
}


# -- control messages of the cluster ------------------------------------------------------------------------------------


def _on_log(to: MemberDispatch, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
    found = log_message_of(peer.node_id, about)
    if found is not None:
        to.metadata.step(found, to.wall(peer))


def _on_proposal(to: MemberDispatch, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
    to.proposals.received(peer.node_id, about.value.value, to.wall(peer))
    to.turn_due()


def _on_partition_message(to: MemberDispatch, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
    found = partition_message_of(peer.node_id, about)
    if found is not None:
        to.replication.received(peer.node_id, *found, peer.session.now)


def _on_primary_status(to: MemberDispatch, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
    to.replication.advised(peer.node_id, about)


def _on_node_status(to: MemberDispatch, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
    to.statuses.announced(peer.node_id, about.value.status)
    to.turn_due()


def _on_stop_request(to: MemberDispatch, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
    to.statuses.asked_to_stop(peer, message)
    to.turn_due()


def _on_stop_response(to: MemberDispatch, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
    to.statuses.stop_awaited.discard(peer.node_id)
    to.turn_due()


def _on_confirm_receipt(to: MemberDispatch, peer: PeerSession, message: ControlMessage, about: ClusterMessage) -> None:
    to.relays.relays.receipt(peer, about.value.count)


CLUSTER_MESSAGES: dict[str, Callable[[MemberDispatch, PeerSession, ControlMessage, ClusterMessage], None]] = {
    "entries": _on_log, "snapshot": _on_log, "acknowledgement": _on_log, "catchUp": _on_log,
    "request": _on_proposal, "answer": _on_proposal,
    "partition": _on_partition_message,
    "primaryStatusAdvisory": _on_primary_status,
    "nodeStatusAdvisory": _on_node_status,
    "stopRequest": _on_stop_request, "stopResponse": _on_stop_response,
    "confirmReceipt": _on_confirm_receipt,
}
