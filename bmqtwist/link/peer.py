"""The session of another broker: whole events to and from whoever speaks for the cluster.

Which broker may connect, what its events say and what it is sent is for `PeerContext` to decide; here is the connection: its
heartbeats, its end, and the bound of what may wait for it.

A broker that uses queues here for clients of its own (`serve`) is a client: one handle may stand for many of its clients,
its counts are sums, and of each app it is one consumer. PUSH messages tell how many delivery attempts are left, and REJECT
events how many were used up. When it is the other way round, `upbound` collects what it is sent (`link/upbound.py`).
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Protocol

from bmqtwist.config.broker import Heartbeats
from bmqtwist.limits import PEER_OUTPUT_BYTES_MAX
from bmqtwist.link.client import ClientSession
from bmqtwist.link.credentials import Presenter
from bmqtwist.link.extensions import PLACES, RELAY_EXTENSION
from bmqtwist.link.outbox import ACKS_MAX
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.link.requests import QueueRequestsContext, is_of_a_client
from bmqtwist.link.session import Session, serving
from bmqtwist.link.states import State
from bmqtwist.link.upbound import Upbound
from bmqtwist.machine import to
from bmqtwist.queue.handles import drop_handle
from bmqtwist.queue.queue import Handle
from bmqtwist.steps import Steps
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition
from bmqtwist.wire.cluster_schema import ClusterMessage, ConfirmReceipt
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.fast import (
    ACK_MESSAGE,
    AHEAD,
    CONFIRM_MESSAGE,
    IMPLICIT_PAYLOAD,
    ITEM_BYTES,
    ITEMS_HEADER,
    ITEMS_HEADER_BYTES,
    OUT_OF_ORDER,
    RECEIPT,
    RETURNED,
    EventType,
    event_header,
)
from bmqtwist.wire.options import SubQueueInfo, rda_byte
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity

_UNLIMITED = rda_byte(SubQueueInfo(0))
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


class PeerSession(ClientSession):
    """Another broker; `dialled`: the connection was made from here. `node_id`: of its node, -1 of a proxy. `presenter`:
    shows it our credential again. `serves`: it uses queues here. `is_member`: it has the records of our partitions, and may
    be primary next; others are told where messages are stored if they want to know (PLACES). `receipts`: of its CONFIRMs;
    None = it wants none."""

    output_bytes_max = PEER_OUTPUT_BYTES_MAX  # one that is cut off catches up when it is back
    unread = "#PEER_SEND_FAILURE %s: the broker does not read"
    is_broker = True
    __slots__ = ("dialled", "role", "node_id", "serves", "upbound", "receipts", "confirm_count", "unsafe", "_peers",
                 "_presenter", "_ahead", "_newest")

    def __init__(self, session: Session, queues: QueueRequestsContext, peers: PeerContext, dialled: bool,
                 presenter: Presenter | None = None) -> None:
        super().__init__(session, queues, LIFECYCLE, "#PEER_UNEXPECTED_EVENT")
        self.dialled, self._peers, self._presenter = dialled, peers, presenter
        self.role = PeerRole.MEMBER
        self.node_id = session.remote.identity.cluster_node_id
        self.serves = False
        self.upbound: Upbound | None = None
        self.receipts: ConfirmReceipts | None = None
        self.confirm_count = 0
        self.unsafe: deque[tuple[int, list[tuple[Partition, int]]]] = deque()
        self.puts.makes_guids = True  # the first broker has made those that clients did not make
        self._ahead: dict[int, list[bytes]] = {}  # ACKs of this turn that count once their records are safe there
        self._newest: dict[int, Message] = {}  # the newest of these, by partition like them
        session.remote.sends_at_once = RELAY_EXTENSION in session.remote.features

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

    def serve(self, receipts: ConfirmReceipts | None = None) -> None:
        """It may use queues here, and is told `receipts` of its CONFIRMs."""
        self.serves, self.receipts = True, receipts
        self.is_member = self.puts.ignores_unknown = self.role is PeerRole.MEMBER  # one that does not know that we are
        # primary no longer keeps its PUTs
        self.outbox.tells_places = not self.is_member and PLACES in self.session.remote.features.get(RELAY_EXTENSION, ())

    def ended(self, crashed: bool) -> None:
        """The connection is over. That no consumer was lost with it costs no delivery attempt."""
        super().ended(crashed=False)
        if self.receipts is not None:
            self.receipts.forget(self)
            self.receipts = None
        self._peers.disconnected(self)

    def tick(self, now: float) -> None:
        super().tick(now)
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
        if self.upbound is not None:
            self.upbound.seal()
        super().turn_over()
        if self._ahead:
            self._seal_ahead()

    def on_frame(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> Steps[None] | None:
        """An event: of its clients, or for the cluster. What a member asks for is told apart by whoever reads the rest."""
        if self.serves:
            if event == EventType.PUT:
                return self.on_puts(event, buffer, specific, start, end)
            if event == EventType.CONFIRM:
                return self.on_confirms(event, buffer, specific, start, end)
            if event == EventType.REJECT:
                self.on_rejects(event, buffer, specific, start, end)
                return None
            if event == EventType.CONTROL and self.role is not PeerRole.MEMBER:
                message = self.decode_control(buffer, specific, start, end)
                if message is None:
                    return None
                if is_of_a_client(message):
                    self.requests.handle(message)
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

    # -- what queues call -------------------------------------------------------------------------------------------

    def stop_deliveries(self) -> None:
        """The broker goes away: it is given nothing more that has to be confirmed, and may still confirm what it has."""
        for handle in self.handles.values():
            if not handle.queue.broadcast:  # of those nobody keeps what is missed
                for substream in handle.substreams.values():
                    substream.subscriptions = []
                    substream.app.reroute()

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None:
        """Deliver a message to one subscription of a handle; who has its records is told its GUID alone."""
        if not self.is_member or message.live_key < 0:
            super().push(handle, sub_id, message, redelivered)
            return
        self.stats.push_msgs += 1
        self.stats.push_bytes += message.size
        self.push_to_broker(handle, sub_id, message, IMPLICIT_PAYLOAD | (OUT_OF_ORDER if redelivered else 0), 0, b"")
        self.window.count(message.size)
        self.session.flush()

    def ack_ahead(self, handle: Handle, message: Message, partition_id: int) -> None:
        """A PUT is acknowledged as soon as its record is safe at the member that has posted it; it is safe here."""
        guid = message.guid
        if self._unacked.get(guid) is handle:
            del self._unacked[guid]
        if handle.closing:
            return
        self.stats.ack_msgs += 1
        acks = self._ahead.get(partition_id)
        if acks is None:
            acks = self._ahead[partition_id] = []
        acks.append(ACK_MESSAGE.pack(0, guid, handle.q_id))
        self._newest[partition_id] = message
        if len(acks) >= ACKS_MAX:
            self._seal_ahead()
        self.session.flush()

    def _seal_ahead(self) -> None:
        for partition_id, acks in self._ahead.items():
            newest = self._newest[partition_id]
            size = RECEIPT.size + ITEMS_HEADER_BYTES + ITEM_BYTES * len(acks)
            self.outbox.event_parts([event_header(EventType.ACK, size, AHEAD),
                                     RECEIPT.pack(partition_id, newest.sequence, newest.lease), ITEMS_HEADER, *acks])
        self._ahead, self._newest = {}, {}

    def _take_confirms(self, buffer: bytes, position: int, end: int, step: int) -> None:
        super()._take_confirms(buffer, position, end, step)
        if self.receipts is not None and end - position >= step:
            self.receipts.taken(self, (end - position) // step)

    def confirms_are_safe(self, count: int) -> None:
        """So many that came on this connection are: the broker need not keep them any more."""
        self.session.send(ControlMessage(None, "clusterMessage", ClusterMessage("confirmReceipt", ConfirmReceipt(count))))

    def leave(self, handle: Handle) -> None:
        """A queue is not led here any more: a member opens it again where it is."""
        self.handles.pop(handle.q_id, None)
        self.requests.close_id(handle.q_id)
        drop_handle(handle, False, self.session.wall)

    def push_to_broker(self, handle: Handle, sub_id: int, message: Message, flags: int, schema_id: int,
                       payload: bytes) -> None:
        outbox = self.outbox
        if handle.queue.broadcast:
            outbox.push_unnamed(handle.q_id, message.guid, flags, message.compression, schema_id, payload)
            return
        attempts = _UNLIMITED
        if message.attempts is not None or handle.queue.domain.max_attempts:
            attempts = _attempts(handle, sub_id, message)
        if handle.merges:
            outbox.push_infos(handle.q_id, message, sub_id, attempts, flags, schema_id, payload)
        else:
            outbox.push_info(handle.q_id, message, sub_id, attempts, flags, schema_id, payload)

    def on_rejects(self, event: int, buffer: bytes, specific: int, position: int, end: int) -> None:
        """Walk the messages of a REJECT event: a consumer was lost with each, or nobody wants it there any more."""
        wall = self.session.wall
        position, step = self.confirm_layout("Reject", buffer, position, end)
        for q_id, guid, sub_id in CONFIRM_MESSAGE.iter_unpack(self.confirms("Reject", buffer, position, end, step)):
            handle = self.handles.get(q_id)
            substream = handle.substreams.get(sub_id) if handle is not None else None
            if substream is not None and not substream.handle.queue.broadcast:
                if specific == RETURNED:
                    substream.handle.queue.returned(substream, guid)
                else:
                    substream.handle.queue.rejected(substream, guid, wall)


def _attempts(handle: Handle, sub_id: int, message: Message) -> int:
    """How many attempts the app of a subscription has left, as the wire has it."""
    for substream in handle.substreams.values():
        if any(subscription.s_id == sub_id for subscription in substream.subscriptions):
            left = handle.queue.attempts_left(substream.app, message)
            used = message.attempts is not None and substream.app.ordinal in message.attempts
            return rda_byte(SubQueueInfo(0, left, used and left is not None))
    return _UNLIMITED


LIFECYCLE = serving(PeerSession, {"CONTROL": to(PeerSession.on_frame, State.LEAVING),
                                  **dict.fromkeys(FRAMES, to(PeerSession.on_frame, State.CLOSED))})
