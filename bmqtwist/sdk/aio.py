"""Sessions and queues for asyncio.

    async with Session("tcp://localhost:30114") as session:
        async with session.open("bmq://domain/queue", read=True, write=True) as queue:
            ack = await queue.post(b"hello")
            async for message in queue:
                async with message:         # confirmed unless the block raises
                    print(message.payload)

The loop calls the protocol's callbacks, one delayed call for the next deadline, and one turn per iteration. Callbacks of
the application may call any method of this module and may be coroutine functions. Every awaitable can be cancelled: no
message is lost, and no queue or session stays open. `_adapters/event_loop.py` has the parts that are common to this module
and `tx.py`; retransmission and reconnection are in `_core/`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, Unpack, cast, overload

from bmqtwist.dialing import Race, interleave
from bmqtwist.sdk._adapters.base import Cancel, OnAck, OnEvent
from bmqtwist.sdk._adapters.event_loop import READ_BYTES, LoopQueue, LoopSession
from bmqtwist.sdk._adapters.identity import session_options, tls_context
from bmqtwist.sdk._adapters.log import reason_of
from bmqtwist.sdk.codecs import Codec, ValueT
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import Address, QueueMembers, QueueOptions, SessionMembers, SessionOptions
from bmqtwist.sdk.results import Ack, PostRefused
from bmqtwist.wire.properties import PropertyType

__all__ = ["Connector", "Opening", "Queue", "Session", "connect_tcp"]

Connector = Callable[[Callable[[], asyncio.BaseProtocol], Address, ssl.SSLContext | None],
                     Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]]


async def connect_tcp(make_protocol: Callable[[], asyncio.BaseProtocol], address: Address,
                      tls: ssl.SSLContext | None) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
    """Default connector: TCP, with TLS if a context is given; a race over all addresses of the host."""
    loop = asyncio.get_running_loop()
    made = await _connect_socket(loop, address)
    try:
        return await loop.create_connection(make_protocol, sock=made, ssl=tls, server_hostname=address.host if tls else None)
    except BaseException:
        made.close()
        raise


async def _connect_socket(loop: asyncio.AbstractEventLoop, broker: Address) -> socket.socket:
    """Return a socket that is connected to the first address of a broker that answers. OSError if none does."""
    found = await loop.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM)
    race, running, error = Race(interleave(found)), dict[asyncio.Future[None], socket.socket](), OSError("no address")
    try:
        while not race.is_lost:
            while (place := race.take(loop.time())) is not None:
                try:
                    made = socket.socket(*place[:3])
                except OSError as failure:  # this machine lacks the family
                    error = failure
                    race.on_failed(reason_of(failure))
                    continue
                made.setblocking(False)
                running[loop.create_task(loop.sock_connect(made, place[4]))] = made
            if not running:
                continue
            wait_s = None if race.next_at is None else max(race.next_at - loop.time(), 0.0)
            done, _ = await asyncio.wait(running, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                made = running.pop(task)
                try:
                    task.result()
                except OSError as failure:
                    made.close()
                    error = failure
                    race.on_failed(reason_of(failure))
                else:
                    return made
    finally:
        for task, made in running.items():
            task.cancel()
            made.close()
    raise error


class _Channel(asyncio.BufferedProtocol):
    """One connection. The buffer size bounds the work per iteration of the loop."""

    session: Session
    attempt: int

    def __init__(self, session: Session, attempt: int) -> None:
        self.session, self.attempt = session, attempt
        self.transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        options = self.session.options
        self.transport = channel = cast(asyncio.Transport, transport)
        channel.set_write_buffer_limits(options.channel_high_bytes, options.channel_low_bytes)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.session.on_data(self, bytes(self._buffer[:nbytes]))

    def pause_writing(self) -> None:
        self.session.on_blocked(self, True)

    def resume_writing(self) -> None:
        self.session.on_blocked(self, False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.on_connection_lost(self, reason_of(exc) if exc is not None else "closed by the broker")

    def is_connected(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def fileno(self) -> int:
        channel = self.transport.get_extra_info("socket") if self.transport is not None else None
        return -1 if channel is None else int(channel.fileno())


class Queue(LoopQueue[ValueT], Generic[ValueT]):
    """One opened queue; async iteration yields its messages until it is closed. `async with` closes it at the end of the
    block, after a flush unless the block raises."""

    session: Session

    async def post(self, payload: ValueT, properties: Mapping[str, object] | None = None,
                   types: Mapping[str, PropertyType] | None = None, *, correlation: object = None,
                   compress: bool | None = None) -> Ack:
        return await self._post(payload, properties, types, correlation, compress)

    @overload
    async def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                        return_exceptions: Literal[False] = False) -> list[Ack]: ...

    @overload
    async def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                        return_exceptions: Literal[True]) -> list[Ack | PostRefused]: ...

    async def post_many(self, payloads: Iterable[ValueT | tuple[ValueT, Mapping[str, object] | None]], *,
                        return_exceptions: bool = False) -> Any:
        return await self._post_many(payloads, return_exceptions)

    async def flush(self) -> None:
        await self._flush()

    async def get(self) -> Message[ValueT]:
        """Wait for the next message; SdkError if the queue is closed."""
        if self._inbox:
            return self.get_nowait()
        return cast(Message[ValueT], await self._get())

    async def configure(self, options: QueueOptions | None = None, timeout_s: float | None = None,
                        **changes: Unpack[QueueMembers]) -> None:
        await self._configure(options, timeout_s, changes)

    async def pause(self, timeout_s: float | None = None) -> None:
        await self._pause(True, timeout_s)

    async def resume(self, timeout_s: float | None = None) -> None:
        await self._resume(timeout_s)

    async def drain(self, timeout_s: float | None = None) -> None:
        await self._drain(timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        await self._close(timeout_s)


class Opening(Awaitable[Queue[ValueT]], Generic[ValueT]):
    """Result of `Session.open`: await it, or enter it with `async with`."""

    def __init__(self, coroutine: Callable[[], Coroutine[Any, Any, Queue[ValueT]]]) -> None:
        self._coroutine = coroutine
        self._queue: Queue[ValueT] | None = None
        self._awaited = False

    def __await__(self) -> Generator[Any, None, Queue[ValueT]]:
        self._awaited = True
        return self._coroutine().__await__()

    def __del__(self) -> None:
        if not self._awaited:
            warnings.warn("a queue was not opened: `session.open(...)` was never awaited", RuntimeWarning, stacklevel=2)

    async def __aenter__(self) -> Queue[ValueT]:
        self._awaited = True
        self._queue = queue = await self._coroutine()
        return queue

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if self._queue is not None:
            await self._queue.__aexit__(kind, error, trace)


class Session(LoopSession):
    """One session with a broker. Options: a SessionOptions object, or its members by name.

    `on_event` receives session events; `on_nack` failed posts without a waiting caller; `health` suspends queues.
    `tls`: context for tls:// addresses, by default with the system's trusted certificates.
    `connect(make_protocol, address, tls)` replaces `connect_tcp`, for tunnels, proxies and tests: it returns the same as
    `loop.create_connection`; an exception is a failed attempt.
    """

    def __init__(self, broker: str | Iterable[str] | None = None, *, options: SessionOptions | None = None,
                 tls: ssl.SSLContext | None = None, on_event: OnEvent | None = None, on_nack: OnAck | None = None,
                 health: HealthMonitor | None = None, connect: Connector = connect_tcp,
                 **changes: Unpack[SessionMembers]) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._tls, self._connector = tls, connect
        self._tasks: set[asyncio.Task[Any]] = set()
        super().__init__(session_options(broker, options, changes), on_event, on_nack, health, self.loop.time)

    # -- the application --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect; SdkError TIMEOUT if no broker answers in time, or the result of a refusal."""
        await self._start()

    async def stop(self, drain: bool = True) -> None:
        await self._stop(drain)

    def open(self, uri: str, *, read: bool = False, write: bool = False, options: QueueOptions | None = None,
             codec: Codec[ValueT] | None = None, on_message: Callable[[Message[ValueT]], object] | None = None,
             timeout_s: float | None = None) -> Opening[ValueT]:
        return Opening(lambda: self._open(self.make_queue(uri, codec, on_message), read, write, options, timeout_s))

    async def room(self, timeout_s: float | None = None, *, size: int = 1) -> bool:
        """Wait until `post_nowait` has room for a payload of `size` bytes; False after `timeout_s` seconds."""
        return await self._wait_for_room(size, timeout_s)

    # -- methods of the base class ------------------------------------------------------------------------------------

    _queue_class = Queue

    def promise(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    def fire(self, promise: Any, value: object) -> bool:
        if promise.done():
            return False
        promise.set_result(value)
        return True

    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        try:
            result = callback(argument)
        except (Exception, asyncio.CancelledError) as error:  # an error in a callback must not affect other effects
            self._report_error(callback, error)
            return
        if asyncio.iscoroutine(result):
            task = self.loop.create_task(result)
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._on_task_done(callback, task))

    def _on_task_done(self, callback: object, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._report_error(callback, error)

    def _report_error(self, callback: object, error: BaseException) -> None:
        self.loop.call_exception_handler({"message": f"error in {callback!r}", "exception": error})

    def call_at(self, due: float, action: Callable[[], object]) -> Cancel:
        return self.loop.call_at(due, action).cancel

    def call_soon(self, action: Callable[[], object]) -> object:
        return self.loop.call_soon(action)

    def call_from_thread(self, action: Callable[[bool], object], argument: bool) -> object:
        return self.loop.call_soon_threadsafe(action, argument)

    async def yield_turn(self) -> None:
        await asyncio.sleep(0)

    def run_concurrently(self, coroutine: Coroutine[Any, Any, None]) -> Cancel:
        return self.loop.create_task(coroutine).cancel

    def make_channel(self, attempt: int) -> _Channel:
        return _Channel(self, attempt)

    async def dial(self, address: Address, channel: _Channel) -> None:
        await self._connector(lambda: channel, address, tls_context(address, self._tls))
        if channel.transport is None:
            raise ConnectionError("the connector has not connected the protocol that it was given")
