"""Fault table, rows 8-13, 28, 29, 32 and 33: cuts, splits, resets and duplicated events between members.

All judges of the campaigns (`campaign/`) check each scenario; the world is in `faults.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from bmqtwist.link.peer import PeerSession
from bmqtwist.testing.cluster import PORT
from bmqtwist.testing.config import CLUSTER, member_configuration
from bmqtwist.testing.network import ConnectionEnd
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import NodeStatus
from bmqtwist.wire.fast import EventType
from sim.campaign.messages import EVENTUAL, STRONG
from sim.campaign.world import EVERYTHING
from sim.cluster import PARTITION
from sim.elected import ELECTOR, INACTIVITY_S, heal
from sim.faults import FAILOVER_S, FaultWorld

LEASE_S = 0.75 * INACTIVITY_S  # without a majority, after which a primary is no longer active
APP = {"heartbeats": {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 3},
       "tcp": {"heartbeatIntervalMs": 1000}}
HEARTBEAT_LIMIT_S = 5.0  # longest time until a link cut one way is down at both ends: 3 heartbeats of 1 s


def is_up(world: FaultWorld, one: SimulatedNode, two: SimulatedNode) -> bool:
    """Return whether a member is connected with another one, from its view."""
    return world.cluster(one.name).leadership.is_up(int(two.name[1:]))


@pytest.mark.parametrize("both", [True, False])
def test_row_08_primary_isolated_from_the_majority(both: bool) -> None:
    world = FaultWorld(8)
    former = world.primary()
    producer = world.producer(EVENTUAL, [former.name])
    world.until(lambda: len(producer.waits) > 3)
    begun = world.now
    for node in world.other_nodes(former):
        world.network.cut(node.name, former.name, both)
    world.until(lambda: former not in world.primaries(world.partition_of(EVENTUAL)), LEASE_S + 1.0)
    world.live(0.1)
    ended, answered = world.now, len(producer.waits)
    world.live(15.0)
    assert len(producer.waits) == answered and producer.unanswered, "it acknowledges no PUT"
    alone = {guid for each in world.producers for guid, wait in each.waits.items()
             if begun < each.posted[guid] + wait <= ended}
    assert ended - begun < LEASE_S + 1.2
    assert [each for each in world.primaries(world.partition_of(EVENTUAL)) if each is not former]
    world.finish()
    assert not world.refusals()
    gone = [guid for producer in world.producers for guid in producer.waits if not world.deliveries(guid)]
    assert set(gone) <= alone, "lost messages of the eventual queue were acknowledged before the lease ended"


def test_row_09_network_split_with_the_leader_in_the_minority() -> None:
    world = FaultWorld(9, 5)
    former = world.leader
    minority = [former, world.other_nodes(former)[0]]
    majority, runs = world.other_nodes(*minority), {node.name: node.run_number for node in world.machines}
    posting = world.producer(STRONG, [former.name])
    world.until(lambda: len(posting.waits) > 2)
    world.separate(minority, majority)
    world.until(lambda: any(node in majority for node in world.believed()), FAILOVER_S)
    world.until(lambda: former not in world.believed())
    answered = len(posting.waits)
    world.live(20.0)
    assert len(posting.waits) == answered and posting.unanswered, "the minority serves no writes"
    assert not any(node in minority for node in (*world.primaries(0), *world.primaries(1)))
    world.finish()
    assert {node.name: node.run_number for node in world.machines} == runs and not world.refusals()


def test_row_10_network_split_into_halves() -> None:
    world = FaultWorld(10, 4)
    one = [world.leader, world.other_nodes(world.leader)[0]]
    world.separate(one, world.other_nodes(*one))
    world.until(lambda: not world.believed() and not world.primaries(0) and not world.primaries(1))
    answered, terms = sum(len(producer.waits) for producer in world.producers), world.terms()
    world.live(30.0)
    assert not world.believed() and world.terms() == terms
    assert sum(len(producer.waits) for producer in world.producers) == answered
    heal(world)
    world.until(lambda: all(world.is_ready(node) for node in world.machines), 30.0)
    world.finish()
    assert not world.refusals()


def test_row_11_link_between_leader_and_a_follower_cut() -> None:
    world = FaultWorld(12)
    world.consumer(STRONG, ["p2"])
    world.live(2.0)
    leader, term = world.leader, world.terms()
    proxy = next(iter(world.node("p2").broker.proxies.values()))
    assert len(term) == 1 and proxy.selector.active not in (None, int(leader.name[1:]))
    alone = world.node(f"n{proxy.selector.active}")
    world.network.cut(leader.name, alone.name)
    world.live(30.0)
    assert world.leader_of(world.other_nodes(alone)) is leader and world.terms() == term
    assert alone.broker.sessions.downstreams[CLUSTER].status is not NodeStatus.E_AVAILABLE, "so that proxies switch away"
    assert proxy.selector.active != int(alone.name[1:])
    heal(world)
    world.live(15.0)
    world.finish()  # the former upstream has no handle of the proxy
    assert not world.refusals() and world.terms() == term
    world.until(lambda: alone.broker.sessions.downstreams[CLUSTER].status is NodeStatus.E_AVAILABLE)


@pytest.mark.parametrize("to_leader", [True, False])
def test_row_12_link_cut_in_one_direction(to_leader: bool) -> None:
    world = FaultWorld(12)
    leader = world.leader
    other = world.other_nodes(leader)[0]
    source, target = (other, leader) if to_leader else (leader, other)
    world.network.cut(source.name, target.name, both=False)
    world.until(lambda: not is_up(world, source, target) and not is_up(world, target, source), HEARTBEAT_LIMIT_S)
    world.live(10.0)
    world.finish()
    assert not world.refusals()


def test_row_13_link_between_leader_and_a_primary_cut() -> None:
    world = FaultWorld(13, 5, spread=True)
    leader = world.leader
    uri = next(uri for uri in (STRONG, EVENTUAL) if world.primary(uri) is not leader)
    former, lease = world.primary(uri), world.lease(uri)
    run = former.run_number
    posting = world.producer(uri, [former.name])
    world.until(lambda: len(posting.waits) > 2)
    world.network.cut(leader.name, former.name)
    world.until(lambda: [each for each in world.primaries(world.partition_of(uri)) if each is not former], 2 * FAILOVER_S)
    world.live(1.0)
    assert world.lease(uri) > lease and former.run_number == run and former not in world.primaries(world.partition_of(uri))
    world.live(10.0)
    world.finish()
    assert not world.refusals()


def test_row_28_connections_between_members_reset_under_load() -> None:
    world = FaultWorld(28)
    runs = {node.name: node.run_number for node in world.machines}
    for _ in range(20):
        for producer in world.producers:
            producer.post(5)
        world.run(world.random.random() * 0.3)
        ends = [session.transport for node in world.machines for session in node.broker.sessions.open
                if isinstance(session.transport, ConnectionEnd) and session.transport.other.place in world.names]
        if ends:
            world.random.choice(ends).reset()
        world.run(world.random.random())
    world.finish()
    assert {node.name: node.run_number for node in world.machines} == runs and not world.refusals()


class DuplicatedEvents:
    """Delivers some events of other members to a member twice, and again up to 1 s later."""

    KINDS = (EventType.STORAGE, EventType.PARTITION_SYNC, EventType.REPLICATION_RECEIPT, EventType.CLUSTER_STATE,
             EventType.ELECTOR)

    def __init__(self, world: FaultWorld, node: SimulatedNode) -> None:
        self._world, self._node = world, node
        self.count = 0
        peers = node.broker.sessions.peers[CLUSTER]
        self._received = peers.on_event
        peers.on_event = self._receive  # type: ignore[method-assign]

    def _receive(self, peer: PeerSession, kind: EventType, *what: Any) -> None:
        self._received(peer, kind, *what)
        if kind in self.KINDS and self._world.random.random() < 0.3:
            self.count += 1
            self._received(peer, kind, *what)
            self._node.at(self._world.now + self._world.random.random(), lambda: self._receive_later(peer, kind, *what))

    def _receive_later(self, peer: PeerSession, kind: EventType, *what: Any) -> None:
        if peer.session in self._node.broker.sessions.open:
            self._received(peer, kind, *what)
            self._node.request_turn()


def test_row_29_events_between_members_duplicated_and_reordered() -> None:
    world = FaultWorld(29)
    runs = {node.name: node.run_number for node in world.machines}
    duplicated = [DuplicatedEvents(world, node) for node in world.machines]
    for _ in range(30):
        for producer in world.producers:
            producer.post(3)
        world.live(1.0)
    assert min(each.count for each in duplicated) > 5
    leader = world.leader
    leader.pause()
    world.live(FAILOVER_S)
    leader.resume()
    world.live(5.0)
    world.finish()
    assert {node.name: node.run_number for node in world.machines} == runs and not world.refusals()


def test_row_32_links_flap_every_few_seconds() -> None:
    world = FaultWorld(32)
    begun, terms = world.now, world.terms()

    def handles() -> dict[str, int]:
        return {node.name: sum(len(queue.handles) for queue in world.cluster(node.name).queues.values())
                for node in world.machines}
    before, timers = handles(), {node.name: world.count_timers(node) for node in world.machines}
    for number in range(15):
        one, two = world.random.sample(world.machines, 2)
        world.network.cut(one.name, two.name, both=number % 3 > 0)
        world.live(0.5 + world.random.random() * 3)
        heal(world)
        world.live(world.random.random() * 2)
    assert max(world.terms()) - min(terms) <= (world.now - begun) / 1.0, "at most one term per random wait"
    world.until(lambda: all(world.is_ready(node) for node in world.machines), 60.0)
    world.live(10.0)
    assert sum(handles().values()) <= sum(before.values()) + 2
    assert all(world.count_timers(node) <= timers[node.name] + 10 for node in world.machines)
    world.finish()
    assert not world.refusals()


def test_row_33_second_node_with_the_same_id() -> None:
    world = FaultWorld(33)
    node, twin = world.node("n2"), SimulatedNode(
        world.network, "twin", "twin:30114", world.node("n1")._configure, world.node("n1")._domains)
    world.proxies.append(twin)  # not a member
    runs = {each.name: each.run_number for each in world.machines}
    twin.boot()
    world.live(40.0)
    alarms = [line for line in node.log() if "duplicate-node-id" in line and "node [n1, 1]" in line]
    assert len(alarms) == 1 and "ALARM" in alarms[0] and is_up(world, node, world.node("n1"))
    twin.crash(power=False, down=None)
    world.nodes.remove(twin)
    world.proxies.remove(twin)
    assert {each.name: each.run_number for each in world.machines} == runs
    world.finish()
    assert not world.refusals()


def test_row_33_member_with_another_configuration() -> None:
    world = FaultWorld(330)
    away = world.other_nodes(world.leader)[0]
    away.crash(power=False, down=None)
    right = away._configure
    away._configure = partial(member_configuration, int(away.name[1:]), 3, PORT, app=APP, cluster={
        "elector": ELECTOR, "partition": {**PARTITION, "numPartitions": 3}})
    world.lose_storage(away, EVERYTHING)  # with its storage it would not start
    away.boot()
    world.live(20.0)
    for node in world.other_nodes(away):
        assert not is_up(world, node, away) and not is_up(world, away, node)
    alarms = [line for node in world.machines for line in node.log() if "node-configuration-differs" in line]
    assert any("ALARM" in line for line in alarms)
    away.crash(power=False, down=None)
    away._configure = right
    world.finish()
    assert not world.refusals()
