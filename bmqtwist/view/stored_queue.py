"""The stored messages of a queue at this node, be it primary or replica: where they are, and what is in them.

Everything is read, nothing is consumed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.limits import INFLATE_STEP_BYTES, INFLATED_BYTES_MAX
from bmqtwist.steps import Steps
from bmqtwist.storage.long_dict import LongDict
from bmqtwist.storage.message import Message
from bmqtwist.storage.replica import ReplicatedPartition
from bmqtwist.storage.store import BEGINNING_BYTES, PartitionUnavailable, PayloadDamaged
from bmqtwist.wire import application_data, properties
from bmqtwist.wire.checksum import crc32c
from bmqtwist.wire.compression import Inflation
from bmqtwist.wire.fast import CAT_ZLIB

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.queue.root import RootQueue
    from bmqtwist.storage.partition import Partition
    from bmqtwist.storage.state import StoredQueue

UNREADABLE = (PartitionUnavailable, PayloadDamaged, PeerError, OSError)


@dataclass(frozen=True, slots=True)
class LocatedQueue:
    """A queue that is stored here. `root`: it is led here."""

    uri: str
    partition: Partition
    store: StoredQueue
    root: RootQueue | None

    @property
    def messages(self) -> LongDict[bytes, Message]:
        """By GUID, in order of arrival."""
        return self.store.messages

    def find(self, guid: str) -> Message:
        """A message by its GUID in hexadecimal digits; LocalError."""
        message = self.messages.get(guid_of(guid))
        if message is None:
            raise LocalError(f"Queue '{self.uri}' holds no message {guid[:32]}: it was confirmed, or has expired")
        return message


def guid_of(text: str) -> bytes:
    """A GUID as it is printed; LocalError."""
    try:
        guid = bytes.fromhex(text.strip())
    except ValueError:
        guid = b""
    if len(guid) != 16:
        raise LocalError(f"'{text[:40]}' is no GUID: it has 32 hexadecimal digits")
    return guid


def locate(broker: Broker, uri: str) -> LocatedQueue:
    """Where a queue is stored at this node; LocalError: it is not."""
    try:
        canonical = parse_uri(uri).canonical
    except InvalidUri as error:
        raise LocalError(f"'{uri[:80]}' is no URI of a queue: {error}") from None
    for cluster in broker.clusters.values():
        root = cluster.queues.get(canonical)
        if root is not None:
            return LocatedQueue(canonical, root.partition, root.store, root)
        record = cluster.metadata.state.queues.get(canonical)
        if record is None or record.partition_id >= len(cluster.partitions):
            continue
        partition = cluster.partitions[record.partition_id]
        if cluster.replication is not None and cluster.replication.cells[record.partition_id].busy:
            raise LocalError(f"Partition [{record.partition_id}] of queue '{canonical}' is being read anew: try again soon")
        store = partition.state.queues.get(record.key)
        if store is None:
            raise LocalError(f"Nothing of queue '{canonical}' is stored at this node yet")
        return LocatedQueue(canonical, partition, store, None)
    raise LocalError(f"Queue '{canonical}' is not stored at this node")


def _check_written(partition: Partition, message: Message) -> None:
    if isinstance(partition, ReplicatedPartition) and not partition.leading and (
            message.lease, message.sequence) > partition.written:
        raise PartitionUnavailable("its record is being written")


def properties_of(located: LocatedQueue, message: Message) -> properties.Properties:
    """Its properties with their types, as far as its first bytes hold them; `UNREADABLE`."""
    if not message.has_properties:
        return {}
    if message.payload is not None:
        data = message.payload[:BEGINNING_BYTES]
    else:
        partition = located.partition
        _check_written(partition, message)
        data = partition.payloads.piece(message, 0, min(BEGINNING_BYTES, message.size))
    area, v2 = application_data.properties_area(data, message.compression, message.schema_id)
    return properties.decode(area, v2)


def data_slowly(located: LocatedQueue, message: Message) -> Steps[bytes]:
    """All of its application data, checked, in steps; `UNREADABLE`."""
    if message.payload is not None:
        return message.payload
    _check_written(located.partition, message)
    pieces: list[bytes] = []
    crc = at = 0
    while at < message.size:
        partition = located.partition  # a rollover may move the message meanwhile
        size = min(INFLATE_STEP_BYTES, message.size - at)
        piece = partition.payloads.piece(message, at, size)
        if not piece or message.live_key < 0:
            break
        pieces.append(piece)
        crc, at = crc32c(piece, crc), at + len(piece)
        if at < message.size:
            yield
    if at != message.size or crc != message.crc:
        raise PayloadDamaged(f"the stored data of message {message.guid.hex().upper()} cannot be read: it is damaged, or "
                             "was deleted meanwhile")
    return b"".join(pieces)


def split_slowly(message: Message, data: bytes, limit: int = INFLATED_BYTES_MAX) -> Steps[tuple[bytes, bytes, int]]:
    """(properties area; first `limit` bytes of the inflated payload; bytes of the payload, -1 = unknown); PeerError."""
    if message.compression != CAT_ZLIB:
        area, payload = application_data.open_data(data, message.has_properties, message.compression, message.schema_id)
        return area, payload[:limit], len(payload)
    if message.has_properties and not message.schema_id:
        inflation = Inflation(data, INFLATED_BYTES_MAX, True)
        while not inflation.step():
            yield
        plain = inflation.data()
        cut = properties.area_length(plain)
        return plain[:cut], plain[cut:cut + limit], len(plain) - cut
    cut = properties.area_length(data) if message.has_properties else 0
    stream, found, rest = zlib.decompressobj(), bytearray(), data[cut:]
    try:
        while len(found) < limit and not stream.eof:
            piece = stream.decompress(rest, min(INFLATE_STEP_BYTES, limit - len(found)))
            rest = stream.unconsumed_tail
            if not piece and not rest:
                break
            found += piece
            yield
    except zlib.error:
        raise PeerError("broken zlib stream", "data") from None
    return data[:cut], bytes(found), len(found) if stream.eof else -1


def values_of(found: Mapping[str, tuple[properties.PropertyType, properties.Value]]) -> dict[str, properties.Value]:
    """Values without their types, as expressions see them."""
    return {name: value for name, (_, value) in found.items()}
