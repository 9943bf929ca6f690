"""Inputs and outputs of the elector (`elector.py`), as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bmqtwist.cluster.log_events import Alarm, Send, WriteFailed, Written
from bmqtwist.wire.control import ElectorMessage


class ElectionState(Enum):
    """State of a node's elector."""

    DORMANT = "not started, or stopped"
    FOLLOWER = "follows a leader, or waits for one"
    CANDIDATE = "asks for votes"
    LEADER = "leads"


class ElectionReason(Enum):
    """Reason of a change, named as in the original."""

    NONE = "elected, or a leader is heard"
    STARTED = "the node has started"
    LEADER_NO_HEARTBEAT = "the leader is silent, or has ceded"
    LEADER_UNAVAILABLE = "the connection with the leader is gone"
    LEADER_PREEMPTED = "there is a newer term"
    ELECTION_PREEMPTED = "another candidate has a newer term"
    QUORUM_NOT_ACHIEVED = "too few nodes support this one"


class ElectionMode(Enum):
    """Candidacy of a node."""

    NORMAL = "stands after a random wait"
    FORCE = "stands after the shortest wait"
    NEVER = "votes, and does not stand"
    LEAVING = "neither votes nor stands: a leader that needs its vote would be none without it"


class ElectionTimer(Enum):
    """Timers of an elector."""

    INITIAL = "a leader, after the start"
    RANDOM = "a leader, before it stands"
    SCOUT = "answers to its scouting"
    ELECTION = "votes; a leader: for its successor to catch up"
    CHECK = "the next look at the leader's silence; a leader: the end of its quorum"
    BEAT = "the next heartbeat"


@dataclass(frozen=True, slots=True)
class Timing:
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
        """Time without heartbeats after which a follower drops its leader, or without answers after which a leader cedes."""
        return self.miss_count * self.beat_period


# -- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Start with the newest known term and vote; `damaged`: they are lost."""

    term: int
    vote: int | None = None
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the node."""


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A node is connected."""

    node_id: int


@dataclass(frozen=True, slots=True)
class PeerDown:
    """A node is disconnected."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message from another node."""

    sender: int
    message: ElectorMessage


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Hand the leadership to another node once it has all metadata."""

    target: int


@dataclass(frozen=True, slots=True)
class Resign:
    """Cede the leadership: this node cannot fulfil it."""

    cause: str


@dataclass(frozen=True, slots=True)
class SetMode:
    """Set the mode of candidacy."""

    mode: ElectionMode


@dataclass(frozen=True, slots=True)
class SetQuorum:
    """Set the number of votes that a leader needs, at least a majority; 0 = a majority."""

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
    """Request a Tick at this time and none before; None: no Tick."""

    moment: float | None


@dataclass(frozen=True, slots=True)
class Voted:
    """This node has entered `term`: messages of leaders of older terms are ignored."""

    term: int


@dataclass(frozen=True, slots=True)
class Outvoted:
    """Too few nodes would vote for this one; they may have newer metadata, which it can request."""


@dataclass(frozen=True, slots=True)
class Standing:
    """State, leader and term of a node."""

    state: ElectionState
    leader: int | None
    term: int


@dataclass(frozen=True, slots=True)
class ElectionChanged:
    """The standing of the node has changed."""

    before: Standing
    after: Standing
    reason: ElectionReason
    cause: str


ElectionOutput = SaveVote | Send | TickAt | Voted | Outvoted | ElectionChanged | Alarm
