"""Parser of admin commands, in words or as JSON, by the table in `table.py`.

`parse` accepts any text: it returns a command and an encoding, or raises CommandError with the reason. Syntax elements
are declared in `commands.py`.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from bmqtwist.admin.commands import AnswerEncoding, Arguments, Command, CommandError, Entry, Value
from bmqtwist.admin.table import TABLE

_INTEGER = re.compile(r"[-+]?[0-9]{1,20}")
_DOUBLE = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|inf(?:inity)?|nan)",
                     re.IGNORECASE)
_ISO: tuple[tuple[str, Callable[[str], object]], ...] = (
    ("theDate", datetime.date.fromisoformat),
    ("theTime", datetime.time.fromisoformat),
    ("theDatetime", datetime.datetime.fromisoformat),
)
_NUMBERS = ("offset", "count", "partitionId", "after", "id")
_ENCODINGS = f"[{', '.join(encoding.value for encoding in AnswerEncoding)}]"
_REST = "<expression>"  # an argument that takes all remaining words
_TOKEN_TEXTS = {
    "<appId>": 'an appId or "*"', "<name>": "a name", "<domain>": "a domain name", "<queue_name>": "a queue name",
    "<domain_name>": "a domain name", "<parameter>": "a parameter name", "<value>": "a value",
    "<partitionId>": "a partition id", "<offset>": "an offset", "<count>": 'a count or "UNLIMITED"',
    "(<domain>|ALL)": 'a domain name or "ALL"', "(<partitionId>|ALL)": 'a partition id or "ALL"'}


def parse(text: str) -> tuple[Command, AnswerEncoding]:
    """Return the command in `text` and the encoding of its answer. Raises CommandError."""
    if not text.strip():
        raise CommandError("Empty input")
    if text.startswith("{"):
        return _parse_json(text)
    words = text.split()
    encoding = AnswerEncoding.TEXT
    if words[0].upper() == "ENCODING":
        if len(words) == 1:
            raise CommandError(f"ENCODING must be followed by one of {_ENCODINGS} and a command")
        encoding = _encoding(words[1])
        words = words[2:]
        if not words:
            raise CommandError("The ENCODING option must be followed by a command")
    return _parse_words(words), encoding


def _encoding(word: str) -> AnswerEncoding:
    try:
        return AnswerEncoding(word.upper())
    except ValueError:
        raise CommandError(f"The ENCODING option must be followed by one of the {_ENCODINGS} settings (default: TEXT),"
                           f" but the following was given: {word}") from None


def parse_value(word: str) -> Value:
    """Parse a tunable's value: null, true or false, integer, double, ISO date, time or datetime, else a string."""
    if word == "null":
        return Value("theNull", None)
    if word in ("true", "false"):
        return Value("theBool", word == "true")
    if _INTEGER.fullmatch(word) and -(1 << 63) <= int(word) < 1 << 63:
        return Value("theInteger", int(word))
    if _DOUBLE.fullmatch(word):
        return Value("theDouble", float(word))
    for kind, read in _ISO:
        try:
            read(word)
        except ValueError:
            continue
        return Value(kind, word)
    return Value("theString", word)


# -- words


class _Miss(Struct):
    """Failed match of a syntax: number of matched words (`reached`), and the expected next token ("" = end)."""

    entry: Entry
    reached: int
    wanted: str
    reason: str = ""


def _parse_words(words: list[str]) -> Command:
    misses = []
    for entry in TABLE:
        outcome = _match_words(entry, words)
        if not isinstance(outcome, _Miss):
            return entry.command(outcome)
        misses.append(outcome)
    raise CommandError(_explain(words, misses))


def _match_words(entry: Entry, words: list[str]) -> Arguments | _Miss:
    grammar = entry.grammar
    if grammar[-1] == _REST and len(words) > len(grammar):
        words = [*words[:len(grammar) - 1], " ".join(words[len(grammar) - 1:])]
    required = sum(not _is_optional(token) for token in grammar)
    spare = len(words) - required  # words left for optional tokens
    args: Arguments = {}
    at = 0
    for token in grammar:
        name = token.strip("[]()<>")
        if _is_optional(token):
            if spare <= 0:
                continue
            spare -= 1
        if at == len(words):
            return _Miss(entry, at, token)
        word = words[at]
        if token.startswith("("):
            name = name.partition(">")[0]
            if word.upper() == "ALL":
                args[name] = None
                at += 1
                continue
        if "<" in token:
            try:
                args[name] = _argument(name, word)
            except ValueError:
                return _Miss(entry, at + 1, token, f"Invalid <{name}> in {entry.syntax}: {word}")
        elif word.upper() not in name.split("|"):
            return _Miss(entry, at, token)
        elif "|" in name:
            args["word"] = word.upper()
        elif token.startswith("["):
            args[name.lower()] = True
        at += 1
    return args if at == len(words) else _Miss(entry, at, "")


def _is_optional(token: str) -> bool:
    return token.startswith("[") and "|" not in token


def _argument(name: str, word: str) -> Any:
    if name == "count" and word.upper() == "UNLIMITED":
        return 0
    if name in _NUMBERS:
        if not _INTEGER.fullmatch(word):
            raise ValueError(word)
        return _int32(int(word))
    return parse_value(word) if name == "value" else word


def _int32(number: int) -> int:
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(number)
    return number


def _explain(words: list[str], misses: list[_Miss]) -> str:
    """Return the reason why no syntax matched: the tokens expected by the longest partial matches."""
    furthest = max(miss.reached for miss in misses)
    if furthest == 0:
        return f'Invalid command. Send "HELP" for list of commands. Invalid command word: {words[0]}'
    best = [miss for miss in misses if miss.reached == furthest]
    for miss in best:
        if miss.reason:
            return miss.reason
    entry = best[0].entry
    prefix = " ".join(_mandatory_tokens(entry.grammar[:furthest]))
    wanted = list(dict.fromkeys(_token_text(miss.wanted) for miss in best if miss.wanted))
    expected = " or ".join(wanted)
    if furthest == len(words):
        return f"{prefix} command must be followed by {expected}."
    if not wanted:
        return f"Unexpected words after {prefix}: {' '.join(words[furthest:])}"
    return f"{prefix} command must be followed by {expected}, but the following was given: {words[furthest]}"


def _mandatory_tokens(tokens: list[str]) -> list[str]:
    return [token for token in tokens if not _is_optional(token)]


def _token_text(token: str) -> str:
    return _TOKEN_TEXTS.get(token.strip("[]") if "<" in token and "|" not in token else token, token)


# -- JSON


def _parse_json(text: str) -> tuple[Command, AnswerEncoding]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"Error decoding JSON command [rc: -1, error: '{error}']") from None
    encoding = tree.get("encoding", AnswerEncoding.TEXT.value)
    if not isinstance(encoding, str):
        raise CommandError("Error decoding JSON command [rc: -1, error: 'encoding must be a string']")
    chosen = _encoding(encoding)
    failures: list[tuple[int, str]] = []
    for entry in TABLE:
        for template, implied in entry.json:
            args: Arguments = dict(implied)
            try:
                _fill(template, tree, args, 0)
                return entry.command(args), chosen
            except _Mismatch as mismatch:
                failures.append((mismatch.depth, str(mismatch)))
    reason = max(failures, key=lambda failure: failure[0])[1]
    raise CommandError(f"Error decoding JSON command [rc: -1, error: '{reason}']")


class _Mismatch(Exception):
    """Failed match of a JSON template. `depth`: number of matched levels."""

    def __init__(self, depth: int, reason: str) -> None:
        super().__init__(reason)
        self.depth = depth


def _fill(template: object, given: object, args: Arguments, depth: int) -> None:
    """Match `given` with the template and collect the arguments; members that the template does not name are ignored."""
    if isinstance(template, str):
        args[template.strip("<>")] = _json_argument(template.strip("<>"), given, depth)
        return
    if not isinstance(given, dict):
        raise _Mismatch(depth, f"an object was expected, not {json.dumps(given)[:40]}")
    if not isinstance(template, Mapping):
        raise _Mismatch(depth, "unknown form")
    for key, inner in template.items():
        name = key.removeprefix("?")
        if key.startswith("?") and given.get(name) is None:
            continue
        if name not in given:
            raise _Mismatch(depth, f"member {name} is missing" if depth else "unknown command")
        _fill(inner, given[name], args, depth + 1)


def _json_argument(name: str, given: object, depth: int) -> Any:
    if name in ("plumbing", "finalize"):
        if isinstance(given, bool):
            return given
    elif name in _NUMBERS:
        if isinstance(given, int) and not isinstance(given, bool) and -(1 << 31) <= given < 1 << 31:
            return given
    elif name == "value":
        value = _json_value(given)
        if value is not None:
            return value
    elif isinstance(given, str):
        return given
    raise _Mismatch(depth, f"{name} cannot be {json.dumps(given)[:40]}")


_KINDS: dict[str, tuple[type, ...]] = {
    "theBool": (bool,), "theInteger": (int,), "theDouble": (int, float), "theString": (str,), "theDate": (str,),
    "theTime": (str,), "theDatetime": (str,)}


def _json_value(given: object) -> Value | None:
    if not isinstance(given, dict) or len(given) != 1:
        return None
    kind: str = next(iter(given))
    value: Any = given[kind]
    if kind == "theNull":
        return Value(kind, None)
    fits = isinstance(value, _KINDS.get(kind, ())) and isinstance(value, bool) == (kind == "theBool")
    if not fits:
        return None
    if kind == "theInteger" and not -(1 << 63) <= value < 1 << 63:
        return None
    if kind == "theDouble":
        try:
            value = float(value)
        except OverflowError:
            return None
        if not math.isfinite(value):
            return None
    if kind in dict(_ISO):
        try:
            dict(_ISO)[kind](value)
        except ValueError:
            return None
    return Value(kind, value)
