"""A proxy with scripted upstream nodes: choice of the upstream, failover, refusals, and a recording of the original.

Tests `bmqtwist/cluster/upstream.py` and `bmqtwist/relay/proxy.py`; the scripted node is in `upstreams.py`.
"""

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


class ProxyWithUpstreams:
    """A proxy p1 with the scripted upstream nodes n1, n2, ..."""

    def __init__(self, count: int = 2, places: dict[str, str] | None = None, open_timeout_ms: int = 10000,
                 **scripted: Any) -> None:
        names = [f"n{number}" for number in range(1, count + 1)]
        nodes = [{"id": number, "name": name, "dataCenter": (places or {}).get(name, "dc1"),
                  "transport": {"tcp": {"endpoint": f"tcp://{name}:{PORT}"}}} for number, name in enumerate(names, 1)]
        self.world = SimulatedCluster(1, 0, proxies={"p1": names}, proxy_cluster={  # type: ignore[arg-type]
            "nodes": nodes, "queueOperations": {"openTimeoutMs": open_timeout_ms, "configureTimeoutMs": 10000,
                                                "closeTimeoutMs": 10000, "shutdownTimeoutMs": 4000}},
                                      texts={"d.sc": json.dumps(domain_config("d.sc")),
                                             "d.fan": json.dumps(domain_config("d.fan", "fanout")),
                                             "d.bc": json.dumps(domain_config("d.bc", "broadcast", in_memory=True))})
        self.nodes = [ScriptedNode(self.world.network, name, f"{name}:{PORT}", **scripted) for name in names]
        self.proxy = self.world.node("p1")

    def client(self) -> Client:
        """Return a client of the proxy."""
        return self.world.client("p1")

    @property
    def active(self) -> ScriptedNode:
        """The current upstream node."""
        chosen = self.proxy.broker.proxies["c3"].selector.active
        assert chosen is not None
        return self.nodes[chosen - 1]

    def other(self, node: ScriptedNode) -> ScriptedNode:
        """Return the other one of two nodes."""
        return self.nodes[1 - self.nodes.index(node)]

    def push(self, node: ScriptedNode, q_id: int, guid: bytes, payload: bytes, late: bool = False, sub_id: int = 1) -> None:
        """Send a PUSH to the proxy."""
        node.send(events.encode_push([PushMessage(q_id, guid, payload, OUT_OF_ORDER if late else 0, options=encode_options(
            [options.SubQueueInfos((options.SubQueueInfo(sub_id),))]))]))


def send_open(client: Client, q_id: int = 0, uri: str = URI, **counts: int) -> int:
    """Send an open request and return its id."""
    return client.send_request({"openQueue": {"handleParameters": client.handle_parameters(uri, q_id, **counts)}})


# -- choice ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("cluster", 97)
def test_a_proxy_chooses_a_node_in_its_data_center() -> None:
    setup = ProxyWithUpstreams(3, {"n1": "dc2", "n2": "dc1", "n3": "dc3"})
    setup.client().open(URI, write=1)
    assert setup.active.name == "n2" and [node.connections for node in setup.nodes] == [1, 1, 1]
    assert {node.identity.cluster_node_id for node in setup.nodes} == {-1}


@pytest.mark.spec("cluster", 97)
def test_after_10_s_without_a_near_node_a_proxy_chooses_a_remote_one_and_keeps_it() -> None:
    setup = ProxyWithUpstreams(2, {"n1": "dc2"}, open_timeout_ms=30000)
    near = setup.nodes[1]
    near.status = None
    number = send_open(client := setup.client(), write=1)
    setup.world.run(9.0)
    assert not any(node.requests for node in setup.nodes)
    setup.world.run(2.0)
    assert setup.active.name == "n1" and "openQueueResponse" in client.response(number)
    near.announce(NodeStatus.E_AVAILABLE)
    setup.world.run(5.0)
    assert setup.active.name == "n1", "a healthy node is kept"
    setup.nodes[0].announce(NodeStatus.E_STOPPING)
    setup.world.run(1.0)
    assert setup.active.name == "n2"


@pytest.mark.spec("cluster", 97)
def test_the_10_s_for_a_near_node_start_with_the_first_open() -> None:
    setup = ProxyWithUpstreams(2, {"n1": "dc2"})
    near = setup.nodes[1]
    near.status = None
    setup.world.run(60.0)
    number = send_open(client := setup.client(), write=1)
    setup.world.run(5.0)
    near.announce(NodeStatus.E_AVAILABLE)
    assert "openQueueResponse" in client.response(number) and setup.active is near


def test_a_node_without_status_advisories_is_used() -> None:
    setup = ProxyWithUpstreams(1, features="PROTOCOL_ENCODING:BER,JSON", status=None)
    setup.client().open(URI, write=1)
    assert setup.active.name == "n1"


# -- failover ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("cluster", 90)
def test_after_a_failover_queues_are_reopened_and_pending_puts_sent_in_order() -> None:
    setup = ProxyWithUpstreams(acks=None)
    client = setup.client()
    writer, reader = client.open(URI, write=1), setup.client().consume(URI, priority=3, m=7)
    sent = [writer.put(b"%d" % number) for number in range(5)]
    setup.world.run(0.5)
    first = setup.active
    second = setup.other(first)
    assert [put.guid for put in first.puts] == sent and all(put.flags & ACK_REQUESTED for put in first.puts)
    assert not second.requests
    second.unanswered.add("configureStream")
    first.die()
    setup.world.run(0.5)
    sent += [writer.put(b"%d" % number) for number in range(5, 8)]
    setup.world.run(0.5)
    [reopened] = [each.handle_parameters for each in second.requests_of("openQueue")]
    assert (reopened.read_count, reopened.write_count, reopened.flags) == (1, 1, 6)
    [configured] = [each.stream_parameters for each in second.requests_of("configureStream")]
    assert configured.subscriptions[0].consumers[0].consumer_priority == 3 and not second.puts
    second.answer(second.requests[-1])
    setup.world.run(0.5)
    assert [put.guid for put in second.puts] == sent, "once, in the order of their arrival"
    assert [put.data for put in second.puts] == [b"%d" % number for number in range(8)]
    setup.world.run(30.0)
    assert len(second.puts) == 8
    second.send(events.encode_ack([events.AckMessage(0, 0, guid, 0) for guid in sent]))
    assert [writer.next_ack().guid for _ in sent] == sent
    assert not setup.proxy.broker.proxies["c3"].relays.uplink._bytes and not reader.client.link.closed


@pytest.mark.spec("cluster", 96)
def test_confirms_are_sent_upstream_between_the_reopen_and_the_configure() -> None:
    setup = ProxyWithUpstreams()
    reader = setup.client().consume(URI)
    first = setup.active
    second = setup.other(first)
    guids = [b"%016d" % number for number in range(4)]
    for guid in guids:
        setup.push(first, 0, guid, guid)
    got = reader.take(4)
    first.die()
    second.unanswered |= {"openQueue", "configureStream"}
    reader.confirm(*got[:2])
    setup.world.run(0.5)
    assert not second.confirms
    second.answer(second.requests[0])
    setup.world.run(0.5)
    assert [confirm.guid for confirm in second.confirms] == guids[:2] and second.requests[-1].choice == "configureStream"
    second.answer(second.requests[-1])
    for guid in guids[1:]:
        setup.push(second, 0, guid, guid, late=True)
    setup.world.run(0.5)
    assert [push.guid for push in reader.pushes()] == [guids[1]], "unconfirmed messages are not delivered again"
    reader.confirm(*got[2:])
    setup.world.run(0.5)
    assert [confirm.guid for confirm in second.confirms] == guids


@pytest.mark.spec("cluster", 99)
def test_requests_of_clients_during_a_failover_take_effect_once() -> None:
    setup = ProxyWithUpstreams()
    stays, leaves = setup.client().consume(URI), setup.client().consume(URI, priority=0)
    first = setup.active
    second = setup.other(first)
    second.unanswered |= {"openQueue", "configureStream", "closeQueue"}
    first.die()
    setup.world.run(0.1)
    assert [each.handle_parameters.read_count for each in second.requests_of("openQueue")] == [2]
    unconfigured = setup.client()
    number = send_open(unconfigured, read=1)
    stays.configure(priority=5)
    leaves.client.kill()
    setup.world.run(0.5)
    assert len(second.requests) == 1, "the reopen is in progress"
    second.unanswered.clear()
    second.answer(second.requests[0])
    unconfigured.response(number)
    setup.world.run(1.0)
    opened = sum(each.handle_parameters.read_count for each in second.requests_of("openQueue"))
    closed = sum(each.handle_parameters.read_count for each in second.requests_of("closeQueue"))
    assert (opened, closed) == (3, 1)
    last = second.requests_of("configureStream")[-1].stream_parameters.subscriptions[0].consumers[0]
    assert (last.consumer_priority, last.consumer_priority_count) == (5, 1)


@pytest.mark.spec("cluster", 99)
def test_a_close_during_a_reopen_leaves_no_handle() -> None:
    setup = ProxyWithUpstreams()
    reader = setup.client().consume(URI)
    first = setup.active
    second = setup.other(first)
    second.unanswered.add("openQueue")
    first.die()
    setup.world.run(0.5)
    reader.client.kill()
    setup.world.run(0.5)
    second.answer(second.requests[0])
    setup.world.run(1.0)
    assert [each.handle_parameters.read_count for each in second.requests_of("closeQueue")] == [1]
    assert not setup.proxy.broker.proxies["c3"].relays.opened


@pytest.mark.spec("cluster", 100)
def test_repeated_failovers_leave_no_handles_or_pending_requests() -> None:
    setup = ProxyWithUpstreams(acks=None)
    writer = setup.client().open(URI, write=1)
    readers = [setup.client().consume(URI, priority=number) for number in range(3)]
    guid = writer.put(b"x")
    setup.world.run(0.3)
    for _ in range(20):
        node = setup.active
        node.announce(NodeStatus.E_UNAVAILABLE)
        setup.world.run(0.3)
        node.send(control.encode_event(ControlMessage(3, "closeQueueResponse", node.answers["closeQueue"](None)[1])))
        node.announce(NodeStatus.E_AVAILABLE)
        setup.world.run(0.3)
    proxy = setup.proxy.broker.proxies["c3"]
    assert proxy.selector.generation == 21
    assert Counter(put.guid for node in setup.nodes for put in node.puts) == {guid: 21}, "once in each generation"
    [opened] = proxy.relays.opened.values()
    assert {(stream.counts.read, stream.counts.write) for stream in opened.streams.values()} == {(3, 1)}
    for each in (writer, *readers):
        each.client.kill()
    setup.world.run(1.0)
    assert not proxy.relays.opened and not proxy.relays._by_id and not proxy.relays.requests._pending
    assert not proxy.relays.uplink._bytes


@pytest.mark.spec("cluster", 101)
def test_a_queue_that_was_closed_before_a_failover_is_opened_at_the_new_upstream() -> None:
    setup = ProxyWithUpstreams()
    reader = setup.client().consume(URI)
    reader.close()
    setup.active.die()
    setup.world.run(0.5)
    setup.client().consume(URI)
    assert [each.handle_parameters.read_count for each in setup.active.requests_of("openQueue")] == [1]


def test_a_refused_reopen_is_retried_every_5_s_while_a_client_has_the_queue_open() -> None:
    setup = ProxyWithUpstreams()
    writer = setup.client().open(URI, write=1)
    first = setup.active
    second = setup.other(first)
    second.refuse("openQueue", Category.E_UNKNOWN)
    first.die()
    guid = writer.put(b"x")
    setup.world.run(120.0)
    tries = len(second.requests_of("openQueue"))
    assert [text for _, text in setup.proxy.report.lines if f"queue reopen-request failed. queue: '{URI}'" in text
            and "error response: [ rId = " in text and "choice = [ status = [ category = E_UNKNOWN code = " in text
            and "Attempt number was: 1. Attempting again after 5000 milliseconds" in text]
    assert 22 <= tries <= 26 and not second.puts, "every 5 s, as configured"
    setup.world.run(300.0)
    assert "QUEUE_REOPEN_FAILURE" in "".join(text for _, text in setup.proxy.report.lines)
    assert writer.next_ack(guid).status == AckStatus.UNKNOWN, "older than the deduplication time"
    second.answers["openQueue"] = first.answers["openQueue"]
    again = writer.put(b"y")
    assert writer.next_ack(again).status == 0


@pytest.mark.spec("cluster", 89)
def test_puts_refused_with_not_ready_are_sent_again_without_a_nack() -> None:
    setup = ProxyWithUpstreams(acks=int(AckStatus.NOT_READY))
    writer = setup.client().open(URI, write=1)
    sent = [writer.put(b"%d" % number) for number in range(3)]
    setup.world.run(5.0)
    node = setup.active
    assert not [event for event in writer.client.inbox if event.kind == "ack"] and len(node.puts) > 9
    node.puts.clear()
    node.acks = 0
    later = writer.put(b"3")
    assert [writer.next_ack().guid for _ in range(4)] == [*sent, later]
    assert [put.guid for put in node.puts] == [*sent, later]


@pytest.mark.spec("cluster", 89)
@pytest.mark.parametrize("status", [AckStatus.LIMIT_MESSAGES, AckStatus.STORAGE_FAILURE, AckStatus.UNKNOWN])
def test_any_other_nack_is_passed_to_the_producer_once(status: AckStatus) -> None:
    setup = ProxyWithUpstreams(acks=int(status))
    writer = setup.client().open(URI, write=1)
    assert writer.status_of(b"x") == status
    setup.world.run(10.0)
    assert len(setup.active.puts) == 1 and not writer.acks()


def test_an_open_that_the_upstream_refuses_temporarily_is_retried() -> None:
    setup = ProxyWithUpstreams(1)
    node = setup.nodes[0]
    good = node.answers["openQueue"]
    node.refuse("openQueue", Category.E_REFUSED, -201)
    number = send_open(client := setup.client(), write=1)
    setup.world.run(3.0)
    assert len(node.requests_of("openQueue")) > 1
    node.answers["openQueue"] = good
    assert "openQueueResponse" in client.response(number)


def test_an_upstream_that_does_not_answer_is_disconnected() -> None:
    setup = ProxyWithUpstreams(1)
    node = setup.nodes[0]
    node.unanswered.add("openQueue")
    number = send_open(client := setup.client(), write=1)
    setup.world.run(9.0)
    assert node.connections == 1
    setup.world.run(5.0)
    with pytest.raises(RequestRefused, match="E_TIMEOUT"):
        client.response(number)
    setup.world.run(60.0)
    assert node.connections == 2 and not setup.proxy.broker.proxies["c3"].relays.opened


def test_a_configure_that_the_upstream_refuses_has_no_effect_at_the_proxy() -> None:
    setup = ProxyWithUpstreams(1)
    node = setup.nodes[0]
    reader = setup.client().consume(URI, priority=1)
    good = node.answers["configureStream"]
    node.refuse("configureStream", Category.E_INVALID_ARGUMENT, -1)
    assert refusal(reader.configure, priority=2).category == "E_INVALID_ARGUMENT"
    node.answers["configureStream"] = good
    other = setup.client().consume(URI, priority=0)
    setup.world.run(1.0)
    assert len(node.requests_of("configureStream")) == 2, "the upstream keeps the former configuration"
    setup.push(node, 0, b"p" * 16, b"x")
    assert reader.take(1) and not other.pushes()


@pytest.mark.spec("cluster", 100)
def test_events_of_a_former_upstream_are_ignored() -> None:
    setup = ProxyWithUpstreams(acks=None)
    reader, writer = setup.client().consume(URI), setup.client().open(URI, write=1)
    first = setup.active
    guid = writer.put(b"x")
    setup.world.run(0.2)
    first.announce(NodeStatus.E_STOPPING)
    setup.world.run(0.5)
    assert setup.active is setup.other(first)
    setup.push(first, 0, b"p" * 16, b"late")
    first.send(events.encode_ack([events.AckMessage(0, 0, guid, 0)]))
    setup.world.run(0.5)
    assert not reader.pushes() and not writer.acks()


@pytest.mark.spec("cluster", 105)
def test_a_stopping_proxy_waits_for_pending_acks() -> None:
    setup = ProxyWithUpstreams(acks=None)
    writer = setup.client().open(URI, write=1)
    guid = writer.put(b"x")
    setup.world.run(0.2)
    setup.proxy.stop(down=None)
    setup.world.run(0.2)
    for each in setup.nodes:
        each.cluster_message("stopResponse", StopResponse(""), 1)
    setup.world.run(2.5)
    assert setup.proxy.up
    setup.active.send(events.encode_ack([events.AckMessage(0, 0, guid, 0)]))
    assert writer.next_ack(guid).status == 0
    setup.world.run(2.0)
    assert not setup.proxy.up


@pytest.mark.spec("cluster", 110)
def test_a_stopping_upstream_receives_confirms_but_no_puts() -> None:
    setup = ProxyWithUpstreams()
    writer, reader = setup.client().open(URI, write=1), setup.client().consume(URI)
    first = setup.active
    second = setup.other(first)
    setup.push(first, 0, b"p" * 16, b"x")
    [push] = reader.take(1)
    first.cluster_message("stopRequest", StopRequest("", 2), 17)
    setup.world.run(0.5)
    assert [(message.r_id, message.value.choice) for message in first.requests if message.choice == "clusterMessage"] == [
        (17, "stopResponse")]
    guid = writer.put(b"waits")
    reader.confirm(push)
    setup.world.run(1.0)
    assert not first.puts and [each.guid for each in first.confirms] == [b"p" * 16]
    first.announce(NodeStatus.E_UNAVAILABLE)
    assert writer.next_ack(guid).status == 0 and [put.guid for put in second.puts] == [guid]


@pytest.mark.parametrize("bad", [b"\xff" * 40, events.encode_push([PushMessage(9, b"g" * 16, b"x")])[8:], b""],
                         ids=["noise", "unknown queue", "empty"])
@pytest.mark.parametrize("kind", [EventType.PUSH, EventType.ACK, EventType.CONTROL, EventType.STORAGE])
def test_malformed_events_of_the_upstream_do_not_affect_clients(bad: bytes, kind: EventType) -> None:
    setup = ProxyWithUpstreams(1)
    writer = setup.client().open(URI, write=1)
    setup.active.send(event_header(kind, len(bad)) + bad)
    setup.world.run(0.5)
    assert writer.status_of(b"x") == 0


# -- the recording -----------------------------------------------------------------------------------------------------

RECORDED = Path(__file__).resolve().parent.parent / "vectors" / "real-cluster" / "proxy.jsonl"
PROXY, MEMBER, APPLICATIONS, UPSTREAM = 30355, 30350, (6, 11), 7  # ports, connections
LEAVES, LAST, IN_ORDER = 7.0116, 7.018, 12  # seconds until an application disconnects and the proxy stops; requests before


class Recorded:
    """The recorded events of one side of a connection, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[EventType, int, bytes]] = []
        self._buffer = b""

    def take(self, data: bytes) -> None:
        """Add recorded bytes."""
        self._buffer += data
        while len(self._buffer) >= 8 and len(self._buffer) >= (size := int.from_bytes(self._buffer[:4], "big")):
            event, self._buffer = self._buffer[:size], self._buffer[size:]
            self.events.append((EventType(event[4] & 63), event[6], event[8:]))


def test_a_proxy_sends_a_member_the_same_events_as_the_original() -> None:
    setup = ProxyWithUpstreams(1)
    node = setup.nodes[0]
    scripted_answers, node.answers, node.acks = node.answers, {}, None
    links: dict[int, SimulatedLink] = {}
    original, answers = Recorded(), Recorded()
    segments = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    for segment in sorted((each for each in segments if each["t"] < LAST), key=lambda each: each["t"]):
        stream, data = segment["stream"], bytes.fromhex(segment["hex"])
        if segment["t"] > LEAVES:  # the original closes many queues at once in its own order
            node.answers = scripted_answers
        if stream in APPLICATIONS and segment["dst"] == PROXY:
            if stream not in links:
                end = setup.world.network.connect(setup.proxy.address)
                assert end is not None
                links[stream] = SimulatedLink(setup.world, end)
            links[stream].send(data)
        elif stream == UPSTREAM and segment["dst"] != PROXY:
            answered = len(answers.events)
            if segment["src"] == MEMBER and not node.answers:
                answers.take(data)
                for kind, specific, body in answers.events[max(2, answered):]:  # without negotiation and status
                    node.send(event_header(kind, len(body), specific) + body)
            elif segment["src"] != MEMBER:
                original.take(data)
        setup.world.run(0.05)
    setup.world.run(1.0)
    sent_events, expected = node.events, [(kind, body) for kind, _, body in original.events[1:]]
    requests = [control.decode_control(body, 0) for kind, body in expected if kind is EventType.CONTROL]
    assert len(requests) == 19
    sent = [control.decode_control(body, 0) for kind, body in sent_events if kind is EventType.CONTROL]
    assert sent[:IN_ORDER] == requests[:IN_ORDER]
    assert sorted(str(each.value) for each in sent) == sorted(str(each.value) for each in requests)
    for kind, decode in ((EventType.PUT, events.decode_put), (EventType.CONFIRM, events.decode_confirm)):
        puts, theirs = (sorted((each for event, body in side if event is kind for each in decode(body, 0, len(body))[0]),
                               key=lambda each: each.guid) for side in (sent_events, expected))
        for put in (*puts, *theirs):
            if isinstance(put, events.PutMessage):
                put.schema_id = bool(put.schema_id)  # numbers are the sender's own
        assert puts == theirs and len(puts) >= 6


@pytest.mark.spec("cluster", 105)
def test_a_stopping_proxy_sends_a_stop_request_to_each_node_and_waits_for_acks_and_confirms() -> None:
    setup = ProxyWithUpstreams(acks=None)
    writer, reader = setup.client().open(URI, write=1), setup.client().consume(URI)
    node = setup.active
    setup.push(node, 0, b"p" * 16, b"x")
    [push] = reader.take(1)
    guid = writer.put(b"x")
    setup.world.run(0.2)
    setup.proxy.stop(down=None)
    setup.world.run(0.5)
    asked = [[value.value for value in each.requests_of("clusterMessage")] for each in setup.nodes]
    assert asked == [[StopRequest("", 2)], [StopRequest("", 2)]]
    for each in setup.nodes:
        each.cluster_message("stopResponse", StopResponse(""), 1)
    setup.world.run(1.5)
    assert setup.proxy.up, "a PUT has no ACK, and a message is unconfirmed"
    node.send(events.encode_ack([events.AckMessage(0, 0, guid, 0)]))
    reader.confirm(push)
    assert writer.next_ack(guid).status == 0
    setup.world.run(2.0)
    assert [each.guid for each in node.confirms] == [b"p" * 16] and not setup.proxy.up


@pytest.mark.spec("cluster", 108)
def test_a_node_without_a_stop_response_delays_the_stop_by_5_s() -> None:
    setup = ProxyWithUpstreams()
    setup.client().open(URI, write=1)
    setup.proxy.stop(down=None)
    setup.world.run(4.5)
    assert setup.proxy.up
    setup.world.run(2.0)
    assert not setup.proxy.up
