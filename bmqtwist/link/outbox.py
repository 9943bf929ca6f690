"""What a connection will write at the end of the turn, in the one order that official clients survive.

PUSH and ACK messages collect into events of their own; anything else seals them first, so that a configure response
stands behind every PUSH of the old subscriptions and before every PUSH of the new ones.
"""

from __future__ import annotations

from bmqtwist.limits import OUT_EVENT_BYTES_MAX
from bmqtwist.wire.fast import ACK, ACK_HEADER_BYTES, EVENT_HEADER, PAD4, PUSH_ONE

_ACK_EVENT, _PUSH_EVENT = 0x45, 0x44  # protocol version 1 and the event type
_SUB_QUEUE_IDS_OLD = 0x04000000
_ACKS_MAX = OUT_EVENT_BYTES_MAX // ACK.size


class Outbox:
    """Bytes waiting for the end of the turn."""

    __slots__ = ("_sealed", "_pushes", "_push_bytes", "_acks", "_merged")

    def __init__(self) -> None:
        self._sealed: list[bytes] = []
        self._pushes: list[bytes] = []
        self._push_bytes = 0
        self._acks: list[bytes] = []
        self._merged: dict[tuple[int, bytes], tuple[int, list[int]]] = {}

    def push(self, q_id: int, guid: bytes, sub_id: int, flags: int, compression: int, schema_id: int,
             payload: bytes) -> None:
        """One PUSH message with one subscription id."""
        size = len(payload)
        words = 11 + (size >> 2)  # header 8, option 2, data with padding (size >> 2) + 1
        self._pushes += (PUSH_ONE.pack(flags << 28 | words, 0x208 | compression << 5, q_id, guid, schema_id, 0,
                                       0x04000002, sub_id), payload, PAD4[size & 3])
        self._push_bytes += words << 2
        if self._push_bytes > OUT_EVENT_BYTES_MAX:
            self._seal_pushes()

    def push_merged(self, q_id: int, guid: bytes, sub_id: int, flags: int, compression: int, schema_id: int,
                    payload: bytes) -> None:
        """One PUSH message naming every substream of the handle that gets this message in this turn."""
        known = self._merged.get((q_id, guid))
        if known is None:
            self._merged[q_id, guid] = len(self._pushes), [sub_id]
            self.push(q_id, guid, sub_id, flags, compression, schema_id, payload)
            if not self._pushes:  # it filled an event, which is sealed
                self._merged.clear()
            return
        index, ids = known
        ids.append(sub_id)
        options = len(ids) + 1
        words = 9 + options + (len(payload) >> 2)
        self._pushes[index] = b"".join((
            PUSH_ONE.pack(flags << 28 | words, options << 8 | compression << 5 | 8, q_id, guid, schema_id, 0,
                          _SUB_QUEUE_IDS_OLD | options, ids[0]), *(each.to_bytes(4, "big") for each in ids[1:])))
        self._push_bytes += 4

    def ack(self, q_id: int, guid: bytes, correlation_id: int, status: int) -> None:
        """One ACK message."""
        self._acks.append(ACK.pack(status << 24 | correlation_id, guid, q_id))
        if len(self._acks) >= _ACKS_MAX:
            self._seal()

    def event(self, data: bytes) -> None:
        """A whole event, behind everything so far."""
        self._seal()
        self._sealed.append(data)

    def drop_acks(self, q_id: int) -> None:
        """Forget the ACKs of a queue id that is being closed for good."""
        tail = q_id.to_bytes(4, "big")
        self._acks = [ack for ack in self._acks if ack[20:] != tail]

    def take(self) -> list[bytes]:
        """Everything collected, in order; the outbox is empty afterwards."""
        self._seal()
        sealed, self._sealed = self._sealed, []
        return sealed

    def _seal_pushes(self) -> None:
        sealed = self._sealed
        sealed.append(EVENT_HEADER.pack(8 + self._push_bytes, _PUSH_EVENT, 2, 0, 0))
        sealed += self._pushes
        self._pushes = []
        self._push_bytes = 0
        if self._merged:
            self._merged = {}

    def _seal(self) -> None:
        if self._pushes:
            self._seal_pushes()
        acks = self._acks
        if acks:
            self._sealed.append(EVENT_HEADER.pack(12 + ACK.size * len(acks), _ACK_EVENT, 2, 0, 0) + ACK_HEADER_BYTES)
            self._sealed += acks
            self._acks = []
