"""Redelivery list of an app: messages returned by lost consumers, in order of arrival.

`App` in `queue.py` has one; `handles.py` adds messages when a consumer is lost, and `delivery.py` delivers them first.
"""

from __future__ import annotations

from heapq import heappop, heappush

from bmqtwist.storage.message import Message


class RedeliveryList(dict[bytes, Message]):
    """Messages by GUID with a heap of their arrival orders: `add` takes O(log n), `first` and removal amortized O(log n)."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []  # (order, GUID), including removed messages

    def add(self, message: Message) -> None:
        """Add a message unless it is in the list."""
        if not self:
            self._heap.clear()
        if message.guid not in self:
            self[message.guid] = message
            heappush(self._heap, (message.order, message.guid))

    def first(self) -> Message | None:
        """Return the oldest message; None = empty."""
        heap = self._heap
        while heap:
            message = self.get(heap[0][1])
            if message is not None and message.order == heap[0][0]:
                return message
            heappop(heap)
        return None
