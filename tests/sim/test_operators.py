"""Admin commands for operators: availability of members, transition histories, statistics of relays, progress of a stop.

Tests `bmqtwist/admin/operations.py`; commands at several members are tested by `test_commanded_members.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from bmqtwist.cluster.partition_events import LogFailed
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import Prepare
from sim.replicated import EVENTUAL, ReplicatingCluster

DOMAIN, QUEUE = "bmq.test.persistent.priority", "q"


def run_json_command(node: SimulatedNode, command: str) -> Any:
    """Run an admin command and return its JSON answer."""
    (answer,) = json.loads(node.broker.commands.run_at_once(f"ENCODING JSON_COMPACT {command}", "test").text).values()
    return answer


def run_command(node: SimulatedNode, command: str) -> str:
    return node.broker.commands.run_at_once(command, "test").text


def statuses(node: SimulatedNode) -> dict[str, str]:
    found = run_json_command(node, f"CLUSTERS CLUSTER {CLUSTER} STATUS")["nodeStatuses"]["nodes"]
    return {each["description"]: each["status"] for each in found}


def start_cluster(**options: Any) -> ReplicatingCluster:
    """Return a cluster after SETTLE_S."""
    nodes = ReplicatingCluster(5, **options)
    nodes.run_until_stable()
    return nodes


def test_the_cluster_status_shows_the_availability_that_each_node_reports() -> None:
    nodes = start_cluster()
    names = {f"[n{number}, {number}]": "E_AVAILABLE" for number in (1, 2, 3)}
    assert [statuses(node) for node in nodes.machines] == [names] * 3
    gone = next(node for node in nodes.machines if node is not nodes.leader)
    other = next(node for node in nodes.machines if node is not gone)
    shown = f"[{gone.name}, {gone.name[1:]}]"
    gone.crash(power=False, down=None)
    nodes.run(1.0)
    assert statuses(other)[shown] == "E_UNAVAILABLE"
    gone.boot()
    seen, end = set(), nodes.now + 10.0
    while statuses(other) != names and nodes.now < end:
        nodes.run(0.0002)
        seen.add(statuses(other)[shown])
    assert "E_STARTING" in seen and statuses(other) == names


def test_the_transition_history_of_a_partition_lists_roles_and_causes() -> None:
    nodes = start_cluster()
    former = nodes.primary()
    other = next(node for node in nodes.machines if node is not former)
    command = f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION 0 STORY"
    assert "PRIMARY_HEALING_STG2 -> PRIMARY_HEALED" in run_command(former, command)
    former.crash(power=False, down=None)
    nodes.run_until_stable()
    changes = [(each["before"], each["after"]) for each in run_json_command(other, command)]
    assert ("REPLICA_HEALING", "REPLICA_HEALED") in changes and ("REPLICA_HEALED", "REPLICA_WAITING") in changes
    assert all(each["secondsAgo"] >= 0 and each["cause"] for each in run_json_command(other, command))
    assert "Too high partitionId" in run_command(other, f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION 99 STORY")


def test_the_alarm_of_a_second_primary_contains_the_transition_history() -> None:
    nodes = start_cluster()
    primary = nodes.primary()
    replication = nodes.replication(primary)
    machine = replication.hosted[0].machine
    sender = next(iter(machine.connected_nodes))
    replication.on_message(sender, 0, Prepare(sender, machine.lease), primary.local_now)
    (alarm,) = [text for severity, text in primary.report.lines if "is primary under lease" in text and severity == "ALARM"]
    assert "ignored. Before:\n" in alarm and "-> PRIMARY_HEALED" in alarm


@pytest.mark.parametrize("place", ["proxy", "member"])
def test_a_relayed_queue_has_statistics_and_a_transition_history(place: str) -> None:
    nodes = start_cluster(proxies={"p1": ["n1", "n2", "n3"]})
    nodes.writer(EVENTUAL)
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[EVENTUAL].partition_id)
    node = nodes.proxies[0] if place == "proxy" else next(
        each for each in nodes.machines if each not in (primary, nodes.machines[0]))  # n1 assigned the queue
    client = nodes.client(node.name)
    queue, reader = client.open(EVENTUAL, write=1), client.consume(EVENTUAL)
    for number in range(3):
        queue.post(b"%d" % number)
    got = reader.take(3)
    reader.confirm(got[0])
    nodes.run(2.0)
    values = json.loads(run_json_command(node, "STAT SHOW"))["domainQueues"]["domains"][DOMAIN][EVENTUAL]["values"]
    assert (values["queue_put_msgs_abs"], values["queue_push_msgs_abs"], values["queue_confirm_msgs_abs"]) == (3, 3, 1)
    assert (values["queue_msgs_current"], values["queue_producers_count"], values["queue_consumers_count"]) == (2, 1, 1)
    assert values["queue_role"] == {"proxy": 3, "member": 2}[place] and values["queue_ack_msgs_abs"] == 3
    internals = run_command(node, f"DOMAINS DOMAIN {DOMAIN} QUEUE {QUEUE} INTERNALS")
    assert "RemoteQueue:" in internals and "state: OPEN" in internals
    story = f"DOMAINS DOMAIN {DOMAIN} QUEUE {QUEUE} STORY"
    assert [(each["before"], each["after"]) for each in run_json_command(node, story)] == [("CLOSED", "OPEN")]
    above = primary if place == "member" else nodes.node(f"n{node.broker.proxies[CLUSTER].selector.active}")
    above.crash(power=False, down=None)
    nodes.until(lambda: ("OPEN", "CLOSED") in [
        (each["before"], each["after"]) for each in run_json_command(node, story)], 1.0)
    assert "is not open at this node" in run_command(node, f"DOMAINS DOMAIN {DOMAIN} QUEUE nothing STORY")


def test_stop_status_reports_the_stages_of_a_graceful_stop() -> None:
    nodes = start_cluster()
    primary = nodes.primary()
    client, queue = nodes.writer(EVENTUAL)
    place = nodes.primary(nodes.cluster("n1").metadata.state.queues[EVENTUAL].partition_id)
    reader = nodes.client(place.name).consume(EVENTUAL)
    queue.post(b"x")
    (message,) = reader.take(1)
    assert run_json_command(place, "STOP STATUS") == {"stopping": False}
    assert "is not stopping" in run_command(place, "STOP STATUS")
    place.stop(down=None)
    seen: dict[str, Any] = {}
    for _ in range(2000):
        nodes.run(0.001)
        if place.up and place.broker.shutdown is not None:
            progress = run_json_command(place, "STOP STATUS")
            seen.setdefault(progress["stage"], progress)
    assert list(seen) == ["notifies members", "hands over partitions and leadership", "waits for confirms and answers"]
    first, last = seen["notifies members"], seen["waits for confirms and answers"]
    assert place is primary and first["clusters"][0]["partitions"] == [0, 1] and last["clusters"][0]["partitions"] == []
    assert first["clusters"][0]["leads"] and not last["clusters"][0]["leads"]
    assert last["clusters"][0]["unconfirmed"] == 1 and last["clients"] == 2 and 0 < last["clusters"][0]["secondsLeft"] < 4.0
    assert "Unconfirmed messages: 1" in run_command(place, "STOP STATUS")
    reader.confirm(message)
    nodes.run(8.0)
    assert not place.up


def test_an_alarm_of_a_partition_that_repeats_is_logged_once_a_minute_with_a_count() -> None:
    nodes = start_cluster()
    replication = nodes.replication(nodes.primary())
    hosted = replication.hosted[0]
    for _ in range(140):
        replication.runner.step(hosted, nodes.primary().local_now, LogFailed("records cannot be appended: No space left"))
        nodes.run(0.5)
    alarms = [text for severity, text in nodes.primary().report.lines if "No space left" in text and severity == "ALARM"]
    assert len(alarms) == 2 and "No space left (119 more times in the last 60 s). Before:\n" in alarms[1], alarms


@pytest.mark.parametrize("where", ["STATE ELECTOR", "STORAGE REPLICATION"])
def test_a_quorum_below_a_majority_is_answered_with_the_number_that_counts(where: str) -> None:
    """A minority must not elect a leader or commit; an operator must not believe that it does."""
    head, node = f"CLUSTERS CLUSTER {CLUSTER} {where}", start_cluster().machines[0]
    answer = run_command(node, f"{head} SET QUORUM 1")
    assert answer.startswith("Quorum set to 1 from ") and "a majority, 2 of 3 nodes, is needed nevertheless" in answer
    assert "2 of 3" in run_json_command(node, f"{head} SET QUORUM 1")["note"]
    assert run_command(node, f"{head} SET QUORUM 2").startswith("Quorum set to 2 from 1")
    for enough in (3, 0, 99):
        assert "nevertheless" not in run_command(node, f"{head} SET QUORUM {enough}")
    assert "it is set at this node alone" in run_command(node, f"{head} SET_ALL QUORUM 3")
