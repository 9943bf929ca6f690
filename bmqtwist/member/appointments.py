"""Appointment of primaries by the leader of a cluster of several nodes.

A partition gets another primary when its primary disconnects, declines, or does not become active within `maxTimeMaster`. A
stopping node declines by itself. An administrator may move one partition, or spread all partitions evenly, one move at a
time; with `rebalance` the leader does so whenever a node has become available. The object is active only at the leader.
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

WATCH_PERIOD_S = 1.0  # interval of the checks of passive primaries and of moves
MOVE_SECONDS_MAX = 60.0  # timeout of a move


@dataclass(frozen=True, slots=True)
class AppointmentRules:
    """Configuration of appointments. `passive_seconds_max`: longest time until an appointed primary is active, 0 = no limit;
    `rebalance`: spread partitions evenly whenever a node has become available."""

    algorithm: str
    passive_seconds_max: float
    rebalance: bool


class Appointments:
    """Appointments of one cluster. `is_active(partition, primary)`: True if the primary reports itself active;
    `ask(node, partition, wanted)`: ask a primary to hand its partition over."""

    def __init__(self, statuses: NodeStatuses, loop: Loop, rules: AppointmentRules,
                 is_active: Callable[[int, Primary], bool], ask: Callable[[int, int, Yield], None]) -> None:
        self.name, self.node_id = statuses.name, statuses.node_id
        self._statuses, self._loop, self._rules = statuses, loop, rules
        self._is_active, self._ask = is_active, ask
        self.leadership: Leadership
        self._passive: dict[int, tuple[Primary, float]] = {}  # partition -> primary, since when it is passive
        self._moving: tuple[Move, Primary, float] | None = None  # the move, former primary, timeout
        self._staying: set[int] = set()  # partitions whose last move failed
        self._rebalancing = False
        self._available: frozenset[int] = frozenset()

    def start(self, now: float) -> None:
        """Start the periodic checks."""
        self._loop.timers.every(now, WATCH_PERIOD_S, self._watch)

    # -- events -------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Replace primaries that are gone, after a change of a node's status, of the leader or of a primary."""
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
        """Appoint another primary after a node has declined its lease."""
        if self._leads and self._head.get(index) == Primary(sender, declined.lease):
            up = self._alive() or [self.node_id]
            candidates = [node_id for node_id in up if declined.able or node_id != sender] or up
            chosen = [declined.successor] if declined.successor and declined.successor in up else self._fit(candidates)
            self._propose(AssignPartitions(chosen, self._here(), {index: declined.used}), now)

    def primaries(self, partitions: int, spent: Mapping[int, int]) -> Primaries:
        """Return the primaries that this node appoints as a new leader: connected nodes keep their partitions.
        `spent`: leases that this node cannot use."""
        return Primaries(partitions, self._fit(self._alive()) or [self.node_id], self._here(), spent)

    def _watch(self, now: float) -> None:
        """Replace primaries that have not become active in time; end a move after its timeout."""
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
        self._loop.report.alarm("CLUSTER", "%s", text)
        if others:
            self._propose(AssignPartitions(self._fit(others), self._here(), {index: primary.lease}), now)

    # -- moves --------------------------------------------------------------------------------------------------------

    def move(self, index: int, node_id: int) -> str:
        """Move a partition to another node; return the reason if it is refused."""
        if not self._leads:
            return self._leader_is_elsewhere
        self._go_on(self._loop.now)
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
        """Spread partitions evenly; return the reason if it is refused."""
        if not self._leads:
            return self._leader_is_elsewhere
        self._begin_rebalancing()
        self._go_on(self._loop.now)
        return ""

    def _begin_rebalancing(self) -> None:
        self._rebalancing, self._staying = True, set()

    def _begin(self, move: Move, primary: Primary) -> None:
        self._moving = move, primary, self._loop.now + MOVE_SECONDS_MAX
        self._loop.report.info(f"Cluster ({self.name}) Partition [{move.partition_id}]: moves from node {primary.node_id} "
                               f"to node {move.node_id}")
        self._loop.report.note("primary", f"Partition [{move.partition_id}] moves from node {primary.node_id} to node "
                                          f"{move.node_id}", cluster=self.name, partition=move.partition_id, to=move.node_id)
        self._ask(primary.node_id, move.partition_id, Yield(primary.lease, move.node_id))

    def _go_on(self, now: float) -> None:
        """Begin the next move when the previous one is complete."""
        if self._moving is not None:
            move, primary, until = self._moving
            known = self._head[move.partition_id]
            if now < until and (known == primary or not self._is_active(move.partition_id, known)):
                return
            if known.node_id != move.node_id:
                self._staying.add(move.partition_id)
                self._loop.report.warn(f"Cluster ({self.name}) Partition [{move.partition_id}]: did not move to node "
                                       f"{move.node_id}")
                self._loop.report.note("primary", f"Partition [{move.partition_id}] did not move to node {move.node_id}",
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
            self._loop.report.info(f"Cluster ({self.name}): partitions are spread evenly over the nodes that are available")

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _here(self) -> list[int]:
        """The nodes that keep their partitions until they decline: all that are connected, also stopping ones."""
        return [node_id for node_id in self._statuses.members if node_id == self.node_id
                or self._statuses.status(node_id) is not NodeStatus.E_UNAVAILABLE]

    def _alive(self) -> list[int]:
        """The nodes that are connected and not stopping."""
        statuses = self._statuses
        return [node_id for node_id in statuses.members if (
            statuses.stays(node_id) if node_id != self.node_id else not statuses.is_stopping)]

    def _fit(self, up: list[int]) -> list[int]:
        """The available nodes of `up`, or all of them if none is available."""
        return [node_id for node_id in up if self._statuses.status(node_id) is NodeStatus.E_AVAILABLE] or up

    def successor(self) -> int | None:
        """Return the node that becomes leader when this node stops."""
        return next(iter(self._fit(self._alive())), None)

    def successor_of(self, safe: Mapping[int, Psn]) -> int | None:
        """Return the next primary of a partition of this node; `safe`: the last durable record of each node."""
        candidates = [node_id for node_id in self._fit(self._alive()) if node_id != self.node_id]
        return successor_of(self.leadership.metadata.state.partitions, candidates, safe, self._rules.algorithm,
                            self.leadership.standing.leader)

    @property
    def algorithm(self) -> str:
        """The algorithm that chooses primaries."""
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
        self.leadership.metadata.propose(change, self._proposed, self._loop.wall(now))
        self._loop.performer.turn_due()

    def _proposed(self, outcome: Outcome, wall: int) -> None:
        """Ignore the outcome: a committed change is applied by itself, a failed one is proposed again."""
