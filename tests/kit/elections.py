"""Model of an election at 1, 3 or 5 nodes with a faulty network, disks and clocks; invariants are checked after every step.

Besides its elector every node has a minimal log: a leader appends an entry at times, sends its whole log, and counts the
nodes that have it. Entries on a majority are committed, once an entry of the leader's term is among them. Run by
`property/test_elections.py`; single rules are in `election_rules.py`, whole clusters in tests/sim.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from random import Random

from bmqtwist.cluster.election_events import (
    ElectionChanged,
    ElectionInput,
    ElectionState,
    ElectionTiming,
    PeerDown,
    PeerUp,
    Received,
    SaveVote,
    Start,
    Tick,
    TickAt,
)
from bmqtwist.cluster.elector import Elector
from bmqtwist.cluster.electorate import Electorate, MemberStorage
from bmqtwist.cluster.log_events import Alarm, Send, WriteFailed, Written
from bmqtwist.storage.identity import StorageState
from bmqtwist.wire.cluster_schema import Lsn, MemberInfo, MemberList

TIMING = ElectionTiming(2.0, 1.0, 1.0, 1.0, 0.5, 0.25, 6)
SETTLE_S = TIMING.inactivity + 4 * (TIMING.random_wait_max + TIMING.scouting_result)


@dataclass
class ElectionNode:
    """One node: a process that restarts, and a disk that persists."""

    node_id: int
    clock_ahead: float
    elector: Elector | None = None
    run_number: int = 0
    paused: bool = False
    pending: list[Callable[[], None]] = field(default_factory=list)  # inputs that arrived while the node was paused
    durable: tuple[int, int | None] = (0, None)
    storage: MemberStorage = field(default_factory=MemberStorage)
    votes: dict[int, int] = field(default_factory=dict)  # term -> the vote that was durable in it
    log: list[Lsn] = field(default_factory=list)
    holders: set[int] = field(default_factory=set)  # nodes that have the whole log of this leader


class Elections:
    """All nodes. `now`: seconds; `random`: source of all decisions."""

    def __init__(self, seed: int, size: int, timing: ElectionTiming = TIMING) -> None:
        self.random, self.timing = Random(seed), timing
        self.now = 0.0
        self.nodes = {number: ElectionNode(number, self.random.random() * 1000, storage=MemberStorage(number))
                      for number in range(1, size + 1)}
        self.members = MemberList(1, 1, 1, [MemberInfo(number, "", "", True, number) for number in self.nodes])
        self.loss = self.repeats = self.write_failures = self.write_deaths = 0.0  # shares
        self.latency = 0.01
        self.cut: set[tuple[int, int]] = set()  # (from, to)
        self.leaders: dict[int, int] = {}  # term -> its leader
        self.reported_votes: dict[tuple[int, int], int] = {}  # (node, term) -> its candidate
        self.committed: list[Lsn] = []
        self.changes: list[tuple[float, int, ElectionChanged]] = []
        self.alarms: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = count()

    # -- time

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._ticket), action))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    # -- nodes

    def boot(self, *numbers: int) -> None:
        for number in numbers or self.nodes:
            node = self.nodes[number]
            if node.elector is None:
                electorate = Electorate(number, self.nodes)
                electorate.announced[number] = node.storage
                electorate.set_lists([self.members])
                node.elector = Elector(electorate, f"n{number}", self.timing, self.random.random,
                                       lambda node=node: node.log[-1] if node.log else (0, 0))  # type: ignore[misc]
                term, vote = node.durable
                newest = node.log[-1][0] if node.log else 0
                if newest > term:
                    term, vote = newest, None
                self.step(node, Start(term, vote))
                for other in self.nodes.values():
                    if other is not node and other.elector is not None:
                        self.report_link(node.node_id, other.node_id, True)

    def crash(self, number: int, noticed: bool = True) -> None:
        node = self.nodes[number]
        if node.elector is not None:
            node.elector, node.paused, node.pending = None, False, []
            node.run_number += 1
            for other in self.nodes.values():
                if other is not node and noticed:
                    self.soon(lambda other=other: self.step(other, PeerDown(number)))  # type: ignore[misc]

    def lose_vote(self, number: int) -> None:
        """Crash a node whose vote is lost after the restart: it may vote again in a term."""
        node = self.nodes[number]
        if len(self.nodes) == 1:
            return
        self.crash(number)
        known = node.storage
        node.durable = 0, None
        node.storage = MemberStorage(known.incarnation + 100, StorageState.VOTE_LOST, 1, known.previous or known.incarnation)
        node.votes.clear()
        self.reported_votes = {key: vote for key, vote in self.reported_votes.items() if key[0] != number}

    def pause(self, number: int) -> None:
        self.nodes[number].paused = True

    def resume(self, number: int) -> None:
        node = self.nodes[number]
        node.paused = False
        pending, node.pending = node.pending, []
        self.random.shuffle(pending)
        for action in pending:
            action()

    def step(self, node: ElectionNode, event: ElectionInput) -> None:
        if node.paused:
            run_number = node.run_number
            node.pending.append(lambda: self.step(node, event) if node.run_number == run_number else None)
            return
        if node.elector is None:
            return
        before = node.elector.state
        if isinstance(event, PeerUp):
            node.elector.electorate.announced[event.node_id] = self.nodes[event.node_id].storage
        for output in node.elector.step(self.now + node.clock_ahead, event):
            if isinstance(output, Send):
                self.judge(node, output)
                self.send(node.node_id, output.node_id, Received(node.node_id, output.message))
            elif isinstance(output, SaveVote):
                self.save(node, output)
            elif isinstance(output, TickAt) and output.moment is not None:
                self.at(output.moment - node.clock_ahead, lambda run_number=node.run_number: self.wake(node, run_number))  # type: ignore[misc]
            elif isinstance(output, ElectionChanged):
                self.changes.append((self.now, node.node_id, output))
            elif isinstance(output, Alarm):
                self.alarms.append(output.text)
        if node.elector.state is ElectionState.LEADER and before is not ElectionState.LEADER:
            self.elected(node, node.elector.term)

    def wake(self, node: ElectionNode, run_number: int) -> None:
        if node.elector is not None and node.run_number == run_number:
            moment = node.elector.timers.earliest
            if moment is not None and moment - node.clock_ahead <= self.now + 1e-6:
                late = max(self.now, moment - node.clock_ahead + 1e-9)
                self.now = late
                self.step(node, Tick())

    def save(self, node: ElectionNode, job: SaveVote) -> None:
        run_number, fails = node.run_number, self.random.random() < self.write_failures

        def take_effect() -> None:
            if node.run_number != run_number:
                return
            assert job.term >= node.durable[0], "the durable term never decreases"
            node.durable = job.term, job.vote
            if job.vote is not None:
                assert node.votes.setdefault(job.term, job.vote) == job.vote, "one vote per term, over all starts"
        at = self.now + self.random.random() * 0.02
        if self.random.random() < self.write_deaths:
            dies = at + (self.random.random() - 0.5) * 0.02
            self.at(dies, lambda: self.crash(node.node_id) if node.run_number == run_number else None)
            self.at(at + 0.1, lambda: self.boot(node.node_id))
        if not fails or self.random.random() < 0.5:
            self.at(at, take_effect)
        answer: ElectionInput = WriteFailed(job.number, "failed") if fails else Written(job.number)
        self.at(at + self.random.random() * 0.02, lambda: self.step(node, answer) if node.run_number == run_number else None)

    # -- network

    def soon(self, action: Callable[[], None]) -> None:
        slow = self.random.random() < self.loss / 2
        self.at(self.now + self.random.random() * (2.0 if slow else self.latency), action)

    def send(self, source: int, target: int, event: ElectionInput | Callable[[], None]) -> None:
        for _ in range(1 + (self.random.random() < self.repeats)):
            if (source, target) not in self.cut and self.random.random() >= self.loss:
                self.soon(event if callable(event) else partial(self.step, self.nodes[target], event))

    def report_link(self, one: int, two: int, up: bool) -> None:
        for here, there in ((one, two), (two, one)):
            event = PeerUp(there) if up else PeerDown(there)
            self.soon(lambda here=here, event=event: self.step(self.nodes[here], event))  # type: ignore[misc]

    def break_link(self, one: int, two: int, both: bool = True, noticed: bool = True) -> None:
        self.cut |= {(one, two), (two, one)} if both else {(one, two)}
        if noticed:
            self.report_link(one, two, False)

    def isolate(self, number: int, noticed: bool = True) -> None:
        for other in self.nodes:
            if other != number:
                self.break_link(number, other, True, noticed)

    def heal(self) -> None:
        for one, two in {(min(link), max(link)) for link in self.cut}:
            self.report_link(one, two, True)
        self.cut.clear()

    # -- logs and invariants

    def judge(self, node: ElectionNode, sent: Send) -> None:
        """Check that a node reports one vote per term, over all its runs; support for a leader is no vote."""
        term, choice, value = sent.message.term, sent.message.choice, sent.message.value
        if choice == "electionResponse" and value.refused_for is None and self.leaders.get(term) != sent.node_id:
            candidate = sent.node_id
        elif choice == "electionProposal":
            candidate = node.node_id
        else:
            return
        assert self.reported_votes.setdefault((node.node_id, term), candidate) == candidate, "two votes in one term"

    def elected(self, node: ElectionNode, term: int) -> None:
        assert self.leaders.setdefault(term, node.node_id) == node.node_id, f"two leaders of term {term}"
        assert node.log[:len(self.committed)] == self.committed, "a leader lacks committed entries"
        self.append(node)

    def append(self, node: ElectionNode) -> None:
        """Append an entry as the leader, and send the log to all nodes."""
        if node.elector is None or node.paused or node.elector.state is not ElectionState.LEADER:
            return
        term = node.elector.term
        node.log = [*node.log, (term, sum(lsn[0] == term for lsn in node.log) + 1)]
        node.holders = {node.node_id}
        if node.elector.has_quorum(node.holders):
            self.committed = node.log
        for other in self.nodes.values():
            if other is not node:
                self.send(node.node_id, other.node_id,
                          lambda other=other, log=node.log: self.store_log(other, node, term, log))  # type: ignore[misc]

    def store_log(self, node: ElectionNode, leader: ElectionNode, term: int, log: list[Lsn]) -> None:
        """Store the log of the leader at a follower that knows it, and acknowledge it."""
        elector = node.elector
        if elector is None or node.paused or (elector.term, elector.leader) != (term, leader.node_id):
            return
        if log[-1] >= (node.log[-1] if node.log else (0, 0)):
            assert log[:len(self.committed)] == self.committed[:len(log)], "committed entries are overwritten"
            node.log = log
            self.send(node.node_id, leader.node_id, lambda: self.on_stored(leader, node.node_id, term, log))

    def on_stored(self, leader: ElectionNode, number: int, term: int, log: list[Lsn]) -> None:
        elector = leader.elector
        if elector is None or leader.log is not log or (elector.state, elector.term) != (ElectionState.LEADER, term):
            return
        leader.holders.add(number)
        if elector.has_quorum(leader.holders) and len(log) > len(self.committed):
            assert log[:len(self.committed)] == self.committed
            self.committed = log
        if elector.has_quorum(leader.holders):
            for each in leader.holders:
                if self.nodes[each].storage == elector.electorate.storage(each):
                    self.register(self.nodes[each])

    def register(self, node: ElectionNode) -> None:
        """Register the storage of a node that has the whole log in the list of all nodes."""
        node.storage = MemberStorage(node.storage.incarnation)
        nodes = [replace(each, incarnation=node.storage.incarnation) if each.node_id == node.node_id else each
                 for each in self.members.nodes]
        self.members = replace(self.members, nodes=nodes)
        for each in self.nodes.values():
            if each.elector is not None:
                each.elector.electorate.set_lists([self.members])

    @property
    def leader(self) -> ElectionNode | None:
        """Return the leader that all nodes follow; None if there is none."""
        leaders = [node for node in self.nodes.values()
                   if node.elector is not None and node.elector.state is ElectionState.LEADER]
        if len(leaders) != 1:
            return None
        found = leaders[0]
        assert found.elector is not None
        wanted = (found.node_id, found.elector.term)
        views = {(node.elector.leader, node.elector.term) for node in self.nodes.values() if node.elector is not None}
        return found if views == {wanted} else None
