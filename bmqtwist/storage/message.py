"""Message: the object that storage and queue share.

Created by `link/puts.py` for a PUT, `relay/messages.py` for a PUSH of an upstream broker, `broker/local_producer.py` for a
local post, and `replay.py` for a stored record; `queue/handover.py` and `member/member_relays.py` copy it. `state.py` keeps
it until its DELETION, and `queue/queue.py` routes it.
"""

from __future__ import annotations

from typing import Any

from bmqtwist.compiled import mypyc_attr


@mypyc_attr(acyclic=True)
class Message:
    """A message from its arrival until the last app has confirmed it.

    guid: 16 bytes. payload: application data (properties and payload) without padding; None = on disk, read it with
    `PayloadReader.read`. size: length of the application data, bytes. options: options area of the PUT, whole words.
    compression: 0 none, 1 zlib. schema_id: as in the DATA record, `(id << 1) | recycled`. crc: CRC32-C of the application
    data. arrived: arrival, monotonic seconds. wall: arrival, seconds since the epoch. ref_count: number of apps that had to
    confirm at its arrival. pending: bit mask of the ordinals of apps that have not confirmed; 0 = removed. attempts: None
    or {ordinal: remaining delivery attempts}. properties: property values, cached by the queue. order: arrival order in
    the queue. queue_key: set when stored. live_key: key in `PartitionState.live`, -1 = not in a journal. data_offset: of
    the DATA record, dwords. confirms: None or the live keys of its CONFIRM records. lease, sequence: its PSN.
    """

    __slots__ = ("guid", "payload", "size", "options", "has_properties", "compression", "schema_id", "crc", "arrived",
                 "wall", "ref_count", "pending", "attempts", "properties", "order", "queue_key", "live_key",
                 "data_offset", "confirms", "lease", "sequence")

    def __init__(self, guid: bytes, payload: bytes | None, options: bytes = b"", has_properties: bool = False,
                 compression: int = 0, schema_id: int = 0, crc: int = 0, arrived: float = 0.0, wall: int = 0) -> None:
        self.guid = guid
        self.payload = payload
        self.size = len(payload) if payload is not None else 0
        self.options = options
        self.has_properties = has_properties
        self.compression = compression
        self.schema_id = schema_id
        self.crc = crc
        self.arrived = arrived
        self.wall = wall
        self.ref_count = self.pending = self.order = self.data_offset = self.lease = self.sequence = 0
        self.attempts: dict[int, int] | None = None
        self.confirms: list[int] | None = None
        self.properties: Any = None
        self.queue_key = b""
        self.live_key = -1

    def __repr__(self) -> str:
        return f"<Message {self.guid.hex().upper()} {self.size} B pending={self.pending:b}>"
