"""Sessions of peers, that is, other brokers: nodes and proxies of a cluster.

The protocol `PeerContext` admits peers and processes their events: `peers/links.py` implements it for the nodes of a
cluster, `peers/downstreams.py` for proxies. The session declares the limits of missed heartbeats (`config/broker.py:
Heartbeats`) and of unsent output (`bmqtwist/limits.py`); `broker/periodic_jobs.py` and `broker/output.py` enforce them.

A downstream broker (`accept_requests`) is a client. One handle may represent many clients of the downstream broker: its
counts are their sums, and each app sees one consumer. PUSH messages contain the remaining delivery attempts. A REJECT
reports a used attempt or, with REJECT_RETURNED (`wire/fast.py`), a message without a consumer downstream. For an
upstream broker, `upstream_batch` collects the output of a turn (`link/upstream_batch.py`).

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Protocol

from bmqtwist.config.broker import Heartbeats
from bmqtwist.errors import PeerError
from bmqtwist.limits import PEER_OUTPUT_BYTES_MAX
from bmqtwist.link.client import ClientSession
from bmqtwist.link.credentials import CredentialSender
from bmqtwist.link.data_lane import DataLane
from bmqtwist.link.extensions import CONTROL_FIRST, PLACES, QUOTA_ADVISORIES, RELAY_EXTENSION
from bmqtwist.link.outbox import ACKS_MAX
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.link.requests import QueueRequestsContext, is_of_a_client
from bmqtwist.link.session import Session, negotiated_lifecycle, process_frames
from bmqtwist.link.states import ConnectionState
from bmqtwist.link.upstream_batch import UpstreamBatch
from bmqtwist.machine import to
from bmqtwist.queue.handles import drop_handle
from bmqtwist.queue.queue import Handle
from bmqtwist.steps import Steps
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition
from bmqtwist.wire.cluster_schema import ClusterMessage, ConfirmReceipt, QuotaAdvisory
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.fast import (
    ACK_EARLY,
    ACK_MESSAGE,
    CONFIRM_MESSAGE,
    IMPLICIT_PAYLOAD,
    ITEM_BYTES,
    ITEMS_HEADER,
    ITEMS_HEADER_BYTES,
    OUT_OF_ORDER,
    RECEIPT,
    REJECT_RETURNED,
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
    """Role of a peer for this broker; the value is its key in the configuration of heartbeats."""

    MEMBER = "cluster_peer"
    DOWNSTREAM = "downstream_broker"
    UPSTREAM = "upstream_broker"


class PeerContext(Protocol):
    """Connections of one cluster to its peers."""

    def admit(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Decide on the identity of a peer; None = close without a response (the reason is logged)."""

    def on_connected(self, peer: PeerSession) -> None:
        """Add a peer after its negotiation; `peer.send` works from now on."""

    def on_event(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        """Process an event: type, type-specific byte, and the bytes after its header. Log invalid events."""

    def on_disconnected(self, peer: PeerSession) -> None:
        """Remove a peer whose session has ended."""

    def on_negotiation_failed(self, session: Session) -> None:
        """Report the end of an outgoing connection before its negotiation was complete."""

    def stop(self) -> None:
        """Stop connecting and accepting connections: the broker stops."""


class PeerSession(ClientSession):
    """Kind of a peer's session. `dialled`: this broker dialled the peer; `node_id`: -1 for a proxy; `sender`: renews this
    broker's credential; `accepts_requests`: the peer is a downstream broker; `is_member`: it is a replica and may become
    primary (other peers receive PSNs in PUSHes if they support PLACES); `can_store`: a member can write its copies;
    `receipts`: send the confirm receipts of this peer, None = it has not requested receipts."""

    output_bytes_max = PEER_OUTPUT_BYTES_MAX  # above this the connection is closed; the peer catches up on a new connection
    unread_text = "#PEER_SEND_FAILURE %s: the broker does not read"
    is_broker = True
    __slots__ = ("dialled", "role", "node_id", "accepts_requests", "can_store", "upstream_batch", "receipts",
                 "confirm_count", "uncommitted", "data_received_at", "_peers", "_credential_sender", "_early_acks",
                 "_newest_acked", "_advises_quota")

    def __init__(self, session: Session, queues: QueueRequestsContext, peers: PeerContext, dialled: bool,
                 sender: CredentialSender | None = None) -> None:
        super().__init__(session, queues, LIFECYCLE, "#PEER_UNEXPECTED_EVENT")
        self.dialled, self._peers, self._credential_sender = dialled, peers, sender
        self.role = PeerRole.MEMBER
        self.node_id: int = session.remote.identity.cluster_node_id
        self.accepts_requests, self.can_store = False, True
        self.upstream_batch: UpstreamBatch | None = None
        self.receipts: ConfirmReceipts | None = None
        self.confirm_count = 0
        self.data_received_at = float("-inf")  # time of the last FRAGMENT event
        self.uncommitted: deque[tuple[int, list[tuple[Partition, int]]]] = deque()
        self.puts.makes_guids = True  # the first broker creates missing GUIDs
        self._early_acks: dict[int, list[bytes]] = {}  # early acknowledgements of this turn, by partition
        self._newest_acked: dict[int, Message] = {}  # newest message of the early acknowledgements, by partition
        self._advises_quota = QUOTA_ADVISORIES in session.remote.features.get(RELAY_EXTENSION, ())
        self.resumes_at_once = session.remote.sends_at_once = RELAY_EXTENSION in session.remote.features
        if CONTROL_FIRST in session.remote.features.get(RELAY_EXTENSION, ()):
            self.outbox.lane = DataLane(dialled)
            if session.outgoing is not None:
                session.outgoing.limit_unsent()

    def missed_heartbeats_max(self, limits: Heartbeats) -> int:
        """Return the limit that is configured for the role of the peer."""
        return int(getattr(limits, self.role.value))

    @property
    def may_pause_reading(self) -> bool:
        """False: a peer's events may concern the cluster."""
        return False

    @property
    def carries_client_traffic(self) -> bool:
        """True for proxies; members count the traffic of their own clients."""
        return self.role is PeerRole.DOWNSTREAM

    def start(self) -> None:
        """Report the peer to its cluster after the negotiation."""
        self._peers.on_connected(self)

    def accept_requests(self, receipts: ConfirmReceipts | None = None) -> None:
        """Accept queue requests of the peer; `receipts` sends the peer the receipts of the CONFIRMs that it sent."""
        self.accepts_requests, self.receipts = True, receipts
        self.is_member = self.puts.ignores_unknown = self.role is PeerRole.MEMBER  # a member retains PUTs without an answer
        self.outbox.sends_psns = not self.is_member and PLACES in self.session.remote.features.get(RELAY_EXTENSION, ())

    def on_ended(self, crashed: bool) -> None:
        """End the session; no delivery attempts are used, because the consumers are not lost."""
        super().on_ended(crashed=False)
        if self.receipts is not None:
            self.receipts.remove(self)
            self.receipts = None
        self._peers.on_disconnected(self)

    def tick(self, now: float) -> None:
        super().tick(now)
        sender = self._credential_sender
        if sender is not None and sender.failure:
            self.session.close("#AUTHENTICATION %s: %s", self.session.description, sender.failure)
        elif sender is not None and now >= sender.due:
            sender.send(self.session)

    def on_authentication(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> None:
        """Handle the peer's authentication request, or its response to this broker's."""
        if self._credential_sender is None:
            super().on_authentication(event, buffer, specific, start, end)
            return
        session = self.session
        why = self._credential_sender.on_response(buffer[start:end], specific, session.now)
        if why:
            session.close("#AUTHENTICATION %s: %s", session.description, why)

    def on_turn_end(self) -> None:
        if self.upstream_batch is not None:
            self.upstream_batch.seal()
        super().on_turn_end()
        if self._early_acks:
            self._seal_early_acks()

    def on_frame(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> Steps[None] | None:
        """Process a queue event of the peer's clients here, and pass any other event to the cluster, including all control
        messages of members."""
        if self.accepts_requests:
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
        self._peers.on_event(self, EVENT_TYPES[event], specific, buffer[start:end])
        return None

    def on_fragment(self, event: int, buffer: bytes, specific: int, start: int, end: int) -> Steps[None] | None:
        """Process the events that a fragment completes."""
        session = self.session
        self.data_received_at = session.now
        try:
            whole, frames = session.frames.receive_fragment(buffer[start:end])
        except PeerError as error:
            session.close("#TCP_READ_ERROR %s: %s", session.description, error)
            return None
        return process_frames(session, whole, frames) if frames else None

    def send(self, event: bytes, urgent: bool = True) -> None:
        """Append a complete event to the output of the turn; without `urgent`, batch it with the next output. Ignored after
        the end of the session."""
        session = self.session
        if session.state is ConnectionState.SERVING:
            if self.upstream_batch is not None:
                self.upstream_batch.seal()
            session.outbox.event(event)
            if urgent:
                session.flush()
            else:
                session.flush_soon()

    def send_control(self, event: bytes, in_order: bool) -> None:
        """Append a complete event that overtakes data, see `Outbox.control_event`; ignored after the end of the session."""
        if self.session.state is ConnectionState.SERVING:
            self.outbox.control_event(event, in_order)
            self.session.flush()

    def on_drained(self) -> None:
        """Write more of the lane; resume deliveries once it is empty."""
        lane = self.outbox.lane
        if lane is not None:
            lane.blocked = False
            if lane.bytes:
                self.session.flush()
                return
        super().on_drained()

    # -- called by queues -------------------------------------------------------------------------------------------

    def stop_deliveries(self, broadcasts: bool = False) -> None:
        """Stop deliveries to a peer that stops, or leaves this node, and may still confirm its messages. Without
        `broadcasts`, broadcast queues continue."""
        for handle in self.handles.values():
            if broadcasts or not handle.queue.broadcast:
                for substream in handle.substreams.values():
                    substream.subscriptions = []
                    substream.app.invalidate_router()

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None:
        """Deliver a message to one subscription of a handle; a member receives its GUID without the payload."""
        if not self.is_member or message.live_key < 0:
            super().push(handle, sub_id, message, redelivered)
            return
        self.stats.push_msgs += 1
        self.stats.push_bytes += message.size
        if self.push_to_broker(handle, sub_id, message, IMPLICIT_PAYLOAD | (OUT_OF_ORDER if redelivered else 0), 0, b""):
            self.window.count_push(message.size)
        self.session.flush()

    def ack_early(self, handle: Handle, message: Message, partition_id: int) -> None:
        """Send an early acknowledgement, which the member releases once its own copy of the record is durable."""
        guid = message.guid
        if self._unacked.get(guid) is handle:
            del self._unacked[guid]
        if handle.closing:
            return
        self.stats.ack_msgs += 1
        acks = self._early_acks.get(partition_id)
        if acks is None:
            acks = self._early_acks[partition_id] = []
        acks.append(ACK_MESSAGE.pack(0, guid, handle.q_id))
        self._newest_acked[partition_id] = message
        if len(acks) >= ACKS_MAX:
            self._seal_early_acks()
        self.session.flush()

    def _seal_early_acks(self) -> None:
        for partition_id, acks in self._early_acks.items():
            newest = self._newest_acked[partition_id]
            size = RECEIPT.size + ITEMS_HEADER_BYTES + ITEM_BYTES * len(acks)
            self.outbox.event_parts([event_header(EventType.ACK, size, ACK_EARLY),
                                     RECEIPT.pack(partition_id, newest.sequence, newest.lease), ITEMS_HEADER, *acks])
        self._early_acks, self._newest_acked = {}, {}

    def _process_confirms(self, buffer: bytes, position: int, end: int, step: int) -> None:
        super()._process_confirms(buffer, position, end, step)
        if self.receipts is not None and end - position >= step:
            self.receipts.on_confirms(self, (end - position) // step)

    def send_confirm_receipt(self, count: int) -> None:
        """Send a confirm receipt: the first `count` CONFIRMs of this connection are committed."""
        self.session.send(ControlMessage(None, "clusterMessage", ClusterMessage("confirmReceipt", ConfirmReceipt(count))))

    def advise_quota(self, handle: Handle, ample: bool) -> None:
        """Report whether the downstream broker may delay the CONFIRMs of a handle."""
        handle.delays_confirms = ample
        if not handle.closing:
            self.session.send(ControlMessage(None, "clusterMessage", ClusterMessage(
                "quotaAdvisory", QuotaAdvisory(handle.q_id, ample))))

    def close_handle(self, handle: Handle) -> None:
        """Close the handle of a queue that now has another primary; the member opens the queue at the new primary."""
        self.handles.pop(handle.q_id, None)
        self.requests.close_id(handle.q_id)
        drop_handle(handle, False, self.session.wall)

    def push_to_broker(self, handle: Handle, sub_id: int, message: Message, flags: int, schema_id: int,
                       payload: bytes) -> bool:
        outbox = self.outbox
        if handle.queue.broadcast:
            outbox.push_unnamed(handle.q_id, message.guid, flags, message.compression, schema_id, payload)
            return True
        if self._advises_quota and not handle.delays_confirms and handle.queue.has_ample_quota:
            self.advise_quota(handle, True)
        attempts = _UNLIMITED
        if message.attempts is not None or handle.queue.domain.max_attempts:
            attempts = _attempts(handle, sub_id, message)
        if handle.merges:
            if not outbox.sends_psns and not self.is_member:
                if message.order < handle.pushed_order:
                    flags |= OUT_OF_ORDER  # other apps were ahead
                elif not flags & OUT_OF_ORDER:
                    handle.pushed_order = message.order
            return outbox.push_infos(handle.q_id, message, sub_id, attempts, flags, schema_id, payload)
        outbox.push_info(handle.q_id, message, sub_id, attempts, flags, schema_id, payload)
        return True

    def on_rejects(self, event: int, buffer: bytes, specific: int, position: int, end: int) -> None:
        """Process a REJECT event: each message used an attempt or, with REJECT_RETURNED, has no consumer downstream."""
        wall = self.session.wall
        position, step = self.confirm_layout("Reject", buffer, position, end)
        for q_id, guid, sub_id in CONFIRM_MESSAGE.iter_unpack(self.confirms("Reject", buffer, position, end, step)):
            handle = self.handles.get(q_id)
            substream = handle.substreams.get(sub_id) if handle is not None else None
            if substream is not None and not substream.handle.queue.broadcast:
                if specific == REJECT_RETURNED:
                    substream.handle.queue.on_return(substream, guid)
                else:
                    substream.handle.queue.on_reject(substream, guid, wall)


def _attempts(handle: Handle, sub_id: int, message: Message) -> int:
    """Return the remaining delivery attempts for the app of a subscription, encoded for the wire."""
    for substream in handle.substreams.values():
        if any(subscription.s_id == sub_id for subscription in substream.subscriptions):
            left = handle.queue.attempts_left(substream.app, message)
            used = message.attempts is not None and substream.app.ordinal in message.attempts
            return rda_byte(SubQueueInfo(0, left, used and left is not None))
    return _UNLIMITED


LIFECYCLE = negotiated_lifecycle(PeerSession, {"CONTROL": to(PeerSession.on_frame, ConnectionState.DISCONNECTING),
                                  "FRAGMENT": to(PeerSession.on_fragment, ConnectionState.DISCONNECTING,
                                                 ConnectionState.CLOSED),
                                  **dict.fromkeys(FRAMES, to(PeerSession.on_frame, ConnectionState.CLOSED))})
