"""A session core of the SDK with a scripted broker, and a clock that tests advance.

Used by tests/unit/sdk and `property/test_sdk_session.py`; recordings are played by `sdk_playback.py`, fronts are run by
`sdk_fronts_kit.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from bmqtwist.errors import Category
from bmqtwist.ids import GuidGenerator
from bmqtwist.sdk import Ack, EventKind, QueueOptions, SessionEvent, SessionOptions
from bmqtwist.sdk._core.outbox import Close, Completed, Connect, RoomAvailable, WriteLog
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk.message import Message
from bmqtwist.wire import control, schema
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage
from bmqtwist.wire.fast import EventType, sub_queue_ids
from bmqtwist.wire.frames import FrameBuffer
from kit import data_events as events

FEATURES = ("PROTOCOL_ENCODING:BER,JSON;HA:GRACEFUL_SHUTDOWN,GRACEFUL_SHUTDOWN_V2;MPS:MESSAGE_PROPERTIES_EX;"
            "SUBSCRIPTIONS:CONFIGURE_STREAM")
URI = "bmq://bmq.test.mem.priority/q1"
FANOUT = "bmq://bmq.test.mem.fanout/q1"
CLIENT_ID = bytes.fromhex("0A0B0C0D0E0F")


@dataclass
class Bench:
    """A session core; `received` has its messages to the broker, the other lists its effects for the application."""

    options: SessionOptions = field(default_factory=SessionOptions)
    features: str = FEATURES
    heartbeat_ms: int = 3000
    missed_max: int = 0
    routing_flags: int = 2
    deduplication_ms: int = 300_000
    acks_at_once: bool = True
    client_id: bytes = CLIENT_ID

    def __post_init__(self) -> None:
        self.now = 1000.0
        self.turn_requests = 0
        self.silent: set[str] = set()  # requests without an answer
        self.refuse: dict[str, Category] = {}  # requests that are answered with a status
        self.up = True  # whether the broker accepts connections
        self.down: set[str] = set()  # hosts that do not accept connections
        self.connected = False
        self.attempt = 0
        self.connects: list[Connect] = []
        self.closes: list[Close] = []
        self.received: list[Any] = []  # control values, Put, Confirm, "HEARTBEAT_REQ", ... in order
        self.events: list[SessionEvent] = []
        self.acks: list[Ack] = []
        self.messages: list[Message] = []
        self.done: dict[object, Completed] = {}
        self.rooms = 0
        self.notes: list[WriteLog] = []
        self.log: list[str] = []  # all effects for the application, in order
        self.requests: list[ControlMessage] = []
        self._guids = GuidGenerator(self.client_id, 0)
        self._ticks = count(1)
        identity = schema.ClientIdentity(1, client_type=schema.ClientType.E_TCPCLIENT)
        self.make_guid: Callable[[], bytes] = lambda: self._guids.make(next(self._ticks))
        self.core = SessionCore(self.options, identity, lambda: self.make_guid(), self.now, on_output=self._request_turn)
        self._frames = FrameBuffer(1 << 20)
        self._wire: deque[bytes] = deque()
        self._negotiated = False

    def _request_turn(self) -> None:
        self.turn_requests += 1

    # -- turns ------------------------------------------------------------------------------------------------------

    def turn(self, *, flush: bool = False) -> None:
        """Perform effects and answer output until the core has neither."""
        while True:
            effects = self.core.take_effects()
            for effect in effects:
                self._perform(effect)
            chunks = self.core.take_output(flush)
            if self.connected:
                self._wire.extend(chunks)
            while self._wire:  # including output caused by an answer, in order
                self._broker(self._wire.popleft())
            if not effects and not chunks:
                return

    def _perform(self, effect: object) -> None:
        if isinstance(effect, Connect):
            self.connects.append(effect)
            self.attempt = effect.attempt
            if self.up and effect.address.host not in self.down:
                self.connected, self._negotiated = True, False
                self._frames = FrameBuffer(1 << 20)
                self.core.on_connected(effect.attempt, self.now)
            else:
                self.core.on_connect_failed(effect.attempt, "connection refused", self.now)
        elif isinstance(effect, Close):
            self.closes.append(effect)
            self._wire.clear()
            self.connected = False
        elif isinstance(effect, Completed):
            self.done[effect.token] = effect
            self.log.append(f"done {effect.token} {effect.result}")
        elif isinstance(effect, WriteLog):
            self.notes.append(effect)
        elif isinstance(effect, RoomAvailable):
            self.rooms += 1
        elif isinstance(effect, Message):
            self.messages.append(effect)
            self.log.append(f"message {effect.payload.decode()}")
        elif isinstance(effect, Ack):
            self.acks.append(effect)
            self.log.append(f"ack {effect.token} {effect.status}")
        elif isinstance(effect, SessionEvent):
            self.events.append(effect)
            self.log.append(f"event {effect.kind.name}" + (f" {effect.uri}" if effect.uri else ""))

    def advance(self, seconds: float) -> None:
        """Advance the clock, stopping at each deadline of the core."""
        end = self.now + seconds
        while True:
            due = self.core.next_deadline()
            if due is None or due > end:
                break
            self.now = max(due, self.now)
            self.core.tick(self.now)
            self.turn()
        self.now = end
        self.core.tick(self.now)
        self.turn()

    # -- the broker -------------------------------------------------------------------------------------------------

    def _broker(self, chunk: bytes) -> None:
        buffer, spans = self._frames.receive(chunk)
        for kind, specific, start, end in spans:
            if kind == EventType.PUT:
                puts, error = events.decode_put(buffer, start, end)
                assert error is None
                self.received += puts
                wanted = [put for put in puts if put.flags & 1]
                if self.acks_at_once and wanted:
                    self.ack(*wanted)
            elif kind == EventType.CONFIRM:
                self.received += events.decode_confirm(buffer, start, end)[0]
            elif kind == EventType.AUTHENTICATION:
                message: Any = control.decode_authentication(buffer[start:end], specific >> 5)
                self.received.append(message.value)
                self._authenticate()
            elif kind == EventType.CONTROL and not self._negotiated:
                self._negotiated = True
                self.received.append(control.decode_negotiation(buffer[start:end], specific >> 5).value)
                self._negotiate()
            elif kind == EventType.CONTROL:
                message = control.decode_control(buffer[start:end], specific >> 5)
                self.received.append(message.value)
                self.requests.append(message)
                self.answer(message)
            else:
                self.received.append(EventType(kind).name)

    def send_from_broker(self, *messages: Any) -> None:
        """Send schema messages, or bytes, as the broker."""
        for message in messages:
            data = message if isinstance(message, bytes) else control.encode_event(message)
            self.core.on_data(data, self.now)
        self.turn()

    def _authenticate(self) -> None:
        if "authenticationRequest" not in self.silent:
            category = self.refuse.get("authenticationRequest", Category.E_SUCCESS)
            self.send_from_broker(AuthenticationMessage("authenticationResponse", schema.AuthenticationResponse(
                schema.Status(category, 0, "" if not category else "no"), 60_000)))

    def _negotiate(self) -> None:
        if "clientIdentity" in self.silent:
            return
        category = self.refuse.get("clientIdentity", Category.E_SUCCESS)
        self.send_from_broker(NegotiationMessage("brokerResponse", schema.BrokerResponse(
            schema.Status(category, 0, "refused" if category else ""), 1, 999999, False,
            schema.ClientIdentity(1, client_type=schema.ClientType.E_TCPBROKER, features=self.features),
            self.heartbeat_ms, self.missed_max)))

    def answer(self, message: ControlMessage, force: bool = False) -> None:
        """Answer a request: as `silent` and `refuse` say, or with success."""
        name = message.choice
        if name in self.silent and not force:
            return
        if name in self.refuse:
            refusal = schema.Status(self.refuse[name], 1, f"{name} refused")
            self.send_from_broker(ControlMessage(message.r_id, "status", refusal))
            return
        value: Any
        if name == "openQueue":
            value = schema.OpenQueueResponse(message.value, schema.RoutingConfiguration(self.routing_flags),
                                             self.deduplication_ms)
        elif name == "configureStream":
            value = schema.ConfigureStreamResponse(message.value)
        elif name == "configureQueueStream":
            value = schema.ConfigureQueueStreamResponse(message.value)
        elif name == "closeQueue":
            value = schema.CloseQueueResponse()
        else:
            value = schema.DisconnectResponse()
        self.send_from_broker(ControlMessage(message.r_id, f"{name}Response", value))

    def ack(self, *puts: events.PutMessage, status: int = 0) -> None:
        """Send ACKs for PUT messages."""
        self.send_from_broker(events.encode_ack([events.AckMessage(status, 0, put.guid, put.queue_id) for put in puts]))

    def push(self, payload: bytes, s_id: int = 1, q_id: int = 0, guid: bytes = bytes(15) + b"\1", flags: int = 0) -> None:
        """Send a PUSH message."""
        message = events.PushMessage(q_id, guid, payload, flags, options=sub_queue_ids([s_id]))
        self.send_from_broker(events.encode_push([message]))

    # -- the application --------------------------------------------------------------------------------------------

    def start(self) -> Bench:
        """Start the session, and negotiate unless the broker is silent."""
        self.core.start("start", self.now)
        self.turn()
        return self

    def open(self, uri: str = URI, *, read: bool = False, write: bool = True, options: QueueOptions | None = None,
             timeout_s: float | None = None) -> Queue:
        """Open a queue; its outcome is in `done` under ("open", uri)."""
        queue = self.core.open(uri, ("open", uri), self.now, read=read, write=write, queue_options=options,
                               timeout_s=timeout_s)
        self.turn()
        return queue

    def post(self, queue: Queue, payload: bytes, *, turn: bool = True, values: Any = None, types: Any = None,
             **more: Any) -> bytes:
        """Post a message with the payload as token; return its GUID."""
        guid = self.core.post(queue, payload, self.now, values, types, Post(token=payload, **more))
        if turn:
            self.turn()
        return guid

    def cut_connection(self, *, up: bool = True) -> None:
        """Cut the connection."""
        self.up, self.connected = up, False
        self._wire.clear()
        self.core.on_connection_lost(self.attempt, "connection reset", self.now)
        self.turn()

    def restore_broker(self) -> None:
        """Let the broker accept connections, and wait 40 s, longer than the delay of a new attempt."""
        self.up = True
        self.advance(40.0)

    def kinds(self) -> list[EventKind]:
        """Return the kinds of all session events."""
        return [event.kind for event in self.events]

    def puts(self) -> list[events.PutMessage]:
        """Return all PUT messages received by the broker."""
        return [each for each in self.received if isinstance(each, events.PutMessage)]

    def payloads(self) -> list[bytes]:
        """Return the data of all PUT messages received by the broker."""
        return [put.data for put in self.puts()]

    def last(self, kind: type) -> Any:
        """Return the last message of a kind received by the broker."""
        return [each for each in self.received if isinstance(each, kind)][-1]

    def count(self, kind: type) -> int:
        """Return the number of messages of a kind received by the broker."""
        return sum(isinstance(each, kind) for each in self.received)
