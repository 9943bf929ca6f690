"""What is said and kept of a message that used up its delivery attempts.

```
Message Properties:

[ k (STRING) = "v" ]


Message Properties hexdump:

     0:   1B000004 00011800 00010001 6B760202     |............kv..|


Message Payload:

     0:   68656C6C 6F                             |hello           |
```

Without properties, or where they cannot be read, it is `Application Data:` and one hexdump. The payload is shown
decompressed, properties in the old style (lengths), whatever the producer used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bmqtwist.errors import PeerError
from bmqtwist.report import shown
from bmqtwist.textformat import grouped, hexdump
from bmqtwist.wire import application_data, properties
from bmqtwist.wire.properties import Properties, PropertyType

if TYPE_CHECKING:
    from bmqtwist.queue.queue import App
    from bmqtwist.queue.root import RootQueue
    from bmqtwist.storage.message import Message

DUMP_BYTES_MAX = 1 << 20  # of one payload; a hexdump is more than four times as long and is made between two turns
BINARY_BYTES_MAX = 256  # of one binary property in readable form
STRING_CHARS_MAX = 4096  # of one string property in readable form; its bytes follow


def readable_properties(values: Properties) -> str:
    """`[ name (TYPE) = value ... ]` in order of names; strings quoted, CHAR in hexadecimal, BINARY as a hexdump.

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
    """The dump of a message: its properties, their area as bytes (b"" if there are none), its payload."""
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
    """The dump of application data as it is stored; what cannot be taken apart is shown raw."""
    try:
        area, payload = application_data.open_data(data, has_properties, compression, schema_id)
        if not area:
            return dump_text({}, b"", payload)
        values = properties.decode(area, schema_id != 0)
        return dump_text(values, properties.to_v1(area) if schema_id else area, payload)
    except PeerError:
        return dump_text({}, b"", data)


def alarm_text(uri: str, guid: bytes, app_id: str, sub_queue_id: int, attempts: int, where: str | None) -> str:
    """The text of the POISON_PILL alarm; `attempts`: the configured number; `where`: the dump, None if there is none."""
    if where is None:
        kept = "Attempt to dump message in a file failed because file could not be created."
    else:
        kept = (f"Message was dumped in file at location [{where}] on this machine. "
                "Please copy file before it gets deleted.")
    return (f"A poison pill message was detected and purged from the queue {uri} [GUID: {guid.hex().upper()}, "
            f"appId: {app_id}, subQueueId: {sub_queue_id}]. Message was transmitted a total of {attempts} times to "
            f"consumer(s). {kept}")


def alarm(queue: RootQueue, app: App, message: Message, keep: Callable[[str], str]) -> str:
    """Keep a dump of the message with `keep` (text -> where it is, OSError if it cannot be) and make the alarm's text.

    The consumer has left, so the sub-queue id is 0.
    """
    where: str | None
    try:
        data = queue.payload(message)
        where = keep(message_dump(data, message.has_properties, message.compression, message.schema_id)) or None
    except OSError:
        where = None
    return alarm_text(queue.uri, message.guid, app.app_id, 0, queue.domain.max_attempts, where)
