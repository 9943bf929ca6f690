"""Parser of shell commands: grammar of a line, and members of each command with the names, types and defaults of bmqtool.

A line is `verb name=value name=value ...`. A value is JSON if it begins with `"`, `[` or `{`, else everything up to the
next blank: a number, true, false, null, or plain text. The `=` before a JSON value is optional. Names may be quoted, or
written with dashes (`max-unconfirmed-messages`). A null member is treated as absent. Pure: `interactive.py` calls `parse`
and executes the command.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bmqtwist.errors import BmqError, LocalError, PeerError
from bmqtwist.ids import parse_uri
from bmqtwist.wire import properties
from bmqtwist.wire.properties import Properties, PropertyType

LINE_CHARS_MAX = 64 << 20
_VERB = re.compile(r"[^\s=]+")
_NAME = re.compile(r'[^\s="\[\]{},]+')
_BARE = re.compile(r"\S+")
_BLANK = re.compile(r"\s*")
_JSON = json.JSONDecoder(strict=False)


class ShellCommandError(LocalError):
    """A command that cannot be executed."""


class UnparsableCommand(ShellCommandError):
    """A line that cannot be parsed."""


def split_line(line: str) -> tuple[str, dict[str, Any]]:
    """Split a non-blank line into verb and members. Raises UnparsableCommand with position and reason."""
    if len(line) > LINE_CHARS_MAX:
        raise UnparsableCommand(f"a line of {len(line)} characters, more than {LINE_CHARS_MAX}")
    verb = verb_of(line)
    members: dict[str, Any] = {}
    at = _past_blanks(line, 0) + len(verb)
    while True:
        begin = _past_blanks(line, at)
        if begin == len(line):
            return verb, members
        if begin == at:
            raise UnparsableCommand(f"character {at + 1}: a blank is missing before {_excerpt(line, at)}")
        name, at = _parse_name(line, begin)
        if name in members:
            raise UnparsableCommand(f"{name!r} is given twice")
        members[name], at = _parse_value(line, at, name)


def verb_of(line: str) -> str:
    found = _VERB.match(line, _past_blanks(line, 0))
    if found is None:
        raise UnparsableCommand("a line begins with a command, see 'help'")
    return found.group()


def _past_blanks(line: str, at: int) -> int:
    found = _BLANK.match(line, at)
    return found.end() if found else at


def _excerpt(line: str, at: int) -> str:
    return repr(line[at:at + 20])


def _parse_name(line: str, at: int) -> tuple[str, int]:
    if line[at] == '"':
        value, end = _parse_json(line, at)
        return str(value), end
    found = _NAME.match(line, at)
    if found is None:
        raise UnparsableCommand(f"character {at + 1}: a name is expected, for instance uri=\"bmq://domain/queue\", "
                                f"not {_excerpt(line, at)}")
    return found.group(), found.end()


def _parse_value(line: str, at: int, name: str) -> tuple[Any, int]:
    start = _past_blanks(line, at)
    equals = line[start:start + 1] == "="
    if equals:
        start = _past_blanks(line, start + 1)
    first = line[start:start + 1]
    if first and first in '"[{':
        return _parse_json(line, start)
    found = _BARE.match(line, start)
    if not equals or found is None:
        raise UnparsableCommand(f"{name!r} has no value: write {name}=...")
    text = found.group()
    if text in ("NaN", "Infinity", "-Infinity"):
        return text, found.end()
    try:
        return json.loads(text), found.end()
    except (ValueError, RecursionError):
        return text, found.end()


def _parse_json(line: str, at: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(line, at)
    except json.JSONDecodeError as error:
        raise UnparsableCommand(f"character {error.pos + 1}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise UnparsableCommand(f"character {at + 1}: {error}") from None


MAX_UNCONFIRMED_MESSAGES, MAX_UNCONFIRMED_BYTES = 1024, 32 << 20
_INT32, _INT64 = (1 << 31) - 1, (1 << 63) - 1
_STORAGE_VERBS = ("openStorage", "closeStorage", "metadata", "listQueues", "dumpQueue", "data", "qlist", "journal",
                  "d", "j")


# -- readers of values: raise UnparsableCommand ------------------------------------------------------------------------

def _parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnparsableCommand(f"text in quotes is expected, not {_shorten(value)}")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UnparsableCommand("half a surrogate pair is not valid text") from None
    return value


def _parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnparsableCommand(f"true or false is expected, not {_shorten(value)}")
    return value


def _parse_integer(value: Any, low: int, high: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnparsableCommand(f"a whole number is expected, not {_shorten(value)}")
    if not low <= value <= high:
        raise UnparsableCommand(f"a number from {low} to {high} is expected, not {_shorten(value)}")
    return value


def _shorten(value: Any) -> str:
    try:
        return repr(value)[:40]
    except (ValueError, RecursionError):  # a number of thousands of digits, lists within lists
        return "this value"


_int, _count = partial(_parse_integer, low=-_INT32 - 1, high=_INT32), partial(_parse_integer, low=0, high=_INT32)
_long_count, _unsigned = partial(_parse_integer, low=0, high=_INT64), partial(_parse_integer, low=0, high=(1 << 32) - 1)


def _parse_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e6:
        raise UnparsableCommand(f"a number of seconds is expected, not {_shorten(value)}")
    return float(value)


def _parse_texts(value: Any) -> tuple[str, ...]:
    return tuple(_parse_text(each) for each in (value if isinstance(value, list) else [value]))


def _list_of(kind: Callable[[dict[str, Any]], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise UnparsableCommand(f"a list of objects is expected, not {_shorten(value)}")
        return tuple(kind(each) for each in value)
    return read


# -- structures --------------------------------------------------------------------------------------------------------

_TYPES = {"E_STRING": PropertyType.STRING, "E_INT": PropertyType.INT32,
          **{f"E_{kind.name}": kind for kind in PropertyType}}


@dataclass(frozen=True, slots=True)
class Property:
    """A property to post: `value` in the Python type of its `kind`."""

    name: str
    value: int | str | bool | bytes
    kind: PropertyType

    @property
    def type_name(self) -> str:
        return "E_INT" if self.kind is PropertyType.INT32 else f"E_{self.kind.name}"


def read_property(tree: dict[str, Any]) -> Property:
    """Parse a property `{"name": ..., "value": ..., "type": "E_STRING"}`; numbers may be quoted."""
    _check_names(tree, ("name", "value", "type"))
    name = _read_member(tree, "name", _parse_text, "")
    kind = _TYPES.get(_read_member(tree, "type", _parse_text, "E_STRING"))
    if not name:
        raise UnparsableCommand("a property needs a name")
    if kind is None:
        raise UnparsableCommand(f"property {name[:40]!r}: the types are {', '.join(_TYPES)}")
    if "value" not in tree:
        raise UnparsableCommand(f"property {name[:40]!r} needs a value")
    try:
        return Property(name, _property_value(tree["value"], kind), kind)
    except UnparsableCommand as error:
        raise UnparsableCommand(f"property {name[:40]!r}: {error}") from None


_BITS = {PropertyType.CHAR: 7, PropertyType.SHORT: 15, PropertyType.INT32: 31, PropertyType.INT64: 63}


def _property_value(value: Any, kind: PropertyType) -> int | str | bool | bytes:
    if kind is PropertyType.STRING:
        return _parse_text(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)
    if kind is PropertyType.BINARY:
        return _parse_text(value).encode("utf-8", "surrogateescape")
    if kind is PropertyType.BOOL:
        return _parse_flag({"true": True, "false": False}.get(value, value) if isinstance(value, str) else value)
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", value):
        value = int(value)
    bound = 1 << _BITS[kind]
    return _parse_integer(value, -bound, bound - 1)


def read_subscription(tree: dict[str, Any]) -> dict[str, Any]:
    """Parse a subscription; None for an absent member, which takes the value of the command."""
    return _fill_members(_SUBSCRIPTION, tree)


# -- the commands ------------------------------------------------------------------------------------------------------

# The members of a command, in the order in which it is printed: name -> (reader, default)
Members = dict[str, tuple[Callable[[Any], Any], Any]]
_SUBSCRIPTION: Members = {"correlationId": (_unsigned, None), "expression": (_parse_text, None),
                          "maxUnconfirmedMessages": (_count, None), "maxUnconfirmedBytes": (_count, None),
                          "consumerPriority": (_int, None)}
_URI: Members = {"uri": (_parse_text, "")}
_ASYNC: Members = {"async": (_parse_flag, False)}
_PAYLOAD: Members = {"payload": (_parse_texts, ())}
_READING: Members = {"maxUnconfirmedMessages": (_count, MAX_UNCONFIRMED_MESSAGES),
                     "maxUnconfirmedBytes": (_count, MAX_UNCONFIRMED_BYTES), "consumerPriority": (_int, 0),
                     "subscriptions": (_list_of(read_subscription), ())}
COMMANDS: dict[str, Members] = {
    "start": _ASYNC, "stop": _ASYNC,
    "open": {**_URI, "flags": (_parse_text, ""), **_ASYNC, **_READING},
    "configure": {**_URI, **_ASYNC, **_READING},
    "close": {**_URI, **_ASYNC},
    "post": {**_URI, **_PAYLOAD, **_ASYNC, "compressionAlgorithmType": (_parse_text, "none"),
             "messageProperties": (_list_of(read_property), ())},
    "batch-post": {**_URI, **_PAYLOAD, "msgSize": (_count, 1024), "eventSize": (_long_count, 1),
                   "eventsCount": (_long_count, 0), "postInterval": (_count, 1000), "postRate": (_count, 1),
                   "autoIncremented": (_parse_text, "")},
    "load-post": {**_URI, "file": (_parse_text, "")},
    "list": {"uri": (_parse_text, None)},
    "confirm": {**_URI, "guid": (_parse_text, "")},
    "wait": {"uri": (_parse_text, None), "messages": (_count, 1), "timeout": (_parse_seconds, 10.0)},
    "help": {}, "bye": {}}
_NEEDED = {"open": ("uri",), "configure": ("uri",), "close": ("uri",), "post": ("uri", "payload"), "batch-post": ("uri",),
           "load-post": ("uri", "file"), "confirm": ("guid", "uri")}
_ALIASES = {"quit": "bye", "q": "bye", "exit": "bye"}
VERBS = tuple(sorted((*COMMANDS, *_ALIASES)))


def parse(line: str) -> tuple[str, dict[str, Any]] | None:
    """Parse a line into command and members; None for a blank line or a comment (`#`). Raises ShellCommandError if the line
    is invalid."""
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    verb = _ALIASES.get(verb_of(text), verb_of(text))
    if verb not in COMMANDS:
        raise ShellCommandError(_unknown_verb_text(verb))
    members = _fill_members(COMMANDS[verb], split_line(text)[1])
    _check_mandatory(verb, members)
    return verb, members


def _unknown_verb_text(verb: str) -> str:
    if verb in _STORAGE_VERBS:
        return f"{verb}: the shell does not open storage files, `bmq storage` does"
    close = difflib.get_close_matches(verb[:40], VERBS, 1)
    hint = f", did you mean '{close[0]}'?" if close else ", see 'help'"
    return f"Unknown command: {verb[:200]}{hint}"


def _to_camel_case(name: str) -> str:
    return re.sub(r"-([a-z])", lambda found: found.group(1).upper(), name)


def _fill_members(members: Members, tree: dict[str, Any]) -> dict[str, Any]:
    tree = {name if name in members else _to_camel_case(name): value for name, value in tree.items()}
    _check_names(tree, tuple(members))
    given = {name: _read_member(tree, name, members[name][0], None) for name, value in tree.items() if value is not None}
    return {name: given.get(name, default) for name, (_, default) in members.items()}


def _check_names(tree: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in tree:
        if name not in names:
            known = f"the names are {', '.join(names)}" if names else "the command has no members"
            raise UnparsableCommand(f"unknown name {name[:40]!r}: {known}")


def _read_member(tree: dict[str, Any], name: str, read: Callable[[Any], Any], default: Any) -> Any:
    if name not in tree:
        return default
    try:
        return read(tree[name])
    except UnparsableCommand as error:
        raise UnparsableCommand(f"{name}: {error}") from None


def _check_mandatory(verb: str, members: dict[str, Any]) -> None:
    for name in _NEEDED.get(verb, ()):
        if not members[name]:
            raise ShellCommandError(f"'{name}' is mandatory")
    if verb in ("open", "configure", "confirm"):
        try:
            parse_uri(members["uri"])
        except BmqError as error:
            raise ShellCommandError(f"The uri ('{members['uri'][:300]}') is not valid: {error}") from None
    if verb == "open":
        parse_flags(members["flags"])


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags of an opened queue; `ack`: posts request acknowledgements."""

    read: bool = False
    write: bool = False
    ack: bool = False

    @property
    def any(self) -> bool:
        return self.read or self.write


def parse_flags(text: str) -> Flags:
    """Parse `read,write,ack`, case-insensitive. Raises ShellCommandError, which names unknown flags."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [name for name in names if name.lower() not in ("read", "write", "ack")]
    if wrong:
        raise ShellCommandError("Invalid flag(s) " + ",".join(f"'{name[:40]}'" for name in wrong) + ": use read, write, ack")
    return Flags(**{name.lower(): True for name in names})


def select_guids(guid: str, known: list[bytes]) -> list[bytes]:
    """Return the GUIDs that a confirm command selects of those `known`, in order of arrival. Raises ShellCommandError if the
    text is invalid or the GUID unknown."""
    if guid == "*":
        return known
    if guid[0] in "+-":
        if not re.fullmatch(r"[+-][0-9]{1,18}", guid):
            raise ShellCommandError(f"'{guid[:80]}' is not a valid GUID")
        count = int(guid)
        return known[:count] if count > 0 else known[len(known) + count:] if -count <= len(known) else known
    if not re.fullmatch(r"[0-9A-Fa-f]{32}", guid):
        raise ShellCommandError(f"'{guid[:80]}' is not a valid GUID")
    wanted = bytes.fromhex(guid)
    if wanted not in known:
        raise ShellCommandError(f"'{guid.upper()}' NOT found")
    return [wanted]


_PROPERTIES, _AREA, _BODY = "Message Properties:", "Message Properties hexdump:", "Message Payload:"
_DATA = "Application Data:"
_GROUP = re.compile(r"(?:[0-9A-Fa-f]{2}){1,4}")


def parse_dump(text: str) -> tuple[bytes, Properties]:
    """Parse a dumped message into payload and properties. Raises ShellCommandError for any other text."""
    lines = text.splitlines()
    first = lines[0] if lines else ""
    if first == _DATA:
        return _decode_hexdump(lines, 1), {}
    if first != _PROPERTIES:
        raise ShellCommandError(f"no dump of a message: a dump begins with '{_PROPERTIES}' or '{_DATA}'")
    area_at, payload_at = _find(lines, _AREA), _find(lines, _BODY)
    area = _decode_hexdump(lines, area_at + 1)
    try:
        return _decode_hexdump(lines, payload_at + 1), properties.decode(area, False) if area else {}
    except PeerError as error:
        raise ShellCommandError(f"the properties in the dump cannot be read: {error}") from None


def _find(lines: list[str], title: str) -> int:
    try:
        return lines.index(title)
    except ValueError:
        raise ShellCommandError(f"no dump of a message: '{title}' is missing") from None


def _decode_hexdump(lines: list[str], start: int) -> bytes:
    """Decode a hexdump up to a blank line: `offset: digits digits ... |text|`. A blank line at `start` is skipped."""
    found = bytearray()
    if start < len(lines) and not lines[start].strip():
        start += 1
    for number, line in enumerate(lines[start:], start + 1):
        if not line.strip():
            break
        if line.startswith("(") and line.endswith(" more bytes)"):
            raise ShellCommandError(f"line {number}: the dump contains only a part of the payload")
        offset, _, rest = line.partition(":")
        groups = rest.partition("|")[0].split()
        if not offset.strip().isdecimal() or not groups or not all(_GROUP.fullmatch(each) for each in groups):
            raise ShellCommandError(f"line {number}: not a line of a hexdump")
        found += bytes.fromhex("".join(groups))
    return bytes(found)


HELP = """Commands, with optional members in parentheses:

  start (async=true)
  stop (async=true)
  open uri="" flags="read,write,ack" (async=true) (maxUnconfirmedMessages=1024) (maxUnconfirmedBytes=33554432)
       (consumerPriority=0) (subscriptions=[{"expression": "x > 0", "correlationId": 1, "maxUnconfirmedMessages": 1,
       "maxUnconfirmedBytes": 1, "consumerPriority": 0}])
  configure uri="" and the members of open except flags
  close uri="" (async=true)
  post uri="" payload=["", ""] (compressionAlgorithmType="ZLIB")
       (messageProperties=[{"name": "", "value": "", "type": "E_STRING"}]); types: E_STRING, E_INT (32 bits), E_BOOL,
       E_CHAR, E_SHORT, E_INT32, E_INT64, E_BINARY
  batch-post uri="" (payload=["", ""] or msgSize=1024) (eventSize=1) (eventsCount=0) (postInterval=1000) (postRate=1)
       (autoIncremented="name"): postRate events every postInterval ms, eventSize messages each; eventsCount 0: until
       Ctrl-C
  load-post uri="" file="": post the message of a broker's dump file
  list (uri=""): list unconfirmed messages
  confirm uri="" guid="": "*" all, "+3" the three oldest, "-3" the three latest, or a GUID
  wait (uri="") (messages=1) (timeout=10): wait for this number of listed messages, in seconds
  help
  bye, also quit, exit, q; or Ctrl-D

Only posts to queues opened with the flag ack are acknowledged. A line that begins with # is a comment.

  start
  open uri="bmq://bmq.test.persistent.priority/qqq" flags="read,write,ack"
  post uri="bmq://bmq.test.persistent.priority/qqq" payload=["hello"]
  list
  confirm uri="bmq://bmq.test.persistent.priority/qqq" guid="*"
"""
