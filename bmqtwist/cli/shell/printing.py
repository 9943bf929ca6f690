"""Text forms of commands, results, events and messages, compatible with bmqtool: programs parse its output.

>>> queue_text("bmq://d/q", 1)
'[ uri = bmq://d/q correlationId = [ autoValue = 1 ] ]'
>>> status_text("bmq://d/q", 1, "open", Result.SUCCESS)
'[ queueId = [ uri = bmq://d/q correlationId = [ autoValue = 1 ] ] result = "SUCCESS (0)" ]'

Used by `interactive.py` and `auto.py`; `log_output.py` writes the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bmqtwist.cli.shell.commands import Property
from bmqtwist.errors import PeerError
from bmqtwist.queue.describe import readable_properties
from bmqtwist.sdk.results import Ack, EventKind, Result, SessionEvent
from bmqtwist.textformat import hexdump

if TYPE_CHECKING:
    from bmqtwist.sdk.message import Message

DUMPED_BYTES_MAX = 256
LISTED_BYTES_MAX = 32
STAMP_BYTES = 8  # timestamp in nanoseconds at the beginning of a payload
UNSET = "[ * unset * ]"

_CODES = {
    Result.SUCCESS: 0, Result.UNKNOWN: -1, Result.TIMEOUT: -2, Result.NOT_CONNECTED: -3, Result.CANCELED: -4,
    Result.NOT_SUPPORTED: -5, Result.REFUSED: -6, Result.INVALID_ARGUMENT: -7, Result.NOT_READY: -8,
    Result.LIMIT_MESSAGES: -100, Result.LIMIT_BYTES: -101, Result.STORAGE_FAILURE: -104, Result.BW_LIMIT: 100,
    Result.ALREADY_OPENED: 100, Result.ALREADY_IN_PROGRESS: 101, Result.INVALID_QUEUE: -101,
    Result.QUEUE_SUSPENDED: -108, Result.PAYLOAD_EMPTY: -105, Result.PAYLOAD_TOO_BIG: -104,
}
_CODES_OF = {("open", "INVALID_FLAGS"): -101, ("configure", "ALREADY_IN_PROGRESS"): 100,
             ("close", "ALREADY_CLOSED"): 100, ("close", "UNKNOWN_QUEUE"): -100, ("pack", "QUEUE_READONLY"): -101}
_RESULTS = frozenset(Result)
_NAMES_OF = {("close", Result.INVALID_QUEUE): "UNKNOWN_QUEUE"}


def name_and_code(result: Result | str, of: str = "") -> tuple[str, int]:
    """Return name and number of a result; `of`: the request, open, configure, close or pack, else ""."""
    name = _NAMES_OF.get((of, result), str(result))  # type: ignore[arg-type]
    special = _CODES_OF.get((of, name))
    return name, special if special is not None else _CODES.get(Result(result), -1) if result in _RESULTS else -1


def outcome_text(result: Result | str, of: str = "") -> str:
    """Format a result as `SUCCESS (0)`."""
    name, code = name_and_code(result, of)
    return f"{name} ({code})"


def correlation_text(correlation: object) -> str:
    """Format a correlation id, None = unset."""
    return UNSET if correlation is None else f"[ autoValue = {correlation} ]"


def queue_text(uri: str, number: int) -> str:
    return f"[ uri = {uri} correlationId = [ autoValue = {number} ] ]"


def status_text(uri: str, number: int, of: str, result: Result | str, message: str = "") -> str:
    more = f' errorDescription = "{message}"' if message else ""
    return f'[ queueId = {queue_text(uri, number)} result = "{outcome_text(result, of)}"{more} ]'


def session_event_text(event: SessionEvent) -> str:
    """Format a session event with type and result."""
    result = event.result
    if result is Result.SUCCESS and event.kind is EventKind.CONNECTION_TIMEOUT:
        result = Result.TIMEOUT
    name, code = name_and_code(result)
    described = f' errorDescription = "{event.message}"' if event.message else ""
    queue = f" queue = {event.uri}" if event.uri else ""
    return (f'[ type = "SESSION" sessionEventType = {event.kind.name} statusCode = {code} result = {name} '
            f"correlationId = {UNSET}{described}{queue} ]")


def message_event_text(raw_type: str, uris: Iterable[str]) -> str:
    """Format the header of a batch of messages (PUSH) or acknowledgements (ACK), with their queues."""
    queues = "".join(f" queue = {uri}" for uri in dict.fromkeys(uris))
    return f'[ type = "MESSAGE" rawEventType = {raw_type}{queues} ]'


def ack_text(ack: Ack, number: int) -> str:
    return (f"[ type = ACK status = {name_and_code(ack.status)[0]} correlationId = {correlation_text(ack.correlation)} "
            f"GUID = {ack.guid.hex().upper()} queue = {queue_text(ack.uri, number)} ]")


def push_text(message: Message, number: int) -> str:
    """Format a message with up to 256 bytes of its payload and its properties."""
    context = getattr(message.subscription, "context", None)
    handle = UNSET if context is None else f"[ numeric = {context} ]"
    try:
        payload, properties = message.payload, with_properties(message, " with properties: ")
    except PeerError as error:
        payload, properties = b"", f" which cannot be read: {error}"
    dump = hexdump(payload[:DUMPED_BYTES_MAX])
    if len(payload) > DUMPED_BYTES_MAX:
        dump += f"\t+ {len(payload) - DUMPED_BYTES_MAX} more bytes. ({len(payload)} total)"
    return (f"[ type = PUSH queue = {queue_text(message.uri, number)} correlationId = {handle} "
            f"subscriptionHandle = [ CorrelationId = {handle} ] GUID = {message.guid.hex().upper()}\n{dump} ]{properties}")


def with_properties(message: Message, before: str) -> str:
    properties = {name: (kind, message.properties[name]) for name, kind in message.property_types.items()}
    return before + readable_properties(properties) if properties else ""


def format_unconfirmed(entries: list[tuple[Message, int]]) -> str:
    """Format unconfirmed messages, each with the number of its queue."""
    lines = [f"Unconfirmed message listing: {len(entries)} messages"]
    for index, (message, number) in enumerate(entries, 1):
        try:
            shown, properties = payload_excerpt(message.payload), with_properties(message, ", with properties: ")
        except PeerError as error:
            shown, properties = "", f", cannot be read: {error}"
        lines.append(f"  #{index:3d}  [{message.guid.hex().upper()}] Queue: '{queue_text(message.uri, number)}' = "
                     f"'{shown}'{properties}")
    return "\n".join(lines)


def payload_excerpt(payload: bytes) -> str:
    """Return the first 32 bytes of a payload as text; unprintable characters become dots."""
    text = payload[:LISTED_BYTES_MAX].decode("utf-8", "replace")
    return "".join(each if each.isprintable() else "." for each in text)


def command_text(members: Mapping[str, Any]) -> str:
    """Format a parsed command with all its members."""
    parts = [f"{name} = {_format_value(value)}" for name, value in members.items()]
    return f"[ {' '.join(parts)} ]"


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if value is None:
        return "NULL"
    if isinstance(value, Property):
        return f'[ name = "{value.name}" value = "{_format_plain(value.value)}" type = {value.type_name} ]'
    if isinstance(value, Mapping):
        return command_text(value)
    if isinstance(value, tuple):
        return "".join(("[ ", *(f"{_format_value(each)} " for each in value), "]"))
    return str(value)


def _format_plain(value: int | str | bool | bytes) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value).lower() if isinstance(value, bool) else str(value)
