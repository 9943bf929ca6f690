"""The election of a leader: who votes for whom in which term. A machine without sockets, files, clock and chance.

    scouting     a node that knows no leader asks all others whether they would vote for it; no term has grown by that
    proposal     when a quorum would, it begins the next term, votes for itself, and asks for the votes
    heartbeat    whoever has the votes of a quorum leads, and says so again and again; each heartbeat is answered
    check        who hears no heartbeat gives its leader up, who gets no answers from a quorum leads no longer
    transfer     a leader cedes to a successor that has all of the metadata, which stands at once

A node votes once in a term, and only for a node whose metadata log is at least as new as its own. Term and vote are
durable before anything that follows from them is said: what is to be said waits meanwhile. Who knows a leader takes part
in no other election until that leader is silent, gone, or has ceded.

A node whose term and vote are lost could vote a second time in a term, or count for a leader of a term that is older than
its vote. So it neither votes nor follows until all other nodes have told it their terms, and is in the newest of them then,
without a vote: whoever got its vote had made the term durable before. (If it asked for votes itself, that is of no account
any more.) To wait for a while would not do, since a candidate may be held up for longer; nor would the leader of a majority,
since an older one may have that, too.

`election_table.ACTIONS` says for every state and every event what is done. `now`: seconds, monotonic.
"""

from __future__ import annotations

from bmqtwist.cluster.election_base import NOBODY, ElectionBase, Scouting, lsn_of
from bmqtwist.cluster.election_events import (
    ElectionMode,
    ElectionReason,
    ElectionState,
    ElectionTimer,
    Outvoted,
    PeerDown,
    PeerUp,
    Received,
    Resign,
    SetMode,
    SetQuorum,
    Start,
    Stop,
    Transfer,
    Voted,
)
from bmqtwist.cluster.log_events import WriteFailed, Written
from bmqtwist.wire.cluster_schema import (
    ElectionProposal,
    ElectionResponse,
    ElectorNodeStatus,
    HeartbeatResponse,
    LeaderHeartbeat,
    LeadershipCessionNotification,
    ScoutingRequest,
    ScoutingResponse,
)

DORMANT, FOLLOWER, CANDIDATE, LEADER = ElectionState
_PASSIVE = (ElectionMode.NEVER, ElectionMode.LEAVING)  # they do not stand


class Elector(ElectionBase):
    """The elector of one node; `step` and what it knows are those of its base."""

    # -- life -----------------------------------------------------------------------------------------------------------

    def _start(self, event: Start) -> None:
        self.ballot.found(event.term, event.vote, event.damaged)
        self.ignorant, self._terms = event.damaged, {}
        if event.damaged:
            self._alarm("it is not known how this node has voted: it neither votes nor follows until all other nodes have "
                        "told it their terms")
        wait = self.timing.initial_wait if self.others else 0.0
        self._change(FOLLOWER, None, ElectionReason.STARTED, "start")
        self._arm(ElectionTimer.INITIAL, wait)

    def _stop(self, event: Stop) -> None:
        self._clear()
        self.ballot.forget()
        self._change(DORMANT, None, ElectionReason.NONE, "stop")
        self._broadcast("electorNodeStatus", ElectorNodeStatus(False), 0)

    # -- standing for election ------------------------------------------------------------------------------------------

    def _stand(self, event: ElectionTimer) -> None:
        self._favours = None
        if self.leader is not None or self.tentative is not None:
            return
        if self.ignorant:
            self._ask_for_terms()
            self._wait()
        elif self.mode in _PASSIVE:
            self._wait()
        elif not self.others:
            self._propose(self.term + 1, "alone")
        else:
            self._scouting = Scouting(max(self.term, self._highest) + 1, {self.node_id})
            self._note(f"asks who would vote for it in term {self._scouting.term}")
            self._arm(ElectionTimer.SCOUT, self.timing.scouting_result)
            self._broadcast("scoutingRequest", ScoutingRequest(self._last(), self._ceded_by), self._scouting.term)

    def _scouted(self, event: Received) -> None:
        scouting, message = self._scouting, event.message
        if self.ignorant and message.term:
            self._learn(event.sender, message.term)
        self._highest = max(self._highest, message.term)
        if scouting is None or self.leader is not None or self.tentative is not None:
            return
        (scouting.willing if message.value.will_vote else scouting.unwilling).add(event.sender)
        if message.value.leader not in (None, NOBODY):
            scouting.leader = self.elsewhere = message.value.leader
        if len(scouting.willing) >= self.quorum:
            self._propose(scouting.term, f"{len(scouting.willing)} nodes would vote for it")
        elif len(scouting.willing | scouting.unwilling) == len(self.members):
            self._give_up_scouting(scouting, f"only {len(scouting.willing)} nodes would vote for it")

    def _scout_timeout(self, event: ElectionTimer) -> None:
        if self._scouting is not None:
            self._give_up_scouting(self._scouting, f"only {len(self._scouting.willing)} nodes would vote for it in time")

    def _give_up_scouting(self, scouting: Scouting, cause: str) -> None:
        self.elsewhere = scouting.leader
        self._clear()
        self._note(cause)
        self._out.append(Outvoted())
        self._wait()

    def _propose(self, term: int, cause: str) -> None:
        ceded_by = self._ceded_by
        self._clear()
        self._set_term(term, self.node_id)
        self._change(CANDIDATE, None, ElectionReason.NONE, cause)
        self._asked_at = self._now
        self._arm(ElectionTimer.ELECTION, self.timing.election_result)
        self._broadcast("electionProposal", ElectionProposal(self._last(), ceded_by))
        if not self.others:  # the first record of the term, which nobody else can have, makes it durable
            self._support(self.node_id)

    def _support(self, node_id: int) -> None:
        self.supporters.add(node_id)
        if len(self.supporters) >= self.quorum:
            self._lead()

    def _lead(self) -> None:
        supporters = self.supporters
        self._clear()
        self.supporters = supporters
        self._heard = dict.fromkeys(supporters - {self.node_id}, self._asked_at)
        self._change(LEADER, self.node_id, ElectionReason.NONE, f"{len(supporters)} votes")
        self._watch_quorum()
        self._beat(ElectionTimer.BEAT)

    def _election_timeout(self, event: ElectionTimer) -> None:
        if len(self.supporters) >= self.quorum:  # fewer are asked for than when the last one came
            self._lead()
        else:
            self._not_elected(ElectionReason.QUORUM_NOT_ACHIEVED, f"only {len(self.supporters)} votes in time")

    def _not_elected(self, reason: ElectionReason, cause: str) -> None:
        self._clear()
        self._change(FOLLOWER, None, reason, cause)
        self._wait()

    def _on_vote(self, event: Received) -> None:
        """A candidate gets an answer to its proposal."""
        sender, term = event.sender, event.message.term
        refused = event.message.value.refused_for is not None
        if term > self.term:
            self._set_term(term, None)
            self._not_elected(ElectionReason.ELECTION_PREEMPTED, f"node {sender} is in term {term}")
        elif not refused and term == self.term:
            self._support(sender)
        elif refused and sender not in self.supporters:
            self._refusals.add(sender)
            if len(self.members) - len(self._refusals) < self.quorum:
                self._not_elected(ElectionReason.QUORUM_NOT_ACHIEVED, f"{len(self._refusals)} nodes refuse their votes")

    # -- answers to those who stand -------------------------------------------------------------------------------------

    def _on_scouting(self, event: Received) -> None:
        request = event.message.value
        will = self.leader in (None, request.ceded_by) and event.message.term > self.term and self._is_eligible(
            event.sender, request)
        term = 0 if self.ignorant else self.term  # which tells another one that is ignorant nothing
        self._tell(event.sender, "scoutingResponse", ScoutingResponse(will, self._leader_on_wire), term)

    def _is_eligible(self, sender: int, request: ScoutingRequest | ElectionProposal) -> bool:
        """Whether this node may vote for one whose log is as it says."""
        votes = not self.ignorant and self.mode is not ElectionMode.LEAVING and self._favours in (None, sender)
        return votes and lsn_of(request.last) >= self._newest()

    def _on_proposal(self, event: Received) -> None:
        sender, term, proposal = event.sender, event.message.term, event.message.value
        if term == self.term and self.ballot.vote == sender:  # it asks again
            self._out += self.ballot.save()
            self._tell(sender, "electionResponse", ElectionResponse())
        elif self.leader not in (None, proposal.ceded_by) or term <= self.term or not self._is_eligible(sender, proposal):
            self._highest = max(self._highest, term)
            self._tell(sender, "electionResponse", ElectionResponse(self._leader_on_wire))
        else:
            self._give_vote(sender, term)

    def _give_vote(self, candidate: int, term: int) -> None:
        was = self.state, self.leader
        self._clear()
        self._set_term(term, candidate)
        if was != (FOLLOWER, None):
            preempted = was[0] is CANDIDATE
            reason = ElectionReason.ELECTION_PREEMPTED if preempted else ElectionReason.LEADER_PREEMPTED
            self._change(FOLLOWER, None, reason, f"votes for node {candidate} in term {term}")
        else:
            self._note(f"votes for node {candidate} in term {term}")
        self.tentative, self._last_beat = candidate, self._now
        self._out.append(Voted(term))
        self._arm(ElectionTimer.CHECK, self.timing.check_period)
        self._tell(candidate, "electionResponse", ElectionResponse())

    def _refuse(self, event: Received) -> None:
        """A leader stays one."""
        self._tell(event.sender, "electionResponse", ElectionResponse(self._leader_on_wire))

    # -- following ------------------------------------------------------------------------------------------------------

    def _on_heartbeat(self, event: Received) -> None:
        sender, term = event.sender, event.message.term
        if self.ignorant:
            self._learn(sender, term)
        if self.ignorant:
            self._ask_for_terms()
            return
        if term < self.term:
            self._tell(sender, "heartbeatResponse", HeartbeatResponse())
            return
        if term == self.term and self.state is FOLLOWER:
            if (self.tentative if self.leader is None else self.leader) not in (None, sender):
                return
        if (term, self.leader) == (self.term, sender):
            self._last_beat = self._now
            self._out += self.ballot.save()
        else:
            asks = self.tentative != sender or term > self.term
            self._follow(sender, term, f"heartbeat of node {sender} in term {term}")
            if asks:
                self._tell(sender, "electionResponse", ElectionResponse())
        self._answer_beat(event)

    def _learn(self, node_id: int, term: int) -> None:
        """Another node has told its term to this one, which is ignorant, and is not any more once it knows those of all."""
        self._terms[node_id] = term
        if len(self._terms) == len(self.others):
            self.ignorant = False
            self._set_term(max(self.term, *self._terms.values()), None)
            self._note(f"no other node is in a newer term than {self.term}: it takes part again")

    def _ask_for_terms(self) -> None:
        """Who is asked for a promise tells its term, and nothing follows from that."""
        for node_id in self.others:
            if node_id not in self._terms:
                self._tell(node_id, "scoutingRequest", ScoutingRequest(self._last()), self.term + 1)

    def _follow(self, leader: int, term: int, cause: str) -> None:
        self._clear()
        self._favours = None
        if term > self.term:
            self._set_term(term, None)
        self._last_beat = self._now
        self._change(FOLLOWER, leader, ElectionReason.NONE, cause)
        self._arm(ElectionTimer.CHECK, self.timing.check_period)

    def _answer_beat(self, event: Received) -> None:
        self._tell(event.sender, "heartbeatResponse", HeartbeatResponse(event.message.value.stamp, self._last()))

    def _check(self, event: ElectionTimer) -> None:
        silence = self._now - self._last_beat
        if silence < self.timing.inactivity:
            self._arm(ElectionTimer.CHECK, self.timing.check_period)
        elif self.leader is not None:
            self._lose_leader(ElectionReason.LEADER_NO_HEARTBEAT, f"node {self.leader} is silent for {silence:.1f} s")
        elif self.tentative is not None:
            self._forget_vote(f"node {self.tentative} did not lead within {silence:.1f} s")

    def _lose_leader(self, reason: ElectionReason, cause: str) -> None:
        self._clear()
        self._change(FOLLOWER, None, reason, cause)
        self._wait()

    def _forget_vote(self, cause: str) -> None:
        """Whoever was voted for does not lead. The vote itself stays given."""
        self._clear()
        self._note(cause)
        self._wait()

    def _peer_lost(self, event: PeerDown) -> None:
        if event.node_id == self.leader:
            self._lose_leader(ElectionReason.LEADER_UNAVAILABLE, f"node {event.node_id} is gone")
        elif event.node_id == self.tentative:
            self._forget_vote(f"node {event.node_id} is gone")
        elif self._scouting is not None:
            self._scouting.willing.discard(event.node_id)
            self._scouting.unwilling.discard(event.node_id)

    def _on_cession(self, event: Received) -> None:
        sender, successor = event.sender, event.message.value.successor
        if event.message.term < self.term or sender not in (self.leader, self.tentative):
            return
        if sender == self.leader:
            self._lose_leader(ElectionReason.LEADER_NO_HEARTBEAT, f"node {sender} has ceded")
        else:
            self._forget_vote(f"node {sender} has ceded")
        # one that needs the votes of all nodes could not lead without the one that goes
        if successor == self.node_id and self.mode not in _PASSIVE and self.quorum < len(self.members):
            self._ceded_by = sender
            self._arm(ElectionTimer.RANDOM, 0.0)

    # -- leading --------------------------------------------------------------------------------------------------------

    def _beat(self, event: ElectionTimer) -> None:
        self._arm(ElectionTimer.BEAT, self.timing.beat_period)
        for node_id in self.others:
            self._beat_to(node_id)

    def _beat_to(self, node_id: int) -> None:
        self._tell(node_id, "leaderHeartbeat", LeaderHeartbeat(max(0, int(self._now * 1000))))

    def _greet(self, event: PeerUp) -> None:
        self._beat_to(event.node_id)

    def _keep_quorum(self) -> None:
        if self.state is LEADER and self._now >= self._quorum_until:
            self._cede(f"LEADER lost quorum: too few nodes have answered for {self.timing.inactivity:g} s")

    @property
    def _quorum_until(self) -> float:
        """When a majority, this node among them, will have answered no heartbeat of the last `inactivity` seconds."""
        needed = self.majority - 1
        if not needed:
            return float("inf")
        heard = sorted(self._heard.values(), reverse=True)
        return (heard[needed - 1] if len(heard) >= needed else 0.0) + self.timing.inactivity

    def _watch_quorum(self) -> None:
        if self.others:
            self._deadlines[ElectionTimer.CHECK] = self._quorum_until

    def _on_beat_answer(self, event: Received) -> None:
        sender, term, answer = event.sender, event.message.term, event.message.value
        if term > self.term:
            self._preempted(sender, term)
        elif term == self.term and answer.stamp is not None:
            self.supporters.add(sender)
            self._heard[sender] = max(self._heard.get(sender, 0.0), min(answer.stamp / 1000, self._now))
            self._watch_quorum()
            if sender == self._successor and lsn_of(answer.last) >= self._newest():
                self._cede(f"hands over to node {sender}", sender)

    def _on_support(self, event: Received) -> None:
        if event.message.term > self.term:
            self._preempted(event.sender, event.message.term)
        elif event.message.term == self.term and event.message.value.refused_for is None:
            self.supporters.add(event.sender)

    def _preempted(self, node_id: int, term: int) -> None:
        self._set_term(term, None)
        self._cede(f"node {node_id} is in term {term}", reason=ElectionReason.LEADER_PREEMPTED)

    def _cede(self, cause: str, successor: int | None = None,
              reason: ElectionReason = ElectionReason.QUORUM_NOT_ACHIEVED) -> None:
        """Lead no longer, and say so."""
        self._lose_leader(reason, cause)
        self._favours = successor
        self._broadcast("leadershipCessionNotification", LeadershipCessionNotification(successor))

    def _rival(self, event: Received) -> None:
        """A leader hears another one."""
        sender, term = event.sender, event.message.term
        if term <= self.term:
            if term == self.term:
                self._alarm(f"node {sender} says that it leads term {term}, too")
            self._beat_to(sender)
            return
        self._follow(sender, term, f"heartbeat of node {sender} in term {term}")
        self._broadcast("leadershipCessionNotification", LeadershipCessionNotification())
        self._answer_beat(event)

    def _supporter_lost(self, event: PeerDown) -> None:
        self.supporters.discard(event.node_id)
        if len(self.supporters) < self.quorum:
            self._cede(f"LEADER lost quorum: node {event.node_id} is gone, only {len(self.supporters)} nodes are left")

    def _voter_lost(self, event: PeerDown) -> None:
        self.supporters.discard(event.node_id)

    def _other_ceded(self, event: Received) -> None:
        sender, term = event.sender, event.message.term
        if term > self.term:
            self._alarm(f"node {sender} has ceded in term {term}, but this node leads term {self.term}")
        else:
            self._beat_to(sender)

    # -- what an administrator asks for, and the metadata log --------------------------------------------------------------

    def _transfer(self, event: Transfer) -> None:
        if event.target in self.supporters - {self.node_id}:
            self._successor = event.target
            self._note(f"node {event.target} is to lead")
            self._arm(ElectionTimer.ELECTION, self.timing.election_result)
            self._beat_to(event.target)
        else:
            self._alarm(f"node {event.target} cannot lead: it does not follow this node")

    def _transfer_timeout(self, event: ElectionTimer) -> None:
        self._alarm(f"node {self._successor} does not lead: it lacks metadata, or does not answer")
        self._successor = None

    def _resign(self, event: Resign) -> None:
        self._cede(event.cause)

    def _set_mode(self, event: SetMode) -> None:
        self.mode = event.mode
        if ElectionTimer.RANDOM in self._deadlines:
            self._wait()

    def _set_mode_leading(self, event: SetMode) -> None:
        self.mode = event.mode
        if event.mode in _PASSIVE:
            self._cede("it is not to lead")

    def _set_quorum(self, event: SetQuorum) -> None:
        self.quorum = max(event.quorum, self.majority)

    def _written(self, event: Written) -> None:
        if self.ballot.is_current(event.number):
            self._out += self.ballot.written()

    def _written_standing(self, event: Written) -> None:
        self._written(event)
        if self.ballot.is_durable:
            self._support(self.node_id)

    def _write_failed(self, event: WriteFailed) -> None:
        if not self.ballot.is_current(event.number):
            return
        self.ballot.failed()
        self._alarm(f"the vote in term {self.term} cannot be written: {event.reason}")
        if self.state is CANDIDATE:
            self._not_elected(ElectionReason.QUORUM_NOT_ACHIEVED, "its own vote cannot be written")
        elif self.tentative is not None:
            self._forget_vote("the vote cannot be written")
