"""Links with little bandwidth, or with long delays: no primary or leader is lost, and ACKs arrive within a bound."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bmqtwist.cluster.changes import AssignQueue
from bmqtwist.config.sample import ELECTORS, HEARTBEATS
from bmqtwist.testing.config import domain_config
from bmqtwist.testing.network import LOOPBACK
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import STRONG, ReplicatingCluster, available_cluster

SATURATED = 5_000_000  # bytes per second
NARROW = 2_500_000  # 20 Mbit/s
MIB = 1 << 20
ACK_SECONDS_MAX = 2.0  # docs/operations.md, "Several nodes on one machine", has the bound
DOMAIN = "bmq.test.persistent.priority.sc"


def slow_cluster(bytes_per_second: int, seed: int = 1) -> ReplicatingCluster:
    """Return an available cluster of three members with the shortest timeouts, whose links are limited."""
    interval, missed, _ = HEARTBEATS["fast"]
    heartbeats = {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": missed}
    nodes = available_cluster(seed, 3, texts={DOMAIN: json.dumps(domain_config(DOMAIN, strong=True))},
                              members={"elector": ELECTORS["fast"]},
                              app={"heartbeats": heartbeats, "tcp": {"heartbeatIntervalMs": interval}},
                              maxDataFileSize=256 * MIB, maxJournalFileSize=8 * MIB)
    limit_links(nodes, bytes_per_second)
    return nodes


def limit_links(nodes: ReplicatingCluster, bytes_per_second: int) -> None:
    """Limit the bandwidth between all members."""
    for one in nodes.machines:
        for two in nodes.machines:
            if one is not two:
                nodes.network.limit(one.name, two.name, bytes_per_second)


def opened(nodes: ReplicatingCluster, node: SimulatedNode) -> Any:
    """Return the queue, opened for writing by a client of a node."""
    nodes.writer()
    nodes.run(0.5)
    return nodes.client(node.name).open(STRONG, write=1)


def roles(nodes: ReplicatingCluster) -> list[Any]:
    """Return term, leader and leases as each node knows them."""
    return [(nodes.cluster(node.name).leadership.standing, nodes.primaries(), nodes.roles(0), nodes.roles(1))
            for node in nodes.machines]


def standing(nodes: ReplicatingCluster) -> list[Any]:
    """Return roles and lost connections."""
    return [*roles(nodes), *(line for node in nodes.machines for line in node.log()
                             if "is not connected any more" in line or "DEAD_CHANNEL" in line)]


@pytest.mark.parametrize("seed", [1, 2])
def test_saturated_links_lose_no_primary(seed: int) -> None:
    nodes = slow_cluster(SATURATED, seed)
    queues = [opened(nodes, node) for node in nodes.replicas()]
    before, payload, unanswered, answered = standing(nodes), bytes(20_000), [0, 0], [0, 0]
    end = nodes.now + 12.0
    while nodes.now < end:
        for number, queue in enumerate(queues):
            while unanswered[number] < 750:  # 15 MB: 3 s, twice the longest timeout
                queue.put(payload)
                unanswered[number] += 1
        nodes.run(0.1)
        for number, queue in enumerate(queues):
            acks = queue.acks()
            assert all(ack.status == 0 for ack in acks)
            unanswered[number] -= len(acks)
            answered[number] += len(acks)
    assert standing(nodes) == before
    assert min(answered) * len(payload) > 0.3 * SATURATED * 12  # each link has PUTs in one direction, records in the other


def test_a_message_that_takes_longer_than_all_timeouts_loses_no_primary() -> None:
    nodes = slow_cluster(NARROW)
    queue = opened(nodes, nodes.replicas()[0])
    before = standing(nodes)
    size = 6 * NARROW  # four times the longest timeout
    guid = queue.put(bytes(size))
    nodes.run(4.0 * size / NARROW)
    assert standing(nodes) == before
    assert [(ack.guid, ack.status) for ack in queue.acks()] == [(guid, 0)]


@pytest.mark.parametrize(("place", "size"), [("primary", 30_000_000), ("replica", 64 * MIB)])
def test_messages_whose_records_take_long_are_delivered_once_at_a_replica(place: str, size: int) -> None:
    """The PUSH of a message arrives before its record, which the primary sends after the receipt of the record before it."""
    nodes = slow_cluster(NARROW)
    for node in nodes.machines:
        nodes.network.limit(LOOPBACK, node.name, 1 << 30)  # large packets
    at, other = nodes.replicas()
    producer = opened(nodes, nodes.primary(0) if place == "primary" else at)
    consumer = nodes.client(other.name).consume(STRONG, b=1 << 30)
    before = standing(nodes)
    payloads = [bytes([number]) * size for number in range(2)]
    for payload in payloads:
        producer.put(payload)
    nodes.run(5.0 * size / NARROW)
    assert [ack.status for ack in producer.acks()] == [0, 0]
    pushes = consumer.take(2, 1.0)
    assert [push.payload for push in pushes] == payloads and not any(push.out_of_order for push in pushes)
    assert standing(nodes) == before


def test_a_large_snapshot_of_the_metadata_loses_no_leader() -> None:
    """The first record of a term has all metadata: here it takes several times the longest timeout, and is sent once."""
    nodes = available_cluster(1, 3, members={"elector": ELECTORS["fast"]})
    former, app_ids = nodes.leader, tuple(f"{number:0200}" for number in range(60))
    for number in range(300):  # 4 MB, 8 s
        nodes.cluster(former.name).metadata.propose(
            AssignQueue(f"bmq://{DOMAIN}/q{number}", app_ids, number), lambda outcome, wall: None, 1)
        former.request_turn()
        nodes.run(0.02)
    nodes.until(lambda: all(len(nodes.cluster(node.name).metadata.state.queues) == 300 for node in nodes.machines))
    limit_links(nodes, 500_000)
    successor = nodes.replicas()[0]
    assert nodes.cluster(former.name).leadership.transfer(int(successor.name[1:])) == ""
    nodes.run(30.0)
    led = [line for node in nodes.machines for line in node.log() if "ElectorStateChangeCb new state: LEADER" in line]
    assert nodes.leader is successor and len(led) == 2, led
    nodes.judge()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_long_delays_between_all_members_each_put_is_acknowledged_within_2_s(seed: int) -> None:
    """With the shortest timeouts, an idle connection of two replicas may be lost meanwhile: a round trip takes 1.1 s."""
    nodes = slow_cluster(0, seed)
    queues = [opened(nodes, node) for node in nodes.machines]
    before, posted, took = roles(nodes), dict[bytes, float](), list[float]()
    for one in nodes.machines:
        for two in nodes.machines:
            if one is not two:
                nodes.network.slow(one.name, two.name, 0.3, 0.25)
    end = nodes.now + 40.0
    while nodes.now < end or posted:
        for queue in queues if nodes.now < end else ():
            posted[queue.put(b"m")] = nodes.now
        nodes.run(0.1)
        acks = [ack for queue in queues for ack in queue.acks()]
        assert all(ack.status == 0 for ack in acks)
        took += [nodes.now - posted.pop(ack.guid) for ack in acks]
        assert all(nodes.now - at < ACK_SECONDS_MAX for at in posted.values())
    assert max(took) < ACK_SECONDS_MAX and roles(nodes) == before
