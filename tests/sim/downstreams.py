"""Scripted downstream broker, connected with a node: it sends requests and stores what it receives.

Used by `test_stops.py` and `original_proxy.py`. A scripted upstream node is in `upstreams.py`.
"""

from __future__ import annotations

from kit import data_events as events

from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.network import LOOPBACK
from bmqtwist.wire import control
from bmqtwist.wire.cluster_schema import ClusterMessage
from bmqtwist.wire.control import ControlMessage, Encoding, NegotiationMessage
from bmqtwist.wire.fast import EventType
from bmqtwist.wire.frames import BufferedBytes, FrameBuffer
from bmqtwist.wire.schema import ClientIdentity, ClientType
from sim.cluster import SimulatedCluster, SimulatedLink


class ScriptedBroker:
    """A scripted broker connected with a node. `node_id`: -1 = a proxy."""

    def __init__(self, world: SimulatedCluster, name: str, features: str, node_id: int = -1) -> None:
        end = world.network.connect(world.node(name).address, LOOPBACK)
        assert end is not None
        self.world, self.link = world, SimulatedLink(world, end)
        self._frames, self._r_id = FrameBuffer(1 << 30, BufferedBytes()), 100
        self.control_messages: list[ControlMessage] = []
        self.pushed: list[bytes] = []  # GUIDs
        self.negotiated = False
        self.link.send(control.encode_event(NegotiationMessage("clientIdentity", ClientIdentity(
            protocol_version=1, client_type=ClientType.E_TCPBROKER, features=features, cluster_name=CLUSTER,
            cluster_node_id=node_id))))
        self.receive_for()
        assert self.negotiated

    def receive_for(self, seconds: float = 0.5) -> None:
        """Run the simulation for some seconds and store received messages."""
        until = self.world.now + seconds
        while self.world.now < until and not self.link.closed:
            data = self.link.receive(until - self.world.now)
            buffer, frames = self._frames.receive(data)
            for kind, specific, start, stop in frames:
                self._event(EventType(kind), specific, buffer[start:stop])

    def _event(self, kind: EventType, specific: int, body: bytes) -> None:
        if not self.negotiated:
            self.negotiated = control.decode_negotiation(body, control.encoding_of(specific)).value.result.category == 0
        elif kind is EventType.CONTROL:
            self.control_messages.append(control.decode_control(body, control.encoding_of(specific)))
        elif kind is EventType.PUSH:
            found, error = events.decode_push(body, 0, len(body))
            assert error is None, error
            self.pushed += [each.guid for each in found]
            self.on_pushes(found)

    def on_pushes(self, pushes: list[events.PushMessage]) -> None:
        """Process the messages of a PUSH event."""

    def send_control(self, choice: str, value: object, r_id: int | None = None) -> None:
        """Send a control message."""
        self.link.send(control.encode_event(ControlMessage(r_id, choice, value), Encoding.BER))

    def request(self, choice: str, value: object) -> ControlMessage:
        """Send a request and return the response."""
        self._r_id += 1
        self.send_control(choice, value, self._r_id)
        self.receive_for()
        found = [message for message in self.control_messages if message.r_id == self._r_id]
        assert len(found) == 1, self.control_messages
        return found[0]

    def send_cluster_message(self, choice: str, value: object, r_id: int | None = None) -> None:
        """Send a ClusterMessage."""
        self.send_control("clusterMessage", ClusterMessage(choice, value), r_id)

    def cluster_messages(self, choice: str) -> list[tuple[int | None, object]]:
        """Return (request id, value) of all received ClusterMessages of one choice."""
        return [(message.r_id, message.value.value) for message in self.control_messages
                if message.choice == "clusterMessage" and message.value.choice == choice]
