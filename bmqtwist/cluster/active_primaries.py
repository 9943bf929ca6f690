"""Active primaries, as they report themselves: a report counts if the metadata name the same node and lease.

A report of a newer lease may arrive before the metadata change: it is stored, and counts once the metadata name that lease.
"""

from __future__ import annotations

from bmqtwist.cluster.state import Primary


class ActivePrimaries:
    """Active primaries of one cluster, at one member."""

    def __init__(self) -> None:
        self._named: dict[int, Primary] = {}  # partition -> its primary in the metadata
        self._active: dict[int, Primary] = {}  # partition -> its primary if that is active
        self._early: dict[tuple[int, int], Primary] = {}  # (partition, node) -> report of a newer lease

    def find(self, index: int) -> Primary | None:
        return self._active.get(index)

    def appoint(self, index: int, primary: Primary) -> bool:
        """Set the primary of a partition from the metadata; return True if it has reported already that it is active."""
        self._named[index] = primary
        if self._active.get(index) not in (None, primary):
            del self._active[index]
        is_active = self._early.get((index, primary.node_id)) == primary
        for key in [key for key, early in self._early.items() if key[0] == index and early.lease <= primary.lease]:
            del self._early[key]
        if is_active:
            self._active[index] = primary
        return is_active

    def set_active(self, index: int, primary: Primary, active: bool) -> bool:
        """Handle a node's report that it is (not) active under its lease; return False if the metadata contradict it."""
        known, key = self._named.get(index), (index, primary.node_id)
        if primary == known:
            if active:
                self._active[index] = primary
            else:
                self._active.pop(index, None)
            return True
        if known is not None and primary.lease <= known.lease:
            return False
        if active:
            self._early[key] = primary
        elif self._early.get(key) == primary:
            del self._early[key]
        return True

    def remove_node(self, node_id: int) -> list[int]:
        """Drop the reports of a disconnected node; return the partitions of which it was the active primary."""
        for key in [key for key in self._early if key[1] == node_id]:
            del self._early[key]
        found = [index for index, primary in self._active.items() if primary.node_id == node_id]
        for index in found:
            del self._active[index]
        return found
