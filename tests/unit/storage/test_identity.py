"""Identity of a storage directory: its file, and the assessment of every combination of lost files."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from bmqtwist.storage.identity import (
    IDENTITY_FILE,
    FoundStorage,
    IdentityFile,
    Part,
    StorageIdentity,
    StorageState,
    assess,
    random_id,
)
from bmqtwist.storage.memory import MemoryDisk
from bmqtwist.storage.slot_file import Doubt

WANTED = StorageIdentity("c", 1, 2, 0)
KNOWN = StorageIdentity("c", 1, 2, 5, StorageState.COMPLETE, 7)
PRESENT, MISSING, DAMAGED = Part
FOUND = FoundStorage(KNOWN, PRESENT, PRESENT, True, True, PRESENT, PRESENT, frozenset((0, 1)))
FRESH, COMPLETE, VOTE_LOST, LOST = StorageState


def renew() -> int:
    return 6


def test_an_identity_is_read_as_written_and_replaced_as_a_whole() -> None:
    disk = MemoryDisk()
    file = IdentityFile(disk, "/s")
    assert file.read() == (None, MISSING)
    for identity in (KNOWN, replace(KNOWN, incarnation=1 << 62, state=VOTE_LOST, previous=5)):
        file.write(identity)
        assert file.read() == (identity, PRESENT)
        disk.crash(NoWrites())
        assert file.read() == (identity, PRESENT)
    disk.put(f"/s/{IDENTITY_FILE}", b'{"cluster": 3}')
    assert file.read() == (None, DAMAGED)


class NoWrites:
    """Random source of a crash that loses all unsynced data."""

    def random(self) -> float:
        return 0.999


def test_intact_storage_keeps_its_incarnation() -> None:
    result = assess(FOUND, WANTED, renew)
    assert result.identity == KNOWN and not (result.is_renewed or result.doubts or result.lost or result.refusal)


def test_an_empty_directory_is_new_and_all_its_partitions_are_doubtful() -> None:
    empty = FoundStorage(None, MISSING, MISSING, False, False, MISSING, MISSING, frozenset())
    result = assess(empty, WANTED, renew)
    assert result.identity == replace(WANTED, incarnation=6) and result.is_renewed
    assert result.doubts == {0: Doubt.LOST, 1: Doubt.LOST} and not result.lost


def test_a_directory_of_an_earlier_version_is_complete() -> None:
    earlier = replace(FOUND, identity=None, identity_file=MISSING, has_members=False)
    result = assess(earlier, WANTED, renew)
    assert result.identity == replace(WANTED, incarnation=6, state=COMPLETE) and not result.doubts and not result.lost
    assert assess(replace(earlier, vote=MISSING), WANTED, renew).identity.state is VOTE_LOST
    assert assess(replace(earlier, vote=DAMAGED), WANTED, renew).identity.state is VOTE_LOST
    assert assess(replace(earlier, ledger=DAMAGED), WANTED, renew).identity.state is LOST


def test_a_lost_identity_of_a_formed_cluster_is_lost_storage() -> None:
    for part in (MISSING, DAMAGED):
        result = assess(replace(FOUND, identity=None, identity_file=part), WANTED, renew)
        assert (result.identity.state, result.identity.incarnation, result.is_renewed) == (LOST, 6, True) and result.lost


@pytest.mark.parametrize("ledger, vote, promises", list(product(Part, repeat=3)))
def test_each_lost_file_has_its_consequence(ledger: Part, vote: Part, promises: Part) -> None:
    result = assess(replace(FOUND, ledger=ledger, vote=vote, promises=promises), WANTED, renew)
    assert result.is_renewed is (ledger is not PRESENT or vote is not PRESENT)
    assert result.identity.incarnation == (6 if result.is_renewed else 5)
    assert result.identity.state is (LOST if ledger is not PRESENT else VOTE_LOST if vote is not PRESENT else COMPLETE)
    assert result.identity.previous == (5 if result.identity.state is VOTE_LOST else 0)
    assert result.doubts == ({0: Doubt.TAIL, 1: Doubt.TAIL} if promises is not PRESENT else {})
    assert len(result.lost) == sum(each is not PRESENT for each in (ledger, vote, promises))


def test_a_lost_file_set_makes_its_partition_doubtful() -> None:
    result = assess(replace(FOUND, file_sets=frozenset((0,))), WANTED, renew)
    assert result.doubts == {1: Doubt.LOST} and not result.is_renewed and result.lost == ["the file set of partition 1"]
    more = assess(FOUND, replace(WANTED, partitions=4), renew)
    assert not more.doubts and more.identity.partitions == 4


def test_a_file_set_that_is_lost_right_after_the_cluster_was_formed_is_missed() -> None:
    known = replace(KNOWN, state=FRESH)
    result = assess(replace(FOUND, identity=known, file_sets=frozenset((0,))), WANTED, renew)
    assert (result.identity.state, result.doubts) == (COMPLETE, {1: Doubt.LOST}) and result.lost
    assert assess(replace(FOUND, identity=known), WANTED, renew).identity.state is FRESH


def test_new_storage_with_records_of_a_cluster_without_member_list_is_complete() -> None:
    found = replace(FOUND, identity=replace(KNOWN, state=FRESH), has_members=False)
    assert assess(found, WANTED, renew).identity.state is COMPLETE
    assert assess(replace(found, ledger_records=False), WANTED, renew).identity.state is FRESH
    assert assess(replace(found, ledger=MISSING), WANTED, renew).identity.state is LOST


def test_a_second_loss_before_the_registration_is_remembered() -> None:
    once = assess(replace(FOUND, vote=MISSING), WANTED, renew).identity
    twice = assess(replace(FOUND, identity=once, vote=MISSING), WANTED, lambda: 8).identity
    assert (twice.incarnation, twice.previous, twice.state) == (8, 5, VOTE_LOST)
    worse = assess(replace(FOUND, identity=twice, ledger=MISSING), WANTED, lambda: 9).identity
    assert (worse.incarnation, worse.previous, worse.state) == (9, 0, LOST)
    assert assess(replace(FOUND, identity=worse, vote=MISSING), WANTED, lambda: 10).identity.state is LOST


def test_a_start_that_was_interrupted_leaves_new_storage() -> None:
    begun = FoundStorage(replace(WANTED, incarnation=5), PRESENT, MISSING, False, False, MISSING, MISSING, frozenset())
    result = assess(begun, WANTED, renew)
    assert result.identity.state is FRESH and result.doubts == {0: Doubt.LOST, 1: Doubt.LOST} and not result.lost


@pytest.mark.parametrize("change", [{"cluster": "other"}, {"node_id": 2}])
def test_a_directory_of_another_node_is_refused(change: dict[str, str]) -> None:
    result = assess(replace(FOUND, identity=replace(KNOWN, **change)), WANTED, renew)
    assert "Nothing was changed" in result.refusal and result.identity.incarnation == 5


def test_random_ids_have_63_bits_and_are_not_0() -> None:
    assert random_id(lambda: 0.0) == 1 and random_id(lambda: 1 - 2 ** -40) < 1 << 63
