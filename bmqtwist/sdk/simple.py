"""Blocking sessions and queues without a reactor and threads, for tools and workers. Input and output proceed within calls.

    with Session("tcp://localhost:30114") as session, session.open("bmq://domain/queue", read=True, write=True) as queue:
        ack = queue.post(b"hello")
        for message in queue:
            with message:                   # confirmed unless the block raises
                print(message.payload)

A session that is garbage-collected, or still runs when the program ends, delivers its posts and stops with a warning.
Heartbeats are answered only within calls: a program with long processing times calls `session.step()` regularly, or an
operator raises the heartbeat limits of the broker. Callbacks run within calls, and may call any method. One thread at a
time may use a session. The calls are shared with the other fronts in `_adapters/base.py`; `pump.py` has the socket. Threads
that answer heartbeats are in `_adapters/threaded.py`.
"""

from __future__ import annotations

import atexit
import itertools
import ssl
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, cast, overload

from bmqtwist.sdk._adapters import forks
from bmqtwist.sdk._adapters.base import BaseQueue, BaseSession, Cancel, OnAck, OnEvent
from bmqtwist.sdk._adapters.identity import session_options
from bmqtwist.sdk._adapters.log import LOG
from bmqtwist.sdk._core.deadlines import Deadlines
from bmqtwist.sdk._core.outbox import Connect
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk.codecs import Codec, ValueT
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import QueueMembers, QueueOptions, SessionMembers, SessionOptions
from bmqtwist.sdk.pump import Dispatch, PumpFactory, SocketPump
from bmqtwist.sdk.results import Ack, PostRefused, Result, SdkError
from bmqtwist.wire.properties import PropertyType

__all__ = ["Queue", "Session"]

_T = TypeVar("_T")
_STALE_S = 1.0  # time without calls after which a confirmation checks the connection first


class _Promise:
    """Promise of one request; awaiting it yields to `Session.run`."""

    __slots__ = ("done", "value")

    def __init__(self) -> None:
        self.done, self.value = False, cast(Any, None)

    def __await__(self) -> Generator[_Promise, None, Any]:
        if not self.done:
            yield self
        return self.value


class Queue(BaseQueue[ValueT], Generic[ValueT]):
    """One opened queue; iteration yields its messages until it is closed. `with` closes it at the end of the block, after a
    flush unless the block raises."""

    session: Session

    def post(self, payload: ValueT, properties: Mapping[str, object] | None = None,
             types: Mapping[str, PropertyType] | None = None, *, correlation: object = None,
             compress: bool | None = None) -> Ack:
        return self.session.run(self._post(payload, properties, types, correlation, compress))

    def post_nowait(self, payload: ValueT, properties: Mapping[str, object] | None = None,
                    types: Mapping[str, PropertyType] | None = None, *, ack: bool = True, on_ack: OnAck | None = None,
                    correlation: object = None, compress: bool | None = None, guid: bytes | None = None) -> bytes:
        """Post without waiting for the acknowledgement; return the GUID. Without room it waits, as `post` does.

        `guid`: GUID of the message; the broker drops another message with this GUID within its deduplication time. SdkError
        ALREADY_IN_PROGRESS while a post with this GUID has no acknowledgement.

        `flush` waits for the acknowledgements and reports refusals. In addition `on_ack` is called with the
        acknowledgement, or, without it, the session's `on_nack` if the post is refused. `ack=False`: no acknowledgement.
        """
        session = self.session
        post = self._post_options(ack, on_ack, correlation, compress)
        if guid is not None:
            post.guid = guid
        data = self._encode(payload)
        try:
            made = self._post_now(data, properties, types, post)
        except SdkError as error:
            made = session.run(self._post_when_room(error, data, properties, types, post))
        if session.core.batch_bytes >= session.options.batch_bytes_max:
            session.step()
        return made

    @overload
    def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                  return_exceptions: Literal[False] = False) -> list[Ack]: ...

    @overload
    def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                  return_exceptions: Literal[True]) -> list[Ack | PostRefused]: ...

    def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                  return_exceptions: bool = False) -> Any:
        return self.session.run(self._post_many(payloads, return_exceptions))

    def flush(self) -> None:
        self.session.run(self._flush())

    def get(self, timeout_s: float | None = None) -> Message[ValueT] | None:
        """Return the next message; None after `timeout_s` seconds, or if the queue is closed or drained. SdkError if the
        broker closed it."""
        session = self.session
        end = None if timeout_s is None else session.clock() + timeout_s
        if not self._inbox and session.running:
            session.step()
        try:
            return session.run(self._get(end))
        except SdkError:
            if self._is_exhausted:
                return None
            raise

    def poll(self, count_max: int, timeout_s: float = 0.0) -> list[Message[ValueT]]:
        """Return up to `count_max` received messages; wait up to `timeout_s` seconds for the first."""
        first = self.get(timeout_s)
        if first is None:
            return []
        return [first, *(self.get_nowait() for _ in range(min(count_max - 1, len(self._inbox))))]

    def __iter__(self) -> Iterator[Message[ValueT]]:
        while (message := self.get()) is not None:
            yield message

    def configure(self, options: QueueOptions | None = None, timeout_s: float | None = None,
                  **changes: Unpack[QueueMembers]) -> None:
        self.session.run(self._configure(options, timeout_s, changes))

    def pause(self, timeout_s: float | None = None) -> None:
        self.session.run(self._pause(True, timeout_s))

    def resume(self, timeout_s: float | None = None) -> None:
        self.session.run(self._resume(timeout_s))

    def drain(self, timeout_s: float | None = None) -> None:
        self.session.run(self._drain(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then close the queue.

        `timeout_s` seconds, by default the options' `close_timeout_s`. Unconfirmed messages go to other consumers.
        SdkError: INVALID_QUEUE if it is already closed; TIMEOUT or the broker's result, the queue is closed nevertheless.
        Completes at once without a connection.
        """
        try:
            self.flush()
        finally:
            self.session.run(self._close(timeout_s))

    def confirm(self, message: Message[Any]) -> None:
        """Confirm a message, as `message.confirm()` does. After 1 s without calls it checks the connection first: SdkError
        NOT_CONNECTED if it is lost, and the message is redelivered."""
        session = self.session
        if session.running and session.clock() - session.last_step_at > _STALE_S:
            session.step()
        super().confirm(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.session.running:
            self.session.run(self._exit_block(kind is not None))


class Session(BaseSession):
    """One session with a broker; the constructor connects. Options: a SessionOptions object, or its members by name.

    `on_event` receives session events; `on_nack` failed posts without a waiting caller; `health` suspends queues.
    `tls`: context for tls:// addresses, by default with the system's trusted certificates.
    `pump`: factory of the transport, by default SocketPump; see `pump.Pump` for tunnels and in-memory brokers.
    """

    def __init__(self, broker: str | Iterable[str] | None = None, *, options: SessionOptions | None = None,
                 tls: ssl.SSLContext | None = None, on_event: OnEvent | None = None, on_nack: OnAck | None = None,
                 health: HealthMonitor | None = None, pump: PumpFactory = SocketPump,
                 **changes: Unpack[SessionMembers]) -> None:
        super().__init__(on_event, on_nack)
        self.options: SessionOptions = session_options(broker, options, changes)
        self.running: bool = True
        self._end = "the session is stopped"  # text of errors after its end
        self._transport = pump(self.options, cast(Dispatch, self._perform), tls)
        self.core: SessionCore = self._transport.core
        self.clock: Callable[[], float] = self._transport.clock
        self.last_step_at: float = self.clock()  # time of the last step
        self._timers, self._numbers = Deadlines(), itertools.count()
        self._calls: deque[tuple[Callable[[Any], object], object]] = deque()
        self._calling = False
        self._health: deque[bool] = deque()  # changes of the health monitor, from any thread
        self._listen(health, self._on_health)
        forks.register(self)
        self._exit_handler = partial(_stop_at_exit, weakref.ref(self))
        try:
            self.run(self._start())
        except BaseException:
            self.running = False
            self._transport.dispose()
            raise
        atexit.register(self._exit_handler)

    def __del__(self) -> None:
        if getattr(self, "running", False):
            self._stop_with_warning()

    def on_forked(self, core: Any) -> None:
        """Called in a child process: end this copy of the session without sending anything."""
        self.running, self.core, self._end = False, core, forks.FORKED
        self._transport.on_forked(core)

    def _stop_with_warning(self) -> None:
        """Stop a session that the application has not stopped."""
        warnings.warn(f"{self!r} was not stopped: use it with `with`, or call `stop`", UserWarning, stacklevel=3)
        try:
            self.stop()
        except SdkError as error:
            warnings.warn(f"{self!r} has lost posts: {error}", UserWarning, stacklevel=3)

    # -- the application --------------------------------------------------------------------------------------------

    def open(self, uri: str, *, read: bool = False, write: bool = False, options: QueueOptions | None = None,
             codec: Codec[ValueT] | None = None, on_message: Callable[[Message[ValueT]], object] | None = None,
             timeout_s: float | None = None) -> Queue[ValueT]:
        return self.run(self._open(self.make_queue(uri, codec, on_message), read, write, options, timeout_s))

    def stop(self, drain: bool = True) -> None:
        if self.running:
            self.running = False
            atexit.unregister(self._exit_handler)
            try:
                self._run_coroutine(self._stop(drain))
            finally:
                self._transport.dispose()

    def step(self, timeout_s: float = 0.0) -> None:
        """Process input and deadlines; wait up to `timeout_s` seconds for them."""
        self._check_running()
        self._transport.perform()
        self._step(timeout_s)

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None, quiet: bool = False) -> None:
        """Run the session until `done()`; SdkError TIMEOUT after `timeout_s` seconds, unless `quiet`."""
        end = None if timeout_s is None else self.clock() + timeout_s
        self._check_running()
        self._transport.perform()
        while not done():
            self._step(None if end is None else max(end - self.clock(), 0.0))
            if end is not None and self.clock() >= end and not done():
                if quiet:
                    return
                raise SdkError(Result.TIMEOUT, f"not within {timeout_s:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop(kind is None)

    # -- coroutines of the base class -------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine of the base class; return its value."""
        try:
            self._check_running()
        except SdkError:
            coroutine.close()
            raise
        return self._run_coroutine(coroutine)

    def _check_running(self) -> None:
        if not self.running:
            raise SdkError(Result.NOT_CONNECTED, self._end)

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        try:
            while True:
                promise: _Promise = coroutine.send(None)
                try:
                    self._transport.perform()
                    while not promise.done:
                        self._step(None)
                except BaseException as error:  # such as Ctrl-C: the coroutine must clean up
                    coroutine.throw(error)
                    raise
        except StopIteration as ended:
            self._call_back()
            return cast(_T, ended.value)

    def _step(self, timeout_s: float | None) -> None:
        """Wait for input and for deadlines of the core or the session, at most `timeout_s`, and process them."""
        timers = self._timers
        due = timers.earliest()
        if self._calls and not self._calling:
            timeout_s = 0.0
        if due is not None:
            left = max(due - self.clock(), 0.0)
            timeout_s = left if timeout_s is None else min(left, timeout_s)
        self._transport.step(timeout_s)
        self.last_step_at = self.clock()
        while self._health:
            self._set_health(self._health.popleft())
            self._transport.perform()
        while (key := timers.pop_expired(self.clock())) is not None:
            cast("tuple[int, Callable[[], object]]", key)[1]()
        self._call_back()

    def _call_back(self) -> None:
        """Run pending callbacks, one at a time and outside of the core, so that they may call any method."""
        if self._calling:
            return
        self._calling = True
        try:
            while self._calls:
                callback, argument = self._calls.popleft()
                try:
                    callback(argument)
                except Exception:  # noqa: BLE001 - an error in a callback must not affect others
                    LOG.exception("error in %r", callback)
                self._transport.perform()
        finally:
            self._calling = False

    def _on_health(self, healthy: bool) -> None:
        self._health.append(healthy)
        self._transport.interrupt_step()

    # -- methods of the base class ------------------------------------------------------------------------------------

    _queue_class = Queue

    def _on_connect(self, effect: Connect) -> None:
        """Have no effect: the transport connects by itself."""

    def turn(self, flush: bool = False) -> None:
        self._transport.perform(flush)

    def promise(self) -> Any:
        return _Promise()

    def fire(self, promise: Any, value: object) -> bool:
        if promise.done:
            return False
        promise.done, promise.value = True, value
        return True

    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Schedule a callback, which runs before the current call returns; its exceptions are logged."""
        self._calls.append((callback, argument))

    def call_at(self, due: float, action: Callable[[], object]) -> Cancel:
        key = next(self._numbers), action
        self._timers.set(key, due)
        return partial(self._timers.clear, key)

    async def yield_turn(self) -> None:
        self._transport.perform()
        self._transport.step(0.0)


def _stop_at_exit(reference: weakref.ref[Session]) -> None:
    session = reference()
    if session is not None and session.running:
        session._stop_with_warning()
