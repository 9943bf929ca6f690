"""Clients at any node of a cluster: what they post and consume, and what they see when primaries move."""

from __future__ import annotations

from typing import Any

import pytest
from kit.client import Client, payloads

from bmqtwist.testing.simulated_node import SimulatedNode
from sim.elected import heal
from sim.replicated import EVENTUAL, FANOUT, STRONG, ReplicatingCluster

BROADCAST = "bmq://bmq.test.mem.broadcast/b"
IN_MEMORY = "bmq://bmq.test.mem.priority/q"


class Members(ReplicatingCluster):
    """Three members that have settled."""

    def __init__(self, seed: int = 1, count: int = 3, **options: Any) -> None:
        super().__init__(seed, count, **options)
        self.settle()

    def replicas(self, index: int = 0) -> list[SimulatedNode]:
        """Nodes that are up and not primary."""
        primary = self.primary(index)
        return [node for node in self.machines if node.up and node is not primary]

    def relayed(self, node: SimulatedNode) -> dict[str, Any]:
        """The queues that a node relays."""
        relays = self.cluster(node.name).relays
        assert relays is not None
        return relays.queues


def quiet(*clients: Client) -> None:
    """Nothing has happened to their sessions."""
    for client in clients:
        assert not client.link.closed


@pytest.mark.spec("cluster", 93)
@pytest.mark.spec("cluster", 94)
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL, IN_MEMORY])
def test_messages_go_from_any_member_to_any_member(uri: str) -> None:
    nodes = Members()
    primary, (one, two) = nodes.primary(), nodes.replicas()
    for source, sink in ((one, two), (one, one), (primary, one), (two, primary)):
        writer, reader = nodes.client(source.name), nodes.client(sink.name)
        queue, consumer = writer.open(uri, write=1), reader.consume(uri)
        guids = [queue.post(b"message %d" % number) for number in range(10)]
        got = consumer.take(10)
        assert [each.guid for each in got] == guids and payloads(got) == [b"message %d" % number for number in range(10)]
        consumer.confirm(*got)
        nodes.run(1.0)
        writer.disconnect()
        reader.disconnect()
        nodes.run(1.0)
        assert not any(nodes.relayed(node) for node in nodes.machines)
        if uri is not IN_MEMORY:
            assert all(nodes.stored(node, uri) == [] for node in nodes.machines)


@pytest.mark.spec("cluster", 94)
def test_apps_of_a_fanout_queue_are_served_at_different_members() -> None:
    nodes = Members()
    readers = {app: nodes.client(node.name).consume(FANOUT, app)
               for app, node in zip(("foo", "bar", "baz"), nodes.machines, strict=True)}
    for node in nodes.machines:
        queue = nodes.client(node.name).open(FANOUT, write=1)
        guids = [queue.post(b"%d" % number) for number in range(5)]
        for reader in readers.values():
            got = reader.take(5)
            assert [each.guid for each in got] == guids
            reader.confirm(*got)
    nodes.run(1.0)
    assert all(nodes.stored(node, FANOUT) == [] for node in nodes.machines)


@pytest.mark.spec("cluster", 93)
@pytest.mark.spec("cluster", 94)
def test_broadcast_reaches_clients_of_all_members_once() -> None:
    nodes = Members()
    readers = [nodes.client(node.name).consume(BROADCAST) for node in nodes.machines]
    for node in nodes.machines:
        nodes.client(node.name).open(BROADCAST, write=1).post_all(b"1", b"2")
    nodes.run(1.0)
    assert [payloads(reader.pushes()) for reader in readers] == [[b"1", b"2"] * 3] * 3


@pytest.mark.spec("cluster", 3)
@pytest.mark.spec("cluster", 102)
@pytest.mark.parametrize("how", ["kill", "power", "stop"])
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL])
def test_clients_at_surviving_members_see_nothing_when_the_primary_dies(uri: str, how: str) -> None:
    nodes = Members(2)
    one, two = nodes.replicas()
    queues = [nodes.client(node.name).open(uri, write=1) for node in (one, two)]
    consumers = [nodes.client(node.name).consume(uri, m=5) for node in (one, two)]
    posted: dict[bytes, bytes] = {}

    def post(count: int) -> None:
        for queue in queues:
            for _ in range(count):
                payload = b"message %d" % len(posted)
                posted[queue.put(payload)] = payload
    post(10)
    nodes.run(0.5)
    held = [consumer.pushes() for consumer in consumers]
    assert [len(each) for each in held] == [5, 5]
    post(3)
    former = nodes.primary()
    if how == "stop":
        former.stop(down=None)
    else:
        former.crash(power=how == "power", down=None)
    nodes.run(0.2)
    post(3)
    for consumer, messages in zip(consumers, held, strict=True):
        consumer.confirm(*messages[:3])
    nodes.run(10.0)
    assert nodes.primary() in (one, two)
    got: list[list[bytes]] = [[], []]
    for _ in range(40):
        for consumer, mine in zip(consumers, got, strict=True):
            found = consumer.pushes()
            mine += payloads(found)
            consumer.confirm(*found)
        for consumer, messages in zip(consumers, held, strict=True):
            consumer.confirm(*messages[3:])
        nodes.run(0.2)
    acks = [ack for queue in queues for ack in queue.acks()]
    assert sorted(ack.guid for ack in acks) == sorted(posted) and not any(ack.status for ack in acks)
    assert {payload for mine in (*map(payloads, held), *got) for payload in mine} == set(posted.values())
    for messages, mine in zip(held, got, strict=True):
        assert not set(payloads(messages)) & set(mine), "what a consumer still held, or had confirmed, was given to it again"
    nodes.run(1.0)
    assert nodes.stored(one, uri) == nodes.stored(two, uri) == []
    quiet(*(each.client for each in (*queues, *consumers)))
    former.boot()
    nodes.settle()
    nodes.judge_partitions()
    quiet(*(each.client for each in (*queues, *consumers)))


def test_a_primary_that_is_cut_off_keeps_its_clients_and_their_messages() -> None:
    nodes = Members(3)
    former = nodes.primary()
    writer, reader = nodes.client(former.name), nodes.client(former.name)
    queue, consumer = writer.open(STRONG, write=1), reader.consume(STRONG)
    guids = [queue.post(b"before")]
    held = consumer.take(1)
    for node in nodes.machines:
        if node is not former:
            nodes.network.cut(former.name, node.name)
    guids += [queue.put(b"during %d" % number) for number in range(5)]
    nodes.run(15.0)
    assert not nodes.replication(former).serves(0) and not queue.acks() and not consumer.pushes()
    guids.append(queue.put(b"after"))
    consumer.confirm(*held)
    heal(nodes)
    nodes.settle()
    assert nodes.primary() is not former
    assert [ack.guid for ack in queue.acks()] == guids[1:]
    got = consumer.pushes()
    assert [each.guid for each in got] == guids[1:]
    consumer.confirm(*got)
    nodes.run(1.0)
    assert all(nodes.stored(node) == [] for node in nodes.machines)
    quiet(writer, reader)
    nodes.judge_partitions()
