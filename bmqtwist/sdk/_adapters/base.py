"""Sessions that wait, and their queues: the common part of all fronts.

A session waits with promises: `promise` makes one, a coroutine awaits it, `fire` gives it its value. Everything that takes
more than one step is a coroutine here; each kind of session runs it in its own way.
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
from bmqtwist.sdk._core.outbox import FAILED_KEPT_MAX, Close, Completed, Connect, Effect, Group, Note, Room
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
Request = Callable[[object, float], object]  # makes a request of the core, given a token and the time


QueueT = TypeVar("QueueT", bound="BaseQueue[Any]")


class BaseSession(ABC):
    """Performs effects, makes requests of the core."""

    core: SessionCore
    options: SessionOptions
    clock: Callable[[], float]  # seconds, of the clock that the core uses
    _queue_class: type[Any]  # queues of this kind of session

    def __init__(self, on_event: OnEvent | None, on_nack: OnAck | None) -> None:
        self._on_event, self._on_nack = on_event, on_nack
        self._room_waiters: deque[Any] = deque()
        self.open_queues: set[BaseQueue[Any]] = set()
        self._unreported: list[Group] = []  # of queues that are closed: posts that nobody waited for
        self._stop_listening: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.core.address} {self.core.state.value}>"

    def make_queue(self, uri: str, codec: Codec[Any] | None, on_message: Callable[[Message[Any]], object] | None) -> Any:
        """From the session: a queue that is not opened yet."""
        return self._queue_class(self, uri, codec, on_message)

    def counters(self) -> Counters:
        """What this session has done so far, and how things stand."""
        return self.core.counters()

    # -- calls that each front has: their result is returned, awaited, or comes with a Deferred -----------------------

    def open(self, uri: str, *, read: bool = False, write: bool = False, options: QueueOptions | None = None,  # noqa: B027
             codec: Codec[ValueT] | None = None, on_message: Callable[[Message[ValueT]], object] | None = None,
             timeout_s: float | None = None) -> Any:
        """Open a queue. Messages go to `on_message`, or to `get` and iteration.

        `uri`: bmq://domain/queue, with ?id=app as an application of a fanout queue. `timeout_s` seconds, else the options'
        `open_timeout_s`; time without a connection counts. SdkError: TIMEOUT; INVALID_ARGUMENT without `read` and
        `write`; ALREADY_OPENED or ALREADY_IN_PROGRESS on this session; NOT_SUPPORTED by this broker; NOT_CONNECTED or
        CANCELED by a stop; or the broker's reason (UNKNOWN: no such domain). InvalidUri: `uri` is none.
        """

    def stop(self, drain: bool = True) -> Any:  # noqa: B027
        """Wait for acknowledgements (not without `drain`), disconnect; the session does not connect again.

        With `drain` PostsFailed, after that, if posts failed without a report by a callback or by a `flush`.
        """

    # -- each kind of session has its own -----------------------------------------------------------------------------

    @abstractmethod
    def promise(self) -> Any:
        """Something to be awaited."""

    @abstractmethod
    def fire(self, promise: Any, value: object) -> bool:
        """Give a promise its value; False if it has one or was cancelled."""

    @abstractmethod
    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the application back; an exception is reported and affects no other call."""

    @abstractmethod
    def call_at(self, due: float, action: Callable[[], object]) -> Cancel:
        """Call back at that time of the clock."""

    @abstractmethod
    async def yield_turn(self) -> None:
        """Let input and output proceed."""

    @abstractmethod
    def _on_connect(self, effect: Connect) -> None:
        """Open a channel."""

    @abstractmethod
    def turn(self, flush: bool = False) -> None:
        """Perform effects and write. `flush`: batches that could still wait leave, too."""

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
            case Room():
                self.fire_all(self._room_waiters)
            case Connect():
                self._on_connect(effect)
            case Close():
                self._on_close(effect)
            case Note():
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
            event.queue.owner.end(SdkError(event.result, event.message))
        if self._on_event is not None:
            self.call(self._on_event, event)

    def _on_close(self, effect: Close) -> None:
        if self.core.state is State.STOPPED:
            if self._stop_listening is not None:
                self._stop_listening()
                self._stop_listening = None
            for queue in list(self.open_queues):
                queue.end()

    # -- what the application asks for ------------------------------------------------------------------------------

    def _listen(self, health: HealthMonitor | None, listener: Callable[[bool], object]) -> None:
        """Apply the state of a health monitor, and call `listener` at its changes until the session ends."""
        if health is not None:
            self._set_health(health.healthy)
            self._stop_listening = health.listen(listener)

    def _set_health(self, healthy: bool) -> None:
        self.core.set_health(healthy, self.clock())

    async def wait_in(self, waiters: deque[Any], end: float | None = None) -> None:
        """Wait until a promise appended to `waiters` is fired, at the latest until `end`."""
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
        """Fire the promises that are in `waiters` now; those that are appended meanwhile wait for the next call."""
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
        """Stop; with `drain`, PostsFailed if posts failed without a report."""
        await self._request(lambda token, now: self.core.stop(token, now, drain))
        failures = self.take_failures()
        if failures is not None and drain:
            raise failures

    def report_on_stop(self, groups: list[Group]) -> None:
        """A queue is closed: failures of these posts without a report are raised when the session stops."""
        if self._on_nack is None:
            self._unreported += [group for group in groups if group.unreported and not group.reported]

    def take_failures(self) -> PostsFailed | None:
        """The posts of closed queues that failed without a report."""
        groups = [group for group in self._unreported if not group.reported]
        self._unreported.clear()
        for group in groups:
            group.reported = True
        failed: list[Ack] = [ack for group in groups for ack in group.failed if ack.token is None]
        return PostsFailed(sum(group.unreported for group in groups), failed[:FAILED_KEPT_MAX]) if failed else None

    def take_all_failures(self) -> PostsFailed | None:
        """The posts of all queues, open ones included, that failed without a report."""
        for queue in self.open_queues:
            queue.hand_over_failures()
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
            queue.end()
            raise
        except BaseException:  # cancelled: the queue must not stay open, or open later
            queue.end()
            known = core.queues.get(queue.uri)
            if known is not None and known.owner is queue:
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
            self.core.request_room()
            await self.wait_in(self._room_waiters, end)


Properties = Mapping[str, object]
Types = Mapping[str, PropertyType]
_POSTS_A_TURN = 256  # of `post_many`: then everybody else has a turn


def accepted(ack: Ack) -> Ack:
    """An acknowledgement, if it is one; PostRefused if the broker has not taken the message into its care."""
    if not ack.ok:
        raise PostRefused(ack)
    return ack


class QueueCalls(Generic[ValueT]):
    """Calls that the queues of each front have: their result is returned, awaited, or comes with a Deferred."""

    def post(self, payload: ValueT, properties: Properties | None = None, types: Types | None = None, *,
             correlation: object = None, compress: bool | None = None) -> Any:
        """Post and wait for the acknowledgement; PostRefused, with its status, if the broker has not accepted the message.

        Waits for room if there is none (`post_wait_s` at most, then SdkError BW_LIMIT). Properties without a type in
        `types` have the one of their value: bool, int (INT64), str, bytes. A cancelled call may have posted all the same.
        """

    def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Properties | None]], *,
                  return_exceptions: Any = False) -> Any:
        """Post payloads, or pairs of payload and properties; the result is their acknowledgements in the same order.

        PostsFailed when all are answered, if some were not accepted; with `return_exceptions` these stand in the list as
        PostRefused. If one of them cannot be posted the call fails at once, and the next `flush` waits for those before it.
        """

    def flush(self) -> Any:
        """Send at once and wait until all posts of `post_nowait` so far are answered; PostsFailed if some of them since the
        last flush were refused."""

    def configure(self, options: QueueOptions | None = None, timeout_s: float | None = None,
                  **changes: Unpack[QueueMembers]) -> Any:
        """Change how the queue is read: single members by name, or `options`, which replace all that is set.

        `timeout_s` seconds, else the options' `configure_timeout_s`. SdkError: INVALID_QUEUE if it is closed,
        ALREADY_IN_PROGRESS, TIMEOUT, NOT_SUPPORTED, CANCELED, or the broker's reason; the former options hold then.
        """

    def pause(self, timeout_s: float | None = None) -> Any:
        """No more deliveries until `resume`; all options stay. What is here already can be got, worked on and confirmed."""

    def resume(self, timeout_s: float | None = None) -> Any:
        """Have deliveries again, after a `pause` or a `drain`."""

    def drain(self, timeout_s: float | None = None) -> Any:
        """Before a graceful end: no more deliveries, iterations end; ends when every message that the application has is
        confirmed or given back. Messages that it has not taken go to other consumers when the queue is closed.

        SdkError TIMEOUT after `timeout_s` seconds. A caller that has a message of this queue must not wait for it.
        """


class BaseQueue(QueueCalls[ValueT], Generic[ValueT]):
    """One opened queue. Values are what its codec makes of payloads; without a codec they are bytes."""

    core: core_queue.Queue  # what the session core knows of it
    session: Any

    def __init__(self, session: BaseSession, uri: str, codec: Codec[ValueT] | None,
                 on_message: Callable[[Message[ValueT]], object] | None) -> None:
        self._session = self.session = session
        self.uri: str = uri
        self.codec: Codec[ValueT] | None = codec
        self.on_message: Callable[[Message[ValueT]], object] | None = on_message
        self.error: SdkError | None = None  # why it is closed, if that was not our wish
        self.ended: bool = False
        self._inbox: deque[Message[ValueT]] = deque()
        self._streak = 0  # messages that an iteration was given without a wait
        self._getters: deque[Any] = deque()
        self._group = Group()  # of posts that nobody waits for
        self._sealed: list[Group] = []  # of earlier ones, not reported yet
        self._flush_waiters: deque[Any] = deque()
        self._draining = False
        self._in_process = 0  # messages that the application has, neither confirmed nor given back
        self._drain_waiters: deque[Any] = deque()  # who waits for these

    @property
    def is_open(self) -> bool:
        """Can it be used, connected or not?"""
        return not self.ended and self.core.is_open

    @property
    def options(self) -> QueueOptions:
        """The options in force."""
        return self.core.options

    def __repr__(self) -> str:
        core = getattr(self, "core", None)  # not before the request to open it is made
        return f"<{type(self).__name__} {self.uri} {'closed' if self.ended or core is None else core.state.value}>"

    # -- posting ----------------------------------------------------------------------------------------------------

    def _encoded(self, payload: Any) -> bytes:
        if self.codec is not None:
            payload = self.codec.encode(payload)
        if type(payload) is bytes:
            return payload
        if isinstance(payload, (bytes, bytearray, memoryview)):
            return bytes(payload)
        whose = "a payload is bytes" if self.codec is None else f"{type(self.codec).__name__}.encode must give bytes"
        hint = ": encode it, or open the queue with a codec" if self.codec is None else ""
        raise TypeError(f"{whose}, not {type(payload).__name__}{hint}")

    def _put(self, data: bytes, properties: Properties | None, types: Types | None, post: Post) -> bytes:
        session = self._session
        return session.core.post(self.core, data, session.clock(), properties, types, post)

    async def _post_when_room(self, error: SdkError, data: bytes, properties: Properties | None, types: Types | None,
                     post: Post, latest: float = math.inf) -> bytes:
        """A post did not find room: try again when there is some, within `post_wait_s`."""
        if error.result is not Result.BW_LIMIT:
            raise error
        session = self._session
        end = min(session.clock() + session.options.post_wait_s, latest)
        while True:
            await session._room(end, len(data))
            try:
                return self._put(data, properties, types, post)
            except SdkError as again:
                if again.result is not Result.BW_LIMIT or session.clock() >= end:
                    raise

    async def _post(self, payload: ValueT, properties: Properties | None, types: Types | None, correlation: object,
                    compress: bool | None) -> Ack:
        data = self._encoded(payload)
        promise = self._session.promise()
        post = Post(True, promise, correlation, None, compress)
        try:
            self._put(data, properties, types, post)
        except SdkError as error:
            await self._post_when_room(error, data, properties, types, post)
        return accepted(await promise)

    def _post_options(self, ack: bool, on_ack: OnAck | None, correlation: object, compress: bool | None) -> Post:
        if on_ack is not None and not ack:
            raise LocalError("on_ack is never called with ack=False: leave one of them out")
        return Post(ack, on_ack, correlation, self._group, compress)

    async def _post_many(self, payloads: Iterable[Any], return_exceptions: bool) -> list[Any]:
        session = self._session
        group = Group(acks={})
        guids: list[bytes] = []
        try:
            for each in payloads:
                payload, properties = each if isinstance(each, tuple) else (each, None)
                data, post = self._encoded(payload), Post(group=group)
                try:
                    guids.append(self._put(data, properties, None, post))
                except SdkError as error:
                    guids.append(await self._post_when_room(error, data, properties, None, post))
                if not len(guids) % _POSTS_A_TURN:
                    await session.yield_turn()
            self._seal(group)
            await self._wait_for_outcomes([group])
        except BaseException:  # what is posted is posted: the next flush waits for it
            if not group.sealed:
                self._seal(group)
            self._sealed.append(group)
            raise
        if group.failures and not return_exceptions:
            raise PostsFailed(group.failures, group.failed)
        acks = group.acks or {}
        return [ack if (ack := acks[guid]).ok else PostRefused(ack) for guid in guids]

    def _seal(self, group: Group) -> None:
        group.token = partial(self._session.fire_all, self._flush_waiters)
        self._session.core.seal(group)

    async def _wait_for_outcomes(self, groups: list[Group]) -> None:
        while any(group.outstanding for group in groups):
            await self._session.wait_in(self._flush_waiters)

    async def _flush(self) -> None:
        group = self._group
        if group.outstanding or group.failures:
            self._group = Group()
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
        """The next message; None if none has come by that time."""
        session, getters = self._session, self._getters
        while not self._inbox:
            self._check_readable()
            if self.ended:
                raise self._closed_error()
            if self._draining:
                raise SdkError(Result.CANCELED, f"{self.uri} is drained: no more messages come, unless it is resumed")
            if end is not None and session.clock() >= end:
                return None
            try:
                await session.wait_in(getters, end)
            except BaseException:
                if self._inbox:  # the message is for another caller
                    self._fire_getter()
                raise
        return self.get_nowait()

    def get_nowait(self) -> Message[ValueT]:
        """The next message if it is here already; IndexError if not."""
        message = self._inbox.popleft()
        message._taken = True
        self._in_process += 1
        self._session.core.consumed(1)
        return message

    def get_all_nowait(self) -> list[Message[ValueT]]:
        """All messages that are here already, in order."""
        messages = list(self._inbox)
        self._inbox.clear()
        for message in messages:
            message._taken = True
        self._in_process += len(messages)
        self._session.core.consumed(len(messages))
        return messages

    def _fire_getter(self) -> None:
        if self._getters:
            self._session.fire(self._getters.popleft(), None)

    def confirm(self, message: Message[Any]) -> None:
        """Confirm a message, as `message.confirm()` does."""
        self._session.core.confirm(message)
        if message._taken:
            self.give_back(message)

    def give_back(self, message: Message[Any]) -> None:
        """Be done with a message, confirmed or not, as `message.give_back()` is."""
        if message._taken:
            message._taken = False
            self._in_process -= 1
            if self._drain_waiters and not self._in_process:
                self._session.fire_all(self._drain_waiters)

    @property
    def _is_exhausted(self) -> bool:
        """Does an iteration end, without an error?"""
        return self._draining or self.ended and self.error is None

    # -- from the session -------------------------------------------------------------------------------------------

    def deliver(self, message: Message[ValueT]) -> None:
        """From the session: a message."""
        if self.ended or self._draining:  # it crossed our close or pause: others get it
            self._session.core.consumed(1)
            return
        if self.on_message is not None:
            message._taken = True
            self._in_process += 1
            self._session.core.consumed(1)
            self._session.call(self.on_message, message)
            return
        self._inbox.append(message)
        self._fire_getter()

    def end(self, error: SdkError | None = None) -> None:
        """From the session: no more messages come, and delivered ones cannot be confirmed."""
        if not self.ended:
            self.ended, self.error = True, error
            self._session.open_queues.discard(self)
            self.hand_over_failures()
            self._empty_inbox()
            self._session.fire_all(self._drain_waiters)

    def hand_over_failures(self) -> None:
        """From the session: it reports failed posts of `post_nowait`."""
        self._session.report_on_stop([self._group, *self._sealed])

    def _empty_inbox(self) -> None:
        """Return untaken messages; end the calls that wait for one."""
        self._session.core.consumed(len(self._inbox))
        self._inbox.clear()
        while self._getters:
            self._fire_getter()

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
        while self._in_process and not self.ended:
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
                self.end()

    async def _exit_block(self, failed: bool) -> None:
        """The end of a block: flush, unless it failed, and close. The error of a failed block is kept."""
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
