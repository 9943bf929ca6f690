"""Declarations of admin commands, their context and their results: syntax in words and in JSON, function, answer.

The text of a syntax is its grammar: `WORD` is a keyword (any case), `<name>` an argument, `[A|B]` one of the keywords,
`[A]` an optional keyword, `[<name>]` an optional argument, `(<name>|ALL)` an argument or the keyword. A JSON template is an
object whose `"<name>"` values are the arguments; `?key` marks an optional or nullable member. `table.py` makes the entries,
`executor.py` the context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from bmqtwist.broker.graceful_stop import StopProgress
from bmqtwist.errors import LocalError
from bmqtwist.machine import Transition
from bmqtwist.view.events import NodeHistory
from bmqtwist.view.snapshot import ProcessState
from bmqtwist.view.statistics import Statistics

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

class AnswerEncoding(Enum):
    """Encoding of an answer, chosen by the word ENCODING or the member `encoding` of a command."""

    TEXT = "TEXT"
    JSON_COMPACT = "JSON_COMPACT"
    JSON_PRETTY = "JSON_PRETTY"


class CommandError(LocalError):
    """Invalid text of an admin command; the message has the reason."""

    @property
    def answer(self) -> str:
        """Answer to the sender, in every encoding."""
        return f"Unable to decode command (rc: -1, error: '{self}')"


class Value(Struct, frozen=True):
    """Value for a tunable. `kind`: theNull, theBool, theInteger, theDouble, theString, theDate, theTime or theDatetime;
    dates and times are ISO 8601 text."""

    kind: str
    value: object

    def __str__(self) -> str:
        if self.kind == "theNull":
            return "NULL"
        if self.kind == "theBool":
            return "true" if self.value else "false"
        return str(self.value)

    @property
    def described(self) -> str:
        """The value with its kind, for error messages."""
        text = f'"{self.value}"' if self.kind == "theString" else str(self)
        return f"[ {self.kind} = {text} ]"


def integer(value: int) -> Value:
    """Return a whole number as a Value."""
    return Value("theInteger", value)


Arguments = dict[str, Any]
Json = Mapping[str, Any]


class AnswerKind(Struct, frozen=True):
    """Kind of answer: its member in JSON, and the functions that format a result as text and as JSON."""

    name: str
    text: Callable[[Any], str]
    tree: Callable[[Any], Any]


class Entry(Struct, frozen=True):
    """Command. `run` receives the context and the arguments in the order of the syntax, None for an omitted one; `answer`
    formats its result (or the result of its generator), and None is SUCCESS.

    `json`: pairs of a template and its implied arguments; `hidden`: end of the syntax that HELP does not show; `help`: text
    of HELP if it is longer than the summary. HELP is that of the original, so it excludes entries with `is_extension`.
    """

    syntax: str
    summary: str
    run: Callable[..., Any]
    answer: AnswerKind
    json: tuple[tuple[Json, Arguments], ...]
    help: str = ""
    hidden: str = ""
    is_extension: bool = False

    @property
    def grammar(self) -> list[str]:
        """Words of the syntax, hidden ones included."""
        return (self.syntax + self.hidden).split()

    def command(self, given: Arguments) -> Command:
        values: list[Any] = []
        for token in self.grammar:
            if "<" in token:
                values.append(given.get(token.strip("[](<").partition(">")[0]))
            elif "|" in token:
                values.append(given["word"])
            elif token.startswith("["):
                values.append(bool(given.get(token.strip("[]").lower())))
        return Command(self, tuple(values))


class Command(Struct, frozen=True):
    """Parsed command: its entry of the table, and the arguments of `Entry.run`."""

    entry: Entry
    arguments: tuple[Any, ...]


class Purged(Struct, frozen=True):
    """Messages and bytes purged from a queue, or from one of its apps (`app_id` not empty)."""

    uri: str
    messages: int
    bytes: int
    app_id: str = ""
    app_key: str = "0000000000"


class PurgeReport(Struct, frozen=True):
    """Purged queues, and the errors of failed purges."""

    purged: tuple[Purged, ...]
    errors: tuple[str, ...] = ()


class ListedMessage(Struct, frozen=True):
    """Stored message; `arrived`: seconds since the epoch, to the microsecond."""

    guid: str
    size: int
    arrived: float


class QueueContents(Struct, frozen=True):
    """Slice of the stored messages that begins at `offset`, and the number of all stored messages."""

    messages: tuple[ListedMessage, ...]
    offset: int
    total: int


class Tunable(Struct, frozen=True):
    """Name, value and description of a tunable, as GET and LIST_TUNABLES show it."""

    name: str
    value: Value
    description: str = ""


class TunableConfirmation(Struct, frozen=True):
    """Result of SET: old and new value of a tunable. `note`: reason why the new value has another effect than it says."""

    name: str
    old: Value
    new: Value
    note: str = ""


class Transitions(Struct, frozen=True):
    """Transition history of a state machine at the time `now`, oldest first."""

    now: float
    transitions: tuple[Transition, ...]


class StopStatus(Struct, frozen=True):
    """Progress of the graceful stop; None = the broker is not stopping."""

    progress: StopProgress | None


QUORUM = "QUORUM"
_INTERVAL = ".PUBLISHINTERVAL"
_SHOWN = {QUORUM: "Quorum"}  # except in lists
_UNSUPPORTED = "Unsupported tunable '{}': Issue the LIST_TUNABLES command for the list of supported tunables."


class Tunables:
    """Whole numbers that an operator may change at run time; a restart resets them.

    `values`: by upper-case name; `least`: minimum of a new value; `wanted`: valid values in words; `describe` returns the
    description of a name; `accept` returns the number to set, or raises LocalError.
    """

    def __init__(self, values: dict[str, int], least: int, wanted: str, describe: Callable[[str], str],
                 accept: Callable[[str, int], int]) -> None:
        self._values, self._least, self._wanted, self._describe, self._accept = values, least, wanted, describe, accept

    def get(self, name: str) -> Tunable:
        known = self._known(name, _UNSUPPORTED)
        return Tunable(_SHOWN.get(known, known), integer(self._values[known]), self._describe(known))

    def set(self, name: str, value: Value) -> TunableConfirmation:
        """Change a tunable. Raises LocalError if the name or the value is invalid."""
        known = self._known(name, "Unknown tunable name '{}'" if QUORUM in self._values else _UNSUPPORTED)
        number = value.value
        if value.kind != "theInteger" or not isinstance(number, int) or not self._least <= number < 1 << 31:
            raise LocalError(f"The {known} tunable must be {self._wanted}, but instead the following was specified: "
                             f"{value.described}")
        old, new = self._values[known], self._accept(known, number)
        self._values[known] = new
        return TunableConfirmation(_SHOWN.get(known, known), integer(old), integer(new))

    def list(self) -> tuple[Tunable, ...]:
        return tuple(Tunable(name, integer(value), self._describe(name)) for name, value in self._values.items())

    def _known(self, name: str, problem: str) -> str:
        if name.upper() not in self._values:
            raise LocalError(problem.format(name))
        return name.upper()


def quorum(value: int, description: str, apply: Callable[[int], None]) -> Tunables:
    """Return the quorum tunable of an elector or of replication; 0 = derived from the size of the cluster."""
    def accept(name: str, number: int) -> int:
        apply(number)
        return number
    return Tunables({QUORUM: value}, 0, "a non-negative integer", lambda name: description, accept)


def publish_intervals(configured: Mapping[str, int], snapshot_interval: int) -> Tunables:
    """Return the publish intervals of the statistics consumers in seconds, 0 = off: multiples of the snapshot interval."""
    seconds = {f"{name.upper()}{_INTERVAL}": interval for name, interval in configured.items()}

    def accept(name: str, number: int) -> int:
        new = seconds[name] if number == -1 else number
        if snapshot_interval and new % snapshot_interval:
            raise LocalError(f"The {name} tunable must be a multiple of the snapshot interval ({snapshot_interval}), but "
                             f"instead the following was specified: {integer(number).described}")
        return new
    return Tunables(dict(seconds), -1, "an integer of at least -1", lambda name: (
        f"seconds between two publications of '{name.removesuffix(_INTERVAL)}': 0 = off, -1 = as configured"), accept)


class AdminContext(Struct, frozen=True):
    """Context of commands. `process` reads the state of the process; `quorums`: by tunable and cluster; `source`: sender."""

    broker: Broker
    statistics: Statistics
    history: NodeHistory
    process: Callable[[], ProcessState]
    intervals: Tunables
    quorums: dict[tuple[str, str], Tunables] = field(default_factory=dict)
    source: str = ""
