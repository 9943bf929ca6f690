"""Output of one connection in one turn, in the order that official clients require.

PUSH and ACK messages are collected into one event each; any other event completes these events first, so that a configure
response comes after every PUSH of the old subscriptions and before every PUSH of the new ones.

Sessions (`client.py`, `peer.py`) append to it; `session.py` takes the chunks, `broker/output.py` writes them at the end
of the turn. The size of an event is limited in `bmqtwist/limits.py`, unsent output in `broker/output.py`; direct writes
to the socket are in `outgoing.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from bmqtwist.limits import LINK_WRITE_BYTES, OUT_EVENT_BYTES_MAX
from bmqtwist.link.data_lane import DataLane
from bmqtwist.storage.message import Message
from bmqtwist.wire.fast import (
    ACK_MESSAGE,
    EVENT_TYPE_MASK,
    ITEMS_HEADER,
    OPTION_ONE_INFO_HEAD,
    OPTION_ONE_PSN_INFO_HEAD,
    OPTION_UNNAMED,
    PAD4,
    PSN_INFO_WORDS,
    PUSH_HEADER,
    EventType,
    ack_message,
    event_header,
    push_header_to_one,
    sub_queue_ids,
    sub_queue_infos,
)

_PUSH_INFO: Final = Struct(PUSH_HEADER.format + "IIB3x")  # a PUSH header with the option for brokers
_PUSH_WITH_PSN: Final = Struct(PUSH_HEADER.format + "IIB3xIQ")  # a PUSH header with option and PSN
_PUSH_UNNAMED: Final = Struct(PUSH_HEADER.format + "I")
_WORDS: Final = 8  # of a PUSH header
_PUSH_PARTS: Final = 3  # of a message: header with options, data, padding
_PUSH: Final = int(EventType.PUSH)
_ACK: Final = int(EventType.ACK)
_TYPE_AT: Final = 4  # offset of the event type in an event
OVERTAKING: Final = frozenset(map(int, (  # event types that overtake data, if the connection has a lane
    EventType.ELECTOR, EventType.HEARTBEAT_REQ, EventType.HEARTBEAT_RSP, EventType.REPLICATION_RECEIPT,
    EventType.AUTHENTICATION)))
ACKS_MAX: Final = OUT_EVENT_BYTES_MAX // ACK_MESSAGE.size


class Outbox:
    """Output collected until the end of the turn. `sends_psns`: PUSHes to this broker contain PSNs; `lane`: of a peer that
    accepts fragments."""

    __slots__ = ("lane", "_sealed", "_pushes", "_push_bytes", "_acks", "_merged", "_last_indexes", "sends_psns")

    def __init__(self) -> None:
        self.lane: DataLane | None = None
        self._sealed: list[bytes | memoryview] = []
        self._pushes: list[bytes] = []
        self._push_bytes = 0
        self._acks: list[bytes] = []
        self._merged: dict[tuple[int, bytes, int], tuple[int, list[tuple[int, int]]]] = {}  # index, (id, attempts)
        self.sends_psns = False
        self._last_indexes: dict[tuple[int, int], int] = {}  # (queue id, subscription id) -> index of its last PUSH

    def push(self, q_id: int, guid: bytes, sub_id: int, flags: int, compression: int, schema_id: int,
             payload: bytes) -> int:
        """Append a PUSH with one subscription id. Return the number of PUSHes in the open event, 0 if it is full."""
        if self._push_bytes > OUT_EVENT_BYTES_MAX:
            self._seal_pushes()
        size = len(payload)
        words = 11 + (size >> 2)  # header 8, option 2, data with padding (size >> 2) + 1
        self._pushes += (push_header_to_one(flags << 28 | words, 0x208 | compression << 5, q_id, guid, schema_id, sub_id),
                         payload, PAD4[size & 3])
        self._push_bytes += words << 2
        return 0 if self._push_bytes > OUT_EVENT_BYTES_MAX else len(self._pushes) // _PUSH_PARTS

    def push_info(self, q_id: int, message: Message, sub_id: int, attempts: int, flags: int, schema_id: int,
                  payload: bytes) -> None:
        """Append a PUSH for a downstream broker; `attempts` as encoded by `wire.options.rda_byte`."""
        words, compression = 12 + (len(payload) >> 2), message.compression << 5  # header 8, option 3, data with padding
        if self.sends_psns and message.lease:
            words += 3
            header = _PUSH_WITH_PSN.pack(flags << 28 | words, 0x608 | compression, q_id, message.guid, schema_id, 0,
                                       OPTION_ONE_PSN_INFO_HEAD, sub_id, attempts, message.lease, message.sequence)
        else:
            header = _PUSH_INFO.pack(flags << 28 | words, 0x308 | compression, q_id, message.guid, schema_id, 0,
                                     OPTION_ONE_INFO_HEAD, sub_id, attempts)
        self._append_push(header, payload, words)

    def push_unnamed(self, q_id: int, guid: bytes, flags: int, compression: int, schema_id: int, payload: bytes) -> None:
        """Append a PUSH for a downstream broker without subscription ids (broadcast)."""
        words = 10 + (len(payload) >> 2)  # header 8, option 1, data with padding (size >> 2) + 1
        self._append_push(_PUSH_UNNAMED.pack(flags << 28 | words, 0x108 | compression << 5, q_id, guid, schema_id, 0,
                                     OPTION_UNNAMED), payload, words)

    def _append_push(self, header: bytes, payload: bytes, words: int) -> None:
        if self._push_bytes > OUT_EVENT_BYTES_MAX:
            self._seal_pushes()
        self._pushes += (header, payload, PAD4[len(payload) & 3])
        self._push_bytes += words << 2

    def push_infos(self, q_id: int, message: Message, sub_id: int, attempts: int, flags: int, schema_id: int,
                   payload: bytes) -> bool:
        """Append a PUSH for a downstream broker, merged like `push_merged`; False if it was merged."""
        index = self._merge((q_id, message.guid, flags), sub_id, attempts)
        if index < 0:
            self.push_info(q_id, message, sub_id, attempts, flags, schema_id, payload)
            return True
        lease, sequence = (message.lease, message.sequence) if self.sends_psns else (0, 0)
        option = sub_queue_infos(self._merged[q_id, message.guid, flags][1], lease, sequence)
        self._replace_header(index, q_id, message.guid, flags, message.compression, schema_id, option)
        self._push_bytes += PSN_INFO_WORDS << 2 if lease else 8
        return False

    def push_merged(self, q_id: int, guid: bytes, sub_id: int, flags: int, compression: int, schema_id: int,
                    payload: bytes) -> bool:
        """Append a PUSH, or add the subscription id to an earlier PUSH of the same message to another substream of the
        handle, unless that would change the order of messages of the subscription. False if it was added."""
        index = self._merge((q_id, guid, flags), sub_id, 0)
        if index < 0:
            self.push(q_id, guid, sub_id, flags, compression, schema_id, payload)
            return True
        option = sub_queue_ids([each for each, _ in self._merged[q_id, guid, flags][1]])
        self._replace_header(index, q_id, guid, flags, compression, schema_id, option)
        self._push_bytes += 4
        return False

    def _merge(self, key: tuple[int, bytes, int], sub_id: int, attempts: int) -> int:
        """Add the subscription id to an earlier PUSH and return its index; -1 = a new PUSH has to be appended."""
        place = key[0], sub_id
        found = self._merged.get(key)
        if found is None or found[0] <= self._last_indexes.get(place, -1):
            if self._push_bytes > OUT_EVENT_BYTES_MAX:
                self._seal_pushes()
            self._last_indexes[place] = index = len(self._pushes)
            self._merged[key] = index, [(sub_id, attempts)]
            return -1
        self._last_indexes[place] = found[0]
        found[1].append((sub_id, attempts))
        return found[0]

    def _replace_header(self, index: int, q_id: int, guid: bytes, flags: int, compression: int, schema_id: int,
                   option: bytes) -> None:
        words = _WORDS + (len(option) >> 2) + (len(self._pushes[index + 1]) >> 2) + 1
        self._pushes[index] = PUSH_HEADER.pack(flags << 28 | words, len(option) << 6 | compression << 5 | _WORDS, q_id,
                                               guid, schema_id, 0) + option

    def ack(self, q_id: int, guid: bytes, correlation_id: int, status: int) -> int:
        """Append an ACK. Return the number of ACKs in the event."""
        acks = self._acks
        acks.append(ack_message(status, correlation_id, guid, q_id))
        count = len(acks)
        if count >= ACKS_MAX:
            self._seal()
        return count

    def event(self, data: bytes) -> None:
        """Append a complete event. Events of OVERTAKING types overtake data."""
        lane = self.lane
        if lane is not None and lane.open and data[_TYPE_AT] & EVENT_TYPE_MASK in OVERTAKING:
            lane.control.append(data)
            return
        self._seal()
        self._sealed.append(data)

    def control_event(self, data: bytes, in_order: bool) -> None:
        """Append a complete event that overtakes data, but not if it is too large for one fragment. `in_order`: it does not
        overtake such a large event either."""
        lane = self.lane
        if lane is None or not lane.open:
            self.event(data)
        elif len(data) <= LINK_WRITE_BYTES and not (in_order and lane.holds_control):
            lane.control.append(data)
        else:
            self.event(data)
            lane.holds_control = True

    def event_parts(self, parts: list[bytes]) -> None:
        """Append a complete event in parts."""
        self._seal()
        self._sealed += parts

    def drop_acks(self, q_id: int) -> None:
        """Drop the ACKs of a queue id at its final close."""
        tail = q_id.to_bytes(4, "big")
        self._acks = [ack for ack in self._acks if ack[20:] != tail]

    def take_output(self) -> list[bytes | memoryview]:
        """Remove and return the output to write now, in order: all of it, or as the lane decides."""
        self._seal()
        sealed, self._sealed = self._sealed, []
        return sealed if self.lane is None else self.lane.take_output(sealed)

    def _seal_pushes(self) -> None:
        sealed = self._sealed
        sealed.append(event_header(_PUSH, self._push_bytes))
        sealed += self._pushes
        self._pushes = []
        self._push_bytes = 0
        if self._last_indexes:
            self._merged, self._last_indexes = {}, {}

    def _seal(self) -> None:
        if self._pushes:
            self._seal_pushes()
        acks = self._acks
        if acks:
            self._sealed.append(event_header(_ACK, len(ITEMS_HEADER) + ACK_MESSAGE.size * len(acks)))
            self._sealed.append(ITEMS_HEADER)
            self._sealed += acks
            self._acks = []
