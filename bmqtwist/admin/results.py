"""Results of admin operations that are no documents of `view`, before they are written as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bmqtwist.admin.commands import Value
from bmqtwist.broker.graceful_stop import StopProgress
from bmqtwist.machine import Transition
from bmqtwist.view.snapshot import PartitionSnapshot


@dataclass(frozen=True, slots=True)
class Purged:
    """What was dropped of one queue, or of one of its apps (`app_id` not empty)."""

    uri: str
    messages: int
    bytes: int
    app_id: str = ""
    app_key: str = "0000000000"


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """Queues that were purged, and errors of those that could not be."""

    purged: tuple[Purged, ...]
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """One stored message; `arrived` is seconds since the epoch, to the microsecond."""

    guid: str
    size: int
    arrived: float


@dataclass(frozen=True, slots=True)
class QueueContents:
    """A slice of the stored messages beginning at `offset`, and how many there are in all."""

    messages: tuple[ListedMessage, ...]
    offset: int
    total: int


@dataclass(frozen=True, slots=True)
class StatisticsReport:
    """Statistics: `text` is the tables, `tree` the same as JSON."""

    text: str
    tree: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tunable:
    """One tunable and its present value."""

    name: str
    value: Value
    description: str = ""


@dataclass(frozen=True, slots=True)
class TunableConfirmation:
    """A tunable was set."""

    name: str
    old: Value
    new: Value


@dataclass(frozen=True, slots=True)
class Transitions:
    """Transitions of a state machine until `now`, the oldest first."""

    now: float
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class StopStatus:
    """Progress of the graceful stop; None: this broker does not stop."""

    progress: StopProgress | None


@dataclass(frozen=True, slots=True)
class StorageSummary:
    """Some or all partitions of a cluster."""

    location: str
    partitions: tuple[PartitionSnapshot, ...]
