"""Base of sessions on an event loop: a turn performs effects, writes, and sets the timer.

Subclasses define how to open a channel (`dial`), delayed calls, and promises. The subclasses are in `aio.py` and `tx.py`;
the calls of the application are in `base.py`.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, cast

from bmqtwist.dialing import Race
from bmqtwist.sdk._adapters import forks
from bmqtwist.sdk._adapters.base import BaseQueue, BaseSession, Cancel, OnAck, OnEvent
from bmqtwist.sdk._adapters.identity import make_core
from bmqtwist.sdk._adapters.log import reason_of
from bmqtwist.sdk._core.outbox import Close, Connect
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk._core.states import State
from bmqtwist.sdk.codecs import ValueT
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, SessionOptions
from bmqtwist.sdk.results import SdkError
from bmqtwist.wire.properties import PropertyType

READ_BYTES = 1 << 16  # maximum per read: some hundred small messages
_MESSAGES_PER_TURN = 100  # of one iteration, before other tasks run


class LoopSession(BaseSession):
    """Session whose turns run on an event loop. `clock`: seconds."""

    core: SessionCore
    options: SessionOptions
    clock: Callable[[], float]

    def __init__(self, options: SessionOptions, on_event: OnEvent | None, on_nack: OnAck | None,
                 health: HealthMonitor | None, clock: Callable[[], float]) -> None:
        super().__init__(on_event, on_nack)
        self.options, self.clock = options, clock
        self._scheduled = self._performing = self._flush = False
        self._channel: Any = None
        self._attempt: _Attempt | None = None
        self._timer: Cancel | None = None
        self._timer_due = 0.0
        self.core = make_core(options, clock(), self._schedule_turn)
        self._listen(health, lambda healthy: self.call_from_thread(self._set_health, healthy))
        forks.register(self)

    # -- defined by subclasses ----------------------------------------------------------------------------------------

    @abstractmethod
    def call_soon(self, action: Callable[[], object]) -> object:
        """Call back in the next iteration of the loop."""

    @abstractmethod
    def call_from_thread(self, action: Callable[[bool], object], argument: bool) -> object:
        """Call back in the next iteration of the loop; callable from any thread."""

    @abstractmethod
    def run_concurrently(self, coroutine: Any) -> Cancel:
        """Run a coroutine concurrently."""

    @abstractmethod
    def make_channel(self, attempt: int) -> Any:
        """Return an unconnected channel with `attempt`, `is_connected()`, `write`, `abort()` and `fileno()` (-1: none)."""

    @abstractmethod
    async def dial(self, address: Address, channel: Any) -> None:
        """Connect a channel; any Exception is a failed attempt."""

    def __del__(self) -> None:
        core = getattr(self, "core", None)
        if core is not None and core.state not in (State.IDLE, State.STOPPED):
            unacked, failures = len(core.unacked), self.take_all_failures()
            warnings.warn(f"{self!r} was not stopped: use it with `async with`, or call `stop`"
                          + (f"; {unacked} posts are not acknowledged" if unacked else "")
                          + (f"; {failures}" if failures else ""),
                          UserWarning if unacked or failures else ResourceWarning, stacklevel=2)

    def on_forked(self, core: Any) -> None:
        """Called in a child process: end this copy of the session without sending anything."""
        channel, self._channel, self.core = self._channel, None, core
        if channel is not None:
            forks.detach_descriptor(channel.fileno())

    # -- turns ------------------------------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.call_soon(self.turn)

    def turn(self, flush: bool = False) -> None:
        self._scheduled = False
        self._flush |= flush
        if self._performing:  # called by an effect: the current turn performs the new effects
            return
        core, perform = self.core, self._perform
        self._performing = True
        try:
            while effects := core.take_effects():
                for effect in effects:
                    perform(effect)
        finally:
            self._performing = False
        chunks = core.take_output(self._flush)
        self._flush = False
        if chunks and self._channel is not None:
            self._channel.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        self._set_timer(core.next_deadline())

    def _set_timer(self, due: float | None) -> None:
        """Set the timer to `due`; a timer that fires early is set again."""
        timer = self._timer
        if timer is not None:
            if due is not None and self._timer_due <= due:
                return
            timer()
            self._timer = None
        if due is not None:
            self._timer, self._timer_due = self.call_at(due, self._on_timer), due

    def _on_timer(self) -> None:
        self._timer = None
        self.core.tick(self.clock())
        self.turn()

    # -- the channel ------------------------------------------------------------------------------------------------

    def _on_connect(self, effect: Connect) -> None:
        self._attempt = _Attempt(self, effect)
        self._attempt.advance()

    def on_attempt_ended(self, effect: Connect, broker: Address | None, channel: Any, causes: Mapping[Address, str]) -> None:
        """Called by the attempt: a channel is connected, or none could be (`broker` None); `causes`: the reason of each."""
        self._attempt = None
        if broker is None:
            self.core.on_connect_failed(effect.attempt, "", self.clock(), causes)
        else:
            self._channel = channel
            self.core.on_connected(effect.attempt, self.clock(), broker)
        self.turn()

    def _on_close(self, effect: Close) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abort()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
        super()._on_close(effect)

    def on_data(self, channel: Any, data: bytes) -> None:
        """Called by a channel: handle received bytes."""
        if channel is self._channel:
            self.core.on_data(data, self.clock())
            self.turn()

    def on_blocked(self, channel: Any, blocked: bool) -> None:
        """Called by a channel: pause or resume posts."""
        if channel is self._channel:
            (self.core.pause_posts if blocked else self.core.resume_posts)(self.clock())

    def on_connection_lost(self, channel: Any, reason: str) -> None:
        """Called by a channel: the connection is lost."""
        if channel is self._channel:
            self._channel = None
            self.core.on_connection_lost(channel.attempt, reason, self.clock())
            self.turn()

    # -- the application --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._stop(kind is None)


class _Attempt:
    """One attempt of a session: a race over the brokers of a Connect effect, each with a channel of its own."""

    def __init__(self, session: LoopSession, effect: Connect) -> None:
        self._session, self._effect = session, effect
        self._race = Race((effect.address, *effect.others))
        self._running: dict[Any, Cancel | None] = {}  # by channel
        self._timer: Cancel | None = None
        self._over = False
        self._causes: dict[Address, str] = {}

    def advance(self) -> None:
        """Start the connections that are due, and set the timer of the next one."""
        race, session = self._race, self._session
        if self._timer is not None:
            self._timer()
            self._timer = None
        while not self._over and (broker := race.take(session.clock())) is not None:
            channel = session.make_channel(self._effect.attempt)
            self._running[channel] = None
            cancel = session.run_concurrently(self._connect(broker, channel))
            if channel in self._running:  # else it has ended already
                self._running[channel] = cancel
        if not self._over and race.next_at is not None:
            self._timer = session.call_at(race.next_at, self.advance)

    async def _connect(self, broker: Address, channel: Any) -> None:
        reason = ""
        try:
            await self._session.dial(broker, channel)
        except Exception as error:  # noqa: BLE001 - any error is a failed attempt
            reason = reason_of(error)
        except BaseException:
            channel.abort()
            raise
        self._running.pop(channel, None)
        if self._over or self._effect.attempt != self._session.core.attempt:
            channel.abort()
        elif not reason and channel.is_connected():
            self.cancel()
            self._session.on_attempt_ended(self._effect, broker, channel, {})
        else:
            self._causes[broker] = reason or "closed by the broker"
            self._race.on_failed(self._causes[broker])
            if self._race.is_lost:
                self.cancel()
                self._session.on_attempt_ended(self._effect, None, None, self._causes)
            else:
                self.advance()

    def cancel(self) -> None:
        """End all connections of the attempt that are not established."""
        self._over = True
        if self._timer is not None:
            self._timer()
        for cancel in list(self._running.values()):
            if cancel is not None:
                cancel()


class LoopQueue(BaseQueue[ValueT], Generic[ValueT]):
    """Queue of a session on an event loop; an asynchronous iterator over its messages until it is closed."""

    def post_nowait(self, payload: ValueT, properties: Mapping[str, object] | None = None,
                    types: Mapping[str, PropertyType] | None = None, *, ack: bool = True, on_ack: OnAck | None = None,
                    correlation: object = None, compress: bool | None = None) -> bytes:
        """Post without waiting; return the GUID. SdkError BW_LIMIT if there is no room: `session.room()` waits for it.

        `flush` waits for the acknowledgements and reports refusals. In addition `on_ack` is called with the
        acknowledgement, or, without it, the session's `on_nack` if the post is refused. `ack=False`: no acknowledgement.
        """
        post = self._post_options(ack, on_ack, correlation, compress)
        return self._post_now(self._encode(payload), properties, types, post)

    def close(self, timeout_s: float | None = None) -> Any:
        """Close the queue. Unacknowledged posts fail: call `flush` first to wait for them.

        `timeout_s` seconds, by default the options' `close_timeout_s`. Unconfirmed messages go to other consumers.
        SdkError: INVALID_QUEUE if it is already closed; TIMEOUT or the broker's result, the queue is closed nevertheless.
        Completes at once without a connection.
        """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[ValueT]:
        if self._inbox:
            self._messages_without_wait += 1
            if self._messages_without_wait < _MESSAGES_PER_TURN:
                return self.get_nowait()
            await self._session.yield_turn()
        self._messages_without_wait = 0
        try:
            return cast(Message[ValueT], await self._get())
        except SdkError:
            if self._is_exhausted:
                raise StopAsyncIteration from None
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self._exit_block(kind is not None)
