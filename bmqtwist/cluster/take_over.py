"""Take-over of a partition by a new primary: collects the promises of a quorum, and pulls the log with the highest PSN.

Every committed record is stored by a quorum, and any two quorums have a common node; so the log with the highest PSN among a
quorum contains all committed records. Pulled records replace conflicting records of the own log. Then the lease begins. Part
of `partition_machine.py`, used by a primary from its appointment until its lease begins. `partition_reception.py` receives
the pulled records; the planned handover to a successor is in `member/handovers.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.election_events import PeerDown
from bmqtwist.cluster.partition_events import BeginLease, PromiseWritten, SavePromise, summary_of
from bmqtwist.cluster.partition_reception import Reception
from bmqtwist.cluster.partition_standing import STG1, STG2, PartitionStanding
from bmqtwist.cluster.replication_targets import ReplicationTargets
from bmqtwist.storage.psn import common_prefix
from bmqtwist.storage.slot_file import Doubt
from bmqtwist.wire.cluster_schema import Prepare, Promise, Pull, Renewal


class TakeOver:
    """Take-over by one node. `promises`: by node, of the present lease; `data_received_at`, `data_sent_at`: return the time
    of the last data from, and to, a node."""

    def __init__(self, standing: PartitionStanding, targets: ReplicationTargets, reception: Reception) -> None:
        self._standing, self._targets, self._reception = standing, targets, reception
        self.promises: dict[int, Promise] = {}
        self.data_received_at: Callable[[int], float] = lambda node_id: float("-inf")
        self.data_sent_at: Callable[[int], float] = lambda node_id: float("-inf")

    def start(self, lease: int) -> None:
        """Start the take-over under this lease: request a promise from all connected nodes."""
        standing = self._standing
        standing.lease = lease
        standing.change_role(STG1, standing.node_id, f"primary under lease {lease}")
        standing.progressed_at = standing.now
        standing.outputs.append(SavePromise(lease))
        for node_id in sorted(standing.connected_nodes):
            standing.send(node_id, Prepare(standing.node_id, lease))
        standing.tick_at = standing.now + standing.timing.keepalive

    @property
    def source(self) -> int | None:
        """The node whose log is being pulled."""
        return self._reception.source

    @property
    def data_moved_at(self) -> float:
        """Time of the last movement of data that this take-over may wait for: from the source, or to the other nodes."""
        if self.source is not None:
            return self.data_received_at(self.source)
        return max(map(self.data_sent_at, self._standing.connected_nodes), default=0.0)

    # -- choice of the log ----------------------------------------------------------------------------------------------

    def on_promise_written(self, event: PromiseWritten) -> None:
        self._standing.on_promise_written(event)
        self.choose_log(event)

    def on_promise(self, event: Promise) -> None:
        if event.lease == self._standing.lease and summary_of(event).is_consistent:
            self.promises[event.sender] = event
            self._standing.progressed_at = self._standing.now
            self.choose_log(event)

    def choose_log(self, event: object) -> None:
        """Once a quorum has promised, this node included: pull the newest log, or begin the lease if it is the own one."""
        standing = self._standing
        if standing.promised_lease < standing.lease or standing.log.busy:
            return
        if not self._has_quorum():
            return
        own, lease = standing.log.summary.last, standing.lease
        best = max(self.promises.values(), key=lambda each: (each.last, -each.sender), default=None)
        newest = own if best is None else max(own, best.last)
        if newest[0] >= lease:  # an earlier run of this node appended records under it, and its promise file is lost
            if standing.deferred_lease != lease:
                standing.deferred_lease, standing.used_lease = lease, max(standing.used_lease, newest[0])
                standing.decline(lease, True, f"lease {lease} was used before")
        elif best is None or newest == own:
            self._begin_lease()
            return
        elif not standing.deferred_lease and common_prefix(standing.log.summary, summary_of(best)) is None:
            standing.deferred_lease = lease
            standing.decline(lease, True, f"this node needs a whole image, node {best.sender} has all records", best.sender)
        if best is None or standing.deferred_lease == lease:
            return
        standing.goal = best.last
        standing.change_role(STG2, standing.node_id, f"pulls from node {best.sender}")
        self._pull_from(best.sender)

    def _has_quorum(self) -> bool:
        """Return whether enough voters have promised, and enough of them have all records that they acknowledged. Once all
        voters have promised, a log that may lack its last records counts, too: there is no better one. A lost log does not,
        except before the first member list."""
        electorate, doubts = self._standing.electorate, self._doubts()
        least = Doubt.TAIL if electorate.is_formed else Doubt.LOST
        tolerated = least if len(doubts) == len(electorate.voters) else Doubt.NONE
        reliable = [node_id for node_id, doubt in doubts.items() if doubt <= tolerated and electorate.has_records(node_id)]
        return len(doubts) >= electorate.majority and len(reliable) >= electorate.intact_needed

    def _doubts(self) -> dict[int, Doubt]:
        """Return the doubts about the logs of the voters that have promised."""
        standing = self._standing
        found = {node_id: Doubt.of(each.doubtful + 2 * each.lost) for node_id, each in self.promises.items()}
        found[standing.node_id] = standing.doubt
        return {node_id: doubt for node_id, doubt in found.items() if node_id in standing.electorate.voters}

    @property
    def lacking(self) -> list[int]:
        """The voters that have promised and may lack durable records."""
        electorate = self._standing.electorate
        return sorted(node_id for node_id, doubt in self._doubts().items() if doubt or not electorate.has_records(node_id))

    def query_nodes(self) -> None:
        """Request missing promises, and receipts from the nodes that receive records."""
        standing, targets = self._standing, self._targets
        for node_id in sorted(standing.connected_nodes):
            if node_id in targets.by_node:
                standing.send(node_id, targets.keepalive(targets.by_node[node_id]))
                standing.send(node_id, Renewal(standing.node_id, standing.lease, standing.stamp))
            elif node_id not in self.promises:
                standing.send(node_id, Prepare(standing.node_id, standing.lease))

    def replace_source(self) -> None:
        """Choose another source: the present one sends no records. Its promise counts again once renewed."""
        source = self.source
        if source is not None:
            self._standing.send(source, Prepare(self._standing.node_id, self._standing.lease))
            self._drop_source(f"node {source} sends no records")

    def _drop_source(self, cause: str) -> None:
        """Repeat the choice of the log without the promise of the source."""
        if self.source is not None:
            self.promises.pop(self.source, None)
        self._reception.restart(None)
        self._standing.change_role(STG1, self._standing.node_id, cause)
        self.choose_log(cause)

    def on_peer_down(self, event: PeerDown) -> None:
        self._standing.connected_nodes.discard(event.node_id)
        self.promises.pop(event.node_id, None)
        self._targets.by_node.pop(event.node_id, None)
        if event.node_id == self.source:
            self._drop_source(f"the connection to node {event.node_id} is lost")

    # -- pull of the log ------------------------------------------------------------------------------------------------

    def _pull_from(self, source: int) -> None:
        standing = self._standing
        if not standing.log.busy:  # a busy log: LogReady follows
            self._reception.restart(source)
            common = common_prefix(standing.log.summary, summary_of(self.promises[source]))
            standing.send(source, Pull(standing.node_id, standing.lease, common))

    def on_later_promise(self, event: Promise) -> None:
        """Handle a promise after the choice: of a new connection, after a mismatch, or of a source whose log has changed."""
        standing = self._standing
        if event.lease != standing.lease or not summary_of(event).is_consistent:
            return
        self.promises[event.sender] = event
        if event.sender == self.source:
            standing.goal = event.last
            self._pull_from(event.sender)
        elif standing.has_begun:
            self._targets.add(event.sender, summary_of(event))

    def on_log_advanced(self) -> None:
        """Handle new written or durable records: pulled ones, or those of the new lease."""
        if self.source is not None:
            self._reception.check_appended()
            if not self._begin_lease_at_goal():
                self._reception.send_receipt()
        elif self._standing.has_begun:
            for node_id, promise in self.promises.items():
                if node_id not in self._targets.by_node:
                    self._targets.add(node_id, summary_of(promise))
            self._targets.on_log_advanced()

    def on_log_ready(self) -> None:
        if not self._begin_lease_at_goal() and self.source is not None:
            self._pull_from(self.source)

    def _begin_lease_at_goal(self) -> bool:
        """Begin the lease if the log has all records up to the goal; return whether it has."""
        reached = self._standing.log.summary.contains(self._standing.goal)
        if reached:
            self._begin_lease()
        return reached

    def _begin_lease(self) -> None:
        standing = self._standing
        self._reception.source, standing.goal = None, (standing.lease, 1)
        standing.change_role(STG2, standing.node_id, "has the log of a quorum")
        standing.outputs.append(BeginLease(standing.lease))
