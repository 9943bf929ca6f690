"""Proxies: a member n1, its proxy p1, and p2, a proxy of p1, with clients at all of them.

Tests `bmqtwist/relay/proxy.py` and `bmqtwist/relay/relays.py`; the choice of the upstream is in `test_upstream.py`.
"""

from __future__ import annotations

import json
from random import Random

import pytest
from kit.client import Client, RequestRefused, payloads, refusal

from bmqtwist.config.provider import DomainFile
from bmqtwist.errors import AckStatus
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.testing.config import CLUSTER, domain_config
from sim.chain_scenario import ChainScenario
from sim.cluster import SimulatedCluster

PRIORITY = "bmq://bmq.test.persistent.priority/q"
FANOUT = "bmq://bmq.test.persistent.fanout/f"
BROADCAST = "bmq://bmq.test.mem.broadcast/b"
PLACES = ["n1", "p1", "p2"]


def chain(seed: int = 1, **options: object) -> SimulatedCluster:
    """Return a cluster with n1, p1 and p2."""
    return SimulatedCluster(seed, 1, proxies={"p1": ["n1"], "p2": ["p1"]}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("producer", PLACES)
@pytest.mark.parametrize("consumer", PLACES)
def test_a_message_posted_at_a_member_or_proxy_is_consumed_at_any_of_them(producer: str, consumer: str) -> None:
    world = chain()
    source, sink = world.client(producer), world.client(consumer)
    queue = source.open(PRIORITY, write=1)
    reader = sink.consume(PRIORITY)
    guids = [queue.post(b"message %d" % number) for number in range(10)]
    got = reader.take(10)
    assert [each.guid for each in got] == guids
    assert payloads(got) == [b"message %d" % number for number in range(10)]
    reader.confirm(*got)
    world.run(1.0)
    assert not world.node("n1").broker.clusters["c3"].queues[PRIORITY].messages


def assert_counts_agree(world: SimulatedCluster) -> None:
    """Check at each proxy that upstream counts are the sums of its clients, and that no request is pending."""
    world.run(2.0)
    for node in world.nodes:
        broker = node.broker  # type: ignore[attr-defined]
        for proxy in broker.proxies.values():
            for opened in proxy.relays.opened.values():
                assert opened.relay is not None
                for stream in opened.streams.values():
                    assert stream.counts == opened.counts(stream.app_id), (node, opened.uri, stream.app_id)  # type: ignore[attr-defined]
                    assert stream.in_progress is None and not stream.pending
            kept = [put.message for queue in proxy.queues.values() for put in queue.pending.values()]
            assert not proxy.relays.requests._pending
            assert proxy.relays.uplink._bytes == sum(message.size + len(message.options) for message in kept)


def handles(world: SimulatedCluster, name: str, uri: str) -> list[tuple[int, int]]:
    """Read and write counts of the handles of a queue at a node."""
    broker = world.node(name).broker
    queues = {**{uri: each for cluster in broker.clusters.values() for uri, each in cluster.queues.items()},
              **{uri: each for proxy in broker.proxies.values() for uri, each in proxy.queues.items()}}
    return [(handle.read_count, handle.write_count) for handle in queues[uri].handles] if uri in queues else []


@pytest.mark.spec("cluster", 4)
def test_a_proxy_connects_at_the_first_open_without_a_node_id() -> None:
    world = chain()
    world.run(5.0)
    assert not world.node("n1").broker.sessions.open
    world.client("p1").open(PRIORITY, write=1)
    [session] = world.node("n1").broker.sessions.open
    assert session.remote.identity.cluster_node_id == -1 and session.remote.identity.cluster_name == "c3"


@pytest.mark.spec("cluster", 94)
@pytest.mark.parametrize("place", PLACES)
def test_each_app_of_a_fanout_queue_gets_all_messages_at_member_and_proxies(place: str) -> None:
    world = chain()
    readers = {app: world.client(name).consume(FANOUT, app) for app, name in zip(("foo", "bar", "baz"), PLACES, strict=True)}
    queue = world.client(place).open(FANOUT, write=1)
    guids = queue.post_all(b"1", b"2", b"3")
    for reader in readers.values():
        got = reader.take(3)
        assert [each.guid for each in got] == guids and payloads(got) == [b"1", b"2", b"3"]
        reader.confirm(*got)
    world.run(1.0)
    assert not world.node("n1").broker.clusters["c3"].queues[FANOUT].messages
    assert_counts_agree(world)


@pytest.mark.spec("cluster", 94)
def test_several_apps_of_one_client_at_a_proxy_get_and_confirm_messages() -> None:
    world = chain()
    client = world.client("p2")
    readers = [client.consume(FANOUT, app) for app in ("foo", "bar")]
    queue = world.client("p1").open(FANOUT, write=1)
    queue.post_all(b"1", b"2")
    world.run(1.0)
    for reader in readers:
        got = reader.pushes()
        assert payloads(got) == [b"1", b"2"]
        reader.confirm(*got)
    world.client("n1").consume(FANOUT, "baz").confirm(*world.client("n1").consume(FANOUT, "baz").pushes())
    world.run(1.0)
    queue_at_member = world.node("n1").broker.clusters["c3"].queues[FANOUT]
    assert [each.pending.bit_count() for each in queue_at_member.messages.values()] == [1, 1], "baz has not confirmed"


@pytest.mark.spec("cluster", 94)
@pytest.mark.spec("cluster", 104)
@pytest.mark.parametrize("place", PLACES)
def test_a_broadcast_is_delivered_once_at_member_and_proxies(place: str) -> None:
    world = chain()
    readers = [world.client(name).consume(BROADCAST) for name in PLACES for _ in range(2)]
    queue = world.client(place).open(BROADCAST, write=1)
    queue.post_all(b"1", b"2")
    world.run(1.0)
    assert [payloads(reader.pushes()) for reader in readers] == [[b"1", b"2"]] * 6


@pytest.mark.spec("cluster", 94)
def test_only_the_highest_priority_among_all_brokers_receives_messages() -> None:
    world = chain()
    low, high, higher = (world.client(name).consume(PRIORITY, priority=priority)
                         for name, priority in (("n1", 1), ("p1", 2), ("p2", 3)))
    queue = world.client("p1").open(PRIORITY, write=1)
    queue.post(b"for the highest")
    assert payloads(higher.take(1)) == [b"for the highest"]
    higher.configure(priority=0)
    queue.post(b"for the next")
    assert payloads(high.take(1)) == [b"for the next"]
    high.close()
    queue.post(b"for the last")
    assert payloads(low.take(1)) == [b"for the last"]
    assert payloads(higher.take(1)) == [b"for the next"], "the broker of the closed consumer chooses the next one"
    assert_counts_agree(world)


@pytest.mark.spec("cluster", 94)
def test_consumers_of_the_same_priority_at_different_brokers_share_messages() -> None:
    world = chain()
    readers = [world.client(name).consume(PRIORITY, m=1000) for name in ("n1", "p1", "p2", "p2")]
    queue = world.client("p2").open(PRIORITY, write=1)
    for number in range(40):
        queue.put(b"%d" % number)
    world.run(1.0)
    assert [len(reader.pushes()) for reader in readers] == [10, 10, 10, 10]


@pytest.mark.spec("cluster", 94)
def test_subscription_expressions_are_evaluated_at_each_proxy() -> None:
    world = chain()
    one = world.client("p2").consume(PRIORITY, x="n < 5")
    two = world.client("p1").consume(PRIORITY, x="n >= 5")
    queue = world.client("n1").open(PRIORITY, write=1)
    for number in range(10):
        queue.post(b"%d" % number, properties={"n": number})
    assert payloads(one.take(5)) == [b"%d" % number for number in range(5)]
    assert payloads(two.take(5)) == [b"%d" % number for number in range(5, 10)]


def test_a_proxy_passes_on_the_refusal_of_the_primary() -> None:
    world = chain(texts={"few": json.dumps(domain_config("few", maxConsumers=1))})
    first = world.client("p2").consume("bmq://few/q")
    here, there = refusal(world.client("n1").open, "bmq://few/q", read=1), refusal(world.client("p2").open, "bmq://few/q",
                                                                                   read=1)
    assert here == there and "limit of 1 consumer" in here.message
    first.close()
    world.client("p1").consume("bmq://few/q")
    assert_counts_agree(world)


def test_a_proxy_refuses_an_unknown_domain_as_a_member_does() -> None:
    world = chain()
    assert refusal(world.client("p1").open, "bmq://nowhere/q", read=1) == refusal(
        world.client("n1").open, "bmq://nowhere/q", read=1)


@pytest.mark.spec("cluster", 86)
@pytest.mark.parametrize("seed", range(6))
def test_after_random_client_actions_upstream_counts_are_the_sums_of_clients(seed: int) -> None:
    world = chain(seed)
    random = Random(f"{seed}/clients")
    clients: list[Client] = []
    for _ in range(60):
        what = random.random()
        if what < 0.2 or not clients:
            clients.append(world.client(random.choice(PLACES)))
            continue
        client = random.choice(clients)
        opened = [queue for queues in client.queues.values() for queue in queues]
        if what < 0.5:
            uri, app = random.choice([(PRIORITY, None), (FANOUT, "foo"), (FANOUT, "bar"), (BROADCAST, None)])
            if random.random() < 0.4:
                client.open(uri, write=1)
            elif not any(queue.uri == uri and queue.app_id == app and queue.parameters["readCount"] for queue in opened):
                client.consume(uri, app, priority=random.randrange(3))
        elif what < 0.6 and opened:
            queue = random.choice(opened)
            if queue.parameters["readCount"]:
                queue.configure(priority=random.randrange(3))
            else:
                queue.post(b"x")
        elif what < 0.8 and opened:
            queue = random.choice(opened)
            queue.close(final=len(client.queues[queue.q_id]) == 1)
        elif what < 0.9:
            clients.remove(client)
            random.choice([client.kill, client.disconnect])()
        elif what < 0.95:
            node = world.node(random.choice(["n1", "p1"]))
            lost = [each for each in clients if each.link.end.other.handler is not None]  # type: ignore[attr-defined]
            node.crash(power=False)
            world.run(5.0)
            clients = [each for each in lost if not each.link.closed]
    world.run(10.0)
    assert_counts_agree(world)
    for client in clients:
        client.kill()
    world.run(10.0)
    for name in ("p1", "p2"):
        proxy = world.node(name).broker.proxies["c3"]
        assert not proxy.relays.opened and not proxy.relays._by_id, name
    assert not any(queue.handles for queue in world.node("n1").broker.clusters["c3"].queues.values())


@pytest.mark.spec("cluster", 87)
def test_a_configure_without_effect_upstream_is_not_sent() -> None:
    world = chain()
    first, second = (world.client("p1").consume(PRIORITY, priority=priority) for priority in (2, 1))

    def asked() -> int:
        return sum("configureStream" in text for _, text in world.node("n1").report.lines)
    before = asked()
    second.configure(priority=0)
    assert asked() == before, "a lower priority does not change the upstream configuration"
    first.configure(priority=2)
    assert asked() == before
    second.configure(priority=2)
    assert asked() == before + 1


@pytest.mark.spec("cluster", 95)
def test_messages_of_a_lost_consumer_are_redelivered_at_the_same_proxy_in_order_and_marked() -> None:
    world = chain()
    queue = world.client("n1").open(PRIORITY, write=1)
    first = world.client("p1").consume(PRIORITY, priority=2)
    second = world.client("p1").consume(PRIORITY, priority=1)
    queue.post_all(b"1", b"2", b"3")
    assert len(first.take(3)) == 3
    first.client.kill()
    got = second.take(3)
    assert payloads(got) == [b"1", b"2", b"3"] and all(each.out_of_order for each in got)
    second.confirm(*got)
    world.run(1.0)
    assert not world.node("n1").broker.clusters["c3"].queues[PRIORITY].messages


@pytest.mark.spec("cluster", 95)
@pytest.mark.parametrize("end", ["kill", "close", "disconnect"])
def test_messages_of_the_last_consumer_of_a_proxy_return_to_its_upstream(end: str) -> None:
    world = chain()
    queue = world.client("n1").open(PRIORITY, write=1)
    far = world.client("p2").consume(PRIORITY)
    queue.post_all(b"1", b"2", b"3")
    far.take(3)
    {"kill": far.client.kill, "close": far.close, "disconnect": far.client.disconnect}[end]()
    near = world.client("p1").consume(PRIORITY)
    got = near.take(3)
    assert payloads(got) == [b"1", b"2", b"3"] and all(each.out_of_order for each in got)
    assert_counts_agree(world)


POISON = {"poison": json.dumps(domain_config("poison", maxDeliveryAttempts=3))}


def assert_purged(world: SimulatedCluster) -> None:
    """Check that the poison message was removed."""
    world.run(5.0)
    member = world.node("n1").broker.clusters["c3"].queues["bmq://poison/q"]
    assert not member.messages and member.stats.reject_msgs == 1
    assert not world.client("p2").consume("bmq://poison/q").pushes()


def test_delivery_attempts_at_all_brokers_count_and_the_primary_purges() -> None:
    world = chain(texts=POISON)
    world.client("n1").open("bmq://poison/q", write=1).post(b"pill")
    for place in ("p2", "p1", "p2"):
        reader = world.client(place).consume("bmq://poison/q")
        assert payloads(reader.take(1)) == [b"pill"]
        reader.client.kill()
        world.run(5.0)
    assert_purged(world)


@pytest.mark.spec("cluster", 95)
def test_a_redelivery_at_the_same_proxy_uses_one_delivery_attempt() -> None:
    world = chain(texts=POISON)
    first, second = (world.client("p2").consume("bmq://poison/q", priority=priority) for priority in (9, 0))
    world.client("n1").open("bmq://poison/q", write=1).post(b"pill")
    for reader in (first, second):
        assert payloads(reader.take(1)) == [b"pill"]
        reader.client.kill()
        world.run(5.0)
    last = world.client("p1").consume("bmq://poison/q")
    assert payloads(last.take(1)) == [b"pill"]
    last.client.kill()
    assert_purged(world)


@pytest.mark.spec("cluster", 95)
@pytest.mark.parametrize("place", ["p1", "p2"])
def test_messages_that_no_consumer_of_a_proxy_matches_are_delivered_to_other_consumers(place: str) -> None:
    world = chain()
    small, large = (world.client(place).consume(PRIORITY, x=text) for text in ("n < 5", "n >= 5"))
    queue = world.client("n1").open(PRIORITY, write=1)
    for number in range(4):
        queue.post(b"%d" % number, properties={"n": number})
    assert len(small.take(4)) == 4
    small.client.kill()
    other = world.client("n1").consume(PRIORITY, x="n < 5")
    got = other.take(4)
    assert payloads(got) == [b"0", b"1", b"2", b"3"] and all(each.out_of_order for each in got)
    other.confirm(*got)
    world.run(1.0)
    assert not large.pushes() and not world.node("n1").broker.clusters["c3"].queues[PRIORITY].messages
    assert not world.node(place).broker.proxies["c3"].queues[PRIORITY].messages
    assert_counts_agree(world)


@pytest.mark.parametrize("place", ["p1", "p2"])
def test_messages_of_a_lost_consumer_next_to_a_suspended_one_are_delivered_to_other_consumers(place: str) -> None:
    world = chain()
    full = world.client(place).consume(PRIORITY, m=2, priority=5)
    second = world.client(place).consume(PRIORITY, m=2, priority=5)
    queue = world.client("n1").open(PRIORITY, write=1)
    queue.post_all(b"1", b"2", b"3", b"4")
    held = {each.payload for reader in (full, second) for each in reader.take(2)}
    second.client.kill()
    world.run(0.5)
    full.deconfigure()
    other = world.client("n1").consume(PRIORITY)
    assert held == {b"1", b"2", b"3", b"4"}
    assert len(other.take(2)) == 2 and not other.pushes(), "the suspended consumer keeps its unconfirmed messages"


@pytest.mark.parametrize("how", ["kill", "power", "stop"])
@pytest.mark.parametrize("place", ["p1", "p2"])
@pytest.mark.spec("cluster", 90)
def test_puts_during_an_outage_of_the_member_are_stored_once(how: str, place: str) -> None:
    world = chain()
    queue = world.client(place).open(PRIORITY, write=1)
    sent = [queue.put(b"%d" % number) for number in range(20)]
    member = world.node("n1")
    world.run(0.002)
    if how == "stop":
        member.stop(down=3.0)
    else:
        member.crash(power=how == "power", down=3.0)
    world.run(1.0)
    sent += [queue.put(b"%d" % number) for number in range(20, 40)]
    acks = [queue.next_ack() for _ in sent]
    assert {each.guid for each in acks} == set(sent) and {each.status for each in acks} == {0}
    assert not queue.acks()
    reader = world.client("n1").consume(PRIORITY)
    assert payloads(reader.take(40)) == [b"%d" % number for number in range(40)]
    assert not reader.pushes()
    assert_counts_agree(world)


@pytest.mark.spec("cluster", 96)
@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("place", ["p1", "p2"])
def test_confirms_during_an_outage_of_the_member_prevent_redelivery(how: str, place: str) -> None:
    world = chain()
    queue = world.client("p1").open(PRIORITY, write=1)
    reader = world.client(place).consume(PRIORITY)
    queue.post_all(b"1", b"2", b"3", b"4")
    got = reader.take(4)
    member = world.node("n1")
    if how == "stop":
        member.stop(down=2.0)
        world.run(5.0)  # it waits for unconfirmed messages
    else:
        member.crash(power=False, down=2.0)
    world.run(0.5)
    reader.confirm(*got[:3])
    world.run(15.0)
    assert not reader.pushes(), "its unconfirmed message is not redelivered"
    other = world.client("n1").consume(PRIORITY)
    reader.client.kill()
    assert payloads(other.take(1)) == [b"4"]
    assert not other.pushes()


@pytest.mark.spec("cluster", 98)
def test_clients_of_proxies_stay_connected_without_a_member_and_their_opens_complete_later() -> None:
    world = chain()
    member = world.node("n1")
    member.crash(power=False, down=None)
    clients = [world.client(name) for name in ("p1", "p2")]
    numbers = [client.send_request({"openQueue": {"handleParameters": client.handle_parameters(PRIORITY, 0, write=1)}})
               for client in clients]
    world.run(5.0)
    assert not any(client.link.closed for client in clients)
    for client in clients:
        client.heartbeat()
    member.boot()
    for client, number in zip(clients, numbers, strict=True):
        assert "openQueueResponse" in client.response(number)
    assert_counts_agree(world)


def test_an_open_that_times_out_leaves_no_handle() -> None:
    world = chain()
    member = world.node("n1")
    member.crash(power=False, down=None)
    client = world.client("p2")
    number = client.send_request({"openQueue": {"handleParameters": client.handle_parameters(PRIORITY, 0, write=1)}})
    world.run(11.0)
    with pytest.raises(RequestRefused, match="E_TIMEOUT"):
        client.response(number)
    member.boot()
    world.run(40.0)
    assert_counts_agree(world)
    assert not handles(world, "n1", PRIORITY) and not world.node("p2").broker.proxies["c3"].relays.opened


@pytest.mark.spec("cluster", 91)
def test_an_unanswered_put_is_refused_after_the_deduplication_time() -> None:
    world = chain(texts={"short": json.dumps(domain_config("short", deduplicationTimeMs=4000))})
    queue = world.client("p1").open("bmq://short/q", write=1)
    queue.post(b"1")
    world.node("n1").crash(power=False, down=None)
    world.run(0.1)
    guid = queue.put(b"2")
    world.run(3.0)
    assert not [event for event in queue.client.inbox if event.kind == "ack"]
    ack = queue.next_ack()
    assert (ack.guid, ack.status) == (guid, 5)
    pending_bytes = world.node("p1").broker.proxies["c3"].relays.uplink._bytes
    assert pending_bytes == 0


@pytest.mark.spec("cluster", 92)
def test_a_proxy_stops_reading_from_producers_at_the_limit_of_pending_bytes() -> None:
    world = chain(proxy_app={"bmqtwist": {"relayBytesMax": 20000}})
    queue = world.client("p1").open(PRIORITY, write=1)
    proxy = world.node("p1")
    world.node("n1").crash(power=False, down=None)
    world.run(0.5)
    sent = []
    for number in range(100):
        sent.append(queue.put(b"%d" % number * 500))
        world.run(0.01)
    kept = proxy.broker.proxies["c3"].relays.uplink._bytes
    assert proxy.stopped_reads and kept < 60000
    world.node("n1").boot()
    assert {queue.next_ack().guid for _ in sent} == set(sent)
    assert_counts_agree(world)


@pytest.mark.parametrize("seed", range(3))
def test_a_graceful_stop_of_a_proxy_loses_no_broadcast_of_its_downstream_proxy(seed: int) -> None:
    world = chain(seed)
    writer, reader = world.client("p2").open(BROADCAST, write=1), world.client("p2").consume(BROADCAST)
    world.network.slow("p1", "n1", 0.1)
    sent = []
    for number in range(60):
        if number == 20:
            world.node("p1").stop(down=2.0)
        sent.append(b"%d" % number)
        writer.put(sent[-1])
        world.run(0.03)
    world.run(10.0)
    assert payloads(reader.pushes()) == sent


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_unconfirmed_messages_of_a_stopped_or_killed_proxy_are_delivered_to_other_consumers(how: str) -> None:
    world = chain()
    queue = world.client("n1").open(PRIORITY, write=1)
    reader = world.client("p1").consume(PRIORITY)
    queue.post_all(b"1", b"2")
    got = reader.take(2)
    reader.confirm(got[0])
    world.run(0.1)
    if how == "stop":
        world.node("p1").stop(down=None)
        world.run(8.0)
    else:
        world.node("p1").crash(power=False, down=None)
    other = world.client("n1").consume(PRIORITY)
    assert payloads(other.take(1)) == [b"2"]
    world.run(1.0)
    assert not other.pushes()
    assert handles(world, "n1", PRIORITY) == [(0, 1), (1, 0)]


@pytest.mark.spec("cluster", 105)
@pytest.mark.parametrize("who", ["n1", "p1"])
def test_a_graceful_stop_under_load_loses_and_duplicates_no_message(who: str) -> None:
    world = chain()
    writer, reader = world.client("p2").open(PRIORITY, write=1), world.client("p2").consume(PRIORITY)
    sent, got = [], []
    for number in range(60):
        if number == 20:
            world.node(who).stop(down=2.0)
        sent.append(writer.put(b"%d" % number))
        world.run(0.05)
        for push in [event.push for event in list(reader.client.inbox) if event.kind == "push"]:
            reader.client.inbox.clear()
            got.append(push.payload)
            reader.confirm(push)
    assert [writer.next_ack(guid).status for guid in sent] == [0] * 60
    world.run(10.0)
    while len(got) < 60:
        push = reader.next_push()
        got.append(push.payload)
        reader.confirm(push)
    assert got == [b"%d" % number for number in range(60)] and not reader.pushes()


@pytest.mark.spec("broker", 83)
def test_consumers_of_a_proxy_receive_messages_only_up_to_a_full_batch_of_free_window() -> None:
    world = chain()
    readers = [world.client("p1").consume(PRIORITY, m=10) for _ in range(10)]
    queue = world.client("n1").open(PRIORITY, write=1)
    queue.post_all(*[b"%d" % number for number in range(100)])
    held = [reader.take(10) for reader in readers]
    for reader, messages, done in zip(readers, held, [1] * 8 + [2, 10], strict=True):
        reader.confirm(*messages[:done])
        del messages[:done]
    world.run(0.5)
    queue.post_all(*[b"%d" % number for number in range(100, 120)])
    world.run(0.5)
    more = [reader.pushes() for reader in readers]
    assert [len(each) for each in more] == [0] * 8 + [2, 10]
    assert "early exits delivery" in "".join(text for _, text in world.node("p1").report.lines)
    for reader, messages, new in zip(readers, held, more, strict=True):
        reader.confirm(*messages, *new)
    world.run(0.5)
    assert sum(len(reader.pushes()) for reader in readers) == 8


@pytest.mark.parametrize("place", PLACES)
def test_a_consumer_receives_messages_while_another_one_does_not_confirm(place: str) -> None:
    world = chain()
    idle, busy = world.client(place).consume(PRIORITY, m=100), world.client(place).consume(PRIORITY, m=10)
    queue = world.client("n1").open(PRIORITY, write=1)
    queue.post_all(*[b"%d" % number for number in range(150)])
    idle.take(100)
    for _ in range(5):
        busy.confirm(*busy.take(10))
    world.run(1.0)
    assert len(world.node("n1").broker.clusters["c3"].queues[PRIORITY].messages) == 100  # unconfirmed at the idle consumer


@pytest.mark.spec("broker", 91)
def test_priorities_apply_per_app_across_brokers() -> None:
    world = chain()
    places = {"foo": ("p1", "p2"), "bar": ("p2", "n1"), "baz": ("n1", "p1")}
    readers = {app: [world.client(place).consume(FANOUT, app, priority=priority) for place, priority in
                     zip(where, (2, 1), strict=True)] for app, where in places.items()}
    queue = world.client("n1").open(FANOUT, write=1)
    queue.post(b"1")
    for high, low in readers.values():
        high.confirm(*high.take(1))
        assert not low.pushes()
        high.configure(priority=1)
        low.configure(priority=2)
    queue.post(b"2")
    for high, low in readers.values():
        assert payloads(low.take(1)) == [b"2"] and not high.pushes()


@pytest.mark.spec("broker", 134)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_stop_or_crash_of_a_proxy_uses_no_delivery_attempt(how: str) -> None:
    world = chain(texts={"once": json.dumps(domain_config("once", maxDeliveryAttempts=1))})
    world.client("n1").open("bmq://once/q", write=1).post(b"x")
    world.client("p1").consume("bmq://once/q").take(1)
    if how == "stop":
        world.node("p1").stop(down=None)
        world.run(8.0)
    else:
        world.node("p1").crash(power=False, down=None)
    assert payloads(world.client("n1").consume("bmq://once/q").take(1)) == [b"x"]


@pytest.mark.spec("broker", 248)
def test_puts_repeated_after_a_crash_of_a_proxy_are_stored_once() -> None:
    world = chain()
    queue = world.client("p2").open(PRIORITY, write=1)
    sent = {queue.put(b"%d" % number): b"%d" % number for number in range(20)}
    world.run(0.004)
    world.node("p2").crash(power=False, down=0.5)
    world.run(1.0)
    again = world.client("p2").open(PRIORITY, write=1)
    for guid, payload in sent.items():
        again.put(payload, guid=guid)
    assert [again.next_ack(guid).status for guid in sent] == [0] * 20
    reader = world.client("n1").consume(PRIORITY)
    assert sorted(payloads(reader.take(20))) == sorted(sent.values()) and not reader.pushes()


@pytest.mark.spec("broker", 9)
def test_a_proxy_uses_a_cluster_and_domain_that_are_added_while_it_runs() -> None:
    world = chain()
    proxy = world.node("p1")
    texts = {"late": {"name": "late", "nodes": [{"id": 1, "name": "n1", "dataCenter": "dc1", "transport": {
        "tcp": {"endpoint": f"tcp://{world.node('n1').address}"}}}]}}
    world.domains.texts["added"] = json.dumps(domain_config("added", cluster="late"))
    assert refusal(world.client("p1").open, "bmq://added/q", write=1).category == "E_REFUSED"
    world.domains.read_proxy_cluster = lambda name: DomainFile(  # type: ignore[method-assign]
        name, json.dumps(texts[name]) if name in texts else None)
    answered = world.client("p1")
    answered.send_request({"openQueue": {"handleParameters": answered.handle_parameters("bmq://added/q", 0, write=1)}})
    world.run(1.0)
    assert set(proxy.broker.proxies) == {"c3", "late"} and proxy.broker.proxies["late"].links.is_up(1) is False
    assert "a broker of cluster 'late'" in "".join(text for _, text in world.node("n1").report.lines)


@pytest.mark.spec("broker", 229)
def test_the_user_agent_of_a_proxy_is_logged() -> None:
    world = chain()
    world.client("p1").open(PRIORITY, write=1)
    assert [text for _, text in world.node("n1").report.lines if "proxy" in text and "userAgent: 'bmqbrkr:" in text]


def test_a_proxy_without_authorization_is_refused() -> None:
    rules = [{"actions": ["ConnectProxy"], "effect": "deny"}]
    world = chain(app={"bmqtwist": {"authorization": {"rules": rules}}})
    number = world.client("p1")
    number.send_request({"openQueue": {"handleParameters": number.handle_parameters(PRIORITY, 0, write=1)}})
    world.run(2.0)
    assert "Connection not authorized" in "".join(text for _, text in world.node("p1").report.lines)


def test_random_faults_in_a_chain_of_proxies_lose_no_acknowledged_message(fresh_seed: int) -> None:
    counts = ChainScenario(fresh_seed).run()
    assert counts["acked"] > 100 and counts["delivered"] > 50 and counts["confirmed"] > 100


def relay_at(world: SimulatedCluster, name: str, uri: str) -> RelayQueue:
    """Return the relay of a queue at a proxy."""
    return world.node(name).broker.proxies[CLUSTER].queues[uri]


@pytest.mark.parametrize("limits", [{"queue_messages": 3}, {"domain_messages": 3}, {"queue_bytes": 3}], ids=str)
@pytest.mark.parametrize("place", ["p1", "p2"])
def test_a_confirm_at_a_proxy_gives_room_for_the_next_put_elsewhere(place: str, limits: dict[str, int]) -> None:
    world = chain(texts={"tight": json.dumps(domain_config("tight", **limits))})
    queue = world.client("n1").open("bmq://tight/q", write=1)
    reader = world.client(place).consume("bmq://tight/q")
    queue.post_all(*[b"x"] * 4)
    assert queue.status_of(b"y") in (AckStatus.LIMIT_MESSAGES, AckStatus.LIMIT_BYTES)
    reader.confirm(*reader.take(4))
    world.run(0.003 if place == "p1" else 0.006)
    assert not queue.status_of(b"z")


def test_a_proxy_delays_confirms_only_while_the_primary_reports_ample_quota() -> None:
    world = chain(texts={"near": json.dumps(domain_config("near", queue_bytes=(16 << 20) + (256 << 10)))})
    queue = world.client("n1").open("bmq://near/q", write=1)
    reader = world.client("p2").consume("bmq://near/q", b=1 << 30)
    stored = world.node("n1").broker.clusters[CLUSTER].queues["bmq://near/q"].messages
    queue.post_all(b"1", b"2")
    first, second = reader.take(2)
    assert all(relay_at(world, name, "bmq://near/q").ample_quota for name in ("p1", "p2"))
    reader.confirm(first)
    world.run(0.008)
    assert len(stored) == 2, "delayed"
    world.run(0.02)
    assert len(stored) == 1
    queue.post_all(*[bytes(100_000)] * 3)
    world.run(0.02)
    assert not any(relay_at(world, name, "bmq://near/q").ample_quota for name in ("p1", "p2"))
    reader.confirm(second)
    world.run(0.008)
    assert len(stored) == 3
    reader.confirm(*reader.take(3))
    world.run(0.1)
    queue.post(b"3")
    reader.take(1)
    assert all(relay_at(world, name, "bmq://near/q").ample_quota for name in ("p1", "p2"))


def test_a_lower_limit_ends_the_delay_of_confirms_at_proxies() -> None:
    world = chain(texts={"lower": json.dumps(domain_config("lower"))})
    reader = world.client("p2").consume("bmq://lower/q")
    world.client("n1").open("bmq://lower/q", write=1).post_all(b"1", b"2")
    reader.take(2)
    assert relay_at(world, "p2", "bmq://lower/q").ample_quota
    world.domains.texts["lower"] = json.dumps(domain_config("lower", queue_messages=3))
    world.node("n1").broker.commands.run_at_once("DOMAINS RECONFIGURE lower", "test")
    world.run(0.02)
    assert not relay_at(world, "p2", "bmq://lower/q").ample_quota
