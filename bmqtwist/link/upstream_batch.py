"""Output to the upstream broker: PUT, CONFIRM and REJECT messages of one turn, collected into events.

Filled by `relay/messages.py`, sealed by `peer.py` at the end of the turn. Output to clients is collected in
`outbox.py`. Limits are in `bmqtwist/limits.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from bmqtwist.limits import OUT_EVENT_BYTES_MAX, SENT_CONFIRMS_MAX
from bmqtwist.link.outbox import Outbox
from bmqtwist.storage.message import Message
from bmqtwist.wire.fast import (
    ACK_REQUESTED,
    COMPRESSION_SHIFT,
    CONFIRM_MESSAGE,
    FLAGS_SHIFT,
    ITEM_BYTES,
    MESSAGE_PROPERTIES,
    OPTION_BYTES_SHIFT,
    PAD4,
    PUT_HEADER,
    PUT_HEADER_BYTES,
    PUT_HEADER_WORDS,
    REJECT_RETURNED,
    EventType,
    event_header,
    items_event,
)

_ITEMS_MAX = OUT_EVENT_BYTES_MAX // ITEM_BYTES
_NO_SCHEMA = 1  # properties of version 2 that contain their own layout


class UpstreamBatch:
    """Batch of one connection; `seal` appends it to the outbox. `add` appends to one of three lists: `confirms`, `rejects`
    (a lost consumer used a delivery attempt), `returns` (no consumer downstream can receive the message)."""

    __slots__ = ("_outbox", "_puts", "_put_bytes", "confirms", "rejects", "returns", "sent", "receipted")

    def __init__(self, outbox: Outbox) -> None:
        self.sent: deque[tuple[object, str, bytes] | None] = deque()  # CONFIRMs without a receipt: owner, appId, GUID
        self.receipted = 0  # number of CONFIRMs with a receipt, sent before these
        self._outbox = outbox
        self._puts: list[bytes] = []
        self._put_bytes = 0
        self.confirms: list[bytes] = []
        self.rejects: list[bytes] = []
        self.returns: list[bytes] = []

    def put(self, q_id: int, message: Message, wants_ack: bool) -> None:
        """Append a PUT message, without the id of its property layout, which is valid on its own connection only."""
        payload, options = message.payload or b"", message.options
        flags = (ACK_REQUESTED if wants_ack else 0) | (MESSAGE_PROPERTIES if message.has_properties else 0)
        pad = PAD4[len(payload) & 3]
        size = PUT_HEADER_BYTES + len(options) + len(payload) + len(pad)
        self._puts += (PUT_HEADER.pack(
            flags << FLAGS_SHIFT | size >> 2,
            len(options) << OPTION_BYTES_SHIFT | message.compression << COMPRESSION_SHIFT | PUT_HEADER_WORDS, q_id,
            message.guid, message.crc, _NO_SCHEMA if message.schema_id else 0, 0), options, payload, pad)
        self._put_bytes += size
        if self._put_bytes > OUT_EVENT_BYTES_MAX:
            self.seal()

    def add(self, items: list[bytes], q_id: int, guid: bytes, sub_id: int) -> None:
        """Append a CONFIRM or REJECT message."""
        items.append(CONFIRM_MESSAGE.pack(q_id, guid, sub_id))
        if len(items) >= _ITEMS_MAX:
            self.seal()

    def await_receipt(self, owner: object, app_id: str, guid: bytes) -> None:
        """Retain the last added CONFIRM until its receipt arrives."""
        self.sent.append((owner, app_id, guid))
        if len(self.sent) > SENT_CONFIRMS_MAX:
            self.on_receipt(self.receipted + 1)

    def on_receipt(self, count: int) -> None:
        """Process a confirm receipt: drop the first `count` CONFIRMs of this connection."""
        sent = self.sent
        while sent and self.receipted < count:
            sent.popleft()
            self.receipted += 1

    def take_unreceipted(self, lost: Container[object]) -> list[tuple[object, str, bytes]]:
        """Remove and return CONFIRMs of the `lost` owners without a receipt, in order, to be sent to another node."""
        found = [each for each in self.sent if each is not None and each[0] in lost]
        if found:
            self.sent = deque(None if each is not None and each[0] in lost else each for each in self.sent)
        return found

    def seal(self) -> None:
        """Append the collected messages to the outbox."""
        for kind, items, specific in ((EventType.REJECT, self.rejects, 0), (EventType.REJECT, self.returns, REJECT_RETURNED),
                                      (EventType.CONFIRM, self.confirms, 0)):
            if items:
                self._outbox.event(items_event(kind, items, specific))
                items.clear()
        if self._puts:
            self._outbox.event_parts([event_header(EventType.PUT, self._put_bytes), *self._puts])
            self._puts, self._put_bytes = [], 0
