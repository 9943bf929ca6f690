"""Graceful stops of brokers in a cluster: stop requests and responses, waits, and the state afterwards.

Tests `bmqtwist/broker/graceful_stop.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from kit import data_events as events

from bmqtwist.storage.journal import is_sync_point
from bmqtwist.storage.records import RECORD
from bmqtwist.testing.config import CLUSTER
from bmqtwist.wire.cluster_schema import NodeStatus, NodeStatusAdvisory, StopRequest, StopResponse
from bmqtwist.wire.schema import (
    CloseQueue,
    ConfigureStream,
    ConsumerInfo,
    OpenQueue,
    QueueHandleParameters,
    StreamParameters,
    Subscription,
)
from sim.cluster import SimulatedCluster
from sim.downstreams import ScriptedBroker
from sim.elected import INACTIVITY_S
from sim.faults import FaultWorld
from sim.introductions import FEATURES, links
from sim.replicated import STRONG, ReplicatingCluster

STOP_ANSWER_S = 5.0
SHUTDOWN_S = 4.0  # shutdownTimeoutMs of the nodes here


def send_stop_requests(brokers: Iterable[ScriptedBroker], *asked: tuple[int, StopRequest]) -> None:
    """Send stop requests from each broker."""
    for broker in brokers:
        for r_id, request in asked:
            broker.send_cluster_message("stopRequest", request, r_id)


@pytest.mark.spec("cluster", 106)
def test_a_graceful_stop_waits_for_confirms_and_unconfirmed_messages_are_delivered_by_the_next_primary() -> None:
    nodes = ReplicatingCluster(1)
    nodes.run_until_stable()
    primary = nodes.primary()
    consumer = nodes.client(primary.name).consume(STRONG)
    nodes.post(3)
    held = consumer.take(3)
    begun = nodes.now
    primary.stop(down=None)
    nodes.run(2.0)
    consumer.confirm(held[0])
    nodes.run(1.0)
    assert primary.up
    while primary.up:
        nodes.run(0.1)
    assert SHUTDOWN_S <= nodes.now - begun < SHUTDOWN_S + 2 * STOP_ANSWER_S + 1.0
    assert any("giving up on 2 unconfirmed message(s)" in line for line in primary.log())
    nodes.run(INACTIVITY_S + 3.0)
    again = nodes.client(nodes.primary().name).consume(STRONG).take(2)
    assert [each.guid for each in again] == [each.guid for each in held[1:]]
    nodes.run(0.5)
    assert len(nodes.stored(nodes.primary())) == 2, "the CONFIRM that came meanwhile counts"


@pytest.mark.spec("cluster", 107)
def test_each_stop_request_gets_one_response_from_a_member_to_members_and_proxies() -> None:
    nodes = SimulatedCluster(5, 3)
    nodes.node("n1").crash(power=False, down=None)
    nodes.run(2.0)
    member, proxy = ScriptedBroker(nodes, "n2", FEATURES, 1), ScriptedBroker(nodes, "n2", "HA:GRACEFUL_SHUTDOWN_V2")
    other = ScriptedBroker(nodes, "n2", "HA:GRACEFUL_SHUTDOWN_V2")
    requests = (7, StopRequest("", 2)), (8, StopRequest("a virtual cluster", 2)), (8, StopRequest(CLUSTER, 2))
    send_stop_requests((member, proxy, other), *requests)
    for broker in (member, proxy, other):
        broker.receive_for(1.0)
        assert broker.cluster_messages("stopResponse") == [(7, StopResponse("")), (8, StopResponse("a virtual cluster")),
                                               (8, StopResponse(CLUSTER))]
    member.send_cluster_message("nodeStatusAdvisory", NodeStatusAdvisory(NodeStatus.E_UNAVAILABLE))
    send_stop_requests([member], (9, StopRequest("", 2)))
    member.receive_for(1.0)
    assert member.cluster_messages("stopResponse")[3:] == [(9, StopResponse(""))]
    assert links(nodes.node("n2")).is_up(1) and not proxy.link.closed


@pytest.mark.spec("cluster", 109)
@pytest.mark.parametrize("answers", [True, False])
def test_a_stop_waits_for_a_downstream_broker_with_version_1_until_its_queues_are_closed_or_the_timeout(
        answers: bool) -> None:
    world = SimulatedCluster(1, 1)
    node = world.node("n1")
    old, new = ScriptedBroker(world, "n1", "HA:GRACEFUL_SHUTDOWN"), ScriptedBroker(world, "n1", "HA:GRACEFUL_SHUTDOWN,"
                                                                                          "GRACEFUL_SHUTDOWN_V2")
    unable = ScriptedBroker(world, "n1", "PROTOCOL_ENCODING:BER")
    uri = "bmq://bmq.test.persistent.priority/q"
    handle = QueueHandleParameters(uri, 0, None, 2, 1, 0, 0)
    assert old.request("openQueue", OpenQueue(handle)).choice == "openQueueResponse"
    wanted = StreamParameters("__default", [Subscription(1, consumers=[ConsumerInfo(10, 1 << 20, 0, 1)])])
    assert old.request("configureStream", ConfigureStream(0, wanted)).choice == "configureStreamResponse"
    guid = world.client("n1").open(uri, write=1).post(b"held")
    old.receive_for()
    assert old.pushed == [guid]
    node.stop(down=None)
    for broker in (old, new, unable):
        broker.receive_for(0.3)
    [(asked, request)] = old.cluster_messages("stopRequest")
    assert request == StopRequest(CLUSTER, 1)
    [(newer, request)] = new.cluster_messages("stopRequest")
    assert request == StopRequest("", 2) and not unable.cluster_messages("stopRequest")
    new.send_cluster_message("stopResponse", StopResponse(""), newer)
    assert old.request("configureStream", ConfigureStream(0, StreamParameters("__default", []))).choice == (
        "configureStreamResponse")
    if not answers:
        world.run(12.0)
        assert not node.up, "it is waited for as long as stopTimeoutMs says"
        return
    old.link.send(events.encode_confirm([events.ConfirmMessage(0, guid, 0)]))
    world.run(1.2)
    assert node.up, "it has not closed its queue"
    assert old.request("closeQueue", CloseQueue(handle, True)).choice == "closeQueueResponse"
    old.send_cluster_message("stopResponse", StopResponse(CLUSTER), asked)
    world.run(1.5)
    assert not node.up


@pytest.mark.spec("cluster", 111)
@pytest.mark.parametrize("spread", [False, True])
def test_the_last_record_of_a_stopping_primary_is_a_sync_point_that_all_replicas_have(spread: bool) -> None:
    world = FaultWorld(111, spread=spread)
    primary, index, lease = world.primary(), world.partition_of(), world.lease()
    primary.stop(down=None)
    world.until(lambda: not primary.up, 40.0)
    world.until(lambda: world.primaries(index))
    new = world.hosted(world.primary(), index).summary
    following = min(each for each, _ in new.leases if each > lease)
    history = world.partition_judge.history(index)
    last = history.previous((following, 1))
    assert last[0] == lease and is_sync_point(RECORD.unpack(history.records[last][0]))
    for node in world.other_nodes(primary):
        assert world.hosted(node, index).summary.contains(last)
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("seed, leads", [(1, False), (2, True), (3, False), (5, True)])
def test_a_stop_does_not_wait_for_messages_of_proxies_that_have_left(seed: int, leads: bool) -> None:
    nodes = ReplicatingCluster(seed, 3, proxies={"p1": ["n1", "n2", "n3"]})
    nodes.run_until_stable()
    consumer = nodes.client("p1").consume(STRONG)
    nodes.post(4)
    held = consumer.take(4)
    nodes.run(1.0)
    upstream = nodes.node(f"n{nodes.proxies[0].broker.proxies[CLUSTER].selector.active}")
    primary = nodes.primary(nodes.cluster("n1").metadata.state.queues[STRONG].partition_id)
    assert leads is (primary is upstream), "choose another seed"
    upstream.stop(down=None)
    begun = nodes.now
    while upstream.up:
        nodes.run(0.1)
    assert nodes.now - begun < 1.5
    nodes.run(begun + 1.5 - nodes.now)
    consumer.confirm(*held)
    nodes.run(INACTIVITY_S)
    assert not consumer.pushes(), "not delivered again"
    assert not nodes.stored(nodes.primary())


def test_a_proxy_that_has_answered_the_stop_request_receives_no_broadcasts() -> None:
    nodes = ReplicatingCluster(1)
    nodes.run_until_stable()
    uri = "bmq://bmq.test.mem.broadcast/b"
    local = nodes.client("n1").consume(STRONG)
    source, receiver = nodes.client("n1").open(uri, write=1), nodes.client("n1").consume(uri)
    handle = QueueHandleParameters(uri, 0, None, 2, 1, 0, 0)
    wanted = StreamParameters("__default", [Subscription(1, consumers=[ConsumerInfo(10, 1 << 20, 0, 1)])])
    announcing, other = (ScriptedBroker(nodes, "n1", f"HA:GRACEFUL_SHUTDOWN_V2{more}")
                         for more in (",BROADCAST_TO_PROXIES", ""))
    for proxy in (announcing, other):
        assert proxy.request("openQueue", OpenQueue(handle)).choice == "openQueueResponse"
        assert proxy.request("configureStream", ConfigureStream(0, wanted)).choice == "configureStreamResponse"
    source.put(ack=False)
    for proxy in (announcing, other):
        proxy.receive_for(0.1)
        assert len(proxy.pushed) == 1
    nodes.post(1)
    local.take(1)
    nodes.node("n1").stop(down=None)
    for proxy in (announcing, other):
        proxy.receive_for(0.1)
        [(asked, _)] = proxy.cluster_messages("stopRequest")
        proxy.send_cluster_message("stopResponse", StopResponse(""), asked)
        proxy.receive_for(0.1)
    order = [message.value.choice for message in announcing.control_messages if message.choice == "clusterMessage"]
    assert order[-2:] == ["nodeStatusAdvisory", "stopRequest"], order
    source.put(ack=False)
    for proxy in (announcing, other):
        proxy.receive_for(0.3)
    assert len(announcing.pushed) == 1
    assert len(other.pushed) == 2, "it cannot leave"
    assert len(receiver.pushes()) == 2
