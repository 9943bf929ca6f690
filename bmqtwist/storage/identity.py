"""Identity of a storage directory: the file `bmqtwist_identity`, and the assessment of the directory at the start.

A directory gets a random *incarnation* when a node uses it first, and another one when it has lost data that the node has
acknowledged or promised. The member list of the cluster has the incarnation of each member, so the other members detect a
replaced disk and a lost file (`cluster/electorate.py`).

The file is JSON, for operators, and is replaced as a whole: written under a temporary name, synced, renamed. A new
incarnation is written before anything else in the directory changes; the files that must exist are created before the node
connects. So a directory with an identity has a ledger, a vote, promises and all file sets, or it has lost them.

`assess` is pure. Called by `daemon/storage_start.py`; `member/storage_standing.py` writes the changes of a running node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from bmqtwist.storage.slot_file import Doubt
from bmqtwist.storage.store import Disk

IDENTITY_FILE = "bmqtwist_identity"
_TEMPORARY = ".new"
_VERSION = 1


class StorageState(Enum):
    """State of a node's storage, as the node itself knows it."""

    FRESH = "new: it has stored nothing yet"
    COMPLETE = "it has all that it has acknowledged"
    VOTE_LOST = "only its vote is lost"
    LOST = "data that it has acknowledged are lost"


class Part(Enum):
    """State of a file that the assessment considers."""

    PRESENT = "present"
    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class StorageIdentity:
    """Content of the file. `partitions`: number of file sets that must exist; `cluster_id`: 0 = of no cluster yet;
    `previous`: incarnation before the loss of the vote."""

    cluster: str
    node_id: int
    partitions: int
    incarnation: int
    state: StorageState = StorageState.FRESH
    cluster_id: int = 0
    previous: int = 0

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({
            "version": _VERSION, "cluster": self.cluster, "nodeId": self.node_id, "partitions": self.partitions,
            "incarnation": id_text(self.incarnation), "state": self.state.name, "clusterId": id_text(self.cluster_id),
            "previous": id_text(self.previous)}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> StorageIdentity | None:
        """Return the identity in a file, None if it is unreadable."""
        try:
            tree = json.loads(data)
            return cls(str(tree["cluster"]), int(tree["nodeId"]), int(tree["partitions"]), int(tree["incarnation"], 16),
                       StorageState[tree["state"]], int(tree["clusterId"], 16), int(tree["previous"], 16))
        except (ValueError, KeyError, TypeError):
            return None


def id_text(number: int) -> str:
    """Return the text of a cluster id or an incarnation."""
    return f"{number:016X}"


def random_id(chance: Callable[[], float]) -> int:
    """Return a random number of 63 bits, not 0, for a cluster or an incarnation."""
    return int(chance() * (1 << 31)) << 32 | int(chance() * (1 << 32)) | 1


class IdentityFile:
    """The identity file of one directory. Methods raise OSError."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk, self._path, self._directory = disk, f"{directory}/{IDENTITY_FILE}", directory

    def read(self) -> tuple[StorageIdentity | None, Part]:
        """Return the identity, and whether the file is there."""
        if IDENTITY_FILE not in self._disk.names(self._directory):
            return None, Part.MISSING
        file = self._disk.open(self._path)
        try:
            found = StorageIdentity.decode(file.read(0, file.size()))
        finally:
            file.close()
        return found, Part.DAMAGED if found is None else Part.PRESENT

    def write(self, identity: StorageIdentity) -> None:
        """Replace the file; return when it is durable."""
        if IDENTITY_FILE + _TEMPORARY in self._disk.names(self._directory):
            self._disk.remove(self._path + _TEMPORARY)
        file = self._disk.create(self._path + _TEMPORARY)
        try:
            file.write(0, [identity.encode()])
            file.sync()
        finally:
            file.close()
        self._disk.rename(self._path + _TEMPORARY, self._path)
        self._disk.sync_directory(self._directory)


@dataclass(frozen=True, slots=True)
class FoundStorage:
    """Content of a storage directory. `ledger_records`: the ledger has records; `has_members`: one of them is a member list;
    `vote`, `promises`: PRESENT in a cluster of one node, which has neither; `file_sets`: partitions with a JOURNAL."""

    identity: StorageIdentity | None
    identity_file: Part
    ledger: Part
    ledger_records: bool
    has_members: bool
    vote: Part
    promises: Part
    file_sets: frozenset[int]


@dataclass(slots=True)
class Assessment:
    """Result of an assessment. `identity`: to use from now on; `is_renewed`: it has a new incarnation; `doubts`: about
    the logs of partitions; `lost`: names of lost files; `refusal`: why the node must not use the directory."""

    identity: StorageIdentity
    is_renewed: bool = False
    doubts: Mapping[int, Doubt] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    refusal: str = ""


def assess(found: FoundStorage, wanted: StorageIdentity, incarnation: Callable[[], int]) -> Assessment:
    """Assess a directory. `wanted`: as configured; `incarnation`: returns a new one."""
    known = found.identity
    if known is not None and (known.cluster, known.node_id) != (wanted.cluster, wanted.node_id):
        return Assessment(known, refusal=(
            f"it belongs to node {known.node_id} of cluster '{known.cluster}', and the configuration is that of node "
            f"{wanted.node_id} of cluster '{wanted.cluster}'. Nothing was changed. Correct `location` or clusters.json; to "
            "give the directory to this node, move its content away"))
    everything = range(wanted.partitions)
    if known is None:
        state = _state_without_identity(found)
        lost = [] if state is StorageState.FRESH or state is StorageState.COMPLETE else _lost_parts(found)
        fresh = replace(wanted, incarnation=incarnation(), state=state)
        return Assessment(fresh, True, dict.fromkeys(everything, Doubt.LOST) if state is StorageState.FRESH else {}, lost)
    lost, state = _lost_parts(found), known.state
    missing = frozenset(range(min(known.partitions, wanted.partitions))) - found.file_sets
    lost += [f"the file set of partition {index}" for index in sorted(missing)]
    if state is StorageState.FRESH and (missing if found.has_members else found.ledger_records):
        state = StorageState.COMPLETE  # the lost file sets may have had records; or the cluster has no member list yet
    renewed = found.ledger is not Part.PRESENT or found.vote is not Part.PRESENT
    is_new = state is StorageState.FRESH and not found.has_members
    doubts = dict.fromkeys(everything, Doubt.TAIL) if found.promises is not Part.PRESENT else {}
    doubts |= dict.fromkeys(everything if renewed and is_new else missing, Doubt.LOST)
    if renewed and not is_new:
        has_ledger = found.ledger is Part.PRESENT and state is not StorageState.LOST
        state = StorageState.VOTE_LOST if has_ledger else StorageState.LOST
    identity = replace(known, partitions=wanted.partitions, state=state)
    if renewed:
        previous = known.previous if known.state is StorageState.VOTE_LOST else known.incarnation
        identity = replace(identity, incarnation=incarnation(),
                           previous=previous if state is StorageState.VOTE_LOST else 0)
    return Assessment(identity, renewed, doubts, [] if is_new else lost)


def _state_without_identity(found: FoundStorage) -> StorageState:
    """Return the state of a directory without identity: an empty one, one of an earlier version, or one with losses."""
    if found.has_members or found.identity_file is Part.DAMAGED or found.ledger is Part.DAMAGED:
        return StorageState.LOST
    if not found.ledger_records and found.vote is Part.MISSING and found.promises is Part.MISSING:
        return StorageState.LOST if found.file_sets else StorageState.FRESH
    return StorageState.COMPLETE if found.vote is Part.PRESENT or not found.ledger_records else StorageState.VOTE_LOST


def _lost_parts(found: FoundStorage) -> list[str]:
    parts = {"the identity": found.identity_file, "the metadata ledger": found.ledger, "the vote": found.vote,
             "the promises": found.promises}
    return [f"{name} ({part.value})" for name, part in parts.items() if part is not Part.PRESENT]
