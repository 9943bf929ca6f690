"""Confirm receipts: which CONFIRMs they cover, and when they are sent."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from bmqtwist.cluster.partition_events import ReplicaReceipt
from bmqtwist.link.receipts import RECEIPT_DELAY_S, TAKEOVER_S, ConfirmReceipts
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.wire.cluster_schema import Keepalive


@dataclass(eq=False)
class FakePartition:
    """A fake partition with `position` and committed position."""

    position: int = 0
    committed: int = 0
    is_primary: bool = True

    @property
    def copies(self) -> FakePartition:
        """The partition itself, as it has the marks."""
        return self


@dataclass(eq=False)
class DownstreamBroker:
    """A downstream broker."""

    confirm_count: int = 0
    uncommitted: deque[Any] = field(default_factory=deque)
    sent: list[int] = field(default_factory=list)

    def send_confirm_receipt(self, count: int) -> None:
        self.sent.append(count)


class ReceiptsWithClock:
    """Scheduled calls under a virtual clock."""

    def __init__(self, partitions: list[FakePartition]) -> None:
        self.now, self._calls = 0.0, list[tuple[float, Callable[[float], None]]]()
        parts: Any = partitions
        self.receipts = ConfirmReceipts(lambda seconds, action: self._calls.append((self.now + seconds, action)), parts)

    def run(self, seconds: float) -> int:
        """Advance the time by `seconds`; return the number of calls."""
        until, count = self.now + seconds, 0
        while due := [each for each in self._calls if each[0] <= until]:
            first = min(due, key=lambda each: each[0])
            self._calls.remove(first)
            self.now, count = first[0], count + 1
            first[1](self.now)
        self.now = until
        return count


def test_one_receipt_covers_all_committed_confirms() -> None:
    partition, downstream = FakePartition(), DownstreamBroker()
    clock = ReceiptsWithClock([partition])
    for _ in range(5):
        partition.position += 2
        clock.receipts.on_confirms(downstream, 1)
    partition.committed = 6
    clock.receipts.on_commit()
    assert not downstream.sent, "the receipt is not urgent"
    assert clock.run(RECEIPT_DELAY_S) == 1 and downstream.sent == [3]
    assert clock.run(10) == 0, "no call is scheduled"
    partition.committed = 10
    clock.receipts.on_commit()
    clock.run(RECEIPT_DELAY_S)
    assert downstream.sent == [3, 5]
    clock.receipts.on_commit()
    assert clock.run(10) == 0


def test_each_downstream_broker_receives_a_receipt_for_its_own_confirms() -> None:
    partition, one, other, gone = FakePartition(), DownstreamBroker(), DownstreamBroker(), DownstreamBroker()
    clock = ReceiptsWithClock([partition])
    for client, count in ((one, 1), (other, 4), (gone, 2), (one, 1)):
        partition.position += count
        clock.receipts.on_confirms(client, count)
    clock.receipts.remove(gone)
    partition.committed = 7
    clock.run(RECEIPT_DELAY_S)
    assert (one.sent, other.sent, gone.sent) == ([1], [4], [])
    partition.committed = 8
    clock.receipts.on_commit()
    clock.run(RECEIPT_DELAY_S)
    assert (one.sent, other.sent, gone.sent) == ([1, 2], [4], [])


def test_confirms_of_a_partition_that_lost_its_lease_delay_the_receipt_until_the_take_over() -> None:
    here, lost, downstream = FakePartition(), FakePartition(), DownstreamBroker()
    clock = ReceiptsWithClock([here, lost])
    lost.position += 1
    clock.receipts.on_confirms(downstream, 1)
    here.position += 1
    clock.receipts.on_confirms(downstream, 1)
    here.committed, lost.is_primary = 1, False
    clock.receipts.on_commit()
    clock.run(TAKEOVER_S)
    assert not downstream.sent
    clock.run(2 * RECEIPT_DELAY_S)
    assert downstream.sent == [2]


@pytest.mark.parametrize("how", ["sent", "disconnected"])
def test_a_partition_that_was_replaced_is_released_with_its_last_receipt(how: str) -> None:
    """A node makes another object for each change of primary."""
    lost, downstream = FakePartition(), DownstreamBroker()
    partitions = [lost]
    clock = ReceiptsWithClock(partitions)
    lost.position += 1
    clock.receipts.on_confirms(downstream, 1)
    lost.is_primary = False
    clock.run(TAKEOVER_S / 2)
    if how == "sent":
        clock.run(TAKEOVER_S)
        assert downstream.sent == [1]
    else:
        clock.receipts.remove(downstream)
    partitions.clear()
    downstream.uncommitted.clear()
    released = weakref.ref(lost)
    del lost
    gc.collect()
    assert released() is None


def test_a_replica_receipt_is_urgent_unless_an_early_ack_or_another_replica_replaces_it() -> None:
    machine, receipt = SimpleNamespace(connected_nodes={1, 3}, leads=False), ReplicaReceipt(2, 5, (5, 7), (5, 7), 0, 0)
    hosted = HostedPartition.__new__(HostedPartition)
    hosted.machine, hosted.acked_early = machine, False  # type: ignore[assignment]
    assert hosted.is_urgent(receipt)
    hosted.acked_early = True
    assert hosted.is_urgent(Keepalive(2, 5, None, 0, (5, 7), 0))
    assert not hosted.is_urgent(receipt) and hosted.is_urgent(receipt), "once"
    machine.connected_nodes = {1}
    hosted.acked_early = True
    assert hosted.is_urgent(receipt), "without this receipt there is no commit"
