"""Output forms of configuration objects: plain data, JSON of admin answers, and `[ a = 1 ]` of error messages. All follow
the declarations of the members.

`admin/operations.py` and `view/` show configurations with it, `provider.py` puts them into errors. Schema messages have a
similar form in `wire/text.py`.
"""

from __future__ import annotations

import json
from typing import Any

from bmqtwist.config.declare import Scalar, Section

MASK = "***"


def plain(value: Any, secret: bool = False) -> Any:
    """Return dictionaries, lists and scalars with the names of the file; absent members are omitted, secrets masked.

    >>> from bmqtwist.config.broker import CredentialConfig
    >>> plain(CredentialConfig(mechanism="BASIC", identity="alice:secret"))
    {'mechanism': 'BASIC', 'identity': '***'}
    """
    if isinstance(value, tuple):
        return [plain(each, secret) for each in value]
    if not isinstance(value, Section):
        return MASK if secret else value
    members = ((declared, getattr(value, declared.attribute)) for declared in value.DECLARED)
    return {declared.name: plain(inner, declared.secret) for declared, inner in members if inner is not None}


def pretty_json(value: Any) -> str:
    """Format as JSON: two blanks per level, an empty object over three lines, without empty arrays, a newline at the end."""
    return _pretty(plain(value), "") + "\n"


def _pretty(value: Any, margin: str) -> str:
    inner = margin + "  "
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(name)}: {_pretty(each, inner)}" for name, each in value.items() if each != []]
        return "{\n" + ",\n".join(lines) + "\n" + margin + "}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _pretty(each, inner) for each in value) + "\n" + margin + "]"
    return json.dumps(value, ensure_ascii=False)


def bracketed(value: Any) -> str:
    """Format as `[ name = value ]` on one line: strings quoted, absent members as NULL, an empty object as "".

    >>> from bmqtwist.config.domain import Broadcast, Fanout, Mode
    >>> bracketed(Mode(broadcast=Broadcast()))
    '[ broadcast =  ]'
    >>> bracketed(Mode(fanout=Fanout(app_ids=("foo", "bar"))))
    '[ fanout = [ appIDs = [ "foo" "bar" ] publishAppIdMetrics = true ] ]'
    """
    if isinstance(value, tuple):
        return f"[ {''.join(bracketed(each) + ' ' for each in value)}]"
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, Section):
        return str(value)
    parts = []
    for declared in value.DECLARED:
        inner = getattr(value, declared.attribute)
        if inner is None and value.IS_CHOICE:
            continue
        shown = inner if isinstance(declared.kind, Scalar) and declared.kind.words else bracketed(inner)
        parts.append(f"{declared.name} = {shown} ")
    return f"[ {''.join(parts)}]" if parts else ""
