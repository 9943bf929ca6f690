"""Recorded events: one object for each action of a client, the broker or the test.

`time`: seconds since the broker was created, on its clock. `client`: name of the connection. URIs are canonical; `app` is
the appId of a consumer of a fanout queue, else "". `fault_effect`: effect of a fault on the event, such as "dropped",
"delayed 2 s", "refused" or "killed"; "" = none. `wiretap.py` creates most events, `recorder.py` stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

from bmqtwist.errors import PeerError
from bmqtwist.sdk import Result
from bmqtwist.wire import properties as wire_properties
from bmqtwist.wire.application_data import unpack_data
from bmqtwist.wire.properties import PropertyType, Value

_SHOWN_BYTES = 40  # of a payload in a transcript


@dataclass(kw_only=True)
class Event:
    """Base of all events."""

    time: float
    client: str = ""
    fault_effect: str = ""

    shown: ClassVar[str]  # format of the text; its argument is the event

    @property
    def text(self) -> str:
        """Description without time and client."""
        return self.shown.format(self).rstrip()

    def __str__(self) -> str:
        effect = f"   [{self.fault_effect}]" if self.fault_effect else ""
        return f"{self.time:9.3f}  {self.client or '-':<12} {self.text}{effect}"


@dataclass(kw_only=True)
class Note(Event):
    """An action of the test, the start or end of a connection, or a start or stop of the broker."""

    what: str = ""

    shown = "{0.what}"


@dataclass(kw_only=True)
class QueueEvent(Event):
    """An event of a queue."""

    uri: str = ""
    app: str = ""

    @property
    def full_uri(self) -> str:
        """The URI with the appId, as a consumer of a fanout queue opens it."""
        return f"{self.uri}?id={self.app}" if self.app else self.uri


@dataclass(kw_only=True)
class MessageEvent(QueueEvent):
    """An event with the GUID of a message; `guid`: 16 bytes."""

    guid: bytes = b""

    @property
    def _guid_text(self) -> str:
        return self.guid.hex().upper()


@dataclass(kw_only=True)
class ContentEvent(MessageEvent):
    """An event with the payload and the properties of a message."""

    data: bytes = field(default=b"", repr=False)  # application data, as encoded on the wire
    has_properties: bool = False
    compression: int = 0
    schema_id: int = 0

    @cached_property
    def _decoded_data(self) -> tuple[bytes, bytes]:
        return unpack_data(self.data, self.has_properties, self.compression, self.schema_id)

    @cached_property
    def payload(self) -> bytes:
        """The payload, decompressed. Raises PeerError if it cannot be decoded."""
        return self._decoded_data[1]

    @cached_property
    def properties(self) -> dict[str, Value]:
        """Values of the properties by name. Raises PeerError if they cannot be decoded."""
        return {name: value for name, (_, value) in self._typed_properties.items()}

    @cached_property
    def property_types(self) -> dict[str, PropertyType]:
        """Types of the properties by name. Raises PeerError if they cannot be decoded."""
        return {name: kind for name, (kind, _) in self._typed_properties.items()}

    @cached_property
    def _typed_properties(self) -> wire_properties.Properties:
        return wire_properties.decode(self._decoded_data[0], self.schema_id != 0) if self.has_properties else {}

    @property
    def content(self) -> str:
        """The first bytes of the payload, and the properties, as text."""
        try:
            payload, properties = self.payload, self.properties
        except PeerError as error:
            return f"unreadable: {error}"
        shown = repr(payload[:_SHOWN_BYTES])[1:] + ("..." if len(payload) > _SHOWN_BYTES else "")
        return f"{len(payload)} B {shown}" + (f" {properties}" if properties else "")

    def matches(self, payload: bytes | None, properties: Mapping[str, object] | None) -> bool:
        """Return whether the message has this payload and at least these properties; None = any."""
        return (payload is None or self.payload == payload) and (
            properties is None or all(self.properties.get(name) == value for name, value in properties.items()))


@dataclass(kw_only=True)
class Post(ContentEvent):
    """A client posted a message. `status`: result of the acknowledgement, None = none yet."""

    status: Result | None = None
    shown = "post      {0.uri} {0._guid_text} {0.content}"


@dataclass(kw_only=True)
class Delivery(ContentEvent):
    """The broker sent a message to a consumer."""

    redelivered: bool = False
    shown = "  push    {0.full_uri} {0._guid_text} {0.content}{0._redelivered_text}"

    @property
    def _redelivered_text(self) -> str:
        return " redelivered" if self.redelivered else ""


@dataclass(kw_only=True)
class Ack(MessageEvent):
    """The broker acknowledged a post, or refused it."""

    status: Result = Result.SUCCESS
    shown = "  ack     {0.uri} {0._guid_text} {0.status}"


@dataclass(kw_only=True)
class Confirm(MessageEvent):
    """A consumer confirmed a message."""

    shown = "confirm   {0.full_uri} {0._guid_text}"


@dataclass(kw_only=True)
class Request(QueueEvent):
    """A request of a client. `status` and `reason`: the broker's answer, None = no answer yet."""

    status: Result | None = None
    reason: str = ""

    @property
    def _answer(self) -> str:
        if self.status is None:
            return "-> no answer yet"
        return "" if self.status is Result.SUCCESS else f"-> {self.status}: {self.reason}"


@dataclass(kw_only=True)
class Open(Request):
    """A client opened a queue."""

    read: bool = False
    write: bool = False
    shown = "open      {0.full_uri} for {0._access_text} {0._answer}"

    @property
    def _access_text(self) -> str:
        return " and ".join(name for name, wanted in (("read", self.read), ("write", self.write)) if wanted) or "nothing"


class RequestedSubscription(NamedTuple):
    """One subscription of a configure request."""

    expression: str  # "" = all messages
    max_unconfirmed_messages: int
    max_unconfirmed_bytes: int
    consumer_priority: int


@dataclass(kw_only=True)
class Configure(Request):
    """A client configured a queue; without subscriptions it receives no messages."""

    subscriptions: tuple[RequestedSubscription, ...] = ()
    shown = "configure {0.full_uri}: {0._subscriptions_text} {0._answer}"

    @property
    def _subscriptions_text(self) -> str:
        return ", ".join(f"{one.expression or 'everything'} (priority {one.consumer_priority}, "
                         f"{one.max_unconfirmed_messages} messages)" for one in self.subscriptions) or "nothing"


@dataclass(kw_only=True)
class Close(Request):
    """A client closed a queue."""

    shown = "close     {0.full_uri} {0._answer}"


@dataclass(kw_only=True)
class Negotiation(Request):
    """A client negotiated a session."""

    process: str = ""
    shown = "hello     from {0.process} {0._answer}"


@dataclass(kw_only=True)
class Other(Event):
    """Another event: heartbeat, disconnect, answer, credential. Transcripts omit `quiet` events."""

    what: str = ""
    quiet: bool = False
    shown = "{0.what}"
