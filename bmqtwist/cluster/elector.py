"""Elector of one node: the state machine that elects a leader, without sockets, files, clock and randomness.

docs/internals.md, "The election", lists its rules.

A node that has lost its vote could vote twice in a term, or follow a leader of an older term than its vote. Its storage is
not intact then (`electorate.py`): each quorum has an intact voter of each earlier one.

`Elector` has the state of a node; its actions are functions, grouped by role. `TABLE` names the action for every state
and event. Timers are deadlines; a `TickAt` reports the earliest one. `now`: seconds, monotonic. `member/leadership.py`
calls `Elector.step`; `timing` there derives the timeouts from the configuration (`config/clusters.py: ElectorConfig`).
Inputs and outputs are declared in `election_events.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, get_args

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster import election_events as ev
from bmqtwist.cluster.election_events import ElectionMode, ElectionReason, ElectionState, ElectionTimer
from bmqtwist.cluster.election_parts import Ballot, ElectionTimers, Scouting, Support
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.log_events import Alarm, WriteFailed, Written
from bmqtwist.machine import Cell, TransitionLog, check, event_name, table, to
from bmqtwist.wire import cluster_schema as schema
from bmqtwist.wire.cluster_schema import NO_LSN, ElectionProposal, Lsn, ScoutingRequest
from bmqtwist.wire.control import ElectorMessage

TERM_MAX = 1 << 63  # a message with a larger term is invalid
NO_NODE = -1  # node id on the wire without a node
DATA_INACTIVITY_FACTOR = 3  # a leader whose data arrive has this multiple of the inactivity timeout for its next heartbeat
UNKNOWN_TERMS = 1000  # that a lost vote may have named without a record in any ledger: more than the elections of an hour
DORMANT, FOLLOWER, CANDIDATE, LEADER = ElectionState
_TERMLESS = ("electorNodeStatus", "scoutingResponse")  # messages whose term may be 0
_PASSIVE = (ElectionMode.NEVER, ElectionMode.LEAVING)  # a node in these modes is no candidate


class Elector:
    """Elector of one node. `electorate`: the voters; `chance`: returns a random number in [0, 1); `newest_lsn`: returns the
    LSN of the newest durable metadata record; `least_votes`: number of votes that a leader needs besides a quorum."""

    def __init__(self, electorate: Electorate, name: str, timing: ev.ElectionTiming, chance: Callable[[], float],
                 newest_lsn: Callable[[], Lsn], least_votes: int = 0) -> None:
        self.node_id, self.name, self.electorate = electorate.node_id, name, electorate
        self.other_nodes = sorted(electorate.configured - {self.node_id})
        self.least_votes = least_votes
        self.newest_lsn = newest_lsn
        self.timing, self.timers = timing, ElectionTimers(timing, chance)
        self.mode = ElectionMode.NORMAL
        self.state = DORMANT
        self.ballot = Ballot(has_file=bool(self.other_nodes))
        self.leader: int | None = None
        self.tentative_leader: int | None = None  # candidate with this node's vote, before its first heartbeat
        self.reported_leader: int | None = None  # leader reported by another node while this node has none
        self.support = Support()  # while candidate or leader
        self.scouting: Scouting | None = None
        self.highest_reported_term = 0  # highest term in other nodes' messages; a candidacy uses a higher one
        self.ceded_by: int | None = None  # leader that has transferred the leadership to this node
        self.preferred_candidate: int | None = None  # node to which this node has ceded; it votes for no other one
        self.last_heartbeat_at = 0.0  # time of the leader's last heartbeat, or of the vote
        self.transition_log = TransitionLog()
        self.outputs: list[ev.ElectionOutput] = []
        self._event: Any = ev.Start  # class of the event in progress
        self._reported_status = ev.ElectorStatus(DORMANT, None, 0)
        self._tick_at: float | None = None

    # -- inputs ---------------------------------------------------------------------------------------------------------

    def step(self, now: float, event: ev.ElectionInput) -> list[ev.ElectionOutput]:
        """Handle one input and return the outputs. A leader whose quorum is lost cedes first."""
        self.timers.now, self.outputs = now, []
        if self.state is LEADER and now >= self.quorum_until:
            self.dispatch(ElectionTimer.CHECK, ElectionTimer.CHECK)
        if isinstance(event, ev.Tick):
            self._run_due_timers()
        elif isinstance(event, ev.Received):
            self._on_message(event.sender, event.message)
        else:
            self.dispatch(type(event), event)
        tick_at = self.timers.earliest
        if tick_at != self._tick_at:
            self._tick_at = tick_at
            self.outputs.append(ev.TickAt(tick_at))
        return self.outputs

    def dispatch(self, kind: Any, event: Any) -> None:
        """Dispatch an event by the table. `kind`: the class of an input or message, or a timer."""
        before, self._event = self.state, kind
        TABLE[before][kind].action(self, event)
        check(TABLE, before, kind, self.state)

    def _run_due_timers(self) -> None:
        deadlines = self.timers.deadlines
        for moment, timer in self.timers.expired():
            if deadlines.get(timer) == moment:  # not cancelled by the action of an earlier timer
                del deadlines[timer]
                self.dispatch(timer, timer)

    def _on_message(self, sender: int, message: ElectorMessage) -> None:
        if sender not in self.other_nodes or not message.choice:
            return
        if not message.term and message.choice not in _TERMLESS:
            return
        if message.term > TERM_MAX:
            self.alarm(
                alarms.TERM_OUT_OF_RANGE,
                f"a message of node {sender} with the invalid term {message.term} is ignored")
            return
        if message.choice == "electorNodeStatus":
            event = ev.PeerUp(sender) if message.value.is_available else ev.PeerDown(sender)
            self.dispatch(type(event), event)
        else:
            self.dispatch(type(message.value), ev.Received(sender, message))

    # -- state ------------------------------------------------------------------------------------------------------------

    @property
    def node_count(self) -> int:
        """Number of nodes of the cluster, this one included."""
        return len(self.other_nodes) + 1

    def has_quorum(self, nodes: Collection[int]) -> bool:
        """Return whether these nodes can elect a leader, and whether they can support one."""
        return len(nodes) >= self.least_votes and self.electorate.has_quorum(nodes)

    @property
    def quorum(self) -> int:
        """Number of votes that a leader needs."""
        return max(self.least_votes, self.electorate.majority)

    @property
    def term(self) -> int:
        return self.ballot.term

    @property
    def supporters(self) -> set[int]:
        return self.support.nodes

    @property
    def quorum_until(self) -> float:
        """Time at which this leader's quorum is lost if no further answer arrives."""
        return self.support.lasts_until(self.electorate, self.timing.inactivity)

    @property
    def leader_on_wire(self) -> int:
        return NO_NODE if self.leader is None else self.leader

    def seconds_since_heartbeat(self, now: float) -> float:
        """Seconds since the last heartbeat of the leader that this node follows; 0 without a leader."""
        follows = self.leader is not None and self.leader != self.node_id
        return max(0.0, now - self.last_heartbeat_at) if follows else 0.0

    def is_eligible(self, sender: int, request: ScoutingRequest | ElectionProposal) -> bool:
        """True if this node may vote for the sender, whose log the request describes."""
        votes = self.mode is not ElectionMode.LEAVING
        return votes and self.preferred_candidate in (None, sender) and (request.last or NO_LSN) >= self.newest_lsn()

    # -- changes and outputs -------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Cancel timers, scouting, candidacy and leadership."""
        self.timers.deadlines.clear()
        self.ballot.drop_delayed_candidacy()
        self.scouting = self.ceded_by = self.leader = self.tentative_leader = None
        self.support = Support()

    def change_state(self, state: ElectionState, leader: int | None, reason: ElectionReason, cause: str) -> None:
        """After `reset`: change the state and report it."""
        before, self.state, self.leader, self.reported_leader = self._reported_status, state, leader, None
        self._reported_status = ev.ElectorStatus(state, leader, self.term)
        self.outputs.append(ev.ElectionChanged(before, self._reported_status, reason, cause))
        self.transition_log.record(self.timers.now, before.state.name, state.name, cause, event_name(self._event))

    def record_cause(self, cause: str) -> None:
        """Add an event without a change of state to the transition history."""
        self.transition_log.record(self.timers.now, self.state.name, self.state.name, cause, event_name(self._event))

    def set_term(self, term: int, vote: int | None) -> None:
        self.outputs += self.ballot.set_term(term, vote)

    def send(self, node_id: int, value: Any, term: int | None = None) -> None:
        """Send a message once term and vote are durable; `term` None: the term of this node."""
        self.outputs += self.ballot.send(node_id, ElectorMessage(
            self.term if term is None else term, ElectorMessage.CHOICE.name_of(value), value))

    def broadcast(self, value: Any, term: int | None = None) -> None:
        for node_id in self.other_nodes:
            self.send(node_id, value, term)

    def alarm(self, kind: AlarmKind, text: str) -> None:
        self.outputs.append(Alarm(kind, f"{self.name}: {text}"))

    def schedule_candidacy(self) -> None:
        """Become a candidate after a random wait, unless a leader is known by then. FORCE: after the shortest wait."""
        self.timers.arm_candidacy(self.mode is ElectionMode.FORCE)


# -- every role ---------------------------------------------------------------------------------------------------------


def _ignore(elector: Elector, event: object) -> None:
    """Ignore a late message, or an input of another state."""


def _on_start(elector: Elector, event: ev.Start) -> None:
    elector.ballot.load(event.term, event.vote)
    elector.change_state(FOLLOWER, None, ElectionReason.STARTED, "the node has started")
    elector.timers.arm(ElectionTimer.INITIAL, elector.timing.initial_wait if elector.other_nodes else 0.0)


def _on_stop(elector: Elector, event: ev.Stop) -> None:
    elector.reset()
    elector.ballot.reset()
    elector.change_state(DORMANT, None, ElectionReason.NONE, "the node stops")
    elector.broadcast(schema.ElectorNodeStatus(False), 0)


def _become_follower(elector: Elector, reason: ElectionReason, cause: str) -> None:
    """Become a follower without a leader: after a lost election, a lost leader, or the end of the own leadership."""
    elector.reset()
    elector.change_state(FOLLOWER, None, reason, cause)
    elector.schedule_candidacy()


def _drop_candidate(elector: Elector, cause: str) -> None:
    """Stop waiting for the candidate with this node's vote, and drop an own scouting. The vote in this term stays valid."""
    elector.reset()
    elector.record_cause(cause)
    elector.schedule_candidacy()


def _on_scouting(elector: Elector, event: ev.Received) -> None:
    request = event.message.value
    will_vote = (elector.leader in (None, request.ceded_by) and event.message.term > elector.term
                 and elector.is_eligible(event.sender, request))
    elector.send(event.sender, schema.ScoutingResponse(will_vote, elector.leader_on_wire))


def _on_set_mode(elector: Elector, event: ev.SetMode) -> None:
    elector.mode = event.mode
    if ElectionTimer.RANDOM in elector.timers.deadlines:
        elector.schedule_candidacy()


def _on_set_quorum(elector: Elector, event: ev.SetQuorum) -> None:
    elector.least_votes = event.quorum


def _on_vote_written(elector: Elector, event: Written) -> None:
    if elector.ballot.is_current(event.number):
        elector.outputs += elector.ballot.on_written()


def _on_vote_write_failed(elector: Elector, event: WriteFailed) -> None:
    if not elector.ballot.is_current(event.number):
        return
    elector.ballot.on_write_failed()
    elector.alarm(
        alarms.VOTE_NOT_WRITTEN,
        f"the vote in term {elector.term} cannot be written: {event.reason}. Until it can, this node neither votes "
        "nor leads")
    if elector.state is CANDIDATE:
        _become_follower(elector, ElectionReason.QUORUM_NOT_ACHIEVED, "the own vote cannot be written")
    elif elector.tentative_leader is not None:
        _drop_candidate(elector, "the vote cannot be written")


# -- a follower -----------------------------------------------------------------------------------------------------------


def _on_candidacy_timer(elector: Elector, event: ElectionTimer) -> None:
    elector.preferred_candidate = None
    if elector.leader is not None or elector.tentative_leader is not None:
        return
    if elector.mode in _PASSIVE or elector.other_nodes and not elector.electorate.may_stand:
        elector.schedule_candidacy()
        elector.outputs.append(ev.NotElectable())  # it may lack records, and even the member list
        return
    term = max(elector.term, elector.highest_reported_term) + 1
    if not elector.other_nodes or elector.has_quorum((elector.node_id,)):
        _become_candidate(elector, term, "this node is the only voter")
        return
    skips = elector.electorate.relies_on_lost_votes(elector.electorate.announced)
    term += UNKNOWN_TERMS if skips else 0
    elector.scouting = Scouting(term, {elector.node_id}, skips_terms=skips)
    elector.record_cause(f"starts scouting for term {term}")
    elector.timers.arm_answers(ElectionTimer.SCOUT, elector.timing.scouting_result)
    elector.broadcast(ScoutingRequest(elector.newest_lsn(), elector.ceded_by), term)


def _on_scouting_response(elector: Elector, event: ev.Received) -> None:
    scouting, message = elector.scouting, event.message
    elector.highest_reported_term = max(elector.highest_reported_term, message.term)
    if scouting is None or elector.leader is not None or elector.tentative_leader is not None:
        return
    (scouting.willing if message.value.will_vote else scouting.unwilling).add(event.sender)
    if message.value.leader not in (None, NO_NODE):
        scouting.leader = elector.reported_leader = message.value.leader
    if elector.has_quorum(scouting.willing):
        if not scouting.skips_terms and elector.electorate.relies_on_lost_votes(scouting.willing):
            _end_scouting(elector, scouting, "a node that has lost its vote has answered")  # the next one skips terms
            return
        _become_candidate(elector, scouting.term, f"{len(scouting.willing)} nodes would vote for this node")
    elif scouting.answer_count == elector.node_count:
        _end_scouting(elector, scouting, f"only {len(scouting.willing)} nodes would vote for this node")


def _on_scouting_timer(elector: Elector, event: ElectionTimer) -> None:
    if elector.scouting is not None:
        elector.timers.on_answers_missing()
        _end_scouting(elector, elector.scouting,
                      f"only {len(elector.scouting.willing)} nodes would vote for this node, not all have answered")


def _end_scouting(elector: Elector, scouting: Scouting, cause: str) -> None:
    elector.reported_leader = scouting.leader
    _drop_candidate(elector, cause)
    elector.outputs.append(ev.NotElectable())


def _on_proposal(elector: Elector, event: ev.Received) -> None:
    sender, term, proposal = event.sender, event.message.term, event.message.value
    if term == elector.term and elector.ballot.vote == sender:  # repeated request
        elector.outputs += elector.ballot.save()
        elector.send(sender, schema.ElectionResponse())
    elif (elector.leader not in (None, proposal.ceded_by) or term <= elector.term
          or not elector.is_eligible(sender, proposal)):
        elector.highest_reported_term = max(elector.highest_reported_term, term)
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
        elector.record_cause(cause)
    elector.tentative_leader, elector.last_heartbeat_at = candidate, elector.timers.now
    elector.outputs.append(ev.Voted(term))
    elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)
    elector.send(candidate, schema.ElectionResponse())


def _on_heartbeat(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if term < elector.term:
        elector.send(sender, schema.HeartbeatResponse())
        return
    if term == elector.term and elector.state is FOLLOWER:
        if (elector.tentative_leader if elector.leader is None else elector.leader) not in (None, sender):
            return
    if (term, elector.leader) == (elector.term, sender):
        elector.last_heartbeat_at = elector.timers.now
        elector.outputs += elector.ballot.save()
    else:
        is_new = elector.tentative_leader != sender or term > elector.term
        _follow_leader(elector, sender, term)
        if is_new:
            elector.send(sender, schema.ElectionResponse())
    _answer_heartbeat(elector, event)


def _follow_leader(elector: Elector, leader: int, term: int) -> None:
    elector.reset()
    elector.preferred_candidate = None
    if term > elector.term:
        elector.set_term(term, None)
    elector.last_heartbeat_at, elector.timers.patience = elector.timers.now, 1
    elector.change_state(FOLLOWER, leader, ElectionReason.NONE, f"heartbeat of node {leader} in term {term}")
    elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)


def _answer_heartbeat(elector: Elector, event: ev.Received) -> None:
    elector.send(event.sender, schema.HeartbeatResponse(event.message.value.stamp, elector.newest_lsn()))


def _on_leader_check(elector: Elector, event: ElectionTimer) -> None:
    seconds, inactivity = elector.timers.now - elector.last_heartbeat_at, elector.timing.inactivity
    if seconds < inactivity or elector.leader is not None and seconds < DATA_INACTIVITY_FACTOR * inactivity and (
            elector.timers.now - elector.timers.data_received_at(elector.leader) < inactivity):
        elector.timers.arm(ElectionTimer.CHECK, elector.timing.check_period)
    elif elector.leader is not None:
        _become_follower(elector, ElectionReason.LEADER_NO_HEARTBEAT,
                         f"no heartbeat of node {elector.leader} for {seconds:.1f} s")
    elif elector.tentative_leader is not None:
        _drop_candidate(elector, f"no heartbeat of node {elector.tentative_leader} within {seconds:.1f} s after the vote")


def _on_peer_down(elector: Elector, event: ev.PeerDown) -> None:
    if event.node_id == elector.leader:
        _become_follower(elector, ElectionReason.LEADER_UNAVAILABLE, f"the connection to node {event.node_id} is lost")
    elif event.node_id == elector.tentative_leader:
        _drop_candidate(elector, f"the connection to node {event.node_id} is lost")
    elif elector.scouting is not None:
        elector.scouting.willing.discard(event.node_id)
        elector.scouting.unwilling.discard(event.node_id)


def _on_cession(elector: Elector, event: ev.Received) -> None:
    sender, successor = event.sender, event.message.value.successor
    if event.message.term < elector.term or sender not in (elector.leader, elector.tentative_leader):
        return
    if sender == elector.leader:
        _become_follower(elector, ElectionReason.LEADER_NO_HEARTBEAT, f"node {sender} has ceded")
    else:
        _drop_candidate(elector, f"node {sender} has ceded")
    # if the quorum needs the leaving node, the successor could not lead without it
    if successor == elector.node_id and elector.mode not in _PASSIVE and elector.has_quorum(
            {*elector.other_nodes, elector.node_id} - {sender}):
        elector.ceded_by = sender
        elector.timers.arm(ElectionTimer.RANDOM, 0.0)


# -- a candidate ----------------------------------------------------------------------------------------------------------


def _become_candidate(elector: Elector, term: int, cause: str) -> None:
    ceded_by = elector.ceded_by
    elector.reset()
    elector.set_term(term, elector.node_id)
    elector.change_state(CANDIDATE, None, ElectionReason.NONE, cause)
    elector.support.requested_at = elector.timers.now
    elector.timers.arm_answers(ElectionTimer.ELECTION, elector.timing.election_result)
    elector.broadcast(ElectionProposal(elector.newest_lsn(), ceded_by))
    if not elector.other_nodes:  # the first record of the term makes it durable
        _count_vote(elector, elector.node_id)


def _count_vote(elector: Elector, node_id: int) -> None:
    elector.supporters.add(node_id)
    if elector.has_quorum(elector.supporters):
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
        if not elector.has_quorum({*elector.other_nodes, elector.node_id} - refusals):
            _become_follower(elector, ElectionReason.QUORUM_NOT_ACHIEVED, f"{len(refusals)} nodes refuse their vote")


def _on_voter_down(elector: Elector, event: ev.PeerDown) -> None:
    elector.supporters.discard(event.node_id)


def _on_election_timer(elector: Elector, event: ElectionTimer) -> None:
    if elector.has_quorum(elector.supporters):  # the quorum was lowered since the last vote
        _become_leader(elector)
    else:
        elector.timers.on_answers_missing()
        _become_follower(elector, ElectionReason.QUORUM_NOT_ACHIEVED,
                         f"only {len(elector.supporters)} votes, not all nodes have answered in time")


# -- a leader -------------------------------------------------------------------------------------------------------------


def _become_leader(elector: Elector) -> None:
    nodes, requested_at = elector.supporters, elector.support.requested_at
    elector.reset()
    elector.timers.patience = 1
    elector.support = Support(nodes, answered_at=dict.fromkeys(nodes - {elector.node_id}, requested_at))
    elector.change_state(LEADER, elector.node_id, ElectionReason.NONE, f"{len(nodes)} votes")
    _arm_quorum_timer(elector)
    _on_heartbeat_timer(elector, ElectionTimer.BEAT)


def _on_heartbeat_timer(elector: Elector, event: ElectionTimer) -> None:
    elector.timers.arm(ElectionTimer.BEAT, elector.timing.beat_period)
    for node_id in elector.other_nodes:
        _send_heartbeat(elector, node_id)


def _send_heartbeat(elector: Elector, node_id: int) -> None:
    elector.send(node_id, schema.LeaderHeartbeat(max(0, int(elector.timers.now * 1000))))


def _on_peer_up(elector: Elector, event: ev.PeerUp) -> None:
    _send_heartbeat(elector, event.node_id)


def _arm_quorum_timer(elector: Elector) -> None:
    if elector.other_nodes:
        elector.timers.deadlines[ElectionTimer.CHECK] = elector.quorum_until


def _on_quorum_lost(elector: Elector, event: ElectionTimer) -> None:
    _cede_leadership(elector, f"LEADER lost quorum: too few nodes have answered for {elector.timing.inactivity:g} s")


def _on_heartbeat_response(elector: Elector, event: ev.Received) -> None:
    sender, term, answer = event.sender, event.message.term, event.message.value
    if term > elector.term:
        _cede_to_term(elector, sender, term)
    elif term == elector.term and answer.stamp is not None:
        elector.support.on_heartbeat_answered(sender, min(answer.stamp / 1000, elector.timers.now))
        _arm_quorum_timer(elector)
        if sender == elector.support.successor and (answer.last or NO_LSN) >= elector.newest_lsn():
            _cede_leadership(elector, f"the leadership is transferred to node {sender}", sender)


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
    """End the own leadership and notify the other nodes. `successor`: the node that is to lead next."""
    _become_follower(elector, reason, cause)
    elector.preferred_candidate = successor
    elector.broadcast(schema.LeadershipCessionNotification(successor))


def _on_rival_heartbeat(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if term <= elector.term:
        if term == elector.term:
            elector.alarm(
                alarms.SECOND_LEADER,
                f"node {sender} leads term {term}, too: its heartbeats are ignored")
        _send_heartbeat(elector, sender)
        return
    _follow_leader(elector, sender, term)
    elector.broadcast(schema.LeadershipCessionNotification())
    _answer_heartbeat(elector, event)


def _on_supporter_down(elector: Elector, event: ev.PeerDown) -> None:
    supporters = elector.supporters
    supporters.discard(event.node_id)
    if not elector.has_quorum(supporters):
        _cede_leadership(elector, f"LEADER lost quorum: the connection to node {event.node_id} is lost, "
                         f"{len(supporters)} nodes remain")


def _on_rival_cession(elector: Elector, event: ev.Received) -> None:
    sender, term = event.sender, event.message.term
    if term > elector.term:
        elector.alarm(
            alarms.NEWER_TERM_CEDED,
            f"node {sender} has ceded the newer term {term}, but this node leads term {elector.term}: the message is "
            "ignored")
    else:
        _send_heartbeat(elector, sender)


def _on_transfer(elector: Elector, event: ev.Transfer) -> None:
    if event.target in elector.supporters - {elector.node_id}:
        elector.support.successor = event.target
        elector.record_cause(f"transfer of the leadership to node {event.target} has started")
        elector.timers.arm(ElectionTimer.ELECTION, elector.timing.election_result)
        _send_heartbeat(elector, event.target)
    else:
        elector.alarm(
            alarms.TRANSFER_REFUSED,
            f"the leadership is not transferred: node {event.target} does not follow this node")


def _on_transfer_timer(elector: Elector, event: ElectionTimer) -> None:
    elector.alarm(
        alarms.TRANSFER_FAILED,
        f"the leadership is not transferred: node {elector.support.successor} lacks metadata, or does not answer")
    elector.support.successor = None


def _on_resign(elector: Elector, event: ev.Resign) -> None:
    _cede_leadership(elector, event.cause)


def _on_set_mode_leading(elector: Elector, event: ev.SetMode) -> None:
    elector.mode = event.mode
    if event.mode in _PASSIVE:
        _cede_leadership(elector, "the mode of this node excludes leadership")


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
    FOLLOWER: _RUNNING | {  # the only node of a cluster becomes LEADER without an election
        T.INITIAL: to(_on_candidacy_timer, CANDIDATE, LEADER), T.RANDOM: to(_on_candidacy_timer, CANDIDATE, LEADER),
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
        schema.LeadershipCessionNotification: to(_on_rival_cession), ev.PeerUp: to(_on_peer_up),
        ev.PeerDown: to(_on_supporter_down, FOLLOWER), ev.Transfer: to(_on_transfer), T.ELECTION: to(_on_transfer_timer),
        ev.Resign: to(_on_resign, FOLLOWER), ev.SetMode: to(_on_set_mode_leading, FOLLOWER)},
})
