"""TCP relays between the nodes of a cluster that can be cut, in one direction or both, as a network is.

What is sent into a cut direction waits, in the buffers of the sockets at first and then at its sender, and nobody is told;
when the cut heals it arrives. Connections that are made across a cut are answered and carry nothing.
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
    """From one node to another."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.cuts = 0

    def cut(self) -> None:
        """Nothing passes from now on."""
        self._open.clear()
        self.cuts += 1

    def heal(self) -> None:
        """What waits passes."""
        self._open.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes of one connection, to its end."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        await self._open.wait()
        writer.close()


class CuttingRelays:
    """One relay for each ordered pair that dials; as a context manager, with an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._directions: dict[tuple[str, str], Direction] = {}
        self._servers: list[asyncio.Server] = []

    def relay(self, dialler: str, listener: str, port: int) -> int:
        """The port at which `dialler` reaches `listener`, who listens at `port`."""
        there, back = self._direction(dialler, listener), self._direction(listener, dialler)

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                far_reader, far_writer = await asyncio.open_connection(_HOST, port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(there.carry(reader, far_writer), back.carry(far_reader, writer))

        async def serve() -> asyncio.Server:
            return await asyncio.start_server(accepted, _HOST, 0)

        server = asyncio.run_coroutine_threadsafe(serve(), self._loop).result()
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _direction(self, source: str, target: str) -> Direction:
        return self._directions.setdefault((source, target), Direction())

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one to the other."""
        self._loop.call_soon_threadsafe(self._directions[source, target].cut)

    def heal(self) -> None:
        """Everything passes again."""
        for direction in self._directions.values():
            self._loop.call_soon_threadsafe(direction.heal)

    @property
    def cuts(self) -> int:
        """How often a direction was cut."""
        return sum(direction.cuts for direction in self._directions.values())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            mine = asyncio.current_task()
            for task in asyncio.all_tasks():
                if task is not mine:
                    task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
