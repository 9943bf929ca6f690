"""Members that are added, removed and replaced: planned at the leader, or by the configurations of all nodes."""

from __future__ import annotations

from functools import cache, partial
from random import Random

import pytest

from bmqtwist.broker.commands import BEGUN
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.testing.cluster import PORT
from bmqtwist.testing.config import member_configuration
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.cluster import PARTITION
from sim.elected import ELECTOR
from sim.replicated import ReplicatingCluster, available_cluster

HEARTBEATS = {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 3}


def configure(node: SimulatedNode, count: int) -> None:
    """Give a stopped node the configuration of a cluster of `count` nodes."""
    node._configure = cache(partial(
        member_configuration, int(node.name[1:]), count, PORT, app={"heartbeats": HEARTBEATS, "tcp": {
            "heartbeatIntervalMs": 1000}}, cluster={"elector": ELECTOR, "partition": PARTITION}))


def new_node(nodes: ReplicatingCluster, number: int, count: int) -> SimulatedNode:
    """Create a node with empty storage, not started."""
    node = SimulatedNode(nodes.network, f"n{number}", f"n{number}:{PORT}", lambda: None,  # type: ignore[arg-type, return-value]
                         lambda configuration: nodes.domains)
    configure(node, count)
    return node


def restart(nodes: ReplicatingCluster, node: SimulatedNode, count: int) -> None:
    """Restart a node with the configuration of a cluster of `count` nodes."""
    node.crash(power=False, down=None)
    configure(node, count)
    node.boot()
    nodes.run(8.0)


def voters(nodes: ReplicatingCluster) -> list[list[str]]:
    """Return the names of the voters in the member list of each running node."""
    return [[each.name for each in members.nodes if each.voting] for node in nodes.machines if node.up
            for members in [nodes.cluster(node.name).metadata.state.members] if members is not None]


def state(nodes: ReplicatingCluster, node: SimulatedNode) -> MemberState:
    return nodes.cluster(node.name).leadership.member_state[0]


def test_a_node_is_added_under_load_while_each_node_restarts_once() -> None:
    nodes = available_cluster(1)
    nodes.post(20)
    assert nodes.admin(nodes.leader, "CLUSTERS CLUSTER c3 MEMBERS ADD 4 n4 tcp://n4:30114") == BEGUN
    nodes.run(1.0)
    assert "Planned nodes : n1, n2, n3, n4" in nodes.admin(nodes.machines[0], "CLUSTERS CLUSTER c3 STATUS")
    for node in list(nodes.machines):
        restart(nodes, node, 4)
        assert state(nodes, node) is MemberState.MEMBER
        nodes.post(3)
    added = new_node(nodes, 4, 4)
    added.boot()
    nodes.until(lambda: voters(nodes) == [["n1", "n2", "n3", "n4"]] * 4, 60.0)
    nodes.wait_until_available()
    nodes.post(5)
    nodes.run(2.0)
    nodes.judge_partitions()
    nodes.judge_all()
    nodes.machines[0].crash(power=True, down=None)
    nodes.run(8.0)
    nodes.post(3)
    nodes.machines[1].crash(power=True, down=None)
    nodes.run(8.0)
    assert not nodes.believed(), "two of four nodes are no majority"


def test_configurations_that_other_tools_deploy_change_the_members_once_all_nodes_agree() -> None:
    nodes = available_cluster(2)
    nodes.post(20)
    first, second, third = nodes.machines
    restart(nodes, first, 4)
    assert state(nodes, first) is MemberState.MISCONFIGURED
    assert "n4 (id 4) is not a member" in nodes.cluster(first.name).leadership.storage.mistake
    assert "MISCONFIGURED" in nodes.cluster(first.name).unready
    assert len(nodes.believed()) == 1 and first not in nodes.believed(), "the two other nodes are a majority"
    assert voters(nodes)[1:] == [["n1", "n2", "n3"]] * 2
    restart(nodes, second, 4)
    restart(nodes, third, 4)
    nodes.run(20.0)
    assert not nodes.believed() and {state(nodes, node) for node in nodes.machines} == {MemberState.MISCONFIGURED}
    added = new_node(nodes, 4, 4)
    added.boot()
    nodes.until(lambda: voters(nodes) == [["n1", "n2", "n3", "n4"]] * 4, 60.0)
    nodes.wait_until_available()
    nodes.post(3)
    nodes.run(2.0)
    nodes.judge_partitions()
    nodes.judge_all()


def test_a_removed_node_is_refused_and_serves_nothing() -> None:
    nodes = available_cluster(3)
    nodes.post(20)
    assert nodes.admin(nodes.leader, "CLUSTERS CLUSTER c3 MEMBERS REMOVE n3") == BEGUN
    nodes.run(1.0)
    first, second, removed = nodes.machines
    removed.crash(power=False, down=None)
    for node in (first, second):
        restart(nodes, node, 2)
    nodes.until(lambda: voters(nodes) == [["n1", "n2"]] * 2, 60.0)
    nodes.wait_until_available()
    nodes.post(5)
    removed.boot()
    nodes.run(20.0)
    assert removed not in nodes.believed() and state(nodes, removed) is MemberState.REMOVED
    assert "REMOVED" in nodes.cluster(removed.name).unready
    removed.crash(power=False, down=None)
    nodes.post(5)
    nodes.run(1.0)
    nodes.judge_partitions()


def test_a_cluster_of_one_node_grows() -> None:
    nodes = ReplicatingCluster(4, 1)
    nodes.run(2.0)
    first = nodes.machines[0]
    first.crash(power=False, down=None)
    configure(first, 2)
    second = new_node(nodes, 2, 2)
    second.boot()
    nodes.run(10.0)
    assert not nodes.believed(), "an empty node forms no cluster with itself alone"
    first.boot()
    nodes.until(lambda: voters(nodes) == [["n1", "n2"]] * 2, 60.0)
    nodes.wait_until_available()
    nodes.post(5)
    nodes.run(1.0)
    nodes.judge_partitions()


def test_changes_that_are_no_single_valid_step_are_refused() -> None:
    nodes = available_cluster(5)
    leader = nodes.leader
    other = next(node for node in nodes.machines if node is not leader)
    for command, reason in (("ADD 3 n4 tcp://n4:1", "two nodes would have the same id"),
                            ("ADD 4 n3 tcp://n4:1", "two nodes would have the same name"),
                            ("ADD 4 n4 tcp://n3:30114", "two nodes would have the same endpoint"),
                            ("ADD 4 n4 nonsense", "ENDPOINT must be"), ("REMOVE n9", "has no node 'n9'")):
        assert reason in nodes.admin(leader, f"CLUSTERS CLUSTER c3 MEMBERS {command}"), command
    assert "leads the cluster: run the command there" in nodes.admin(other, "CLUSTERS CLUSTER c3 MEMBERS REMOVE n3")
    assert nodes.admin(leader, "CLUSTERS CLUSTER c3 MEMBERS REMOVE n3") == BEGUN
    nodes.run(1.0)
    assert nodes.admin(leader, "CLUSTERS CLUSTER c3 MEMBERS CANCEL") == BEGUN
    nodes.run(1.0)
    assert "Planned" not in nodes.admin(leader, "CLUSTERS CLUSTER c3 STATUS")
    assert voters(nodes) == [["n1", "n2", "n3"]] * 3


def test_a_plan_is_answered_when_it_is_committed_or_has_failed() -> None:
    nodes, answers = available_cluster(6), list[str]()
    leader = nodes.leader
    leader.broker.commands.run("CLUSTERS CLUSTER c3 MEMBERS REMOVE n3", "test", lambda answer: answers.append(answer.text))
    nodes.run(1.0)
    assert answers == ["SUCCESS"]
    for each in nodes.machines:
        if each is not leader:
            nodes.network.cut(leader.name, each.name)
    leader.broker.commands.run("CLUSTERS CLUSTER c3 MEMBERS CANCEL", "test", lambda answer: answers.append(answer.text))
    nodes.run(0.1)
    assert len(answers) == 1
    nodes.run(20.0)
    assert "the next leader may still commit it" in answers[1]


@pytest.mark.parametrize("seed", range(3))
def test_members_are_added_and_removed_while_nodes_crash(seed: int) -> None:
    random, nodes = Random(seed), available_cluster(20 + seed)
    nodes.post(10)
    for count, command in ((4, "ADD 4 n4 tcp://n4:30114"), (3, "REMOVE n4"), (4, "ADD 4 n4 tcp://n4:30114")):
        assert nodes.admin(nodes.leader, f"CLUSTERS CLUSTER c3 MEMBERS {command}") == BEGUN
        nodes.run(random.random())
        first = nodes.machines[:3]
        for node in nodes.machines[3:]:
            node.crash(power=False, down=None)
            lose(node)
        for node in random.sample(first, 3):
            node.crash(power=random.random() < 0.5, down=None)
            configure(node, count)
            node.boot()
            nodes.run(random.random() * 10)
            random.choice(first).crash(power=random.random() < 0.5, down=random.random() * 4)
            nodes.run(8.0)
        if count == 4:
            added = nodes.machines[3] if len(nodes.machines) > 3 else new_node(nodes, 4, 4)
            added.boot()
            nodes.run(random.random() * 3)
            random.choice(nodes.machines).crash(power=True, down=1.0)
        names = [f"n{number}" for number in range(1, count + 1)]
        nodes.until(lambda: voters(nodes) == [names] * count, 120.0)  # noqa: B023 - called at once
        nodes.wait_until_available()
        nodes.post(5)
        nodes.run(2.0)
    nodes.judge_partitions()
    nodes.judge_all()


def lose(node: SimulatedNode) -> None:
    """Empty the directory of a stopped node."""
    for path in node.disk.paths():
        node.disk.remove(path)
        node.disk.sync_directory(path.rpartition("/")[0])
