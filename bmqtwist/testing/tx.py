"""Twisted's end of a connection to an in-process broker: an endpoint, a transport, and a clock to move."""

from __future__ import annotations

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
from bmqtwist.testing.loop import SECONDS_MAX, Stuck
from bmqtwist.testing.runner import BrokerRunner, EventLoop, LoopEnd, Waker

T = TypeVar("T")


def reactor_waker(runner: BrokerRunner, reactor: Any) -> Waker:
    """The waker of the broker on a reactor, or on a `twisted.internet.task.Clock`, which belongs to one test's thread."""
    return runner.waker(reactor, lambda reactor: EventLoop(
        reactor.seconds, not hasattr(reactor, "run"), partial(reactor.callLater, 0),
        getattr(reactor, "callFromThread", None), partial(_call_later, reactor)))


def _call_later(reactor: Any, seconds: float, action: Callable[[], None]) -> Callable[[], object]:
    call = reactor.callLater(seconds, action)
    return lambda: call.active() and call.cancel()


class TwistedTransport(LoopEnd):
    """A transport whose other end is a broker in this process; a consumer for push producers."""

    disconnecting = False

    def __init__(self, runner: BrokerRunner, waker: Waker) -> None:
        super().__init__(runner, waker)
        self._protocol: Any = None
        self._producer: Any = None
        self._paused = False
        self.bufferSize = 1 << 16

    def open(self, name: str, protocol: Any) -> None:
        """Connect; Python's ConnectionRefusedError."""
        self._protocol = protocol
        self.connect(name)
        protocol.makeConnection(self)

    def took(self, data: bytes) -> None:
        if self._protocol is not None and not self.disconnecting:
            self._protocol.dataReceived(data)

    def ended(self, reason: str) -> None:
        protocol, self._protocol, self.connection = self._protocol, None, None
        if protocol is not None:
            protocol.connectionLost(Failure(ConnectionLost(reason) if reason else ConnectionDone()))

    def check_room(self) -> None:
        if self._producer is None or self._paused == (self.waiting > self.bufferSize):
            return
        self._paused = not self._paused
        if self._paused:
            self._producer.pauseProducing()
        else:
            self._producer.resumeProducing()

    # -- ITransport, IConsumer --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not self.disconnecting:
            self.send(data)

    def writeSequence(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def abortConnection(self) -> None:
        if not self.disconnecting:
            self.disconnecting = True
            self.hang_up()
            self._waker.soon(self.ended, "")

    loseConnection = abortConnection

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 0)

    getHost = getPeer


class MemoryEndpoint:
    """An IStreamClientEndpoint that leads to a broker in this process."""

    def __init__(self, runner: BrokerRunner, name: str, waker: Waker) -> None:
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
