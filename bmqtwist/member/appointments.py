"""Appointment of primaries by the leader of a cluster of several nodes.

A partition gets another primary when its primary disconnects, declines, or does not become active within `maxTimeMaster`. A
stopping node declines by itself. An administrator may move one partition, or spread all partitions evenly, one move at a
time; with `rebalance` the leader does so whenever a node has become available. The object is active only at the leader.
Called by `replication.py` when nodes connect, disconnect or decline a lease, and by the admin commands; the choice itself
(`successor_of`, `next_move`) is in `cluster/changes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bmqtwist import alarms
from bmqtwist.cluster.changes import AssignPartitions, Move, PrimaryRules, next_move, successor_of
from bmqtwist.cluster.election_events import ElectionState
from bmqtwist.cluster.log_events import Outcome
from bmqtwist.cluster.state import Primary
from bmqtwist.loop.loop import Loop
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.storage.psn import Psn
from bmqtwist.wire.cluster_schema import Decline, NodeStatus, Yield

CHECK_PERIOD_S = 1.0  # interval of the checks of passive primaries and of moves
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
    `ask_to_yield(node, partition, wanted)`: ask a primary to hand its partition over."""

    def __init__(self, statuses: NodeStatuses, loop: Loop, rules: AppointmentRules,
                 is_active: Callable[[int, Primary], bool], ask_to_yield: Callable[[int, int, Yield], None]) -> None:
        self.name, self.node_id = statuses.name, statuses.node_id
        self._statuses, self._loop, self._rules = statuses, loop, rules
        self._is_active, self._ask_to_yield = is_active, ask_to_yield
        self.leadership: Leadership
        self._passive: dict[int, tuple[Primary, float]] = {}  # partition -> primary, since when it is passive
        self._moving: tuple[Move, Primary, float] | None = None  # the move, former primary, timeout
        self._unmovable: set[int] = set()  # partitions whose last move failed, until the next rebalancing
        self._rebalancing = False
        self._available: frozenset[int] = frozenset()

    def start(self, now: float) -> None:
        """Start the periodic checks."""
        self._loop.timers.every(now, CHECK_PERIOD_S, self._check_passive)

    # -- events -------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Replace primaries that are gone, after a change of a node's status, of the leader or of a primary."""
        before, self._available = self._available, frozenset(self._prefer_available(self._candidates()))
        if not self._leads:
            self._moving, self._rebalancing = None, False
            return
        connected = self._connected()
        if connected and any(primary.node_id not in connected for primary in self._proposed_primaries.values()):
            self._propose(AssignPartitions(self._prefer_available(self._candidates()), connected), now)
        if self._rules.rebalance and self._available - before:
            self._begin_rebalancing()
        self._continue_moves(now)

    def on_declined(self, sender: int, index: int, declined: Decline, now: float) -> None:
        """Appoint another primary after a node has declined its lease."""
        if self._leads and self._proposed_primaries.get(index) == Primary(sender, declined.lease):
            up = self._candidates() or [self.node_id]
            candidates = [node_id for node_id in up if declined.able or node_id != sender] or up
            wanted = [declined.successor] if declined.successor and declined.successor in up else []
            chosen = wanted or self._prefer_available(candidates)
            self._propose(AssignPartitions(chosen, self._connected(), {index: declined.used}), now)

    def primaries(self, partitions: int, spent: Mapping[int, int]) -> PrimaryRules:
        """Return the primaries that this node appoints as a new leader: connected nodes keep their partitions.
        `spent`: leases that this node cannot use."""
        return PrimaryRules(partitions, self._prefer_available(self._candidates()) or [self.node_id],
                            self._connected(), spent)

    def _check_passive(self, now: float) -> None:
        """Replace primaries that have not become active in time; end a move after its timeout."""
        if not self._leads:
            self._passive.clear()
            return
        for index, primary in self._proposed_primaries.items():
            if self._is_active(index, primary) or not self._rules.passive_seconds_max:
                self._passive.pop(index, None)
            elif self._passive.get(index, (None, 0.0))[0] != primary:
                self._passive[index] = primary, now
            elif now - self._passive[index][1] >= self._rules.passive_seconds_max:
                del self._passive[index]
                self._replace(index, primary, now)
        self._continue_moves(now)

    def _replace(self, index: int, primary: Primary, now: float) -> None:
        others = [node_id for node_id in self._candidates() if node_id != primary.node_id]
        text = (f"Cluster ({self.name}) Partition [{index}]: node {primary.node_id} has been its primary for "
                f"{self._rules.passive_seconds_max:g} s and is not active")
        self._loop.report.alarm(alarms.PRIMARY_NOT_ACTIVE, "%s", text)
        if others:
            self._propose(AssignPartitions(self._prefer_available(others), self._connected(), {index: primary.lease}), now)

    # -- moves --------------------------------------------------------------------------------------------------------

    def move(self, index: int, node_id: int) -> str:
        """Move a partition to another node; return the reason if it is refused."""
        if not self._leads:
            return self._not_leader_reason
        self._continue_moves(self._loop.now)
        primary = self._proposed_primaries.get(index)
        if primary is None or not self._is_active(index, primary):
            return f"Partition [{index}] has no active primary"
        if primary.node_id == node_id:
            return f"node {node_id} is primary of Partition [{index}]"
        if node_id not in self._candidates() or self._statuses.status_of(node_id) is not NodeStatus.E_AVAILABLE:
            return f"node {node_id} is not available"
        if self._moving is not None:
            return f"Partition [{self._moving[0].partition_id}] is being moved to node {self._moving[0].node_id}"
        self._begin_move(Move(index, node_id), primary)
        return ""

    def rebalance(self) -> str:
        """Spread partitions evenly; return the reason if it is refused."""
        if not self._leads:
            return self._not_leader_reason
        self._begin_rebalancing()
        self._continue_moves(self._loop.now)
        return ""

    def _begin_rebalancing(self) -> None:
        self._rebalancing, self._unmovable = True, set()

    def _begin_move(self, move: Move, primary: Primary) -> None:
        self._moving = move, primary, self._loop.now + MOVE_SECONDS_MAX
        self._loop.report.info(f"Cluster ({self.name}) Partition [{move.partition_id}]: moves from node {primary.node_id} "
                               f"to node {move.node_id}")
        self._loop.report.record_event(
            "primary", f"Partition [{move.partition_id}] moves from node {primary.node_id} to node {move.node_id}",
            cluster=self.name, partition=move.partition_id, to=move.node_id)
        self._ask_to_yield(primary.node_id, move.partition_id, Yield(primary.lease, move.node_id))

    def _continue_moves(self, now: float) -> None:
        """Begin the next move when the previous one is complete."""
        if self._moving is not None:
            move, primary, until = self._moving
            known = self._proposed_primaries[move.partition_id]
            if now < until and (known == primary or not self._is_active(move.partition_id, known)):
                return
            if known.node_id != move.node_id:
                self._unmovable.add(move.partition_id)
                self._loop.report.warn(f"Cluster ({self.name}) Partition [{move.partition_id}]: did not move to node "
                                       f"{move.node_id}")
                self._loop.report.record_event(
                    "primary", f"Partition [{move.partition_id}] did not move to node {move.node_id}", cluster=self.name,
                    partition=move.partition_id)
            self._moving = None
        if not self._rebalancing:
            return
        primaries = self._proposed_primaries
        passive = {index for index, primary in primaries.items() if not self._is_active(index, primary)}
        available = [each for each in self._candidates() if self._statuses.status_of(each) is NodeStatus.E_AVAILABLE]
        found = next_move(primaries, available, self._rules.algorithm, self.node_id, self._unmovable | passive)
        if found is not None:
            self._begin_move(found, primaries[found.partition_id])
        elif not passive:
            self._rebalancing = False
            self._loop.report.info(f"Cluster ({self.name}): partitions are spread evenly over the nodes that are available")

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _connected(self) -> list[int]:
        """Return the nodes that keep their partitions until they decline: all connected ones, also stopping ones."""
        return [node_id for node_id in self._statuses.members if node_id == self.node_id
                or self._statuses.status_of(node_id) is not NodeStatus.E_UNAVAILABLE]

    def _candidates(self) -> list[int]:
        """Return the nodes that are connected and not stopping."""
        statuses = self._statuses
        return [node_id for node_id in statuses.members if (
            statuses.is_staying(node_id) if node_id != self.node_id else not statuses.is_stopping)]

    def _prefer_available(self, nodes: list[int]) -> list[int]:
        """Return the available nodes of `nodes`, or all of them if none is available."""
        return [node_id for node_id in nodes if self._statuses.status_of(node_id) is NodeStatus.E_AVAILABLE] or nodes

    def successor(self) -> int | None:
        """Return the node that becomes leader when this node stops."""
        return next(iter(self._prefer_available(self._candidates())), None)

    def successor_of(self, durable: Mapping[int, Psn]) -> int | None:
        """Return the next primary of a partition of this node; `durable`: the last durable record of each node."""
        candidates = [node_id for node_id in self._prefer_available(self._candidates()) if node_id != self.node_id]
        return successor_of(self.leadership.metadata.state.partitions, candidates, durable, self._rules.algorithm,
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
    def _not_leader_reason(self) -> str:
        leader = self.leadership.standing.leader
        return "no node leads the cluster" if leader is None else f"node {leader} leads the cluster: run the command there"

    @property
    def _proposed_primaries(self) -> dict[int, Primary]:
        return self.leadership.metadata.log.head.partitions

    def _propose(self, change: AssignPartitions, now: float) -> None:
        self.leadership.metadata.propose(change, self._ignore_outcome, self._loop.wall(now))
        self._loop.performer.request_turn()

    def _ignore_outcome(self, outcome: Outcome, wall: int) -> None:
        """Do nothing: a committed change is applied from the log, and a later check repeats a failed one."""
