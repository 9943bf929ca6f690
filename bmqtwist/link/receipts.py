"""What brokers behind us are told of their CONFIRMs: how many of them, since the connection was made, the cluster has.

They keep each until then, and send it again where they go on when we are lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from bmqtwist.storage.partition import Partition


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
    """Of one cluster. `partitions`: of this node, whose list is kept up to date by whoever has it."""

    def __init__(self, partitions: Sequence[Partition] = ()) -> None:
        self._partitions = partitions
        self._waiting: dict[Receiver, None] = {}

    def taken(self, client: Receiver, count: int) -> None:
        """So many more CONFIRMs of a broker are in the batches of the partitions that are led here."""
        log = client.receipt_log
        log.taken += count
        log.unsafe.append((log.taken, [(each, each.position) for each in self._partitions
                                       if each.leading and each.committed < each.position]))
        self._tell(client)

    def committed(self) -> None:
        """The cluster has more of some partition."""
        for client in list(self._waiting):
            self._tell(client)

    def forget(self, client: Receiver) -> None:
        """Its connection is over."""
        self._waiting.pop(client, None)

    def _tell(self, client: Receiver) -> None:
        safe, log = 0, client.receipt_log
        while log.unsafe and all(not each.leading or each.committed >= position for each, position in log.unsafe[0][1]):
            safe = log.unsafe.popleft()[0]
        if log.unsafe:
            self._waiting[client] = None
        else:
            self._waiting.pop(client, None)
        if safe:
            client.confirms_are_safe(safe)
