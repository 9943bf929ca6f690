"""Output of a session core, in order: effects (instructions to the adapter) and bytes for the broker.

Messages, acknowledgements and session events are effects as well: the adapter passes them to the application. Posts are
collected into PUT events of up to `batch_bytes_max` (`options.py`), confirmations into one CONFIRM event. Schema
messages (`send`) are encoded after the collected posts and confirmations, so the order is preserved; heartbeats
(`write`) may precede them. `on_output` is called once when effects or bytes become available. All parts of the core add
to the outbox; `_adapters/base.py` performs the effects, and the adapters write the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from bmqtwist.errors import PeerError
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.states import CurrentState, Input
from bmqtwist.sdk.counters import LiveCounters
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, SessionOptions
from bmqtwist.sdk.results import Ack, EventKind, Result, SessionEvent
from bmqtwist.wire import control
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage
from bmqtwist.wire.fast import EventType, event_header, items_event

FAILED_KEPT_MAX = 100  # acknowledgements of failed posts that a group stores; all are counted


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a channel to `address` or, if it does not answer at once, to one of the `others`. Then call
    `on_connected(attempt)` with the broker that has answered first, or `on_connect_failed(attempt, reason)`."""

    attempt: int
    address: Address
    timeout_s: float
    others: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class Close:
    """Close the channel of an attempt, or cancel the attempt; report no further event of it."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The request or group of posts with `token` has ended."""

    token: object
    result: Result
    message: str = ""


@dataclass(frozen=True, slots=True)
class RoomAvailable:
    """Posts that were refused with BW_LIMIT may be tried again."""


@dataclass(frozen=True, slots=True)
class WriteLog:
    """A line for the log, with a level of `logging`."""

    level: int
    text: str


@dataclass(eq=False, slots=True)
class PostGroup:
    """Posts with a common completion. `outstanding`: number of posts without an outcome.

    `failed`: the first FAILED_KEPT_MAX failures; `failures`: number of all failures, `unreported`: of failures without a
    callback. `reported`: the failures were raised to the application. The group completes after `Posts.seal`.
    """

    token: object = None
    acks: dict[bytes, Ack] | None = None  # by GUID; None: not collected
    outstanding: int = 0
    sealed: bool = False
    failures: int = 0
    unreported: int = 0
    reported: bool = False
    failed: list[Ack] = field(default_factory=list)

    def record(self, ack: Ack) -> None:
        if self.acks is not None:
            self.acks[ack.guid] = ack
        if ack.status is not Result.SUCCESS:
            self.failures += 1
            self.unreported += ack.token is None
            if len(self.failed) < FAILED_KEPT_MAX:
                self.failed.append(ack)


Effect = Connect | Close | Completed | RoomAvailable | WriteLog | Message[Any] | Ack | SessionEvent


class Outbox:
    """Effects and bytes that the adapter has not taken yet.

    `posts` and `confirms` are packed; `batch_bytes`: size of `posts`; `no_ack`: GUIDs of the posts that request no
    acknowledgement. `encoded_posts`, `encoded_no_ack`: posts and GUIDs of events that are encoded and not written yet.
    `notified`: `on_output` was called since the adapter last took the output.
    """

    __slots__ = ("_chunks", "_counters", "_deadlines", "_on_output", "_options", "batch_bytes", "confirms", "effects",
                 "encoded_no_ack", "encoded_posts", "no_ack", "notified", "posts")

    def __init__(self, options: SessionOptions, deadlines: Deadlines, counters: LiveCounters,
                 on_output: Callable[[], None]) -> None:
        self._options, self._deadlines, self._counters, self._on_output = options, deadlines, counters, on_output
        self.notified: bool = False
        self.batch_bytes: int = 0
        self._chunks: list[bytes] = []
        self.effects: list[Effect] = []
        self.confirms: list[bytes] = []
        self.posts: list[bytes] = []
        self.encoded_posts: list[bytes] = []
        self.no_ack: list[bytes] = []
        self.encoded_no_ack: list[bytes] = []

    def notify(self) -> None:
        if not self.notified:
            self.notified = True
            self._on_output()

    # -- effects ----------------------------------------------------------------------------------------------------

    def add(self, effect: Effect) -> None:
        self.effects.append(effect)
        if not self.notified:
            self.notified = True
            self._on_output()

    def complete(self, token: object, result: Result = Result.SUCCESS, message: str = "") -> None:
        """Complete the request with this token; None = the request has no requester."""
        if token is not None:
            self.add(Completed(token, result, message))

    def event(self, kind: EventKind, result: Result = Result.SUCCESS, message: str = "",
              queue: Queue | None = None) -> None:
        self._counters.event(kind)
        self.add(SessionEvent(kind, result, message, queue))

    def log(self, level: int, text: str) -> None:
        self.add(WriteLog(level, text))

    def report_invalid(self, error: PeerError) -> None:
        """Report an invalid event of the broker."""
        self._counters.dropped += 1
        self.log(WARNING, f"from the broker: {error}")
        self.event(EventKind.ERROR, message=str(error))

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        self.notified = False
        return effects

    # -- bytes ------------------------------------------------------------------------------------------------------

    def write(self, chunk: bytes) -> None:
        """Add bytes; they may be sent before collected posts and confirmations."""
        self._chunks.append(chunk)
        self.notify()

    def send(self, message: ControlMessage | NegotiationMessage | AuthenticationMessage) -> None:
        """Add a schema message after the collected posts and confirmations."""
        if self.batch_bytes:
            self._encode_posts()
        if self.confirms:
            self._encode_confirms()
        self.write(control.encode_event(message, self._options.encoding))

    def take_output(self, flush: bool = False) -> list[bytes]:
        """Return the chunks to write now. A batch whose delay has not passed stays, unless `flush`."""
        options = self._options
        if self.batch_bytes and (flush or not options.batch_delay_s or self.batch_bytes >= options.batch_bytes_max
                                 or Input.BATCH_DUE not in self._deadlines):
            self._encode_posts()
        if self.confirms:
            self._encode_confirms()
        self.notified = bool(self.effects)
        if not self._chunks:
            return []
        chunks, self._chunks = self._chunks, []
        if self.encoded_posts:
            self.encoded_posts = []
        self._counters.bytes_out += sum(map(len, chunks))
        return chunks

    def clear(self) -> None:
        self._chunks.clear()
        self.confirms.clear()
        self.posts, self.encoded_posts, self.no_ack, self.encoded_no_ack, self.batch_bytes = [], [], [], [], 0

    def _encode_posts(self) -> None:
        """Encode the batch as PUT events of up to `batch_bytes_max`; a larger message has an event of its own."""
        batch, self.posts, self.batch_bytes = self.posts, [], 0
        self.encoded_posts += batch
        self.encoded_no_ack += self.no_ack
        self.no_ack = []
        start, size = 0, 0
        for index, packed in enumerate(batch):
            if size and size + len(packed) > self._options.batch_bytes_max:
                self._chunks.append(b"".join((event_header(EventType.PUT, size), *batch[start:index])))
                start, size = index, 0
            size += len(packed)
        if size:
            self._chunks.append(b"".join((event_header(EventType.PUT, size), *batch[start:])))
        self._deadlines.clear(Input.BATCH_DUE)

    def _encode_confirms(self) -> None:
        confirms, self.confirms = self.confirms, []
        self._counters.confirms += len(confirms)
        self._chunks.append(items_event(EventType.CONFIRM, confirms))


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Objects shared by all parts of a session."""

    options: SessionOptions
    state: CurrentState
    outbox: Outbox
    deadlines: Deadlines
    counters: LiveCounters
