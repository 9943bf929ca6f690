"""Planned moves of partitions between members, by MOVE, REBALANCE and graceful stops.

Tests `bmqtwist/member/handovers.py`; with many queues `test_moves_many.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from kit.client import Client, payloads, refusal

from bmqtwist.broker.commands import BEGUN
from bmqtwist.cluster.changes import UnassignQueue
from bmqtwist.limits import RESTORED_AT_ONCE
from bmqtwist.loop.scheduler import Scheduler
from bmqtwist.member import activation
from bmqtwist.member.cluster import Cluster
from bmqtwist.queue import restored_messages
from bmqtwist.queue.restored_messages import RestoredMessages
from bmqtwist.storage.state import StoredQueue
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import NodeStatus
from sim.assignments import LEAST, move, number, transfer, wait_for_primary
from sim.elected import heal
from sim.replicated import EVENTUAL, STRONG, ReplicatingCluster, available_cluster

PROXIES = {"p1": ["n1", "n2", "n3"]}
IN_MEMORY = "bmq://bmq.test.mem.priority/q"


def loads(nodes: ReplicatingCluster) -> list[int]:
    """Return the number of partitions of which each node is primary."""
    found = Counter({number(node): 0 for node in nodes.machines})
    found.update(primary.node_id for primary in nodes.primaries().values())
    return [found[number(node)] for node in nodes.machines]


class Traffic:
    """A producer at each place and a consumer at the last one."""

    def __init__(self, nodes: ReplicatingCluster, uri: str, places: list[str]) -> None:
        self.nodes = nodes
        self.queues = [nodes.client(place).open(uri, write=1) for place in places]
        self.reader = nodes.client(places[-1]).consume(uri)
        self.sent: list[bytes] = []
        self.got: list[bytes] = []

    def live(self, seconds: float, pause: float = 0.01) -> None:
        """Post, consume and confirm for some seconds."""
        end = self.nodes.now + seconds
        while self.nodes.now < end:
            for queue in self.queues:
                self.sent.append(b"%d" % len(self.sent))
                queue.put(self.sent[-1])
            self.nodes.run(pause)
            self.take()

    def take(self) -> None:
        """Confirm received messages."""
        self.reader.client.pump(0.0)
        found = [event.push for event in list(self.reader.client.inbox) if self.reader.mine(event)]
        self.reader.client.inbox.clear()
        self.reader.confirm(*found)
        self.got += payloads(found)

    def judge(self) -> None:
        """Check that each PUT was acknowledged once and its message delivered; up to 10 % may be redelivered."""
        self.nodes.run(3.0)
        self.take()
        acks = [ack for queue in self.queues for ack in queue.acks()]
        assert len(acks) == len(self.sent) and {ack.status for ack in acks} == {0}
        assert set(self.got) == set(self.sent) and len(self.got) < 1.1 * len(self.sent)
        assert not any(each.client.link.closed for each in (*self.queues, self.reader))


@pytest.mark.parametrize("uri", [STRONG, EVENTUAL])
@pytest.mark.parametrize("assignment", [LEAST, "E_LEADER_IS_MASTER_ALL"])
def test_a_move_under_load_loses_and_refuses_no_message(uri: str, assignment: str) -> None:
    nodes = available_cluster(1, proxies=PROXIES, masterAssignment=assignment)
    traffic = Traffic(nodes, uri, ["n1", "n2", "n3", "p1"])
    index = nodes.record(uri).partition_id
    lease = nodes.primaries()[index].lease
    for round_, node in enumerate(nodes.machines * 2):
        traffic.live(0.3)
        if nodes.primary(index) is not node:
            lease += 1
            begun = nodes.now
            assert move(nodes, index, node) == BEGUN
            while not nodes.replication(node).is_active_primary(index):
                traffic.live(0.02)
                assert nodes.now - begun < 2.0, (round_, nodes.transition_histories(index))
        traffic.live(0.3)
        wait_for_primary(nodes, index, node)
    assert nodes.primaries()[index].lease == lease
    traffic.judge()
    nodes.run(2.0)
    nodes.judge_partitions()


def test_a_move_transfers_messages_that_only_the_primary_has_acknowledged() -> None:
    nodes = available_cluster(2)
    nodes.post(5, EVENTUAL)
    index = nodes.record(EVENTUAL).partition_id
    former = nodes.primary(index)
    target = nodes.replicas(index)[0]
    for node in nodes.replicas(index):
        nodes.network.slow(former.name, node.name, 0.4)
    nodes.post(20, EVENTUAL)
    assert len(nodes.stored(target, EVENTUAL)) < 25, "it lags"
    assert move(nodes, index, target) == BEGUN
    wait_for_primary(nodes, index, target)
    assert nodes.stored(target, EVENTUAL) == nodes.acknowledged[EVENTUAL]
    former.crash(power=True, down=None)
    nodes.run(6.0)
    assert nodes.stored(target, EVENTUAL) == nodes.acknowledged[EVENTUAL]


def test_an_impossible_move_is_refused_with_its_reason() -> None:
    nodes = available_cluster(3)
    leader = nodes.leader
    other, away = (node for node in nodes.machines if node is not leader)
    assert move(nodes, 0, other, at=other) == f"node {number(leader)} leads the cluster: run the command there"
    assert move(nodes, 0, leader) == f"node {number(leader)} is primary of Partition [0]"
    assert "has no node 'n9'" in nodes.admin(leader, "CLUSTERS CLUSTER c3 STORAGE PARTITION 0 MOVE n9")
    assert nodes.admin(other, "CLUSTERS CLUSTER c3 REBALANCE").endswith("run the command there")
    away.crash(power=False, down=None)
    nodes.run(0.5)
    assert move(nodes, 0, away) == f"node {number(away)} is not available"
    nodes.isolate(leader)
    nodes.run(2.5)
    assert move(nodes, 0, other, at=leader) in ("Partition [0] has no active primary", "no node leads the cluster")


def test_a_move_to_a_node_that_lags_is_cancelled_and_the_primary_stays_active() -> None:
    nodes = available_cluster(4, 5)
    nodes.post(5)
    index = nodes.record(STRONG).partition_id
    former = nodes.primary(index)
    target, *others = nodes.replicas(index)
    lease = nodes.primaries()[index].lease
    nodes.network.slow(target.name, former.name, 2.6)
    queue = nodes.client(others[0].name).open(STRONG, write=1)
    queue.post(b"not yet reported as durable by the successor")
    assert move(nodes, index, target) == BEGUN
    guid = queue.put(b"blocked")
    nodes.run(1.0)
    assert not nodes.replication(former).is_active_primary(index)
    ack = queue.next_ack(guid, deadline=10.0)
    assert ack.status == 0 and nodes.primary(index) is former and nodes.primaries()[index].lease == lease
    assert any("is not moved: node " in line and "did not store all records" in line for line in former.log())


@pytest.mark.parametrize("victim", ["leader", "former", "successor"])
@pytest.mark.parametrize("late", [0.0, 0.002, 0.005, 0.01, 0.02])
def test_a_crash_of_leader_primary_or_successor_during_a_move_loses_no_message(late: float, victim: str) -> None:
    nodes = available_cluster(5, 5, masterAssignment=LEAST)
    nodes.post(10)
    nodes.post(5, wait=False)
    index = nodes.record(STRONG).partition_id
    leader, former = nodes.leader, nodes.primary(index)
    if former is leader:
        transfer(nodes, nodes.replicas(index)[0])
        leader = nodes.leader
    successor = next(node for node in nodes.machines if node not in (leader, former))
    assert move(nodes, index, successor) == BEGUN
    nodes.run(late)
    {"leader": leader, "former": former, "successor": successor}[victim].crash(power=True, down=5.0)
    nodes.run(8.0)
    nodes.wait_until_available()
    nodes.run_until_stable()
    nodes.post(5)
    nodes.run(1.0)
    nodes.judge_partitions()


def test_a_primary_repeats_the_report_of_a_handover_until_the_leader_appoints_its_successor(
        monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = available_cluster(10)
    nodes.post(3)
    index = nodes.record(STRONG).partition_id
    leader = nodes.leader
    target = next(node for node in nodes.replicas(index) if node is not leader)
    if nodes.primary(index) is leader:
        assert move(nodes, index, target) == BEGUN
        wait_for_primary(nodes, index, target)
        target = next(node for node in nodes.replicas(index) if node is not leader)
    nodes.run(1.5)
    with monkeypatch.context() as without_reports:
        without_reports.setattr(nodes.replication(leader).appointments, "on_declined", lambda *what: None)
        assert move(nodes, index, target) == BEGUN
        nodes.run(0.5)
    assert not any(nodes.replication(node).is_active_primary(index) for node in nodes.machines)
    nodes.run(1.0)
    wait_for_primary(nodes, index, target)
    nodes.post(1)


def test_a_partition_with_messages_in_memory_moves_only_after_they_are_consumed() -> None:
    nodes = available_cluster(6)
    queue = nodes.client("n1").open(IN_MEMORY, write=1)
    queue.post(b"only here")
    index = nodes.record(IN_MEMORY).partition_id
    former, target = nodes.primary(index), nodes.replicas(index)[0]
    assert nodes.leader is former
    assert "queues in memory hold 1 messages that no other node has" in move(nodes, index, target)
    nodes.run(2.0)
    assert nodes.primary(index) is former
    assert any("queues in memory hold 1 messages that no other node has" in line for line in former.log())
    reader = nodes.client(target.name).consume(IN_MEMORY)
    reader.confirm(*reader.take(1))
    nodes.run(1.0)
    assert any(f"did not move to node {number(target)}" in line for line in nodes.leader.log())
    assert move(nodes, index, target) == BEGUN
    wait_for_primary(nodes, index, target)


@pytest.mark.parametrize("assignment, expected", [(LEAST, [2, 2, 2]), ("E_LEADER_IS_MASTER_ALL", None)])
def test_rebalance_moves_partitions_one_at_a_time_to_their_configured_distribution(
        assignment: str, expected: list[int] | None) -> None:
    nodes = available_cluster(7, masterAssignment=assignment, numPartitions=6)
    target = next(node for node in nodes.machines if node is not nodes.leader)
    for index in range(6):
        if nodes.primary(index) is not target:
            assert move(nodes, index, target) == BEGUN
            wait_for_primary(nodes, index, target)
    assert sorted(loads(nodes)) == [0, 0, 6]
    traffic = Traffic(nodes, STRONG, ["n1", "n2", "n3"])
    assert nodes.admin(nodes.leader, "CLUSTERS CLUSTER c3 REBALANCE") == "SUCCESS"
    traffic.live(10.0, 0.1)
    if expected is None:
        expected = [6 if node is nodes.leader else 0 for node in nodes.machines]
    assert loads(nodes) == expected
    assert any("partitions are spread evenly" in line for line in nodes.leader.log())
    traffic.judge()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_restarted_node_becomes_primary_of_its_share_if_rebalancing_is_configured(wanted: bool) -> None:
    nodes = ReplicatingCluster(8, masterAssignment=LEAST, numPartitions=6, app={"bmqtwist": {"rebalance": wanted}})
    nodes.wait_until_available()
    away = next(node for node in nodes.machines if node is not nodes.leader)
    away.crash(power=False, down=None)
    nodes.run(6.0)
    traffic = Traffic(nodes, STRONG, [node.name for node in nodes.machines if node.up])
    assert loads(nodes)[number(away) - 1] == 0
    away.boot()
    nodes.wait_until_available()
    traffic.live(10.0, 0.1)
    assert sorted(loads(nodes)) == ([2, 2, 2] if wanted else [0, 3, 3])
    traffic.judge()


@pytest.mark.parametrize("uri", [STRONG, EVENTUAL])
@pytest.mark.parametrize("assignment", [LEAST, "E_LEADER_IS_MASTER_ALL"])
def test_a_stopping_primary_hands_over_messages_that_only_it_has(uri: str, assignment: str) -> None:
    nodes = available_cluster(9, masterAssignment=assignment)
    nodes.post(3, uri)
    index = nodes.record(uri).partition_id
    former = nodes.primary(index)
    for node in nodes.replicas(index):
        nodes.network.slow(former.name, node.name, 0.3)
    nodes.post(10, uri)
    former.stop(down=None)
    nodes.until(lambda: not former.up, 30.0)
    assert any("partitions and leadership are handed over" in line for line in former.log())
    nodes.run(3.0)
    assert nodes.stored(nodes.primary(index), uri) == nodes.acknowledged[uri]


def test_an_appointed_node_that_needs_an_image_leaves_the_partition_to_an_up_to_date_node() -> None:
    nodes = available_cluster(14, masterAssignment=LEAST, maxJournalFileSize=1 << 16)
    nodes.post(5)
    index = nodes.record(STRONG).partition_id
    former = nodes.primary(index)
    behind = next(node for node in nodes.replicas(index) if node is not nodes.leader)
    other = next(node for node in nodes.replicas(index) if node is not behind)
    for each in range(2):
        if nodes.primary(each) is behind:
            assert move(nodes, each, other) == BEGUN
            wait_for_primary(nodes, each, other)
    queue = nodes.client(former.name).open(STRONG, write=1)
    nodes.isolate(behind)
    nodes.run(5.0)
    more = [b"more %d" % each for each in range(40)]
    queue.post_all(*more)
    nodes.partition(former, index).rollover(former.broker.loop.wall(former.local_now))
    nodes.acknowledged[STRONG] += more
    nodes.network.slow(former.name, behind.name, 2.0)
    heal(nodes)
    nodes.until(lambda: nodes.statuses(other).other_nodes[number(behind)] is NodeStatus.E_AVAILABLE, 60.0)
    assert loads(nodes)[number(behind) - 1] == 0 and nodes.partition(behind, index).summary.base == (0, 0), "it lags"
    former.crash(power=False, down=None)
    nodes.until(lambda: nodes.replication(other).is_active_primary(index), 20.0)
    assert any(f"node {number(other)} has all records" in line for line in behind.log())
    nodes.run_until_stable()
    nodes.judge_partitions()


@pytest.mark.spec("cluster", 52)
@pytest.mark.parametrize("seed", range(3))
def test_when_all_primaries_fail_the_loads_of_the_others_differ_by_at_most_one(seed: int) -> None:
    nodes = available_cluster(seed, 5, masterAssignment=LEAST, numPartitions=7)
    targets: list[Any] = [node for node in nodes.machines if node is not nodes.leader][:2]
    for index in range(7):
        if nodes.primary(index) is not targets[index % 2]:
            assert move(nodes, index, targets[index % 2]) == BEGUN
            wait_for_primary(nodes, index, targets[index % 2])
    for node in targets:
        node.crash(power=False, down=None)
    nodes.run(6.0)
    left = [load for load, node in zip(loads(nodes), nodes.machines, strict=True) if node.up]
    assert sum(left) == 7 and max(left) - min(left) <= 1, left


def test_a_former_primary_frees_the_message_lists_of_its_apps_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = available_cluster(8)
    nodes.post(100, EVENTUAL)
    index = nodes.record(EVENTUAL).partition_id
    former, target = nodes.primary(index), nodes.replicas(index)[0]
    root = nodes.cluster(former.name).queues[EVENTUAL]
    kept = [app.new_messages for app in root.apps.values()]
    assert sum(map(len, kept)) == 100
    monkeypatch.setattr("bmqtwist.steps.FREED_AT_ONCE", 10)
    sizes, step = list[int](), Scheduler._step

    def measured(self: Scheduler, *arguments: Any) -> bool:
        more = step(self, *arguments)
        sizes.append(sum(map(len, kept)))
        return more

    monkeypatch.setattr(Scheduler, "_step", measured)
    assert move(nodes, index, target) == BEGUN
    wait_for_primary(nodes, index, target)
    nodes.run(1.0)
    assert list(dict.fromkeys(size for size in sizes if size < 100)) == [*range(90, 0, -10)]
    assert nodes.stored(former, EVENTUAL) == nodes.stored(target, EVENTUAL) == nodes.acknowledged[EVENTUAL]


def test_an_isolated_primary_drops_its_messages_in_memory_when_it_becomes_a_replica() -> None:
    nodes = available_cluster(9)
    nodes.client("n1").open(IN_MEMORY, write=1).post(b"only here")
    record = nodes.record(IN_MEMORY)
    former = nodes.primary(record.partition_id)
    partition = nodes.partition(former, record.partition_id)
    assert len(partition.state.queues[record.key].messages) == 1
    nodes.isolate(former)
    nodes.run(20.0)
    heal(nodes)
    nodes.until(lambda: not partition.is_primary, 5.0)
    assert not partition.state.queues[record.key].messages


@dataclass
class SlowActivation:
    """A primary at which the activation of the queue does not complete while `blocked`, as with very many messages."""

    nodes: ReplicatingCluster
    node: SimulatedNode
    index: int
    blocked: bool = True
    restore_queue: Callable[[StoredQueue, int], Generator[int, None, RestoredMessages]] = restored_messages.restore

    def restore(self, store: StoredQueue, wall: int) -> Generator[int, None, RestoredMessages]:
        """Replacement of `restored_messages.restore`."""
        while store is self.nodes.partition(self.node, self.index).state.queues.get(store.key) and self.blocked:
            yield RESTORED_AT_ONCE
        return (yield from self.restore_queue(store, wall))

    def move_partition(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Move the partition to the node and block the activation."""
        monkeypatch.setattr(activation, "restore", self.restore)
        assert move(self.nodes, self.index, self.node) == BEGUN
        self.nodes.until(lambda: self.nodes.replication(self.node).is_active_primary(self.index), 5.0)

    def open(self) -> tuple[Client, int]:
        """Request the open of the queue without waiting; return the client and the request id."""
        client = self.nodes.client(self.node.name)
        asked = client.send_request({"openQueue": {"handleParameters": client.handle_parameters(EVENTUAL, 77, read=1)}})
        self.nodes.until(lambda: self.cluster.activations._pending[EVENTUAL].opened, 5.0)
        return client, asked

    @property
    def cluster(self) -> Cluster:
        return self.nodes.cluster(self.node.name)


def test_a_move_during_the_activation_of_a_queue_loses_no_message_and_completes_pending_opens(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The pending open completes at the node to which the partition moves back."""
    nodes = available_cluster(10)
    traffic = Traffic(nodes, EVENTUAL, ["n1", "n2", "n3"])
    traffic.live(0.3)
    index = nodes.record(EVENTUAL).partition_id
    first, slow = nodes.primary(index), SlowActivation(nodes, nodes.replicas(index)[0], index)
    slow.move_partition(monkeypatch)
    traffic.live(0.3)
    assert EVENTUAL not in slow.cluster.queues
    client, asked = slow.open()
    assert move(nodes, index, first) == BEGUN
    wait_for_primary(nodes, index, first)
    assert "openQueueResponse" in client.response(asked) and EVENTUAL not in slow.cluster.changes.pending_opens
    traffic.live(0.3)
    slow.blocked = False
    assert move(nodes, index, slow.node) == BEGUN
    wait_for_primary(nodes, index, slow.node)
    traffic.live(0.3)
    assert EVENTUAL in slow.cluster.queues
    traffic.judge()


def test_an_open_of_a_queue_that_is_deleted_during_its_activation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = available_cluster(11)
    nodes.client("n1").open(EVENTUAL, write=1)
    record = nodes.record(EVENTUAL)
    slow = SlowActivation(nodes, nodes.replicas(record.partition_id)[0], record.partition_id)
    slow.move_partition(monkeypatch)
    client, asked = slow.open()
    leader = nodes.cluster(nodes.leader.name)
    leader.metadata.propose(UnassignQueue(EVENTUAL, record.key), lambda outcome, wall: None, 0)
    refused = refusal(client.response, asked)
    assert refused.category == "E_NOT_READY" and "was deleted before it was opened" in refused.message
    slow.blocked = False
    nodes.run(1.0)
    assert EVENTUAL not in slow.cluster.queues
    assert all(record.key not in nodes.partition(node, record.partition_id).state.queues for node in nodes.machines)
    nodes.client("n2").open(EVENTUAL, write=1).post(b"a new one")
