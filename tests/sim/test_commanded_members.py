"""Admin commands and log lines of members and proxies.

Tests commands of `bmqtwist/admin/operations.py`, and the lines and alarms of elections, quorums and passive partitions
(`bmqtwist/member/`).
"""

from __future__ import annotations

import json

import pytest
from kit.client import refusal

from bmqtwist.testing.config import domain_config
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.elected import ElectedCluster
from sim.members import Members
from sim.replicated import STRONG

DOMAIN, NAME = "bmq.test.persistent.priority.sc", "q"
OTHER = "bmq://bmq.test.persistent.priority.sc/other"
FEW = "bmq://few/q%d"


def command(node: SimulatedNode, text: str) -> str:
    """Run an admin command at a node and return its answer."""
    return node.broker.commands.run_at_once(text, "test").text


def log_lines(node: SimulatedNode, *words: str) -> list[str]:
    """Return the log lines of a node that contain all `words`."""
    return [line for line in node.log() if all(word in line for word in words)]


def test_each_node_lists_the_messages_of_a_queue_but_only_its_primary_purges_them() -> None:
    nodes = Members(proxies={"p1": ["n1", "n2", "n3"]})
    reader = nodes.client("p1").consume(STRONG)
    nodes.post(3)
    got = reader.take(3)
    reader.confirm(got[0])
    nodes.run(1.0)
    primary = nodes.primary()
    for node in (*nodes.machines, nodes.node("p1")):
        assert "Printing 2 message(s)" in command(node, f"DOMAINS DOMAIN {DOMAIN} QUEUE {NAME} LIST 0 10"), node.name
    for node in nodes.machines:
        summary = command(node, "CLUSTERS CLUSTER c3 STORAGE SUMMARY")
        assert [line.split()[2] for line in summary.splitlines() if line.endswith(STRONG)] == ["2"], node.name
    replica = nodes.replicas()[0]
    for text in (f"DOMAINS DOMAIN {DOMAIN} PURGE", f"DOMAINS DOMAIN {DOMAIN} QUEUE {NAME} PURGE *"):
        answer = command(replica, text)
        assert answer.startswith("Purged 0 message(s)") and f"Not purging queue '{STRONG}'" in answer
    assert "invalid APPID" in command(replica, f"DOMAINS DOMAIN {DOMAIN} QUEUE {NAME} LIST unknown 0 10")
    assert "Rollover rejected: node is not primary for this partition" in command(
        replica, "CLUSTERS CLUSTER c3 STORAGE PARTITION 0 ROLLOVER")
    assert command(primary, f"DOMAINS DOMAIN {DOMAIN} PURGE").startswith("Purged 2 message(s)")


def test_requests_to_an_upstream_node_and_their_responses_are_logged() -> None:
    nodes = Members(proxies={"p1": ["n1", "n2", "n3"]})
    nodes.client("p1").open(STRONG, write=1)
    proxy = nodes.node("p1")
    active = proxy.broker.proxies["c3"].selector.active
    assert log_lines(proxy, f"onClusterLeader: new leader: [n{active}, {active}], leader status: ACTIVE")
    assert log_lines(proxy, "Sending request to '", "choice = [ openQueue = [ handleParameters = [ ",
                "readCount = 0 writeCount = 1 adminCount = 0 ] ] ] ]")
    assert log_lines(proxy, "received OpenQueueResponse", STRONG) and not log_lines(proxy, "Sent ReopenQueue request")
    for node in nodes.machines:
        assert log_lines(node, "negotiated with node", "userAgent: 'bmqbrkr:")
    nodes.node(f"n{active}").crash(power=False, down=None)
    nodes.run_until_stable()
    assert log_lines(proxy, "Sent ReopenQueue request") and log_lines(proxy, "ClusterProxy (c3): state restored")
    keeper = nodes.primary()
    nodes.node(f"n{active}").boot()
    nodes.run_until_stable()
    assert log_lines(keeper, "Rebuilt internal state of queue engine for queue", f"[{STRONG}]")


def test_only_the_leader_raises_the_alarms_of_the_queue_limit() -> None:
    """Clients at all members get the refusal."""
    nodes = Members(texts={"few": json.dumps(domain_config("few", maxQueues=5))})
    leader = nodes.leader
    clients = [nodes.client(node.name) for node in nodes.machines]
    for number in range(5):
        clients[number % 3].open(FEW % number, write=1)
    for client in clients:
        assert refusal(lambda client=client: client.open(FEW % 5, write=1)).category == "E_REFUSED"
    for node in nodes.machines:
        assert bool(log_lines(node, "DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK", "current: 4, limit: 5")) is (node is leader)
        assert bool(log_lines(node, "DOMAIN_QUEUE_LIMIT_FULL")) is (node is leader)


def test_a_quorum_above_the_number_of_nodes_delays_metadata_changes() -> None:
    nodes = ElectedCluster(3, 3)
    nodes.run(60.0)
    leader = nodes.leader
    command(leader, "CLUSTERS CLUSTER c3 STATE ELECTOR SET quorum 4")
    uri = nodes.assign(leader, OTHER)
    nodes.run(5.0)
    assert uri not in nodes.assigned and nodes.leader is leader
    assert log_lines(leader, "'QueueAssignmentAdvisory' will be applied to cluster state ledger", uri)
    command(leader, "CLUSTERS CLUSTER c3 STATE ELECTOR SET quorum 0")
    nodes.run(1.0)
    assert uri in nodes.assigned
    nodes.judge_all()


def test_the_only_electable_node_gets_its_missing_metadata_before_it_leads() -> None:
    """Its log is older than those of the other members, which do not vote for it until it has their records."""
    nodes = ElectedCluster(4, 3)
    nodes.run(60.0)
    behind = next(node for node in nodes.machines if node is not nodes.leader)
    behind.crash(power=False, down=None)
    nodes.run(1.0)
    for _ in range(3):
        nodes.assign(nodes.leader)
    nodes.run(5.0)
    others = [node for node in nodes.machines if node is not behind]
    for node in others:
        node.crash(power=True, down=None)
    for node in nodes.machines:
        node.boot()
    for node in others:
        command(node, "CLUSTERS CLUSTER c3 STATE ELECTOR SET quorum 9")
    nodes.run(60.0)
    assert nodes.leader is behind
    nodes.judge_all()


def test_a_stopping_primary_reports_each_of_its_partitions_as_passive() -> None:
    nodes = Members()
    primary = nodes.primary()
    others = nodes.replicas()
    nodes.post(1)
    for node in nodes.machines:
        command(node, "CLUSTERS CLUSTER c3 STATE ELECTOR SET quorum 4")
    begun = nodes.now
    primary.stop(down=None)
    while primary.up:
        nodes.run(0.1)
    assert nodes.now - begun < 3.0, "no node can take over, so the stop must not wait"
    nodes.run(2.0)
    for node in others:
        for index in range(2):
            assert log_lines(node, f"received primary status advisory: [ partitionId = {index} primaryLeaseId = ",
                        f"status = E_PASSIVE ], from: [{primary.name}, ")
    assert len({nodes.partition(node).summary.last for node in others}) == 1


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_next_leader_takes_over_the_partitions_of_a_stopping_leader(which: int) -> None:
    """Only one of the other three members can lead; the stopping leader may ask another one first."""
    nodes = Members(count=4)
    leader = nodes.leader
    rest = [node for node in nodes.machines if node is not leader]
    successor = rest.pop(which)
    for node in rest:
        command(node, "CLUSTERS CLUSTER c3 STATE ELECTOR SET quorum 4")
    leader.stop(down=None)
    while leader.up:
        nodes.run(0.1)
    nodes.run_until_stable()
    assert nodes.leader is successor, "the other members need four votes"
    assert nodes.primary(0) is successor and nodes.primary(1) is successor


def test_a_node_logs_its_leader_before_the_availability_of_the_cluster() -> None:
    nodes = Members()
    for node in nodes.machines:
        lines = node.log()
        [led] = [at for at, line in enumerate(lines) if "leader status: ACTIVE" in line]
        [available] = [at for at, line in enumerate(lines) if "Cluster (c3) is available" in line]
        assert led < available
