"""Which primaries are active, as they say themselves: what counts is said by the node that the metadata name, under the
lease that they name. What is said under a newer lease may be ahead of the metadata: it is kept, and counts when they say
the same.
"""

from __future__ import annotations

from bmqtwist.cluster.state import Primary


class ActivePrimaries:
    """Of one cluster of several nodes, at one of them."""

    def __init__(self) -> None:
        self._named: dict[int, Primary] = {}  # partition -> its primary, as the metadata have it
        self._active: dict[int, Primary] = {}  # the same of those that are active
        self._early: dict[tuple[int, int], Primary] = {}  # (partition, node): what it says is ahead of the metadata

    def find(self, index: int) -> Primary | None:
        return self._active.get(index)

    def appoint(self, index: int, primary: Primary) -> bool:
        """The metadata name the primary of a partition; whether it is active, and was not known to be."""
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
        """A node says whether it is active under its lease; False: nobody has appointed it."""
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
        """A node is gone; the partitions whose active primary it was."""
        for key in [key for key in self._early if key[1] == node_id]:
            del self._early[key]
        found = [index for index, primary in self._active.items() if primary.node_id == node_id]
        for index in found:
            del self._active[index]
        return found
