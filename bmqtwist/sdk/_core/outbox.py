"""Output of a session core, in order: effects, the instructions to the adapter around it, and bytes for the broker.

Messages, acknowledgements and session events are effects, too: the adapter gives them to the application. Posts and
confirmations are collected and leave as one event each; any other message sends them first, so that no message overtakes
another. `wake` is called once when there begins to be something to take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from bmqtwist.errors import PeerError
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.states import Input, SessionState
from bmqtwist.sdk.counters import LiveCounters
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, SessionOptions
from bmqtwist.sdk.results import Ack, EventKind, Result, SessionEvent
from bmqtwist.wire import control
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage
from bmqtwist.wire.fast import EventType, event_header, items_event

FAILED_KEPT_MAX = 100  # acknowledgements of failed posts that a group keeps; all are counted


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a channel, then call `connected(attempt)` or `failed(attempt, reason)`."""

    attempt: int
    address: Address
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """Close the channel of that attempt, or abandon the attempt; report no event of it afterwards."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The request with `token` has ended, or the group of posts."""

    token: object
    result: Result
    message: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """Posts that wait for room may be tried again."""


@dataclass(frozen=True, slots=True)
class Note:
    level: int
    text: str


@dataclass(eq=False, slots=True)
class Group:
    """Posts that are waited for together, at no cost per message: `outstanding` counts those without an answer.

    `failed` holds the first FAILED_KEPT_MAX failures, `failures` counts them all, and `untold` those without a callback of
    their own. Nothing is reported before `seal`. `reported`: all failures were raised to the application.
    """

    token: object = None
    acks: dict[bytes, Ack] | None = None  # all of them, if they are wanted
    outstanding: int = 0
    sealed: bool = False
    failures: int = 0
    untold: int = 0
    reported: bool = False
    failed: list[Ack] = field(default_factory=list)

    def settle(self, ack: Ack) -> None:
        if self.acks is not None:
            self.acks[ack.guid] = ack
        if ack.status is not Result.SUCCESS:
            self.failures += 1
            self.untold += ack.token is None
            if len(self.failed) < FAILED_KEPT_MAX:
                self.failed.append(ack)


Effect = Connect | Close | Completed | Room | Note | Message[Any] | Ack | SessionEvent


class Outbox:
    """Effects and bytes that were not taken yet. `posts` and `confirms` collect packed ones, `batch_bytes` is the size of
    `posts`; `cut_posts` became events that are not with the channel yet. `unasked`: GUIDs of `posts` that want no
    acknowledgement, `leaving`: those of `cut_posts`. `woken`: the adapter knows that there is something to take."""

    __slots__ = ("_chunks", "_counters", "_deadlines", "_options", "_wake", "batch_bytes", "confirms", "cut_posts",
                 "effects", "leaving", "posts", "unasked", "woken")

    def __init__(self, options: SessionOptions, deadlines: Deadlines, counters: LiveCounters,
                 wake: Callable[[], None]) -> None:
        self._options, self._deadlines, self._counters, self._wake = options, deadlines, counters, wake
        self.woken: bool = False
        self.batch_bytes: int = 0
        self._chunks: list[bytes] = []
        self.effects: list[Effect] = []
        self.confirms: list[bytes] = []
        self.posts: list[bytes] = []
        self.cut_posts: list[bytes] = []
        self.unasked: list[bytes] = []
        self.leaving: list[bytes] = []

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            self._wake()

    # -- effects ----------------------------------------------------------------------------------------------------

    def add(self, effect: Effect) -> None:
        self.effects.append(effect)
        if not self.woken:
            self.woken = True
            self._wake()

    def complete(self, token: object, result: Result = Result.SUCCESS, message: str = "") -> None:
        """End a request; one without a token has no requester that waits."""
        if token is not None:
            self.add(Completed(token, result, message))

    def event(self, kind: EventKind, result: Result = Result.SUCCESS, message: str = "",
              queue: Queue | None = None) -> None:
        self._counters.event(kind)
        self.add(SessionEvent(kind, result, message, queue))

    def note(self, level: int, text: str) -> None:
        self.add(Note(level, text))

    def nonsense(self, error: PeerError) -> None:
        """Report an unreadable event of the broker."""
        self._counters.dropped += 1
        self.note(WARNING, f"from the broker: {error}")
        self.event(EventKind.ERROR, message=str(error))

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        self.woken = False
        return effects

    # -- bytes ------------------------------------------------------------------------------------------------------

    def write(self, chunk: bytes) -> None:
        """Bytes that may overtake collected posts and confirmations."""
        self._chunks.append(chunk)
        self.wake()

    def send(self, message: ControlMessage | NegotiationMessage | AuthenticationMessage) -> None:
        """A message of the schema, after everything that is collected."""
        if self.batch_bytes:
            self._cut_posts()
        if self.confirms:
            self._cut_confirms()
        self.write(control.encode_event(message, self._options.encoding))

    def take_output(self, flush: bool = False) -> list[bytes]:
        """The chunks to write now. A batch of posts that may still wait for its delay stays, unless `flush`."""
        options = self._options
        if self.batch_bytes and (flush or not options.batch_delay_s or self.batch_bytes >= options.batch_bytes_max
                                 or Input.BATCH_DUE not in self._deadlines):
            self._cut_posts()
        if self.confirms:
            self._cut_confirms()
        self.woken = bool(self.effects)
        if not self._chunks:
            return []
        chunks, self._chunks = self._chunks, []
        if self.cut_posts:
            self.cut_posts = []
        self._counters.bytes_out += sum(map(len, chunks))
        return chunks

    def clear(self) -> None:
        self._chunks.clear()
        self.confirms.clear()
        self.posts, self.cut_posts, self.unasked, self.leaving, self.batch_bytes = [], [], [], [], 0

    def _cut_posts(self) -> None:
        """The batch as PUT events of about the limit; a single message may be larger."""
        batch, self.posts, self.batch_bytes = self.posts, [], 0
        self.cut_posts += batch
        self.leaving += self.unasked
        self.unasked = []
        start, size = 0, 0
        for index, packed in enumerate(batch):
            if size and size + len(packed) > self._options.batch_bytes_max:
                self._chunks.append(b"".join((event_header(EventType.PUT, size), *batch[start:index])))
                start, size = index, 0
            size += len(packed)
        if size:
            self._chunks.append(b"".join((event_header(EventType.PUT, size), *batch[start:])))
        self._deadlines.clear(Input.BATCH_DUE)

    def _cut_confirms(self) -> None:
        confirms, self.confirms = self.confirms, []
        self._counters.confirms += len(confirms)
        self._chunks.append(items_event(EventType.CONFIRM, confirms))


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects that every part of one session is given."""

    options: SessionOptions
    state: SessionState
    outbox: Outbox
    deadlines: Deadlines
    counters: LiveCounters
