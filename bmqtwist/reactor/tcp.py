"""Twisted protocol of a session's connection: delivers received chunks, writes once per turn.

Called by the reactor: makeConnection, dataReceived, connectionLost and the methods of IPushProducer. Called by the broker:
`write` at the end of a turn, `finish` and `abort` to close, `read` for flow control, `pause_reads` and `poll`.

`performer.py` is its `Driver`; sizes of writes are limited in `bmqtwist/limits.py`; `link/session.py` finds the frames
in the chunks. Accepted connections come from the listeners of `daemon/service.py`, others from
`dialing.py`.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from typing import Protocol as Interface

from twisted.internet.error import ConnectionClosed
from twisted.internet.interfaces import IAddress, IPushProducer
from twisted.internet.protocol import Factory, Protocol
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from bmqtwist.addresses import host_and_port
from bmqtwist.limits import TRANSPORT_BYTES_MAX, UNSENT_KERNEL_BYTES
from bmqtwist.link.batching import PAUSED_READ_BYTES_MAX
from bmqtwist.link.outgoing import Outgoing
from bmqtwist.link.session import Session
from bmqtwist.reactor.incoming import Incoming

_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
EMPTY_POLLS_MAX = 4  # consecutive polls without input that end a read pause
CLOSE_TIMEOUT_S = 5.0  # from `finish` to `abort`, if the peer does not read the rest of the output


class Driver(Interface):
    """Receives the events of all connections and runs the broker on a reactor."""

    def on_connected(self, connection: Connection, peer: str, port: int) -> Session | None:
        """Create the session of an accepted connection; None refuses it."""

    def on_received(self, session: Session, data: bytes) -> None:
        """Process received bytes; a turn follows."""

    def on_lost(self, session: Session, why: str) -> None:
        """The connection is lost. `why`: the TLS error, empty = none."""

    def on_drained(self, session: Session) -> None:
        """All output that had to wait for the peer is sent."""

    def call_later(self, seconds: float, action: Callable[[], None]) -> object: ...


@implementer(IPushProducer)
class Connection(Protocol):
    """One connection. `opened` replaces `driver.on_connected` for an outgoing connection.

    `waiting_bytes`: written and not sent yet; `drained_bytes`: sent after such a wait.

    Over plain TCP a write goes to the socket directly, which saves a round through the reactor. Only the remainder goes to
    the transport, with this object as its pull producer until all is sent. Over TLS this object is a push producer all the
    time. The transport receives unsent output in pieces, so that `drained_bytes` shows the progress of the peer.

    In a read pause the reactor does not watch the socket; the driver calls `poll` instead: a consumer that confirms steadily
    then costs one read for several CONFIRM events. The pause ends after EMPTY_POLLS_MAX empty reads, a read above
    PAUSED_READ_BYTES_MAX, or when the session needs prompt answers.
    """

    transport: Any  # a TCP or TLS transport

    def __init__(self, driver: Driver, opened: Callable[[Connection, str, int], Session | None] | None = None) -> None:
        self._driver = driver
        self._opened = opened or driver.on_connected
        self.session: Session | None = None
        self.incoming: Incoming | None = None
        self.outgoing = Outgoing()
        self.waiting_bytes = self.drained_bytes = 0
        self._queue: deque[memoryview] = deque()  # unsent output that the transport does not have yet
        self._piece_bytes = 0  # bytes of the piece that the transport has
        self._send: Callable[[bytes], int] | None = None  # plain TCP only
        self._reading = True
        self._empty_polls = 0  # consecutive
        self.reads_paused = False  # in a read pause
        self.polled_at = 0.0  # set by the driver: beginning of the read pause, or the last poll
        self._has_unsent = False  # output remains unsent

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 without a socket. The system assigns the lowest free number."""
        channel = getattr(self.transport, "socket", None)
        return channel.fileno() if channel is not None else -1

    def connectionMade(self) -> None:
        """From the reactor: create the session."""
        transport = self.transport
        transport.setTcpNoDelay(True)
        channel = getattr(transport, "socket", None)
        self.incoming = Incoming(self._driver, channel, self.outgoing)
        if channel is not None and _NOTSENT_LOWAT is not None:
            self.outgoing.limit_unsent = partial(channel.setsockopt, socket.IPPROTO_TCP, _NOTSENT_LOWAT, UNSENT_KERNEL_BYTES)
        peer = transport.getPeer()
        address = host_and_port(peer.host, peer.port)
        # a TLS transport forwards unknown attributes to its TCP transport: check its type
        if channel is None or isinstance(transport, TLSMemoryBIOProtocol):
            transport.registerProducer(self, True)
        else:
            self._send = self.outgoing.send = channel.send
        self.session = self.incoming.session = self._opened(self, address, transport.getHost().port)
        if self.session is None:
            transport.abortConnection()

    def dataReceived(self, data: bytes) -> None:
        """From the reactor: forward the bytes."""
        if self.incoming is not None:
            self.incoming.receive(data)

    def connectionLost(self, reason: Failure | None = None) -> None:
        """From the reactor: end the session."""
        session, self.session = self.session, None
        self.waiting_bytes = self._piece_bytes = 0
        self._queue.clear()
        self._has_unsent = False
        if self.incoming is not None:
            self.incoming.close()
        self.outgoing.send = None
        self.transport = self._send = None  # frees the buffers; a delayed `abort` may still refer to this object
        if session is not None:
            self._driver.on_lost(session, _tls_error(reason))

    def write(self, parts: list[bytes | memoryview]) -> int:
        """Write the output of one turn; return its size in bytes."""
        data = b"".join(parts)
        size = len(data)
        if not size:  # the transport would report no end of an empty write
            return 0
        if self._has_unsent or self._send is None:
            self._queue.append(memoryview(data))
            self.waiting_bytes += size
            if not self._has_unsent:
                self._feed_transport()
            return size
        sent = self.outgoing.write(data)
        if sent < size:
            self.write_rest(data, sent)
        return size

    def write_rest(self, data: bytes, sent: int) -> None:
        """Queue the bytes after the first `sent`. The transport detects a lost connection when it writes them."""
        self._queue.append(memoryview(data)[sent:])
        self.transport.registerProducer(self, False)
        self._has_unsent, self.waiting_bytes = True, len(data) - sent
        self.outgoing.send = None
        self._feed_transport()

    def _feed_transport(self) -> None:
        """Give the transport pieces of the queue until it has unsent output."""
        queue = self._queue
        while queue:
            piece = queue.popleft()
            if len(piece) > TRANSPORT_BYTES_MAX:
                queue.appendleft(piece[TRANSPORT_BYTES_MAX:])
                piece = piece[:TRANSPORT_BYTES_MAX]
            self._piece_bytes = len(piece)
            self.transport.write(bytes(piece))
            if self._has_unsent:
                return
            self._on_piece_sent()

    def _on_piece_sent(self) -> None:
        self.waiting_bytes -= self._piece_bytes
        self.drained_bytes += self._piece_bytes
        self._piece_bytes = 0

    def resumeProducing(self) -> None:
        """From the transport: it has sent its piece (a pull producer is also called when it is registered)."""
        if not self._has_unsent:
            return
        self._on_piece_sent()
        self._has_unsent = self._send is not None and bool(self._queue)  # a TLS transport calls pauseProducing again
        self._feed_transport()
        if self._has_unsent:
            return
        if self._send is not None:
            self.transport.unregisterProducer()
            self.outgoing.send = self._send
        self.read(True)
        if self.session is not None:
            self._driver.on_drained(self.session)

    def pauseProducing(self) -> None:
        """From a TLS transport: its buffer is full."""
        self._has_unsent = True

    def stopProducing(self) -> None:
        """From the transport: the connection ends."""

    def read(self, wanted: bool) -> None:
        """Resume or stop reading; if stopped, TCP flow control slows the peer down."""
        if wanted != self._reading and self.session is not None:
            self._reading = wanted
            if wanted:
                self.transport.resumeProducing()
            elif self.reads_paused:
                self.reads_paused = False
            else:
                self.transport.pauseProducing()

    def pause_reads(self) -> bool:
        """Begin a read pause, in which the driver calls `poll` periodically. False: not possible now."""
        if self._send is None or not self._reading or self.session is None:
            return False
        self.reads_paused, self._empty_polls = True, 0
        self.transport.pauseProducing()
        return True

    def poll(self) -> None:
        """Read the input of a read pause, and end the pause if its conditions no longer hold."""
        session, incoming = self.session, self.incoming
        if not self.reads_paused or session is None or incoming is None:
            return
        size = incoming.poll()
        self._empty_polls = 0 if size > 0 else self._empty_polls + 1
        stays = session.pausable and 0 <= size <= PAUSED_READ_BYTES_MAX and self._empty_polls < EMPTY_POLLS_MAX
        if stays or not self.reads_paused or self.session is None:
            return
        if not size:
            incoming.acknowledge()
        self.reads_paused = False
        self.transport.resumeProducing()

    def finish(self) -> None:
        """Close when all output is sent, at the latest after CLOSE_TIMEOUT_S."""
        if self.session is not None:
            for data in self._queue:
                self.transport.write(bytes(data))
            self._queue.clear()
            if self._has_unsent or self._send is None:
                self.transport.unregisterProducer()
            self.transport.loseConnection()
            self._driver.call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        if self.session is not None:
            self.transport.abortConnection()


def _tls_error(reason: Failure | None) -> str:
    """The TLS error that ended a connection; empty = none."""
    if reason is None or reason.value is None or reason.check(ConnectionClosed) is not None:
        return ""
    parts = reason.value.args[0] if reason.value.args else ""
    if isinstance(parts, list):  # OpenSSL's (library, function, text) tuples
        return "; ".join(str(part[-1]) for part in parts)
    return f"{type(reason.value).__name__}: {reason.getErrorMessage()}"


class ConnectionFactory(Factory):
    """Builds the connections of one listener."""

    noisy = False

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def buildProtocol(self, addr: IAddress | None) -> Connection:
        """From the reactor: a connection was accepted."""
        connection = Connection(self._driver)
        connection.factory = self
        return connection
