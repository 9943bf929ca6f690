"""HTTP endpoints for liveness, readiness and metrics, and the limits of every HTTP connection and request.

The endpoints only read and show no secrets. `server.WebConsole` adds pages, login and API to them; `tap.py` serves them
alone at a Prometheus listener. `make_site` limits the number and duration of connections and the size of bodies.

    /livez     200 while the event loop runs
    /readyz    200 when clients are served, 503 with the reason otherwise
    /metrics   text format of Prometheus
    /          a short status as JSON
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klein import Klein
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.http import Request
from twisted.web.resource import Resource
from twisted.web.server import Request as SiteRequest
from twisted.web.server import Site
from werkzeug.exceptions import HTTPException

from bmqtwist import __version__
from bmqtwist.view.metrics import CONTENT_TYPE
from bmqtwist.view.snapshot import BrokerState

if TYPE_CHECKING:
    from bmqtwist.config.broker import StatPlugin
    from bmqtwist.daemon.service import BrokerService

IDLE_SECONDS_MAX = 30  # of a connection without a request
CONNECTION_SECONDS_MAX = 120  # of a connection, WebSockets excepted
CONNECTIONS_MAX = 192  # WebSockets included; a browser opens up to 6 besides its WebSocket
BODY_BYTES_MAX = 4096  # of a request without a token, such as a login
ACTION_BYTES_MAX = 64 << 10  # of a request with the token of a page or of another node
TOKEN_HEADERS = ("X-CSRF-Token", "X-Bmqtwist-Node")
# twisted.web limits headers to 500 lines and 16 KiB.
TEXT = "text/plain; charset=utf-8"


class HealthEndpoints:
    """Health and metrics endpoints; the routes belong to an instance, so that a process can contain several brokers.
    `plugin`: prefix of the metrics' names, and their label Instance."""

    app = Klein()

    def __init__(self, source: BrokerService, log: Callable[[Failure], None] | None = None,
                 plugin: StatPlugin | None = None) -> None:
        self._source, self._log = source, log
        self._names_prefix, self._instance = (plugin.namespace_prefix, plugin.instance_id) if plugin else ("", "")
        self._scrapes: list[Deferred[str]] = []  # requests that share the text being created

    @app.route("/livez", methods=["GET"])
    def livez(self, request: Request) -> str:
        return _text(request, "ok\n")

    @app.route("/readyz", methods=["GET"])
    def readyz(self, request: Request) -> str:
        """Answer 200 if a load balancer may route clients to this broker."""
        reason = self._source.unready_reason()
        if reason:
            request.setResponseCode(503)
        return _text(request, f"{reason or 'ok'}\n")

    @app.route("/metrics", methods=["GET"])
    def metrics(self, request: Request) -> Deferred[str]:
        scrape: Deferred[str] = Deferred()
        self._scrapes.append(scrape)
        if len(self._scrapes) == 1:
            self._source.run_in_steps(self._source.metrics(self._names_prefix, self._instance)).addBoth(self._on_scraped)
        return scrape.addCallback(lambda text: _text(request, text, CONTENT_TYPE))

    def _on_scraped(self, result: str | Failure) -> None:
        scrapes, self._scrapes = self._scrapes, []
        for each in scrapes:
            each.callback(result)

    @app.route("/", methods=["GET"])
    def status(self, request: Request) -> str:
        """Answer with the short status."""
        return _text(request, json.dumps(status(self._source.state(), self._source.unready_reason()), indent=4) + "\n",
                     "application/json")

    @app.handle_errors(HTTPException)
    def refused(self, request: Request, failure: Failure) -> str | bytes:
        error = failure.value
        assert isinstance(error, HTTPException)  # registered for HTTPException
        request.setResponseCode(error.code or 500)
        return _text(request, f"{error.name}\n")

    @app.handle_errors(Exception)
    def failed(self, request: Request, failure: Failure) -> str | bytes:
        if self._log is not None:
            self._log(failure)
        request.setResponseCode(500)
        return _text(request, "Internal Server Error\n")

    def resource(self) -> Resource:
        return self.app.resource()


def make_site(resource: Resource) -> Site:
    """Return the factory for a listener, without request log."""
    site = _LimitedSite(resource, requestFactory=_LimitedRequest, timeout=IDLE_SECONDS_MAX)
    site.displayTracebacks = False
    site.noisy = False
    site.log = lambda request: None  # type: ignore[method-assign]
    return site


class _LimitedRequest(SiteRequest):
    """Request with a limited body."""

    _refused = False

    def gotLength(self, length: int | None) -> None:
        """Called by the parser with the size of the body, None = chunked."""
        super().gotLength(0)  # type: ignore[no-untyped-call]
        most = ACTION_BYTES_MAX if any(map(self.requestHeaders.hasHeader, TOKEN_HEADERS)) else BODY_BYTES_MAX
        if length is None or length > most:
            self._refused = True
            transport: Any = self.channel.transport
            transport.write(b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            transport.loseConnection()

    def handleContentChunk(self, data: bytes) -> None:
        """Called by the parser for a part of the body."""
        if not self._refused:
            super().handleContentChunk(data)  # type: ignore[no-untyped-call]

    def process(self) -> None:
        """Called by the parser when the request is complete."""
        if not self._refused:
            super().process()  # type: ignore[no-untyped-call]


class _LimitedSite(Site):
    """Site with a limited number and lifetime of connections."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._open = 0

    def buildProtocol(self, addr: Any) -> Any:
        """Called by the reactor for a new connection; None refuses it."""
        if self._open >= CONNECTIONS_MAX:
            return None
        protocol: Any = super().buildProtocol(addr)  # type: ignore[no-untyped-call]
        if protocol is None:
            return None
        self._open += 1
        clock: Any = self.reactor
        make_connection, connection_lost, timeout = protocol.makeConnection, protocol.connectionLost, None

        def makeConnection(transport: Any) -> None:
            nonlocal timeout
            timeout = clock.callLater(CONNECTION_SECONDS_MAX, transport.abortConnection)
            make_connection(transport)

        def release() -> None:
            self._open -= 1

        def connectionLost(reason: Failure) -> None:
            release()
            if timeout is not None and timeout.active():
                timeout.cancel()
            connection_lost(reason)

        def hand_over() -> Callable[[], None]:
            """Hand the connection over to another protocol without a limited lifetime; call the result when it is closed."""
            if timeout is not None and timeout.active():
                timeout.cancel()
            return release

        protocol.makeConnection, protocol.connectionLost = makeConnection, connectionLost
        protocol.hand_over = hand_over
        return protocol


def status(state: BrokerState, unready: str) -> dict[str, object]:
    """Return the short status as JSON."""
    return {
        "name": "bmqtwist", "version": __version__, "instance": state.instance, "host": state.host,
        "ready": not unready, "reason": unready, "uptimeSeconds": round(max(0.0, state.wall - state.started_wall), 3),
        "sessions": len(state.sessions), "domains": len(state.domains), "queues": len(state.queues),
        "messages": sum(queue.messages for queue in state.queues),
        "bytes": sum(queue.bytes for queue in state.queues),
        "clusters": [{"name": cluster.name, "healthy": cluster.healthy, "self": cluster.self_node,
                      "leader": cluster.elector.leader, "partitions": len(cluster.partitions)}
                     for cluster in state.clusters]}


def _text(request: Request, text: str, content_type: str = TEXT) -> str:
    request.setHeader(b"Content-Type", content_type.encode())
    request.setHeader(b"Cache-Control", b"no-store")
    request.setHeader(b"X-Content-Type-Options", b"nosniff")
    return text
