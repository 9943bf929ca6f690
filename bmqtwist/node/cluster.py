"""One cluster of which this node is the only member: its metadata ledger, its partitions, the queues on them.

A queue is assigned in the ledger first, then created in its partition. At the start the partitions are recovered under
new leases; queues whose domain cannot be loaded stay dormant, with their records kept, until it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bmqtwist.cluster.ledger import LedgerRefused, LedgerUnavailable, MetadataLedger
from bmqtwist.cluster.state import QueueRecord
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, parse_uri
from bmqtwist.queue.domain import Domain
from bmqtwist.queue.queue import QueueContext
from bmqtwist.queue.root import RootQueue
from bmqtwist.storage.partition import COMMITTED_ALL, Durability, Partition, PartitionUnavailable
from bmqtwist.storage.recovery import RecoveredPartition, recover
from bmqtwist.storage.state import HISTORY_SECONDS, StoredQueue
from bmqtwist.storage.store import PartitionFiles

if TYPE_CHECKING:
    from bmqtwist.config.clusters import ClusterDefinition
    from bmqtwist.report import Report

_LIMIT_REACHED = -205


class Cluster:
    """A cluster of one."""

    def __init__(self, definition: ClusterDefinition, node_id: int, context: QueueContext, report: Report,
                 timer_ns: Callable[[], int]) -> None:
        self.definition, self.node_id, self.report = definition, node_id, report
        self.name = definition.name
        self._context = context
        self._timer_ns = timer_ns  # feeds storage keys
        self.ledger: MetadataLedger
        self.partitions: list[Partition] = []
        self.queues: dict[str, RootQueue] = {}
        self.dormant: dict[str, QueueRecord] = {}  # queues whose domain is not loaded
        self.replication_factor = len(definition.nodes) // 2 + 1

    # -- start ------------------------------------------------------------------------------------------------------

    def start(self, ledger: MetadataLedger, files: list[PartitionFiles], durability: Durability, cache_bytes: int,
              now: float, wall: int) -> None:
        """Recover everything and become leader and primary of all."""
        self.ledger = ledger
        log = f"Cluster ({self.name})"
        ledger.open()
        recovered = [self._recover(index, each, now, wall) for index, each in enumerate(files)]
        self.report.info(f"{log}: Transitioning to leader in the Cluster FSM.")
        ledger.become_leader(len(files), wall,
                             used_leases={index: each.lease for index, each in enumerate(recovered)})
        self.report.info(f"#ELECTOR_INFO: leader: [{self.node_name}, {self.node_id}], LSN: [ electorTerm = {ledger.term} "
                         f"sequenceNumber = {ledger.sequence} ], transitioning status from PASSIVE to ACTIVE")
        self.report.info(f"{log} onClusterLeader: new leader: [{self.node_name}, {self.node_id}], leader status: ACTIVE")
        for index, each in enumerate(recovered):
            partition = Partition(index, self.node_id, files[index], each, durability, cache_bytes)
            self.partitions.append(partition)
            partition.activate(ledger.state.partitions[index].lease, wall)
            partition.committed = COMMITTED_ALL if self.has_quorum else partition.position
            self.report.info(f"{log} afterPartitionPrimaryAssignment: Partition [{index}]: new primary: "
                             f"[{self.node_name}, {self.node_id}], primary status: E_ACTIVE")
        self._match(recovered, wall)
        self.report.info(f"{log}: Recovery for all partitions is complete. Summary: "
                         f"{sum(len(queue.messages) for each in recovered for queue in each.queues.values())} "
                         f"outstanding message(s) in {len(self.dormant)} queue(s)")
        self.report.info(f"{log}: Recovery succeeded. Transitioning self node to AVAILABLE.")
        self.report.info(f"{log}: Transitioning to AVAILABLE.")

    @property
    def node_name(self) -> str:
        """Our name in the cluster."""
        return next((node.name for node in self.definition.nodes if node.id == self.node_id), str(self.node_id))

    def _recover(self, index: int, files: PartitionFiles, now: float, wall: int) -> RecoveredPartition:
        known = {record.key: record for record in self.ledger.state.queues.values() if record.partition_id == index}
        return recover(files, known, wall - int(HISTORY_SECONDS), wall - now, index, wall)

    def _match(self, recovered: list[RecoveredPartition], wall: int) -> None:
        """Join what the ledger and the partitions say about queues."""
        found: dict[bytes, tuple[int, StoredQueue]] = {
            key: (index, queue) for index, each in enumerate(recovered) for key, queue in each.queues.items()}
        for uri, record in self.ledger.state.queues.items():
            found.pop(record.key, None)
            self.dormant[uri] = record
        for key, (index, queue) in found.items():
            if queue.messages and queue.uri and queue.uri not in self.ledger.state.queues:
                self.report.alarm("RECOVERY", f"Cluster ({self.name}): queue '{queue.uri}' was not in the metadata; "
                                              f"registered again with its {len(queue.messages)} message(s)")
                record = QueueRecord(queue.uri, key, index, {app.app_id: app.key for app in queue.apps.values()})
                self._change(self.ledger.adopt_queue, record, wall)
                self.dormant[queue.uri] = record
            else:
                self.report.alarm("RECOVERY", f"Cluster ({self.name}): queue key {key.hex().upper()} in partition "
                                              f"[{index}] is unknown to the metadata; its deletion was completed")
                self._record(self.partitions[index].delete_queue, key, None, wall)

    def adopt_domain(self, domain: Domain, now: float, wall: int) -> None:
        """A domain was loaded: its dormant queues come to life."""
        for uri in [uri for uri in self.dormant if parse_uri(uri).qualified_domain == domain.name]:
            self._revive(domain, self.dormant.pop(uri), now, wall)

    def _revive(self, domain: Domain, record: QueueRecord, now: float, wall: int) -> None:
        partition = self.partitions[record.partition_id]
        store = partition.state.queues.get(record.key)
        if store is None:
            try:
                store = partition.create_queue(record.key, record.uri, list(record.apps.items()), wall)
            except PartitionUnavailable as error:
                self.report.error(f"Cluster ({self.name}): queue '{record.uri}' cannot be used: {error}")
                self.dormant[record.uri] = record
                return
        queue = self._make(domain, record.uri, store, partition, now)
        queue.register_apps(first_order=0)
        queue.restore()
        self.reconcile_apps(queue, wall)

    def _make(self, domain: Domain, uri: str, store: StoredQueue, partition: Partition,
              now: float) -> RootQueue:
        queue = RootQueue(uri, parse_uri(uri).queue, store, domain, partition, self._context, now)
        self.queues[uri] = queue
        domain.adopt_queue(queue)
        return queue

    @property
    def has_quorum(self) -> bool:
        """Whether this node alone is as many as the replication factor asks for."""
        return self.replication_factor <= 1

    def set_replication_factor(self, factor: int) -> None:
        """How many nodes must have a record before it counts as committed; without a quorum nothing more is."""
        had_quorum, self.replication_factor = self.has_quorum, factor
        for partition in self.partitions:
            if self.has_quorum:
                partition.committed = COMMITTED_ALL
            elif had_quorum:
                partition.committed = partition.position

    # -- queues -----------------------------------------------------------------------------------------------------

    def queue_count(self, domain_name: str) -> int:
        """Registered queues of a domain."""
        prefix = f"bmq://{domain_name}/"
        return sum(uri.startswith(prefix) for uri in self.ledger.state.queues)

    def create_queue(self, domain: Domain, uri: str, now: float, wall: int) -> RootQueue:
        """Assign and create a queue that does not exist; raises Refused."""
        self._check_queue_limit(domain)
        app_ids = domain.settings.app_ids if domain.mode == "fanout" else (DEFAULT_APP_ID,)
        try:
            record = self.ledger.assign_queue(uri, app_ids, self._timer_ns(), wall)
        except (LedgerUnavailable, LedgerRefused) as error:
            raise Refused(Category.E_UNKNOWN, str(error), -208) from None
        partition = self.partitions[record.partition_id]
        try:
            store = partition.create_queue(record.key, uri, list(record.apps.items()), wall)
        except PartitionUnavailable as error:
            self._change(self.ledger.unassign_queue, uri, wall)
            raise Refused(Category.E_UNKNOWN, f"Unknown queue: {uri} ({error})", -10) from None
        queue = self._make(domain, uri, store, partition, now)
        queue.register_apps()
        apps = " ".join(f'[ "{app_id}" {key.hex().upper()} ]' for app_id, key in record.apps.items())
        self.report.info(f"Cluster ({self.name}): Assigned queue: [ uri = {uri} queueKey = {record.key.hex().upper()} "
                         f"partitionId = {record.partition_id} appIdInfos = [ {apps} ] stateOfAssignment = ASSIGNED ]")
        return queue

    def _check_queue_limit(self, domain: Domain) -> None:
        limit = domain.max_queues
        if not limit:
            return
        count = self.queue_count(domain.name) + 1
        if count > limit:
            self.report.panic("DOMAIN_QUEUE_LIMIT_FULL", f"domain 'bmq://{domain.name}' has reached the maximum number of "
                                                         f"queues (limit: {limit}).")
            raise Refused(Category.E_REFUSED, "maximum number of queues reached", _LIMIT_REACHED)
        if count == limit * 4 // 5:
            self.report.alarm("DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK",
                              f"domain 'bmq://{domain.name}' has reached the 80% watermark limit for the number of queues "
                              f"(current: {count}, limit: {limit}).")

    def delete_queue(self, queue: RootQueue, wall: int) -> None:
        """Unassign and delete a queue that is empty and unused."""
        if not self._change(self.ledger.unassign_queue, queue.uri, wall):
            return
        self._record(queue.partition.delete_queue, queue.key, None, wall)
        del self.queues[queue.uri]
        queue.domain.queues.pop(queue.name, None)
        self.report.info(f"Cluster ({self.name}): Unassigned queue: [ uri = {queue.uri} queueKey = "
                         f"{queue.key.hex().upper()} partitionId = {queue.partition_id} ]")

    def reconcile_apps(self, queue: RootQueue, wall: int) -> None:
        """Make the apps of a fanout queue those of its domain's settings."""
        if queue.mode != "fanout":
            return
        wanted = queue.domain.settings.app_ids
        present = [app.app_id for app in queue.active]
        added = [app_id for app_id in wanted if app_id not in present]
        removed = [app_id for app_id in present if app_id not in wanted]
        if not added and not removed:
            return
        if not self._change(self.ledger.update_apps, queue.uri, added, removed, self._timer_ns(), wall):
            return
        record = self.ledger.state.queues[queue.uri]
        self.report.info(f"Cluster ({self.name}): Advisory applied: unregister appIds {_listed(removed)} and register "
                         f"appIds {_listed(added)} for domain = [{queue.domain.name}]")
        try:
            for app_id in removed:
                queue.remove_app(queue.apps[app_id], wall)
                self.report.info(f"Unregistered appId '{app_id}' for queue '{queue.uri}'")
            if added:
                queue.partition.add_apps(queue.key, queue.uri, [(each, record.apps[each]) for each in added], wall)
                queue.register_apps()
                for app_id in added:
                    queue.apps[app_id].alarmed = False
                    self.report.info(f"Registered appId '{app_id}' for queue '{queue.uri}'")
        except PartitionUnavailable as error:
            self.report.error(f"Cluster ({self.name}): the apps of queue '{queue.uri}' are not changed in its partition: "
                              f"{error}")

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _change(self, change: Callable[..., object], *args: object) -> bool:
        """Change the ledger, or say why not; then everything stays as it was."""
        try:
            change(*args)
        except (LedgerUnavailable, LedgerRefused) as error:
            self.report.error(f"Cluster ({self.name}): {error}")
            return False
        return True

    def _record(self, append: Callable[..., None], *args: object) -> None:
        try:
            append(*args)
        except PartitionUnavailable as error:
            self.report.error(f"Cluster ({self.name}): {error}")

    def report_alarms(self) -> None:
        """Tell the operator what the partitions met since the last call."""
        for partition in self.partitions:
            for category, text in partition.take_alarms():
                (self.report.panic if category == "PARTITION_READONLY" else self.report.alarm)(category, text)


def _listed(app_ids: Iterable[str]) -> str:
    return f"[{' '.join(app_ids)}]"


def is_collectable(queue: RootQueue, now: float, keepalive_s: float, started: float) -> bool:
    """Whether a queue may be deleted: empty, open nowhere, and so for `keepalive_s` seconds.

    `started`: since when a queue that nobody has opened yet counts as unused. Times are of the monotonic clock.
    """
    if queue.handles or queue.messages or queue.domain.opening:
        return False
    return now - (queue.idle_since if queue.idle_since is not None else started) >= keepalive_s
