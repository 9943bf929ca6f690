"""Members that cannot serve a role hand it over: full, read-only and failing disks; primaries that reach no majority.

All judges of the campaigns (`campaign/`) check each scenario; the world is in `faults.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from kit.disks import fail_file, fail_syncs, fill_disk, make_read_only

from bmqtwist.cluster.changes import AssignQueue
from bmqtwist.cluster.election_events import ElectionMode
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.messages import EVENTUAL, STRONG
from sim.elected import INACTIVITY_S, heal
from sim.faults import FaultWorld

RELEASE_S = 8.0  # longest time until another member has the roles of a member that cannot write
PASSIVE_S = 0.75 * INACTIVITY_S + 5.0  # longest time until a primary without a majority is replaced


def spread_world(seed: int, size: int = 3) -> FaultWorld:
    """Return a world in which leader, primary of the strong and of the eventual queue are different members, if possible."""
    return next(world for world in (FaultWorld(each, size, spread=True) for each in range(seed, seed + 30))
                if world.primary(STRONG) not in (world.leader, world.primary(EVENTUAL)))


def fill(node: SimulatedNode) -> None:
    fill_disk(node, 0)


def fail_ledger(node: SimulatedNode) -> None:
    fail_file(node, ".bmq_csl", errno.EROFS)


def change_metadata(world: FaultWorld) -> None:
    """Let the leader write its ledger."""
    world.queues_made = getattr(world, "queues_made", 0) + 1  # type: ignore[attr-defined]
    world.propose(world.believed()[0], AssignQueue(f"bmq://bmq.test.persistent.priority/new{world.queues_made}",  # type: ignore[attr-defined]
                                            ("__default",), 1))


def has_no_role(world: FaultWorld, node: SimulatedNode) -> bool:
    """Return whether other members lead and are active primaries of all partitions."""
    partitions = range(len(world.replication(node).hosted))
    return (node not in world.believed() and len(world.believed()) == 1
            and all(world.primaries(index) and node not in world.primaries(index) for index in partitions))


def acknowledges(world: FaultWorld, seconds: float, cut_off: SimulatedNode | None = None) -> None:
    """Check that each producer gets ACKs within some seconds, except those at a node that does not reach the primaries."""
    since, name = world.now, cut_off.name if cut_off is not None else ""
    world.until(lambda: all(producer.answered_since(since) > 1 for producer in world.producers if producer.place != name),
                seconds)


def alarms_of(node: SimulatedNode, kind: str) -> list[str]:
    return [text for severity, text in node.report.lines if f"{kind}: " in text]


@pytest.mark.parametrize("damage", [fill, make_read_only, fail_syncs])
def test_a_leader_that_cannot_write_hands_its_roles_over(damage: Callable[[SimulatedNode], None]) -> None:
    world = FaultWorld(40)
    former = world.leader
    assert world.primary() is former
    damage(former)
    change_metadata(world)
    world.until(lambda: has_no_role(world, former), RELEASE_S)
    acknowledges(world, 5.0)
    assert "cannot write" in world.cluster(former.name).unready
    assert {node.name for node in world.machines if former_reason(world, node, former)} == set(world.names), "all know it"
    world.live(90.0)
    assert has_no_role(world, former), "it takes no role while it cannot write"
    former.clear_disk_faults()
    world.until(lambda: not world.cluster(former.name).release.health.reason, 70.0)  # type: ignore[union-attr]
    closed = [hosted for hosted in world.replication(former).hosted if hosted.partition.log.closed]
    assert bool(closed) is (damage is fail_syncs), "after a failed sync the content of the disk is unknown"
    if closed:
        former.stop()
    world.finish()
    assert not world.refusals(), "PUTs wait for the next primary"


def former_reason(world: FaultWorld, node: SimulatedNode, former: SimulatedNode) -> str:
    members = world.cluster(node.name).members
    return members.statuses.unable.get(int(former.name[1:]), "") if members is not None else ""


def test_a_leader_with_an_unwritable_ledger_hands_its_roles_over() -> None:
    world = FaultWorld(41)
    former = world.leader
    fail_ledger(former)
    change_metadata(world)
    world.until(lambda: has_no_role(world, former), RELEASE_S)
    acknowledges(world, 5.0)
    terms = world.terms()
    for _ in range(20):
        change_metadata(world)
        world.live(5.0)
        assert has_no_role(world, former)
    assert world.terms() == terms, "no election follows"
    [first, *later] = alarms_of(former, "ledger-not-written")
    assert len(later) <= 3 and all(" more times in " in each for each in later), "repeated every minute, with a count"
    [first, *later] = alarms_of(former, "node-cannot-write")
    assert "cannot write its metadata ledger" in first and 1 <= len(later) <= 3 and "failed writes in" in later[0]
    world.finish()


def test_a_leader_with_an_unwritable_vote_hands_its_roles_over() -> None:
    world = FaultWorld(42)
    former = world.leader
    fail_file(former, "bmqtwist_vote", errno.EROFS)
    others = world.other_nodes(former)
    world.separate([former], others)
    world.until(lambda: any(node in world.believed() for node in others))
    heal(world)
    world.until(lambda: has_no_role(world, former) and former_reason(world, others[0], former) != "", 15.0)
    acknowledges(world, 5.0)
    world.finish()


@pytest.mark.parametrize("damage", [fill, make_read_only])
def test_a_primary_that_cannot_write_hands_its_partitions_over(damage: Callable[[SimulatedNode], None]) -> None:
    world = spread_world(43)
    former, leader = world.primary(STRONG), world.leader
    damage(former)
    world.until(lambda: has_no_role(world, former), RELEASE_S)
    acknowledges(world, 5.0)
    assert world.leader is leader, "the leader can write"
    moved = [world.lease(uri) for uri in (STRONG, EVENTUAL)]
    former.clear_disk_faults()
    world.live(20.0)
    assert [world.lease(uri) for uri in (STRONG, EVENTUAL)] == moved, "no partition moves back"
    world.finish()


def test_leader_and_primary_that_cannot_write_hand_over_to_the_remaining_members() -> None:
    world = spread_world(73, 5)
    full = [world.primary(STRONG), world.leader]
    for node in full:
        fill(node)
    change_metadata(world)
    world.until(lambda: all(has_no_role(world, node) for node in full), RELEASE_S)
    acknowledges(world, 5.0)
    world.finish()


def test_members_of_which_none_can_write_keep_their_roles_and_recover() -> None:
    world = FaultWorld(44)
    for node in world.machines:
        fill(node)
    world.live(40.0)
    index = world.partition_of()
    leases = {world.hosted(node, index).machine.lease for node in world.machines}
    assert max(leases) - min(leases) <= 1
    for node in world.machines:
        node.clear_disk_faults()
    acknowledges(world, 15.0)
    world.finish()


def test_a_member_returns_to_its_roles_while_no_other_member_can_write() -> None:
    """All members but one lose their disks one after the other: the last one able to write has all roles in the end."""
    world = FaultWorld(45)
    first = world.leader
    fill(first)
    change_metadata(world)
    world.until(lambda: has_no_role(world, first), RELEASE_S)
    second = world.believed()[0]
    first.clear_disk_faults()
    world.until(lambda: not former_reason(world, second, first), 15.0)
    fill(second)
    change_metadata(world)
    world.until(lambda: has_no_role(world, second), RELEASE_S)
    acknowledges(world, 5.0)
    world.finish()


@pytest.mark.parametrize("size", [4, 5])
def test_a_primary_that_reaches_only_the_leader_is_replaced(size: int) -> None:
    world = spread_world(46, size)
    former, leader = world.primary(STRONG), world.leader
    world.separate([former], world.other_nodes(former, leader))
    world.until(lambda: world.primaries(world.partition_of()) not in ([], [former]), PASSIVE_S)
    acknowledges(world, 5.0, former)
    leases = world.lease()
    world.live(30.0)
    assert world.lease() == leases, "one move"
    assert any("is replaced as its primary: it is passive: " in text for _, text in leader.report.lines)
    world.finish()


def test_a_former_leader_of_four_that_is_cut_off_from_the_majority_is_replaced_as_primary() -> None:
    world = FaultWorld(47, 4)
    former = world.leader
    linked, *others = world.other_nodes(former)
    for node in others:
        world.cluster(node.name).leadership.set_mode(ElectionMode.NEVER)
    world.separate([former], others)
    world.until(lambda: world.believed() == [linked], 20.0)
    world.until(lambda: all(world.primaries(index) not in ([], [former]) for index in (0, 1)), PASSIVE_S)
    acknowledges(world, 5.0, former)
    world.finish()


def test_a_primary_that_no_member_could_replace_stays() -> None:
    """Five members in a chain: no member reaches a majority."""
    world = spread_world(48, 5)
    nodes = world.machines
    leases = [world.replication(nodes[0]).hosted[index].machine.lease for index in (0, 1)]
    for number, node in enumerate(nodes):
        world.separate([node], [each for other, each in enumerate(nodes) if abs(other - number) > 1])
    world.live(60.0)
    now = [max(world.replication(node).hosted[index].machine.lease for node in nodes) for index in (0, 1)]
    assert all(after - before < 8 for before, after in zip(leases, now, strict=True)), "a bounded number of moves"
    heal(world)
    acknowledges(world, 60.0)
    world.finish()
