"""Cluster document, merged from the parts of nodes, for healthy and faulty clusters."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bmqtwist.console.merge import (
    CONTINUED_S,
    add_counts,
    coverage,
    events_page,
    merge,
    merge_queue,
    queue_source,
    queue_tree,
)
from bmqtwist.console.rates import RateWindow
from bmqtwist.console.samples import HISTORY_ROWS, ClusterHistory, NodeRows, NodeSampler, Reading, add_histories
from bmqtwist.console.stops import restart_obstacle
from bmqtwist.view.snapshot import StoredTotals

PARTITIONS = 4
RATES = {"put": 10.0, "ack": 10.0, "push": 5.0, "confirm": 4.0, "putBytes": 100.0, "pushBytes": 50.0}


def node_row(slot: float, leads: bool, rate: float | None = 1.0, messages: int = 28) -> list[Any]:
    """Return a row of the history of a node that is primary of all partitions or of none."""
    led = [PARTITIONS, messages, 10 * messages] if leads else [0, 0, 0]
    return [slot, rate, rate, rate, rate, *led, messages, 10 * messages, 1 << 30]


def node_part(number: int, count: int = 3, leader: int = 1, term: int = 5) -> dict[str, Any]:
    """Return the part of node `number` of `count` in a healthy cluster: the leader is primary of every partition."""
    name, nodes = f"n{number}", range(1, count + 1)
    partitions = []
    for index in range(PARTITIONS):
        view: dict[str, Any] = {
            "id": index, "primary": f"n{leader}", "lease": 3, "sequence": 100, "state": "active", "problem": "", "queues": 2,
            "messages": 7, "bytes": 70,
            "journal": {"used": 1, "total": 100}, "data": {"used": 1, "total": 100}, "replicas": [],
            "self": {"role": "primary" if number == leader else "replica", "sequence": 100, "lease": 3}}
        if number == leader:
            view["by"] = "primary"
            view["replicas"] = [{"node": f"n{each}", "role": "primary" if each == leader else "replica", "sequence": 100,
                                 "lagRecords": 0, "lagBytes": 0} for each in nodes]
        partitions.append(view)
    return {
        "name": name, "id": number, "cluster": "c", "at": 1000.0, "version": "1", "startedAt": 900.0 + number,
        "url": f"http://{name}:1", "state": "up", "stop": None, "unsafe": False, "sessions": number, "memoryBytes": 1,
        "cpuShare": 0.1, "loopLagMs": 1.0, "openFiles": 10, "openFilesMax": 1000, "rates": dict(RATES),
        "latencies": [0, 2, 1],
        "history": [node_row(995, number == leader)], "storage": None, "top": [], "alarms": [], "events": [],
        "partitions": partitions,
        "members": [{"name": f"n{each}", "id": each, "dataCenter": "dc", "state": "up", "connected": True,
                     "primaryFor": [], "url": "" if each == number else f"http://n{each}:1"} for each in nodes],
        "elector": {"state": "LEADER" if number == leader else "FOLLOWER", "term": term, "active": True, "leads": number
                    == leader,
                    "leader": f"n{leader}", "since": 950.0}}


def healthy_parts(count: int = 3) -> dict[str, dict[str, Any]]:
    return {f"n{number}": node_part(number, count) for number in range(1, count + 1)}


def cluster_document(parts: dict[str, dict[str, Any]], served_by: str = "", missing: dict[str, str] | None = None,
                     stops: dict[str, Any] | None = None, past: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    before = copy.deepcopy((parts, past))
    document = merge(served_by or next(iter(parts)), 1000.0, parts, missing or {}, stops or {}, past or {})
    assert (parts, past) == before  # merge must not change its arguments
    return document


def without_node(parts: dict[str, dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    """Return the parts after a node was killed: the other nodes report a lost connection."""
    del parts[name]
    for each in parts.values():
        for member in each["members"]:
            if member["name"] == name:
                member.update(connected=False, state="down")
    return parts


def test_a_healthy_cluster_has_a_good_verdict() -> None:
    document = cluster_document(healthy_parts())
    assert document["verdict"] == {"level": "good", "reasons": [],
                                   "text": "All 3 nodes are up, and all 4 partitions have a primary with 2 replicas."}
    assert document["leader"] == {"node": "n1", "term": 5, "since": 950.0, "state": "active"}
    assert document["rates"]["put"] == 30.0 and document["ackLatencyMs"]["p50"] is not None
    assert document["history"] == [[995, 3.0, 3.0, 3.0, 3.0, 28, 280, 1 << 30]]
    assert document["stored"] == {"messages": 28, "bytes": 280, "sampledAt": 1000.0}
    assert [node["name"] for node in document["nodes"]] == ["n1", "n2", "n3"]
    assert [node["leader"] for node in document["nodes"]] == [True, False, False]
    assert document["nodes"][0]["primaryFor"] == [0, 1, 2, 3] and document["nodes"][1]["primaryFor"] == []
    assert document["partitions"][0]["primary"] == "n1" and document["partitions"][0]["messages"] == 7
    assert [(row["node"], row["role"]) for row in document["partitions"][0]["replicas"]] == [
        ("n1", "primary"), ("n2", "replica"), ("n3", "replica")]


def test_the_cluster_document_is_the_same_at_every_node() -> None:
    documents = [cluster_document(healthy_parts(), name) for name in ("n1", "n2", "n3")]
    for document in documents:
        assert document.pop("servedBy")
    assert documents[0] == documents[1] == documents[2]


def test_a_cluster_of_one_node_has_a_good_verdict() -> None:
    document = cluster_document({"n1": node_part(1, 1)})
    assert document["verdict"]["text"] == "The node is up and leads all 4 partitions."
    alone = node_part(1, 1)
    alone.update(members=[], partitions=[], elector=None)
    assert cluster_document({"n1": alone})["verdict"] == {"level": "good", "text": "The node is up.", "reasons": []}


def test_a_node_that_was_killed_is_down() -> None:
    document = cluster_document(without_node(healthy_parts(), "n3"), missing={"n3": "no answer in time"})
    node = document["nodes"][2]
    assert (node["state"], node["problem"], node["memoryBytes"],
            node["url"]) == ("down", "no answer in time", None, "http://n3:1")
    assert document["verdict"]["level"] == "warning" and document["verdict"]["text"] == "Node n3 is down."
    assert document["partitions"][0]["replicas"][2]["role"] == "down"
    assert document["rates"]["put"] == 20.0


def test_a_connected_node_without_console_answer_is_unreachable() -> None:
    parts = healthy_parts()
    del parts["n2"]
    document = cluster_document(parts, missing={"n2": "the connection is refused"})
    assert document["nodes"][1]["state"] == "unreachable"
    assert document["verdict"]["text"] == "Node n2 is connected, but its console does not answer."


def test_without_a_majority_queues_accept_no_messages() -> None:
    document = cluster_document(without_node(without_node(healthy_parts(), "n3"), "n2"))
    assert document["verdict"]["level"] == "bad"
    assert document["verdict"]["text"].startswith("Only 1 of 3 nodes is up, 2 are required: replicated queues accept "
                                                  "no messages until one of n2 and n3 is up")
    assert "Nodes n2 and n3 are down." in document["verdict"]["reasons"]


def test_a_missing_leader_makes_the_verdict_bad() -> None:
    parts = healthy_parts()
    for number, each in enumerate(parts.values()):
        each["elector"].update(leads=False, leader="", active=False, term=5 + number)
    document = cluster_document(parts)
    assert document["leader"] == {"node": "", "term": 7, "since": None, "state": "none"}
    assert document["verdict"]["level"] == "bad" and "The cluster has no leader" in document["verdict"]["text"]


def test_of_two_nodes_that_claim_leadership_the_higher_term_is_shown() -> None:
    """The other one is partitioned and has not received the new term."""
    parts = healthy_parts()
    parts["n2"]["elector"].update(leads=True, leader="n2", term=6)
    assert cluster_document(parts)["leader"]["node"] == "n2"
    parts["n1"]["elector"]["term"] = 9
    assert cluster_document(parts)["leader"]["node"] == "n1"


def test_a_leader_that_does_not_answer_is_known_from_other_nodes() -> None:
    parts = healthy_parts()
    del parts["n1"]
    assert cluster_document(parts)["leader"] == {"node": "n1", "term": 5, "since": 950.0, "state": "active"}


def test_a_partition_is_shown_as_its_primary_with_the_highest_lease_reports_it() -> None:
    parts = healthy_parts()
    taken = parts["n2"]["partitions"][1]
    taken.update(primary="n2", lease=4, sequence=20, messages=3, replicas=[
        {"node": "n1", "role": "replica", "sequence": 18, "lagRecords": 2, "lagBytes": 60},
        {"node": "n2", "role": "primary", "sequence": 20, "lagRecords": 0, "lagBytes": 0}])
    taken["self"] = {"role": "primary", "sequence": 20, "lease": 4}
    partition = cluster_document(parts)["partitions"][1]
    assert (partition["primary"], partition["lease"], partition["messages"]) == ("n2", 4, 3)
    assert [node["primaryFor"] for node in cluster_document(parts)["nodes"]] == [[0, 2, 3], [1], []]
    assert partition["replicas"][0]["lagRecords"] == 2 and partition["replicas"][0]["lagBytes"] == 60


def test_missing_replica_lags_are_computed_from_sequence_numbers() -> None:
    parts = healthy_parts()
    for view in parts["n1"]["partitions"]:
        view["replicas"] = []
    parts["n3"]["partitions"][0]["self"]["sequence"] = 90
    rows = cluster_document(parts)["partitions"][0]["replicas"]
    assert [row["lagRecords"] for row in rows] == [0, 0, 10]


def test_a_partition_whose_primary_is_down_has_no_primary() -> None:
    document = cluster_document(without_node(healthy_parts(), "n1"), "n2")
    assert document["partitions"][0]["state"] == "no primary" and document["partitions"][0]["primary"] == ""
    assert document["verdict"]["level"] == "bad"
    assert any(text.startswith("Partitions 0, 1, 2 and 3 have no active primary") for text in document["verdict"]["reasons"])
    parts = without_node(healthy_parts(), "n1")
    for each in parts.values():
        each["partitions"] = each["partitions"][:1]
    assert "Partition 0 has no active primary" in " ".join(cluster_document(parts, "n2")["verdict"]["reasons"])


def test_a_healing_or_lagging_replica_is_in_the_verdict() -> None:
    parts = healthy_parts()
    parts["n2"]["partitions"][2]["self"]["role"] = "healing"
    assert cluster_document(parts)["verdict"]["text"] == "n2 is catching up with the primaries."
    parts = healthy_parts()
    parts["n1"]["partitions"][2]["replicas"][2].update(lagRecords=123_456, sequence=4)
    document = cluster_document(parts)
    assert document["verdict"] == {"level": "warning", "text": "Replica n3 lags by 123,456 records in partition 2.",
                                   "reasons": ["Replica n3 lags by 123,456 records in partition 2."]}


@pytest.mark.parametrize("state", ["starting", "stopping"])
def test_a_starting_or_stopping_node_is_in_the_verdict(state: str) -> None:
    parts = healthy_parts()
    parts["n2"]["state"] = state
    assert cluster_document(parts)["verdict"]["text"] == f"Node n2 is {state}."


def test_the_result_of_a_stop_is_shown_after_the_node_is_down() -> None:
    stop = {"stage": "done", "done": True, "report": {"seconds": 3}}
    document = cluster_document(without_node(healthy_parts(), "n3"), stops={"n3": stop})
    assert document["nodes"][2]["stop"] == stop and document["nodes"][2]["state"] == "down"


def test_a_node_that_runs_alone_makes_the_verdict_bad() -> None:
    parts = healthy_parts()
    parts["n1"]["unsafe"] = True
    assert cluster_document(parts)["verdict"] == {"level": "bad", "text": "Node n1 runs alone, and nothing is replicated.",
                                                  "reasons": ["Node n1 runs alone, and nothing is replicated."]}


def test_pages_of_events_contain_each_event_of_all_nodes_once() -> None:
    """120 events at each of three nodes, some at the same time; pages of each node are cut before they are merged."""
    own = {name: {"events": [{"n": n, "at": 1.0 + (n * step) // 7, "node": name} for n in range(120)]}
           for name, step in (("n1", 1), ("n2", 3), ("n3", 10))}
    for limit in (1, 7, 50, 1000):
        found, after = list[Any](), 0.0
        while True:
            parts = {name: events_page({name: part}, after, limit) for name, part in own.items()}
            page = events_page(parts, after, limit)
            found += page["events"]
            if page["next"] is None:
                break
            assert page["next"] > after
            after = page["next"]
        assert sorted((each["node"], each["n"]) for each in found) == [(name, n) for name in own for n in range(120)]
    assert [each["at"] for each in found] == sorted(each["at"] for each in found)
    last = events_page(own, None, 3)
    assert len(last["events"]) == 3 and last["events"][-1]["at"] == found[-1]["at"] and last["next"] is None


def test_a_node_without_intact_storage_makes_the_verdict_bad() -> None:
    parts = healthy_parts()
    parts["n2"].update(memberState="RECOVERING", awaited="")
    parts["n3"].update(memberState="WAITING_FOR_MEMBERS", awaited="[n1, 1]")
    assert cluster_document(parts)["verdict"]["reasons"] == [
        "Node n2 is RECOVERING.", "Node n3 is WAITING_FOR_MEMBERS and waits for [n1, 1]."]


def test_alarms_events_and_top_queues_of_all_nodes_are_merged() -> None:
    parts = healthy_parts()
    for number, each in enumerate(parts.values()):
        each["alarms"] = [{"id": f"{each['name']}:1", "raisedAt": number, "clearedAt": 5.0 if number == 2 else None,
                           "acknowledgedBy": None, "category": "DISK"}]
        each["events"] = [{"n": 1, "at": 10.0 - number, "node": each["name"]}]
        each["top"] = [{"uri": f"q{number}-{row}", "messages": 10 * row + number, "quota": 0.1} for row in range(8)]
    document = cluster_document(parts)
    assert [alarm["id"] for alarm in document["alarms"]] == ["n2:1", "n1:1", "n3:1"]
    assert [event["node"] for event in document["events"]] == ["n3", "n2", "n1"]
    assert [row["messages"] for row in document["queuesTop"]] == [72, 71, 70, 62, 61, 60, 52, 51, 50, 42]
    assert document["verdict"]["text"] == "2 alarms are unacknowledged."


def test_an_acknowledged_alarm_stays_acknowledged_when_its_partition_moves() -> None:
    """The former primary clears its alarm, the new one raises its own."""
    alarm = {"kind": "queue-stuck", "category": "QUEUE_STUCK", "subject": "bmq://d/q", "acknowledgedBy": None,
             "acknowledgedAt": None, "clearedBy": None, "clearedAt": None}
    parts = healthy_parts()
    before = {**alarm, "id": "n1:1", "node": "n1", "raisedAt": 800.0, "acknowledgedBy": "ada", "acknowledgedAt": 850.0,
              "clearedAt": 901.0}
    after = {**alarm, "id": "n2:7", "node": "n2", "raisedAt": 900.0}
    other = {**after, "id": "n2:8", "subject": "bmq://d/r"}
    later = {**after, "id": "n3:1", "node": "n3", "raisedAt": 901.0 + CONTINUED_S}

    def shown() -> dict[str, Any]:
        return {each["id"]: each["acknowledgedBy"] for each in cluster_document(parts)["alarms"]}

    parts["n1"]["alarms"], parts["n3"]["alarms"] = [before], [later]
    assert shown()["n3:1"] is None, "too late to be the same"
    parts["n2"]["alarms"] = [after, other]
    assert (shown()["n2:7"], shown()["n2:8"]) == ("ada", None)
    after["clearedAt"], later["raisedAt"] = 5000.0, 4999.0  # moved again
    assert shown()["n3:1"] == "ada"
    before["clearedBy"] = "olaf"  # an operator expects that it is over
    assert shown()["n2:7"] is None


def test_the_verdict_shows_the_worst_reason_and_the_number_of_others() -> None:
    parts = without_node(healthy_parts(), "n1")
    parts["n2"]["loopLagMs"] = 900.0
    parts["n3"].update(openFiles=950)
    parts["n3"]["top"] = [{"uri": "bmq://d/q", "messages": 1, "quota": 1.5}]
    verdict = cluster_document(parts, "n2")["verdict"]
    assert verdict["level"] == "bad" and verdict["text"].endswith("and 4 more problems.")
    assert "Queue bmq://d/q has used 100% of its quota." in verdict["reasons"]
    assert "The event loop of n2 lags by 900 ms." in verdict["reasons"]
    assert "n3 has 950 of 1,000 files open." in verdict["reasons"]


def test_a_verdict_names_at_most_four_nodes() -> None:
    parts = healthy_parts(9)
    for number in range(4, 10):
        parts[f"n{number}"]["state"] = "starting"
    assert cluster_document(parts)["verdict"]["text"] == "Nodes n4, n5, n6, n7 and 2 more are starting."


def test_a_rolling_restart_is_blocked_by_any_problem_of_the_cluster() -> None:
    assert restart_obstacle(cluster_document(healthy_parts())) == ""
    assert restart_obstacle(cluster_document(without_node(healthy_parts(), "n2"))) == "n2 is not up"
    parts = healthy_parts()
    parts["n3"]["partitions"][0]["self"]["role"] = "healing"
    assert restart_obstacle(cluster_document(parts)) == "n3 is catching up in partition 0"


def test_histories_are_added_by_time_up_to_the_last_slot_that_every_node_has() -> None:
    one = NodeRows([node_row(5, True), node_row(10, True), node_row(15, True)])
    other = NodeRows([node_row(10, False, 2.0), node_row(15, False, None), node_row(20, False)])
    assert [row[:3] for row in add_histories([one, other], PARTITIONS)] == [[5, 1.0, 1.0], [10, 3.0, 3.0], [15, 1.0, 1.0]]
    assert len(add_histories([NodeRows([node_row(slot, True) for slot in range(0, 5000, 5)])], 4)) == HISTORY_ROWS
    earlier_release = NodeRows([[5, 1.0, 1.0, 1.0, 1.0, 7, 70]])
    assert add_histories([earlier_release, one], PARTITIONS)[0][1] == 1.0
    assert add_histories([], 0) == [] and add_counts([[1, 2], [1, 2, 3], []]) == [2, 4, 3] and add_counts([]) == []


def test_the_history_is_made_again_only_when_that_of_a_node_changes() -> None:
    history, rows = ClusterHistory(), [node_row(5, True), node_row(10, True)]
    first = history.add({"n1": NodeRows(list(rows))}, PARTITIONS)
    assert history.add({"n1": NodeRows(list(rows))}, PARTITIONS) is first
    assert len(history.add({"n1": NodeRows([*rows, node_row(15, True)])}, PARTITIONS)) == 3
    assert history.add({"n1": NodeRows(rows), "n2": NodeRows(rows)}, PARTITIONS)[0][1] == 2.0
    assert history.add({}, PARTITIONS) == []


def test_the_history_keeps_the_rows_of_a_node_that_no_longer_answers() -> None:
    """The past must not change when a node dies; a node that runs and does not answer leaves a gap in the rates."""
    primary, replica = [node_row(5, True), node_row(10, True)], [node_row(slot, False) for slot in (5, 10, 15, 20)]
    killed = add_histories([NodeRows(primary, False, False), NodeRows(replica)], PARTITIONS)
    assert [row[:2] + row[5:7] for row in killed] == [[5, 2.0, 28, 280], [10, 2.0, 28, 280], [15, 1.0, 28, 280],
                                                      [20, 1.0, 28, 280]], "the replica knows the stored messages"
    hung = add_histories([NodeRows(primary, False, True), NodeRows(replica)], PARTITIONS)
    assert [row[1] for row in hung] == [2.0, 2.0, None, None]
    restarted = add_histories([NodeRows([*primary, node_row(20, True)]), NodeRows(replica)], PARTITIONS)
    assert [row[1] for row in restarted] == [2.0, 2.0, 1.0, 2.0]


def test_without_its_primary_the_values_of_a_partition_are_those_of_a_replica() -> None:
    parts, last = healthy_parts(), node_part(1)
    last["top"] = [{"uri": "bmq://d/q", "messages": 9, "quota": 0.9}]
    last["alarms"] = [{"id": "n1:1", "raisedAt": 1, "clearedAt": None, "acknowledgedBy": None, "category": "DISK"}]
    last.update(at=990.0, events=[{"n": 1, "at": 985.0, "node": "n1"}])
    for view in parts["n3"]["partitions"]:
        view.update(sequence=101, messages=8, bytes=80)
    document = cluster_document(without_node(parts, "n1"), "n2", {"n1": "no answer"}, past={"n1": last})
    assert document["stored"] == {"messages": 32, "bytes": 320, "sampledAt": 1000.0}
    assert {each["source"] for each in document["partitions"]} == {"n3"}
    assert coverage(document) == {"n3": [0, 1, 2, 3]}
    assert document["history"][-1][5] == 28 and document["rates"]["put"] == 20.0
    assert document["queuesTop"] == last["top"] and document["events"] == last["events"]
    assert [(each["id"], each["asOf"]) for each in document["alarms"]] == [("n1:1", 990.0)]
    assert "1 alarm is unacknowledged." in document["verdict"]["reasons"]
    node = document["nodes"][0]
    assert (node["answers"], node["lastAnswerAt"], node["sampledAt"], node["memoryBytes"]) == (False, 990.0, None, None)


def test_a_hung_node_keeps_its_last_values_with_their_time() -> None:
    parts, last = healthy_parts(), {**node_part(2), "at": 990.0, "memoryBytes": 77}
    del parts["n2"]
    node = cluster_document(parts, missing={"n2": "no answer in time"}, past={"n2": last})["nodes"][1]
    assert (node["state"], node["memoryBytes"], node["sampledAt"]) == ("unreachable", 77, 990.0)


def test_a_removed_node_is_not_listed() -> None:
    removed = {**node_part(4, 4), "at": 990.0, "alarms": [{"id": "n4:1", "raisedAt": 1, "clearedAt": None,
                                                            "acknowledgedBy": None, "category": "DISK", "node": "n4"}]}
    document = cluster_document(healthy_parts(), missing={"n4": "connection refused"}, past={"n4": removed})
    assert [node["name"] for node in document["nodes"]] == ["n1", "n2", "n3"] and document["alarms"] == []
    assert document["verdict"]["level"] == "good"


def test_a_value_that_no_node_knows_is_unknown_and_not_zero() -> None:
    """A proxy whose nodes do not answer any more has their last values; one that never had any has none."""
    proxy = {**node_part(9), "name": "p1", "proxy": True, "ident": "p1@h:1", "host": "h", "members": [], "partitions": [],
             "history": [node_row(995, False)], "elector": None, "cluster": "c"}
    alone = cluster_document({"p1": proxy})
    assert alone["stored"]["messages"] is None and alone["rates"]["put"] is None
    assert alone["verdict"]["text"].startswith("This proxy is connected to no node")
    later = cluster_document({"p1": proxy}, missing={"n1": "no answer"}, past={"n1": {**node_part(1), "at": 990.0}})
    assert later["stored"] == {"messages": 28, "bytes": 280, "sampledAt": 990.0} and coverage(later) == {}
    assert later["verdict"]["level"] == "bad" and later["history"][-1][5:7] == [28, 280]


def test_the_verdict_names_a_full_disk_before_its_effects() -> None:
    parts = {"n1": node_part(1, 1)}
    parts["n1"]["storage"] = {"location": "/s", "freeBytes": 0, "totalBytes": 1 << 30, "usedBytes": 9, "allocatedBytes": 9}
    parts["n1"]["partitions"][2].update(state="failing", problem="No space left on device")
    parts["n1"]["members"][0]["unable"] = "cannot write partition 2: No space left on device"
    verdict = cluster_document(parts)["verdict"]
    assert verdict["level"] == "bad" and verdict["reasons"] == [
        "The disk of node n1 is full: 0 B of 1.00 GB are free at /s.",
        "Partition 2 at n1 is failing, its queues accept no messages: No space left on device.",
        "Node n1 cannot write partition 2: No space left on device."]
    parts["n1"]["storage"]["freeBytes"] = 100 << 20
    assert cluster_document(parts)["verdict"]["reasons"][-1].startswith("The disk of node n1 is nearly full: 100.00 MB of")


def test_rates_cover_five_seconds_and_are_unknown_at_first() -> None:
    sampler = NodeSampler(Reading(0.0, (0, 0, 0, 0, 0, 0), (0, 0), 0.0))
    sampler.sample(Reading(0.5, (5, 5, 5, 5, 5, 5), (5, 5), 0.0))
    assert sampler.rates["put"] is None and sampler.cpu_share is None
    sampler.sample(Reading(2.0, (20, 10, 4, 2, 2000, 400), (3, 4), 0.5))
    assert sampler.rates == {"put": 10.0, "ack": 5.0, "push": 2.0, "confirm": 1.0, "putBytes": 1000.0, "pushBytes": 200.0}
    assert sampler.cpu_share == 0.25 and sampler.latencies == [3, 4]
    stored = StoredTotals(messages=5, bytes=50, led=1, led_messages=3, led_bytes=30)
    sampler.record(Reading(4.0, (40, 20, 8, 4, 2000, 400), (3, 4), 0.5), 1007.9, stored, 99)
    sampler.record(Reading(4.1, (40, 20, 8, 4, 2000, 400), (3, 4), 0.5), 1009.999, stored, 99)  # the same slot again
    assert list(sampler.history) == [[1005, 10.0, 5.0, 2.0, 1.0, 1, 3, 30, 5, 50, 99]]
    sampler.sample(Reading(5.0, (10, 10, 4, 2, 2000, 400), (3, 4), 0.5))
    assert sampler.rates["put"] is None  # the counters began again
    for second in range(6, 40):
        sampler.sample(Reading(float(second), (0,) * 6, (second, 4), 0.5))
    assert sampler.latencies == [10, 0]  # of the last ten seconds


@pytest.mark.parametrize("step", [0.3, 1.0, 4.0])
def test_the_rate_of_a_slow_steady_source_is_nearly_constant(step: float) -> None:
    """With a window of 0.3 s a queue of 5 messages per second showed 2.8 to 7.7."""
    window, now, seen = RateWindow(), 0.0, set[float]()
    while now < 60.0:
        (found,) = window.sample(now, (int(now * 5),))
        now += step
        if found is not None and now > 10.0:
            seen.add(found)
    assert seen and 4.7 <= min(seen) and max(seen) <= 5.3


def test_the_tree_of_a_queue_combines_its_primary_and_the_users_at_all_nodes() -> None:
    row = {"uri": "q", "messages": 5, "pushRate": 3.0, "partition": 0}
    client = {"client": "app@host", "node": "n2", "broker": False, "app": "a", "unconfirmed": 2, "stuck": True}
    relay = {"client": "bmqbrkr:n2", "node": "n1", "broker": True, "app": "a", "unconfirmed": 2, "stuck": False}
    parts = [{"node": "n1", "leads": True, "apps": [{"app": "a"}], "consumers": [relay], "producers": [], "row": row,
              "history": [[1, 2, 3]]},
             {"node": "n2", "leads": False, "apps": [], "consumers": [client], "history": [[1, 9, 9], [6, 4, 5]],
              "row": {"uri": "q", "messages": 4, "partition": 0},
              "producers": [{"client": "app@host", "node": "n2", "broker": False}]}]
    tree = queue_tree(row, parts, "n1")
    cluster = {"partitions": [{"id": 0, "source": "n2"}]}
    assert queue_source(parts, cluster) is parts[0] and queue_source(parts[1:], cluster) is parts[1]
    assert queue_source([{**parts[1], "row": None}], cluster) is None
    document = merge_queue(parts[0], parts, tree)
    assert document["consumers"] == [client] and document["apps"] == [{"app": "a"}]
    assert document["history"] == [[1, 2, 3], [6, 4, 5]] and document["messages"] == 5
    assert tree["name"] == "n1" and tree["pushRate"] == 3.0
    (behind,) = [child for child in tree["children"] if child["name"] == "n2"]
    assert behind["kind"] == "replica" and behind["children"][0]["state"] == "stuck" and len(behind["children"]) == 1
