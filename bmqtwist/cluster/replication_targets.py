"""Replication targets: the nodes that receive records or images from this node, their receipts, and the commits that follow.

A record is committed once a majority has it durably, and the last record of that majority is of the primary's own lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from bmqtwist import alarms
from bmqtwist.cluster.partition_events import (
    Committed,
    Fed,
    Feed,
    FeedFailed,
    FeedImage,
    ImageLost,
    ReplicaReceipt,
    Say,
    Serve,
)
from bmqtwist.cluster.partition_standing import HEALED, STG2, PartitionStanding
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn, common_prefix
from bmqtwist.wire.cluster_schema import Keepalive, Pull

FLIGHT_BYTES_MAX = 4 << 20  # sent to one node and not yet received there; above it sending stops
FLIGHT_PARTS_MAX = 16  # the same limit for parts of an image


@dataclass(slots=True)
class Target:
    """A node that receives records. `behind`: as in `FeedImage`; `unreceived`: (last record, bytes) of each event without a
    receipt; `image`: an image is in progress, with `parts_sent` and `parts_taken`."""

    sent: Psn
    behind: Psn = NO_PSN
    matched: Psn = NO_PSN
    durable: Psn = NO_PSN
    unreceived: deque[tuple[Psn, int]] = field(default_factory=deque)
    unreceived_bytes: int = 0
    image: bool = False
    complete: bool = False  # all parts of the image were sent
    parts_sent: int = 0
    parts_taken: int = 0
    feed_pending: bool = False  # a Fed is expected
    paused_until: float = 0.0  # sending resumes at this time

    def begin_image(self, when: float = 0.0) -> None:
        """Begin an image for this node at the time `when`."""
        self.image, self.complete, self.feed_pending, self.paused_until = True, False, False, when
        self.parts_sent = self.parts_taken = 0

    def note_sent(self, last: Psn, size: int) -> None:
        self.sent = last
        self.unreceived.append((last, size))
        self.unreceived_bytes += size

    def note_taken(self, matched: Psn, durable: Psn, parts: int) -> None:
        self.matched, self.durable = max(self.matched, matched), max(self.durable, durable)
        self.parts_taken = min(max(self.parts_taken, parts), self.parts_sent)
        while self.unreceived and self.unreceived[0][0] <= self.matched:
            self.unreceived_bytes -= self.unreceived.popleft()[1]


class ReplicationTargets:
    """Targets of a primary; at a replica, the primary that pulls its log."""

    def __init__(self, standing: PartitionStanding) -> None:
        self._standing = standing
        self.by_node: dict[int, Target] = {}
        self._answered: dict[int, float] = {}  # node -> time of the newest Keepalive that it answered
        self._reported = NO_PSN  # PSN of the last Committed

    def clear(self) -> None:
        self.by_node.clear()
        self._answered.clear()

    def begin(self, node_id: int, theirs: LogSummary) -> None:
        """Send records to a replica from the end of the prefix common to both logs; without one, an image."""
        log = self._standing.log
        common = common_prefix(log.summary, theirs) or (theirs.last if log.offers(theirs.last) else None)
        target = self.by_node[node_id] = Target(common or NO_PSN, theirs.base)
        if common is None:
            self._start_image(node_id, target)  # the next keepalive asks for the parts received
        else:
            self.feed(node_id, target)
            self._standing.send(node_id, self.keepalive(target))

    def keepalive(self, target: Target) -> Keepalive:
        """Return the request for a receipt."""
        standing = self._standing
        return Keepalive(standing.node_id, standing.lease, None if target.image else target.sent, target.parts_sent,
                         standing.committed, int(standing.now * 1000))

    def feed(self, node_id: int, target: Target) -> None:
        """Send a node the next records, or the next part of an image, within its limit of unreceived data."""
        standing = self._standing
        log = standing.log
        if target.feed_pending or log.busy or standing.now < target.paused_until:
            return
        if target.image:
            if not target.complete and target.parts_sent - target.parts_taken < FLIGHT_PARTS_MAX:
                target.feed_pending = True
                standing.outputs.append(FeedImage(node_id, target.parts_sent, target.behind))
        elif not log.offers(target.sent):  # a compaction removed the records
            self._start_image(node_id, target)
        elif target.sent < log.written and target.unreceived_bytes < FLIGHT_BYTES_MAX:
            target.feed_pending = True
            standing.outputs.append(Feed(node_id, target.sent))

    def _start_image(self, node_id: int, target: Target) -> None:
        target.begin_image()
        target.feed_pending = True
        self._standing.outputs.append(FeedImage(node_id, 0, target.behind))

    def on_pull(self, event: Pull) -> None:
        standing = self._standing
        if standing.reject_stale(event) or event.sender != standing.primary or event.lease != standing.lease:
            return
        after, summary = event.after, standing.log.summary
        # this node does not know the primary's compactions: the image covers the whole log of this node
        target = self.by_node[event.sender] = Target(after or NO_PSN, after or summary.last)
        if after is None or not summary.contains(after):
            self._start_image(event.sender, target)
        else:
            self.feed(event.sender, target)

    def on_fed(self, event: Fed) -> None:
        target = self.by_node.get(event.node_id)
        if target is None:
            return
        target.feed_pending = False
        if event.last is None:
            if target.image:
                target.parts_sent += 1
                target.complete = event.final
        elif not target.image and event.last > target.sent:
            target.note_sent(event.last, event.size)
        else:
            return
        self.feed(event.node_id, target)

    def on_image_lost(self, event: ImageLost) -> None:
        target = self.by_node.get(event.node_id)
        if target is not None and target.image:
            self._start_image(event.node_id, target)

    def on_feed_failed(self, event: FeedFailed) -> None:
        """Handle unreadable records: send an image after `retry` seconds, since it may be unreadable, too."""
        self._standing.alarm(alarms.REPLICATION_READ_FAILED, event.reason)
        target = self.by_node.get(event.node_id)
        if target is not None:
            target.begin_image(self._standing.now + self._standing.timing.retry)

    def on_receipt(self, event: ReplicaReceipt) -> None:
        target = self.by_node.get(event.sender)
        if target is not None and event.lease == self._standing.lease:
            target.note_taken(event.matched, event.durable, event.parts)
            self.feed(event.sender, target)

    # -- commit ---------------------------------------------------------------------------------------------------------

    def replicated(self, available: Iterable[int]) -> tuple[Psn, Psn]:
        """Return the last PSN that is durable at one other node, and the last one that is durable at all connected nodes of
        `available`; without one, the committed PSN."""
        safe = {node_id: target.durable for node_id, target in self.by_node.items()}
        every = [safe.get(node_id, NO_PSN) for node_id in available if node_id in self._standing.up]
        return max(safe.values(), default=NO_PSN), min(every, default=self._standing.committed)

    def commit_messages(self, psn: Psn) -> list[Say]:
        """Return the messages that announce the commit to nodes where this record is not durable."""
        return [Say(node_id, self.keepalive(target)) for node_id, target in self.by_node.items() if target.durable < psn]

    @property
    def supported_until(self) -> float:
        """Time until which this node may be active if no further answer arrives."""
        standing = self._standing
        if len(standing.members) == 1:
            return float("inf")
        answered = sorted(self._answered.values(), reverse=True)
        needed = standing.majority - 1
        return answered[needed - 1] + standing.timing.lease if needed <= len(answered) else float("-inf")

    @property
    def is_supported(self) -> bool:
        return self.supported_until > self._standing.now

    def on_receipt_leading(self, event: ReplicaReceipt) -> None:
        """Handle the receipt of a replica at the primary: note its progress and advance the commit."""
        standing, target = self._standing, self.by_node.get(event.sender)
        if target is None or event.lease != standing.lease:
            return
        answered = self._answered.get(event.sender, 0.0)
        self._answered[event.sender] = max(answered, min(event.stamp / 1000, standing.now))
        if event.durable > target.durable or event.parts > target.parts_taken:
            standing.progressed_at = standing.now
        self.on_receipt(event)
        self.advance()

    def on_log_moved(self) -> None:
        """Handle a longer or more durable log of the primary: send records, advance the commit."""
        for node_id, target in self.by_node.items():
            self.feed(node_id, target)
        self.advance()

    def _durable_at(self, nodes: int) -> Psn:
        """Return the last record that is durable at `nodes` nodes if it is of the own lease, else NO_PSN."""
        durable = [self._standing.log.durable]
        for target in self.by_node.values():
            durable.append(target.durable)
        durable.sort(reverse=True)
        found = durable[nodes - 1] if nodes <= len(durable) else NO_PSN
        return found if found[0] == self._standing.lease else NO_PSN

    def advance(self) -> None:
        """Commit the records that a quorum has durably, if the last one is of the own lease."""
        standing = self._standing
        if not standing.has_begun:
            return
        if standing.log.durable[0] == standing.lease:
            standing.doubtful = False
        reached = self._durable_at(standing.majority)
        if reached > standing.committed:
            standing.committed = reached
            standing.progressed_at = standing.now
        reported = reached if standing.factor == standing.majority else self._durable_at(standing.factor)
        if reported > self._reported:
            self._reported = reported
            standing.outputs.append(Committed(reported))
        committed = standing.committed
        if standing.role is STG2 and committed >= standing.goal and self.is_supported:
            standing.change_role(HEALED, standing.node_id, f"record {committed[0]}-{committed[1]} is committed")
            standing.outputs.append(Serve(standing.lease, True, "everything is committed"))
