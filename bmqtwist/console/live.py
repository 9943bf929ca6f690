"""WebSocket of the console: Autobahn's protocol on the connection of an HTTP request.

Access is checked before the WebSocket opens. `hub.py` decides which documents are sent; a client whose socket buffer is
full (`is_busy`) receives none. `service.py` creates the factory; the browser's side is `web/live.js`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from autobahn.twisted.resource import WebSocketResource
from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol

from bmqtwist.console.access import Caller, Refusal
from bmqtwist.console.documents import compact
from bmqtwist.console.hub import Hub

MESSAGE_BYTES_MAX = 4096  # received
MESSAGES_PER_SECOND_MAX = 50  # received per WebSocket
PING_S = 20
GOING_AWAY, POLICY, ENDED = 1001, 1008, 4401
TEXT_FRAME = 1

Admit = Callable[[str, Mapping[str, str]], Caller]  # from address and headers of the request; raises Refusal


class _Flow:
    """Producer that records whether the transport's buffer is full."""

    def __init__(self, transport: Any) -> None:
        self._transport, self.paused = transport, False

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        if self._transport.disconnecting:  # loseConnection waits until the producer unregisters
            self._transport.unregisterProducer()

    def stopProducing(self) -> None:
        self.paused = True


class LiveProtocol(WebSocketServerProtocol):
    """WebSocket of one browser: a `hub.Subscriber`."""

    factory: LiveFactory
    transport: Any

    def __init__(self) -> None:
        super().__init__()
        self.caller: Caller | None = None  # of the request to open the WebSocket
        self.on_released: Callable[[], None] = lambda: None  # called when the connection is closed
        self._flow: _Flow | None = None
        self._second, self._messages = 0, 0

    def onOpen(self) -> None:
        """Called by Autobahn when the WebSocket is open."""
        self.transport.unregisterProducer()  # that of the HTTP request
        self._flow = _Flow(self.transport)
        self.transport.registerProducer(self._flow, True)
        self.factory.hub.add(self)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """Called by Autobahn for a message of the browser."""
        now = self.factory.clock()
        if int(now) != self._second:
            self._second, self._messages = int(now), 0
        self._messages += 1
        if self not in self.factory.hub.subscribers:
            return  # closed by this side
        if self._messages > MESSAGES_PER_SECOND_MAX:
            self.disconnect(POLICY, f"more than {MESSAGES_PER_SECOND_MAX} messages in a second")
            return
        try:
            message = json.loads(payload)
            if isBinary or not isinstance(message, dict):
                raise ValueError
        except (ValueError, RecursionError):
            self.send(compact({"error": "A message must be a JSON object."}))
            return
        self.factory.hub.on_message(self, message, now)

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        """Called by Autobahn when the connection is closed, also if the WebSocket was never open."""
        on_released, self.on_released = self.on_released, lambda: None
        self.factory.hub.remove(self, self.factory.clock())
        on_released()

    def disconnect(self, code: int, reason: str) -> None:
        """Close the WebSocket and send nothing more."""
        self.factory.hub.remove(self, self.factory.clock())
        self.sendCloseFrame(code=code, reasonUtf8=reason.encode(), isReply=False)

    # -- hub.Subscriber ------------------------------------------------------------------------------------------------

    @property
    def viewer(self) -> str:
        """Name of the user."""
        return self.caller.user if self.caller is not None else ""

    @property
    def is_busy(self) -> bool:
        """True while sent data is not yet written to the socket."""
        return self._flow is None or self._flow.paused

    def send(self, text: str) -> None:
        """Send one message of any length, unless the WebSocket is closing."""
        if self.state == self.STATE_OPEN:
            self.sendFrame(opcode=TEXT_FRAME, payload=text.encode())


class LiveFactory(WebSocketServerFactory):
    """Factory of the WebSockets. `admit` authenticates a request; `clock` returns monotonic seconds."""

    protocol: Any = LiveProtocol

    def __init__(self, reactor: Any, hub: Hub, admit: Admit, clock: Callable[[], float]) -> None:
        super().__init__(reactor=reactor, server="")  # type: ignore[no-untyped-call]
        self.next: tuple[Caller, Callable[[], None]] | None = None  # `caller` and `on_released` of the next protocol
        self.hub, self.admit, self.clock = hub, admit, clock
        options: Any = self.setProtocolOptions
        options(maxFramePayloadSize=MESSAGE_BYTES_MAX, maxMessagePayloadSize=MESSAGE_BYTES_MAX, autoPingInterval=PING_S,
                autoPingTimeout=PING_S, openHandshakeTimeout=10, closeHandshakeTimeout=2, webStatus=False,
                allowNullOrigin=True)  # `admit` checks origins

    def buildProtocol(self, addr: Any) -> Any:
        """Called by `LiveResource` to create the protocol of a WebSocket."""
        made: Any = super().buildProtocol(addr)
        if self.next is not None:
            (made.caller, made.on_released), self.next = self.next, None
        return made

    def close_ended_logins(self, is_valid: Callable[[Caller], bool]) -> None:
        """Close the WebSockets whose login has ended."""
        for subscriber in list(self.hub.subscribers):
            if isinstance(subscriber, LiveProtocol) and (subscriber.caller is None or not is_valid(subscriber.caller)):
                subscriber.disconnect(ENDED, "the login has ended")

    def close(self) -> None:
        for subscriber in list(self.hub.subscribers):
            if isinstance(subscriber, LiveProtocol):
                subscriber.disconnect(GOING_AWAY, "this node is stopping")


class LiveResource(WebSocketResource):
    """Resource that upgrades an HTTP request to a WebSocket."""

    def render(self, request: Any) -> Any:
        """Called by twisted.web: upgrade the request, or refuse it."""
        upgrade = (request.getHeader("Upgrade") or "").lower()
        transport = request.channel.transport
        if upgrade != "websocket" or transport is None:
            return _refuse(request, 426, "Upgrade Required")
        headers = {name.decode().lower(): b",".join(values).decode()
                   for name, values in request.requestHeaders.getAllRawHeaders()}
        try:
            caller = self._factory.admit(request.getClientAddress().host, headers)
        except Refusal as refusal:  # Autobahn would write lines to the log
            return _refuse(request, refusal.status, refusal.reason)
        if not self._factory.hub.has_place(caller.user):
            return _refuse(request, 503, "you have as many pages open as are left for all users")
        self._factory.next = caller, request.channel.hand_over()
        return super().render(request)  # type: ignore[no-untyped-call]


def _refuse(request: Any, status: int, reason: str) -> bytes:
    request.setResponseCode(status)
    if status == 426:
        request.setHeader("Upgrade", "websocket")
    request.setHeader("Content-Type", "text/plain; charset=utf-8")
    return f"{reason}\n".encode()
