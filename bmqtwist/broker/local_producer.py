"""Local producer of test messages, for the console.

It opens the queue as a client does: limits and authorization apply, and the primary sends the ACKs.

    publish --> open the queue, also at an upstream node --> post `count` messages --> wait for ACKs --> close, call `done`

Called by `console/actions.py`. Clients of connections are in `link/client.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from crc32c import crc32c

from bmqtwist.errors import AckStatus, LocalError, Refused
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.link.states import ConnectionState
from bmqtwist.queue.handles import OpenRequest, open_queue
from bmqtwist.queue.queue import FLAG_ACK, FLAG_WRITE, Handle, Put, Queue
from bmqtwist.queue.window import DeliveryWindow
from bmqtwist.report import shown
from bmqtwist.storage.message import Message
from bmqtwist.wire.application_data import SCHEMA_ANONYMOUS
from bmqtwist.wire.properties import Properties, encode

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

COUNT_MAX = 100  # messages of one call
PAYLOAD_BYTES_MAX = 1 << 20  # of one message
CONSOLE_USER = "CONSOLE_USER-"  # prefix of a console user's name in a principal: no authenticator grants it
PUBLISH_TIMEOUT_S = 10.0  # timeout of the open and the ACKs together
_REQUEST = OpenRequest(0, 0, None, FLAG_WRITE | FLAG_ACK, 0, 1, 0)


@dataclass(slots=True)
class Published:
    """Result of one call. `results`: for each message its `guid`, the `status` of its ACK (UNKNOWN = timeout) and the `ms`
    until the ACK; `error`: the reason why no message was posted."""

    results: list[dict[str, str | float]] = field(default_factory=list)
    error: str = ""

    def tree(self) -> dict[str, object]:
        """The result as JSON."""
        return {"results": self.results, "failed": sum(each["status"] != AckStatus.SUCCESS.name for each in self.results),
                "error": self.error or None}


def publish(broker: Broker, uri: str, payload: bytes, properties: Properties, count: int, by: str,
            done: Callable[[Published], None]) -> None:
    """Post messages to a queue in the name of the console user `by`; `done` is called once, in a later turn. Raises
    LocalError if an argument is invalid or the broker stops."""
    if not broker.sessions.serving:
        raise LocalError("This node is stopping: post at another node")
    try:
        canonical = parse_uri(uri)
    except InvalidUri as error:
        raise LocalError(f"'{uri[:80]}' is no queue URI: {error}") from None
    if canonical.app_id:
        raise LocalError("Messages are posted to a queue, not to one of its apps: omit '?id='")
    if not 1 <= count <= COUNT_MAX:
        raise LocalError(f"{count} messages are not possible: post 1 to {COUNT_MAX} at a time")
    if not payload or len(payload) > PAYLOAD_BYTES_MAX:
        raise LocalError(f"A payload of {len(payload)} bytes is not possible: it must have 1 to {PAYLOAD_BYTES_MAX}")
    data = (encode(properties, v2=True) if properties else b"") + payload
    producer = LocalProducer(broker, by, data, bool(properties), count, done)
    broker.loop.call_later(0.0, lambda now: broker.queues.find_queue(producer, canonical, _REQUEST, producer.on_found))
    broker.loop.call_later(PUBLISH_TIMEOUT_S, producer.on_timeout)
    broker.loop.performer.request_turn()


class LocalProducer:
    """`queue.queue.Client` and `relay.relays.Requester` of one call."""

    is_broker = is_member = resumes_at_once = False
    kind = None

    def __init__(self, broker: Broker, by: str, data: bytes, has_properties: bool, count: int,
                 done: Callable[[Published], None]) -> None:
        self._broker, self._data, self._has_properties, self._count, self._done = broker, data, has_properties, count, done
        self.principal = self.owner = f"{CONSOLE_USER}{by}"
        self.description = f"{shown(by)}@console"
        self.window = DeliveryWindow()
        self.state = ConnectionState.SERVING
        self._handle: Handle | None = None
        self._posted: dict[bytes, float] = {}  # GUID -> moment of the PUT, of messages without an ACK
        self._published = Published()

    @property
    def authentication(self) -> LocalProducer:
        return self

    @property
    def wall(self) -> int:
        return self._broker.loop.wall(self._broker.loop.now)

    # -- steps ------------------------------------------------------------------------------------------------------

    def on_found(self, found: Queue | Refused) -> None:
        """Open the queue, and post the messages."""
        broker = self._broker
        if isinstance(found, Refused):
            self._end(found.message)
            return
        if self.state is ConnectionState.CLOSED or not broker.sessions.serving:
            broker.queues.release_unused(found)
            self._end("This node is stopping")
            return
        try:
            self._handle = open_queue(found, self, None, _REQUEST)
        except Refused as refused:
            broker.queues.release_unused(found)
            self._end(refused.message)
            return
        for _ in range(self._count):
            self._post(self._handle, broker.loop.now)
        broker.loop.performer.request_turn()
        self._end_if_answered()

    def _post(self, handle: Handle, now: float) -> None:
        broker = self._broker
        guid = broker.queues.make_guid()
        message = Message(guid, self._data, b"", self._has_properties, 0, SCHEMA_ANONYMOUS if self._has_properties else 0,
                          crc32c(self._data), now, self.wall)
        self._posted[guid] = now
        try:
            refused = handle.queue.post(Put(handle, message, 0, True), now, self.wall)
        except Exception as error:
            handle.queue.undo_post(guid)
            broker.loop.isolation.alarm(f"{self.description}: a test message for '{handle.queue.uri}'", error)
            refused = AckStatus.UNKNOWN
        if refused:
            self.ack(handle, guid, 0, refused)

    def on_timeout(self, now: float) -> None:
        """End after the timeout: messages without an ACK get the status UNKNOWN."""
        if self.state is ConnectionState.CLOSED:
            return
        for guid in list(self._posted):
            self._answered(guid, AckStatus.UNKNOWN.name)
        self._end("" if self._handle is not None else f"The queue was not opened within {PUBLISH_TIMEOUT_S:g} s")

    def _end_if_answered(self) -> None:
        if self._handle is not None and not self._posted and len(self._published.results) == self._count:
            self._end("")

    def _end(self, error: str) -> None:
        if self.state is ConnectionState.CLOSED:
            return
        self.state, self._published.error = ConnectionState.CLOSED, error
        self._broker.loop.call_later(0.0, self._close)  # not within a call of the queue
        self._broker.loop.performer.request_turn()

    def _close(self, now: float) -> None:
        handle = self._handle
        if handle is not None:
            self._broker.queues.close_queue(self, handle, _REQUEST, True, partial(self._closed, handle))
        self._done(self._published)

    def _closed(self, handle: Handle, closed: bool | Refused) -> None:
        self._broker.queues.release_unused(handle.queue)

    # -- queue.queue.Client ----------------------------------------------------------------------------------------

    def push(self, handle: Handle, sub_id: int, message: Message, redelivered: bool) -> None: ...

    def ack(self, handle: Handle, guid: bytes, correlation_id: int, status: int) -> None:
        if self.state is not ConnectionState.CLOSED and guid in self._posted:
            self._answered(guid, AckStatus(status).name)
            self._end_if_answered()

    def _answered(self, guid: bytes, status: str) -> None:
        seconds = max(0.0, self._broker.loop.now - self._posted.pop(guid))
        self._published.results.append({"guid": guid.hex().upper(), "status": status, "ms": seconds * 1000})
