"""Features of a cluster at one of its nodes: their check at the start, their activation, and the storage version.

    at the start         the storage version of the directory and the features in the ledger must be ones of this release
    every second         the leader proposes the features that are due (`cluster/feature_activation.py`)
    feature active       the storage version is written before this node uses the feature; older members are disconnected

`daemon/assemble.py` creates the object of each cluster; `member/metadata.py` calls `on_features` and `member/leadership.py`
`common`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bmqtwist.cluster.changes import ActivateFeatures
from bmqtwist.cluster.feature_activation import FeatureActivation
from bmqtwist.cluster.log_events import NotDone, Outcome
from bmqtwist.errors import LocalError
from bmqtwist.loop.loop import Loop
from bmqtwist.member.leadership import Leadership
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.storage.slot_file import StorageVersionFile
from bmqtwist.versions import REGISTRY, ActiveFeatures, Versions

_PERIOD_S = 1.0


class VersionRefused(LocalError):
    """This release must not use the storage directory."""


class ClusterFeatures:
    """Features of one cluster. `links`: None in a cluster of one node; `where`: the storage directory."""

    leadership: Leadership

    def __init__(self, name: str, where: str, versions: Versions, file: StorageVersionFile, loop: Loop, delay_s: float,
                 links: ClusterLinks | None) -> None:
        self._title, self._where, self.versions = f"Cluster ({name})", where, versions
        self._file, self._loop, self._links = file, loop, links
        self.activation = FeatureActivation(versions.features, delay_s)
        self.storage_version = 0
        self._proposed = False

    def open(self, is_new: bool) -> None:
        """Check the storage version of the directory; raises OSError, or VersionRefused before a file is changed. `is_new`:
        the directory has no metadata yet."""
        self.storage_version, _ = self._file.read()  # if it is lost, the features in the ledger set it again
        known = self.versions.storage
        if self.storage_version > known.newest:
            raise VersionRefused(
                f"{self._title}: the storage in '{self._where}' has version {self.storage_version}; this release, "
                f"{self.versions.release}, understands {known}: start the newer release that has written it")
        if self.storage_version < known.oldest and not is_new:
            raise VersionRefused(
                f"{self._title}: the storage in '{self._where}' has version {self.storage_version}; this release, "
                f"{self.versions.release}, understands {known}: first run the release before this one until its features "
                "are active")

    def on_features(self, active: ActiveFeatures) -> None:
        """Handle the features in the metadata, at the start and after a change; raises VersionRefused, OSError."""
        unknown = [name for name in active if name not in self.versions.features]
        if unknown:
            raise VersionRefused(
                f"{self._title}: the metadata in '{self._where}' use {', '.join(unknown)}, which this release, "
                f"{self.versions.release}, does not support: start the newer release that has activated it")
        needed = max(self.versions.storage.oldest, *(REGISTRY[name].storage for name in active), 0)
        if needed > self.storage_version:
            self._file.write(needed)
            self.storage_version = needed
        if self._links is not None:
            self._links.refuse_older_members()

    def start(self, now: float) -> None:
        """Start the timer."""
        self._loop.timers.every(now, _PERIOD_S, self._tick)

    def common(self) -> list[str]:
        """Return the features that all members have announced."""
        return self.activation.common(self._announced())

    def refusals(self) -> dict[str, str]:
        """Return the members that are refused for their versions, by name, with the reason."""
        links = self._links
        return {links.node_name(node_id): why for node_id, why in links.refusals.items()} if links is not None else {}

    def _announced(self) -> Sequence[Collection[str]] | None:
        return self._links.announced_features() if self._links is not None else []

    def _tick(self, now: float) -> None:
        metadata = self.leadership.metadata
        metadata.update_features()
        names = self.activation.due(now, self._announced(), metadata.state.features)
        if names and self.leadership.leads and not self._proposed:
            self._proposed = True
            metadata.propose(ActivateFeatures(names), self._on_decided, self._loop.wall(now))
            self._loop.performer.request_turn()

    def _on_decided(self, outcome: Outcome, wall: int) -> None:
        """Handle the outcome of a proposal; it is repeated if it failed."""
        self._proposed = False
        if isinstance(outcome, NotDone):
            self._loop.report.warn(f"{self._title}: features are not activated: {outcome.reason}")
