"""One cluster that this node is a member of: metadata, partitions, and the queues of which this node is primary.

The node of a cluster of one is primary of all partitions from its start. A node of several takes part in elections and has
the queues of the partitions whose active primary it is (`member.replication`); it refuses other queues.

A queue changes in the metadata first, and in its partition after the commit. If the process dies in between, the next start
applies the metadata to the partition. At the start partitions are recovered under new leases. Queues whose domain cannot be
loaded stay *dormant*: their records remain stored, and they are activated when the domain is loaded.

Created by `daemon/assemble.py`; `broker/access.py` asks it for the queues that clients open. Its parts: `queue_changes.py`,
`activation.py`, `retirement.py`, `replication.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bmqtwist import alarms
from bmqtwist.cluster.changes import AdoptQueue
from bmqtwist.cluster.election_events import ElectionMode
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.cluster.state import Changes, ClusterState, QueueRecord
from bmqtwist.cluster.streams import NOT_PRIMARY
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, domain_of, parse_uri
from bmqtwist.link.receipts import ConfirmReceipts
from bmqtwist.loop.loop import Loop
from bmqtwist.member.activation import Activations
from bmqtwist.member.interfaces import DomainSource
from bmqtwist.member.member_relays import MemberRelays
from bmqtwist.member.metadata import ClusterMetadata, MetadataUnavailable
from bmqtwist.member.proposals import Proposals
from bmqtwist.member.queue_changes import QueueChanges
from bmqtwist.member.repairs import Repairs
from bmqtwist.member.replication import Replication
from bmqtwist.member.retirement import Retirement
from bmqtwist.member.role_release import RoleRelease
from bmqtwist.queue import handover
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.restored_messages import RestoredMessages
from bmqtwist.queue.root import Domain, RootContext, RootQueue
from bmqtwist.relay.relays import Relays
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.partition import COMMITTED_ALL, Durability, Partition, PartitionUnavailable
from bmqtwist.storage.recovery import RecoveredPartition, recover
from bmqtwist.storage.state import StoredQueue
from bmqtwist.wire.cluster_schema import NodeStatus

if TYPE_CHECKING:
    from bmqtwist.config.clusters import ClusterDefinition
    from bmqtwist.member.features import ClusterFeatures
    from bmqtwist.member.leadership import Leadership


class Cluster:
    """One cluster: `start` it if this node is the only member, else `join` it."""

    def __init__(self, definition: ClusterDefinition, node_id: int, loop: Loop, context: RootContext,
                 domains: DomainSource, timer_ns: Callable[[], int]) -> None:
        self.definition, self.node_id, self.loop, self.report = definition, node_id, loop, loop.report
        self.name = definition.name
        self.context, self.domains = context, domains
        self.timer_ns = timer_ns  # feeds storage keys
        self.metadata: ClusterMetadata
        self.leadership: Leadership
        self.features: ClusterFeatures
        self.replication: Replication | None = None  # this and the next three: None in a cluster of one node
        self.proposals: Proposals | None = None
        self.members: MemberRelays | None = None
        self.release: RoleRelease | None = None
        self.partitions: list[Partition] = []
        self.receipts = ConfirmReceipts(loop.call_later, self.partitions)  # for downstream brokers
        self.queues: dict[str, RootQueue] = {}
        self.dormant: dict[str, QueueRecord] = {}  # queues whose domain is not loaded
        self.activations = Activations(self.stored_queue, self.on_activated, self.on_activation_failed, loop)
        self.retirement = Retirement(f"Cluster ({self.name})", loop)
        self.repairs = Repairs(self)
        self.changes = QueueChanges(self)
        self.replication_factor = len(definition.nodes) // 2 + 1

    @property
    def relays(self) -> Relays | None:
        """The queues that clients of this node have open at other members."""
        return self.members.relays if self.members is not None else None

    # -- start ------------------------------------------------------------------------------------------------------

    def join(self, leadership: Leadership, replication: Replication | None = None,
             proposals: Proposals | None = None, members: MemberRelays | None = None,
             release: RoleRelease | None = None) -> None:
        """Recover the metadata. The leader is elected after `Leadership.start`; `replication` is opened before that."""
        self.leadership, self.metadata = leadership, leadership.metadata
        self.features.leadership, leadership.common_features = leadership, self.features.common
        self.metadata.open()
        if replication is not None:
            self.replication = leadership.replication = replication
            self.proposals, self.members, self.release = proposals, members, release
            replication.leadership = replication.appointments.leadership = leadership
            leadership.on_state_changed = self._on_state_changed
        if proposals is not None:
            proposals.refusal = self.changes.refusal
            leadership.on_leader_changed = proposals.on_leader_changed
        if members is not None:
            members.leadership = leadership
            members.statuses.on_changed = self._on_statuses_changed
            self.retirement.relays = members.relays

    def start(self, leadership: Leadership, files: list[FileSets], durability: Durability, cache_bytes: int,
              now: float, wall: int) -> None:
        """Recover metadata and partitions, and become leader and primary of all partitions."""
        self.join(leadership)
        metadata, log = self.metadata, f"Cluster ({self.name})"
        _check_partitions(self.name, metadata.state, len(files))
        recovered = [recover(each, self.queue_records(index), wall - now, index, wall) for index, each in enumerate(files)]
        self.report.info(f"{log}: Transitioning to leader in the Cluster FSM.")
        leadership.lead_alone({index: each.lease for index, each in enumerate(recovered)}, now, wall)
        term, sequence = metadata.log.lsn
        self.report.info(f"#ELECTOR_INFO: leader: [{self.node_name}, {self.node_id}], LSN: [ electorTerm = {term} "
                         f"sequenceNumber = {sequence} ], transitioning status from PASSIVE to ACTIVE")
        self.report.info(f"{log} onClusterLeader: new leader: [{self.node_name}, {self.node_id}], leader status: ACTIVE")
        for index, each in enumerate(recovered):
            partition = Partition(self.node_id, files[index], each, durability, cache_bytes)
            partition.files.reports.on_line = partial(self.report.info, "Cluster (%s): %s", self.name)
            self.partitions.append(partition)
            self.repairs.attach(partition)
            try:
                partition.activate(metadata.state.partitions[index].lease, wall)
            except PartitionUnavailable:
                self.report_alarms()  # with the cause
                raise
            partition.copies.committed = COMMITTED_ALL if self.has_quorum else partition.position
            self.report.info(f"{log} afterPartitionPrimaryAssignment: Partition [{index}]: new primary: "
                             f"[{self.node_name}, {self.node_id}], primary status: E_ACTIVE")
        self._reconcile(recovered, wall)
        metadata.perform_jobs(wall)
        self.report.info(f"{log}: Recovery for all partitions is complete. Summary: "
                         f"{sum(len(queue.messages) for each in recovered for queue in each.queues.values())} "
                         f"outstanding message(s) in {len(self.dormant)} queue(s)")
        self.report.info(f"{log}: Recovery succeeded. Transitioning self node to AVAILABLE.")
        self.report.info(f"{log}: Transitioning to AVAILABLE.")

    @property
    def node_name(self) -> str:
        """The name of this node in the cluster."""
        return next((node.name for node in self.definition.nodes if node.id == self.node_id), str(self.node_id))

    def queue_records(self, partition_id: int) -> dict[bytes, QueueRecord]:
        """Return the records of a partition's queues in the metadata, by queue key."""
        return {record.key: record for record in self.metadata.state.queues.values() if record.partition_id == partition_id}

    def _reconcile(self, recovered: list[RecoveredPartition], wall: int) -> None:
        """Reconcile the queues in the recovered partitions with the metadata."""
        found: dict[bytes, tuple[int, StoredQueue]] = {
            key: (index, queue) for index, each in enumerate(recovered) for key, queue in each.queues.items()}
        for uri, record in self.metadata.state.queues.items():
            found.pop(record.key, None)
            self.dormant[uri] = record
        for key, (index, queue) in found.items():
            if queue.messages and queue.uri and queue.uri not in self.metadata.state.queues:
                self.report.alarm(
                    alarms.QUEUE_ADOPTED,
                    f"Cluster ({self.name}): queue '{queue.uri}' was not in the metadata; "
                    f"registered again with its {len(queue.messages)} message(s)")
                record = QueueRecord(queue.uri, key, index, {app.app_id: app.key for app in queue.apps.values()})
                self.metadata.propose(AdoptQueue(record), self.changes.log_failure, wall)
                self.dormant[queue.uri] = record
            else:
                self.report.alarm(
                    alarms.QUEUE_DELETION_COMPLETED,
                    f"Cluster ({self.name}): queue key {key.hex().upper()} in partition "
                    f"[{index}] is unknown to the metadata; its deletion was completed")
                self.try_append(self.partitions[index].queues.delete, key, wall)

    def check_stored(self, name: str, mode: QueueMode, in_memory: bool) -> None:
        """Raise Refused if dormant queues of a domain were stored with another mode or storage."""
        for uri, record in self.dormant.items():
            if domain_of(uri) != name:
                continue
            store = self.partitions[record.partition_id].state.queues.get(record.key)
            count = len(store.messages) if store is not None else 0
            was = QueueMode.PRIORITY if DEFAULT_APP_ID in record.apps else QueueMode.FANOUT
            if record.apps and (was == QueueMode.FANOUT) != (mode == QueueMode.FANOUT):
                changed = f"mode {mode}, but queue '{uri}' was stored as {was}"
            elif in_memory and count:
                changed = f"storage inMemory, but queue '{uri}' was stored as fileBacked"
            else:
                continue
            raise Refused(Category.E_REFUSED, f"Domain '{name}' was changed while stopped: {changed}, with {count} "
                          "message(s). Put its file back and run DOMAINS RECONFIGURE; to change it, run DOMAINS REMOVE "
                          "with FINALIZE first, or take a domain of another name", -10)

    def adopt_domain(self, domain: Domain) -> None:
        """Activate the dormant queues of a domain that was loaded."""
        found = [uri for uri in self.dormant if domain_of(uri) == domain.name]
        if found:
            self.activations.start(domain, [self.dormant.pop(uri) for uri in found])

    # -- activation of queues ---------------------------------------------------------------------------------------

    def stored_queue(self, record: QueueRecord) -> StoredQueue:
        """Return a queue's state in its partition, created if missing; raises PartitionUnavailable."""
        partition = self.partitions[record.partition_id]
        store = partition.state.queues.get(record.key)
        if store is None:
            wall = self.loop.wall(self.loop.now)
            store = partition.queues.create(record.key, record.uri, list(record.apps.items()), wall)
        return store

    def on_activated(self, domain: Domain, record: QueueRecord, store: StoredQueue, found: RestoredMessages,
                     opened: bool) -> None:
        """Create a queue from its restored messages and answer its opens."""
        now = self.loop.now
        wall = self.loop.wall(now)
        queue = self.make_queue(domain, record.uri, store, self.partitions[record.partition_id], now)
        queue.register_apps(first_order=0)
        queue.restore(found, wall)
        self.changes.apply_apps(queue, self.metadata.state.queues.get(record.uri, record), wall)
        self.changes.reconcile_apps(queue, wall)
        self.take_over_relay(queue, now, wall)
        if self.replication is not None:
            self.report.info(f"Cluster ({self.name}): Rebuilt internal state of queue engine for queue [{queue.uri}], "
                             f"Partition [{queue.partition_id}], {len(queue.messages)} message(s)")
        if opened:
            self.changes.answer_opens(record.uri, queue)

    def on_activation_failed(self, record: QueueRecord, opened: bool, error: Exception) -> None:
        """Leave a queue dormant and refuse its opens."""
        if isinstance(error, PartitionUnavailable):
            self.report.error(f"Cluster ({self.name}): queue '{record.uri}' cannot be used: {error}")
        else:
            self.loop.isolation.alarm(f"Queue '{record.uri}': activation", error, alarms.QUEUE_FAILED)
        if record.uri not in self.queues:
            self.dormant[record.uri] = record
        if opened and record.uri in self.changes.pending_opens:
            self.changes.answer_opens(record.uri, Refused(Category.E_UNKNOWN, f"Unknown queue: {record.uri} ({error})", -10))

    # -- active queues ----------------------------------------------------------------------------------------------

    def make_queue(self, domain: Domain, uri: str, store: StoredQueue, partition: Partition,
              now: float) -> RootQueue:
        self.retirement.convert_now(uri)
        queue = RootQueue(uri, parse_uri(uri).queue, store, domain, partition, self.context, now)
        self.queues[uri] = queue
        domain.adopt_queue(queue)
        return queue

    @property
    def has_quorum(self) -> bool:
        """True if this node alone satisfies the replication factor."""
        return self.replication_factor <= 1

    def set_replication_factor(self, factor: int) -> None:
        """Set the number of nodes that must store a record before it is committed."""
        had_quorum, self.replication_factor = self.has_quorum, factor
        if self.replication is not None:
            self.replication.set_replication_factor(factor, self.loop.now)
        else:
            for partition in self.partitions:
                if self.has_quorum:
                    partition.copies.committed = COMMITTED_ALL
                elif had_quorum:
                    partition.copies.committed = partition.position
        for queue in self.queues.values():
            queue.uncommitted.on_commit(self.loop.now)

    # -- queues -----------------------------------------------------------------------------------------------------

    def refusal_of(self, uri: str) -> Refused | None:
        """Return the refusal if this node is not the active primary of a queue's partition, else None."""
        if self.replication is None:
            return None
        record = self.metadata.state.queues.get(uri)
        return None if record is None or self.replication.is_active_primary(record.partition_id) else _not_primary(
            uri, record.partition_id)

    def queues_of_other_primaries(self, domain_name: str) -> list[QueueRecord]:
        """Return the queues of a domain whose active primary is not this node."""
        serves = self.replication.is_active_primary if self.replication is not None else lambda partition_id: True
        return [record for uri, record in self.metadata.state.queues.items() if not serves(record.partition_id)
                and domain_of(uri) == domain_name]

    # -- one of several nodes ---------------------------------------------------------------------------------------

    def activate_queues(self, partition_id: int, now: float, wall: int) -> None:
        """Activate the queues of a partition whose active primary is this node."""
        partition, known = self.partitions[partition_id], self.queue_records(partition_id)
        for record in known.values():
            self.dormant[record.uri] = record
        for key, store in list(partition.state.queues.items()):
            if key in known:
                continue
            if store.messages:
                self.report.alarm(
                    alarms.QUEUE_NOT_IN_METADATA,
                    f"Cluster ({self.name}): queue key {key.hex().upper()} in partition "
                    f"[{partition_id}] is unknown to the metadata; its messages are kept")
            else:
                self.try_append(partition.queues.delete, key, wall)
        self.domains.activate_queues(self)

    def retire_queues(self, partition_id: int, cause: str, now: float, wall: int) -> None:
        """Retire the queues of a partition that has lost this node as primary; clients continue with relays."""
        self.report.info(f"Cluster ({self.name}): queues of Partition [{partition_id}] wait for its next primary: {cause}")
        queues = [queue for queue in self.queues.values() if queue.partition_id == partition_id]
        for queue in queues:
            del self.queues[queue.uri]
        self.retirement.begin(self.partitions[partition_id], queues, cause)
        for uri in self.activations.cancel_all(partition_id):
            self.changes.answer_opens(uri, _not_primary(uri, partition_id))
        self.dormant = {uri: record for uri, record in self.dormant.items() if record.partition_id != partition_id}

    def take_over_relay(self, queue: RootQueue, now: float, wall: int) -> None:
        """Move the relay of a queue, with its clients and pending opens, to the queue itself."""
        if self.relays is None:
            return
        relay, opens = self.relays.remove(queue.uri)
        if relay is not None:
            handover.to_root(relay, queue, now, wall)
        for each in opens:
            each.answer(queue)

    def on_primary_changed(self, partition_id: int) -> None:
        """Handle a change of a partition's active primary."""
        if self.members is not None:
            self.members.on_primary_changed(partition_id)

    def _on_statuses_changed(self) -> None:
        """Handle a change of a member's status: partitions of a stopping member get other primaries."""
        if self.members is not None and self.replication is not None:
            self.members.on_statuses_changed()
            self.replication.appointments.check(self.loop.now)
            if self.release is not None:
                self.release.check(self.loop.now)

    def begin_hand_over(self) -> None:
        """Begin the handover of leadership and partitions: report to the other nodes that this node stops."""
        if self.members is not None:
            self.members.statuses.set_own(NodeStatus.E_STOPPING)

    def advance_hand_over(self) -> bool:
        """Take the next step of the handover; return True once other nodes are leader and primaries, or cannot become so."""
        successor = self.replication.appointments.successor() if self.replication is not None else None
        if self.replication is None or successor is None or not self.leadership.has_quorum_without_self:
            return True
        if self.leadership.leads:  # before partitions move: the next leader may be their successor
            self.leadership.transfer(successor)
            return False
        self.leadership.set_mode(ElectionMode.LEAVING)
        if self.leadership.standing.leader is not None:
            self.replication.hand_over_all(self.loop.now)
        return not self.retirement.in_progress and all(
            primary.node_id != self.node_id for primary in self.metadata.state.partitions.values())

    def count_in_memory(self, partition_id: int) -> int:
        """Return the number of messages in this node's queues in memory of a partition."""
        return sum(len(queue.messages) for queue in self.queues.values()
                   if queue.in_memory and queue.partition_id == partition_id)

    def on_records(self, now: float) -> None:
        """Handle new records in a partition that another node leads."""
        if self.members is not None:
            self.members.on_records(now)

    def on_committed(self, partition: Partition, now: float) -> None:
        """Notify waiters that more records of a partition are committed."""
        self.receipts.on_commit()
        for waiter in list(partition.copies.listeners):
            waiter.on_commit(now)

    def _on_state_changed(self, changes: Changes) -> None:
        """Apply changes of the metadata to the queues of this node."""
        replication = self.replication
        if replication is None:
            return
        now, wall = self.loop.now, self.loop.wall(self.loop.now)
        if changes.members:
            replication.on_members_changed(now)
        replication.apply_primaries(changes.partitions, now)
        if self.members is not None:
            for record in (*changes.removed, *changes.assigned):
                self.members.on_queue_moved(record.uri)
        for record in changes.removed:
            self.dormant.pop(record.uri, None)
            if record.uri in self.activations:
                self.try_append(self.partitions[record.partition_id].queues.delete, record.key, wall)
                if self.activations.cancel(record.uri):
                    self.changes.refuse_unassigned(record.uri)
            queue = self.queues.get(record.uri)
            if queue is not None and queue.key == record.key:
                self.changes.delete_unassigned(queue, wall)
        for record in changes.updated:
            queue = self.queues.get(record.uri)
            if queue is not None and queue.key == record.key:
                self.changes.apply_apps(queue, record, wall)
        created = [record for record in changes.assigned if replication.is_active_primary(record.partition_id)
                   and record.uri not in self.queues and record.uri not in self.activations]
        for record in created:
            self.dormant[record.uri] = record
            self.changes.report_created(record)
        if created:
            self.domains.activate_queues(self)
        if self.proposals is not None:
            self.proposals.on_state_changed(wall)

    def primary_status(self, partition_id: int) -> str:
        """Return the status of a partition's primary, as known to this node."""
        if self.replication is None:
            return "ACTIVE"
        known = self.metadata.state.partitions.get(partition_id)
        return "UNDEFINED" if known is None else (
            "PASSIVE" if self.replication.known_primaries.active.find(partition_id) is None else "ACTIVE")

    @property
    def unavailable(self) -> str:
        """The state of this node unless it is a member with intact storage, the partitions that are not available, or
        another reason; empty if the cluster is available."""
        state, awaited = self.leadership.member_state
        if state is not MemberState.MEMBER or awaited:
            return f"{self.name} ({state.name}{awaited and f': waits for {awaited}'})"
        closed = [f"{self.name}/{partition.partition_id}" for partition in self.partitions if not partition.available]
        replication = self.replication
        if not closed and (not self.partitions or replication is not None and not replication.known_primaries.all_active):
            refused = "".join(f"; node {name} is refused: {why}" for name, why in self.features.refusals().items())
            closed = [f"{self.name} (no primaries{refused})"]
        if not closed and self.members is not None and self.members.statuses.own is NodeStatus.E_STARTING:
            closed = [f"{self.name} (this node is catching up)"]
        return ", ".join(closed)

    @property
    def unready(self) -> str:
        """The reason why the cluster is not ready: that of `unavailable`, or the members that have not connected since the
        start; empty if it is ready."""
        awaited = self.members.awaited_members() if self.members is not None else ""
        if self.release is not None and self.release.health.reason:
            return f"{self.name} (this node {self.release.health.reason})"
        return self.unavailable or awaited and f"{self.name} (not connected with {awaited} yet)"

    # -- helpers ----------------------------------------------------------------------------------------------------

    def try_append(self, append: Callable[..., None], *args: object) -> None:
        try:
            append(*args)
        except PartitionUnavailable as error:
            self.report.error(f"Cluster ({self.name}): {error}")

    def report_alarms(self) -> None:
        """Raise the alarms that the partitions have collected since the last call."""
        for partition in self.partitions:
            for kind, text in partition.take_alarms():
                self.report.alarm(kind, text)


def _not_primary(uri: str, partition_id: int) -> Refused:
    return Refused(Category.E_REFUSED, f"Partition [{partition_id}] of queue '{uri}' has another primary, or none yet",
                   NOT_PRIMARY)


def _check_partitions(name: str, state: ClusterState, count: int) -> None:
    """Raise MetadataUnavailable if queues are stored in partitions that are not configured."""
    beyond = [record for record in state.queues.values() if record.partition_id >= count]
    if beyond:
        most = max(record.partition_id for record in beyond) + 1
        raise MetadataUnavailable(
            f"Cluster ({name}): numPartitions is {count}, but {len(beyond)} queue(s) are stored in others: "
            f"'{beyond[0].uri}' in [{beyond[0].partition_id}] for example. Set numPartitions to {most} or more again; to "
            "lower it, let all of these queues be consumed and deleted first.")
