"""What brokers behind us are told of their CONFIRMs: how many of them, since the connection was made, the cluster has.

They keep each until then, and send it again where they go on when we are lost. Nobody waits for it: it is told now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from bmqtwist.storage.partition import Partition

TELL_S = 0.05  # after it is known, at the latest
LOST_S = 10.0  # after a partition is led elsewhere they have noticed that, and sent again what nobody knows of


class ReceiptLog:
    """The CONFIRMs of one connection. `taken`: how many there were; `unsafe`: (how many up to here, what the partitions have
    to have committed), in order."""

    __slots__ = ("taken", "unsafe")

    def __init__(self) -> None:
        self.taken = 0
        self.unsafe: deque[tuple[int, list[tuple[Partition, int]]]] = deque()


class Receiver(Protocol):
    """A broker behind us that wants to be told."""

    receipt_log: ReceiptLog

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
        log = client.receipt_log
        log.taken += count
        log.unsafe.append((log.taken, [(each, each.position) for each in self._partitions
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
        safe, log = 0, client.receipt_log
        while log.unsafe and self._is_safe(log.unsafe[0][1], now):
            safe = log.unsafe.popleft()[0]
        if not log.unsafe:
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
