"""Inputs and outputs of the elector (`elector.py`), as values. `member/leadership.py` performs the outputs.

Messages on the wire are declared in `wire/cluster_schema.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bmqtwist.cluster.log_events import Alarm, Send, WriteFailed, Written
from bmqtwist.wire.control import ElectorMessage


class ElectionState(Enum):
    """State of a node's elector."""

    DORMANT = "not started, or stopped"
    FOLLOWER = "follows a leader, or knows none"
    CANDIDATE = "requests votes"
    LEADER = "was elected, and sends heartbeats"


class ElectionReason(Enum):
    """Reason of a change of the elector, named as in the original; the texts are shown to operators."""

    NONE = "this node was elected, or received a heartbeat of a leader"
    STARTED = "the node has started"
    LEADER_NO_HEARTBEAT = "the leader sends no heartbeats, or has ceded"
    LEADER_UNAVAILABLE = "the connection to the leader is lost"
    LEADER_PREEMPTED = "another node is in a newer term"
    ELECTION_PREEMPTED = "another candidate is in a newer term"
    QUORUM_NOT_ACHIEVED = "too few nodes vote for this node or follow it"


class ElectionMode(Enum):
    """Candidacy of a node; the texts are shown to operators."""

    NORMAL = "becomes a candidate after a random wait"
    FORCE = "becomes a candidate after the shortest wait"
    NEVER = "votes, and never becomes a candidate"
    LEAVING = "stops: it neither votes nor becomes a candidate"


class ElectionTimer(Enum):
    """Timers of an elector; each text says what happens at the deadline."""

    INITIAL = "the wait for a leader after the start ends"
    RANDOM = "a follower without a leader becomes a candidate"
    SCOUT = "the wait for scouting responses ends"
    ELECTION = "the wait for votes ends; at a leader: the wait for its successor ends"
    CHECK = "the leader's last heartbeat is checked; at a leader: its quorum is lost"
    BEAT = "the leader sends heartbeats"


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    """Intervals in seconds, from `elector` in the configuration of a cluster."""

    initial_wait: float = 8.0
    random_wait_max: float = 3.0
    scouting_result: float = 4.0
    election_result: float = 4.0
    beat_period: float = 2.0
    check_period: float = 1.0
    miss_count: int = 10

    @property
    def inactivity(self) -> float:
        """Time without heartbeats after which a follower drops its leader, without answers after which a leader cedes."""
        return self.miss_count * self.beat_period


# -- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start with the term and vote in the file."""

    term: int
    vote: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the elections: the node stops."""


@dataclass(frozen=True, slots=True)
class PeerUp:
    """The connection to a node is established."""

    node_id: int


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The connection to a node is lost."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message of another node has arrived."""

    sender: int
    message: ElectorMessage


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of the last TickAt has come."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Transfer the leadership to another node once it has all metadata."""

    target: int


@dataclass(frozen=True, slots=True)
class Resign:
    """Cede the leadership, which this node cannot perform; `cause`: the reason."""

    cause: str


@dataclass(frozen=True, slots=True)
class SetMode:
    """Change the candidacy of the node."""

    mode: ElectionMode


@dataclass(frozen=True, slots=True)
class SetQuorum:
    """Set the number of votes that a leader needs besides a quorum of the electorate; 0 = no more."""

    quorum: int


ElectionInput = (Start | Stop | PeerUp | PeerDown | Received | Tick | Written | WriteFailed | Transfer | Resign | SetMode
                 | SetQuorum)


# -- outputs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveVote:
    """Make term and vote durable; a Written or WriteFailed with this number follows."""

    number: int
    term: int
    vote: int | None


@dataclass(frozen=True, slots=True)
class TickAt:
    """Request a Tick at this time, instead of an earlier request; None: no Tick."""

    moment: float | None


@dataclass(frozen=True, slots=True)
class Voted:
    """This node has voted in `term`, and from now on ignores leaders of older terms."""

    term: int


@dataclass(frozen=True, slots=True)
class NotElectable:
    """This node cannot be elected: it may not stand, or too few nodes would vote for it. They may have newer metadata, which
    it can request."""


@dataclass(frozen=True, slots=True)
class ElectorStatus:
    """State, leader and term of an elector."""

    state: ElectionState
    leader: int | None
    term: int


@dataclass(frozen=True, slots=True)
class ElectionChanged:
    """State, leader or term of the elector have changed."""

    before: ElectorStatus
    after: ElectorStatus
    reason: ElectionReason
    cause: str


ElectionOutput = SaveVote | Send | TickAt | Voted | NotElectable | ElectionChanged | Alarm
