"""Electorate: which nodes are a quorum, by incarnations and lists; member lists, compared with a configuration."""

from __future__ import annotations

from itertools import chain, combinations, product

import pytest

from bmqtwist.cluster.electorate import Electorate, MemberState, MemberStorage, quorum_value
from bmqtwist.cluster.member_lists import first_list, list_differences, list_of_one, node_differences, with_recovered
from bmqtwist.storage.identity import StorageState
from bmqtwist.wire.cluster_schema import MemberInfo, MemberList

FRESH, COMPLETE, VOTE_LOST, LOST = StorageState


def members(size: int, version: int = 1) -> MemberList:
    """Return a list of voters whose incarnations are their ids."""
    nodes = [MemberInfo(each, f"n{each}", f"tcp://h{each}:1", True, each) for each in range(1, size + 1)]
    return MemberList(7, version, 2, nodes)


def electorate(size: int, *lost: int) -> Electorate:
    """Return the electorate of node 1 of a formed cluster. `lost`: nodes with new storage."""
    found = Electorate(1, range(1, size + 1))
    found.set_lists([members(size)])
    found.announced = {each: MemberStorage(each + 100 if each in lost else each, LOST if each in lost else COMPLETE, 7)
                       for each in range(1, size + 1)}
    return found


def subsets(nodes: range) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(nodes, count) for count in range(len(nodes) + 1)))


@pytest.mark.parametrize("size", range(1, 6))
def test_each_quorum_has_an_intact_node_in_common_with_each_earlier_one(size: int) -> None:
    """Whatever nodes lose their storage in between: an intact node has not lost it since the earlier quorum."""
    nodes = range(1, size + 1)
    earlier = [each for each in subsets(nodes) if electorate(size).has_quorum(each)]
    for lost in subsets(nodes):
        later = electorate(size, *lost)
        for quorum in filter(later.has_quorum, subsets(nodes)):
            for before in earlier:
                assert set(quorum) & set(before) - set(lost), (lost, quorum, before)


@pytest.mark.parametrize("size", range(1, 6))
def test_with_intact_storage_a_quorum_is_a_majority(size: int) -> None:
    for each in subsets(range(1, size + 1)):
        assert electorate(size).has_quorum(each) is (len(each) > size // 2)


def test_a_recovering_node_completes_a_quorum_of_an_even_number_only() -> None:
    assert electorate(2, 2).has_quorum((1, 2)) and electorate(4, 4).has_quorum((1, 2, 4))
    assert not electorate(3, 3).has_quorum((1, 3)) and electorate(3, 3).has_quorum((1, 2))
    assert not electorate(4, 3, 4).has_quorum((1, 3, 4)) and not electorate(5, 5).has_quorum((1, 2, 5))
    assert not electorate(3, 2, 3).has_quorum((1, 2, 3)), "too few members have intact storage"


def test_lost_votes_alone_need_all_nodes() -> None:
    found = electorate(3)
    for each in (1, 2, 3):
        found.announced[each] = MemberStorage(each + 100, VOTE_LOST, 7, each)
    assert found.has_quorum((1, 2, 3)) and not found.has_quorum((1, 2)) and found.may_stand
    found.announced[3] = MemberStorage(103, LOST, 7)
    assert not found.has_quorum((1, 2, 3))
    found.announced[3] = MemberStorage(103, VOTE_LOST, 7, 99)  # an old copy of the directory
    assert not found.has_quorum((1, 2, 3))


def test_a_quorum_relies_on_lost_votes_only_if_too_few_voters_are_intact() -> None:
    found = electorate(3)
    assert not found.relies_on_lost_votes((1, 2, 3))
    found.announced[3] = MemberStorage(103, VOTE_LOST, 7, 3)
    assert found.has_quorum((1, 2, 3)) and not found.relies_on_lost_votes((1, 2, 3)), "two are intact"
    found.announced[2] = MemberStorage(102, VOTE_LOST, 7, 2)
    assert found.has_quorum((1, 2, 3)) and found.relies_on_lost_votes((1, 2, 3))
    assert not unformed(FRESH, FRESH, FRESH).relies_on_lost_votes((1, 2, 3)), "a new cluster has no earlier votes"


def test_storage_with_a_ledger_that_no_list_knows_is_of_another_history() -> None:
    found = electorate(3)
    for known in (MemberStorage(3, COMPLETE, 7), MemberStorage(3, COMPLETE), MemberStorage(103, VOTE_LOST, 0, 3),
                  MemberStorage(103, FRESH), MemberStorage(103, LOST), MemberStorage(103, LOST, 7)):
        assert not found.is_foreign(3, known), known
    for foreign in (MemberStorage(3, COMPLETE, 8), MemberStorage(103, LOST, 8), MemberStorage(103, COMPLETE),
                    MemberStorage(103, VOTE_LOST, 0, 99), MemberStorage(2, COMPLETE)):
        assert found.is_foreign(3, foreign), foreign
    assert not unformed(COMPLETE, COMPLETE, COMPLETE).is_foreign(3, MemberStorage(103, COMPLETE)), "of an earlier version"


def test_every_list_that_counts_needs_a_quorum() -> None:
    found = electorate(3)
    bigger = MemberList(7, 2, 2, [*members(3).nodes, MemberInfo(4, "n4", "", True, 4)])
    found.announced[4] = MemberStorage(4)
    found.set_lists([members(3), bigger])
    assert found.has_quorum((1, 2, 4)) and not found.has_quorum((1, 2)) and not found.has_quorum((3, 4))
    assert found.nodes == {1, 2, 3, 4} and found.majority == 2
    registered = [members(3).nodes[0], members(3).nodes[1], MemberInfo(3, "n3", "", True, 30)]
    found.announced[3] = MemberStorage(30)
    found.set_lists([members(3), MemberList(7, 2, 2, registered)])
    assert not found.has_quorum((1, 3)) and found.has_quorum((1, 2)) and not found.is_intact(3)


def test_a_learner_is_no_voter() -> None:
    found = electorate(1)
    found.set_lists([list_of_one(members(3), members(3).nodes[0], members(3).nodes[1:], 8, 2)])
    assert found.has_quorum((1,)) and not found.has_quorum((2, 3)) and found.majority == 1 and found.cluster_id == 8
    assert found.state() is MemberState.MEMBER and found.may_stand
    assert [each.incarnation for each in found.lists[0].nodes] == [1, 0, 0] and found.lists[0].version == 2


def unformed(*states: StorageState) -> Electorate:
    found = Electorate(1, range(1, len(states) + 1))
    found.announced = {number: MemberStorage(number, each) for number, each in enumerate(states, 1)}
    return found


def test_a_new_cluster_needs_all_nodes_and_storage_of_an_earlier_version_a_majority() -> None:
    fresh = unformed(FRESH, FRESH, FRESH)
    assert fresh.has_quorum((1, 2, 3)) and not fresh.has_quorum((1, 2)) and fresh.may_stand
    assert fresh.state() is MemberState.FORMING and fresh.awaited([2]) == [3]
    mixed = unformed(COMPLETE, COMPLETE, FRESH)
    assert mixed.has_quorum((1, 2)) and not mixed.has_quorum((1, 3)) and mixed.may_stand
    assert not unformed(FRESH, COMPLETE, COMPLETE).may_stand and not unformed(LOST, FRESH, FRESH).may_stand
    assert not unformed(COMPLETE, FRESH, FRESH).has_quorum((1, 2, 3))
    assert unformed(COMPLETE, VOTE_LOST).has_quorum((1, 2)) and not unformed(LOST, LOST).has_quorum((1, 2))
    earlier_version = Electorate(1, (1, 2, 3))
    assert earlier_version.has_quorum((1, 2)) and not earlier_version.has_quorum((1,))


def test_the_first_list_registers_intact_storage() -> None:
    nodes = members(3).nodes
    assert first_list(Electorate(1, (1, 2, 3)), nodes, 5, 2) is None, "not all nodes have announced their storage"
    found = first_list(unformed(FRESH, FRESH, FRESH), nodes, 5, 2)
    assert found is not None and [each.incarnation for each in found.nodes] == [1, 2, 3]
    mixed = first_list(unformed(COMPLETE, FRESH, VOTE_LOST), nodes, 5, 2)
    assert mixed is not None and [each.incarnation for each in mixed.nodes] == [1, 0, 3]
    assert (mixed.cluster_id, mixed.version, mixed.partitions) == (5, 1, 2) and all(each.voting for each in mixed.nodes)


def test_a_first_list_that_was_not_committed_leaves_the_storage_new() -> None:
    """Two nodes whose disks were full when they formed their cluster once waited for each other for ever."""
    found = Electorate(1, (1, 2))
    found.announced = {1: MemberStorage(1, FRESH), 2: MemberStorage(2, FRESH)}
    found.set_lists([members(2)])
    assert found.storage(2).state is COMPLETE
    found.set_lists([])
    assert found.storage(2).state is FRESH and found.may_stand


def test_one_recovered_node_is_registered_at_a_time() -> None:
    found = electorate(3, 2, 3)
    assert with_recovered(found, [1]) is None
    wanted = with_recovered(found, [1, 2, 3])
    assert wanted is not None and wanted.version == 2 and [each.incarnation for each in wanted.nodes] == [1, 102, 3]
    found.set_lists([members(3), wanted])
    assert with_recovered(found, [1, 2, 3]) is None, "the change is not committed yet"
    found.set_lists([wanted])
    assert found.is_intact(2) and found.has_quorum((1, 2))
    del found.announced[3]
    assert with_recovered(found, [3]) is None, "a node of a version without incarnations"


def test_the_value_that_a_quorum_has_reached() -> None:
    assert quorum_value(electorate(3), {1: 5, 2: 3, 3: 4}, 0, lambda each: each) == 4
    assert quorum_value(electorate(3), {1: 5, 2: 3, 3: 4}, 3, lambda each: each) == 3
    assert quorum_value(electorate(3, 3), {1: 5, 2: 3, 3: 4}, 0, lambda each: each) == 3
    assert quorum_value(electorate(3), {1: 5}, 0, lambda each: each) is None


def test_the_nodes_that_are_awaited() -> None:
    assert electorate(3).awaited([2]) == [] and electorate(3).awaited([]) == [2, 3]
    assert electorate(3, 2).awaited([2]) == [2, 3]


KNOWN = members(3).nodes


@pytest.mark.parametrize("change, text", [
    (KNOWN, None),
    (KNOWN[:2], "n3 (id 3) is missing"),
    ([*KNOWN, MemberInfo(4, "n4", "x")], "n4 (id 4) is not a member"),
    ([*KNOWN[:2], MemberInfo(4, "n3", "tcp://h3:1")], "n3 has the id 4 instead of 3"),
    ([*KNOWN[:2], MemberInfo(3, "other", "tcp://h3:1")], "the node with the id 3 is named other instead of n3"),
    ([*KNOWN[:2], MemberInfo(3, "n3", "tcp://new:1")], "n3 (id 3) has the endpoint tcp://new:1 instead of tcp://h3:1"),
], ids=["equal", "missing", "added", "renumbered", "renamed", "moved"])
def test_each_difference_of_a_configuration_is_named(change: list[MemberInfo], text: str | None) -> None:
    assert node_differences(KNOWN, change) == ([] if text is None else [text])


def test_swapped_endpoints_and_the_number_of_partitions_are_named() -> None:
    swapped = [MemberInfo(1, "n1", "tcp://h2:1"), MemberInfo(2, "n2", "tcp://h1:1"), KNOWN[2]]
    assert len(node_differences(KNOWN, swapped)) == 2
    assert list_differences(members(3), KNOWN, 4) == ["numPartitions is 4 instead of 2"]
    assert list_differences(members(1), [MemberInfo(1, "x", "y")], 9) == [], "one node may move"
    assert list_differences(members(1), KNOWN, 2) == ["n2 (id 2) is not a member", "n3 (id 3) is not a member"]


@pytest.mark.parametrize("own, registered, voting, expected", [
    (1, 1, True, MemberState.MEMBER), (9, 1, True, MemberState.RECOVERING), (9, 0, False, MemberState.LEARNER)])
def test_the_state_of_a_node(own: int, registered: int, voting: bool, expected: MemberState) -> None:
    found = Electorate(1, (1, 2))
    found.announced = {1: MemberStorage(own)}
    found.set_lists([MemberList(7, 1, 2, [MemberInfo(1, "n1", "", voting, registered), MemberInfo(2, "n2", "", True, 2)])])
    assert found.state() is expected


def test_every_combination_of_states_has_at_most_the_quorums_of_a_majority() -> None:
    for states in product(StorageState, repeat=3):
        for each in subsets(range(1, 4)):
            assert not unformed(*states).has_quorum(each) or len(each) >= 2
