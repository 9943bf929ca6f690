"""A proxy and the nodes above it, which do what the test says: choice, failover, refusals; and the recording."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kit import data_events as events
from kit.client import Client, RequestRefused, refusal
from kit.data_events import PushMessage, encode_options

from bmqtwist.errors import AckStatus, Category
from bmqtwist.testing.config import domain_config
from bmqtwist.wire import control, options
from bmqtwist.wire.cluster_schema import NodeStatus, StopRequest, StopResponse
from bmqtwist.wire.control import ControlMessage
from bmqtwist.wire.fast import ACK_REQUESTED, OUT_OF_ORDER, EventType, event_header
from sim.cluster import PORT, SimulatedCluster, SimulatedLink
from sim.upstreams import ScriptedNode

URI = "bmq://bmq.test.persistent.priority/q"


class Above:
    """A proxy p1, and nodes n1, n2 ... above it."""

    def __init__(self, count: int = 2, places: dict[str, str] | None = None, patience_ms: int = 10000,
                 **scripted: Any) -> None:
        names = [f"n{number}" for number in range(1, count + 1)]
        nodes = [{"id": number, "name": name, "dataCenter": (places or {}).get(name, "dc1"),
                  "transport": {"tcp": {"endpoint": f"tcp://{name}:{PORT}"}}} for number, name in enumerate(names, 1)]
        self.world = SimulatedCluster(1, 0, proxies={"p1": names}, proxy_cluster={  # type: ignore[arg-type]
            "nodes": nodes, "queueOperations": {"openTimeoutMs": patience_ms, "configureTimeoutMs": 10000,
                                                "closeTimeoutMs": 10000, "shutdownTimeoutMs": 4000}},
                                      texts={"d.sc": json.dumps(domain_config("d.sc")),
                                             "d.fan": json.dumps(domain_config("d.fan", "fanout")),
                                             "d.bc": json.dumps(domain_config("d.bc", "broadcast", in_memory=True))})
        self.nodes = [ScriptedNode(self.world.network, name, f"{name}:{PORT}", **scripted) for name in names]
        self.proxy = self.world.node("p1")

    def client(self) -> Client:
        """A client of the proxy."""
        return self.world.client("p1")

    @property
    def active(self) -> ScriptedNode:
        """The node that is used."""
        chosen = self.proxy.broker.proxies["c3"].selector.active
        assert chosen is not None
        return self.nodes[chosen - 1]

    def other(self, node: ScriptedNode) -> ScriptedNode:
        """The other one of two."""
        return self.nodes[1 - self.nodes.index(node)]

    def push(self, node: ScriptedNode, q_id: int, guid: bytes, payload: bytes, late: bool = False, sub_id: int = 1) -> None:
        """A message for the proxy."""
        node.send(events.encode_push([PushMessage(q_id, guid, payload, OUT_OF_ORDER if late else 0, options=encode_options(
            [options.SubQueueInfos((options.SubQueueInfo(sub_id),))]))]))


def ask(client: Client, q_id: int = 0, uri: str = URI, **counts: int) -> int:
    """An open that is not waited for."""
    return client.send_request({"openQueue": {"handleParameters": client.handle_parameters(uri, q_id, **counts)}})


# -- choice ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("cluster", 97)
def test_a_node_of_the_own_data_centre_is_taken() -> None:
    above = Above(3, {"n1": "dc2", "n2": "dc1", "n3": "dc3"})
    above.client().open(URI, write=1)
    assert above.active.name == "n2" and [node.connections for node in above.nodes] == [1, 1, 1]
    assert {node.identity.cluster_node_id for node in above.nodes} == {-1}


@pytest.mark.spec("cluster", 97)
def test_after_ten_seconds_any_node_will_do_and_it_is_kept() -> None:
    above = Above(2, {"n1": "dc2"}, patience_ms=30000)
    near = above.nodes[1]
    near.status = None
    number = ask(client := above.client(), write=1)
    above.world.run(9.0)
    assert not any(node.requests for node in above.nodes)
    above.world.run(2.0)
    assert above.active.name == "n1" and "openQueueResponse" in client.response(number)
    near.announce(NodeStatus.E_AVAILABLE)
    above.world.run(5.0)
    assert above.active.name == "n1", "a healthy node is kept"
    above.nodes[0].announce(NodeStatus.E_STOPPING)
    above.world.run(1.0)
    assert above.active.name == "n2"


@pytest.mark.spec("cluster", 97)
def test_the_ten_seconds_begin_with_the_first_open() -> None:
    above = Above(2, {"n1": "dc2"})
    near = above.nodes[1]
    near.status = None
    above.world.run(60.0)
    number = ask(client := above.client(), write=1)
    above.world.run(5.0)
    near.announce(NodeStatus.E_AVAILABLE)
    assert "openQueueResponse" in client.response(number) and above.active is near


def test_a_node_that_announces_nothing_is_taken_as_it_is() -> None:
    above = Above(1, features="PROTOCOL_ENCODING:BER,JSON", status=None)
    above.client().open(URI, write=1)
    assert above.active.name == "n1"


# -- failover ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("cluster", 90)
def test_when_the_node_dies_all_is_opened_at_another_one_and_put_again_in_order() -> None:
    above = Above(acks=None)
    client = above.client()
    writer, reader = client.open(URI, write=1), above.client().consume(URI, priority=3, m=7)
    sent = [writer.put(b"%d" % number) for number in range(5)]
    above.world.run(0.5)
    first = above.active
    second = above.other(first)
    assert [put.guid for put in first.puts] == sent and all(put.flags & ACK_REQUESTED for put in first.puts)
    assert not second.requests
    second.unanswered.add("configureStream")
    first.die()
    above.world.run(0.5)
    sent += [writer.put(b"%d" % number) for number in range(5, 8)]
    above.world.run(0.5)
    [reopened] = [each.handle_parameters for each in second.requests_of("openQueue")]
    assert (reopened.read_count, reopened.write_count, reopened.flags) == (1, 1, 6)
    [configured] = [each.stream_parameters for each in second.requests_of("configureStream")]
    assert configured.subscriptions[0].consumers[0].consumer_priority == 3 and not second.puts
    second.answer(second.requests[-1])
    above.world.run(0.5)
    assert [put.guid for put in second.puts] == sent, "once, in the order of their arrival"
    assert [put.data for put in second.puts] == [b"%d" % number for number in range(8)]
    above.world.run(30.0)
    assert len(second.puts) == 8
    second.send(events.encode_ack([events.AckMessage(0, 0, guid, 0) for guid in sent]))
    assert [writer.next_ack().guid for _ in sent] == sent
    assert not above.proxy.broker.proxies["c3"].relays.uplink._bytes and not reader.client.link.closed


@pytest.mark.spec("cluster", 96)
def test_confirms_go_up_between_the_open_and_the_configure() -> None:
    above = Above()
    reader = above.client().consume(URI)
    first = above.active
    second = above.other(first)
    guids = [b"%016d" % number for number in range(4)]
    for guid in guids:
        above.push(first, 0, guid, guid)
    got = reader.take(4)
    first.die()
    second.unanswered |= {"openQueue", "configureStream"}
    reader.confirm(*got[:2])
    above.world.run(0.5)
    assert not second.confirms
    second.answer(second.requests[0])
    above.world.run(0.5)
    assert [confirm.guid for confirm in second.confirms] == guids[:2] and second.requests[-1].choice == "configureStream"
    second.answer(second.requests[-1])
    for guid in guids[1:]:
        above.push(second, 0, guid, guid, late=True)
    above.world.run(0.5)
    assert [push.guid for push in reader.pushes()] == [guids[1]], "what it holds is not given to it again"
    reader.confirm(*got[2:])
    above.world.run(0.5)
    assert [confirm.guid for confirm in second.confirms] == guids


@pytest.mark.spec("cluster", 99)
def test_what_is_asked_for_during_a_failover_takes_effect_once() -> None:
    above = Above()
    stays, leaves = above.client().consume(URI), above.client().consume(URI, priority=0)
    first = above.active
    second = above.other(first)
    second.unanswered |= {"openQueue", "configureStream", "closeQueue"}
    first.die()
    above.world.run(0.1)
    assert [each.handle_parameters.read_count for each in second.requests_of("openQueue")] == [2]
    newcomer = above.client()
    number = ask(newcomer, read=1)
    stays.configure(priority=5)
    leaves.client.kill()
    above.world.run(0.5)
    assert len(second.requests) == 1, "the reopen is under way"
    second.unanswered.clear()
    second.answer(second.requests[0])
    newcomer.response(number)
    above.world.run(1.0)
    opened = sum(each.handle_parameters.read_count for each in second.requests_of("openQueue"))
    closed = sum(each.handle_parameters.read_count for each in second.requests_of("closeQueue"))
    assert (opened, closed) == (3, 1)
    last = second.requests_of("configureStream")[-1].stream_parameters.subscriptions[0].consumers[0]
    assert (last.consumer_priority, last.consumer_priority_count) == (5, 1)


@pytest.mark.spec("cluster", 99)
def test_a_close_during_a_reopen_leaves_no_handle() -> None:
    above = Above()
    reader = above.client().consume(URI)
    first = above.active
    second = above.other(first)
    second.unanswered.add("openQueue")
    first.die()
    above.world.run(0.5)
    reader.client.kill()
    above.world.run(0.5)
    second.answer(second.requests[0])
    above.world.run(1.0)
    assert [each.handle_parameters.read_count for each in second.requests_of("closeQueue")] == [1]
    assert not above.proxy.broker.proxies["c3"].relays.opened


@pytest.mark.spec("cluster", 100)
def test_an_upstream_that_comes_and_goes_leaves_nothing_behind() -> None:
    above = Above(acks=None)
    writer = above.client().open(URI, write=1)
    readers = [above.client().consume(URI, priority=number) for number in range(3)]
    guid = writer.put(b"x")
    above.world.run(0.3)
    for _ in range(20):
        node = above.active
        node.announce(NodeStatus.E_UNAVAILABLE)
        above.world.run(0.3)
        node.send(control.encode_event(ControlMessage(3, "closeQueueResponse", node.answers["closeQueue"](None)[1])))
        node.announce(NodeStatus.E_AVAILABLE)
        above.world.run(0.3)
    proxy = above.proxy.broker.proxies["c3"]
    assert proxy.selector.generation == 21
    assert Counter(put.guid for node in above.nodes for put in node.puts) == {guid: 21}, "once in each generation"
    [opened] = proxy.relays.opened.values()
    assert {(stream.counts.read, stream.counts.write) for stream in opened.streams.values()} == {(3, 1)}
    for each in (writer, *readers):
        each.client.kill()
    above.world.run(1.0)
    assert not proxy.relays.opened and not proxy.relays._by_id and not proxy.relays.requests._pending
    assert not proxy.relays.uplink._bytes


@pytest.mark.spec("cluster", 101)
def test_a_queue_that_nobody_has_open_during_a_failover_is_opened_afterwards() -> None:
    above = Above()
    reader = above.client().consume(URI)
    reader.close()
    above.active.die()
    above.world.run(0.5)
    above.client().consume(URI)
    assert [each.handle_parameters.read_count for each in above.active.requests_of("openQueue")] == [1]


def test_a_reopen_that_is_refused_is_tried_again_for_as_long_as_a_client_has_the_queue() -> None:
    above = Above()
    writer = above.client().open(URI, write=1)
    first = above.active
    second = above.other(first)
    second.refuse("openQueue", Category.E_UNKNOWN)
    first.die()
    guid = writer.put(b"x")
    above.world.run(120.0)
    tries = len(second.requests_of("openQueue"))
    assert [text for _, text in above.proxy.report.lines if f"queue reopen-request failed. queue: '{URI}'" in text
            and "error response: [ rId = " in text and "choice = [ status = [ category = E_UNKNOWN code = " in text
            and "Attempt number was: 1. Attempting again after 5000 milliseconds" in text]
    assert 22 <= tries <= 26 and not second.puts, "every 5 s, as configured"
    above.world.run(300.0)
    assert "QUEUE_REOPEN_FAILURE" in "".join(text for _, text in above.proxy.report.lines)
    assert writer.next_ack(guid).status == AckStatus.UNKNOWN, "older than the deduplication time"
    second.answers["openQueue"] = first.answers["openQueue"]
    again = writer.put(b"y")
    assert writer.next_ack(again).status == 0


@pytest.mark.spec("cluster", 89)
def test_what_the_primary_is_not_ready_for_is_put_again_and_nobody_is_told() -> None:
    above = Above(acks=int(AckStatus.NOT_READY))
    writer = above.client().open(URI, write=1)
    sent = [writer.put(b"%d" % number) for number in range(3)]
    above.world.run(5.0)
    node = above.active
    assert not [event for event in writer.client.inbox if event.kind == "ack"] and len(node.puts) > 9
    node.puts.clear()
    node.acks = 0
    later = writer.put(b"3")
    assert [writer.next_ack().guid for _ in range(4)] == [*sent, later]
    assert [put.guid for put in node.puts] == [*sent, later]


@pytest.mark.spec("cluster", 89)
@pytest.mark.parametrize("status", [AckStatus.LIMIT_MESSAGES, AckStatus.STORAGE_FAILURE, AckStatus.UNKNOWN])
def test_any_other_refusal_is_told_once(status: AckStatus) -> None:
    above = Above(acks=int(status))
    writer = above.client().open(URI, write=1)
    assert writer.status_of(b"x") == status
    above.world.run(10.0)
    assert len(above.active.puts) == 1 and not writer.acks()


def test_an_open_that_the_node_cannot_answer_now_waits() -> None:
    above = Above(1)
    node = above.nodes[0]
    good = node.answers["openQueue"]
    node.refuse("openQueue", Category.E_REFUSED, -201)
    number = ask(client := above.client(), write=1)
    above.world.run(3.0)
    assert len(node.requests_of("openQueue")) > 1
    node.answers["openQueue"] = good
    assert "openQueueResponse" in client.response(number)


def test_a_node_that_answers_nothing_is_left() -> None:
    above = Above(1)
    node = above.nodes[0]
    node.unanswered.add("openQueue")
    number = ask(client := above.client(), write=1)
    above.world.run(9.0)
    assert node.connections == 1
    above.world.run(5.0)
    with pytest.raises(RequestRefused, match="E_TIMEOUT"):
        client.response(number)
    above.world.run(60.0)
    assert node.connections == 2 and not above.proxy.broker.proxies["c3"].relays.opened


def test_a_configure_that_is_refused_above_is_not_in_force_here() -> None:
    above = Above(1)
    node = above.nodes[0]
    reader = above.client().consume(URI, priority=1)
    good = node.answers["configureStream"]
    node.refuse("configureStream", Category.E_INVALID_ARGUMENT, -1)
    assert refusal(reader.configure, priority=2).category == "E_INVALID_ARGUMENT"
    node.answers["configureStream"] = good
    other = above.client().consume(URI, priority=0)
    above.world.run(1.0)
    assert len(node.requests_of("configureStream")) == 2, "those above still have what they had"
    above.push(node, 0, b"p" * 16, b"x")
    assert reader.take(1) and not other.pushes()


@pytest.mark.spec("cluster", 100)
def test_what_a_node_says_that_is_not_used_any_more_does_not_count() -> None:
    above = Above(acks=None)
    reader, writer = above.client().consume(URI), above.client().open(URI, write=1)
    first = above.active
    guid = writer.put(b"x")
    above.world.run(0.2)
    first.announce(NodeStatus.E_STOPPING)
    above.world.run(0.5)
    assert above.active is above.other(first)
    above.push(first, 0, b"p" * 16, b"late")
    first.send(events.encode_ack([events.AckMessage(0, 0, guid, 0)]))
    above.world.run(0.5)
    assert not reader.pushes() and not writer.acks()


@pytest.mark.spec("cluster", 105)
def test_a_stop_waits_for_the_answers_to_what_was_posted() -> None:
    above = Above(acks=None)
    writer = above.client().open(URI, write=1)
    guid = writer.put(b"x")
    above.world.run(0.2)
    above.proxy.stop(down=None)
    above.world.run(0.2)
    for each in above.nodes:
        each.cluster_message("stopResponse", StopResponse(""), 1)
    above.world.run(2.5)
    assert above.proxy.up
    above.active.send(events.encode_ack([events.AckMessage(0, 0, guid, 0)]))
    assert writer.next_ack(guid).status == 0
    above.world.run(2.0)
    assert not above.proxy.up


@pytest.mark.spec("cluster", 110)
def test_a_node_that_will_stop_is_sent_confirms_and_no_more_puts() -> None:
    above = Above()
    writer, reader = above.client().open(URI, write=1), above.client().consume(URI)
    first = above.active
    second = above.other(first)
    above.push(first, 0, b"p" * 16, b"x")
    [push] = reader.take(1)
    first.cluster_message("stopRequest", StopRequest("", 2), 17)
    above.world.run(0.5)
    assert [(message.r_id, message.value.choice) for message in first.requests if message.choice == "clusterMessage"] == [
        (17, "stopResponse")]
    guid = writer.put(b"waits")
    reader.confirm(push)
    above.world.run(1.0)
    assert not first.puts and [each.guid for each in first.confirms] == [b"p" * 16]
    first.announce(NodeStatus.E_UNAVAILABLE)
    assert writer.next_ack(guid).status == 0 and [put.guid for put in second.puts] == [guid]


@pytest.mark.parametrize("bad", [b"\xff" * 40, events.encode_push([PushMessage(9, b"g" * 16, b"x")])[8:], b""],
                         ids=["noise", "unknown queue", "empty"])
@pytest.mark.parametrize("kind", [EventType.PUSH, EventType.ACK, EventType.CONTROL, EventType.STORAGE])
def test_what_makes_no_sense_harms_nobody(bad: bytes, kind: EventType) -> None:
    above = Above(1)
    writer = above.client().open(URI, write=1)
    above.active.send(event_header(kind, len(bad)) + bad)
    above.world.run(0.5)
    assert writer.status_of(b"x") == 0


# -- the recording -----------------------------------------------------------------------------------------------------

RECORDED = Path(__file__).resolve().parent.parent / "vectors" / "real-cluster" / "proxy.jsonl"
PROXY, MEMBER, APPLICATIONS, UPSTREAM = 30355, 30350, (6, 11), 7  # ports, connections
LEAVES, LAST, IN_ORDER = 7.0116, 7.018, 12  # seconds: an application leaves, the proxy is stopped; requests before


class Recorded:
    """The events of one side of a connection, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[EventType, int, bytes]] = []
        self._buffer = b""

    def take(self, data: bytes) -> None:
        """More bytes."""
        self._buffer += data
        while len(self._buffer) >= 8 and len(self._buffer) >= (size := int.from_bytes(self._buffer[:4], "big")):
            event, self._buffer = self._buffer[:size], self._buffer[size:]
            self.events.append((EventType(event[4] & 63), event[6], event[8:]))


def test_our_proxy_says_to_a_member_what_the_original_said() -> None:
    above = Above(1)
    node = above.nodes[0]
    by_script, node.answers, node.acks = node.answers, {}, None
    links: dict[int, SimulatedLink] = {}
    original, answers = Recorded(), Recorded()
    segments = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    for segment in sorted((each for each in segments if each["t"] < LAST), key=lambda each: each["t"]):
        stream, data = segment["stream"], bytes.fromhex(segment["hex"])
        if segment["t"] > LEAVES:  # the original gives up many queues at once in an order of its own
            node.answers = by_script
        if stream in APPLICATIONS and segment["dst"] == PROXY:
            if stream not in links:
                end = above.world.network.connect(above.proxy.address)
                assert end is not None
                links[stream] = SimulatedLink(above.world, end)
            links[stream].send(data)
        elif stream == UPSTREAM and segment["dst"] != PROXY:
            answered = len(answers.events)
            if segment["src"] == MEMBER and not node.answers:
                answers.take(data)
                for kind, specific, body in answers.events[max(2, answered):]:  # not its introduction and its status
                    node.send(event_header(kind, len(body), specific) + body)
            elif segment["src"] != MEMBER:
                original.take(data)
        above.world.run(0.05)
    above.world.run(1.0)
    said, expected = node.events, [(kind, body) for kind, _, body in original.events[1:]]
    requests = [control.decode_control(body, 0) for kind, body in expected if kind is EventType.CONTROL]
    assert len(requests) == 19
    ours = [control.decode_control(body, 0) for kind, body in said if kind is EventType.CONTROL]
    assert ours[:IN_ORDER] == requests[:IN_ORDER]
    assert sorted(str(each.value) for each in ours) == sorted(str(each.value) for each in requests)
    for kind, decode in ((EventType.PUT, events.decode_put), (EventType.CONFIRM, events.decode_confirm)):
        puts, theirs = (sorted((each for event, body in side if event is kind for each in decode(body, 0, len(body))[0]),
                               key=lambda each: each.guid) for side in (said, expected))
        for put in (*puts, *theirs):
            if isinstance(put, events.PutMessage):
                put.schema_id = bool(put.schema_id)  # numbers are the sender's own
        assert puts == theirs and len(puts) >= 6


@pytest.mark.spec("cluster", 105)
def test_a_proxy_that_stops_tells_every_node_and_waits_for_what_it_has_sent() -> None:
    above = Above(acks=None)
    writer, reader = above.client().open(URI, write=1), above.client().consume(URI)
    node = above.active
    above.push(node, 0, b"p" * 16, b"x")
    [push] = reader.take(1)
    guid = writer.put(b"x")
    above.world.run(0.2)
    above.proxy.stop(down=None)
    above.world.run(0.5)
    asked = [[value.value for value in each.requests_of("clusterMessage")] for each in above.nodes]
    assert asked == [[StopRequest("", 2)], [StopRequest("", 2)]]
    for each in above.nodes:
        each.cluster_message("stopResponse", StopResponse(""), 1)
    above.world.run(1.5)
    assert above.proxy.up, "something is not answered, and something not confirmed"
    node.send(events.encode_ack([events.AckMessage(0, 0, guid, 0)]))
    reader.confirm(push)
    assert writer.next_ack(guid).status == 0
    above.world.run(2.0)
    assert [each.guid for each in node.confirms] == [b"p" * 16] and not above.proxy.up


@pytest.mark.spec("cluster", 108)
def test_a_node_that_never_answers_delays_the_stop_by_five_seconds() -> None:
    above = Above()
    above.client().open(URI, write=1)
    above.proxy.stop(down=None)
    above.world.run(4.5)
    assert above.proxy.up
    above.world.run(2.0)
    assert not above.proxy.up
