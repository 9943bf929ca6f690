"""Rows of downstream proxies in the console: traffic, names, and the tree of a queue.

Tests `bmqtwist/view/node_facts.py` and `bmqtwist/console/merge.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from bmqtwist.console.merge import merge_proxies, queue_tree
from bmqtwist.console.samples import FlowSampler
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.view import cluster_facts, node_facts, queue_facts
from sim.cluster import SimulatedCluster
from sim.replicated import STRONG, ReplicatingCluster

URI = "bmq://bmq.test.persistent.priority/q"
HTTP = {"brokerInstanceName": "edge", "bmqtwist": {"http": {"port": 8080, "address": "0.0.0.0"}}}


def chain(**options: Any) -> SimulatedCluster:
    """Return a cluster with a member n1, its proxy p1, and p2, a proxy of p1."""
    return SimulatedCluster(1, 1, proxies={"p1": ["n1"], "p2": ["p1"]}, **options)


def proxy_rows(world: SimulatedCluster, name: str, sampler: FlowSampler | None = None) -> list[dict[str, Any]]:
    """Return the rows of the proxies at a node, with rates."""
    node = world.node(name)
    rows = node_facts.proxy_rows(node.broker, cluster_facts.cluster_of(node.broker))
    rates = (sampler or FlowSampler()).sample(world.now, {row.ident: flow for row, flow in rows})
    return [{**to_builtins(row), **rates[row.ident]} for row, _ in rows]


def part(node: SimulatedNode, now: float) -> dict[str, Any]:
    """Return what a node reports about the queue, with fixed rates."""
    found = queue_facts.queue_part(node.broker, URI, now)
    return {**found, "rates": {"pushRate": 1.0, "pushBytesRate": 5.0, "putRate": 0.0}}


def test_a_node_reports_the_traffic_of_its_downstream_proxy() -> None:
    world = chain()
    reader, writer = world.client("p2").consume(URI), world.client("n1").open(URI, write=1)
    sampler = FlowSampler()
    [proxy] = proxy_rows(world, "n1", sampler)
    assert (proxy["host"], proxy["state"], proxy["queues"], proxy["unconfirmed"]) == ("p1", "connected", 1, 0)
    assert proxy["pushRate"] is None  # one sample gives no rate
    began = world.now
    for number in range(3):
        writer.post(b"down%d" % number)
    reader.take(3)
    world.run(2.0)
    [proxy] = proxy_rows(world, "n1", sampler)
    seconds = world.now - began
    assert proxy["pushRate"] == pytest.approx(3 / seconds, abs=0.1) and proxy["putRate"] == 0.0
    assert proxy["pushBytesRate"] == pytest.approx(15 / seconds, abs=0.1)
    assert (proxy["unconfirmed"], proxy["unacked"], proxy["unread"]) == (3, 0, 0)
    assert proxy_rows(world, "p1")[0]["host"] == "p2" and proxy_rows(world, "p2") == []


def test_totals_of_a_node_include_the_traffic_of_proxies_after_they_disconnect() -> None:
    world = chain()
    reader, writer = world.client("p2").consume(URI), world.client("p1").open(URI, write=1)
    for number in range(3):
        writer.post(b"down%d" % number)
    reader.confirm(*reader.take(3)[:2])
    world.run(1.0)
    for _ in range(2):
        for name in ("n1", "p1"):
            found = node_facts.traffic_totals(world.node(name).broker)
            assert (found.put_msgs, found.ack_msgs, found.push_msgs, found.confirm_msgs, found.push_bytes) == (
                3, 3, 3, 2, 15), name
        world.node("p2").crash(power=False, down=None)
        world.run(1.0)
    world.node("p1").crash(power=False, down=None)
    world.run(1.0)
    assert node_facts.traffic_totals(world.node("n1").broker).push_msgs == 3


def test_a_proxy_row_counts_unacknowledged_puts_and_unread_output() -> None:
    world = chain()
    world.client("p1").consume(URI)
    [peer] = node_facts.connected_proxies(world.node("n1").broker, cluster_facts.cluster_of(world.node("n1").broker))
    peer._unacked[b"guid"] = next(iter(peer.handles.values()))
    peer.window.close()
    [proxy] = proxy_rows(world, "n1")
    assert proxy["unacked"] == 1 and proxy["state"] == "behind"


def test_a_proxy_reports_its_name_and_console_address_to_members() -> None:
    world = chain(proxy_app=HTTP)
    world.client("p2").consume(URI)
    [first], [second] = proxy_rows(world, "n1"), proxy_rows(world, "p1")
    assert (first["name"], first["url"]) == ("edge", "http://p1:8080")
    assert (second["name"], second["url"]) == ("edge", "http://p2:8080")
    assert first["ident"] != second["ident"]  # though their names are the same
    assert first["ident"] == cluster_facts.own_ident(world.node("p1").broker)
    assert cluster_facts.own_url(world.node("p1").broker) == "http://p1:8080"
    assert cluster_facts.own_ident(world.node("n1").broker) == ""


def test_a_proxy_without_console_reports_only_its_name() -> None:
    world = chain(proxy_app={"brokerInstanceName": "edge"})
    world.client("p1").consume(URI)
    [proxy] = proxy_rows(world, "n1")
    assert (proxy["name"], proxy["url"]) == ("edge", "")


def test_the_tree_of_a_queue_contains_proxies_of_proxies() -> None:
    world = chain(proxy_app=HTTP)
    reader = world.client("p2").consume(URI)
    world.client("n1").open(URI, write=1).post(b"down")
    reader.take(1)
    parts = [part(world.node(name), world.now) for name in ("n1", "p1", "p2")]
    assert [[proxy["url"] for proxy in each["proxies"]] for each in parts] == [["http://p1:8080"], ["http://p2:8080"], []]
    tree = queue_tree({"pushRate": 1.0}, parts, "n1")
    writer, first = sorted(tree["children"], key=lambda each: str(each["kind"]))
    [second] = first["children"]
    [client] = second["children"]
    assert [(each["kind"], each["unconfirmed"]) for each in (writer, first, second, client)] == [
        ("client", 0), ("proxy", 1), ("proxy", 1), ("client", 1)]
    assert first["bytesRate"] == 5.0
    lost = queue_tree({"pushRate": 1.0}, [part(world.node("p2"), world.now)], "n1")  # n1 and p1 do not answer
    assert [(each["kind"], each["name"]) for each in lost["children"]] == [("proxy", "edge")]


def test_a_replica_is_not_shown_as_a_proxy_in_the_tree_of_a_queue() -> None:
    nodes = ReplicatingCluster(1)
    nodes.run_until_stable()
    primary = nodes.primary()
    replica = next(node for node in nodes.machines if node is not primary)
    nodes.client(replica.name).consume(STRONG)
    nodes.client(primary.name).open(STRONG, write=1)
    parts = [{**queue_facts.queue_part(node.broker, STRONG, nodes.now), "rates": {}} for node in (primary, replica)]
    assert [each["client"] for each in parts[0]["consumers"]] == [replica.name] and parts[0]["proxies"] == []
    tree = queue_tree({"pushRate": 1.0}, parts, primary.name)
    assert sorted((each["kind"], len(each["children"])) for each in tree["children"]) == [("client", 0), ("replica", 1)]
    silent = queue_tree({"pushRate": 1.0}, parts[:1], primary.name)  # the console of the replica does not answer
    assert ("replica", replica.name) in [(each["kind"], each["name"]) for each in silent["children"]]


def test_rows_of_one_proxy_from_several_nodes_are_merged() -> None:
    link = {"ident": "p@h:1", "name": "p", "host": "h", "url": "http://h:1", "address": "h:5", "queues": 2}
    rows = merge_proxies({"n2": {"proxies": [{**link, "queues": 0}]}, "n1": {"proxies": [link]}, "n3": {}})
    assert [(row["ident"], row["state"], row["version"]) for row in rows] == [("p@h:1", "connected", None)]
    assert rows[0]["links"] == [{"node": "n1", "address": "h:5", "queues": 2}, {"node": "n2", "address": "h:5", "queues": 0}]
