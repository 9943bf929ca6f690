"""Damaged data of stored messages: detected by a read or a scrub, repaired with the copy of another member.

Tests `bmqtwist/storage/payloads.py`, `bmqtwist/member/repairs.py` and `bmqtwist/broker/scrubbing.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.peers import handshake
from bmqtwist.storage.message import Message
from bmqtwist.storage.payloads import is_intact, record_bytes
from bmqtwist.storage.records import FileType
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.replicated import FANOUT, STRONG, ReplicatingCluster, available_cluster

COUNT = 20
BROKEN = 5  # index of the damaged message
NO_CACHE: dict[str, Any] = {"bmqtwist": {"payloadCacheBytes": 0, "scrubIntervalSeconds": 0}}
SCRUB: dict[str, Any] = {"bmqtwist": {"payloadCacheBytes": 0, "scrubIntervalSeconds": 5}}
PROXIES = {"p1": ["n1", "n2", "n3"]}


def filled(seed: int, uri: str = STRONG, app: dict[str, Any] | None = None, **options: Any) -> ReplicatingCluster:
    """Return a cluster with COUNT acknowledged messages, which all members have stored."""
    nodes = available_cluster(seed, app=app or NO_CACHE, **options)
    nodes.post(COUNT, uri)
    nodes.run(2.0)
    return nodes


def messages(nodes: ReplicatingCluster, node: SimulatedNode, uri: str = STRONG) -> list[Message]:
    """Return the messages that a node stores of a queue, oldest first."""
    record = nodes.record(uri)
    return list(nodes.partition(node, record.partition_id).state.queues[record.key].messages.values())


def damage(nodes: ReplicatingCluster, node: SimulatedNode, *indexes: int, at: int = 14, uri: str = STRONG) -> None:
    """Invert one bit of the DATA records of messages, by default of their payload, below the open files of a node."""
    stored, files = messages(nodes, node, uri), nodes.partition(node, nodes.record(uri).partition_id).files
    for index in indexes or (BROKEN,):
        path = files.directory.path(files.current.base, FileType.DATA)
        node.disk.flip(path, stored[index].data_offset * 8 + at)


def is_stored_intact(nodes: ReplicatingCluster, node: SimulatedNode, index: int = BROKEN) -> bool:
    """Return whether the DATA record of a message is intact in the file of a node."""
    message, partition = messages(nodes, node)[index], nodes.partition(node, nodes.record(STRONG).partition_id)
    return is_intact(partition.files.read_data(message.data_offset * 8, record_bytes(message)), message)


def raised(node: SimulatedNode, kind: AlarmKind) -> list[str]:
    """Return the lines of an alarm in the log of a node."""
    return [line for line in node.log() if kind.head() in line]


def counts(nodes: ReplicatingCluster, node: SimulatedNode) -> tuple[int, int, int]:
    """Return the numbers of damaged, repaired and discarded messages of the queue's partition."""
    found = nodes.cluster(node.name).repairs.counts[nodes.record(STRONG).partition_id]
    return found.damaged, found.repaired, found.discarded


def expected() -> list[bytes]:
    return [b"message %d" % number for number in range(COUNT)]


@pytest.mark.parametrize("place", ["primary", "p1"])
def test_damage_at_the_primary_is_repaired_before_the_delivery(place: str) -> None:
    nodes = filled(1, proxies=PROXIES)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    damage(nodes, primary)
    consumer = nodes.client(primary.name if place == "primary" else place).consume(STRONG)
    assert [push.payload for push in consumer.take(COUNT, 10.0)] == expected(), "in order"
    if place == "primary":  # the proxy receives the data of any member
        assert is_stored_intact(nodes, primary) and counts(nodes, primary) == (1, 1, 0)
        assert len(raised(primary, alarms.PAYLOAD_DAMAGED)) == 1 and STRONG in raised(primary, alarms.PAYLOAD_DAMAGED)[0]
        nodes.judge_partitions()


def test_damage_at_a_replica_is_repaired_before_its_consumer_receives_the_message() -> None:
    nodes = filled(2)
    replica = nodes.replicas(nodes.record(STRONG).partition_id)[0]
    damage(nodes, replica)
    consumer = nodes.client(replica.name).consume(STRONG)
    assert [push.payload for push in consumer.take(COUNT, 10.0)] == expected(), "in order"
    assert is_stored_intact(nodes, replica) and counts(nodes, replica) == (1, 1, 0)


@pytest.mark.parametrize("at", [14, 3, 7, 23], ids=["payload", "size", "flags", "padding"])
def test_a_scrub_repairs_damage_at_every_member(at: int) -> None:
    nodes = filled(3, app=SCRUB)
    for number, node in enumerate(nodes.machines):
        damage(nodes, node, BROKEN + number, at=at)
    nodes.run(8.0)
    for number, node in enumerate(nodes.machines):
        assert is_stored_intact(nodes, node, BROKEN + number) and counts(nodes, node) == (1, 1, 0)
        assert node.broker.scrubbing.passes >= 1
    nodes.judge_partitions()


def test_a_message_that_is_damaged_at_all_members_is_rejected() -> None:
    nodes = filled(4)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    guid = messages(nodes, primary)[BROKEN].guid.hex().upper()
    for node in nodes.machines:
        damage(nodes, node)
    consumer = nodes.client(primary.name).consume(STRONG, m=COUNT - 1)
    assert [push.payload for push in consumer.take(COUNT - 1, 10.0)] == [
        payload for index, payload in enumerate(expected()) if index != BROKEN], "its credit was returned"
    nodes.run(2.0)
    lost = raised(primary, alarms.PAYLOAD_LOST)
    assert len(lost) == 1 and all(text in lost[0] for text in (STRONG, guid, "offset", "bmq_data"))
    assert counts(nodes, primary) == (1, 0, 1)
    for node in nodes.machines:
        assert len(messages(nodes, node)) == COUNT - 1, "removed by a record"


def test_a_fanout_message_without_an_intact_copy_is_rejected_for_all_apps() -> None:
    nodes = filled(5, FANOUT)
    primary = nodes.primary(nodes.record(FANOUT).partition_id)
    for node in nodes.machines:
        damage(nodes, node, uri=FANOUT)
    consumer = nodes.client(primary.name).consume(FANOUT, "foo")
    assert len(consumer.take(COUNT - 1, 10.0)) == COUNT - 1
    nodes.run(2.0)
    assert len(messages(nodes, primary, FANOUT)) == COUNT - 1


def test_a_message_waits_for_a_member_that_may_have_an_intact_copy() -> None:
    nodes = filled(6)
    primary, replica, away = (nodes.primary(nodes.record(STRONG).partition_id),
                              *nodes.replicas(nodes.record(STRONG).partition_id))
    away.crash(power=False, down=None)
    nodes.run(1.0)
    damage(nodes, primary)
    damage(nodes, replica)
    consumer = nodes.client(primary.name).consume(STRONG)
    received = [push.payload for push in consumer.take(COUNT - 1, 10.0)]
    assert expected()[BROKEN] not in received and not raised(primary, alarms.PAYLOAD_LOST), "later messages are delivered"
    away.boot()
    assert consumer.next_push(60.0).payload == expected()[BROKEN]
    nodes.run(40.0)
    assert is_stored_intact(nodes, primary) and is_stored_intact(nodes, replica)
    nodes.judge_partitions()


def test_members_without_the_extension_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "RECORD_COPIES", "NONE")
    monkeypatch.setattr("bmqtwist.member.repairs.supports_record_copies", lambda features: "RECORD_COPIES" in
                        features.get(handshake.PAIR_EXTENSION, ()))
    nodes = filled(7)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    damage(nodes, primary)
    consumer = nodes.client(primary.name).consume(STRONG)
    assert len(consumer.take(COUNT - 1, 10.0)) == COUNT - 1
    nodes.run(2.0)
    assert counts(nodes, primary) == (1, 0, 0) and len(messages(nodes, primary)) == COUNT


def test_many_damaged_messages_raise_one_alarm_with_their_number() -> None:
    nodes = filled(8, app=SCRUB)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    damage(nodes, primary, *range(COUNT))
    nodes.run(70.0)
    found = raised(primary, alarms.PAYLOAD_DAMAGED)
    assert len(found) == 2 and f"{COUNT - 1} more" in found[1]
    assert counts(nodes, primary) == (COUNT, COUNT, 0)


def test_the_next_primary_completes_a_repair_that_a_crash_interrupted() -> None:
    nodes = filled(9)
    index = nodes.record(STRONG).partition_id
    primary = nodes.primary(index)
    damage(nodes, primary)
    consumer = nodes.client(nodes.replicas(index)[0].name).open(STRONG, read=1)
    primary.crash(power=True, down=5.0)
    nodes.run(30.0)
    consumer.configure()
    assert sorted(push.payload for push in consumer.take(COUNT, 30.0)) == sorted(expected())
    nodes.run(10.0)
    nodes.judge_partitions()


def test_an_image_of_damaged_messages_is_sent_after_their_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmqtwist.storage.replica.RECENT_BYTES", 0)  # records are read from the files
    nodes = filled(10)
    index = nodes.record(STRONG).partition_id
    primary, replica = nodes.primary(index), nodes.replicas(index)[0]
    replica.crash(power=False, down=None)
    for path in [path for path in replica.disk.paths() if f"/storage/bmq_{index}." in path]:
        replica.disk.put(path, b"")
    damage(nodes, primary)
    replica.boot()
    nodes.until(lambda: replica.up and nodes.partition(replica, index).summary.last >= nodes.partition(
        primary, index).written_psn, 120.0)
    assert is_stored_intact(nodes, primary) and is_stored_intact(nodes, replica)


@pytest.mark.parametrize("role", ["primary", "replica"])
def test_damage_that_a_start_finds_is_repaired_and_the_log_is_kept(role: str) -> None:
    nodes = filled(11)
    index = nodes.record(STRONG).partition_id
    node = nodes.primary(index) if role == "primary" else nodes.replicas(index)[0]
    for _ in range(3):  # two sync points follow
        nodes.post(1)
        nodes.run(1.5)
    damage(nodes, node)
    last = nodes.partition(node, index).summary.last
    node.stop(down=None)
    nodes.run(10.0)
    node.boot()
    assert nodes.partition(node, index).summary.last >= last
    nodes.run(40.0)
    assert is_stored_intact(nodes, node) and counts(nodes, node) == (1, 1, 0)
    assert not raised(node, alarms.REPLICA_DAMAGED) and not any("are cut off" in line for line in node.log())
    consumer = nodes.client(node.name).consume(STRONG)
    assert [push.payload for push in consumer.take(COUNT, 10.0)] == expected(), "in order"
    nodes.judge_partitions()
