"""HTTP connections as guests of the event loop: their input, requests and responses are jobs of the scheduler.

    input        is parsed in slices of HTTP_SLICE_BYTES; reading pauses above HTTP_INPUT_BYTES_MAX of unparsed input
    requests     one at a time for each connection, each in a step of its own, also if they are pipelined
    responses    `HttpRequest.stream` produces the parts of a long one while the client reads; while a client does not read,
                 its connection has no job
    places       HTTP_CONNECTIONS_MAX; a new connection takes the place of the oldest one that has no request in progress,
                 of the address with most connections
    time         a request must arrive within HTTP_REQUEST_SECONDS_MAX of the connection or of the previous response;
                 a connection ends after HTTP_CONNECTION_SECONDS_MAX
    malformed    input is answered with 400, a Host that is not one of this broker with 421, and unexpected exceptions of
                 a request with 500; each is counted in at most one line of the log per minute

All connections together have BUDGETS[Priority.HTTP] of each turn (`loop/scheduler.py`). WebSockets leave these rules
(`hand_over`), `live.py` has theirs. `service.py` and `tap.py` create a site for each port; `bmqtwist/limits.py` has the
limits.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote_to_bytes

from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.resource import Resource
from twisted.web.server import Request, Site

from bmqtwist.console.access import host_of, is_address, split_url
from bmqtwist.limits import (
    HTTP_ACTION_BYTES_MAX,
    HTTP_BODY_BYTES_MAX,
    HTTP_CONNECTION_SECONDS_MAX,
    HTTP_CONNECTIONS_MAX,
    HTTP_INPUT_BYTES_MAX,
    HTTP_REQUEST_SECONDS_MAX,
    HTTP_SLICE_BYTES,
    HTTP_URI_BYTES_MAX,
)
from bmqtwist.report import RepeatLimiter
from bmqtwist.steps import Steps
from bmqtwist.view.cluster_facts import own_url

if TYPE_CHECKING:
    from bmqtwist.daemon.service import BrokerService

TOKEN_HEADERS = ("X-CSRF-Token", "X-Bmqtwist-Node")
# twisted.web limits headers to 500 lines and 16 KiB.


class HttpChannel(HTTPChannel):
    """One HTTP connection. `address`: of its place; `in_progress`: a request is performed and not yet answered."""

    site: HttpSite
    transport: Any
    _networkProducer: Any
    abortTimeout: Any = None  # a connection ends after HTTP_CONNECTION_SECONDS_MAX

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.address, self.in_progress = "", False
        self._unparsed = bytearray()
        self._complete: HttpRequest | None = None  # received, not yet performed
        self._parts: Iterator[bytes] | None = None  # the rest of the response
        self._has_job = self._is_full = self._is_unread = False
        self._end: Any = None

    def connectionMade(self) -> None:
        """Called by the reactor."""
        clock: Any = self.site.reactor
        self._end = clock.callLater(HTTP_CONNECTION_SECONDS_MAX, self.transport.abortConnection)
        super().connectionMade()  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """Called by the reactor. The time limit of the request is not renewed."""
        self._unparsed += data
        self._limit_input()
        self.work()

    def connectionLost(self, reason: Any = None) -> None:
        """Called by the reactor."""
        self.hand_over()()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def timeoutConnection(self) -> None:
        """Called by twisted.web when the request has not arrived in time."""
        self.loseConnection()  # type: ignore[no-untyped-call]

    def hand_over(self) -> Callable[[], None]:
        """End the rules of this connection, for a WebSocket or at its end; call the result when it is closed."""
        if self._end.active():
            self._end.cancel()
        self._unparsed.clear()
        self._complete = self._parts = None
        return lambda: self.site.release(self)

    # -- jobs -------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Add a job for the present work, unless there is one."""
        if not self._has_job:
            self._has_job = True
            self.site.host.start_http(self, self._steps(), self._on_failed)

    def _steps(self) -> Steps[None]:
        while self._perform_next():
            yield
        self._has_job = False

    def _perform_next(self) -> bool:
        """Perform one piece of work; return False if there is none at present."""
        if self._is_full or self.transport is None or self.transport.disconnecting:
            return False
        request, self._complete = self._complete, None
        if request is not None:
            self.in_progress = True
            request.perform()
        elif self._parts is not None:
            self._send_part(self._parts)
        elif self._unparsed and not self.in_progress:
            self._parse_next()
        else:
            return False
        return True

    def _parse_next(self) -> None:
        data = bytes(self._unparsed[:HTTP_SLICE_BYTES])
        del self._unparsed[:HTTP_SLICE_BYTES]
        try:
            LineReceiver.dataReceived(self, data)
        except Exception:  # whatever a parser of twisted.web raises is about the input
            self._respondToBadRequestAndDisconnect()
        self._limit_input()

    def _send_part(self, parts: Iterator[bytes]) -> None:
        request, part = self.requests[0], next(parts, None)
        if part is None:
            self._parts = None
            request.finish()
        else:
            request.write(part)

    def _limit_input(self) -> None:
        """Read only while there is little unparsed input."""
        if self.transport is None or self.transport.disconnecting:
            return
        if len(self._unparsed) > HTTP_INPUT_BYTES_MAX:
            self._is_unread = True
            self._networkProducer.pauseProducing()
        elif self._is_unread and not self._is_full:
            self._is_unread = False
            self._networkProducer.resumeProducing()

    def _on_failed(self, error: Exception) -> None:
        """Called by the scheduler for an unexpected exception."""
        self._has_job = False
        self.site.host.log_failure(Failure(error))
        if self.transport is not None:
            self.transport.abortConnection()

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Called by twisted.web for malformed input."""
        self.site.count_refused("malformed requests")
        super()._respondToBadRequestAndDisconnect()  # type: ignore[no-untyped-call]

    # -- called by twisted.web and the requests ---------------------------------------------------------------------

    def receive_request(self, request: HttpRequest) -> None:
        """Perform a complete request in a step of its own."""
        self._complete = request
        self.work()

    def stream(self, parts: Iterator[bytes]) -> None:
        """Send the parts of the response to the request in progress, while the client reads."""
        self._parts = parts
        self.work()

    def setLineMode(self, extra: bytes = b"") -> None:
        """Called with the input that follows the answered request."""
        self.line_mode = 1
        self._unparsed[:0] = extra

    def requestDone(self, request: Any) -> None:
        self.in_progress = False
        super().requestDone(request)  # type: ignore[no-untyped-call]
        self._limit_input()
        self.work()

    def pauseProducing(self) -> None:
        self._is_full = True
        super().pauseProducing()  # type: ignore[no-untyped-call]

    def resumeProducing(self) -> None:
        self._is_full = False
        super().resumeProducing()  # type: ignore[no-untyped-call]
        self._limit_input()
        self.work()


class HttpRequest(Request):
    """Request of an `HttpChannel`, with a limited body."""

    channel: Any
    _is_refused = False

    def gotLength(self, length: int | None) -> None:
        """Called by the parser with the size of the body, None = chunked."""
        super().gotLength(0)  # type: ignore[no-untyped-call]
        most = HTTP_ACTION_BYTES_MAX if any(map(self.requestHeaders.hasHeader, TOKEN_HEADERS)) else HTTP_BODY_BYTES_MAX
        if length is None or length > most:
            self._is_refused = True
            self.channel.transport.write(
                b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            self.channel.loseConnection()

    def handleContentChunk(self, data: bytes) -> None:
        """Called by the parser for a part of the body."""
        if not self._is_refused:
            super().handleContentChunk(data)  # type: ignore[no-untyped-call]

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Called by the parser when the request is complete. `server.py` parses forms, here they are not parsed."""
        self._parsePOSTFormSubmission = False
        if len(path) > HTTP_URI_BYTES_MAX:
            self.channel._respondToBadRequestAndDisconnect()
            return
        super().requestReceived(command, path, version)  # type: ignore[no-untyped-call]

    def setHeader(self, name: Any, value: Any) -> None:
        """Called by twisted.web; the name and version of its server are not sent."""
        if name != b"Server":
            super().setHeader(name, value)  # type: ignore[no-untyped-call]

    def process(self) -> None:
        """Called by `requestReceived`."""
        if not self._is_refused:
            self.channel.receive_request(self)

    def perform(self) -> None:
        """Answer the request, or refuse it before anything depends on its content."""
        site: HttpSite = self.channel.site
        if not self._is_text():
            site.count_refused("malformed requests")
            self.refuse(400, "Path and headers must be UTF-8.")
        elif not site.serves(self.getHeader("Host")):
            site.count_refused("requests with a foreign Host")
            self.refuse(421, "This Host is not one of this broker: use an address, or add the name to http.hosts.")
        else:
            super().process()  # type: ignore[no-untyped-call]

    def _is_text(self) -> bool:
        try:
            unquote_to_bytes(self.uri).decode()
            for _, values in self.requestHeaders.getAllRawHeaders():
                b"".join(values).decode()
        except UnicodeDecodeError:
            return False
        return True

    def refuse(self, status: int, text: str) -> None:
        """Answer with a short text."""
        content, answer = f"{text}\n".encode(), cast(Any, self)
        answer.setResponseCode(status)
        answer.setHeader("Content-Type", "text/plain; charset=utf-8")
        answer.setHeader("Content-Length", str(len(content)))
        answer.write(content)
        answer.finish()

    def processingFailed(self, reason: Failure) -> Failure:
        """Called by twisted.web for an unexpected exception."""
        self.channel.site.host.log_failure(reason)
        if self.startedWriting:
            self.channel.loseConnection()
        else:
            self.refuse(500, "Internal Server Error")
        return reason


class HttpSite(Site):
    """HTTP connections of one port. `hosts`: names that requests may have as Host, besides addresses and localhost."""

    protocol: Any = HttpChannel
    displayTracebacks = noisy = False

    def __init__(self, resource: Resource, host: BrokerService, hosts: Collection[str]) -> None:
        super().__init__(resource, requestFactory=HttpRequest, timeout=HTTP_REQUEST_SECONDS_MAX,  # type: ignore[no-untyped-call]
                         reactor=host.reactor)
        self.host, self._hosts = host, {"localhost", *(each.lower() for each in hosts)}
        self._places: dict[str, dict[HttpChannel, None]] = {}  # connections by address, oldest first
        self._lines = RepeatLimiter()

    @property
    def connections(self) -> int:
        """Number of open connections, WebSockets included."""
        return sum(map(len, self._places.values()))

    def log(self, request: Any) -> None:
        """Called by twisted.web for each response: there is no log of requests."""

    def serves(self, header: str | None) -> bool:
        """Return whether a request with this Host is for this broker: pages of a foreign name must not reach it."""
        name = host_of(header or "")
        return header is None or is_address(name) or name in self._hosts

    def buildProtocol(self, addr: Any) -> Any:
        """Called by the reactor for a new connection; None refuses it."""
        self.host.limit_accepts()
        if self.connections >= HTTP_CONNECTIONS_MAX and not self._free_place():
            return None
        channel = cast(HttpChannel, super().buildProtocol(addr))  # type: ignore[no-untyped-call]
        channel.address = addr.host
        self._places.setdefault(addr.host, {})[channel] = None
        return channel

    def _free_place(self) -> bool:
        """Close the oldest connection without a request in progress, of the address with most connections."""
        for channels in sorted(self._places.values(), key=len, reverse=True):
            for channel in channels:
                if not channel.in_progress:
                    self.release(channel)
                    channel.transport.abortConnection()
                    return True
        return False

    def release(self, channel: HttpChannel) -> None:
        """Release the place of a closed connection."""
        channels = self._places.get(channel.address, {})
        channels.pop(channel, None)
        if not channels:
            self._places.pop(channel.address, None)

    def count_refused(self, what: str) -> None:
        """Count a refused request in at most one line of the log per minute."""
        suffix = self._lines.suffix(what, self.host.present_time()[0])
        if suffix is not None:
            self.host.report.warn("#HTTP %s are refused%s", what, suffix)


def make_site(resource: Resource, host: BrokerService) -> HttpSite:
    """Return the site of a listener. Requests may have as Host the names in `http.hosts`, the host name of this machine,
    with or without its domain, and the host of the console's URL."""
    broker = host.node.broker
    http = broker.configuration.extension.http
    names = {broker.identity.host_name, socket.gethostname(), http.address, split_url(own_url(broker)).hostname or ""}
    return HttpSite(resource, host, {*http.hosts, *names, *(name.partition(".")[0] for name in names)})
