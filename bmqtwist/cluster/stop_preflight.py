"""Preflight of a graceful stop: the consequences for the cluster if one node stops now. Pure.

The result follows from the present state that the node knows of all members, and from the rules of the handover.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bmqtwist.cluster.changes import successor_of
from bmqtwist.cluster.state import Primary
from bmqtwist.storage.psn import Psn

RECORDS_BEHIND_MAX = 1_000  # lag of a successor from which on the result has a warning


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
    `safe`: by node, the last durable PSN; `in_memory`: number of messages that no other node has."""

    partition_id: int
    primary: int | None
    active: bool = True
    copies: Mapping[int, int] = field(default_factory=dict)
    safe: Mapping[int, Psn] = field(default_factory=dict)
    in_memory: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster as seen by the stopping node. `quorum`: votes for a leader; `factor`: nodes that must store a message of a
    queue with strong consistency; `unconfirmed`: unconfirmed messages of its clients; `wait_s`: longest wait for them."""

    name: str
    node_id: int
    node_name: str
    others: tuple[MemberView, ...]
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
    staying = [member.node_id for member in view.others if member.stays]
    fit = [member.node_id for member in view.others if member.available] or staying
    leads = view.leader == view.node_id
    next_leader = next(iter(fit), None) if leads else view.leader
    can_decide = len(staying) >= view.quorum
    moves, lost = [], []
    for partition in view.partitions:
        survives = len(staying) >= view.factor
        if not survives:
            lost.append(partition.partition_id)
        if partition.primary == view.node_id:
            to = successor_of(view.primaries, fit, partition.safe, view.algorithm, next_leader) if can_decide else None
            moves.append(StopMove(partition.partition_id, to, survives))
    return StopPreflight(view.name, can_decide and not lost, leads, next_leader if can_decide else None, tuple(moves),
                         tuple(lost), tuple(_warnings(view, staying, can_decide, lost, moves)))


def _warnings(view: ClusterView, staying: list[int], can_decide: bool, lost: list[int], moves: list[StopMove]) -> list[str]:
    names = {member.node_id: member.name for member in view.others}
    found = []
    if not view.others:
        found.append(f"{view.node_name} is the only node of cluster {view.name}: clients wait until it is back")
    elif not can_decide:
        found.append(f"without {view.node_name} {len(staying)} of {len(view.others) + 1} nodes are left, and {view.quorum} "
                     "are needed for a leader: nothing can be decided, partitions get no other primary")
    if view.others and lost:
        found.append(f"without {view.node_name} {len(staying)} nodes are left, and {view.factor} must have each message of "
                     f"a queue of strong consistency: {_partitions(lost)} would acknowledge nothing")
    found += [f"node {member.name} is not connected, or stops itself" for member in view.others if not member.stays]
    found += [f"node {member.name} is not available yet: something of it is not healed" for member in view.others
              if member.stays and not member.available]
    for move in moves:
        partition = next(each for each in view.partitions if each.partition_id == move.partition_id)
        behind = partition.copies.get(move.to, 0) if move.to is not None else 0
        if move.to is not None and behind >= RECORDS_BEHIND_MAX:
            found.append(f"Partition [{move.partition_id}]: node {names[move.to]} is {behind} records behind: the "
                         "partition waits for them before it moves")
        if partition.in_memory:
            found.append(f"Partition [{move.partition_id}]: {partition.in_memory} messages of queues in memory would be "
                         "lost: no other node has them")
    passive = [partition.partition_id for partition in view.partitions if not partition.active]
    if passive:
        found.append(f"{_partitions(passive)} has no active primary now" if len(passive) == 1
                     else f"{_partitions(passive)} have no active primary now")
    if view.unconfirmed:
        found.append(f"{view.unconfirmed} messages that clients hold are not confirmed: they are waited for up to "
                     f"{view.wait_s:g} s, then others get them")
    return found


def _partitions(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    return f"Partition{'s' if len(numbers) > 1 else ''} [{shown}]"
