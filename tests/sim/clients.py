"""Simulated producers and consumers, event-driven: they connect, send, receive, disconnect and reconnect at random times.

A producer sends unacknowledged PUTs again on each new connection, with the same GUIDs and in the same order. A consumer
confirms each message after a random time, in any order. Both report what they send and receive to an `OutsideJudge`. Created
by `scenario.py` and `chain_scenario.py`. Clients with the session core of the SDK are in `sdk_sessions.py`.
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
RETRY_S = 0.3  # delay after a refused request
BATCH_MAX = 4
POSTS_MAX = 300  # per producer, so that the journals do not become full


class ClientConnection(ConnectionHandler):
    """One connection of a client: frames, negotiation, requests and responses; a `Guard` checks all received events."""

    def __init__(self, owner: SimulatedClient, end: ConnectionEnd) -> None:
        self.owner, self.end = owner, end
        self.events: list[Event] = []  # received, in order, for the guard
        self.guard = Guard(self)  # type: ignore[arg-type]
        self._buffer = b""
        self._negotiated = False
        self._r_id = 0
        self._pending: dict[int, Callable[[dict[str, Any]], None]] = {}

    def on_data(self, data: bytes) -> None:
        """From the network: process bytes of the broker."""
        self._buffer += data
        frames, self._buffer = codec.split_frames(self._buffer)
        for frame in frames:
            for event in codec.decode_event(frame, negotiated=self._negotiated):
                self.events.append(event)
                self.guard.check_new_events()
                self._on_event(event)

    def _on_event(self, event: Event) -> None:
        self._negotiated = self._negotiated or "brokerResponse" in event.control
        if event.kind == "heartbeat_req":
            self.end.send(codec.heartbeat(response=True))
        elif self.owner.connection is not self:  # after `disconnect`: only its response counts
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
            self._pending.pop(event.control["rId"])(event.control)

    def on_end(self) -> None:
        """From the network: the connection is closed."""
        self.owner.on_cut(self)

    def request(self, choice: dict[str, Any], then: Callable[[dict[str, Any]], None], sub_id: int = 0) -> None:
        """Send a request and call `then` with the response."""
        self._r_id += 1
        self._pending[self._r_id] = then
        self.guard.on_request(self._r_id, choice, sub_id)
        self.end.send(codec.control_frame({"rId": self._r_id, **choice}))


def handle_parameters(uri: str, q_id: int, read: int, write: int, app: str | None, sub_id: int) -> dict[str, Any]:
    """Return the QueueHandleParameters of an open or close request."""
    parameters: dict[str, Any] = {"uri": uri, "qId": q_id, "flags": READ * read | (WRITE | 8) * write,
                                  "readCount": read, "writeCount": write, "adminCount": 0}
    if app is not None:
        parameters["subIdInfo"] = {"subId": sub_id, "appId": app}
    return parameters


class SimulatedClient:
    """A client process that reconnects whenever it is disconnected."""

    connection_type = ClientConnection

    def __init__(self, world: SimulatedWorld, judge: OutsideJudge, random: Random, name: str) -> None:
        self.world, self.judge, self.random, self.name = world, judge, random, name
        self.client_id = codec.client_id(name)
        self.connection: ClientConnection | None = None
        self.draining = False  # the faults have ended: only finish open work
        world.at(world.now + random.random() * 0.1, self.connect)

    def dial(self) -> ConnectionEnd | None:
        """Connect to a broker; return None if it does not listen."""
        return self.world.dial()

    def connect(self) -> None:
        """Connect and negotiate, or try again after RECONNECT_S."""
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

    def disconnect(self, how: str) -> None:
        """End the connection and reconnect later. `how`: "cut", "vanish" (without notice to the broker) or "disconnect"."""
        connection = self.connection
        if connection is None:
            return
        if how == "disconnect":
            connection.request({"disconnect": {}}, lambda answer: None)
        else:
            connection.end.drop(silently=how == "vanish")
        self.on_cut(connection)

    def on_cut(self, connection: ClientConnection) -> None:
        """Handle the end of a connection: reconnect after a random time."""
        if self.connection is connection:
            self.connection = None
            self.on_disconnected(connection)
            self.world.at(self.world.now + RECONNECT_S + self.random.random() * 0.2, self.connect)

    def call_later(self, seconds: float, connection: ClientConnection, action: Callable[[], None]) -> None:
        """Run an action after `seconds`, unless the connection has ended by then."""
        self.world.at(self.world.now + seconds, lambda: action() if self.connection is connection else None)

    # -- overridden by producers and consumers ------------------------------------------------------------------------

    unanswered = 0  # messages without an ACK

    def drain(self) -> None:
        """Finish the open work and start nothing new."""
        self.draining = True

    def on_disconnected(self, connection: ClientConnection) -> None:
        """A connection has ended, and with it all its queues."""

    def on_connected(self, connection: ClientConnection) -> None:
        """The negotiation succeeded."""

    def on_push(self, connection: ClientConnection, push: Push) -> None:
        """Process a PUSH."""
        raise AssertionError(f"{self.name} receives {push}")

    def on_ack(self, connection: ClientConnection, guid: bytes, status: int) -> None:
        """Process an ACK."""
        raise AssertionError(f"{self.name} receives an ACK of {guid.hex()}")


class SimulatedProducer(SimulatedClient):
    """Posts to several queues, up to BATCH_MAX messages in one event, `pause` seconds apart on average."""

    def __init__(self, world: SimulatedWorld, judge: OutsideJudge, random: Random, name: str, uris: list[str],
                 pause: float) -> None:
        super().__init__(world, judge, random, name)
        self._uris, self._pause = uris, pause
        self._q_ids: dict[str, int] = {}  # of the queues that are open
        self._next_q_id = 0
        self._numbers = dict.fromkeys(uris, 0)
        self._unacked: dict[bytes, None] = {}
        self._counter = 0

    def on_disconnected(self, connection: ClientConnection) -> None:
        self._q_ids = {}

    def on_connected(self, connection: ClientConnection) -> None:
        for uri in self._uris:
            self._open(connection, uri)
        self.call_later(self.random.random() * self._pause, connection, lambda: self._post_repeatedly(connection))

    def _open(self, connection: ClientConnection, uri: str) -> None:
        q_id, self._next_q_id = self._next_q_id, self._next_q_id + 1

        def answered(answer: dict[str, Any]) -> None:
            if "status" in answer:  # the metadata log was full
                self.call_later(RETRY_S, connection, lambda: self._open(connection, uri))
                return
            self._q_ids[uri] = q_id
            unacked = [guid for guid in self._unacked if self.judge.puts[guid].uri == uri]
            for guid in unacked:
                self.judge.on_put_resent(guid)
            self._send(connection, uri, unacked)

        connection.request({"openQueue": {"handleParameters": handle_parameters(uri, q_id, 0, 1, None, 0)}}, answered)

    def _send(self, connection: ClientConnection, uri: str, guids: list[bytes]) -> None:
        while guids:
            batch, guids = guids[:BATCH_MAX], guids[BATCH_MAX:]
            for guid in batch:
                connection.guard.on_put(guid, True)
            connection.end.send(codec.put_frame([self._message(self._q_ids[uri], guid) for guid in batch]))

    def _message(self, q_id: int, guid: bytes) -> bytes:
        put = self.judge.puts[guid]
        return codec.put_message(q_id, guid, put.payload, properties={"n": put.n}, compress=put.number % 7 == 0)

    def _post_repeatedly(self, connection: ClientConnection) -> None:
        if self.draining or self._counter >= POSTS_MAX:
            return
        self.call_later(self._pause * self.random.random() * 2, connection, lambda: self._post_repeatedly(connection))
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
            self.judge.on_put_sent(guid, PostedMessage(uri, payload, self.random.randrange(10), self.name, number))
            self._unacked[guid] = None
            guids.append(guid)
        self._send(connection, uri, guids)

    def _close(self, connection: ClientConnection, uri: str) -> None:
        q_id = self._q_ids.pop(uri)
        for guid in [guid for guid in self._unacked if self.judge.puts[guid].uri == uri]:
            self.judge.on_producer_closed(guid)
            del self._unacked[guid]
        connection.request({"closeQueue": {"handleParameters": handle_parameters(uri, q_id, 0, 1, None, 0),
                                           "isFinal": True}}, lambda answer: self._open(connection, uri))

    def on_ack(self, connection: ClientConnection, guid: bytes, status: int) -> None:
        if guid in self._unacked:
            del self._unacked[guid]
            self.judge.on_ack_received(guid, status)

    @property
    def unanswered(self) -> int:
        """Number of messages without an ACK."""
        return len(self._unacked)


@dataclass
class RequestedSubscription:
    """A subscription as it was requested, with the unconfirmed messages that were delivered under its id."""

    low: int
    high: int  # of property n: low <= n < high
    messages_max: int
    bytes_max: int
    unconfirmed: dict[bytes, int] = field(default_factory=dict)  # GUID -> payload bytes


@dataclass
class ConsumedApp:
    """One app of the consumer's queue, as opened on the current connection."""

    app: str
    sub_id: int
    subscriptions: dict[int, RequestedSubscription] = field(default_factory=dict)
    unconfirmed: dict[bytes, int] = field(default_factory=dict)  # GUID -> subscription id
    last: dict[str, int] = field(default_factory=dict)  # producer -> number of its last message
    confirms: list[bytes] = field(default_factory=list)  # GUIDs that were confirmed on this connection
    open: bool = False


class SimulatedConsumer(SimulatedClient):
    """Reads one queue, for one app or for several on one handle; `slowness`: longest time before a confirm, in seconds."""

    def __init__(self, world: SimulatedWorld, judge: OutsideJudge, random: Random, name: str, uri: str, apps: list[str],
                 slowness: float, splits: bool) -> None:
        super().__init__(world, judge, random, name)
        self._uri, self._apps, self._slowness, self._splits = uri, apps, slowness, splits
        self._streams: dict[str, ConsumedApp] = {}
        self._q_id = 0
        self._next_s_id = 1

    def on_disconnected(self, connection: ClientConnection) -> None:
        for stream in self._streams.values():
            self.judge.on_consumer_closed(self._uri, stream.app, connection)
        self._streams = {}

    def on_connected(self, connection: ClientConnection) -> None:
        self._open_all(connection)
        self.call_later(self.random.random(), connection, lambda: self._act_at_random(connection))

    def _open_all(self, connection: ClientConnection) -> None:
        """Open the queue for all apps, under a new queue id."""
        self._q_id += 1
        for index, app in enumerate(self._apps):
            self._open(connection, self._q_id, ConsumedApp(app, 0 if app == "__default" else index + 1))

    def _parameters(self, q_id: int, stream: ConsumedApp) -> dict[str, Any]:
        app = None if stream.app == "__default" else stream.app
        return handle_parameters(self._uri, q_id, 1, 0, app, stream.sub_id)

    def _open(self, connection: ClientConnection, q_id: int, stream: ConsumedApp) -> None:
        def answered(answer: dict[str, Any]) -> None:
            if "status" in answer:
                self.call_later(RETRY_S, connection, lambda: self._open(connection, q_id, stream))
                return
            stream.open = True
            self._streams[stream.app] = stream
            self._configure(connection, stream)

        connection.request({"openQueue": {"handleParameters": self._parameters(q_id, stream)}}, answered, stream.sub_id)

    def _on_confirms_processed(self, connection: ClientConnection, stream: ConsumedApp, confirmed: list[bytes]) -> None:
        """Report confirms that the broker has processed, because it answered a later request; not if it has died since."""
        if connection.end.other.open:
            self.judge.on_confirms_processed(self._uri, stream.app, confirmed)

    def _configure(self, connection: ClientConnection, stream: ConsumedApp, nothing: bool = False,
                   then: Callable[[], None] = lambda: None) -> None:
        ranges = [] if nothing else [(0, 10)]
        if self._splits and not self.draining and not nothing:
            middle = self.random.randint(1, 9)
            ranges = self.random.choice([[(0, middle)], [(0, middle), (middle, 10)], [(0, 10)]])
        added: dict[int, RequestedSubscription] = {}
        wanted = []
        for low, high in ranges:
            subscription = RequestedSubscription(low, high, self.random.choice((1, 2, 5, 100)),
                                        self.random.choice((1, 2000, 1 << 20)))
            s_id, self._next_s_id = self._next_s_id, self._next_s_id + 1
            added[s_id] = subscription
            text = "" if (low, high) == (0, 10) else f"n >= {low} && n < {high}"
            version = "E_VERSION_1" if text else "E_UNDEFINED"
            wanted.append({"sId": s_id, "expression": {"version": version, "text": text},
                           "consumers": [consumer_info(self.random.choice((0, 0, 0, 1)), 1, subscription.messages_max,
                                                       subscription.bytes_max)]})
        confirmed = list(stream.confirms)

        def answered(answer: dict[str, Any]) -> None:
            assert "configureStreamResponse" in answer, answer
            self._on_confirms_processed(connection, stream, confirmed)
            stream.subscriptions = added
            for s_id, unconfirmed in self._take_over_unconfirmed(stream, added).items():
                added[s_id].unconfirmed.update(unconfirmed)
            then()

        connection.request({"configureStream": {"qId": self._q_id, "streamParameters": {
            "appId": stream.app, "subscriptions": wanted}}}, answered, stream.sub_id)

    def _take_over_unconfirmed(self, stream: ConsumedApp,
                               added: dict[int, RequestedSubscription]) -> dict[int, dict[bytes, int]]:
        """Return the unconfirmed messages of a new subscription: those of the former ones, if there is only one new.

        With several new subscriptions it is unknown which of them a message counts against.
        """
        if len(added) != 1:
            return {}
        s_id = next(iter(added))
        unconfirmed = {guid: len(self.judge.puts[guid].payload) for guid in stream.unconfirmed}
        for guid in stream.unconfirmed:
            stream.unconfirmed[guid] = s_id
        return {s_id: unconfirmed}

    def on_push(self, connection: ClientConnection, push: Push) -> None:
        found = [(stream, s_id) for s_id in push.ids for stream in self._streams.values()
                 if s_id in stream.subscriptions]
        assert len(found) == len(push.ids), f"{self.name}: {push.ids} for {self._streams}"
        for stream, s_id in found:
            self._receive(connection, push, stream, s_id)

    def _receive(self, connection: ClientConnection, push: Push, stream: ConsumedApp, s_id: int) -> None:
        subscription = stream.subscriptions[s_id]
        guid = push.guid
        if stream.open:
            self.judge.on_push_received(self._uri, stream.app, guid, push.payload, connection, push.out_of_order,
                                        stream.last)
            if not subscription.low <= self.judge.puts[guid].n < subscription.high:
                raise Violation("unexpected", f"{self.judge.puts[guid]} against {subscription}")
        if self._uri in self.judge.unstored:
            return
        unconfirmed = sum(subscription.unconfirmed.values())
        if len(subscription.unconfirmed) >= subscription.messages_max or unconfirmed >= subscription.bytes_max:
            raise Violation("credit", f"{self.name}: a message beyond the limits of {subscription}")
        subscription.unconfirmed[guid] = len(push.payload)
        stream.unconfirmed[guid] = s_id
        wait = self.random.random() * (0.002 if self.draining else self._slowness)
        self.call_later(wait, connection, lambda: self._confirm(connection, stream, guid))

    def _confirm(self, connection: ClientConnection, stream: ConsumedApp, guid: bytes) -> None:
        if not stream.open or guid not in stream.unconfirmed:
            return
        confirmed = list(stream.unconfirmed) if self.random.random() < 0.1 else [guid]
        connection.end.send(codec.confirm_frame([(self._q_id, each, stream.sub_id) for each in confirmed]))
        for each in confirmed:
            subscription = stream.subscriptions.get(stream.unconfirmed.pop(each))
            if subscription is not None:
                subscription.unconfirmed.pop(each, None)
            stream.confirms.append(each)
            self.judge.on_confirm_sent(self._uri, stream.app, each, connection)

    def _act_at_random(self, connection: ClientConnection) -> None:
        """Reconfigure, suspend or reopen a stream at random, about every 0.6 s."""
        if self.draining:
            return
        self.call_later(0.1 + self.random.random(), connection, lambda: self._act_at_random(connection))
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
        """Deconfigure and close every stream, the last one with `isFinal`; then open all again."""
        streams = [stream for stream in self._streams.values() if stream.open]
        if len(streams) < len(self._apps):
            return
        for index, stream in enumerate(streams):
            confirmed = list(stream.confirms)
            stream.open = False
            self.judge.on_consumer_closed(self._uri, stream.app, connection)
            self._configure(connection, stream, nothing=True)
            last = index + 1 == len(streams)

            def closed(answer: dict[str, Any], stream: ConsumedApp = stream, confirmed: list[bytes] = confirmed,
                       last: bool = last) -> None:
                assert "closeQueueResponse" in answer, answer
                self._on_confirms_processed(connection, stream, confirmed)
                del self._streams[stream.app]
                if last:
                    self._open_all(connection)

            connection.request({"closeQueue": {"handleParameters": self._parameters(self._q_id, stream),
                                               "isFinal": last}}, closed, stream.sub_id)

    def drain(self) -> None:
        """Receive all messages and confirm them at once."""
        self.draining = True
        connection = self.connection
        if connection is not None:
            for stream in self._streams.values():
                if stream.open:
                    self._configure(connection, stream)
                    for guid in list(stream.unconfirmed):
                        self.call_later(0.001, connection, lambda stream=stream, guid=guid: self._confirm(  # type: ignore[misc]
                            connection, stream, guid))
