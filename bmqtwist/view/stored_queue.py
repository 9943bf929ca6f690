"""Stored messages of a queue at its primary or a replica as JSON: lists, and single messages with payload.

Reading consumes nothing and uses no delivery attempt. Results are bounded and created in steps (`loop/scheduler.py`).
Called by `admin/operations.py` and `console/documents_api.py`; the state of the queue is in `queue_facts.py`. The JSON
API has lower limits (`console/documents_api.py`).
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from crc32c import crc32c
from msgspec import Struct

from bmqtwist.errors import LocalError, PeerError
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.limits import INFLATE_STEP_BYTES, INFLATED_BYTES_MAX
from bmqtwist.steps import Steps
from bmqtwist.storage.damage import PayloadDamaged
from bmqtwist.storage.long_dict import LongDict
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import CONFIRM, FLAGS_MASK, FLAGS_SHIFT, ConfirmReason
from bmqtwist.storage.replica import ReplicatedPartition
from bmqtwist.storage.store import BEGINNING_BYTES, PartitionUnavailable
from bmqtwist.view.queue_facts import hexadecimal
from bmqtwist.view.typed_properties import as_tree, plain_text
from bmqtwist.wire import application_data, properties
from bmqtwist.wire.application_data import Inflation
from bmqtwist.wire.fast import CAT_ZLIB

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.queue.queue import App
    from bmqtwist.queue.root import RootQueue
    from bmqtwist.storage.partition import Partition
    from bmqtwist.storage.state import StoredQueue

UNREADABLE = (PartitionUnavailable, PayloadDamaged, PeerError, OSError)
LIMIT_MAX = 500  # messages per list
LIST_CHARS_MAX = 1 << 20  # of properties per list
ROW_CHARS_MAX = 4 << 10  # of properties per message of a list
PROPERTIES_CHARS_MAX = 256 << 10  # of a single message
PAYLOAD_BYTES_MAX = 1 << 20  # of a single message
ROWS_AT_ONCE = 16  # per step, about 1 ms
Tree = dict[str, Any]
_REASONS = {ConfirmReason.CONFIRMED: "confirmed", ConfirmReason.REJECTED: "rejected",
            ConfirmReason.AUTO_CONFIRMED: "unwanted"}


class LocatedQueue(Struct, frozen=True):
    """Queue that is stored at this node. `root`: the queue itself if this node is its primary."""

    uri: str
    partition: Partition
    store: StoredQueue
    root: RootQueue | None

    @property
    def messages(self) -> LongDict[bytes, Message]:
        """Messages by GUID, in order of arrival."""
        return self.store.messages

    def find(self, guid: str) -> Message:
        """Return a message by its GUID in hexadecimal digits. Raises LocalError."""
        message = self.messages.get(guid_of(guid))
        if message is None:
            raise LocalError(f"Queue '{self.uri}' has no message {guid[:32]}: it was confirmed or has expired")
        return message


def guid_of(text: str) -> bytes:
    """Parse the printed form of a GUID. Raises LocalError."""
    try:
        guid = bytes.fromhex(text.strip())
    except ValueError:
        guid = b""
    if len(guid) != 16:
        raise LocalError(f"'{text[:40]}' is not a GUID: expected 32 hexadecimal digits")
    return guid


def locate(broker: Broker, uri: str) -> LocatedQueue:
    """Return a queue that is stored at this node. Raises LocalError if it is not."""
    try:
        canonical = parse_uri(uri).canonical
    except InvalidUri as error:
        raise LocalError(f"'{uri[:80]}' is not the URI of a queue: {error}") from None
    for cluster in broker.clusters.values():
        root = cluster.queues.get(canonical)
        if root is not None:
            return LocatedQueue(canonical, root.partition, root.store, root)
        record = cluster.metadata.state.queues.get(canonical)
        if record is None or record.partition_id >= len(cluster.partitions):
            continue
        partition = cluster.partitions[record.partition_id]
        if cluster.replication is not None and cluster.replication.hosted[record.partition_id].busy:
            raise LocalError(f"Partition [{record.partition_id}] of queue '{canonical}' is being reloaded: try again")
        store = partition.state.queues.get(record.key)
        if store is None:
            raise LocalError(f"No record of queue '{canonical}' is stored at this node yet")
        return LocatedQueue(canonical, partition, store, None)
    raise LocalError(f"Queue '{canonical}' is not stored at this node")


def _check_written(partition: Partition, message: Message) -> None:
    if isinstance(partition, ReplicatedPartition) and not partition.is_primary and (
            message.lease, message.sequence) > partition.written_psn:
        raise PartitionUnavailable("its record is being written")


def properties_of(located: LocatedQueue, message: Message) -> properties.Properties:
    """Return the properties of a message with their types, from its first bytes. Raises one of UNREADABLE."""
    if not message.has_properties:
        return {}
    if message.payload is not None:
        data = message.payload[:BEGINNING_BYTES]
    else:
        partition = located.partition
        _check_written(partition, message)
        data = partition.payloads.read_piece(message, 0, min(BEGINNING_BYTES, message.size))
    area, v2 = application_data.properties_area(data, message.compression, message.schema_id)
    return properties.decode(area, v2)


def data_in_steps(located: LocatedQueue, message: Message) -> Steps[bytes]:
    """Return the application data of a message after a checksum test, in steps. Raises one of UNREADABLE."""
    if message.payload is not None:
        return message.payload
    _check_written(located.partition, message)
    pieces: list[bytes] = []
    crc = at = 0
    while at < message.size:
        partition = located.partition  # a rollover may move the message between steps
        size = min(INFLATE_STEP_BYTES, message.size - at)
        piece = partition.payloads.read_piece(message, at, size)
        if not piece or message.live_key < 0:
            break
        pieces.append(piece)
        crc, at = crc32c(piece, crc), at + len(piece)
        if at < message.size:
            yield
    if at != message.size or crc != message.crc:
        raise PayloadDamaged(f"the stored data of message {message.guid.hex().upper()} cannot be read: it is damaged or "
                             "has been deleted")
    return b"".join(pieces)


def split_in_steps(message: Message, data: bytes, limit: int = INFLATED_BYTES_MAX) -> Steps[tuple[bytes, bytes, int]]:
    """Return the properties area, the first `limit` bytes of the inflated payload, and the size of the payload (-1 =
    unknown). Raises PeerError."""
    if message.compression != CAT_ZLIB:
        area, payload = application_data.unpack_data(data, message.has_properties, message.compression, message.schema_id)
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


class Selection(Struct, frozen=True):
    """Selection of at most `limit` messages in order of arrival.

    after: begin behind this GUID; if it is gone, at the beginning. guid: only this message. since, until: range of arrival
    times, seconds since the epoch. newest: newest first, `after` continues towards the oldest.
    """

    after: str = ""
    limit: int = 50
    guid: str = ""
    since: float | None = None
    until: float | None = None
    newest: bool = False


def messages_in_steps(broker: Broker, uri: str, selection: Selection) -> Steps[Tree]:
    """Return the selected messages of a queue, in steps. Raises LocalError."""
    located = locate(broker, uri)
    offset = broker.loop.wall_offset
    found = iter([located.find(selection.guid)]) if selection.guid else _select(located, selection, offset)
    limit = min(max(1, selection.limit), LIMIT_MAX)
    rows: list[Tree] = []
    left, last, more = LIST_CHARS_MAX, "", False
    for number, message in enumerate(found, 1):
        if located.messages.get(message.guid) is not message:
            continue  # removed since the first step
        if len(rows) >= limit or left <= 0:
            more = True
            break
        row = _row(broker, located, message, offset, min(ROW_CHARS_MAX, left))
        left -= sum(len(name) + len(str(value)) for name, value in row["properties"].items())
        rows.append(row)
        last = row["guid"]
        if message.payload is None or not number % ROWS_AT_ONCE:
            yield
    return {"uri": located.uri, "role": "primary" if located.root is not None else "replica",
            "total": len(located.messages), "messages": rows, "next": last if more else None}


def _select(located: LocatedQueue, selection: Selection, offset: float) -> Iterator[Message]:
    """Return at most LIMIT_MAX + 1 messages of a selection. `offset`: seconds from the loop's clock to the epoch."""
    stored, after, since, until = located.messages, selection.after, selection.since, selection.until
    newest = selection.newest
    behind = stored.get(guid_of(after)) if after else None
    if behind is None and since is None and until is None:
        return iter(list(islice(stored.newest_first() if newest else stored.values(), LIMIT_MAX + 1)))
    waiting = list(stored.values())
    low, high = 0, len(waiting)
    if since is not None:
        low = bisect_left(waiting, since - offset, key=_arrived)
    if until is not None:
        high = bisect_left(waiting, until - offset, key=_arrived)
    if behind is not None:
        at = bisect_left(waiting, _arrival_order(behind), key=_arrival_order)
        if at == len(waiting) or waiting[at] is not behind:
            at = waiting.index(behind)
        low, high = (low, min(high, at)) if newest else (max(low, at + 1), high)
    if newest:
        return iter(waiting[max(low, high - LIMIT_MAX - 1):high][::-1])
    return iter(waiting[low:min(high, low + LIMIT_MAX + 1)])


def _arrived(message: Message) -> float:
    return message.arrived


def _arrival_order(message: Message) -> tuple[int, int, int]:
    """Return a key that ascends with the arrival: the PSN, or the order of a message in memory."""
    return message.lease, message.sequence, message.order


def _row(broker: Broker, located: LocatedQueue, message: Message, offset: float, chars_max: int) -> Tree:
    row: Tree = {
        "guid": hexadecimal(message.guid), "bytes": message.size, "storedAt": message.arrived + offset,
        "compression": "zlib" if message.compression == CAT_ZLIB else "none", "hasProperties": message.has_properties,
        "properties": {}, "apps": _apps(broker, located, message)}
    if message.has_properties:
        try:
            row["properties"], cut = as_tree(properties_of(located, message), chars_max)
        except UNREADABLE as error:
            row["problem"], cut = f"properties cannot be read: {error}", True
        if cut:
            row["propertiesTruncated"] = True
    return row


def _apps(broker: Broker, located: LocatedQueue, message: Message) -> list[Tree]:
    done = _finished(located, message)
    rows = []
    for stored in located.store.apps.values():
        row: Tree = {"appId": stored.app_id, "state": "pending", "to": []}
        app = located.root.apps.get(stored.app_id) if located.root is not None else None
        if not message.pending & stored.bit:
            how, wall = done.get(stored.key, ("", 0))
            row["state"] = how or "confirmed"
            if wall:
                row["at"] = wall
        elif app is not None and located.root is not None:
            row |= _delivery(broker, app, message)
            left = located.root.attempts_left(app, message)
            if left is not None:
                row["attemptsLeft"] = left
        rows.append(row)
    return rows


def _finished(located: LocatedQueue, message: Message) -> dict[bytes, tuple[str, int]]:
    """Return for each app key how and when the app finished with the message, from live CONFIRM records."""
    found: dict[bytes, tuple[str, int]] = {}
    for key in message.confirms or ():
        record = located.partition.state.live.get(key)
        if isinstance(record, bytes):
            head, _, wall, _, app_key, _, _ = CONFIRM.unpack(record)
            reason = head >> FLAGS_SHIFT & FLAGS_MASK
            found[app_key] = next((text for each, text in _REASONS.items() if each == reason), "confirmed"), wall
    return found


def _delivery(broker: Broker, app: App, message: Message) -> Tree:
    """Return the consumer that has an unconfirmed message, or the reason why no consumer has it."""
    guid = message.guid
    for substream in app.substreams:
        entry = substream.unconfirmed.get(guid)
        if entry is not None:
            return {"state": "delivered", "to": [plain_text(substream.handle.client.description)],
                    "sinceSeconds": max(0.0, broker.loop.now - entry[2])}
    if guid in app.redelivery:
        return {"why": "awaits redelivery"}
    if guid in app.put_aside:
        return {"why": "matches no subscription"}
    if guid in app.waiting:
        return {"why": "all consumers are at their limits"}
    if not app.substreams:
        return {"why": "no consumer"}
    return {}


def message_in_steps(broker: Broker, uri: str, guid: str, payload_max: int = PAYLOAD_BYTES_MAX) -> Steps[Tree]:
    """Return one message with at most `payload_max` bytes of its payload; `problem` describes unreadable data. Raises
    LocalError if the message is not stored here."""
    located = locate(broker, uri)
    message = located.find(guid)
    tree = _row(broker, located, message, broker.loop.wall_offset, PROPERTIES_CHARS_MAX)
    tree |= {"uri": located.uri, "role": "primary" if located.root is not None else "replica", "crc32c": message.crc,
             "lease": message.lease, "sequence": message.sequence, "payload": "", "payloadBytes": None, "truncated": False}
    try:
        data = yield from data_in_steps(located, message)
        area, payload, size = yield from split_in_steps(message, data, min(payload_max, PAYLOAD_BYTES_MAX) + 1)
        shown = payload[:min(payload_max, PAYLOAD_BYTES_MAX)]
        tree |= {"payload": base64.b64encode(shown).decode(), "payloadBytes": size if size >= 0 else None,
                 "truncated": len(shown) < len(payload) or size < 0 or len(shown) < size}
        if area:
            tree["properties"], cut = as_tree(properties.decode(area, message.schema_id != 0), PROPERTIES_CHARS_MAX)
            tree.pop("propertiesTruncated", None)
            tree.pop("problem", None)
            if cut:
                tree["propertiesTruncated"] = True
    except UNREADABLE as error:
        tree["problem"] = str(error)
    return tree


def payload_in_steps(broker: Broker, uri: str, guid: str) -> Steps[bytes]:
    """Return the whole inflated payload of one message. Raises LocalError."""
    located = locate(broker, uri)
    message = located.find(guid)
    try:
        data = yield from data_in_steps(located, message)
        _, found, size = yield from split_in_steps(message, data, INFLATED_BYTES_MAX)
    except UNREADABLE as error:
        raise LocalError(str(error)) from None
    if size < 0:
        raise LocalError(f"The payload inflates to more than {INFLATED_BYTES_MAX} bytes")
    return found
