"""Confirm receipts: how many CONFIRMs of a downstream broker, since its connection was made, are committed in the cluster.

The broker keeps each CONFIRM until then, and sends it to another node when the connection is lost. No client waits for a
receipt, so that one receipt stands for many CONFIRMs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from bmqtwist.storage.partition import Partition

TELL_S = 0.05  # after it is known, at the latest
LOST_S = 10.0  # after a partition is led elsewhere they have noticed that, and sent again what nobody knows of


class Receiver(Protocol):
    """A broker downstream that wants receipts. `confirm_count`: of its connection; `unsafe`: (the count up to here,
    what the partitions have to have committed), in order."""

    confirm_count: int
    unsafe: deque[tuple[int, list[tuple[Partition, int]]]]

    def confirms_are_safe(self, count: int) -> None:
        """So many that came on this connection are."""


class ConfirmReceipts:
    """Of one cluster. `partitions`: of this node, whose list is kept up to date by whoever has it. `later(seconds, action)`:
    action(now) is called after a while."""

    def __init__(self, later: Callable[[float, Callable[[float], None]], None],
                 partitions: Sequence[Partition] = ()) -> None:
        self._later, self._partitions = later, partitions
        self._waiting: dict[Receiver, None] = {}
        self._lost: dict[Partition, float] = {}  # partitions led elsewhere for which CONFIRMs wait: since when
        self._due = False

    def taken(self, client: Receiver, count: int) -> None:
        """So many more CONFIRMs of a broker are in the batches of the partitions that are led here."""
        client.confirm_count += count
        client.unsafe.append((client.confirm_count, [(each, each.position) for each in self._partitions
                                                     if each.leading and each.copies.committed < each.position]))
        self._waiting[client] = None
        self._look_later()

    def committed(self) -> None:
        """The cluster has more of some partition."""
        if self._waiting:
            self._look_later()

    def _look_later(self) -> None:
        if not self._due:
            self._due = True
            self._later(TELL_S, self._tell_all)

    def _tell_all(self, now: float) -> None:
        self._due = False
        for client in list(self._waiting):
            self._tell(client, now)

    def forget(self, client: Receiver) -> None:
        """Its connection is over."""
        self._waiting.pop(client, None)

    def _tell(self, client: Receiver, now: float) -> None:
        safe, unsafe = 0, client.unsafe
        while unsafe and self._is_safe(unsafe[0][1], now):
            safe = unsafe.popleft()[0]
        if not unsafe:
            del self._waiting[client]
        if safe:
            client.confirms_are_safe(safe)

    def _is_safe(self, needed: list[tuple[Partition, int]], now: float) -> bool:
        for partition, position in needed:
            if partition.leading:
                self._lost.pop(partition, None)
                if partition.copies.committed < position:
                    return False
            elif now - self._lost.setdefault(partition, now) < LOST_S:
                self._look_later()
                return False
        return True
