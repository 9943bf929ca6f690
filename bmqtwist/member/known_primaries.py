"""The primaries of a cluster's partitions as this node knows them: appointed by the metadata, and active as they say."""

from __future__ import annotations

from collections.abc import Iterable

from bmqtwist.cluster.active_primaries import ActivePrimaries
from bmqtwist.cluster.state import Primary
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import LineLimiter, Report
from bmqtwist.wire.cluster_schema import PrimaryStatus, PrimaryStatusAdvisory
from bmqtwist.wire.control import cluster_event


class KnownPrimaries:
    """`partitions`: how many there are."""

    def __init__(self, name: str, links: ClusterLinks, report: Report) -> None:
        self._name, self._links, self._report = name, links, report
        self.partitions = 0
        self._appointed: dict[int, Primary] = {}  # by partition, as was logged
        self.active = ActivePrimaries()
        self._lines = LineLimiter()
        self._was_available = self._has_been_available = False

    @property
    def all_active(self) -> bool:
        """Whether every partition has an active primary."""
        return all(self.active.find(index) is not None for index in range(self.partitions))

    def appoint(self, index: int, primary: Primary) -> None:
        """The metadata name the primary of a partition."""
        before = self._appointed.get(index)
        if before != primary:
            self._appointed[index] = primary
            self._log_appointment(index, before, primary)
        if self.active.named(index, primary):
            self._log_active(index, primary)

    def set_active(self, index: int, primary: Primary, active: bool, now: float) -> bool:
        """A primary says whether it is active; whether the partition has another active primary now, or none."""
        before = self.active.find(index)
        if not self.active.said(index, primary, active):
            if active and self._lines.admits(now):
                who = self._links.name(primary.node_id)
                self._report.warn(f"Cluster ({self._name}) Partition [{index}]: node {who} says that it is primary under "
                                  f"lease {primary.lease}, which nobody has given to it")
            return False
        if self.active.find(index) == before:
            return False
        if active:
            self._log_active(index, primary)
        return True

    def advise(self, nodes: Iterable[int], primary: Primary, index: int, status: PrimaryStatus) -> None:
        """Tell other nodes whether this node is active as the primary of a partition."""
        event = cluster_event(PrimaryStatusAdvisory(index, primary.lease, status))
        for node_id in nodes:
            self._links.send(node_id, event)

    def log_availability(self) -> None:
        """Log that all partitions have active primaries, when that is news."""
        before, self._was_available = self._was_available, self.all_active
        if self._was_available and not before:
            self._report.info(f"Cluster ({self._name}) is available")
            if self._has_been_available:
                self._report.info(f"Cluster ({self._name}) is back to healthy state")
            self._has_been_available = True

    def _log_appointment(self, index: int, before: Primary | None, primary: Primary) -> None:
        links = self._links
        old = "** NULL **" if before is None else links.name(before.node_id)
        self._report.info(
            f"Cluster [{self._name}]: Setting primary of Partition [{index}] to [{links.name(primary.node_id)}], "
            f"leaseId: [{primary.lease}], primaryStatus: [E_PASSIVE], oldPrimary: [{old}], oldLeaseId: "
            f"[{0 if before is None else before.lease}].")
        new, old = links.node_name(primary.node_id), links.node_name(before.node_id) if before else ""
        self._report.note("primary", f"Partition [{index}]: node {new} is appointed primary under lease {primary.lease}"
                          f"{old and f', after node {old}'}", cluster=self._name, partition=index, primary=new,
                          lease=primary.lease, primaryBefore=old or None)

    def _log_active(self, index: int, primary: Primary) -> None:
        if primary.node_id != self._links.node_id:
            self._report.info(
                f"Cluster ({self._name}) Partition [{index}]: Setting the status of primary: "
                f"{self._links.name(primary.node_id)}, primaryLeaseId: {primary.lease}, from E_PASSIVE to E_ACTIVE.")
