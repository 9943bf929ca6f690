"""JSON merge patches (RFC 7396), applied as the pages of the console do.

Used by the tests of the console; the product makes patches in `bmqtwist/console/documents.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]


def apply_patch(document: Mapping[str, Any], patch: Mapping[str, Any]) -> Document:
    """Apply a patch to a document and return the result."""
    made = dict(document)
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        elif isinstance(value, dict):
            before = made.get(name)
            made[name] = apply_patch(before if isinstance(before, dict) else {}, value)
        else:
            made[name] = value
    return made
