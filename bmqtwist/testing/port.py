"""A TCP port of an in-process broker, served by a thread: for other processes and for clients that want a socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from bmqtwist.testing.aio import LoopWaker, loop_waker, settle

if TYPE_CHECKING:
    from bmqtwist.testing.connection import TappedConnection
    from bmqtwist.testing.runner import BrokerRunner

LOOPBACK = "127.0.0.1"
START_SECONDS_MAX = 10.0


class _Accepted(asyncio.Protocol):
    """One connection; also the connection's end."""

    def __init__(self, runner: BrokerRunner, waker: LoopWaker) -> None:
        self._runner, self._waker = runner, waker
        self._connection: TappedConnection | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From the loop: somebody connected."""
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._connection = self._runner.connect("", self)
        except ConnectionError:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """From the loop: bytes."""
        if self._connection is not None:
            with self._runner.lock:
                self._connection.send(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """From the loop: the client is gone."""
        if self._connection is not None:
            with self._runner.lock:
                self._connection.close()

    def data(self, data: bytes) -> None:
        """From the connection: bytes."""
        if self._transport is not None:
            self._waker.soon(self._transport.write, data)

    def lost(self, reason: str) -> None:
        """From the connection: it is gone."""
        if self._transport is not None:
            self._waker.soon(self._transport.abort if reason else self._transport.close)

    def room(self) -> None:
        """From the connection: the kernel's buffers do what is needed."""


class Port:
    """A listening socket and its thread. `url` is what clients connect to."""

    def __init__(self, runner: BrokerRunner, port: int = 0) -> None:
        self._runner, self._number = runner, port
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], object] = lambda: None
        self.waker: LoopWaker | None = None
        self._thread = threading.Thread(target=self._run, name="bmqtwist-testing-port", daemon=True)
        self._thread.start()
        self._ready.wait(START_SECONDS_MAX)
        if self._failure is not None:
            raise self._failure

    @property
    def url(self) -> str:
        """`tcp://127.0.0.1:PORT`"""
        return f"tcp://{LOOPBACK}:{self._number}"

    def close(self) -> None:
        """Stop listening; connections are cut."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(START_SECONDS_MAX)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the port is to hear of it
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        self._stop = lambda: settle(over)
        self.waker = waker = loop_waker(self._runner, loop)
        server: Any = await loop.create_server(lambda: _Accepted(self._runner, waker), LOOPBACK, self._number)
        self._number = server.sockets[0].getsockname()[1]
        self._ready.set()
        await over
        server.close()
