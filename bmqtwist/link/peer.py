"""The session of another broker: whole events to and from whoever speaks for the cluster.

Which broker may connect, what its events say and what it is sent is for `PeerContext` to decide; here is the connection: its
heartbeats, its end, and the bound of what may wait for it. Two parts are given to it where they are needed: `downstream`,
when the broker uses queues here for clients of its own (`link/downstream.py`), and `upbound`, when it is the other way round
(`link/upbound.py`).
"""

from __future__ import annotations

from enum import Enum

from bmqtwist.config.broker import Heartbeats
from bmqtwist.limits import PEER_OUTPUT_BYTES_MAX
from bmqtwist.link import requests
from bmqtwist.link.context import PeerContext
from bmqtwist.link.credentials import Presenter
from bmqtwist.link.downstream import DownstreamClient
from bmqtwist.link.extensions import RELAY_EXTENSION
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.link.session import Session, SessionKind, Work
from bmqtwist.link.states import State, row
from bmqtwist.link.upbound import Upbound
from bmqtwist.wire.fast import EventType

EVENT_TYPES = {int(each): each for each in EventType}
FRAMES = ("CONTROL", "PUT", "CONFIRM", "PUSH", "ACK", "CLUSTER_STATE", "ELECTOR", "STORAGE", "RECOVERY", "PARTITION_SYNC",
          "REJECT", "REPLICATION_RECEIPT")  # event types that brokers send each other

ANSWERS = {
    State.SERVING: row("on_unexpected", **dict.fromkeys(FRAMES, "on_frame"), HEARTBEAT_REQ="on_heartbeat",
                       HEARTBEAT_RSP="on_ignored", AUTHENTICATION="on_authentication"),
    State.LEAVING: row("on_ignored"),
}


class PeerRole(Enum):
    """What another broker is to us; the value is its member of `heartbeats`."""

    MEMBER = "cluster_peer"
    DOWNSTREAM = "downstream_broker"
    UPSTREAM = "upstream_broker"


class PeerSession(SessionKind):
    """Another broker; `dialled`: the connection was made from here. `node_id`: of its node, -1 of a proxy. `presenter`:
    shows it our credential again."""

    __slots__ = ("dialled", "role", "node_id", "downstream", "upbound", "_peers", "_presenter")

    def __init__(self, session: Session, peers: PeerContext, dialled: bool, presenter: Presenter | None = None) -> None:
        super().__init__(session, ANSWERS, "#PEER_UNEXPECTED_EVENT")
        self.dialled, self._peers, self._presenter = dialled, peers, presenter
        self.role = PeerRole.MEMBER
        self.node_id = session.identity.cluster_node_id
        self.downstream: DownstreamClient | None = None
        self.upbound: Upbound | None = None
        session.sends_at_once = RELAY_EXTENSION in session.features

    def missed_heartbeats_max(self, limits: Heartbeats) -> int:
        """As configured for nodes of a cluster, for proxies of ours, for nodes that we are a proxy of."""
        return int(getattr(limits, self.role.value))

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

    @property
    def is_from_outside(self) -> bool:
        """Of a proxy: yes. What other nodes of the cluster send was counted by them."""
        return self.role is PeerRole.DOWNSTREAM

    def start(self) -> None:
        """The negotiation is over."""
        self._peers.connected(self)

    def serve(self, receipts: ConfirmReceipts | None = None) -> DownstreamClient:
        """It may use queues here, and is told `receipts` of its CONFIRMs."""
        self.downstream = client = DownstreamClient(self.session, self.role is PeerRole.MEMBER)
        client.receipts = receipts
        self.handles = client.handles
        return client

    def ended(self, crashed: bool) -> None:
        """The session is over."""
        if self.downstream is not None:
            self.downstream.ended(crashed)
            self.handles = {}
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

    def on_authentication(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        """A credential of it, or what it thinks of ours."""
        if self._presenter is None:
            super().on_authentication(buffer, specific, start, end)
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

    def on_frame(self, kind: int, buffer: bytes, specific: int, start: int, end: int) -> Work | None:
        """An event: of its clients, or for the cluster. What a member asks for is told apart by whoever reads the rest."""
        client = self.downstream
        if client is not None:
            if kind == EventType.PUT:
                return client.on_puts(buffer, specific, start, end)
            if kind == EventType.CONFIRM:
                return client.on_confirms(buffer, specific, start, end)
            if kind == EventType.REJECT:
                client.on_rejects(buffer, specific, start, end)
                return None
            if kind == EventType.CONTROL and self.role is not PeerRole.MEMBER:
                message = self.decode_control(buffer, specific, start, end)
                if message is None:
                    return None
                if requests.is_of_a_client(message):
                    requests.handle(client, message)
                    return None
        self._peers.received(self, EVENT_TYPES[kind], specific, buffer[start:end])
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
