"""What goes into the machine of a partition at one of several nodes and what comes out of it, as values.

```
   the metadata     Assigned ------------------>  +------------------+  -----> Say(node, message)
   connections      PeerUp, PeerDown ---------->  |                  |  -----> SavePromise
   the promise file Promised ------------------>  | PartitionMachine |  -----> Append, Cut, TakeImage, Activate
   the log          LogMoved, LogReady, ------->  |                  |  -----> Feed, FeedImage
                    LogFailed, Fed, ImageLost,    |                  |  -----> Committed, Serve, Decline
                    FeedFailed                    |                  |
   the clock        Tick ---------------------->  +------------------+  -----> RoleChanged, WakeAt, Alarm
   other nodes      Prepare, Promise, Stale, Pull, Records, ImagePart, ReplicaReceipt, Keepalive
```

Those that there are of every message have an `__init__` of their own: the one that a dataclass makes is not compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Stop, Tick, WakeAt
from bmqtwist.cluster.log_events import Alarm
from bmqtwist.storage.psn import LogSummary, Psn, RecordRun


class PartitionRole(Enum):
    """What a node is for a partition; the names are those of the original's machine."""

    UNKNOWN = "knows no primary"
    PRIMARY_HEALING_STG1 = "collects the promises of a quorum"
    PRIMARY_HEALING_STG2 = "fetches what it lacks, and waits until a quorum has its log"
    PRIMARY_HEALED = "is primary, and active"
    REPLICA_WAITING = "waits for the primary"
    REPLICA_HEALING = "gets what it lacks"
    REPLICA_HEALED = "follows the primary"
    STOPPED = "has stopped"


@dataclass(frozen=True, slots=True)
class ReplicationTiming:
    """In seconds. `lease`: a primary that a quorum has not answered for so long is active no longer; `keepalive`: how often
    it asks; `retry`: a healing that does not come forward for so long begins anew."""

    lease: float = 15.0
    keepalive: float = 2.0
    retry: float = 10.0


class LogView(Protocol):
    """The log of the partition at this node, to be looked at."""

    @property
    def summary(self) -> LogSummary:
        """Everything that was appended."""

    @property
    def written(self) -> Psn:
        """The last record that is in the files, and can be sent."""

    @property
    def durable(self) -> Psn:
        """The last record that is safe here by policy."""

    def offers(self, after: Psn) -> bool:
        """Whether what follows this record can be sent: it is in the log, or was just before a compaction."""

    @property
    def busy(self) -> bool:
        """Whether it is being cut or replaced: nothing is appended then, and nothing is read. A LogReady follows."""

    @property
    def broken(self) -> bool:
        """Whether it takes nothing any more until a restart."""


# -- messages between nodes: outputs of one, inputs of the other. `sender` is a node, `lease` the sender's primacy ---------


@dataclass(frozen=True, slots=True)
class Prepare:
    """From a primary: take nothing of an older lease any more, and tell me what you have."""

    sender: int
    lease: int


@dataclass(frozen=True, slots=True)
class Promise:
    """I take nothing of a lease below this one, which survives a loss of power; this is my log. Also later, when what a
    primary sends does not fit. `doubtful`: records that were safe here may be missing."""

    sender: int
    lease: int
    log: LogSummary
    committed: Psn
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Stale:
    """I have promised this lease, which is newer than yours."""

    sender: int
    lease: int


@dataclass(frozen=True, slots=True)
class Pull:
    """From a primary: send me what you have behind `after`; None: all that is live."""

    sender: int
    lease: int
    after: Psn | None


@dataclass(slots=True)
class Records:
    """Records that follow a common one; `committed`: what the primary knows to be committed."""

    sender: int
    lease: int
    committed: Psn
    run: RecordRun

    def __init__(self, sender: int, lease: int, committed: Psn, run: RecordRun) -> None:
        self.sender, self.lease, self.committed, self.run = sender, lease, committed, run


@dataclass(frozen=True, slots=True)
class ImagePart:
    """Part `number` (from 0 on) of all that is live, as of the record `at`; then the log begins behind `at`."""

    sender: int
    lease: int
    number: int
    at: Psn
    final: bool
    run: RecordRun


@dataclass(slots=True)
class ReplicaReceipt:
    """The sender's log is mine up to `matched`, and safe here up to `durable`; `parts`: of an image, taken so far; `stamp`:
    of the newest Keepalive."""

    sender: int
    lease: int
    matched: Psn
    durable: Psn
    parts: int
    stamp: int

    def __init__(self, sender: int, lease: int, matched: Psn, durable: Psn, parts: int, stamp: int) -> None:
        self.sender, self.lease, self.matched = sender, lease, matched
        self.durable, self.parts, self.stamp = durable, parts, stamp


@dataclass(frozen=True, slots=True)
class Keepalive:
    """From a primary: still here? `previous`: the last record that was sent, None while an image is under way; `parts`: of
    it, sent so far; `stamp`: milliseconds of the primary's own clock, to be returned."""

    sender: int
    lease: int
    previous: Psn | None
    parts: int
    committed: Psn
    stamp: int


PartitionTalk = Prepare | Promise | Stale | Pull | Records | ImagePart | ReplicaReceipt | Keepalive


# -- further inputs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """It is committed that this node is primary under this lease."""

    primary: int
    lease: int


@dataclass(frozen=True, slots=True)
class Promised:
    """It survives a loss of power that this node has promised this lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class LogMoved:
    """Records were written, or more of them are safe."""


@dataclass(frozen=True, slots=True)
class LogReady:
    """The log can be used again; it is another one, perhaps."""


@dataclass(frozen=True, slots=True)
class LogFailed:
    """The log did not take what was to be appended, or cannot be read."""

    reason: str


@dataclass(slots=True)
class Fed:
    """A Feed or FeedImage was sent: up to which record (of an image: None), and how many bytes."""

    node_id: int
    last: Psn | None
    size: int
    final: bool

    def __init__(self, node_id: int, last: Psn | None, size: int, final: bool = False) -> None:
        self.node_id, self.last, self.size, self.final = node_id, last, size, final


@dataclass(frozen=True, slots=True)
class ImageLost:
    """An image for this node cannot be continued: what it was made from has moved."""

    node_id: int


@dataclass(frozen=True, slots=True)
class FeedFailed:
    """What this node was to be sent cannot be read."""

    node_id: int
    reason: str


PartitionInput = (Assigned | PeerUp | PeerDown | Promised | LogMoved | LogReady | LogFailed | Fed | ImageLost | FeedFailed
                  | Tick | Stop | PartitionTalk)


class PartitionEvent(Enum):
    """The columns of the table: an input by the name of its class, an assignment by whom it is for."""

    ASSIGNED_SELF = "AssignedSelf"
    ASSIGNED_OTHER = "AssignedOther"
    PEER_UP = "PeerUp"
    PEER_DOWN = "PeerDown"
    PROMISED = "Promised"
    LOG_MOVED = "LogMoved"
    LOG_READY = "LogReady"
    LOG_FAILED = "LogFailed"
    FED = "Fed"
    IMAGE_LOST = "ImageLost"
    FEED_FAILED = "FeedFailed"
    TICK = "Tick"
    STOP = "Stop"
    PREPARE = "Prepare"
    PROMISE = "Promise"
    STALE = "Stale"
    PULL = "Pull"
    RECORDS = "Records"
    IMAGE_PART = "ImagePart"
    RECEIPT = "ReplicaReceipt"
    KEEPALIVE = "Keepalive"


# -- outputs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavePromise:
    """Make it durable that this node takes nothing below this lease; then say so with a Promised."""

    lease: int


@dataclass(slots=True)
class Say:
    """A message for another node."""

    node_id: int
    message: PartitionTalk

    def __init__(self, node_id: int, message: PartitionTalk) -> None:
        self.node_id, self.message = node_id, message


@dataclass(slots=True)
class Feed:
    """Send a node Records with what follows `after`, one event of it, and say how much that was with a Fed."""

    node_id: int
    after: Psn

    def __init__(self, node_id: int, after: Psn) -> None:
        self.node_id, self.after = node_id, after


@dataclass(frozen=True, slots=True)
class FeedImage:
    """Send a node part `number` of an image, and say so with a Fed; 0 begins a new one. It ends behind the record `behind`,
    so that the node keeps all that its log has in common with ours."""

    node_id: int
    number: int
    behind: Psn


@dataclass(slots=True)
class Append:
    """Append what `run` holds behind the record `behind`, the last one of the log. A LogMoved or LogFailed follows."""

    run: RecordRun
    behind: Psn

    def __init__(self, run: RecordRun, behind: Psn) -> None:
        self.run, self.behind = run, behind


@dataclass(frozen=True, slots=True)
class Cut:
    """Take away what follows a record of the log. A LogReady follows."""

    psn: Psn


@dataclass(frozen=True, slots=True)
class TakeImage:
    """Put a part beside the log; the final one makes all of them the log, and a LogReady follows; or a LogFailed."""

    part: ImagePart


@dataclass(frozen=True, slots=True)
class Activate:
    """Begin the lease: its first record is appended. A LogMoved follows."""

    lease: int


@dataclass(slots=True)
class Committed:
    """Everything up to this record is committed."""

    psn: Psn

    def __init__(self, psn: Psn) -> None:
        self.psn = psn


@dataclass(frozen=True, slots=True)
class Serve:
    """Take clients' messages from now on, or no longer (`active` False)."""

    lease: int
    active: bool
    cause: str


@dataclass(frozen=True, slots=True)
class Decline:
    """This node cannot be primary under the lease that it was given, or is not to be: let the leader give out a newer one,
    which is above `used`; not to this node, unless it is `able`; to `successor`, if there is one."""

    lease: int
    able: bool
    used: int
    cause: str
    successor: int | None = None


@dataclass(frozen=True, slots=True)
class Yield:
    """From the leader, for the primary under this lease: give the partition to another node."""

    lease: int
    successor: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The node is something else for the partition now."""

    event: str
    before: PartitionRole
    after: PartitionRole


PartitionOutput = (SavePromise | Say | Feed | FeedImage | Append | Cut | TakeImage | Activate | Committed | Serve | Decline
                   | RoleChanged | WakeAt | Alarm)
