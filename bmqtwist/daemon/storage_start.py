"""Start of a storage directory: assesses it, creates the files that every directory has, writes its identity.

A directory that lost data gets a new incarnation before any other file changes, and its doubtful partitions are marked
before new file sets replace the lost ones; so a crash at any step leaves a directory that the next start assesses in the
same way. Called by `daemon/assemble.py` before the ledger is loaded; `storage/identity.py` has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bmqtwist import alarms
from bmqtwist.cluster.member_lists import is_single_change, list_differences
from bmqtwist.cluster.record_log import members_in
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.errors import LocalError
from bmqtwist.ids import make_storage_key
from bmqtwist.report import Report
from bmqtwist.storage.identity import (
    FoundStorage,
    IdentityFile,
    Part,
    StorageIdentity,
    StorageState,
    assess,
    random_id,
)
from bmqtwist.storage.ledger_file import LedgerFile, pack_ledger_header, read_ledger
from bmqtwist.storage.slot_file import Doubt, PromiseFile, SlotFile, StoredPromise, VoteFile
from bmqtwist.storage.store import Disk
from bmqtwist.wire.cluster_schema import ClusterStateRecord, LeaderAdvisory, MemberList

_JOURNAL = re.compile(r"bmq_(\d+)\.\d+_\d+\.bmq_journal")


@dataclass(slots=True)
class StorageFiles:
    """Files of one node's storage directory, opened. `vote`, `promises`: None in a cluster of one node."""

    disk: Disk
    location: str
    ledger: LedgerFile
    vote: VoteFile | None
    promises: PromiseFile | None

    @property
    def identity(self) -> IdentityFile:
        """The file of the directory's identity."""
        return IdentityFile(self.disk, self.location)


@dataclass(frozen=True, slots=True)
class StartedStorage:
    """Result of the start. `promises_unknown`: earlier promises of the node are unknown; `mistake`: how the configuration
    differs from the member list, so that the node waits until all configurations agree; empty = it does not differ."""

    identity: StorageIdentity
    promises_unknown: bool
    mistake: str


def start_storage(files: StorageFiles, definition: ClusterDefinition, node_id: int, chance: Callable[[], float],
                  wall: int, report: Report) -> StartedStorage:
    """Assess a directory and make it complete. Raises LocalError if the node must not use it, OSError."""
    title = f"Cluster ({definition.name})"
    wanted = StorageIdentity(definition.name, node_id, definition.partition_config.num_partitions, 0)
    records = [each.record for each in read_ledger(files.ledger.read_all()).entries]
    found = _find_storage(files, bool(records), _last_list(records))
    result = assess(found, wanted, lambda: random_id(chance))
    mistake, may_wait = _configuration_mistake(records, definition)
    if refusal := result.refusal or ("" if may_wait else mistake):
        raise LocalError(f"{title}: storage directory '{files.location}': {refusal}")
    identity = result.identity
    if mistake:
        report.alarm(alarms.OWN_CONFIGURATION_DIFFERS, "%s", f"{title}: {mistake}")
    if result.lost:
        report.alarm(alarms.STORAGE_LOST, "%s",
                     f"{title}: storage directory '{files.location}' has lost data of this node: {', '.join(result.lost)}. "
                     "The node copies them from the other members; until then it does not lead, and its votes do not count")
    # a directory of an earlier version, which is complete, gets its identity when all files are there
    is_written_last = found.identity is None and identity.state is StorageState.COMPLETE
    if result.is_renewed and not is_written_last:
        files.identity.write(identity)
    if files.vote is not None and not files.vote.has_value:
        files.vote.write((0, None))
    if files.promises is not None and (result.doubts or not files.promises.has_value):
        stored = list(files.promises.value)
        stored += [StoredPromise()] * (wanted.partitions - len(stored))
        files.promises.write([StoredPromise(each.lease, max(each.doubt, result.doubts.get(index, Doubt.NONE)))
                              for index, each in enumerate(stored)])
    if files.vote is not None and found.ledger is Part.MISSING:
        log_id = make_storage_key(title, random_id(chance))
        files.ledger.replace(log_id, pack_ledger_header(log_id), wall)
    if is_written_last or identity != found.identity and not result.is_renewed:
        files.identity.write(identity)
    promises_lost = identity.state is StorageState.FRESH or found.promises is not Part.PRESENT
    return StartedStorage(identity, promises_lost or bool(mistake), mistake)


def _configuration_mistake(records: Sequence[ClusterStateRecord], definition: ClusterDefinition) -> tuple[str, bool]:
    """Return why a node must not serve a cluster with this definition and these records in its ledger, empty if it may; and
    whether it may wait until the configurations of all nodes agree."""
    several, majority, quorum = len(definition.nodes) > 1, len(definition.nodes) // 2 + 1, definition.elector.quorum
    if several and 0 < quorum < majority:
        return f"elector.quorum is {quorum} and must be at least {majority}, a majority of the nodes, or 0", False
    members, is_forced = _last_list(records), any(_is_forced(each) for each in records[:1])
    partitions = definition.partition_config.num_partitions
    if members is None or is_forced or not (differences := list_differences(members, definition.members, partitions)):
        return "", False
    may_wait = several and partitions == members.partitions and is_single_change(members, definition.members)
    remedy = ("The node waits until all nodes of clusters.json are connected and have the same ones" if may_wait else
              "Nothing was changed")
    return (f"clusters.json differs from the members of the cluster in the metadata: {'; '.join(differences)}. {remedy}. "
            "Correct clusters.json; docs/operations.md says how members are added, removed and replaced"), may_wait


def _last_list(records: Sequence[ClusterStateRecord]) -> MemberList | None:
    return next((members for each in reversed(records) if (members := members_in(each)) is not None), None)


def _is_forced(record: ClusterStateRecord) -> bool:
    advisory = record.message.value
    return isinstance(advisory, LeaderAdvisory) and advisory.unsafe is not None


def _find_storage(files: StorageFiles, has_records: bool, members: MemberList | None) -> FoundStorage:
    identity, identity_file = files.identity.read()
    data = files.ledger.read_all()
    ledger = Part.DAMAGED if read_ledger(data).durable_lost else Part.PRESENT if data or files.vote is None else Part.MISSING
    was_alone = members is not None and len(members.nodes) == 1  # then the directory has neither vote nor promises
    vote, promises = (Part.PRESENT if was_alone and part is Part.MISSING else part
                      for part in (_read(files.vote), _read(files.promises)))
    journals = map(_JOURNAL.fullmatch, files.disk.names(files.location))
    return FoundStorage(identity, identity_file, ledger, has_records, members is not None, vote, promises, frozenset(
                        int(match[1]) for match in journals if match is not None))


def _read(file: SlotFile[Any] | None) -> Part:
    if file is None:
        return Part.PRESENT
    lost = file.read()[1]
    return Part.PRESENT if file.has_value else Part.DAMAGED if lost else Part.MISSING
