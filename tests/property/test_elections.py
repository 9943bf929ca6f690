"""Elections of 1, 3 and 5 nodes under random faults of the network, the disks and the clocks.

Tests `bmqtwist/cluster/elector.py`; single rules are in `tests/table/test_elector.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.elections import SETTLE_S, TIMING, Elections

from bmqtwist.cluster.election_events import (
    ElectionMode,
    ElectionReason,
    ElectionState,
    PeerDown,
    SetMode,
    Stop,
    Transfer,
)
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.storage.identity import StorageState

FAULTS = ["depose"] * 3 + ["crash"] * 3 + ["boot"] * 4 + ["heal"] * 2 + ["resume"] * 2 + ["append"] * 4 + ["weather"] * 3 + [
    "cut", "one way", "isolate", "pause", "transfer", "mode"] + ["lose vote"] * 3
STEPS = st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 1 << 20)), min_size=30, max_size=80)


def inject_fault(world: Elections, kind: str, value: int) -> None:
    """Inject one fault, or let the nodes work without one."""
    number = value % len(world.nodes) + 1
    other = value // 7 % len(world.nodes) + 1
    noticed = bool(value // 64 % 3)
    node = world.nodes[number]
    if kind == "crash":
        world.crash(number, noticed)
    elif kind == "depose":  # the leader is lost for a short time
        for each in world.nodes.values():
            if each.elector is not None and each.elector.state is ElectionState.LEADER:
                world.crash(each.node_id)
        world.run(value // 128 % 20 / 10 * TIMING.random_wait_max)
        world.boot()
    elif kind == "boot":
        world.boot(number)
    elif kind == "lose vote":
        world.lose_vote(number)
        world.run(value // 128 % 20 / 10 * TIMING.random_wait_max)
        world.boot(number)
    elif kind == "cut" and other != number:
        world.break_link(number, other, True, noticed)
    elif kind == "one way" and other != number:
        world.break_link(number, other, False, noticed)
    elif kind == "isolate":
        world.isolate(number, noticed)
    elif kind == "heal":
        world.heal()
    elif kind == "pause":
        world.pause(number)
    elif kind == "resume":
        world.resume(number)
    elif kind == "append":
        for each in world.nodes.values():
            world.append(each)
    elif kind == "transfer":
        world.step(node, Transfer(other))
    elif kind == "mode":
        world.step(node, SetMode(list(ElectionMode)[value // 7 % 3]))
    else:
        world.loss, world.repeats = (value % 4) / 10, (value // 4 % 4) / 10
        world.write_failures, world.write_deaths = (value // 16 % 3) / 10, (value // 16 % 4) / 5
        world.latency = 0.001 + (value // 64 % 5) / 20
    world.run((value // 128 % 100) / 100 * TIMING.inactivity / (1 + value // 12800 % 8))


def end_faults(world: Elections) -> None:
    """End all faults and connect all nodes."""
    world.loss = world.repeats = world.write_failures = world.write_deaths = 0.0
    world.latency = 0.01
    world.heal()
    for number in world.nodes:
        world.resume(number)
    world.boot()
    for node in world.nodes.values():
        world.step(node, SetMode(ElectionMode.NORMAL))


@pytest.mark.parametrize("size", [1, 3, 5])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32), STEPS)
def test_a_term_has_at_most_one_leader_with_all_committed_entries_and_faults_end_with_one(
        size: int, seed: int, steps: list[tuple[str, int]]) -> None:
    """`kit.elections` also checks after each step that votes and terms survive all restarts."""
    world = Elections(seed, size)
    world.boot()
    world.run(SETTLE_S)
    for kind, value in steps:
        inject_fault(world, kind, value)
    end_faults(world)
    world.run(SETTLE_S)
    assert world.leader is not None, [(node.node_id, node.elector and node.elector.transition_log.transitions[-5:])
                                      for node in world.nodes.values()]
    before = len(world.committed)
    world.append(world.leader)
    world.run(1.0)
    assert len(world.committed) > before
    assert not [text for text in world.alarms if "says that it leads" in text]


@pytest.mark.spec("cluster", 15)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [3, 5])
def test_nodes_that_start_together_elect_one_leader_of_the_next_term(seed: int, size: int) -> None:
    world = Elections(seed, size)
    world.nodes[2].durable = (7, 2)
    for node in world.nodes.values():
        node.votes.clear()
    world.boot()
    world.run(TIMING.initial_wait + TIMING.random_wait_max + 0.5)
    assert world.leader is not None and world.leader.elector is not None
    assert world.leader.elector.term == 8 and list(world.leaders) == [8]


@pytest.mark.spec("cluster", 16)
@pytest.mark.parametrize("seed", range(10))
def test_a_node_that_starts_late_adopts_the_leader_and_supports_it(seed: int) -> None:
    world = Elections(seed, 3)
    world.boot(1, 2)
    world.run(SETTLE_S)
    leader = world.leader
    assert leader is not None and leader.elector is not None and leader.elector.supporters == {1, 2}
    world.boot(3)
    world.run(1.0)
    assert world.leader is leader and leader.elector.supporters == {1, 2, 3} and len(world.leaders) == 1


@pytest.mark.spec("cluster", 17)
@pytest.mark.parametrize("seed", range(20))
def test_a_crashed_leader_is_replaced_within_one_random_wait_and_two_round_trips(seed: int) -> None:
    world = Elections(seed, 3)
    world.boot()
    world.run(SETTLE_S)
    assert world.leader is not None
    world.crash(world.leader.node_id)
    world.run(TIMING.random_wait_max + 4 * world.latency + 4 * 0.04)  # two of them with a write before the response
    assert world.leader is not None and len(world.leaders) == 2


@pytest.mark.spec("cluster", 19)
@pytest.mark.parametrize("noticed", [True, False])
def test_a_follower_isolated_for_an_hour_keeps_its_term_and_returns_without_an_election(noticed: bool) -> None:
    world = Elections(1, 3)
    world.boot()
    world.run(SETTLE_S)
    leader = world.leader
    assert leader is not None and leader.elector is not None
    term = leader.elector.term
    isolated = next(node for node in world.nodes.values() if node is not leader)
    world.isolate(isolated.node_id, noticed)
    world.run(3600.0)
    assert isolated.elector is not None and (isolated.elector.term, isolated.elector.leader) == (term, None)
    world.heal()
    world.run(2.0)
    assert world.leader is leader and list(world.leaders) == [term]


@pytest.mark.spec("cluster", 20)
@pytest.mark.parametrize("noticed", [True, False])
def test_a_leader_without_a_link_to_one_follower_keeps_its_term(noticed: bool) -> None:
    world = Elections(2, 3)
    world.boot()
    world.run(SETTLE_S)
    leader = world.leader
    assert leader is not None
    other = next(node for node in world.nodes.values() if node is not leader)
    world.break_link(leader.node_id, other.node_id, True, noticed)
    world.run(600.0)
    assert leader.elector is not None and leader.elector.state is ElectionState.LEADER and len(world.leaders) == 1


@pytest.mark.spec("cluster", 21)
@pytest.mark.parametrize("seed", range(5))
def test_two_nodes_without_a_link_do_not_replace_each_other_as_leader(seed: int) -> None:
    world = Elections(seed, 4)
    world.boot()
    world.run(SETTLE_S)
    assert world.leader is not None
    one = world.leader.node_id
    two = one % 4 + 1
    world.break_link(one, two)
    world.run(600.0)
    assert len(world.leaders) <= 2


@pytest.mark.spec("cluster", 29)
@pytest.mark.parametrize("seed", range(10))
def test_a_transfer_of_the_leadership_needs_no_random_wait(seed: int) -> None:
    world = Elections(seed, 5)
    world.boot()
    world.run(SETTLE_S)
    former = world.leader
    assert former is not None
    successor = former.node_id % 5 + 1
    world.append(former)
    world.run(TIMING.beat_period)
    requested_at = world.now
    world.step(former, Transfer(successor))
    world.run(TIMING.random_wait_max / 4)
    assert world.leader is world.nodes[successor]
    lost, won = [moment for moment, _, change in world.changes if moment > requested_at
                 and ElectionState.LEADER in (change.before.state, change.after.state)]
    assert won - lost < TIMING.random_wait_max / 4


def elections_with_a_lost_vote() -> Elections:
    """A node votes for the new leader and loses the vote before it has an entry of it. Then it receives messages of the
    former leader, which has not received the new term, and none of the new leader."""
    world = Elections(1, 3)
    world.boot()
    world.run(SETTLE_S)
    former = world.leader
    assert former is not None
    others = [number for number in world.nodes if number != former.node_id]
    for number in others:  # the other nodes detect the lost connections, the node does not
        world.cut |= {(former.node_id, number), (number, former.node_id)}
        world.step(world.nodes[number], PeerDown(former.node_id))
    terms = set(world.leaders)
    while world.leaders.keys() == terms:
        world.run(0.001)
    newer = world.nodes[world.leaders[max(world.leaders)]]
    voter = next(world.nodes[number] for number in others if number != newer.node_id)
    world.break_link(newer.node_id, voter.node_id)
    world.lose_vote(voter.node_id)
    world.run(0.1)  # messages in transit to it are lost
    world.cut -= {(former.node_id, voter.node_id), (voter.node_id, former.node_id)}
    world.boot(voter.node_id)
    for _ in range(3):
        world.run(0.6)
        world.append(former)
    world.run(SETTLE_S)
    for node in (former, voter):
        world.step(node, SetMode(ElectionMode.NEVER))
    world.heal()
    world.run(2 * SETTLE_S)
    return world


@pytest.mark.spec("cluster", 27)
def test_a_node_with_a_lost_vote_does_not_acknowledge_entries_of_the_former_leader() -> None:
    world = elections_with_a_lost_vote()
    assert world.leader is not None
    world.append(world.leader)
    world.run(1.0)
    assert all(node.storage.state is StorageState.COMPLETE for node in world.nodes.values())


def test_the_test_of_a_lost_vote_detects_its_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Electorate, "_is_intact", lambda self, node_id, voters: True)
    with pytest.raises(AssertionError, match="committed"):
        elections_with_a_lost_vote()


def test_a_stopped_leader_is_replaced_after_its_notification() -> None:
    world = Elections(3, 3)
    world.boot()
    world.run(SETTLE_S)
    leader = world.leader
    assert leader is not None
    world.step(leader, Stop())
    world.nodes[leader.node_id].elector = None
    world.run(2 * TIMING.random_wait_max)
    reasons = [change.reason for _, number, change in world.changes if number != leader.node_id]
    assert world.leader is not None and ElectionReason.LEADER_UNAVAILABLE in reasons
