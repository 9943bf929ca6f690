"""HTTP site in memory: connections with the parsers of twisted.web, work by the scheduler of the broker, a clock.

Used by tests/unit/console; `console.py` has a whole console.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from http.client import HTTPResponse
from io import BytesIO
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransportWithDisconnection
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from bmqtwist.console.site import HttpSite
from bmqtwist.loop.scheduler import Priority, Scheduler
from bmqtwist.report import ListReport


class Pages(Resource):
    """Answers each request with its path; /wait is answered later, /raise with an exception."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.rendered: list[bytes] = []
        self.waiting: list[Any] = []
        self.content = b"x"

    def render(self, request: Any) -> Any:
        self.rendered.append(request.path)
        if request.path == b"/wait":
            self.waiting.append(request)
            return NOT_DONE_YET
        if request.path == b"/raise":
            raise RuntimeError("secret detail")
        return self.content


class SiteHost:
    """Broker service of a site: its scheduler runs when a test ends a turn."""

    def __init__(self) -> None:
        self.reactor, self.report, self.failures = Clock(), ListReport(), list[Failure]()
        self.seconds = 0.0  # of work
        self.scheduler = Scheduler(lambda: self.seconds, lambda: None)

    def present_time(self) -> tuple[float, float]:
        return self.reactor.seconds(), self.reactor.seconds()

    def limit_accepts(self) -> None:
        """There is no port."""

    def log_failure(self, failure: Failure) -> None:
        self.failures.append(failure)

    def start_http(self, owner: object, work: Generator[None, None, None], failed: Callable[[Exception], None]) -> None:
        self.scheduler.add(Priority.HTTP, owner, work, failed)

    def turn(self) -> None:
        self.scheduler.run(Priority.HTTP)
        self.scheduler.end_turn()


class SiteConnection:
    """Connection to a site."""

    def __init__(self, world: SiteWorld, address: str = "127.0.0.1") -> None:
        self._world = world
        self.transport: Any = StringTransportWithDisconnection(peerAddress=IPv4Address("TCP", address, 5))
        self.transport.abortConnection = self.transport.loseConnection  # type: ignore[method-assign]
        self.protocol: Any = world.site.buildProtocol(IPv4Address("TCP", address, 5))
        if self.protocol is not None:
            self.transport.protocol = self.protocol
            self.protocol.makeConnection(self.transport)

    @property
    def is_open(self) -> bool:
        return self.protocol is not None and self.transport.connected

    def send(self, data: bytes) -> bytes:
        """Send without a turn; return the bytes received until now."""
        self.protocol.dataReceived(data)
        return self.transport.value()

    def ask(self, data: bytes) -> bytes:
        """Send, run all work, and return the answer."""
        self.send(data)
        for _ in range(200):
            self._world.host.turn()
        found = self.transport.value()
        self.transport.clear()
        return found


class SiteWorld:
    """A site with its host. `resource`: instead of `Pages`."""

    def __init__(self, resource: Any = None) -> None:
        self.host, self.pages = SiteHost(), Pages()
        self.site = HttpSite(resource or self.pages, self.host, ("console.example", "N1"))  # type: ignore[arg-type]


def get(path: str, *head: str) -> bytes:
    """Return a GET request with further header lines."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: localhost", *head, "", "")).encode("latin-1")


class _Received:
    """Socket with the bytes of one answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> BytesIO:
        return BytesIO(self._data)


def parse(answer: bytes, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    response = HTTPResponse(_Received(answer), method=method)  # type: ignore[arg-type]
    response.begin()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
