"""A look at the stored messages of a queue, at its primary or at a replica: lists, and one message whole, as JSON.

Nothing is consumed, and no attempt is counted. Answers are bounded, and made in steps: see `loop/scheduler.py`.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from bmqtwist.errors import LocalError
from bmqtwist.limits import INFLATED_BYTES_MAX
from bmqtwist.steps import Steps
from bmqtwist.storage.message import Message
from bmqtwist.storage.records import CONFIRM, FLAGS_MASK, FLAGS_SHIFT, ConfirmReason
from bmqtwist.view.cluster_facts import wall_offset
from bmqtwist.view.queue_facts import hexadecimal
from bmqtwist.view.stored_queue import (
    UNREADABLE,
    LocatedQueue,
    data_slowly,
    guid_of,
    locate,
    properties_of,
    split_slowly,
)
from bmqtwist.view.typed_properties import as_tree, plain_text
from bmqtwist.wire import properties
from bmqtwist.wire.fast import CAT_ZLIB

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.queue.queue import App

LIMIT_MAX = 500  # messages of one list
LIST_CHARS_MAX = 1 << 20  # of properties in one list
ROW_CHARS_MAX = 4 << 10  # of properties of one message in a list
PROPERTIES_CHARS_MAX = 256 << 10  # of one message that is shown whole
PAYLOAD_BYTES_MAX = 1 << 20  # of one message that is shown whole
ROWS_AT_ONCE = 16  # before the clock is asked, about 1 ms

Tree = dict[str, Any]
_REASONS = {ConfirmReason.CONFIRMED: "confirmed", ConfirmReason.REJECTED: "rejected",
            ConfirmReason.AUTO_CONFIRMED: "unwanted"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages in the order of their arrival, the first `limit` of them.

    after: those behind this one; if it is gone, from the beginning. guid: this one alone. since, until: that arrived then,
    seconds since the epoch. newest: the last ones first, `after` goes on towards the oldest.
    """

    after: str = ""
    limit: int = 50
    guid: str = ""
    since: float | None = None
    until: float | None = None
    newest: bool = False


def listing(broker: Broker, uri: str, selection: Selection = Selection()) -> Steps[Tree]:
    """The messages of a queue that are selected; LocalError."""
    located = locate(broker, uri)
    offset = wall_offset(broker)
    found = iter([located.find(selection.guid)]) if selection.guid else _from(located, selection, offset)
    limit = min(max(1, selection.limit), LIMIT_MAX)
    rows: list[Tree] = []
    left, last, more = LIST_CHARS_MAX, "", False
    for number, message in enumerate(found, 1):
        if located.messages.get(message.guid) is not message:
            continue  # it has gone since the first pause
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


def _from(located: LocatedQueue, selection: Selection, offset: float) -> Iterator[Message]:
    """The messages that are meant, as they are now."""
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
        at = bisect_left(waiting, _place(behind), key=_place)
        if at == len(waiting) or waiting[at] is not behind:
            at = waiting.index(behind)
        low, high = (low, min(high, at)) if newest else (max(low, at + 1), high)
    if newest:
        return iter(waiting[max(low, high - LIMIT_MAX - 1):high][::-1])
    return iter(waiting[low:min(high, low + LIMIT_MAX + 1)])


def _arrived(message: Message) -> float:
    return message.arrived


def _place(message: Message) -> tuple[int, int, int]:
    """Ascends with the arrival: the PSN, or of what lives in memory the order."""
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
    """What each app has to do with a message."""
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
    """App key -> how and when it was done with a message, by the CONFIRM records that are live."""
    found: dict[bytes, tuple[str, int]] = {}
    for key in message.confirms or ():
        record = located.partition.live.get(key)
        if isinstance(record, bytes):
            head, _, wall, _, app_key, _, _ = CONFIRM.unpack(record)
            reason = head >> FLAGS_SHIFT & FLAGS_MASK
            found[app_key] = next((text for each, text in _REASONS.items() if each == reason), "confirmed"), wall
    return found


def _delivery(broker: Broker, app: App, message: Message) -> Tree:
    """Who has a message that an app has not finished with, or why nobody has."""
    guid = message.guid
    for substream in app.substreams:
        entry = substream.unconfirmed.get(guid)
        if entry is not None:
            return {"state": "delivered", "to": [plain_text(substream.handle.client.description)],
                    "sinceSeconds": max(0.0, broker.loop.now - entry[2])}
    if guid in app.redelivery:
        return {"why": "came back from a lost consumer"}
    if guid in app.aside:
        return {"why": "matches no subscription"}
    if guid in app.waiting:
        return {"why": "its consumers are full"}
    if not app.substreams:
        return {"why": "no consumer"}
    return {}


def whole(broker: Broker, uri: str, guid: str, payload_max: int = PAYLOAD_BYTES_MAX) -> Steps[Tree]:
    """One message with its payload, or the beginning of that. LocalError: it is not here; what cannot be read is told in
    `problem`."""
    located = locate(broker, uri)
    message = located.find(guid)
    tree = _row(broker, located, message, wall_offset(broker), PROPERTIES_CHARS_MAX)
    tree |= {"uri": located.uri, "role": "primary" if located.root is not None else "replica", "crc32c": message.crc,
             "lease": message.lease, "sequence": message.sequence, "payload": "", "payloadBytes": None, "truncated": False}
    try:
        data = yield from data_slowly(located, message)
        area, payload, size = yield from split_slowly(message, data, min(payload_max, PAYLOAD_BYTES_MAX) + 1)
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


def payload(broker: Broker, uri: str, guid: str) -> Steps[bytes]:
    """All of the inflated payload of one message; LocalError."""
    located = locate(broker, uri)
    message = located.find(guid)
    try:
        data = yield from data_slowly(located, message)
        _, found, size = yield from split_slowly(message, data, INFLATED_BYTES_MAX)
    except UNREADABLE as error:
        raise LocalError(str(error)) from None
    if size < 0:
        raise LocalError(f"The payload inflates to more than {INFLATED_BYTES_MAX} bytes")
    return found
