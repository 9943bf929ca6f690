"""Batches of records: batches without messages are merged before they are sent to replicas."""

from __future__ import annotations

import pytest

from bmqtwist.storage.partition_log import Batch, merge_batches


def confirm_batch(first: int, count: int) -> Batch:
    return Batch(first, [b"c%d" % number for number in range(first, first + count)], [], [])


def message_batch(first: int) -> Batch:
    return Batch(first, [b"m%d" % first], [b"payload"], [])


@pytest.mark.parametrize(("batches", "whole"), [
    ([], []),
    ([message_batch(1)], [(1, 1)]),
    ([confirm_batch(1, 2), confirm_batch(3, 1)], [(1, 3)]),
    ([confirm_batch(1, 2), message_batch(3)], [(1, 3)]),
    ([message_batch(1), confirm_batch(2, 1), message_batch(3)], [(1, 1), (2, 2)]),
    ([confirm_batch(1, 3), confirm_batch(4, 2), message_batch(6)], [(1, 3), (4, 3)]),
])
def test_batches_of_confirms_are_merged_with_the_next_message_up_to_a_limit(batches: list[Batch],
                                                                            whole: list[tuple[int, int]]) -> None:
    found = merge_batches(batches, records_max=4)
    assert [(batch.first, len(batch.journal)) for batch in found] == whole
    for what in ("journal", "data", "qlist"):
        assert sum((getattr(batch, what) for batch in found), []) == sum((getattr(batch, what) for batch in batches), [])
