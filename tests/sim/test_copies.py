"""How many nodes must have a message before it is acknowledged: as the domain says, for `all` never fewer than a quorum."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.client import Queue

from bmqtwist.errors import AckStatus
from bmqtwist.testing.config import domain_config
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import ReplicatingCluster

DELAYS_S = [0.3, 0.6, 0.9, 1.2]  # of what each of the replicas says to the primary
WORDS = ["none", "one", "majority", "all"]


def uri(word: str) -> str:
    return f"bmq://{word}.copies/q"


def cluster(seed: int, count: int = 5, **parameters: Any) -> ReplicatingCluster:
    nodes = ReplicatingCluster(seed, count)
    for word in WORDS:
        nodes.domains.texts[f"{word}.copies"] = json.dumps(domain_config(
            f"{word}.copies", strong=word in ("majority", "all"), ackCopies=word, **parameters))
    nodes.settle()
    for word in WORDS:
        nodes.writer(uri(word))
    nodes.run(2.0)
    return nodes


def replicas(nodes: ReplicatingCluster) -> list[SimulatedNode]:
    primary = nodes.primary()
    return [node for node in nodes.machines if node is not primary]


def acknowledged_after(nodes: ReplicatingCluster, queue: Queue) -> float:
    """Seconds from a post to its acknowledgement."""
    begun, guid = nodes.now, queue.put(b"x")
    assert queue.next_ack(guid).status == 0
    return nodes.now - begun


@pytest.mark.spec("cluster", 122)
@pytest.mark.parametrize("word, least", [
    ("none", 0.0), ("one", DELAYS_S[0]), ("majority", DELAYS_S[1]), ("all", DELAYS_S[3])])
def test_an_ack_comes_when_so_many_nodes_have_the_message(word: str, least: float) -> None:
    nodes = cluster(1)
    _, queue = nodes.writer(uri(word))
    primary = nodes.primary()
    for node, delay in zip(replicas(nodes), DELAYS_S, strict=True):
        nodes.network.slow(node.name, primary.name, delay)
    nodes.run(3.0)
    for _ in range(3):
        took = acknowledged_after(nodes, queue)
        assert least <= took < least + 0.29, (word, took)


@pytest.mark.spec("cluster", 122)
def test_all_waits_for_nobody_who_is_dead_and_takes_no_fewer_than_a_quorum() -> None:
    nodes = cluster(2, deduplicationTimeMs=20_000)
    _, queue = nodes.writer(uri("all"))
    others = replicas(nodes)
    others[0].crash(power=False, down=None)
    assert acknowledged_after(nodes, queue) < 0.5, "its connection is gone"
    others[1].pause()
    guid = queue.put(b"x")
    nodes.run(1.0)
    assert not queue.acks(), "nobody knows yet that it does not live"
    assert queue.next_ack(guid).status == 0 and nodes.now, "it was silent for too long"
    others[2].crash(power=False, down=None)  # three of five are gone
    guid = queue.put(b"x")
    nodes.run(15.0)
    assert not queue.acks()
    others[0].boot()
    others[1].resume()
    assert queue.next_ack(guid).status == 0
    nodes.settle()
    _, queue = nodes.writer(uri("all"))
    assert acknowledged_after(nodes, queue) < 1.0


@pytest.mark.parametrize("word, status", [("none", 0), ("one", AckStatus.UNKNOWN), ("all", AckStatus.UNKNOWN)])
def test_what_too_few_have_had_for_the_deduplication_time_is_refused(word: str, status: int) -> None:
    nodes = cluster(3, 3, deduplicationTimeMs=1000)
    _, queue = nodes.writer(uri(word))
    primary = nodes.primary()
    for node in replicas(nodes):
        nodes.network.slow(node.name, primary.name, 2.1)  # a lease lasts 2.25 s
    guid = queue.put(b"x")
    assert queue.next_ack(guid).status == status
    assert nodes.replication(primary).is_active_primary(0)
