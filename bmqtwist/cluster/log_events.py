"""Inputs and outputs of the metadata log's machine (`metadata_log.py`), as values, and its messages on the wire.

A COMMIT is a record of the log as in the original: followers learn of commits from the records they append.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bmqtwist.cluster.changes import Change, Primaries
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

LEDGER_FAILURE, LIMIT_REACHED, NOT_LEADER = -208, -205, -200  # codes of changes that are not made


Message = Entries | Snapshot | Acknowledged | CatchUp  # from node to node: inputs of the one and outputs of the other


# -- further inputs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Propose:
    """Change the metadata; `token` comes back in a Decided."""

    token: int
    change: Change


@dataclass(frozen=True, slots=True)
class Flush:
    """The end of a turn: what it appended is written with one sync and sent."""


@dataclass(frozen=True, slots=True)
class Written:
    """The write with this number survives a loss of power."""

    number: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The write with this number failed: nobody can tell what the file ends with."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lead:
    """This node was elected for `term`; Decided tells when its first record is committed."""

    token: int
    term: int
    primaries: Primaries


@dataclass(frozen=True, slots=True)
class Follow:
    """Another node leads `term`; None: this node voted in it, and nobody has won yet."""

    term: int
    leader: int | None


@dataclass(frozen=True, slots=True)
class StepDown:
    """There is no leader, as far as this node knows."""


@dataclass(frozen=True, slots=True)
class QuorumIs:
    """So many nodes must have a record before it is committed; never fewer than a majority."""

    quorum: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Nobody leads, and this node was not wanted: do these have newer records?"""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Resend:
    """Now and then: what was not acknowledged is sent again at the next Flush."""


Input = Propose | Flush | Written | WriteFailed | Lead | Follow | StepDown | QuorumIs | Ask | Resend | Message


# -- outputs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Cut the file to `cut` bytes (None: leave it), append `data`, sync."""

    number: int
    cut: int | None
    data: bytes


@dataclass(frozen=True, slots=True)
class ReplaceFile:
    """Begin a new file that holds `data`, named after `log_id` and `wall`; synced, and whole before the old one goes."""

    number: int
    log_id: bytes
    data: bytes
    wall: int
    replaces: bytes = b""  # the log id of the file before it, if there was one


FileJob = WriteFile | ReplaceFile


@dataclass(frozen=True, slots=True)
class Send:
    """A message to another node, of the metadata log or of an election."""

    node_id: int
    message: Any


@dataclass(frozen=True, slots=True)
class Done:
    """The change is committed; `value`: its result."""

    value: Any


@dataclass(frozen=True, slots=True)
class NotDone:
    """The change is not committed. `unknown`: it may still be found committed later, by another leader or a restart;
    `code`: what a client is told that waits for it."""

    reason: str
    unknown: bool
    code: int = LEDGER_FAILURE


Outcome = Done | NotDone


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a proposal."""

    token: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The record with this LSN is committed and applied."""

    lsn: Lsn
    changes: Changes


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """This node leads no longer, though nobody has told it to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """A person has to know."""

    text: str


Output = WriteFile | ReplaceFile | Send | Decided | StateChanged | LeadershipLost | Alarm


# -- on the wire -----------------------------------------------------------------------------------------------------


def encode_log_message(message: Message) -> bytes:
    """A whole event. Only members that know METADATA_LOG get one."""
    data: Any
    if isinstance(message, Entries):
        data = b"".join(map(encode_cluster_state_record, message.records))
        message = replace(message, records=data)
    elif isinstance(message, Snapshot):
        data = encode_cluster_state_record(message.record)
        message = replace(message, record=data)
    return cluster_event(MetadataLogMessage.of(message))


def log_message_of(sender: int, message: ClusterMessage) -> Message | None:
    """The message of the log that a decoded message holds; None = another one. PeerError if its records cannot be read."""
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
