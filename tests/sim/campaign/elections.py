"""Elections: E1 one leader in a term, E2 one vote, E3 terms that stay, E4 terms that are wanted, E5 no leader unheard."""

from __future__ import annotations

from collections import defaultdict

from bmqtwist.cluster.election_events import ElectionInput, ElectionOutput, ElectionState, Received, Start
from bmqtwist.cluster.log_events import Send
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.judges import Judge, Violation, durable_vote
from sim.campaign.world import CampaignWorld

ROUNDING_S = 1e-3


class ElectionJudge(Judge):
    """See above."""

    def __init__(self, world: CampaignWorld) -> None:
        super().__init__(world)
        self.leaders: dict[int, str] = {}  # term -> who led it
        self._votes: dict[tuple[str, int], int] = {}  # (node, term) -> for whom it said that it votes
        self._durable: dict[str, int] = {}  # node -> the highest term that was seen on its disk
        self._willing: dict[str, tuple[int, set[int]]] = {}  # node -> the term it asks for, and who would vote for it
        self._heard: dict[str, dict[int, float]] = defaultdict(dict)  # node -> node -> when it was heard last
        self._leading: dict[str, SimulatedNode] = {}  # by name

    def booted(self, node: SimulatedNode) -> None:
        elector = node.broker.clusters[CLUSTER].leadership.elector
        self._heard[node.name] = {}
        self._leading.pop(node.name, None)
        self._willing.pop(node.name, None)
        if elector.term < self._durable.get(node.name, 0):
            raise Violation("E3", f"{node.name} is in term {elector.term}, and was in {self._durable[node.name]}")

    def damaged(self, node: SimulatedNode) -> None:
        """It forgets its term; how often it asked others to vote for it in vain is of no account any more."""
        self._durable.pop(node.name, None)
        number = int(node.name[1:])
        for key in [key for key, vote in self._votes.items() if key[0] == node.name and vote == number]:
            if self.leaders.get(key[1]) != node.name:
                del self._votes[key]

    def elector_stepped(self, node: SimulatedNode, now: float, event: ElectionInput,
                        outputs: list[ElectionOutput]) -> None:
        elector = node.broker.clusters[CLUSTER].leadership.elector
        if not elector.others:
            return
        if isinstance(event, Start):
            self._heard[node.name] = {}
        elif isinstance(event, Received):
            self._heard[node.name][event.sender] = now
            if event.message.choice == "scoutingResponse" and event.message.value.will_vote and node.name in self._willing:
                self._willing[node.name][1].add(event.sender)
        for output in outputs:
            if isinstance(output, Send):
                self._told(node, elector.node_id, output)
        if elector.state is not ElectionState.LEADER:
            self._leading.pop(node.name, None)
        elif node.name not in self._leading:
            self._leading[node.name] = node
            self._leads(node, elector.term)

    def _leads(self, node: SimulatedNode, term: int) -> None:
        self.world.counts["elected"] += 1
        if self.leaders.setdefault(term, node.name) != node.name:
            raise Violation("E1", f"{self.leaders[term]} and {node.name} lead term {term}")

    def _told(self, node: SimulatedNode, own_id: int, told: Send) -> None:
        choice, term, value = told.message.choice, told.message.term, told.message.value
        if choice == "scoutingRequest":
            if self._willing.get(node.name, (0, set()))[0] != term:
                self._willing[node.name] = term, {own_id}
        elif choice == "electionProposal":
            self._check_wanted(node, term)
            self._check_vote(node, term, own_id)
        elif choice == "electionResponse" and value.refused_for is None and self.leaders.get(term) != f"n{told.node_id}":
            self._check_vote(node, term, told.node_id)

    def _check_wanted(self, node: SimulatedNode, term: int) -> None:
        asked, willing = self._willing.get(node.name, (0, set()))
        if asked != term or len(willing) < len(self.world.machines) // 2 + 1:
            raise Violation("E4", f"{node.name} begins term {term}, for which {sorted(willing)} would vote (term {asked})")

    def _check_vote(self, node: SimulatedNode, term: int, candidate: int) -> None:
        self.world.counts["votes"] += 1
        if self._votes.setdefault((node.name, term), candidate) != candidate:
            raise Violation("E2", f"{node.name} votes in term {term} for {self._votes[node.name, term]} and {candidate}")
        (durable, vote), _ = durable_vote(node)
        if durable < term or durable == term and vote != candidate:
            raise Violation("E2", f"{node.name} says that it votes for {candidate} in term {term}, but a loss of power "
                                  f"would leave term {durable} with the vote {vote}")
        if durable < self._durable.get(node.name, 0):
            raise Violation("E3", f"{node.name} has written term {durable} behind {self._durable[node.name]}")
        self._durable[node.name] = durable

    def looked(self) -> None:
        world = self.world
        needed = len(world.machines) // 2 if self._leading else 0
        for node in self._leading.values():
            if not needed or not node.up or node.paused:
                continue
            oldest = node.local_now - world.inactivity - ROUNDING_S
            heard = [number for number, moment in self._heard[node.name].items() if moment >= oldest]
            if len(heard) >= needed:
                continue
            deadline = node.next_deadline()
            if deadline is None or deadline > world.now:  # else it is about to notice
                raise Violation("E5", f"{node.name} leads, and has heard {heard} within the last {world.inactivity} s")
