"""The session of another broker: whole events to and from whoever speaks for the cluster.

Which broker may connect, what its events say and what it is sent is for `PeerContext` to decide; here is the connection:
its heartbeats, its end, and the bound of what may wait for it.
"""

from __future__ import annotations

from bmqtwist.config.broker import Heartbeats
from bmqtwist.limits import PEER_OUTPUT_BYTES_MAX
from bmqtwist.link.context import PeerContext
from bmqtwist.link.session import Session, SessionKind
from bmqtwist.link.states import State, row
from bmqtwist.wire.fast import EventType

FRAMES = ("CONTROL", "PUT", "CONFIRM", "PUSH", "ACK", "CLUSTER_STATE", "ELECTOR", "STORAGE", "RECOVERY", "PARTITION_SYNC",
          "REJECT", "REPLICATION_RECEIPT")  # event types that brokers send each other

ANSWERS = {
    State.SERVING: row("on_unexpected", **dict.fromkeys(FRAMES, "on_frame"), HEARTBEAT_REQ="on_heartbeat",
                       HEARTBEAT_RSP="on_ignored", AUTHENTICATION="on_authentication"),
}


class PeerSession(SessionKind):
    """Another broker; `dialled`: the connection was made from here."""

    __slots__ = ("dialled", "_peers")

    def __init__(self, session: Session, peers: PeerContext, dialled: bool) -> None:
        super().__init__(session, ANSWERS, "#PEER_UNEXPECTED_EVENT")
        self.dialled, self._peers = dialled, peers

    def missed_heartbeats_max(self, limits: Heartbeats) -> int:
        """As configured for nodes of a cluster."""
        return limits.cluster_peer

    @property
    def output_bytes_max(self) -> int:
        """A peer that does not read for so long is cut off: it catches up when it is back."""
        return PEER_OUTPUT_BYTES_MAX

    @property
    def unread(self) -> str:
        """What is said when it is cut off for that; takes its description."""
        return "#PEER_SEND_FAILURE %s: the broker does not read"

    @property
    def may_be_slowed(self) -> bool:
        """Never: what it sends may be what the cluster waits for."""
        return False

    def start(self) -> None:
        """The negotiation is over."""
        self._peers.connected(self)

    def ended(self, crashed: bool) -> None:
        """The session is over."""
        self._peers.disconnected(self)

    def on_frame(self, kind: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """An event for the cluster."""
        self._peers.received(self, EventType(kind), specific, buffer[start:end])

    def send(self, event: bytes) -> None:
        """Queue a whole event; what is sent in one turn leaves in one write. Nothing is sent once the session is over."""
        if self.session.state is State.SERVING:
            self.session.send_event(event)
