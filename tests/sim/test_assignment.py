"""Assignment of primaries to partitions and of queues to partitions, while members and leaders change.

Tests `bmqtwist/member/appointments.py` and `bmqtwist/member/queue_changes.py`; the choice itself is in
`bmqtwist/cluster/changes.py`, planned moves are in `test_moves.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from kit.client import RequestRefused

from bmqtwist.cluster.changes import AssignPartitions, AssignQueue, ChangePlanner
from bmqtwist.cluster.state import ClusterState, Primary
from bmqtwist.member import dispatch
from bmqtwist.member.appointments import Appointments
from bmqtwist.member.proposals import Proposals
from bmqtwist.testing.config import domain_config
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import (
    ClusterMessage,
    LeaderAdvisory,
    LeaderMessageSequence,
    PartitionPrimaryInfo,
    PrimaryStatus,
    PrimaryStatusAdvisory,
    QueueInfo,
)
from bmqtwist.wire.control import ControlMessage, encode_event
from sim.assignments import LEAST, number, transfer
from sim.replicated import EVENTUAL, STRONG, ReplicatingCluster, available_cluster

_PRIMARY_LINE = re.compile(r"Setting primary of Partition \[(\d+)\] to \[\[n\d+, (\d+)\]\], leaseId: \[(\d+)\]")


def logged_primaries(nodes: ReplicatingCluster) -> dict[tuple[int, int], int]:
    """Return (partition, lease) -> node id from the logs; AssertionError if a lease belongs to two nodes."""
    found: dict[tuple[int, int], int] = {}
    for node in nodes.machines:
        for line in node.log():
            match = _PRIMARY_LINE.search(line)
            if match:
                index, who, lease = map(int, match.groups())
                assert found.setdefault((index, lease), who) == who, f"lease {lease} of partition {index} has two nodes"
    return found


@pytest.mark.spec("cluster", 50)
@pytest.mark.parametrize("assignment", [LEAST, "E_LEADER_IS_MASTER_ALL"])
def test_available_primaries_keep_partition_and_lease_when_the_leader_changes(assignment: str) -> None:
    nodes = available_cluster(1, masterAssignment=assignment, numPartitions=6)
    nodes.post(5)
    before = nodes.primaries()
    for node in nodes.machines * 2:
        transfer(nodes, node)
        nodes.run(2.0)
        assert nodes.primaries() == before
    former = nodes.leader
    former.crash(power=False, down=None)
    nodes.run(6.0)
    after = nodes.primaries()
    assert nodes.leader is not former
    for index, primary in before.items():
        assert (after[index] == primary) == (primary.node_id != number(former)), index
    nodes.post(5)


@pytest.mark.spec("cluster", 51)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_partition_whose_primary_is_down_gets_another_node_and_the_next_lease(how: str) -> None:
    nodes = available_cluster(2, masterAssignment=LEAST, numPartitions=5)
    for former in nodes.machines:
        before = nodes.primaries()
        if how == "stop":
            former.stop(down=None)
            nodes.until(lambda former=former: not former.up)  # type: ignore[misc]
        else:
            former.crash(power=False, down=None)
        nodes.run(6.0)
        after = nodes.primaries()
        for index, primary in before.items():
            if primary.node_id == number(former):
                assert after[index].node_id != primary.node_id and after[index].lease == primary.lease + 1
            else:
                assert after[index] == primary
        former.boot()
        nodes.wait_until_available()
    assert len(logged_primaries(nodes)) > 5


@pytest.mark.spec("cluster", 52)
@pytest.mark.parametrize("count, partitions, lost", [(3, 4, 1), (5, 7, 1), (5, 7, 2), (5, 3, 2)])
def test_least_assigned_nodes_become_primaries_so_that_loads_differ_by_at_most_one(
        count: int, partitions: int, lost: int) -> None:
    nodes = available_cluster(3, count, masterAssignment=LEAST, numPartitions=partitions)

    def spread() -> int:
        loads = Counter({number(node): 0 for node in nodes.machines if node.up})
        loads.update(primary.node_id for primary in nodes.primaries().values())
        return max(loads.values()) - min(loads.values())
    assert spread() <= 1
    away = nodes.machines[-lost:]
    for node in away:
        node.crash(power=False, down=None)
    nodes.run(6.0)
    assert spread() <= 1


@pytest.mark.spec("cluster", 54)
def test_a_new_queue_is_assigned_to_the_first_partition_with_the_fewest_queues() -> None:
    nodes = available_cluster(4)
    clients = [nodes.client(node.name) for node in nodes.machines]
    uris = [f"bmq://bmq.test.persistent.priority/q{each}" for each in range(5)]
    for uri, client in zip(uris, clients * 2, strict=False):
        client.open(uri, write=1)
    assert [nodes.record(uri).partition_id for uri in uris] == [0, 1, 0, 1, 0]
    nodes.admin(nodes.primary(1), "CLUSTERS CLUSTER c3 FORCE_GC_QUEUES")
    clients[0].queues[0][0].close()
    nodes.run(0.5)
    nodes.admin(nodes.primary(0), "CLUSTERS CLUSTER c3 FORCE_GC_QUEUES")
    nodes.run(0.5)
    clients[0].open("bmq://bmq.test.persistent.priority/q6", write=1)
    assert nodes.record("bmq://bmq.test.persistent.priority/q6").partition_id == 0, "both partitions have two queues"


@pytest.mark.spec("cluster", 54)
def test_no_queue_is_assigned_to_a_partition_without_primary() -> None:
    state = ClusterState()
    state.apply(ClusterMessage("leaderAdvisory", LeaderAdvisory(LeaderMessageSequence(), [PartitionPrimaryInfo(1, 1, 1)], [
        QueueInfo(f"bmq://d/q{each}", b"key%02d" % each, 1, []) for each in range(3)])))
    plan = ChangePlanner(1, LEAST).plan(AssignQueue("bmq://d/new", ("__default",), 1), state, set())
    assert plan.result.partition_id == 1, "partition 0 has fewer queues, but no primary"


@pytest.mark.spec("cluster", 55)
@pytest.mark.parametrize("seed", range(3))
def test_concurrent_opens_of_a_new_queue_at_three_members_create_one_queue(seed: int) -> None:
    nodes = available_cluster(seed, masterAssignment=LEAST)
    clients = [nodes.client(node.name) for node in nodes.machines]
    nodes.run(1.0)  # until the COMMIT of the leader's first record is durable
    before = nodes.cluster(nodes.leader.name).metadata.log.lsn
    asked = [client.send_request({"openQueue": {"handleParameters": client.handle_parameters(STRONG, 0, write=1)}})
             for client in clients]
    for client, number_ in zip(clients, asked, strict=True):
        assert "openQueueResponse" in client.response(number_)
    nodes.run(1.0)
    records = {nodes.cluster(node.name).metadata.state.queues[STRONG].key for node in nodes.machines}
    stored = {tuple(nodes.partition(node, nodes.record(STRONG).partition_id).state.queues) for node in nodes.machines}
    assert len(records) == 1 and stored == {tuple(records)}
    term, sequence = nodes.cluster(nodes.leader.name).metadata.log.lsn
    assert (term, sequence) == (before[0], before[1] + 2), "only an assignment and its COMMIT"


LIMITED = {"few": json.dumps(domain_config("few", maxQueues=5))}


@pytest.mark.spec("cluster", 57)
def test_the_queue_limit_of_a_domain_applies_to_opens_at_all_members_with_one_alarm() -> None:
    nodes = available_cluster(5, texts=LIMITED)
    clients = [nodes.client(node.name) for node in nodes.machines]
    asked = []
    for each in range(9):
        client = clients[each % 3]
        asked.append((client, client.send_request({"openQueue": {"handleParameters": client.handle_parameters(
            f"bmq://few/q{each}", each, write=1)}})))
    refused = []
    for client, request in asked:
        try:
            client.response(request)
        except RequestRefused as error:
            refused.append(error)
    assert [(each.category, each.code) for each in refused] == [("E_REFUSED", -205)] * 4
    nodes.run(1.0)
    assert sum(uri.startswith("bmq://few/") for uri in nodes.cluster("n1").metadata.state.queues) == 5
    lines = [line for node in nodes.machines for line in node.log()]
    assert sum("DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK" in line and "(current: 4, limit: 5)" in line for line in lines) == 1
    assert any("DOMAIN_QUEUE_LIMIT_FULL" in line for line in lines)


@pytest.mark.spec("cluster", 58)
def test_an_open_succeeds_after_a_node_refused_the_assignment_because_it_does_not_lead(
        monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = available_cluster(6)
    leader = nodes.leader
    asks, other = (node for node in nodes.machines if node is not leader)
    proposals = nodes.cluster(asks.name).proposals
    assert proposals is not None
    answers = []
    answered = Proposals._on_answer

    def spied(self: Proposals, sender: int, answer: object, wall: int) -> None:
        answers.append((sender, answer))
        answered(self, sender, answer, wall)  # type: ignore[arg-type]
    monkeypatch.setattr(Proposals, "_on_answer", spied)
    client = nodes.client(asks.name)
    with monkeypatch.context() as mistaken:
        mistaken.setattr(proposals, "_leader", lambda: number(other))
        asked = client.send_request({"openQueue": {"handleParameters": client.handle_parameters(STRONG, 0, write=1)}})
        nodes.run(0.5)
    [(sender, answer)] = answers
    assert (sender, answer.refused, answer.code) == (number(other), True, -200)
    transfer(nodes, other)
    assert "openQueueResponse" in client.response(asked)


def test_an_unanswered_assignment_is_requested_again_from_the_same_leader_in_its_next_term(
        monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = available_cluster(7)
    leader = nodes.leader
    asks, other = (node for node in nodes.machines if node is not leader)
    for node in (asks, other):
        assert nodes.admin(node, "CLUSTERS CLUSTER c3 STATE ELECTOR MODE NEVER") == "SUCCESS"
    leadership, client = nodes.cluster(leader.name).leadership, nodes.client(asks.name)
    term = leadership.standing.term
    with monkeypatch.context() as lossy:
        lossy.setitem(dispatch.CLUSTER_MESSAGES, "request", lambda *arguments: None)
        asked = client.send_request({"openQueue": {"handleParameters": client.handle_parameters(STRONG, 0, write=1)}})
        nodes.run(0.2)
    leadership.on_leadership_lost("test")
    assert "openQueueResponse" in client.response(asked)
    nodes.run(1.0)  # until the third node follows, too
    assert nodes.leader is leader and leadership.standing.term > term


@pytest.mark.spec("cluster", 61)
def test_a_primary_that_is_not_active_within_max_time_master_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Appointments, "_replace_early", lambda *arguments: False)  # a primary that reports no reason
    nodes = available_cluster(8, 5, masterAssignment=LEAST, members={"clusterMonitorConfig": {
        "maxTimeMaster": 20, "thresholdMaster": 10}})
    nodes.post(5, EVENTUAL)
    index = nodes.record(EVENTUAL).partition_id
    former, leader = nodes.primary(index), nodes.leader
    if former is leader:
        transfer(nodes, nodes.replicas(index)[0])
        leader = nodes.leader
    for node in nodes.machines:
        if node not in (former, leader):
            nodes.network.cut(former.name, node.name)
    lease = nodes.cluster(leader.name).metadata.state.partitions[index].lease
    nodes.run(18.0)
    assert nodes.cluster(leader.name).metadata.state.partitions[index] == Primary(number(former), lease), "it is connected"
    assert not nodes.replication(former).is_active_primary(index)
    nodes.run(8.0)
    after = nodes.cluster(leader.name).metadata.state.partitions[index]
    assert after.node_id != number(former) and after.lease == lease + 1
    assert nodes.cluster(leader.name).primary_status(index) == "ACTIVE"
    assert any(f"Partition [{index}]: node {number(former)} has been its primary for 20 s" in line for line in leader.log())


def send_primary_status(nodes: ReplicatingCluster, sender: SimulatedNode, target: SimulatedNode, lease: int,
                        active: bool = True) -> None:
    """Send the primary status of a node in partition 0 to another node, and process it."""
    status = PrimaryStatus.E_ACTIVE if active else PrimaryStatus.E_PASSIVE
    nodes.cluster(sender.name).replication._links.send(number(target), encode_event(  # type: ignore[union-attr]
        ControlMessage(None, "clusterMessage", ClusterMessage("primaryStatusAdvisory", PrimaryStatusAdvisory(
            0, lease, status)))))
    sender.request_turn()
    nodes.run(0.1)


@pytest.mark.spec("cluster", 62)
def test_a_primary_status_of_another_node_or_lease_is_ignored() -> None:
    nodes = available_cluster(9)
    primary = nodes.primary()
    other, listener = nodes.replicas()
    known = nodes.primaries()[0]
    for sender, lease, active in ((other, known.lease, True), (other, known.lease + 3, True), (other, 0, True),
                                  (primary, known.lease - 1, True), (primary, known.lease - 1, False),
                                  (primary, known.lease + 2, True), (other, known.lease, False)):
        send_primary_status(nodes, sender, listener, lease, active)
        assert nodes.replication(listener).primary_of(0) == known, (sender.name, lease, active)
    assert sum("to which no leader appointed it" in line for line in listener.log())
    client = nodes.client(listener.name)
    assert client.open(STRONG, write=1).post(b"another")
    send_primary_status(nodes, primary, listener, known.lease, active=False)
    assert nodes.replication(listener).primary_of(0) is None
    send_primary_status(nodes, primary, listener, known.lease)
    assert nodes.replication(listener).primary_of(0) == known


@pytest.mark.spec("cluster", 62)
def test_a_primary_with_a_new_lease_first_reports_the_old_lease_as_passive() -> None:
    """Otherwise other members would request queues of the old lease from it, which it refuses."""
    nodes = available_cluster(10)
    primary = nodes.primary()
    known = nodes.primaries()[0]
    leadership = nodes.cluster(nodes.leader.name).leadership
    leadership.metadata.propose(AssignPartitions([number(primary)], [number(primary)], {0: known.lease}),
                                lambda outcome, wall: None, nodes.leader.broker.loop.wall(nodes.leader.local_now))
    nodes.leader.request_turn()
    nodes.until(lambda: leadership.metadata.state.partitions[0] == Primary(number(primary), known.lease + 1), 5.0)
    nodes.until(lambda: nodes.replication(primary).is_active_primary(0), 5.0)
    nodes.run(0.5)
    for listener in nodes.replicas():
        said = [line for line in listener.log()
                if "received primary status advisory" in line and "partitionId = 0 " in line][-2:]
        assert [f"primaryLeaseId = {lease} status = {status} " in line for lease, status, line in zip(
            (known.lease, known.lease + 1), ("E_PASSIVE", "E_ACTIVE"), said, strict=True)] == [True, True], said


@pytest.mark.spec("cluster", 62)
def test_a_primary_status_takes_effect_when_the_metadata_reach_its_lease() -> None:
    nodes = available_cluster(10)
    leader = nodes.leader
    listener, next_one = (node for node in nodes.machines if node is not leader)
    known = nodes.primaries()[0]
    assert known.node_id == number(leader)
    nodes.network.slow(leader.name, listener.name, 1.0)
    leadership = nodes.cluster(leader.name).leadership
    leadership.metadata.propose(AssignPartitions([number(next_one)], [number(leader), number(next_one)], {0: known.lease}),
                                lambda outcome, wall: None, leader.broker.loop.wall(leader.local_now))
    leader.request_turn()
    expected = Primary(number(next_one), known.lease + 1)
    nodes.until(lambda: nodes.replication(next_one).is_active_primary(0), 5.0)
    nodes.run(0.1)
    assert nodes.cluster(listener.name).metadata.state.partitions[0] == known
    assert nodes.replication(listener).primary_of(0) != expected, "the metadata of this node are older"
    nodes.until(lambda: nodes.replication(listener).primary_of(0) == expected, 3.0)
