"""Judge of elections.

E1  At most one node leads in a term.
E2  A node votes for at most one candidate in a term, and its vote is durable before it is sent.
E3  The durable term of a node never decreases.
E4  A node starts an election only after a majority has granted its scouting request for that term.
E5  A leader gives up when it has received nothing from a majority for `CampaignWorld.inactivity` seconds.
E6  No member of a cluster of several nodes serves alone.

One of the judges that `play.py` creates (`judges.py` has the interface). It checks the outputs of
`bmqtwist/cluster/elector.py`.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf

from bmqtwist.cluster.election_events import ElectionInput, ElectionOutput, ElectionState, Received, Start
from bmqtwist.cluster.log_events import Input, Output, Send
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.judges import Judge, Loss, Violation, durable_vote
from sim.campaign.world import CampaignWorld

ROUNDING_S = 1e-3


class ElectionJudge(Judge):
    """Checks E1 to E6 from the messages that electors send and receive, and from the vote files."""

    def __init__(self, world: CampaignWorld) -> None:
        super().__init__(world)
        self.leaders: dict[int, str] = {}  # term -> name of its leader
        self._votes: dict[tuple[str, int], int] = {}  # (node, term) -> id of the candidate that got its vote
        self._durable: dict[str, int] = {}  # node -> highest term that was found on its disk
        self._scouting: dict[str, tuple[int, set[int]]] = {}  # node -> term of its scouting, ids of nodes that granted it
        self._received_at: dict[str, dict[int, float]] = defaultdict(dict)  # node -> sender -> time of its last message
        self._leading: dict[str, SimulatedNode] = {}  # by name
        self._supported_until: dict[str, float] = {}  # leader -> time until which E5 holds if nothing changes

    def on_boot(self, node: SimulatedNode) -> None:
        elector = node.broker.clusters[CLUSTER].leadership.elector
        self._received_at[node.name] = {}
        self._leading.pop(node.name, None)
        self._scouting.pop(node.name, None)
        if not elector.other_nodes and self.world.schedule.size > 1:
            raise Violation("E6", f"{node.name} serves alone, without the other {self.world.schedule.size - 1} nodes")
        waits = elector.state is ElectionState.DORMANT and len(self.world.machines) > 1  # with a wrong list of nodes
        if not waits and elector.term < self._durable.get(node.name, 0):
            raise Violation("E3", f"{node.name} restarts in term {elector.term} after term {self._durable[node.name]}")

    def on_storage_lost(self, node: SimulatedNode, lost: Loss) -> None:
        """Discard the durable term of the node and its votes: it may vote again, and such a vote only completes a quorum."""
        if not (lost.vote or lost.metadata):
            return
        self._leading.pop(node.name, None)
        self._durable.pop(node.name, None)
        for key in [key for key in self._votes if key[0] == node.name]:
            del self._votes[key]

    def on_log_step(self, node: SimulatedNode, event: Input, outputs: list[Output]) -> None:
        """Check E5 again: the voters may have changed."""
        self._supported_until.pop(node.name, None)

    def on_elector_step(self, node: SimulatedNode, now: float, event: ElectionInput,
                        outputs: list[ElectionOutput]) -> None:
        self._supported_until.pop(node.name, None)
        elector = node.broker.clusters[CLUSTER].leadership.elector
        if not elector.other_nodes:
            return
        if isinstance(event, Start):
            self._received_at[node.name] = {}
        elif isinstance(event, Received):
            self._received_at[node.name][event.sender] = now
            if event.message.choice == "scoutingResponse" and event.message.value.will_vote and node.name in self._scouting:
                self._scouting[node.name][1].add(event.sender)
        for output in outputs:
            if isinstance(output, Send):
                self._check_sent(node, elector.node_id, output)
        if elector.state is not ElectionState.LEADER:
            self._leading.pop(node.name, None)
        elif node.name not in self._leading:
            self._leading[node.name] = node
            self._check_leader(node, elector.term)

    def _check_leader(self, node: SimulatedNode, term: int) -> None:
        self.world.counts["elected"] += 1
        if self.leaders.setdefault(term, node.name) != node.name:
            raise Violation("E1", f"{self.leaders[term]} and {node.name} lead in term {term}")

    def _check_sent(self, node: SimulatedNode, own_id: int, sent: Send) -> None:
        choice, term, value = sent.message.choice, sent.message.term, sent.message.value
        if choice == "scoutingRequest":
            if self._scouting.get(node.name, (0, set()))[0] != term:
                self._scouting[node.name] = term, {own_id}
        elif choice == "electionProposal":
            self._check_scouting(node, term)
            self._check_vote(node, term, own_id)
        elif choice == "electionResponse" and value.refused_for is None and self.leaders.get(term) != f"n{sent.node_id}":
            self._check_vote(node, term, sent.node_id)

    def _check_scouting(self, node: SimulatedNode, term: int) -> None:
        scouted, granted = self._scouting.get(node.name, (0, set()))
        voters = self.world.voters_at(node)
        if scouted != term or sum(f"n{each}" in voters for each in granted) < len(voters) // 2 + 1:
            raise Violation("E4", f"{node.name} starts an election for term {term}; its scouting for term {scouted} was "
                                  f"granted by {sorted(granted)}")

    def _check_vote(self, node: SimulatedNode, term: int, candidate: int) -> None:
        self.world.counts["votes"] += 1
        if self._votes.setdefault((node.name, term), candidate) != candidate:
            raise Violation("E2", f"{node.name} votes in term {term} for {self._votes[node.name, term]} and {candidate}")
        (durable, vote), _ = durable_vote(node)
        if durable < term or durable == term and vote != candidate:
            raise Violation("E2", f"{node.name} votes for {candidate} in term {term}, but only term {durable} with a vote "
                                  f"for {vote} is durable")
        if durable < self._durable.get(node.name, 0):
            raise Violation("E3", f"{node.name} has written term {durable} after term {self._durable[node.name]}")
        self._durable[node.name] = durable

    def check_after_event(self) -> None:
        world = self.world
        for node in self._leading.values():
            if node.local_now <= self._supported_until.get(node.name, 0.0) or not node.up or node.paused:
                continue
            voters = world.voters_at(node)
            needed = len(voters) // 2 + 1 - (node.name in voters)
            received = sorted((moment for number, moment in self._received_at[node.name].items() if f"n{number}" in voters),
                              reverse=True)
            until = inf if needed <= 0 else received[needed - 1] + world.inactivity + ROUNDING_S if len(
                received) >= needed else 0.0
            if node.local_now <= until:
                self._supported_until[node.name] = until
                continue
            deadline = node.next_deadline()
            if deadline is None or deadline > world.now:  # else its timer, which is due now, will end the leadership
                raise Violation("E5", f"{node.name} leads, but has received its last messages at {received}, "
                                      f"{world.inactivity} s before {node.local_now} or earlier")
