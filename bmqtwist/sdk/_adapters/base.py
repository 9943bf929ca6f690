"""Base of sessions and queues of all fronts.

A session waits for promises: `promise` creates one, a coroutine awaits it, `fire` sets its value. Calls of several
steps are coroutines of this module; each front runs them on its event loop, or within its calls. Subclasses are
`event_loop.LoopSession` and `simple.Session`. Retransmission, reconnection and queue states are decided in `_core/`;
timeouts and limits are declared in `options.py`.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar, Unpack, assert_never

from bmqtwist.errors import LocalError
from bmqtwist.sdk._adapters.identity import queue_options
from bmqtwist.sdk._adapters.log import LOG
from bmqtwist.sdk._core import queue as core_queue
from bmqtwist.sdk._core.outbox import FAILED_KEPT_MAX, Close, Completed, Connect, Effect, PostGroup, RoomAvailable, WriteLog
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk._core.states import State
from bmqtwist.sdk.codecs import Codec, ValueT
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import QueueMembers, QueueOptions, SessionOptions
from bmqtwist.sdk.results import Ack, EventKind, PostRefused, PostsFailed, Result, SdkError, SessionEvent
from bmqtwist.wire.properties import PropertyType

OnEvent = Callable[[SessionEvent], object]
OnAck = Callable[[Ack], object]
Cancel = Callable[[], object]  # cancels a delayed call or a coroutine; without effect after it has ended
Request = Callable[[object, float], object]  # starts a request of the core with a token and the time


QueueT = TypeVar("QueueT", bound="BaseQueue[Any]")


class BaseSession(ABC):
    """Performs effects and starts requests of the core."""

    core: SessionCore
    options: SessionOptions
    clock: Callable[[], float]  # seconds of the core's clock
    _queue_class: type[Any]  # class of this front's queues

    def __init__(self, on_event: OnEvent | None, on_nack: OnAck | None) -> None:
        self._on_event, self._on_nack = on_event, on_nack
        self._room_waiters: deque[Any] = deque()
        self.open_queues: set[BaseQueue[Any]] = set()
        self._unreported: list[PostGroup] = []  # of closed queues: posts without a waiting caller
        self._remove_health_listener: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.core.address} {self.core.state.value}>"

    def make_queue(self, uri: str, codec: Codec[Any] | None, on_message: Callable[[Message[Any]], object] | None) -> Any:
        """Called by the session: return a new queue object, which is not open."""
        return self._queue_class(self, uri, codec, on_message)

    def counters(self) -> Counters:
        """Return a snapshot of the counters."""
        return self.core.counters()

    # -- calls of each front: the result is returned, awaited, or passed by a Deferred -----------------------

    def open(self, uri: str, *, read: bool = False, write: bool = False, options: QueueOptions | None = None,  # noqa: B027
             codec: Codec[ValueT] | None = None, on_message: Callable[[Message[ValueT]], object] | None = None,
             timeout_s: float | None = None) -> Any:
        """Open a queue. Messages go to `on_message`, or to `get` and iteration.

        `uri`: bmq://domain/queue, with ?id=app for an app of a fanout queue. `timeout_s` seconds, by default the options'
        `open_timeout_s`, including time without a connection. SdkError: TIMEOUT; INVALID_ARGUMENT without `read` and
        `write`; ALREADY_OPENED or ALREADY_IN_PROGRESS in this session; NOT_SUPPORTED by this broker; NOT_CONNECTED or
        CANCELED by a stop; or the broker's result (UNKNOWN: no such domain). InvalidUri: `uri` is not a queue URI.
        """

    def stop(self, drain: bool = True) -> Any:  # noqa: B027
        """Wait for acknowledgements (with `drain`), then disconnect permanently.

        With `drain`: raises PostsFailed afterwards if posts failed that no callback and no `flush` has reported.
        """

    # -- defined by each front ----------------------------------------------------------------------------------------

    @abstractmethod
    def promise(self) -> Any:
        """Return a new awaitable, whose value `fire` sets."""

    @abstractmethod
    def fire(self, promise: Any, value: object) -> bool:
        """Set the value of a promise; return False if it has a value or was cancelled."""

    @abstractmethod
    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call back the application. An exception is reported, and does not affect other calls."""

    @abstractmethod
    def call_at(self, due: float, action: Callable[[], object]) -> Cancel:
        """Call `action` at time `due`; return a function that cancels the call."""

    @abstractmethod
    async def yield_turn(self) -> None:
        """Suspend the coroutine for one turn, in which input and output proceed."""

    @abstractmethod
    def _on_connect(self, effect: Connect) -> None:
        """Start an attempt to open a channel."""

    @abstractmethod
    def turn(self, flush: bool = False) -> None:
        """Perform effects and write. `flush`: including batches whose delay has not passed."""

    # -- effects ----------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Message():
                effect.queue.owner.deliver(effect)
            case Ack():
                self._on_ack(effect)
            case Completed():
                if callable(effect.token):  # of a group of posts
                    effect.token()
                else:
                    self.fire(effect.token, effect)
            case SessionEvent():
                self._on_session_event(effect)
            case RoomAvailable():
                self.fire_all(self._room_waiters)
            case Connect():
                self._on_connect(effect)
            case Close():
                self._on_close(effect)
            case WriteLog():
                LOG.log(effect.level, "%s", effect.text)
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
            event.queue.owner.mark_closed(SdkError(event.result, event.message))
        if self._on_event is not None:
            self.call(self._on_event, event)

    def _on_close(self, effect: Close) -> None:
        if self.core.state is State.STOPPED:
            if self._remove_health_listener is not None:
                self._remove_health_listener()
                self._remove_health_listener = None
            for queue in list(self.open_queues):
                queue.mark_closed()

    # -- requests of the application --------------------------------------------------------------------------------

    def _listen(self, health: HealthMonitor | None, listener: Callable[[bool], object]) -> None:
        """Apply the state of a health monitor, and subscribe `listener` to its changes until the session ends."""
        if health is not None:
            self._set_health(health.healthy)
            self._remove_health_listener = health.listen(listener)

    def _set_health(self, healthy: bool) -> None:
        self.core.set_health(healthy, self.clock())

    async def wait_in(self, waiters: deque[Any], end: float | None = None) -> None:
        """Append a promise to `waiters` and wait until it is fired, at most until `end`."""
        promise = self.promise()
        waiters.append(promise)
        cancel = None if end is None else self.call_at(end, lambda: self.fire(promise, None))
        try:
            await promise
        finally:
            if cancel is not None:
                cancel()
            if promise in waiters:
                waiters.remove(promise)

    def fire_all(self, waiters: deque[Any]) -> None:
        """Fire the current promises in `waiters`; promises appended during the call stay."""
        for _ in range(len(waiters)):
            if waiters:
                self.fire(waiters.popleft(), None)

    async def _request(self, make: Request) -> None:
        promise = self.promise()
        make(promise, self.clock())
        completed: Completed = await promise
        if completed.result is not Result.SUCCESS:
            raise SdkError(completed.result, completed.message)

    async def _start(self) -> None:
        try:
            await self._request(self.core.start)
        except (SdkError, GeneratorExit):
            raise
        except BaseException:  # cancelled: the session must not connect without a requester
            self.core.stop(None, self.clock(), False)
            raise

    async def _stop(self, drain: bool) -> None:
        """Stop; with `drain`, PostsFailed if failed posts were not reported."""
        await self._request(lambda token, now: self.core.stop(token, now, drain))
        failures = self.take_failures()
        if failures is not None and drain:
            raise failures

    def report_on_stop(self, groups: list[PostGroup]) -> None:
        """Keep the unreported failures of posts of a closed queue: `stop` raises them."""
        if self._on_nack is None:
            self._unreported += [group for group in groups if group.unreported and not group.reported]

    def take_failures(self) -> PostsFailed | None:
        """Return and clear the unreported failed posts of closed queues."""
        groups = [group for group in self._unreported if not group.reported]
        self._unreported.clear()
        for group in groups:
            group.reported = True
        failed: list[Ack] = [ack for group in groups for ack in group.failed if ack.token is None]
        return PostsFailed(sum(group.unreported for group in groups), failed[:FAILED_KEPT_MAX]) if failed else None

    def take_all_failures(self) -> PostsFailed | None:
        """Return and clear the unreported failed posts of all queues."""
        for queue in self.open_queues:
            queue.report_failures_on_stop()
        return self.take_failures()

    async def _open(self, queue: QueueT, read: bool, write: bool, options: QueueOptions | None,
                    timeout_s: float | None) -> QueueT:
        core = self.core
        if core.state is State.IDLE:
            raise SdkError(Result.NOT_CONNECTED, "the session is not started: use it with `async with`, or call `start`")

        def make(token: object, now: float) -> None:
            queue.core = core.open(queue.uri, token, now, read=read, write=write, queue_options=options,
                                   timeout_s=timeout_s)
            queue.core.owner, queue.core.codec = queue, queue.codec
            self.open_queues.add(queue)
        try:
            await self._request(make)
        except (SdkError, GeneratorExit):
            queue.mark_closed()
            raise
        except BaseException:  # cancelled: the queue must not stay open, or open later
            queue.mark_closed()
            known = core.queues.get(queue.uri)
            if known is not None and known.owner is queue:
                with contextlib.suppress(SdkError):  # it is closing
                    core.close(known, None, self.clock())
            raise
        return queue

    async def _wait_for_room(self, size: int, timeout_s: float | None) -> bool:
        await self._wait_until_room(None if timeout_s is None else self.clock() + timeout_s, size)
        return self.core.has_room(size)

    async def _wait_until_room(self, end: float | None, size: int = 1) -> None:
        """Wait until there is room for a post of `size` bytes, at most until `end`."""
        self.turn(flush=True)
        while not self.core.has_room(size) and (end is None or self.clock() < end):
            self.core.request_room()
            await self.wait_in(self._room_waiters, end)


Properties = Mapping[str, object]
Types = Mapping[str, PropertyType]
_POSTS_PER_TURN = 256  # of `post_many`, before other tasks run


def check_accepted(ack: Ack) -> Ack:
    """Return a positive acknowledgement; PostRefused for a negative one."""
    if not ack.ok:
        raise PostRefused(ack)
    return ack


class QueueCalls(Generic[ValueT]):
    """Calls of the queues of each front: the result is returned, awaited, or passed by a Deferred."""

    def post(self, payload: ValueT, properties: Properties | None = None, types: Types | None = None, *,
             correlation: object = None, compress: bool | None = None) -> Any:
        """Post and wait for the acknowledgement; PostRefused, with its status, if the broker has not accepted the message.

        Without room it waits up to `post_wait_s`, then SdkError BW_LIMIT. Properties without a type in `types` have the
        type of their value: bool, int (INT64), str, bytes. A cancelled call may have posted the message.
        """

    def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Properties | None]], *,
                  return_exceptions: Any = False) -> Any:
        """Post payloads, or pairs of payload and properties; the result is their acknowledgements in the same order.

        PostsFailed after the last acknowledgement if some were not accepted; with `return_exceptions` the list contains
        a PostRefused for each of these instead. If a message cannot be posted the call fails at once, and the next
        `flush` waits for the earlier ones.
        """

    def flush(self) -> Any:
        """Send at once and wait until all earlier posts of `post_nowait` are acknowledged; PostsFailed if some since the
        last flush were refused."""

    def configure(self, options: QueueOptions | None = None, timeout_s: float | None = None,
                  **changes: Unpack[QueueMembers]) -> Any:
        """Change the consumer options: single members by name, or all of them by `options`.

        `timeout_s` seconds, by default the options' `configure_timeout_s`. SdkError: INVALID_QUEUE if it is closed,
        ALREADY_IN_PROGRESS, TIMEOUT, NOT_SUPPORTED, CANCELED, or the broker's result; the previous options then stay.
        """

    def pause(self, timeout_s: float | None = None) -> Any:
        """Stop deliveries until `resume`; all options stay. Messages already received can be processed and confirmed."""

    def resume(self, timeout_s: float | None = None) -> Any:
        """Resume deliveries after a `pause` or a `drain`. Received messages that the `drain` discarded are redelivered
        only after the queue is closed or the connection is lost."""

    def drain(self, timeout_s: float | None = None) -> Any:
        """Prepare a graceful end: stop deliveries and iterations, and wait until all messages that the application has taken
        are confirmed or given back. The remaining messages go to other consumers when the queue is closed.

        SdkError TIMEOUT after `timeout_s` seconds. Confirm your own messages first: a handler that waits for `drain` with an
        unconfirmed message waits for itself.
        """


class BaseQueue(QueueCalls[ValueT], Generic[ValueT]):
    """One opened queue. The codec converts between payloads and values; without a codec values are bytes."""

    core: core_queue.Queue  # record in the session core
    session: Any

    def __init__(self, session: BaseSession, uri: str, codec: Codec[ValueT] | None,
                 on_message: Callable[[Message[ValueT]], object] | None) -> None:
        self._session = self.session = session
        self.uri: str = uri
        self.codec: Codec[ValueT] | None = codec
        self.on_message: Callable[[Message[ValueT]], object] | None = on_message
        self.error: SdkError | None = None  # reason of a close by the broker
        self.closed: bool = False
        self._inbox: deque[Message[ValueT]] = deque()
        self._messages_without_wait = 0  # messages of an iteration since its last wait
        self._get_waiters: deque[Any] = deque()
        self._group = PostGroup()  # of `post_nowait` since the last flush
        self._sealed: list[PostGroup] = []  # earlier groups, not reported yet
        self._flush_waiters: deque[Any] = deque()
        self._draining = False
        self._in_process = 0  # messages taken by the application, neither confirmed nor given back
        self._drain_waiters: deque[Any] = deque()

    @property
    def is_open(self) -> bool:
        """True unless the queue is closed, with or without a connection."""
        return not self.closed and self.core.is_open

    @property
    def options(self) -> QueueOptions:
        """Options in force."""
        return self.core.options

    def __repr__(self) -> str:
        core = getattr(self, "core", None)  # set by the open request
        return f"<{type(self).__name__} {self.uri} {'closed' if self.closed or core is None else core.state.value}>"

    # -- posting ----------------------------------------------------------------------------------------------------

    def _encode(self, payload: Any) -> bytes:
        if self.codec is not None:
            payload = self.codec.encode(payload)
        if type(payload) is bytes:
            return payload
        if isinstance(payload, (bytes, bytearray, memoryview)):
            return bytes(payload)
        whose = "a payload is bytes" if self.codec is None else f"{type(self.codec).__name__}.encode must return bytes"
        hint = ": encode it, or open the queue with a codec" if self.codec is None else ""
        raise TypeError(f"{whose}, not {type(payload).__name__}{hint}")

    def _post_now(self, data: bytes, properties: Properties | None, types: Types | None, post: Post) -> bytes:
        session = self._session
        return session.core.post(self.core, data, session.clock(), properties, types, post)

    async def _post_when_room(self, error: SdkError, data: bytes, properties: Properties | None, types: Types | None,
                     post: Post, latest: float = math.inf) -> bytes:
        """Repeat a post that found no room, within `post_wait_s`."""
        if error.result is not Result.BW_LIMIT:
            raise error
        session = self._session
        end = min(session.clock() + session.options.post_wait_s, latest)
        while True:
            await session._wait_until_room(end, len(data))
            try:
                return self._post_now(data, properties, types, post)
            except SdkError as again:
                if again.result is not Result.BW_LIMIT or session.clock() >= end:
                    raise

    async def _post(self, payload: ValueT, properties: Properties | None, types: Types | None, correlation: object,
                    compress: bool | None) -> Ack:
        data = self._encode(payload)
        promise = self._session.promise()
        post = Post(True, promise, correlation, None, compress)
        try:
            self._post_now(data, properties, types, post)
        except SdkError as error:
            await self._post_when_room(error, data, properties, types, post)
        return check_accepted(await promise)

    def _post_options(self, ack: bool, on_ack: OnAck | None, correlation: object, compress: bool | None) -> Post:
        if on_ack is not None and not ack:
            raise LocalError("on_ack is never called with ack=False: use one of them")
        return Post(ack, on_ack, correlation, self._group, compress)

    async def _post_many(self, payloads: Iterable[Any], return_exceptions: bool) -> list[Any]:
        session = self._session
        group = PostGroup(acks={})
        guids: list[bytes] = []
        try:
            for each in payloads:
                payload, properties = each if isinstance(each, tuple) else (each, None)
                data, post = self._encode(payload), Post(group=group)
                try:
                    guids.append(self._post_now(data, properties, None, post))
                except SdkError as error:
                    guids.append(await self._post_when_room(error, data, properties, None, post))
                if not len(guids) % _POSTS_PER_TURN:
                    await session.yield_turn()
            self._seal(group)
            await self._wait_for_outcomes([group])
        except BaseException:  # the next flush waits for the posted messages
            if not group.sealed:
                self._seal(group)
            self._sealed.append(group)
            raise
        if group.failures and not return_exceptions:
            raise PostsFailed(group.failures, group.failed)
        acks = group.acks or {}
        return [ack if (ack := acks[guid]).ok else PostRefused(ack) for guid in guids]

    def _seal(self, group: PostGroup) -> None:
        group.token = partial(self._session.fire_all, self._flush_waiters)
        self._session.core.seal(group)

    async def _wait_for_outcomes(self, groups: list[PostGroup]) -> None:
        while any(group.outstanding for group in groups):
            await self._session.wait_in(self._flush_waiters)

    async def _flush(self) -> None:
        group = self._group
        if group.outstanding or group.failures:
            self._group = PostGroup()
            self._sealed.append(group)
            self._seal(group)
        groups = list(self._sealed)
        self._session.turn(flush=True)
        await self._wait_for_outcomes(groups)
        failures, failed = 0, []
        for group in groups:
            if group in self._sealed:  # no other flush has reported it
                self._sealed.remove(group)
                group.reported = True
                failures += group.failures
                failed += group.failed
        if failures:
            raise PostsFailed(failures, failed[:FAILED_KEPT_MAX])

    # -- consuming --------------------------------------------------------------------------------------------------

    def _closed_error(self) -> SdkError:
        return self.error or SdkError(Result.INVALID_QUEUE, f"{self.uri} is closed")

    def _check_readable(self) -> None:
        if not self.core.readable:
            raise SdkError(Result.INVALID_QUEUE, f"{self.uri} is not open for reading: open it with read=True")
        if self.on_message is not None:
            raise SdkError(Result.INVALID_ARGUMENT, f"messages of {self.uri} go to its on_message")

    async def _get(self, end: float | None = None) -> Message[ValueT] | None:
        """Return the next message; None at time `end`."""
        session, waiters = self._session, self._get_waiters
        while not self._inbox:
            self._check_readable()
            if self.closed:
                raise self._closed_error()
            if self._draining:
                raise SdkError(Result.CANCELED, f"{self.uri} is drained: no messages are delivered until `resume`")
            if end is not None and session.clock() >= end:
                return None
            try:
                await session.wait_in(waiters, end)
            except BaseException:
                if self._inbox:  # the message is for another caller
                    self._fire_get_waiter()
                raise
        return self.get_nowait()

    def get_nowait(self) -> Message[ValueT]:
        """Return the next received message; IndexError if there is none."""
        message = self._inbox.popleft()
        message._taken = True
        self._in_process += 1
        self._session.core.on_consumed(1)
        return message

    def get_all_nowait(self) -> list[Message[ValueT]]:
        """Return all received messages, in order."""
        messages = list(self._inbox)
        self._inbox.clear()
        for message in messages:
            message._taken = True
        self._in_process += len(messages)
        self._session.core.on_consumed(len(messages))
        return messages

    def _fire_get_waiter(self) -> None:
        if self._get_waiters:
            self._session.fire(self._get_waiters.popleft(), None)

    def confirm(self, message: Message[Any]) -> None:
        """Confirm a message, as `message.confirm()` does."""
        self._session.core.confirm(message)
        if message._taken:
            self.give_back(message)

    def give_back(self, message: Message[Any]) -> None:
        """Release a message without confirmation, as `message.give_back()` does."""
        if message._taken:
            message._taken = False
            self._in_process -= 1
            if self._drain_waiters and not self._in_process:
                self._session.fire_all(self._drain_waiters)

    @property
    def _is_exhausted(self) -> bool:
        """True if iterations end without an error."""
        return self._draining or self.closed and self.error is None

    # -- from the session -------------------------------------------------------------------------------------------

    def deliver(self, message: Message[ValueT]) -> None:
        """Called by the session: deliver a message."""
        if self.closed or self._draining:  # sent before the close or pause: it is redelivered
            self._session.core.on_consumed(1)
            return
        if self.on_message is not None:
            message._taken = True
            self._in_process += 1
            self._session.core.on_consumed(1)
            self._session.call(self.on_message, message)
            return
        self._inbox.append(message)
        self._fire_get_waiter()

    def mark_closed(self, error: SdkError | None = None) -> None:
        """Called by the session: the queue is closed, and delivered messages can no longer be confirmed."""
        if not self.closed:
            self.closed, self.error = True, error
            self._session.open_queues.discard(self)
            self.report_failures_on_stop()
            self._empty_inbox()
            self._session.fire_all(self._drain_waiters)

    def report_failures_on_stop(self) -> None:
        """Called by the session, or at the close: pass the failed posts of `post_nowait` to the session's `stop`."""
        self._session.report_on_stop([self._group, *self._sealed])

    def _empty_inbox(self) -> None:
        """Discard the messages that the application has not taken; end waiting calls of `get`."""
        self._session.core.on_consumed(len(self._inbox))
        self._inbox.clear()
        while self._get_waiters:
            self._fire_get_waiter()

    # -- requests ---------------------------------------------------------------------------------------------------

    async def _configure(self, options: QueueOptions | None, timeout_s: float | None, changes: QueueMembers) -> None:
        session = self._session
        wanted = queue_options(self.core.options, options, changes)
        await session._request(lambda token, now: session.core.configure(self.core, wanted, token, now, timeout_s))

    async def _pause(self, paused: bool, timeout_s: float | None) -> None:
        session = self._session
        await session._request(lambda token, now: session.core.pause_deliveries(self.core, paused, token, now, timeout_s))

    async def _resume(self, timeout_s: float | None) -> None:
        self._draining = False
        await self._pause(False, timeout_s)

    async def _drain(self, timeout_s: float | None) -> None:
        session = self._session
        end = None if timeout_s is None else session.clock() + timeout_s
        self._draining = True
        self._empty_inbox()
        await self._pause(True, timeout_s)
        while self._in_process and not self.closed:
            if end is not None and session.clock() >= end:
                raise SdkError(Result.TIMEOUT, f"{self._in_process} messages of {self.uri} are neither confirmed nor given "
                                               f"back after {timeout_s:g} s")
            await session.wait_in(self._drain_waiters, end)

    async def _close(self, timeout_s: float | None) -> None:
        session = self._session
        try:
            await session._request(lambda token, now: session.core.close(self.core, token, now, timeout_s))
        finally:
            if not self.core.is_open:
                self.mark_closed()

    async def _exit_block(self, failed: bool) -> None:
        """End a `with` block: flush, unless the block failed, and close. A failed block raises its own error."""
        if not self.is_open:
            return
        try:
            if not failed:
                await self._flush()
        finally:
            try:
                await self._close(None)
            except SdkError:
                if not failed:
                    raise
