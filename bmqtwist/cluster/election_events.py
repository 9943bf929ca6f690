"""Inputs and outputs of the elector's machine (`elector.py`), as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bmqtwist.cluster.log_events import Alarm, Send, WriteFailed, Written
from bmqtwist.wire.control import ElectorMessage


class ElectionState(Enum):
    """What a node is in an election."""

    DORMANT = "not started, or stopped"
    FOLLOWER = "follows a leader, or waits for one"
    CANDIDATE = "asks for votes"
    LEADER = "leads"


class ElectionReason(Enum):
    """Why an election has changed something, in the words of the original."""

    NONE = "elected, or a leader is heard"
    STARTED = "the node has started"
    LEADER_NO_HEARTBEAT = "the leader is silent, or has ceded"
    LEADER_UNAVAILABLE = "the connection with the leader is gone"
    LEADER_PREEMPTED = "there is a newer term"
    ELECTION_PREEMPTED = "another candidate has a newer term"
    QUORUM_NOT_ACHIEVED = "too few nodes support this one"


class ElectionMode(Enum):
    """Whether a node wants to lead."""

    NORMAL = "stands after a random wait"
    FORCE = "stands after the shortest wait"
    NEVER = "votes, and does not stand"
    LEAVING = "neither votes nor stands: a leader that needs its vote would be none without it"


class ElectionTimer(Enum):
    """What a node waits for."""

    INITIAL = "a leader, after the start"
    RANDOM = "a leader, before it stands"
    SCOUT = "answers to its scouting"
    ELECTION = "votes; a leader: for its successor to catch up"
    CHECK = "the next look at the leader's silence; a leader: the end of its quorum"
    BEAT = "the next heartbeat"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a node waits, in seconds, as `elector` of a cluster's configuration has it."""

    initial_wait: float = 8.0
    random_wait_max: float = 3.0
    scouting_result: float = 4.0
    election_result: float = 4.0
    beat_period: float = 2.0
    check_period: float = 1.0
    miss_count: int = 10

    @property
    def inactivity(self) -> float:
        """A leader that was not heard for so long is given up, and one that has not heard a quorum gives up."""
        return self.miss_count * self.beat_period


# -- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Begin with the newest term and vote that are known here; `damaged`: what was voted in which term is not known."""

    term: int
    vote: int | None = None
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """The node goes away."""


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A node can be spoken with."""

    node_id: int


@dataclass(frozen=True, slots=True)
class PeerDown:
    """A node cannot be spoken with any more."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message of another node."""

    sender: int
    message: ElectorMessage


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Let another node lead, once it has all the metadata."""

    target: int


@dataclass(frozen=True, slots=True)
class Resign:
    """Lead no longer: this node cannot do what a leader has to."""

    cause: str


@dataclass(frozen=True, slots=True)
class SetMode:
    """From now on stand like this."""

    mode: ElectionMode


@dataclass(frozen=True, slots=True)
class SetQuorum:
    """From now on so many votes are needed, and never fewer than a majority; 0 = a majority."""

    quorum: int


ElectionInput = (Start | Stop | PeerUp | PeerDown | Received | Tick | Written | WriteFailed | Transfer | Resign | SetMode
                 | SetQuorum)


# -- outputs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveVote:
    """Make this durable, then say so with a Written of the same number."""

    number: int
    term: int
    vote: int | None


@dataclass(frozen=True, slots=True)
class TickAt:
    """A Tick is wanted at this moment and at none before; None: at no moment at all."""

    moment: float | None


@dataclass(frozen=True, slots=True)
class Voted:
    """This node takes part in `term`: leaders of older ones have nothing to say here any more."""

    term: int


@dataclass(frozen=True, slots=True)
class Outvoted:
    """Too few would vote for this node: others may have newer metadata, which it could have from them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a node stands."""

    state: ElectionState
    leader: int | None
    term: int


@dataclass(frozen=True, slots=True)
class ElectionChanged:
    """Where the node stands now, and where it stood."""

    before: Standing
    after: Standing
    reason: ElectionReason
    cause: str


ElectionOutput = SaveVote | Send | TickAt | Voted | Outvoted | ElectionChanged | Alarm
