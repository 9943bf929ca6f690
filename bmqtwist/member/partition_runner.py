"""Execution of the partitions' state machines: passes inputs to them, performs their outputs on logs, links and queues.

    machine     `cluster.partition_machine`, one for each partition
    logs        `partition_logs`: the files of each partition; records and images for other nodes
    promises    `promises`: one file for all partitions; effects of a promise wait until it is durable

`KnownPrimaries` has the appointed and the active primary of each partition, this node or another one.

Records leave for the replicas in the turn in which they are written, before their sync (`on_written`); CONFIRMs wait up to
DELAY_S for the records of a message. A replica sends a receipt when it has written or synced records. Inputs of a machine
are processed in order; an input that an output causes is queued.

Called by `replication.py` for events of the cluster, and by `broker/storage_turn.py` for written records.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

from bmqtwist.cluster.active_primaries import ActivePrimaries
from bmqtwist.cluster.election_events import Tick, TickAt
from bmqtwist.cluster.log_events import Alarm
from bmqtwist.cluster.partition_events import (
    Append,
    BeginLease,
    Committed,
    LogAdvanced,
    PartitionInput,
    PartitionOutput,
    PartitionRole,
    PromiseWritten,
    ReplicationTiming,
    RoleChanged,
    SavePromise,
    SendImagePart,
    SendMessage,
    SendRecords,
    SetActive,
    StoreImagePart,
    Truncate,
    encode_partition_message,
)
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.cluster.state import Primary
from bmqtwist.loop.loop import Loop
from bmqtwist.machine import SHOWN_MAX
from bmqtwist.member.handovers import Handovers
from bmqtwist.member.interfaces import ReplicatedCluster
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.member.partition_logs import Feeding, HostedPartition, PartitionLogs
from bmqtwist.member.promises import Promises
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import LineLimiter, RepeatLimiter, Report
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.partition import Durability, Partition
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.storage.slot_file import PromiseFile
from bmqtwist.wire.cluster_schema import Decline, NodeStatus, PrimaryStatus, PrimaryStatusAdvisory, Renewal
from bmqtwist.wire.control import cluster_event

_HEALED = (PartitionRole.PRIMARY_HEALED, PartitionRole.REPLICA_HEALED)
ANNOUNCE_S = 0.02  # from a commit until replicas that lack the record are notified of it
DELAY_S = 0.005  # longest delay of records that no client waits for


class PartitionRunner:
    """The state machines of one cluster's partitions at one node. `decline(partition, output, now)`: report to the leader
    that this node cannot be primary, or gives the lease up; `give_up(partition, reason)`: that it stays primary."""

    def __init__(self, name: str, cluster: ReplicatedCluster, loop: Loop, links: ClusterLinks,
                 promise_file: PromiseFile, statuses: NodeStatuses, decline: Callable[[int, Decline, float], None]) -> None:
        self._name, self._cluster, self._loop, self._links, self._statuses = name, cluster, loop, links, statuses
        self._decline = decline
        self.give_up: Callable[[int, str], None] = lambda index, reason: None
        self.on_write_failed: Callable[[float], None] = lambda now: None  # of records; for `disk_health`
        self.hosted: list[HostedPartition] = []
        self.primaries = KnownPrimaries(name, links, loop.report)
        self.handovers: Handovers
        self.promises = Promises(f"Cluster ({name})", promise_file, loop,
                                 lambda index, lease, now: self.step(self.hosted[index], now, PromiseWritten(lease)))
        self._logs = PartitionLogs(name, links.node_id, cluster, loop, self.step, self._attach)
        self._feeding = Feeding(links.node_id, links, loop.timers, loop.report, self.step)
        self._check_at = float("-inf")  # the earliest expiry of a lease
        self._repeats = RepeatLimiter()

    def open(self, files: list[FileSets], durability: Durability, cache_bytes: int, timing: ReplicationTiming, now: float,
             wall: int) -> None:
        """Read the partitions; raises OSError."""
        self.handovers = Handovers(self.hosted, self._loop, timing.retry, self.set_serving, self._end_lease, self._decline,
                                   lambda index, reason: self.give_up(index, reason))
        self.promises.load(len(files))
        for partition in self._logs.open(files, durability, cache_bytes, self.promises, now, wall):
            hosted = HostedPartition(partition)
            promise = self.promises.wanted[hosted.index]
            hosted.machine = PartitionMachine(self._links.electorate, hosted, timing, promise.lease,
                                              f"Cluster ({self._name}) Partition [{hosted.index}]", promise.doubt)
            hosted.machine.take_over.data_received_at = self._links.data_received_at
            hosted.machine.take_over.data_sent_at = self._links.data_sent_at
            self.hosted.append(hosted)
            self._cluster.partitions.append(partition)
            self._attach(hosted)
        self.primaries.partitions = len(self.hosted)

    def _attach(self, hosted: HostedPartition) -> None:
        self._cluster.repairs.attach(hosted.partition)
        hosted.partition.begin_repairs()
        hosted.partition.files.reports.on_line = partial(self._loop.report.info, "Cluster (%s): %s", self._name)

    # -- inputs ---------------------------------------------------------------------------------------------------------

    def step(self, hosted: HostedPartition, now: float, event: PartitionInput) -> None:
        """Pass an input to a state machine and perform its outputs."""
        hosted.inputs.append(event)
        if hosted.stepping:
            return
        hosted.stepping = True
        try:
            while hosted.inputs:
                for output in hosted.machine.step(now, hosted.inputs.popleft()):
                    self._perform(hosted, output, now)
        except Exception:
            before = hosted.machine.transition_log.lines(now, SHOWN_MAX)
            self._loop.report.error("%s", f"{hosted.machine.name} fails. Before:\n{before}")
            raise
        finally:
            hosted.stepping = False
        if hosted.partition.copies.counts_copies and hosted.partition.is_primary:
            self._count_copies(hosted, now)
        self.handovers.advance(hosted.index, now)
        self.check_availability()
        if self.promises.wanted[hosted.index].doubt and not hosted.machine.standing.doubt:
            self.save_promise(hosted, 0)

    def on_written(self, partition: Partition, at_once: bool = False) -> None:
        """Replicate written records, or report synced ones. CONFIRMs leave with the next message, unless `at_once`."""
        hosted, now = self.hosted[partition.partition_id], self._loop.now
        own = hosted.partition
        if own is not partition:
            return
        if own.files.reports.write_failed:
            self.on_write_failed(now)
        if own.may_delay_replication and hosted.machine.targets.by_node and not at_once:
            if not hosted.delays_records:
                hosted.delays_records = True
                self._loop.timers.at(now + DELAY_S, partial(self._send_delayed, hosted))
        elif own.collect_runs() and hosted.write_times.is_due(now):
            hosted.write_times.add(hosted.written, now)
        if hosted.machine.role is not PartitionRole.UNKNOWN:
            self.step(hosted, now, LogAdvanced())
        if not own.is_primary:
            self._cluster.on_records(now)

    def _send_delayed(self, hosted: HostedPartition, now: float) -> None:
        hosted.delays_records = False
        if hosted.written < hosted.partition.written_psn:
            self.on_written(hosted.partition, at_once=True)

    def _end_lease(self, index: int, now: float) -> None:
        """Append a sync point, the last record of a lease."""
        partition = self.hosted[index].partition
        partition.write_sync_point(self._loop.wall(now))
        self.on_written(partition, at_once=True)

    def expire_leases(self, now: float) -> None:
        """Expire leases before a turn: a primary without answers of a majority becomes passive."""
        if now < self._check_at:
            return
        self._check_at = float("inf")
        for hosted in self.hosted:
            if hosted.machine.role is PartitionRole.PRIMARY_HEALED:
                if hosted.machine.targets.supported_until <= now:
                    self.step(hosted, now, Tick())
                self._check_at = min(self._check_at, hosted.machine.targets.supported_until)

    # -- outputs --------------------------------------------------------------------------------------------------------

    def _perform(self, hosted: HostedPartition, output: PartitionOutput, now: float) -> None:
        match output:
            case SendMessage():
                self._send(hosted, output)
            case SendRecords():
                self._feeding.send_records(hosted, output, now)
            case Append():
                self._logs.append(hosted, output, self._loop.wall(now))
            case Committed():
                self._commit(hosted, output.psn, now)
            case SavePromise():
                self.save_promise(hosted, output.lease)
            case TickAt():
                if output.moment is not None:
                    self._loop.timers.at(output.moment, lambda now: self.step(hosted, now, Tick()))
            case SendImagePart():
                self._feeding.send_image(hosted, output, now)
            case StoreImagePart():
                self._logs.store_image_part(hosted, output, now)
            case Truncate():
                self._logs.reread(hosted, output.psn, now)
            case BeginLease():
                self._logs.begin_lease(hosted, output.lease, self._loop.wall(now))
            case SetActive():
                self.handovers.end(hosted.index)
                self.set_serving(hosted.index, output, now)
            case Decline():
                self._decline(hosted.index, output, now)
            case RoleChanged():
                self._on_role_changed(hosted, output, now)
            case Alarm():
                times = self._repeats.suffix((hosted.index, output.kind.id), now)
                if times is not None:
                    before = hosted.machine.transition_log.lines(now, SHOWN_MAX)
                    self._loop.report.alarm(output.kind, "%s", f"{output.text}{times}. Before:\n{before}")
            case _:
                assert_never(output)

    def _send(self, hosted: HostedPartition, output: SendMessage) -> None:
        node_id, message = output.node_id, output.message
        if not isinstance(message, Renewal):
            self._links.send(node_id, encode_partition_message(hosted.index, message), hosted.is_urgent(message))
        elif self._links.puts_control_first(node_id):
            self._links.send_control(node_id, encode_partition_message(hosted.index, message))

    def _commit(self, hosted: HostedPartition, psn: Psn, now: float) -> None:
        partition = hosted.partition
        partition.mark_committed(psn)
        if partition.is_primary:
            self._cluster.on_committed(partition, now)
            if partition.copies.pair_commits and hosted.announced_commit == NO_PSN:
                hosted.announced_commit = psn
                self._loop.timers.at(now + ANNOUNCE_S, partial(self._send_commit, hosted))

    def _send_commit(self, hosted: HostedPartition, now: float) -> None:
        """Notify replicas of a commit that a pair of other nodes completed, so that early acknowledgements are released."""
        psn, hosted.announced_commit = hosted.announced_commit, NO_PSN
        if hosted.machine.leads and psn[0] == hosted.machine.lease:
            for output in hosted.machine.targets.commit_messages(psn):
                self._perform(hosted, output, now)

    def _count_copies(self, hosted: HostedPartition, now: float) -> None:
        """Update the records stored by one replica, and by all available replicas: PUTs may wait for these copies."""
        available = [node_id for node_id, status in self._statuses.other_nodes.items() if status is NodeStatus.E_AVAILABLE]
        if hosted.partition.update_copy_marks(*hosted.machine.targets.replicated_psns(available)):
            self._cluster.on_committed(hosted.partition, now)

    def save_promise(self, hosted: HostedPartition, lease: int) -> None:
        """Store a promise, and the doubt about the log."""
        self.promises.save(hosted.index, lease, hosted.machine.standing.doubt)

    def _on_role_changed(self, hosted: HostedPartition, output: RoleChanged, now: float) -> None:
        self._loop.report.info(f"Partition FSM for Partition [{hosted.index}] on Event '{output.event}', transition: State "
                               f"'{output.before.name}' =>  State '{output.after.name}'")
        cause = hosted.machine.transition_log.cause_of(output.after.name)
        self._report_event(hosted.index, f"this node is now: {output.after.value} ({cause})", role=output.after.name,
                           before=output.before.name)
        if not hosted.machine.leads and hosted.partition.is_primary:
            clean = hosted.partition.become_replica()
            if output.after is not PartitionRole.STOPPED:
                self._logs.follow(hosted, clean, now)

    # -- active primaries -----------------------------------------------------------------------------------------------

    def is_active_primary(self, index: int) -> bool:
        """Return whether this node is the active primary of a partition."""
        return (index < len(self.hosted) and self.hosted[index].machine.role is PartitionRole.PRIMARY_HEALED
                and not self.handovers.is_leaving(index))

    def set_serving(self, index: int, output: SetActive, now: float) -> None:
        """Activate the queues of a partition, or retire them."""
        hosted, wall = self.hosted[index], self._loop.wall(now)
        report, name = self._loop.report, self._links.name(self._links.node_id)
        status, before = PrimaryStatus.E_ACTIVE, PrimaryStatus.E_PASSIVE
        if not output.active:
            status, before = before, status
        report.info(f"Cluster [{self._name}]: Setting status of primary [{name}] of Partition [{index}] to [{status.name}], "
                    f"oldPrimaryStatus: [{before.name}], leaseId: [{output.lease}].")
        report.info(f"Cluster [{self._name}]: {'opening' if output.active else 'closing'} the gate {index}")
        primary = Primary(self._links.node_id, output.lease)  # the machine may have another lease already
        self.set_active(index, primary, output.active)
        if output.active:
            self._check_at = float("-inf")
            hosted.partition.mark_committed(hosted.machine.committed)
            self._cluster.activate_queues(index, now, wall)
        else:
            report.warn(f"{hosted.machine.name}: no longer active: {output.cause}")
            self._report_event(index, f"this node is no longer active: {output.cause}", lease=output.lease)
            self._cluster.retire_queues(index, output.cause, now, wall)
            hosted.partition.drop_effects()
        stays = hosted.machine.leads and hosted.machine.lease == output.lease and not self.handovers.is_leaving(index)
        reason = output.cause if stays and not output.active else ""
        self.primaries.set_obstacle(index, primary, reason)
        self.primaries.advise(hosted.machine.other_nodes, primary, index, status, reason)
        self._loop.performer.request_turn()

    def set_active(self, index: int, primary: Primary, active: bool) -> None:
        """Record whether a primary, another node or this one, is active."""
        if self.primaries.set_active(index, primary, active, self._loop.now):
            self._cluster.on_primary_changed(index)
            self.check_availability()

    def check_availability(self) -> None:
        """Log the availability of the cluster; this node becomes AVAILABLE when its partitions are healed as well."""
        self.primaries.log_availability()
        if self._statuses.own is NodeStatus.E_STARTING and self.primaries.all_active and all(
                hosted.machine.role in _HEALED for hosted in self.hosted):
            self._statuses.set_own(NodeStatus.E_AVAILABLE)

    def _report_event(self, index: int, text: str, **detail: object) -> None:
        self._loop.report.record_event("primary", f"Partition [{index}]: {text}", cluster=self._name, partition=index,
                                       **detail)


class KnownPrimaries:
    """Primaries of a cluster as this node knows them: appointed by the metadata, active by their own statement."""

    def __init__(self, name: str, links: ClusterLinks, report: Report) -> None:
        self._name, self._links, self._report = name, links, report
        self.partitions = 0  # their number
        self._appointed: dict[int, Primary] = {}  # by partition
        self.active = ActivePrimaries()
        self._obstacles: dict[int, tuple[Primary, str]] = {}  # partition -> its passive primary, the reason it reported
        self._lines = LineLimiter()
        self._was_available = self._has_been_available = False

    @property
    def all_active(self) -> bool:
        """Return whether every partition has an active primary."""
        return all(self.active.find(index) is not None for index in range(self.partitions))

    def appoint(self, index: int, primary: Primary) -> None:
        """Record the committed primary of a partition."""
        before = self._appointed.get(index)
        if before != primary:
            self._appointed[index] = primary
            self._log_appointment(index, before, primary)
        if self.active.appoint(index, primary):
            self._log_active(index, primary)

    def set_active(self, index: int, primary: Primary, active: bool, now: float) -> bool:
        """Record a primary's status; return whether the active primary of the partition has changed."""
        before = self.active.find(index)
        if not self.active.set_active(index, primary, active):
            if active and self._lines.admits(now):
                who = self._links.name(primary.node_id)
                self._report.warn(f"Cluster ({self._name}) Partition [{index}]: node {who} claims to be primary under lease "
                                  f"{primary.lease}, to which no leader appointed it")
            return False
        if self.active.find(index) == before:
            return False
        if active:
            self._log_active(index, primary)
        return True

    def set_obstacle(self, index: int, primary: Primary, reason: str) -> None:
        """Record the reason why a primary stays passive; "" = there is none."""
        if reason and 0 <= index < self.partitions:
            self._obstacles[index] = primary, reason
        else:
            self._obstacles.pop(index, None)

    def obstacle(self, index: int, primary: Primary) -> str:
        """Return the reason why a primary stays passive, as it reported; "" if it reported none."""
        known, reason = self._obstacles.get(index, (primary, ""))
        return reason if known == primary else ""

    def advise(self, nodes: Iterable[int], primary: Primary, index: int, status: PrimaryStatus, reason: str = "") -> None:
        """Send the status of this node as primary of a partition to other nodes."""
        event = cluster_event(PrimaryStatusAdvisory(index, primary.lease, status, reason or None))
        for node_id in nodes:
            self._links.send(node_id, event)

    def log_availability(self) -> None:
        """Log when all partitions have active primaries."""
        before, self._was_available = self._was_available, self.all_active
        if self._was_available and not before:
            self._report.info(f"Cluster ({self._name}) is available")
            if self._has_been_available:
                self._report.info(f"Cluster ({self._name}) is back to healthy state")
            self._has_been_available = True

    def _log_appointment(self, index: int, before: Primary | None, primary: Primary) -> None:
        links = self._links
        old = "** NULL **" if before is None else links.name(before.node_id)
        self._report.info(
            f"Cluster [{self._name}]: Setting primary of Partition [{index}] to [{links.name(primary.node_id)}], "
            f"leaseId: [{primary.lease}], primaryStatus: [E_PASSIVE], oldPrimary: [{old}], oldLeaseId: "
            f"[{0 if before is None else before.lease}].")
        new, old = links.node_name(primary.node_id), links.node_name(before.node_id) if before else ""
        self._report.record_event(
            "primary", f"Partition [{index}]: node {new} is appointed primary under lease {primary.lease}"
            f"{old and f', after node {old}'}", cluster=self._name, partition=index, primary=new, lease=primary.lease,
            primaryBefore=old or None)

    def _log_active(self, index: int, primary: Primary) -> None:
        if primary.node_id != self._links.node_id:
            self._report.info(
                f"Cluster ({self._name}) Partition [{index}]: Setting the status of primary: "
                f"{self._links.name(primary.node_id)}, primaryLeaseId: {primary.lease}, from E_PASSIVE to E_ACTIVE.")
