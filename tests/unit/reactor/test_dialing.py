"""Outgoing connections of the broker: a race over the addresses of a name."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionRefusedError, NotConnectingError
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from bmqtwist.dialing import ATTEMPT_DELAY_S
from bmqtwist.reactor.dialing import Dial


class Connector:
    """One attempt of the fake reactor."""

    def __init__(self, host: str, factory: Any, context: Any) -> None:
        self.host, self.factory, self.context, self.connecting = host, factory, context, True

    def stopConnecting(self) -> None:
        if not self.connecting:
            raise NotConnectingError
        self.fail()

    def fail(self) -> None:
        self.connecting = False
        self.factory.clientConnectionFailed(self, Failure(ConnectionRefusedError()))

    def connect(self) -> Any:
        self.connecting = False
        return self.factory.buildProtocol(None)


class FakeReactor(Clock):
    """Clock, resolver and connectors."""

    def __init__(self, *found: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nameResolver, self.found, self.connectors = self, found, list[Connector]()
        self.lookups = 0

    def resolveHostName(self, receiver: Any, host: str, port: int, transportSemantics: str) -> None:
        self.lookups += 1
        receiver.resolutionBegan(None)
        for each in self.found:
            receiver.addressResolved((IPv6Address if ":" in each else IPv4Address)("TCP", each, port))
        receiver.resolutionComplete()

    def connectTCP(self, host: str, port: int, factory: Any, timeout: float, context: Any = None) -> Connector:
        self.connectors.append(Connector(host, factory, context))
        return self.connectors[-1]

    def connectSSL(self, host: str, port: int, factory: Any, context: Any, timeout: float) -> Connector:
        return self.connectTCP(host, port, factory, timeout, context)


def dial(reactor: FakeReactor, host: str, context: Any = None) -> tuple[list[Protocol], list[str]]:
    built, failed = list[Protocol](), list[str]()

    def build() -> Protocol:
        built.append(Protocol())
        return built[-1]
    Dial(reactor, host, 1, context, 15.0, build, failed.append).start()
    return built, failed


def test_a_dead_address_is_followed_by_the_next_one_and_given_up_when_that_connects() -> None:
    reactor = FakeReactor("192.0.2.1", "2001:db8::1", "192.0.2.2")
    built, failed = dial(reactor, "mq.example", context="tls")
    assert [each.host for each in reactor.connectors] == ["192.0.2.1"]
    reactor.advance(ATTEMPT_DELAY_S)
    assert [each.host for each in reactor.connectors] == ["192.0.2.1", "2001:db8::1"], "the families alternate"
    assert reactor.connectors[1].connect() is built[0] and reactor.connectors[1].context == "tls"
    assert reactor.connectors[0].connect() is None, "the second connection of a race is closed"
    reactor.advance(60.0)
    assert len(reactor.connectors) == 2 and len(built) == 1 and not failed and not reactor.getDelayedCalls()


def test_attempts_that_are_open_when_one_connects_are_stopped() -> None:
    reactor = FakeReactor("192.0.2.1", "192.0.2.2", "192.0.2.3")
    built, failed = dial(reactor, "mq.example")
    reactor.advance(ATTEMPT_DELAY_S)
    reactor.connectors[1].connect()
    reactor.advance(0)
    assert not reactor.connectors[0].connecting and len(built) == 1 and not failed


def test_a_node_whose_name_has_an_ipv6_address_alone_is_reached() -> None:
    reactor = FakeReactor("2001:db8::1")
    built, _ = dial(reactor, "mq.example")
    assert reactor.connectors[0].host == "2001:db8::1" and reactor.connectors[0].connect() is built[0]


def test_the_failure_is_reported_once_after_the_last_attempt() -> None:
    reactor = FakeReactor("192.0.2.1", "192.0.2.2")
    built, failed = dial(reactor, "mq.example")
    reactor.connectors[0].fail()
    assert len(reactor.connectors) == 2 and not failed, "the next attempt does not wait"
    reactor.connectors[1].fail()
    assert not built and len(failed) == 1 and "refused" in failed[0]


def test_a_name_without_an_address_fails() -> None:
    _, failed = dial(FakeReactor(), "mq.example")
    assert failed == ["'mq.example' cannot be resolved"]


def test_an_address_needs_no_resolver() -> None:
    for host in ("192.0.2.1", "::1", "fe80::1%lo"):
        reactor = FakeReactor()
        dial(reactor, host)
        assert [each.host for each in reactor.connectors] == [host] and not reactor.lookups
