"""Deduplication of PUTs across failovers, and changes of consistency and replication factor.

Tests `bmqtwist/storage/history.py` in a cluster.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.client import Client

from bmqtwist.errors import AckStatus
from bmqtwist.testing.config import domain_config
from sim.elected import heal
from sim.replicated import ReplicatingCluster

DOMAIN = "short"
SHORT = f"bmq://{DOMAIN}/q"
WINDOW_S = 60.0
CUT_S = 1.0  # shorter than the lease of a primary


class ShortWindowCluster(ReplicatingCluster):
    """Three members with a domain whose deduplication time is `window_s`."""

    def __init__(self, seed: int, strong: bool = True, window_s: float = WINDOW_S, **options: Any) -> None:
        super().__init__(seed, **options)
        self.write_domain(strong, window_s)
        self.run_until_stable()

    def write_domain(self, strong: bool, window_s: float = WINDOW_S) -> None:
        """Write the configuration file of the domain."""
        self.domains.texts[DOMAIN] = json.dumps(domain_config(
            DOMAIN, strong=strong, deduplicationTimeMs=int(window_s * 1000)))

    def reconfigure(self, strong: bool) -> None:
        """Change the consistency of the domain at all members."""
        self.write_domain(strong)
        for node in self.machines:
            node.broker.commands.run_at_once(f"DOMAINS RECONFIGURE {DOMAIN}", "test")
            node.request_turn()
        self.run(0.5)

    def put_again(self, guid: bytes, payload: bytes = b"once") -> int:
        """Send a PUT with this GUID to the current primary and return the status of its ACK."""
        client, queue = self.writer(SHORT)
        queue.put(payload, guid=guid)
        status = int(queue.next_ack(guid).status)
        self.run(0.5)
        client.disconnect()
        return status

    def guids(self) -> set[int]:
        """Return the numbers of GUIDs for deduplication at the running members."""
        record = self.record(SHORT)
        return {len(self.cluster(node.name).partitions[record.partition_id].state.queues[record.key].history)
                for node in self.machines if node.up}

    def copies(self, payload: bytes = b"once") -> set[int]:
        """Return the numbers of messages with this payload at the running members."""
        return {self.stored(node, SHORT).count(payload) for node in self.machines if node.up}


@pytest.mark.spec("cluster", 68)
def test_an_uncommitted_message_is_refused_after_the_deduplication_time_and_stored_when_it_is_posted_again() -> None:
    nodes = ShortWindowCluster(68)
    client, queue = nodes.writer(SHORT)
    guids = [queue.put(b"before")]
    assert queue.next_ack().status == 0
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[SHORT].partition_id)
    replicas = [node for node in nodes.machines if node is not primary]
    for node in replicas:
        node.disk_delay_s = 1e6  # their copies do not become durable
    guids.append(queue.put(b"once"))
    nodes.run(WINDOW_S - 5.0)
    assert not queue.acks() and nodes.stored(primary, SHORT) == [b"before", b"once"]
    guids.append(queue.put(b"later"))
    nodes.run(10.0)
    [refused] = queue.acks()
    assert refused.guid == guids[1] and refused.status == AckStatus.UNKNOWN
    assert nodes.stored(primary, SHORT) == [b"before", b"later"], "the later message has its own time"
    for node in replicas:
        node.crash(power=True, down=0.5)
    nodes.run_until_stable()
    assert nodes.copies() == {0}
    [taken] = queue.acks()
    assert taken.guid == guids[2] and taken.status == 0
    assert nodes.put_again(guids[1]) == 0 and nodes.copies() == {1}
    client.disconnect()
    nodes.judge_partitions()


@pytest.mark.spec("cluster", 70)
def test_a_committed_message_is_deduplicated_across_failover_and_restarts_until_the_deduplication_time() -> None:
    nodes = ShortWindowCluster(70)
    _, queue = nodes.writer(SHORT)
    guid = queue.put(b"once")
    assert queue.next_ack(guid).status == 0
    assert nodes.put_again(guid) == 0 and nodes.copies() == {1}, "committed"
    index = nodes.cluster("n1").metadata.state.queues[SHORT].partition_id
    reader: Client = nodes.client(nodes.primary(index).name)
    consumer = reader.consume(SHORT)
    consumer.confirm(consumer.next_push())
    nodes.run(0.5)
    reader.disconnect()
    assert nodes.put_again(guid) == 0 and nodes.copies() == {0}, "confirmed"
    nodes.primary(index).crash(power=False, down=1.0)
    nodes.run(8.0)
    assert nodes.put_again(guid) == 0 and nodes.copies() == {0}, "after a failover"
    for node in nodes.machines:
        node.stop(down=0.5)
        nodes.run(8.0)
        assert nodes.put_again(guid) == 0 and nodes.copies() == {0}, "after a restart of one node after the other"
    nodes.run(2 * WINDOW_S)
    assert nodes.put_again(guid) == 0 and nodes.copies() == {1}, "after that time it is stored again"


def test_every_member_drops_guids_after_the_deduplication_time_also_of_idle_queues_without_clients_there() -> None:
    nodes = ShortWindowCluster(73)
    client, queue = nodes.writer(SHORT)
    for _ in range(3):
        assert queue.next_ack(queue.put(b"message")).status == 0
    client.disconnect()
    nodes.run(WINDOW_S / 2)
    assert nodes.guids() == {3}, "at all members"
    nodes.run(2 * WINDOW_S)
    assert nodes.guids() == {0}


@pytest.mark.parametrize("behind", [-7200.0, 7200.0])
@pytest.mark.parametrize("number", range(3))
def test_deduplication_does_not_depend_on_the_wall_clocks_of_nodes(number: int, behind: float) -> None:
    nodes = ShortWindowCluster(71, options={"n1": {"wall_ahead": behind}, "n2": {"wall_ahead": -behind}})
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
        assert nodes.put_again(guid) == 0 and nodes.copies() == {0}
        former.jump(0.0, wall=behind)
        former.boot()
        nodes.run(8.0)
    for node in nodes.machines:
        node.stop(down=1.0)
    nodes.run_until_stable()
    assert nodes.put_again(guid) == 0 and nodes.copies() == {0}


@pytest.mark.spec("cluster", 85)
def test_a_changed_consistency_applies_to_later_messages() -> None:
    nodes = ShortWindowCluster(85, strong=False)
    client, queue = nodes.writer(SHORT)
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[SHORT].partition_id)
    consumer = nodes.client(primary.name).consume(SHORT)

    def put_while_isolated() -> list[bytes]:
        nodes.isolate(primary)
        guid = queue.put(b"alone")
        nodes.run(CUT_S)
        acked = [ack.guid for ack in queue.acks()]
        assert (acked == [guid]) == bool(acked) == bool(consumer.pushes())
        return acked
    assert put_while_isolated(), "eventual: it is acknowledged and delivered at once"
    nodes.reconfigure(strong=True)
    assert not queue.acks()
    heal(nodes)
    nodes.run(3.0)
    assert not queue.acks() and not consumer.pushes(), "no second ACK or PUSH"
    assert not put_while_isolated(), "strong: not before a majority has it"
    heal(nodes)
    assert queue.next_ack().status == 0
    nodes.run(3.0)
    consumer.pushes()
    nodes.reconfigure(strong=False)
    assert put_while_isolated(), "eventual again"
    heal(nodes)
    nodes.run(3.0)
    client.disconnect()


@pytest.mark.spec("cluster", 85)
def test_a_changed_replication_factor_applies_to_pending_and_later_messages() -> None:
    nodes = ShortWindowCluster(86)
    _, queue = nodes.writer(SHORT)
    assert queue.post(b"by two") and nodes.put_again(queue.put(b"by two of three")) == 0
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[SHORT].partition_id)
    away = next(node for node in nodes.machines if node is not primary)
    away.crash(power=False, down=None)
    nodes.run(1.0)
    queue.post(b"two are left")

    def set_factor(number: int) -> None:
        for node in nodes.machines:
            if node.up:
                node.broker.clusters["c3"].set_replication_factor(number)
                node.request_turn()
        nodes.run(0.1)
    queue.acks()
    set_factor(3)
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
    set_factor(2)
    nodes.run(1.0)
    assert [ack.guid for ack in queue.acks()] == [guid]
    assert queue.post(b"by two again")


@pytest.mark.spec("cluster", 83)
def test_a_full_partition_refuses_puts_until_a_purge() -> None:
    nodes = ShortWindowCluster(83, maxJournalFileSize=1 << 15)
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
    assert nodes.primary(index) is primary, "a failover would not help"
    primary.broker.commands.run_at_once(f"DOMAINS DOMAIN {DOMAIN} QUEUE q PURGE *", "test")
    primary.request_turn()
    nodes.run(2.0)
    for number in range(5):
        assert queue.status_of(b"after %d" % number) == 0
    nodes.run(2.0)
    assert all(len(nodes.stored(node, SHORT)) == 5 for node in nodes.machines)
    assert {node.name: node.run_number for node in nodes.machines} == runs
    client.disconnect()
    nodes.judge_partitions()
