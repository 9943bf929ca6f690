"""Links with little bandwidth: control messages are not delayed by data, and no primary or leader is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bmqtwist.config.sample import ELECTORS, HEARTBEATS
from bmqtwist.testing.config import domain_config
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import STRONG, ReplicatingCluster, available_cluster

SATURATED = 5_000_000  # bytes per second
NARROW = 2_500_000  # 20 Mbit/s
MIB = 1 << 20
DOMAIN = "bmq.test.persistent.priority.sc"


def slow_cluster(bytes_per_second: int, seed: int = 1) -> ReplicatingCluster:
    """Return an available cluster of three members with the shortest timeouts, whose links are limited."""
    interval, missed, _ = HEARTBEATS["fast"]
    heartbeats = {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": missed}
    nodes = available_cluster(seed, 3, texts={DOMAIN: json.dumps(domain_config(DOMAIN, strong=True))},
                              members={"elector": ELECTORS["fast"]},
                              app={"heartbeats": heartbeats, "tcp": {"heartbeatIntervalMs": interval}},
                              maxDataFileSize=256 * MIB, maxJournalFileSize=8 * MIB)
    for one in nodes.machines:
        for two in nodes.machines:
            if one is not two:
                nodes.network.limit(one.name, two.name, bytes_per_second)
    return nodes


def opened(nodes: ReplicatingCluster, node: SimulatedNode) -> Any:
    """Return the queue, opened for writing by a client of a node."""
    nodes.writer()
    nodes.run(0.5)
    return nodes.client(node.name).open(STRONG, write=1)


def standing(nodes: ReplicatingCluster) -> list[Any]:
    """Return term, leader and leases as each node knows them, and the lost connections."""
    return [(nodes.cluster(node.name).leadership.standing, nodes.primaries(), nodes.roles(0), nodes.roles(1),
             [line for line in node.log() if "is not connected any more" in line or "DEAD_CHANNEL" in line])
            for node in nodes.machines]


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
