"""TCP relays between the nodes of a cluster that can block, limit or delay traffic, in one direction or both.

Data sent into a blocked direction wait in the socket buffers, then at their sender, without an error; they arrive when
`heal` ends the block. Connections opened meanwhile are accepted and forward no data. A limited direction forwards the bytes
of all its connections at this rate; at most about 256 KiB of each connection are in the relay. A delayed direction forwards
each chunk after a random time, in order; at most CHUNKS_MAX chunks of each connection are in the relay. Used by
`cluster_faults.py` and `test_slow_links_processes.py`. Faults in tests of applications are in `bmqtwist/testing/faults.py`.
"""

from __future__ import annotations

import asyncio
import copy
import random
import socket
import threading
from types import TracebackType
from typing import Any, Self

from bmqtwist.testing import ClusterProcess

CHUNKS_MAX = 256
_CHUNK_BYTES = 1 << 16
_HOST = "127.0.0.1"


class Direction:
    """The direction from one node to another, over all connections between them."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.cuts = 0
        self.bytes_per_second = 0  # 0 = unlimited
        self.delay_s = self.jitter_s = 0.0
        self._free_at = 0.0  # time at which a limited direction has forwarded everything

    def cut(self) -> None:
        """Block the direction."""
        self._open.clear()
        self.cuts += 1

    def heal(self) -> None:
        """End the block, the limit and the delay; waiting data pass."""
        self._open.set()
        self.bytes_per_second, self.delay_s, self.jitter_s = 0, 0.0, 0.0

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the bytes of one connection until its end."""
        delayed: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_MAX)
        await asyncio.gather(self._receive(reader, delayed), self._send(delayed, writer))

    async def _receive(self, reader: asyncio.StreamReader, delayed: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Collect the chunks of a connection with the time at which each is due; an empty one is the end."""
        data = b"-"
        while data:
            try:
                data = await reader.read(_CHUNK_BYTES)
            except OSError:
                data = b""
            delay = random.uniform(self.delay_s - self.jitter_s, self.delay_s + self.jitter_s)
            await delayed.put((asyncio.get_running_loop().time() + delay, data))
            if not self.delay_s:
                await delayed.join()

    async def _send(self, delayed: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        alive = True
        while True:
            due, data = await delayed.get()
            if self.delay_s:
                await asyncio.sleep(due - asyncio.get_running_loop().time())
            await self._open.wait()
            if not data:
                delayed.task_done()
                break
            if alive:
                await self._transmit(len(data))
                try:
                    writer.write(data)
                    await writer.drain()
                except OSError:
                    alive = False  # the rest is read and dropped, until the sender closes
            delayed.task_done()
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
        self._ports: dict[tuple[str, str, int], int] = {}  # of the relays, by dialler, listener and its port

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

    def dialled(self, dialler: str, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the nodes of a cluster's configuration for `dialler`, which reaches the other ones through relays."""
        made = copy.deepcopy(nodes)
        for node in made:
            if node["name"] != dialler:
                tcp = node["transport"]["tcp"]
                key = dialler, node["name"], int(tcp["endpoint"].rpartition(":")[2])
                port = self._ports.get(key) or self._ports.setdefault(key, self.relay(*key))
                tcp["dial"] = f"tcp://{_HOST}:{port}"
        return made

    def insert(self, cluster: ClusterProcess) -> None:
        """Let the nodes of a stopped cluster reach each other through relays."""
        for dialler in cluster.names:
            config = cluster[dialler].config
            definition, = config.clusters["myClusters"]
            config.clusters["myClusters"] = [{**definition, "nodes": self.dialled(dialler, definition["nodes"])}]
            config.write()

    def limit(self, bytes_per_second: int, *pair: str) -> None:
        """Limit all directions, or both between the nodes of a pair, to this bandwidth; 0 = unlimited."""
        for (source, target), direction in self._directions.items():
            if not pair or {source, target} == set(pair):
                direction.bytes_per_second = bytes_per_second

    def delay(self, seconds: float, jitter: float) -> None:
        """Delay all directions by this time, each chunk by up to `jitter` more or less."""
        for direction in self._directions.values():
            direction.delay_s, direction.jitter_s = seconds, jitter

    def _direction(self, source: str, target: str) -> Direction:
        return self._directions.setdefault((source, target), Direction())

    def cut(self, source: str, target: str) -> None:
        """Block the direction from one node to another."""
        self._loop.call_soon_threadsafe(self._directions[source, target].cut)

    def heal(self) -> None:
        """End all blocks, limits and delays."""
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
