"""Clients at all members of a cluster: messages, and sessions across failovers.

Tests `bmqtwist/member/member_relays.py`; the cluster is in `members.py`.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from kit.client import Client, payloads

from bmqtwist.wire.cluster_schema import NodeStatus
from sim.elected import heal, resume
from sim.members import Members
from sim.replicated import EVENTUAL, FANOUT, STRONG

BROADCAST = "bmq://bmq.test.mem.broadcast/b"
IN_MEMORY = "bmq://bmq.test.mem.priority/q"


def assert_connected(*clients: Client) -> None:
    """Check that no session was closed."""
    for client in clients:
        assert not client.link.closed


@pytest.mark.spec("cluster", 93)
@pytest.mark.spec("cluster", 94)
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL, IN_MEMORY])
def test_a_message_posted_at_any_member_is_consumed_at_any_member(uri: str) -> None:
    nodes = Members()
    primary, (one, two) = nodes.primary(), nodes.replicas()
    for source, sink in ((one, two), (one, one), (primary, one), (two, primary)):
        writer, reader = nodes.client(source.name), nodes.client(sink.name)
        queue, consumer = writer.open(uri, write=1), reader.consume(uri)
        guids = [queue.post(b"message %d" % number) for number in range(10)]
        got = consumer.take(10)
        assert [each.guid for each in got] == guids and payloads(got) == [b"message %d" % number for number in range(10)]
        consumer.confirm(*got)
        nodes.run(1.0)
        writer.disconnect()
        reader.disconnect()
        nodes.run(1.0)
        assert not any(nodes.relayed_queues(node) for node in nodes.machines)
        if uri is not IN_MEMORY:
            assert all(nodes.stored(node, uri) == [] for node in nodes.machines)
    for node in nodes.machines:
        assert not [line for line in node.log() if "damaged" in line], "a record was read before it was written"


@pytest.mark.spec("cluster", 94)
def test_apps_of_a_fanout_queue_are_consumed_at_different_members() -> None:
    nodes = Members()
    readers = {app: nodes.client(node.name).consume(FANOUT, app)
               for app, node in zip(("foo", "bar", "baz"), nodes.machines, strict=True)}
    for node in nodes.machines:
        queue = nodes.client(node.name).open(FANOUT, write=1)
        guids = [queue.post(b"%d" % number) for number in range(5)]
        for reader in readers.values():
            got = reader.take(5)
            assert [each.guid for each in got] == guids
            reader.confirm(*got)
    nodes.run(1.0)
    assert all(nodes.stored(node, FANOUT) == [] for node in nodes.machines)


@pytest.mark.spec("cluster", 93)
@pytest.mark.spec("cluster", 94)
def test_a_broadcast_is_delivered_once_to_consumers_at_all_members() -> None:
    nodes = Members()
    readers = [nodes.client(node.name).consume(BROADCAST) for node in nodes.machines]
    for node in nodes.machines:
        nodes.client(node.name).open(BROADCAST, write=1).post_all(b"1", b"2")
    nodes.run(1.0)
    assert [payloads(reader.pushes()) for reader in readers] == [[b"1", b"2"] * 3] * 3


@pytest.mark.spec("cluster", 3)
@pytest.mark.spec("cluster", 102)
@pytest.mark.parametrize("how", ["kill", "power", "stop"])
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL])
def test_clients_at_other_members_keep_sessions_messages_and_order_when_the_primary_fails(uri: str, how: str) -> None:
    nodes = Members(2)
    one, two = nodes.replicas()
    queues = [nodes.client(node.name).open(uri, write=1) for node in (one, two)]
    consumers = [nodes.client(node.name).consume(uri, m=5) for node in (one, two)]
    posted: dict[bytes, bytes] = {}

    def post(count: int) -> None:
        for queue in queues:
            for _ in range(count):
                payload = b"message %d" % len(posted)
                posted[queue.put(payload)] = payload
    post(10)
    nodes.run(0.5)
    held = [consumer.pushes() for consumer in consumers]
    assert [len(each) for each in held] == [5, 5]
    post(3)
    former = nodes.primary()
    if how == "stop":
        former.stop(down=None)
    else:
        former.crash(power=how == "power", down=None)
    nodes.run(0.2)
    post(3)
    for consumer, messages in zip(consumers, held, strict=True):
        consumer.confirm(*messages[:3])
    nodes.run(10.0)
    assert nodes.primary() in (one, two)
    got: list[list[bytes]] = [[], []]
    for _ in range(40):
        for consumer, mine in zip(consumers, got, strict=True):
            found = consumer.pushes()
            mine += payloads(found)
            consumer.confirm(*found)
        for consumer, messages in zip(consumers, held, strict=True):
            consumer.confirm(*messages[3:])
        nodes.run(0.2)
    acks = [ack for queue in queues for ack in queue.acks()]
    assert sorted(ack.guid for ack in acks) == sorted(posted) and not any(ack.status for ack in acks)
    assert {payload for mine in (*map(payloads, held), *got) for payload in mine} == set(posted.values())
    for messages, mine in zip(held, got, strict=True):
        assert not set(payloads(messages)) & set(mine), "redelivered to the same consumer"
    nodes.run(1.0)
    assert nodes.stored(one, uri) == nodes.stored(two, uri) == []
    assert_connected(*(each.client for each in (*queues, *consumers)))
    former.boot()
    nodes.run_until_stable()
    nodes.judge_partitions()
    assert_connected(*(each.client for each in (*queues, *consumers)))


def test_clients_of_an_isolated_primary_get_acks_and_messages_after_it_reconnects() -> None:
    nodes = Members(0)
    former = nodes.primary()
    writer, reader = nodes.client(former.name), nodes.client(former.name)
    queue, consumer = writer.open(STRONG, write=1), reader.consume(STRONG)
    guids = [queue.post(b"before")]
    held = consumer.take(1)
    nodes.isolate(former)
    guids += [queue.put(b"during %d" % number) for number in range(5)]
    nodes.run(15.0)
    assert not nodes.replication(former).is_active_primary(0) and not queue.acks() and not consumer.pushes()
    guids.append(queue.put(b"after"))
    consumer.confirm(*held)
    heal(nodes)
    nodes.run_until_stable()
    assert nodes.primary() is not former
    assert [ack.guid for ack in queue.acks()] == guids[1:]
    got = consumer.pushes()
    assert [each.guid for each in got] == guids[1:]
    consumer.confirm(*got)
    nodes.run(1.0)
    assert all(nodes.stored(node) == [] for node in nodes.machines)
    assert_connected(writer, reader)
    nodes.judge_partitions()


@pytest.mark.spec("cluster", 105)
@pytest.mark.parametrize("assignment", ["E_LEADER_IS_MASTER_ALL", "E_LEAST_ASSIGNED"])
def test_a_rolling_restart_refuses_and_duplicates_no_message_at_another_member(assignment: str) -> None:
    nodes = Members(4, masterAssignment=assignment)
    keeper = nodes.replicas()[0]
    queue, consumer = nodes.client(keeper.name).open(STRONG, write=1), nodes.client(keeper.name).consume(STRONG)
    posted: list[bytes] = []
    got: list[bytes] = []

    def live(seconds: float) -> None:
        for _ in range(int(seconds / 0.2)):
            posted.append(b"message %d" % len(posted))
            queue.put(posted[-1])
            nodes.run(0.2)
            found = consumer.pushes()
            consumer.confirm(*found)
            got.extend(payloads(found))
    live(1.0)
    for node in nodes.machines:
        if node is keeper:
            continue
        begun = nodes.now
        node.stop(down=None)
        while node.up:
            live(0.2)
        assert nodes.now - begun < 5.0, "the stop must not wait without need"
        log = "\n".join(node.log())
        assert "partitions and leadership are handed over" in log
        live(2.0)
        assert nodes.primary() is not node
        node.boot()
        live(12.0)
        assert nodes.cluster(node.name).unavailable == ""
    live(2.0)
    nodes.run(1.0)
    got.extend(payloads(consumer.pushes()))  # messages in flight
    acks = queue.acks()
    assert len(acks) == len(posted) and not any(ack.status for ack in acks)
    assert got == posted, "each message once, in order"
    assert_connected(queue.client, consumer.client)
    nodes.run(1.0)
    nodes.judge_partitions()


@pytest.mark.spec("cluster", 49)
def test_a_member_is_available_when_it_is_healed_and_all_partitions_have_primaries() -> None:
    nodes = Members(5)
    statuses = {node.name: nodes.cluster(node.name).members.statuses for node in nodes.machines}  # type: ignore[union-attr]
    for own in statuses.values():
        assert own.own is NodeStatus.E_AVAILABLE and set(own.other_nodes.values()) == {NodeStatus.E_AVAILABLE}
    away, *others = nodes.machines
    away.crash(power=False, down=None)
    nodes.run(0.1)
    number = int(away.name[1:])
    assert all(statuses[node.name].other_nodes[number] is NodeStatus.E_UNAVAILABLE for node in others)
    for node in others:
        node.crash(power=False, down=None)
    away.boot()
    nodes.run(10.0)
    alone = nodes.cluster(away.name).members.statuses  # type: ignore[union-attr]
    assert alone.own is NodeStatus.E_STARTING
    others[0].boot()
    nodes.run_until_stable()
    assert alone.own is NodeStatus.E_AVAILABLE


PROXIES = {"p1": ["n1", "n2", "n3"]}


class Load:
    """A producer and a consumer of one queue at each place, with their messages and ACKs."""

    def __init__(self, nodes: Members, uri: str, places: list[str]) -> None:
        self.nodes, self.uri = nodes, uri
        self.queues = {place: nodes.client(place).open(uri, write=1) for place in places}
        self.consumers = {place: nodes.client(place).consume(uri, m=20) for place in places}
        self.posted: dict[bytes, bytes] = {}  # GUID -> payload
        self.got: dict[str, list[bytes]] = {place: [] for place in places}
        self.acked: set[bytes] = set()

    def kill_clients(self, place: str) -> None:
        """Kill the clients at a place whose node is killed."""
        for each in (self.queues.pop(place), self.consumers.pop(place)):
            each.client.kill()

    def live(self, seconds: float, count: int = 1) -> None:
        """Post, consume and confirm at every place for some seconds."""
        for _ in range(int(seconds / 0.2)):
            for place, queue in self.queues.items():
                for _ in range(count):
                    payload = b"%s %d" % (place.encode(), len(self.posted))
                    self.posted[queue.put(payload)] = payload
            self.nodes.run(0.2)
            for place, consumer in self.consumers.items():
                self.take(place, consumer)

    def take(self, place: str, consumer: Any) -> None:
        """Confirm and store the messages that a consumer has received."""
        found = consumer.pushes()
        consumer.confirm(*found)
        self.got[place] += payloads(found)

    def judge(self) -> None:
        """Check that all PUTs were acknowledged once, all messages delivered, and all sessions stayed open."""
        for _ in range(60):
            self.nodes.run(0.2)
            for place, consumer in self.consumers.items():
                self.take(place, consumer)
        for place, queue in self.queues.items():
            assert not queue.client.link.closed, place
            acks = queue.acks()
            assert not [ack for ack in acks if ack.status], place
            mine = [guid for guid, payload in self.posted.items() if payload.startswith(place.encode())]
            acked = [ack.guid for ack in acks]
            assert set(acked) == set(mine) and len(acked) == len(set(acked)), place
            self.acked |= set(acked)
        delivered = {payload for payloads in self.got.values() for payload in payloads}
        assert delivered >= {self.posted[guid] for guid in self.acked}
        for consumer in self.consumers.values():
            assert not consumer.client.link.closed
        self.nodes.run(1.0)
        for node in self.nodes.machines:
            if node.up:
                assert self.nodes.stored(node, self.uri) == [], node.name


@pytest.mark.spec("cluster", 88)
@pytest.mark.spec("cluster", 97)
@pytest.mark.parametrize("uri", [STRONG, EVENTUAL])
@pytest.mark.parametrize("victim", ["primary", "replica", "active"])
def test_clients_at_other_nodes_lose_no_message_when_a_primary_replica_or_upstream_crashes(victim: str, uri: str) -> None:
    nodes = Members(6, proxies=PROXIES)
    load = Load(nodes, uri, ["n1", "n2", "n3", "p1"])
    load.live(1.0)
    active = nodes.node("p1").broker.proxies["c3"].selector.active
    node = {"primary": nodes.primary(), "replica": nodes.replicas()[0], "active": nodes.node(f"n{active}")}[victim]
    load.kill_clients(node.name)
    node.crash(power=False, down=None)
    load.live(8.0)
    node.boot()
    load.live(8.0)
    load.judge()
    nodes.run_until_stable()
    nodes.judge_partitions()


def test_a_failover_keeps_the_order_of_each_producer() -> None:
    nodes = Members(7, proxies=PROXIES)
    former = nodes.primary()
    places = [each for each in ("n1", "n2", "n3", "p1") if each != former.name]
    load = Load(nodes, STRONG, places)
    for place in places[1:]:
        load.consumers.pop(place).close()
    load.live(1.0, count=5)
    former.crash(power=False, down=None)
    load.live(8.0, count=5)
    load.judge()
    got = load.got[places[0]]
    first = list(dict.fromkeys(got))
    for place in places:
        mine = [payload for payload in first if payload.startswith(place.encode())]
        assert mine == [payload for payload in load.posted.values() if payload.startswith(place.encode())]


FAULTS = ("kill", "kill", "power", "stop", "stop", "cut", "one way", "heal", "heal", "heal", "pause", "resume", "resume",
          "roll", "reset", "clients", "move", "move")


def disturb(nodes: Members, load: Load, random: Random) -> None:
    """Perform one random fault or action."""
    kind, (node, other) = random.choice(FAULTS), random.sample(nodes.machines, 2)
    if kind in ("kill", "power") and node.up:
        node.crash(power=kind == "power", down=random.random() * 8)
    elif kind == "stop" and node.up and not node.paused:
        node.stop(down=random.random() * 3)
    elif kind in ("cut", "one way"):
        nodes.network.cut(node.name, other.name, kind == "cut")
    elif kind == "heal":
        heal(nodes)
    elif kind == "pause" and node.up:
        node.pause()
    elif kind == "resume":
        resume(nodes)
    elif kind == "roll" and node.up and not node.paused:
        for hosted in nodes.replication(node).hosted:
            if not hosted.busy:
                hosted.partition.roll.finish_at_once(node.broker.loop.wall(node.local_now))
    elif kind == "reset" and node.up and node.broker.sessions.open:
        random.choice(list(node.broker.sessions.open)).transport.reset()  # type: ignore[attr-defined]
    elif kind == "move":
        nodes.move_any(random)
    elif kind == "clients" and load.queues:
        load.kill_clients(random.choice(list(load.queues)))


class ReconnectingLoad(Load):
    """A load whose clients reconnect when their node serves again."""

    def __init__(self, nodes: Members, uri: str, places: list[str]) -> None:
        super().__init__(nodes, uri, places)
        self.places, self.acked_payloads = places, set[bytes]()

    def live(self, seconds: float, count: int = 1) -> None:
        """Post, consume and confirm at all places whose node is running."""
        for place in self.places:
            node = self.nodes.node(place)
            if place in self.queues and (self.queues[place].client.link.closed or self.consumers[place].client.link.closed):
                self.kill_clients(place)
            if place not in self.queues and node.up and not node.paused:
                self.add_clients(place)
        for _ in range(int(seconds / 0.2) + 1):
            for place, queue in self.queues.items():
                if not queue.client.link.closed:
                    payload = b"%s %d" % (place.encode(), len(self.posted))
                    self.posted[queue.put(payload)] = payload
            self.nodes.run(0.2)
            for place, consumer in self.consumers.items():
                if not consumer.client.link.closed and not self.nodes.node(place).paused:
                    consumer.client.pump(0.001)
                    found = [event.push for event in list(consumer.client.inbox) if consumer.mine(event)]
                    if found and self.nodes.node(place).up:
                        self.take(place, consumer)

    def add_clients(self, place: str) -> None:
        """Connect new clients at a node, if it serves."""
        try:
            queue, consumer = self.nodes.client(place).open(self.uri, write=1), self.nodes.client(place).consume(self.uri)
        except AssertionError:
            return  # it does not serve now
        self.queues[place], self.consumers[place] = queue, consumer

    def take(self, place: str, consumer: Any) -> None:
        """Confirm received messages, unless the node crashes meanwhile."""
        try:
            super().take(place, consumer)
        except AssertionError:
            return

    def kill_clients(self, place: str) -> None:
        """Store the ACKs that the clients received, and kill them."""
        client = self.queues[place].client
        acks = [event.ack for event in client.inbox if event.kind == "ack"]
        assert not [ack for ack in acks if ack.status], place
        self.acked |= {ack.guid for ack in acks}
        gone = [guid for guid, payload in self.posted.items() if payload.startswith(place.encode() + b" ")]
        for guid in gone:  # without ACK: stored or not
            self.posted[guid] = b"lost " + self.posted[guid]
        self.acked_payloads |= {self.posted[guid].removeprefix(b"lost ") for guid in self.acked}
        self.acked.clear()
        super().kill_clients(place)


@pytest.mark.parametrize("seed", range(6))
def test_random_faults_of_members_lose_and_refuse_no_message_of_their_clients(seed: int) -> None:
    random = Random(f"{seed}/members")
    nodes = Members(seed, proxies=PROXIES, masterAssignment=random.choice(("E_LEADER_IS_MASTER_ALL", "E_LEAST_ASSIGNED")))
    load = ReconnectingLoad(nodes, STRONG, ["n1", "n2", "n3", "p1"])
    for _ in range(25):
        disturb(nodes, load, random)
        load.live(random.choice((0.2, 1.0, 4.0)) * random.random())
    heal(nodes)
    resume(nodes)
    nodes.run_until_stable()
    for place in load.places:
        if place in load.queues and load.queues[place].client.link.closed:
            load.kill_clients(place)
    load.live(5.0)
    assert set(load.queues) == set(load.places)
    load.judge()
    delivered = {payload for payloads in load.got.values() for payload in payloads}
    assert delivered >= load.acked_payloads
    for node in nodes.nodes:
        assert not [line for line in node.log() if "INTERNAL_ERROR" in line], node.name  # type: ignore[attr-defined]
    nodes.judge_partitions()


@pytest.mark.spec("cluster", 102)
@pytest.mark.spec("cluster", 103)
@pytest.mark.parametrize("number", [0, 1])
def test_unconfirmed_messages_are_not_delivered_again_to_their_consumer_after_a_failover(number: int) -> None:
    nodes = Members(10)
    former, places = nodes.primary(), nodes.replicas()
    consumer, queue = nodes.client(places[number].name).consume(STRONG), nodes.client(places[0].name).open(STRONG, write=1)
    guids = queue.post_all(b"1", b"2", b"3")
    held = consumer.take(3)
    former.crash(power=False, down=None)
    nodes.run(10.0)
    guids.append(queue.post(b"4"))
    got = consumer.pushes()
    assert [each.guid for each in got] == guids[3:] and not got[0].out_of_order
    consumer.confirm(*held, *got)
    nodes.run(1.0)
    assert all(nodes.stored(node) == [] for node in places)
    assert_connected(consumer.client, queue.client)


@pytest.mark.spec("cluster", 93)
def test_a_push_between_members_carries_the_payload_only_for_messages_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Members(8)
    node = nodes.replicas()[0]
    relays = nodes.cluster(node.name).relays
    assert relays is not None
    bodies: list[bytes] = []
    take = relays.incoming.on_pushes

    def spied(peer: Any, body: bytes, now: float) -> None:
        bodies.append(body)
        take(peer, body, now)
    monkeypatch.setattr(relays.incoming, "on_pushes", spied)
    for uri, carried in ((STRONG, False), (EVENTUAL, False), (IN_MEMORY, True), (BROADCAST, True)):
        bodies.clear()
        consumer = nodes.client(node.name).consume(uri)
        nodes.client(nodes.primary().name if uri in (STRONG, EVENTUAL) else node.name).open(uri, write=1).post(b"x" * 5000)
        assert payloads(consumer.take(1)) == [b"x" * 5000]
        assert len(bodies) == 1 and (len(bodies[0]) > 5000) == carried, uri


@pytest.mark.parametrize("late", [2.0, 15.0])
def test_a_push_to_a_member_waits_for_its_record_and_is_returned_if_it_does_not_arrive(
        late: float, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Members(9)
    node = nodes.replicas()[0]
    members = nodes.cluster(node.name).members
    assert members is not None
    consumer, queue = nodes.client(node.name).consume(STRONG), nodes.client(nodes.primary().name).open(STRONG, write=1)
    stored, first = members.find_stored, list[bytes]()

    def lacks(uri: str, guid: bytes) -> Any:
        first.append(guid)
        return None if late > 10.0 or guid == first[0] else stored(uri, guid)
    with monkeypatch.context() as patched:
        patched.setattr(members, "find_stored", lacks)
        guids = queue.post_all(b"1", b"2", b"3")
        nodes.run(late)
        assert not consumer.pushes()
    nodes.run(1.5)
    got = consumer.take(3)
    assert [each.guid for each in got] == guids and payloads(got) == [b"1", b"2", b"3"]
    assert {each.out_of_order for each in got} == {late > 10.0}
    consumer.confirm(*got)
    nodes.run(1.0)
    assert all(nodes.stored(each) == [] for each in nodes.machines)
