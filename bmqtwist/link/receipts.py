"""Confirm receipts: a downstream broker receives the number of CONFIRMs of its connection that are committed.

The downstream broker retains a CONFIRM until it has the receipt. If the connection is lost first, it sends the CONFIRM to
another node. No client waits for a receipt, so one receipt, sent RECEIPT_DELAY_S after a commit, covers many CONFIRMs.

`PeerSession` reports the CONFIRMs of a downstream broker, `on_committed` in `member/cluster.py` the commits of a member. At
a proxy, which stores nothing, `peers/downstreams.py` creates the receipts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from bmqtwist.storage.partition import Partition

RECEIPT_DELAY_S = 0.05  # from a commit to the receipt
TAKEOVER_S = 10.0  # after a change of primary, within which downstream brokers send pending CONFIRMs to the new primary


class ReceiptReceiver(Protocol):
    """A downstream broker that receives receipts. `confirm_count`: CONFIRMs of its connection; `uncommitted`: in order,
    (CONFIRM count, positions of partitions that must be committed)."""

    confirm_count: int
    uncommitted: deque[tuple[int, list[tuple[Partition, int]]]]

    def send_confirm_receipt(self, count: int) -> None:
        """Send a receipt for the first `count` CONFIRMs of this connection."""


class ConfirmReceipts:
    """Receipts of one cluster. `partitions`: of this node, a list that its owner updates; `call_later(seconds, action)`:
    calls `action(now)` after a delay."""

    def __init__(self, call_later: Callable[[float, Callable[[float], None]], None],
                 partitions: Sequence[Partition] = ()) -> None:
        self._call_later, self._partitions = call_later, partitions
        self._receivers: dict[ReceiptReceiver, None] = {}
        # partitions with uncommitted CONFIRMs that now have another primary: time of the change
        self._moved: dict[Partition, float] = {}
        self._is_scheduled = False

    def on_confirms(self, receiver: ReceiptReceiver, count: int) -> None:
        """Count CONFIRMs of a downstream broker, whose records were appended to partitions of this primary."""
        receiver.confirm_count += count
        positions = [(each, each.position) for each in self._partitions
                     if each.is_primary and each.copies.committed < each.position]
        receiver.uncommitted.append((receiver.confirm_count, positions))
        self._receivers[receiver] = None
        self._schedule()

    def on_commit(self) -> None:
        """Schedule receipts: records were committed."""
        if self._receivers:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_later(RECEIPT_DELAY_S, self._send_all)

    def _send_all(self, now: float) -> None:
        self._is_scheduled = False
        for receiver in list(self._receivers):
            self._send(receiver, now)
        self._drop_moved()

    def _drop_moved(self) -> None:
        """Drop the partitions that no receiver waits for: a node replaces these objects at a change of primary."""
        if self._moved:
            needed = {partition for receiver in self._receivers for _, each in receiver.uncommitted for partition, _ in each}
            self._moved = {partition: since for partition, since in self._moved.items() if partition in needed}

    def remove(self, receiver: ReceiptReceiver) -> None:
        """Remove a downstream broker whose connection has ended."""
        self._receivers.pop(receiver, None)
        self._drop_moved()

    def _send(self, receiver: ReceiptReceiver, now: float) -> None:
        committed, uncommitted = 0, receiver.uncommitted
        while uncommitted and self._is_committed(uncommitted[0][1], now):
            committed = uncommitted.popleft()[0]
        if not uncommitted:
            del self._receivers[receiver]
        if committed:
            receiver.send_confirm_receipt(committed)

    def _is_committed(self, needed: list[tuple[Partition, int]], now: float) -> bool:
        for partition, position in needed:
            if partition.is_primary:
                self._moved.pop(partition, None)
                if partition.copies.committed < position:
                    return False
            elif now - self._moved.setdefault(partition, now) < TAKEOVER_S:
                self._schedule()
                return False
        return True
