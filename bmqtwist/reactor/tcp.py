"""The Twisted shell of a session: chunks in, one write out per turn. No parsing, no decisions.

From the reactor: makeConnection, dataReceived, connectionLost, resumeProducing and its siblings.
From the broker: `write` at the end of a turn, `finish` to close, `abort` when a peer lingers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from typing import Protocol as Interface

from twisted.internet.error import ConnectionClosed
from twisted.internet.interfaces import IAddress, IPushProducer
from twisted.internet.protocol import ClientFactory, Factory, Protocol
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from bmqtwist.limits import TRANSPORT_BYTES_MAX
from bmqtwist.link.outgoing import Outgoing
from bmqtwist.link.pace import REST_BYTES_MAX
from bmqtwist.link.session import Session
from bmqtwist.reactor.incoming import Incoming

LOOKS_IN_VAIN_MAX = 4  # at a connection that has rested, one after the other
LINGER_S = 5.0  # a peer that does not read the end of its connection is cut off after that


class Driver(Interface):
    """What runs the broker on a reactor."""

    def connected(self, connection: Connection, peer: str, port: int) -> Session | None:
        """A new connection; None refuses it."""

    def received(self, session: Session, data: bytes) -> None:
        """Bytes for a session; a turn follows."""

    def lost(self, session: Session, why: str) -> None:
        """The channel of a session is gone. `why`: what is wrong with its TLS; empty = nothing, or it has none."""

    def drained(self, session: Session) -> None:
        """A peer that was behind has taken everything."""

    def call_later(self, seconds: float, action: Callable[[], None]) -> object:
        """Delay a call."""


@implementer(IPushProducer)
class Connection(Protocol):
    """One connection. `opened` is told that it stands, instead of the driver: for one that was made from here.

    `waiting_bytes` are written and not yet sent; `taken_bytes` were sent after such a wait.

    Over plain TCP the socket is tried at once, which saves a round through the reactor; only a remainder goes to the
    transport, with us as its pull producer until it is through. Over TLS we are a push producer all the time. What waits
    is handed to the transport in pieces, so that it is known how much of it the other side has taken.
    """

    transport: Any  # a TCP or TLS transport

    def __init__(self, driver: Driver, opened: Callable[[Connection, str, int], Session | None] | None = None) -> None:
        self._driver = driver
        self._opened = opened or driver.connected
        self.session: Session | None = None
        self.incoming: Incoming | None = None
        self.outgoing = Outgoing()
        self.waiting_bytes = self.taken_bytes = 0
        self._queue: deque[memoryview] = deque()  # behind the piece that the transport has
        self._given = 0  # size of that piece
        self._send: Callable[[bytes], int] | None = None  # plain TCP only
        self._reading = True
        self._in_vain = 0  # looks one after the other that have found nothing
        self.resting = False  # the reactor does not say when there is something to read: `look` finds out
        self.looked_at = 0.0  # the driver's: since when it rests, or when `look` was called last
        self._behind = False

    @property
    def descriptor(self) -> int:
        """The number of its socket, the lowest that was free when it was accepted; -1 where it has none."""
        channel = getattr(self.transport, "socket", None)
        return channel.fileno() if channel is not None else -1

    def connectionMade(self) -> None:
        """From the reactor: the connection stands."""
        transport = self.transport
        transport.setTcpNoDelay(True)
        channel = getattr(transport, "socket", None)
        self.incoming = Incoming(self._driver, channel, self.outgoing)
        peer = transport.getPeer()
        # A TLS transport hands on unknown attributes to the TCP one below it: asked for, not tried.
        if channel is None or isinstance(transport, TLSMemoryBIOProtocol):
            transport.registerProducer(self, True)
        else:
            self._send = self.outgoing.send = channel.send
        self.session = self.incoming.session = self._opened(self, f"{peer.host}:{peer.port}", transport.getHost().port)
        if self.session is None:
            transport.abortConnection()

    def dataReceived(self, data: bytes) -> None:
        """From the reactor: bytes."""
        if self.incoming is not None:
            self.incoming.take(data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        """From the reactor: the connection is gone."""
        session, self.session = self.session, None
        self.waiting_bytes = self._given = 0
        self._queue.clear()
        self._behind = False
        if self.incoming is not None:
            self.incoming.close()
        self.outgoing.send = None
        self.transport = self._send = None  # with all that was not read; `abort` may still be due
        if session is not None:
            self._driver.lost(session, _complaint(reason))

    def write(self, parts: list[bytes]) -> int:
        """Write the output of one turn; returns how many bytes it was."""
        data = b"".join(parts)
        size = len(data)
        if self._behind or self._send is None:
            self._queue.append(memoryview(data))
            self.waiting_bytes += size
            if not self._behind:
                self._give()
            return size
        sent = self.outgoing.write(data)
        if sent < size:
            self.write_rest(data, sent)
        return size

    def write_rest(self, data: bytes, sent: int) -> None:
        """`sent` bytes of it were taken; or the connection is lost, which the transport finds out when it writes."""
        self._queue.append(memoryview(data)[sent:])
        self.transport.registerProducer(self, False)
        self._behind, self.waiting_bytes = True, len(data) - sent
        self.outgoing.send = None
        self._give()

    def _give(self) -> None:
        """Hand the transport the next piece of what waits, and further ones until it is behind."""
        queue = self._queue
        while queue:
            piece = queue.popleft()
            if len(piece) > TRANSPORT_BYTES_MAX:
                queue.appendleft(piece[TRANSPORT_BYTES_MAX:])
                piece = piece[:TRANSPORT_BYTES_MAX]
            self._given = len(piece)
            self.transport.write(bytes(piece))
            if self._behind:
                return
            self._taken()

    def _taken(self) -> None:
        self.waiting_bytes -= self._given
        self.taken_bytes += self._given
        self._given = 0

    def resumeProducing(self) -> None:
        """From the transport: what it was given is sent (a pull producer is also called when it is registered)."""
        if not self._behind:
            return
        self._taken()
        self._behind = self._send is not None and bool(self._queue)  # over TLS it says again when it is behind
        self._give()
        if self._behind:
            return
        if self._send is not None:
            self.transport.unregisterProducer()
            self.outgoing.send = self._send
        self.read(True)
        if self.session is not None:
            self._driver.drained(self.session)

    def pauseProducing(self) -> None:
        """From a TLS transport: it has more than it can send now."""
        self._behind = True

    def stopProducing(self) -> None:
        """From the transport: the connection is going away."""

    def read(self, wanted: bool) -> None:
        """Go on reading, or stop it: TCP then slows the peer down."""
        if wanted != self._reading and self.session is not None:
            self._reading = wanted
            if wanted:
                self.transport.resumeProducing()
            elif self.resting:
                self.resting = False
            else:
                self.transport.pauseProducing()

    def rest(self) -> bool:
        """Have whoever calls `look` now and then find out what there is to read. False: it cannot be."""
        if self._send is None or not self._reading or self.session is None:
            return False
        self.resting, self._in_vain = True, 0
        self.transport.pauseProducing()
        return True

    def look(self) -> None:
        """Read what has come while it rested. When that is nothing again and again, or much, or somebody waits, it rests no
        more."""
        session, incoming = self.session, self.incoming
        if not self.resting or session is None or incoming is None:
            return
        size = incoming.look()
        self._in_vain = 0 if size > 0 else self._in_vain + 1
        rests = session.unhurried and 0 <= size <= REST_BYTES_MAX and self._in_vain < LOOKS_IN_VAIN_MAX
        if rests or not self.resting or self.session is None:
            return
        if not size:
            incoming.acknowledge()
        self.resting = False
        self.transport.resumeProducing()

    def finish(self) -> None:
        """Close once everything is written; a peer that does not read is cut off after a while."""
        if self.session is not None:
            for data in self._queue:
                self.transport.write(bytes(data))
            self._queue.clear()
            if self._behind or self._send is None:
                self.transport.unregisterProducer()
            self.transport.loseConnection()
            self._driver.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close now."""
        if self.session is not None:
            self.transport.abortConnection()


def _complaint(reason: Failure | None) -> str:
    """Why TLS has given a connection up; empty = it has not."""
    if reason is None or reason.value is None or reason.check(ConnectionClosed) is not None:
        return ""
    parts = reason.value.args[0] if reason.value.args else ""
    if isinstance(parts, list):  # of OpenSSL: (library, function, text) each
        return "; ".join(str(part[-1]) for part in parts)
    return f"{type(reason.value).__name__}: {reason.getErrorMessage()}"


class ConnectionFactory(Factory):
    """Makes the connections of one listener."""

    noisy = False

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def buildProtocol(self, addr: IAddress | None) -> Connection:
        """From the reactor: somebody connects."""
        connection = Connection(self._driver)
        connection.factory = self
        return connection


class DialFactory(ClientFactory):
    """Makes the connection of one attempt to reach another node."""

    noisy = False

    def __init__(self, driver: Driver, opened: Callable[[Connection, str, int], Session | None],
                 failed: Callable[[str], None]) -> None:
        self._driver, self._connection_opened, self._failed = driver, opened, failed

    def buildProtocol(self, addr: IAddress | None) -> Connection:
        """From the reactor: the other node has answered."""
        connection = Connection(self._driver, self._connection_opened)
        connection.factory = self
        return connection

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        """From the reactor: nobody is there."""
        self._failed(reason.getErrorMessage())
