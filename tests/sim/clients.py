"""Producers and consumers as event handlers: they speak, hear, leave and come back, and never wait.

A producer keeps what is not acknowledged and posts it again, with the same GUIDs and in the same order, whenever it has
a connection with that queue open. A consumer confirms some time after each delivery, in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kit import codec
from kit.client import FEATURES, READ, WRITE, consumer_info
from kit.codec import Event, Push
from kit.guard import Guard

from bmqtwist.testing.network import ConnectionEnd, ConnectionHandler
from sim.judge import OutsideJudge, PostedMessage, Violation
from sim.world import SimulatedWorld

RECONNECT_S = 0.05
RETRY_S = 0.3  # after a refused request
BATCH_MAX = 4
POSTS_MAX = 300  # of one producer: what is stored must not fill the journals


class ClientConnection(ConnectionHandler):
    """One connection of a client: frames, negotiation, requests and their answers, under the guard's eyes."""

    def __init__(self, owner: SimulatedClient, end: ConnectionEnd) -> None:
        self.owner, self.end = owner, end
        self.heard: list[Event] = []  # in order, for the guard
        self.guard = Guard(self)  # type: ignore[arg-type]
        self._buffer = b""
        self._negotiated = False
        self._r_id = 0
        self._waiting: dict[int, Callable[[dict[str, Any]], None]] = {}

    def on_data(self, data: bytes) -> None:
        """Bytes from the broker."""
        self._buffer += data
        frames, self._buffer = codec.split_frames(self._buffer)
        for frame in frames:
            for event in codec.decode_event(frame, negotiated=self._negotiated):
                self.heard.append(event)
                self.guard.judge()
                self._one(event)

    def _one(self, event: Event) -> None:
        self._negotiated = self._negotiated or "brokerResponse" in event.control
        if event.kind == "heartbeat_req":
            self.end.send(codec.heartbeat(response=True))
        elif self.owner.connection is not self:  # it has left, and waits for the answer to that
            if "disconnectResponse" in event.control:
                self.end.drop()
        elif event.kind == "push":
            self.owner.on_push(self, event.push)
        elif event.kind == "ack":
            self.owner.on_ack(self, event.ack.guid, event.ack.status)
        elif "brokerResponse" in event.control:
            assert event.control["brokerResponse"]["result"]["category"] == "E_SUCCESS", event
            self.owner.on_connected(self)
        elif event.kind == "control":
            self._waiting.pop(event.control["rId"])(event.control)

    def on_end(self) -> None:
        """The broker or the network ended it."""
        self.owner.on_cut(self)

    def request(self, choice: dict[str, Any], then: Callable[[dict[str, Any]], None], sub_id: int = 0) -> None:
        """Ask, and do something with the answer."""
        self._r_id += 1
        self._waiting[self._r_id] = then
        self.guard.ask(self._r_id, choice, sub_id)
        self.end.send(codec.control_frame({"rId": self._r_id, **choice}))


def handle_parameters(uri: str, q_id: int, read: int, write: int, app: str | None, sub_id: int) -> dict[str, Any]:
    """QueueHandleParameters."""
    parameters: dict[str, Any] = {"uri": uri, "qId": q_id, "flags": READ * read | (WRITE | 8) * write,
                                  "readCount": read, "writeCount": write, "adminCount": 0}
    if app is not None:
        parameters["subIdInfo"] = {"subId": sub_id, "appId": app}
    return parameters


class SimulatedClient:
    """A process that always wants to be connected."""

    connection_type = ClientConnection

    def __init__(self, world: SimulatedWorld, judge: OutsideJudge, random: Random, name: str) -> None:
        self.world, self.judge, self.random, self.name = world, judge, random, name
        self.client_id = codec.client_id(name)
        self.connection: ClientConnection | None = None
        self.calm = False  # the chaos is over: do only what leads to an end
        world.at(world.now + random.random() * 0.1, self.connect)

    def dial(self) -> ConnectionEnd | None:
        """A connection to a broker; None if nobody listens."""
        return self.world.dial()

    def connect(self) -> None:
        """Connect, or try again."""
        end = self.dial()
        if end is None:
            self.world.at(self.world.now + RECONNECT_S, self.connect)
            return
        end.handler = self.connection = self.connection_type(self, end)
        end.send(codec.control_frame({"clientIdentity": {
            "protocolVersion": 1, "sdkVersion": 11300, "clientType": "E_TCPCLIENT", "processName": self.name, "pid": 1,
            "sessionId": 1, "hostName": "", "features": FEATURES, "clusterName": "", "clusterNodeId": -1,
            "sdkLanguage": "E_CPP", "userAgent": "",
            "guidInfo": {"clientId": self.client_id.hex().upper(), "nanoSecondsFromEpoch": 1}}}))

    def leave(self, how: str) -> None:
        """End the connection: `cut`, `vanish` (the broker is not told) or `disconnect`; come back after a while."""
        connection = self.connection
        if connection is None:
            return
        if how == "disconnect":
            connection.request({"disconnect": {}}, lambda answer: None)
        else:
            connection.end.drop(silently=how == "vanish")
        self.on_cut(connection)

    def on_cut(self, connection: ClientConnection) -> None:
        """The connection is over."""
        if self.connection is connection:
            self.connection = None
            self.forget(connection)
            self.world.at(self.world.now + RECONNECT_S + self.random.random() * 0.2, self.connect)

    def later(self, seconds: float, connection: ClientConnection, action: Callable[[], None]) -> None:
        """Do something after a while, if still connected then."""
        self.world.at(self.world.now + seconds, lambda: action() if self.connection is connection else None)

    # What kinds of clients do

    waiting = 0  # messages nobody has answered

    def settle_down(self) -> None:
        """The end comes."""
        self.calm = True

    def forget(self, connection: ClientConnection) -> None:
        """Nothing is open any more."""

    def on_connected(self, connection: ClientConnection) -> None:
        """Negotiated."""

    def on_push(self, connection: ClientConnection, push: Push) -> None:
        """A message."""
        raise AssertionError(f"{self.name} is given {push}")

    def on_ack(self, connection: ClientConnection, guid: bytes, status: int) -> None:
        """An ACK."""
        raise AssertionError(f"{self.name} is told {guid.hex()}")


class SimulatedProducer(SimulatedClient):
    """Posts to some queues, now and then several messages in one event."""

    def __init__(self, world: SimulatedWorld, judge: OutsideJudge, random: Random, name: str, uris: list[str],
                 pause: float) -> None:
        super().__init__(world, judge, random, name)
        self._uris, self._pause = uris, pause
        self._q_ids: dict[str, int] = {}  # open ones
        self._next_q_id = 0
        self._numbers = dict.fromkeys(uris, 0)
        self._unacked: dict[bytes, None] = {}
        self._counter = 0

    def forget(self, connection: ClientConnection) -> None:
        self._q_ids = {}

    def on_connected(self, connection: ClientConnection) -> None:
        for uri in self._uris:
            self._open(connection, uri)
        self.later(self.random.random() * self._pause, connection, lambda: self._work(connection))

    def _open(self, connection: ClientConnection, uri: str) -> None:
        q_id, self._next_q_id = self._next_q_id, self._next_q_id + 1

        def answered(answer: dict[str, Any]) -> None:
            if "status" in answer:  # the ledger found no space
                self.later(RETRY_S, connection, lambda: self._open(connection, uri))
                return
            self._q_ids[uri] = q_id
            again = [guid for guid in self._unacked if self.judge.puts[guid].uri == uri]
            for guid in again:
                self.judge.posted_again(guid)
            self._send(connection, uri, again)

        connection.request({"openQueue": {"handleParameters": handle_parameters(uri, q_id, 0, 1, None, 0)}}, answered)

    def _send(self, connection: ClientConnection, uri: str, guids: list[bytes]) -> None:
        while guids:
            some, guids = guids[:BATCH_MAX], guids[BATCH_MAX:]
            for guid in some:
                connection.guard.put(guid, True)
            connection.end.send(codec.put_frame([self._message(self._q_ids[uri], guid) for guid in some]))

    def _message(self, q_id: int, guid: bytes) -> bytes:
        put = self.judge.puts[guid]
        return codec.put_message(q_id, guid, put.payload, properties={"n": put.n}, compress=put.number % 7 == 0)

    def _work(self, connection: ClientConnection) -> None:
        if self.calm or self._counter >= POSTS_MAX:
            return
        self.later(self._pause * self.random.random() * 2, connection, lambda: self._work(connection))
        if not self._q_ids:
            return
        uri = self.random.choice(sorted(self._q_ids))
        if self.random.random() < 0.02:
            self._close(connection, uri)
            return
        guids = []
        for _ in range(self.random.randint(1, BATCH_MAX)):
            self._counter += 1
            guid = codec.make_guid(self._counter, self.client_id, int(self.world.now * 1e6))
            number, self._numbers[uri] = self._numbers[uri], self._numbers[uri] + 1
            size = self.random.choice((0, 10, 100, 1000, 3000))
            payload = f"{self.name} {uri} {number} ".encode() + self.random.randbytes(size)
            self.judge.posted(guid, PostedMessage(uri, payload, self.random.randrange(10), self.name, number))
            self._unacked[guid] = None
            guids.append(guid)
        self._send(connection, uri, guids)

    def _close(self, connection: ClientConnection, uri: str) -> None:
        q_id = self._q_ids.pop(uri)
        for guid in [guid for guid in self._unacked if self.judge.puts[guid].uri == uri]:
            self.judge.given_up(guid)
            del self._unacked[guid]
        connection.request({"closeQueue": {"handleParameters": handle_parameters(uri, q_id, 0, 1, None, 0),
                                           "isFinal": True}}, lambda answer: self._open(connection, uri))

    def on_ack(self, connection: ClientConnection, guid: bytes, status: int) -> None:
        if guid in self._unacked:
            del self._unacked[guid]
            self.judge.answered(guid, status)

    @property
    def waiting(self) -> int:
        """How many messages nobody has answered."""
        return len(self._unacked)


@dataclass
class AskedSubscription:
    """What was asked for under one subscription id, and what is held under it."""

    low: int
    high: int  # of property n: low <= n < high
    messages_max: int
    bytes_max: int
    held: dict[bytes, int] = field(default_factory=dict)  # GUID: bytes


@dataclass
class ConsumedApp:
    """One app of the consumer's queue."""

    app: str
    sub_id: int
    subscriptions: dict[int, AskedSubscription] = field(default_factory=dict)
    held: dict[bytes, int] = field(default_factory=dict)  # unconfirmed, GUID: subscription id
    last: dict[str, int] = field(default_factory=dict)
    confirms: list[bytes] = field(default_factory=list)  # said on this connection
    open: bool = False


class SimulatedConsumer(SimulatedClient):
    """Reads one queue, for one app or for several on one handle."""

    def __init__(self, world: SimulatedWorld, judge: OutsideJudge, random: Random, name: str, uri: str, apps: list[str],
                 slowness: float, splits: bool) -> None:
        super().__init__(world, judge, random, name)
        self._uri, self._apps, self._slowness, self._splits = uri, apps, slowness, splits
        self._streams: dict[str, ConsumedApp] = {}
        self._q_id = 0
        self._next_s_id = 1

    def forget(self, connection: ClientConnection) -> None:
        for stream in self._streams.values():
            self.judge.let_go(self._uri, stream.app, connection)
        self._streams = {}

    def on_connected(self, connection: ClientConnection) -> None:
        self._open_all(connection)
        self.later(self.random.random(), connection, lambda: self._fidget(connection))

    def _open_all(self, connection: ClientConnection) -> None:
        """Every app, under a new queue id."""
        self._q_id += 1
        for index, app in enumerate(self._apps):
            self._open(connection, self._q_id, ConsumedApp(app, 0 if app == "__default" else index + 1))

    def _parameters(self, q_id: int, stream: ConsumedApp) -> dict[str, Any]:
        app = None if stream.app == "__default" else stream.app
        return handle_parameters(self._uri, q_id, 1, 0, app, stream.sub_id)

    def _open(self, connection: ClientConnection, q_id: int, stream: ConsumedApp) -> None:
        def answered(answer: dict[str, Any]) -> None:
            if "status" in answer:
                self.later(RETRY_S, connection, lambda: self._open(connection, q_id, stream))
                return
            stream.open = True
            self._streams[stream.app] = stream
            self._configure(connection, stream)

        connection.request({"openQueue": {"handleParameters": self._parameters(q_id, stream)}}, answered, stream.sub_id)

    def _settle(self, connection: ClientConnection, stream: ConsumedApp, said: list[bytes]) -> None:
        """The broker has answered; what a broker that died since has said proves nothing about the next one."""
        if connection.end.other.open:
            self.judge.settle(self._uri, stream.app, said)

    def _configure(self, connection: ClientConnection, stream: ConsumedApp, nothing: bool = False,
                   then: Callable[[], None] = lambda: None) -> None:
        ranges = [] if nothing else [(0, 10)]
        if self._splits and not self.calm and not nothing:
            middle = self.random.randint(1, 9)
            ranges = self.random.choice([[(0, middle)], [(0, middle), (middle, 10)], [(0, 10)]])
        fresh: dict[int, AskedSubscription] = {}
        wanted = []
        for low, high in ranges:
            subscription = AskedSubscription(low, high, self.random.choice((1, 2, 5, 100)),
                                        self.random.choice((1, 2000, 1 << 20)))
            s_id, self._next_s_id = self._next_s_id, self._next_s_id + 1
            fresh[s_id] = subscription
            text = "" if (low, high) == (0, 10) else f"n >= {low} && n < {high}"
            version = "E_VERSION_1" if text else "E_UNDEFINED"
            wanted.append({"sId": s_id, "expression": {"version": version, "text": text},
                           "consumers": [consumer_info(self.random.choice((0, 0, 0, 1)), 1, subscription.messages_max,
                                                       subscription.bytes_max)]})
        said = list(stream.confirms)

        def answered(answer: dict[str, Any]) -> None:
            assert "configureStreamResponse" in answer, answer
            self._settle(connection, stream, said)
            stream.subscriptions = fresh
            for s_id, held in self._inherited(stream, fresh).items():
                fresh[s_id].held.update(held)
            then()

        connection.request({"configureStream": {"qId": self._q_id, "streamParameters": {
            "appId": stream.app, "subscriptions": wanted}}}, answered, stream.sub_id)

    def _inherited(self, stream: ConsumedApp, fresh: dict[int, AskedSubscription]) -> dict[int, dict[bytes, int]]:
        """What is held counts against one of the new subscriptions; to be sure, it is only counted if there is one."""
        if len(fresh) != 1:
            return {}
        s_id = next(iter(fresh))
        held = {guid: len(self.judge.puts[guid].payload) for guid in stream.held}
        for guid in stream.held:
            stream.held[guid] = s_id
        return {s_id: held}

    def on_push(self, connection: ClientConnection, push: Push) -> None:
        found = [(stream, s_id) for s_id in push.ids for stream in self._streams.values()
                 if s_id in stream.subscriptions]
        assert len(found) == len(push.ids), f"{self.name}: {push.ids} for {self._streams}"
        for stream, s_id in found:
            self._one(connection, push, stream, s_id)

    def _one(self, connection: ClientConnection, push: Push, stream: ConsumedApp, s_id: int) -> None:
        subscription = stream.subscriptions[s_id]
        guid = push.guid
        if stream.open:
            self.judge.delivered(self._uri, stream.app, guid, push.payload, connection, push.out_of_order, stream.last)
            if not subscription.low <= self.judge.puts[guid].n < subscription.high:
                raise Violation("unexpected", f"{self.judge.puts[guid]} against {subscription}")
        if self._uri in self.judge.unstored:
            return
        held = sum(subscription.held.values())
        if len(subscription.held) >= subscription.messages_max or held >= subscription.bytes_max:
            raise Violation("credit", f"{self.name}: one more for {subscription}")
        subscription.held[guid] = len(push.payload)
        stream.held[guid] = s_id
        wait = self.random.random() * (0.002 if self.calm else self._slowness)
        self.later(wait, connection, lambda: self._confirm(connection, stream, guid))

    def _confirm(self, connection: ClientConnection, stream: ConsumedApp, guid: bytes) -> None:
        if not stream.open or guid not in stream.held:
            return
        more = list(stream.held) if self.random.random() < 0.1 else [guid]
        connection.end.send(codec.confirm_frame([(self._q_id, each, stream.sub_id) for each in more]))
        for each in more:
            subscription = stream.subscriptions.get(stream.held.pop(each))
            if subscription is not None:
                subscription.held.pop(each, None)
            stream.confirms.append(each)
            self.judge.confirmed(self._uri, stream.app, each, connection)

    def _fidget(self, connection: ClientConnection) -> None:
        """Reconfigure, suspend, close and open again."""
        if self.calm:
            return
        self.later(0.1 + self.random.random(), connection, lambda: self._fidget(connection))
        streams = [stream for stream in self._streams.values() if stream.open]
        if not streams:
            return
        stream = self.random.choice(streams)
        drawn = self.random.random()
        if drawn < 0.5:
            self._configure(connection, stream)
        elif drawn < 0.6:
            self._configure(connection, stream, nothing=True)
        elif drawn < 0.8:
            self._close_all(connection)

    def _close_all(self, connection: ClientConnection) -> None:
        """Deconfigure and close every stream, the last one finally; then all over again."""
        streams = [stream for stream in self._streams.values() if stream.open]
        if len(streams) < len(self._apps):
            return
        for index, stream in enumerate(streams):
            said = list(stream.confirms)
            stream.open = False
            self.judge.let_go(self._uri, stream.app, connection)
            self._configure(connection, stream, nothing=True)
            last = index + 1 == len(streams)

            def closed(answer: dict[str, Any], stream: ConsumedApp = stream, said: list[bytes] = said,
                       last: bool = last) -> None:
                assert "closeQueueResponse" in answer, answer
                self._settle(connection, stream, said)
                del self._streams[stream.app]
                if last:
                    self._open_all(connection)

            connection.request({"closeQueue": {"handleParameters": self._parameters(self._q_id, stream),
                                               "isFinal": last}}, closed, stream.sub_id)

    def settle_down(self) -> None:
        """The end comes: take everything, confirm at once."""
        self.calm = True
        connection = self.connection
        if connection is not None:
            for stream in self._streams.values():
                if stream.open:
                    self._configure(connection, stream)
                    for guid in list(stream.held):
                        self.later(0.001, connection, lambda stream=stream, guid=guid: self._confirm(  # type: ignore[misc]
                            connection, stream, guid))
