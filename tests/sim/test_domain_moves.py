"""Moves of a domain between two clusters through a proxy: n1 is the cluster `old`, n2 the cluster `new`, p1 a proxy of both.

Tests `bmqtwist/relay/moves.py` and `bmqtwist/relay/drain.py` with the brokers of a node; real processes are in
`tests/integration/test_domain_moves.py`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest
from kit.client import Queue, payloads

from bmqtwist.config.broker import Configuration
from bmqtwist.relay.drain import FLUSH_S, QUIET_S, UNREACHABLE_S, Activity
from bmqtwist.testing.config import (
    DomainTable,
    broker_config,
    clusters_config,
    configuration,
    domain_config,
    member_configuration,
    node_config,
)
from bmqtwist.testing.network import Network
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.testing.simulation import Simulation
from sim.cluster import PARTITION, PORT, SimulatedCluster

OLD, NEW = "old", "new"
MODES = {"d": "priority", "f": "fanout", "b": "broadcast"}
URI, FANOUT, BROADCAST = "bmq://d/q", "bmq://f/q", "bmq://b/q"


def proxy_of_both() -> Configuration:
    """Return the configuration of a proxy of both clusters."""
    made = clusters_config(PurePosixPath("/memory"), PORT)["myClusters"][0]
    proxied = [{"name": name, "queueOperations": made["queueOperations"],
                "nodes": [node_config(number, f"n{number}", f"n{number}:{PORT}")]}
               for number, name in enumerate((OLD, NEW), 1)]
    clusters = {"myClusters": [], "myVirtualClusters": [], "proxyClusters": proxied}
    return configuration(broker_config(PurePosixPath("/memory/p1/storage"), PORT, hostName="p1"), clusters)


class TwoClusters(SimulatedCluster):
    """Two single-node clusters and a proxy of both, each with its own domain files."""

    def __init__(self, seed: int = 1, **parameters: Any) -> None:
        Simulation.__init__(self, Random(f"{seed}/moves"))
        self.network, self.clients, self.proxies = Network(self), 0, []
        self.tables: dict[str, DomainTable] = {}
        self._parameters = parameters
        for name, configure in (("n1", self._member(1, OLD)), ("n2", self._member(2, NEW)), ("p1", proxy_of_both)):
            self.tables[name] = table = DomainTable()
            for domain in MODES:
                self.locate(name, domain, NEW if name == "n2" else OLD)
            SimulatedNode(self.network, name, f"{name}:{PORT}", configure, lambda configuration, table=table: table).boot()

    def _member(self, number: int, name: str) -> Any:
        return partial(member_configuration, number, 1, PORT, alone=True, cluster={"name": name, "partition": PARTITION})

    def locate(self, node: str, domain: str, cluster: str) -> None:
        """Write the location of a domain at one node."""
        mode = MODES[domain]
        self.tables[node].texts[domain] = json.dumps(domain_config(
            domain, mode, cluster=cluster, in_memory=mode == "broadcast", **self._parameters))

    def move(self, cluster: str, domain: str = "d") -> str:
        """Move a domain at the proxy; return the answer."""
        self.locate("p1", domain, cluster)
        return self.command(f"DOMAINS RECONFIGURE {domain}")

    def command(self, command: str) -> str:
        """Run an admin command at the proxy."""
        return self.node("p1").broker.commands.run_at_once(command, "test").text

    def stored(self, node: str, uri: str = URI) -> int:
        """Return the number of messages of a queue that are stored at a node."""
        queues = self.node(node).broker.clusters[OLD if node == "n1" else NEW].queues
        return len(queues[uri].messages) if uri in queues else 0

    def is_moved(self) -> bool:
        """Return whether no domain is drained any more."""
        return not any(proxy.relays.leaving or proxy.moves.departures for proxy in self.node("p1").broker.proxies.values())

    def until_moved(self) -> None:
        """Run until no domain is drained any more, and check that nothing is left behind at the proxy."""
        self.until(self.is_moved)
        self.run(1.0)
        for proxy in self.node("p1").broker.proxies.values():
            assert set(proxy.relays._by_id.values()) == set(proxy.relays.opened.values())
            assert not proxy.relays.requests._pending
            for opened in proxy.relays.opened.values():
                assert opened.sources == [opened] and opened.drain is None and opened.relay is not None
                assert opened.relay.domain.cluster == proxy.name and opened.relay.uplink is proxy.relays.uplink
                for stream in opened.streams.values():
                    assert stream.counts == opened.counts(stream.app_id) and not stream.is_changing
            pending = [put.message.size + len(put.message.options)
                       for queue in proxy.queues.values() for put in queue.pending.values()]
            assert proxy.relays.uplink._bytes == sum(pending)


def take_and_confirm(reader: Queue, count: int) -> list[bytes]:
    """Receive and confirm messages one after the other; return their payloads."""
    got = []
    for _ in range(count):
        [push] = reader.take(1)
        reader.confirm(push)
        got.append(push)
    return payloads(got)


def test_a_queue_moves_with_its_producer_and_consumer() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(URI, write=1), world.client("p1").consume(URI)
    queue.post(b"1")
    assert take_and_confirm(reader, 1) == [b"1"]
    assert "SUCCESS" in world.move(NEW).upper()
    queue.post_all(b"2", b"3")
    assert world.stored("n1") == 0 and world.stored("n2") == 2
    assert not reader.pushes(), "the consumer reads the old cluster until it is quiet"
    world.until_moved()
    assert take_and_confirm(reader, 2) == [b"2", b"3"]
    queue.post(b"4")
    assert take_and_confirm(reader, 1) == [b"4"]
    world.run(1.0)
    assert world.stored("n1") == world.stored("n2") == 0


def test_puts_that_were_never_sent_go_to_the_new_cluster() -> None:
    world = TwoClusters()
    queue = world.client("p1").open(URI, write=1)
    world.node("n1").crash(power=False, down=None)
    world.run(1.0)
    guids = [queue.put(b"%d" % number) for number in range(3)]
    world.run(1.0)
    assert not queue.acks()
    world.move(NEW)
    assert [queue.next_ack().guid for _ in guids] == guids
    assert world.stored("n2") == 3
    world.until_moved()


def test_a_put_that_the_old_cluster_answers_late_is_not_sent_to_the_new_one() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(URI, write=1), world.client("p1").consume(URI)
    world.node("n1").pause()
    first = queue.put(b"1")
    world.run(0.5)
    world.move(NEW)
    second = queue.put(b"2")
    world.run(3.0)
    assert not queue.acks() and world.stored("n2") == 0, "PUTs keep their order"
    assert "bmq://d/q: ACKs of 1 PUT(s)" in world.command("DOMAINS MOVES")
    world.node("n1").resume()
    assert [(queue.next_ack().guid, queue.next_ack().guid)] == [(first, second)]
    assert world.stored("n2") == 1
    assert take_and_confirm(reader, 2) == [b"1", b"2"]
    world.until_moved()
    assert not reader.pushes() and world.stored("n1") == world.stored("n2") == 0


def test_a_put_without_an_ack_in_time_is_sent_to_the_new_cluster_with_its_guid() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(URI, write=1), world.client("p1").consume(URI)
    world.node("n1").pause()
    guid = queue.put(b"1")
    world.run(0.5)
    world.move(NEW)
    world.run(FLUSH_S + 2.0)
    [ack] = queue.acks()
    assert (ack.guid, ack.status) == (guid, 0)
    world.node("n1").resume()
    got = reader.take(1)
    reader.confirm(*got)
    got += reader.take(1)
    reader.confirm(*got[1:])
    assert [each.guid for each in got] == [guid, guid], "the old cluster had stored it: documented"
    world.until_moved()
    assert not queue.acks() and world.stored("n1") == world.stored("n2") == 0


def test_a_consumer_confirms_messages_of_the_old_cluster_before_it_reads_the_new_one() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(URI, write=1), world.client("p1").consume(URI, m=2)
    queue.post_all(*[b"%d" % number for number in range(5)])
    held = reader.take(2)
    world.move(NEW)
    queue.post(b"new")
    world.run(3 * QUIET_S)
    assert not reader.pushes() and world.stored("n1") == 5
    reader.confirm(*held)
    assert take_and_confirm(reader, 4) == [b"2", b"3", b"4", b"new"]
    world.until_moved()
    assert world.stored("n1") == world.stored("n2") == 0


def test_each_app_of_a_fanout_queue_moves_when_it_has_drained_the_old_cluster() -> None:
    world = TwoClusters()
    queue = world.client("p1").open(FANOUT, write=1)
    fast, slow, absent = (world.client("p1").consume(FANOUT, app) for app in ("foo", "bar", "baz"))
    queue.post(b"1")
    held = slow.take(1)
    absent.close()
    assert take_and_confirm(fast, 1) == [b"1"]
    world.move(NEW, "f")
    queue.post(b"2")
    assert take_and_confirm(fast, 1) == [b"2"], "it does not wait for the other apps"
    world.run(QUIET_S)
    assert not slow.pushes()
    [move] = json.loads(world.command("ENCODING JSON_COMPACT DOMAINS MOVES"))["domainMoves"]["moves"]
    assert (move["from"], move["to"], move["queues"]) == (OLD, NEW, 1)
    assert move["first"] == [{"uri": FANOUT, "waitsFor": f"appId 'bar': {Activity.ACTIVE.value}"}]
    slow.confirm(*held)
    assert take_and_confirm(slow, 1) == [b"2"]
    world.until_moved()
    absent = world.client("p1").consume(FANOUT, "baz")
    assert take_and_confirm(absent, 1) == [b"2"], "an app without consumers at the move reads the new cluster"
    world.run(1.0)
    assert world.stored("n1", FANOUT) == 1 and world.stored("n2", FANOUT) == 0


def test_a_broadcast_queue_reads_both_clusters_during_its_move() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(BROADCAST, write=1), world.client("p1").consume(BROADCAST)
    local = world.client("n1").open(BROADCAST, write=1)
    queue.post(b"1")
    world.move(NEW, "b")
    world.run(0.5)
    queue.post(b"2")
    local.post(b"of a producer at the old cluster")
    assert sorted(payloads(reader.take(3))) == [b"1", b"2", b"of a producer at the old cluster"]
    world.until_moved()
    queue.post(b"3")
    assert payloads(reader.take(1)) == [b"3"]


def test_messages_of_producers_that_still_post_at_the_old_cluster_are_drained() -> None:
    world = TwoClusters()
    reader, local = world.client("p1").consume(URI), world.client("n1").open(URI, write=1)
    world.move(NEW)
    for number in range(10):
        local.post(b"%d" % number)
        world.run(QUIET_S - 1.0)
        assert take_and_confirm(reader, 1) == [b"%d" % number]
    world.until_moved()


def test_a_domain_moves_back_before_the_old_cluster_is_drained() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(URI, write=1), world.client("p1").consume(URI)
    queue.post(b"old")
    held = reader.take(1)
    world.move(NEW)
    queue.post(b"new")
    world.move(OLD)
    queue.post(b"old again")
    assert world.stored("n1") == 2 and world.stored("n2") == 1
    reader.confirm(*held)
    assert take_and_confirm(reader, 2) == [b"old again", b"new"], "each cluster in turn"
    world.until_moved()
    assert not reader.pushes() and world.stored("n1") == world.stored("n2") == 0


def test_a_domain_moves_a_limited_number_of_times_while_a_consumer_holds_messages() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(URI, write=1), world.client("p1").consume(URI)
    queue.post(b"1")
    held = reader.take(1)
    answers = [world.move(cluster) for cluster in (NEW, OLD, NEW, OLD)]
    assert [each.startswith("SUCCESS") for each in answers] == [True, True, True, False]
    assert "not drained yet" in answers[-1]
    reader.confirm(*held)
    queue.post(b"2")
    assert take_and_confirm(reader, 1) == [b"2"]
    world.until_moved()


def test_an_old_cluster_that_stays_unreachable_is_abandoned() -> None:
    world = TwoClusters()
    queue, reader = world.client("p1").open(URI, write=1), world.client("p1").consume(URI)
    queue.post(b"1")
    held = reader.take(1)
    world.node("n1").crash(power=False, down=None)
    world.move(NEW)
    queue.post(b"2")
    world.run(UNREACHABLE_S - 2.0)
    assert not reader.pushes()
    world.run(4.0)
    assert take_and_confirm(reader, 1) == [b"2"]
    reader.confirm(*held)
    world.until_moved()
    assert any("its messages remain there" in text for _, text in world.node("p1").report.lines)
    world.node("n1").boot()
    assert world.stored("n1") == 1 and world.stored("n2") == 0


def test_a_consumer_that_returns_during_the_drain_continues_it() -> None:
    world = TwoClusters()
    client = world.client("p1")
    queue, reader = world.client("p1").open(URI, write=1), client.consume(URI, m=1)
    queue.post_all(b"1", b"2")
    reader.take(1)
    world.move(NEW)
    queue.post(b"3")
    client.kill()
    world.run(5 * QUIET_S)
    assert world.stored("n1") == 2
    reader = world.client("p1").consume(URI)
    assert take_and_confirm(reader, 3) == [b"1", b"2", b"3"]
    world.until_moved()
    assert world.stored("n1") == world.stored("n2") == 0


def test_a_client_that_was_opening_a_queue_opens_it_at_the_new_cluster() -> None:
    world = TwoClusters()
    first, second = world.client("p1"), world.client("p1")
    first.open(URI, write=1)
    world.node("n1").pause()
    parameters = second.handle_parameters(URI, 0, write=1)
    request = second.send_request({"openQueue": {"handleParameters": parameters}})
    world.run(0.5)
    world.move(NEW)
    world.run(0.5)
    world.node("n1").resume()
    assert "openQueueResponse" in second.response(request)
    assert sum(write for _, write in handles_at(world, "n2")) == 2
    world.until_moved()
    assert not handles_at(world, "n1")


def handles_at(world: TwoClusters, node: str) -> list[tuple[int, int]]:
    """Return the read and write counts of the handles of the queue at a node."""
    queue = next(iter(world.node(node).broker.clusters.values())).queues[URI]
    return [(handle.read_count, handle.write_count) for handle in queue.handles]


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_or_repeated_while_domains_move_at_random(seed: int, faults: bool) -> None:
    """With `faults` nodes fail and restart: messages may be repeated, and none is lost."""
    world, random = TwoClusters(seed), Random(f"{seed}/actions")
    apps = [(URI, "__default"), (FANOUT, "foo"), (FANOUT, "bar"), (FANOUT, "baz")]
    producers = {uri: world.client("p1").open(uri, write=1) for uri in (URI, FANOUT)}
    readers: dict[tuple[str, str], Queue] = {}
    acknowledged: dict[str, set[bytes]] = {URI: set(), FANOUT: set()}
    confirmed: dict[tuple[str, str], list[bytes]] = {each: [] for each in apps}

    def reader_of(uri: str, app: str) -> Queue:
        if (uri, app) not in readers:
            readers[uri, app] = world.client("p1").consume(uri, None if uri == URI else app, m=random.choice((1, 3, 100)))
        return readers[uri, app]

    def confirm(each: tuple[str, str], count: int) -> None:
        queue = reader_of(*each)
        held = waiting.setdefault(each, [])
        held += queue.pushes()
        repeated = {push.guid for push in held} & set(confirmed[each])
        assert faults or not repeated, "a confirmed message is delivered again"
        now, waiting[each] = held[:count], held[count:]
        if now:
            queue.confirm(*now)
            confirmed[each] += [push.guid for push in now]

    def take_acks() -> None:
        for uri, queue in producers.items():
            found = queue.acks()
            assert all(not ack.status for ack in found)
            acknowledged[uri] |= {ack.guid for ack in found}

    waiting: dict[tuple[str, str], list[Any]] = {}
    for each in apps:
        reader_of(*each)
    for _ in range(120):
        each, what = random.choice(apps), random.random()
        if what < 0.45:
            producers[each[0]].put(b"x")
        elif what < 0.75:
            confirm(each, random.choice((1, 2, 10)))
        elif what < 0.85:
            world.run(random.uniform(0.0, 1.5 * QUIET_S))
        elif what < 0.88 and faults:
            world.node(random.choice(("n1", "n2"))).crash(power=False, down=random.choice((0.2, 3.0)))
        elif what < 0.93:
            world.move(random.choice((OLD, NEW)), "d" if each[0] == URI else "f")
        elif each in readers:
            waiting.pop(each, None)
            world.run(0.1)  # the proxy has received the CONFIRMs
            readers.pop(each).client.kill()
    for cluster in (OLD, NEW, OLD, NEW):  # whatever consumers that were absent at a move have left behind
        for _ in range(40):
            for each in apps:
                confirm(each, 100)
            world.run(0.5)
        take_acks()
        for domain in ("d", "f"):
            assert world.move(cluster, domain).startswith("SUCCESS")
    for _ in range(40):
        for each in apps:
            confirm(each, 100)
        world.run(0.5)
    world.until_moved()
    for uri, app in apps:
        assert set(confirmed[uri, app]) == acknowledged[uri]
        assert faults or len(confirmed[uri, app]) == len(acknowledged[uri])
    assert not any(world.stored(node, uri) for node in ("n1", "n2") for uri in (URI, FANOUT))
