"""Confirm receipts: reports to a downstream broker of how many CONFIRMs of its connection are committed in the cluster.

The downstream broker keeps each CONFIRM until its receipt, and sends it to another node after the connection is lost. No
client waits for a receipt, so one receipt covers many CONFIRMs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from bmqtwist.storage.partition import Partition

RECEIPT_DELAY_S = 0.05  # delay of a receipt
TAKEOVER_S = 10.0  # after a change of primary: then downstream brokers have sent pending CONFIRMs to the new primary


class Receiver(Protocol):
    """A downstream broker with receipts. `confirm_count`: CONFIRMs of its connection; `uncommitted`: in order,
    (CONFIRM count, positions to be committed by partitions)."""

    confirm_count: int
    uncommitted: deque[tuple[int, list[tuple[Partition, int]]]]

    def send_confirm_receipt(self, count: int) -> None:
        """Send a receipt for the first `count` CONFIRMs of this connection."""


class ConfirmReceipts:
    """Receipts of one cluster. `partitions`: those of this node, a list that its owner updates. `later(seconds, action)`
    calls `action(now)` after a delay."""

    def __init__(self, later: Callable[[float, Callable[[float], None]], None],
                 partitions: Sequence[Partition] = ()) -> None:
        self._later, self._partitions = later, partitions
        self._waiting: dict[Receiver, None] = {}
        self._lost: dict[Partition, float] = {}  # partitions with pending CONFIRMs and another primary: time of the change
        self._due = False

    def taken(self, client: Receiver, count: int) -> None:
        """Count CONFIRMs of a downstream broker; their records are in the batches of partitions with this primary."""
        client.confirm_count += count
        client.uncommitted.append((client.confirm_count, [(each, each.position) for each in self._partitions
                                                     if each.is_primary and each.copies.committed < each.position]))
        self._waiting[client] = None
        self._schedule()

    def committed(self) -> None:
        """Schedule receipts after a commit."""
        if self._waiting:
            self._schedule()

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            self._later(RECEIPT_DELAY_S, self._send_all)

    def _send_all(self, now: float) -> None:
        self._due = False
        for client in list(self._waiting):
            self._send(client, now)

    def forget(self, client: Receiver) -> None:
        """Remove a downstream broker whose connection has ended."""
        self._waiting.pop(client, None)

    def _send(self, client: Receiver, now: float) -> None:
        safe, uncommitted = 0, client.uncommitted
        while uncommitted and self._is_committed(uncommitted[0][1], now):
            safe = uncommitted.popleft()[0]
        if not uncommitted:
            del self._waiting[client]
        if safe:
            client.send_confirm_receipt(safe)

    def _is_committed(self, needed: list[tuple[Partition, int]], now: float) -> bool:
        for partition, position in needed:
            if partition.is_primary:
                self._lost.pop(partition, None)
                if partition.copies.committed < position:
                    return False
            elif now - self._lost.setdefault(partition, now) < TAKEOVER_S:
                self._schedule()
                return False
        return True
