"""`ackCopies` of a domain: the number of nodes that must have a message before its ACK.

Tests `Copies` in `bmqtwist/storage/gate.py`; commits by majority are tested by `test_replicated.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.client import Queue

from bmqtwist.errors import AckStatus
from bmqtwist.testing.config import domain_config
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import ReplicatingCluster

DELAYS_S = [0.3, 0.6, 0.9, 1.2]  # delay from each replica to the primary
WORDS = ["none", "one", "majority", "all"]


def uri(word: str) -> str:
    """Return the queue of the domain with this `ackCopies`."""
    return f"bmq://{word}.copies/q"


def cluster(seed: int, count: int = 5, **parameters: Any) -> ReplicatingCluster:
    """Return a cluster with a domain for each value of `ackCopies`."""
    nodes = ReplicatingCluster(seed, count)
    for word in WORDS:
        nodes.domains.texts[f"{word}.copies"] = json.dumps(domain_config(
            f"{word}.copies", strong=word in ("majority", "all"), ackCopies=word, **parameters))
    nodes.run_until_stable()
    for word in WORDS:
        nodes.writer(uri(word))
    nodes.run(2.0)
    return nodes


def replicas(nodes: ReplicatingCluster) -> list[SimulatedNode]:
    """Return all members but the primary."""
    primary = nodes.primary()
    return [node for node in nodes.machines if node is not primary]


def seconds_to_ack(nodes: ReplicatingCluster, queue: Queue) -> float:
    """Return the seconds from a PUT to its ACK."""
    begun, guid = nodes.now, queue.put(b"x")
    assert queue.next_ack(guid).status == 0
    return nodes.now - begun


@pytest.mark.spec("cluster", 122)
@pytest.mark.parametrize("word, least", [
    ("none", 0.0), ("one", DELAYS_S[0]), ("majority", DELAYS_S[1]), ("all", DELAYS_S[3])])
def test_an_ack_is_sent_when_the_configured_number_of_nodes_has_the_message(word: str, least: float) -> None:
    nodes = cluster(6)
    _, queue = nodes.writer(uri(word))
    primary = nodes.primary()
    for node, delay in zip(replicas(nodes), DELAYS_S, strict=True):
        nodes.network.slow(node.name, primary.name, delay)
    nodes.run(3.0)
    for _ in range(3):
        took = seconds_to_ack(nodes, queue)
        assert least <= took < least + 0.29, (word, took)


@pytest.mark.spec("cluster", 122)
def test_ack_copies_all_waits_for_all_connected_nodes_and_at_least_a_quorum() -> None:
    nodes = cluster(2, deduplicationTimeMs=20_000)
    _, queue = nodes.writer(uri("all"))
    others = replicas(nodes)
    others[0].crash(power=False, down=None)
    assert seconds_to_ack(nodes, queue) < 0.5, "its connection is closed"
    others[1].pause()
    guid = queue.put(b"x")
    nodes.run(1.0)
    assert not queue.acks(), "the pause is not detected yet"
    assert queue.next_ack(guid).status == 0 and nodes.now, "the silent node is disconnected"
    others[2].crash(power=False, down=None)  # two of five run
    guid = queue.put(b"x")
    nodes.run(15.0)
    assert not queue.acks()
    others[0].boot()
    others[1].resume()
    assert queue.next_ack(guid).status == 0
    nodes.run_until_stable()
    _, queue = nodes.writer(uri("all"))
    assert seconds_to_ack(nodes, queue) < 1.0


@pytest.mark.parametrize("word, status", [("none", 0), ("one", AckStatus.UNKNOWN), ("all", AckStatus.UNKNOWN)])
def test_a_message_with_too_few_copies_is_refused_after_the_deduplication_time(word: str, status: int) -> None:
    nodes = cluster(3, 3, deduplicationTimeMs=1000)
    _, queue = nodes.writer(uri(word))
    primary = nodes.primary()
    for node in replicas(nodes):
        nodes.network.slow(node.name, primary.name, 2.1)  # a lease lasts 2.25 s
    guid = queue.put(b"x")
    assert queue.next_ack(guid).status == status
    assert nodes.replication(primary).is_active_primary(0)
