"""Merge patches between documents, and JSON that is safe in a page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.merge_patch import apply_patch

from bmqtwist.console.documents import (
    cluster_on_the_wire,
    compact,
    for_script,
    merge_patch,
    queues_on_the_wire,
)

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab<",
                                                                   max_size=2) | st.lists(st.integers(0, 2), max_size=2)
TREES = st.recursive(st.dictionaries(st.sampled_from("abcd"), SCALARS, max_size=4),
                     lambda inner: st.dictionaries(st.sampled_from("abcd"), SCALARS | inner, max_size=4), max_leaves=8)


def without_nulls(value: Any) -> Any:
    """Remove null members, which equal missing ones."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value



@given(TREES, TREES)
def test_a_merge_patch_transforms_the_old_document_into_the_new_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    made = apply_patch(without_nulls(old), merge_patch(old, new))
    assert without_nulls(made) == without_nulls(new)


@given(TREES)
def test_the_patch_of_an_unchanged_document_is_empty(tree: dict[str, Any]) -> None:
    assert merge_patch(tree, json.loads(json.dumps(tree))) == {}


def test_lists_of_named_rows_are_sent_as_objects_with_their_order() -> None:
    """A merge patch would send the whole list for one changed number."""
    cluster = {"nodes": [{"name": "n2", "x": 1}, {"name": "n1", "x": 2}], "partitions": [{"id": 1}, {"id": 0}],
               "queuesTop": [{"uri": "b", "messages": 2}, {"uri": "a", "messages": 1}], "events": [1],
               "proxies": [{"ident": "p1@h:1", "name": "p1"}]}
    sent = cluster_on_the_wire(cluster)
    assert sent["nodes"]["n1"] == {"name": "n1", "x": 2} and sent["nodesOrder"] == ["n2", "n1"]
    assert list(sent["partitions"]) == ["1", "0"] == sent["partitionsOrder"]
    assert sent["queuesTop"] == {"rows": {"b": cluster["queuesTop"][0], "a": cluster["queuesTop"][1]}, "order": ["b", "a"]}
    assert sent["proxies"] == {"p1@h:1": cluster["proxies"][0]}
    assert queues_on_the_wire({"rows": [{"uri": "q"}], "total": 1}) == {"rows": {"q": {"uri": "q"}}, "order": ["q"],
                                                                        "total": 1}


@pytest.mark.parametrize("hostile", ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "\u2028\u2029", "&lt;",
                                     "\ud800"])
def test_texts_in_a_script_element_are_escaped(hostile: str) -> None:
    text = for_script({"uri": hostile, hostile: [hostile]})
    assert not set(text) & set("<>&\u2028\u2029") and json.loads(text) == {"uri": hostile, hostile: [hostile]}


def test_infinite_numbers_and_nan_are_encoded_as_null() -> None:
    assert json.loads(compact({"a": [float("inf"), {"b": float("nan")}], "c": 1.5})) == {"a": [None, {"b": None}], "c": 1.5}
