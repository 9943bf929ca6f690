"""Versions of this release: protocol between brokers, storage files, and the features of a cluster. Pure.

Members exchange the ranges of versions that they understand during negotiation (`peers/handshake.py`). Two members work
together if both ranges overlap: protocol and storage. A broker without the announcement has version 0 of both. Release N
understands what release N-1 writes: raise `newest` with a change that release N-1 cannot read, and `oldest` one release
later.

A *cluster feature* is a record or message that older releases do not understand. Each release announces the features that
it understands. A feature becomes active once all members have announced it (`cluster/feature_activation.py`); the metadata
record that, and from then on a member without the feature is refused. Code asks `ActiveFeatures.active` before it writes
such a record. A storage directory has the storage version that its active features need (`storage/slot_file.py`).

Called by `peers/links.py` (refusals) and `member/features.py` (activation, storage version).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bmqtwist import __version__

VERSIONS_EXTENSION = "BMQTWIST_VERSIONS"  # feature group of the release and its ranges of versions
MEMBER_EXTENSION = "BMQTWIST"  # feature group of the cluster features that a broker understands
ACTIVE_EXTENSION = "BMQTWIST_ACTIVE"  # feature group of the cluster features that are active at a broker
_RELEASE_CHARS_MAX = 32
_FEATURES_MAX = 64  # active features of a peer that are compared
_RANGE = re.compile(r"(PROTOCOL|STORAGE)_([0-9]{1,9})_([0-9]{1,9})")
_RELEASE = re.compile(rf"RELEASE_([A-Za-z0-9.+]{{1,{_RELEASE_CHARS_MAX}}})")


class VersionRange(NamedTuple):
    """Versions that a release understands, both ends included; it writes the newest."""

    oldest: int
    newest: int

    def overlaps(self, other: VersionRange) -> bool:
        """Return whether a version is in both ranges."""
        return max(self.oldest, other.oldest) <= min(self.newest, other.newest)

    def __str__(self) -> str:
        return f"{self.newest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


@dataclass(frozen=True, slots=True)
class ClusterFeature:
    """Declaration of a cluster feature. `protocol`, `storage`: first versions that include it."""

    name: str
    protocol: int
    storage: int
    meaning: str


DURABLE_VOTE, METADATA_LOG, FEATURE_RECORDS, MEMBER_LIST = "DURABLE_VOTE", "METADATA_LOG", "FEATURE_RECORDS", "MEMBER_LIST"
REGISTRY = {each.name: each for each in (
    ClusterFeature(DURABLE_VOTE, 0, 0, "votes are durable before they are sent"),
    ClusterFeature(METADATA_LOG, 0, 0, "metadata are replicated by `metadataLogMessage`"),
    ClusterFeature(FEATURE_RECORDS, 1, 1, "SNAPSHOT records contain the active features"),
    ClusterFeature(MEMBER_LIST, 1, 1, "records contain the cluster id, the members, and the incarnation of their storage"),
)}


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions that one release understands. `features`: names of cluster features."""

    release: str
    protocol: VersionRange
    storage: VersionRange
    features: tuple[str, ...]

    def announcement(self) -> str:
        """Return the feature groups that announce these versions."""
        return (f"{MEMBER_EXTENSION}:{','.join(self.features)};{VERSIONS_EXTENSION}:RELEASE_{self.release},"
                f"PROTOCOL_{self.protocol.oldest}_{self.protocol.newest},"
                f"STORAGE_{self.storage.oldest}_{self.storage.newest}")

    def __str__(self) -> str:
        return f"{self.release or 'unknown'} with protocol version {self.protocol} and storage version {self.storage}"


OWN = Versions(__version__, VersionRange(0, 1), VersionRange(0, 1), tuple(REGISTRY))
BASELINE = tuple(each.name for each in REGISTRY.values() if each.protocol <= OWN.protocol.oldest)  # always active


class ActiveFeatures(tuple[str, ...]):
    """Names of the features that the metadata record as active, sorted. Features of BASELINE are active without a record."""

    __slots__ = ()

    def active(self, name: str) -> bool:
        """Return whether this node may write the records and messages of a feature."""
        return name in BASELINE or name in self

    def extended(self, names: Iterable[str]) -> ActiveFeatures:
        """Return these features and further ones."""
        return ActiveFeatures(sorted({*self, *names}))


def active_announcement(active: Collection[str]) -> str:
    """Return the feature group, with its separator, that announces the active features; empty without any."""
    return f";{ACTIVE_EXTENSION}:{','.join(active)}" if active else ""


def announced_versions(features: Mapping[str, Sequence[str]]) -> Versions:
    """Return the versions in the features of another broker; 0 for a version that is missing or malformed."""
    ranges, release = {"PROTOCOL": VersionRange(0, 0), "STORAGE": VersionRange(0, 0)}, ""
    for name in features.get(VERSIONS_EXTENSION, ()):
        if found := _RANGE.fullmatch(name):
            ranges[found[1]] = VersionRange(int(found[2]), int(found[3]))
        elif found := _RELEASE.fullmatch(name):
            release = found[1]
    return Versions(release, ranges["PROTOCOL"], ranges["STORAGE"], tuple(features.get(MEMBER_EXTENSION, ())))


def version_conflict(ours: Versions, theirs: Versions) -> str:
    """Describe why two brokers have no common version, with both versions; empty if they have."""
    for name, mine, its in (("protocol", ours.protocol, theirs.protocol), ("storage", ours.storage, theirs.storage)):
        if not mine.overlaps(its):
            return f"no common {name} version: its release is {theirs}, that of this node is {ours}"
    return ""


def member_conflict(ours: Versions, own_active: Collection[str], features: Mapping[str, Sequence[str]]) -> str:
    """Describe why a broker with these features cannot be a member beside this node; empty if it can.

    Each of both must understand the features that are active at the other one.
    """
    theirs = announced_versions(features)
    conflict = version_conflict(ours, theirs)
    if conflict:
        return conflict
    lacks = [name for name in (*BASELINE, *own_active) if name not in theirs.features]
    if lacks:
        return (f"it does not support {', '.join(lacks)}, which this cluster uses: its release is {theirs}, that of this "
                f"node is {ours}")
    unknown = [name for name in features.get(ACTIVE_EXTENSION, ())[:_FEATURES_MAX] if name and name not in ours.features]
    if unknown:
        return (f"it uses {', '.join(unknown)}, which this node does not support: its release is {theirs}, that of this "
                f"node is {ours}")
    return ""
