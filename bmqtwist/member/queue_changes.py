"""Changes of queues in a cluster's metadata: creation, deletion, apps. They take effect at their commit.

Called by `broker/access.py` (first open of a queue), `daemon/housekeeping.py` (unused queues) and admin commands.
`proposals.py` takes each change to the leader; the changes are validated in `cluster/changes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from bmqtwist import alarms
from bmqtwist.cluster.changes import AssignQueue, Change, UnassignQueue, UpdateApps
from bmqtwist.cluster.log_events import LEDGER_FAILURE, LIMIT_REACHED, NotDone, Outcome
from bmqtwist.cluster.state import ClusterState, QueueRecord
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import DEFAULT_APP_ID, parse_uri
from bmqtwist.member.interfaces import ReplicatedCluster
from bmqtwist.member.metadata import OnDecided
from bmqtwist.queue.lifecycle import QueueChange
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.root import Domain, RootQueue
from bmqtwist.relay.relays import RESPONSE_MARGIN_S
from bmqtwist.storage.partition import PartitionUnavailable

_NO_PARTITION = -202


class QueueChanges:
    """Queue changes of one cluster at one node."""

    def __init__(self, cluster: ReplicatedCluster) -> None:
        self._cluster, self._report, self._title = cluster, cluster.report, f"Cluster ({cluster.name})"
        self.pending_opens: dict[str, list[Callable[[RootQueue | Refused], None]]] = {}  # callbacks by URI

    def queue_count(self, domain_name: str) -> int:
        """Return the number of a domain's queues in the metadata, including proposed ones."""
        return self._expected.domain_counts.get(domain_name, 0)

    def is_new(self, uri: str) -> bool:
        """Return whether an open would create the queue, as far as this node knows."""
        return uri not in self._expected.queues and uri not in self.pending_opens

    def is_changing(self, queue: RootQueue) -> bool:
        """Return whether a change of the queue is uncommitted; an open must then use `create_queue`."""
        return queue.lifecycle.is_deleting or self._cluster.metadata.log.is_pending(queue.uri)

    def create_queue(self, domain: Domain, uri: str, now: float, wall: int,
                     done: Callable[[RootQueue | Refused], None]) -> None:
        """Find a queue after the commit of its pending changes, or create it; `done` receives the queue or the refusal."""
        refused = self._cluster.refusal_of(uri)
        if refused is not None:
            done(refused)
            return
        waiting = self.pending_opens.get(uri)
        if waiting is not None:
            waiting.append(done)
            return
        self.pending_opens[uri] = [done]
        app_ids = domain.settings.app_ids if domain.mode == QueueMode.FANOUT else (DEFAULT_APP_ID,)
        self.propose(AssignQueue(uri, tuple(app_ids), self._cluster.timer_ns()),
                     partial(self._on_assigned, domain, uri, now), wall)

    @property
    def _expected(self) -> ClusterState:
        """The metadata with all proposed changes that this node knows."""
        leads = self._cluster.proposals is None or self._cluster.leadership.leads
        return self._cluster.metadata.log.head if leads else self._cluster.metadata.state

    def propose(self, change: Change, on_decided: OnDecided, wall: int) -> None:
        """Propose a change of the metadata here or at the leader; times out as an open does."""
        cluster = self._cluster
        if cluster.proposals is not None:
            timeout = cluster.definition.queue_operations.open_timeout_ms / 1000 + RESPONSE_MARGIN_S
            cluster.proposals.propose(change, on_decided, wall, timeout)
            return
        refused = self.refusal(change)
        if refused is not None:
            on_decided(refused, wall)
        else:
            self._cluster.metadata.propose(change, on_decided, wall)

    def refusal(self, change: Change) -> NotDone | None:
        """Return the leader's refusal of a change, or None."""
        if not isinstance(change, AssignQueue) or change.uri in self._expected.queues:
            return None
        try:
            self._check_queue_limit(self._cluster.domains.get_or_load(parse_uri(change.uri).qualified_domain))
        except Refused as refused:
            return NotDone(refused.message, False, refused.code)
        return None

    def _on_assigned(self, domain: Domain, uri: str, now: float, outcome: Outcome, wall: int) -> None:
        """Handle the outcome of a queue's assignment."""
        if isinstance(outcome, NotDone):
            category = Category.E_REFUSED if outcome.code != LEDGER_FAILURE else (
                Category.E_UNKNOWN if self._cluster.proposals is None else Category.E_NOT_READY)
            self.answer_opens(uri, Refused(category, outcome.reason, outcome.code))
            return
        record: QueueRecord | None = outcome.value
        known = self._cluster.queues.get(uri)
        if record is None:
            self.refuse_unassigned(uri)
            return
        if known is not None and known.key == record.key:
            self.answer_opens(uri, known)
            return
        if uri in self._cluster.activations:
            self._cluster.activations.open(uri)
            return
        refused = self._cluster.refusal_of(uri)
        if refused is not None:
            self.answer_opens(uri, refused)
            return
        partition = self._cluster.partitions[record.partition_id]
        try:
            store = partition.queues.create(record.key, uri, list(record.apps.items()), wall)
        except PartitionUnavailable as error:
            reason = Refused(Category.E_UNKNOWN, f"Unknown queue: {uri} ({error})", -10)
            self.propose(UnassignQueue(uri, record.key), partial(self._on_creation_reverted, uri, reason), wall)
            return
        queue = self._cluster.make_queue(domain, uri, store, partition, now)
        queue.register_apps()
        self._cluster.take_over_relay(queue, now, wall)
        apps = " ".join(f'[ "{app_id}" {key.hex().upper()} ]' for app_id, key in record.apps.items())
        self._report.info(f"{self._title}: Assigned queue: [ uri = {uri} queueKey = {record.key.hex().upper()} "
                          f"partitionId = {record.partition_id} appIdInfos = [ {apps} ] stateOfAssignment = ASSIGNED ]")
        self.report_created(record)
        self.answer_opens(uri, queue)

    def refuse_unassigned(self, uri: str) -> None:
        """Refuse the opens of a queue that was unassigned meanwhile."""
        text = f"Queue '{uri}' was deleted before it was opened"
        self.answer_opens(uri, Refused(Category.E_NOT_READY, text, _NO_PARTITION))

    def _on_creation_reverted(self, uri: str, reason: Refused, outcome: Outcome, wall: int) -> None:
        """Refuse the opens of a queue whose record could not be stored, after its unassignment."""
        self.log_failure(outcome, wall)
        self.answer_opens(uri, reason)

    def answer_opens(self, uri: str, found: RootQueue | Refused) -> None:
        """Answer all pending opens of a queue."""
        for done in self.pending_opens.pop(uri):
            done(found)

    def _check_queue_limit(self, domain: Domain) -> None:
        limit = domain.max_queues
        if not limit:
            return
        count = self.queue_count(domain.name) + 1
        if count > limit:
            self._report.alarm(
                alarms.DOMAIN_QUEUE_LIMIT_FULL,
                f"domain 'bmq://{domain.name}' has reached the maximum number "
                f"of queues (limit: {limit}).")
            raise Refused(Category.E_REFUSED, "maximum number of queues reached", LIMIT_REACHED)
        if count == limit * 4 // 5:
            self._report.alarm(alarms.DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK,
                              f"domain 'bmq://{domain.name}' has reached the 80% watermark limit for the number of queues "
                              f"(current: {count}, limit: {limit}).")

    def delete_queue(self, queue: RootQueue, wall: int) -> None:
        """Unassign and delete an empty, unused queue; an open that comes meanwhile creates a new one."""
        if not queue.lifecycle.is_deleting:
            queue.step_lifecycle(QueueChange.DELETION_PROPOSED, self._cluster.loop.now, "it is empty and unused")
            self.propose(UnassignQueue(queue.uri, queue.key), partial(self._on_unassigned, queue), wall)

    def _on_unassigned(self, queue: RootQueue, outcome: Outcome, wall: int) -> None:
        """Delete a queue whose unassignment is committed; reopen it if the unassignment failed."""
        self.log_failure(outcome, wall)
        if isinstance(outcome, NotDone):
            queue.step_lifecycle(QueueChange.DELETION_FAILED, self._cluster.loop.now, outcome.reason)
        else:
            self.delete_unassigned(queue, wall)

    def delete_unassigned(self, queue: RootQueue, wall: int) -> None:
        """Delete an unassigned queue."""
        if self._cluster.queues.get(queue.uri) is not queue:
            return
        self._cluster.try_append(queue.partition.queues.delete, queue.key, wall)
        del self._cluster.queues[queue.uri]
        queue.step_lifecycle(QueueChange.UNASSIGNED, self._cluster.loop.now, "unassigned")
        self._report.info(f"{self._title}: Unassigned queue: [ uri = {queue.uri} queueKey = "
                          f"{queue.key.hex().upper()} partitionId = {queue.partition_id} ] by queueUnAssignmentAdvisory")
        self._report.record_event("queue", f"{queue.uri} is deleted", uri=queue.uri, partition=queue.partition_id,
                                  state="deleted")

    def reconcile_apps(self, queue: RootQueue, wall: int) -> None:
        """Propose the apps of the domain's settings for a fanout queue."""
        record = self._expected.queues.get(queue.uri)
        if queue.mode != QueueMode.FANOUT or record is None or record.key != queue.key:
            return
        wanted = queue.domain.settings.app_ids
        added = [app_id for app_id in wanted if app_id not in record.apps]
        removed = [app_id for app_id in record.apps if app_id not in wanted]
        if added or removed:
            change = UpdateApps(queue.uri, added, removed, self._cluster.timer_ns())
            self.propose(change, partial(self._on_updated, queue), wall)

    def _on_updated(self, queue: RootQueue, outcome: Outcome, wall: int) -> None:
        """Handle the outcome of a change of apps; another node may have become primary."""
        self.log_failure(outcome, wall)
        if not isinstance(outcome, NotDone) and self._cluster.queues.get(queue.uri) is queue:
            self.apply_apps(queue, outcome.value, wall)

    def apply_apps(self, queue: RootQueue, record: QueueRecord, wall: int) -> None:
        """Make the apps of a fanout queue and of its partition those of the metadata."""
        if queue.mode != QueueMode.FANOUT:
            return
        removed = [app for app in queue.active if record.apps.get(app.app_id) != app.key]
        kept = {app.app_id for app in queue.active if app not in removed}
        added = [(app_id, key) for app_id, key in record.apps.items() if app_id not in kept]
        if not added and not removed:
            return
        self._report.info(f"{self._title}: Advisory applied: unregister appIds "
                          f"{_listed(app.app_id for app in removed)} and register appIds "
                          f"{_listed(app_id for app_id, _ in added)} for domain = [{queue.domain.name}]")
        try:
            for app in removed:
                queue.remove_app(app, wall)
                self._report.info(f"Unregistered appId '{app.app_id}' for queue '{queue.uri}'")
            if added:
                queue.partition.queues.add_apps(queue.key, queue.uri, added, wall)
                queue.register_apps()
                for app_id, _ in added:
                    queue.apps[app_id].alarmed = False
                    self._report.info(f"Registered appId '{app_id}' for queue '{queue.uri}'")
        except PartitionUnavailable as error:
            self._report.error(f"{self._title}: the apps of queue '{queue.uri}' are not changed in its partition: {error}")

    def report_created(self, record: QueueRecord) -> None:
        """Add the creation to the node's event log."""
        self._report.record_event("queue", f"{record.uri} is created in Partition [{record.partition_id}]", uri=record.uri,
                         partition=record.partition_id, state="created")

    def log_failure(self, outcome: Outcome, wall: int) -> None:
        """Log the reason of a failed change."""
        if isinstance(outcome, NotDone):
            self._report.error(f"{self._title}: {outcome.reason}")


def _listed(app_ids: Iterable[str]) -> str:
    return f"[{' '.join(app_ids)}]"
