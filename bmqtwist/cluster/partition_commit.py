"""A primary's commit position, and its contact with a majority: they decide whether it is active.

A record is committed once a majority has it durably, and the last record of that majority is of the primary's own lease. A
primary that no majority has answered for the time of its lease is passive until everything it has is committed.
"""

from __future__ import annotations

from bmqtwist.cluster.partition_events import Committed, Prepare, ReplicaReceipt, Serve
from bmqtwist.cluster.partition_leases import Leases
from bmqtwist.cluster.partition_standing import HEALED, STG2, PartitionStanding
from bmqtwist.cluster.replication_targets import ReplicationTargets
from bmqtwist.cluster.take_over import TakeOver
from bmqtwist.storage.psn import NO_PSN, Psn

PATIENCE = 3  # times `ReplicationTiming.retry`: a healing that stands still for so long is left to another node


class CommitPosition:
    """From the first record of the lease on."""

    def __init__(self, standing: PartitionStanding, leases: Leases, targets: ReplicationTargets,
                 take_over: TakeOver) -> None:
        self._standing, self._leases, self._targets, self._take_over = standing, leases, targets, take_over
        self._answered: dict[int, float] = {}  # node -> the time of the newest Keepalive that it has answered
        self._reported = NO_PSN  # by Committed

    def forget_answers(self) -> None:
        """This node leads no longer."""
        self._answered = {}

    @property
    def supported_until(self) -> float:
        """Until when this node may be active if no node answers any more."""
        standing = self._standing
        if len(standing.members) == 1:
            return float("inf")
        answered = sorted(self._answered.values(), reverse=True)
        needed = standing.majority - 1
        return answered[needed - 1] + standing.timing.lease if needed <= len(answered) else float("-inf")

    @property
    def _is_supported(self) -> bool:
        return self.supported_until > self._standing.now

    def on_receipt(self, event: ReplicaReceipt) -> None:
        """A replica reports how much of our log it has."""
        standing, target = self._standing, self._targets.by_node.get(event.sender)
        if target is None or event.lease != standing.lease:
            return
        answered = self._answered.get(event.sender, 0.0)
        self._answered[event.sender] = max(answered, min(event.stamp / 1000, standing.now))
        if event.durable > target.durable or event.parts > target.parts_taken:
            standing.progressed_at = standing.now
        self._targets.on_receipt(event)
        self.advance()

    def on_log_moved(self) -> None:
        """Our log has grown, or more of it is durable."""
        if not self._standing.has_begun:
            return
        targets = self._targets
        for node_id, promise in self._take_over.promises.items():
            if node_id not in targets.by_node:
                targets.begin(node_id, promise.log)
        for node_id, target in targets.by_node.items():
            targets.feed(node_id, target)
        self.advance()

    def _durable_at(self, nodes: int) -> Psn:
        """The last record that so many nodes have durably, if it is of our own lease."""
        durable = [self._standing.log.durable]
        for target in self._targets.by_node.values():
            durable.append(target.durable)
        durable.sort(reverse=True)
        found = durable[nodes - 1] if nodes <= len(durable) else NO_PSN
        return found if found[0] == self._standing.lease else NO_PSN

    def advance(self) -> None:
        """CommitPosition what a quorum has, if that is of our own lease."""
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
        if standing.role is STG2 and committed >= self._take_over.goal and self._is_supported:
            standing.become(HEALED, standing.node_id, f"record {committed[0]}-{committed[1]} is committed")
            standing.outputs.append(Serve(standing.lease, True, "everything is committed"))

    def on_tick(self) -> None:
        """Ask the other nodes; be passive without a majority; restart a healing that stands still."""
        standing, take_over = self._standing, self._take_over
        if standing.role is HEALED and not self._is_supported:
            take_over.goal = standing.log.summary.last
            cause = f"no majority has answered for {standing.timing.lease:g} s"
            standing.outputs.append(Serve(standing.lease, False, cause))
            standing.become(STG2, standing.node_id, cause)
        if standing.wake_at is not None and standing.now >= standing.wake_at:
            standing.wake_at = standing.now + standing.timing.keepalive
            self._ask()
        stands, retry = standing.now - standing.progressed_at, standing.timing.retry
        if standing.role is HEALED or stands < retry:
            return
        source = take_over.source
        if source is not None:
            standing.progressed_at = standing.now
            standing.say(source, Prepare(standing.node_id, standing.lease))
            take_over.restart(f"node {source} sends nothing")
        elif stands >= PATIENCE * retry and len(standing.up) >= standing.majority - 1:
            standing.progressed_at = standing.now
            self._leases.decline(standing.lease, False, "it does not come forward")

    def _ask(self) -> None:
        standing = self._standing
        for node_id in sorted(standing.up):
            target = self._targets.by_node.get(node_id)
            if target is not None:
                standing.say(node_id, self._targets.keepalive(target))
            elif node_id not in self._take_over.promises:
                standing.say(node_id, Prepare(standing.node_id, standing.lease))
