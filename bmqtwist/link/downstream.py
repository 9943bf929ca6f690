"""A broker behind us as a client: it has queues open for clients of its own, and is served as they would be.

It is the part of a `PeerSession` that queues speak with. One handle may stand for many clients: its counts are sums, and of
each app it is one consumer. PUSH messages tell how many delivery attempts are left, and REJECT events how many were used up.
"""

from __future__ import annotations

from bmqtwist.link.client import ClientSession
from bmqtwist.link.extensions import PLACES, RELAY_EXTENSION
from bmqtwist.link.outbox import ACKS_MAX
from bmqtwist.link.receipts import ConfirmReceipts, ReceiptLog
from bmqtwist.link.requests import QueueRequestsContext
from bmqtwist.link.session import Session
from bmqtwist.queue.handles import drop_handle
from bmqtwist.queue.queue import Handle
from bmqtwist.storage.message import Message
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

_UNLIMITED = rda_byte(SubQueueInfo(0))


class DownstreamClient(ClientSession):
    """The clients of a broker behind us. `is_member`: it has the records of our partitions, and may be primary next; others
    are told where messages are stored if they want to know (PLACES)."""

    is_broker = True
    __slots__ = ("receipts", "receipt_log", "_ahead", "_newest")

    def __init__(self, session: Session, queues: QueueRequestsContext, is_member: bool = False) -> None:
        super().__init__(session, queues)
        self.is_member = self.puts.ignores_unknown = is_member  # one that does not know that we are primary no longer
        # keeps its PUTs
        self.outbox.tells_places = not is_member and PLACES in session.features.get(RELAY_EXTENSION, ())
        self.receipts: ConfirmReceipts | None = None  # None: it does not want any
        self.receipt_log = ReceiptLog()
        self._ahead: dict[int, list[bytes]] = {}  # ACKs of this turn that count once their records are safe there
        self._newest: dict[int, Message] = {}  # the newest of these, by partition like them
        self.puts.makes_guids = True  # the first broker has made those that clients did not make

    def ended(self, crashed: bool) -> None:
        """The connection is over. That no consumer was lost with it costs no delivery attempt."""
        super().ended(crashed=False)
        if self.receipts is not None:
            self.receipts.forget(self)
            self.receipts = None

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

    def turn_over(self) -> None:
        """The output of a turn is taken."""
        super().turn_over()
        if self._ahead:
            self._seal_ahead()

    def _take_confirms(self, buffer: bytes, position: int, end: int, step: int) -> None:
        super()._take_confirms(buffer, position, end, step)
        if self.receipts is not None and end - position >= step:
            self.receipts.taken(self, (end - position) // step)

    def confirms_are_safe(self, count: int) -> None:
        """So many that came on this connection are: the broker need not keep them any more."""
        self.session.send(ControlMessage(None, "clusterMessage", ClusterMessage("confirmReceipt", ConfirmReceipt(count))))

    def leave(self, handle: Handle) -> None:
        """A queue is not led here any more: a member opens it again where it is."""
        del self.handles[handle.q_id]
        self.requests.close_id(handle.q_id)
        drop_handle(handle, False, self.session.wall)

    def push_to_broker(self, handle: Handle, sub_id: int, message: Message, flags: int, schema_id: int,
                       payload: bytes) -> None:
        """Deliver a message to one subscription of a handle."""
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
