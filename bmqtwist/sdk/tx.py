"""Sessions and queues for Twisted: the calls of `aio`, with Deferreds.

    async with Session(reactor, "tcp://localhost:30114") as session:
        queue = await session.open("bmq://domain/queue", read=True, write=True)
        ack = await queue.post(b"hello")
        async for message in queue:
            async with message:             # confirmed unless the block raises
                print(message.payload)

A queue is also an IConsumer: a push producer registered with `registerProducer` is paused while there is no room for posts.
The reactor, passed by the caller, calls the protocol's callbacks and delayed calls. Callbacks of the application may call
any method of this module, may return Deferreds and may be coroutine functions. Every Deferred can be cancelled: no message
is lost, and no queue or session stays open. `_adapters/event_loop.py` has the parts that are common to this module and
`aio.py`; retransmission and reconnection are in `_core/`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Generic, Literal, Unpack, cast, overload
from typing import Protocol as TypingProtocol

from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IConsumer, IPushProducer, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import optionsForClientTLS
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import classImplements  # type: ignore[import-untyped]

from bmqtwist.dialing import ATTEMPT_DELAY_S
from bmqtwist.sdk._adapters.base import Cancel, OnAck, OnEvent, check_accepted
from bmqtwist.sdk._adapters.event_loop import READ_BYTES, LoopQueue, LoopSession
from bmqtwist.sdk._adapters.identity import session_options
from bmqtwist.sdk._adapters.log import reason_of
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk.codecs import Codec, ValueT
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, QueueMembers, QueueOptions, SessionMembers, SessionOptions
from bmqtwist.sdk.results import Ack, PostRefused, Result, SdkError
from bmqtwist.wire.properties import PropertyType

__all__ = ["Endpoint", "MakeEndpoint", "Queue", "Session"]

_log = Logger()


class Endpoint(TypingProtocol):
    """The method of IStreamClientEndpoint that a session uses, for type checkers without support of zope.interface."""

    def connect(self, protocolFactory: Any, /) -> Deferred[Any]:
        """Connect the protocol that the factory builds."""
        ...


MakeEndpoint = Callable[[Address], Endpoint | IStreamClientEndpoint]


class _Channel(Protocol):
    """One connection; a push producer of its transport.

    The transport pauses its producer above `bufferSize`, which is also its read size and therefore smaller than
    `channel_high_bytes`: the channel counts the bytes that are written while it is paused.
    """

    transport: Any

    session: Session
    attempt: int

    def __init__(self, session: Session, attempt: int) -> None:
        self.session, self.attempt = session, attempt
        self._paused = self._blocked = False
        self._unsent_bytes = 0  # written while paused

    def connectionMade(self) -> None:
        transport = self.transport
        set_no_delay = getattr(transport, "setTcpNoDelay", None)  # not every endpoint is TCP
        if set_no_delay is not None:
            set_no_delay(True)
        inner = getattr(transport, "transport", transport)  # below TLS
        inner.bufferSize = min(self.session.options.channel_high_bytes, READ_BYTES)
        transport.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:
        self.session.on_data(self, data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        self.connected = 0
        error = reason.value if reason is not None else None
        self.session.on_connection_lost(self, "" if error is None else reason_of(error))

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused, self._unsent_bytes = False, 0
        if self._blocked:
            self._blocked = False
            self.session.on_blocked(self, False)

    def stopProducing(self) -> None:
        """Called by the transport: the connection is closing."""

    def is_connected(self) -> bool:
        return bool(self.connected)

    def write(self, data: bytes) -> None:
        self.transport.write(data)
        if self._paused:
            self._unsent_bytes += len(data)
            if not self._blocked and self._unsent_bytes > self.session.options.channel_high_bytes:
                self._blocked = True
                self.session.on_blocked(self, True)

    def abort(self) -> None:
        if self.connected:
            self.transport.abortConnection()

    def fileno(self) -> int:
        get_handle = getattr(self.transport, "getHandle", None)  # not every endpoint has a socket
        return -1 if get_handle is None else int(get_handle().fileno())


classImplements(_Channel, IPushProducer)


class Queue(LoopQueue[ValueT], Generic[ValueT]):
    """One opened queue, an IConsumer; `async for` yields its messages until it is closed. `async with` closes it at the end
    of the block, after a flush unless the block raises."""

    def __init__(self, session: Session, uri: str, codec: Codec[ValueT] | None,
                 on_message: Callable[[Message[ValueT]], object] | None) -> None:
        super().__init__(session, uri, codec, on_message)
        self.session: Session = session
        self._producer: Any = None
        self._streaming = self._producer_paused = False

    # -- posting ----------------------------------------------------------------------------------------------------

    def post(self, payload: ValueT, properties: Mapping[str, object] | None = None,
             types: Mapping[str, PropertyType] | None = None, *, correlation: object = None,
             compress: bool | None = None) -> Deferred[Ack]:
        promise: Deferred[Ack] = Deferred()
        try:
            data = self._encode(payload)
            try:
                self._post_now(data, properties, types, Post(True, promise, correlation, None, compress))
            except SdkError as error:
                if error.result is not Result.BW_LIMIT:
                    raise
                return Deferred.fromCoroutine(self._post(payload, properties, types, correlation, compress))
        except Exception:  # noqa: BLE001 - all errors are reported by the Deferred
            return fail()
        return promise.addCallback(check_accepted)

    @overload
    def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                  return_exceptions: Literal[False] = False) -> Deferred[list[Ack]]: ...

    @overload
    def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                  return_exceptions: Literal[True]) -> Deferred[list[Ack | PostRefused]]: ...

    def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                  return_exceptions: bool = False) -> Any:
        return Deferred.fromCoroutine(self._post_many(payloads, return_exceptions))

    def flush(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._flush())

    # -- IConsumer --------------------------------------------------------------------------------------------------

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Register a producer: a push producer is paused while there is no room, a pull producer resumed when there is."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        self._producer, self._streaming, self._producer_paused = producer, streaming, False
        if not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """Unregister the producer."""
        self._producer = None

    def write(self, data: bytes) -> None:
        """Called by a producer: post one message."""
        session = self.session
        self.post_nowait(cast(ValueT, data))
        if self._producer is None:
            return
        if session.core.has_room(len(data)):
            if not self._streaming:
                session.call_soon(self._pull)
        elif not self._producer_paused:
            self._producer_paused = True
            if self._streaming:
                self._producer.pauseProducing()
            session.run_concurrently(self._resume_producer(len(data)))

    def _pull(self) -> None:
        if self._producer is not None:
            self._producer.resumeProducing()

    async def _resume_producer(self, size: int) -> None:
        await self.session.yield_turn()  # not from within the producer's own call
        await self.session._wait_until_room(None, size)
        self._producer_paused = False
        self._pull()

    # -- consuming --------------------------------------------------------------------------------------------------

    def get(self) -> Deferred[Message[ValueT]]:
        """Fire with the next message; fail with SdkError if the queue is closed."""
        if self._inbox:
            return succeed(self.get_nowait())
        return cast("Deferred[Message[ValueT]]", Deferred.fromCoroutine(self._get()))

    # -- requests ---------------------------------------------------------------------------------------------------

    def configure(self, options: QueueOptions | None = None, timeout_s: float | None = None,
                  **changes: Unpack[QueueMembers]) -> Deferred[None]:
        return Deferred.fromCoroutine(self._configure(options, timeout_s, changes))

    def pause(self, timeout_s: float | None = None) -> Deferred[None]:
        return Deferred.fromCoroutine(self._pause(True, timeout_s))

    def resume(self, timeout_s: float | None = None) -> Deferred[None]:
        return Deferred.fromCoroutine(self._resume(timeout_s))

    def drain(self, timeout_s: float | None = None) -> Deferred[None]:
        return Deferred.fromCoroutine(self._drain(timeout_s))

    def close(self, timeout_s: float | None = None) -> Deferred[None]:
        return Deferred.fromCoroutine(self._close(timeout_s))


classImplements(Queue, IConsumer)


class Session(LoopSession):
    """One session with a broker. Options: a SessionOptions object, or its members by name.

    `reactor`: Twisted's reactor. `on_event` receives session events; `on_nack` failed posts without a waiting caller;
    `health` suspends queues. `tls`: Twisted's connection creator for tls:// addresses, by default one that verifies the
    host name. `endpoint(address)` returns a client endpoint that replaces the HostnameEndpoint (with TLS for tls://), for
    tunnels, proxies and tests.
    """

    def __init__(self, reactor: Any, broker: str | Iterable[str] | None = None, *,
                 options: SessionOptions | None = None, tls: Any = None, on_event: OnEvent | None = None,
                 on_nack: OnAck | None = None, health: HealthMonitor | None = None,
                 endpoint: MakeEndpoint | None = None, **changes: Unpack[SessionMembers]) -> None:
        self.reactor: Any = reactor
        self._tls, self._make_endpoint = tls, endpoint or self._hostname_endpoint
        super().__init__(session_options(broker, options, changes), on_event, on_nack, health, reactor.seconds)

    # -- the application --------------------------------------------------------------------------------------------

    def start(self) -> Deferred[None]:
        """Connect; fail with SdkError TIMEOUT if no broker answers in time, or with the result of a refusal."""
        return Deferred.fromCoroutine(self._start())

    def stop(self, drain: bool = True) -> Deferred[None]:
        return Deferred.fromCoroutine(self._stop(drain))

    def open(self, uri: str, *, read: bool = False, write: bool = False, options: QueueOptions | None = None,
             codec: Codec[ValueT] | None = None, on_message: Callable[[Message[ValueT]], object] | None = None,
             timeout_s: float | None = None) -> Deferred[Queue[ValueT]]:
        return Deferred.fromCoroutine(self._open(self.make_queue(uri, codec, on_message), read, write, options, timeout_s))

    def room(self, timeout_s: float | None = None, *, size: int = 1) -> Deferred[bool]:
        """Fire with True when `post_nowait` has room for a payload of `size` bytes, with False after `timeout_s` seconds."""
        return Deferred.fromCoroutine(self._wait_for_room(size, timeout_s))

    # -- methods of the base class ------------------------------------------------------------------------------------

    _queue_class = Queue

    def promise(self) -> Deferred[Any]:
        return Deferred()

    def fire(self, promise: Any, value: object) -> bool:
        if promise.called:
            return False
        promise.callback(value)
        return True

    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        maybeDeferred(callback, argument).addErrback(
            lambda failure: _log.failure("error in {callback!r}", failure, callback=callback))

    def call_at(self, due: float, action: Callable[[], object]) -> Cancel:
        call = self.reactor.callLater(max(due - self.clock(), 0.0), action)
        return lambda: call.active() and call.cancel()

    def call_soon(self, action: Callable[[], object]) -> object:
        return self.reactor.callLater(0, action)

    def call_from_thread(self, action: Callable[[bool], object], argument: bool) -> object:
        call = getattr(self.reactor, "callFromThread", None)  # a twisted.internet.task.Clock has no threads
        return call(action, argument) if call is not None else self.reactor.callLater(0, action, argument)

    async def yield_turn(self) -> None:
        promise = self.promise()
        self.reactor.callLater(0, self.fire, promise, None)
        await promise

    def run_concurrently(self, coroutine: Coroutine[Any, Any, None]) -> Cancel:
        return Deferred.fromCoroutine(coroutine).cancel

    def make_channel(self, attempt: int) -> _Channel:
        return _Channel(self, attempt)

    def _hostname_endpoint(self, address: Address) -> Endpoint:
        endpoint: Any = HostnameEndpoint(self.reactor, address.host, address.port, self.options.attempt_timeout_s,
                                         attemptDelay=ATTEMPT_DELAY_S)
        if address.tls:
            endpoint = wrapClientTLS(self._tls or optionsForClientTLS(address.host), endpoint)
        return cast(Endpoint, endpoint)

    async def dial(self, address: Address, channel: _Channel) -> None:
        factory = Factory.forProtocol(lambda: channel)
        factory.noisy = False
        await cast(Endpoint, self._make_endpoint(address)).connect(factory)
