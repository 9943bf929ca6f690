"""Fault table, rows 18-22: slow, full and damaged disks.

All judges of the campaigns (`campaign/`) check each scenario; the world is in `faults.py`.
"""

from __future__ import annotations

import pytest
from kit.disks import fill_disk

from bmqtwist.cluster.changes import AssignQueue
from bmqtwist.storage.records import RECORD_BYTES
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.messages import EVENTUAL, STRONG
from sim.faults import FaultWorld

NEW_QUEUE = "bmq://bmq.test.persistent.priority/new"
SLOW_S = 4.0  # that every sync takes


def file_of(node: SimulatedNode, index: int, kind: str) -> str:
    """The newest file of a partition on the disk of a node."""
    return [path for path in node.disk.paths() if f"/storage/bmq_{index}." in path and path.endswith(kind)][-1]


def test_row_18_slow_disk_of_a_replica() -> None:
    world = FaultWorld(18)
    primary = world.primary()
    slow, begun = world.other_nodes(primary)[0], world.now
    slow.disk_delay_s = SLOW_S
    partition, lease = world.hosted(slow, world.partition_of()).partition, world.lease()
    for _ in range(20):
        world.live(0.5)
        behind = world.hosted(primary, world.partition_of()).partition.summary.last[1] - partition.durable_psn[1]
        assert behind < 400, "its lag must not grow"
    waits = [wait for producer in world.producers if producer.uri == STRONG for guid, wait in producer.waits.items()
             if producer.posted[guid] > begun]
    assert len(waits) > 30 and max(waits) < 1.5, "the others are a majority"
    assert world.primary() is primary and world.lease() == lease
    world.finish()
    assert not world.refusals()


def test_row_19_slow_disk_of_the_primary() -> None:
    world = FaultWorld(19)
    primary, lease, terms, begun = world.primary(), world.lease(), world.terms(), world.now
    primary.disk_delay_s = 1.0
    world.live(20.0)
    assert world.primary() is primary and world.lease() == lease and world.terms() == terms, "no failover"
    waits = [wait for producer in world.producers for guid, wait in producer.waits.items() if producer.posted[guid] > begun]
    assert len(waits) > 30 and max(waits) < 5.0
    other = world.other_nodes(primary)[0]
    world.appoint(other)
    world.until(lambda: world.primaries(world.partition_of()) == [other], 30.0)
    world.live(2.0)
    world.finish()
    assert not world.refusals()


def test_row_20_full_disk_of_the_primary() -> None:
    world = next(world for world in (FaultWorld(seed, spread=True) for seed in range(20, 40))
                 if world.primary(STRONG) not in (world.leader, world.primary(EVENTUAL)))
    primary = world.primary(STRONG)
    run, terms = primary.run_number, world.terms()
    fill_disk(primary, 100)
    full_at = world.now
    world.live(5.0)
    eventual = [producer for producer in world.producers if producer.uri == EVENTUAL]
    assert all(producer.answered_since(full_at) > 3 for producer in eventual), "the other partition is not affected"
    done: list[object] = []
    world.propose(world.leader, AssignQueue(NEW_QUEUE, ("__default",), 1), done.append)
    world.live(5.0)
    assert done, "the metadata are not affected"
    primary.clear_disk_faults()
    world.live(5.0)
    assert primary.run_number == run and world.terms() == terms
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("part", [1, 20, RECORD_BYTES - 1])
@pytest.mark.parametrize("kind", ["journal", "data"])
def test_row_21_torn_last_write_of_a_replica(kind: str, part: int) -> None:
    world = FaultWorld(21)
    index = world.partition_of()
    world.consumers[0].slow_s = None
    world.live(1.0)
    world.producers[0].post(3)
    world.live(0.5)
    torn = world.other_nodes(world.primary())[0]
    summary, files = world.hosted(torn, index).summary, world.hosted(torn, index).partition.files
    end = files.current.journal.end if kind == "journal" else files.current.data.end
    torn.crash(power=False, down=None)
    path = file_of(torn, index, kind)
    for at in range(end - part, end):
        torn.disk.flip(path, at, 0xFF)
    torn.boot()
    found = world.hosted(torn, index)
    assert found.summary.last < summary.last or found.machine.standing.doubt, "the log ends before the damaged record"
    world.until(lambda: world.is_ready(torn))
    world.until(lambda: set(world.stored(torn)) == set(world.stored(world.primary())), 2.0)
    world.primary().crash(power=False, down=3.0)
    world.live(5.0)
    world.finish()
    assert not world.refusals()


@pytest.mark.parametrize("kind, where", [("journal", 104), ("journal", 704), ("data", 100), ("data", 400)])
def test_row_22_flipped_bits_in_files_of_a_replica(kind: str, where: int) -> None:
    world = FaultWorld(22)
    index = world.partition_of()
    for consumer in world.consumers:
        consumer.slow_s = None
    world.live(6.0)
    for producer in world.producers:
        producer.paused = True
    world.live(2.0)
    damaged = world.other_nodes(world.primary())[0]
    damaged.crash(power=False, down=None)
    damaged.disk.flip(file_of(damaged, index, kind), where, 0xFF)
    damaged.boot()
    world.until(lambda: world.is_ready(damaged) and not world.hosted(damaged, index).machine.standing.doubt)
    world.until(lambda: set(world.stored(damaged)) == set(world.stored(world.primary())), 5.0)
    world.appoint(damaged)
    world.until(lambda: world.primaries(index) == [damaged])
    world.finish()
    assert not world.refusals()
