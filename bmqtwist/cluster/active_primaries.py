"""Active primaries of a cluster, as known to one member from their reports.

A report counts if the metadata have the same primary and lease. A report of a newer lease, which may arrive before the
change of the metadata, is stored until then. While this node cannot write its ledger, its metadata are out of date: then the
report of the newest lease counts (`trusts_reports`), so that its clients reach the primaries. Called by
`member/partition_runner.py`.
"""

from __future__ import annotations

from bmqtwist.cluster.state import Primary


class ActivePrimaries:
    """Active primaries of one cluster, at one member."""

    def __init__(self) -> None:
        self._appointed: dict[int, Primary] = {}  # partition -> its primary in the metadata
        self._active: dict[int, Primary] = {}  # partition -> its primary if that is active
        self.trusts_reports = False
        self._early_reports: dict[tuple[int, int], Primary] = {}  # (partition, node) -> report of a newer lease

    def find(self, index: int) -> Primary | None:
        """Return the active primary of a partition, or None."""
        if self.trusts_reports and self._early_reports:
            newest = max((early for key, early in self._early_reports.items() if key[0] == index), default=None,
                         key=lambda early: early.lease)
            if newest is not None:
                return newest
        return self._active.get(index)

    def appoint(self, index: int, primary: Primary) -> bool:
        """Set the primary of a partition from the metadata; return True if it has already reported that it is active."""
        self._appointed[index] = primary
        if self._active.get(index) not in (None, primary):
            del self._active[index]
        is_active = self._early_reports.get((index, primary.node_id)) == primary
        for key in [key for key, early in self._early_reports.items() if key[0] == index and early.lease <= primary.lease]:
            del self._early_reports[key]
        if is_active:
            self._active[index] = primary
        return is_active

    def set_active(self, index: int, primary: Primary, active: bool) -> bool:
        """Process a node's report that it is (not) active under its lease; return False if it contradicts the metadata."""
        known, key = self._appointed.get(index), (index, primary.node_id)
        if primary == known:
            if active:
                self._active[index] = primary
            else:
                self._active.pop(index, None)
            return True
        if known is not None and primary.lease <= known.lease:
            return False
        if active:
            self._early_reports[key] = primary
        elif self._early_reports.get(key) == primary:
            del self._early_reports[key]
        return True

    def remove_node(self, node_id: int) -> list[int]:
        """Drop the reports of a disconnected node; return the partitions of which it was the active primary."""
        for key in [key for key in self._early_reports if key[1] == node_id]:
            del self._early_reports[key]
        found = [index for index, primary in self._active.items() if primary.node_id == node_id]
        for index in found:
            del self._active[index]
        return found
