"""What alarms say about the inside of a queue: its apps, their lists, the message somebody has to look at."""

from __future__ import annotations

from bmqtwist.errors import PeerError
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.queue import poison
from bmqtwist.queue.queue import App
from bmqtwist.queue.root import RootQueue
from bmqtwist.storage.message import Message
from bmqtwist.textformat import grouped, pretty_bytes
from bmqtwist.wire import application_data, properties

EXPRESSIONS_MAX = 10


def apps(queue: RootQueue) -> str:
    """For every app: how much it holds, and what its consumers ask for (capacity and stuck-queue alarms)."""
    return "\n\n".join(app_details(queue, app) for app in queue.active)


def app_details(queue: RootQueue, app: App) -> str:
    """The block of one app."""
    held = [message for message in queue.messages.values() if message.pending & app.bit]
    lines = [f"For appId: {app.app_id}", "",
             f"Put aside list size: {grouped(app.put_aside_count())}",
             f"Redelivery list size: {grouped(len(app.redelivery))}",
             f"Number of messages: {grouped(len(held))}",
             f"Number of bytes: {pretty_bytes(sum(message.size for message in held))}"]
    expressions = [each.text for each in app.routes().subscriptions if each.text][:EXPRESSIONS_MAX]
    if expressions:
        lines += ["", "Consumer subscription expressions:", *expressions]
    passed_over = [*app.aside.values(), *app.waiting.values(), *app.again]
    if passed_over:
        oldest = min(passed_over, key=lambda message: message.order)
        lines += ["", "Oldest message in the 'Put aside' list:", oldest.guid.hex().upper(),
                  f"Message Properties: {poison.readable_properties(message_properties(queue, oldest))}"]
    return "\n".join(lines)


def message_properties(queue: RootQueue, message: Message) -> properties.Properties:
    """The properties of a stored message with their types; none if they cannot be read."""
    if not message.has_properties:
        return {}
    try:
        area, v2 = application_data.properties_area(queue.payload(message), message.compression, message.schema_id)
        return properties.decode(area, v2)
    except PeerError:
        return {}


def app_uri(queue: RootQueue, app: App) -> str:
    """The URI by which an alarm names one app of a queue."""
    return queue.uri if app.app_id == DEFAULT_APP_ID else f"{queue.uri}?id={app.app_id}"
