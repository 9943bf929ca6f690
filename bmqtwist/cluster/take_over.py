"""Take-over of a partition: collects the promises of a quorum, chooses the log with the highest PSN, and pulls it.

Every committed record is stored by a quorum, and any two quorums have a common node: so the log with the highest PSN of a
quorum contains all committed records. Pulled records replace conflicting ones of the own log. Then the lease begins.
"""

from __future__ import annotations

from bmqtwist.cluster.election_events import PeerDown
from bmqtwist.cluster.partition_events import Activate, Promised, SavePromise, log_of
from bmqtwist.cluster.partition_reception import Reception
from bmqtwist.cluster.partition_standing import STG1, STG2, PartitionStanding
from bmqtwist.cluster.replication_targets import ReplicationTargets
from bmqtwist.storage.psn import common_prefix
from bmqtwist.wire.cluster_schema import Prepare, Promise, Pull


class TakeOver:
    """Take-over by one node."""

    def __init__(self, standing: PartitionStanding, targets: ReplicationTargets, reception: Reception) -> None:
        self._standing, self._targets, self._reception = standing, targets, reception
        self.promises: dict[int, Promise] = {}

    def begin(self, lease: int) -> None:
        """Begin as primary under this lease: request a promise from all other nodes."""
        standing = self._standing
        standing.lease = lease
        standing.change_role(STG1, standing.node_id, f"primary under lease {lease}")
        standing.progressed_at = standing.now
        standing.outputs.append(SavePromise(lease))
        for node_id in sorted(standing.up):
            standing.send(node_id, Prepare(standing.node_id, lease))
        standing.tick_at = standing.now + standing.timing.keepalive

    @property
    def source(self) -> int | None:
        return self._reception.source

    # -- choosing -------------------------------------------------------------------------------------------------------

    def on_promised(self, event: Promised) -> None:
        self._standing.on_promised(event)
        self.choose_log(event)

    def on_promise(self, event: Promise) -> None:
        if event.lease == self._standing.lease and log_of(event).is_consistent:
            self.promises[event.sender] = event
            self._standing.progressed_at = self._standing.now
            self.choose_log(event)

    def choose_log(self, event: object) -> None:
        """With the promises of a quorum, the own one included: pull the newest log, or begin the lease with the own log."""
        standing = self._standing
        if standing.promised < standing.lease or standing.log.busy:
            return
        answered = len(self.promises) + 1
        firm = sum(not each.doubtful for each in self.promises.values()) + (not standing.doubtful)
        if firm < standing.majority and answered < len(standing.members):
            return
        own, lease = standing.log.summary.last, standing.lease
        best = max(self.promises.values(), key=lambda each: (each.last, -each.sender), default=None)
        newest = own if best is None else max(own, best.last)
        if newest[0] >= lease:  # an earlier run of this node wrote under it, and its promises are lost
            if standing.deferred != lease:
                standing.deferred, standing.used = lease, max(standing.used, newest[0])
                standing.decline(lease, True, f"lease {lease} was used before")
        elif best is None or newest == own:
            self._begin_lease()
            return
        elif not standing.deferred and common_prefix(standing.log.summary, log_of(best)) is None:
            standing.deferred = lease
            standing.decline(lease, True, f"it lacks too much, and node {best.sender} does not", best.sender)
        if best is None or standing.deferred == lease:
            return
        standing.goal = best.last
        standing.change_role(STG2, standing.node_id, f"pulls from node {best.sender}")
        self._pull_from(best.sender)

    def query_nodes(self) -> None:
        """Request missing promises, and receipts from the nodes that receive records."""
        standing, targets = self._standing, self._targets
        for node_id in sorted(standing.up):
            if node_id in targets.by_node:
                standing.send(node_id, targets.keepalive(targets.by_node[node_id]))
            elif node_id not in self.promises:
                standing.send(node_id, Prepare(standing.node_id, standing.lease))

    def replace_source(self) -> None:
        """Choose another source: the present one sends nothing. Its promise counts again once renewed."""
        source = self.source
        if source is not None:
            self._standing.send(source, Prepare(self._standing.node_id, self._standing.lease))
            self._restart(f"node {source} sends nothing")

    def _restart(self, cause: str) -> None:
        """Choose again without the promise of the source."""
        if self.source is not None:
            self.promises.pop(self.source, None)
        self._reception.begin(None)
        self._standing.change_role(STG1, self._standing.node_id, cause)
        self.choose_log(cause)

    def on_peer_down(self, event: PeerDown) -> None:
        self._standing.up.discard(event.node_id)
        self.promises.pop(event.node_id, None)
        self._targets.by_node.pop(event.node_id, None)
        if event.node_id == self.source:
            self._restart(f"node {event.node_id} is gone")

    # -- pulling --------------------------------------------------------------------------------------------------------

    def _pull_from(self, source: int) -> None:
        standing = self._standing
        if not standing.log.busy:  # a busy log: LogReady follows
            self._reception.begin(source)
            common = common_prefix(standing.log.summary, log_of(self.promises[source]))
            standing.send(source, Pull(standing.node_id, standing.lease, common))

    def on_report(self, event: Promise) -> None:
        """Handle a later promise: of a new connection, after a mismatch, or of a source whose log has changed."""
        standing = self._standing
        if event.lease != standing.lease or not log_of(event).is_consistent:
            return
        self.promises[event.sender] = event
        if event.sender == self.source:
            standing.goal = event.last
            self._pull_from(event.sender)
        elif standing.has_begun:
            self._targets.begin(event.sender, log_of(event))

    def on_log_moved(self) -> None:
        """Handle a longer or more durable log: pulled records, or records of the new lease."""
        if self.source is not None:
            self._reception.note_appended()
            if not self._begin_lease_at_goal():
                self._reception.send_receipt()
        elif self._standing.has_begun:
            for node_id, promise in self.promises.items():
                if node_id not in self._targets.by_node:
                    self._targets.begin(node_id, log_of(promise))
            self._targets.on_log_moved()

    def on_log_ready(self) -> None:
        if not self._begin_lease_at_goal() and self.source is not None:
            self._pull_from(self.source)

    def _begin_lease_at_goal(self) -> bool:
        is_there = self._standing.log.summary.contains(self._standing.goal)
        if is_there:
            self._begin_lease()
        return is_there

    def _begin_lease(self) -> None:
        standing = self._standing
        self._reception.source, standing.goal = None, (standing.lease, 1)
        standing.change_role(STG2, standing.node_id, "has the log of a quorum")
        standing.outputs.append(Activate(standing.lease))
