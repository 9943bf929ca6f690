"""Context of admin operations: the broker, the state kept about its node, and what an operator may change while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bmqtwist.admin.commands import Tunable, TunableConfirmation, Value, integer
from bmqtwist.errors import LocalError
from bmqtwist.view.events import NodeHistory
from bmqtwist.view.snapshot import ProcessState
from bmqtwist.view.statistics import Statistics

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

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
