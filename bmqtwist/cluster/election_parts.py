"""Parts of the elector: its timers, its support by other nodes, a scouting round, and the terms it asks for. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bmqtwist.cluster.election_events import ElectionTimer, Timing


class ElectionTimers:
    """Deadlines of one elector. `chance`: a number in [0, 1), drawn at each call; `now`: seconds, monotonic."""

    def __init__(self, timing: Timing, chance: Callable[[], float]) -> None:
        self.timing, self._chance = timing, chance
        self.now = 0.0
        self.deadlines: dict[ElectionTimer, float] = {}

    def arm(self, timer: ElectionTimer, seconds: float) -> None:
        """Let a timer fire `seconds` from now."""
        self.deadlines[timer] = self.now + seconds

    def arm_random(self, shortest: bool) -> None:
        """Draw the wait before this node stands for election."""
        least, most = self.timing.random_wait_max / 4, self.timing.random_wait_max
        drawn = 0.0 if shortest else self._chance()
        self.arm(ElectionTimer.RANDOM, least + drawn * (most - least))

    def due(self) -> list[tuple[float, ElectionTimer]]:
        """Expired deadlines, earliest first."""
        found = [(moment, timer) for timer, moment in self.deadlines.items() if moment <= self.now]
        return sorted(found, key=lambda each: (each[0], each[1].name))

    @property
    def earliest(self) -> float | None:
        """The next deadline."""
        return min(self.deadlines.values(), default=None)


@dataclass(slots=True)
class Scouting:
    """Which nodes would vote for this node in a term, and which would not."""

    term: int
    willing: set[int]
    unwilling: set[int] = field(default_factory=set)
    leader: int | None = None  # reported by one of them

    @property
    def answers(self) -> int:
        """How many nodes have answered, this one included."""
        return len(self.willing | self.unwilling)


@dataclass(slots=True)
class Support:
    """The nodes that vote for a candidate or follow a leader. `heard`: for each, the time of the newest heartbeat that it
    has answered; `asked_at`: when the candidate asked for votes; `successor`: the node that a leader hands over to."""

    nodes: set[int] = field(default_factory=set)
    refusals: set[int] = field(default_factory=set)
    heard: dict[int, float] = field(default_factory=dict)
    asked_at: float = 0.0
    successor: int | None = None

    def answered(self, node_id: int, sent_at: float) -> None:
        """A follower has answered the heartbeat of this time."""
        self.nodes.add(node_id)
        self.heard[node_id] = max(self.heard.get(node_id, 0.0), sent_at)

    def lasts_until(self, majority: int, inactivity: float) -> float:
        """When a majority, this node included, will have answered no heartbeat for `inactivity` seconds."""
        needed = majority - 1
        if not needed:
            return float("inf")
        heard = sorted(self.heard.values(), reverse=True)
        return (heard[needed - 1] if len(heard) >= needed else 0.0) + inactivity


@dataclass(slots=True)
class TermInquiry:
    """The terms of all other nodes, which a node asks for when its own term and vote are lost (`pending`)."""

    others: list[int]
    pending: bool = False
    terms: dict[int, int] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """The nodes that have not told their terms."""
        return [node_id for node_id in self.others if node_id not in self.terms]

    def learn(self, node_id: int, term: int) -> None:
        """A node has told its term; the inquiry ends with the last one."""
        self.terms[node_id] = term
        self.pending = bool(self.missing)
