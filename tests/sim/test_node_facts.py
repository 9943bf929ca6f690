"""Facts of a cluster for the console: events, elections, stops, lag and messages of replicas, and test messages.

Tests `bmqtwist/view/node_facts.py`, `bmqtwist/view/cluster_facts.py`, `bmqtwist/view/replicas.py` and
`bmqtwist/broker/local_producer.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import to_builtins

from bmqtwist.broker.local_producer import COUNT_MAX, PAYLOAD_BYTES_MAX, PUBLISH_TIMEOUT_S, Published, publish
from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.console import samples
from bmqtwist.errors import LocalError
from bmqtwist.steps import at_once
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.view import cluster_facts, node_facts, queue_facts, replicas, snapshots, stopping, stored_queue, subscriptions
from bmqtwist.view.events import NodeEvent
from bmqtwist.view.typed_properties import from_tree
from sim.elected import INACTIVITY_S
from sim.members import Members
from sim.replicated import STRONG, ReplicatingCluster

LEAST = "E_LEAST_ASSIGNED"


def events(node: SimulatedNode, *kinds: str) -> list[NodeEvent]:
    """Return the stored events of a node."""
    return node.assembled.events.after(0, kinds, limit=10_000)


def texts(node: SimulatedNode, *kinds: str) -> list[str]:
    """Return the texts of the stored events."""
    return [each.text for each in events(node, *kinds)]


def elections(node: SimulatedNode) -> dict[str, Any]:
    """Return the election page of a node."""
    return cluster_facts.elections(node.broker, node.assembled.events)


# -- events and elections -----------------------------------------------------------------------------------------------


def test_remaining_members_record_events_of_a_failover() -> None:
    nodes = ReplicatingCluster(1)
    nodes.run_until_stable()
    nodes.post(2)
    gone = nodes.leader
    assert nodes.primary() is gone
    first = elections(gone)
    assert first["standing"]["state"] == "LEADER" and first["standing"]["leader"] == gone.name
    assert [each["leader"] for each in first["terms"]][-1] == gone.name and first["terms"][-1]["to"] is None
    died = nodes.now + gone.clock.wall_offset
    gone.crash(power=False, down=None, silently=True)
    nodes.run(INACTIVITY_S / 2)
    follower = next(node for node in nodes.machines if node.up)
    assert elections(follower)["standing"]["heartbeatsMissed"] in range(1, 6)
    nodes.run_until_stable()
    leader = nodes.leader
    for node in (each for each in nodes.machines if each.up):
        found = elections(node)
        before, after = found["terms"][-2:]
        assert (before["leader"], after["leader"], after["to"]) == (gone.name, leader.name, None)
        assert died < before["to"] <= after["from"] and after["term"] > before["term"]
        assert "leader" in before["end"] and found["standing"]["heartbeatsMissed"] in (0, 1)
        seen = cluster_facts.elector(replicas.cluster_named(node.broker))
        assert cluster_facts.leader_since(node.assembled.events, found["cluster"], seen) == after["from"]
        assert any(each["cause"] for each in found["story"])
        assert any(each.detail.get("about") == gone.name and "is down" in each.text for each in events(node, "node"))
        changed = [each.detail for each in events(node, "primary") if each.detail.get("primary") == leader.name]
        assert {each["partition"] for each in changed} >= {0} and all(each["lease"] > 1 for each in changed[-1:])
    assert any("is now: active primary" in text for text in texts(leader, "primary"))
    gone.boot()
    nodes.run_until_stable()
    assert any("receives missing records" in text for text in texts(gone, "primary"))
    assert any("has all committed records" in text for text in texts(gone, "primary"))
    assert any("is available" in text for text in texts(gone, "node"))


def test_session_and_queue_events_are_recorded_at_the_node_concerned() -> None:
    nodes = Members()
    nodes.post(1)
    client = nodes.client("n1")
    assert any("is connected" in text for text in texts(nodes.node("n1"), "session"))
    client.drop()
    nodes.run(1.0)
    assert any("is disconnected" in text for text in texts(nodes.node("n1"), "session"))
    created = [each.detail["uri"] for node in nodes.machines for each in events(node, "queue")]
    assert created == [STRONG], "only at its primary"


def test_totals_of_a_node_include_clients_that_have_disconnected() -> None:
    nodes = Members()
    reader = nodes.client("n2").consume(STRONG)
    client = nodes.client("n1")
    queue = client.open(STRONG, write=1)
    before = nodes.node("n1").broker.deliveries.ack_latency.counts()
    for _ in range(5):
        queue.put(b"x")
    for _ in range(5):
        assert queue.next_ack().status == 0
    for each in reader.take(5):
        reader.confirm(each)
    nodes.run(1.0)
    client.drop()
    nodes.run(1.0)
    here, there = node_facts.traffic_totals(nodes.node("n1").broker), node_facts.traffic_totals(nodes.node("n2").broker)
    assert (here.put_msgs, here.ack_msgs, here.put_bytes, here.push_msgs) == (5, 5, 5, 0)
    assert (there.put_msgs, there.push_msgs, there.push_bytes, there.confirm_msgs) == (0, 5, 5, 5)
    counts = nodes.node("n1").broker.deliveries.ack_latency.counts()
    assert sum(counts) - sum(before) == 5
    found = samples.percentiles([new - old for old, new in zip(before, counts, strict=True)])
    assert found["p50"] is not None and 0 < found["p50"] <= found["p99"] < 1000  # type: ignore[operator]


# -- the graceful stop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", ["E_LEADER_IS_MASTER_ALL", LEAST])
def test_the_preflight_of_a_stop_predicts_its_report(assignment: str) -> None:
    nodes = ReplicatingCluster(3, masterAssignment=assignment)
    nodes.run_until_stable()
    nodes.post(3)
    node = nodes.primary()
    nodes.client(node.name)
    predicted = stopping.preflight(node.broker)
    assert predicted["quorumSurvives"] and predicted["node"] == node.name and predicted["warnings"] == []
    assert predicted["sessions"] == node.broker.sessions.client_count() >= 1
    assert stopping.progress(node.broker) is None
    begun, wall = nodes.now, node.clock.wall_offset
    node.act(lambda: node.broker.stop(node.local_now, "new kernel", "anna"))
    history, broker = node.assembled.events, node.broker
    first = stopping.progress(broker)
    assert first is not None and (first["reason"], first["by"], first["done"]) == ("new kernel", "anna", False)
    assert {each["name"] for each in first["peers"]} and set(first["partitions"]) == {each["partition"] for each in
                                                                                     predicted["moves"]}
    nodes.until(lambda: broker.shutdown is not None and broker.shutdown.done, 60.0)
    last = stopping.progress(broker)
    assert last is not None and last["done"] and last["partitions"] == []
    report = last["report"]
    assert report["moved"] == [{"cluster": "c3", "partition": each["partition"], "to": each["to"]}
                               for each in predicted["moves"]]
    assert (report["unconfirmed"], report["unanswered"], report["reason"], report["by"]) == (0, 0, "new kernel", "anna")
    assert report["clients"] == predicted["sessions"] and 0 < report["seconds"] <= nodes.now - begun
    recorded = history.after(0, ("stop",))
    assert [each.detail["state"] for each in recorded] == ["begun", "done"] and recorded[-1].detail["report"] == report
    assert "new kernel" in recorded[0].text and recorded[0].at >= begun + wall
    assert json.loads(json.dumps(last)) == last


def test_the_preflight_warns_when_the_quorum_would_be_lost() -> None:
    nodes = ReplicatingCluster(4)
    nodes.run_until_stable()
    nodes.post(1)
    victim = nodes.replicas()[0]
    victim.crash(power=False, down=None)
    nodes.run_until_stable()
    predicted = stopping.preflight(nodes.primary().broker)
    assert not predicted["quorumSurvives"] and all(each["to"] is None for each in predicted["moves"])
    assert any(victim.name in text for text in predicted["warnings"])
    assert "DOES NOT SURVIVE" in nodes.admin(nodes.primary(), "STOP PREFLIGHT")


def test_the_progress_of_a_stop_counts_unconfirmed_messages_per_peer() -> None:
    nodes = Members()
    nodes.post(3)
    primary, replica = nodes.primary(), nodes.replicas()[0]
    reader = nodes.client(replica.name).consume(STRONG)
    held = reader.take(3)
    assert stopping.preflight(primary.broker)["unconfirmed"] == 3
    assert any("3 delivered messages are not confirmed" in text
               for text in stopping.preflight(primary.broker)["warnings"])
    primary.act(lambda: primary.broker.stop(primary.local_now))
    found = stopping.progress(primary.broker)
    assert found is not None
    assert sorted(each["unconfirmed"] for each in found["peers"])[-1] == 3
    for each in held:
        reader.confirm(each)
    nodes.run(2.0)
    found = stopping.progress(primary.broker)
    assert found is not None and {each["unconfirmed"] for each in found["peers"]} <= {0}


# -- replicas -------------------------------------------------------------------------------------------------------------


def rows(node: SimulatedNode, index: int = 0) -> dict[str, dict[str, Any]]:
    """Return the rows of a partition's replicas at a node, by name."""
    return {each.node: to_builtins(each) for each in replicas.partitions(node.broker, now=node.local_now)[index].replicas}


def test_a_primary_reports_the_lag_of_each_replica() -> None:
    nodes = ReplicatingCluster(5)
    nodes.run_until_stable()
    nodes.post(2)
    nodes.run(2.0)
    primary, (slow, quick) = nodes.primary(), nodes.replicas()
    found = rows(primary)
    assert {name: (each["role"], each["lagRecords"], each["lagBytes"]) for name, each in found.items()} == {
        primary.name: ("primary", 0, 0), slow.name: ("replica", 0, 0), quick.name: ("replica", 0, 0)}
    assert set(rows(slow)) == {slow.name} and rows(slow)[slow.name]["role"] == "replica"
    assert {each["lagMs"] for each in found.values()} == {0.0} and rows(slow)[slow.name]["lagMs"] is None
    slow.pause()
    began = primary.local_now
    nodes.post(20)
    nodes.run(0.5)
    found, passed = rows(primary), 1000 * (primary.local_now - began)
    assert found[quick.name]["lagMs"] < 100 and passed >= 500
    assert passed - 100 <= found[slow.name]["lagMs"] <= passed + 1
    assert found[quick.name]["lagRecords"] <= 2 < 20 <= found[slow.name]["lagRecords"]
    assert found[slow.name]["lagBytes"] >= 20 * (60 + 16)
    slow.resume()
    nodes.run(5.0)
    assert (rows(primary)[slow.name]["lagRecords"], rows(primary)[slow.name]["lagMs"]) == (0, 0.0)
    slow.crash(power=False, down=None)
    nodes.run(10.0)
    assert rows(primary)[slow.name]["role"] == "down"
    tree = to_builtins(replicas.partitions(primary.broker)[0])
    assert (tree["primary"], tree["state"], tree["messages"]) == (primary.name, "active", 22)
    assert json.loads(json.dumps(tree)) == tree


def test_a_replica_knows_the_queues_and_stored_messages_of_its_primary() -> None:
    nodes = ReplicatingCluster(1)
    nodes.run_until_stable()
    nodes.post(5)
    nodes.run(1.0)
    primary, replica = nodes.primary(), nodes.replicas()[0]
    led = replicas.led_partitions(primary.broker)
    totals = [replicas.stored_totals(cluster_facts.cluster_of(node.broker)) for node in (primary, replica)]
    assert (totals[0].led, totals[0].led_messages, totals[0].led_bytes) == (len(led), totals[0].messages, totals[0].bytes)
    assert (totals[1].led, totals[1].led_messages) == (0, 0) and totals[0].messages == 5 and totals[0].bytes > 0
    assert (totals[1].messages, totals[1].bytes) == (5, totals[0].bytes)
    for node in (primary, replica):
        views = {view.uri: view for view in map(queue_facts.queue_view, queue_facts.queues_of(node.broker, led))}
        assert (views[STRONG].messages, views[STRONG].bytes) == (5, totals[0].bytes)
        assert (views[STRONG].readers is None) == (views[STRONG].counters is None) == (node is replica)
        [row] = [each for each in at_once(queue_facts.domain_rows_in_steps(node.broker, led)) if each.queues]
        assert (row.queues, row.messages, row.bytes) == (len(views), 5, totals[0].bytes)
    assert list(queue_facts.queues_of(replica.broker, ())) == []
    space = replicas.storage_space(cluster_facts.cluster_of(replica.broker), replica.assembled.disk)
    assert space is not None and 0 < space.used_bytes and space.free_bytes <= space.total_bytes
    assert replicas.storage_space(None, replica.assembled.disk) is None


def test_the_lag_in_bytes_is_estimated_when_the_records_are_not_in_memory() -> None:
    nodes = ReplicatingCluster(6)
    nodes.run_until_stable()
    nodes.post(30)
    nodes.run(1.0)
    partition = nodes.partition(nodes.primary())
    after = (partition.lease, partition.sequence - 40)
    exact = partition.bytes_after(after)
    partition._recent.clear()
    assert exact > 40 * 60 and 0.2 * exact < partition.bytes_after(after) < 5 * exact
    assert partition.bytes_after((partition.lease, partition.sequence)) == 0


# -- messages on any replica ------------------------------------------------------------------------------------------------


def test_messages_are_listed_at_any_member_without_consuming_them() -> None:
    nodes = Members()
    nodes.post(4)
    primary = nodes.primary()
    reader = nodes.client(primary.name).consume(STRONG)
    taken = reader.take(2)
    reader.confirm(taken[0])
    nodes.run(2.0)
    found = {node.name: at_once(stored_queue.messages_in_steps(node.broker, STRONG, stored_queue.Selection()))
             for node in nodes.machines}
    assert {each["role"] for each in found.values()} == {"primary", "replica"}
    for node in nodes.machines:
        tree = found[node.name]
        assert [row["guid"] for row in tree["messages"]] == [row["guid"] for row in found[primary.name]["messages"]]
        assert tree["total"] == 3
        whole = at_once(stored_queue.message_in_steps(node.broker, STRONG, tree["messages"][0]["guid"]))
        assert at_once(stored_queue.payload_in_steps(node.broker, STRONG, whole["guid"])) == b"message 1"
        assert at_once(subscriptions.evaluate_in_steps(node.broker, STRONG, "n == 1"))["examined"] == 3
    states = [row["apps"][0]["state"] for row in found[primary.name]["messages"]]
    assert states == ["delivered"] * 3, "all are unconfirmed at the reader"
    assert {row["apps"][0]["state"] for row in found[nodes.replicas()[0].name]["messages"]} == {"pending"}
    assert [len(nodes.stored(node)) for node in nodes.machines] == [3, 3, 3]


# -- test messages ------------------------------------------------------------------------------------------------------


def posted(nodes: ReplicatingCluster, node: SimulatedNode, count: int = 1, uri: str = STRONG, by: str = "anna",
           seconds: float = 5.0, **properties: Any) -> Published:
    """Publish test messages at a node and return the result."""
    done: list[Published] = []
    node.act(lambda: publish(node.broker, uri, b"test", from_tree(properties), count, by, done.append))
    node.request_turn()
    nodes.until(lambda: done, seconds)
    assert len(done) == 1
    return done[0]


def test_test_messages_can_be_posted_at_members_and_proxies() -> None:
    nodes = Members(proxies={"p1": ["n1", "n2", "n3"]})
    reader = nodes.client("n1").consume(STRONG)
    for node in (*nodes.machines, nodes.node("p1")):
        found = posted(nodes, node, 2, color="red").tree()
        assert [each["status"] for each in found["results"]] == ["SUCCESS"] * 2  # type: ignore[attr-defined]
        assert (found["failed"], found["error"]) == (0, None)
    got = reader.take(8)
    assert len({each.guid for each in got}) == 8
    assert all(each.payload == b"test" and each.properties == {"color": ("STRING", "red")} for each in got)
    for each in got:
        reader.confirm(each)
    nodes.run(2.0)
    assert not any(nodes.stored(node) for node in nodes.machines)
    for node in nodes.machines:
        queue = nodes.cluster(node.name).queues.get(STRONG)
        assert queue is None or not queue.writer_count(), "the local producer has closed the queue"


def test_an_invalid_test_message_is_refused_with_its_reason() -> None:
    nodes = ReplicatingCluster(7)
    nodes.run_until_stable()
    node = nodes.primary()
    assert posted(nodes, node, uri="bmq://no.such.domain/q").error
    for invalid in ({"uri": "nonsense"}, {"uri": f"{STRONG}?id=a"}, {"count": 0}, {"count": COUNT_MAX + 1}, {"payload": b""},
                  {"payload": bytes(PAYLOAD_BYTES_MAX + 1)}):
        asked: dict[str, Any] = {"uri": STRONG, "payload": b"x", "properties": {}, "count": 1, "by": "anna",
                                 "done": lambda published: None, **invalid}
        with pytest.raises(LocalError):
            publish(node.broker, **asked)


def test_a_test_message_without_a_majority_gets_the_status_unknown() -> None:
    nodes = ReplicatingCluster(8)
    nodes.run_until_stable()
    nodes.post(1)
    node = nodes.primary()
    for replica in nodes.replicas():
        replica.crash(power=False, down=None)
    found = posted(nodes, node, 2, seconds=PUBLISH_TIMEOUT_S + 1.0)
    assert [each["status"] for each in found.results] == ["UNKNOWN"] * 2 or found.error
    assert nodes.roles()[node.name] is not PartitionRole.PRIMARY_HEALED


def test_test_messages_need_the_authorization_of_their_author() -> None:
    """The principal of a console user is not one of a client of the same name."""
    rules = [{"principal": "CONSOLE_USER-anna", "actions": ["QueueWrite"], "effect": "allow"},
             {"actions": ["QueueWrite"], "effect": "deny"}]
    nodes = ReplicatingCluster(9, app={"bmqtwist": {"authorization": {"rules": rules}}})
    nodes.run_until_stable()
    node = nodes.machines[0]
    assert posted(nodes, node).results[0]["status"] == "SUCCESS"
    refused = posted(nodes, node, by="bert")
    assert "'CONSOLE_USER-bert' is not authorized: QueueWrite" in refused.error and refused.results == []


def test_a_replica_sums_the_stored_messages_of_a_queue_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SUMMED_AT_ONCE", 8)
    nodes = ReplicatingCluster(7)
    nodes.run_until_stable()
    nodes.post(300)
    nodes.run(2.0)
    domain = STRONG.removeprefix("bmq://").partition("/")[0]
    wanted = at_once(snapshots.storages_in_steps(nodes.primary().broker.clusters["c3"], domain))
    steps = snapshots.cluster_in_steps(nodes.replicas()[0].broker.clusters["c3"])
    next(steps)  # 300 messages give 37 slices, more than the 32 of one step
    found = [each for part in at_once(steps).partitions for each in part.storages]
    assert [(each.uri, each.messages, each.bytes) for each in wanted] == [
        (each.uri, each.messages, each.bytes) for each in found if each.uri == STRONG]
