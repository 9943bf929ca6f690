"""The session of another broker: whole events to and from whoever speaks for the cluster.

Which broker may connect, what its events say and what it is sent is for `PeerContext` to decide; here is the connection: its
heartbeats, its end, and the bound of what may wait for it. Two parts are given to it where they are needed: `downstream`,
when the broker uses queues here for clients of its own (`link/downstream.py`), and `upbound`, when it is the other way round
(`link/upbound.py`).
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from bmqtwist.config.broker import Heartbeats
from bmqtwist.limits import PEER_OUTPUT_BYTES_MAX
from bmqtwist.link.credentials import Presenter
from bmqtwist.link.downstream import DownstreamClient
from bmqtwist.link.extensions import RELAY_EXTENSION
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.link.requests import QueueRequestsContext, is_of_a_client
from bmqtwist.link.session import Session, SessionKind
from bmqtwist.link.states import IGNORED, Lifecycle, State, row
from bmqtwist.link.upbound import Upbound
from bmqtwist.machine import to
from bmqtwist.steps import Steps
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity

EVENT_TYPES = {int(each): each for each in EventType}
FRAMES = ("PUT", "CONFIRM", "PUSH", "ACK", "CLUSTER_STATE", "ELECTOR", "STORAGE", "RECOVERY", "PARTITION_SYNC",
          "REJECT", "REPLICATION_RECEIPT")  # event types that brokers send each other

class PeerRole(Enum):
    """What another broker is to us; the value is its member of `heartbeats`."""

    MEMBER = "cluster_peer"
    DOWNSTREAM = "downstream_broker"
    UPSTREAM = "upstream_broker"


class PeerContext(Protocol):
    """Whoever speaks with the other brokers of one cluster."""

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Decide on a broker that introduces itself; None = close without a word (the reason is logged)."""

    def connected(self, peer: PeerSession) -> None:
        """The negotiation with a broker has succeeded: `peer.send` works from now on."""

    def received(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """One event: its type, its type-specific byte, and what follows its header. What is wrong with it is told here."""

    def disconnected(self, peer: PeerSession) -> None:
        """The session of a broker is over."""

    def not_connected(self, session: Session) -> None:
        """A connection that we have made is over before the negotiation was."""

    def stop(self) -> None:
        """The broker goes away: nobody is dialled any more, and nobody is taken."""


class PeerSession(SessionKind):
    """Another broker; `dialled`: the connection was made from here. `node_id`: of its node, -1 of a proxy. `presenter`:
    shows it our credential again."""

    output_bytes_max = PEER_OUTPUT_BYTES_MAX  # one that is cut off catches up when it is back
    unread = "#PEER_SEND_FAILURE %s: the broker does not read"
    __slots__ = ("dialled", "role", "node_id", "downstream", "upbound", "_queues", "_peers", "_presenter")

    def __init__(self, session: Session, queues: QueueRequestsContext, peers: PeerContext, dialled: bool,
                 presenter: Presenter | None = None) -> None:
        super().__init__(session, LIFECYCLE, "#PEER_UNEXPECTED_EVENT")
        self._queues, self.dialled, self._peers, self._presenter = queues, dialled, peers, presenter
        self.role = PeerRole.MEMBER
        self.node_id = session.identity.cluster_node_id
        self.downstream: DownstreamClient | None = None
        self.upbound: Upbound | None = None
        session.sends_at_once = RELAY_EXTENSION in session.features

    def missed_heartbeats_max(self, limits: Heartbeats) -> int:
        """As configured for nodes of a cluster, for proxies of ours, for nodes that we are a proxy of."""
        return int(getattr(limits, self.role.value))

    @property
    def may_be_slowed(self) -> bool:
        """Never: what it sends may be what the cluster waits for."""
        return False

    @property
    def is_from_outside(self) -> bool:
        """Of a proxy: yes. What other nodes of the cluster send was counted by them."""
        return self.role is PeerRole.DOWNSTREAM

    def start(self) -> None:
        """The negotiation is over."""
        self._peers.connected(self)

    def serve(self, receipts: ConfirmReceipts | None = None) -> DownstreamClient:
        """It may use queues here, and is told `receipts` of its CONFIRMs."""
        self.downstream = client = DownstreamClient(self.session, self._queues, self.role is PeerRole.MEMBER)
        client.receipts = receipts
        self.handles = client.handles
        return client

    def ended(self, crashed: bool) -> None:
        """The session is over."""
        if self.downstream is not None:
            self.downstream.ended(crashed)
        self._peers.disconnected(self)

    def free(self) -> None:
        """The connection is gone."""
        if self.downstream is not None:
            self.downstream.free()

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self.downstream is not None:
            self.downstream.tick(now)
        presenter = self._presenter
        if presenter is not None and presenter.failure:
            self.session.close("#AUTHENTICATION %s: %s", self.session.description, presenter.failure)
        elif presenter is not None and now >= presenter.due:
            presenter.show(self.session)

    def on_authentication(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """A credential of it, or what it thinks of ours."""
        if self._presenter is None:
            super().on_authentication(event, buffer, specific, start, end)
            return
        session = self.session
        why = self._presenter.answered(buffer[start:end], specific, session.now)
        if why:
            session.close("#AUTHENTICATION %s: %s", session.description, why)

    def turn_over(self) -> None:
        """The output of a turn is taken."""
        if self.upbound is not None:
            self.upbound.seal()
        if self.downstream is not None:
            self.downstream.turn_over()

    def written(self, behind: int) -> bool:
        """The output of a turn is written."""
        return self.downstream is not None and self.downstream.written(behind)

    def resume(self) -> None:
        """The next turn: more may be delivered."""
        if self.downstream is not None:
            self.downstream.resume()

    def drained(self) -> None:
        """It has taken all its output."""
        if self.downstream is not None:
            self.downstream.drained()

    def on_frame(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> Steps[None] | None:
        """An event: of its clients, or for the cluster. What a member asks for is told apart by whoever reads the rest."""
        client = self.downstream
        if client is not None:
            if event == EventType.PUT:
                return client.on_puts(event, buffer, specific, start, end)
            if event == EventType.CONFIRM:
                return client.on_confirms(event, buffer, specific, start, end)
            if event == EventType.REJECT:
                client.on_rejects(event, buffer, specific, start, end)
                return None
            if event == EventType.CONTROL and self.role is not PeerRole.MEMBER:
                message = self.decode_control(buffer, specific, start, end)
                if message is None:
                    return None
                if is_of_a_client(message):
                    client.requests.handle(message)
                    return None
        self._peers.received(self, EVENT_TYPES[event], specific, buffer[start:end])
        return None

    def send(self, event: bytes, hurry: bool = True) -> None:
        """Queue a whole event; what is sent in one turn leaves in one write, and without `hurry` with what is sent next, or
        in a moment. Nothing is sent once the session is over."""
        session = self.session
        if session.state is State.SERVING:
            if self.upbound is not None:
                self.upbound.seal()
            session.outbox.event(event)
            if hurry:
                session.flush()
            else:
                session.flush_soon()


LIFECYCLE = Lifecycle({
    State.SERVING: row(
        to(PeerSession.on_unexpected), INVALID=to(PeerSession.on_invalid_packet),
        CONTROL=to(PeerSession.on_frame, State.LEAVING), **dict.fromkeys(FRAMES, to(PeerSession.on_frame, State.CLOSED)),
        HEARTBEAT_REQ=to(PeerSession.on_heartbeat), HEARTBEAT_RSP=IGNORED,
        AUTHENTICATION=to(PeerSession.on_authentication, State.CLOSED), OUTCOME=to(PeerSession.perform, State.CLOSED),
        ENDED=to(PeerSession.ended, State.CLOSED)),
    State.LEAVING: row(IGNORED, OUTCOME=to(PeerSession.perform, State.CLOSED),
                       ENDED=to(PeerSession.ended, State.CLOSED)),
})
