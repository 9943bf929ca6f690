"""Lifecycle of queues in a cluster: creation, changes of apps, removal, and races of these with failovers.

Tests `bmqtwist/member/queue_changes.py`; the table of one queue is in `tests/table/test_queue_lifecycle.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.client import payloads

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.storage.partition_log import PartitionLog
from bmqtwist.testing.config import domain_config
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.assignments import transfer
from sim.elected import heal
from sim.reconfiguration import reconfigure
from sim.replicated import EVENTUAL, STRONG, ReplicatingCluster, available_cluster

APPS = "bmq://apps/q"


def apps_domain(*apps: str) -> dict[str, str]:
    """Return the configuration file of a fanout domain by its name."""
    return {"apps": json.dumps(domain_config("apps", "fanout", apps=list(apps), strong=True))}


def records(nodes: ReplicatingCluster, uri: str) -> list[QueueRecord | None]:
    """Return the metadata of a queue at each running member, None = none."""
    return [nodes.cluster(node.name).metadata.state.queues.get(uri) for node in nodes.machines if node.up]


def stored_apps(nodes: ReplicatingCluster, node: SimulatedNode, uri: str) -> set[tuple[str, bytes]]:
    """Return the apps of a queue in its partition at a node."""
    record = nodes.record(uri)
    queue = nodes.partition(node, record.partition_id).state.queues[record.key]
    return {(app.app_id, app.key) for app in queue.apps.values()}


def cluster_with_separate_leader(seed: int, **options: Any) -> ReplicatingCluster:
    """Return a cluster whose leader is not primary of a partition."""
    nodes = available_cluster(seed, **options)
    former = nodes.leader
    transfer(nodes, next(node for node in nodes.machines if node is not former))
    assert nodes.primary(0) is nodes.primary(1) is former is not nodes.leader
    return nodes


@pytest.mark.spec("cluster", 53)
@pytest.mark.parametrize("place", ["leader", "primary", "neither"])
def test_open_post_app_update_and_removal_work_when_the_leader_is_not_primary(place: str) -> None:
    nodes = cluster_with_separate_leader(1, texts=apps_domain("one", "two"))
    leader, primary = nodes.leader, nodes.primary()
    node = {"leader": leader, "primary": primary,
            "neither": next(each for each in nodes.machines if each not in (leader, primary))}[place]
    queue, reader = nodes.client(node.name).open(APPS, write=1), nodes.client(node.name).consume(APPS, "one")
    queue.post_all(b"1", b"2")
    got = reader.take(2)
    assert payloads(got) == [b"1", b"2"]
    reader.confirm(*got)
    reconfigure(nodes, "apps", apps_domain("one", "three")["apps"])
    nodes.run(1.0)
    assert {tuple(record.apps) for record in records(nodes, APPS) if record} == {("one", "three")}
    assert len({frozenset(stored_apps(nodes, each, APPS)) for each in nodes.machines}) == 1
    queue.post(b"3")
    late = nodes.client(node.name).consume(APPS, "three")
    for each in (reader, late):
        got = each.take(1)
        assert payloads(got) == [b"3"]
        each.confirm(*got)
        each.close()
    queue.close()
    nodes.run(0.5)
    assert nodes.admin(primary, "CLUSTERS CLUSTER c3 FORCE_GC_QUEUES") == "SUCCESS"
    nodes.run(0.5)
    assert records(nodes, APPS) == [None] * 3
    assert not any(hosted.partition.state.queues for each in nodes.machines for hosted in nodes.replication(each).hosted)


@pytest.mark.spec("cluster", 56)
def test_a_queue_that_is_created_again_has_a_new_key_and_no_old_messages() -> None:
    nodes = available_cluster(2)
    client = nodes.client(nodes.replicas()[0].name)
    queue = client.open(STRONG, write=1)
    old = nodes.record(STRONG)
    queue.post_all(b"old 1", b"old 2")
    queue.close()
    away = nodes.replicas(old.partition_id)[1]
    away.crash(power=False, down=None)
    primary = nodes.primary(old.partition_id)
    nodes.admin(primary, "DOMAINS DOMAIN bmq.test.persistent.priority.sc QUEUE q PURGE *")
    nodes.admin(primary, "CLUSTERS CLUSTER c3 FORCE_GC_QUEUES")
    nodes.run(0.5)
    assert records(nodes, STRONG) == [None, None]
    nodes.client(primary.name).open(STRONG, write=1).post(b"new")
    new = nodes.record(STRONG)
    assert new.key != old.key
    away.boot()
    nodes.wait_until_available()
    nodes.run(0.5)  # until it has the metadata
    for _ in range(2):
        for node in nodes.machines:
            assert nodes.stored(node) == [b"new"]
            assert old.key not in nodes.partition(node, old.partition_id).state.queues
        primary.crash(power=True, down=1.0)
        nodes.run(0.5)
        nodes.wait_until_available()
        assert nodes.primary(new.partition_id) is not primary
    reader = nodes.client(away.name).consume(STRONG)
    assert payloads(reader.take(1)) == [b"new"] and not reader.pushes()


@pytest.mark.spec("cluster", 40)
@pytest.mark.parametrize("seed", range(4))
def test_an_open_whose_leader_crashes_before_the_commit_is_retried_and_creates_one_queue(seed: int) -> None:
    nodes = available_cluster(seed)
    leader = nodes.leader
    asks, other = (node for node in nodes.machines if node is not leader)
    for node in (asks, other):
        nodes.network.cut(leader.name, node.name, both=False)
    client = nodes.client(asks.name)
    asked = client.send_request({"openQueue": {"handleParameters": client.handle_parameters(STRONG, 0, write=1)}})
    log = nodes.cluster(leader.name).metadata.log
    nodes.until(lambda: STRONG in log.head.queues and len(log.log.records) == log.log.durable, 2.0)
    lost = log.head.queues[STRONG].key
    assert STRONG not in log.state.queues
    leader.crash(power=False, down=None)
    assert "openQueueResponse" in client.response(asked)
    leader.boot()
    for node in (asks, other):
        nodes.network.heal(leader.name, node.name)
    nodes.wait_until_available()
    keys = {record.key for record in records(nodes, STRONG) if record}
    assert len(keys) == 1 and lost not in keys
    stored = [nodes.partition(node, nodes.record(STRONG).partition_id).state.queues.keys() for node in nodes.machines]
    assert [set(each) for each in stored] == [keys] * 3


def test_an_open_at_an_isolated_leader_is_requested_from_the_next_leader() -> None:
    nodes = available_cluster(1)
    leader = nodes.leader
    client = nodes.client(leader.name)
    nodes.isolate(leader)
    asked = client.send_request({"openQueue": {"handleParameters": client.handle_parameters(STRONG, 0, write=1)}})
    nodes.until(lambda: leader not in nodes.believed(), 6.0)
    heal(nodes)
    assert "openQueueResponse" in client.response(asked)
    assert len({record.key for record in records(nodes, STRONG) if record}) == 1


KEEPALIVE = {"queueOperations": {"keepaliveDurationMs": 5000, "openTimeoutMs": 10000}}


def cluster_with_idle_queue(seed: int) -> tuple[ReplicatingCluster, Any]:
    """Return such a cluster with a queue that was just closed, and its client."""
    nodes = cluster_with_separate_leader(seed, members=KEEPALIVE)
    client = nodes.client(nodes.replicas()[0].name)
    client.open(EVENTUAL, write=1).close()
    return nodes, client


@pytest.mark.spec("cluster", 59)
def test_an_idle_queue_is_removed_at_all_members_after_its_keepalive() -> None:
    nodes, _ = cluster_with_idle_queue(3)
    nodes.run(4.5)
    assert None not in records(nodes, EVENTUAL)
    nodes.run(3.0)
    assert records(nodes, EVENTUAL) == [None] * 3
    assert not any(hosted.partition.state.queues for node in nodes.machines for hosted in nodes.replication(node).hosted)
    assert not any(nodes.cluster(node.name).queues for node in nodes.machines)


@pytest.mark.spec("cluster", 59)
def test_an_open_before_the_end_of_the_keepalive_prevents_the_removal() -> None:
    nodes, client = cluster_with_idle_queue(4)
    nodes.run(4.9)
    before = nodes.record(EVENTUAL)
    queue = client.open(EVENTUAL, write=1)
    nodes.run(20.0)
    assert nodes.record(EVENTUAL) == before and queue.post(b"x")


@pytest.mark.spec("cluster", 59)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("late", [0.0, 0.001, 0.002, 0.004, 0.008])
def test_an_open_during_the_removal_creates_a_new_queue(place: int, late: float) -> None:
    nodes, _ = cluster_with_idle_queue(5)
    before = nodes.record(EVENTUAL)
    primary = nodes.primary(before.partition_id)
    client = nodes.client(nodes.machines[place].name)
    nodes.until(lambda: any(each.lifecycle.is_deleting for each in nodes.cluster(primary.name).queues.values()), 10.0,
                step=0.001)
    nodes.run(late)
    queue = client.open(EVENTUAL, write=1)
    nodes.run(1.0)
    known = {record.key for record in records(nodes, EVENTUAL) if record}
    assert len(known) == 1 and None not in records(nodes, EVENTUAL) and before.key not in known
    queue.post(b"x")
    assert payloads(nodes.client(nodes.machines[place - 1].name).consume(EVENTUAL).take(1)) == [b"x"]
    assert nodes.stored(primary, EVENTUAL) == [b"x"]


@pytest.mark.spec("cluster", 59)
def test_a_new_primary_removes_an_idle_queue_after_a_full_keepalive() -> None:
    nodes, client = cluster_with_idle_queue(7)
    queue = client.open(EVENTUAL, write=1)
    nodes.run(10.0)
    before = nodes.record(EVENTUAL)
    queue.close()
    nodes.run(1.0)
    nodes.primary(before.partition_id).crash(power=False, down=None)
    nodes.until(lambda: nodes.leader and any(nodes.replication(node).is_active_primary(before.partition_id)
                                             for node in nodes.machines if node.up), 20.0)
    nodes.run(4.5)
    assert set(map(bool, records(nodes, EVENTUAL))) == {True}
    nodes.run(3.0)
    assert records(nodes, EVENTUAL) == [None] * 2


@pytest.mark.spec("cluster", 60)
def test_a_member_that_missed_a_change_of_apps_has_the_same_apps_after_its_restart() -> None:
    nodes = available_cluster(7, texts=apps_domain("one", "two"))
    client = nodes.client(nodes.primary().name)
    queue, reader = client.open(APPS, write=1), client.consume(APPS, "one")
    queue.post_all(b"1", b"2")
    got = reader.take(2)
    reader.confirm(*got)
    away = nodes.replicas()[0]
    nodes.run(0.5)
    away.crash(power=False, down=None)
    reconfigure(nodes, "apps", apps_domain("one", "three")["apps"])
    nodes.run(0.5)
    up = [node for node in nodes.machines if node.up]
    assert [nodes.stored(node, APPS) for node in up] == [[], []], "messages pending only for the removed app are purged"
    queue.post(b"3")
    away.boot()
    nodes.wait_until_available()
    nodes.run(1.0)
    assert [tuple(record.apps) for record in records(nodes, APPS) if record] == [("one", "three")] * 3
    apps = {frozenset(stored_apps(nodes, node, APPS)) for node in nodes.machines}
    assert apps == {frozenset(nodes.record(APPS).apps.items())}
    assert [nodes.stored(node, APPS) for node in nodes.machines] == [[b"3"]] * 3
    nodes.primary(nodes.record(APPS).partition_id).crash(power=True, down=1.0)
    nodes.run(0.5)
    nodes.wait_until_available()
    assert payloads(nodes.client(away.name).consume(APPS, "three").take(1)) == [b"3"]


def test_a_former_primary_does_not_write_a_change_of_apps_that_is_committed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It proposes the change while isolated; when it reconnects, another node is primary."""
    nodes = cluster_with_separate_leader(8, texts=apps_domain("one", "two"))
    former = nodes.primary()
    client = nodes.client(former.name)
    client.open(APPS, write=1).post_all(b"1", b"2")
    index = nodes.record(APPS).partition_id
    wrong_logs: list[PartitionLog] = []
    append = PartitionLog.append

    def checked(log: PartitionLog, record: bytes) -> None:
        if not log.is_primary:
            wrong_logs.append(log)
        append(log, record)
    monkeypatch.setattr(PartitionLog, "append", checked)
    nodes.isolate(former)
    nodes.domains.texts["apps"] = apps_domain("one", "two", "three")["apps"]
    assert nodes.admin(former, "DOMAINS RECONFIGURE apps") == "SUCCESS"
    others = [node for node in nodes.machines if node is not former]
    nodes.until(lambda: any(nodes.replication(node).is_active_primary(index) for node in others), 30.0)
    heal(nodes)
    nodes.until(lambda: all("three" in nodes.cluster(node.name).metadata.state.queues[APPS].apps for node in others), 30.0)
    nodes.run_until_stable()
    assert not wrong_logs and not any("are not changed in its partition" in line for line in former.log())
    assert [stored_apps(nodes, node, APPS) for node in nodes.machines] == [set(nodes.record(APPS).apps.items())] * 3
    assert len({nodes.partition(node, index).summary.last for node in nodes.machines}) == 1


def test_a_replica_refuses_local_changes_of_its_partition() -> None:
    nodes = available_cluster(9)
    nodes.post(2)
    record, replica = nodes.record(STRONG), nodes.replicas()[0]
    partition, wall = nodes.partition(replica, record.partition_id), replica.broker.loop.wall(replica.local_now)
    before = partition.summary.last
    for write in (lambda: partition.queues.create(b"other", "bmq://other/q", [], wall),
                  lambda: partition.queues.add_apps(record.key, STRONG, [("more", b"aaaaa")], wall),
                  lambda: partition.queues.purge(record.key, None, None, wall),
                  lambda: partition.queues.delete(record.key, wall)):
        with pytest.raises(PartitionUnavailable, match="without a primary at this node"):
            write()
    assert partition.summary.last == before and not partition.tail.journal
