"""GUIDs derived from content: equal in each attempt and order of rows, different for different rows.

The tested module is `bmqtwist/spark/producers.py`.
"""

from __future__ import annotations

import random

import pytest

from bmqtwist.errors import LocalError
from bmqtwist.spark.producers import Guids, check_guid

QUEUE = "bmq://d/q"


def attempt(rows: list[tuple[bytes, dict[str, str]]], *scope: object) -> set[bytes]:
    made = Guids([str(each) for each in scope or ("query", 1, 0)])
    return {made.for_content(QUEUE, value, properties.items()) for value, properties in rows}


def test_a_second_attempt_creates_the_same_guids_in_any_order_of_rows() -> None:
    rows = [(b"%d" % (number % 7), {"a": str(number % 3), "b": "x"}) for number in range(100)]
    shuffled = random.Random(1).sample(rows, len(rows))
    assert attempt(rows) == attempt(shuffled) and len(attempt(rows)) == 100


def test_equal_rows_have_different_guids() -> None:
    assert len(attempt([(b"same", {})] * 5)) == 5


def test_rows_whose_fields_join_to_equal_bytes_have_different_guids() -> None:
    assert len(attempt([(b"ab", {}), (b"a", {"b": ""}), (b"a", {"": "b"}), (b"", {"a": "b"})])) == 4


@pytest.mark.parametrize("other", [("query", 2, 0), ("query", 1, 1), ("other", 1, 0)])
def test_guids_differ_between_batches_partitions_and_queries(other: tuple[object, ...]) -> None:
    rows: list[tuple[bytes, dict[str, str]]] = [(b"x", {})]
    assert not attempt(rows) & attempt(rows, *other)


def test_a_guid_from_a_key_depends_on_key_and_queue_only() -> None:
    one, two = Guids(["a", 1]), Guids(["b", 2])
    assert one.for_key(QUEUE, b"k") == two.for_key(QUEUE, b"k")
    assert one.for_key(QUEUE, b"k") != one.for_key("bmq://d/r", b"k")


def test_guids_have_the_version_that_brokers_expect() -> None:
    made = Guids(["x"])
    guids = made.for_key(QUEUE, b"k"), made.for_content(QUEUE, b"v", ())
    assert all(guid[0] >> 6 == 1 and len(guid) == 16 for guid in guids)
    assert check_guid(made.for_key(QUEUE, b"k")) == made.for_key(QUEUE, b"k")
    for wrong in (b"short", bytes(16)):
        with pytest.raises(LocalError, match="not a GUID"):
            check_guid(wrong)
