"""Replication targets: the nodes that this node sends records or images to, and how much of them each has taken."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bmqtwist.cluster.partition_events import Fed, Feed, FeedFailed, FeedImage, ImageLost, Keepalive, Pull, ReplicaReceipt
from bmqtwist.cluster.partition_leases import Leases
from bmqtwist.cluster.partition_standing import PartitionStanding
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn, common_prefix

FLIGHT_BYTES_MAX = 4 << 20  # sent to one node and not taken yet; beyond it nothing more is sent to it
FLIGHT_PARTS_MAX = 16  # of an image, likewise


@dataclass(slots=True)
class Target:
    """A node that is fed. `behind`: as of `FeedImage`; `flight`: (last record, bytes) of what it has not taken yet;
    `parts`: of an image, sent and taken, `image` while one is under way."""

    sent: Psn
    behind: Psn = NO_PSN
    matched: Psn = NO_PSN
    durable: Psn = NO_PSN
    flight: deque[tuple[Psn, int]] = field(default_factory=deque)
    flying: int = 0
    image: bool = False
    complete: bool = False  # of an image, everything was sent
    parts_sent: int = 0
    parts_taken: int = 0
    feeding: bool = False  # a Fed is to come
    rests_until: float = 0.0  # it is sent nothing before

    def begin_image(self, when: float = 0.0) -> None:
        """It gets an image, from its beginning, not before that moment."""
        self.image, self.complete, self.feeding, self.rests_until = True, False, False, when
        self.parts_sent = self.parts_taken = 0

    def note_sent(self, last: Psn, size: int) -> None:
        """It was sent records up to `last`, of so many bytes."""
        self.sent = last
        self.flight.append((last, size))
        self.flying += size

    def note_taken(self, matched: Psn, durable: Psn, parts: int) -> None:
        """It has so much by now."""
        self.matched, self.durable = max(self.matched, matched), max(self.durable, durable)
        self.parts_taken = min(max(self.parts_taken, parts), self.parts_sent)
        while self.flight and self.flight[0][0] <= self.matched:
            self.flying -= self.flight.popleft()[1]


class ReplicationTargets:
    """Those of a primary, or the one primary that pulls from this node."""

    def __init__(self, standing: PartitionStanding, leases: Leases) -> None:
        self._standing, self._leases = standing, leases
        self.by_node: dict[int, Target] = {}

    def begin(self, node_id: int, theirs: LogSummary) -> None:
        """Feed a replica from the prefix that its log has in common with ours."""
        log = self._standing.log
        common = common_prefix(log.summary, theirs) or (theirs.last if log.offers(theirs.last) else None)
        target = self.by_node[node_id] = Target(common or NO_PSN, theirs.base)
        if common is None:
            self._start_image(node_id, target)  # the next keepalive tells how many parts it has by then
        else:
            self.feed(node_id, target)
            self._standing.say(node_id, self.keepalive(target))

    def keepalive(self, target: Target) -> Keepalive:
        """The question to a replica whether it has everything that it was sent."""
        standing = self._standing
        return Keepalive(standing.node_id, standing.lease, None if target.image else target.sent, target.parts_sent,
                         standing.committed, int(standing.now * 1000))

    def feed(self, node_id: int, target: Target) -> None:
        """Send a node the next records, or the next part of an image, if it lacks any and has taken enough of the last."""
        standing = self._standing
        log = standing.log
        if target.feeding or log.busy or standing.now < target.rests_until:
            return
        if target.image:
            if not target.complete and target.parts_sent - target.parts_taken < FLIGHT_PARTS_MAX:
                target.feeding = True
                standing.outputs.append(FeedImage(node_id, target.parts_sent, target.behind))
        elif not log.offers(target.sent):  # a compaction has come in between
            self._start_image(node_id, target)
        elif target.sent < log.written and target.flying < FLIGHT_BYTES_MAX:
            target.feeding = True
            standing.outputs.append(Feed(node_id, target.sent))

    def _start_image(self, node_id: int, target: Target) -> None:
        target.begin_image()
        target.feeding = True
        self._standing.outputs.append(FeedImage(node_id, 0, target.behind))

    def on_pull(self, event: Pull) -> None:
        """The primary lacks records that this node has."""
        standing = self._standing
        if self._leases.reject_stale(event) or event.sender != standing.primary or event.lease != standing.lease:
            return
        after, summary = event.after, standing.log.summary
        # what the primary has compacted is not known here: an image ends behind all that this node has
        target = self.by_node[event.sender] = Target(after or NO_PSN, after or summary.last)
        if after is None or not summary.holds(after):
            self._start_image(event.sender, target)
        else:
            self.feed(event.sender, target)

    def on_fed(self, event: Fed) -> None:
        """A Feed or FeedImage was sent."""
        target = self.by_node.get(event.node_id)
        if target is None:
            return
        target.feeding = False
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
        """An image begins anew."""
        target = self.by_node.get(event.node_id)
        if target is not None and target.image:
            self._start_image(event.node_id, target)

    def on_feed_failed(self, event: FeedFailed) -> None:
        """Records cannot be read: the node gets an image, after a while, since that may be unreadable as well."""
        self._standing.alarm(event.reason)
        target = self.by_node.get(event.node_id)
        if target is not None:
            target.begin_image(self._standing.now + self._standing.timing.retry)

    def on_receipt(self, event: ReplicaReceipt) -> None:
        """A node reports how much it has taken."""
        target = self.by_node.get(event.sender)
        if target is not None and event.lease == self._standing.lease:
            target.note_taken(event.matched, event.durable, event.parts)
            self.feed(event.sender, target)
