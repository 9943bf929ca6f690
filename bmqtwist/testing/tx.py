"""Twisted's end of a connection to an in-process broker: an endpoint, a transport, and a clock to move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint, ITransport
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import classImplements  # type: ignore[import-untyped]

from bmqtwist.sdk.options import Address
from bmqtwist.testing.connection import TappedConnection
from bmqtwist.testing.loop import SECONDS_MAX, Stuck
from bmqtwist.testing.runner import BrokerRunner

T = TypeVar("T")


class ReactorWaker:
    """Runs the broker on a reactor, or on a `twisted.internet.task.Clock`."""

    over = False

    def __init__(self, runner: BrokerRunner, reactor: Any) -> None:
        self._runner, self.reactor = runner, reactor
        self._thread = threading.get_ident()
        self._takes_threads = hasattr(reactor, "callFromThread")  # a Clock belongs to its test alone
        self._timer: Any = None

    def soon(self, action: Callable[..., object], *arguments: Any) -> None:
        """Call it from the reactor."""
        if threading.get_ident() == self._thread or not self._takes_threads:
            self.reactor.callLater(0, action, *arguments)
        else:
            self.reactor.callFromThread(action, *arguments)

    def arm(self, seconds: float | None) -> None:
        """Run the broker after so many seconds; None = there is nothing to do."""
        if threading.get_ident() != self._thread:
            if self._takes_threads:
                self.soon(self.arm, seconds)
            return
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None if seconds is None else self.reactor.callLater(max(0.0, seconds), self._runner.run)


def reactor_waker(runner: BrokerRunner, reactor: Any) -> ReactorWaker:
    """What wakes the broker on a reactor."""
    return runner.waker(reactor, partial(ReactorWaker, runner, reactor), reactor.seconds, not hasattr(reactor, "run"))


class TwistedTransport:
    """A transport whose other end is a broker in this process; a consumer for push producers."""

    disconnecting = False

    def __init__(self, runner: BrokerRunner, waker: ReactorWaker) -> None:
        self._runner, self._waker = runner, waker
        self._protocol: Any = None
        self._connection: TappedConnection | None = None
        self._producer: Any = None
        self._paused = False
        self.bufferSize = 1 << 16

    def open(self, name: str, protocol: Any) -> None:
        """Connect; Python's ConnectionRefusedError if nobody is there."""
        self._protocol = protocol
        self._connection = self._runner.connect(name, self)
        protocol.makeConnection(self)

    def data(self, data: bytes) -> None:
        """From the connection: bytes."""
        self._waker.soon(self._data, data)

    def _data(self, data: bytes) -> None:
        if self._protocol is not None and not self.disconnecting:
            self._protocol.dataReceived(data)

    def lost(self, reason: str) -> None:
        """From the connection: it is gone."""
        self._waker.soon(self._connection_lost, ConnectionLost(reason) if reason else ConnectionDone())

    def _connection_lost(self, error: Exception) -> None:
        protocol, self._protocol, self._connection = self._protocol, None, None
        if protocol is not None:
            protocol.connectionLost(Failure(error))

    def room(self) -> None:
        """From the connection: something is through."""
        self._waker.soon(self._check_room)

    def _check_room(self) -> None:
        waiting = self._connection.waiting_bytes if self._connection is not None else 0
        if self._producer is None or self._paused == (waiting > self.bufferSize):
            return
        self._paused = not self._paused
        if self._paused:
            self._producer.pauseProducing()
        else:
            self._producer.resumeProducing()

    def write(self, data: bytes) -> None:
        """To the broker."""
        if self._connection is not None and not self.disconnecting:
            with self._runner.lock:
                self._connection.send(data)
            self._check_room()

    def writeSequence(self, data: list[bytes]) -> None:
        """To the broker."""
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """Close; `connectionLost` follows."""
        self.abortConnection()

    def abortConnection(self) -> None:
        """Close; `connectionLost` follows."""
        if not self.disconnecting:
            self.disconnecting = True
            if self._connection is not None:
                with self._runner.lock:
                    self._connection.close()
            self._waker.soon(self._connection_lost, ConnectionDone())

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """As of IConsumer; push producers only."""
        self._producer = producer

    def unregisterProducer(self) -> None:
        """As of IConsumer."""
        self._producer = None

    def getPeer(self) -> IPv4Address:
        """Where the broker would be."""
        return IPv4Address("TCP", "127.0.0.1", 0)

    def getHost(self) -> IPv4Address:
        """Where the client would be."""
        return IPv4Address("TCP", "127.0.0.1", 0)


class MemoryEndpoint:
    """An IStreamClientEndpoint that leads to a broker in this process."""

    def __init__(self, runner: BrokerRunner, name: str, waker: ReactorWaker) -> None:
        self._runner, self._name, self._waker = runner, name, waker

    def connect(self, protocolFactory: Any, /) -> Deferred[Any]:
        """Connect; fails with Twisted's ConnectionRefusedError if nobody is there."""
        transport = TwistedTransport(self._runner, self._waker)
        protocol = protocolFactory.buildProtocol(transport.getPeer())
        try:
            transport.open(self._name, protocol)
        except OSError as error:
            return fail(ConnectionRefusedError(str(error)))
        return succeed(protocol)


classImplements(TwistedTransport, ITransport)
classImplements(MemoryEndpoint, IStreamClientEndpoint)


def endpoints(runner: BrokerRunner, name: str, reactor: Any) -> Callable[[Address], MemoryEndpoint]:
    """What `sdk.tx.Session(endpoint=...)` wants: an endpoint for each address, all of them to this broker."""
    waker = reactor_waker(runner, reactor)
    return lambda address: MemoryEndpoint(runner, name, waker)


def outcome(waiting: Deferred[T] | Coroutine[Any, Any, T], clock: Clock, seconds_max: float = SECONDS_MAX) -> T:
    """Move a clock from call to call until a Deferred (or coroutine) has its outcome; that. Stuck after `seconds_max`
    seconds."""
    deferred: Deferred[T] = waiting if isinstance(waiting, Deferred) else ensureDeferred(waiting)
    results: list[Any] = []
    deferred.addBoth(results.append)
    end = clock.seconds() + seconds_max
    while not results:
        calls: Any = clock.getDelayedCalls()
        if not calls:
            raise Stuck("no call is due: the Deferred would never fire")
        if clock.seconds() > end:
            raise Stuck(f"the Deferred has not fired in {seconds_max:g} s")
        clock.advance(max(0.0, min(each.getTime() for each in calls) - clock.seconds()))
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]  # type: ignore[no-any-return]
