"""Stop preflight: consequences of the stop of a node for its cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.cluster.changes import LEAST_ASSIGNED
from bmqtwist.cluster.state import Primary
from bmqtwist.cluster.stop_preflight import ClusterView, MemberView, PartitionView, StopMove, stop_preflight


def member(node_id: int, stays: bool = True, available: bool = True) -> MemberView:
    return MemberView(node_id, f"n{node_id}", stays, stays and available)


def view(primaries: dict[int, int], others: tuple[MemberView, ...] = (member(2), member(3)), leader: int | None = 1,
         partitions: dict[int, Any] | None = None, **values: Any) -> ClusterView:
    majority = (len(others) + 1) // 2 + 1
    made = tuple(PartitionView(index, node_id, **(partitions or {}).get(index, {})) for index, node_id in primaries.items())
    given: dict[str, Any] = {"quorum": majority, "factor": majority, "algorithm": LEAST_ASSIGNED, **values}
    return ClusterView("c", 1, "n1", others, leader, partitions=made,
                       primaries={index: Primary(node_id, 5) for index, node_id in primaries.items()}, **given)


def test_a_healthy_cluster_of_three_keeps_its_quorum_without_one_node() -> None:
    found = stop_preflight(view({0: 1, 1: 2, 2: 3, 3: 1}))
    assert found.quorum_survives and found.leads and found.next_leader == 2 and found.warnings == ()
    assert found.moves == (StopMove(0, 2, True), StopMove(3, 2, True))


def test_the_next_primary_has_the_fewest_partitions_then_the_most_complete_log() -> None:
    durable = {"durable": {2: (5, 10), 3: (5, 20)}}
    assert stop_preflight(view({0: 1}, partitions={0: durable})).moves == (StopMove(0, 3, True),)
    assert stop_preflight(view({0: 1, 1: 3}, partitions={0: durable})).moves == (StopMove(0, 2, True),)


def test_the_next_leader_gets_all_partitions_if_the_leader_is_primary_of_all() -> None:
    found = stop_preflight(view({0: 1, 1: 1}, algorithm="E_LEADER_IS_MASTER_ALL"))
    assert {move.to for move in found.moves} == {found.next_leader} == {2}
    assert {move.to for move in stop_preflight(view({0: 1}, leader=3, algorithm="E_LEADER_IS_MASTER_ALL")).moves} == {3}


def test_an_unavailable_node_becomes_primary_only_without_an_available_one() -> None:
    others = member(2, available=False), member(3)
    assert stop_preflight(view({0: 1}, others)).moves == (StopMove(0, 3, True),)
    found = stop_preflight(view({0: 1}, (member(2, available=False), member(3, available=False))))
    assert found.moves == (StopMove(0, 2, True),)
    assert [text for text in found.warnings if "not available" in text] == [
        "node n2 is not available yet: it is still receiving records",
        "node n3 is not available yet: it is still receiving records"]


def test_the_stop_of_one_of_two_remaining_nodes_loses_the_quorum() -> None:
    found = stop_preflight(view({0: 1, 1: 2}, (member(2), member(3, stays=False))))
    assert not found.quorum_survives and found.next_leader is None
    assert found.moves == (StopMove(0, None, False),) and found.partitions_without_quorum == (0, 1)
    assert any("1 of 3 nodes remain, and 2 are needed to elect a leader" in text for text in found.warnings)
    assert any("such queues in Partitions [0, 1] acknowledge no message" in text for text in found.warnings)
    assert any("node n3 is not connected" in text for text in found.warnings)


def test_the_stop_of_the_only_node_warns_that_clients_wait() -> None:
    found = stop_preflight(view({0: 1}, (), quorum=1, factor=1))
    assert not found.quorum_survives and found.moves == (StopMove(0, None, False),)
    assert found.warnings == ("n1 is the only node of cluster c: clients wait until it has started again",)


@pytest.mark.parametrize(("partitions", "values", "words"), [
    ({0: {"copies": {2: 7000, 3: 1}}}, {}, "node n2 lacks 7000 records"),
    ({0: {"in_memory": 3}}, {}, "3 messages of queues in memory will be lost"),
    ({0: {"active": False}}, {}, "Partition [0] has no active primary now"),
    ({}, {"unconfirmed": 9, "wait_s": 20.0}, "9 delivered messages are not confirmed: the stop waits up to 20 s"),
])
def test_moves_in_progress_and_lagging_replicas_are_warned_about(partitions: dict[int, Any], values: dict[str, Any],
                                                                 words: str) -> None:
    found = stop_preflight(view({0: 1}, partitions=partitions, **values))
    assert any(words in text for text in found.warnings) and len(found.warnings) == 1


def test_a_higher_replication_factor_needs_more_nodes_than_a_leader() -> None:
    found = stop_preflight(view({0: 2}, factor=3))
    assert not found.quorum_survives and found.next_leader == 2 and found.partitions_without_quorum == (0,)


_members = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=5).map(
    lambda flags: tuple(member(number, *each) for number, each in enumerate(flags, 2)))


@given(_members, st.lists(st.integers(1, 6), max_size=6), st.sampled_from([LEAST_ASSIGNED, "E_LEADER_IS_MASTER_ALL"]),
       st.none() | st.integers(1, 6))
def test_partitions_move_only_to_remaining_nodes(
        others: tuple[MemberView, ...], primaries: list[int], algorithm: str, leader: int | None) -> None:
    found = stop_preflight(view(dict(enumerate(primaries)), others, leader, algorithm=algorithm))
    staying = {each.node_id for each in others if each.stays}
    assert {move.to for move in found.moves} <= staying | {None}
    assert [move.partition_id for move in found.moves] == [index for index, each in enumerate(primaries) if each == 1]
    survives = len(staying) >= (len(others) + 1) // 2 + 1
    assert found.quorum_survives == survives
    assert all((move.to is not None) == survives for move in found.moves)
    assert survives or found.warnings
