"""Rules of an election as a table: situation, event, messages sent, and the state afterwards.

tests/table/test_elector.py runs an Elector through every rule. Rules 1 to 56 have the numbers of the original's rules;
rules from 57 are specific to this product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bmqtwist.cluster.election_events import (
    ElectionInput,
    ElectionMode,
    ElectionState,
    ElectionTimer,
    ElectionTiming,
    PeerDown,
    PeerUp,
    Received,
    Resign,
    SetMode,
    SetQuorum,
    Start,
    Stop,
    Tick,
    Transfer,
)
from bmqtwist.cluster.elector import Elector
from bmqtwist.cluster.electorate import Electorate, MemberStorage
from bmqtwist.cluster.log_events import WriteFailed, Written
from bmqtwist.storage.identity import StorageState
from bmqtwist.wire import cluster_schema as schema
from bmqtwist.wire.cluster_schema import Lsn, MemberInfo, MemberList
from bmqtwist.wire.control import ElectorMessage

BEGIN, INACTIVITY = 100.0, 20.0  # s
NEWEST: Lsn = (5, 3)  # last LSN in the log of this node
OLDER: Lsn = (5, 2)
D, F, C, L = ElectionState.DORMANT, ElectionState.FOLLOWER, ElectionState.CANDIDATE, ElectionState.LEADER
INITIAL, RANDOM, SCOUT, ELECTION, CHECK, BEAT = ElectionTimer


def message(sender: int, term: int, choice: str, value: object) -> Received:
    """Create a message from another node."""
    return Received(sender, ElectorMessage(term, choice, value))


def _last(last: Lsn) -> schema.LeaderMessageSequence:
    return schema.LeaderMessageSequence(*last)


def scouting(sender: int, term: int, last: Lsn = NEWEST, ceded_by: int | None = None) -> Received:
    """Create a scouting request (SCOUT_REQ)."""
    return message(sender, term, "scoutingRequest", schema.ScoutingRequest(_last(last), ceded_by))


def scouted(sender: int, term: int, will: bool) -> Received:
    """Create a scouting response (SCOUT_RSP)."""
    return message(sender, term, "scoutingResponse", schema.ScoutingResponse(will, -1))


def proposal(sender: int, term: int, last: Lsn = NEWEST, ceded_by: int | None = None) -> Received:
    """Create an election proposal (PROPOSE)."""
    return message(sender, term, "electionProposal", schema.ElectionProposal(_last(last), ceded_by))


def support(sender: int, term: int) -> Received:
    """Create a response that supports a candidate (SUPPORT)."""
    return message(sender, term, "electionResponse", schema.ElectionResponse())


def refusal(sender: int, term: int) -> Received:
    """Create a response that refuses a candidate."""
    return message(sender, term, "electionResponse", schema.ElectionResponse(-1))


def beat(sender: int, term: int) -> Received:
    """Create a heartbeat of a leader (BEAT)."""
    return message(sender, term, "leaderHeartbeat", schema.LeaderHeartbeat(7))


def stale(sender: int, term: int) -> Received:
    """Create a heartbeat response of a node with a newer term (STALE_BEAT)."""
    return message(sender, term, "heartbeatResponse", schema.HeartbeatResponse())


def answer(sender: int, term: int, at: float, last: Lsn = NEWEST) -> Received:
    """Create the response to the heartbeat sent at `at`."""
    return message(sender, term, "heartbeatResponse", schema.HeartbeatResponse(int(at * 1000), _last(last)))


def cession(sender: int, term: int, successor: int | None = None) -> Received:
    """Create a notice that a leader cedes leadership (CESSION)."""
    return message(sender, term, "leadershipCessionNotification", schema.LeadershipCessionNotification(successor))


def status(sender: int, available: bool) -> Received:
    """Create a notice of availability (NODE_STATUS)."""
    return message(sender, 0, "electorNodeStatus", schema.ElectorNodeStatus(available))


class Situation:
    """Elector of node 1 in a cluster of `size` nodes; `wait` advances `now`. All writes succeed at once."""

    def __init__(self, size: int = 3, term: int = 5, quorum: int = 0, electorate: Electorate | None = None) -> None:
        voters = electorate or Electorate(1, range(1, size + 1))
        self.elector = Elector(voters, "n1", ElectionTiming(), lambda: 0.5, lambda: NEWEST, quorum)
        self.now, self._term = BEGIN, term

    def happen(self, event: ElectionInput) -> list[object]:
        """Handle one input and its writes; return all outputs."""
        outputs: list[object] = list(self.elector.step(self.now, event))
        for output in outputs:
            if type(output).__name__ == "SaveVote":
                outputs += self.elector.step(self.now, Written(output.number))  # type: ignore[attr-defined]
        return outputs

    def wait(self, seconds: float) -> list[object]:
        """Advance the time, stopping at each timer; return all outputs."""
        until, outputs = self.now + seconds, list[object]()
        while (moment := min(self.elector.timers.deadlines.values(), default=until + 1)) <= until:
            self.now = max(self.now, moment)
            outputs += self.happen(Tick())
        self.now = until
        return outputs

    def start(self) -> Situation:
        """Start the node; it knows no leader."""
        self.happen(Start(self._term, None))
        return self

    def scout(self) -> Situation:
        """Let the node scout for term 6."""
        self.start().wait(8.0)
        return self

    def stand(self) -> Situation:
        """Make the node a candidate in term 6, since BEGIN + 8."""
        self.scout()
        for sender in range(2, self.elector.quorum + 1):
            self.happen(scouted(sender, 5, True))
        return self

    def lead(self) -> Situation:
        """Make the node the leader of term 6, with exactly a quorum of votes."""
        self.stand()
        for sender in range(2, self.elector.quorum + 1):
            self.happen(support(sender, 6))
        return self

    def follow(self) -> Situation:
        """Let the node follow node 2 in term 5."""
        self.start().happen(beat(2, 5))
        return self

    def give_vote(self) -> Situation:
        """Let the node vote for node 2 in term 6."""
        self.start().happen(proposal(2, 6))
        return self


def dormant() -> Situation:
    return Situation()


def no_leader_known() -> Situation:
    return Situation().start()


def alone() -> Situation:
    return Situation(1).start()


def alone_and_waiting() -> Situation:
    """The only node, after its mode was NEVER and is NORMAL now."""
    situation = alone()
    situation.happen(SetMode(ElectionMode.NEVER))
    situation.wait(0.0)
    situation.happen(SetMode(ElectionMode.NORMAL))
    return situation


def electorate_of(**states: StorageState) -> Electorate:
    """Return the electorate of node 1 of three registered nodes. `states`: of `n1` to `n3` that have other storage now."""
    electorate = Electorate(1, (1, 2, 3))
    electorate.set_lists([MemberList(7, 1, 1, [MemberInfo(number, f"n{number}", "", True, number) for number in (1, 2, 3)])])
    electorate.announced = {number: MemberStorage(number + 10, states[f"n{number}"], 7, number) if f"n{number}" in states
                            else MemberStorage(number, StorageState.COMPLETE, 7) for number in (1, 2, 3)}
    return electorate


def recovering() -> Situation:
    """The storage of this node is lost."""
    return Situation(electorate=electorate_of(n1=StorageState.LOST)).start()


def candidate_with_recovering_node() -> Situation:
    """Candidate in a cluster in which node 2 has lost its storage."""
    situation = Situation(electorate=electorate_of(n2=StorageState.LOST)).scout()
    for sender in (2, 3):
        situation.happen(scouted(sender, 5, True))
    return situation


def leading_with_recovering_follower() -> Situation:
    """Leader in a cluster in which node 2 has lost its storage."""
    situation = candidate_with_recovering_node()
    situation.happen(support(3, 6))
    return situation


def scouting_after_lost_votes() -> Situation:
    """The votes of all nodes are lost, and node 2 would vote for this one."""
    lost = dict.fromkeys(("n1", "n2", "n3"), StorageState.VOTE_LOST)
    situation = Situation(electorate=electorate_of(**lost)).scout()
    situation.happen(scouted(2, 5, True))
    return situation


def scouting_before_lost_votes_are_known() -> Situation:
    """The other nodes report during the scouting that their votes are lost, too; node 2 would vote for this one."""
    electorate = electorate_of(n1=StorageState.VOTE_LOST)
    situation = Situation(electorate=electorate).scout()
    electorate.announced = electorate_of(**dict.fromkeys(("n1", "n2", "n3"), StorageState.VOTE_LOST)).announced
    situation.happen(scouted(2, 5, True))
    return situation


def only_voter() -> Situation:
    """The nodes 2 and 3 are learners."""
    electorate = electorate_of()
    nodes = [replace(each, voting=each.node_id == 1) for each in electorate.lists[0].nodes]
    electorate.set_lists([replace(electorate.lists[0], nodes=nodes)])
    return Situation(electorate=electorate).start()


def following() -> Situation:
    return Situation().follow()


def leader_silent() -> Situation:
    """The last heartbeat of the leader is 19.5 s old."""
    situation = following()
    situation.wait(INACTIVITY - 0.5)
    return situation


def voted() -> Situation:
    return Situation().give_vote()


def voted_without_heartbeat() -> Situation:
    """The node has voted and received no heartbeat for 19.5 s."""
    situation = voted()
    situation.wait(INACTIVITY - 0.5)
    return situation


def asking() -> Situation:
    return Situation().scout()


def refused_once() -> Situation:
    """One of two scouting responses was a refusal."""
    situation = asking()
    situation.happen(scouted(2, 5, False))
    return situation


def standing() -> Situation:
    return Situation().stand()


def standing_of_five() -> Situation:
    return Situation(5).stand()


def candidate_after_lowered_quorum() -> Situation:
    """Candidate with three of five votes, whose quorum has been lowered from five to three."""
    situation = Situation(5, quorum=5).stand()
    for sender in (2, 3):
        situation.happen(support(sender, 6))
    situation.happen(SetQuorum(3))
    return situation


def standing_refused_once() -> Situation:
    situation = standing()
    situation.happen(refusal(2, 5))
    return situation


def vote_unwritten() -> Situation:
    """The node is a candidate in term 6, and its own vote is not durable yet."""
    situation = asking()
    situation.elector.step(situation.now, scouted(2, 5, True))
    return situation


def vote_unwritten_but_another_one_given() -> Situation:
    situation = vote_unwritten()
    situation.happen(support(2, 6))
    return situation


def mode_never() -> Situation:
    situation = no_leader_known()
    situation.happen(SetMode(ElectionMode.NEVER))
    return situation


def waiting_for_next_candidacy() -> Situation:
    """Both scouting responses were refusals; the random wait before the next attempt runs."""
    situation = refused_once()
    situation.happen(scouted(3, 5, False))
    return situation


def leading() -> Situation:
    return Situation().lead()


def leading_with_extra_vote() -> Situation:
    situation = leading()
    situation.happen(support(3, 6))
    return situation


def leading_unheard() -> Situation:
    """The leader has received no heartbeat responses for 19.5 s."""
    situation = leading()
    situation.wait(INACTIVITY - 0.5)
    return situation


def transferring() -> Situation:
    """The leader hands over to node 2."""
    situation = leading()
    situation.happen(Transfer(2))
    return situation


@dataclass(frozen=True)
class Rule:
    """A rule of the table.

    `event`: an input, a time to wait in s, or a timer that fires although it was not armed; `says`: the outputs in short
    form; `state`, `timers` (running), `term`, `leader`: afterwards.
    """

    number: int
    situation: Callable[[], Situation]
    event: ElectionInput | float | ElectionTimer
    says: tuple[str, ...]
    state: ElectionState
    timers: tuple[ElectionTimer, ...]
    term: int = 5
    leader: int | None = None

    def play(self, situation: Situation) -> list[object]:
        """Perform the event; return the outputs."""
        if isinstance(self.event, float):
            return situation.wait(self.event)
        if isinstance(self.event, ElectionTimer):
            situation.elector.timers.deadlines[self.event] = situation.now
            return situation.happen(Tick())
        return situation.happen(self.event)


RULES = (
    Rule(1, dormant, Start(5), ("n STARTED",), F, (INITIAL,)),
    Rule(2, dormant, beat(2, 5), (), D, (), 0),
    Rule(3, following, Stop(), ("n NONE", "all NODE_STATUS(0)"), D, (), 0),
    Rule(3, leading, Stop(), ("n NONE", "all NODE_STATUS(0)"), D, (), 0),
    Rule(3, standing, Stop(), ("n NONE", "all NODE_STATUS(0)"), D, (), 0),
    Rule(4, no_leader_known, scouting(2, 6), ("2 SCOUT_RSP(5) yes",), F, (INITIAL,)),
    Rule(4, no_leader_known, scouting(2, 5), ("2 SCOUT_RSP(5) no",), F, (INITIAL,)),
    Rule(4, voted, scouting(3, 7), ("3 SCOUT_RSP(6) yes",), F, (CHECK,), 6),
    Rule(4, following, scouting(3, 6), ("3 SCOUT_RSP(5) no",), F, (CHECK,), 5, 2),
    Rule(4, standing, scouting(3, 7), ("3 SCOUT_RSP(6) yes",), C, (ELECTION,), 6),
    Rule(4, leading, scouting(3, 7), ("3 SCOUT_RSP(6) no",), L, (CHECK, BEAT), 6, 1),
    Rule(5, following, INITIAL, (), F, (CHECK,), 5, 2),
    Rule(5, voted, RANDOM, (), F, (CHECK,), 6),
    Rule(6, no_leader_known, 8.0, ("all SCOUT_REQ(6)",), F, (SCOUT,)),
    Rule(6, waiting_for_next_candidacy, 1.875, ("all SCOUT_REQ(6)",), F, (SCOUT,)),
    Rule(7, alone, 0.0, ("n NONE", "n NONE"), L, (BEAT,), 6, 1),
    Rule(7, alone_and_waiting, RANDOM, ("n NONE", "n NONE"), L, (BEAT,), 6, 1),
    Rule(8, following, scouted(3, 5, True), (), F, (CHECK,), 5, 2),
    Rule(8, no_leader_known, scouted(3, 5, True), (), F, (INITIAL,)),
    Rule(9, asking, scouted(2, 5, True), ("save 6/1", "n NONE", "all PROPOSE(6)"), C, (ELECTION,), 6),
    Rule(10, refused_once, scouted(3, 5, False), ("requests records",), F, (RANDOM,)),
    Rule(11, asking, scouted(2, 5, False), (), F, (SCOUT,)),
    Rule(12, refused_once, 4.0, ("requests records",), F, (RANDOM,)),
    Rule(13, following, proposal(3, 6), ("3 REFUSE(5)",), F, (CHECK,), 5, 2),
    Rule(13, no_leader_known, proposal(3, 5), ("3 REFUSE(5)",), F, (INITIAL,)),
    Rule(13, voted, proposal(3, 6), ("3 REFUSE(6)",), F, (CHECK,), 6),
    Rule(14, no_leader_known, proposal(2, 6), ("save 6/2", "voted 6", "2 SUPPORT(6)"), F, (CHECK,), 6),
    Rule(14, voted, proposal(3, 7), ("save 7/3", "voted 7", "3 SUPPORT(7)"), F, (CHECK,), 7),
    Rule(14, asking, proposal(3, 7), ("save 7/3", "voted 7", "3 SUPPORT(7)"), F, (CHECK,), 7),
    Rule(15, following, support(3, 5), (), F, (CHECK,), 5, 2),
    Rule(16, following, beat(3, 4), ("3 STALE_BEAT(5)",), F, (CHECK,), 5, 2),
    Rule(17, following, beat(2, 5), ("2 BEAT_ACK(5)",), F, (CHECK,), 5, 2),
    Rule(18, voted, beat(2, 6), ("n NONE", "2 BEAT_ACK(6)"), F, (CHECK,), 6, 2),
    Rule(19, no_leader_known, beat(2, 5), ("n NONE", "2 SUPPORT(5)", "2 BEAT_ACK(5)"), F, (CHECK,), 5, 2),
    Rule(20, following, beat(3, 5), (), F, (CHECK,), 5, 2),
    Rule(20, voted, beat(3, 6), (), F, (CHECK,), 6),
    Rule(21, following, beat(3, 6), ("save 6/-", "n NONE", "3 SUPPORT(6)", "3 BEAT_ACK(6)"), F, (CHECK,), 6, 3),
    Rule(21, voted, beat(3, 7), ("save 7/-", "n NONE", "3 SUPPORT(7)", "3 BEAT_ACK(7)"), F, (CHECK,), 7, 3),
    Rule(22, leader_silent, 0.4, (), F, (CHECK,), 5, 2),
    Rule(23, leader_silent, 0.5, ("n LEADER_NO_HEARTBEAT",), F, (RANDOM,)),
    Rule(24, voted_without_heartbeat, 0.5, (), F, (RANDOM,), 6),
    Rule(25, following, PeerDown(2), ("n LEADER_UNAVAILABLE",), F, (RANDOM,)),
    Rule(25, following, status(2, False), ("n LEADER_UNAVAILABLE",), F, (RANDOM,)),
    Rule(26, voted, PeerDown(2), (), F, (RANDOM,), 6),
    Rule(27, following, PeerDown(3), (), F, (CHECK,), 5, 2),
    Rule(27, refused_once, PeerDown(2), (), F, (SCOUT,)),
    Rule(28, following, cession(2, 4), (), F, (CHECK,), 5, 2),
    Rule(28, following, cession(3, 5), (), F, (CHECK,), 5, 2),
    Rule(29, following, cession(2, 5), ("n LEADER_NO_HEARTBEAT",), F, (RANDOM,)),
    Rule(30, voted, cession(2, 6), (), F, (RANDOM,), 6),
    Rule(31, following, stale(2, 9), (), F, (CHECK,), 5, 2),
    Rule(31, following, PeerUp(3), (), F, (CHECK,), 5, 2),
    Rule(31, standing, status(3, True), (), C, (ELECTION,), 6),
    Rule(31, standing, stale(2, 9), (), C, (ELECTION,), 6),
    Rule(32, standing, support(2, 5), (), C, (ELECTION,), 6),
    Rule(33, standing, support(2, 6), ("n NONE", "all BEAT(6)"), L, (CHECK, BEAT), 6, 1),
    Rule(34, standing_of_five, support(2, 6), (), C, (ELECTION,), 6),
    Rule(35, candidate_after_lowered_quorum, 4.0, ("n NONE", "all BEAT(6)"), L, (CHECK, BEAT), 6, 1),
    Rule(36, standing, 4.0, ("n QUORUM_NOT_ACHIEVED",), F, (RANDOM,), 6),
    Rule(37, standing, proposal(2, 6), ("2 REFUSE(6)",), C, (ELECTION,), 6),
    Rule(38, standing, proposal(2, 7), ("save 7/2", "n ELECTION_PREEMPTED", "voted 7", "2 SUPPORT(7)"), F, (CHECK,), 7),
    Rule(39, standing, beat(2, 5), ("2 STALE_BEAT(6)",), C, (ELECTION,), 6),
    Rule(40, standing, beat(2, 6), ("n NONE", "2 SUPPORT(6)", "2 BEAT_ACK(6)"), F, (CHECK,), 6, 2),
    Rule(40, standing, beat(2, 7), ("save 7/-", "n NONE", "2 SUPPORT(7)", "2 BEAT_ACK(7)"), F, (CHECK,), 7, 2),
    Rule(41, standing_of_five, PeerDown(2), (), C, (ELECTION,), 6),
    Rule(42, standing, cession(2, 6), (), C, (ELECTION,), 6),
    Rule(42, standing, scouted(2, 5, True), (), C, (ELECTION,), 6),
    Rule(43, leading, 2.0, ("all BEAT(6)",), L, (CHECK, BEAT), 6, 1),
    Rule(44, leading, proposal(3, 9), ("3 REFUSE(6)",), L, (CHECK, BEAT), 6, 1),
    Rule(45, leading, support(3, 6), (), L, (CHECK, BEAT), 6, 1),
    Rule(46, leading, support(3, 5), (), L, (CHECK, BEAT), 6, 1),
    Rule(47, leading, support(3, 7), ("save 7/-", "n LEADER_PREEMPTED", "all CESSION(7)"), F, (RANDOM,), 7),
    Rule(47, leading, stale(3, 7), ("save 7/-", "n LEADER_PREEMPTED", "all CESSION(7)"), F, (RANDOM,), 7),
    Rule(48, leading, stale(3, 5), (), L, (CHECK, BEAT), 6, 1),
    Rule(49, leading, beat(3, 5), ("3 BEAT(6)",), L, (CHECK, BEAT), 6, 1),
    Rule(49, leading, beat(3, 6), ("alarm", "3 BEAT(6)"), L, (CHECK, BEAT), 6, 1),
    Rule(50, leading, beat(3, 7), ("save 7/-", "n NONE", "all CESSION(7)", "3 BEAT_ACK(7)"), F, (CHECK,), 7, 3),
    Rule(51, leading, PeerUp(3), ("3 BEAT(6)",), L, (CHECK, BEAT), 6, 1),
    Rule(51, leading, status(3, True), ("3 BEAT(6)",), L, (CHECK, BEAT), 6, 1),
    Rule(52, leading_with_extra_vote, PeerDown(2), (), L, (CHECK, BEAT), 6, 1),
    Rule(53, leading, PeerDown(2), ("n QUORUM_NOT_ACHIEVED", "all CESSION(6)"), F, (RANDOM,), 6),
    Rule(54, leading, cession(3, 6), ("3 BEAT(6)",), L, (CHECK, BEAT), 6, 1),
    Rule(55, leading, cession(3, 7), ("alarm",), L, (CHECK, BEAT), 6, 1),
    Rule(56, leading, scouted(3, 6, True), (), L, (CHECK, BEAT), 6, 1),
    # rules of this product: a candidate with an older log gets no vote
    Rule(57, no_leader_known, scouting(2, 6, OLDER), ("2 SCOUT_RSP(5) no",), F, (INITIAL,)),
    Rule(57, no_leader_known, proposal(2, 6, OLDER), ("2 REFUSE(5)",), F, (INITIAL,)),
    Rule(57, standing, proposal(2, 7, OLDER), ("2 REFUSE(6)",), C, (ELECTION,), 6),
    # refusals are counted; a refusal with a higher term makes the node adopt this term
    Rule(58, standing, refusal(2, 5), (), C, (ELECTION,), 6),
    Rule(58, standing_refused_once, refusal(3, 5), ("n QUORUM_NOT_ACHIEVED",), F, (RANDOM,), 6),
    Rule(58, standing, refusal(2, 9), ("save 9/-", "n ELECTION_PREEMPTED"), F, (RANDOM,), 9),
    Rule(58, leading, refusal(3, 9), ("save 9/-", "n LEADER_PREEMPTED", "all CESSION(9)"), F, (RANDOM,), 9),
    # a vote is requested twice
    Rule(59, voted, proposal(2, 6), ("2 SUPPORT(6)",), F, (CHECK,), 6),
    # heartbeats are answered
    Rule(60, leading, answer(3, 6, BEGIN + 8.0), (), L, (CHECK, BEAT), 6, 1),
    Rule(60, leading_unheard, 0.5, ("n QUORUM_NOT_ACHIEVED", "all CESSION(6)"), F, (RANDOM,), 6),
    # a leader transfers leadership
    Rule(61, leading, Transfer(2), ("2 BEAT(6)",), L, (ELECTION, CHECK, BEAT), 6, 1),
    Rule(61, leading, Transfer(3), ("alarm",), L, (CHECK, BEAT), 6, 1),
    Rule(61, transferring, answer(2, 6, BEGIN + 8.0, OLDER), (), L, (ELECTION, CHECK, BEAT), 6, 1),
    Rule(61, transferring, answer(2, 6, BEGIN + 8.0), ("n QUORUM_NOT_ACHIEVED", "all CESSION(6) for 2"), F, (RANDOM,), 6),
    Rule(61, transferring, 4.0, ("all BEAT(6)", "all BEAT(6)", "alarm"), L, (CHECK, BEAT), 6, 1),
    Rule(62, following, cession(2, 5, 1), ("n LEADER_NO_HEARTBEAT",), F, (RANDOM,)),
    Rule(62, following, scouting(3, 6, ceded_by=2), ("3 SCOUT_RSP(5) yes",), F, (CHECK,), 5, 2),
    Rule(62, following, proposal(3, 6, ceded_by=2), ("save 6/3", "n LEADER_PREEMPTED", "voted 6", "3 SUPPORT(6)"), F,
         (CHECK,), 6),
    Rule(62, following, proposal(2, 6, ceded_by=3), ("2 REFUSE(5)",), F, (CHECK,), 5, 2),
    # administrators and the metadata log
    Rule(63, leading, Resign("the disk is full"), ("n QUORUM_NOT_ACHIEVED", "all CESSION(6)"), F, (RANDOM,), 6),
    Rule(64, mode_never, 8.0, ("requests records",), F, (RANDOM,)),
    Rule(64, leading, SetMode(ElectionMode.NEVER), ("n QUORUM_NOT_ACHIEVED", "all CESSION(6)"), F, (RANDOM,), 6),
    Rule(64, leading, SetMode(ElectionMode.FORCE), (), L, (CHECK, BEAT), 6, 1),
    Rule(64, dormant, SetMode(ElectionMode.FORCE), (), D, (), 0),
    Rule(64, standing, SetMode(ElectionMode.NEVER), (), C, (ELECTION,), 6),
    Rule(65, leading, SetQuorum(3), (), L, (CHECK, BEAT), 6, 1),
    Rule(65, standing, SetQuorum(3), (), C, (ELECTION,), 6),
    Rule(65, following, SetQuorum(3), (), F, (CHECK,), 5, 2),
    Rule(65, dormant, SetQuorum(3), (), D, (), 0),
    # votes of a node that has lost storage complete a quorum only; without a lost ledger all votes together are one
    Rule(66, recovering, 8.0, ("requests records",), F, (RANDOM,)),
    Rule(66, recovering, proposal(2, 6), ("save 6/2", "voted 6", "2 SUPPORT(6)"), F, (CHECK,), 6),
    Rule(66, candidate_with_recovering_node, support(2, 6), (), C, (ELECTION,), 6),
    Rule(66, candidate_with_recovering_node, support(3, 6), ("n NONE", "all BEAT(6)"), L, (CHECK, BEAT), 6, 1),
    Rule(66, scouting_after_lost_votes, scouted(3, 5, True), ("save 1006/1", "n NONE", "all PROPOSE(1006)"), C, (ELECTION,),
         1006),
    Rule(66, scouting_before_lost_votes_are_known, scouted(3, 5, True), ("requests records",), F, (RANDOM,)),
    Rule(66, only_voter, 8.0, ("save 6/1", "n NONE", "all PROPOSE(6)", "n NONE", "all BEAT(6)"), L, (CHECK, BEAT), 6, 1),
    Rule(66, only_voter, RANDOM, ("save 6/1", "n NONE", "all PROPOSE(6)", "n NONE", "all BEAT(6)"), L, (CHECK, BEAT), 6, 1),
    # votes that cannot be written
    Rule(67, vote_unwritten, Written(1), ("all PROPOSE(6)",), C, (ELECTION,), 6),
    Rule(67, vote_unwritten, WriteFailed(1, "full"), ("alarm", "n QUORUM_NOT_ACHIEVED"), F, (RANDOM,), 6),
    Rule(67, vote_unwritten_but_another_one_given, Written(1), ("all PROPOSE(6)", "n NONE", "all BEAT(6)"), L,
         (CHECK, BEAT), 6, 1),
    Rule(67, standing, WriteFailed(9, "late"), (), C, (ELECTION,), 6),
    Rule(67, following, WriteFailed(9, "late"), (), F, (CHECK,), 5, 2),
    Rule(67, leading, WriteFailed(9, "late"), (), L, (CHECK, BEAT), 6, 1),
    Rule(67, leading, Written(9), (), L, (CHECK, BEAT), 6, 1),
)
