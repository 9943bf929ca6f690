"""The asyncio front.

    async with Session("tcp://localhost:30114") as session:
        async with session.open("bmq://domain/queue", read=True, write=True) as queue:
            ack = await queue.post(b"hello")
            async for message in queue:
                async with message:         # confirmed unless the block raises
                    print(message.payload)

From the loop: the protocol's callbacks, one delayed call for the next deadline, one turn for everything that happened
in an iteration of the loop. Callbacks may call anything of this module.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, cast

from bmqtwist.sdk import queues
from bmqtwist.sdk.effects import Completed, Connect, Group
from bmqtwist.sdk.front import Front
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.identity import make_core, session_options, tls_context
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, QueueOptions, SessionOptions
from bmqtwist.sdk.queues import Codec
from bmqtwist.sdk.results import Ack, PostsFailed, Result, SdkError, SessionEvent
from bmqtwist.wire.properties import PropertyType

OnMessage = Callable[[Message], object]
Connector = Callable[[Callable[[], asyncio.Protocol], Address, ssl.SSLContext | None],
                     Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]]


async def connect_tcp(make_protocol: Callable[[], asyncio.Protocol], address: Address,
                      tls: ssl.SSLContext | None) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """The connector that is used by default: TCP, with TLS if there is a context."""
    return await asyncio.get_running_loop().create_connection(make_protocol, address.host, address.port, ssl=tls)


class _Channel(asyncio.Protocol):
    """One connection."""

    def __init__(self, session: Session, attempt: int) -> None:
        self.session, self.attempt = session, attempt
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From the loop: the connection stands."""
        options = self.session.options
        self.transport = channel = cast(asyncio.Transport, transport)
        channel.set_write_buffer_limits(options.channel_high_bytes, options.channel_low_bytes)

    def data_received(self, data: bytes) -> None:
        """From the loop: bytes."""
        self.session.received(self, data)

    def pause_writing(self) -> None:
        """From the loop: too much waits for the socket."""
        self.session.blocked(self, True)

    def resume_writing(self) -> None:
        """From the loop: it has got through."""
        self.session.blocked(self, False)

    def connection_lost(self, reason: Exception | None) -> None:
        """From the loop: the connection is gone."""
        self.session.lost(self, str(reason or "closed by the broker"))


class Queue:
    """One opened queue; async iteration gives its messages until it is closed."""

    core: queues.Queue  # what the session core knows of it

    def __init__(self, session: Session, uri: str, on_message: OnMessage | None) -> None:
        self.session, self.uri, self.on_message = session, uri, on_message
        self.error: SdkError | None = None  # why it is closed, if that was not our wish
        self.ended = False
        self._inbox: deque[Message] = deque()
        self._getters: deque[asyncio.Future[None]] = deque()
        self._group = Group()
        self._flushing: set[asyncio.Future[None]] = set()

    # -- posting ----------------------------------------------------------------------------------------------------

    async def post(self, payload: Any, properties: Mapping[str, object] | None = None,
                   types: Mapping[str, PropertyType] | None = None, *, correlation: object = None,
                   compress: bool | None = None) -> Ack:
        """Post and wait for the acknowledgement, whose status says what became of it.

        Waits for room if there is none (`post_wait_s` at most, then SdkError BW_LIMIT).
        """
        future: asyncio.Future[Ack] = self.session.loop.create_future()
        more = {"token": future, "correlation": correlation, "compress": compress}
        try:
            self._put(payload, properties, types, more)
        except SdkError as error:
            await self._put_later(error, payload, properties, types, more)
        return await future

    def post_nowait(self, payload: Any, properties: Mapping[str, object] | None = None,
                    types: Mapping[str, PropertyType] | None = None, *, ack: bool = True,
                    on_ack: Callable[[Ack], object] | None = None, correlation: object = None,
                    compress: bool | None = None) -> bytes:
        """Post and go on; the GUID. SdkError BW_LIMIT if there is no room. `flush` waits for acknowledgements."""
        return self._put(payload, properties, types, {"ack": ack, "group": self._group, "token": on_ack,
                                                      "correlation": correlation, "compress": compress})

    async def post_many(self, payloads: Iterable[Any]) -> list[Ack]:
        """Post payloads, or pairs of payload and properties; their acknowledgements in the same order."""
        future: asyncio.Future[None] = self.session.loop.create_future()
        group = Group(future, keep_acks=True)
        guids = []
        more: dict[str, Any] = {"group": group}
        for each in payloads:
            payload, properties = each if isinstance(each, tuple) else (each, None)
            try:
                guids.append(self._put(payload, properties, None, more))
            except SdkError as error:
                guids.append(await self._put_later(error, payload, properties, None, more))
        self.session.core.seal(group)
        await future
        assert group.acks is not None
        return [group.acks[guid] for guid in guids]

    async def flush(self) -> None:
        """Send at once and wait until everything posted with `post_nowait` so far is answered; PostsFailed if some of
        it since the last flush was refused."""
        future: asyncio.Future[None] = self.session.loop.create_future()
        group, self._group = self._group, Group()
        group.token = future
        earlier = list(self._flushing)
        self._flushing.add(future)
        future.add_done_callback(self._flushing.discard)
        self.session.core.seal(group)
        self.session.turn(flush=True)
        await future
        if earlier:
            await asyncio.wait(earlier)
        if group.failures:
            raise PostsFailed(group.failures, group.failed)

    def _put(self, payload: Any, properties: Mapping[str, object] | None, types: Mapping[str, PropertyType] | None,
             more: dict[str, Any]) -> bytes:
        codec = self.core.codec
        if codec is not None:
            payload = codec.encode(payload)
        return self.session.core.post(self.core, payload, self.session.loop.time(), properties, types, **more)

    async def _put_later(self, error: SdkError, payload: Any, properties: Mapping[str, object] | None,
                         types: Mapping[str, PropertyType] | None, more: dict[str, Any]) -> bytes:
        """There is no room: wait for it, within the time that the options give."""
        if error.result is not Result.BW_LIMIT:
            raise error
        session = self.session
        end = session.loop.time() + session.options.post_wait_s
        while session.loop.time() < end:
            await session.room(end)
            try:
                return self._put(payload, properties, types, more)
            except SdkError as again:
                if again.result is not Result.BW_LIMIT:
                    raise
        raise error

    # -- consuming --------------------------------------------------------------------------------------------------

    async def get(self) -> Message:
        """The next message; SdkError if the queue is closed meanwhile."""
        while not self._inbox:
            if self.ended:
                raise self.error or SdkError(Result.INVALID_QUEUE, f"{self.uri} is closed")
            getter: asyncio.Future[None] = self.session.loop.create_future()
            self._getters.append(getter)
            try:
                await getter
            except BaseException:
                if getter in self._getters:
                    self._getters.remove(getter)
                elif self._inbox:
                    self._wake_getter()
                raise
        return self.get_nowait()

    def get_nowait(self) -> Message:
        """The next message; IndexError if none is here."""
        message = self._inbox.popleft()
        self.session.core.consumed(1)
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            while self._inbox:
                yield self.get_nowait()
            if self.ended and self.error is None:
                return
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
            return
        self._inbox.append(message)
        self._wake_getter()

    def _wake_getter(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def end(self, error: SdkError | None = None) -> None:
        """From the session: no more messages come."""
        if not self.ended:
            self.ended, self.error = True, error
            self.session.open_queues.discard(self)
            while self._getters:
                self._wake_getter()

    def confirm(self, message: Message) -> None:
        """Confirm a message."""
        self.session.core.confirm(message)

    # -- requests ---------------------------------------------------------------------------------------------------

    async def configure(self, options: QueueOptions, timeout_s: float | None = None) -> None:
        """Change how the queue is read."""
        core = self.session.core
        await self.session.request(lambda token, now: core.configure(self.core, options, token, now, timeout_s))

    async def close(self, timeout_s: float | None = None) -> None:
        """Close it. Posts that are not acknowledged by then fail: `flush` first to wait for them."""
        core = self.session.core
        try:
            await self.session.request(lambda token, now: core.close(self.core, token, now, timeout_s))
        finally:
            if not self.core.is_open:
                self.end()


class _Opening:
    """What `Session.open` gives: to be awaited, or entered."""

    def __init__(self, queue: Queue, request: Callable[[object, float], object], session: Session) -> None:
        self._queue, self._request, self._session = queue, request, session

    async def _open(self) -> Queue:
        try:
            await self._session.request(self._request)
        except SdkError:
            self._queue.end()
            raise
        except asyncio.CancelledError:
            core = self._session.core
            if core.queues.get(self._queue.uri) is getattr(self._queue, "core", None):
                core.close(self._queue.core, None, self._session.loop.time())
            raise
        return self._queue

    def __await__(self) -> Generator[Any, None, Queue]:
        return self._open().__await__()

    async def __aenter__(self) -> Queue:
        return await self._open()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        queue = self._queue
        if not queue.ended and queue.core.is_open:
            if kind is None:
                await queue.flush()
            await queue.close()


class Session(Front):
    """One session with a broker. Options: whole ones, or single members of SessionOptions by name.

    `on_event` hears session events; `on_nack` hears of failed posts that nobody waits for; `health` suspends queues.
    `connect(make_protocol, address, tls)` opens a connection in place of `connect_tcp`, for tunnels, proxies and tests: it
    gives what `loop.create_connection` gives; an exception is a failed attempt.
    """

    def __init__(self, broker: str | list[str] | None = None, *, options: SessionOptions | None = None,
                 tls: ssl.SSLContext | None = None, on_event: Callable[[SessionEvent], object] | None = None,
                 on_nack: Callable[[Ack], object] | None = None, health: HealthMonitor | None = None,
                 connect: Connector = connect_tcp, **changes: Any) -> None:
        super().__init__(on_event, on_nack)
        self.options = session_options(broker, options, changes)
        self._connector = connect
        self.loop = asyncio.get_running_loop()
        self.core = make_core(self.options, self.loop.time(), self._wake)
        self._tls = tls
        self._channel: _Channel | None = None
        self._dial: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if health is not None:
            self._health(health.healthy)
            def listener(healthy: bool) -> None:
                self.loop.call_soon_threadsafe(self._health, healthy)
            self._deaf = health.listen(listener)

    # -- the application --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect; SdkError TIMEOUT if no broker answers in time, or its result if it refuses us."""
        await self.request(self.core.start)

    async def stop(self, drain: bool = True) -> None:
        """Wait for acknowledgements (not without `drain`), disconnect; nothing reconnects after this."""
        await self.request(lambda token, now: self.core.stop(token, now, drain))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.stop(drain=kind is None)

    def open(self, uri: str, *, read: bool = False, write: bool = False, options: QueueOptions | None = None,
             codec: Codec | None = None, on_message: OnMessage | None = None,
             timeout_s: float | None = None) -> _Opening:
        """Open a queue: `await` it, or use it with `async with`. Messages go to `on_message` or are iterated over."""
        queue = Queue(self, uri, on_message)

        def request(token: object, now: float) -> None:
            queue.core = self.core.open(uri, token, now, read=read, write=write, queue_options=options, owner=queue,
                                        timeout_s=timeout_s)
            queue.core.codec = codec
            self.open_queues.add(queue)
        return _Opening(queue, request, self)

    async def request(self, make: Callable[[object, float], object]) -> None:
        """Make a request of the core and wait for its end; SdkError if it fails."""
        future: asyncio.Future[Completed] = self.loop.create_future()
        make(future, self.loop.time())
        completed = await future
        if completed.result is not Result.SUCCESS:
            raise SdkError(completed.result, completed.message)

    async def room(self, end: float) -> None:
        """Wait until there may be room for posts, not longer than to that time of the loop."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._rooms.append(future)
        self.turn(flush=True)
        await asyncio.wait([future], timeout=max(end - self.loop.time(), 0.0))

    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call the application back; its mistakes go to the loop's exception handler."""
        try:
            callback(argument)
        except Exception as error:  # noqa: BLE001 - one callback's mistake must not cost what else is due in this turn
            self.loop.call_exception_handler({"message": f"error in {callback!r}", "exception": error})

    def _health(self, healthy: bool) -> None:
        self.core.set_health(healthy, self.loop.time())

    # -- turns ------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self.turn)

    def set_timer(self, due: float | None) -> None:
        """Tick at that time; a timer that comes early sets itself anew."""
        timer = self._timer
        if timer is not None:
            if due is not None and timer.when() <= due:
                return
            timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.core.tick(self.loop.time())
        self.turn()

    def fire(self, promise: Any, value: object) -> None:
        """Give a future its result."""
        if isinstance(promise, asyncio.Future) and not promise.done():
            promise.set_result(value)

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport."""
        channel = self._channel
        if channel is not None and channel.transport is not None:
            channel.transport.write(data)

    # -- the channel ------------------------------------------------------------------------------------------------

    def connect(self, effect: Connect) -> None:
        """Open a channel."""
        self._dial = self.loop.create_task(self._connect(effect))

    async def _connect(self, effect: Connect) -> None:
        address, channel = effect.address, _Channel(self, effect.attempt)
        try:
            await self._connector(lambda: channel, address, tls_context(address, self._tls))
            if channel.transport is None:
                raise ConnectionError("the connector has not connected the protocol that it was given")
        except Exception as error:  # noqa: BLE001 - whatever a connector raises, there is no connection
            self.core.failed(effect.attempt, str(error) or type(error).__name__, self.loop.time())
            self.turn()
            return
        if effect.attempt != self.core.attempt:
            channel.transport.abort()
            return
        if channel.transport.is_closing():
            self.core.failed(effect.attempt, "closed by the broker", self.loop.time())
            self.turn()
            return
        self._channel = channel
        self.core.connected(effect.attempt, self.loop.time())
        self.turn()

    def disconnect(self) -> None:
        """Close the channel, or give up opening it."""
        channel, self._channel = self._channel, None
        if channel is not None and channel.transport is not None:
            channel.transport.abort()
        dial, self._dial = self._dial, None
        if dial is not None and not dial.done() and dial is not asyncio.current_task():
            dial.cancel()

    def received(self, channel: _Channel, data: bytes) -> None:
        """From a channel: bytes."""
        if channel is self._channel:
            self.core.received(data, self.loop.time())
            self.turn()

    def blocked(self, channel: _Channel, blocked: bool) -> None:
        """From a channel: writing is to pause, or may go on."""
        if channel is self._channel:
            (self.core.pause if blocked else self.core.resume)(self.loop.time())

    def lost(self, channel: _Channel, reason: str) -> None:
        """From a channel: it is gone."""
        if channel is self._channel:
            self._channel = None
            self.core.lost(channel.attempt, reason, self.loop.time())
            self.turn()
