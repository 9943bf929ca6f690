"""Early acknowledgements: clients at a replica get ACKs and PUSHes when the replica's own copy completes the majority.

Tests `bmqtwist/member/member_relays.py`.
"""

from __future__ import annotations

import pytest
from kit import codec

from bmqtwist.broker.output import FLUSH_DELAY_S
from bmqtwist.errors import PeerError
from bmqtwist.link.peer import PeerSession
from bmqtwist.member import dispatch
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.fast import ACK_EARLY, ACK_MESSAGE, ITEMS_HEADER, RECEIPT, EventType
from sim.replicated import FANOUT, STRONG, ReplicatingCluster

WAY_BACK_S = 0.4  # delay from a replica to the primary
AMPLE = "bmq://bmq.test.persistent.priority.large/q"  # with quotas beyond any use in tests


def start(seed: int, count: int = 3, uri: str = STRONG) -> tuple[ReplicatingCluster, SimulatedNode, SimulatedNode]:
    """Return a cluster with one message, a replica for clients, and the primary."""
    nodes = ReplicatingCluster(seed, count)
    nodes.run_until_stable()
    nodes.post(1, uri)
    primary = nodes.primary(nodes.record(uri).partition_id)
    node = next(each for each in nodes.machines if each is not primary)
    return nodes, node, primary


def delay_replies(nodes: ReplicatingCluster, primary: SimulatedNode) -> None:
    for each in nodes.machines:
        if each is not primary:
            nodes.network.slow(each.name, primary.name, WAY_BACK_S)


@pytest.mark.parametrize("count, ways", [(2, 1), (3, 1), (5, 2)])
def test_an_ack_at_a_replica_takes_one_way_where_two_nodes_are_a_majority_else_two(count: int, ways: int) -> None:
    nodes, node, primary = start(7, count)
    reader, queue = nodes.client(node.name).consume(STRONG), nodes.client(node.name).open(STRONG, write=1)
    reader.confirm(*reader.take(1))
    nodes.run(2.0)
    delay_replies(nodes, primary)
    for number in range(3):
        begun, guid = nodes.now, queue.put(b"%d" % number)
        assert queue.next_ack(guid).status == 0
        acknowledged = nodes.now - begun
        (push,) = reader.take(1)
        delivered = nodes.now - begun
        assert push.payload == b"%d" % number
        for took in acknowledged, delivered:
            assert ways * WAY_BACK_S <= took < (ways + 0.5) * WAY_BACK_S, (acknowledged, delivered)
        reader.confirm(push)
        nodes.run(2.0)
    assert not reader.pushes() and not queue.acks()
    assert {len(nodes.stored(each)) for each in nodes.machines} == {0}


def test_a_consumer_at_the_replica_gets_a_message_before_the_consumer_of_another_app_at_the_primary() -> None:
    nodes, node, primary = start(2, uri=FANOUT)
    here, there = nodes.client(node.name).consume(FANOUT, app="foo"), nodes.client(primary.name).consume(FANOUT, app="bar")
    queue = nodes.client(primary.name).open(FANOUT, write=1)
    for each in here, there:
        each.confirm(*each.take(1))
    nodes.run(2.0)
    delay_replies(nodes, primary)
    begun, guid = nodes.now, queue.put(b"x")
    here.take(1)
    assert nodes.now - begun < WAY_BACK_S / 2
    there.take(1)
    assert WAY_BACK_S <= nodes.now - begun < 1.5 * WAY_BACK_S
    assert queue.next_ack(guid).status == 0


@pytest.mark.parametrize("seed", range(3, 6))  # with which the primary's own sync ends before the receipts of the replicas
def test_a_replica_acknowledges_early_only_messages_that_the_next_primary_will_have(seed: int) -> None:
    nodes, node, primary = start(seed)
    reader, queue = nodes.client(node.name).consume(STRONG), nodes.client(node.name).open(STRONG, write=1)
    reader.confirm(*reader.take(1))
    nodes.run(2.0)
    node.disk_delay_s = 0.3  # of a sync
    for each in nodes.machines:
        nodes.network.slow(each.name, primary.name, 0.0 if each is node else 5.0)
    begun, guid = nodes.now, queue.put(b"x")
    assert queue.next_ack(guid).status == 0
    (push,) = reader.take(1)
    assert 0.3 <= nodes.now - begun < 0.6
    primary.crash(power=True, down=None)
    nodes.run_until_stable()
    assert nodes.stored(nodes.primary(nodes.record(STRONG).partition_id)) == [b"x"]
    reader.confirm(push)
    nodes.run(2.0)
    assert not reader.pushes()


def test_malformed_early_acks_are_errors_and_the_number_of_held_ones_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, node, primary = start(1)
    reader, queue = nodes.client(node.name).consume(STRONG), nodes.client(node.name).open(STRONG, write=1)
    members, index = nodes.cluster(node.name).members, nodes.record(STRONG).partition_id
    assert members is not None
    number, lease = next(each for each in nodes.primaries().values() if nodes.node(f"n{each.node_id}") is primary)
    peer = members._links.session(number)
    assert peer is not None
    items = ITEMS_HEADER + ACK_MESSAGE.pack(0, bytes(16), 99)
    far = RECEIPT.pack(index, 1 << 40, lease)
    for body in b"", far[:-1], far, far + ITEMS_HEADER:
        with pytest.raises(PeerError):
            members.on_acks(peer, ACK_EARLY, body, nodes.now)
    members.on_acks(peer, ACK_EARLY, RECEIPT.pack(99, 1, lease) + items, nodes.now)
    monkeypatch.setattr("bmqtwist.member.member_relays.HELD_ACK_EVENTS_MAX", 5)
    for _ in range(6):
        members.on_acks(peer, ACK_EARLY, RECEIPT.pack(index, 1 << 40, lease - 1) + items, nodes.now)
    assert not any("too many ACKs" in line for line in node.log()), "ACKs of another lease are not held"
    for _ in range(6):
        members.on_acks(peer, ACK_EARLY, far + items, nodes.now)
    assert any("too many ACKs in partition" in line for line in node.log())
    nodes.run_until_stable()
    guid = queue.put(b"x")
    assert queue.next_ack(guid).status == 0 and len(reader.take(2)) == 2


def test_a_replica_with_a_slow_disk_acknowledges_as_soon_as_the_other_nodes_are_a_majority() -> None:
    nodes, node, _ = start(1)
    reader, queue = nodes.client(node.name).consume(STRONG), nodes.client(node.name).open(STRONG, write=1)
    reader.confirm(*reader.take(1))
    nodes.run(2.0)
    node.disk_delay_s = 2.0  # of a sync
    begun, guid = nodes.now, queue.put(b"x")
    assert queue.next_ack(guid).status == 0
    acknowledged = nodes.now - begun
    reader.take(1)
    assert acknowledged < 0.2 and nodes.now - begun < 0.2, (acknowledged, nodes.now - begun)


def test_with_replication_factor_three_an_ack_waits_for_the_third_node() -> None:
    nodes, node, primary = start(3)
    queue = nodes.client(node.name).open(STRONG, write=1)
    delay_replies(nodes, primary)
    for factor, ways in (3, 2), (2, 1):
        nodes.replication(primary).set_replication_factor(factor, nodes.now)
        begun, guid = nodes.now, queue.put(b"x")
        assert queue.next_ack(guid).status == 0
        assert ways * WAY_BACK_S <= nodes.now - begun < (ways + 0.5) * WAY_BACK_S
        nodes.run(2.0)


@pytest.mark.parametrize("most", [1000, 2])
def test_an_early_ack_event_names_its_newest_record_and_has_a_limited_size(
        most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, node, primary = start(5)
    queue = nodes.client(node.name).open(STRONG, write=1)
    monkeypatch.setattr("bmqtwist.link.peer.ACKS_MAX", most)
    members, index = nodes.cluster(node.name).members, nodes.record(STRONG).partition_id
    assert members is not None
    bodies: list[bytes] = []
    on_ack = dispatch.EVENTS[EventType.ACK]

    def spied(to: dispatch.MemberDispatch, peer: PeerSession, kind: EventType, specific: int, body: bytes) -> None:
        if specific == ACK_EARLY and to.relays is members:
            bodies.append(body)
        on_ack(to, peer, kind, specific, body)
    monkeypatch.setitem(dispatch.EVENTS, EventType.ACK, spied)
    guids = [queue.client.new_guid() for _ in range(5)]
    queue.client.send(codec.put_frame([codec.put_message(queue.q_id, guid, b"x", ack=True) for guid in guids]))
    assert {queue.next_ack(guid).status for guid in guids} == {0}
    messages = nodes.partition(primary, index).state.queues[nodes.record(STRONG).key].messages
    names = [[guid for _, guid, _ in ACK_MESSAGE.iter_unpack(body[RECEIPT.size + len(ITEMS_HEADER):])] for body in bodies]
    newest = [max(messages[guid].sequence for guid in each) for each in names]
    assert [RECEIPT.unpack_from(body)[1] for body in bodies] == newest
    assert [guid for each in names for guid in each] == guids and max(map(len, names)) == min(most, 5)


@pytest.mark.parametrize("window, waits", [(10, False), (1000, True)])
def test_confirms_are_delayed_unless_the_window_of_the_consumer_is_small(window: int, waits: bool) -> None:
    nodes, node, primary = start(2, uri=AMPLE)
    reader = nodes.client(node.name).consume(AMPLE, m=window)
    nodes.post(1, AMPLE)
    first, second = reader.take(2)
    nodes.run(1.0)
    queue = nodes.cluster(primary.name).queues[AMPLE]
    taken: list[float] = []
    for push in first, second:
        begun, left = nodes.now, len(queue.messages)
        reader.confirm(push)
        nodes.until(lambda left=left: len(queue.messages) < left, step=0.0002)
        taken.append(nodes.now - begun)
        nodes.run(1.0)
    assert all((each >= FLUSH_DELAY_S) is waits for each in taken), taken


def test_a_commit_visits_only_queues_with_uncommitted_messages() -> None:
    """A commit must not take time for each of, say, 10,000 idle queues."""
    nodes, node, primary = start(3)
    index = nodes.record(STRONG).partition_id
    reader, queue = nodes.client(node.name).consume(STRONG), nodes.client(primary.name).open(STRONG, write=1)
    reader.confirm(*reader.take(1))
    nodes.run(2.0)
    partition, relays = nodes.partition(primary, index), nodes.cluster(node.name).relays
    assert not partition.copies.listeners and relays is not None and not relays.incoming._with_waiting
    delay_replies(nodes, primary)
    nodes.network.slow(primary.name, node.name, WAY_BACK_S)
    guid = queue.put(b"x")
    nodes.until(lambda: bool(partition.copies.listeners), 5.0)
    assert list(partition.copies.listeners) == [nodes.cluster(primary.name).queues[STRONG].uncommitted]
    assert queue.next_ack(guid).status == 0 and not partition.copies.listeners
    reader.take(1)
    nodes.run(1.0)
    assert not partition.copies.listeners and not relays.incoming._with_waiting
