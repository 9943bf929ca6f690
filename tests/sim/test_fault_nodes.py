"""Fault table, rows 1-7, 14-17, 24, 30 and 31: crashes, pauses and restarts of members.

All judges of the campaigns (`campaign/`) check each scenario; the world is in `faults.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from bmqtwist.cluster.changes import AssignPartitions, AssignQueue
from bmqtwist.cluster.election_events import ElectionState
from sim.campaign.messages import EVENTUAL, STRONG
from sim.elected import heal
from sim.faults import FAILOVER_S, FaultWorld

ROUND_TRIP_S = 0.3  # longest round trip, with syncs
WAIT_MAX_S = FAILOVER_S + 8.0  # longest time to an ACK during a failover
NEW_QUEUE = "bmq://bmq.test.persistent.priority/new"


def test_row_01_crash_of_the_leader_with_connection_resets() -> None:
    world = FaultWorld(1, spread=True)
    leader, before = world.leader, world.queues(world.leader)
    uri = next(uri for uri in (STRONG, EVENTUAL) if world.primary(uri) is not leader)
    primary = world.primary(uri)
    leader.crash(power=False, down=None)
    crashed = world.now
    took = world.until(lambda: [each for each in world.believed() if world.cluster(each.name).leadership.active])
    assert took < 1.0 + 2 * ROUND_TRIP_S
    assert world.queues(world.leader) == before
    world.until(lambda: world.primaries(world.partition_of(uri)) == [primary], 2.0)
    world.live(1.0)
    assert sum(producer.answered_since(crashed) for producer in world.producers if producer.uri == uri)
    world.live(5.0)
    world.finish()
    assert not world.refusals()


def test_row_02_pause_of_the_leader() -> None:
    world = FaultWorld(2)
    former, run = world.leader, world.leader.run_number
    former.pause()
    world.until(lambda: [each for each in world.believed() if each is not former], FAILOVER_S)
    world.live(20.0)
    (term, _), new = world.cluster(former.name).metadata.log.committed, world.terms()
    former.resume()
    world.propose(former, AssignQueue(NEW_QUEUE, ("__default",), 1), lambda record: pytest.fail("stale leader"))
    world.live(5.0)
    assert term < world.cluster(former.name).metadata.log.committed[0] in new, "only the next leader commits"
    assert former.run_number == run and world.leader is not former
    assert world.cluster(former.name).leadership.standing.state is ElectionState.FOLLOWER
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("how", ["kill", "power"])
def test_row_03_crash_of_a_primary_that_is_not_the_leader(how: str) -> None:
    world = FaultWorld(3, spread=True)
    uri = next(uri for uri in (STRONG, EVENTUAL) if world.primary(uri) is not world.leader)
    primary, lease, run = world.primary(uri), world.lease(uri), world.leader.run_number
    primary.crash(power=how == "power", down=None)
    world.until(lambda: world.primaries(world.partition_of(uri)), FAILOVER_S)
    assert world.lease(uri) > lease and world.leader.run_number == run
    world.live(5.0)
    world.finish()
    assert not world.refusals() and world.longest_wait() < WAIT_MAX_S


@pytest.mark.parametrize("how", ["kill", "power"])
def test_row_04_crash_of_the_leader_that_is_primary_of_all_partitions(how: str) -> None:
    world = FaultWorld(4)
    former = world.leader
    assert world.primary(STRONG) is world.primary(EVENTUAL) is former
    former.crash(power=how == "power", down=None)
    world.until(lambda: world.primaries(0) and world.primaries(1), FAILOVER_S)
    world.live(5.0)
    world.finish()
    assert not world.refusals() and world.longest_wait() < WAIT_MAX_S


def test_row_05_crash_of_a_replica_with_clients() -> None:
    world = FaultWorld(5)
    replica = world.other_nodes(world.primary())[0]
    producer = world.producer(STRONG, [replica.name, *world.names])
    consumer = world.consumer(STRONG, [replica.name, *world.names], slow_s=None)
    world.until(lambda: consumer.unconfirmed)
    world.consumers[0].confirm_all()
    lease, held = world.lease(), set(consumer.unconfirmed)
    replica.crash(power=False, down=None)
    crashed = world.now
    world.live(10.0)
    assert world.lease() == lease and producer.place != replica.name
    for each in world.producers:
        if each.uri == STRONG:
            assert each.answered_since(crashed) > 5, "writes continue"
    for guid in held:
        assert world.deliveries(guid) >= 2, "unconfirmed messages of its consumer are redelivered"
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize("seed", range(3))
def test_row_06_crash_of_the_primary_between_append_and_ack(how: str, seed: int) -> None:
    world = FaultWorld(60 + seed, clients=False)
    producer = world.producer(STRONG, pause_s=1000.0)
    world.until(lambda: producer.queue is not None)
    primary = world.primary()
    before = world.hosted(primary, world.partition_of()).partition.position
    guids = producer.post(3)
    while world.hosted(primary, world.partition_of()).partition.position < before + len(guids):
        world.run(0.0005)
    assert len(producer.unanswered) == len(guids)
    primary.crash(power=how == "power", down=1.0)
    world.finish()
    assert sorted(producer.waits) == sorted(guids) and not producer.refused, "one ACK each"
    assert [world.deliveries(guid) for guid in guids] == [1, 1, 1], "one copy each"


@pytest.mark.parametrize("survives", [True, False])
def test_row_07_crash_of_the_primary_after_replication_to_a_minority(survives: bool) -> None:
    world = FaultWorld(7, 5, clients=False)
    producer = world.producer(STRONG, pause_s=1000.0)
    world.until(lambda: producer.queue is not None)
    primary = world.primary()
    holder, *rest = world.other_nodes(primary)
    world.separate([primary], rest)
    guids = producer.post(3)
    world.until(lambda: set(guids) <= set(world.stored(holder)))
    assert producer.unanswered == guids and not any(set(guids) & set(world.stored(node)) for node in rest)
    primary.crash(power=False, down=None)
    if not survives:
        holder.crash(power=False, down=None)
    world.until(lambda: world.primaries(world.partition_of()), 2 * FAILOVER_S)
    world.live(5.0)
    world.finish()
    assert sorted(producer.waits) == sorted(guids) and not producer.refused
    assert [world.deliveries(guid) for guid in guids] == [1, 1, 1]


def test_row_14_graceful_stop_and_restart_of_all_members() -> None:
    world = FaultWorld(14)
    for producer in world.producers:
        producer.paused = True
    world.until(lambda: not any(producer.unanswered for producer in world.producers))
    world.live(1.0)
    uris, done = world.queues(world.leader), list(world.producers[0].waits)[-1]
    for node in world.machines:
        node.stop(down=None)
    world.until(lambda: not any(node.up for node in world.machines), 60.0)
    for node in world.machines:
        node.boot()
    world.until(lambda: all(world.is_ready(node) for node in world.machines), 60.0)
    assert world.queues(world.leader) == uris
    client = world.client(world.primary().name)
    queue = client.open(STRONG, write=1)
    queue.put(b"repeated", guid=done)
    assert queue.next_ack(done).status == 0
    world.live(1.0)
    assert all(world.stored(node) == [] for node in world.machines), "its GUID is deduplicated though it was consumed"
    for producer in world.producers:
        producer.post(3)
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("seed", range(3))
def test_row_15_power_loss_of_all_members(seed: int) -> None:
    world = FaultWorld(150 + seed)
    for _ in range(2):
        for producer in world.producers:
            producer.post(5)
        world.run(0.01 + 0.02 * seed)
        for node in world.machines:
            node.crash(power=True, down=0.5)
        world.live(15.0)
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("spread", [False, True])
def test_row_16_rolling_restart(spread: bool) -> None:
    world = FaultWorld(16, spread=spread)
    for node in world.machines:
        node.stop(down=None)
        world.until(lambda node=node: not node.up, 40.0)  # type: ignore[misc]
        world.live(1.0)
        node.boot()
        world.until(lambda: all(world.is_ready(each) for each in world.machines), 60.0)
        world.live(1.0)
    world.finish()
    assert not world.refusals() and world.longest_wait() < 3.0
    assert all(world.deliveries(guid) == 1 for producer in world.producers for guid in producer.posted)


def test_row_17_restart_and_appointment_of_a_stale_member() -> None:
    world = FaultWorld(18, 3, journal_bytes=1 << 16)
    stale = world.other_nodes(world.leader)[0]
    stale.crash(power=False, down=None)
    world.live(4.0)
    world.propose(world.leader, AssignQueue(NEW_QUEUE, ("__default",), 1))
    world.live(1.0)
    other = world.other_nodes(stale)[0]
    for node in world.other_nodes(stale):
        node.crash(power=False, down=None)
    world.network.slow(other.name, stale.name, 0.05)
    stale.boot()
    world.run(3.0)
    other.boot()
    world.until(world.believed)
    assert world.believed() == [other], "a member without a committed record is not elected"
    known: dict[str, Any] = {uri: key for uri, key in world.queues(other).items() if uri == NEW_QUEUE}
    assert known
    index = world.partition_of()
    tip = world.hosted(other, index).summary.last
    assert world.hosted(stale, index).summary.last < tip
    world.propose(other, AssignPartitions([int(stale.name[1:])], []))
    world.until(lambda: world.primaries(0) == world.primaries(1) == [stale])
    assert world.hosted(stale, index).summary.contains(tip), "it must fetch its missing records before it is active"
    world.live(3.0)
    world.finish()
    assert not world.refusals()


def test_row_24_pause_of_the_primary_for_30_s() -> None:
    world = FaultWorld(25)  # with which no message is in transit to the reader when the primary pauses
    former = world.primary()
    waiting = world.producer(EVENTUAL, [former.name], pause_s=1000.0)
    reader = world.consumer(STRONG, [former.name])
    world.until(lambda: waiting.queue is not None and reader.queue is not None)
    run, lease, had = former.run_number, world.lease(), len(reader.got)
    former.pause()
    late = waiting.post(2)
    world.live(30.0)
    assert [each for each in world.primaries(world.partition_of()) if each is not former]
    former.resume()
    world.run(0.001)
    assert former not in world.primaries(world.partition_of()) and len(reader.got) == had and not waiting.waits
    world.live(5.0)
    assert former.run_number == run and world.lease() > lease
    world.finish()
    assert set(waiting.waits) == set(late) and not world.refusals()


@pytest.mark.parametrize("seed", range(2))
def test_row_30_crash_of_the_leader_before_followers_learn_of_a_commit(seed: int) -> None:
    world = FaultWorld(300 + seed)
    leader, outcomes = world.leader, list[Any]()
    world.propose(leader, AssignQueue(NEW_QUEUE, ("__default",), 7), outcomes.append)
    while not outcomes:
        world.run(0.0002)
    assert not any(NEW_QUEUE in world.queues(node) for node in world.other_nodes(leader))
    leader.crash(power=True, down=None)
    world.until(lambda: len(world.believed()) == 1 and NEW_QUEUE in world.queues(world.believed()[0]))
    leader.boot()
    world.finish()
    assert {world.queues(node)[NEW_QUEUE] for node in world.machines} == {outcomes[0].key}


@pytest.mark.parametrize("seed", range(3))
def test_row_31_crash_of_the_leader_before_a_majority_has_its_record(seed: int) -> None:
    world = FaultWorld(310 + seed)
    leader = world.leader
    asked = world.other_nodes(leader)[seed % 2]
    before = world.cluster(leader.name).metadata.log.log.last
    client = world.producer(EVENTUAL.replace("/q", "/other"), [asked.name, *world.names], pause_s=1000.0)
    while world.cluster(leader.name).metadata.log.log.last == before:
        world.run(0.0002)
    world.run(0.0005 * seed)
    leader.crash(power=True, down=None)
    world.until(lambda: client.queue is not None, 2 * FAILOVER_S + 10.0)
    heal(world)
    world.finish()
    assert len({world.queues(node)[client.uri] for node in world.machines}) == 1
