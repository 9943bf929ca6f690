"""Outgoing connections of the broker: a race over all addresses of a name, as in RFC 8305.

The resolver of the reactor finds the addresses, of both families. The order of the attempts is in `bmqtwist/dialing.py`. The
connection of the first one that is established is built; the other attempts are stopped. Called by `performer.py`;
listening sockets are in `listening.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from twisted.internet.address import IPv6Address
from twisted.internet.error import NotConnectingError
from twisted.internet.interfaces import IAddress, IResolutionReceiver
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from bmqtwist.dialing import Race, interleave


@implementer(IResolutionReceiver)
class Dial:
    """One race to `host`. `build()` returns the protocol of the connection; `failed(reason)` is called if none is made.
    `context`: TLS, None = plain TCP."""

    def __init__(self, reactor: Any, host: str, port: int, context: Any, timeout_s: float, build: Callable[[], Protocol],
                 failed: Callable[[str], None]) -> None:
        self._reactor, self._host, self._port, self._context, self._timeout_s = reactor, host, port, context, timeout_s
        self._build, self._on_failed = build, failed
        self._race = Race[str]((), 1)
        self._found: list[tuple[type, str]] = []
        self._connectors: list[Any] = []
        self._timer: Any = None
        self.is_over = False

    def start(self) -> None:
        if _is_address(self._host):
            self._race.add([self._host])
            self._advance()
        else:
            self._reactor.nameResolver.resolveHostName(self, self._host, self._port, transportSemantics="TCP")

    # -- from the resolver ------------------------------------------------------------------------------------------

    def resolutionBegan(self, resolution: object) -> None:
        """From the resolver: a call follows for each address."""

    def addressResolved(self, address: Any) -> None:
        host = str(address.host)
        scope = getattr(address, "scopeID", 0)
        self._found.append((type(address), f"{host}%{scope}" if isinstance(address, IPv6Address) and scope else host))

    def resolutionComplete(self) -> None:
        reason = "" if self._found else f"'{self._host}' cannot be resolved"
        self._race.add([host for _, host in interleave(self._found)], reason)
        self._advance()

    # -- attempts ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start the attempts that are due, and set the timer of the next one."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        race, now = self._race, self._reactor.seconds()
        while not self.is_over and (address := race.take(now)) is not None:
            self._connectors.append(self._connect(address, Attempt(self)))
        if self.is_over:
            return
        if race.is_lost:
            self.is_over = True
            self._on_failed(race.reason)
        elif race.next_at is not None:
            self._timer = self._reactor.callLater(max(race.next_at - now, 0.0), self._advance)

    def _connect(self, address: str, attempt: Attempt) -> Any:
        if self._context is None:
            return self._reactor.connectTCP(address, self._port, attempt, timeout=self._timeout_s)
        return self._reactor.connectSSL(address, self._port, attempt, self._context, timeout=self._timeout_s)

    def on_connected(self) -> Protocol | None:
        """Return the protocol of the first connection, None for a later one; stop the other attempts."""
        if self.is_over:
            return None
        self.is_over = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._reactor.callLater(0, self._stop_others)  # the connector of this connection is no longer connecting then
        return self._build()

    def _stop_others(self) -> None:
        for connector in self._connectors:
            try:
                connector.stopConnecting()
            except NotConnectingError:
                pass  # it has connected or failed

    def on_failed(self, reason: str) -> None:
        if not self.is_over:
            self._race.on_failed(reason)
            self._advance()


class Attempt(ClientFactory):
    """One attempt of a race."""

    noisy = False

    def __init__(self, dial: Dial) -> None:
        self._dial = dial

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """From the reactor: the connection is established. None closes it."""
        protocol = self._dial.on_connected()
        if protocol is not None:
            protocol.factory = self
        return protocol

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        """From the reactor: the attempt failed."""
        self._dial.on_failed(reason.getErrorMessage())


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
