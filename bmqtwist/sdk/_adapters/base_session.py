"""What all sessions that wait have in common: effects go to whom they concern, requests are made and waited for.

A session waits with promises: something to be awaited in a coroutine, made by `promise` and given its value by `fire`. So
what takes more than one step is written once, as a coroutine, here and in `base_queue`; each kind of session runs it in
its own way.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, assert_never, cast

from bmqtwist.sdk._adapters.log import emit
from bmqtwist.sdk._core.effects import FAILED_KEPT_MAX, Close, Completed, Connect, Effect, Group, Note, Room, Settled
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk._core.states import State
from bmqtwist.sdk.codecs import Codec
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import QueueOptions, SessionOptions
from bmqtwist.sdk.results import Ack, EventKind, PostsFailed, Result, SdkError, SessionEvent

OnEvent = Callable[[SessionEvent], object]
OnAck = Callable[[Ack], object]
Request = Callable[[object, float], object]  # makes a request of the core, given a token and the time


class Timer(Protocol):
    """One delayed call."""

    def cancel(self) -> object:
        """It is not to happen; nothing if it has."""


QueueT = TypeVar("QueueT")  # a BaseQueue


class BaseSession(ABC):
    """Effects to actions, requests to the core."""

    core: SessionCore
    options: SessionOptions
    clock: Callable[[], float]  # seconds, those that the core lives by

    def __init__(self, on_event: OnEvent | None, on_nack: OnAck | None) -> None:
        self._on_event, self._on_nack = on_event, on_nack
        self._rooms: deque[Any] = deque()
        self.open_queues: set[Any] = set()
        self._unreported: list[Group] = []  # of queues that are closed: posts that nobody waited for
        self._deaf: Callable[[], None] | None = None

    def counters(self) -> Counters:
        """What this session has done so far, and how things stand."""
        return self.core.counters()

    # -- each kind of session has its own -----------------------------------------------------------------------------

    @abstractmethod
    def promise(self) -> Any:
        """Something to be awaited."""

    @abstractmethod
    def fire(self, promise: Any, value: object) -> bool:
        """Give a promise its value; False if nobody waits any more."""

    @abstractmethod
    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the application back; its mistakes are reported and cost nothing else."""

    @abstractmethod
    def call_at(self, due: float, action: Callable[[], object]) -> Timer:
        """Call back at that time of the clock."""

    @abstractmethod
    def make_queue(self, uri: str, codec: Codec[Any] | None, on_message: Callable[[Message[Any]], object] | None) -> Any:
        """A queue of this kind of session, not opened yet."""

    @abstractmethod
    async def breathe(self) -> None:
        """Let what waits go out and come in."""

    @abstractmethod
    def _on_connect(self, effect: Connect) -> None:
        """Open a channel."""

    @abstractmethod
    def turn(self, flush: bool = False) -> None:
        """Do what the core wants. `flush`: batches that could still wait leave, too."""

    # -- effects ----------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        """Do what the core asks for; the most frequent first."""
        match effect:
            case Message():
                effect.queue.owner.deliver(effect)
            case Ack():
                self._on_ack(effect)
            case Completed():
                if effect.token is not None:
                    self.fire(effect.token, effect)
            case Settled():
                if callable(effect.group.token):
                    effect.group.token()
            case SessionEvent():
                self._on_session_event(effect)
            case Room():
                self.fire_all(self._rooms)
            case Connect():
                self._on_connect(effect)
            case Close():
                self._on_close(effect)
            case Note():
                emit(effect)
            case _:
                assert_never(effect)

    def _on_ack(self, ack: Ack) -> None:
        token = ack.token
        if callable(token):
            self.call(token, ack)
        elif (token is None or not self.fire(token, ack)) and not ack.ok and self._on_nack is not None:
            self.call(self._on_nack, ack)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event.kind is EventKind.QUEUE_REOPEN_RESULT and event.result is not Result.SUCCESS and event.queue:
            event.queue.owner.end(SdkError(event.result, event.message))
        if self._on_event is not None:
            self.call(self._on_event, event)

    def _on_close(self, effect: Close) -> None:
        if self.core.state is State.STOPPED:
            if self._deaf is not None:
                self._deaf()
                self._deaf = None
            for queue in list(self.open_queues):
                queue.end()

    # -- what the application asks for ------------------------------------------------------------------------------

    def _listen(self, health: HealthMonitor | None, listener: Callable[[bool], object]) -> None:
        """Begin with what a health monitor says, and have `listener` hear its changes until the session is over."""
        if health is not None:
            self._set_health(health.healthy)
            self._deaf = health.listen(listener)

    def _set_health(self, healthy: bool) -> None:
        self.core.set_health(healthy, self.clock())

    async def stand_in(self, line: deque[Any], end: float | None = None) -> None:
        """Wait until a promise put into that line is fired, not longer than to that time; leave nothing behind."""
        promise = self.promise()
        line.append(promise)
        timer = None if end is None else self.call_at(end, lambda: self.fire(promise, None))
        try:
            await promise
        finally:
            if timer is not None:
                timer.cancel()
            if promise in line:
                line.remove(promise)

    def fire_all(self, line: deque[Any]) -> None:
        """Fire the promises that stand in a line now; those that come meanwhile wait for the next time."""
        for _ in range(len(line)):
            if line:
                self.fire(line.popleft(), None)

    async def _request(self, make: Request) -> None:
        """Make a request of the core and wait for its end; SdkError if it fails."""
        promise = self.promise()
        make(promise, self.clock())
        completed: Completed = await promise
        if completed.result is not Result.SUCCESS:
            raise SdkError(completed.result, completed.message)

    async def _start(self) -> None:
        promise = self.promise()
        self.core.start(promise, self.clock())
        try:
            completed: Completed = await promise
        except GeneratorExit:
            raise
        except BaseException:  # nobody waits any more: nothing may go on behind the application's back
            self.core.stop(None, self.clock(), False)
            raise
        if completed.result is not Result.SUCCESS:
            raise SdkError(completed.result, completed.message)

    async def _stop(self, drain: bool) -> None:
        """Stop; with `drain`, PostsFailed if posts failed that nobody was told of."""
        await self._request(lambda token, now: self.core.stop(token, now, drain))
        failures = self.take_failures()
        if failures is not None and drain:
            raise failures

    def leave_to_report(self, groups: list[Group]) -> None:
        """A queue is closed: what failed of these posts is told when the session is left, unless somebody was told."""
        if self._on_nack is None:
            self._unreported += [group for group in groups if group.untold and not group.reported]

    def take_failures(self) -> PostsFailed | None:
        """The posts of closed queues that failed and that nobody was told of."""
        groups = [group for group in self._unreported if not group.reported]
        self._unreported.clear()
        for group in groups:
            group.reported = True
        failed: list[Ack] = [ack for group in groups for ack in group.failed if ack.token is None]
        return PostsFailed(sum(group.untold for group in groups), failed[:FAILED_KEPT_MAX]) if failed else None

    def take_all_failures(self) -> PostsFailed | None:
        """The posts of all queues, open ones included, that failed and that nobody was told of."""
        for queue in self.open_queues:
            queue.leave_failures()
        return self.take_failures()

    async def _open(self, queue: QueueT, read: bool, write: bool, options: QueueOptions | None,
                    timeout_s: float | None) -> QueueT:
        core, opened = self.core, cast(Any, queue)
        if core.state is State.IDLE:
            raise SdkError(Result.NOT_CONNECTED, "the session is not started: use it with `async with`, or call `start`")

        def make(token: object, now: float) -> None:
            opened.core = core.open(opened.uri, token, now, read=read, write=write, queue_options=options,
                                    timeout_s=timeout_s)
            opened.core.owner, opened.core.codec = opened, opened.codec
            self.open_queues.add(opened)
        try:
            await self._request(make)
        except (SdkError, GeneratorExit):
            opened.end()
            raise
        except BaseException:  # given up: the queue must not stay open, or come up later
            opened.end()
            known = core.queues.get(opened.uri)
            if known is not None and known.owner is opened:
                with contextlib.suppress(SdkError):  # it is being closed
                    core.close(known, None, self.clock())
            raise
        return queue

    async def _wait_for_room(self, size: int, timeout_s: float | None) -> bool:
        await self._room(None if timeout_s is None else self.clock() + timeout_s, size)
        return self.core.has_room(size)

    async def _room(self, end: float | None, size: int = 1) -> None:
        """Wait until a post of so many bytes may be tried again, not longer than to that time."""
        self.turn(flush=True)
        while not self.core.has_room(size) and (end is None or self.clock() < end):
            self.core.want_room()
            await self.stand_in(self._rooms, end)
