"""Messages that have come back from consumers, however many and in whatever order: the oldest goes out first."""

from __future__ import annotations

from heapq import heappop, heappush

from bmqtwist.storage.message import Message


class Returned(dict[bytes, Message]):
    """By GUID; put them in with `add`, look with `first`, take them out as of a dictionary. None of it depends on how many
    there are."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, bytes]] = []  # (order, GUID), those of messages that were taken out included

    def add(self, message: Message) -> None:
        """One more; a message that is here stays where it is."""
        if not self:
            self._heap.clear()
        if message.guid not in self:
            self[message.guid] = message
            heappush(self._heap, (message.order, message.guid))

    def first(self) -> Message | None:
        """The oldest one; None if there is none."""
        heap = self._heap
        while heap:
            message = self.get(heap[0][1])
            if message is not None and message.order == heap[0][0]:
                return message
            heappop(heap)
        return None
