"""Documents as they travel: lists by their keys, and what changed between two of them (RFC 7386, JSON merge patch).

A merge patch replaces lists whole, so lists of things that have a name go as objects. A member that is null and one that is
not there mean the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Document:
    """What makes `new` of `old`; empty = nothing.

    >>> merge_patch({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2, "d": 4}, "e": [1]})
    {'b': {'d': 4}, 'e': [1], 'a': None}
    """
    patch: Document = {}
    for name, value in new.items():
        before = old.get(name)
        if value is before or value == before:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        else:
            patch[name] = value
    for name, value in old.items():
        if value is not None and name not in new:
            patch[name] = None
    return patch


def keyed(rows: Sequence[Mapping[str, Any]], key: str) -> Document:
    """Rows by one of their members, in their order."""
    return {str(row[key]): row for row in rows}


def ranked(rows: Sequence[Mapping[str, Any]], key: str) -> Document:
    """Rows by one of their members, with their order beside them."""
    by_key = keyed(rows, key)
    return {"rows": by_key, "order": list(by_key)}


def cluster_on_the_wire(cluster: Mapping[str, Any]) -> Document:
    """The document of the cluster as the WebSocket sends it."""
    return {**cluster, "nodes": keyed(cluster["nodes"], "name"), "nodesOrder": [each["name"] for each in cluster["nodes"]],
            "partitions": keyed(cluster["partitions"], "id"),
            "partitionsOrder": [str(each["id"]) for each in cluster["partitions"]],
            "proxies": keyed(cluster["proxies"], "ident"), "queuesTop": ranked(cluster["queuesTop"], "uri")}


def queues_on_the_wire(page: Mapping[str, Any]) -> Document:
    """A page of queues as the WebSocket sends it."""
    return {**page, **ranked(page["rows"], "uri")}


def compact(document: object) -> str:
    """As text; what JSON has no number for is null."""
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(document), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def for_script(document: object) -> str:
    """As text that stands in a <script> of a page: no character of it can end that or begin another."""
    text = compact(document)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
