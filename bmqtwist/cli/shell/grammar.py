"""A line of the shell: `verb name=value name=value ...`.

A value is JSON if it begins with `"`, `[` or `{`, else everything up to the next blank: a number, true, false, null, or
text as it stands. The `=` before a JSON value may be left out. Names may be quoted.
"""

from __future__ import annotations

import json
import re
from typing import Any

from bmqtwist.errors import LocalError

LINE_CHARS_MAX = 64 << 20
_VERB = re.compile(r"[^\s=]+")
_NAME = re.compile(r'[^\s="\[\]{},]+')
_BARE = re.compile(r"\S+")
_BLANK = re.compile(r"\s*")
_JSON = json.JSONDecoder(strict=False)


class CommandError(LocalError):
    """A command that cannot be carried out as it was given."""


class Undecodable(CommandError):
    """A line that cannot be read."""


def split(line: str) -> tuple[str, dict[str, Any]]:
    """Verb and members of a line that is not blank; Undecodable says what is wrong and where."""
    if len(line) > LINE_CHARS_MAX:
        raise Undecodable(f"a line of {len(line)} characters, more than {LINE_CHARS_MAX}")
    verb = verb_of(line)
    members: dict[str, Any] = {}
    at = _past_blanks(line, 0) + len(verb)
    while True:
        begin = _past_blanks(line, at)
        if begin == len(line):
            return verb, members
        if begin == at:
            raise Undecodable(f"character {at + 1}: put a blank before {_excerpt(line, at)}")
        name, at = _name(line, begin)
        if name in members:
            raise Undecodable(f"{name!r} is given twice")
        members[name], at = _value(line, at, name)


def verb_of(line: str) -> str:
    """The first word."""
    found = _VERB.match(line, _past_blanks(line, 0))
    if found is None:
        raise Undecodable("a line begins with a command, see 'help'")
    return found.group()


def _past_blanks(line: str, at: int) -> int:
    found = _BLANK.match(line, at)
    return found.end() if found else at


def _excerpt(line: str, at: int) -> str:
    return repr(line[at:at + 20])


def _name(line: str, at: int) -> tuple[str, int]:
    if line[at] == '"':
        value, end = _json(line, at)
        return str(value), end
    found = _NAME.match(line, at)
    if found is None:
        raise Undecodable(f"character {at + 1}: a name is expected, for instance uri=\"bmq://domain/queue\", "
                          f"not {_excerpt(line, at)}")
    return found.group(), found.end()


def _value(line: str, at: int, name: str) -> tuple[Any, int]:
    start = _past_blanks(line, at)
    equals = line[start:start + 1] == "="
    if equals:
        start = _past_blanks(line, start + 1)
    first = line[start:start + 1]
    if first and first in '"[{':
        return _json(line, start)
    found = _BARE.match(line, start)
    if not equals or found is None:
        raise Undecodable(f"{name!r} has no value: write {name}=...")
    text = found.group()
    if text in ("NaN", "Infinity", "-Infinity"):
        return text, found.end()
    try:
        return json.loads(text), found.end()
    except (ValueError, RecursionError):
        return text, found.end()


def _json(line: str, at: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(line, at)
    except json.JSONDecodeError as error:
        raise Undecodable(f"character {error.pos + 1}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"character {at + 1}: {error}") from None
