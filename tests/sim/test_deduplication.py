"""What is posted twice is stored once, what nobody got is new again, and settings that change count from then on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.client import Client

from bmqtwist.errors import AckStatus
from bmqtwist.testing.config import domain_config
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.elected import heal
from sim.replicated import ReplicatingCluster

DOMAIN = "short"
SHORT = f"bmq://{DOMAIN}/q"
WINDOW_S = 60.0
CUT_S = 1.0  # shorter than the lease of a primary


class ShortMemory(ReplicatingCluster):
    """Three nodes with a domain that remembers GUIDs for a minute."""

    def __init__(self, seed: int, strong: bool = True, window_s: float = WINDOW_S, **options: Any) -> None:
        super().__init__(seed, **options)
        self.write(strong, window_s)
        self.settle()

    def write(self, strong: bool, window_s: float = WINDOW_S) -> None:
        """The file of the domain."""
        self.domains.texts[DOMAIN] = json.dumps(domain_config(
            DOMAIN, strong=strong, deduplicationTimeMs=int(window_s * 1000)))

    def reconfigure(self, strong: bool) -> None:
        """While all run."""
        self.write(strong)
        for node in self.machines:
            node.broker.commands.run_at_once(f"DOMAINS RECONFIGURE {DOMAIN}", "test")
            node.turn_due()
        self.run(0.5)

    def alone(self, node: SimulatedNode) -> None:
        """A node is cut off from all others."""
        for other in self.machines:
            if other is not node:
                self.network.cut(node.name, other.name)

    def again(self, guid: bytes, payload: bytes = b"once") -> int:
        """Post a message with this GUID, to whoever is primary: the status of the answer."""
        client, queue = self.writer(SHORT)
        queue.put(payload, guid=guid)
        status = int(queue.next_ack(guid).status)
        self.run(0.5)
        client.disconnect()
        return status

    def copies(self, payload: bytes = b"once") -> set[int]:
        """How many messages with this payload each node has."""
        return {self.stored(node, SHORT).count(payload) for node in self.machines if node.up}


@pytest.mark.spec("cluster", 68)
def test_an_uncommitted_message_is_refused_after_the_deduplication_time_and_stored_when_it_is_posted_again() -> None:
    nodes = ShortMemory(68)
    client, queue = nodes.writer(SHORT)
    guids = [queue.put(b"before")]
    assert queue.next_ack().status == 0
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[SHORT].partition_id)
    replicas = [node for node in nodes.machines if node is not primary]
    for node in replicas:
        node.disk_delay_s = 1e6  # what they get is safe nowhere, though they answer
    guids.append(queue.put(b"once"))
    nodes.run(WINDOW_S - 5.0)
    assert not queue.acks() and nodes.stored(primary, SHORT) == [b"before", b"once"]
    guids.append(queue.put(b"later"))
    nodes.run(10.0)
    [refused] = queue.acks()
    assert refused.guid == guids[1] and refused.status == AckStatus.UNKNOWN
    assert nodes.stored(primary, SHORT) == [b"before", b"later"], "it is removed, and what came later has a time of its own"
    for node in replicas:
        node.crash(power=True, down=0.5)
    nodes.settle()
    assert nodes.copies() == {0}
    [taken] = queue.acks()
    assert taken.guid == guids[2] and taken.status == 0
    assert nodes.again(guids[1]) == 0 and nodes.copies() == {1}
    client.disconnect()
    nodes.judge_partitions()


@pytest.mark.spec("cluster", 70)
def test_a_committed_message_is_deduplicated_across_failover_and_restarts_until_the_deduplication_time() -> None:
    nodes = ShortMemory(70)
    _, queue = nodes.writer(SHORT)
    guid = queue.put(b"once")
    assert queue.next_ack(guid).status == 0
    assert nodes.again(guid) == 0 and nodes.copies() == {1}, "committed"
    index = nodes.cluster("n1").metadata.state.queues[SHORT].partition_id
    reader: Client = nodes.client(nodes.primary(index).name)
    consumer = reader.consume(SHORT)
    consumer.confirm(consumer.next_push())
    nodes.run(0.5)
    reader.disconnect()
    assert nodes.again(guid) == 0 and nodes.copies() == {0}, "confirmed"
    nodes.primary(index).crash(power=False, down=1.0)
    nodes.run(8.0)
    assert nodes.again(guid) == 0 and nodes.copies() == {0}, "after a failover"
    for node in nodes.machines:
        node.stop(down=0.5)
        nodes.run(8.0)
        assert nodes.again(guid) == 0 and nodes.copies() == {0}, "after a restart of one node after the other"
    nodes.run(2 * WINDOW_S)
    assert nodes.again(guid) == 0 and nodes.copies() == {1}, "after that time it is stored again"


@pytest.mark.parametrize("behind", [-7200.0, 7200.0])
@pytest.mark.parametrize("number", range(3))
def test_deduplication_does_not_depend_on_the_wall_clocks_of_nodes(number: int, behind: float) -> None:
    nodes = ShortMemory(71, options={"n1": {"wall_ahead": behind}, "n2": {"wall_ahead": -behind}})
    _, queue = nodes.writer(SHORT)
    guid = queue.put(b"once")
    assert queue.next_ack(guid).status == 0
    index = nodes.cluster("n1").metadata.state.queues[SHORT].partition_id
    consumer = nodes.client(nodes.primary(index).name).consume(SHORT)
    consumer.confirm(consumer.next_push())
    nodes.run(0.5)
    for _ in range(number):
        former = nodes.primary(index)
        former.stop(down=None)
        nodes.run(8.0)
        assert nodes.again(guid) == 0 and nodes.copies() == {0}
        former.jump(0.0, wall=behind)
        former.boot()
        nodes.run(8.0)
    for node in nodes.machines:
        node.stop(down=1.0)
    nodes.settle()
    assert nodes.again(guid) == 0 and nodes.copies() == {0}


@pytest.mark.spec("cluster", 85)
def test_a_changed_consistency_applies_to_later_messages() -> None:
    nodes = ShortMemory(85, strong=False)
    client, queue = nodes.writer(SHORT)
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[SHORT].partition_id)
    consumer = nodes.client(primary.name).consume(SHORT)

    def post_while_alone() -> list[bytes]:
        nodes.alone(primary)
        guid = queue.put(b"alone")
        nodes.run(CUT_S)
        told = [ack.guid for ack in queue.acks()]
        assert (told == [guid]) == bool(told) == bool(consumer.pushes())
        return told
    assert post_while_alone(), "eventual: it is acknowledged and delivered at once"
    nodes.reconfigure(strong=True)
    assert not queue.acks()
    heal(nodes)
    nodes.run(3.0)
    assert not queue.acks() and not consumer.pushes(), "nothing is told twice"
    assert not post_while_alone(), "strong: not before a majority has it"
    heal(nodes)
    assert queue.next_ack().status == 0
    nodes.run(3.0)
    consumer.pushes()
    nodes.reconfigure(strong=False)
    assert post_while_alone(), "eventual again"
    heal(nodes)
    nodes.run(3.0)
    client.disconnect()


@pytest.mark.spec("cluster", 85)
def test_a_changed_replication_factor_applies_to_pending_and_later_messages() -> None:
    nodes = ShortMemory(86)
    _, queue = nodes.writer(SHORT)
    assert queue.post(b"by two") and nodes.again(queue.put(b"by two of three")) == 0
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[SHORT].partition_id)
    away = next(node for node in nodes.machines if node is not primary)
    away.crash(power=False, down=None)
    nodes.run(1.0)
    queue.post(b"two are left")

    def ask_for(number: int) -> None:
        for node in nodes.machines:
            if node.up:
                node.broker.clusters["c3"].set_replication_factor(number)
                node.turn_due()
        nodes.run(0.1)
    queue.acks()
    ask_for(3)
    guid = queue.put(b"by all")
    nodes.run(2.0)
    assert not queue.acks() and primary.up and nodes.replication(primary).hosted
    away.boot()
    nodes.run(15.0)
    assert [ack.guid for ack in queue.acks()] == [guid]
    away.crash(power=False, down=None)
    nodes.run(1.0)
    guid = queue.put(b"by all, later by two")
    nodes.run(1.0)
    assert not queue.acks()
    ask_for(2)
    nodes.run(1.0)
    assert [ack.guid for ack in queue.acks()] == [guid]
    assert queue.post(b"by two again")


@pytest.mark.spec("cluster", 83)
def test_a_full_partition_refuses_puts_until_a_purge() -> None:
    nodes = ShortMemory(83, maxJournalFileSize=1 << 15)
    client, queue = nodes.writer(SHORT)
    index = nodes.cluster("n1").metadata.state.queues[SHORT].partition_id
    primary = nodes.primary(index)
    runs = {node.name: node.run_number for node in nodes.machines}
    statuses: list[int] = []
    for number in range(1000):
        statuses.append(int(queue.status_of(b"%d" % number)))
        if statuses[-1]:
            break
    assert statuses[-1] == AckStatus.STORAGE_FAILURE and len(statuses) > 100
    assert len(nodes.stored(primary, SHORT)) == len(statuses) - 1
    nodes.run(2.0)
    assert any(line.startswith("PANIC [PARTITION_READONLY]") for line in primary.log())
    assert nodes.primary(index) is primary, "another node could not do better"
    primary.broker.commands.run_at_once(f"DOMAINS DOMAIN {DOMAIN} QUEUE q PURGE *", "test")
    primary.turn_due()
    nodes.run(2.0)
    for number in range(5):
        assert queue.status_of(b"after %d" % number) == 0
    nodes.run(2.0)
    assert all(len(nodes.stored(node, SHORT)) == 5 for node in nodes.machines)
    assert {node.name: node.run_number for node in nodes.machines} == runs
    client.disconnect()
    nodes.judge_partitions()
