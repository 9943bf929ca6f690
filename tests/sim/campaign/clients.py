"""Producers and consumers of a campaign.

Each client has one queue open at one node. It switches to the next node of its list when the node does not listen, refuses
the open, or sends nothing for SILENCE_S. A producer sends unacknowledged PUTs again with the same GUIDs, as an SDK does. A
consumer confirms each message after a random time. Created by `play.py`; `messages.py` judges their messages. Clients of the
single broker's scenario are in `sim/clients.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import Any

from kit import codec
from kit.client import consumer_info
from kit.codec import Push

from bmqtwist.testing.network import ConnectionEnd
from sim.campaign.messages import APPS, STRONG, MessageJudge
from sim.campaign.world import CampaignWorld
from sim.clients import ClientConnection, SimulatedClient, handle_parameters

CHECK_S = 2.0  # between two checks of a connection
SILENCE_S = 7.0  # without received data, after which a client closes its connection
TCP_TIMEOUT_S = 15.0  # until a broker detects that a client has vanished
POSTS_MAX = 60  # per producer
BATCH_MAX = 3
PAUSE_S = 0.6  # mean time between two posts of a producer


class CampaignConnection(ClientConnection):
    """A connection with the time of the last received data."""

    def __init__(self, owner: CampaignClient, end: ConnectionEnd) -> None:
        super().__init__(owner, end)
        self.received_at = self.created_at = owner.world.now
        self.lease = 0  # of the primary at which the queue was opened; 0 = it was opened at a relay

    def on_data(self, data: bytes) -> None:
        self.received_at = self.owner.world.now
        super().on_data(data)


class CampaignClient(SimulatedClient, ABC):
    """Client with one queue; `places`: names of nodes, in the order in which they are tried."""

    connection_type = CampaignConnection
    world: CampaignWorld
    judge: MessageJudge

    def __init__(self, world: CampaignWorld, judge: MessageJudge, random: Random, name: str, uri: str,
                 places: list[str]) -> None:
        super().__init__(world, judge, random, name)  # type: ignore[arg-type]
        self.uri, self._places, self._at = uri, places, 0
        self._is_open = False

    @property
    def place(self) -> str:
        """Name of the node in use."""
        return self._places[self._at]

    def dial(self) -> ConnectionEnd | None:
        """Connect to the node in use; if it does not listen, select the next one and return None."""
        end = self.world.network.connect(self.world.node(self.place).address)
        if end is None:
            self._at = (self._at + 1) % len(self._places)
        return end

    def _switch_node(self, connection: ClientConnection) -> None:
        """Select the next node and close the connection."""
        self._at = (self._at + 1) % len(self._places)
        if self.connection is connection:
            self.disconnect("cut")

    def connect(self) -> None:
        """Connect, and check the connection every CHECK_S from then on."""
        super().connect()
        connection = self.connection
        if connection is not None:
            self.call_later(CHECK_S, connection, lambda: self._check_connection(connection))

    def disconnect(self, how: str) -> None:
        """Disconnect as a `SimulatedClient`; after "vanish" the broker's TCP detects it after TCP_TIMEOUT_S."""
        connection = self.connection
        super().disconnect(how)
        if how == "vanish" and connection is not None:
            self.world.at(self.world.now + TCP_TIMEOUT_S, connection.end.other.end)

    def on_connected(self, connection: ClientConnection) -> None:
        self._open(connection)

    def _check_connection(self, connection: ClientConnection) -> None:
        assert isinstance(connection, CampaignConnection)
        now = self.world.now
        if now - connection.received_at > SILENCE_S or not self._is_open and now - connection.created_at > SILENCE_S:
            self._switch_node(connection)
            return
        if connection.events:
            connection.end.send(codec.heartbeat())
        self.call_later(CHECK_S, connection, lambda: self._check_connection(connection))

    def on_disconnected(self, connection: ClientConnection) -> None:
        self._is_open = False

    def _request_open(self, connection: ClientConnection, read: int, app: str | None) -> None:
        def answered(answer: dict[str, Any]) -> None:
            if self.connection is not connection:
                return
            if "status" in answer:
                self.world.counts["opens refused"] += 1
                self._switch_node(connection)
                return
            self.world.counts["opens"] += 1
            self._is_open = True
            connection.lease = self.world.lease_at(self.place, self.uri)  # type: ignore[attr-defined]
            self._on_opened(connection)
        connection.request({"openQueue": {"handleParameters": handle_parameters(
            self.uri, 0, read, 1 - read, app, 1 if app else 0)}}, answered, 1 if app else 0)

    @abstractmethod
    def _open(self, connection: ClientConnection) -> None:
        """Request the open of the queue."""

    @abstractmethod
    def _on_opened(self, connection: ClientConnection) -> None:
        """The queue was opened."""


class CampaignProducer(CampaignClient):
    """Posts up to BATCH_MAX messages at a time, PAUSE_S apart on average."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unacked: dict[bytes, bytes] = {}  # GUID -> payload
        self._posted = 0
        self.drop_acks = False  # until the next open: ignore received ACKs, as if they were lost

    def _open(self, connection: ClientConnection) -> None:
        self._request_open(connection, 0, None)

    def _on_opened(self, connection: ClientConnection) -> None:
        self.drop_acks = False
        for guid, payload in self.unacked.items():
            self.judge.on_put_resent(guid)
            self._send(connection, guid, payload)
        self._post_repeatedly(connection)

    def _send(self, connection: ClientConnection, guid: bytes, payload: bytes) -> None:
        connection.guard.on_put(guid, True)
        connection.end.send(codec.put_frame([codec.put_message(0, guid, payload)]))

    def _post_repeatedly(self, connection: ClientConnection) -> None:
        if self.draining or self._posted >= POSTS_MAX:
            return
        for _ in range(self.random.randint(1, BATCH_MAX)):
            self.post(connection)
        self.call_later(self.random.random() * PAUSE_S * 2, connection, lambda: self._post_repeatedly(connection))

    def post(self, connection: ClientConnection) -> None:
        """Post one message."""
        self._posted += 1
        guid = codec.make_guid(self._posted, self.client_id)
        payload = f"{self.name} {self._posted} ".encode() + self.random.randbytes(self.random.choice((0, 100, 1000)))
        self.unacked[guid] = payload
        self.judge.on_put_sent(guid, self.uri, payload)
        self._send(connection, guid, payload)

    def post_burst(self) -> None:
        """Post 2 * BATCH_MAX messages at once, if the queue is open."""
        if self._is_open and self.connection is not None and not self.draining:
            for _ in range(2 * BATCH_MAX):
                self.post(self.connection)

    def on_ack(self, connection: ClientConnection, guid: bytes, status: int) -> None:
        if not self.drop_acks and self.unacked.pop(guid, None) is not None:
            self.judge.on_ack_received(guid, status)


class CampaignConsumer(CampaignClient):
    """Reads one app and confirms each message within `slowness` seconds."""

    def __init__(self, world: CampaignWorld, judge: MessageJudge, random: Random, name: str, uri: str, places: list[str],
                 app: str, slowness: float) -> None:
        super().__init__(world, judge, random, name, uri, places)
        self._app, self._slowness = app, slowness
        self._s_id = 0
        self._last: list[tuple[int, int]] = []  # PSNs of new messages, for the judge
        self._received: set[bytes] = set()  # GUIDs, on this connection

    def _open(self, connection: ClientConnection) -> None:
        self._request_open(connection, 1, None if len(APPS[self.uri]) == 1 else self._app)

    def _on_opened(self, connection: ClientConnection) -> None:
        self._s_id, self._last, self._received = self._s_id + 1, [], set()
        sub_id = 0 if len(APPS[self.uri]) == 1 else 1

        def answered(answer: dict[str, Any]) -> None:
            if "status" in answer and self.connection is connection:
                self._switch_node(connection)
        connection.request({"configureStream": {"qId": 0, "streamParameters": {"appId": self._app, "subscriptions": [
            {"sId": self._s_id, "expression": {"version": "E_UNDEFINED", "text": ""},
             "consumers": [consumer_info(0, 1, 20, 1 << 20)]}]}}}, answered, sub_id)

    def on_push(self, connection: ClientConnection, push: Push) -> None:
        assert isinstance(connection, CampaignConnection)
        again = push.guid in self._received
        self._received.add(push.guid)
        lease = connection.lease if self.world.lease_at(self.place, self.uri) == connection.lease else 0
        self.judge.on_push_received(self.uri, self._app, push, lease, self._last, again)
        wait = self.random.random() * (0.01 if self.draining else self._slowness)
        self.call_later(wait, connection, lambda: self._confirm(connection, push.guid))

    def _confirm(self, connection: ClientConnection, guid: bytes) -> None:
        connection.end.send(codec.confirm_frame([(0, guid, 0 if len(APPS[self.uri]) == 1 else 1)]))


def create_clients(world: CampaignWorld) -> None:
    """Create the producers and the consumers of all apps for each queue; 40 % of the clients prefer a proxy."""
    random = Random(f"{world.schedule.seed}/{world.schedule.size}/clients")
    nodes, proxies = [node.name for node in world.machines], [node.name for node in world.proxies]

    def places() -> list[str]:
        order = random.sample(nodes, len(nodes))
        if random.random() < 0.6:
            return order
        proxy = random.choice(proxies)
        return [place for name in order for place in (proxy, name)]
    for uri, apps in APPS.items():
        name = uri.removeprefix("bmq://campaign.").removesuffix("/q")
        for number in range(2 if uri == STRONG else 1):
            own = Random(random.random())
            world.campaign_clients.append(
                CampaignProducer(world, world.message_judge, own, f"{name} from {number}", uri, places()))
        for app in apps:
            own = Random(random.random())
            world.campaign_clients.append(CampaignConsumer(
                world, world.message_judge, own, f"{name} to {app}", uri, places(), app, random.choice((0.01, 0.3, 2.0))))
