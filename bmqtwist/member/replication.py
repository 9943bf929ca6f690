"""Replication of a cluster's partitions at one node: routes events of the cluster to the partitions' state machines.

    metadata      the committed primary of each partition (`apply_primaries`)
    other nodes   connections (`on_peer_up`, `on_peer_down`) and messages about partitions (`on_message`)
    leader        appoints primaries (`appointments`) and moves partitions to other nodes (`handovers`)

`partition_runner.py` runs the state machines; their rules are in `cluster/partition_machine.py`. Called by `dispatch.py`
(other nodes) and `member/cluster.py` (metadata).

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmqtwist.cluster.changes import PrimaryRules
from bmqtwist.cluster.election_events import PeerDown, PeerUp, Stop, Tick
from bmqtwist.cluster.partition_events import (
    AnyPartitionMessage,
    Assigned,
    LogAdvanced,
    PartitionRole,
    ReplicationTiming,
    encode_partition_message,
)
from bmqtwist.cluster.state import Primary
from bmqtwist.config.clusters import ClusterDefinition, ElectorConfig
from bmqtwist.errors import PeerError
from bmqtwist.loop.loop import Loop
from bmqtwist.member.appointments import AppointmentRules, Appointments
from bmqtwist.member.interfaces import ReplicatedCluster
from bmqtwist.member.leadership import Leadership, timing
from bmqtwist.member.node_status import REASON_CHARS_MAX, NodeStatuses
from bmqtwist.member.partition_runner import PartitionRunner
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import shown
from bmqtwist.storage.fileset import FileSets, Reports
from bmqtwist.storage.partition import Durability
from bmqtwist.storage.psn import Psn
from bmqtwist.storage.slot_file import Doubt, PromiseFile
from bmqtwist.wire.cluster_schema import (
    ClusterMessage,
    Copy,
    Decline,
    Fetch,
    Keepalive,
    PrimaryStatus,
    PrimaryStatusAdvisory,
    Yield,
)
from bmqtwist.wire.text import bracketed

LEASE_SHARE = 0.75  # of the elector's inactivity timeout: the default validity of a primary's lease
RETRY_SHARE = 0.5  # of the same timeout: healing without progress restarts after it


class Replication:
    """Replication of one cluster at one node. `leadership` is set before `start`."""

    leadership: Leadership

    def __init__(self, definition: ClusterDefinition, cluster: ReplicatedCluster, loop: Loop, links: ClusterLinks,
                 promise_file: PromiseFile, statuses: NodeStatuses, rules: AppointmentRules) -> None:
        self.name, self.node_id, self._elector = definition.name, links.node_id, definition.elector
        self._members = [node.id for node in definition.nodes]
        self._cluster, self._loop, self._links, self._statuses = cluster, loop, links, statuses
        self.runner = PartitionRunner(self.name, cluster, loop, links, promise_file, statuses, self._decline)
        self.runner.give_up = self._refuse_to_yield
        self.hosted, self.known_primaries = self.runner.hosted, self.runner.primaries
        self.appointments = Appointments(statuses, loop, rules, self.known_primaries, self._ask_to_yield)

    def open(self, files: list[FileSets], durability: Durability, cache_bytes: int, now: float, wall: int) -> None:
        """Read the partitions; raises OSError."""
        self.runner.open(files, durability, cache_bytes, replication_timing(self._elector), now, wall)

    def start(self, now: float) -> None:
        """Apply the committed primaries and begin to supervise them."""
        self.apply_primaries(range(len(self.hosted)), now)
        self.appointments.start(now)

    def stop(self, now: float) -> None:
        """Stop the state machines of all partitions."""
        for hosted in self.hosted:
            self.runner.step(hosted, now, Stop())

    # -- primaries ------------------------------------------------------------------------------------------------------

    def primaries(self, partitions: int) -> PrimaryRules:
        """Return the primaries that this node appoints as a new leader. Leases that an earlier run of its process may have
        used are excluded for the partitions that it does not lead."""
        used = {hosted.index: hosted.machine.standing.used_lease for hosted in self.hosted if not hosted.machine.leads}
        return self.appointments.primaries(partitions, used)

    def apply_primaries(self, partitions: Iterable[int], now: float) -> None:
        """Apply the committed primaries of these partitions."""
        known = self.leadership.metadata.state.partitions
        for index in partitions:
            primary = known.get(index)
            if primary is not None and index < len(self.hosted) and not self.runner.promises.lost:
                self.known_primaries.appoint(index, primary)
                self.runner.step(self.hosted[index], now, Assigned(*primary))
                self._cluster.on_primary_changed(index)
        self.runner.check_availability()

    def hand_over_all(self, now: float, cause: str = "stops", patience: float | None = None) -> None:
        """Hand over all partitions of this node, which stops or cannot write (`cause`), if another node can take them.
        `patience`: seconds until the successors must have stored all records. A node that cannot write keeps partitions with
        messages of queues in memory."""
        if self.appointments.successor() is None:
            return
        for index, primary in self.leadership.metadata.state.partitions.items():
            if primary.node_id != self.node_id or index >= len(self.hosted):
                continue
            machine = self.hosted[index].machine
            if machine.lease > primary.lease or not self._statuses.is_stopping and self._cluster.count_in_memory(index):
                continue  # a newer primary, which the metadata of this node do not have yet; messages of queues in memory
            durable = {node_id: target.durable for node_id, target in machine.targets.by_node.items()}
            successor = self.appointments.successor_of(durable) if self.is_active_primary(index) else None
            if successor is not None:
                self.runner.handovers.begin(index, Yield(machine.lease, successor), now, True, patience)
            elif not self.runner.handovers.is_leaving(index):
                self._decline(index, Decline(primary.lease, False, machine.standing.used_lease, f"this node {cause}"), now)

    def _ask_to_yield(self, node_id: int, index: int, wanted: Yield) -> None:
        if node_id == self.node_id:
            self._begin_handover(index, wanted, self._loop.now)
        else:
            self._links.send_control(node_id, encode_partition_message(index, wanted))

    def _begin_handover(self, index: int, wanted: Yield, now: float) -> None:
        """Begin to hand a partition over, as the leader asked; an outdated request is ignored."""
        machine, held = self.hosted[index].machine, self._cluster.count_in_memory(index)
        if not self.is_active_primary(index) or machine.lease != wanted.lease or wanted.successor not in machine.other_nodes:
            return
        if held:
            self._refuse_to_yield(index, f"queues in memory hold {held} messages that no other node has")
            return
        self.runner.handovers.begin(index, wanted, now)

    def _refuse_to_yield(self, index: int, reason: str) -> None:
        """Report to the leader that this node stays primary."""
        leader, machine = self.leadership.standing.leader, self.hosted[index].machine
        self._loop.report.warn(f"{machine.name}: is not moved: {reason}")
        primary = Primary(self.node_id, machine.lease)
        if leader == self.node_id:
            self.appointments.on_move_refused(index, primary, reason)
        elif leader is not None:
            self.known_primaries.advise([leader], primary, index, PrimaryStatus.E_ACTIVE, reason)

    def _decline(self, index: int, output: Decline, now: float) -> None:
        """Report to the leader that this node cannot be primary, or gives the lease up."""
        leader = self.leadership.standing.leader
        self._loop.report.warn(f"{self.hosted[index].machine.name}: {output.cause}")
        if leader == self.node_id:
            self.appointments.on_declined(self.node_id, index, output, now)
        elif leader is not None:
            self._links.send_control(leader, encode_partition_message(index, output))

    # -- other nodes ----------------------------------------------------------------------------------------------------

    def on_peer_up(self, node_id: int, now: float) -> None:
        """Handle the connection of a node."""
        self._statuses.on_connected(node_id)
        self._cluster.repairs.retry(now)
        for hosted in self.hosted:
            if self.is_active_primary(hosted.index):
                primary = Primary(self.node_id, hosted.machine.lease)
                self.known_primaries.advise([node_id], primary, hosted.index, PrimaryStatus.E_ACTIVE)
            elif hosted.machine.leads:
                primary = Primary(self.node_id, hosted.machine.lease)
                reason = self.known_primaries.obstacle(hosted.index, primary)
                if reason:
                    self.known_primaries.advise([node_id], primary, hosted.index, PrimaryStatus.E_PASSIVE, reason)
            self.runner.step(hosted, now, PeerUp(node_id))

    def on_peer_down(self, node_id: int, now: float) -> None:
        """Handle the loss of a connection; a leader appoints other primaries for the partitions of that node."""
        for index in self.known_primaries.active.remove_node(node_id):
            self._cluster.on_primary_changed(index)
        for hosted in self.hosted:
            hosted.images.pop(node_id, None)
            self.runner.step(hosted, now, PeerDown(node_id))
        self._statuses.on_disconnected(node_id)
        self.appointments.check(now)

    def on_leader_active(self, now: float) -> None:
        """Follow a leader whose first record is committed: its appointments are valid."""
        if self.runner.promises.lost:
            self.runner.promises.lost = False
            self._assume_promises(now)
        self.apply_primaries(range(len(self.hosted)), now)
        for hosted in self.hosted:
            if hosted.machine.role is PartitionRole.UNKNOWN:
                self.runner.step(hosted, now, Tick())
        self.appointments.check(now)

    def _assume_promises(self, now: float) -> None:
        """Replace lost promises by the newest leases that the metadata and the logs contain. In a new cluster no record is
        missing."""
        known, is_founder = self.leadership.metadata.state.partitions, self.leadership.storage.is_founder
        for index, hosted in enumerate(self.hosted):
            primary, leases = known.get(index), hosted.machine.standing
            lease = max(leases.promised_lease, hosted.summary.last[0], primary.lease if primary is not None else 0)
            leases.assume_promised(lease)
            if is_founder:
                leases.doubt = Doubt.NONE
            self.runner.save_promise(hosted, lease)
        for hosted in self.hosted:
            for node_id in self._members:
                if self._links.is_up(node_id):
                    self.runner.step(hosted, now, PeerUp(node_id))

    def doubt_all(self) -> None:
        """Mark all partitions as doubtful: durable records of them may be missing."""
        for hosted in self.hosted:
            hosted.machine.standing.doubt = Doubt.LOST
            self.runner.save_promise(hosted, 0)

    def on_message(self, sender: int, partition_id: int, message: AnyPartitionMessage, now: float) -> None:
        """Handle a message of another node about a partition; raises PeerError."""
        if partition_id >= len(self.hosted):
            raise PeerError(f"there is no partition {partition_id}", "partitionId", 0)
        if isinstance(message, Decline):
            self.appointments.on_declined(sender, partition_id, message, now)
        elif isinstance(message, Yield):
            if sender == self.leadership.standing.leader:
                self._begin_handover(partition_id, message, now)
        elif isinstance(message, (Fetch, Copy)):
            self._cluster.repairs.on_message(sender, partition_id, message, now)
        elif not self.runner.promises.lost:
            self.runner.step(self.hosted[partition_id], now, message)
            if isinstance(message, Keepalive):
                self._cluster.on_records(now)

    def on_primary_status(self, sender: int, message: ClusterMessage) -> None:
        """Handle a primary's status advisory; raises PeerError."""
        advisory = message.value
        if isinstance(advisory, PrimaryStatusAdvisory):
            self._loop.report.info(f"Cluster ({self.name}): received primary status advisory: {bracketed(advisory)}, from: "
                                   f"{self._links.name(sender)}")
            index, primary = advisory.partition_id, Primary(sender, advisory.primary_lease_id)
            if not 0 <= index < len(self.hosted):
                raise PeerError(f"there is no partition {index}", "partitionId", 0)
            active, reason = advisory.status is PrimaryStatus.E_ACTIVE, shown(advisory.reason or "", REASON_CHARS_MAX)
            self.runner.set_active(index, primary, active)
            self.known_primaries.set_obstacle(index, primary, "" if active else reason)
            if active and reason:
                self.appointments.on_move_refused(index, primary, reason)

    def on_members_changed(self, now: float) -> None:
        """Handle another member list: other majorities commit records."""
        for hosted in self.hosted:
            hosted.update_pair_commits()
            self.runner.step(hosted, now, LogAdvanced())

    def set_replication_factor(self, factor: int, now: float) -> None:
        """Set the number of nodes that must store a record before it is committed."""
        for hosted in self.hosted:
            hosted.machine.standing.replication_factor = factor
            hosted.update_pair_commits()
            self.runner.step(hosted, now, LogAdvanced())

    def trust_reports(self, trusted: bool) -> None:
        """Set whether reports of primaries count that the metadata of this node lack: its ledger cannot be written."""
        self.known_primaries.active.trusts_reports = trusted
        for hosted in self.hosted:
            self._cluster.on_primary_changed(hosted.index)

    def write_reports(self) -> list[Reports]:
        """Return the reports of all partitions, which have their failed writes."""
        return [hosted.partition.files.reports for hosted in self.hosted]

    # -- queries --------------------------------------------------------------------------------------------------------

    def is_active_primary(self, index: int) -> bool:
        """Return whether this node is the active primary of a partition."""
        return self.runner.is_active_primary(index)

    def primary_of(self, index: int) -> Primary | None:
        """Return the active primary of a partition if it is another node."""
        active = self.known_primaries.active.find(index)
        return None if active is None or active.node_id == self.node_id else active

    def has_durable(self, index: int, lease: int, psn: Psn) -> bool:
        """Return whether a record of a partition is durable here, or known to be committed."""
        return self.hosted[index].machine.reception.has_durable(lease, psn)

    def is_known_committed(self, index: int, psn: Psn) -> bool:
        """Return whether a record that is durable at its primary is committed."""
        return self.hosted[index].machine.reception.is_known_committed(psn)

    def on_early_ack(self, index: int) -> None:
        """Note an early acknowledgement for a partition: the next receipt of this node is not urgent."""
        self.hosted[index].acked_early = True


def replication_timing(config: ElectorConfig) -> ReplicationTiming:
    """Return the timing of replication, derived from the elector's configuration."""
    elector = timing(config)
    lease = config.lease_ms / 1000 or elector.inactivity * LEASE_SHARE
    return ReplicationTiming(lease, min(elector.beat_period, lease / 4), elector.inactivity * RETRY_SHARE,
                             max(lease, elector.inactivity))
