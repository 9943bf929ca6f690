"""The partitions of a cluster of several nodes, at one of them: their machines joined to files, links and the turn.

    machine     cluster.partition_machine, one for each partition: says what is to be done
    partition   storage.replica, one for each: its files. It is replaced by another one when it was cut, or is an image now
    promises    one file for all partitions, written in a thread; what follows from a promise waits for it
    feeding     what other nodes lack is sent to them
    turn        what a partition has written in a turn is sent at once, before it is synced, but for confirms, which nobody
                waits for; a replica that has written or synced something says so

What reads or writes much is done in a thread; meanwhile the partition is *busy*, and what comes for it is left out: it is
sent again. Inputs are taken one after the other: what follows from one may be the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from bmqtwist.cluster import copies
from bmqtwist.cluster.active_primaries import ActivePrimaries
from bmqtwist.cluster.changes import Primaries
from bmqtwist.cluster.election_events import PeerDown, PeerUp, Stop, Tick, WakeAt
from bmqtwist.cluster.partition_events import (
    Activate,
    Append,
    Assigned,
    Committed,
    Cut,
    Decline,
    Feed,
    FeedImage,
    Keepalive,
    LogFailed,
    LogMoved,
    LogReady,
    PartitionInput,
    PartitionOutput,
    PartitionRole,
    PartitionTalk,
    Promised,
    ReplicationTiming,
    RoleChanged,
    SavePromise,
    Say,
    Serve,
    TakeImage,
    Yield,
)
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.cluster.partition_wire import encode_partition_message
from bmqtwist.cluster.state import Primary, QueueRecord
from bmqtwist.cluster.write_times import WriteTimes
from bmqtwist.config.clusters import ElectorConfig
from bmqtwist.errors import PeerError
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.timers import Timers
from bmqtwist.machine import SHOWN_MAX
from bmqtwist.member import images
from bmqtwist.member.appointments import AppointmentRules, Appointments
from bmqtwist.member.cell import Cell
from bmqtwist.member.feeding import Feeding
from bmqtwist.member.handovers import Handovers
from bmqtwist.member.leadership import Leadership, timing
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import LineLimiter, Report
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.found_log import FoundLog, RecoveryClock, find_log
from bmqtwist.storage.partition import Durability, Partition, PartitionUnavailable
from bmqtwist.storage.promise_file import PromiseFile, StoredPromise
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.storage.replay import RecordMismatch
from bmqtwist.storage.replica import ReplicatedPartition
from bmqtwist.wire.cluster_schema import ClusterMessage, NodeStatus, PrimaryStatus, PrimaryStatusAdvisory
from bmqtwist.wire.control import ControlMessage, encode_event
from bmqtwist.wire.text import bracketed

_HEALED = (PartitionRole.PRIMARY_HEALED, PartitionRole.REPLICA_HEALED)
LEASE_SHARE = 0.75  # of the time after which a silent leader is given up
RETRY_SHARE = 0.5  # of the same
ANNOUNCE_S = 0.02  # after something was committed: a node that lacks it until then is told so
LINGER_S = 0.005  # that records nobody waits for may wait for those of a message
SAVE_AGAIN_S = 1.0  # after a promise could not be written


class ReplicationHost(Protocol):
    """The broker, as far as replication needs it."""

    report: Report
    performer: Performer
    timers: Timers
    now: float

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""

    def replace_partition(self, old: Partition, new: Partition) -> None:
        """Another object stands for a partition now."""


class ReplicatedCluster(Protocol):
    """The cluster whose partitions they are (`member.cluster.Cluster`)."""

    partitions: list[Partition]

    def queue_records(self, partition_id: int) -> Mapping[bytes, QueueRecord]:
        """The queues that the metadata have in a partition, by key."""

    def serve(self, partition_id: int, now: float, wall: int) -> None:
        """This node is active primary of a partition: its queues come to life."""

    def retire(self, partition_id: int, cause: str, now: float, wall: int) -> None:
        """It is no longer: they go away."""

    def committed(self, partition: Partition, now: float) -> None:
        """The cluster has more of a partition's records."""

    def primary_changed(self, partition_id: int) -> None:
        """Another node may be active primary of a partition, or none."""

    def held_in_memory(self, partition_id: int) -> int:
        """How many messages the queues in memory hold that are led here."""

    def records_came(self, now: float) -> None:
        """A partition that another node leads has written more."""


class Replication:
    """See above."""

    def __init__(self, name: str, node_id: int, members: list[int], elector: ElectorConfig, cluster: ReplicatedCluster,
                 host: ReplicationHost, links: ClusterLinks, promise_file: PromiseFile, statuses: NodeStatuses,
                 rules: AppointmentRules) -> None:
        self.name, self.node_id, self._members = name, node_id, members
        self._cluster, self._host, self._links, self._file = cluster, host, links, promise_file
        self.leadership: Leadership
        self.timing, self._statuses = replication_timing(elector), statuses
        self.appointments = Appointments(name, node_id, members, statuses, host,
                                         rules, lambda index, primary: self._active.find(index) == primary,
                                         self._ask_to_yield)
        self.handovers = Handovers(self, host, self.timing.retry)
        self.cells: list[Cell] = []
        self._active = ActivePrimaries()
        self._told: dict[int, Primary] = {}  # partition -> who is primary, as the log was told
        self._was_available = self._has_been_available = False
        self._promises: list[StoredPromise] = []  # as they are durable
        self._wanted: list[StoredPromise] = []
        self._saving = self._lost = False
        self._check_at = float("-inf")  # when the leases have to be looked at
        self._feeding = Feeding(node_id, links, host.timers, host.report, self._step)
        self._lines = LineLimiter()
        self._made: Callable[[int, FoundLog], ReplicatedPartition]
        self._clock: Callable[[float], RecoveryClock]

    # -- start --------------------------------------------------------------------------------------------------------

    def open(self, files: list[FileSets], durability: Durability, cache_bytes: int, now: float, wall: int) -> None:
        """Read promises and partitions. OSError."""
        epoch = wall - now

        def made(index: int, found: FoundLog) -> ReplicatedPartition:
            return ReplicatedPartition(index, self.node_id, files[index], found, durability, cache_bytes, epoch,
                                       self._wall(self._host.now))
        self._made = made
        self._clock = lambda now: RecoveryClock(epoch, self._wall(now))
        stored, self._lost = self._file.read()
        self._promises = (stored + [StoredPromise()] * len(files))[:max(len(files), len(stored))]
        if self._lost:
            self._host.report.alarm("CLUSTER", "%s", f"Cluster ({self.name}): it is not known what this node has promised: "
                                                     "it takes part in no partition until it follows a leader")
        for index, each in enumerate(files):
            found = find_log(each, self._cluster.queue_records(index), self._clock(now), index, wall)
            if found.doubtful:
                self._promises[index] = StoredPromise(self._promises[index].lease, True)
                self._file.write(self._promises)
                what = ("its file set is damaged, and was put aside: the other nodes are asked for all of it" if found.lost
                        else f"its JOURNAL is damaged, {found.cut} B of it do not count: the other nodes are asked for them")
                self._host.report.alarm("RECOVERY", "%s", f"Cluster ({self.name}) Partition [{index}]: {what}")
            elif found.cut:
                self._host.report.warn(f"Cluster ({self.name}) Partition [{index}]: the last {found.cut} B of JOURNAL do "
                                       "not count: they were being written when the node died")
            self._add(index, made(index, found))
        self._wanted = list(self._promises)

    def _add(self, index: int, partition: ReplicatedPartition) -> None:
        cell = Cell(partition)
        promise = self._promises[index]
        cell.machine = PartitionMachine(self.node_id, self._members, cell, self.timing, promise.lease,
                                        f"Cluster ({self.name}) Partition [{index}]", promise.doubtful)
        self.cells.append(cell)
        self._cluster.partitions.append(partition)
        self._watch(cell)

    def _watch(self, cell: Cell) -> None:
        cell.partition.watcher = partial(self._moved, cell)
        cell.partition.listener = lambda text: self._host.report.info("Cluster (%s): %s", self.name, text)

    def start(self, now: float) -> None:
        """The node runs: what is committed is known."""
        self.assigned(range(len(self.cells)), now)
        self.appointments.start(now)

    def close(self) -> None:
        """The end."""
        self._file.close()

    def stop(self, now: float) -> None:
        """This node goes away."""
        for cell in self.cells:
            self._step(cell, now, Stop())

    def hand_over(self, now: float) -> None:
        """This node stops: others get what it is primary of, if there are any."""
        if self.appointments.successor() is None:
            return
        for index, primary in self.leadership.metadata.state.partitions.items():
            if primary.node_id != self.node_id or index >= len(self.cells):
                continue
            cell, machine = self.cells[index], self.machine(index)
            safe = {node_id: target.durable for node_id, target in machine.targets.items()}
            successor = self.appointments.successor_of(safe) if self._serves(cell) else None
            if successor is not None:
                self.handovers.begin(index, Yield(machine.lease, successor), True, now)
            elif not self.handovers.is_leaving(index):
                self.decline(index, Decline(primary.lease, False, machine.leases.used, "this node stops"), now)

    def _ask_to_yield(self, node_id: int, index: int, wanted: Yield) -> None:
        if node_id == self.node_id:
            self._yield(index, wanted, self._host.now)
        else:
            self._links.send(node_id, encode_partition_message(index, wanted))

    def _yield(self, index: int, wanted: Yield, now: float) -> None:
        """The leader wants another node to be primary of a partition."""
        machine, held = self.machine(index), self._cluster.held_in_memory(index)
        if not self.serves(index) or machine.lease != wanted.lease or wanted.successor not in machine.others:
            return
        if held:
            self._host.report.warn(f"{machine.name}: it stays here: queues in memory hold {held} messages that no other "
                                   "node has")
            return
        self.handovers.begin(index, wanted, False, now)

    # -- what happens -------------------------------------------------------------------------------------------------

    def primaries(self, partitions: int) -> Primaries:
        """What this node begins with as a leader. What it does not lead it cannot lead under a lease that an earlier run of
        its process may have used."""
        return self.appointments.primaries(partitions, {cell.index: cell.machine.leases.used for cell in self.cells
                                                        if not cell.machine.leads})

    def assigned(self, partitions: Iterable[int], now: float) -> None:
        """The metadata say who is primary of these."""
        known = self.leadership.metadata.state.partitions
        for index in partitions:
            primary = known.get(index)
            if primary is not None and index < len(self.cells) and not self._lost:
                if self._told.get(index) != primary:
                    self._tell(index, primary)
                if self._active.named(index, primary):
                    self._tell_active(index, primary)
                self._step(self.cells[index], now, Assigned(*primary))
                self._cluster.primary_changed(index)
        self._look_around()

    def peer_up(self, node_id: int, now: float) -> None:
        """A node can be spoken with."""
        self._statuses.up(node_id)
        for cell in self.cells:
            if self._serves(cell):
                self._advise([node_id], Primary(self.node_id, cell.machine.lease), cell.index, PrimaryStatus.E_ACTIVE)
            self._step(cell, now, PeerUp(node_id))

    def peer_down(self, node_id: int, now: float) -> None:
        """A node cannot be spoken with any more: whoever leads gives its partitions to others."""
        for index in self._active.lost(node_id):
            self._cluster.primary_changed(index)
        for cell in self.cells:
            cell.images.pop(node_id, None)
            self._step(cell, now, PeerDown(node_id))
        self._statuses.down(node_id)
        self.appointments.check(now)

    def leader_known(self, now: float) -> None:
        """A leader's first record is committed: what it says counts."""
        if self._lost:
            self._lost = False
            known = self.leadership.metadata.state.partitions
            for index, cell in enumerate(self.cells):
                primary = known.get(index)
                lease = max(cell.machine.leases.promised, cell.summary.last[0], primary.lease if primary is not None else 0)
                cell.machine.leases.assume_promised(lease)
                self._promise(index, lease)
            for cell in self.cells:
                for node_id in self._members:
                    if self._links.is_up(node_id):
                        self._step(cell, now, PeerUp(node_id))
        self.assigned(range(len(self.cells)), now)
        for cell in self.cells:
            if cell.machine.role is PartitionRole.UNKNOWN:
                self._step(cell, now, Tick())
        self.appointments.check(now)

    def received(self, sender: int, partition_id: int, message: PartitionTalk | Decline | Yield, now: float) -> None:
        """Another node says something about a partition."""
        if partition_id >= len(self.cells):
            raise PeerError(f"there is no partition {partition_id}", "partitionId", 0)
        if isinstance(message, Decline):
            self.appointments.declined(sender, partition_id, message, now)
        elif isinstance(message, Yield):
            if sender == self.leadership.standing.leader:
                self._yield(partition_id, message, now)
        elif not self._lost:
            self._step(self.cells[partition_id], now, message)
            if isinstance(message, Keepalive):
                self._cluster.records_came(now)

    def advised(self, sender: int, message: ClusterMessage) -> None:
        """A primary says whether it is active."""
        advisory = message.value
        if isinstance(advisory, PrimaryStatusAdvisory):
            self._host.report.info(f"Cluster ({self.name}): received primary status advisory: {bracketed(advisory)}, from: "
                                   f"{self._links.name(sender)}")
            self._set_active(advisory.partition_id, Primary(sender, advisory.primary_lease_id),
                             advisory.status is PrimaryStatus.E_ACTIVE)

    def check(self, now: float) -> None:
        """Before a turn: an active primary that nobody answers any more is active no longer."""
        if now < self._check_at:
            return
        self._check_at = float("inf")
        for cell in self.cells:
            if cell.machine.role is PartitionRole.PRIMARY_HEALED:
                if cell.machine.commit.supported_until <= now:
                    self._step(cell, now, Tick())
                self._check_at = min(self._check_at, cell.machine.commit.supported_until)

    def _moved(self, cell: Cell, at_once: bool = False) -> None:
        """The partition has written something, or a sync has come through. Confirms are sent with the next message."""
        partition, now = cell.partition, self._host.now
        if partition.may_linger and cell.machine.targets and not at_once:
            if not cell.lingers:
                cell.lingers = True
                self._host.timers.at(now + LINGER_S, partial(self._lingered, cell))
        elif partition.keep_batches() and cell.times.is_due(now):
            cell.times.wrote(cell.written, now)
        if cell.machine.role is not PartitionRole.UNKNOWN:
            self._step(cell, now, LogMoved())
        if not partition.leading:
            self._cluster.records_came(now)

    def _announce(self, cell: Cell, now: float) -> None:
        """Whoever waits for his own copy of what others have by now need not wait any longer."""
        psn, cell.announced = cell.announced, NO_PSN
        if cell.machine.leads and psn[0] == cell.machine.lease:
            for output in copies.news(cell.machine, psn):
                self._perform(cell, output, now)

    def _lingered(self, cell: Cell, now: float) -> None:
        cell.lingers = False
        if cell.written < cell.partition.written:
            self._moved(cell, at_once=True)

    def set_factor(self, factor: int, now: float) -> None:
        """So many nodes must have a record before it is told to be committed."""
        for cell in self.cells:
            cell.machine.standing.factor = factor
            cell.count_needed()
            self._step(cell, now, LogMoved())

    # -- a machine ----------------------------------------------------------------------------------------------------

    def _step(self, cell: Cell, now: float, event: PartitionInput) -> None:
        cell.inputs.append(event)
        if cell.stepping:
            return
        cell.stepping = True
        try:
            while cell.inputs:
                for output in cell.machine.step(now, cell.inputs.popleft()):
                    self._perform(cell, output, now)
        except Exception:
            self._host.report.error("%s", f"{cell.machine.name} fails. Before:\n{cell.machine.story.lines(now, SHOWN_MAX)}")
            raise
        finally:
            cell.stepping = False
        if cell.partition.counted and cell.partition.leading:
            self._count_copies(cell, now)
        self.handovers.look(cell.index, now)
        self._look_around()
        if self._wanted[cell.index].doubtful and not cell.machine.standing.doubtful:
            self._promise(cell.index, 0)

    def _perform(self, cell: Cell, output: PartitionOutput, now: float) -> None:
        wall = self._wall(now)
        if isinstance(output, Say):
            hurry = cell.hurries(output.message)
            self._links.send(output.node_id, encode_partition_message(cell.index, output.message), hurry)
        elif isinstance(output, Feed):
            self._feeding.send_records(cell, output, now)
        elif isinstance(output, Append):
            self._append(cell, output, wall)
        elif isinstance(output, Committed):
            cell.partition.commit(output.psn)
            if cell.partition.leading:
                self._cluster.committed(cell.partition, now)
                if cell.partition.pair_commits and cell.announced == NO_PSN:
                    cell.announced = output.psn
                    self._host.timers.at(now + ANNOUNCE_S, partial(self._announce, cell))
        elif isinstance(output, SavePromise):
            self._promise(cell.index, output.lease)
        elif isinstance(output, WakeAt):
            if output.moment is not None:
                self._host.timers.at(output.moment, partial(self._tick, cell))
        elif isinstance(output, FeedImage):
            self._feeding.send_image(cell, output, now)
        elif isinstance(output, TakeImage):
            install = images.take_part(cell, output.part, wall)
            if install is not None:
                self._replace(cell, None, now, install)
        elif isinstance(output, Cut):
            self._replace(cell, output.psn, now, None)
        elif isinstance(output, Activate):
            self._activate(cell, output.lease, wall)
        elif isinstance(output, Serve):
            self.handovers.over(cell.index)
            self.serve(cell.index, output, now)
        elif isinstance(output, Decline):
            self.decline(cell.index, output, now)
        elif isinstance(output, RoleChanged):
            self._changed(cell, output, now)
        elif self._lines.admits(now):
            self._host.report.alarm("CLUSTER", "%s", f"{output.text}. Before:\n{cell.machine.story.lines(now, SHOWN_MAX)}")

    def _count_copies(self, cell: Cell, now: float) -> None:
        """Somebody waits for other nodes than a majority: those that are available, whatever becomes of the others."""
        available = [node_id for node_id, status in self._statuses.others.items() if status is NodeStatus.E_AVAILABLE]
        if cell.partition.copied(*copies.copied(cell.machine, available)):
            self._cluster.committed(cell.partition, now)

    def _tick(self, cell: Cell, now: float) -> None:
        self._step(cell, now, Tick())

    def _wall(self, now: float) -> int:
        return self._host.wall(now)

    # -- promises -----------------------------------------------------------------------------------------------------

    def _promise(self, index: int, lease: int) -> None:
        doubtful = self.cells[index].machine.standing.doubtful
        self._wanted[index] = StoredPromise(max(lease, self._wanted[index].lease), doubtful)
        self._save(self._host.now)

    def _save(self, now: float) -> None:
        if self._saving or self._wanted == self._promises:
            return
        self._saving = True
        wanted = list(self._wanted)
        self._host.performer.in_thread(partial(self._file.write, wanted), partial(self._saved, wanted), self._not_saved)

    def _saved(self, wanted: list[StoredPromise], now: float) -> None:
        self._saving, before, self._promises = False, self._promises, wanted
        for cell, old, new in zip(self.cells, before, wanted, strict=False):
            if new.lease > old.lease:
                self._step(cell, now, Promised(new.lease))
        self._save(now)

    def _not_saved(self, error: OSError, now: float) -> None:
        self._saving = False
        self._host.report.alarm("CLUSTER", "%s", f"Cluster ({self.name}): a promise cannot be written: {error}")
        self._host.timers.at(now + SAVE_AGAIN_S, self._save)

    # -- files --------------------------------------------------------------------------------------------------------

    def _append(self, cell: Cell, output: Append, wall: int) -> None:
        try:
            cell.partition.append_run(output.run, output.behind, wall)
        except (PeerError, RecordMismatch, OSError) as error:
            cell.inputs.append(LogFailed(f"records are not taken: {error}"))
        self._host.performer.turn_due()

    def _activate(self, cell: Cell, lease: int, wall: int) -> None:
        try:
            cell.partition.activate(lease, wall)
        except PartitionUnavailable as error:
            cell.inputs.append(LogFailed(str(error)))
            return
        cell.partition.keep_batches()
        cell.count_needed()
        cell.times = WriteTimes()
        cell.times.wrote(cell.written, self._host.now)
        cell.inputs.append(LogMoved())
        self._host.performer.turn_due()

    def _replace(self, cell: Cell, psn: Psn | None, now: float, install: Callable[[], None] | None) -> None:
        """Read the log anew: cut behind a record, or after `install` has brought an image. Until then it is busy."""
        if cell.busy:
            return
        old, wall, clock = cell.partition, self._wall(now), self._clock(now)
        if psn is not None:
            self._host.report.info(f"{cell.machine.name}: what follows record {psn[0]}-{psn[1]} is cut off")
            if old.batch_waits:
                old.write_batch()
        known, found = self._cluster.queue_records(cell.index), list[ReplicatedPartition]()
        where = old.cut_at(psn) if install is None else None
        cell.busy = True
        cell.images.clear()
        old.abandon(wall)

        def work() -> None:
            if install is not None:
                install()
            found.append(self._made(cell.index, find_log(old.files, known, clock, cell.index, wall, where)))
        self._host.performer.in_thread(work, partial(self._replaced, cell, old, found), partial(self._not_replaced, cell))

    def _replaced(self, cell: Cell, old: ReplicatedPartition, found: list[ReplicatedPartition], now: float) -> None:
        cell.partition, cell.busy = found[0], False
        self._cluster.partitions[cell.index] = found[0]
        old.watcher = None
        self._watch(cell)
        self._host.replace_partition(old, found[0])
        self._step(cell, now, LogReady())

    def _not_replaced(self, cell: Cell, error: OSError, now: float) -> None:
        cell.busy = False
        cell.partition.fail()
        self._step(cell, now, LogFailed(f"its files cannot be read: {error}"))
        self._step(cell, now, LogReady())

    # -- roles --------------------------------------------------------------------------------------------------------

    def _serves(self, cell: Cell) -> bool:
        return cell.machine.role is PartitionRole.PRIMARY_HEALED and not self.handovers.is_leaving(cell.index)

    def serves(self, index: int) -> bool:
        """Whether this node is active primary of a partition."""
        return index < len(self.cells) and self._serves(self.cells[index])

    def serve(self, index: int, output: Serve, now: float) -> None:
        """Its queues come to life, or go away."""
        cell, wall = self.cells[index], self._wall(now)
        report, name = self._host.report, self._links.name(self.node_id)
        states = ("E_ACTIVE", "E_PASSIVE") if output.active else ("E_PASSIVE", "E_ACTIVE")
        report.info(f"Cluster [{self.name}]: Setting status of primary [{name}] of Partition [{index}] to [{states[0]}], "
                    f"oldPrimaryStatus: [{states[1]}], leaseId: [{output.lease}].")
        report.info(f"Cluster [{self.name}]: {'opening' if output.active else 'closing'} the gate {index}")
        primary = Primary(self.node_id, output.lease)  # the machine may be under another lease by now
        self._set_active(index, primary, output.active)
        if output.active:
            self._check_at = float("-inf")
            cell.partition.commit(cell.machine.committed)
            self._cluster.serve(index, now, wall)
        else:
            report.warn(f"{cell.machine.name}: no longer active: {output.cause}")
            self._note(index, f"this node is not active any more: {output.cause}", lease=output.lease)
            self._cluster.retire(index, output.cause, now, wall)
            cell.partition.forget_waiting()
        status = PrimaryStatus.E_ACTIVE if output.active else PrimaryStatus.E_PASSIVE
        self._advise([node_id for node_id in self._members if node_id != self.node_id], primary, index, status)
        self._host.performer.turn_due()

    def mark_end(self, index: int, now: float) -> None:
        """Nothing more is written to a partition under this lease: a sync point ends it."""
        cell = self.cells[index]
        cell.partition.sync_point(self._wall(now))
        self._moved(cell, at_once=True)

    def _advise(self, nodes: list[int], primary: Primary, index: int, status: PrimaryStatus) -> None:
        event = encode_event(ControlMessage(None, "clusterMessage", ClusterMessage(
            "primaryStatusAdvisory", PrimaryStatusAdvisory(index, primary.lease, status))))
        for node_id in nodes:
            self._links.send(node_id, event)

    def _set_active(self, index: int, primary: Primary, active: bool) -> None:
        before = self._active.find(index)
        if not self._active.said(index, primary, active):
            if active and self._lines.admits(self._host.now):
                who = self._links.name(primary.node_id)
                self._host.report.warn(f"Cluster ({self.name}) Partition [{index}]: node {who} says that it is primary "
                                       f"under lease {primary.lease}, which nobody has given to it")
            return
        if self._active.find(index) != before:
            if active:
                self._tell_active(index, primary)
            self._cluster.primary_changed(index)
            self._look_around()

    def _tell_active(self, index: int, primary: Primary) -> None:
        if primary.node_id != self.node_id:
            self._host.report.info(
                f"Cluster ({self.name}) Partition [{index}]: Setting the status of primary: "
                f"{self._links.name(primary.node_id)}, primaryLeaseId: {primary.lease}, from E_PASSIVE to E_ACTIVE.")

    def _look_around(self) -> None:
        """Whether all partitions have active primaries; and whether everything here is healed as well, once."""
        before, self._was_available = self._was_available, self.is_available
        if self._was_available and not before:
            self._host.report.info(f"Cluster ({self.name}) is available")
            if self._has_been_available:
                self._host.report.info(f"Cluster ({self.name}) is back to healthy state")
            self._has_been_available = True
        if self._statuses.own is NodeStatus.E_STARTING and self.is_available and all(
                cell.machine.role in _HEALED for cell in self.cells):
            self._statuses.become(NodeStatus.E_AVAILABLE)

    def active_primary(self, index: int) -> Primary | None:
        """Which node is active primary of a partition, as the metadata and itself say."""
        return self._active.find(index)

    def primary_of(self, index: int) -> Primary | None:
        """The same, if it is another node."""
        active = self._active.find(index)
        return None if active is None or active.node_id == self.node_id else active

    @property
    def is_available(self) -> bool:
        """Whether every partition has an active primary, as far as this node knows."""
        return all(self._active.find(index) is not None for index in range(len(self.cells)))

    def has_safe(self, index: int, lease: int, psn: Psn) -> bool:
        """Whether a record of a partition is safe here, or known to be committed (`copies.has_safe`)."""
        return copies.has_safe(self.machine(index), lease, psn)

    def told_ahead(self, index: int) -> None:
        """Clients here are told of records of a partition as soon as they are safe here."""
        self.cells[index].told_ahead = True

    def knows_committed(self, index: int, psn: Psn) -> bool:
        """Whether a record that its primary has safe is committed (`copies.knows_committed`)."""
        return copies.knows_committed(self.machine(index), psn)

    def machine(self, index: int) -> PartitionMachine:
        """Of a partition."""
        return self.cells[index].machine

    def decline(self, index: int, output: Decline, now: float) -> None:
        """The leader is told that this node cannot be primary, or is not to be."""
        cell, leader = self.cells[index], self.leadership.standing.leader
        self._host.report.warn(f"{cell.machine.name}: {output.cause}")
        if leader == self.node_id:
            self.appointments.declined(self.node_id, cell.index, output, now)
        elif leader is not None:
            self._links.send(leader, encode_partition_message(cell.index, output))

    def _changed(self, cell: Cell, output: RoleChanged, now: float) -> None:
        self._host.report.info(f"Partition FSM for Partition [{cell.index}] on Event '{output.event}', transition: State "
                               f"'{output.before.name}' =>  State '{output.after.name}'")
        cause = cell.machine.story.cause_of(output.after.name)
        self._note(cell.index, f"this node {output.after.value}: {cause}", role=output.after.name, before=output.before.name)
        if not cell.machine.leads and cell.partition.leading:
            clean = cell.partition.follow()
            if not clean and output.after is not PartitionRole.STOPPED:
                self._replace(cell, None, now, None)

    def _tell(self, index: int, primary: Primary) -> None:
        """The metadata name another primary."""
        before, self._told[index] = self._told.get(index), primary
        old = "** NULL **" if before is None else self._links.name(before.node_id)
        self._host.report.info(
            f"Cluster [{self.name}]: Setting primary of Partition [{index}] to [{self._links.name(primary.node_id)}], "
            f"leaseId: [{primary.lease}], primaryStatus: [E_PASSIVE], oldPrimary: [{old}], oldLeaseId: "
            f"[{0 if before is None else before.lease}].")
        new, old = self._links.node_name(primary.node_id), self._links.node_name(before.node_id) if before else ""
        self._note(index, f"node {new} is appointed primary under lease {primary.lease}{old and f', after node {old}'}",
                   primary=new, lease=primary.lease, primaryBefore=old or None)

    def _note(self, index: int, text: str, **detail: object) -> None:
        self._host.report.note("primary", f"Partition [{index}]: {text}", cluster=self.name, partition=index, **detail)


def replication_timing(config: ElectorConfig) -> ReplicationTiming:
    """As the configuration of the elector has it."""
    elector = timing(config)
    lease = config.lease_ms / 1000 or elector.inactivity * LEASE_SHARE
    return ReplicationTiming(lease, min(elector.beat_period, lease / 4), elector.inactivity * RETRY_SHARE)
