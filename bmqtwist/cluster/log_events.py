"""Inputs and outputs of the metadata log (`metadata_log.py`), as values, and its messages on the wire, which
`wire/cluster_schema.py` declares.

A COMMIT is a record of the log, as in the original: followers learn of commits from the records that they append.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster.changes import Change, PrimaryRules
from bmqtwist.cluster.state import Changes
from bmqtwist.errors import PeerError
from bmqtwist.wire.cluster_schema import (
    Acknowledged,
    CatchUp,
    ClusterMessage,
    Entries,
    Lsn,
    MetadataLogMessage,
    Snapshot,
    decode_cluster_state,
    encode_cluster_state_record,
    read_cluster_state_record,
)
from bmqtwist.wire.control import cluster_event

LEDGER_FAILURE, LIMIT_REACHED, NOT_LEADER = -208, -205, -200  # codes of refused changes


Message = Entries | Snapshot | Acknowledged | CatchUp  # between nodes: outputs of the sender, inputs of the receiver


# -- further inputs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Propose:
    """Change the metadata; a Decided with this token follows. Refused unless this node leads."""

    token: int
    change: Change


@dataclass(frozen=True, slots=True)
class Flush:
    """Write the records of this turn with one sync, and send them to the followers."""


@dataclass(frozen=True, slots=True)
class Written:
    """The write with this number is durable."""

    number: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The write with this number failed; the content of the file after the last durable record is unknown."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lead:
    """This node was elected for `term`; a Decided follows when its first record is committed. `features`: of all members;
    the first record of a new cluster activates them."""

    token: int
    term: int
    primaries: PrimaryRules
    features: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Follow:
    """The node `leader` leads `term`; None: this node has voted in `term`, and no leader is known yet."""

    term: int
    leader: int | None


@dataclass(frozen=True, slots=True)
class StepDown:
    """This node leads no longer, or the leader is lost."""


@dataclass(frozen=True, slots=True)
class SetCommitQuorum:
    """Set the number of nodes that must store a record before its commit, at least a majority."""

    quorum: int


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """Request newer records from these nodes: no node leads, and this one cannot be elected."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resend:
    """Send unacknowledged records again at the next Flush; a periodic input."""


Input = (Propose | Flush | Written | WriteFailed | Lead | Follow | StepDown | SetCommitQuorum | RequestRecords | Resend
         | Message)


# -- outputs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Truncate the file to `cut` bytes (None: no truncation), append `data`, sync."""

    number: int
    cut: int | None
    data: bytes


@dataclass(frozen=True, slots=True)
class ReplaceFile:
    """Write and sync a new file with `data`, named after `log_id` and `wall`; then remove the old one."""

    number: int
    log_id: bytes
    data: bytes
    wall: int
    replaces: bytes = b""  # log id of the previous file, if any


FileJob = WriteFile | ReplaceFile


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message of the metadata log or of an election to another node."""

    node_id: int
    message: Any


@dataclass(frozen=True, slots=True)
class Done:
    """The change is committed; `value`: its result."""

    value: Any


@dataclass(frozen=True, slots=True)
class NotDone:
    """The change is not committed. `unknown`: another leader, or this node after a restart, may still commit it; `code`:
    status code in the response to the client."""

    reason: str
    unknown: bool
    code: int = LEDGER_FAILURE


Outcome = Done | NotDone


@dataclass(frozen=True, slots=True)
class Decided:
    """Outcome of the proposal or election with this token."""

    token: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The record with this LSN is committed and applied."""

    lsn: Lsn
    changes: Changes


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """This node has stopped leading: a write of its log has failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """Raise an alarm of this kind with this text."""

    kind: AlarmKind
    text: str


Output = WriteFile | ReplaceFile | Send | Decided | StateChanged | LeadershipLost | Alarm


# -- on the wire -----------------------------------------------------------------------------------------------------


def encode_log_message(message: Message) -> bytes:
    """Return a message as a whole event. Only members with the feature METADATA_LOG decode it."""
    data: Any
    if isinstance(message, Entries):
        data = b"".join(map(encode_cluster_state_record, message.records))
        message = replace(message, records=data)
    elif isinstance(message, Snapshot):
        data = encode_cluster_state_record(message.record)
        message = replace(message, record=data)
    return cluster_event(MetadataLogMessage.of(message))


def log_message_of(sender: int, message: ClusterMessage) -> Message | None:
    """Return the log message in a decoded message, None for other messages. PeerError if its records are malformed."""
    value = message.value.value if message.choice == "metadataLogMessage" else None
    if not isinstance(value, Message):
        return None
    value.sender = sender
    data: Any
    if isinstance(value, Entries):
        data = value.records
        records, error = decode_cluster_state(data, 0, len(data))
        if error is not None:
            raise error
        value.records = tuple(records)
    elif isinstance(value, Snapshot):
        data = value.record
        value.record, end = read_cluster_state_record(data, 0, len(data))
        if end != len(data):
            raise PeerError("more than one record", "snapshot", end)
    return value
