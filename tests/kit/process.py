"""Broker processes for tests: with a generated configuration directory and free ports; ended with the test.

The fixtures of tests/conftest.py create it; the same scenarios run in memory with `memory.py`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bmqtwist.testing import process
from bmqtwist.testing.process import STARTED, free_port
from kit.client import DEADLINE, Client, Expired
from kit.world import World

START_SECONDS_MAX = 180.0  # for busy machines

__all__ = ["STARTED", "BrokerProcess", "ProcessWorld", "SocketLink", "free_port", "running_world"]


class SocketLink:
    """A TCP connection to the broker."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False

    def send(self, data: bytes) -> None:
        """Send all bytes; a closed connection is ignored."""
        self.socket.settimeout(DEADLINE)
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def receive(self, deadline: float) -> bytes:
        """Return the bytes that arrive within `deadline` seconds; b"" for none, or if the connection is closed."""
        if self.closed:
            return b""
        self.socket.settimeout(deadline)
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            return b""
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            self.socket.close()
        return data

    def drop(self) -> None:
        """Close the socket."""
        self.closed = True
        self.socket.close()


class BrokerProcess(process.BrokerProcess):
    """`bmqtwist.testing.process.BrokerProcess` without sample domains, with the method names of scenarios."""

    def __init__(self, root: Path, port: int | None = None, *, app: dict[str, Any] | None = None,
                 cluster: dict[str, Any] | None = None) -> None:
        super().__init__(root, port, app=app, cluster=cluster, samples=False)

    uri = process.BrokerProcess.url
    terminate = process.BrokerProcess.stop
    cleanup = process.BrokerProcess.close


class ProcessWorld(World):
    """A world whose broker runs in a process."""

    def __init__(self, root: Path, *, app: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None,
                 start: bool = True) -> None:
        super().__init__()
        self.broker = BrokerProcess(root, app=app, cluster=cluster)
        self.config, self.root = self.broker.config, root
        if start:
            self.start()

    def start(self) -> None:
        """Start the broker process."""
        self.broker.start()

    def stop(self) -> None:
        """Stop the broker with SIGTERM; it must exit with code 0."""
        assert self.broker.terminate() == 0

    def crash(self) -> None:
        """Kill the broker with SIGKILL."""
        self.broker.kill()

    def link(self, listener: int = 0) -> SocketLink:
        """Open a TCP connection to a listener."""
        listeners = self.config.broker["appConfig"]["networkInterfaces"]["tcpInterface"]["listeners"]
        return SocketLink(listeners[listener]["port"])

    def log(self) -> list[str]:
        """Return all output lines, without the copies of alarms on the alarm channel."""
        return [record for record in self.broker.records if not record.startswith(("ALARM: ", "PANIC: "))]

    def expect_log(self, *texts: str, since: int = 0, deadline: float = DEADLINE) -> str:
        """Wait for an output line that contains all texts, and return it."""
        return self.broker.expect(*texts, since=since, deadline=deadline)

    def wait_disconnected(self, client: Client) -> None:
        """Wait until the broker lists no handle of the client; raises Expired after `DEADLINE` seconds."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if not self._lists(client):
                return
        raise Expired(f"the broker still lists {client.name}")

    def _lists(self, client: Client) -> bool:
        if client is self._admin or not client.broker_response:
            return False
        return any(client.description in self.admin(f"DOMAINS DOMAIN {uri[6:].partition('/')[0]} QUEUE "
                                                    f"{uri.rpartition('/')[2]} INTERNALS")
                   for queues in client.queues.values() for uri in {queue.uri for queue in queues})

    def cleanup(self) -> None:
        """Close the connections and end the broker."""
        for client in self.clients:
            client.link.drop()
        self.broker.cleanup()


@contextlib.contextmanager
def running_world(root: Path, **settings: Any) -> Iterator[ProcessWorld]:
    """Run a broker process with a domain of each mode: `d`, `f` (fanout), and `b` (broadcast, in memory)."""
    world = ProcessWorld(root, start=False, **settings)
    world.domain("d")
    world.domain("f", "fanout")
    world.domain("b", "broadcast", in_memory=True)
    try:
        world.broker.start(START_SECONDS_MAX)
        yield world
    finally:
        world.cleanup()
