"""Scripted upstream node for tests of relays: it answers as a member does by default, and stores all received events.

Used by `test_upstream.py`. A whole upstream broker is in `chain_scenario.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bmqtwist.errors import Category
from bmqtwist.testing.network import ConnectionEnd, ConnectionHandler, Network
from bmqtwist.wire import control, events
from bmqtwist.wire.cluster_schema import ClusterMessage, NodeStatus, NodeStatusAdvisory
from bmqtwist.wire.control import ControlMessage, NegotiationMessage
from bmqtwist.wire.events import AckMessage, ConfirmMessage, PutMessage
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import BufferedBytes, FrameBuffer
from bmqtwist.wire.schema import (
    BrokerResponse,
    ClientIdentity,
    ClientType,
    CloseQueueResponse,
    ConfigureStreamResponse,
    OpenQueueResponse,
    RoutingConfiguration,
    Status,
)

FEATURES = ("PROTOCOL_ENCODING:BER,JSON;HA:GRACEFUL_SHUTDOWN,GRACEFUL_SHUTDOWN_V2,BROADCAST_TO_PROXIES;"
            "MPS:MESSAGE_PROPERTIES_EX")
PRIORITY_FLAGS = 2


class ScriptedNode(ConnectionHandler):
    """An upstream node. `acks`: status of its ACK for each PUT, None = no ACK."""

    def __init__(self, network: Network, name: str, address: str, *, features: str = FEATURES,
                 status: NodeStatus | None = NodeStatus.E_AVAILABLE, acks: int | None = 0) -> None:
        self.name, self.address, self.up, self.features, self.status, self.acks = name, address, True, features, status, acks
        self.end: ConnectionEnd | None = None
        self.identity = ClientIdentity()
        self.requests: list[ControlMessage] = []
        self.puts: list[PutMessage] = []
        self.confirms: list[ConfirmMessage] = []
        self.rejects: list[ConfirmMessage] = []
        self.events: list[tuple[EventType, bytes]] = []  # all received events after negotiation
        self.unanswered: set[str] = set()  # choices of requests that get no response
        self.answers: dict[str, Callable[[Any], tuple[str, object]]] = {
            "openQueue": lambda value: ("openQueueResponse", OpenQueueResponse(
                value, RoutingConfiguration(PRIORITY_FLAGS), 300_000)),
            "configureStream": lambda value: ("configureStreamResponse", ConfigureStreamResponse(value)),
            "closeQueue": lambda value: ("closeQueueResponse", CloseQueueResponse())}
        self.connections = 0
        self._negotiated = False
        self._frames = FrameBuffer(1 << 30, BufferedBytes())
        network.add(self)

    @property
    def listening(self) -> bool:
        """Whether it accepts connections."""
        return self.up

    def accept(self, end: ConnectionEnd, peer: str) -> None:
        """From the network: accept a connection."""
        self.connections += 1
        self.end, self._negotiated, end.handler = end, False, self
        self._frames = FrameBuffer(1 << 30, BufferedBytes())

    def on_data(self, data: bytes) -> None:
        """From the network: process received bytes."""
        buffer, frames = self._frames.receive(data)
        for kind, specific, start, end in frames:
            self._on_event(EventType(kind), specific, buffer[start:end])

    def on_end(self) -> None:
        """From the network: the connection is closed."""
        self.end = None

    def _on_event(self, kind: EventType, specific: int, body: bytes) -> None:
        if not self._negotiated:
            self._negotiated = True
            self.identity = control.decode_negotiation(body, control.encoding_of(specific)).value
            self._send_broker_response()
            return
        self.events.append((kind, body))
        if kind is EventType.CONTROL:
            self._on_request(control.decode_control(body, control.encoding_of(specific)))
        elif kind is EventType.PUT:
            found, error = events.decode_put(body, 0, len(body))
            assert error is None, error
            self.puts += found
            if self.acks is not None:
                self.send(events.encode_ack([AckMessage(self.acks, 0, put.guid, put.queue_id) for put in found]))
        elif kind in (EventType.CONFIRM, EventType.REJECT):
            found_items, error = events.decode_confirm(body, 0, len(body))
            assert error is None, error
            (self.confirms if kind is EventType.CONFIRM else self.rejects).extend(found_items)

    def _send_broker_response(self) -> None:
        identity = ClientIdentity(1, 999999, ClientType.E_TCPBROKER, self.name, 1, 1, self.name, self.features, "c3",
                            int(self.name[1:]))
        self.send(control.encode_event(NegotiationMessage("brokerResponse", BrokerResponse(
            Status(Category.E_SUCCESS, 0, ""), 1, 999999, False, identity))))
        if self.status is not None:
            self.announce(self.status)

    def _on_request(self, message: ControlMessage) -> None:
        self.requests.append(message)
        if message.choice in self.answers and message.choice not in self.unanswered:
            self.answer(message)

    def answer(self, message: ControlMessage) -> None:
        """Send the response to a request."""
        self.send(control.encode_event(ControlMessage(message.r_id, *self.answers[message.choice](message.value))))

    def refuse(self, choice: str, category: Category, code: int = 0) -> None:
        """Answer requests of one choice with a failure from now on."""
        self.answers[choice] = lambda value: ("status", Status(category, code, "as the test says"))

    def announce(self, status: NodeStatus) -> None:
        """Send a NodeStatusAdvisory."""
        self.cluster_message("nodeStatusAdvisory", NodeStatusAdvisory(status))

    def cluster_message(self, choice: str, value: object, r_id: int | None = None) -> None:
        """Send a ClusterMessage."""
        self.send(control.encode_event(ControlMessage(r_id, "clusterMessage", ClusterMessage(choice, value))))

    def send(self, data: bytes) -> None:
        """Send bytes if connected."""
        if self.end is not None:
            self.end.send(data)

    def die(self) -> None:
        """Stop to listen and drop the connection."""
        self.up = False
        if self.end is not None:
            self.end.drop()
            self.end = None

    def requests_of(self, choice: str) -> list[Any]:
        """Return the received requests of one choice."""
        return [message.value for message in self.requests if message.choice == choice]
