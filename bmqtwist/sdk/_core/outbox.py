"""Everything that comes out of a session core, in order: effects for the adapter, and bytes for the broker.

Posts and confirmations are collected and leave as one event each; whatever is sent otherwise lets them go first, so that
nothing overtakes anything. `wake` is called once when there begins to be something to take.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import WARNING

from bmqtwist.errors import PeerError
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.effects import Completed, Effect, Note
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk._core.states import Input
from bmqtwist.sdk._core.unacked import UnackedPosts
from bmqtwist.sdk.counters import LiveCounters
from bmqtwist.sdk.options import SessionOptions
from bmqtwist.sdk.results import EventKind, Result, SessionEvent
from bmqtwist.wire import control
from bmqtwist.wire.control import AuthenticationMessage, ControlMessage, NegotiationMessage
from bmqtwist.wire.fast import EventType, items_event


class Outbox:
    """Effects and bytes that were not taken yet. `confirms` collects packed confirmations; `woken`: it is known that
    there is something to take."""

    __slots__ = ("_chunks", "_counters", "_deadlines", "_options", "_unacked", "_wake", "confirms", "effects",
                 "woken")

    def __init__(self, options: SessionOptions, unacked: UnackedPosts, deadlines: Deadlines, counters: LiveCounters,
                 wake: Callable[[], None]) -> None:
        self._options, self._unacked, self._deadlines, self._counters = options, unacked, deadlines, counters
        self._wake = wake
        self.woken: bool = False
        self._chunks: list[bytes] = []
        self.effects: list[Effect] = []
        self.confirms: list[bytes] = []

    def wake(self) -> None:
        """There is something to take."""
        if not self.woken:
            self.woken = True
            self._wake()

    # -- effects ----------------------------------------------------------------------------------------------------

    def add(self, effect: Effect) -> None:
        """Add an effect."""
        self.effects.append(effect)
        if not self.woken:
            self.woken = True
            self._wake()

    def complete(self, token: object, result: Result = Result.SUCCESS, message: str = "") -> None:
        """A request has ended; without a token nobody waits for that."""
        if token is not None:
            self.add(Completed(token, result, message))

    def event(self, kind: EventKind, result: Result = Result.SUCCESS, message: str = "",
              queue: Queue | None = None) -> None:
        """Tell the application."""
        self._counters.event(kind)
        self.add(SessionEvent(kind, result, message, queue))

    def note(self, level: int, text: str) -> None:
        """Something for the log; `level` as in `logging`."""
        self.add(Note(level, text))

    def nonsense(self, error: PeerError) -> None:
        """The broker has sent something that cannot be read."""
        self._counters.dropped += 1
        self.note(WARNING, f"from the broker: {error}")
        self.event(EventKind.ERROR, message=str(error))

    def take_effects(self) -> list[Effect]:
        """What to do now, in order."""
        effects, self.effects = self.effects, []
        self.woken = False
        return effects

    # -- bytes ------------------------------------------------------------------------------------------------------

    def write(self, chunk: bytes) -> None:
        """Bytes that need not wait for what is collected."""
        self._chunks.append(chunk)
        self.wake()

    def send(self, message: ControlMessage | NegotiationMessage | AuthenticationMessage) -> None:
        """A message of the schema, after everything that is collected."""
        if self._unacked.batch_bytes:
            self._cut_posts()
        if self.confirms:
            self._cut_confirms()
        self.write(control.encode_event(message, self._options.encoding))

    def take_output(self, flush: bool = False) -> list[bytes]:
        """What to write now. A batch of posts that may still wait for its delay stays, unless `flush`."""
        if self._unacked.batch_bytes and (flush or self._batch_ready()):
            self._cut_posts()
        if self.confirms:
            self._cut_confirms()
        self.woken = bool(self.effects)
        if not self._chunks:
            return []
        chunks, self._chunks = self._chunks, []
        self._unacked.handed_over()
        self._counters.bytes_out += sum(map(len, chunks))
        return chunks

    def clear(self) -> None:
        """The connection is gone: what was to be written is void."""
        self._chunks.clear()
        self.confirms.clear()

    def _batch_ready(self) -> bool:
        options = self._options
        if not options.batch_delay_s or self._unacked.batch_bytes >= options.batch_bytes_max:
            return True
        return Input.BATCH_DUE not in self._deadlines

    def _cut_posts(self) -> None:
        self._chunks.extend(self._unacked.cut())
        self._deadlines.clear(Input.BATCH_DUE)

    def _cut_confirms(self) -> None:
        confirms, self.confirms = self.confirms, []
        self._counters.confirms += len(confirms)
        self._chunks.append(items_event(EventType.CONFIRM, confirms))
