"""Connections of `bmqtwist/reactor/tcp.py` over scripted transports.

Used by `unit/reactor/test_tcp.py`; fakes for the reactor itself are in `performers.py`.
"""

from __future__ import annotations

import weakref
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.testing import StringTransport

from bmqtwist.reactor.tcp import Connection, ConnectionFactory


class Socket:
    """Socket of a transport; `send` fails when the connection is lost."""

    def __init__(self, transport: Transport) -> None:
        self._transport = weakref.ref(transport)
        self.options: list[tuple[int, ...]] = []
        self.comes: list[bytes | OSError] = []

    def recv(self, size: int) -> bytes:
        data = self.comes.pop(0) if self.comes else BlockingIOError()
        if isinstance(data, OSError):
            raise data
        return data

    def setsockopt(self, *option: int) -> None:
        self.options.append(option)

    def fileno(self) -> int:
        return 9

    def send(self, data: bytes) -> int:
        transport = self._transport()
        assert transport is not None
        if transport.lost:
            raise ConnectionResetError
        if transport.room == 0:
            transport.direct.append(b"")
            raise BlockingIOError
        taken = len(data) if transport.room is None else min(transport.room, len(data))
        if transport.room is not None:
            transport.room -= taken
        transport.direct.append(data[:taken])
        return taken


class Transport(StringTransport):
    """A TCP transport with a kernel buffer of `room` bytes."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__(IPv4Address("TCP", "127.0.0.1", 30114), IPv4Address("TCP", "127.0.0.1", 5))
        self.room, self.lost, self.direct, self.later = room, False, list[bytes](), list[bytes]()
        self.no_delay = self.aborted = False
        self.socket: Any = Socket(self)

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.no_delay = enabled

    def write(self, data: bytes) -> None:
        self.later.append(data)

    def abortConnection(self) -> None:
        self.aborted = True

    @property
    def everything(self) -> bytes:
        return b"".join(self.direct + self.later)


class Tls(Transport):
    """A TLS transport: it has no socket for direct writes."""

    def __init__(self, room: int | None = None) -> None:
        super().__init__(room)
        self.socket = None


class Driver:
    """Fake performer that records the calls of a connection in `calls`."""

    def __init__(self, accepts: bool = True) -> None:
        self.session: Any = "session" if accepts else None
        self.calls: list[tuple[Any, ...]] = []
        self.delayed: list[tuple[float, Any]] = []

    def on_connected(self, connection: Connection, peer: str, port: int) -> Any:
        self.calls.append(("connected", peer, port))
        return self.session

    def on_received(self, session: Any, data: bytes) -> None:
        self.calls.append(("received", session, data))

    def on_lost(self, session: Any, why: str) -> None:
        self.calls.append(("lost", session))

    def on_drained(self, session: Any) -> None:
        self.calls.append(("drained", session))

    def call_later(self, seconds: float, action: Any) -> None:
        self.delayed.append((seconds, action))


def connect(transport: Transport, driver: Driver | None = None) -> tuple[Connection, Driver]:
    driver = driver or Driver()
    connection = ConnectionFactory(driver).buildProtocol(transport.getPeer())
    connection.makeConnection(transport)
    return connection, driver
