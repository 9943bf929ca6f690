"""What goes into the metadata log's machine and what comes out of it, as values.

```
   proposers          Propose ----->  +-------------+  -----> Decided
   end of a turn      Flush ------->  |             |  -----> WriteFile, ReplaceFile   one at a time
   worker thread      Written ----->  | MetadataLog |  -----> StateChanged             at the commit
                      WriteFailed ->  |             |  -----> Send(node, message)
   elector            Lead, Follow,-> |             |  -----> LeadershipLost
                      StepDown,       |             |  -----> Alarm
                      QuorumIs, Ask   |             |
   other nodes        Entries, Snapshot, Acknowledged, CatchUp
   timer              Resend ------>  +-------------+
```

A COMMIT is a record of the log as in the original: followers learn of commits from the records they append.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from bmqtwist.cluster.changes import Change, Primaries
from bmqtwist.cluster.state import Changes
from bmqtwist.wire.cluster_events import ClusterStateRecord

Lsn = tuple[int, int]  # term, sequence number
LEDGER_FAILURE, LIMIT_REACHED, NOT_LEADER = -208, -205, -200  # codes of changes that are not made
NO_LSN: Lsn = (0, 0)  # before the first record


# -- messages from node to node, which are inputs of the one and outputs of the other ------------------------------


@dataclass(frozen=True, slots=True)
class Entries:
    """From a leader: records that follow the one with the LSN `previous` in its log, none left out."""

    sender: int
    term: int
    previous: Lsn
    records: tuple[ClusterStateRecord, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """From a leader: a SNAPSHOT record that stands for its committed log up to the record's LSN."""

    sender: int
    term: int
    record: ClusterStateRecord


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """From a follower: the leader's log up to `lsn` survives a loss of power here."""

    sender: int
    term: int
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class CatchUp:
    """From a follower that begins to follow, or lacks what precedes the entries it got: what is behind `last`, please.
    Also from a node that may not lead, since others have newer logs, to those.

    `last`: the newest record it has, before those entries.
    """

    sender: int
    term: int
    last: Lsn


Message = Entries | Snapshot | Acknowledged | CatchUp


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


class LogEvent(Enum):
    """The columns of the table of the metadata log: the inputs by name."""

    PROPOSE = "Propose"
    FLUSH = "Flush"
    WRITTEN = "Written"
    WRITE_FAILED = "WriteFailed"
    LEAD = "Lead"
    FOLLOW = "Follow"
    STEP_DOWN = "StepDown"
    QUORUM = "QuorumIs"
    ASK = "Ask"
    RESEND = "Resend"
    ENTRIES = "Entries"
    SNAPSHOT = "Snapshot"
    ACKNOWLEDGED = "Acknowledged"
    CATCH_UP = "CatchUp"


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
    """A message to another node."""

    node_id: int
    message: Message


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
