"""TCP relays between the nodes of a cluster that can block traffic, in one direction or both.

Data sent into a blocked direction wait in the socket buffers, then at their sender, without an error; they arrive when
`heal` ends the block. Connections opened meanwhile are accepted and forward no data. Used by `failover.py`. Faults in tests
of applications are in `bmqtwist/testing/faults.py`.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 1 << 16
_HOST = "127.0.0.1"


class Direction:
    """The direction from one node to another, over all connections between them."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.cuts = 0

    def cut(self) -> None:
        """Block the direction."""
        self._open.clear()
        self.cuts += 1

    def heal(self) -> None:
        """End the block; waiting data pass."""
        self._open.set()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the bytes of one connection until its end."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        await self._open.wait()
        writer.close()


class CuttingRelays:
    """Relays for the connections between nodes; a context manager that runs their event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._directions: dict[tuple[str, str], Direction] = {}
        self._servers: list[asyncio.Server] = []

    def relay(self, dialler: str, listener: str, port: int) -> int:
        """Start a relay; return the port at which `dialler` reaches `listener`, which listens on `port`."""
        forth, back = self._direction(dialler, listener), self._direction(listener, dialler)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                listener_reader, listener_writer = await asyncio.open_connection(_HOST, port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(forth.forward(reader, listener_writer), back.forward(listener_reader, writer))

        async def serve() -> asyncio.Server:
            return await asyncio.start_server(accepted, _HOST, 0)

        server = asyncio.run_coroutine_threadsafe(serve(), self._loop).result()
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _direction(self, source: str, target: str) -> Direction:
        return self._directions.setdefault((source, target), Direction())

    def cut(self, source: str, target: str) -> None:
        """Block the direction from one node to another."""
        self._loop.call_soon_threadsafe(self._directions[source, target].cut)

    def heal(self) -> None:
        """End all blocks."""
        for direction in self._directions.values():
            self._loop.call_soon_threadsafe(direction.heal)

    @property
    def cuts(self) -> int:
        """Return how often a direction was blocked."""
        return sum(direction.cuts for direction in self._directions.values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            this_task = asyncio.current_task()
            for task in asyncio.all_tasks():
                if task is not this_task:
                    task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
