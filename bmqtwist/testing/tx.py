"""Twisted endpoint and transport to an in-process broker, and `outcome`, which advances a Clock.

`broker.py` makes the endpoint for Twisted sessions; asyncio sessions use `aio.py`.
"""

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
from bmqtwist.testing.runner import BrokerRunner, EventLoop, LoopBridge, LoopEnd

T = TypeVar("T")


def reactor_bridge(runner: BrokerRunner, reactor: Any) -> LoopBridge:
    """Return the bridge between the broker and a reactor, or a `twisted.internet.task.Clock` of the test's thread."""
    return runner.bridge(reactor, lambda reactor: EventLoop(
        reactor.seconds, not hasattr(reactor, "run"), partial(reactor.callLater, 0),
        getattr(reactor, "callFromThread", None), partial(_call_later, reactor)))


def _call_later(reactor: Any, seconds: float, action: Callable[[], None]) -> Callable[[], object]:
    call = reactor.callLater(seconds, action)
    return lambda: call.active() and call.cancel()


class TwistedTransport(LoopEnd):
    """Transport whose peer is an in-process broker; an IConsumer for push producers."""

    disconnecting = False

    def __init__(self, runner: BrokerRunner, bridge: LoopBridge) -> None:
        super().__init__(runner, bridge)
        self._protocol: Any = None
        self._producer: Any = None
        self._paused = False
        self.bufferSize = 1 << 16

    def open(self, name: str, protocol: Any) -> None:
        """Connect. Raises Python's ConnectionRefusedError if the broker does not accept the connection."""
        self._protocol = protocol
        self.connect(name)
        protocol.makeConnection(self)

    def receive(self, data: bytes) -> None:
        if self._protocol is not None and not self.disconnecting:
            self._protocol.dataReceived(data)

    def end(self, reason: str) -> None:
        protocol, self._protocol, self.connection = self._protocol, None, None
        if protocol is not None:
            protocol.connectionLost(Failure(ConnectionLost(reason) if reason else ConnectionDone()))

    def check_room(self) -> None:
        if self._producer is None or self._paused == (self.waiting_bytes > self.bufferSize):
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
            self.disconnect()
            self._bridge.call_soon(self.end, "")

    loseConnection = abortConnection

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", 0)

    getHost = getPeer


class MemoryEndpoint:
    """IStreamClientEndpoint that connects to an in-process broker."""

    def __init__(self, runner: BrokerRunner, name: str, bridge: LoopBridge) -> None:
        self._runner, self._name, self._bridge = runner, name, bridge

    def connect(self, protocolFactory: Any, /) -> Deferred[Any]:
        """Connect; fails with Twisted's ConnectionRefusedError if the broker does not accept the connection."""
        transport = TwistedTransport(self._runner, self._bridge)
        protocol = protocolFactory.buildProtocol(transport.getPeer())
        try:
            transport.open(self._name, protocol)
        except OSError as error:
            return fail(ConnectionRefusedError(str(error)))
        return succeed(protocol)


classImplements(TwistedTransport, ITransport)
classImplements(MemoryEndpoint, IStreamClientEndpoint)


def endpoints(runner: BrokerRunner, name: str, reactor: Any) -> Callable[[Address], MemoryEndpoint]:
    """Return an argument for `sdk.tx.Session(endpoint=...)`: an endpoint to this broker for every address."""
    bridge = reactor_bridge(runner, reactor)
    return lambda address: MemoryEndpoint(runner, name, bridge)


def outcome(waiting: Deferred[T] | Coroutine[Any, Any, T], clock: Clock, seconds_max: float = SECONDS_MAX) -> T:
    """Advance a clock from call to call until a Deferred (or coroutine) fires, and return its result. Raises Stuck after
    `seconds_max` seconds."""
    deferred: Deferred[T] = waiting if isinstance(waiting, Deferred) else ensureDeferred(waiting)
    results: list[Any] = []
    deferred.addBoth(results.append)
    end = clock.seconds() + seconds_max
    while not results:
        calls: Any = clock.getDelayedCalls()
        if not calls:
            raise Stuck("no call is scheduled: the Deferred would never fire")
        if clock.seconds() > end:
            raise Stuck(f"the Deferred has not fired in {seconds_max:g} s")
        clock.advance(max(0.0, min(each.getTime() for each in calls) - clock.seconds()))
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]  # type: ignore[no-any-return]
