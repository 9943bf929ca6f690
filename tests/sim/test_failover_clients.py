"""Changes of the leader or of a primary, with clients at members and at a proxy: opens, PUTs, confirms, and limits.

Tests `bmqtwist/relay/relays.py` and `bmqtwist/queue/handover.py`; the cluster is in `replicated.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.client import Client, RequestRefused, payloads, refusal

from bmqtwist.cluster.streams import StreamState
from bmqtwist.testing.config import DomainTable, domain_config
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.reconfiguration import reconfigure
from sim.replicated import EVENTUAL, FANOUT, STRONG, ReplicatingCluster, available_cluster

PROXIES = {"p1": ["n1", "n2", "n3"]}
DOMAIN = "bmq://d/q"


def domain(mode: str = "priority", **parameters: Any) -> dict[str, str]:
    return {"d": json.dumps(domain_config("d", mode, strong=True, **parameters))}


def open_timeout(seconds: float) -> dict[str, Any]:
    """Return a configuration with an open timeout of `seconds`."""
    return {"queueOperations": {"openTimeoutMs": int(seconds * 1000)}}


def send_open(client: Client, uri: str, q_id: int = 0, **counts: Any) -> int:
    """Send an open request without a wait; return the request id."""
    return client.send_request({"openQueue": {"handleParameters": client.handle_parameters(uri, q_id, **counts)}})


def change_primary(nodes: ReplicatingCluster, uri: str, how: str = "kill") -> SimulatedNode:
    """End the primary of a queue, wait for the next one, and return the former one."""
    index = nodes.record(uri).partition_id
    former = nodes.primary(index)
    if how == "stop":
        former.stop(down=None)
        nodes.until(lambda: not former.up, 30.0)
    else:
        former.crash(power=how == "power", down=None)
    wait_for_primary(nodes, index)
    return former


def wait_for_primary(nodes: ReplicatingCluster, index: int) -> None:
    """Wait until all running nodes know the same running, active primary."""
    def known(node: SimulatedNode) -> bool:
        primary = nodes.replication(node).known_primaries.active.find(index)
        return primary is not None and nodes.node(f"n{primary.node_id}").up and (
            nodes.replication(nodes.node(f"n{primary.node_id}")).is_active_primary(index))
    nodes.until(lambda: all(known(node) for node in nodes.machines if node.up), 30.0)


def isolate_without_leader(nodes: ReplicatingCluster) -> SimulatedNode:
    """Crash all nodes but one; return this one, without a leader."""
    alone, *others = nodes.machines
    for node in others:
        node.crash(power=False, down=None)
    nodes.run(4.0)
    assert not nodes.believed()
    return alone


@pytest.mark.spec("broker", 43)
def test_an_open_without_a_leader_waits_until_one_is_elected() -> None:
    nodes = available_cluster(1, members=open_timeout(120))
    client = nodes.client(isolate_without_leader(nodes).name)
    asked = send_open(client, STRONG, write=1)
    nodes.run(40.0)
    client.barrier()
    assert not [event for event in client.inbox if event.kind == "control"]
    nodes.machines[1].boot()
    assert "openQueueResponse" in client.response(asked, deadline=60.0)


@pytest.mark.spec("broker", 44)
@pytest.mark.parametrize("place", ["member", "p1"])
def test_a_refusal_names_the_node_that_refuses(place: str) -> None:
    """The leader lacks the domain's file, which the node of the client has."""
    nodes = available_cluster(13, texts=domain(), proxies=PROXIES)
    leader = nodes.leader
    leader.broker.domains.provider._source = DomainTable()
    member = next(node.name for node in nodes.machines if node is not leader)
    refused = refusal(nodes.client(member if place == "member" else place).open, DOMAIN, write=1)
    name = f"[{leader.name}, {leader.name[1:]}] refuses: Domain file 'domains/d.json' doesn't exist"
    assert refused.message.endswith(name), refused.message
    if place == "p1":
        assert "(refused by node [" in "".join(nodes.node("p1").log())


@pytest.mark.parametrize("known", [True, False])
def test_an_open_without_a_leader_fails_with_timeout_after_open_timeout_ms(known: bool) -> None:
    nodes = available_cluster(2, members=open_timeout(20))
    if known:
        nodes.post(1)
    client = nodes.client(isolate_without_leader(nodes).name)
    begun = nodes.now
    with pytest.raises(RequestRefused) as refused:
        client.response(send_open(client, STRONG, write=1), deadline=60.0)
    assert refused.value.category == "E_TIMEOUT" and 19.0 < nodes.now - begun < 23.0
    nodes.machines[1].boot()
    nodes.run_until_stable()
    nodes.post(1)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    handles = nodes.cluster(primary.name).queues[STRONG].handles
    assert {handle.write_count for handle in handles} == {1}, "the open that timed out leaves no handle"


@pytest.mark.spec("broker", 48)
@pytest.mark.parametrize("state", [StreamState.CLOSED, StreamState.REOPENING])
def test_a_close_during_a_reopen_frees_exactly_one_consumer_slot(state: StreamState) -> None:
    nodes = available_cluster(3, texts=domain(maxConsumers=1))
    index = 0
    place = nodes.replicas(index)[0]
    holder = nodes.client(place.name).consume(DOMAIN)
    assert "limit of 1 consumer" in refusal(nodes.client(place.name).open, DOMAIN, read=1).message
    relays = nodes.cluster(place.name).relays
    assert relays is not None
    stream = relays.opened[DOMAIN].streams.get("__default")
    assert stream is not None
    assert nodes.admin(place, "CLUSTERS CLUSTER c3 STATE ELECTOR MODE NEVER") == "SUCCESS"  # forces another primary
    nodes.primary(index).crash(power=False, down=None)
    while stream.state is not state:
        nodes.run(0.0005)
    holder.client.send_request({"configureStream": {"qId": holder.q_id, "streamParameters": {
        "appId": "__default", "subscriptions": []}}})
    closing = holder.client.send_request({"closeQueue": holder.close_parameters()})
    assert "closeQueueResponse" in holder.client.response(closing, deadline=30.0)
    wait_for_primary(nodes, index)
    nodes.client(nodes.replicas(index)[0].name).consume(DOMAIN)
    for node in nodes.machines:
        if node.up:
            assert "limit of 1 consumer" in refusal(nodes.client(node.name).open, DOMAIN, read=1).message


@pytest.mark.spec("broker", 61)
@pytest.mark.parametrize("seconds", [1.0, 12.0])
def test_with_two_of_four_members_paused_strong_puts_wait_and_eventual_ones_do_not(seconds: float) -> None:
    nodes = available_cluster(4, 4)
    nodes.post(1)
    nodes.post(1, EVENTUAL)
    primary = nodes.primary()
    assert nodes.primary(1) is primary
    client, third = nodes.client(primary.name), nodes.replicas()[0]
    strong, eventual = client.open(STRONG, write=1), client.open(EVENTUAL, write=1)
    reader = nodes.client(primary.name).consume(STRONG)
    reader.confirm(*reader.take(1))
    suspended = [node for node in nodes.machines if node not in (primary, third)]
    for node in suspended:
        node.pause()
    guid = strong.put(b"blocked")
    begun = nodes.now
    eventual.post(b"not blocked")
    assert nodes.now - begun < 0.5, "the ACK waits for the disk of the primary only"
    nodes.run(seconds)
    assert not strong.acks() and not reader.pushes()
    for node in suspended:
        node.resume()
    assert strong.next_ack(guid, deadline=30.0).status == 0
    assert payloads([reader.next_push(deadline=30.0)]) == [b"blocked"]


@pytest.mark.spec("broker", 79)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_limit_of_one_unconfirmed_message_holds_across_a_change_of_primary(how: str) -> None:
    nodes = available_cluster(5, proxies=PROXIES)
    nodes.post(30)
    places = [nodes.replicas(nodes.record(STRONG).partition_id)[0].name, "p1"]
    readers = [nodes.client(place).consume(STRONG, m=1) for place in places]
    got: list[bytes] = []

    def work(rounds: int) -> None:
        for _ in range(rounds):
            nodes.run(0.2)
            for reader in readers:
                found = reader.pushes()
                assert len(found) <= 1
                got.extend(payloads(found))
                reader.confirm(*found)
    work(5)
    index = nodes.record(STRONG).partition_id
    former = nodes.primary(index)
    if how == "stop":
        former.stop(down=None)
    else:
        former.crash(power=False, down=None)
    work(60)
    assert nodes.primary(index) is not former
    assert set(got) == set(nodes.acknowledged[STRONG]) and nodes.stored(nodes.primary(index)) == []


@pytest.mark.spec("broker", 109)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_registered_app_next_to_an_unregistered_one_continues_after_a_change_of_primary(how: str) -> None:
    nodes = available_cluster(6, proxies=PROXIES)
    first, second = nodes.client("p1"), nodes.client("p1")
    foo, quux = first.consume(FANOUT, "foo"), first.consume(FANOUT, "quux")
    other = second.consume(FANOUT, "quux")
    queue = nodes.client("p1").open(FANOUT, write=1)
    queue.post(b"before")
    assert payloads(foo.take(1)) == [b"before"]
    former = change_primary(nodes, FANOUT, how)
    nodes.run(3.0)
    queue.post(b"after")
    assert payloads(foo.take(1)) == [b"after"]
    assert not quux.pushes() and not other.pushes() and not first.link.closed and not second.link.closed
    former.boot()
    nodes.wait_until_available()
    queue.post(b"again")
    assert payloads(foo.take(1)) == [b"again"]


def crash_consumer(nodes: ReplicatingCluster, place: str, uri: str, expected: bytes, app: str | None = None) -> None:
    """Let a consumer at a node receive a message and crash."""
    reader = nodes.client(place).consume(uri, app)
    assert payloads(reader.take(1)) == [expected]
    reader.client.kill()
    nodes.run(4.0)


@pytest.mark.spec("broker", 135)
@pytest.mark.parametrize("at_primary", [True, False])
def test_a_change_of_primary_resets_the_delivery_attempts(at_primary: bool) -> None:
    nodes = available_cluster(7, texts=domain(maxDeliveryAttempts=3))
    nodes.post(1, DOMAIN)
    [pill] = nodes.acknowledged[DOMAIN]
    index = nodes.record(DOMAIN).partition_id
    for _ in range(2):
        crash_consumer(nodes, (nodes.primary(index) if at_primary else nodes.replicas(index)[0]).name, DOMAIN, pill)
    change_primary(nodes, DOMAIN)
    for _ in range(3):
        assert nodes.stored(nodes.primary(index), DOMAIN) == [pill]
        crash_consumer(nodes, (nodes.primary(index) if at_primary else nodes.replicas(index)[0]).name, DOMAIN, pill)
    assert nodes.stored(nodes.primary(index), DOMAIN) == []


@pytest.mark.parametrize("at_primary", [True, False])
@pytest.mark.parametrize("uri", [STRONG, FANOUT])
def test_messages_that_a_former_primary_may_have_delivered_are_marked_as_redelivered(uri: str, at_primary: bool) -> None:
    """The consumer was connected to the primary that crashed. Messages posted since the change are not marked."""
    nodes = available_cluster(12)
    app = "foo" if uri == FANOUT else None
    nodes.post(2, uri)
    index = nodes.record(uri).partition_id
    first = nodes.client(nodes.primary(index).name).consume(uri, app)
    assert [each.out_of_order for each in first.take(2)] == [False, False]
    change_primary(nodes, uri)
    place = nodes.primary(index) if at_primary else nodes.replicas(index)[0]
    second = nodes.client(place.name).consume(uri, app)
    assert [each.out_of_order for each in second.take(2)] == [True, True]
    nodes.post(1, uri)
    assert [each.out_of_order for each in second.take(1)] == [False]


@pytest.mark.spec("broker", 136)
def test_crashed_consumers_at_a_replica_use_up_the_delivery_attempts() -> None:
    nodes = available_cluster(8, texts=domain(maxDeliveryAttempts=2))
    nodes.post(1, DOMAIN)
    [pill] = nodes.acknowledged[DOMAIN]
    index = nodes.record(DOMAIN).partition_id
    place = nodes.replicas(index)[0].name
    for _ in range(2):
        crash_consumer(nodes, place, DOMAIN, pill)
    assert all(nodes.stored(node, DOMAIN) == [] for node in nodes.machines)
    other = nodes.client(place).consume(DOMAIN)
    nodes.client(place).open(DOMAIN, write=1).post(b"new")
    assert payloads(other.take(1)) == [b"new"] and not other.pushes()


@pytest.mark.spec("broker", 131)
@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_message_rejected_by_all_apps_is_removed_also_at_the_next_primary(how: str) -> None:
    nodes = available_cluster(9, texts=domain("fanout", apps=("foo", "bar", "baz"), maxDeliveryAttempts=1))
    nodes.client("n1").open(DOMAIN, write=1).post(b"pill")
    index = nodes.record(DOMAIN).partition_id
    for app, node in zip(("foo", "bar", "baz"), nodes.machines, strict=True):
        assert [nodes.stored(each, DOMAIN) for each in nodes.machines] == [[b"pill"]] * 3
        crash_consumer(nodes, node.name, DOMAIN, b"pill", app)
    assert [nodes.stored(each, DOMAIN) for each in nodes.machines] == [[]] * 3
    leader = nodes.leader
    former = change_primary(nodes, DOMAIN, how)
    assert former is leader and nodes.leader is not former
    assert nodes.stored(nodes.primary(index), DOMAIN) == []
    for app in ("foo", "bar", "baz"):
        assert not nodes.client(nodes.primary(index).name).consume(DOMAIN, app).pushes()


@pytest.mark.spec("broker", 166)
def test_after_a_crash_of_the_primary_subscriptions_receive_their_matching_messages() -> None:
    nodes = available_cluster(10)
    nodes.post(0)
    index = nodes.record(STRONG).partition_id
    former, place = nodes.primary(index), nodes.replicas(index)[0]
    queue = nodes.client(place.name).open(STRONG, write=1)
    texts = {"low": "n < 5", "high": "n >= 5"}
    readers = {name: nodes.client(former.name).consume(STRONG, x=text) for name, text in texts.items()}
    staying = nodes.client(place.name).consume(STRONG, x="n == 100")
    for number in range(10):
        queue.post(b"%d" % number, properties={"n": number})
    queue.post(b"100", properties={"n": 100})
    held = staying.take(1)
    expected = {"low": [b"%d" % number for number in range(5)], "high": [b"%d" % number for number in range(5, 10)]}
    assert {name: payloads(reader.take(5)) for name, reader in readers.items()} == expected
    former.crash(power=False, down=None)
    wait_for_primary(nodes, index)
    again = {name: nodes.client(nodes.primary(index).name).consume(STRONG, x=text) for name, text in texts.items()}
    assert {name: payloads(reader.take(5)) for name, reader in again.items()} == expected
    queue.post(b"11", properties={"n": 11})
    queue.post(b"1", properties={"n": 1})
    queue.post(b"100 again", properties={"n": 100})
    assert payloads(again["high"].take(1)) == [b"11"] and payloads(again["low"].take(1)) == [b"1"]
    assert payloads(staying.take(1)) == [b"100 again"] and payloads(held) == [b"100"]
    assert not any(reader.pushes() for reader in (*again.values(), staying))


@pytest.mark.spec("broker", 183)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_raised_quota_is_in_force_at_the_next_primary(how: str) -> None:
    nodes = available_cluster(11, texts=domain(queue_messages=3))
    queue = nodes.client("n1").open(DOMAIN, write=1)
    assert [queue.status_of(b"x") for _ in range(5)] == [0, 0, 0, 0, 1]
    reconfigure(nodes, "d", domain(queue_messages=6)["d"])
    change_primary(nodes, DOMAIN, how)
    queue = nodes.client(nodes.primary(nodes.record(DOMAIN).partition_id).name).open(DOMAIN, write=1)
    assert [queue.status_of(b"x") for _ in range(4)] == [0, 0, 0, 1]


@pytest.mark.spec("broker", 245)
def test_messages_unconfirmed_at_the_shutdown_timeout_are_redelivered_by_another_node() -> None:
    nodes = available_cluster(12)
    nodes.post(2)
    node = nodes.primary(nodes.record(STRONG).partition_id)
    reader = nodes.client(node.name).consume(STRONG)
    reader.take(2)
    node.stop(down=None)
    begun = nodes.now
    nodes.until(lambda: any("giving up on 2 unconfirmed message(s)" in line for line in node.log()), 20.0)
    assert 3.5 < nodes.now - begun < 6.5, "shutdownTimeoutMs is 4000 here"
    reader.client.kill()
    nodes.until(lambda: not node.up, 20.0)
    other = next(each for each in nodes.machines if each.up)
    assert payloads(nodes.client(other.name).consume(STRONG).take(2)) == nodes.acknowledged[STRONG]


@pytest.mark.spec("broker", 246)
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL])
@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("wait", [0.0, 0.02, 0.5, 3.0])
def test_an_open_during_a_change_of_primary_completes_after_it(wait: float, how: str, uri: str) -> None:
    nodes = available_cluster(13, proxies=PROXIES, members=open_timeout(60))
    nodes.post(1, uri)
    index = nodes.record(uri).partition_id
    former = nodes.primary(index)
    clients = [nodes.client(place) for place in (nodes.replicas(index)[0].name, "p1")]
    nodes.run(12.0)
    if how == "stop":
        former.stop(down=None)
    else:
        former.crash(power=False, down=None)
    nodes.run(wait)
    asked = [(client, send_open(client, uri, write=1), send_open(client, f"{uri}2", 1, write=1)) for client in clients]
    for client, *numbers in asked:
        for number in numbers:
            assert "openQueueResponse" in client.response(number, deadline=50.0)
    assert nodes.primary(index) is not former


@pytest.mark.spec("broker", 247)
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL])
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("returns", [True, False])
def test_puts_during_a_change_of_primary_are_acknowledged_and_stored_once(uri: str, how: str, returns: bool) -> None:
    nodes = available_cluster(14, proxies=PROXIES)
    nodes.post(0, uri)
    index = nodes.record(uri).partition_id
    former, place = nodes.primary(index), nodes.replicas(index)[0]
    queues = [nodes.client(name).open(uri, write=1) for name in (place.name, "p1")]
    sent: dict[bytes, bytes] = {}

    def post(rounds: int) -> None:
        for _ in range(rounds):
            for queue in queues:
                payload = b"%d" % len(sent)
                sent[queue.put(payload)] = payload
            nodes.run(0.05)
    post(10)
    if how == "stop":
        former.stop(down=0.1 if returns else None)
    else:
        former.crash(power=False, down=0.1 if returns else None)
    post(40)
    nodes.run(15.0)
    post(5)
    nodes.run(3.0)
    acks = [ack for queue in queues for ack in queue.acks()]
    assert sorted(ack.guid for ack in acks) == sorted(sent) and {ack.status for ack in acks} == {0}
    assert former.up is returns
    assert sorted(nodes.stored(nodes.primary(index), uri)) == sorted(sent.values())


@pytest.mark.spec("broker", 249)
@pytest.mark.parametrize("place", ["replica", "p1"])
@pytest.mark.parametrize("returns", [True, False])
def test_a_confirm_while_the_primary_is_down_takes_effect_or_the_message_is_redelivered(place: str, returns: bool) -> None:
    nodes = available_cluster(15, proxies=PROXIES)
    nodes.post(5, FANOUT)
    index = nodes.record(FANOUT).partition_id
    if place == "replica":
        place = nodes.replicas(index)[0].name
    reader = nodes.client(place).consume(FANOUT, "foo")
    got = reader.take(5)
    nodes.primary(index).crash(power=False, down=1.0 if returns else None)
    nodes.run(0.3)
    reader.confirm(*got[:3])
    reader.close()
    wait_for_primary(nodes, index)
    nodes.run(3.0)
    again = nodes.client(nodes.replicas(index)[0].name).consume(FANOUT, "foo")
    nodes.run(1.0)
    found = again.pushes()
    expected = nodes.acknowledged[FANOUT]
    assert set(payloads(found)) >= set(expected[3:]) and set(payloads(found)) <= set(expected)
    again.confirm(*found)
    nodes.run(1.0)
    assert not nodes.client(place).consume(FANOUT, "foo").pushes()


@pytest.mark.spec("broker", 250)
@pytest.mark.parametrize("place", ["replica", "p1"])
@pytest.mark.parametrize("wait", [0.0, 0.001, 0.003, 0.1])
def test_an_open_after_a_close_completes_across_a_change_of_primary(place: str, wait: float) -> None:
    nodes = available_cluster(16, proxies=PROXIES, members=open_timeout(60))
    nodes.post(0)
    index = nodes.record(STRONG).partition_id
    client = nodes.client(nodes.replicas(index)[0].name if place == "replica" else place)
    queue = client.open(STRONG, write=1)
    queue.post(b"1")
    closing = client.send_request({"closeQueue": queue.close_parameters()})
    nodes.run(wait)
    opening = send_open(client, STRONG, 7, write=1)
    former = nodes.primary(index)
    former.crash(power=False, down=None)
    assert "closeQueueResponse" in client.response(closing, deadline=30.0)
    assert "openQueueResponse" in client.response(opening, deadline=30.0)
    client.queues.clear()
    assert client.open(STRONG, write=1, q_id=7).post(b"2")
    assert nodes.stored(nodes.primary(index)) == [b"1", b"2"]


@pytest.mark.spec("broker", 251)
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL])
def test_a_rolling_restart_does_not_disturb_clients_of_a_proxy(uri: str) -> None:
    nodes = available_cluster(17, proxies=PROXIES, masterAssignment="E_LEAST_ASSIGNED")
    queue, reader = nodes.client("p1").open(uri, write=1), nodes.client("p1").consume(uri)
    sent: list[bytes] = []
    got: list[bytes] = []

    def live(seconds: float) -> None:
        for _ in range(int(seconds / 0.2)):
            sent.append(b"%d" % len(sent))
            queue.put(sent[-1])
            nodes.run(0.2)
            found = reader.pushes()
            got.extend(payloads(found))
            reader.confirm(*found)
    live(2.0)
    for node in nodes.machines:
        node.stop(down=None)
        while node.up:
            live(0.2)
        live(1.0)
        node.boot()
        while not nodes.replication(node).known_primaries.all_active:
            live(0.2)
        live(10.0)
    nodes.run(1.0)  # the last one may wait for a slow disk
    acks = queue.acks()
    assert len(acks) == len(sent) and {ack.status for ack in acks} == {0}
    got += payloads(reader.pushes())
    assert set(got) == set(sent) and len(got) == len(set(got))
    assert not queue.client.link.closed and not reader.client.link.closed
    nodes.run(1.0)
    nodes.judge_partitions()


@pytest.mark.spec("broker", 254)
def test_a_reopen_refused_by_the_consumer_limit_is_retried_until_a_slot_is_free() -> None:
    nodes = available_cluster(18, proxies=PROXIES, texts=domain(maxConsumers=1))
    reader = nodes.client("p1").consume(DOMAIN)
    proxy = nodes.node("p1")
    for node in nodes.machines:
        nodes.network.cut("p1", node.name)
    for session in list(proxy.broker.sessions.open):
        if session.remote.identity.cluster_name:
            session.transport.reset()  # type: ignore[attr-defined]
    for node in nodes.machines:
        for session in list(node.broker.sessions.open):
            if session.remote.identity.cluster_node_id == -1 and session.remote.identity.cluster_name:
                session.transport.reset()  # type: ignore[attr-defined]
    nodes.run(1.0)
    other = nodes.client("n1").consume(DOMAIN)
    for node in nodes.machines:
        nodes.network.heal("p1", node.name)
    nodes.until(lambda: sum("reopen-request failed" in line for line in proxy.log()) >= 3, 90.0)
    lines = [line for line in proxy.log() if "reopen-request failed" in line]
    assert all("limit of 1 consumer" in line for line in lines)
    for attempt, line in enumerate(lines[:3], 1):
        assert line.endswith(f"Attempt number was: {attempt}. Attempting again after 5000 milliseconds")
    other.close()
    nodes.run(5.0)
    nodes.client("n1").open(DOMAIN, write=1).post(b"reopened")
    assert payloads(reader.take(1)) == [b"reopened"]
