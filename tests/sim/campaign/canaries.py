"""Canaries: deliberate defects of the broker, each of which a campaign must detect.

`test_campaign.py` injects each of them; defects of the single broker's scenario are in `sim/mistakes.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bmqtwist.cluster.election_parts import Ballot
from bmqtwist.cluster.elector import Elector
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.metadata_log import MetadataLog
from bmqtwist.cluster.partition_reception import Reception
from bmqtwist.cluster.record_log import RecordLog
from bmqtwist.cluster.replication_targets import ReplicationTargets
from bmqtwist.cluster.take_over import TakeOver
from bmqtwist.daemon import storage_start
from bmqtwist.member import storage_standing
from bmqtwist.member.features import ClusterFeatures
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.member.repairs import Repairs
from bmqtwist.member.replication import Replication
from bmqtwist.peers import links
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.storage.exchange import Applier
from bmqtwist.storage.identity import Assessment, FoundStorage, Part
from bmqtwist.storage.image import ImageFiles
from bmqtwist.storage.message import Message
from bmqtwist.storage.payloads import PayloadReader
from bmqtwist.storage.psn import LogSummary, Psn, RecordRun, psns_of
from bmqtwist.storage.replica import ReplicatedPartition
from bmqtwist.storage.slot_file import PromiseFile, VoteFile
from bmqtwist.storage.state import StoredQueue
from bmqtwist.storage.store import JOURNAL_HEADER_BYTES
from bmqtwist.wire.cluster_schema import Entries, MemberList


def _vote_not_synced(self: VoteFile, value: Any) -> None:
    """Write nothing."""


def _vote_not_saved(self: Ballot) -> list[Any]:
    return []


def _logs_not_compared(self: Elector, request: Any) -> bool:
    return True


def _commit_alone(self: MetadataLog) -> None:
    """Commit all records that this node has, without a majority."""
    own = self.lsn
    if own[0] == self.term:
        self._committed = max(self._committed, own)
        for lsn in self._apply_committed():
            if lsn[0] == self.term and not self.is_only_member:
                self.leader_term.append_commit(lsn, self._wall)


_append_entries = MetadataLog._append_entries


def _previous_not_checked(self: MetadataLog, event: Entries) -> None:
    has_record = RecordLog.has_record
    try:
        RecordLog.has_record = lambda log, lsn: lsn == event.previous or has_record(log, lsn)  # type: ignore[method-assign]
        _append_entries(self, event)
    finally:
        RecordLog.has_record = has_record  # type: ignore[method-assign]


def _conflict_not_removed(self: RecordLog, count: int) -> list[Any]:
    return []


def _promise_not_synced(self: PromiseFile, promises: Any) -> None:
    """Write nothing."""


def _promise_not_checked(self: Reception, event: Any) -> bool:
    """Accept events of any lease."""
    self._standing.lease = event.lease
    return not self._standing.leads


_append_records, _append_run = Reception._append_records, ReplicatedPartition.append_run


def _records_not_compared(self: Reception, event: Any) -> None:
    holds = LogSummary.contains
    try:
        LogSummary.contains = lambda log, psn: psn == event.run.previous or holds(log, psn)  # type: ignore[method-assign]
        _append_records(self, event)
    finally:
        LogSummary.contains = holds  # type: ignore[method-assign]


def _records_appended_anywhere(self: ReplicatedPartition, run: RecordRun, behind: Psn, wall: int) -> None:
    first = next((psn for psn in psns_of(run.journal) if psn > behind), None)
    if first is not None and first[1] > 1:
        self.state.lease, self.state.sequence = first[0], first[1] - 1
    _append_run(self, run, behind, wall)


def _older_leases_counted(self: ReplicationTargets) -> None:
    standing = self._standing
    safe = sorted([standing.log.durable, *(target.durable for target in self.by_node.values())], reverse=True)
    if len(safe) >= standing.majority and safe[standing.majority - 1] > standing.committed:
        standing.committed = safe[standing.majority - 1]
    _advance(self)


_advance = ReplicationTargets.advance_commit


def _guids_not_deduplicated(self: Any, queue: StoredQueue, message: Message) -> None:
    _stored(self, queue, message)
    queue.history.remove({message.guid})


_stored, _begin_image_files = Applier.on_stored, ImageFiles.__init__


def _old_file_set_deleted_first(self: ImageFiles, partition: ReplicatedPartition, wall: int) -> None:
    _begin_image_files(self, partition, wall)
    journal = partition.files.current.journal.file
    journal.resize(JOURNAL_HEADER_BYTES, False)


def _pair_commits(self: HostedPartition) -> None:
    self.partition.copies.pair_commits = True


def _puts_not_stopped(self: RelayQueue) -> None:
    """Send PUTs to the current upstream without regard to its generation."""


def _checksum_not_verified(self: PayloadReader, message: Message) -> bytes:
    return message.payload if message.payload is not None else self.read_piece(message, 0, message.size)


def _damage_not_repaired(self: Repairs, now: float) -> None:
    """Do nothing."""


def _doubts_ignored(self: TakeOver) -> bool:
    return len(self.promises) + 1 >= self._standing.majority


_assess = storage_start.assess


def _lost_metadata_not_noticed(found: FoundStorage, *arguments: Any) -> Assessment:
    """Assess a directory with an identity as if its ledger and vote were there."""
    if found.identity is None:
        return _assess(found, *arguments)
    return _assess(replace(found, ledger=Part.PRESENT, vote=Part.PRESENT), *arguments)


def _lost_partitions_not_noticed(found: FoundStorage, *arguments: Any) -> Assessment:
    if found.identity is None:
        return _assess(found, *arguments)
    sets = frozenset(range(found.identity.partitions))
    return _assess(replace(found, promises=Part.PRESENT, file_sets=sets), *arguments)


def _one_list_decides(self: Electorate, nodes: Collection[int]) -> bool:
    """Count a quorum of the newest list alone."""
    return self._has_quorum(nodes, self._voters[-1])


def _any_node_counted(self: Electorate, nodes: Collection[int], voters: Mapping[int, int]) -> bool:
    """Count learners, removed nodes and lost storage."""
    return len(nodes) >= len(voters) // 2 + 1


def _configured_nodes_vote(self: Electorate, lists: Sequence[MemberList]) -> None:
    """Let the nodes of the configuration vote, whatever the lists say."""
    _set_lists(self, lists)
    known = {node_id: incarnation for voters in self._voters for node_id, incarnation in voters.items()}
    self._voters = [{node_id: known.get(node_id, self.storage(node_id).incarnation) for node_id in sorted(self.configured)}]


_set_lists = Electorate.set_lists


def _regression_not_noticed(electorate: Electorate, regressed: Mapping[int, int]) -> None:
    """Keep the storage in the list."""


def _versions_ignored(self: Any, *arguments: Any) -> str:
    return ""


# name -> class, method, and the defective method that replaces it
CANARIES: dict[str, list[tuple[Any, str, Any]]] = {
    "vote not persisted": [(VoteFile, "write", _vote_not_synced)],
    "vote not saved": [(Ballot, "save", _vote_not_saved)],
    "log check off": [(Elector, "is_eligible", _logs_not_compared)],
    "commit rule off": [(MetadataLog, "_advance_commit", _commit_alone)],
    "prev check off": [(MetadataLog, "_append_entries", _previous_not_checked)],
    "conflicts kept": [(RecordLog, "truncate", _conflict_not_removed)],
    "quorum check off": [(Elector, "quorum_until", property(lambda self: float("inf")))],
    "lost metadata not noticed": [(storage_start, "assess", _lost_metadata_not_noticed)],
    "lost partitions not noticed": [(storage_start, "assess", _lost_partitions_not_noticed)],
    "old copy not noticed": [(storage_standing, "without_storage", _regression_not_noticed)],
    "list of the file votes": [(Electorate, "set_lists", _configured_nodes_vote),
                               (storage_start, "_configuration_mistake", lambda records, definition: ("", False))],
    "one list decides": [(Electorate, "has_quorum", _one_list_decides)],
    "any node counted": [(Electorate, "_has_quorum", _any_node_counted)],
    "cluster id not compared": [(ClusterLinks, "_history_difference", lambda self, session: ""),
                                (storage_start, "_configuration_mistake", lambda records, definition: ("", False))],
    "versions not compared": [(links, "member_conflict", _versions_ignored), (ClusterFeatures, "open", _versions_ignored),
                              (ClusterFeatures, "on_features", _versions_ignored),
                              (ClusterLinks, "refuse_older_members", _versions_ignored),
                              (ClusterLinks, "_history_difference", lambda self, session: "")],
}
# Canaries that a campaign detects only with clients and partitions.
PARTITION_CANARIES: dict[str, list[tuple[Any, str, Any]]] = {
    "promise not persisted": [(PromiseFile, "write", _promise_not_synced)],
    "promise not checked": [(Reception, "_is_accepted", _promise_not_checked)],
    "previous record not checked": [(Reception, "_append_records", _records_not_compared),
                                    (ReplicatedPartition, "append_run", _records_appended_anywhere)],
    "older leases counted": [(ReplicationTargets, "advance_commit", _older_leases_counted)],
    "lease expiry ignored": [(ReplicationTargets, "supported_until", property(lambda self: float("inf")))],
    "deduplication lost": [(Applier, "on_stored", _guids_not_deduplicated)],
    "old set deleted first": [(ImageFiles, "__init__", _old_file_set_deleted_first)],
    "own copy ignored": [(Replication, "has_durable", lambda self, index, lease, psn: True)],
    "two copies of five": [(HostedPartition, "update_pair_commits", _pair_commits)],
    "checksum not verified": [(PayloadReader, "read", _checksum_not_verified)],
    "damage not repaired": [(Repairs, "_run", _damage_not_repaired)],
    "doubts ignored": [(TakeOver, "_has_quorum", _doubts_ignored)],
    "generation check off": [(RelayQueue, "suspend_posts", _puts_not_stopped)],
}


@contextmanager
def inject(name: str | None) -> Iterator[None]:
    """Context with one canary in the code; None = none."""
    if name is None:
        yield
        return
    replacements = PARTITION_CANARIES.get(name) or CANARIES[name]
    assert all(hasattr(owner, method) for owner, method, _ in replacements), "a canary replaces a method that does not exist"
    originals = [owner.__dict__.get(method) for owner, method, _ in replacements]  # None: the method is inherited
    for owner, method, defective in replacements:
        setattr(owner, method, defective)
    try:
        yield
    finally:
        for (owner, method, _), original in zip(replacements, originals, strict=True):
            if original is None:
                delattr(owner, method)
            else:
                setattr(owner, method, original)
