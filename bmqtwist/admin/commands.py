"""Declaration of an admin command, its context and its results: syntax in words and in JSON, function, answer.

The words of a syntax are the grammar itself: `WORD` is a keyword (any case), `<name>` an argument, `[A|B]` one of the
keywords, `[A]` a keyword and `[<name>]` an argument that may be left out, `(<name>|ALL)` an argument or the keyword.
A JSON template is an object whose `"<name>"` values are the arguments; `?key` marks a member that may be absent or null.
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
    TEXT = "TEXT"
    JSON_COMPACT = "JSON_COMPACT"
    JSON_PRETTY = "JSON_PRETTY"


class CommandError(LocalError):
    """The text is no admin command; the message says why."""

    @property
    def answer(self) -> str:
        """What the sender of the text is told, in every encoding."""
        return f"Unable to decode command (rc: -1, error: '{self}')"


class Value(Struct, frozen=True):
    """A value given to a tunable. `kind` is theNull, theBool, theInteger, theDouble, theString, theDate,
    theTime or theDatetime; dates and times keep their ISO 8601 text."""

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
        """The value with its kind, as error messages name it."""
        text = f'"{self.value}"' if self.kind == "theString" else str(self)
        return f"[ {self.kind} = {text} ]"


def integer(value: int) -> Value:
    """A whole number as a Value."""
    return Value("theInteger", value)


Arguments = dict[str, Any]
Json = Mapping[str, Any]


class AnswerKind(Struct, frozen=True):
    """One kind of answer: the member of JSON that holds it, and the functions that write a result as text and as JSON."""

    name: str
    text: Callable[[Any], str]
    tree: Callable[[Any], Any]


class Entry(Struct, frozen=True):
    """One command. `run` gets the context and the arguments in the order of the syntax, None for one that is left out; its
    result, or what its generator returns, is written by `answer`, and None is SUCCESS.

    `json` holds (template, arguments that the template implies) pairs; `hidden` is an end of the syntax that HELP
    does not show; `help` is the text of HELP when it is longer than the summary. HELP is that of the original: commands
    that are `ours` are not in it.
    """

    syntax: str
    summary: str
    run: Callable[..., Any]
    answer: AnswerKind
    json: tuple[tuple[Json, Arguments], ...]
    help: str = ""
    hidden: str = ""
    ours: bool = False

    @property
    def grammar(self) -> list[str]:
        """The words of the syntax, hidden ones included."""
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
    entry: Entry
    arguments: tuple[Any, ...]


class Purged(Struct, frozen=True):
    """What was dropped of one queue, or of one of its apps (`app_id` not empty)."""

    uri: str
    messages: int
    bytes: int
    app_id: str = ""
    app_key: str = "0000000000"


class PurgeReport(Struct, frozen=True):
    """Queues that were purged, and errors of those that could not be."""

    purged: tuple[Purged, ...]
    errors: tuple[str, ...] = ()


class ListedMessage(Struct, frozen=True):
    """One stored message; `arrived` is seconds since the epoch, to the microsecond."""

    guid: str
    size: int
    arrived: float


class QueueContents(Struct, frozen=True):
    """A slice of the stored messages beginning at `offset`, and how many there are in all."""

    messages: tuple[ListedMessage, ...]
    offset: int
    total: int


class Tunable(Struct, frozen=True):
    name: str
    value: Value
    description: str = ""


class TunableConfirmation(Struct, frozen=True):
    name: str
    old: Value
    new: Value


class Transitions(Struct, frozen=True):
    """Transitions of a state machine until `now`, the oldest first."""

    now: float
    transitions: tuple[Transition, ...]


class StopStatus(Struct, frozen=True):
    """Progress of the graceful stop; None: this broker does not stop."""

    progress: StopProgress | None


QUORUM = "QUORUM"
_INTERVAL_SUFFIX = ".PUBLISHINTERVAL"
DEFAULT_INTERVAL = -1  # back to what is configured


class UnknownTunable(LocalError):
    """No tunable has that name."""


class Quorum:
    """The tunable of an elector or of replication: how many nodes must agree. 0 leaves it to the size of the cluster.

    `apply` is told the new number.
    """

    def __init__(self, value: int, description: str, apply: Callable[[int], None]) -> None:
        self.value, self._description, self._apply = value, description, apply

    def get(self, name: str) -> Tunable:
        if name.upper() != QUORUM:
            raise unsupported(name)
        return Tunable("Quorum", integer(self.value), self._description)

    def set(self, name: str, value: Value) -> TunableConfirmation:
        """A new value; LocalError when it is none."""
        if name.upper() != QUORUM:
            raise UnknownTunable(f"Unknown tunable name '{name}'")
        if value.kind != "theInteger" or not isinstance(value.value, int) or not 0 <= value.value < 1 << 31:
            raise LocalError("The QUORUM tunable must be a non-negative integer, but instead the following was specified:"
                             f" {value.described}")
        old, self.value = self.value, value.value
        self._apply(self.value)
        return TunableConfirmation("Quorum", integer(old), integer(self.value))

    def list(self) -> tuple[Tunable]:
        return (Tunable(QUORUM, integer(self.value), self._description),)


def unsupported(name: str) -> UnknownTunable:
    """The error of asking for a tunable that does not exist."""
    return UnknownTunable(f"Unsupported tunable '{name}': Issue the LIST_TUNABLES command for the list of supported "
                          "tunables.")


class PublishIntervals:
    """Seconds between two publications of every consumer of statistics; 0 = off.

    `configured`: consumer -> interval. An interval must be a multiple of the snapshot interval.
    """

    def __init__(self, configured: Mapping[str, int], snapshot_interval: int) -> None:
        self._configured = {name.upper(): interval for name, interval in configured.items()}
        self._snapshot_interval = snapshot_interval
        self.seconds = dict(self._configured)

    def get(self, name: str) -> Tunable:
        """The present interval of `<CONSUMER>.PUBLISHINTERVAL`."""
        return self._tunable(self._consumer(name))

    def set(self, name: str, value: Value) -> TunableConfirmation:
        """A new interval; -1 = the configured one."""
        consumer = self._consumer(name)
        seconds = value.value
        if value.kind != "theInteger" or not isinstance(seconds, int) or not DEFAULT_INTERVAL <= seconds < 1 << 31:
            raise LocalError(f"The {consumer}{_INTERVAL_SUFFIX} tunable must be an integer of at least -1, but instead the"
                             f" following was specified: {value.described}")
        if seconds == DEFAULT_INTERVAL:
            seconds = self._configured[consumer]
        if self._snapshot_interval and seconds % self._snapshot_interval:
            raise LocalError(f"The {consumer}{_INTERVAL_SUFFIX} tunable must be a multiple of the snapshot interval "
                             f"({self._snapshot_interval}), but instead the following was specified: {value.described}")
        old, self.seconds[consumer] = self.seconds[consumer], seconds
        return TunableConfirmation(f"{consumer}{_INTERVAL_SUFFIX}", integer(old), integer(seconds))

    def list(self) -> tuple[Tunable, ...]:
        """One tunable for each consumer."""
        return tuple(self._tunable(consumer) for consumer in self.seconds)

    def _tunable(self, consumer: str) -> Tunable:
        return Tunable(f"{consumer}{_INTERVAL_SUFFIX}", integer(self.seconds[consumer]),
                       f"seconds between two publications of '{consumer}': 0 = off, -1 = as configured")

    def _consumer(self, name: str) -> str:
        consumer = name.upper().removesuffix(_INTERVAL_SUFFIX)
        if not name.upper().endswith(_INTERVAL_SUFFIX) or consumer not in self.seconds:
            raise unsupported(name)
        return consumer


class AdminContext(Struct, frozen=True):
    """`process`: reads the state of the process; `quorums`: by tunable and cluster; `source`: who asks."""

    broker: Broker
    statistics: Statistics
    history: NodeHistory
    process: Callable[[], ProcessState]
    intervals: PublishIntervals
    quorums: dict[tuple[str, str], Quorum] = field(default_factory=dict)
    source: str = ""
