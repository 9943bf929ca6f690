"""Merging of batches before they are sent to replicas."""

from __future__ import annotations

import pytest

from bmqtwist.storage.partition_log import Batch, joined


def confirms(first: int, count: int) -> Batch:
    return Batch(first, [b"c%d" % number for number in range(first, first + count)], [], [])


def message(first: int) -> Batch:
    return Batch(first, [b"m%d" % first], [b"payload"], [])


@pytest.mark.parametrize(("batches", "whole"), [
    ([], []),
    ([message(1)], [(1, 1)]),
    ([confirms(1, 2), confirms(3, 1)], [(1, 3)]),
    ([confirms(1, 2), message(3)], [(1, 3)]),
    ([message(1), confirms(2, 1), message(3)], [(1, 1), (2, 2)]),
    ([confirms(1, 3), confirms(4, 2), message(6)], [(1, 3), (4, 3)]),
])
def test_confirms_join_the_next_message_up_to_a_limit(batches: list[Batch], whole: list[tuple[int, int]]) -> None:
    found = joined(batches, records_max=4)
    assert [(batch.first, len(batch.journal)) for batch in found] == whole
    for what in ("journal", "data", "qlist"):
        assert sum((getattr(batch, what) for batch in found), []) == sum((getattr(batch, what) for batch in batches), [])
