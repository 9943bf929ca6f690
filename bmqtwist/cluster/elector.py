"""The election of a leader: which node votes for which in which term. A machine without sockets, files, clock and chance;
docs/internals.md, "The election", has its rules.

A node whose term and vote are lost could vote a second time in a term, or count for a leader of a term that is older than
its vote. So it neither votes nor follows until all other nodes have reported their terms, and is in the newest of them then,
without a vote: the node that got its vote had made the term durable before. (Its own pending vote request is cancelled.) A
wait would not do, since a candidate may be delayed for longer; nor would the leader of a majority, since an older one may
have that, too.

`Elector` holds what a node knows; its actions are functions, by role. `TABLE` names one for every state and event. Timers
are deadlines, and a `WakeAt` reports the earliest one. `now`: seconds, monotonic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, get_args

from bmqtwist.cluster import election_events as ev
from bmqtwist.cluster.election_events import ElectionMode, ElectionReason, ElectionState, ElectionTimer
from bmqtwist.cluster.election_parts import Ballot, ElectionTimers, Scouting, Support, TermInquiry
from bmqtwist.cluster.log_events import Alarm, WriteFailed, Written
from bmqtwist.machine import Cell, TransitionLog, check, event_name, table, to
from bmqtwist.wire import cluster_schema as schema
from bmqtwist.wire.cluster_schema import NO_LSN, ElectionProposal, Lsn, ScoutingRequest
from bmqtwist.wire.control import ElectorMessage

TERM_MAX = 1 << 63  # a term beyond it is a mistake of whoever sends it
NOBODY = -1  # on the wire, where a node is named
DORMANT, FOLLOWER, CANDIDATE, LEADER = ElectionState
_TERMLESS = ("electorNodeStatus", "scoutingResponse")  # messages that may have the term 0
_PASSIVE = (ElectionMode.NEVER, ElectionMode.LEAVING)  # they do not stand


class Elector:
    """The elector of one node. `members`: ids of all nodes; `chance`: a number in [0, 1), drawn at each call; `newest`: the
    LSN of the newest metadata record that is durable here; `quorum`: 0 = a majority, which is also the least."""

    def __init__(self, node_id: int, name: str, members: Collection[int], timing: ev.Timing, chance: Callable[[], float],
                 newest: Callable[[], Lsn], quorum: int = 0) -> None:
        self.node_id, self.name = node_id, name
        self.others = sorted(set(members) - {node_id})
        self.quorum = max(quorum, self.majority)
        self.newest = newest
        self.timing, self.timers = timing, ElectionTimers(timing, chance)
        self.mode = ElectionMode.NORMAL
        self.state = DORMANT
        self.ballot = Ballot(kept=bool(self.others))
        self.leader: int | None = None
        self.tentative: int | None = None  # voted for, and no heartbeat yet
        self.elsewhere: int | None = None  # who leads, as another node has said lately to this one, which hears no leader
        self.support = Support()  # of a candidate or leader
        self.scouting: Scouting | None = None
        self.inquiry = TermInquiry(self.others)
        self.highest = 0  # term that others have told of; no term of ours, but the next one is above it
        self.ceded_by: int | None = None
        self.favours: int | None = None  # whom this node has ceded to: for a while it votes for no other node
        self.last_beat = 0.0  # of the leader, or of the moment of the vote
        self.story = TransitionLog()
        self.outputs: list[ev.ElectionOutput] = []
        self._event: Any = ev.Start  # its class, of the one in progress
        self._told = ev.Standing(DORMANT, None, 0)
        self._wake: float | None = None

    # -- inputs ---------------------------------------------------------------------------------------------------------

    def step(self, now: float, event: ev.ElectionInput) -> list[ev.ElectionOutput]:
        """One input; what follows from it. A leader that has lost its quorum cedes before it."""
        self.timers.now, self.outputs = now, []
        if self.state is LEADER and now >= self.quorum_until:
            self.act(ElectionTimer.CHECK, ElectionTimer.CHECK)
        if isinstance(event, ev.Tick):
            self._fire()
        elif isinstance(event, ev.Received):
            self._receive(event.sender, event.message)
        else:
            self.act(type(event), event)
        wake = self.timers.earliest
        if wake != self._wake:
            self._wake = wake
            self.outputs.append(ev.WakeAt(wake))
        return self.outputs

    def act(self, kind: Any, event: Any) -> None:
        """Dispatch one event by the table: the class of an input or message, or a timer."""
        before, self._event = self.state, kind
        TABLE[before][kind].action(self, event)
        check(TABLE, before, kind, self.state)

    def _fire(self) -> None:
        deadlines = self.timers.deadlines
        for moment, timer in self.timers.due():
            if deadlines.get(timer) == moment:  # what fired before it may have cancelled it
                del deadlines[timer]
                self.act(timer, timer)

    def _receive(self, sender: int, message: ElectorMessage) -> None:
        if sender not in self.others or not message.choice:
            return
        if not message.term and message.choice not in _TERMLESS:
            return
        if message.term > TERM_MAX:
            self.alarm(f"node {sender} speaks of term {message.term}, which is left unread")
            return
        if message.choice == "electorNodeStatus":
            event = ev.PeerUp(sender) if message.value.is_available else ev.PeerDown(sender)
            self.act(type(event), event)
        else:
            self.act(type(message.value), ev.Received(sender, message))

    # -- what the node knows ----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return len(self.others) + 1

    @property
    def majority(self) -> int:
        return self.size // 2 + 1

    @property
    def term(self) -> int:
        return self.ballot.term

    @property
    def supporters(self) -> set[int]:
        return self.support.nodes

    @property
    def quorum_until(self) -> float:
        """When this leader will have lost its quorum, if no node answers it any more."""
        return self.support.lasts_until(self.majority, self.timing.inactivity)

    @property
    def leader_on_wire(self) -> int:
        return NOBODY if self.leader is None else self.leader

    def silence(self, now: float) -> float:
        """For how many seconds the leader that this node follows has not been heard; 0 = it follows none."""
        follows = self.leader is not None and self.leader != self.node_id
        return max(0.0, now - self.last_beat) if follows else 0.0

    def is_eligible(self, sender: int, request: ScoutingRequest | ElectionProposal) -> bool:
        """Whether this node may vote for one whose log is as it says."""
        votes = not self.inquiry.pending and self.mode is not ElectionMode.LEAVING and self.favours in (None, sender)
        return votes and (request.last or NO_LSN) >= self.newest()

    # -- what changes and what is said ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Whatever was going on is over."""
        self.timers.deadlines.clear()
        self.ballot.withdraw()
        self.scouting = self.ceded_by = self.leader = self.tentative = None
        self.support = Support()

    def change(self, state: ElectionState, leader: int | None, reason: ElectionReason, cause: str) -> None:
        """After `clear`: change to a state, and report where the node stands now."""
        before, self.state, self.leader, self.elsewhere = self._told, state, leader, None
        self._told = ev.Standing(state, leader, self.term)
        self.outputs.append(ev.ElectionChanged(before, self._told, reason, cause))
        self.story.note(self.timers.now, before.state.name, state.name, cause, event_name(self._event))

    def note(self, cause: str) -> None:
        self.story.note(self.timers.now, self.state.name, self.state.name, cause, event_name(self._event))

    def set_term(self, term: int, vote: int | None) -> None:
        self.outputs += self.ballot.set(term, vote)

    def tell(self, node_id: int, value: Any, term: int | None = None) -> None:
        """Send a message once term and vote are durable; `term` None: the one of this node."""
        self.outputs += self.ballot.tell(node_id, ElectorMessage(
            self.term if term is None else term, ElectorMessage.CHOICE.name_of(value), value))

    def broadcast(self, value: Any, term: int | None = None) -> None:
        for node_id in self.others:
            self.tell(node_id, value, term)

    def alarm(self, text: str) -> None:
        self.outputs.append(Alarm(f"{self.name}: {text}"))

    def wait(self) -> None:
        """Stand after a while, unless there is a leader by then."""
        self.timers.arm_random(self.mode is ElectionMode.FORCE)


# -- every role ---------------------------------------------------------------------------------------------------------


def _ignore(elector: Elector, event: object) -> None:
    """Meant for another state, or too late."""


def _start(elector: Elector, event: ev.Start) -> None:
    elector.ballot.found(event.term, event.vote, event.damaged)
    elector.inquiry = TermInquiry(elector.others, event.damaged)
    if event.damaged:
        elector.alarm("it is not known how this node has voted: it neither votes nor follows until all other nodes have "
                      "told it their terms")
    elector.change(FOLLOWER, None, ElectionReason.STARTED, "start")
    elector.timers.arm(ElectionTimer.INITIAL, elector.timing.initial_wait if elector.others else 0.0)


def _stop(elector: Elector, event: ev.Stop) -> None:
    elector.clear()
    elector.ballot.forget()
    elector.change(DORMANT, None, ElectionReason.NONE, "stop")
    elector.broadcast(schema.ElectorNodeStatus(False), 0)


def _lose_leader(elector: Elector, reason: ElectionReason, cause: str) -> None:
    """Follow no node: the election was lost, or the leader is gone, or this node leads no longer."""
    elector.clear()
    elector.change(FOLLOWER, None, reason, cause)
    elector.wait()


def _forget_vote(elector: Elector, cause: str) -> None:
    """Whoever was voted for does not lead. The vote itself stays given."""
    elector.clear()
    elector.note(cause)
    elector.wait()


def _on_scouting(elector: Elector, event: ev.Received) -> None:
    request = event.message.value
    will = (elector.leader in (None, request.ceded_by) and event.message.term > elector.term
            and elector.is_eligible(event.sender, request))
    term = 0 if elector.inquiry.pending else elector.term  # 0 does not answer the inquiry of another node
    elector.tell(event.sender, schema.ScoutingResponse(will, elector.leader_on_wire), term)


def _set_mode(elector: Elector, event: ev.SetMode) -> None:
    elector.mode = event.mode
    if ElectionTimer.RANDOM in elector.timers.deadlines:
        elector.wait()


def _set_quorum(elector: Elector, event: ev.SetQuorum) -> None:
    elector.quorum = max(event.quorum, elector.majority)


def _written(elector: Elector, event: Written) -> None:
    if elector.ballot.is_current(event.number):
        elector.outputs += elector.ballot.written()


def _write_failed(elector: Elector, event: WriteFailed) -> None:
    if not elector.ballot.is_current(event.number):
        return
    elector.ballot.failed()
    elector.alarm(f"the vote in term {elector.term} cannot be written: {event.reason}")
    if elector.state is CANDIDATE:
        _lose_leader(elector, ElectionReason.QUORUM_NOT_ACHIEVED, "its own vote cannot be written")
    elif elector.tentative is not None:
        _forget_vote(elector, "the vote cannot be written")


# -- a follower -----------------------------------------------------------------------------------------------------------


def _stand(elector: Elector, event: ElectionTimer) -> None:
    elector.favours = None
    if elector.leader is not None or elector.tentative is not None:
        return
    if elector.inquiry.pending:
        _ask_for_terms(elector)
        elector.wait()
    elif elector.mode in _PASSIVE:
        elector.wait()
    elif not elector.others:
        _propose(elector, elector.term + 1, "alone")
    else:
        term = max(elector.term, elector.highest) + 1
        elector.scouting = Scouting(term, {elector.node_id})
        elector.note(f"asks who would vote for it in term {term}")
        elector.timers.arm(ElectionTimer.SCOUT, elector.timing.scouting_result)
        elector.broadcast(ScoutingRequest(elector.newest(), elector.ceded_by), term)


def _scouted(elector: Elector, event: ev.Received) -> None:
    scouting, message = elector.scouting, event.message
    if elector.inquiry.pending and message.term:
        _learn(elector, event.sender, message.term)
    elector.highest = max(elector.highest, message.term)
    if scouting is None or elector.leader is not None or elector.tentative is not None:
        return
    (scouting.willing if message.value.will_vote else scouting.unwilling).add(event.sender)
    if message.value.leader not in (None, NOBODY):
        scouting.leader = elector.elsewhere = message.value.leader
    if len(scouting.willing) >= elector.quorum:
        _propose(elector, scouting.term, f"{len(scouting.willing)} nodes would vote for it")
    elif scouting.answers == elector.size:
        _give_up_scouting(elector, scouting, f"only {len(scouting.willing)} nodes would vote for it")


def _scout_timeout(elector: Elector, event: ElectionTimer) -> None:
    if elector.scouting is not None:
        _give_up_scouting(elector, elector.scouting,
                          f"only {len(elector.scouting.willing)} nodes would vote for it in time")


def _give_up_scouting(elector: Elector, scouting: Scouting, cause: str) -> None:
    elector.elsewhere = scouting.leader
    _forget_vote(elector, cause)
    elector.outputs.append(ev.Outvoted())


def _on_proposal(elector: Elector, event: ev.Received) -> None:
    sender, term, proposal = event.sender, event.message.term, event.message.value
    if term == elector.term and elector.ballot.vote == sender:  # it asks again
        elector.outputs += elector.ballot.save()
        elector.tell(sender, schema.ElectionResponse())
    elif (elector.leader not in (None, proposal.ceded_by) or term <= elector.term
          or not elector.is_eligible(sender, proposal)):
        elector.highest = max(elector.highest, term)
        _refuse(elector, event)
    else:
        _give_vote(elector, sender, term)


def _refuse(elector: Elector, event: ev.Received) -> None:
    elector.tell(event.sender, schema.ElectionResponse(elector.leader_on_wire))


def _give_vote(elector: Elector, candidate: int, term: int) -> None:
    state, leader = elector.state, elector.leader
    elector.clear()
    elector.set_term(term, candidate)
    cause = f"votes for node {candidate} in term {term}"
    if state is CANDIDATE:
        elector.change(FOLLOWER, None, ElectionReason.ELECTION_PREEMPTED, cause)
    elif leader is not None:
        elector.change(FOLLOWER, None, ElectionReason.LEADER_PREEMPTED, cause)
    else:
        elector.note(cause)
    elector.tentative, elector.last_beat = candidate, elector.timers.now
    elector.outputs.append(ev.Voted(term))
    elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)
    elector.tell(candidate, schema.ElectionResponse())


def _on_heartbeat(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if elector.inquiry.pending:
        _learn(elector, sender, term)
    if elector.inquiry.pending:
        _ask_for_terms(elector)
        return
    if term < elector.term:
        elector.tell(sender, schema.HeartbeatResponse())
        return
    if term == elector.term and elector.state is FOLLOWER:
        if (elector.tentative if elector.leader is None else elector.leader) not in (None, sender):
            return
    if (term, elector.leader) == (elector.term, sender):
        elector.last_beat = elector.timers.now
        elector.outputs += elector.ballot.save()
    else:
        asks = elector.tentative != sender or term > elector.term
        _follow(elector, sender, term)
        if asks:
            elector.tell(sender, schema.ElectionResponse())
    _answer_beat(elector, event)


def _learn(elector: Elector, node_id: int, term: int) -> None:
    """Another node tells its term to this one, whose term and vote are lost, until it knows those of all others."""
    inquiry = elector.inquiry
    inquiry.learn(node_id, term)
    if not inquiry.pending:
        elector.set_term(max(elector.term, *inquiry.terms.values()), None)
        elector.note(f"no other node is in a newer term than {elector.term}: it takes part again")


def _ask_for_terms(elector: Elector) -> None:
    """Who is asked for a promise tells its term, and nothing follows from that."""
    for node_id in elector.inquiry.missing:
        elector.tell(node_id, ScoutingRequest(elector.newest()), elector.term + 1)


def _follow(elector: Elector, leader: int, term: int) -> None:
    elector.clear()
    elector.favours = None
    if term > elector.term:
        elector.set_term(term, None)
    elector.last_beat = elector.timers.now
    elector.change(FOLLOWER, leader, ElectionReason.NONE, f"heartbeat of node {leader} in term {term}")
    elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)


def _answer_beat(elector: Elector, event: ev.Received) -> None:
    elector.tell(event.sender, schema.HeartbeatResponse(event.message.value.stamp, elector.newest()))


def _check_leader(elector: Elector, event: ElectionTimer) -> None:
    silence = elector.timers.now - elector.last_beat
    if silence < elector.timing.inactivity:
        elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)
    elif elector.leader is not None:
        _lose_leader(elector, ElectionReason.LEADER_NO_HEARTBEAT,
                     f"node {elector.leader} is silent for {silence:.1f} s")
    elif elector.tentative is not None:
        _forget_vote(elector, f"node {elector.tentative} did not lead within {silence:.1f} s")


def _peer_lost(elector: Elector, event: ev.PeerDown) -> None:
    if event.node_id == elector.leader:
        _lose_leader(elector, ElectionReason.LEADER_UNAVAILABLE, f"node {event.node_id} is gone")
    elif event.node_id == elector.tentative:
        _forget_vote(elector, f"node {event.node_id} is gone")
    elif elector.scouting is not None:
        elector.scouting.willing.discard(event.node_id)
        elector.scouting.unwilling.discard(event.node_id)


def _on_cession(elector: Elector, event: ev.Received) -> None:
    sender, successor = event.sender, event.message.value.successor
    if event.message.term < elector.term or sender not in (elector.leader, elector.tentative):
        return
    if sender == elector.leader:
        _lose_leader(elector, ElectionReason.LEADER_NO_HEARTBEAT, f"node {sender} has ceded")
    else:
        _forget_vote(elector, f"node {sender} has ceded")
    # one that needs the votes of all nodes could not lead without the one that goes
    if successor == elector.node_id and elector.mode not in _PASSIVE and elector.quorum < elector.size:
        elector.ceded_by = sender
        elector.timers.arm(ElectionTimer.RANDOM, 0.0)


# -- a candidate ----------------------------------------------------------------------------------------------------------


def _propose(elector: Elector, term: int, cause: str) -> None:
    ceded_by = elector.ceded_by
    elector.clear()
    elector.set_term(term, elector.node_id)
    elector.change(CANDIDATE, None, ElectionReason.NONE, cause)
    elector.support.asked_at = elector.timers.now
    elector.timers.arm(ElectionTimer.ELECTION, elector.timing.election_result)
    elector.broadcast(ElectionProposal(elector.newest(), ceded_by))
    if not elector.others:  # the first record of the term, which no other node can have, makes it durable
        _count_vote(elector, elector.node_id)


def _count_vote(elector: Elector, node_id: int) -> None:
    elector.supporters.add(node_id)
    if len(elector.supporters) >= elector.quorum:
        _lead(elector)


def _written_standing(elector: Elector, event: Written) -> None:
    _written(elector, event)
    if elector.ballot.is_durable:
        _count_vote(elector, elector.node_id)


def _on_vote(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    refused = event.message.value.refused_for is not None
    refusals = elector.support.refusals
    if term > elector.term:
        elector.set_term(term, None)
        _lose_leader(elector, ElectionReason.ELECTION_PREEMPTED, f"node {sender} is in term {term}")
    elif not refused and term == elector.term:
        _count_vote(elector, sender)
    elif refused and sender not in elector.supporters:
        refusals.add(sender)
        if elector.size - len(refusals) < elector.quorum:
            _lose_leader(elector, ElectionReason.QUORUM_NOT_ACHIEVED, f"{len(refusals)} nodes refuse their votes")


def _voter_lost(elector: Elector, event: ev.PeerDown) -> None:
    elector.supporters.discard(event.node_id)


def _election_timeout(elector: Elector, event: ElectionTimer) -> None:
    if len(elector.supporters) >= elector.quorum:  # fewer are asked for than when the last one came
        _lead(elector)
    else:
        _lose_leader(elector, ElectionReason.QUORUM_NOT_ACHIEVED, f"only {len(elector.supporters)} votes in time")


# -- a leader -------------------------------------------------------------------------------------------------------------


def _lead(elector: Elector) -> None:
    nodes, asked_at = elector.supporters, elector.support.asked_at
    elector.clear()
    elector.support = Support(nodes, heard=dict.fromkeys(nodes - {elector.node_id}, asked_at))
    elector.change(LEADER, elector.node_id, ElectionReason.NONE, f"{len(nodes)} votes")
    _watch_quorum(elector)
    _beat(elector, ElectionTimer.BEAT)


def _beat(elector: Elector, event: ElectionTimer) -> None:
    elector.timers.arm(ElectionTimer.BEAT, elector.timing.beat_period)
    for node_id in elector.others:
        _beat_to(elector, node_id)


def _beat_to(elector: Elector, node_id: int) -> None:
    elector.tell(node_id, schema.LeaderHeartbeat(max(0, int(elector.timers.now * 1000))))


def _greet(elector: Elector, event: ev.PeerUp) -> None:
    _beat_to(elector, event.node_id)


def _watch_quorum(elector: Elector) -> None:
    if elector.others:
        elector.timers.deadlines[ElectionTimer.CHECK] = elector.quorum_until


def _lose_quorum(elector: Elector, event: ElectionTimer) -> None:
    _cede(elector, f"LEADER lost quorum: too few nodes have answered for {elector.timing.inactivity:g} s")


def _on_beat_answer(elector: Elector, event: ev.Received) -> None:
    sender, term, answer = event.sender, event.message.term, event.message.value
    if term > elector.term:
        _preempted(elector, sender, term)
    elif term == elector.term and answer.stamp is not None:
        elector.support.answered(sender, min(answer.stamp / 1000, elector.timers.now))
        _watch_quorum(elector)
        if sender == elector.support.successor and (answer.last or NO_LSN) >= elector.newest():
            _cede(elector, f"hands over to node {sender}", sender)


def _on_support(elector: Elector, event: ev.Received) -> None:
    if event.message.term > elector.term:
        _preempted(elector, event.sender, event.message.term)
    elif event.message.term == elector.term and event.message.value.refused_for is None:
        elector.supporters.add(event.sender)


def _preempted(elector: Elector, node_id: int, term: int) -> None:
    elector.set_term(term, None)
    _cede(elector, f"node {node_id} is in term {term}", reason=ElectionReason.LEADER_PREEMPTED)


def _cede(elector: Elector, cause: str, successor: int | None = None,
          reason: ElectionReason = ElectionReason.QUORUM_NOT_ACHIEVED) -> None:
    _lose_leader(elector, reason, cause)
    elector.favours = successor
    elector.broadcast(schema.LeadershipCessionNotification(successor))


def _rival(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if term <= elector.term:
        if term == elector.term:
            elector.alarm(f"node {sender} says that it leads term {term}, too")
        _beat_to(elector, sender)
        return
    _follow(elector, sender, term)
    elector.broadcast(schema.LeadershipCessionNotification())
    _answer_beat(elector, event)


def _supporter_lost(elector: Elector, event: ev.PeerDown) -> None:
    supporters = elector.supporters
    supporters.discard(event.node_id)
    if len(supporters) < elector.quorum:
        _cede(elector, f"LEADER lost quorum: node {event.node_id} is gone, only {len(supporters)} nodes are left")


def _other_ceded(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if term > elector.term:
        elector.alarm(f"node {sender} has ceded in term {term}, but this node leads term {elector.term}")
    else:
        _beat_to(elector, sender)


def _transfer(elector: Elector, event: ev.Transfer) -> None:
    if event.target in elector.supporters - {elector.node_id}:
        elector.support.successor = event.target
        elector.note(f"node {event.target} is to lead")
        elector.timers.arm(ElectionTimer.ELECTION, elector.timing.election_result)
        _beat_to(elector, event.target)
    else:
        elector.alarm(f"node {event.target} cannot lead: it does not follow this node")


def _transfer_timeout(elector: Elector, event: ElectionTimer) -> None:
    elector.alarm(f"node {elector.support.successor} does not lead: it lacks metadata, or does not answer")
    elector.support.successor = None


def _resign(elector: Elector, event: ev.Resign) -> None:
    _cede(elector, event.cause)


def _set_mode_leading(elector: Elector, event: ev.SetMode) -> None:
    elector.mode = event.mode
    if event.mode in _PASSIVE:
        _cede(elector, "it is not to lead")


T = ElectionTimer
_MESSAGES = (type_ for _, _, type_ in ElectorMessage.CHOICE.selections)
EVENTS: list[Any] = [each for each in (*get_args(ev.ElectionInput), *T, *_MESSAGES)
                     if each not in (ev.Tick, ev.Received, schema.ElectorNodeStatus)]
_RUNNING: dict[Any, Cell[ElectionState]] = dict.fromkeys(EVENTS, to(_ignore)) | {
    ev.Stop: to(_stop, DORMANT), Written: to(_written), WriteFailed: to(_write_failed), ev.SetMode: to(_set_mode),
    ev.SetQuorum: to(_set_quorum), ScoutingRequest: to(_on_scouting)}

TABLE = table(ElectionState, EVENTS, {
    DORMANT: dict.fromkeys(EVENTS, to(_ignore)) | {
        ev.Start: to(_start, FOLLOWER), ev.SetMode: to(_set_mode), ev.SetQuorum: to(_set_quorum)},
    FOLLOWER: _RUNNING | {
        T.INITIAL: to(_stand, LEADER), T.RANDOM: to(_stand, LEADER),  # LEADER: the only node of a cluster
        T.SCOUT: to(_scout_timeout), schema.ScoutingResponse: to(_scouted, CANDIDATE),
        ElectionProposal: to(_on_proposal), schema.LeaderHeartbeat: to(_on_heartbeat),
        schema.LeadershipCessionNotification: to(_on_cession), T.CHECK: to(_check_leader), ev.PeerDown: to(_peer_lost)},
    CANDIDATE: _RUNNING | {
        schema.ElectionResponse: to(_on_vote, LEADER, FOLLOWER), T.ELECTION: to(_election_timeout, LEADER, FOLLOWER),
        ElectionProposal: to(_on_proposal, FOLLOWER), schema.LeaderHeartbeat: to(_on_heartbeat, FOLLOWER),
        ev.PeerDown: to(_voter_lost), Written: to(_written_standing, LEADER), WriteFailed: to(_write_failed, FOLLOWER)},
    LEADER: _RUNNING | {
        T.BEAT: to(_beat), schema.HeartbeatResponse: to(_on_beat_answer, FOLLOWER),
        schema.ElectionResponse: to(_on_support, FOLLOWER), T.CHECK: to(_lose_quorum, FOLLOWER),
        ElectionProposal: to(_refuse), schema.LeaderHeartbeat: to(_rival, FOLLOWER),
        schema.LeadershipCessionNotification: to(_other_ceded), ev.PeerUp: to(_greet),
        ev.PeerDown: to(_supporter_lost, FOLLOWER), ev.Transfer: to(_transfer), T.ELECTION: to(_transfer_timeout),
        ev.Resign: to(_resign, FOLLOWER), ev.SetMode: to(_set_mode_leading, FOLLOWER)},
})
