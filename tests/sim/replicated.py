"""Simulated cluster whose members replicate their partitions, with checks of acknowledged messages.

Used by `test_replicated.py` and the tests of moves and stops; `elected.py` is the base class, `members.py` a cluster without
changes.
"""

from __future__ import annotations

from random import Random
from typing import Any

from kit.client import Client, RequestRefused

from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.cluster.state import Primary, QueueRecord
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.member.replication import Replication
from bmqtwist.storage.replica import ReplicatedPartition
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import NodeStatus
from sim.elected import SETTLE_S, ElectedCluster

STRONG = "bmq://bmq.test.persistent.priority.sc/q"
EVENTUAL = "bmq://bmq.test.persistent.priority/q"
FANOUT = "bmq://bmq.test.persistent.fanout.sc/q"


class ReplicatingCluster(ElectedCluster):
    """A cluster that records its acknowledged messages; `judge_partitions` compares them with the stored ones."""

    def __init__(self, seed: int, count: int = 3, options: dict[str, dict[str, Any]] | None = None,
                 masterAssignment: str = "E_LEADER_IS_MASTER_ALL", proxies: dict[str, list[str]] | None = None,
                 texts: dict[str, str] | None = None, members: dict[str, Any] | None = None,
                 app: dict[str, Any] | None = None, **partition: int) -> None:
        super().__init__(seed, count, options, masterAssignment, proxies, texts, members, app, **partition)
        self.acknowledged: dict[str, list[bytes]] = {}  # uri -> payloads
        self.posted = 0

    def replication(self, node: SimulatedNode) -> Replication:
        """Return the replication of a running node."""
        found = self.cluster(node.name).replication
        assert found is not None
        return found

    def partition(self, node: SimulatedNode, index: int = 0) -> ReplicatedPartition:
        """Return a partition of a node by its number."""
        return self.replication(node).hosted[index].partition

    def roles(self, index: int = 0) -> dict[str, PartitionRole]:
        """Return the role of each running node in a partition."""
        return {node.name: self.replication(node).hosted[index].machine.role for node in self.machines if node.up}

    def primary(self, index: int = 0) -> SimulatedNode:
        """The active primary of a partition."""
        found = [name for name, role in self.roles(index).items() if role is PartitionRole.PRIMARY_HEALED]
        assert len(found) == 1, self.transition_histories(index)
        return self.node(found[0])

    def transition_histories(self, index: int = 0) -> str:
        """Return the last 8 transitions of a partition's machines at all nodes, for messages of failed tests."""
        return "\n".join(f"{node.name}: {each.at:.2f} {each.before} -> {each.after}: {each.cause}"
                         for node in self.machines if node.up
                         for each in self.replication(node).hosted[index].machine.transition_log.transitions[-8:])

    def replicas(self, index: int = 0) -> list[SimulatedNode]:
        """Return the running nodes that are not primary of a partition."""
        primary = self.primary(index)
        return [node for node in self.machines if node.up and node is not primary]

    def run_until_stable(self) -> None:
        """Run for SETTLE_S, longer than elections and recoveries take."""
        self.run(SETTLE_S)

    def wait_until_available(self) -> None:
        """Run until every running node is available, knows all primaries, and knows no node that is starting."""
        self.until(lambda: all(self.statuses(node).own is NodeStatus.E_AVAILABLE
                               and self.replication(node).known_primaries.all_active
                               and set(self.statuses(node).other_nodes.values()) <= {
                                   NodeStatus.E_AVAILABLE, NodeStatus.E_UNAVAILABLE}
                               for node in self.machines if node.up), SETTLE_S)

    def statuses(self, node: SimulatedNode) -> NodeStatuses:
        """Return the availability of a node and of the other members as it knows them."""
        members = self.cluster(node.name).members
        assert members is not None
        return members.statuses

    def isolate(self, node: SimulatedNode) -> None:
        """Cut all links between a node and the other members."""
        for other in self.machines:
            if other is not node:
                self.network.cut(node.name, other.name)

    def primaries(self) -> dict[int, Primary]:
        """Return the primary of each partition; AssertionError if running nodes differ."""
        views = [self.cluster(node.name).metadata.state.partitions for node in self.machines if node.up]
        assert all(view == views[0] for view in views), views
        return dict(views[0])

    def record(self, uri: str) -> QueueRecord:
        """Return the metadata of a queue at the leader."""
        return self.cluster(self.leader.name).metadata.state.queues[uri]

    def move_any(self, random: Random) -> None:
        """Request a random move of a partition, or a rebalance, at each leader; it may be refused."""
        for node in self.believed():
            self.admin(node, random.choice(("CLUSTERS CLUSTER c3 REBALANCE", *(
                f"CLUSTERS CLUSTER c3 STORAGE PARTITION {index} MOVE {other.name}"
                for index in range(2) for other in self.machines))))

    def admin(self, node: SimulatedNode, command: str) -> str:
        """Run an admin command at a node and return its answer."""
        return node.broker.commands.run_at_once(command, "test").text

    def writer(self, uri: str = STRONG) -> tuple[Client, Any]:
        """Return a client at the primary with the queue open for writing; a new queue is assigned first."""
        leader = self.leader
        records = self.cluster(leader.name).metadata.state.queues
        if uri not in records:
            try:
                self.client(self.machines[0].name).open(uri, write=1)
            except RequestRefused:
                self.run(0.5)
        client = self.client(self.primary(records[uri].partition_id).name)
        return client, client.open(uri, write=1)

    def post(self, count: int, uri: str = STRONG, wait: bool = True) -> None:
        """Post messages; with `wait`, wait for a successful ACK of each and record them as acknowledged."""
        _, queue = self.writer(uri)
        payloads = [b"message %d" % number for number in range(self.posted, self.posted + count)]
        self.posted += count
        guids = {queue.put(payload): payload for payload in payloads}
        if not wait:
            return
        for _ in payloads:
            ack = queue.next_ack()
            assert ack.status == 0, ack
            self.acknowledged.setdefault(uri, []).append(guids[ack.guid])

    def stored(self, node: SimulatedNode, uri: str = STRONG) -> list[bytes]:
        """Return the payloads that a node stores of a queue."""
        record = self.cluster(node.name).metadata.state.queues[uri]
        partition = self.partition(node, record.partition_id)
        queue = partition.state.queues.get(record.key)
        return [] if queue is None else [partition.payloads.read(message) for message in queue.messages.values()]

    def judge_partitions(self) -> None:
        """Check, after `run_until_stable`, that running nodes have equal logs and each acknowledged message once."""
        up = [node for node in self.machines if node.up]
        for index in range(len(self.replication(up[0]).hosted)):
            logs = {self.partition(node, index).summary.last for node in up}
            assert len(logs) == 1, (logs, self.transition_histories(index))
        for uri, payloads in self.acknowledged.items():
            for node in up:
                found = self.stored(node, uri)
                assert set(found) >= set(payloads), f"{node.name} lacks {set(payloads) - set(found)}"
                assert len(found) == len(set(found)), "stored twice"


def stable_cluster(seed: int, count: int = 3, **options: Any) -> ReplicatingCluster:
    """Return a cluster after SETTLE_S."""
    nodes = ReplicatingCluster(seed, count, **options)
    nodes.run_until_stable()
    return nodes


def available_cluster(seed: int = 1, count: int = 3, **options: Any) -> ReplicatingCluster:
    """Return a cluster as soon as every node is available."""
    nodes = ReplicatingCluster(seed, count, **options)
    nodes.wait_until_available()
    return nodes
