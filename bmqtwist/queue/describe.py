"""Texts of queue alarms: lists and subscriptions of the apps (capacity and stuck-queue alarms), dumps of poison messages.

Only the first DUMP_BYTES_MAX bytes of a payload are dumped. The dump of a message is

```
Message Properties:

[ k (STRING) = "v" ]


Message Properties hexdump:

     0:   1B000004 00011800 00010001 6B760202     |............kv..|


Message Payload:

     0:   68656C6C 6F                             |hello           |
```

Without readable properties, it is `Application Data:` and one hexdump. The payload is decompressed, and properties are
converted to version 1 (with lengths).

`broker/deliveries.py` (poison messages, full queues) and `daemon/housekeeping.py` (stuck queues) raise the alarms,
which `bmqtwist/alarms.py` declares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bmqtwist.errors import PeerError
from bmqtwist.ids import DEFAULT_APP_ID
from bmqtwist.report import shown
from bmqtwist.textformat import grouped, hexdump, pretty_bytes
from bmqtwist.wire import application_data, properties
from bmqtwist.wire.properties import Properties, PropertyType

if TYPE_CHECKING:
    from bmqtwist.queue.queue import App
    from bmqtwist.queue.root import RootQueue
    from bmqtwist.storage.message import Message

DUMP_BYTES_MAX = 1 << 20  # of one payload; a hexdump is more than four times as long and blocks the event loop
BINARY_BYTES_MAX = 256  # of one binary property in readable form
STRING_CHARS_MAX = 4096  # of one string property in readable form
EXPRESSIONS_MAX = 10  # of one app


def describe_apps(queue: RootQueue) -> str:
    """Describe pending messages and subscriptions of every app (capacity and stuck-queue alarms)."""
    return "\n\n".join(describe_app(queue, app) for app in queue.active)


def describe_app(queue: RootQueue, app: App) -> str:
    """Describe pending messages and subscriptions of one app."""
    held = [message for message in queue.messages.values() if message.pending & app.bit]
    lines = [f"For appId: {app.app_id}", "",
             f"Put aside list size: {grouped(app.put_aside_count())}",
             f"Redelivery list size: {grouped(len(app.redelivery))}",
             f"Number of messages: {grouped(len(held))}",
             f"Number of bytes: {pretty_bytes(sum(message.size for message in held))}"]
    expressions = [each.text for each in app.current_router().subscriptions if each.text][:EXPRESSIONS_MAX]
    if expressions:
        lines += ["", "Consumer subscription expressions:", *expressions]
    passed_over = [*app.put_aside.values(), *app.waiting.values(), *app.rechecks]
    if passed_over:
        oldest = min(passed_over, key=lambda message: message.order)
        lines += ["", "Oldest message in the 'Put aside' list:", oldest.guid.hex().upper(),
                  f"Message Properties: {readable_properties(message_properties(queue, oldest))}"]
    return "\n".join(lines)


def message_properties(queue: RootQueue, message: Message) -> properties.Properties:
    """Return the properties of a stored message with their types; empty if they are unreadable."""
    if not message.has_properties:
        return {}
    try:
        area, v2 = application_data.properties_area(queue.payload(message), message.compression, message.schema_id)
        return properties.decode(area, v2)
    except PeerError:
        return {}


def app_uri(queue: RootQueue, app: App) -> str:
    """Return the URI of an app for alarms."""
    return queue.uri if app.app_id == DEFAULT_APP_ID else f"{queue.uri}?id={app.app_id}"


def readable_properties(values: Properties) -> str:
    """Format properties as `[ name (TYPE) = value ... ]`, sorted by name; CHAR in hexadecimal, BINARY as a hexdump.

    >>> readable_properties({"x": (PropertyType.INT32, 10), "k": (PropertyType.STRING, "v")})
    '[ k (STRING) = "v" x (INT32) = 10 ]'
    """
    parts = [f"{shown(name)} ({kind.name}) = {_readable(kind, value)} " for name, (kind, value) in sorted(values.items())]
    return f"[ {''.join(parts)}]"


def _readable(kind: PropertyType, value: properties.Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f'"{hexdump(value[:BINARY_BYTES_MAX])}"'
    if isinstance(value, int):
        return f"{value & 0xFFFFFFFF:x}" if kind is PropertyType.CHAR else str(value)
    return f'"{shown(str(value), STRING_CHARS_MAX)}"'


def dump_text(values: Properties, area: bytes, payload: bytes) -> str:
    """Format the dump of a message from its properties, their area (b"" = none) and its payload."""
    if not values:
        return f"Application Data:\n\n{_bounded_hexdump(payload)}"
    return (f"Message Properties:\n\n{readable_properties(values)}\n\n\n"
            f"Message Properties hexdump:\n\n{hexdump(area)}\n\n"
            f"Message Payload:\n\n{_bounded_hexdump(payload)}")


def _bounded_hexdump(payload: bytes) -> str:
    text = hexdump(memoryview(payload)[:DUMP_BYTES_MAX])
    left = len(payload) - DUMP_BYTES_MAX
    return f"{text}({grouped(left)} more bytes)\n" if left > 0 else text


def message_dump(data: bytes, has_properties: bool, compression: int, schema_id: int) -> str:
    """Format the dump of stored application data; undecodable data is shown unchanged."""
    try:
        area, payload = application_data.unpack_data(data, has_properties, compression, schema_id)
        if not area:
            return dump_text({}, b"", payload)
        values = properties.decode(area, schema_id != 0)
        return dump_text(values, properties.to_v1(area) if schema_id else area, payload)
    except PeerError:
        return dump_text({}, b"", data)


def poison_alarm(queue: RootQueue, app: App, message: Message, keep: Callable[[str], str]) -> str:
    """Store a dump of the message with `keep` (text -> path; OSError on failure) and return the text of the alarm.

    The sub-queue id is 0, because the consumer has left.
    """
    kept = "Attempt to dump message in a file failed because file could not be created."
    try:
        data = queue.payload(message)
        where = keep(message_dump(data, message.has_properties, message.compression, message.schema_id))
        if where:
            kept = (f"Message was dumped in file at location [{where}] on this machine. "
                    "Please copy file before it gets deleted.")
    except OSError:
        pass
    return (f"A poison pill message was detected and purged from the queue {queue.uri} [GUID: {message.guid.hex().upper()}, "
            f"appId: {app.app_id}, subQueueId: 0]. Message was transmitted a total of {queue.domain.max_attempts} times to "
            f"consumer(s). {kept}")
