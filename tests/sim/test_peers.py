"""Sessions between two brokers of a cluster in the simulated network: events, resets, crashes and pauses.

Tests `bmqtwist/link/peer.py`; connections of members are tested by `test_links.py`.
"""

from __future__ import annotations

from random import Random

import pytest
from kit.client import Closed

from bmqtwist.testing.config import CLUSTER
from bmqtwist.wire.fast import EventType
from sim.cluster import SimulatedCluster
from sim.peers import PeerDouble

QUEUE = "bmq://bmq.test.persistent.priority/q"
KINDS = (EventType.STORAGE, EventType.ELECTOR, EventType.REPLICATION_RECEIPT)
SETTLE_S = 2.0


class Pair:
    """Nodes n1 and n2 with test doubles of their cluster parts; n1 dials n2."""

    def __init__(self, seed: int) -> None:
        self.nodes = SimulatedCluster(seed, 2, {"n2": {"clock_ahead": 500.5}}, alone=True)
        self.random = Random(f"{seed}/pair")
        self.two = PeerDouble(self.nodes.node("n2"))
        self.one = PeerDouble(self.nodes.node("n1"), self.nodes.node("n2").address)
        self.nodes.run(SETTLE_S)

    def send_events(self, count: int) -> tuple[list[tuple[EventType, bytes]], list[tuple[EventType, bytes]]]:
        """Send `count` events in each direction at random times; return those of n1 and of n2."""
        sent: tuple[list[tuple[EventType, bytes]], list[tuple[EventType, bytes]]] = ([], [])
        for number in range(count):
            for double, events in zip((self.one, self.two), sent, strict=True):
                kind, size = self.random.choice(KINDS), self.random.choice((0, 1, 100, 3000))
                body = b"%04d" % number + self.random.randbytes(4 * size)
                double.send(kind, body)
                events.append((kind, body))
            self.nodes.run(self.random.random() * 0.004)
        return sent


@pytest.fixture(params=range(5))
def pair(request: pytest.FixtureRequest) -> Pair:
    """Return two connected nodes."""
    connected = Pair(request.param)
    assert connected.one.dialled == 1 and len(connected.one.peers) == len(connected.two.peers) == 1
    return connected


def test_peers_negotiate_as_members_of_the_cluster(pair: Pair) -> None:
    one, two = pair.one.peers[0].session, pair.two.peers[0].session
    assert (one.remote.identity.cluster_node_id, two.remote.identity.cluster_node_id) == (2, 1)
    assert one.remote.identity.cluster_name == two.remote.identity.cluster_name == CLUSTER
    assert not pair.one.failed


def test_events_arrive_complete_and_in_order_in_both_directions(pair: Pair) -> None:
    first, second = pair.send_events(100)
    pair.nodes.run(SETTLE_S)
    assert pair.two.got == first and pair.one.got == second


def test_after_a_reset_peers_reconnect_without_duplicated_or_truncated_events(pair: Pair) -> None:
    before = pair.send_events(30)
    assert pair.one.end is not None
    pair.one.end.reset()
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 2 and len(pair.one.peers) == len(pair.two.peers) == 1
    for double, sent in zip((pair.two, pair.one), before, strict=True):
        assert double.got == sent[:len(double.got)]
        double.got.clear()
    after = pair.send_events(30)
    pair.nodes.run(SETTLE_S)
    assert (pair.two.got, pair.one.got) == after


@pytest.mark.parametrize("how", ["kill", "power", "stop"])
def test_a_restarted_peer_is_dialled_again(pair: Pair, how: str) -> None:
    node = pair.nodes.node("n2")
    client = pair.nodes.client("n2").open(QUEUE, write=1)
    client.post(b"kept")
    if how == "stop":
        node.stop(down=1.0)
    else:
        node.crash(power=how == "power", down=1.0)
    pair.nodes.run(SETTLE_S)
    assert pair.one.failed > 3, "it dials repeatedly while n2 is down"
    assert pair.one.dialled == 2 and len(pair.two.peers) == 1
    sent = pair.send_events(20)
    pair.nodes.run(SETTLE_S)
    assert (pair.two.got, pair.one.got) == sent
    with pytest.raises(Closed):
        client.client.heartbeat()
    assert pair.nodes.client("n2").consume(QUEUE).next_push().payload == b"kept"


def test_a_restart_of_the_dialling_peer_ends_its_former_session(pair: Pair) -> None:
    pair.nodes.node("n1").crash(power=True, down=1.0)
    pair.nodes.run(0.5)
    assert not pair.two.peers
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 2 and len(pair.two.peers) == 1
    sent = pair.send_events(20)
    pair.nodes.run(SETTLE_S)
    assert (pair.two.got, pair.one.got) == sent


def test_a_silent_power_loss_is_detected_when_the_restarted_peer_rejects_data(pair: Pair) -> None:
    pair.nodes.node("n2").crash(power=True, down=1.0, silently=True)
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 1 and len(pair.one.peers) == 1 and not pair.two.peers, "half-open"
    pair.one.send(EventType.ELECTOR, b"vote")
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 2 and len(pair.one.peers) == len(pair.two.peers) == 1
    assert not pair.two.got, "data for the old connection is lost"


def test_a_link_cut_one_way_carries_events_in_the_other_direction(pair: Pair) -> None:
    pair.nodes.network.cut("n2", "n1", both=False)
    first, second = pair.send_events(20)
    pair.nodes.run(SETTLE_S)
    assert pair.two.got == first and not pair.one.got
    pair.nodes.network.heal("n2", "n1", both=False)
    pair.nodes.run(SETTLE_S)
    assert pair.one.got == second


def test_events_for_a_paused_peer_arrive_after_it_resumes(pair: Pair) -> None:
    pair.nodes.node("n2").pause()
    first, _ = pair.send_events(200)
    pair.nodes.run(SETTLE_S)
    assert not pair.two.got and pair.one.peers
    pair.nodes.node("n2").resume()
    pair.nodes.run(SETTLE_S)
    assert pair.two.got == first


def test_both_peers_serve_clients_while_they_exchange_events(pair: Pair) -> None:
    queues = [pair.nodes.client(name).open(QUEUE, write=1) for name in ("n1", "n2")]
    guids = [[queue.put(b"%d" % number) for number in range(20)] for queue in queues]
    sent = pair.send_events(20)
    for queue, wanted in zip(queues, guids, strict=True):
        assert {queue.next_ack().guid for _ in wanted} == set(wanted)
    pair.nodes.run(SETTLE_S)
    assert (pair.two.got, pair.one.got) == sent


def run_digest(seed: int) -> str:
    """Run two nodes with a reset and a loss of power; return the digest of the trace."""
    pair = Pair(seed)
    pair.send_events(20)
    assert pair.one.end is not None
    pair.one.end.reset()
    pair.send_events(20)
    pair.nodes.run(SETTLE_S)
    pair.nodes.node("n2").crash(power=True)
    pair.send_events(20)
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 3
    return pair.nodes.digest


def test_an_exchange_of_events_is_determined_by_its_seed() -> None:
    first = run_digest(3)
    assert first == run_digest(3) != run_digest(4)
