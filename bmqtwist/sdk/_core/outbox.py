"""Output of a session core, in order: effects for the adapter, and bytes for the broker.

Posts and confirmations are collected and leave as one event each; any other message sends them first, so that no message
overtakes another. `wake` is called once when there begins to be something to take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from logging import WARNING

from bmqtwist.errors import PeerError
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.effects import Completed, Effect, Note
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.states import Input, SessionState
from bmqtwist.sdk.counters import LiveCounters
from bmqtwist.sdk.options import SessionOptions
from bmqtwist.sdk.results import EventKind, Result, SessionEvent
from bmqtwist.wire import control
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage
from bmqtwist.wire.fast import EventType, event_header, items_event


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
