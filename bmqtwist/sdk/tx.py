"""The Twisted front: the calls of the asyncio one, with Deferreds.

    session = Session(reactor, "tcp://localhost:30114")
    await session.start()
    queue = await session.open("bmq://domain/queue", read=True, write=True)
    ack = await queue.post(b"hello")
    async for message in queue:
        with message:
            print(message.payload)

A queue is a consumer in Twisted's sense, too: a push producer registered with `registerProducer` is paused while there
is no room for posts. From the reactor: the protocol's callbacks and delayed calls; it is handed in, never imported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, cast
from typing import Protocol as TypingProtocol

from twisted.internet.defer import CancelledError, Deferred, DeferredList, fail, maybeDeferred, succeed
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.interfaces import IAddress, IConsumer, IPushProducer, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import optionsForClientTLS
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from bmqtwist.sdk import queues
from bmqtwist.sdk.effects import Completed, Connect, Group
from bmqtwist.sdk.front import Front
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.identity import make_core, session_options
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, QueueOptions, SessionOptions
from bmqtwist.sdk.queues import Codec
from bmqtwist.sdk.results import Ack, PostsFailed, Result, SdkError, SessionEvent
from bmqtwist.wire.properties import PropertyType

_log = Logger()
OnMessage = Callable[[Message], object]


class Endpoint(TypingProtocol):
    """What a session needs of an IStreamClientEndpoint, for type checkers that do not know zope's interfaces."""

    def connect(self, protocolFactory: Any, /) -> Deferred[Any]:
        """Connect the protocol that the factory builds."""


MakeEndpoint = Callable[[Address], Endpoint | IStreamClientEndpoint]


@implementer(IPushProducer)
class _Channel(Protocol):
    """One connection, a push producer of its transport."""

    transport: Any

    def __init__(self, session: Session, attempt: int) -> None:
        self.session, self.attempt = session, attempt

    def connectionMade(self) -> None:
        """From the reactor: the connection stands."""
        transport = self.transport
        set_no_delay = getattr(transport, "setTcpNoDelay", None)  # not every endpoint is TCP
        if set_no_delay is not None:
            set_no_delay(True)
        inner = getattr(transport, "transport", transport)  # below TLS
        inner.bufferSize = self.session.options.channel_high_bytes
        transport.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:
        """From the reactor: bytes."""
        self.session.received(self, data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        """From the reactor: the connection is gone."""
        self.session.lost(self, reason.getErrorMessage() if reason is not None else "")

    def pauseProducing(self) -> None:
        """From the transport: too much waits for the socket."""
        self.session.blocked(self, True)

    def resumeProducing(self) -> None:
        """From the transport: it has got through."""
        self.session.blocked(self, False)

    def stopProducing(self) -> None:
        """From the transport: the connection is going away."""


class _ChannelFactory(Factory):
    """Makes the one protocol of an attempt."""

    noisy = False

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel

    def buildProtocol(self, addr: IAddress | None) -> _Channel:
        """From the reactor: connected."""
        return self._channel


@implementer(IConsumer)
class Queue:
    """One opened queue; `async for` in a coroutine gives its messages until it is closed."""

    core: queues.Queue  # what the session core knows of it

    def __init__(self, session: Session, uri: str, on_message: OnMessage | None) -> None:
        self.session, self.uri, self.on_message = session, uri, on_message
        self.error: SdkError | None = None  # why it is closed, if that was not our wish
        self.ended = False
        self._inbox: deque[Message] = deque()
        self._getters: deque[Deferred[Message]] = deque()
        self._group = Group()
        self._flushing: list[Deferred[None]] = []
        self._producer: Any = None
        self._streaming = self._paused = False

    # -- posting ----------------------------------------------------------------------------------------------------

    def post(self, payload: Any, properties: Mapping[str, object] | None = None,
             types: Mapping[str, PropertyType] | None = None, *, correlation: object = None,
             compress: bool | None = None) -> Deferred[Ack]:
        """Post; fires with the acknowledgement. Waits for room if there is none (then SdkError BW_LIMIT)."""
        promise: Deferred[Ack] = Deferred()
        more = {"token": promise, "correlation": correlation, "compress": compress}
        placed: Deferred[Any] = self._place(payload, properties, types, more)
        return placed.addCallback(lambda guid: promise)

    def post_nowait(self, payload: Any, properties: Mapping[str, object] | None = None,
                    types: Mapping[str, PropertyType] | None = None, *, ack: bool = True,
                    on_ack: Callable[[Ack], object] | None = None, correlation: object = None,
                    compress: bool | None = None) -> bytes:
        """Post and go on; the GUID. SdkError BW_LIMIT if there is no room. `flush` waits for acknowledgements."""
        return self._put(payload, properties, types, {"ack": ack, "group": self._group, "token": on_ack,
                                                      "correlation": correlation, "compress": compress})

    async def _post_many(self, payloads: Iterable[Any]) -> list[Ack]:
        promise: Deferred[None] = Deferred()
        group = Group(promise, keep_acks=True)
        guids = []
        for each in payloads:
            payload, properties = each if isinstance(each, tuple) else (each, None)
            guids.append(await self._place(payload, properties, None, {"group": group}))
        self.session.core.seal(group)
        await promise
        assert group.acks is not None
        return [group.acks[guid] for guid in guids]

    def post_many(self, payloads: Iterable[Any]) -> Deferred[list[Ack]]:
        """Post payloads, or pairs of payload and properties; fires with their acknowledgements in the same order."""
        return Deferred.fromCoroutine(self._post_many(payloads))

    async def _flush(self) -> None:
        promise: Deferred[None] = Deferred()
        group, self._group = self._group, Group()
        group.token = promise
        earlier, self._flushing = self._flushing, []
        watched: Deferred[None] = Deferred()
        self._flushing.append(watched)
        self.session.core.seal(group)
        self.session.turn(flush=True)
        await promise
        await DeferredList(earlier)
        watched.callback(None)
        if group.failures:
            raise PostsFailed(group.failures, group.failed)

    def flush(self) -> Deferred[None]:
        """Send at once; fires when everything posted with `post_nowait` so far is answered, with PostsFailed if some
        of it since the last flush was refused."""
        return Deferred.fromCoroutine(self._flush())

    def _put(self, payload: Any, properties: Mapping[str, object] | None, types: Mapping[str, PropertyType] | None,
             more: dict[str, Any]) -> bytes:
        codec = self.core.codec
        if codec is not None:
            payload = codec.encode(payload)
        return self.session.core.post(self.core, payload, self.session.reactor.seconds(), properties, types, **more)

    def _place(self, payload: Any, properties: Mapping[str, object] | None, types: Mapping[str, PropertyType] | None,
               more: dict[str, Any]) -> Deferred[bytes]:
        """Post now, or when there is room, within the time that the options give."""
        try:
            return succeed(self._put(payload, properties, types, more))
        except SdkError as error:
            if error.result is not Result.BW_LIMIT:
                return fail(error)
        except Exception:  # noqa: BLE001 - whatever was wrong with the payload is the caller's to hear
            return fail()
        return Deferred.fromCoroutine(self._place_later(payload, properties, types, more))

    async def _place_later(self, payload: Any, properties: Mapping[str, object] | None,
                           types: Mapping[str, PropertyType] | None, more: dict[str, Any]) -> bytes:
        session = self.session
        end = session.reactor.seconds() + session.options.post_wait_s
        while True:
            left = end - session.reactor.seconds()
            await session.room(left)
            try:
                return self._put(payload, properties, types, more)
            except SdkError as error:
                if error.result is not Result.BW_LIMIT or session.reactor.seconds() >= end:
                    raise

    # -- as a consumer of a producer --------------------------------------------------------------------------------

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """A push producer is paused while there is no room; a pull producer is asked whenever there is."""
        if self._producer is not None:
            raise RuntimeError("a producer is registered already")
        self._producer, self._streaming, self._paused = producer, streaming, False
        if not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """The producer has nothing more."""
        self._producer = None

    def write(self, data: bytes) -> None:
        """From a producer: one message."""
        self.post_nowait(data)
        core = self.session.core
        if self._producer is None:
            return
        if core.has_room(len(data)):
            if not self._streaming:
                self.session.reactor.callLater(0, self._pull)
        elif not self._paused:
            self._paused = core.room_wanted = True
            if self._streaming:
                self._producer.pauseProducing()
            self.session.when_room(self._resume)

    def _pull(self) -> None:
        if self._producer is not None:
            self._producer.resumeProducing()

    def _resume(self) -> None:
        self._paused = False
        self._pull()

    # -- consuming --------------------------------------------------------------------------------------------------

    def get(self) -> Deferred[Message]:
        """Fires with the next message; fails with SdkError if the queue is closed meanwhile."""
        if self._inbox:
            return succeed(self.get_nowait())
        if self.ended:
            return fail(self.error or SdkError(Result.INVALID_QUEUE, f"{self.uri} is closed"))
        getter: Deferred[Message] = Deferred(lambda cancelled: self._getters.remove(cancelled))
        self._getters.append(getter)
        return getter

    def get_nowait(self) -> Message:
        """The next message; IndexError if none is here."""
        message = self._inbox.popleft()
        self.session.core.consumed(1)
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                yield await self.get()
            except SdkError:
                if self.error is not None:
                    raise
                return

    def deliver(self, message: Message) -> None:
        """From the session: a message."""
        if self.on_message is not None:
            self.session.core.consumed(1)
            self.session.call(self.on_message, message)
        elif self._getters:
            self.session.core.consumed(1)
            self._getters.popleft().callback(message)
        else:
            self._inbox.append(message)

    def end(self, error: SdkError | None = None) -> None:
        """From the session: no more messages come."""
        if not self.ended:
            self.ended, self.error = True, error
            self.session.open_queues.discard(self)
            getters, self._getters = self._getters, deque()
            for getter in getters:
                getter.errback(error or SdkError(Result.INVALID_QUEUE, f"{self.uri} is closed"))

    def confirm(self, message: Message) -> None:
        """Confirm a message."""
        self.session.core.confirm(message)

    # -- requests ---------------------------------------------------------------------------------------------------

    def configure(self, options: QueueOptions, timeout_s: float | None = None) -> Deferred[None]:
        """Change how the queue is read."""
        core = self.session.core
        return self.session.request(lambda token, now: core.configure(self.core, options, token, now, timeout_s))

    def close(self, timeout_s: float | None = None) -> Deferred[None]:
        """Close it. Posts that are not acknowledged by then fail: `flush` first to wait for them."""
        core = self.session.core

        def closed(result: Any) -> Any:
            if not self.core.is_open:
                self.end()
            return result
        return self.session.request(lambda token, now: core.close(self.core, token, now, timeout_s)).addBoth(closed)


class Session(Front):
    """One session with a broker. Options: whole ones, or single members of SessionOptions by name.

    `on_event` hears session events; `on_nack` hears of failed posts that nobody waits for; `health` suspends queues.
    `tls`: Twisted's connection creator for tls:// addresses, by default one that checks the host name.
    `endpoint(address)` gives the client endpoint to connect to in place of a HostnameEndpoint (with TLS for tls://), for
    tunnels, proxies and tests.
    """

    def __init__(self, reactor: Any, broker: str | list[str] | None = None, *, options: SessionOptions | None = None,
                 tls: Any = None, on_event: Callable[[SessionEvent], object] | None = None,
                 on_nack: Callable[[Ack], object] | None = None, health: HealthMonitor | None = None,
                 endpoint: MakeEndpoint | None = None, **changes: Any) -> None:
        super().__init__(on_event, on_nack)
        self.options = session_options(broker, options, changes)
        self.reactor = reactor
        self.core = make_core(self.options, reactor.seconds(), self._wake)
        self._tls, self._make_endpoint = tls, endpoint or self._hostname_endpoint
        self._channel: _Channel | None = None
        self._dial: Deferred[Any] | None = None
        self._timer: Any = None
        if health is not None:
            self._health(health.healthy)
            self._deaf = health.listen(lambda healthy: reactor.callFromThread(self._health, healthy))

    # -- the application --------------------------------------------------------------------------------------------

    def start(self) -> Deferred[None]:
        """Connect; fails with SdkError TIMEOUT if no broker answers in time, or with its result if it refuses us."""
        return self.request(self.core.start)

    def stop(self, drain: bool = True) -> Deferred[None]:
        """Wait for acknowledgements (not without `drain`), disconnect; nothing reconnects after this."""
        return self.request(lambda token, now: self.core.stop(token, now, drain))

    def open(self, uri: str, *, read: bool = False, write: bool = False, options: QueueOptions | None = None,
             codec: Codec | None = None, on_message: OnMessage | None = None,
             timeout_s: float | None = None) -> Deferred[Queue]:
        """Open a queue. Messages go to `on_message`, or to `get` and iteration."""
        queue = Queue(self, uri, on_message)

        def request(token: object, now: float) -> None:
            queue.core = self.core.open(uri, token, now, read=read, write=write, queue_options=options, owner=queue,
                                        timeout_s=timeout_s)
            queue.core.codec = codec
            self.open_queues.add(queue)

        def failed(reason: Failure) -> Failure:
            queue.end()
            return reason
        return self.request(request).addCallbacks(lambda _: queue, failed)

    def request(self, make: Callable[[object, float], object]) -> Deferred[Any]:
        """Make a request of the core; fails with SdkError if it does."""
        promise: Deferred[Completed] = Deferred()
        try:
            make(promise, self.reactor.seconds())
        except Exception:  # noqa: BLE001 - Deferred or not, the caller hears of it in one place
            return fail()

        def ended(completed: Completed) -> None:
            if completed.result is not Result.SUCCESS:
                raise SdkError(completed.result, completed.message)
        return promise.addCallback(ended)

    def room(self, seconds: float) -> Deferred[None]:
        """Fires when there may be room for posts, or after so many seconds."""
        promise: Deferred[None] = Deferred()
        self._rooms.append(promise)
        self.turn(flush=True)
        promise.addTimeout(max(seconds, 0.0), self.reactor, onTimeoutCancel=lambda _result, _timeout: None)
        return promise

    def when_room(self, action: Callable[[], object]) -> None:
        """Call back once there is room for posts."""
        promise: Deferred[None] = Deferred()
        promise.addCallback(lambda _: action())
        self._rooms.append(promise)

    def _health(self, healthy: bool) -> None:
        self.core.set_health(healthy, self.reactor.seconds())

    # -- a front's own ----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.reactor.callLater(0, self.turn)

    def fire(self, promise: Any, value: object) -> None:
        """Fire a Deferred."""
        if isinstance(promise, Deferred) and not promise.called:
            promise.callback(value)

    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the application back; its mistakes go to Twisted's log."""
        try:
            callback(argument)
        except Exception:  # noqa: BLE001 - one callback's mistake must not cost what else is due in this turn
            _log.failure("error in {callback!r}", callback=callback)

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport."""
        if self._channel is not None:
            self._channel.transport.write(data)

    def set_timer(self, due: float | None) -> None:
        """Tick at that time; a timer that comes early sets itself anew."""
        timer = self._timer
        if timer is not None:
            if due is not None and timer.getTime() <= due:
                return
            timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self.reactor.callLater(max(due - self.reactor.seconds(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.core.tick(self.reactor.seconds())
        self.turn()

    # -- the channel ------------------------------------------------------------------------------------------------

    def _hostname_endpoint(self, address: Address) -> Endpoint:
        endpoint: Any = HostnameEndpoint(self.reactor, address.host, address.port, self.options.attempt_timeout_s)
        if address.tls:
            endpoint = wrapClientTLS(self._tls or optionsForClientTLS(address.host), endpoint)
        return endpoint

    def connect(self, effect: Connect) -> None:
        """Open a channel."""
        channel = _Channel(self, effect.attempt)

        def up(_: object) -> None:
            self._dial = None
            if effect.attempt != self.core.attempt:
                channel.transport.abortConnection()
                return
            self._channel = channel
            self.core.connected(effect.attempt, self.reactor.seconds())
            self.turn()

        def down(reason: Failure) -> None:
            self._dial = None
            if not reason.check(CancelledError):
                self.core.failed(effect.attempt, reason.getErrorMessage(), self.reactor.seconds())
                self.turn()

        def dial() -> Deferred[Any]:
            return cast(Endpoint, self._make_endpoint(effect.address)).connect(_ChannelFactory(channel))
        self._dial = dialled = maybeDeferred(dial)
        dialled.addCallbacks(up, down)

    def disconnect(self) -> None:
        """Close the channel, or give up opening it."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.transport.abortConnection()
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.cancel()

    def received(self, channel: _Channel, data: bytes) -> None:
        """From a channel: bytes."""
        if channel is self._channel:
            self.core.received(data, self.reactor.seconds())
            self.turn()

    def blocked(self, channel: _Channel, blocked: bool) -> None:
        """From a channel: writing is to pause, or may go on."""
        if channel is self._channel:
            (self.core.pause if blocked else self.core.resume)(self.reactor.seconds())

    def lost(self, channel: _Channel, reason: str) -> None:
        """From a channel: it is gone."""
        if channel is self._channel:
            self._channel = None
            self.core.lost(channel.attempt, reason, self.reactor.seconds())
            self.turn()
