"""Appointment of primaries by the leader of a cluster of several nodes.

A partition gets another primary when its primary disconnects, declines, or does not become active within
`maxTimeMaster`: within PASSIVE_S if the primary reports why it is passive, or reaches no majority, and a node with at
least the same reach can replace it. A stopping node, and one that cannot write, decline by themselves; nodes that
cannot write become primary only if no other node can. An administrator may move one partition, or spread all partitions
evenly, one move at a time; with `rebalance` the leader does so whenever a node has become available. The object is
active only at the leader. Called by `replication.py` when nodes connect, disconnect or decline a lease, and by the
admin commands; the choice itself (`successor_of`, `next_move`) is in `cluster/changes.py`. `config/clusters.py`
declares `maxTimeMaster`, `config/broker.py` `rebalance`.
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
from bmqtwist.member.partition_runner import KnownPrimaries
from bmqtwist.storage.psn import Psn
from bmqtwist.wire.cluster_schema import Decline, NodeStatus, Yield

CHECK_PERIOD_S = 1.0  # interval of the checks of passive primaries and of moves
MOVE_SECONDS_MAX = 60.0  # timeout of a move
ANSWER_SECONDS_MAX = 20.0  # until a command to move a partition is answered
PASSIVE_S = 2.0  # from the report of a passive primary to its replacement
REPLACE_PAUSE_S = 5.0  # between two such replacements in a partition; doubles with each one, up to REPLACE_PAUSE_SECONDS_MAX
REPLACE_PAUSE_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class AppointmentRules:
    """Configuration of appointments. `passive_seconds_max`: longest time until an appointed primary is active, 0 = no limit;
    `rebalance`: spread partitions evenly whenever a node has become available."""

    algorithm: str
    passive_seconds_max: float
    rebalance: bool


@dataclass(slots=True)
class MoveInProgress:
    """A move with its former primary and its timeout. `done(reason)`: its end, "" = it succeeded; `refusal`: the reason why
    the primary refused it."""

    move: Move
    primary: Primary
    until: float
    done: Callable[[str], None]
    refusal: str = ""


class Appointments:
    """Appointments of one cluster. `ask_to_yield(node, partition, wanted)`: ask a primary to hand its partition over."""

    def __init__(self, statuses: NodeStatuses, loop: Loop, rules: AppointmentRules, known: KnownPrimaries,
                 ask_to_yield: Callable[[int, int, Yield], None]) -> None:
        self.name, self.node_id = statuses.name, statuses.node_id
        self._statuses, self._loop, self._rules = statuses, loop, rules
        self._known, self._ask_to_yield = known, ask_to_yield
        self.leadership: Leadership
        self._passive: dict[int, tuple[Primary, float]] = {}  # partition -> primary, since when it is passive
        self._replaced: dict[int, tuple[float, float]] = {}  # partition -> time of the last replacement, pause after it
        self._moving: MoveInProgress | None = None
        self._unmovable: set[int] = set()  # partitions whose last move failed, until the next rebalancing
        self._rebalancing = False
        self._available: frozenset[int] = frozenset()

    def start(self, now: float) -> None:
        """Start the periodic checks."""
        self._loop.timers.every(now, CHECK_PERIOD_S, self._check_passive)

    # -- events -------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Replace primaries that are gone, after a change of a node's status, of the leader or of a primary."""
        before, self._available = self._available, frozenset(self._prefer_fit(self._candidates()))
        if not self._leads:
            moving, self._moving, self._rebalancing = self._moving, None, False
            if moving is not None:
                moving.done(f"{self._not_leader_reason}: the move may not be complete")
            return
        connected = self._connected()
        if connected and any(primary.node_id not in connected for primary in self._proposed_primaries.values()):
            self._propose(AssignPartitions(self._prefer_fit(self._candidates()), connected), now)
        if self._rules.rebalance and self._available - before:
            self._begin_rebalancing()
        self._continue_moves(now)

    def on_declined(self, sender: int, index: int, declined: Decline, now: float) -> None:
        """Appoint another primary after a node has declined its lease."""
        if self._leads and self._proposed_primaries.get(index) == Primary(sender, declined.lease):
            up = self._candidates() or [self.node_id]
            candidates = [node_id for node_id in up if declined.able or node_id != sender] or up
            wanted = [declined.successor] if declined.successor and declined.successor in up else []
            chosen = wanted or self._prefer_fit(candidates)
            self._propose(AssignPartitions(chosen, self._connected(), {index: declined.used}), now)

    def primaries(self, partitions: int, spent: Mapping[int, int]) -> PrimaryRules:
        """Return the primaries that this node appoints as a new leader: connected nodes keep their partitions.
        `spent`: leases that this node cannot use."""
        return PrimaryRules(partitions, self._prefer_fit(self._candidates()) or [self.node_id],
                            self._connected(), spent)

    def _check_passive(self, now: float) -> None:
        """Replace primaries that have not become active in time; end a move after its timeout."""
        if not self._leads:
            self._passive.clear()
            self._replaced.clear()
            return
        limit = self._rules.passive_seconds_max
        for index, primary in self._proposed_primaries.items():
            if self._is_active(index, primary):
                self._passive.pop(index, None)
            elif self._passive.get(index, (None, 0.0))[0] != primary:
                self._passive[index] = primary, now
            elif now - self._passive[index][1] >= PASSIVE_S and self._replace_early(index, primary, now):
                continue
            elif limit and now - self._passive[index][1] >= limit:
                self._loop.report.alarm(
                    alarms.PRIMARY_NOT_ACTIVE, "%s", f"Cluster ({self.name}) Partition [{index}]: node {primary.node_id} "
                    f"has been its primary for {limit:g} s and is not active")
                self._replace(index, primary, self._prefer_fit(self._candidates_but(primary.node_id)), now)
        self._continue_moves(now)

    def _replace_early(self, index: int, primary: Primary, now: float) -> bool:
        """Replace a primary that reports why it is passive, cannot write, or reaches no majority, by the nodes with the most
        connections; return False if no node has a majority and as many connections as the primary, or a pause lasts."""
        statuses, majority = self._statuses, self._statuses.majority
        reach = statuses.reach_of(primary.node_id)
        reason = self._known.obstacle(index, primary) or statuses.unable.get(primary.node_id) or (
            f"it is connected to {reach - 1} of {len(statuses.members) - 1} members" if reach < majority else "")
        fit = self._prefer_fit(self._candidates_but(primary.node_id))
        most = max(map(statuses.reach_of, fit), default=0)
        replaced_at, pause = self._replaced.get(index, (float("-inf"), REPLACE_PAUSE_S / 2))
        if not reason or most < max(reach, majority) or now < replaced_at + pause:
            return False
        self._replaced[index] = now, min(2 * pause, REPLACE_PAUSE_SECONDS_MAX)
        text = f"Partition [{index}]: node {primary.node_id} is replaced as its primary: it is passive: {reason}"
        self._loop.report.warn(f"Cluster ({self.name}) {text}")
        self._loop.report.record_event("primary", text, cluster=self.name, partition=index)
        self._replace(index, primary, [node_id for node_id in fit if statuses.reach_of(node_id) == most], now)
        return True

    def _replace(self, index: int, primary: Primary, candidates: list[int], now: float) -> None:
        del self._passive[index]
        if candidates:
            self._propose(AssignPartitions(candidates, self._connected(), {index: primary.lease}), now)

    # -- moves --------------------------------------------------------------------------------------------------------

    def move(self, index: int, node_id: int, done: Callable[[str], None]) -> None:
        """Move a partition to another node. `done(reason)`: the move is complete (""), or refused, or has failed, or is not
        complete after ANSWER_SECONDS_MAX; called once."""
        refusal, answered = self._refusal_of_move(index, node_id), list[str]()

        def answer(reason: str) -> None:
            if not answered:
                answered.append(reason)
                done(reason)
        if refusal:
            answer(refusal)
            return
        self._begin_move(Move(index, node_id), self._proposed_primaries[index], answer)
        self._loop.call_later(ANSWER_SECONDS_MAX, lambda now: answer(
            f"Partition [{index}] has not moved to node {node_id} within {ANSWER_SECONDS_MAX:g} s. The move continues up "
            f"to {MOVE_SECONDS_MAX - ANSWER_SECONDS_MAX:g} s more: STORAGE PARTITION {index} STORY shows its state"))

    def _refusal_of_move(self, index: int, node_id: int) -> str:
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
        if node_id in self._statuses.unable:
            return f"node {node_id} {self._statuses.unable[node_id]}"
        if self._moving is not None:
            return f"Partition [{self._moving.move.partition_id}] is being moved to node {self._moving.move.node_id}"
        return ""

    def on_move_refused(self, index: int, primary: Primary, reason: str) -> None:
        """Handle the report of a primary that it does not hand its partition over."""
        moving = self._moving
        if moving is not None and moving.move.partition_id == index and moving.primary == primary:
            moving.refusal, moving.until = reason, self._loop.now
            self._continue_moves(self._loop.now)

    def rebalance(self) -> str:
        """Spread partitions evenly; return the reason if it is refused."""
        if not self._leads:
            return self._not_leader_reason
        self._begin_rebalancing()
        self._continue_moves(self._loop.now)
        return ""

    def _begin_rebalancing(self) -> None:
        self._rebalancing, self._unmovable = True, set()

    def _begin_move(self, move: Move, primary: Primary, done: Callable[[str], None] = lambda reason: None) -> None:
        self._moving = MoveInProgress(move, primary, self._loop.now + MOVE_SECONDS_MAX, done)
        self._loop.report.info(f"Cluster ({self.name}) Partition [{move.partition_id}]: moves from node {primary.node_id} "
                               f"to node {move.node_id}")
        self._loop.report.record_event(
            "primary", f"Partition [{move.partition_id}] moves from node {primary.node_id} to node {move.node_id}",
            cluster=self.name, partition=move.partition_id, to=move.node_id)
        self._ask_to_yield(primary.node_id, move.partition_id, Yield(primary.lease, move.node_id))

    def _continue_moves(self, now: float) -> None:
        """Begin the next move when the previous one is complete."""
        if self._moving is not None and not self._end_move(self._moving, now):
            return
        if not self._rebalancing:
            return
        primaries = self._proposed_primaries
        passive = {index for index, primary in primaries.items() if not self._is_active(index, primary)}
        available = [each for each in self._candidates() if self._statuses.status_of(each) is NodeStatus.E_AVAILABLE
                     and each not in self._statuses.unable]
        found = next_move(primaries, available, self._rules.algorithm, self.node_id, self._unmovable | passive)
        if found is not None:
            self._begin_move(found, primaries[found.partition_id])
        elif not passive:
            self._rebalancing = False
            self._loop.report.info(f"Cluster ({self.name}): partitions are spread evenly over the nodes that are available")

    def _end_move(self, moving: MoveInProgress, now: float) -> bool:
        """End the move if the partition has another active primary, the primary has refused, or at the timeout; return False
        if it continues."""
        index, node_id = moving.move
        known = self._proposed_primaries[index]
        is_active = self._is_active(index, known)
        if now < moving.until and (known == moving.primary or not is_active):
            return False
        self._moving, reason = None, ""
        if known.node_id != node_id or not is_active:
            reason = moving.refusal or (
                f"node {known.node_id} has become its primary" if known.node_id not in (node_id, moving.primary.node_id)
                else f"node {node_id} has not become active" if known.node_id == node_id
                else f"node {known.node_id} has not handed it over within {MOVE_SECONDS_MAX:g} s")
            reason = f"Partition [{index}] did not move to node {node_id}: {reason}"
            self._unmovable.add(index)
            self._loop.report.warn(f"Cluster ({self.name}) {reason}")
            self._loop.report.record_event("primary", reason, cluster=self.name, partition=index)
        moving.done(reason)
        return True

    def _is_active(self, index: int, primary: Primary) -> bool:
        return self._known.active.find(index) == primary

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _connected(self) -> list[int]:
        """Return the nodes that keep their partitions until they decline: all connected ones, also stopping ones."""
        return [node_id for node_id in self._statuses.members if node_id == self.node_id
                or self._statuses.status_of(node_id) is not NodeStatus.E_UNAVAILABLE]

    def _candidates(self) -> list[int]:
        """Return the voters with intact storage that are connected and not stopping."""
        statuses, electorate = self._statuses, self.leadership.elector.electorate
        return [node_id for node_id in statuses.members if electorate.is_intact(node_id) and (
            statuses.is_staying(node_id) if node_id != self.node_id else not statuses.is_stopping)]

    def _candidates_but(self, node_id: int) -> list[int]:
        return [each for each in self._candidates() if each != node_id]

    def _prefer_fit(self, nodes: list[int]) -> list[int]:
        """Return the nodes of `nodes` that can write, or all of them if none can; of these the available ones, if any is."""
        able = [node_id for node_id in nodes if node_id not in self._statuses.unable] or nodes
        return [node_id for node_id in able if self._statuses.status_of(node_id) is NodeStatus.E_AVAILABLE] or able

    def successor(self) -> int | None:
        """Return the node that becomes leader when this node stops, or cannot write."""
        return next(iter(self._prefer_fit(self._candidates_but(self.node_id))), None)

    def successor_of(self, durable: Mapping[int, Psn]) -> int | None:
        """Return the next primary of a partition of this node; `durable`: the last durable record of each node."""
        candidates = self._prefer_fit(self._candidates_but(self.node_id))
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
