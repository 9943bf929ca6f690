"""TCP port of an in-process broker, served by a thread, for other processes and clients that need a socket.

Created by `Broker.listen` in `broker.py`; connections without a socket are in `aio.py`, `tx.py` and `transport.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

from bmqtwist.testing.aio import complete, loop_bridge
from bmqtwist.testing.runner import BrokerRunner, LoopEnd

LOOPBACK = "127.0.0.1"
START_SECONDS_MAX = 10.0


class _Accepted(LoopEnd, asyncio.Protocol):
    """An accepted TCP connection, connected to the in-process broker."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        try:
            self.connect("")
        except ConnectionError:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.send(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.disconnect()

    def receive(self, data: bytes) -> None:
        self.transport.write(data)

    def end(self, reason: str) -> None:
        if reason:
            self.transport.abort()
        else:
            self.transport.close()


class Port:
    """A listening socket and its thread. `url`: its address for clients."""

    def __init__(self, runner: BrokerRunner, port: int = 0) -> None:
        self._runner, self._number = runner, port
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="bmqtwist-testing-port", daemon=True)
        self._thread.start()
        self._ready.wait(START_SECONDS_MAX)
        if self._failure is not None:
            raise self._failure

    @property
    def url(self) -> str:
        """The address `tcp://127.0.0.1:PORT`."""
        return f"tcp://{LOOPBACK}:{self._number}"

    def close(self) -> None:
        """Stop listening and cut the connections."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(START_SECONDS_MAX)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again by the constructor
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        stopped: asyncio.Future[None] = loop.create_future()
        self._stop = lambda: complete(stopped)
        bridge = loop_bridge(self._runner, loop)
        server: Any = await loop.create_server(lambda: _Accepted(self._runner, bridge), LOOPBACK, self._number)
        self._number = server.sockets[0].getsockname()[1]
        self._ready.set()
        await stopped
        server.close()
