"""Who is primary of which partition, as far as the leader of a cluster of several nodes decides it.

A partition gets another primary when the node that has it is gone, when it declines, or when it does not become active for
`maxTimeMaster`. A node that stops declines by itself. An administrator may move a partition, or have all of them spread
evenly, one at a time; with `rebalance` that happens whenever a node has become available.

Every node has this object; it does something while its node leads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bmqtwist.cluster.changes import AssignPartitions, Move, Primaries, next_move, successor_of
from bmqtwist.cluster.election_events import ElectionState
from bmqtwist.cluster.log_events import Outcome
from bmqtwist.cluster.state import Primary
from bmqtwist.loop.loop import Loop
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.storage.psn import Psn
from bmqtwist.wire.cluster_schema import Decline, NodeStatus, Yield

WATCH_PERIOD_S = 1.0  # how often primaries that are not active are looked at, and moves that are under way
MOVE_SECONDS_MAX = 60.0  # a move that takes longer is forgotten


@dataclass(frozen=True, slots=True)
class AppointmentRules:
    """As configured. `passive_seconds_max`: a primary may be appointed for so long without being active, 0 = for ever;
    `rebalance`: partitions are spread evenly whenever a node has become available."""

    algorithm: str
    passive_seconds_max: float
    rebalance: bool


class Appointments:
    """See above. `is_active(partition, primary)`: whether a primary has said that it is; `ask(node, partition, wanted)`: a
    primary is to give its partition away."""

    def __init__(self, statuses: NodeStatuses, host: Loop, rules: AppointmentRules,
                 is_active: Callable[[int, Primary], bool], ask: Callable[[int, int, Yield], None]) -> None:
        self.name, self.node_id = statuses.name, statuses.node_id
        self._statuses, self._host, self._rules = statuses, host, rules
        self._is_active, self._ask = is_active, ask
        self.leadership: Leadership
        self._passive: dict[int, tuple[Primary, float]] = {}  # partition -> its primary, and since when it is not active
        self._moving: tuple[Move, Primary, float] | None = None  # a move, from whom, and until when it is waited for
        self._staying: set[int] = set()  # partitions that did not move when they were to
        self._rebalancing = False
        self._available: frozenset[int] = frozenset()

    def start(self, now: float) -> None:
        """The node runs."""
        self._host.timers.every(now, WATCH_PERIOD_S, self._watch)

    # -- what happens -------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """A node is different now, a leader or a primary is new: partitions whose primary is gone get another one."""
        before, self._available = self._available, frozenset(self._fit(self._alive()))
        if not self._leads:
            self._moving, self._rebalancing = None, False
            return
        here = self._here()
        if here and any(primary.node_id not in here for primary in self._head.values()):
            self._propose(AssignPartitions(self._fit(self._alive()), here), now)
        if self._rules.rebalance and self._available - before:
            self._begin_rebalancing()
        self._go_on(now)

    def declined(self, sender: int, index: int, declined: Decline, now: float) -> None:
        """A node cannot be primary under the lease that it was given, or gives it away."""
        if self._leads and self._head.get(index) == Primary(sender, declined.lease):
            up = self._alive() or [self.node_id]
            candidates = [node_id for node_id in up if declined.able or node_id != sender] or up
            chosen = [declined.successor] if declined.successor and declined.successor in up else self._fit(candidates)
            self._propose(AssignPartitions(chosen, self._here(), {index: declined.used}), now)

    def primaries(self, partitions: int, spent: Mapping[int, int]) -> Primaries:
        """What this node begins with as a leader: who is connected stays primary of what it is primary of. `spent`: leases
        that this node cannot use."""
        return Primaries(partitions, self._fit(self._alive()) or [self.node_id], self._here(), spent)

    def _watch(self, now: float) -> None:
        """Replace primaries that have not become active in time; forget a move that has come to nothing."""
        if not self._leads:
            self._passive.clear()
            return
        for index, primary in self._head.items():
            if self._is_active(index, primary) or not self._rules.passive_seconds_max:
                self._passive.pop(index, None)
            elif self._passive.get(index, (None, 0.0))[0] != primary:
                self._passive[index] = primary, now
            elif now - self._passive[index][1] >= self._rules.passive_seconds_max:
                del self._passive[index]
                self._replace(index, primary, now)
        self._go_on(now)

    def _replace(self, index: int, primary: Primary, now: float) -> None:
        others = [node_id for node_id in self._alive() if node_id != primary.node_id]
        text = (f"Cluster ({self.name}) Partition [{index}]: node {primary.node_id} has been its primary for "
                f"{self._rules.passive_seconds_max:g} s and is not active")
        self._host.report.alarm("CLUSTER", "%s", text)
        if others:
            self._propose(AssignPartitions(self._fit(others), self._here(), {index: primary.lease}), now)

    # -- moves --------------------------------------------------------------------------------------------------------

    def move(self, index: int, node_id: int) -> str:
        """Another node is to be primary of a partition; why that cannot be, if it cannot."""
        if not self._leads:
            return self._leader_is_elsewhere
        self._go_on(self._host.now)
        primary = self._head.get(index)
        if primary is None or not self._is_active(index, primary):
            return f"Partition [{index}] has no active primary"
        if primary.node_id == node_id:
            return f"node {node_id} is primary of Partition [{index}]"
        if node_id not in self._alive() or self._statuses.status(node_id) is not NodeStatus.E_AVAILABLE:
            return f"node {node_id} is not available"
        if self._moving is not None:
            return f"Partition [{self._moving[0].partition_id}] is being moved to node {self._moving[0].node_id}"
        self._begin(Move(index, node_id), primary)
        return ""

    def rebalance(self) -> str:
        """Partitions are to be spread evenly; why that cannot be, if it cannot."""
        if not self._leads:
            return self._leader_is_elsewhere
        self._begin_rebalancing()
        self._go_on(self._host.now)
        return ""

    def _begin_rebalancing(self) -> None:
        self._rebalancing, self._staying = True, set()

    def _begin(self, move: Move, primary: Primary) -> None:
        self._moving = move, primary, self._host.now + MOVE_SECONDS_MAX
        self._host.report.info(f"Cluster ({self.name}) Partition [{move.partition_id}]: moves from node {primary.node_id} "
                               f"to node {move.node_id}")
        self._host.report.note("primary", f"Partition [{move.partition_id}] moves from node {primary.node_id} to node "
                                          f"{move.node_id}", cluster=self.name, partition=move.partition_id, to=move.node_id)
        self._ask(primary.node_id, move.partition_id, Yield(primary.lease, move.node_id))

    def _go_on(self, now: float) -> None:
        """The next move, when the one before is over."""
        if self._moving is not None:
            move, primary, until = self._moving
            known = self._head[move.partition_id]
            if now < until and (known == primary or not self._is_active(move.partition_id, known)):
                return
            if known.node_id != move.node_id:
                self._staying.add(move.partition_id)
                self._host.report.warn(f"Cluster ({self.name}) Partition [{move.partition_id}]: did not move to node "
                                       f"{move.node_id}")
                self._host.report.note("primary", f"Partition [{move.partition_id}] did not move to node {move.node_id}",
                                       cluster=self.name, partition=move.partition_id)
            self._moving = None
        if not self._rebalancing:
            return
        passive = {index for index, primary in self._head.items() if not self._is_active(index, primary)}
        available = [each for each in self._alive() if self._statuses.status(each) is NodeStatus.E_AVAILABLE]
        found = next_move(self._head, available, self._rules.algorithm, self.node_id, self._staying | passive)
        if found is not None:
            self._begin(found, self._head[found.partition_id])
        elif not passive:
            self._rebalancing = False
            self._host.report.info(f"Cluster ({self.name}): partitions are spread evenly over the nodes that are available")

    # -- who may be chosen --------------------------------------------------------------------------------------------

    def _here(self) -> list[int]:
        """Who keeps what it is primary of, until it declines: also a node that stops."""
        return [node_id for node_id in self._statuses.members if node_id == self.node_id
                or self._statuses.status(node_id) is not NodeStatus.E_UNAVAILABLE]

    def _alive(self) -> list[int]:
        """Who is here, and stays."""
        statuses = self._statuses
        return [node_id for node_id in statuses.members if (
            statuses.stays(node_id) if node_id != self.node_id else not statuses.is_stopping)]

    def _fit(self, up: list[int]) -> list[int]:
        """Those that lack nothing, if there are any."""
        return [node_id for node_id in up if self._statuses.status(node_id) is NodeStatus.E_AVAILABLE] or up

    def successor(self) -> int | None:
        """Who is to lead instead of this node."""
        return next(iter(self._fit(self._alive())), None)

    def successor_of(self, safe: Mapping[int, Psn]) -> int | None:
        """Who is to be primary of a partition instead of this node; `safe`: how much of it each node has."""
        candidates = [node_id for node_id in self._fit(self._alive()) if node_id != self.node_id]
        return successor_of(self.leadership.metadata.state.partitions, candidates, safe, self._rules.algorithm,
                            self.leadership.standing.leader)

    @property
    def algorithm(self) -> str:
        """By which primaries are chosen."""
        return self._rules.algorithm

    # -- the metadata -------------------------------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        return self.leadership.elector.state is ElectionState.LEADER and self.leadership.active

    @property
    def _leader_is_elsewhere(self) -> str:
        leader = self.leadership.standing.leader
        return "no node leads the cluster" if leader is None else f"node {leader} leads the cluster: run the command there"

    @property
    def _head(self) -> dict[int, Primary]:
        return self.leadership.metadata.log.head.partitions

    def _propose(self, change: AssignPartitions, now: float) -> None:
        self.leadership.metadata.propose(change, self._proposed, self._host.wall(now))
        self._host.performer.turn_due()

    def _proposed(self, outcome: Outcome, wall: int) -> None:
        """Who is primary is told by the change itself; one that failed is proposed again by who lacks it."""
