"""Peer sessions: two brokers on one connection, with negotiation, events in both directions, and close."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.broker_events import Receipt, encode_receipt
from kit.memory import MemoryWorld

from bmqtwist.errors import Category
from bmqtwist.limits import LINK_WRITE_BYTES
from bmqtwist.link import peer as peer_module
from bmqtwist.link.peer import PeerSession
from bmqtwist.link.session import Session
from bmqtwist.link.states import ConnectionState
from bmqtwist.wire.fast import EventType, event_header
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity, ClientType, Status

NAME = "c"


def identity(node_id: int, features: str = "") -> ClientIdentity:
    return ClientIdentity(protocol_version=1, sdk_version=999999, client_type=ClientType.E_TCPBROKER,
                          process_name=f"node{node_id}", pid=node_id, session_id=1, cluster_name=NAME,
                          cluster_node_id=node_id, features=features)


class FakePeerContext:
    """The peer context of one of the brokers."""

    def __init__(self, node_id: int, features: str = "") -> None:
        self.node_id, self.features = node_id, features
        self.peers: list[PeerSession] = []
        self.greeting = b""  # event for each new peer
        self.got: list[tuple[EventType, int, bytes]] = []
        self.failed: list[Session] = []
        self.answer: Status | None = Status(Category.E_SUCCESS, 0, "")

    def admit(self, session: Session, identity_: ClientIdentity) -> BrokerResponse | None:
        return None if self.answer is None else BrokerResponse(self.answer, 1, 999999, False,
                                                              identity(self.node_id, self.features))

    def on_connected(self, peer: PeerSession) -> None:
        self.peers.append(peer)
        if self.greeting:
            peer.send(self.greeting)

    def on_event(self, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        self.got.append((kind, specific, body))

    def on_disconnected(self, peer: PeerSession) -> None:
        self.peers.remove(peer)

    def on_negotiation_failed(self, session: Session) -> None:
        self.failed.append(session)


class FakeTransport:
    """Transport of one session; `pass_on` delivers its output to the other end."""

    def __init__(self, world: MemoryWorld) -> None:
        self.world = world
        self.session: Session | None = None
        self.other: FakeTransport
        self.waiting: list[bytes] = []
        self.untaken = 0  # bytes of output that the transport reports as unsent
        self.reads = True
        self.ended = False

    def write(self, data: bytes) -> int:
        self.waiting.append(data)
        return self.untaken

    def close(self) -> None:
        self.ended = True

    def lose(self) -> None:
        for each in (self, self.other):
            session, each.session = each.session, None
            if session is not None:
                session.on_lost(each.world.now, each.world.broker.loop.wall(each.world.now))
                each.world.turn_requested = True

    def set_reading(self, wanted: bool) -> None:
        self.reads = wanted


class BrokerPair:
    """Two brokers; node 1 connects to node 2."""

    def __init__(self, root: Path, known: bool = True, features: str = "") -> None:
        self.worlds = [MemoryWorld(root / "1"), MemoryWorld(root / "2")]
        self.contexts = [FakePeerContext(1, features), FakePeerContext(2, features)]
        if known:
            self.worlds[1].broker.sessions.peers[NAME] = self.contexts[1]
        self.wires = [FakeTransport(world) for world in self.worlds]
        self.wires[0].other, self.wires[1].other = self.wires[1], self.wires[0]

    def connect(self) -> None:
        dialling, listening = (world.broker.sessions for world in self.worlds)
        made = dialling.add_dialled("2:30114", identity(1, self.contexts[0].features), self.contexts[0], self.worlds[0].now)
        for wire, session in zip(self.wires, (made, listening.add_accepted("1:40000", self.worlds[1].now)), strict=True):
            wire.session, session.transport, wire.world.turn_requested = session, wire, True
        self.pass_on()

    def pass_on(self) -> None:
        """Run both brokers until no output is pending."""
        moved = True
        for world in self.worlds:
            world.turn_requested = True
        while moved:
            moved = False
            for wire, world in zip(self.wires, self.worlds, strict=True):
                world.run()
                data, wire.waiting = b"".join(wire.waiting), []
                there = wire.other
                if data and there.session is not None:
                    there.session.receive(data, there.world.now, there.world.broker.loop.wall(there.world.now))
                    there.world.turn_requested = moved = True
                if wire.ended and wire.session is not None:
                    wire.lose()
                    moved = True


@pytest.fixture
def pair(tmp_path: Path) -> BrokerPair:
    made = BrokerPair(tmp_path)
    made.connect()
    return made


def test_two_brokers_negotiate_and_exchange_identities(pair: BrokerPair) -> None:
    one, two = pair.contexts[0].peers[0], pair.contexts[1].peers[0]
    assert (one.dialled, two.dialled) == (True, False)
    assert (one.session.remote.identity.cluster_node_id, two.session.remote.identity.cluster_node_id) == (2, 1)
    assert (one.session.description, two.session.description) == ("node2:2", "node1:1")
    assert one.session.channel.negotiated_at is not None and two.session.channel.negotiated_at is not None


def test_complete_events_are_received_in_both_directions_in_order(pair: BrokerPair) -> None:
    one, two = pair.contexts[0].peers[0], pair.contexts[1].peers[0]
    receipt = encode_receipt(Receipt(1, 2, 3))
    one.send(receipt)
    one.send(event_header(EventType.ELECTOR, 4, 0x20) + b"vote")
    two.send(event_header(EventType.STORAGE, 8) + b"recorded")
    pair.pass_on()
    assert pair.contexts[1].got == [(EventType.REPLICATION_RECEIPT, 0, receipt[8:]), (EventType.ELECTOR, 0x20, b"vote")]
    assert pair.contexts[0].got == [(EventType.STORAGE, 0, b"recorded")]


def test_events_of_one_turn_are_sent_in_one_write(pair: BrokerPair) -> None:
    for _ in range(3):
        pair.contexts[0].peers[0].send(event_header(EventType.ELECTOR, 4) + b"vote")
    pair.worlds[0].turn_requested = True
    pair.worlds[0].run()
    assert len(pair.wires[0].waiting) == 1
    pair.pass_on()
    assert len(pair.contexts[1].got) == 3


CONTROL_FIRST = "BMQTWIST_RELAY:CONTROL_FIRST"


def test_control_events_overtake_data_that_waits_for_the_peer(tmp_path: Path) -> None:
    pair = BrokerPair(tmp_path, features=CONTROL_FIRST)
    pair.connect()
    one, wire, world = pair.contexts[0].peers[0], pair.wires[0], pair.worlds[0]
    data = event_header(EventType.STORAGE, 3 << 20) + bytes(3 << 20)
    wire.untaken = 1
    one.send(data)
    one.send(event_header(EventType.ELECTOR, 4) + b"vote")
    world.turn_requested = True
    world.run()
    assert sum(map(len, wire.waiting)) < LINK_WRITE_BYTES + 100
    one.send(event_header(EventType.ELECTOR, 4) + b"beat")
    pair.pass_on()
    assert [body for _, _, body in pair.contexts[1].got] == [b"vote", b"beat"]
    assert pair.contexts[1].peers[0].data_received_at == pair.worlds[1].now
    one.session.kind.on_drained()
    pair.pass_on()
    assert len(pair.contexts[1].got) == 2
    wire.untaken = 0
    one.session.kind.on_drained()
    pair.pass_on()
    assert pair.contexts[1].got[2:] == [(EventType.STORAGE, 0, data[8:])]


def test_control_events_do_not_overtake_the_response_of_the_negotiation(tmp_path: Path) -> None:
    pair = BrokerPair(tmp_path, features=CONTROL_FIRST)
    for context in pair.contexts:
        context.greeting = event_header(EventType.ELECTOR, 4) + b"beat"
    pair.connect()
    assert [context.got for context in pair.contexts] == 2 * [[(EventType.ELECTOR, 0, b"beat")]]


def test_a_peer_that_has_not_announced_it_receives_no_fragments(pair: BrokerPair) -> None:
    data = event_header(EventType.STORAGE, 3 << 20) + bytes(3 << 20)
    pair.contexts[0].peers[0].send(data)
    pair.worlds[0].turn_requested = True
    pair.worlds[0].run()
    assert pair.wires[0].waiting == [data]


def test_all_data_is_written_before_the_connection_is_closed(tmp_path: Path) -> None:
    pair = BrokerPair(tmp_path, features=CONTROL_FIRST)
    pair.connect()
    data = event_header(EventType.STORAGE, 3 << 20) + bytes(3 << 20)
    pair.wires[0].untaken = 1
    pair.contexts[0].peers[0].send(data)
    pair.contexts[0].peers[0].session.close("enough")
    pair.pass_on()
    assert pair.contexts[1].got == [(EventType.STORAGE, 0, data[8:])]


def test_a_malformed_fragment_closes_the_connection_with_a_log_line(pair: BrokerPair) -> None:
    inner = event_header(EventType.FRAGMENT, 0)
    pair.contexts[0].peers[0].send(event_header(EventType.FRAGMENT, len(inner)) + inner)
    pair.pass_on()
    assert not pair.contexts[1].peers
    assert pair.worlds[1].logged("#TCP_READ_ERROR node1:1: FRAGMENT event within a fragment")


def test_a_close_disconnects_both_sides_once(pair: BrokerPair) -> None:
    one, two = pair.contexts[0].peers[0], pair.contexts[1].peers[0]
    one.session.close("enough")
    pair.pass_on()
    assert pair.contexts[0].peers == pair.contexts[1].peers == []
    assert one.session.state is two.session.state is ConnectionState.CLOSED
    assert one.session not in pair.worlds[0].broker.sessions.open and two.session not in pair.worlds[1].broker.sessions.open
    two.send(event_header(EventType.ELECTOR, 4) + b"vote")
    assert not two.session.take_output() and not pair.contexts[0].failed


def test_a_broker_of_an_unknown_cluster_is_refused_with_a_log_line(tmp_path: Path) -> None:
    pair = BrokerPair(tmp_path, known=False)
    pair.connect()
    assert pair.worlds[1].logged("#CONNECTION_UNEXPECTED node1:1: a broker of cluster 'c', which has no other members here")
    assert len(pair.contexts[0].failed) == 1 and not pair.contexts[0].peers


def test_a_refused_broker_logs_the_reason_of_the_refusal(tmp_path: Path) -> None:
    pair = BrokerPair(tmp_path)
    pair.contexts[1].answer = Status(Category.E_REFUSED, -1, "a second connection of node 1")
    pair.connect()
    assert pair.worlds[0].logged("#SESSION_NEGOTIATION node2:2: a second connection of node 1")
    assert len(pair.contexts[0].failed) == 1 and pair.contexts[0].peers == pair.contexts[1].peers == []


def test_a_broker_refused_without_a_status_is_closed_without_a_response(tmp_path: Path) -> None:
    pair = BrokerPair(tmp_path)
    pair.contexts[1].answer = None
    pair.connect()
    assert len(pair.contexts[0].failed) == 1 and pair.worlds[1].logged("#SESSION_NEGOTIATION node1:1: refused")


def test_a_broker_that_does_not_read_is_read_from_and_closed_above_the_output_limit(pair: BrokerPair,
                                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module.PeerSession, "output_bytes_max", 1000)
    one = pair.contexts[0].peers[0]
    for untaken, stays_connected in ((1000, True), (1001, False)):
        pair.wires[0].untaken = untaken
        one.send(event_header(EventType.ELECTOR, 4) + b"vote")
        pair.worlds[0].turn_requested = True
        pair.worlds[0].run()
        assert pair.wires[0].reads and (one in pair.contexts[0].peers) is stays_connected
    assert pair.worlds[0].logged("#PEER_SEND_FAILURE node2:2: the broker does not read: 1001 unsent bytes (limit: 1000)")


def test_a_dialled_broker_without_response_is_closed_after_10_seconds(tmp_path: Path) -> None:
    pair = BrokerPair(tmp_path)
    pair.wires[1].write = lambda data: 0  # type: ignore[method-assign]
    pair.connect()
    pair.worlds[0].advance(9.0)
    pair.pass_on()
    assert not pair.contexts[0].failed
    pair.worlds[0].advance(2.0)
    pair.pass_on()
    assert len(pair.contexts[0].failed) == 1 and pair.worlds[0].logged("no brokerResponse within 10 s")
