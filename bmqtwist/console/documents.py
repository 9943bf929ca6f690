"""JSON encoding of the console's documents: wire form on the WebSocket, merge patches (RFC 7386), and JSON in pages.

A merge patch replaces a list as a whole, so the wire form has lists of named rows as objects. A null member and a
missing member are equal. `collector.py` creates the documents, `hub.py` sends them; their fields are declared in
`view/documents.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Document:
    """Return the patch from `old` to `new`; empty = they are equal.

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
    """Return rows by one of their members, in order."""
    return {str(row[key]): row for row in rows}


def ranked(rows: Sequence[Mapping[str, Any]], key: str) -> Document:
    """Return rows by one of their members, and their order as a list of keys."""
    by_key = keyed(rows, key)
    return {"rows": by_key, "order": list(by_key)}


def cluster_on_the_wire(cluster: Mapping[str, Any]) -> Document:
    """Return the cluster document in the form that the WebSocket sends."""
    return {**cluster, "nodes": keyed(cluster["nodes"], "name"), "nodesOrder": [each["name"] for each in cluster["nodes"]],
            "partitions": keyed(cluster["partitions"], "id"),
            "partitionsOrder": [str(each["id"]) for each in cluster["partitions"]],
            "proxies": keyed(cluster["proxies"], "ident"), "queuesTop": ranked(cluster["queuesTop"], "uri")}


def queues_on_the_wire(page: Mapping[str, Any]) -> Document:
    """Return a page of queues in the form that the WebSocket sends."""
    return {**page, **ranked(page["rows"], "uri")}


def compact(document: object) -> str:
    """Return compact JSON; NaN and infinity become null."""
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
    """Return JSON for a <script> element: characters that could end the element are escaped."""
    text = compact(document)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
