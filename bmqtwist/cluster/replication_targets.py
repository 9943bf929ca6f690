"""Replication targets: the nodes that receive records or images from this node, their receipts, and the commits that follow.

All records up to a record of the primary's own lease are committed once that record is durable at a majority. Part of
`partition_machine.py`, whose table calls the actions. `member/partition_logs.py: Feeding` reads the records and images that
the outputs name; `partition_reception.py` is the receiving side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from bmqtwist import alarms
from bmqtwist.cluster.partition_events import (
    Committed,
    ImageLost,
    ReplicaReceipt,
    SendCompleted,
    SendFailed,
    SendImagePart,
    SendMessage,
    SendRecords,
    SetActive,
)
from bmqtwist.cluster.partition_standing import HEALED, STG2, PartitionStanding
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn, common_prefix
from bmqtwist.storage.slot_file import Doubt
from bmqtwist.wire.cluster_schema import Keepalive, Pull

FLIGHT_BYTES_MAX = 4 << 20  # sent to one node without a receipt; above it sending stops
FLIGHT_PARTS_MAX = 16  # the same limit for parts of an image


@dataclass(slots=True)
class Target:
    """A node that receives records. `sent`: the last record sent; `matched`, `durable`: as in its last receipt;
    `unreceived`: (last record, bytes) of each event without a receipt; `image`: an image is being sent; `ends_after`: as in
    `SendImagePart`."""

    sent: Psn
    ends_after: Psn = NO_PSN
    matched: Psn = NO_PSN
    durable: Psn = NO_PSN
    unreceived: deque[tuple[Psn, int]] = field(default_factory=deque)
    unreceived_bytes: int = 0
    image: bool = False
    image_complete: bool = False  # all parts of the image were sent
    parts_sent: int = 0
    parts_received: int = 0
    send_pending: bool = False  # a SendCompleted is expected
    paused_until: float = 0.0  # sending resumes at this time

    def begin_image(self, when: float = 0.0) -> None:
        """Begin an image for this node at the time `when`."""
        self.image, self.image_complete, self.send_pending, self.paused_until = True, False, False, when
        self.parts_sent = self.parts_received = 0

    def on_sent(self, last: Psn, size: int) -> None:
        self.sent = last
        self.unreceived.append((last, size))
        self.unreceived_bytes += size

    def on_received(self, matched: Psn, durable: Psn, parts: int) -> None:
        self.matched, self.durable = max(self.matched, matched), max(self.durable, durable)
        self.parts_received = min(max(self.parts_received, parts), self.parts_sent)
        while self.unreceived and self.unreceived[0][0] <= self.matched:
            self.unreceived_bytes -= self.unreceived.popleft()[1]


class ReplicationTargets:
    """Targets of a primary. At a replica, the only target is a new primary that pulls this node's log."""

    def __init__(self, standing: PartitionStanding) -> None:
        self._standing = standing
        self.by_node: dict[int, Target] = {}
        self._answered: dict[int, float] = {}  # node -> time from which the lease that it has extended counts
        self._reported = NO_PSN  # PSN of the last Committed

    def clear(self) -> None:
        self.by_node.clear()
        self._answered.clear()

    def add(self, node_id: int, theirs: LogSummary) -> None:
        """Send records to a replica from now on, after the common prefix of both logs; without one, an image."""
        log = self._standing.log
        common = common_prefix(log.summary, theirs) or (theirs.last if log.can_send_after(theirs.last) else None)
        target = self.by_node[node_id] = Target(common or NO_PSN, theirs.base)
        if common is None:
            self._start_image(node_id, target)  # the next keepalive requests a receipt for the parts
        else:
            self.send_next(node_id, target)
            self._standing.send(node_id, self.keepalive(target))

    def keepalive(self, target: Target) -> Keepalive:
        """Return the message that requests a receipt."""
        standing = self._standing
        parts = target.parts_sent + (target.image and target.send_pending)  # the pending part leaves before this message
        return Keepalive(standing.node_id, standing.lease, None if target.image else target.sent, parts,
                         standing.committed, standing.stamp)

    def send_next(self, node_id: int, target: Target) -> None:
        """Send a node the next records, or the next part of an image, within its limit of unreceived data."""
        standing = self._standing
        log = standing.log
        if target.send_pending or log.busy or standing.now < target.paused_until:
            return
        if target.image:
            if not target.image_complete and target.parts_sent - target.parts_received < FLIGHT_PARTS_MAX:
                target.send_pending = True
                standing.outputs.append(SendImagePart(node_id, target.parts_sent, target.ends_after))
        elif not log.can_send_after(target.sent):  # a rollover removed the records
            self._start_image(node_id, target)
        elif target.sent < log.written and target.unreceived_bytes < FLIGHT_BYTES_MAX:
            target.send_pending = True
            standing.outputs.append(SendRecords(node_id, target.sent))

    def _start_image(self, node_id: int, target: Target) -> None:
        target.begin_image()
        target.send_pending = True
        self._standing.outputs.append(SendImagePart(node_id, 0, target.ends_after))

    def on_pull(self, event: Pull) -> None:
        standing = self._standing
        if standing.reject_stale(event) or event.sender != standing.primary or event.lease != standing.lease:
            return
        after, summary = event.after, standing.log.summary
        # the rollovers of the primary are unknown here: without a common record the image contains this node's whole log
        target = self.by_node[event.sender] = Target(after or NO_PSN, after or summary.last)
        if after is None or not summary.contains(after):
            self._start_image(event.sender, target)
        else:
            self.send_next(event.sender, target)

    def on_send_completed(self, event: SendCompleted) -> None:
        target = self.by_node.get(event.node_id)
        if target is None:
            return
        target.send_pending = False
        if event.last is None:
            if target.image:
                target.parts_sent += 1
                target.image_complete = event.final
        elif not target.image and event.last > target.sent:
            target.on_sent(event.last, event.size)
        else:
            return
        self.send_next(event.node_id, target)

    def on_image_lost(self, event: ImageLost) -> None:
        target = self.by_node.get(event.node_id)
        if target is not None and target.image:
            self._start_image(event.node_id, target)

    def on_send_failed(self, event: SendFailed) -> None:
        """Handle unreadable records: send an image instead, after `retry` seconds, because it may be unreadable, too."""
        self._standing.alarm(alarms.REPLICATION_READ_FAILED, event.reason)
        target = self.by_node.get(event.node_id)
        if target is not None:
            target.begin_image(self._standing.now + self._standing.timing.retry)

    def on_receipt(self, event: ReplicaReceipt) -> None:
        target = self.by_node.get(event.sender)
        if target is not None and event.lease == self._standing.lease:
            target.on_received(event.matched, event.durable, event.parts)
            self.send_next(event.sender, target)

    # -- commit ---------------------------------------------------------------------------------------------------------

    def replicated_psns(self, available: Iterable[int]) -> tuple[Psn, Psn]:
        """Return the last PSN that is durable at one other node, and the last one that is durable at all connected nodes of
        `available`; without one, the committed PSN."""
        durable = {node_id: target.durable for node_id, target in self.by_node.items()}
        every = [durable.get(node_id, NO_PSN) for node_id in available if node_id in self._standing.connected_nodes]
        return max(durable.values(), default=NO_PSN), min(every, default=self._standing.committed)

    def commit_messages(self, psn: Psn) -> list[SendMessage]:
        """Return the messages that report the commit of `psn` to nodes where this record is not durable."""
        return [SendMessage(node_id, self.keepalive(target)) for node_id, target in self.by_node.items()
                if target.durable < psn]

    @property
    def supported_until(self) -> float:
        """Time at which this primary becomes passive if no further answer arrives."""
        standing = self._standing
        voters = standing.electorate.voters
        needed = standing.majority - (standing.node_id in voters)
        if not needed:
            return float("inf")
        answered = sorted([moment for node_id, moment in self._answered.items() if node_id in voters], reverse=True)
        return answered[needed - 1] + standing.timing.lease if needed <= len(answered) else float("-inf")

    def _extend_lease(self, event: ReplicaReceipt) -> None:
        """Extend the lease from the time of the answered request, on slow links also by half of the round trip: other nodes
        wait for `lease_max` after a heartbeat that has arrived."""
        now, timing = self._standing.now, self._standing.timing
        sent_at = min(event.stamp / 1000, now)
        counts_from = sent_at + min((now - sent_at) / 2, timing.lease_max - timing.lease)
        self._answered[event.sender] = max(self._answered.get(event.sender, 0.0), counts_from)

    @property
    def is_supported(self) -> bool:
        return self.supported_until > self._standing.now

    def on_receipt_leading(self, event: ReplicaReceipt) -> None:
        """Handle the receipt of a replica at the primary: update its progress and advance the commit."""
        standing, target = self._standing, self.by_node.get(event.sender)
        if target is None or event.lease != standing.lease:
            return
        self._extend_lease(event)
        if event.durable > target.durable or event.parts > target.parts_received:
            standing.progressed_at = standing.now
        self.on_receipt(event)
        self.advance_commit()

    def on_log_advanced(self) -> None:
        """Handle new written or durable records of the primary: send records, advance the commit."""
        for node_id, target in self.by_node.items():
            self.send_next(node_id, target)
        self.advance_commit()

    def _durable_at(self, nodes: int) -> Psn:
        """Return the last record that is durable at `nodes` voters if it is of the own lease, else NO_PSN."""
        standing, durable = self._standing, list[Psn]()
        voters = standing.electorate.voters
        if standing.node_id in voters:
            durable.append(standing.log.durable)
        for node_id, target in self.by_node.items():
            if node_id in voters:
                durable.append(target.durable)
        durable.sort(reverse=True)
        found = durable[nodes - 1] if nodes <= len(durable) else NO_PSN
        return found if found[0] == standing.lease else NO_PSN

    def advance_commit(self) -> None:
        """Commit the records that are durable at a quorum, if the last one is of the own lease."""
        standing = self._standing
        if not standing.has_begun:
            return
        if standing.log.durable[0] == standing.lease:
            standing.doubt = Doubt.NONE
        reached = self._durable_at(standing.majority)
        if reached > standing.committed:
            standing.committed = reached
            standing.progressed_at = standing.now
        factor = max(standing.replication_factor, standing.majority)
        reported = reached if factor == standing.majority else self._durable_at(factor)
        if reported > self._reported:
            self._reported = reported
            standing.outputs.append(Committed(reported))
        committed = standing.committed
        if standing.role is STG2 and committed >= standing.goal and self.is_supported:
            standing.change_role(HEALED, standing.node_id, f"record {committed[0]}-{committed[1]} is committed")
            standing.outputs.append(SetActive(standing.lease, True, "everything is committed"))
