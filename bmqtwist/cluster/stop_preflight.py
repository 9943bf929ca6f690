"""Preflight of a graceful stop: the consequences for the cluster if one node stops now. Pure.

It is computed from the state of all members that the node knows at present, and from the rules of the handover. The command
`STOP PREFLIGHT` and the console show it. Called by `view/stopping.py`, which collects the state; the stop itself is in
`broker/graceful_stop.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bmqtwist.cluster.changes import successor_of
from bmqtwist.cluster.state import Primary
from bmqtwist.storage.psn import Psn

RECORDS_BEHIND_MAX = 1_000  # lag of a successor from which on a warning is given


@dataclass(frozen=True, slots=True)
class MemberView:
    """Another member. `stays`: it is connected and not stopping; `available`: its status is AVAILABLE."""

    node_id: int
    name: str
    stays: bool
    available: bool


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition. `active`: its primary is active; `copies`: by node, number of records that are not durable there yet;
    `durable`: by node, the last durable PSN; `in_memory`: number of messages that no other node has."""

    partition_id: int
    primary: int | None
    active: bool = True
    copies: Mapping[int, int] = field(default_factory=dict)
    durable: Mapping[int, Psn] = field(default_factory=dict)
    in_memory: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster as known to the stopping node. `quorum`: votes for a leader; `factor`: nodes that must store a message of a
    queue with strong consistency; `unconfirmed`: unconfirmed messages of its clients; `wait_s`: longest wait for them."""

    name: str
    node_id: int
    node_name: str
    other_nodes: tuple[MemberView, ...]
    leader: int | None
    quorum: int
    factor: int
    algorithm: str
    partitions: tuple[PartitionView, ...]
    primaries: Mapping[int, Primary] = field(default_factory=dict)
    unconfirmed: int = 0
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StopMove:
    """A partition of which the node is primary. `to`: the next primary, None without a candidate."""

    partition_id: int
    to: int | None
    quorum_survives: bool


@dataclass(frozen=True, slots=True)
class StopPreflight:
    """Result for one cluster. `quorum_survives`: a leader can be elected, and every partition can accept messages."""

    cluster: str
    quorum_survives: bool
    leads: bool
    next_leader: int | None
    moves: tuple[StopMove, ...]
    partitions_without_quorum: tuple[int, ...]
    warnings: tuple[str, ...]


def stop_preflight(view: ClusterView) -> StopPreflight:
    """Return the consequences of a stop of the node."""
    staying = [member.node_id for member in view.other_nodes if member.stays]
    candidates = [member.node_id for member in view.other_nodes if member.available] or staying
    leads = view.leader == view.node_id
    next_leader = next(iter(candidates), None) if leads else view.leader
    can_elect = len(staying) >= view.quorum
    moves, without_quorum = [], []
    for partition in view.partitions:
        survives = len(staying) >= view.factor
        if not survives:
            without_quorum.append(partition.partition_id)
        if partition.primary == view.node_id:
            to = successor_of(view.primaries, candidates, partition.durable, view.algorithm,
                              next_leader) if can_elect else None
            moves.append(StopMove(partition.partition_id, to, survives))
    warnings = _warnings(view, staying, can_elect, without_quorum, moves)
    return StopPreflight(view.name, can_elect and not without_quorum, leads, next_leader if can_elect else None,
                         tuple(moves), tuple(without_quorum), tuple(warnings))


def _warnings(view: ClusterView, staying: list[int], can_elect: bool, without_quorum: list[int],
              moves: list[StopMove]) -> list[str]:
    names = {member.node_id: member.name for member in view.other_nodes}
    found = []
    if not view.other_nodes:
        found.append(f"{view.node_name} is the only node of cluster {view.name}: clients wait until it has started again")
    elif not can_elect:
        found.append(f"without {view.node_name} {len(staying)} of {len(view.other_nodes) + 1} nodes remain, and "
                     f"{view.quorum} are needed to elect a leader: partitions get no other primary, queues cannot be "
                     "created or deleted")
    if view.other_nodes and without_quorum:
        found.append(f"without {view.node_name} {len(staying)} nodes remain, and {view.factor} must store each message of a "
                     f"queue of strong consistency: such queues in {_partitions(without_quorum)} acknowledge no message")
    found += [f"node {member.name} is not connected, or is stopping, too" for member in view.other_nodes if not member.stays]
    found += [f"node {member.name} is not available yet: it is still receiving records" for member in view.other_nodes
              if member.stays and not member.available]
    for move in moves:
        partition = next(each for each in view.partitions if each.partition_id == move.partition_id)
        behind = partition.copies.get(move.to, 0) if move.to is not None else 0
        if move.to is not None and behind >= RECORDS_BEHIND_MAX:
            found.append(f"Partition [{move.partition_id}]: node {names[move.to]} lacks {behind} records: the partition "
                         "moves once it has them")
        if partition.in_memory:
            found.append(f"Partition [{move.partition_id}]: {partition.in_memory} messages of queues in memory "
                         "will be lost: no other node has them")
    passive = [partition.partition_id for partition in view.partitions if not partition.active]
    if passive:
        found.append(f"{_partitions(passive)} has no active primary now" if len(passive) == 1
                     else f"{_partitions(passive)} have no active primary now")
    if view.unconfirmed:
        found.append(f"{view.unconfirmed} delivered messages are not confirmed: the stop waits up to {view.wait_s:g} s for "
                     "their CONFIRMs, then they are delivered to other consumers")
    return found


def _partitions(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    return f"Partition{'s' if len(numbers) > 1 else ''} [{shown}]"
