"""Parts of the elector: ballot (term and vote), timers, support by other nodes, scouting round.

`elector.py` uses them. All are pure: without input, output or clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bmqtwist.cluster.election_events import ElectionOutput, ElectionTimer, ElectionTiming, SaveVote
from bmqtwist.cluster.electorate import Electorate, quorum_value
from bmqtwist.cluster.log_events import Send
from bmqtwist.wire.control import ElectorMessage

PATIENCE_MAX = 1 << 10  # keeps the factor small; the inactivity timeout limits the time


class ElectionTimers:
    """Deadlines of one elector. `chance`: returns a random number in [0, 1); `now`: seconds, monotonic; `data_received_at`:
    returns the time of the last data of a node."""

    def __init__(self, timing: ElectionTiming, chance: Callable[[], float]) -> None:
        self.timing, self._chance = timing, chance
        self.now = 0.0
        self.data_received_at: Callable[[int], float] = lambda node_id: float("-inf")
        self.patience = 1  # factor of the time for answers; doubled after each round without enough of them
        self.deadlines: dict[ElectionTimer, float] = {}

    def arm(self, timer: ElectionTimer, seconds: float) -> None:
        self.deadlines[timer] = self.now + seconds

    def arm_answers(self, timer: ElectionTimer, seconds: float) -> None:
        """Arm the timer of a round of scouting or votes: `seconds` times `patience`, at most the inactivity timeout."""
        self.arm(timer, min(seconds * self.patience, max(seconds, self.timing.inactivity)))

    def on_answers_missing(self) -> None:
        """Give the next round twice the time: the links may be slow."""
        self.patience = min(2 * self.patience, PATIENCE_MAX)

    def arm_candidacy(self, shortest: bool) -> None:
        """Arm the timer of the next candidacy, after a quarter (`shortest`) to all of `random_wait_max`, at random."""
        least, most = self.timing.random_wait_max / 4, self.timing.random_wait_max
        drawn = 0.0 if shortest else self._chance()
        self.arm(ElectionTimer.RANDOM, least + drawn * (most - least))

    def expired(self) -> list[tuple[float, ElectionTimer]]:
        """Return (deadline, timer) of the timers whose deadline has passed, in order."""
        found = [(moment, timer) for timer, moment in self.deadlines.items() if moment <= self.now]
        return sorted(found, key=lambda each: (each[0], each[1].name))

    @property
    def earliest(self) -> float | None:
        return min(self.deadlines.values(), default=None)


@dataclass(slots=True)
class Scouting:
    """Scouting for a term: nodes that would, and would not, vote for this node. `skips_terms`: the term is higher than any
    term in which a node that has lost its vote may have voted."""

    term: int
    willing: set[int]
    unwilling: set[int] = field(default_factory=set)
    leader: int | None = None  # leader that a node reported
    skips_terms: bool = False

    @property
    def answer_count(self) -> int:
        return len(self.willing | self.unwilling)


@dataclass(slots=True)
class Support:
    """Nodes that vote for a candidate or follow a leader. `answered_at`: by node, the time of the newest heartbeat that it
    answered; `requested_at`: time of a candidate's vote request; `successor`: node to which a leader transfers the
    leadership."""

    nodes: set[int] = field(default_factory=set)
    refusals: set[int] = field(default_factory=set)
    answered_at: dict[int, float] = field(default_factory=dict)
    requested_at: float = 0.0
    successor: int | None = None

    def on_heartbeat_answered(self, node_id: int, sent_at: float) -> None:
        """Record that a follower answered the heartbeat sent at this time."""
        self.nodes.add(node_id)
        self.answered_at[node_id] = max(self.answered_at.get(node_id, 0.0), sent_at)

    def lasts_until(self, electorate: Electorate, inactivity: float) -> float:
        """Return the time until which a quorum, this node included, has answered within the last `inactivity` seconds."""
        if electorate.has_quorum((electorate.node_id,)):
            return float("inf")
        answered_at = {electorate.node_id: float("inf"), **self.answered_at}
        return (quorum_value(electorate, answered_at, 0, lambda moment: moment) or 0.0) + inactivity


_UNKNOWN = (-1, None)  # unknown content of the file: no term is -1
_CANDIDACY_MESSAGES = ("electionProposal", "leaderHeartbeat")  # sent by candidates and leaders only


class Ballot:
    """Term and vote of a node: durable before any message that depends on them is sent.

    One write is in progress at a time. Messages are delayed until this write is durable; if term or vote have changed
    meanwhile, until the next write is durable. For each node, only the newest delayed message of each kind is retained.
    `has_file`: False for the only member of a cluster, whose first record of a term replaces the vote.
    """

    def __init__(self, has_file: bool) -> None:
        self.term = 0
        self.vote: int | None = None  # in this term
        self._has_file = has_file
        self._saved: tuple[int, int | None] = _UNKNOWN
        self._saving: tuple[int, int | None] = _UNKNOWN  # content of the write in progress
        self._writing: int | None = None  # number of the write in progress
        self._last_number = 0  # number of the newest write
        self._delayed: dict[tuple[int, str], ElectorMessage] = {}

    def load(self, term: int, vote: int | None) -> None:
        """Set term and vote from the file."""
        self.term, self.vote = term, vote
        self._saved = term, vote

    def reset(self) -> None:
        """Reset at the stop of the node; the next start calls `load`."""
        self.load(0, None)
        self._writing, self._delayed = None, {}

    def set_term(self, term: int, vote: int | None) -> list[ElectionOutput]:
        """Set term and vote, and write them."""
        self.term, self.vote = term, vote
        return self.save()

    def save(self) -> list[ElectionOutput]:
        """Write term and vote if they have changed; later messages are delayed until they are durable."""
        if not self._has_file or self._writing is not None or (self.term, self.vote) == self._saved:
            return []
        self._last_number += 1
        self._writing, self._saving = self._last_number, (self.term, self.vote)
        return [SaveVote(self._writing, self.term, self.vote)]

    def send(self, node_id: int, message: ElectorMessage) -> list[ElectionOutput]:
        """Send a message; during a write, delay it until term and vote are durable."""
        if self._writing is None:
            return [Send(node_id, message)]
        self._delayed.pop((node_id, message.choice), None)
        self._delayed[node_id, message.choice] = message
        return []

    def drop_delayed_candidacy(self) -> None:
        """Drop delayed messages of a candidacy or leadership that has ended."""
        self._delayed = {key: message for key, message in self._delayed.items() if key[1] not in _CANDIDACY_MESSAGES}

    def is_current(self, number: int) -> bool:
        """True if this is the number of the write in progress."""
        return number == self._writing

    def on_written(self) -> list[ElectionOutput]:
        """Complete the write in progress; return the next write or the delayed messages."""
        self._writing, self._saved = None, self._saving
        next_write = self.save()
        if next_write:
            return next_write
        delayed, self._delayed = self._delayed, {}
        return [Send(node_id, message) for (node_id, _), message in delayed.items()]

    def on_write_failed(self) -> None:
        """Drop the delayed messages; the content of the file is unknown after a failed write."""
        self._writing, self._saved, self._delayed = None, _UNKNOWN, {}

    @property
    def is_durable(self) -> bool:
        """True if term and vote are durable."""
        return not self._has_file or self._writing is None and (self.term, self.vote) == self._saved
