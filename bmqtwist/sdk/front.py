"""What the fronts with an event loop have in common: one turn performs what the core wants, writes, sets the timer.

A front says how to wake a promise (`fire`), to write, to connect, to close, and to be called later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from bmqtwist.sdk.core import SessionCore
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.effects import Close, Completed, Connect, Note, Room, Settled
from bmqtwist.sdk.log import emit
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.results import Ack, EventKind, Result, SdkError, SessionEvent
from bmqtwist.sdk.states import State


class Front(ABC):
    """Effects to actions. Promises are whatever the front waits with; callables among them are called."""

    core: SessionCore

    def __init__(self, on_event: Callable[[SessionEvent], object] | None,
                 on_nack: Callable[[Ack], object] | None) -> None:
        self._on_event, self._on_nack = on_event, on_nack
        self._scheduled = self._performing = self._flush = False
        self._rooms: list[Any] = []
        self.open_queues: set[Any] = set()
        self._deaf: Callable[[], None] | None = None
        self._actions: dict[type, Callable[[Any], None]] = {
            Message: self._on_message, Ack: self._on_ack, Completed: self._on_completed, Settled: self._on_settled,
            SessionEvent: self._on_session_event, Room: self._on_room, Connect: self._on_connect,
            Close: self._on_close, Note: emit}

    def counters(self) -> Counters:
        """What this session has done so far, and how things stand."""
        return self.core.counters()

    # -- a front has these of its own -------------------------------------------------------------------------------

    @abstractmethod
    def fire(self, promise: Any, value: object) -> None:
        """Give a promise its value, unless nobody waits any more."""

    @abstractmethod
    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the application back; its mistakes are reported and cost nothing else."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Hand bytes to the channel, if there is one."""

    @abstractmethod
    def set_timer(self, due: float | None) -> None:
        """Call `core.tick` and `turn` at that time."""

    @abstractmethod
    def connect(self, effect: Connect) -> None:
        """Open a channel."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the channel, or give up opening it."""

    # -- turns ------------------------------------------------------------------------------------------------------

    def turn(self, flush: bool = False) -> None:
        """Perform what the core wants, write, and set the timer."""
        self._scheduled = False
        self._flush |= flush
        if self._performing:  # called back by an effect: the turn under way goes on with what was added
            return
        core, actions = self.core, self._actions
        self._performing = True
        try:
            while effects := core.take_effects():
                for effect in effects:
                    actions[type(effect)](effect)
        finally:
            self._performing = False
        chunks = core.take_output(self._flush)
        self._flush = False
        if chunks:
            self.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        self.set_timer(core.deadline())

    def _on_message(self, message: Message) -> None:
        message.queue.owner.deliver(message)

    def _on_ack(self, ack: Ack) -> None:
        if callable(ack.token):
            self.call(ack.token, ack)
        elif ack.token is not None:
            self.fire(ack.token, ack)
        elif self._on_nack is not None:
            self.call(self._on_nack, ack)

    def _on_completed(self, completed: Completed) -> None:
        self.fire(completed.token, completed)

    def _on_settled(self, settled: Settled) -> None:
        if settled.group.token is not None:
            self.fire(settled.group.token, None)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event.kind is EventKind.QUEUE_REOPEN_RESULT and event.result is not Result.SUCCESS and event.queue:
            event.queue.owner.end(SdkError(event.result, event.message))
        if self._on_event is not None:
            self.call(self._on_event, event)

    def _on_room(self, _: Room) -> None:
        rooms, self._rooms = self._rooms, []
        for promise in rooms:
            self.fire(promise, None)

    def _on_connect(self, effect: Connect) -> None:
        self.connect(effect)

    def _on_close(self, _: Close) -> None:
        self.disconnect()
        if self.core.state is State.STOPPED:
            if self._deaf is not None:
                self._deaf()
                self._deaf = None
            for queue in list(self.open_queues):
                queue.end()
