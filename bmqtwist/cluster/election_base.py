"""What the elector of a node knows, and how it speaks: the ground on which `elector.py` decides. Pure.

An input is dispatched by the table; timers are deadlines kept here, and whoever runs the elector is told the earliest one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from bmqtwist.cluster.ballot import Ballot
from bmqtwist.cluster.election_events import (
    ElectionChanged,
    ElectionEvent,
    ElectionInput,
    ElectionMode,
    ElectionOutput,
    ElectionReason,
    ElectionState,
    ElectionTimer,
    PeerDown,
    PeerUp,
    Received,
    Standing,
    Tick,
    Timing,
    WakeAt,
)
from bmqtwist.cluster.election_table import ACTIONS
from bmqtwist.cluster.log_events import NO_LSN, Alarm, Lsn
from bmqtwist.machine import TransitionLog
from bmqtwist.wire.cluster_schema import LeaderMessageSequence
from bmqtwist.wire.control import ElectorMessage

TERM_MAX = 1 << 63  # a term beyond it is a mistake of whoever sends it
NOBODY = -1  # on the wire, where a node is named
_TERMLESS = ("electorNodeStatus", "scoutingResponse")  # messages that may have the term 0


@dataclass(slots=True)
class Scouting:
    """Who would vote for this node in a term, and who would not."""

    term: int
    willing: set[int]
    unwilling: set[int] = field(default_factory=set)
    leader: int | None = None  # that one of them knows


class ElectionBase:
    """The elector of one node. `members`: ids of all nodes; `chance`: a number in [0, 1), drawn at each call; `newest`: the
    LSN of the newest metadata record that is durable here; `quorum`: 0 = a majority, which is also the least."""

    def __init__(self, node_id: int, name: str, members: Collection[int], timing: Timing, chance: Callable[[], float],
                 newest: Callable[[], Lsn], quorum: int = 0) -> None:
        self.node_id, self.name, self.members = node_id, name, frozenset(members)
        self.others = sorted(self.members - {node_id})
        self.timing = timing
        self.majority = len(self.members) // 2 + 1
        self.quorum = max(quorum, self.majority)
        self.mode = ElectionMode.NORMAL
        self.state = ElectionState.DORMANT
        self.ballot = Ballot(kept=bool(self.others))
        self.leader: int | None = None
        self.tentative: int | None = None  # voted for, and no heartbeat yet
        self.elsewhere: int | None = None  # who leads, as another node has said lately to this one, which hears no leader
        self.supporters: set[int] = set()  # of a candidate or leader
        self.story = TransitionLog()
        self.age = 0
        self._chance, self._newest = chance, newest
        self._refusals: set[int] = set()
        self._asked_at = 0.0  # a candidate: when it began to ask for votes
        self._scouting: Scouting | None = None
        self._highest = 0  # term that others have told of; no term of ours, but the next one is above it
        self._ceded_by: int | None = None
        self._favours: int | None = None  # whom this node has ceded to: for a while it votes for nobody else
        self.ignorant = False  # nobody can tell how this node has voted: see `Elector._learn`
        self._terms: dict[int, int] = {}  # of the other nodes, as they have told an ignorant one
        self._last_beat = 0.0  # of the leader, or of the moment of the vote
        self._heard: dict[int, float] = {}  # a leader: of which moment the newest heartbeat is that a node has answered
        self._successor: int | None = None
        self._deadlines: dict[ElectionTimer, float] = {}
        self._wake: float | None = None
        self._told = Standing(ElectionState.DORMANT, None, 0)
        self._now = 0.0
        self._out: list[ElectionOutput] = []

    def step(self, now: float, event: ElectionInput) -> list[ElectionOutput]:
        """One input; what follows from it."""
        self._now, self._out = now, []
        self._keep_quorum()
        if isinstance(event, Tick):
            self._fire()
        elif isinstance(event, Received):
            self._receive(event.sender, event.message)
        else:
            self._act(ElectionEvent(type(event).__name__), event)
        wake = min(self._deadlines.values(), default=None)
        if wake != self._wake:
            self._wake = wake
            self._out.append(WakeAt(wake))
        return self._out

    def _act(self, kind: ElectionEvent, event: Any) -> None:
        getattr(self, ACTIONS[self.state][kind])(event)

    def _fire(self) -> None:
        due = sorted((moment, timer.name) for timer, moment in self._deadlines.items() if moment <= self._now)
        for moment, name in due:
            timer = ElectionTimer[name]
            if self._deadlines.get(timer) == moment:  # what fired before it may have cancelled it
                del self._deadlines[timer]
                self._act(ElectionEvent(timer.name), timer)

    def _receive(self, sender: int, message: ElectorMessage) -> None:
        if sender not in self.members or sender == self.node_id or not message.choice:
            return
        if not message.term and message.choice not in _TERMLESS:
            return
        if message.term > TERM_MAX:
            self._alarm(f"node {sender} speaks of term {message.term}, which is left unread")
            return
        if message.choice == "electorNodeStatus":
            event = PeerUp(sender) if message.value.is_available else PeerDown(sender)
            self._act(ElectionEvent(type(event).__name__), event)
        else:
            self._act(ElectionEvent(message.choice), Received(sender, message))

    # -- term and vote ----------------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The newest one this node takes part in."""
        return self.ballot.term

    def silence(self, now: float) -> float:
        """For how many seconds the leader that this node follows has not been heard; 0 = it follows none."""
        follows = self.leader is not None and self.leader != self.node_id
        return max(0.0, now - self._last_beat) if follows else 0.0

    def _set_term(self, term: int, vote: int | None) -> None:
        self._out += self.ballot.set(term, vote)

    def _clear(self) -> None:
        """Whatever was going on is over."""
        self._deadlines.clear()
        self.ballot.withdraw()
        self._scouting = self._ceded_by = self.leader = self.tentative = self._successor = None
        self.supporters, self._refusals, self._heard = set(), set(), {}

    def _change(self, state: ElectionState, leader: int | None, reason: ElectionReason, cause: str) -> None:
        """After `_clear`: where the node stands now is told."""
        before, self.state, self.leader, self.elsewhere = self._told, state, leader, None
        self._told = Standing(state, leader, self.term)
        self.age += 1
        self._out.append(ElectionChanged(self.age, before, self._told, reason, cause))
        self.story.note(self._now, before.state.name, state.name, cause)

    def _note(self, cause: str) -> None:
        self.story.note(self._now, self.state.name, self.state.name, cause)

    def _tell(self, node_id: int, choice: str, value: Any, term: int | None = None) -> None:
        self._out += self.ballot.tell(node_id, ElectorMessage(self.term if term is None else term, choice, value))

    def _broadcast(self, choice: str, value: Any, term: int | None = None) -> None:
        for node_id in self.others:
            self._tell(node_id, choice, value, term)

    def _alarm(self, text: str) -> None:
        self._out.append(Alarm(f"{self.name}: {text}"))

    def _arm(self, timer: ElectionTimer, seconds: float) -> None:
        self._deadlines[timer] = self._now + seconds

    def _wait(self) -> None:
        """Stand after a while, unless there is a leader by then."""
        least, most = self.timing.random_wait_max / 4, self.timing.random_wait_max
        drawn = 0.0 if self.mode is ElectionMode.FORCE else self._chance()
        self._arm(ElectionTimer.RANDOM, least + drawn * (most - least))

    def _last(self) -> LeaderMessageSequence:
        return LeaderMessageSequence(*self._newest())

    @property
    def _leader_on_wire(self) -> int:
        return NOBODY if self.leader is None else self.leader

    def _ignore(self, event: object) -> None:
        """Meant for another state, or too late."""

    def _keep_quorum(self) -> None:
        """Before every input: a leader that has lost its quorum does nothing more as a leader."""


def lsn_of(sequence: LeaderMessageSequence | None) -> Lsn:
    """As the metadata log has it."""
    return NO_LSN if sequence is None else (sequence.elector_term, sequence.sequence_number)
