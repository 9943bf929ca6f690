"""Members that restart: healing, readiness, lost files, and advisories before a stop.

Tests `bmqtwist/member/replication.py` and `bmqtwist/member/node_status.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.storage import replica
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import NodeStatus
from bmqtwist.wire.fast import HEARTBEAT_REQ
from sim.introductions import introduce
from sim.replicated import STRONG, ReplicatingCluster, available_cluster


@pytest.mark.spec("cluster", 7)
def test_a_healing_member_answers_heartbeats() -> None:
    nodes = available_cluster(1, maxJournalFileSize=1 << 16)
    nodes.post(5)
    away = nodes.replicas()[0]
    away.crash(power=False, down=None)
    for _ in range(8):
        nodes.post(20)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    nodes.partition(primary, nodes.record(STRONG).partition_id).rollover(primary.broker.loop.wall(primary.local_now))
    nodes.run(1.0)
    for node in nodes.machines:
        if node is not away:
            nodes.network.slow(node.name, away.name, 0.5)
    away.boot()
    client = nodes.client(away.name)
    _, broker = introduce(nodes, away.name, cluster_node_id=-1)
    roles, answered = set[PartitionRole](), 0
    while not all(hosted.machine.role is PartitionRole.REPLICA_HEALED for hosted in nodes.replication(away).hosted):
        roles |= {hosted.machine.role for hosted in nodes.replication(away).hosted}
        for session in (client, broker):
            session.link.receive(0.0)
            session.link.send(HEARTBEAT_REQ)
            begun = nodes.now
            assert session.link.receive(1.0) and nodes.now - begun < 0.1
            answered += 1
    assert PartitionRole.REPLICA_HEALING in roles and answered > 10, (roles, answered)


def test_a_restarted_member_is_available_when_it_has_all_committed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a rolling restart the next member stops then: a majority must have all committed records."""
    monkeypatch.setattr(replica, "RUN_RECORDS_MAX", 4)
    monkeypatch.setattr(replica, "MESSAGE_RECORDS_MAX", 4)
    nodes = available_cluster(2)
    nodes.run(1.0)  # all members follow the leader
    nodes.post(5)
    index, away = nodes.record(STRONG).partition_id, nodes.replicas()[0]
    away.crash(power=False, down=None)
    for _ in range(4):
        nodes.post(20)
    for node in nodes.machines:
        if node is not away:
            nodes.network.slow(node.name, away.name, 0.05)
    committed = nodes.replication(nodes.primary(index)).hosted[index].machine.committed
    away.boot()
    reasons = set[str]()
    while nodes.cluster(away.name).unavailable:
        assert nodes.statuses(away).own is NodeStatus.E_STARTING
        reasons.add(nodes.cluster(away.name).unavailable)
        nodes.run(0.001)
    assert nodes.statuses(away).own is NodeStatus.E_AVAILABLE
    assert nodes.partition(away, index).summary.last >= committed
    assert reasons == {"c3 (WAITING_FOR_MEMBERS: waits for [n2, 2], [n3, 3])", "c3 (this node is catching up)"}


def test_a_restarted_member_is_ready_when_it_is_connected_with_all_running_members() -> None:
    """The member that dials it may have failed just before; until its next attempt they are not connected."""
    seen = set[str]()
    for seed in range(5, 11):
        nodes = available_cluster(seed)
        away = nodes.node("n3")
        away.crash(power=False, down=None)
        nodes.run(4.0 + seed / 4)
        away.boot()
        begun = nodes.now
        while nodes.cluster("n3").unready:
            seen.add(nodes.cluster("n3").unready)
            nodes.run(0.01)
        assert nodes.now - begun < 3.1
        nodes.run(0.05)  # the last message of the negotiation arrives
        for name in ("n1", "n2"):
            assert nodes.node(name).broker.sessions.peers["c3"].is_up(3)
    assert seen & {f"c3 (not connected with [{name}, {name[1:]}] yet)" for name in ("n1", "n2")}, seen


def test_a_restarted_member_waits_for_a_missing_member_only_for_a_limited_time() -> None:
    nodes = available_cluster(2)
    gone, away = nodes.node("n1"), nodes.node("n3")
    gone.crash(power=False, down=None)
    nodes.run(5.0)
    away.crash(power=False, down=1.0)
    nodes.run(5.0)
    assert nodes.cluster("n3").unready == "c3 (not connected with [n1, 1] yet)" and not nodes.cluster("n3").unavailable
    nodes.run(3.0)
    assert not nodes.cluster("n3").unready


def test_a_started_member_does_not_wait_for_a_member_that_crashes_later() -> None:
    nodes = available_cluster(2)
    gone, away = nodes.node("n1"), nodes.node("n3")
    away.crash(power=False, down=0.5)
    nodes.run(0.6)
    while nodes.cluster("n3").unready:
        nodes.run(0.01)
    gone.crash(power=False, down=None)
    nodes.run(0.1)
    assert not away.broker.sessions.peers["c3"].is_up(1) and "not connected" not in nodes.cluster("n3").unready


def view_of_others(nodes: ReplicatingCluster, away: SimulatedNode) -> dict[str, Any]:
    """Return the states of the other members after a member went down."""
    found: dict[str, Any] = {}
    for node in nodes.machines:
        if node is not away:
            cluster, replication = nodes.cluster(node.name), nodes.replication(node)
            standing = cluster.leadership.standing
            assert cluster.members is not None
            found[node.name] = (
                nodes.statuses(node).own, dict(nodes.statuses(node).other_nodes), standing.state, standing.leader,
                cluster.leadership.active, dict(cluster.metadata.state.partitions),
                [hosted.machine.role for hosted in replication.hosted],
                [replication.primary_of(index) for index in range(6)],
                sorted(cluster.queues), sorted(cluster.members.relays.opened))
    return found


@pytest.mark.spec("cluster", 10)
@pytest.mark.parametrize("victim", range(3))
def test_an_unavailable_advisory_before_a_crash_has_the_same_outcome_as_the_crash_alone(victim: int) -> None:
    found = []
    for goodbye in (True, False):
        nodes = available_cluster(2, masterAssignment="E_LEAST_ASSIGNED", numPartitions=6)
        leader = nodes.leader
        away = (leader, *(node for node in nodes.machines if node is not leader))[victim]
        staying, other = (node for node in nodes.machines if node is not away)
        assert nodes.admin(other, "CLUSTERS CLUSTER c3 STATE ELECTOR MODE NEVER") == "SUCCESS"  # one candidate is left
        nodes.client(staying.name).open(STRONG, write=1).post(b"x")
        before = set(nodes.primaries().values())
        if goodbye:
            nodes.statuses(away).set_own(NodeStatus.E_UNAVAILABLE)
            away.request_turn()
            nodes.run(0.05)
            assert all(nodes.statuses(node).other_nodes[int(away.name[1:])] is NodeStatus.E_UNAVAILABLE
                       for node in nodes.machines if node is not away)
        away.crash(power=False, down=None)
        nodes.run(30.0)
        after = set(nodes.primaries().values())
        assert after != before and int(away.name[1:]) not in {primary.node_id for primary in after}
        found.append(view_of_others(nodes, away))
    assert found[0] == found[1]


def wipe(node: SimulatedNode, *kinds: str) -> None:
    """Remove files of a stopped member."""
    for path in node.disk.paths():
        if any(kind in path for kind in kinds):
            node.disk.remove(path)


LEDGER, DATA = (".bmq_csl",), (".bmq_journal", ".bmq_data", ".bmq_qlist")
BOTH = ("/storage/",)


@pytest.mark.spec("cluster", 45)
@pytest.mark.parametrize("kinds", [LEDGER, DATA, BOTH], ids=["ledger", "data", "both"])
@pytest.mark.parametrize("primary", [True, False])
def test_a_member_that_lost_its_files_gets_all_data_from_the_others(kinds: tuple[str, ...], primary: bool) -> None:
    nodes = available_cluster(4)
    nodes.post(20)
    index = nodes.record(STRONG).partition_id
    node = nodes.primary(index) if primary else nodes.replicas(index)[0]
    node.crash(power=False, down=None)
    wipe(node, *kinds)
    nodes.run(5.0)
    nodes.post(5)
    node.boot()
    nodes.wait_until_available()
    nodes.run(1.0)
    nodes.judge_partitions()
    nodes.judge_all()
    others = [each for each in nodes.machines if each is not node]
    others[0].crash(power=True, down=None)
    nodes.run(8.0)
    assert set(nodes.stored(node)) == set(nodes.acknowledged[STRONG])
    nodes.post(3)
