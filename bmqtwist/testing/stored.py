"""Access to the messages of an in-process broker without a client: put, inspect, drain.

Called by `broker.py` for `Broker.put`, `messages` and `drain`; files are read by `storagetool/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crc32c import crc32c

from bmqtwist.errors import AckStatus, LocalError, Refused
from bmqtwist.ids import DEFAULT_APP_ID, QueueUri, parse_uri
from bmqtwist.link.client import ClientSession
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import App, Put
from bmqtwist.queue.root import Domain, RootQueue
from bmqtwist.sdk.message import typed
from bmqtwist.steps import at_once
from bmqtwist.storage.message import Message
from bmqtwist.testing.events import ContentEvent
from bmqtwist.testing.node import ImmediateNode
from bmqtwist.wire import properties as wire_properties
from bmqtwist.wire.application_data import SCHEMA_ANONYMOUS, pack_data
from bmqtwist.wire.properties import PropertyType


@dataclass(kw_only=True)
class Stored(ContentEvent):
    """An unconfirmed message in a queue. `time`: its arrival.

    `apps`: the appIds that have not confirmed it ("" in modes without apps). `held_by`: the clients to which it is delivered
    at present. `attempts_left`: remaining delivery attempts, None = no limit; in a fanout queue the minimum of its apps.
    """

    apps: tuple[str, ...] = ()
    held_by: tuple[str, ...] = ()
    attempts_left: int | None = None
    shown = "stored    {0.uri} {0._guid_text} {0.content}"


def find_queue(node: ImmediateNode, uri: str, create: bool) -> tuple[QueueUri, RootQueue | None]:
    """Return the parsed URI and its queue; None = it does not exist, and `create` is not set. Raises LocalError for an
    unknown domain."""
    parsed, broker = parse_uri(uri), node.broker
    broker.loop.now = node.now
    try:
        domain = broker.domains.get_or_load(parsed.qualified_domain)
        queue = domain.queues.get(parsed.queue)
        if queue is None and create:
            queue = _create_queue(node, domain, parsed)
    except Refused as refused:
        raise LocalError(f"{uri}: {refused.message}") from None
    return parsed, queue


def _create_queue(node: ImmediateNode, domain: Domain, uri: QueueUri) -> RootQueue:
    answers: list[RootQueue | Refused] = []
    wall = node.broker.loop.wall(node.now)
    node.broker.clusters[domain.cluster].changes.create_queue(domain, uri.canonical, node.now, wall, answers.append)
    node.turn_requested = True
    node.run()
    if not answers:
        raise LocalError(f"{uri.canonical}: a queue cannot be created while the storage is stalled")
    if isinstance(answers[0], Refused):
        raise answers[0]
    return answers[0]


def put(node: ImmediateNode, uri: str, guid: bytes, payload: bytes, values: Mapping[str, object] | None,
        types: Mapping[str, PropertyType] | None, compress: bool) -> ContentEvent:
    """Post a message without a client. Raises LocalError if the queue refuses it."""
    parsed, queue = find_queue(node, uri, True)
    if not payload:
        raise LocalError("a message has a payload of at least one byte")
    if parsed.app_id or queue is None:
        raise LocalError(f"{uri}: a message is put into a queue, not into one of its apps")
    area = wire_properties.encode(typed(values, types), True) if values else b""
    data, compression = pack_data(area, payload, True, compress)
    schema_id = SCHEMA_ANONYMOUS if area else 0
    now = node.now
    wall = node.broker.loop.wall(now)
    message = Message(guid, data, b"", bool(area), compression, schema_id, crc32c(data), now, wall)
    refused = queue.post(Put(None, message, 0, False), now, wall)
    if refused:
        raise LocalError(f"{uri} refused the message: {AckStatus(refused).name}")
    node.turn_requested = True
    return ContentEvent(time=now, uri=parsed.canonical, guid=guid, data=data, has_properties=bool(area),
                        compression=compression, schema_id=schema_id)


def messages(node: ImmediateNode, uri: str, started_at: float) -> list[Stored]:
    """Return the unconfirmed messages of a queue, or of the app of the URI, oldest first."""
    parsed, queue = find_queue(node, uri, False)
    if queue is None:
        return []
    app = _find_app(queue, parsed)
    holders: dict[bytes, list[str]] = {}
    for handle in queue.handles:
        name = getattr(handle.client.session.transport, "name", "?") if isinstance(handle.client, ClientSession) else "?"
        for substream in handle.substreams.values():
            if app is None or substream.app is app:
                for guid in substream.unconfirmed:
                    holders.setdefault(guid, []).append(name)
    return [_make_stored(queue, message, started_at, tuple(holders.get(message.guid, ())))
            for message in list(queue.messages.values()) if app is None or message.pending & app.bit]


def drain(node: ImmediateNode, uri: str, started_at: float) -> list[Stored]:
    """Purge a queue, or the app of the URI, and return the messages. Raises LocalError for a broadcast queue."""
    found = messages(node, uri, started_at)
    parsed, queue = find_queue(node, uri, False)
    if queue is not None and queue.mode == QueueMode.BROADCAST:
        raise LocalError(f"{uri}: a broadcast queue stores no messages; see recorder.posts")
    if queue is not None and found:
        at_once(queue.purge(_find_app(queue, parsed), node.broker.loop.wall(node.now)))
        node.turn_requested = True
    return found


def _find_app(queue: RootQueue, uri: QueueUri) -> App | None:
    if not uri.app_id:
        return None
    app = queue.apps.get(uri.app_id)
    if app is None or not app.registered:
        raise LocalError(f"{queue.uri} has no app '{uri.app_id}': {', '.join(each.app_id for each in queue.active)}")
    return app


def _make_stored(queue: RootQueue, message: Message, started_at: float, held_by: tuple[str, ...]) -> Stored:
    pending = [app for app in queue.active if message.pending & app.bit]
    left = [each for app in pending if (each := queue.attempts_left(app, message)) is not None]
    return Stored(time=message.arrived - started_at, uri=queue.uri, guid=message.guid, data=queue.payload(message),
                  has_properties=message.has_properties, compression=message.compression, schema_id=message.schema_id,
                  apps=tuple("" if app.app_id == DEFAULT_APP_ID else app.app_id for app in pending), held_by=held_by,
                  attempts_left=min(left) if left else None)
