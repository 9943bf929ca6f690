"""Schema messages as log lines: `[ rId = 1 choice = [ openQueue = [ handleParameters = [ uri = "bmq://d/q" ... ] ] ] ]`

The format is that of the original's log, for tools that parse its lines. Long lists and texts are truncated.
`link/requests.py` and `relay/relays.py` log requests with it. Configuration objects have a similar form in `config/text.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from bmqtwist.report import shown
from bmqtwist.wire.fields import choice_of, fields_of

_ITEMS_MAX = 16  # shown of a list
_CHARS_MAX = 512  # shown of a text or of bytes

def bracketed(message: Any) -> str:
    """Return a schema message as one line; absent optionals are NULL, absent extensions are omitted, bytes are upper-case
    hexadecimal."""
    kind: type = type(message)
    added = getattr(kind, "EXTENSIONS", ())
    parts = [f"{field.wire_name} = {_value(getattr(message, field.attribute))}" for field in fields_of(kind)
             if field.attribute not in added or getattr(message, field.attribute) is not None]
    if choice_of(kind) is not None:
        parts.append(f"choice = [ {message.choice or 'UNDEFINED'} = {_value(message.value)} ]")
    return f"[ {' '.join(parts)} ]" if parts else "[ ]"


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return f'"{shown(value, _CHARS_MAX)}"'
    if isinstance(value, bytes):
        return value[:_CHARS_MAX].hex().upper() + ("..." if len(value) > _CHARS_MAX else "")
    if isinstance(value, list):
        more = f" ... ({len(value)})" if len(value) > _ITEMS_MAX else ""
        return f"[ {' '.join(map(_value, value[:_ITEMS_MAX]))}{more} ]" if value else "[ ]"
    return bracketed(value)
