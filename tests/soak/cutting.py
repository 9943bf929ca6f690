"""TCP relays between the nodes of a cluster that can block traffic or limit its bandwidth, in one direction or both.

Data sent into a blocked direction wait in the socket buffers, then at their sender, without an error; they arrive when
`heal` ends the block. Connections opened meanwhile are accepted and forward no data. A limited direction forwards the bytes
of all its connections at this rate; at most about 256 KiB of each connection are in the relay. Used by `failover.py` and
`test_slow_links_processes.py`. Faults in tests of applications are in `bmqtwist/testing/faults.py`.
"""

from __future__ import annotations

import asyncio
import copy
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from bmqtwist.testing import ClusterProcess

_CHUNK_BYTES = 1 << 16
_HOST = "127.0.0.1"


class Direction:
    """The direction from one node to another, over all connections between them."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.cuts = 0
        self.bytes_per_second = 0  # 0 = unlimited
        self._free_at = 0.0  # time at which a limited direction has forwarded everything

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
                await self._transmit(len(data))
                writer.write(data)
                await writer.drain()
        await self._open.wait()
        writer.close()


    async def _transmit(self, size: int) -> None:
        if self.bytes_per_second:
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + size / self.bytes_per_second
            await asyncio.sleep(self._free_at - now)


def _listening_socket() -> socket.socket:
    made = socket.create_server((_HOST, 0))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_BYTES)  # of accepted connections
    return made


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
            there = listener_writer.get_extra_info("socket")
            there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_BYTES)
            await asyncio.gather(forth.forward(reader, listener_writer), back.forward(listener_reader, writer))

        async def serve() -> asyncio.Server:
            return await asyncio.start_server(accepted, sock=_listening_socket())

        server = asyncio.run_coroutine_threadsafe(serve(), self._loop).result()
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def insert(self, cluster: ClusterProcess) -> None:
        """Let the nodes of a stopped cluster reach each other through relays."""
        for dialler in cluster.names:
            config = cluster[dialler].config
            config.clusters["myClusters"] = copy.deepcopy(config.clusters["myClusters"])
            for node in config.clusters["myClusters"][0]["nodes"]:
                if node["name"] != dialler:
                    port = self.relay(dialler, node["name"], cluster[node["name"]].port)
                    node["transport"]["tcp"]["dial"] = f"tcp://127.0.0.1:{port}"
            config.write()

    def limit(self, bytes_per_second: int) -> None:
        """Limit all directions to this bandwidth; 0 = unlimited."""
        for direction in self._directions.values():
            direction.bytes_per_second = bytes_per_second

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
