"""Producers and consumers of a campaign: each has one queue open at whoever lets it, and tries the next node where it is
refused, where nobody listens, or where it hears nothing any more.

A producer keeps what is not acknowledged and posts it again with the same GUID, as an SDK does. A consumer confirms some
time after each delivery.
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

WATCH_S = 2.0  # between two looks at a connection
SILENCE_S = 7.0  # after which a connection is given up
NOTICED_S = 15.0  # after which a broker knows that a client has vanished
POSTS_MAX = 60  # of one producer
BATCH_MAX = 3
PAUSE_S = 0.6  # between two posts, on average


class CampaignConnection(ClientConnection):
    """Knows when it has heard something."""

    def __init__(self, owner: CampaignClient, end: ConnectionEnd) -> None:
        super().__init__(owner, end)
        self.heard_at = self.asked_at = owner.world.now
        self.lease = 0  # of the primary at which the queue was opened; 0 = it was opened elsewhere

    def on_data(self, data: bytes) -> None:
        """Bytes from the broker."""
        self.heard_at = self.owner.world.now
        super().on_data(data)


class CampaignClient(SimulatedClient, ABC):
    """`places`: names of nodes, in the order in which they are tried."""

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
        """The name of the node that is used."""
        return self._places[self._at]

    def dial(self) -> ConnectionEnd | None:
        """The next node, if this one does not listen."""
        end = self.world.network.connect(self.world.node(self.place).address)
        if end is None:
            self._at = (self._at + 1) % len(self._places)
        return end

    def _go_on(self, connection: ClientConnection) -> None:
        """To the next node."""
        self._at = (self._at + 1) % len(self._places)
        if self.connection is connection:
            self.leave("cut")

    def connect(self) -> None:
        """Connect, and look after the connection from then on: nobody may ever answer there."""
        super().connect()
        connection = self.connection
        if connection is not None:
            self.later(WATCH_S, connection, lambda: self._watch(connection))

    def leave(self, how: str) -> None:
        """As of `SimulatedClient`; that it has vanished is noticed by TCP after a while."""
        connection = self.connection
        super().leave(how)
        if how == "vanish" and connection is not None:
            self.world.at(self.world.now + NOTICED_S, connection.end.other.end)

    def on_connected(self, connection: ClientConnection) -> None:
        self._open(connection)

    def _watch(self, connection: ClientConnection) -> None:
        assert isinstance(connection, CampaignConnection)
        now = self.world.now
        if now - connection.heard_at > SILENCE_S or not self._is_open and now - connection.asked_at > SILENCE_S:
            self._go_on(connection)
            return
        if connection.heard:
            connection.end.send(codec.heartbeat())
        self.later(WATCH_S, connection, lambda: self._watch(connection))

    def forget(self, connection: ClientConnection) -> None:
        self._is_open = False

    def _ask(self, connection: ClientConnection, read: int, app: str | None) -> None:
        def answered(answer: dict[str, Any]) -> None:
            if self.connection is not connection:
                return
            if "status" in answer:
                self.world.counts["opens refused"] += 1
                self._go_on(connection)
                return
            self.world.counts["opens"] += 1
            self._is_open = True
            connection.lease = self.world.lease_at(self.place, self.uri)  # type: ignore[attr-defined]
            self._opened(connection)
        connection.request({"openQueue": {"handleParameters": handle_parameters(
            self.uri, 0, read, 1 - read, app, 1 if app else 0)}}, answered, 1 if app else 0)

    @abstractmethod
    def _open(self, connection: ClientConnection) -> None:
        """Ask for the queue."""

    @abstractmethod
    def _opened(self, connection: ClientConnection) -> None:
        """It is open."""


class CampaignProducer(CampaignClient):
    """Posts now and then."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.unacked: dict[bytes, bytes] = {}  # GUID -> payload
        self._posted = 0
        self.deaf = False  # what comes on this connection is lost on the way

    def _open(self, connection: ClientConnection) -> None:
        self._ask(connection, 0, None)

    def _opened(self, connection: ClientConnection) -> None:
        self.deaf = False
        for guid, payload in self.unacked.items():
            self.judge.posted_again(guid)
            self._send(connection, guid, payload)
        self._work(connection)

    def _send(self, connection: ClientConnection, guid: bytes, payload: bytes) -> None:
        connection.guard.put(guid, True)
        connection.end.send(codec.put_frame([codec.put_message(0, guid, payload)]))

    def _work(self, connection: ClientConnection) -> None:
        if self.calm or self._posted >= POSTS_MAX:
            return
        for _ in range(self.random.randint(1, BATCH_MAX)):
            self.post(connection)
        self.later(self.random.random() * PAUSE_S * 2, connection, lambda: self._work(connection))

    def post(self, connection: ClientConnection) -> None:
        """One message more."""
        self._posted += 1
        guid = codec.make_guid(self._posted, self.client_id)
        payload = f"{self.name} {self._posted} ".encode() + self.random.randbytes(self.random.choice((0, 100, 1000)))
        self.unacked[guid] = payload
        self.judge.posted(guid, self.uri, payload)
        self._send(connection, guid, payload)

    def press(self) -> None:
        """Post several messages at once, if that can be done now."""
        if self._is_open and self.connection is not None and not self.calm:
            for _ in range(2 * BATCH_MAX):
                self.post(self.connection)

    def on_ack(self, connection: ClientConnection, guid: bytes, status: int) -> None:
        if not self.deaf and self.unacked.pop(guid, None) is not None:
            self.judge.answered(guid, status)


class CampaignConsumer(CampaignClient):
    """Reads one app."""

    def __init__(self, world: CampaignWorld, judge: MessageJudge, random: Random, name: str, uri: str, places: list[str],
                 app: str, slowness: float) -> None:
        super().__init__(world, judge, random, name, uri, places)
        self._app, self._slowness = app, slowness
        self._s_id = 0
        self._last: list[tuple[int, int]] = []  # PSNs, for the judge
        self._heard: set[bytes] = set()  # on this connection

    def _open(self, connection: ClientConnection) -> None:
        self._ask(connection, 1, None if len(APPS[self.uri]) == 1 else self._app)

    def _opened(self, connection: ClientConnection) -> None:
        self._s_id, self._last, self._heard = self._s_id + 1, [], set()
        sub_id = 0 if len(APPS[self.uri]) == 1 else 1

        def answered(answer: dict[str, Any]) -> None:
            if "status" in answer and self.connection is connection:
                self._go_on(connection)
        connection.request({"configureStream": {"qId": 0, "streamParameters": {"appId": self._app, "subscriptions": [
            {"sId": self._s_id, "expression": {"version": "E_UNDEFINED", "text": ""},
             "consumers": [consumer_info(0, 1, 20, 1 << 20)]}]}}}, answered, sub_id)

    def on_push(self, connection: ClientConnection, push: Push) -> None:
        assert isinstance(connection, CampaignConnection)
        again = push.guid in self._heard
        self._heard.add(push.guid)
        lease = connection.lease if self.world.lease_at(self.place, self.uri) == connection.lease else 0
        self.judge.delivered(self.uri, self._app, push, lease, self._last, again)
        wait = self.random.random() * (0.01 if self.calm else self._slowness)
        self.later(wait, connection, lambda: self._confirm(connection, push.guid))

    def _confirm(self, connection: ClientConnection, guid: bytes) -> None:
        connection.end.send(codec.confirm_frame([(0, guid, 0 if len(APPS[self.uri]) == 1 else 1)]))


def cast(world: CampaignWorld) -> None:
    """Everybody: a producer and consumers of each queue at the nodes, a producer and consumers behind proxies first."""
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
            world.clients_at_work.append(
                CampaignProducer(world, world.messages, own, f"{name} from {number}", uri, places()))
        for app in apps:
            own = Random(random.random())
            world.clients_at_work.append(CampaignConsumer(
                world, world.messages, own, f"{name} to {app}", uri, places(), app, random.choice((0.01, 0.3, 2.0))))
