"""Decisions about primaries, without a node: active primaries, and the next partition to move.

Tests `bmqtwist/cluster/active_primaries.py` and `bmqtwist/cluster/changes.py`.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.cluster.active_primaries import ActivePrimaries
from bmqtwist.cluster.changes import LEADER_IS_MASTER_ALL, LEAST_ASSIGNED, loads_of, next_move
from bmqtwist.cluster.state import Primary

NODES = st.integers(1, 4)
EVENT = st.one_of(
    st.tuples(st.just("named"), st.integers(0, 1), NODES, st.integers(1, 4)),
    st.tuples(st.just("reported"), st.integers(0, 1), NODES, st.integers(0, 6), st.booleans()),
    st.tuples(st.just("lost"), NODES))


@given(st.lists(EVENT, max_size=40))
def test_a_primary_is_active_if_its_last_report_for_its_lease_says_so(events: list[tuple]) -> None:  # type: ignore[type-arg]
    primaries = ActivePrimaries()
    appointed: dict[int, Primary] = {}
    reported: dict[tuple[int, int], Primary] = {}  # the last valid report, by partition and node
    for kind, *what in events:
        if kind == "named":
            index, node_id, more = what
            lease = appointed[index].lease + more if index in appointed else more
            appointed[index] = primary = Primary(node_id, lease)
            expected = reported.get((index, node_id)) == primary
            assert primaries.appoint(index, primary) == expected
            reported = {key: each for key, each in reported.items()
                        if key[0] != index or each.lease > lease or each == primary}
        elif kind == "reported":
            index, node_id, lease, active = what
            claim, known = Primary(node_id, lease), appointed.get(index)
            counts = known is None or claim == known or lease > known.lease
            assert primaries.set_active(index, claim, active) == counts
            if counts and active:
                reported[index, node_id] = claim
            elif counts and reported.get((index, node_id)) == claim:
                del reported[index, node_id]
        else:
            [node_id] = what
            active_before = [index for index, each in appointed.items() if reported.get((index, each.node_id)) == each]
            assert sorted(primaries.remove_node(node_id)) == sorted(
                index for index in active_before if appointed[index].node_id == node_id)
            reported = {key: each for key, each in reported.items() if key[1] != node_id}
        for index, primary in appointed.items():
            is_active = reported.get((index, primary.node_id)) == primary
            assert primaries.find(index) == (primary if is_active else None)


@given(st.lists(st.integers(1, 5), max_size=12), st.sets(st.integers(1, 5)), st.sets(st.integers(0, 11)),
       st.sampled_from([LEAST_ASSIGNED, LEADER_IS_MASTER_ALL]))
def test_moves_end_and_leave_no_partition_that_should_move(owners: list[int], nodes: set[int], staying: set[int],
                                                           algorithm: str) -> None:
    primaries = {index: Primary(owner, 1) for index, owner in enumerate(owners)}
    leader = min(nodes, default=1)
    for _ in owners:
        move = next_move(primaries, nodes, algorithm, leader, staying)
        if move is None:
            break
        before = primaries[move.partition_id]
        assert move.partition_id not in staying and before.node_id in nodes and move.node_id != before.node_id
        primaries[move.partition_id] = Primary(move.node_id, before.lease + 1)
    assert next_move(primaries, nodes, algorithm, leader, staying) is None
    loads = loads_of(primaries, nodes)
    for index, primary in primaries.items():
        if index not in staying and primary.node_id in nodes:
            if algorithm == LEAST_ASSIGNED:
                assert loads[primary.node_id] - min(loads.values()) <= 1
            else:
                assert primary.node_id == leader
