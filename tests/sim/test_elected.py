"""Elections and replication of metadata in simulated clusters.

Tests `bmqtwist/member/leadership.py` and `bmqtwist/member/metadata.py`; the elector's cells are in
`tests/table/test_elector.py`.
"""

from __future__ import annotations

import re
from random import Random

import pytest
from kit.client import RequestRefused
from kit.disks import fail_syncs

from bmqtwist.broker.commands import BEGUN
from bmqtwist.cluster import metadata_log
from bmqtwist.cluster.election_events import ElectionState
from bmqtwist.member.leadership import Leadership
from bmqtwist.storage.slot_file import VoteFile
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import LeaderHeartbeat
from bmqtwist.wire.control import ElectorMessage, encode_event
from sim.elected import INACTIVITY_S, SETTLE_S, ElectedCluster, resume

QUEUE = "bmq://bmq.test.persistent.priority/q"


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_members_elect_a_leader_and_all_have_its_first_record(size: int, seed: int) -> None:
    nodes = ElectedCluster(seed, size, {"n2": {"clock_ahead": 500.5}})
    nodes.run(SETTLE_S)
    leader = nodes.leader
    standing = nodes.cluster(leader.name).leadership.standing
    assert standing.term <= 2 and len(nodes.believed()) == 1
    for node in nodes.machines:
        primaries = nodes.cluster(node.name).metadata.state.partitions
        assert {primary.node_id for primary in primaries.values()} == {standing.leader} and len(primaries) == 2
        assert VoteFile.name in node.disk.names(f"/memory/{node.name}/storage")
    nodes.judge_all()


def test_a_change_proposed_at_the_leader_reaches_all_members_and_one_at_a_follower_is_refused() -> None:
    nodes = ElectedCluster(1, 3)
    nodes.run(SETTLE_S)
    leader = nodes.leader
    other = next(node for node in nodes.machines if node is not leader)
    uris = [nodes.assign(leader) for _ in range(20)]
    nodes.assign(other)
    nodes.run(2.0)
    assert sorted(nodes.assigned) == sorted(uris)
    nodes.judge_all()


@pytest.mark.parametrize("how", ["kill", "power", "stop"])
@pytest.mark.parametrize("seed", range(3))
def test_the_next_leader_has_all_committed_changes(how: str, seed: int) -> None:
    nodes = ElectedCluster(seed, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    for _ in range(5):
        nodes.assign(former)
    nodes.run(1.0)
    nodes.assign(former)  # its outcome is unknown
    if how == "stop":
        former.stop(down=None)
    else:
        former.crash(power=how == "power", down=None)
    nodes.run(3.0)
    assert nodes.leader is not former and len(nodes.assigned) >= 5
    assert nodes.cluster(nodes.leader.name).metadata.state.queues.keys() >= nodes.assigned.keys()
    for _ in range(5):
        nodes.assign(nodes.leader)
    nodes.run(1.0)
    assert len(nodes.assigned) >= 10
    former.boot()
    nodes.run(SETTLE_S)
    assert nodes.leader is not former
    nodes.judge_all()


def test_a_silently_crashed_leader_is_replaced_after_the_inactivity_time() -> None:
    nodes = ElectedCluster(2, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    former.crash(power=True, down=None, silently=True)
    nodes.run(INACTIVITY_S + 4.0)
    assert nodes.leader is not former
    former.boot()
    nodes.run(SETTLE_S)
    nodes.judge_all()


@pytest.mark.spec("cluster", 38)
@pytest.mark.parametrize("both", [True, False])
def test_an_isolated_leader_steps_down_and_follows_after_the_heal(both: bool) -> None:
    """`both` = False: only its outgoing messages are lost."""
    nodes = ElectedCluster(3, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    others = [node for node in nodes.machines if node is not former]
    for node in others:
        nodes.network.cut(former.name, node.name, both)
    nodes.assign(former)
    alone = nodes.cluster(former.name).metadata.log.log.last
    nodes.run(INACTIVITY_S + 0.1)
    assert former not in nodes.believed()
    nodes.run(5.0)
    assert [node for node in nodes.believed() if node is not former]
    assert not nodes.assigned, "nothing is committed without a majority"
    for node in others:
        nodes.network.heal(former.name, node.name, both)
    nodes.run(SETTLE_S)
    nodes.judge_all()
    logs = [nodes.cluster(node.name).metadata.log.log for node in nodes.machines]
    assert len({log.last for log in logs}) == 1 and not any(log.has_record(alone) for log in logs), "it is truncated"


def test_a_leader_that_was_paused_becomes_a_follower() -> None:
    nodes = ElectedCluster(4, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    former.pause()
    nodes.run(INACTIVITY_S + 4.0)
    leaders = [node for node in nodes.believed() if node is not former]
    assert len(leaders) == 1
    nodes.assign(leaders[0])
    former.resume()
    nodes.run(SETTLE_S)
    assert nodes.leader is leaders[0] and len(nodes.assigned) == 1
    nodes.judge_all()


def test_a_single_member_of_three_does_not_lead_and_keeps_its_term() -> None:
    nodes = ElectedCluster(5, 3)
    nodes.run(SETTLE_S)
    term = nodes.cluster("n1").leadership.standing.term
    for name in ("n2", "n3"):
        nodes.node(name).crash(power=True, down=None)
    nodes.run(600.0)
    standing = nodes.cluster("n1").leadership.standing
    assert (standing.state, standing.leader, standing.term) == (ElectionState.FOLLOWER, None, term)
    nodes.node("n2").boot()
    nodes.run(SETTLE_S)
    assert nodes.leader is not None


@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_of_all_members_loses_no_committed_change(seed: int) -> None:
    nodes = ElectedCluster(seed, 3)
    nodes.run(SETTLE_S)
    for round_ in range(3):
        for _ in range(3):
            nodes.assign(nodes.leader)
        nodes.run(0.03 * round_)
        for node in nodes.machines:
            node.crash(power=True, down=0.5)
        nodes.run(SETTLE_S)
        nodes.judge_all()
    terms = {nodes.cluster(node.name).leadership.standing.term for node in nodes.machines}
    assert len(terms) == 1 and terms.pop() >= 4


@pytest.mark.spec("cluster", 37)
@pytest.mark.parametrize("retained, how", [(0, "Snapshot"), (1 << 20, "Entries")])
def test_a_restarted_member_gets_missing_records_or_a_snapshot(
        retained: int, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "RETAINED_BYTES", retained)
    nodes = ElectedCluster(6, 3)
    nodes.run(SETTLE_S)
    leader = nodes.leader
    away = next(node for node in nodes.machines if node is not leader)
    away.crash(power=False, down=None)
    for _ in range(30):
        nodes.assign(leader)
    nodes.run(2.0)
    sent = []
    send = Leadership.send
    monkeypatch.setattr(Leadership, "send", lambda self, node_id, message: (
        sent.append(type(message).__name__), send(self, node_id, message)))
    away.boot()
    nodes.run(SETTLE_S)
    assert len(nodes.assigned) == 30 and ("Snapshot" in sent) == (how == "Snapshot")
    nodes.judge_all()


@pytest.mark.spec("cluster", 26)
@pytest.mark.parametrize("seed", range(3))
def test_a_restarted_member_keeps_its_term_and_vote(seed: int) -> None:
    nodes = ElectedCluster(seed, 3)
    nodes.run(SETTLE_S)
    ballots = {node.name: nodes.cluster(node.name).leadership.elector.ballot for node in nodes.machines}
    before = {name: (ballot.term, ballot.vote) for name, ballot in ballots.items()}
    assert len([vote for _, vote in before.values() if vote is not None]) >= 2
    for node in nodes.machines:
        node.crash(power=True, down=None)
    for node in nodes.machines:
        node.boot()
        ballot = nodes.cluster(node.name).leadership.elector.ballot
        assert (ballot.term, ballot.vote) == before[node.name]


def test_a_damaged_vote_file_raises_an_alarm_and_is_rewritten_under_a_leader() -> None:
    nodes = ElectedCluster(7, 3)
    nodes.run(SETTLE_S)
    node = next(each for each in nodes.machines if each is not nodes.leader)
    node.crash(power=False, down=None)
    path = f"/memory/{node.name}/storage/{VoteFile.name}"
    size = node.disk.open(path).size()
    node.disk.open(path).write(0, [b"\xff" * size])
    node.boot()
    nodes.run(SETTLE_S)
    assert any("has lost data of this node: the vote (damaged)" in line for line in node.log())
    nodes.judge_all()
    node.crash(power=False, down=1.0)
    nodes.run(SETTLE_S)
    assert sum("has lost data of this node: the vote (damaged)" in line for line in node.log()) == 1


def test_a_leader_whose_disk_fails_steps_down() -> None:
    nodes = ElectedCluster(8, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    fail_syncs(former)
    nodes.assign(former)
    nodes.run(5.0)
    assert former not in nodes.believed()
    former.clear_disk_faults()
    nodes.run(SETTLE_S)
    assert nodes.leader is not None


def test_opens_are_refused_without_primaries() -> None:
    nodes = ElectedCluster(9, 3)
    nodes.node("n3").crash(power=False, down=None)
    nodes.node("n2").crash(power=False, down=None)
    nodes.run(SETTLE_S)
    client = nodes.client("n1")
    with pytest.raises(RequestRefused) as refused:
        client.request({"openQueue": {"handleParameters": client.handle_parameters(QUEUE, 0, write=1)}}, deadline=20.0)
    assert refused.value.category in ("E_NOT_READY", "E_TIMEOUT")


@pytest.mark.spec("cluster", 39)
@pytest.mark.parametrize("seed", range(5))
def test_a_record_durable_at_a_quorum_is_committed_by_the_next_leader(seed: int) -> None:
    nodes = ElectedCluster(seed, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    followers = [nodes.cluster(node.name).metadata for node in nodes.machines if node is not former]
    uri = nodes.assign(former)
    while not any(each.log.lsn > each.log.committed and len(each.log.log.records) > each.log.log.covered
                  and each.log.log.durable == len(each.log.log.records) for each in followers):
        nodes.run(0.0001)
    former.crash(power=True, down=None)
    assert not any(uri in each.state.queues for each in followers)
    nodes.run(3.0)
    assert all(uri in each.state.queues for each in followers)
    former.boot()
    nodes.run(SETTLE_S)
    assert {nodes.cluster(node.name).metadata.state.queues[uri].key for node in nodes.machines} == {
        followers[0].state.queues[uri].key}
    nodes.judge_all()


def test_a_cluster_of_one_member_has_no_vote_file_and_no_links() -> None:
    nodes = ElectedCluster(1, 1)
    node: SimulatedNode = nodes.machines[0]
    nodes.run(1.0)
    assert nodes.leader is node and VoteFile.name not in node.disk.names("/memory/n1/storage")
    nodes.client("n1").open(QUEUE, write=1).post(b"taken")


def elector(nodes: ElectedCluster, name: str, command: str, encoding: str = "") -> str:
    """An admin command about the elector of a node."""
    return nodes.node(name).broker.commands.run_at_once(f"{encoding}CLUSTERS CLUSTER c3 {command}", "test").text


def test_the_status_of_each_member_shows_leader_and_connections() -> None:
    nodes = ElectedCluster(10, 3)
    nodes.run(SETTLE_S)
    leader = nodes.cluster(nodes.leader.name).node_id
    for node in nodes.machines:
        text = elector(nodes, node.name, "STATUS")
        assert f"Leader Node           : [n{leader}, {leader}]" in text and "Leader Status         : ACTIVE" in text
        state = "LEADER" if node is nodes.leader else "FOLLOWER"
        assert f"Self State            : {state}" in text and text.count("E_AVAILABLE") == 3
    nodes.node("n3").crash(power=False, down=None)
    nodes.run(1.0)
    assert elector(nodes, "n1", "STATUS").count("E_UNAVAILABLE") == 1


@pytest.mark.spec("cluster", 29)
def test_admin_commands_transfer_the_lead_and_exclude_a_member_from_leading() -> None:
    nodes = ElectedCluster(11, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    one, two = (node for node in nodes.machines if node is not former)
    assert elector(nodes, one.name, f"STATE ELECTOR TRANSFER {two.name}").endswith("run the command there")
    assert "has no node 'x'" in elector(nodes, former.name, "STATE ELECTOR TRANSFER x")
    assert elector(nodes, former.name, f"STATE ELECTOR TRANSFER {one.name}") == BEGUN
    nodes.run(1.0)
    assert nodes.leader is one
    assert elector(nodes, two.name, "STATE ELECTOR MODE never") == "SUCCESS"
    assert elector(nodes, one.name, "STATE ELECTOR MODE NEVER") == "SUCCESS"
    nodes.run(5.0)
    assert nodes.leader is former
    assert elector(nodes, one.name, "STATE ELECTOR MODE maybe") == "MODE must be one of NORMAL, FORCE, NEVER, not 'maybe'"
    nodes.judge_all()


def test_the_transition_history_of_an_elector_lists_states_and_causes() -> None:
    nodes = ElectedCluster(12, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    other = next(node for node in nodes.machines if node is not former)
    number = nodes.cluster(former.name).node_id
    former.crash(power=False, down=None)
    nodes.run(5.0)
    lines = elector(nodes, other.name, "STATE ELECTOR STORY").splitlines()
    assert lines[0].endswith("DORMANT -> FOLLOWER     the node has started")
    assert any(line.endswith(f"the connection to node {number} is lost") for line in lines)
    assert '"cause":"the node has started"' in elector(
        nodes, other.name, "STATE ELECTOR STORY", "ENCODING JSON_COMPACT ")


@pytest.mark.spec("cluster", 25)
def test_a_configured_quorum_above_the_number_of_members_prevents_a_leader() -> None:
    nodes = ElectedCluster(13, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    for node in nodes.machines:
        if node is not former:
            assert "Quorum set to 100" in elector(nodes, node.name, "STATE ELECTOR SET QUORUM 100")
    former.crash(power=False, down=None)
    nodes.run(30.0)
    assert not nodes.believed()


_LEADER = re.compile(r"ElectorStateChangeCb .*new leaderNodeId: (-?\d+), new term: (\d+), old state: \w+, old leaderNodeId: "
                   r"(-?\d+), old term: (\d+)")


@pytest.mark.spec("cluster", 30)
@pytest.mark.parametrize("seed", range(4))
def test_leader_notifications_of_a_member_never_go_back_to_an_earlier_term(seed: int) -> None:
    random = Random(f"{seed}/notifications")
    nodes = ElectedCluster(seed, 3)
    for _ in range(25):
        node, other = random.sample(nodes.machines, 2)
        if node.up and not node.paused and random.random() < 0.5:
            node.pause()
        elif random.random() < 0.5:
            nodes.network.slow(node.name, other.name, random.random() * 3)
        else:
            resume(nodes)
            nodes.network.slow(node.name, other.name, 0.0)
        nodes.run(random.random() * 5)
    resume(nodes)
    nodes.run(SETTLE_S)
    leaders: dict[int, int] = {}
    changes = 0
    for node in nodes.machines:
        last = None
        reports = [tuple(map(int, found.groups())) for found in map(_LEADER.search, node.log()) if found]
        for leader, term, old_leader, old_term in reports:
            assert last is None or (old_leader, old_term) == last, "each follows the one before"
            assert term >= old_term and (leader == -1 or leaders.setdefault(term, leader) == leader), "a stale one"
            last, changes = (leader, term), changes + 1
    assert len(leaders) > 2 and changes > 20


@pytest.mark.spec("cluster", 30)
def test_a_heartbeat_of_an_earlier_term_causes_no_leader_notification() -> None:
    nodes = ElectedCluster(14, 3)
    nodes.run(SETTLE_S)
    former = nodes.leader
    term = nodes.cluster(former.name).leadership.standing.term
    former.crash(power=False, down=1.0)
    nodes.run(SETTLE_S)
    leader = nodes.leader
    other = next(node for node in nodes.machines if node not in (former, leader))
    links, line_count = nodes.cluster(former.name).leadership._links, len(other.log())
    assert leader is not former and links is not None
    links.send(int(other.name[1:]), encode_event(ElectorMessage(term, "leaderHeartbeat", LeaderHeartbeat())))
    former.request_turn()
    nodes.run(1.0)
    assert not [line for line in other.log()[line_count:] if "ElectorStateChangeCb" in line] and nodes.leader is leader
