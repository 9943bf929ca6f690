"""The metadata ledger: every change of the cluster state is a record first.

    propose            append SNAPSHOT or UPDATE with the next LSN, sync; count the own acknowledgement
    quorum reached     append COMMIT with the LSN after it, sync; only now apply to the state
    start              from the last SNAPSHOT on apply everything, committed or not: what a quorum had written may
                       have been committed, and told to others, by the leader that died
    file full          a new file (SNAPSHOT of the state, pending records, the new record) is complete and synced
                       before the old one goes

An LSN is (term, sequence): a leader begins a new term with sequence 1, and records and COMMITs both take a number.
With a quorum of one, record and COMMIT are written and synced together.

A failed write leaves the state as it was; the next change starts a new file, since nobody can tell what the old one
ends with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bmqtwist.cluster.state import ClusterState, Primary, QueueRecord, StateMismatch, app_infos, partition_infos
from bmqtwist.errors import LocalError
from bmqtwist.ids import DEFAULT_APP_ID, DEFAULT_APP_KEY, make_storage_key, parse_uri
from bmqtwist.report import NullReport, Report
from bmqtwist.storage.ledger_format import LEDGER_HEADER_BYTES, pack_ledger_header, read_ledger
from bmqtwist.storage.store import LedgerFile
from bmqtwist.wire.cluster_events import ClusterStateRecord, LedgerRecordType, encode_cluster_state_record
from bmqtwist.wire.cluster_schema import (
    ClusterMessage,
    LeaderAdvisoryCommit,
    LeaderMessageSequence,
    PartitionPrimaryAdvisory,
    QueueAssignmentAdvisory,
    QueueInfo,
    QueueInfoUpdate,
    QueueUnAssignmentAdvisory,
    QueueUpdateAdvisory,
)

Lsn = tuple[int, int]  # term, sequence number

LEADER_IS_MASTER_ALL = "E_LEADER_IS_MASTER_ALL"
LEAST_ASSIGNED = "E_LEAST_ASSIGNED"


class LedgerUnavailable(LocalError):
    """The change could not be written and the state is as before; a restart may still find it in the file."""


class LedgerRefused(LocalError):
    """The change does not fit the state; nothing was written."""


@dataclass(slots=True)
class Pending:
    """A record that waits for its quorum; `nodes` have written it."""

    record: ClusterStateRecord
    nodes: set[int]


class MetadataLedger:
    """The ledger of one node. `state` is read freely; every change goes through the methods here.

    `max_bytes`: size at which a new file is begun; `name`: the node's, for making log ids; `quorum`: nodes that must
    have written a record, this one included.
    """

    def __init__(self, file: LedgerFile, node_id: int, name: str, max_bytes: int, quorum: int = 1,
                 algorithm: str = LEADER_IS_MASTER_ALL, report: Report | None = None) -> None:
        self.state = ClusterState()
        self.pending: dict[Lsn, Pending] = {}
        self.node_id, self.max_bytes, self.quorum, self.algorithm = node_id, max_bytes, quorum, algorithm
        self.term = self.sequence = 0
        self.size = 0  # bytes of the current file
        self.log_id = b""
        self._file, self._name = file, name
        self._report: Report = report if report is not None else NullReport()
        self._fresh_bytes = 0  # size of the current file when it was begun
        self._begin = True  # the next record needs a new file
        self._exists = False

    @property
    def lsn(self) -> Lsn:
        """Of the newest record."""
        return self.term, self.sequence

    def open(self) -> None:
        """Read the file and rebuild the state; never fails for what is in the file."""
        data = self._file.read_all()
        found = read_ledger(data)
        for text in found.alarms:
            self._report.alarm("CLUSTER", "%s: %s", self._name, text)
        if not data:
            return
        self._exists, self._begin, self.log_id = True, found.damaged, found.log_id
        records = [record for _, record in found.records]
        starts = [at for at, record in enumerate(records) if record.type is LedgerRecordType.SNAPSHOT]
        for record in records[starts[-1] if starts else 0:]:
            if record.type in (LedgerRecordType.SNAPSHOT, LedgerRecordType.UPDATE):
                self._load(record)
        if records:
            self.term, self.sequence = max((record.term, record.sequence_number) for record in records)
        self.size = found.end
        if found.end < len(data) and not found.damaged:
            self._file.truncate(found.end)

    def _load(self, record: ClusterStateRecord) -> None:
        try:
            self.state.apply(record.message)
        except StateMismatch as error:
            self._report.alarm("CLUSTER", "%s: record (%d, %d) of the ledger is left out: %s", self._name, record.term,
                               record.sequence_number, error)

    # -- leading --------------------------------------------------------------------------------------------------

    def become_leader(self, partitions: int, wall: int, candidates: Collection[int] | None = None,
                      keep: Collection[int] = (), used_leases: Mapping[int, int] | None = None) -> None:
        """Begin a new term with a SNAPSHOT that gives every partition its primary.

        `used_leases`: the highest lease found in each partition's files, which a lost ledger would not know.
        `candidates` may become primaries (None: this node alone); primaries that are among `keep` stay with their
        lease, all others get a lease one higher, even at the same node: a process never writes under the lease of
        its predecessor.
        """
        stray = sorted({queue.partition_id for queue in self.state.queues.values()} - set(range(partitions)))
        if stray:
            self._report.alarm("CLUSTER", "%s: queues are mapped to the partitions %s, but only %d are configured",
                               self._name, stray, partitions)
        snapshot = self.state.snapshot()
        primaries = self._primaries(range(partitions), candidates, keep)
        for number, used in (used_leases or {}).items():
            if primaries[number].lease <= used:
                primaries[number] = Primary(primaries[number].node_id, used + 1)
        snapshot.partitions = partition_infos(primaries)
        self.term, self.sequence = self.term + 1, 0
        self.pending.clear()
        self._publish(LedgerRecordType.SNAPSHOT, "leaderAdvisory", snapshot, wall)

    def assign_partitions(self, wall: int, candidates: Collection[int], keep: Collection[int]) -> list[int]:
        """While leading: replace the primaries that are not among `keep`; the ids of the partitions concerned."""
        primaries = self._primaries(sorted(self.state.partitions), candidates, keep)
        changed = {number: primary for number, primary in primaries.items()
                   if self.state.partitions[number] != primary}
        if changed:
            advisory = PartitionPrimaryAdvisory(LeaderMessageSequence(), partition_infos(changed))
            self._publish(LedgerRecordType.UPDATE, "partitionPrimaryAdvisory", advisory, wall)
        return list(changed)

    def _primaries(self, numbers: Iterable[int], candidates: Collection[int] | None,
                   keep: Collection[int]) -> dict[int, Primary]:
        numbers = list(numbers)
        known = self.state.partitions
        loads = dict.fromkeys(candidates or (self.node_id,), 0)
        for number in numbers:
            primary = known.get(number)
            if primary is not None and primary.node_id in keep and primary.node_id in loads:
                loads[primary.node_id] += 1
        primaries: dict[int, Primary] = {}
        for number in numbers:
            primary = known.get(number, Primary(-1, 0))
            if primary.node_id not in keep:
                node_id = self.node_id
                if self.algorithm == LEAST_ASSIGNED:
                    node_id = min(loads, key=lambda each: (loads[each], each))
                    loads[node_id] += 1
                primary = Primary(node_id, primary.lease + 1)
            primaries[number] = primary
        return primaries

    # -- queues ---------------------------------------------------------------------------------------------------

    def assign_queue(self, uri: str, app_ids: Sequence[str], timer_ns: int, wall: int) -> QueueRecord:
        """Give a queue a key and the partition with the fewest queues; one that has them already keeps them.

        `app_ids`: those of a fanout queue, else the default app alone, whose key is fixed; `timer_ns` makes keys
        differ from all made before.
        """
        self._settled(uri)
        known = self.state.queues.get(uri)
        if known is not None:
            return known
        if not self.state.partitions:
            raise LedgerRefused(f"queue {uri} cannot be placed: no partition has a primary yet")
        counts = self.state.queue_counts
        partition_id = min(self.state.partitions, key=lambda number: (counts.get(number, 0), number))
        pending = {info.key for each in self.pending.values() for info in _queues_of(each.record.message)}
        key = make_storage_key(uri, timer_ns, self.state.keys | pending if pending else self.state.keys)
        queue = QueueRecord(uri, key, partition_id, _app_keys(app_ids, {}, timer_ns))
        self._publish_assignment(queue, wall)
        return queue

    def adopt_queue(self, queue: QueueRecord, wall: int) -> None:
        """Register a queue that a partition holds and the ledger lost, with the key and apps it has there.

        LedgerRefused if its URI or key is registered, or its partition does not exist.
        """
        self._settled(queue.uri)
        if queue.uri in self.state.queues or queue.key in self.state.keys:
            raise LedgerRefused(f"queue {queue.uri} with key {queue.key.hex().upper()} is registered already")
        if queue.partition_id not in self.state.partitions:
            raise LedgerRefused(f"queue {queue.uri} is in partition {queue.partition_id}, which does not exist")
        self._publish_assignment(queue, wall)

    def _publish_assignment(self, queue: QueueRecord, wall: int) -> None:
        self._publish(LedgerRecordType.UPDATE, "queueAssignmentAdvisory",
                      QueueAssignmentAdvisory(LeaderMessageSequence(), [queue.info()]), wall)

    def unassign_queue(self, uri: str, wall: int) -> QueueRecord | None:
        """Forget a queue; the record it had, None if there was none."""
        self._settled(uri)
        queue = self.state.queues.get(uri)
        if queue is not None:
            node_id, lease = self.state.partitions.get(queue.partition_id, Primary(-1, 0))
            gone = QueueInfo(queue.uri, queue.key, queue.partition_id)
            self._publish(LedgerRecordType.UPDATE, "queueUnAssignmentAdvisory", QueueUnAssignmentAdvisory(
                LeaderMessageSequence(), queue.partition_id, lease, node_id, [gone]), wall)
        return queue

    def update_apps(self, uri: str, added: Sequence[str], removed: Sequence[str], timer_ns: int,
                    wall: int) -> QueueRecord:
        """Add and remove apps of a queue; all of it, or LedgerRefused."""
        self._settled(uri)
        queue = self.state.queues.get(uri)
        if queue is None:
            raise LedgerRefused(f"queue {uri} is not assigned")
        missing = [app_id for app_id in removed if app_id not in queue.apps]
        present = [app_id for app_id in added if app_id in queue.apps]
        if missing or present or len(set(added)) < len(added) or len(set(removed)) < len(removed):
            raise LedgerRefused(f"queue {uri} has the apps {list(queue.apps)}: cannot add {list(added)} and remove "
                                f"{list(removed)}")
        if not added and not removed:
            return queue
        new = _app_keys(added, queue.apps, timer_ns)
        update = QueueInfoUpdate(uri, queue.key, queue.partition_id, app_infos(new),
                                 app_infos({app_id: queue.apps[app_id] for app_id in removed}),
                                 parse_uri(uri).qualified_domain)
        self._publish(LedgerRecordType.UPDATE, "queueUpdateAdvisory",
                      QueueUpdateAdvisory(LeaderMessageSequence(), [update]), wall)
        apps = {app_id: key for app_id, key in queue.apps.items() if app_id not in removed}
        return QueueRecord(uri, queue.key, queue.partition_id, apps | new)

    def _settled(self, uri: str) -> None:
        """A queue changes one step at a time."""
        if any(info.uri == uri for each in self.pending.values() for info in _queues_of(each.record.message)):
            raise LedgerRefused(f"an earlier change of queue {uri} waits for its quorum")

    # -- records --------------------------------------------------------------------------------------------------

    def acknowledge(self, node_id: int, lsn: Lsn, wall: int) -> bool:
        """A follower has written a record: True if this committed it. Unknown and repeated ones count for nothing."""
        pending = self.pending.get(lsn)
        if pending is None:
            return False
        pending.nodes.add(node_id)
        if len(pending.nodes) < self.quorum:
            return False
        self._write([self._commit(lsn, wall)], wall)
        del self.pending[lsn]
        self.state.apply(pending.record.message)
        return True

    def _publish(self, kind: LedgerRecordType, choice: str, advisory: Any, wall: int) -> None:
        advisory.sequence_number = self._next()
        record = ClusterStateRecord(kind, self.term, self.sequence, wall, ClusterMessage(choice, advisory))
        pending, lsn = Pending(record, {self.node_id}), self.lsn
        if len(pending.nodes) >= self.quorum:
            self._write([record, self._commit(lsn, wall)], wall)
            self.state.apply(record.message)
        else:
            self._write([record], wall)
            self.pending[lsn] = pending

    def _next(self) -> LeaderMessageSequence:
        self.sequence += 1
        return LeaderMessageSequence(self.term, self.sequence)

    def _commit(self, lsn: Lsn, wall: int) -> ClusterStateRecord:
        advisory = LeaderAdvisoryCommit(self._next(), LeaderMessageSequence(*lsn))
        return ClusterStateRecord(LedgerRecordType.COMMIT, self.term, self.sequence, wall,
                                  ClusterMessage("leaderAdvisoryCommit", advisory))

    def _write(self, records: list[ClusterStateRecord], wall: int) -> None:
        """Append and sync, in a new file if need be; or LedgerUnavailable."""
        data = b"".join(map(encode_cluster_state_record, records))
        # a state that fills most of a file must not cause a new file with every change
        full = self.size + len(data) > max(self.max_bytes, 2 * self._fresh_bytes)
        try:
            if full or self._begin:
                self._roll(records[0], data, wall)
            else:
                self._file.append(data)
                self._file.sync()
                self.size += len(data)
        except OSError as error:
            self._begin = True
            self._report.alarm("CLUSTER", "%s: the ledger cannot be written: %s", self._name, error)
            raise LedgerUnavailable(f"the metadata ledger cannot be written: {error}") from error

    def _roll(self, first: ClusterStateRecord, data: bytes, wall: int) -> None:
        log_id = make_storage_key(self._name, wall * 1_000_000_000 + self.sequence, {self.log_id})
        head = b""
        if self._exists:
            snapshot = self.state.snapshot()
            snapshot.sequence_number = LeaderMessageSequence(first.term, first.sequence_number)
            state = ClusterStateRecord(LedgerRecordType.SNAPSHOT, first.term, first.sequence_number, wall,
                                       ClusterMessage("leaderAdvisory", snapshot))
            waiting = [each.record for each in self.pending.values()]
            head = b"".join(map(encode_cluster_state_record, [state, *waiting]))
        whole = pack_ledger_header(log_id) + head + data
        self._file.replace(log_id, whole, wall)
        self.log_id, self.size, self._fresh_bytes = log_id, len(whole), LEDGER_HEADER_BYTES + len(head)
        self._exists, self._begin = True, False


def _queues_of(message: ClusterMessage) -> Sequence[QueueInfo | QueueInfoUpdate]:
    """The queues a pending change is about. A SNAPSHOT changes partitions only."""
    advisory = message.value
    if isinstance(advisory, QueueUpdateAdvisory):
        return advisory.queue_updates
    return advisory.queues if isinstance(advisory, (QueueAssignmentAdvisory, QueueUnAssignmentAdvisory)) else ()


def _app_keys(app_ids: Sequence[str], taken: dict[str, bytes], timer_ns: int) -> dict[str, bytes]:
    """Keys for new apps, different from each other and from `taken`."""
    keys: dict[str, bytes] = {}
    for app_id in app_ids:
        if app_id == DEFAULT_APP_ID:
            keys[app_id] = DEFAULT_APP_KEY
        else:
            keys[app_id] = make_storage_key(app_id, timer_ns, {*taken.values(), *keys.values()})
    return keys
