"""What a connection will write at the end of the turn, in the one order that official clients survive.

PUSH and ACK messages collect into events of their own; anything else seals them first, so that a configure response
stands behind every PUSH of the old subscriptions and before every PUSH of the new ones.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from bmqtwist.limits import OUT_EVENT_BYTES_MAX
from bmqtwist.wire.fast import (
    ACK_MESSAGE,
    ITEMS_HEADER,
    OPTION_ONE_INFO_HEAD,
    OPTION_ONE_PLACED_HEAD,
    OPTION_UNNAMED,
    PAD4,
    PLACED_INFO_WORDS,
    PUSH_HEADER,
    EventType,
    ack_message,
    event_header,
    push_header_to_one,
    sub_queue_ids,
    sub_queue_infos,
)

_PUSH_INFO: Final = Struct(PUSH_HEADER.format + "IIB3x")  # a PUSH header with the option for another broker
_PUSH_PLACED: Final = Struct(PUSH_HEADER.format + "IIB3xIQ")  # the same, with where the message is stored
_PUSH_UNNAMED: Final = Struct(PUSH_HEADER.format + "I")
_WORDS: Final = 8  # of a PUSH header
_PUSH_PARTS: Final = 3  # of a message: header with options, data, padding
_PUSH: Final = int(EventType.PUSH)
_ACK: Final = int(EventType.ACK)
ACKS_MAX: Final = OUT_EVENT_BYTES_MAX // ACK_MESSAGE.size


class Outbox:
    """Bytes waiting for the end of the turn."""

    __slots__ = ("_sealed", "_pushes", "_push_bytes", "_acks", "_merged", "_merged_infos", "_reached")

    def __init__(self) -> None:
        self._sealed: list[bytes] = []
        self._pushes: list[bytes] = []
        self._push_bytes = 0
        self._acks: list[bytes] = []
        self._merged: dict[tuple[int, bytes, int], tuple[int, list[int]]] = {}  # place in _pushes, ids
        self._merged_infos: dict[tuple[int, bytes, int], tuple[int, list[tuple[int, int]]]] = {}  # the same for brokers
        self._reached: dict[tuple[int, int], int] = {}  # (queue id, subscription id): place of its last message

    def push(self, q_id: int, guid: bytes, sub_id: int, flags: int, compression: int, schema_id: int,
             payload: bytes) -> int:
        """One PUSH message with one subscription id; how many such wait now, 0 if an event is full."""
        size = len(payload)
        words = 11 + (size >> 2)  # header 8, option 2, data with padding (size >> 2) + 1
        self._pushes += (push_header_to_one(flags << 28 | words, 0x208 | compression << 5, q_id, guid, schema_id, sub_id),
                         payload, PAD4[size & 3])
        self._push_bytes += words << 2
        if self._push_bytes > OUT_EVENT_BYTES_MAX:
            self._seal_pushes()
        return len(self._pushes) // _PUSH_PARTS

    def push_info(self, q_id: int, guid: bytes, sub_id: int, attempts: int, flags: int, compression: int, schema_id: int,
                  payload: bytes, lease: int, sequence: int) -> None:
        """One PUSH message for another broker: `attempts` as `wire.options.rda_byte` has them; `lease` 0: where it is stored
        is not told."""
        size = len(payload)
        if lease:
            words = 15 + (size >> 2)  # header 8, option 6, data with padding (size >> 2) + 1
            self._pushes += (_PUSH_PLACED.pack(flags << 28 | words, 0x608 | compression << 5, q_id, guid, schema_id, 0,
                                               OPTION_ONE_PLACED_HEAD, sub_id, attempts, lease, sequence),
                             payload, PAD4[size & 3])
            self._push_bytes += words << 2
            if self._push_bytes > OUT_EVENT_BYTES_MAX:
                self._seal_pushes()
            return
        words = 12 + (size >> 2)  # header 8, option 3, data with padding (size >> 2) + 1
        self._pushes += (_PUSH_INFO.pack(flags << 28 | words, 0x308 | compression << 5, q_id, guid, schema_id, 0,
                                         OPTION_ONE_INFO_HEAD, sub_id, attempts), payload, PAD4[size & 3])
        self._push_bytes += words << 2
        if self._push_bytes > OUT_EVENT_BYTES_MAX:
            self._seal_pushes()

    def push_unnamed(self, q_id: int, guid: bytes, flags: int, compression: int, schema_id: int, payload: bytes) -> None:
        """One PUSH message for another broker, for everybody behind it."""
        size = len(payload)
        words = 10 + (size >> 2)  # header 8, option 1, data with padding (size >> 2) + 1
        self._pushes += (_PUSH_UNNAMED.pack(flags << 28 | words, 0x108 | compression << 5, q_id, guid, schema_id, 0,
                                            OPTION_UNNAMED), payload, PAD4[size & 3])
        self._push_bytes += words << 2
        if self._push_bytes > OUT_EVENT_BYTES_MAX:
            self._seal_pushes()

    def push_infos(self, q_id: int, guid: bytes, sub_id: int, attempts: int, flags: int, compression: int, schema_id: int,
                   payload: bytes, lease: int, sequence: int) -> None:
        """The same, naming every substream of the handle that gets this message in this turn, as `push_merged`."""
        key, place = (q_id, guid, flags), (q_id, sub_id)
        index, infos = self._merged_infos.get(key, (-1, []))
        if index <= self._reached.get(place, -1):
            self._merged_infos[key] = index, _ = len(self._pushes), [(sub_id, attempts)]
            self._reached[place] = index
            self.push_info(q_id, guid, sub_id, attempts, flags, compression, schema_id, payload, lease, sequence)
            return
        self._reached[place] = index
        infos.append((sub_id, attempts))
        option = sub_queue_infos(infos, lease, sequence)
        words = _WORDS + (len(option) >> 2) + (len(payload) >> 2) + 1
        self._pushes[index] = PUSH_HEADER.pack(flags << 28 | words, len(option) << 6 | compression << 5 | _WORDS, q_id,
                                               guid, schema_id, 0) + option
        self._push_bytes += PLACED_INFO_WORDS << 2 if lease else 8

    def push_merged(self, q_id: int, guid: bytes, sub_id: int, flags: int, compression: int, schema_id: int,
                    payload: bytes) -> None:
        """One PUSH message naming every substream of the handle that gets this message in this turn.

        A message joins an earlier one only behind everything its subscription has got: order comes first.
        """
        key, place = (q_id, guid, flags), (q_id, sub_id)
        index, ids = self._merged.get(key, (-1, []))
        if index <= self._reached.get(place, -1):
            self._merged[key] = index, _ = len(self._pushes), [sub_id]
            self._reached[place] = index
            self.push(q_id, guid, sub_id, flags, compression, schema_id, payload)
            return
        self._reached[place] = index
        ids.append(sub_id)
        option = sub_queue_ids(ids)
        words = _WORDS + (len(option) >> 2) + (len(payload) >> 2) + 1
        self._pushes[index] = PUSH_HEADER.pack(flags << 28 | words, len(option) << 6 | compression << 5 | _WORDS, q_id,
                                               guid, schema_id, 0) + option
        self._push_bytes += 4

    def ack(self, q_id: int, guid: bytes, correlation_id: int, status: int) -> int:
        """One ACK message; how many wait now."""
        acks = self._acks
        acks.append(ack_message(status, correlation_id, guid, q_id))
        count = len(acks)
        if count >= ACKS_MAX:
            self._seal()
        return count

    def event(self, data: bytes) -> None:
        """A whole event, behind everything so far."""
        self._seal()
        self._sealed.append(data)

    def event_parts(self, parts: list[bytes]) -> None:
        """A whole event in parts, behind everything so far."""
        self._seal()
        self._sealed += parts

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
        sealed.append(event_header(_PUSH, self._push_bytes))
        sealed += self._pushes
        self._pushes = []
        self._push_bytes = 0
        if self._reached:
            self._merged, self._merged_infos, self._reached = {}, {}, {}

    def _seal(self) -> None:
        if self._pushes:
            self._seal_pushes()
        acks = self._acks
        if acks:
            self._sealed.append(event_header(_ACK, len(ITEMS_HEADER) + ACK_MESSAGE.size * len(acks)))
            self._sealed.append(ITEMS_HEADER)
            self._sealed += acks
            self._acks = []
