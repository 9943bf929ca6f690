"""Live documents over one WebSocket: Autobahn's protocol on the connection of an HTTP request.

Who may open one is decided before it opens; what is sent, by `hub.py`. What cannot be sent because the other side does not
read is not sent at all: `busy` says so to the hub.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from autobahn.twisted.resource import WebSocketResource
from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
from autobahn.websocket.types import ConnectionDeny

from bmqtwist.console.access import Refusal, Who
from bmqtwist.console.documents import compact
from bmqtwist.console.hub import Hub

WATCHERS_MAX = 96  # the other connections of the listener are for requests
MESSAGE_BYTES_MAX = 4096  # from a browser
MESSAGES_PER_SECOND_MAX = 50  # of one browser
PING_S = 20
GOING_AWAY, POLICY, ENDED = 1001, 1008, 4401
TEXT_FRAME = 1

Admit = Callable[[str, Mapping[str, str]], Who]  # the address and the headers of who asks; Refusal


class _Flow:
    """Told by the transport when the other side does not take what is written."""

    def __init__(self, transport: Any) -> None:
        self._transport, self.paused = transport, False

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        if self._transport.disconnecting:  # which waits for who writes to be done
            self._transport.unregisterProducer()

    def stopProducing(self) -> None:
        self.paused = True


class LiveProtocol(WebSocketServerProtocol):
    """One browser that watches: a `hub.Watcher`."""

    factory: LiveFactory
    transport: Any

    def __init__(self) -> None:
        super().__init__()
        self.who: Who | None = None
        self.released: Callable[[], None] = lambda: None  # the connection is over
        self._flow: _Flow | None = None
        self._second, self._messages = 0, 0

    def onConnect(self, request: Any) -> None:
        """From Autobahn: the request to open it."""
        try:
            self.who = self.factory.admit(self.transport.getPeer().host, request.headers)
        except Refusal as refusal:
            raise ConnectionDeny(refusal.status, refusal.reason) from None  # type: ignore[no-untyped-call]

    def onOpen(self) -> None:
        """From Autobahn: it is open."""
        self.transport.unregisterProducer()  # that of the HTTP request
        self._flow = _Flow(self.transport)
        self.transport.registerProducer(self._flow, True)
        self.factory.hub.join(self)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """From Autobahn: the browser says something."""
        now = self.factory.clock()
        if int(now) != self._second:
            self._second, self._messages = int(now), 0
        self._messages += 1
        if self not in self.factory.hub.watchers:
            return  # it was ended
        if self._messages > MESSAGES_PER_SECOND_MAX:
            self.end(POLICY, f"more than {MESSAGES_PER_SECOND_MAX} messages in a second")
            return
        try:
            message = json.loads(payload)
            if isBinary or not isinstance(message, dict):
                raise ValueError
        except (ValueError, RecursionError):
            self.send(compact({"error": "A message is a JSON object."}))
            return
        self.factory.hub.received(self, message, now)

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        """From Autobahn: the connection is over, also one that was never open."""
        released, self.released = self.released, lambda: None
        self.factory.hub.leave(self, self.factory.clock())
        released()

    def end(self, code: int, reason: str) -> None:
        """Close it from here; it is sent nothing more."""
        self.factory.hub.leave(self, self.factory.clock())
        self.sendCloseFrame(code=code, reasonUtf8=reason.encode(), isReply=False)

    # -- hub.Watcher ------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether what was sent has not left yet."""
        return self._flow is None or self._flow.paused

    def send(self, text: str) -> None:
        """One message, of any length: Autobahn's limits are for what comes. Nothing once it closes."""
        if self.state == self.STATE_OPEN:
            self.sendFrame(opcode=TEXT_FRAME, payload=text.encode())


class LiveFactory(WebSocketServerFactory):
    """Makes the protocols. `admit` decides who may watch; `clock`: seconds, monotonic."""

    protocol: Any = LiveProtocol

    def __init__(self, reactor: Any, hub: Hub, admit: Admit, clock: Callable[[], float]) -> None:
        super().__init__(reactor=reactor, server="")  # type: ignore[no-untyped-call]
        self.released: Callable[[], None] | None = None  # for the next protocol: its connection is over
        self.hub, self.admit, self.clock = hub, admit, clock
        options: Any = self.setProtocolOptions
        options(maxFramePayloadSize=MESSAGE_BYTES_MAX, maxMessagePayloadSize=MESSAGE_BYTES_MAX, autoPingInterval=PING_S,
                autoPingTimeout=PING_S, openHandshakeTimeout=10, closeHandshakeTimeout=2, webStatus=False,
                allowNullOrigin=True)  # `admit` judges origins

    def buildProtocol(self, addr: Any) -> Any:
        """From `LiveResource`."""
        made: Any = super().buildProtocol(addr)
        made.released, self.released = self.released or made.released, None
        return made

    def end_logins(self, still: Callable[[Who], bool]) -> None:
        """Close the connections of those whose login does not count any more."""
        for watcher in list(self.hub.watchers):
            if isinstance(watcher, LiveProtocol) and (watcher.who is None or not still(watcher.who)):
                watcher.end(ENDED, "the login has ended")

    def close(self) -> None:
        for watcher in list(self.hub.watchers):
            if isinstance(watcher, LiveProtocol):
                watcher.end(GOING_AWAY, "this node goes away")


class LiveResource(WebSocketResource):
    """Turns an HTTP request into a WebSocket, and takes its connection over."""

    def render(self, request: Any) -> Any:
        """From twisted.web."""
        upgrade = (request.getHeader("Upgrade") or "").lower()
        transport = request.channel.transport
        if upgrade != "websocket" or transport is None:
            return _refuse(request, 426, "Upgrade Required")
        if len(self._factory.hub.watchers) >= WATCHERS_MAX:
            return _refuse(request, 503, f"{WATCHERS_MAX} pages watch here already")
        taken_over = getattr(transport.protocol, "taken_over", None)
        self._factory.released = taken_over() if taken_over is not None else None
        return super().render(request)  # type: ignore[no-untyped-call]


def _refuse(request: Any, status: int, reason: str) -> bytes:
    request.setResponseCode(status)
    if status == 426:
        request.setHeader("Upgrade", "websocket")
    request.setHeader("Content-Type", "text/plain; charset=utf-8")
    return f"{reason}\n".encode()
