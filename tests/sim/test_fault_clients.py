"""Fault table, rows 23, 25-27 and 34-37: clocks, proxies, stops, rollovers, and clients that change their broker.

All judges of the campaigns (`campaign/`) check each scenario; the world is in `faults.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bmqtwist.cluster import replication_targets
from bmqtwist.sdk.results import EventKind, Result
from bmqtwist.storage import replica
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.network import ConnectionEnd
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.messages import EVENTUAL, STRONG
from sim.faults import FAILOVER_S, ROWS, FaultWorld

DEDUPLICATION_S = 300.0
SHUTDOWN_S = 4.0  # shutdownTimeoutMs of the nodes


@pytest.mark.spec("cluster", 115)
def test_each_row_of_the_fault_table_has_a_scenario() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert {int(number) for number in re.findall(r"^def test_row_(\d+)_", sources, re.MULTILINE)} == set(range(1, ROWS + 1))


def run_with_clock_jumps(jump: Callable[[FaultWorld, SimulatedNode], None]) -> tuple[object, ...]:
    """Run a scenario with `jump` of the clocks; return all ACKs and deliveries with their times, log ends and counts."""
    world = FaultWorld(23)
    for node in world.machines:
        jump(world, node)
    world.live(3.0)
    sent = next(iter(world.producers[0].waits))
    queue = world.client(world.primary().name).open(STRONG, write=1)
    queue.put(b"repeated", guid=sent)
    assert queue.next_ack(sent).status == 0
    former = world.primary()
    former.crash(power=False, down=2.0)
    world.live(15.0)
    for node in world.machines:
        jump(world, node)
    world.live(3.0)
    world.finish()
    assert not world.refusals()
    return (world.digest, [(each.posted, each.waits) for each in world.producers], [each.got for each in world.consumers],
            {node.name: node.log()[-1] for node in world.machines}, world.counts)


@pytest.mark.spec("cluster", 119)
@pytest.mark.parametrize("hours", [-1, 1])
def test_row_23_wall_clocks_of_members_jump_by_an_hour(hours: int) -> None:
    def jump(world: FaultWorld, node: SimulatedNode) -> None:
        node.jump(0.0, wall=3600.0 * hours * (-1) ** int(node.name[1:]))
    plain, jumped = run_with_clock_jumps(lambda world, node: None), run_with_clock_jumps(jump)
    assert plain[1:3] == jumped[1:3] and plain[4] == jumped[4]


def test_row_25_crash_of_a_proxy() -> None:
    world = FaultWorld(25)
    producer, consumer = world.producer(STRONG, ["p2", "n3"]), world.consumer(STRONG, ["p2", "n2"], slow_s=None)
    world.until(lambda: len(producer.waits) > 3 and consumer.unconfirmed)
    world.consumers[0].confirm_all()
    held = set(consumer.unconfirmed)
    producer.post(5)
    world.run(0.002)
    assert producer.unanswered
    world.node("p2").crash(power=False, down=None)
    world.live(8.0)
    assert producer.place == "n3" and consumer.place == "n2"
    assert all(world.deliveries(guid) >= 2 for guid in held), "unconfirmed messages are redelivered"
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("how", ["kill", "power", "stop"])
def test_row_26_crash_of_the_upstream_of_a_proxy(how: str) -> None:
    world = FaultWorld(26)
    producer, consumer = world.producer(STRONG, ["p2"]), world.consumer(STRONG, ["p2"])
    world.until(lambda: len(producer.waits) > 3 and len(consumer.got) > 3)
    proxy = world.node("p2").broker.proxies[CLUSTER]
    assert proxy.selector.active is not None
    generation, active = proxy.selector.generation, world.node(f"n{proxy.selector.active}")
    if how == "stop":
        active.stop(down=None)
    else:
        active.crash(power=how == "power", down=None)
    world.until(lambda: not active.up, 40.0)
    world.live(FAILOVER_S)
    assert proxy.selector.active != int(active.name[1:]) and proxy.selector.generation == generation + 1
    moment = world.now
    world.live(3.0)
    assert producer.answered_since(moment) > 2
    world.finish()
    for session in (producer, consumer):
        assert session.events == [EventKind.CONNECTED], "no event reaches the application"
    assert not world.refusals()


def test_row_27_all_members_are_down_for_2_minutes() -> None:
    world = FaultWorld(27)
    for node in world.machines:
        node.crash(power=True, down=120.0)
    world.live(120.0)
    world.finish()
    assert not world.refusals()


def test_row_27_all_members_are_down_for_longer_than_the_deduplication_time() -> None:
    world = FaultWorld(270)
    for node in world.machines:
        node.crash(power=True, down=None)
    gone_at = world.now
    world.live(20.0)
    for producer in world.producers:
        producer.paused = True
    world.live(DEDUPLICATION_S + 40.0)
    for producer in world.producers:
        assert producer.refused and all(result is Result.UNKNOWN for _, result in producer.refused)
        assert not producer.unanswered, "pending PUTs have a time limit"
        late = [guid for guid, _ in producer.refused if producer.posted[guid] + producer.waits[guid] < gone_at
                + DEDUPLICATION_S - 10.0]
        assert not late
    world.finish()


def test_row_34_graceful_stop_of_a_node_whose_consumer_does_not_confirm() -> None:
    world = FaultWorld(34)
    primary = world.primary()
    consumer = world.consumer(STRONG, [primary.name, *world.names], slow_s=None)
    world.until(lambda: consumer.unconfirmed)
    world.consumers[0].confirm_all()
    held, begun = set(consumer.unconfirmed), world.now
    primary.stop(down=None)
    world.until(lambda: not primary.up, 35.0)
    assert SHUTDOWN_S <= world.now - begun < SHUTDOWN_S + 2 * 5.0 + 1.0
    world.live(FAILOVER_S)
    assert all(world.deliveries(guid) >= 2 for guid in held)
    world.finish()
    assert not world.refusals()


def test_row_35_crash_of_the_source_of_a_replica_that_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "RUN_RECORDS_MAX", 8)
    monkeypatch.setattr(replica, "MESSAGE_RECORDS_MAX", 8)
    monkeypatch.setattr(replication_targets, "FLIGHT_BYTES_MAX", 1 << 12)
    world = FaultWorld(35)
    source = world.primary()
    behind = world.other_nodes(source)[0]
    for consumer in world.consumers:
        consumer.slow_s = None
    behind.crash(power=False, down=None)
    for _ in range(10):
        for producer in world.producers:
            producer.post(40)
        world.live(0.5)
    index = world.partition_of()
    target = world.hosted(source, index).summary.last
    for node in world.other_nodes(behind):
        world.network.slow(node.name, behind.name, 0.2)
    behind.boot()
    begun = world.hosted(behind, index).summary.last
    until = world.now + 10.0
    while not begun < world.hosted(behind, index).summary.last < target:
        assert world.now < until
        world.run(0.05)
    source.crash(power=False, down=None)
    reached, truncations = world.hosted(behind, index).summary.last, world.counts["truncations"]
    assert reached < target
    for node in world.other_nodes(behind):
        world.network.slow(node.name, behind.name, 0.0)
    world.until(lambda: world.is_ready(behind), FAILOVER_S + 10.0)
    assert world.hosted(behind, index).summary.contains(reached)
    assert world.counts["truncations"] == truncations, "its records must not be truncated"
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("how", ["kill", "power"])
def test_row_36_rollover_while_a_replica_is_down(how: str) -> None:
    world = FaultWorld(36, journal_bytes=1 << 15)
    away, index = world.other_nodes(world.primary())[0], world.partition_of()
    away.crash(power=how == "power", down=None)
    had = world.hosted(world.primary(), index).summary.last
    while world.hosted(world.primary(), index).summary.base <= had:
        for producer in world.producers:
            producer.post(10)
        world.live(1.0)
    away.boot()
    world.run(0.05)
    away.crash(power=how == "power", down=0.5)
    world.live(0.7)
    world.until(lambda: world.is_ready(away))
    assert world.hosted(away, index).summary.base > had, "it got an image"
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("seed", range(3))
def test_row_37_a_producer_reconnects_to_another_broker_between_puts(seed: int) -> None:
    world = FaultWorld(370 + seed, clients=False)
    producer = world.producer(STRONG, pause_s=1000.0)
    world.until(lambda: producer.queue is not None)
    guids, places = [], {producer.place}
    for _ in range(4):
        guids += producer.post(5)
        world.run(0.001 + 0.002 * seed)
        assert producer.unanswered and isinstance(producer.end, ConnectionEnd)
        producer.end.reset()
        world.until(lambda: not producer.unanswered)
        places.add(producer.place)
    assert len(places) > 1
    world.finish()
    assert sorted(producer.waits) == sorted(guids) and not producer.refused, "one ACK each"
    assert all(world.deliveries(guid) == 1 for guid in guids), "one copy each"


def test_row_37_a_producer_leaves_a_node_that_is_isolated_from_the_primary() -> None:
    world = FaultWorld(373, clients=False)
    relay = world.other_nodes(world.leader)[0]
    other = world.other_nodes(relay, world.leader)[0]
    producer = world.producer(EVENTUAL, [relay.name, other.name], pause_s=1000.0)
    world.until(lambda: producer.queue is not None)
    world.network.cut(relay.name, world.leader.name)
    guids = producer.post(5)
    world.run(0.3)
    relay.crash(power=False, down=5.0)
    world.until(lambda: not producer.unanswered)
    assert producer.place == other.name
    world.finish()
    assert all(world.deliveries(guid) == 1 for guid in guids)
