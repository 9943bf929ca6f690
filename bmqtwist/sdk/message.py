"""Delivered message; decompressed and parsed on first access.

`_core/deliveries.py` creates it from a PUSH; properties are decoded by `wire/properties.py`, payloads by the codecs of
`codecs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Generic, Self, cast

from bmqtwist.errors import LocalError
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk.codecs import ValueT
from bmqtwist.sdk.options import Subscription
from bmqtwist.sdk.results import Result, SdkError
from bmqtwist.wire import properties as wire_properties
from bmqtwist.wire.application_data import unpack_data
from bmqtwist.wire.properties import PropertyType, Value


class Message(Generic[ValueT]):
    """A delivered message; `Message[T]` if the queue's codec decodes to type T, else `Message[bytes]`.

    `guid`: 16 bytes; `queue`: its queue; `subscription`: the subscription that matched; `redelivered`: it may
    have been delivered before, to any consumer. `payload` and `properties` raise PeerError if the data is malformed. As a
    context manager, plain or `async`, it is confirmed at the end of the block, or given back if the block raises.
    """

    __slots__ = ("_area", "_data", "_flags", "_form", "_payload", "_properties", "_taken", "guid", "queue", "subscription")

    queue: Queue
    subscription: Subscription
    guid: bytes
    _taken: bool  # taken by the application, and neither confirmed nor given back; set by the queue

    def __init__(self, queue: Queue, subscription: Subscription, guid: bytes, data: bytes, flags: int,
                 form: int) -> None:
        self.queue, self.subscription, self.guid = queue, subscription, guid
        self._data, self._flags, self._form = data, flags, form  # form: schema id << 3 | CAT
        self._payload: bytes | None = None if flags & 2 or form else data
        self._area = b""
        self._properties: wire_properties.Properties | None = None

    def _open(self) -> None:
        self._area, self._payload = unpack_data(self._data, bool(self._flags & 2), self._form & 7, self._form >> 3)

    @property
    def payload(self) -> bytes:
        """Payload, decompressed, without properties."""
        if self._payload is None:
            self._open()
        return self._payload  # type: ignore[return-value]

    data = payload

    @property
    def value(self) -> ValueT:
        """Payload decoded by the queue's codec; without a codec the payload."""
        codec = self.queue.codec
        return cast(ValueT, self.payload if codec is None else codec.decode(self.payload))

    @property
    def _typed(self) -> wire_properties.Properties:
        if self._properties is None:
            if self._flags & 2:
                if self._payload is None:
                    self._open()
                self._properties = wire_properties.decode(self._area, self._form >> 3 != 0)
            else:
                self._properties = {}
        return self._properties

    @property
    def has_properties(self) -> bool:
        """True if the message has properties; does not parse them."""
        return bool(self._flags & 2)

    @property
    def properties(self) -> dict[str, Value]:
        """Values of the properties by name."""
        return {name: value for name, (_, value) in self._typed.items()}

    @property
    def property_types(self) -> dict[str, PropertyType]:
        """Types of the properties by name."""
        return {name: kind for name, (kind, _) in self._typed.items()}

    @property
    def redelivered(self) -> bool:
        """True if the message may have been delivered before; False if it was not."""
        return bool(self._flags & 4)

    @property
    def uri(self) -> str:
        """URI of the queue as opened."""
        return self.queue.uri

    def confirm(self) -> None:
        """Confirm the message; SdkError NOT_CONNECTED without a connection: the message is then redelivered."""
        self.queue.owner.confirm(self)

    def give_back(self) -> None:
        """Release the message without a confirmation: it is redelivered, to any consumer, after this queue is closed or its
        connection lost. `drain` no longer waits for it."""
        self.queue.owner.give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._end_block(kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        self._end_block(kind is None)

    def _end_block(self, done: bool) -> None:
        if done:
            try:
                self.confirm()
                return
            except SdkError as error:  # no connection, or the queue is closed: redelivered
                if error.result not in (Result.NOT_CONNECTED, Result.INVALID_QUEUE):
                    raise
        self.give_back()

    def __repr__(self) -> str:
        return f"<Message {self.guid.hex().upper()} for {self.queue.uri}>"


DEFAULT_TYPES: dict[type, PropertyType] = {bool: PropertyType.BOOL, int: PropertyType.INT64, str: PropertyType.STRING,
                                           bytes: PropertyType.BINARY}


def default_type(value: object) -> PropertyType | None:
    """Return the type of a property from its value, which may be an enumeration member; None = no such type."""
    return next((kind for base, kind in DEFAULT_TYPES.items() if isinstance(value, base)), None)  # bool before int


def typed(values: Mapping[str, object], types: Mapping[str, PropertyType] | None = None) -> wire_properties.Properties:
    """Return properties with types: `types`, else BOOL for bool, INT64 for int, STRING for str, BINARY for bytes.

    Sorted by name, as in the other SDKs. Raises LocalError for a value of another type, or a type without a property.
    """
    found: wire_properties.Properties = {}
    for name in sorted(values):
        value = values[name]
        kind = types.get(name) if types else None
        if kind is None:
            kind = DEFAULT_TYPES.get(type(value)) or default_type(value)
            if kind is None:
                raise LocalError(
                    f"property {name[:40]!r}: {type(value).__name__} is not a property type: use bool, int, str or bytes")
        found[name] = kind, value  # type: ignore[assignment]
    if types and not types.keys() <= values.keys():
        raise LocalError(f"types without a property: {', '.join(sorted(types.keys() - values.keys()))[:80]}")
    return found
