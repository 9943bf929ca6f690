"""Election of a leader: the state machine of one node's elector, without sockets, files, clock and randomness.

docs/internals.md, "The election", lists its rules. A node whose term and vote are lost could vote twice in a term, or
support a leader of an older term than its vote. So it neither votes nor follows until all other nodes have reported their
terms; then it enters the newest of them without a vote, since the candidate that received its vote made the term durable
first. (Its own pending vote request is cancelled.) A fixed wait is not sufficient, since a candidate may be delayed for
longer; nor is the leader of a majority, since an older leader may have a majority, too.

`Elector` has the state of a node; its actions are functions, grouped by role. `TABLE` names the action for every state and
event. Timers are deadlines; a `TickAt` reports the earliest one. `now`: seconds, monotonic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, get_args

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster import election_events as ev
from bmqtwist.cluster.election_events import ElectionMode, ElectionReason, ElectionState, ElectionTimer
from bmqtwist.cluster.election_parts import Ballot, ElectionTimers, Scouting, Support, TermInquiry
from bmqtwist.cluster.log_events import Alarm, WriteFailed, Written
from bmqtwist.machine import Cell, TransitionLog, check, event_name, table, to
from bmqtwist.wire import cluster_schema as schema
from bmqtwist.wire.cluster_schema import NO_LSN, ElectionProposal, Lsn, ScoutingRequest
from bmqtwist.wire.control import ElectorMessage

TERM_MAX = 1 << 63  # a message with a larger term is invalid
NO_NODE = -1  # node id on the wire without a node
DORMANT, FOLLOWER, CANDIDATE, LEADER = ElectionState
_TERMLESS = ("electorNodeStatus", "scoutingResponse")  # messages whose term may be 0
_PASSIVE = (ElectionMode.NEVER, ElectionMode.LEAVING)  # a node in these modes is no candidate


class Elector:
    """Elector of one node. `members`: ids of all nodes; `chance`: returns a random number in [0, 1); `newest`: returns the
    LSN of the newest durable metadata record; `quorum`: at least a majority, which 0 stands for."""

    def __init__(self, node_id: int, name: str, members: Collection[int], timing: ev.Timing, chance: Callable[[], float],
                 newest: Callable[[], Lsn], quorum: int = 0) -> None:
        self.node_id, self.name = node_id, name
        self.others = sorted(set(members) - {node_id})
        self.quorum = max(quorum, self.majority)
        self.newest = newest
        self.timing, self.timers = timing, ElectionTimers(timing, chance)
        self.mode = ElectionMode.NORMAL
        self.state = DORMANT
        self.ballot = Ballot(has_file=bool(self.others))
        self.leader: int | None = None
        self.tentative: int | None = None  # candidate that has this node's vote, before its first heartbeat
        self.elsewhere: int | None = None  # leader reported by another node while this node has none
        self.support = Support()  # while candidate or leader
        self.scouting: Scouting | None = None
        self.inquiry = TermInquiry(self.others)
        self.highest_reported = 0  # highest term in other nodes' messages; a candidacy uses a higher one
        self.ceded_by: int | None = None
        self.preferred: int | None = None  # node to which this node has ceded; it votes for no other one meanwhile
        self.last_beat = 0.0  # time of the leader's last heartbeat, or of the vote
        self.transition_log = TransitionLog()
        self.outputs: list[ev.ElectionOutput] = []
        self._event: Any = ev.Start  # class of the event in progress
        self._reported = ev.Standing(DORMANT, None, 0)
        self._tick_at: float | None = None

    # -- inputs ---------------------------------------------------------------------------------------------------------

    def step(self, now: float, event: ev.ElectionInput) -> list[ev.ElectionOutput]:
        """Handle one input and return the outputs. A leader that has lost its quorum cedes first."""
        self.timers.now, self.outputs = now, []
        if self.state is LEADER and now >= self.quorum_until:
            self.dispatch(ElectionTimer.CHECK, ElectionTimer.CHECK)
        if isinstance(event, ev.Tick):
            self._run_due_timers()
        elif isinstance(event, ev.Received):
            self._on_message(event.sender, event.message)
        else:
            self.dispatch(type(event), event)
        wake = self.timers.earliest
        if wake != self._tick_at:
            self._tick_at = wake
            self.outputs.append(ev.TickAt(wake))
        return self.outputs

    def dispatch(self, kind: Any, event: Any) -> None:
        """Dispatch an event by the table. `kind`: the class of an input or message, or a timer."""
        before, self._event = self.state, kind
        TABLE[before][kind].action(self, event)
        check(TABLE, before, kind, self.state)

    def _run_due_timers(self) -> None:
        deadlines = self.timers.deadlines
        for moment, timer in self.timers.due():
            if deadlines.get(timer) == moment:  # an earlier timer may have cancelled it
                del deadlines[timer]
                self.dispatch(timer, timer)

    def _on_message(self, sender: int, message: ElectorMessage) -> None:
        if sender not in self.others or not message.choice:
            return
        if not message.term and message.choice not in _TERMLESS:
            return
        if message.term > TERM_MAX:
            self.alarm(alarms.TERM_OUT_OF_RANGE, f"node {sender} speaks of term {message.term}, which is left unread")
            return
        if message.choice == "electorNodeStatus":
            event = ev.PeerUp(sender) if message.value.is_available else ev.PeerDown(sender)
            self.dispatch(type(event), event)
        else:
            self.dispatch(type(message.value), ev.Received(sender, message))

    # -- state ------------------------------------------------------------------------------------------------------------

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
        """Time at which this leader loses its quorum if no further answer arrives."""
        return self.support.lasts_until(self.majority, self.timing.inactivity)

    @property
    def leader_on_wire(self) -> int:
        return NO_NODE if self.leader is None else self.leader

    def silence(self, now: float) -> float:
        """Seconds since the last heartbeat of the leader that this node follows; 0 without a leader."""
        follows = self.leader is not None and self.leader != self.node_id
        return max(0.0, now - self.last_beat) if follows else 0.0

    def is_eligible(self, sender: int, request: ScoutingRequest | ElectionProposal) -> bool:
        """True if this node may vote for the sender, whose log the request describes."""
        votes = not self.inquiry.pending and self.mode is not ElectionMode.LEAVING and self.preferred in (None, sender)
        return votes and (request.last or NO_LSN) >= self.newest()

    # -- changes and messages -------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Cancel timers, scouting, candidacy and leadership."""
        self.timers.deadlines.clear()
        self.ballot.drop_delayed_candidacy()
        self.scouting = self.ceded_by = self.leader = self.tentative = None
        self.support = Support()

    def change_state(self, state: ElectionState, leader: int | None, reason: ElectionReason, cause: str) -> None:
        """After `reset`: change the state and report it."""
        before, self.state, self.leader, self.elsewhere = self._reported, state, leader, None
        self._reported = ev.Standing(state, leader, self.term)
        self.outputs.append(ev.ElectionChanged(before, self._reported, reason, cause))
        self.transition_log.note(self.timers.now, before.state.name, state.name, cause, event_name(self._event))

    def note(self, cause: str) -> None:
        self.transition_log.note(self.timers.now, self.state.name, self.state.name, cause, event_name(self._event))

    def set_term(self, term: int, vote: int | None) -> None:
        self.outputs += self.ballot.set(term, vote)

    def send(self, node_id: int, value: Any, term: int | None = None) -> None:
        """Send a message once term and vote are durable; `term` None: the term of this node."""
        self.outputs += self.ballot.send(node_id, ElectorMessage(
            self.term if term is None else term, ElectorMessage.CHOICE.name_of(value), value))

    def broadcast(self, value: Any, term: int | None = None) -> None:
        for node_id in self.others:
            self.send(node_id, value, term)

    def alarm(self, kind: AlarmKind, text: str) -> None:
        self.outputs.append(Alarm(kind, f"{self.name}: {text}"))

    def schedule_candidacy(self) -> None:
        """Become a candidate after a random wait, unless a leader is known by then."""
        self.timers.arm_random(self.mode is ElectionMode.FORCE)


# -- every role ---------------------------------------------------------------------------------------------------------


def _ignore(elector: Elector, event: object) -> None:
    """Late message, or input of another state."""


def _on_start(elector: Elector, event: ev.Start) -> None:
    elector.ballot.load(event.term, event.vote, event.damaged)
    elector.inquiry = TermInquiry(elector.others, event.damaged)
    if event.damaged:
        elector.alarm(
            alarms.VOTE_UNKNOWN,
            "it is not known how this node has voted: it neither votes nor follows until all other nodes have "
            "told it their terms")
    elector.change_state(FOLLOWER, None, ElectionReason.STARTED, "start")
    elector.timers.arm(ElectionTimer.INITIAL, elector.timing.initial_wait if elector.others else 0.0)


def _on_stop(elector: Elector, event: ev.Stop) -> None:
    elector.reset()
    elector.ballot.reset()
    elector.change_state(DORMANT, None, ElectionReason.NONE, "stop")
    elector.broadcast(schema.ElectorNodeStatus(False), 0)


def _become_follower(elector: Elector, reason: ElectionReason, cause: str) -> None:
    """Follow no node: after a lost election, a lost leader, or the end of the own leadership."""
    elector.reset()
    elector.change_state(FOLLOWER, None, reason, cause)
    elector.schedule_candidacy()


def _drop_candidate(elector: Elector, cause: str) -> None:
    """Drop a candidate that does not lead. The vote in this term stays valid."""
    elector.reset()
    elector.note(cause)
    elector.schedule_candidacy()


def _on_scouting(elector: Elector, event: ev.Received) -> None:
    request = event.message.value
    will = (elector.leader in (None, request.ceded_by) and event.message.term > elector.term
            and elector.is_eligible(event.sender, request))
    term = 0 if elector.inquiry.pending else elector.term  # with 0 the message is no answer to a term inquiry
    elector.send(event.sender, schema.ScoutingResponse(will, elector.leader_on_wire), term)


def _on_set_mode(elector: Elector, event: ev.SetMode) -> None:
    elector.mode = event.mode
    if ElectionTimer.RANDOM in elector.timers.deadlines:
        elector.schedule_candidacy()


def _on_set_quorum(elector: Elector, event: ev.SetQuorum) -> None:
    elector.quorum = max(event.quorum, elector.majority)


def _on_vote_written(elector: Elector, event: Written) -> None:
    if elector.ballot.is_current(event.number):
        elector.outputs += elector.ballot.on_written()


def _on_vote_write_failed(elector: Elector, event: WriteFailed) -> None:
    if not elector.ballot.is_current(event.number):
        return
    elector.ballot.on_write_failed()
    elector.alarm(alarms.VOTE_NOT_WRITTEN, f"the vote in term {elector.term} cannot be written: {event.reason}")
    if elector.state is CANDIDATE:
        _become_follower(elector, ElectionReason.QUORUM_NOT_ACHIEVED, "its own vote cannot be written")
    elif elector.tentative is not None:
        _drop_candidate(elector, "the vote cannot be written")


# -- a follower -----------------------------------------------------------------------------------------------------------


def _on_candidacy_timer(elector: Elector, event: ElectionTimer) -> None:
    elector.preferred = None
    if elector.leader is not None or elector.tentative is not None:
        return
    if elector.inquiry.pending:
        _request_terms(elector)
        elector.schedule_candidacy()
    elif elector.mode in _PASSIVE:
        elector.schedule_candidacy()
    elif not elector.others:
        _become_candidate(elector, elector.term + 1, "alone")
    else:
        term = max(elector.term, elector.highest_reported) + 1
        elector.scouting = Scouting(term, {elector.node_id})
        elector.note(f"asks who would vote for it in term {term}")
        elector.timers.arm(ElectionTimer.SCOUT, elector.timing.scouting_result)
        elector.broadcast(ScoutingRequest(elector.newest(), elector.ceded_by), term)


def _on_scouting_response(elector: Elector, event: ev.Received) -> None:
    scouting, message = elector.scouting, event.message
    if elector.inquiry.pending and message.term:
        _note_term(elector, event.sender, message.term)
    elector.highest_reported = max(elector.highest_reported, message.term)
    if scouting is None or elector.leader is not None or elector.tentative is not None:
        return
    (scouting.willing if message.value.will_vote else scouting.unwilling).add(event.sender)
    if message.value.leader not in (None, NO_NODE):
        scouting.leader = elector.elsewhere = message.value.leader
    if len(scouting.willing) >= elector.quorum:
        _become_candidate(elector, scouting.term, f"{len(scouting.willing)} nodes would vote for it")
    elif scouting.answers == elector.size:
        _end_scouting(elector, scouting, f"only {len(scouting.willing)} nodes would vote for it")


def _on_scouting_timer(elector: Elector, event: ElectionTimer) -> None:
    if elector.scouting is not None:
        _end_scouting(elector, elector.scouting,
                          f"only {len(elector.scouting.willing)} nodes would vote for it in time")


def _end_scouting(elector: Elector, scouting: Scouting, cause: str) -> None:
    elector.elsewhere = scouting.leader
    _drop_candidate(elector, cause)
    elector.outputs.append(ev.Outvoted())


def _on_proposal(elector: Elector, event: ev.Received) -> None:
    sender, term, proposal = event.sender, event.message.term, event.message.value
    if term == elector.term and elector.ballot.vote == sender:  # repeated request
        elector.outputs += elector.ballot.save()
        elector.send(sender, schema.ElectionResponse())
    elif (elector.leader not in (None, proposal.ceded_by) or term <= elector.term
          or not elector.is_eligible(sender, proposal)):
        elector.highest_reported = max(elector.highest_reported, term)
        _refuse_vote(elector, event)
    else:
        _cast_vote(elector, sender, term)


def _refuse_vote(elector: Elector, event: ev.Received) -> None:
    elector.send(event.sender, schema.ElectionResponse(elector.leader_on_wire))


def _cast_vote(elector: Elector, candidate: int, term: int) -> None:
    state, leader = elector.state, elector.leader
    elector.reset()
    elector.set_term(term, candidate)
    cause = f"votes for node {candidate} in term {term}"
    if state is CANDIDATE:
        elector.change_state(FOLLOWER, None, ElectionReason.ELECTION_PREEMPTED, cause)
    elif leader is not None:
        elector.change_state(FOLLOWER, None, ElectionReason.LEADER_PREEMPTED, cause)
    else:
        elector.note(cause)
    elector.tentative, elector.last_beat = candidate, elector.timers.now
    elector.outputs.append(ev.Voted(term))
    elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)
    elector.send(candidate, schema.ElectionResponse())


def _on_heartbeat(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if elector.inquiry.pending:
        _note_term(elector, sender, term)
    if elector.inquiry.pending:
        _request_terms(elector)
        return
    if term < elector.term:
        elector.send(sender, schema.HeartbeatResponse())
        return
    if term == elector.term and elector.state is FOLLOWER:
        if (elector.tentative if elector.leader is None else elector.leader) not in (None, sender):
            return
    if (term, elector.leader) == (elector.term, sender):
        elector.last_beat = elector.timers.now
        elector.outputs += elector.ballot.save()
    else:
        asks = elector.tentative != sender or term > elector.term
        _follow_leader(elector, sender, term)
        if asks:
            elector.send(sender, schema.ElectionResponse())
    _answer_heartbeat(elector, event)


def _note_term(elector: Elector, node_id: int, term: int) -> None:
    """Note the term of another node while the own term and vote are lost; with all terms the node takes part again."""
    inquiry = elector.inquiry
    inquiry.note_term(node_id, term)
    if not inquiry.pending:
        elector.set_term(max(elector.term, *inquiry.terms.values()), None)
        elector.note(f"no other node is in a newer term than {elector.term}: it takes part again")


def _request_terms(elector: Elector) -> None:
    """Request the terms of nodes by a scouting request, whose answer has the term and no other effect."""
    for node_id in elector.inquiry.missing:
        elector.send(node_id, ScoutingRequest(elector.newest()), elector.term + 1)


def _follow_leader(elector: Elector, leader: int, term: int) -> None:
    elector.reset()
    elector.preferred = None
    if term > elector.term:
        elector.set_term(term, None)
    elector.last_beat = elector.timers.now
    elector.change_state(FOLLOWER, leader, ElectionReason.NONE, f"heartbeat of node {leader} in term {term}")
    elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)


def _answer_heartbeat(elector: Elector, event: ev.Received) -> None:
    elector.send(event.sender, schema.HeartbeatResponse(event.message.value.stamp, elector.newest()))


def _on_leader_check(elector: Elector, event: ElectionTimer) -> None:
    silence = elector.timers.now - elector.last_beat
    if silence < elector.timing.inactivity:
        elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)
    elif elector.leader is not None:
        _become_follower(elector, ElectionReason.LEADER_NO_HEARTBEAT,
                     f"node {elector.leader} is silent for {silence:.1f} s")
    elif elector.tentative is not None:
        _drop_candidate(elector, f"node {elector.tentative} did not lead within {silence:.1f} s")


def _on_peer_down(elector: Elector, event: ev.PeerDown) -> None:
    if event.node_id == elector.leader:
        _become_follower(elector, ElectionReason.LEADER_UNAVAILABLE, f"node {event.node_id} is gone")
    elif event.node_id == elector.tentative:
        _drop_candidate(elector, f"node {event.node_id} is gone")
    elif elector.scouting is not None:
        elector.scouting.willing.discard(event.node_id)
        elector.scouting.unwilling.discard(event.node_id)


def _on_cession(elector: Elector, event: ev.Received) -> None:
    sender, successor = event.sender, event.message.value.successor
    if event.message.term < elector.term or sender not in (elector.leader, elector.tentative):
        return
    if sender == elector.leader:
        _become_follower(elector, ElectionReason.LEADER_NO_HEARTBEAT, f"node {sender} has ceded")
    else:
        _drop_candidate(elector, f"node {sender} has ceded")
    # with a quorum of all nodes the successor could not lead without the leaving node
    if successor == elector.node_id and elector.mode not in _PASSIVE and elector.quorum < elector.size:
        elector.ceded_by = sender
        elector.timers.arm(ElectionTimer.RANDOM, 0.0)


# -- a candidate ----------------------------------------------------------------------------------------------------------


def _become_candidate(elector: Elector, term: int, cause: str) -> None:
    ceded_by = elector.ceded_by
    elector.reset()
    elector.set_term(term, elector.node_id)
    elector.change_state(CANDIDATE, None, ElectionReason.NONE, cause)
    elector.support.requested_at = elector.timers.now
    elector.timers.arm(ElectionTimer.ELECTION, elector.timing.election_result)
    elector.broadcast(ElectionProposal(elector.newest(), ceded_by))
    if not elector.others:  # the first record of the term makes it durable
        _count_vote(elector, elector.node_id)


def _count_vote(elector: Elector, node_id: int) -> None:
    elector.supporters.add(node_id)
    if len(elector.supporters) >= elector.quorum:
        _become_leader(elector)


def _on_own_vote(elector: Elector, event: Written) -> None:
    _on_vote_written(elector, event)
    if elector.ballot.is_durable:
        _count_vote(elector, elector.node_id)


def _on_vote(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    refused = event.message.value.refused_for is not None
    refusals = elector.support.refusals
    if term > elector.term:
        elector.set_term(term, None)
        _become_follower(elector, ElectionReason.ELECTION_PREEMPTED, f"node {sender} is in term {term}")
    elif not refused and term == elector.term:
        _count_vote(elector, sender)
    elif refused and sender not in elector.supporters:
        refusals.add(sender)
        if elector.size - len(refusals) < elector.quorum:
            _become_follower(elector, ElectionReason.QUORUM_NOT_ACHIEVED, f"{len(refusals)} nodes refuse their votes")


def _on_voter_down(elector: Elector, event: ev.PeerDown) -> None:
    elector.supporters.discard(event.node_id)


def _on_election_timer(elector: Elector, event: ElectionTimer) -> None:
    if len(elector.supporters) >= elector.quorum:  # the quorum was lowered since the last vote
        _become_leader(elector)
    else:
        _become_follower(elector, ElectionReason.QUORUM_NOT_ACHIEVED, f"only {len(elector.supporters)} votes in time")


# -- a leader -------------------------------------------------------------------------------------------------------------


def _become_leader(elector: Elector) -> None:
    nodes, requested_at = elector.supporters, elector.support.requested_at
    elector.reset()
    elector.support = Support(nodes, answered_at=dict.fromkeys(nodes - {elector.node_id}, requested_at))
    elector.change_state(LEADER, elector.node_id, ElectionReason.NONE, f"{len(nodes)} votes")
    _arm_quorum_timer(elector)
    _on_heartbeat_timer(elector, ElectionTimer.BEAT)


def _on_heartbeat_timer(elector: Elector, event: ElectionTimer) -> None:
    elector.timers.arm(ElectionTimer.BEAT, elector.timing.beat_period)
    for node_id in elector.others:
        _send_heartbeat(elector, node_id)


def _send_heartbeat(elector: Elector, node_id: int) -> None:
    elector.send(node_id, schema.LeaderHeartbeat(max(0, int(elector.timers.now * 1000))))


def _on_peer_up(elector: Elector, event: ev.PeerUp) -> None:
    _send_heartbeat(elector, event.node_id)


def _arm_quorum_timer(elector: Elector) -> None:
    if elector.others:
        elector.timers.deadlines[ElectionTimer.CHECK] = elector.quorum_until


def _on_quorum_lost(elector: Elector, event: ElectionTimer) -> None:
    _cede_leadership(elector, f"LEADER lost quorum: too few nodes have answered for {elector.timing.inactivity:g} s")


def _on_heartbeat_response(elector: Elector, event: ev.Received) -> None:
    sender, term, answer = event.sender, event.message.term, event.message.value
    if term > elector.term:
        _cede_to_term(elector, sender, term)
    elif term == elector.term and answer.stamp is not None:
        elector.support.answered(sender, min(answer.stamp / 1000, elector.timers.now))
        _arm_quorum_timer(elector)
        if sender == elector.support.successor and (answer.last or NO_LSN) >= elector.newest():
            _cede_leadership(elector, f"hands over to node {sender}", sender)


def _on_late_vote(elector: Elector, event: ev.Received) -> None:
    if event.message.term > elector.term:
        _cede_to_term(elector, event.sender, event.message.term)
    elif event.message.term == elector.term and event.message.value.refused_for is None:
        elector.supporters.add(event.sender)


def _cede_to_term(elector: Elector, node_id: int, term: int) -> None:
    elector.set_term(term, None)
    _cede_leadership(elector, f"node {node_id} is in term {term}", reason=ElectionReason.LEADER_PREEMPTED)


def _cede_leadership(elector: Elector, cause: str, successor: int | None = None,
          reason: ElectionReason = ElectionReason.QUORUM_NOT_ACHIEVED) -> None:
    _become_follower(elector, reason, cause)
    elector.preferred = successor
    elector.broadcast(schema.LeadershipCessionNotification(successor))


def _on_rival_heartbeat(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if term <= elector.term:
        if term == elector.term:
            elector.alarm(alarms.SECOND_LEADER, f"node {sender} says that it leads term {term}, too")
        _send_heartbeat(elector, sender)
        return
    _follow_leader(elector, sender, term)
    elector.broadcast(schema.LeadershipCessionNotification())
    _answer_heartbeat(elector, event)


def _on_supporter_down(elector: Elector, event: ev.PeerDown) -> None:
    supporters = elector.supporters
    supporters.discard(event.node_id)
    if len(supporters) < elector.quorum:
        _cede_leadership(elector, f"LEADER lost quorum: node {event.node_id} is gone, only {len(supporters)} nodes are left")


def _on_other_cession(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if term > elector.term:
        elector.alarm(
            alarms.NEWER_TERM_CEDED,
            f"node {sender} has ceded in term {term}, but this node leads term {elector.term}")
    else:
        _send_heartbeat(elector, sender)


def _on_transfer(elector: Elector, event: ev.Transfer) -> None:
    if event.target in elector.supporters - {elector.node_id}:
        elector.support.successor = event.target
        elector.note(f"node {event.target} is to lead")
        elector.timers.arm(ElectionTimer.ELECTION, elector.timing.election_result)
        _send_heartbeat(elector, event.target)
    else:
        elector.alarm(alarms.TRANSFER_REFUSED, f"node {event.target} cannot lead: it does not follow this node")


def _on_transfer_timer(elector: Elector, event: ElectionTimer) -> None:
    elector.alarm(
        alarms.TRANSFER_FAILED,
        f"node {elector.support.successor} does not lead: it lacks metadata, or does not answer")
    elector.support.successor = None


def _on_resign(elector: Elector, event: ev.Resign) -> None:
    _cede_leadership(elector, event.cause)


def _on_set_mode_leading(elector: Elector, event: ev.SetMode) -> None:
    elector.mode = event.mode
    if event.mode in _PASSIVE:
        _cede_leadership(elector, "it is not to lead")


T = ElectionTimer
_MESSAGES = (type_ for _, _, type_ in ElectorMessage.CHOICE.selections)
EVENTS: list[Any] = [each for each in (*get_args(ev.ElectionInput), *T, *_MESSAGES)
                     if each not in (ev.Tick, ev.Received, schema.ElectorNodeStatus)]
_RUNNING: dict[Any, Cell[ElectionState]] = dict.fromkeys(EVENTS, to(_ignore)) | {
    ev.Stop: to(_on_stop, DORMANT), Written: to(_on_vote_written), WriteFailed: to(_on_vote_write_failed),
    ev.SetMode: to(_on_set_mode), ev.SetQuorum: to(_on_set_quorum), ScoutingRequest: to(_on_scouting)}

TABLE = table(ElectionState, EVENTS, {
    DORMANT: dict.fromkeys(EVENTS, to(_ignore)) | {
        ev.Start: to(_on_start, FOLLOWER), ev.SetMode: to(_on_set_mode), ev.SetQuorum: to(_on_set_quorum)},
    FOLLOWER: _RUNNING | {  # the only node of a cluster becomes LEADER at once
        T.INITIAL: to(_on_candidacy_timer, LEADER), T.RANDOM: to(_on_candidacy_timer, LEADER),
        T.SCOUT: to(_on_scouting_timer), schema.ScoutingResponse: to(_on_scouting_response, CANDIDATE),
        ElectionProposal: to(_on_proposal), schema.LeaderHeartbeat: to(_on_heartbeat), ev.PeerDown: to(_on_peer_down),
        schema.LeadershipCessionNotification: to(_on_cession), T.CHECK: to(_on_leader_check)},
    CANDIDATE: _RUNNING | {
        schema.ElectionResponse: to(_on_vote, LEADER, FOLLOWER), T.ELECTION: to(_on_election_timer, LEADER, FOLLOWER),
        ElectionProposal: to(_on_proposal, FOLLOWER), schema.LeaderHeartbeat: to(_on_heartbeat, FOLLOWER),
        ev.PeerDown: to(_on_voter_down), WriteFailed: to(_on_vote_write_failed, FOLLOWER),
        Written: to(_on_own_vote, LEADER)},
    LEADER: _RUNNING | {
        T.BEAT: to(_on_heartbeat_timer), schema.HeartbeatResponse: to(_on_heartbeat_response, FOLLOWER),
        schema.ElectionResponse: to(_on_late_vote, FOLLOWER), T.CHECK: to(_on_quorum_lost, FOLLOWER),
        ElectionProposal: to(_refuse_vote), schema.LeaderHeartbeat: to(_on_rival_heartbeat, FOLLOWER),
        schema.LeadershipCessionNotification: to(_on_other_cession), ev.PeerUp: to(_on_peer_up),
        ev.PeerDown: to(_on_supporter_down, FOLLOWER), ev.Transfer: to(_on_transfer), T.ELECTION: to(_on_transfer_timer),
        ev.Resign: to(_on_resign, FOLLOWER), ev.SetMode: to(_on_set_mode_leading, FOLLOWER)},
})
