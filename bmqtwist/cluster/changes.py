"""Changes of the metadata that a leader receives, and the advisory of each; the choice of primaries. Pure.

A change is validated against the state with all pending records applied: records are committed in order, so that this is the
state at the commit of the change. So two pending queues never have the same key, a queue is never assigned twice, and
several changes of one queue may be pending.

`LeaderTerm` plans each proposed change with a `ChangePlanner`; `member/appointments.py` moves partitions of a running
cluster (`successor_of`, `next_move`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bmqtwist.cluster.state import ClusterState, Primary, QueueRecord, partition_infos
from bmqtwist.errors import LocalError
from bmqtwist.ids import DEFAULT_APP_ID, DEFAULT_APP_KEY, make_storage_key, parse_uri
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.wire.cluster_schema import (
    NO_LSN,
    MemberList,
    PartitionPrimaryAdvisory,
    QueueAssignmentAdvisory,
    QueueInfo,
    QueueInfoUpdate,
    QueueUnAssignmentAdvisory,
    QueueUpdateAdvisory,
)

LEADER_IS_MASTER_ALL = "E_LEADER_IS_MASTER_ALL"
LEAST_ASSIGNED = "E_LEAST_ASSIGNED"


class ChangeRefused(LocalError):
    """The change contradicts the state; no record is written."""


@dataclass(frozen=True, slots=True)
class AssignQueue:
    """Assign a key, and the partition with the fewest queues, to a new queue; a known queue keeps its own.

    `app_ids`: of a fanout queue, else the default app, whose key is fixed; `timer_ns`: makes keys unique.
    """

    uri: str
    app_ids: Sequence[str]
    timer_ns: int


@dataclass(frozen=True, slots=True)
class AdoptQueue:
    """Register a queue that a partition stores and the metadata lack, with its stored key and apps.

    Refused if its URI or key is registered, or its partition does not exist.
    """

    queue: QueueRecord


@dataclass(frozen=True, slots=True)
class UnassignQueue:
    """Remove a queue; the result is its record, None if there is none. `key`: remove only the queue with this key, not a
    later one of the same name; b"" = any."""

    uri: str
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class UpdateApps:
    """Add and remove apps of a queue; refused if any of them cannot be added or removed."""

    uri: str
    added: Sequence[str]
    removed: Sequence[str]
    timer_ns: int


@dataclass(frozen=True, slots=True)
class AssignPartitions:
    """Assign new primaries, among `candidates`, to the partitions whose primary is not in `keep`, and to the partitions in
    `declined` (partition -> a lease that the new one must exceed). The result is the list of the changed partitions."""

    candidates: Collection[int]
    keep: Collection[int]
    declined: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActivateFeatures:
    """Activate features of the cluster (`versions.py`), which all members support. The result is the tuple of all active
    ones. The record is a SNAPSHOT, whose unknown fields BlazingMQ skips."""

    names: Collection[str]


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """Replace the member list by its next version; refused while another change of it is pending."""

    members: MemberList


Change = (AssignQueue | AdoptQueue | UnassignQueue | UpdateApps | AssignPartitions | ActivateFeatures | ChangeMembers)


@dataclass(frozen=True, slots=True)
class PrimaryRules:
    """Rules for the primaries when a leader begins its term.

    `candidates` may become primaries (None: only the leader); primaries in `keep` keep their lease. All other partitions get
    the next lease, even at the same node: a process never appends under the lease of an earlier one. `used_leases`: by
    partition, the highest lease that the leader has promised or that its files contain, for the case of a lost ledger.
    `members`: the first member list, if the state has none.
    """

    partitions: int
    candidates: Collection[int] | None = None
    keep: Collection[int] = ()
    used_leases: Mapping[int, int] = field(default_factory=dict)
    members: MemberList | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Effect of a change. `advisory`: to write, None = the state does not change; `result`: known at the commit."""

    result: Any
    uri: str = ""  # of the changed queue
    advisory: Any = None


class ChangePlanner:
    """Plans the effects of changes at the leader `node_id`; `algorithm`: how primaries are assigned."""

    def __init__(self, node_id: int, algorithm: str) -> None:
        self._node_id, self._algorithm = node_id, algorithm

    def plan(self, change: Change, head: ClusterState, removed_keys: Set[bytes]) -> Plan:
        """Return the effect of a change of the state `head`, or raise ChangeRefused. `removed_keys`: keys of queues whose
        removal is not committed yet."""
        if isinstance(change, AssignQueue):
            return self._assign(change, head, removed_keys)
        if isinstance(change, AdoptQueue):
            return self._adopt(change.queue, head)
        if isinstance(change, UnassignQueue):
            return self._unassign(change, head)
        if isinstance(change, UpdateApps):
            return self._update(change, head)
        if isinstance(change, ActivateFeatures):
            return self._activate(change, head)
        if isinstance(change, ChangeMembers):
            return self._change_members(change.members, head)
        return self._partitions(change, head)

    def primaries(self, head: ClusterState, wanted: PrimaryRules) -> dict[int, Primary]:
        """Return the primaries for the first record of a new leader."""
        found = self._choose(head, range(wanted.partitions), wanted.candidates, wanted.keep, {})
        for number, used in wanted.used_leases.items():
            if found[number].node_id == self._node_id and found[number].lease <= used:
                found[number] = Primary(found[number].node_id, used + 1)
        return found

    def _assign(self, change: AssignQueue, head: ClusterState, removed_keys: Set[bytes]) -> Plan:
        known = head.queues.get(change.uri)
        if known is not None:
            return Plan(known, change.uri)
        if not head.partitions:
            raise ChangeRefused(f"queue {change.uri} cannot be placed: no partition has a primary yet")
        counts = head.queue_counts
        partition_id = min(head.partitions, key=lambda number: (counts.get(number, 0), number))
        key = make_storage_key(change.uri, change.timer_ns, head.keys | removed_keys if removed_keys else head.keys)
        return _assignment(QueueRecord(change.uri, key, partition_id, _app_keys(change.app_ids, {}, change.timer_ns)))

    def _adopt(self, queue: QueueRecord, head: ClusterState) -> Plan:
        if queue.uri in head.queues or queue.key in head.keys:
            raise ChangeRefused(f"queue {queue.uri} with key {queue.key.hex().upper()} is registered already")
        if queue.partition_id not in head.partitions:
            raise ChangeRefused(f"queue {queue.uri} is in partition {queue.partition_id}, which does not exist")
        return _assignment(queue)

    def _unassign(self, change: UnassignQueue, head: ClusterState) -> Plan:
        uri, queue = change.uri, head.queues.get(change.uri)
        if queue is None or change.key not in (b"", queue.key):
            return Plan(None, uri)
        node_id, lease = head.partitions.get(queue.partition_id, Primary(-1, 0))
        removed = QueueInfo(queue.uri, queue.key, queue.partition_id)
        return Plan(queue, uri, QueueUnAssignmentAdvisory(NO_LSN, queue.partition_id, lease, node_id, [removed]))

    def _update(self, change: UpdateApps, head: ClusterState) -> Plan:
        uri, added, removed = change.uri, change.added, change.removed
        queue = head.queues.get(uri)
        if queue is None:
            raise ChangeRefused(f"queue {uri} is not assigned")
        missing = [app_id for app_id in removed if app_id not in queue.apps]
        present = [app_id for app_id in added if app_id in queue.apps]
        if missing or present or len(set(added)) < len(added) or len(set(removed)) < len(removed):
            raise ChangeRefused(f"queue {uri} has the apps {list(queue.apps)}: cannot add {list(added)} and remove "
                                f"{list(removed)}")
        if not added and not removed:
            return Plan(queue, uri)
        new = _app_keys(added, queue.apps, change.timer_ns)
        update = QueueInfoUpdate(uri, queue.key, queue.partition_id, list(new.items()),
                                 [(app_id, queue.apps[app_id]) for app_id in removed],
                                 parse_uri(uri).qualified_domain)
        apps = {app_id: key for app_id, key in queue.apps.items() if app_id not in removed}
        return Plan(QueueRecord(uri, queue.key, queue.partition_id, apps | new), uri,
                    QueueUpdateAdvisory(NO_LSN, [update]))

    def _change_members(self, members: MemberList, head: ClusterState) -> Plan:
        version = head.members.version if head.members is not None else 0
        if members.version != version + 1:
            raise ChangeRefused(f"the member list has version {version}: version {members.version} cannot follow it")
        return Plan(members, "", PartitionPrimaryAdvisory(NO_LSN, [], members))

    def _partitions(self, change: AssignPartitions, head: ClusterState) -> Plan:
        primaries = self._choose(head, sorted(head.partitions), change.candidates, change.keep, change.declined)
        changed = {number: primary for number, primary in primaries.items() if head.partitions[number] != primary}
        if not changed:
            return Plan([])
        return Plan(list(changed), "", PartitionPrimaryAdvisory(NO_LSN, partition_infos(changed)))

    def _activate(self, change: ActivateFeatures, head: ClusterState) -> Plan:
        features = head.features.extended(change.names)
        if features == head.features:
            return Plan(features)
        advisory = head.snapshot()
        advisory.features = ",".join(features)
        return Plan(features, "", advisory)

    def _choose(self, head: ClusterState, numbers: Iterable[int], candidates: Collection[int] | None,
                keep: Collection[int], declined: Mapping[int, int]) -> dict[int, Primary]:
        numbers = list(numbers)
        known = head.partitions
        loads = dict.fromkeys(candidates or (self._node_id,), 0)
        for number in numbers:
            primary = known.get(number)
            if (primary is not None and primary.node_id in keep and primary.node_id in loads
                    and number not in declined):
                loads[primary.node_id] += 1
        primaries: dict[int, Primary] = {}
        for number in numbers:
            primary = known.get(number, Primary(-1, 0))
            if primary.node_id not in keep or number in declined:
                node_id = self._node_id
                if self._algorithm == LEAST_ASSIGNED or node_id not in loads:
                    node_id = min(loads, key=lambda each: (loads[each], each))
                    loads[node_id] += 1
                primary = Primary(node_id, max(primary.lease, declined.get(number, 0)) + 1)
            primaries[number] = primary
        return primaries


def _assignment(queue: QueueRecord) -> Plan:
    return Plan(queue, queue.uri, QueueAssignmentAdvisory(NO_LSN, [queue.info()]))


def _app_keys(app_ids: Sequence[str], taken: dict[str, bytes], timer_ns: int) -> dict[str, bytes]:
    """Return keys for new apps, distinct from each other and from `taken`."""
    keys: dict[str, bytes] = {}
    for app_id in app_ids:
        if app_id == DEFAULT_APP_ID:
            keys[app_id] = DEFAULT_APP_KEY
        else:
            keys[app_id] = make_storage_key(app_id, timer_ns, {*taken.values(), *keys.values()})
    return keys


# -- primaries of a running cluster -----------------------------------------------------------------------------


class Move(NamedTuple):
    """Transfer of a partition to another primary."""

    partition_id: int
    node_id: int


def loads_of(primaries: Mapping[int, Primary], nodes: Collection[int]) -> dict[int, int]:
    """Return the number of partitions of which each node is primary."""
    loads = dict.fromkeys(nodes, 0)
    for primary in primaries.values():
        if primary.node_id in loads:
            loads[primary.node_id] += 1
    return loads


def successor_of(primaries: Mapping[int, Primary], candidates: Collection[int], durable: Mapping[int, Psn], algorithm: str,
                 leader: int | None) -> int | None:
    """Return the next primary of a partition whose primary stops, None without candidates. `durable`: last durable PSN by
    node.

    With E_LEADER_IS_MASTER_ALL the leader if it is a candidate; else the node with the fewest partitions, and among these
    the one with the highest PSN.
    """
    if algorithm != LEAST_ASSIGNED:
        return leader if leader in candidates else next(iter(candidates), None)
    loads = loads_of(primaries, candidates)
    ranked = sorted(candidates)
    ranked.sort(key=lambda each: durable.get(each, NO_PSN), reverse=True)
    ranked.sort(key=lambda each: loads[each])
    return next(iter(ranked), None)


def next_move(primaries: Mapping[int, Primary], nodes: Collection[int], algorithm: str, leader: int,
              staying: Collection[int] = ()) -> Move | None:
    """Return the next move that balances the partitions, None without one. `nodes`: possible primaries; `staying`:
    partitions that cannot move.

    With E_LEADER_IS_MASTER_ALL all partitions move to the leader; else one moves from the node with the most partitions to
    the node with the fewest, while their numbers differ by more than one.
    """
    loads = loads_of(primaries, nodes)
    movable = {index: primary for index, primary in sorted(primaries.items())
               if index not in staying and primary.node_id in loads}
    if algorithm != LEAST_ASSIGNED:
        return next((Move(index, leader) for index, primary in movable.items() if primary.node_id != leader), None)
    if not loads:
        return None
    fewest = min(loads, key=lambda each: (loads[each], each))
    found = max(movable.items(), key=lambda each: (loads[each[1].node_id], each[0]), default=None)
    if found is None or loads[found[1].node_id] - loads[fewest] < 2:
        return None
    return Move(found[0], fewest)
