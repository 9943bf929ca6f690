"""What admin commands answer, before it is written as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bmqtwist.admin.commands import Value
from bmqtwist.broker.stop_progress import StopProgress
from bmqtwist.machine import Transition
from bmqtwist.view.snapshot import (
    ClusterSnapshot,
    DomainState,
    PartitionSnapshot,
    QueueState,
    StorageState,
)


class Result:
    """Base of all answers; never made itself."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Success(Result):
    """Done, and nothing more to say."""


@dataclass(frozen=True, slots=True)
class Error(Result):
    """Not done: why."""

    message: str


@dataclass(frozen=True, slots=True)
class HelpText(Result):
    """The list of commands; `plumbing` = one line each."""

    plumbing: bool


@dataclass(frozen=True, slots=True)
class DomainInfo(Result):
    """One domain: configuration, meter, queues."""

    domain: DomainState


@dataclass(frozen=True, slots=True)
class Purged:
    """What was dropped of one queue, or of one of its apps (`app_id` not empty)."""

    uri: str
    messages: int
    bytes: int
    app_id: str = ""
    app_key: str = "0000000000"


@dataclass(frozen=True, slots=True)
class PurgeReport(Result):
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
class QueueContents(Result):
    """A slice of the stored messages beginning at `offset`, and how many there are in all."""

    messages: tuple[ListedMessage, ...]
    offset: int
    total: int


@dataclass(frozen=True, slots=True)
class QueueInternalsResult(Result):
    """The state of one open queue."""

    queue: QueueState


@dataclass(frozen=True, slots=True)
class StatsResult(Result):
    """Statistics: `text` is the tables, `tree` the same as JSON."""

    text: str
    tree: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tunable(Result):
    """One tunable and its present value."""

    name: str
    value: Value
    description: str = ""


@dataclass(frozen=True, slots=True)
class Tunables(Result):
    """All tunables of a part."""

    tunables: tuple[Tunable, ...]


@dataclass(frozen=True, slots=True)
class TunableConfirmation(Result):
    """A tunable was set."""

    name: str
    old: Value
    new: Value


@dataclass(frozen=True, slots=True)
class Look(Result):
    """A look at the broker: `tree` is what the console has, under `name` in JSON, `text` the same for people."""

    name: str
    tree: Any
    text: str


@dataclass(frozen=True, slots=True)
class Transitions(Result):
    """What a machine went through until `now`, the oldest first. `name`: of the answer, in JSON."""

    name: str
    now: float
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class StopStatusResult(Result):
    """How far the graceful stop is; None: this broker does not stop."""

    progress: StopProgress | None


@dataclass(frozen=True, slots=True)
class ClusterList(Result):
    """The clusters this broker belongs to or is a proxy of."""

    clusters: tuple[ClusterSnapshot, ...]


@dataclass(frozen=True, slots=True)
class ClusterStatusResult(Result):
    """One cluster in full."""

    cluster: ClusterSnapshot


@dataclass(frozen=True, slots=True)
class QueueHelper(Result):
    """Which queues are assigned where."""

    cluster: ClusterSnapshot


@dataclass(frozen=True, slots=True)
class StorageSummaryResult(Result):
    """Some or all partitions of a cluster."""

    location: str
    partitions: tuple[PartitionSnapshot, ...]


@dataclass(frozen=True, slots=True)
class StorageContent(Result):
    """The stored queues of a domain."""

    storages: tuple[StorageState, ...]


@dataclass(frozen=True, slots=True)
class BrokerConfigResult(Result):
    """The configuration of the broker as JSON text."""

    as_json: str


@dataclass(frozen=True, slots=True)
class Responses(Result):
    """The answers of several nodes: (node, answer) each."""

    answers: tuple[tuple[str, Result], ...]
