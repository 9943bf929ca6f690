"""Two nodes of a cluster in one simulated network, speaking with each other through sessions of brokers."""

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
    """Node n1 dials node n2."""

    def __init__(self, seed: int) -> None:
        self.nodes = SimulatedCluster(seed, 2, {"n2": {"clock_ahead": 500.5}}, alone=True)
        self.random = Random(f"{seed}/pair")
        self.two = PeerDouble(self.nodes.node("n2"))
        self.one = PeerDouble(self.nodes.node("n1"), self.nodes.node("n2").address)
        self.nodes.run(SETTLE_S)

    def say(self, count: int) -> tuple[list[tuple[EventType, bytes]], list[tuple[EventType, bytes]]]:
        """Events in both directions at moments of their own: what the first node was told to send, and the second."""
        said: tuple[list[tuple[EventType, bytes]], list[tuple[EventType, bytes]]] = ([], [])
        for number in range(count):
            for double, events in zip((self.one, self.two), said, strict=True):
                kind, size = self.random.choice(KINDS), self.random.choice((0, 1, 100, 3000))
                body = b"%04d" % number + self.random.randbytes(4 * size)
                double.send(kind, body)
                events.append((kind, body))
            self.nodes.run(self.random.random() * 0.004)
        return said


@pytest.fixture(params=range(5))
def pair(request: pytest.FixtureRequest) -> Pair:
    """Two nodes that have found each other."""
    made = Pair(request.param)
    assert made.one.dialled == 1 and len(made.one.peers) == len(made.two.peers) == 1
    return made


def test_nodes_introduce_themselves_as_members_of_the_cluster(pair: Pair) -> None:
    one, two = pair.one.peers[0].session, pair.two.peers[0].session
    assert (one.remote.identity.cluster_node_id, two.remote.identity.cluster_node_id) == (2, 1)
    assert one.remote.identity.cluster_name == two.remote.identity.cluster_name == CLUSTER
    assert not pair.one.failed


def test_events_go_both_ways_whole_and_in_order(pair: Pair) -> None:
    first, second = pair.say(100)
    pair.nodes.run(SETTLE_S)
    assert pair.two.got == first and pair.one.got == second


def test_after_a_reset_they_find_each_other_again_and_nothing_came_twice_or_torn(pair: Pair) -> None:
    before = pair.say(30)
    assert pair.one.end is not None
    pair.one.end.reset()
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 2 and len(pair.one.peers) == len(pair.two.peers) == 1
    for double, said in zip((pair.two, pair.one), before, strict=True):
        assert double.got == said[:len(double.got)]
        double.got.clear()
    after = pair.say(30)
    pair.nodes.run(SETTLE_S)
    assert (pair.two.got, pair.one.got) == after


@pytest.mark.parametrize("how", ["kill", "power", "stop"])
def test_a_node_that_comes_back_is_dialled_again(pair: Pair, how: str) -> None:
    node = pair.nodes.node("n2")
    client = pair.nodes.client("n2").open(QUEUE, write=1)
    client.post(b"kept")
    if how == "stop":
        node.stop(down=1.0)
    else:
        node.crash(power=how == "power", down=1.0)
    pair.nodes.run(SETTLE_S)
    assert pair.one.failed > 3, "it tried while the other was down"
    assert pair.one.dialled == 2 and len(pair.two.peers) == 1
    said = pair.say(20)
    pair.nodes.run(SETTLE_S)
    assert (pair.two.got, pair.one.got) == said
    with pytest.raises(Closed):
        client.client.heartbeat()
    assert pair.nodes.client("n2").consume(QUEUE).next_push().payload == b"kept"


def test_the_node_that_dials_comes_back_and_the_other_forgets_its_old_session(pair: Pair) -> None:
    pair.nodes.node("n1").crash(power=True, down=1.0)
    pair.nodes.run(0.5)
    assert not pair.two.peers
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 2 and len(pair.two.peers) == 1
    said = pair.say(20)
    pair.nodes.run(SETTLE_S)
    assert (pair.two.got, pair.one.got) == said


def test_a_machine_that_dies_is_missed_when_it_is_back_and_does_not_know_the_session(pair: Pair) -> None:
    pair.nodes.node("n2").crash(power=True, down=1.0, silently=True)
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 1 and len(pair.one.peers) == 1 and not pair.two.peers, "half-open"
    pair.one.send(EventType.ELECTOR, b"vote")
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 2 and len(pair.one.peers) == len(pair.two.peers) == 1
    assert not pair.two.got, "what was said into the old connection is lost"


def test_a_link_that_is_cut_one_way_lets_one_of_them_speak(pair: Pair) -> None:
    pair.nodes.network.cut("n2", "n1", both=False)
    first, second = pair.say(20)
    pair.nodes.run(SETTLE_S)
    assert pair.two.got == first and not pair.one.got
    pair.nodes.network.heal("n2", "n1", both=False)
    pair.nodes.run(SETTLE_S)
    assert pair.one.got == second


def test_a_node_that_is_paused_holds_up_what_the_other_says(pair: Pair) -> None:
    pair.nodes.node("n2").pause()
    first, _ = pair.say(200)
    pair.nodes.run(SETTLE_S)
    assert not pair.two.got and pair.one.peers
    pair.nodes.node("n2").resume()
    pair.nodes.run(SETTLE_S)
    assert pair.two.got == first


def test_clients_are_served_by_both_while_they_speak(pair: Pair) -> None:
    queues = [pair.nodes.client(name).open(QUEUE, write=1) for name in ("n1", "n2")]
    guids = [[queue.put(b"%d" % number) for number in range(20)] for queue in queues]
    said = pair.say(20)
    for queue, wanted in zip(queues, guids, strict=True):
        assert {queue.next_ack().guid for _ in wanted} == set(wanted)
    pair.nodes.run(SETTLE_S)
    assert (pair.two.got, pair.one.got) == said


def story(seed: int) -> str:
    """What becomes of two nodes, a reset and a loss of power."""
    pair = Pair(seed)
    pair.say(20)
    assert pair.one.end is not None
    pair.one.end.reset()
    pair.say(20)
    pair.nodes.run(SETTLE_S)
    pair.nodes.node("n2").crash(power=True)
    pair.say(20)
    pair.nodes.run(SETTLE_S)
    assert pair.one.dialled == 3
    return pair.nodes.digest


def test_the_same_seed_is_the_same_conversation_down_to_the_last_byte() -> None:
    first = story(3)
    assert first == story(3) != story(4)
