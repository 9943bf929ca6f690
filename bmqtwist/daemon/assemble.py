"""Assembly of one node from its parts, for a process, the test kit and the simulator.

    assemble    build the broker and its surroundings over a disk, a clock and a performer, without I/O
    open        start authenticators, lock storage directories, recover ledger and partitions, load domains
    start       start the timers of broker, housekeeping and statistics
    close       write last sync points, close files at their lengths, stop authenticators, release locks

Listeners, threads and the clock belong to the caller: `service.py` for a process, `bmqtwist.testing` for nodes in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bmqtwist import alarms
from bmqtwist.broker.broker import Broker
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.metadata_log import MetadataLog, read_unsafe_info
from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.config.load import CLUSTERS_FILE
from bmqtwist.config.provider import DomainProvider, DomainSource
from bmqtwist.daemon.directories import shared_directories
from bmqtwist.daemon.housekeeping import Housekeeping
from bmqtwist.daemon.preflight import find_class
from bmqtwist.daemon.storage_start import StorageFiles, start_storage
from bmqtwist.errors import LocalError
from bmqtwist.link.admin import AdminAnswer
from bmqtwist.loop.performer import Clock, Performer
from bmqtwist.loop.scheduler import Priority
from bmqtwist.member.appointments import AppointmentRules
from bmqtwist.member.cluster import Cluster
from bmqtwist.member.dispatch import MemberDispatch
from bmqtwist.member.features import ClusterFeatures
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.member_relays import MemberRelays
from bmqtwist.member.metadata import ClusterMetadata
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.member.proposals import Proposals
from bmqtwist.member.replication import Replication
from bmqtwist.member.role_release import RoleRelease
from bmqtwist.member.storage_standing import StorageStanding
from bmqtwist.peers.handshake import Identity
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import Report
from bmqtwist.security.authenticators import build_security
from bmqtwist.steps import Awaited, Steps
from bmqtwist.storage.fileset import FileSets
from bmqtwist.storage.ledger_file import LedgerFile
from bmqtwist.storage.probe import probe_directory
from bmqtwist.storage.slot_file import PromiseFile, SlotFile, StorageVersionFile, VoteFile
from bmqtwist.storage.store import Disk, FileSizes
from bmqtwist.textformat import timestamp_text
from bmqtwist.view import snapshots
from bmqtwist.view.events import NodeHistory
from bmqtwist.view.snapshot import ProcessState
from bmqtwist.view.statistics import Statistics
from bmqtwist.wire.cluster_schema import NodeStatus

if TYPE_CHECKING:
    from bmqtwist.admin.commands import AdminContext
    from bmqtwist.admin.executor import AdminExecutor


class StartFailure(LocalError):
    """The broker cannot start; the message is for the operator."""


def assemble(configuration: Configuration, domains: DomainSource, disk: Disk, clock: Clock, performer: Performer,
             identity: Identity, report: Report) -> Node:
    """Build a node without I/O. Raises LocalError if the configuration names unusable plug-ins."""
    app = configuration.app
    security = build_security(app, report, clock.sleep, find_class, clock.now)
    provider = DomainProvider(domains, app.bmqconf_config.cache_ttl_seconds, report)
    return Node(Broker(configuration, identity, report, security, provider, performer), disk, clock)


class Node:
    """One node from its start to its end. A node starts once; a restart assembles a new one."""

    def __init__(self, broker: Broker, disk: Disk, clock: Clock) -> None:
        self.broker, self.disk, self.clock = broker, disk, clock
        self._executor: AdminExecutor | None = None
        self._locks: list[ExitStack] = []
        self._files: list[LedgerFile | SlotFile[Any]] = []
        self._started = self._closed = False
        self.history = NodeHistory(_name_of(broker.configuration), lambda: clock.now() + clock.wall_offset)
        self.events, self.alarms = self.history.events, self.history.alarms
        broker.report.set_recorder(self.history)
        broker.commands.execute = self._begin_command

    # -- start ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open and recover the storage. Raises StartFailure, after closing all files."""
        try:
            configuration = self.broker.configuration
            mine = configuration.clusters.my_clusters
            shared = list(shared_directories(mine, f"{configuration.directory}/{CLUSTERS_FILE}", self.disk.identify))
            if shared:
                raise StartFailure("\n".join(map(str, shared)))
            self.broker.security.start()
            for definition in mine:
                self.open_cluster(definition)
            for proxied in configuration.clusters.proxy_clusters:
                if proxied.name not in self.broker.clusters:
                    self.broker.add_proxy(proxied)
        except (LocalError, OSError) as error:
            self.close()
            raise StartFailure(str(error)) from None

    def start(self) -> None:
        """Start the timers."""
        now = self.clock.now()
        self.broker.start(now)
        for cluster in self.broker.clusters.values():
            cluster.leadership.start(now)
            if cluster.release is not None:
                cluster.release.start(now)
            cluster.features.start(now)
        Housekeeping(self.broker, self.alarms).start(now)
        self._started = True
        if self._executor is not None:
            self._sample_regularly()

    def open_cluster(self, definition: ClusterDefinition) -> None:
        """Lock the directories of one cluster, recover ledger and partitions, load the domains of stored queues."""
        wall = int(self.clock.now() + self.clock.wall_offset)
        broker, config = self.broker, definition.partition_config
        configuration, report = broker.configuration, broker.report
        ledger_file, node_id = self._open_ledger_file(definition), configuration.self_nodes[definition.name]
        several = len(definition.nodes) > 1
        if several:
            definition = self._alone_if_forced(definition, node_id, ledger_file)
        cluster = Cluster(definition, node_id, broker.loop, broker.deliveries, broker.domains, self.clock.timer_ns)
        electorate = Electorate(node_id, [node.id for node in definition.nodes] if several else [node_id])
        log = MetadataLog(electorate, cluster.node_name, config.max_csl_file_size, definition.master_assignment)
        metadata = ClusterMetadata(log, ledger_file, report)
        links = ClusterLinks(definition, electorate, broker.sessions) if several else None
        cluster.features = self._check_versions(definition, links, not ledger_file.read_all())
        metadata.on_features = cluster.features.on_features
        files = self._storage_files(config.location, ledger_file, several)
        started = start_storage(files, definition, node_id, broker.loop.performer.chance, wall, report)
        storage = StorageStanding(definition, metadata, started.identity, files.identity, broker.loop)
        storage.mistake = started.mistake
        if links is not None:
            links.active_features = lambda: metadata.log.head.features
            self._add_member_parts(cluster, storage, links, files, started.promises_unknown)
        sets = self._open_file_sets(definition, wall)
        extension = configuration.extension
        opening = sets, extension.durability, extension.payload_cache_bytes, self.clock.now(), wall
        try:
            if cluster.replication is not None:
                cluster.replication.open(*opening)
            else:
                cluster.start(Leadership(storage, broker.loop), *opening)
        except (LocalError, OSError):
            _close_all(sets)
            raise
        broker.add_cluster(cluster)

    def _alone_if_forced(self, definition: ClusterDefinition, node_id: int, file: LedgerFile) -> ClusterDefinition:
        """Return the definition of the cluster; after `bmq cluster unsafe-force` with this node only."""
        unsafe = read_unsafe_info(file.read_all())
        if unsafe is None:
            return definition
        title = f"Cluster ({definition.name})"
        if unsafe.node_id != node_id:
            raise StartFailure(f"{title}: the metadata ledger in '{definition.partition_config.location}' is that of node "
                               f"{unsafe.node_id}, which runs alone, and not of node {node_id}")
        since = timestamp_text(unsafe.since)
        self.broker.report.alarm(
            alarms.UNSAFE_NODE_ALONE,
            f"{title}: UNSAFE: this node runs alone since {since}, by `bmq cluster "
            "unsafe-force`: records stored only at other members are lost, and nothing is "
            "replicated. docs/operations.md describes how the cluster is restored")
        return replace(definition, nodes=tuple(each for each in definition.nodes if each.id == node_id))

    def _check_versions(self, definition: ClusterDefinition, links: ClusterLinks | None, is_new: bool) -> ClusterFeatures:
        """Return the features of a cluster; the storage must have a version of this release."""
        location, broker = definition.partition_config.location, self.broker
        file = StorageVersionFile(self.disk, location)
        self._files.append(file)
        features = ClusterFeatures(definition.name, location, broker.identity.versions, file, broker.loop,
                                   broker.configuration.extension.rollback_seconds, links)
        features.open(is_new)
        return features

    def _storage_files(self, location: str, ledger: LedgerFile, several: bool) -> StorageFiles:
        """Open the files of a storage directory. `several`: the node has a vote and promises."""
        files = StorageFiles(self.disk, location, ledger, VoteFile(self.disk, location) if several else None,
                             PromiseFile(self.disk, location) if several else None)
        self._files += [each for each in (files.vote, files.promises) if each is not None]
        return files

    def _add_member_parts(self, cluster: Cluster, storage: StorageStanding, links: ClusterLinks, files: StorageFiles,
                          promises_unknown: bool) -> None:
        """Add the parts of a member of a cluster of several nodes: links, elections, replication, relays."""
        definition, node_id, broker, metadata = cluster.definition, cluster.node_id, self.broker, storage.metadata
        assert files.vote is not None and files.promises is not None  # a member of a cluster of several nodes has both
        broker.sessions.peers[definition.name] = links
        links.receipts = cluster.receipts
        statuses = NodeStatuses(definition, node_id, links, broker.report)
        rules = AppointmentRules(definition.master_assignment, definition.cluster_monitor_config.max_time_master,
                                 broker.configuration.extension.rebalance)
        replication = Replication(definition, cluster, broker.loop, links, files.promises, statuses, rules)
        replication.runner.promises.lost = promises_unknown
        leadership = Leadership(storage, broker.loop, files.vote, links)
        storage.is_available = lambda node_id: statuses.status_of(node_id) is NodeStatus.E_AVAILABLE
        storage.has_saved_promises = lambda: replication.runner.promises.are_saved
        storage.doubt_all, storage.reconnect = replication.doubt_all, links.reconnect
        extension = broker.configuration.extension
        relays = MemberRelays(cluster, lambda uri: metadata.state.queues.get(uri), replication, links, statuses,
                              extension.relay_bytes_max)
        proposals = Proposals(node_id, metadata, links, broker.loop, leadership.active_leader, self.clock.timer_ns,
                              definition.queue_operations.assignment_timeout_ms / 1000)
        cluster.repairs.connect(links, replication.primary_of, replication.is_active_primary)
        probe = partial(probe_directory, self.disk, definition.partition_config.location)
        release = RoleRelease(probe, statuses, leadership, replication, broker.loop)
        cluster.join(leadership, replication, proposals, relays, release)
        links.user = MemberDispatch(leadership, replication, proposals, relays, links, broker.loop)

    def _open_ledger_file(self, definition: ClusterDefinition) -> LedgerFile:
        location = definition.partition_config.location
        try:
            self._locks.append(self.disk.lock(location))
            ledger_file = LedgerFile(self.disk, location)
            ledger_file.open()
        except OSError as error:
            raise StartFailure(f"Cluster ({definition.name}): Failed to open cluster state ledger [rc: -1]: "
                               f"'{location}': {error.strerror or error}") from None
        self._files.append(ledger_file)
        return ledger_file

    def _open_file_sets(self, definition: ClusterDefinition, wall: int) -> list[FileSets]:
        config = definition.partition_config
        sizes = FileSizes(config.max_journal_file_size, config.max_data_file_size, config.max_qlist_file_size)
        sets: list[FileSets] = []
        try:
            self._locks.append(self.disk.lock(config.archive_location))
            for index in range(config.num_partitions):
                each = FileSets(self.disk, config.location, config.archive_location, index, sizes,
                                config.max_archived_file_sets, config.preallocate)
                each.open(wall)
                sets.append(each)
        except OSError as error:
            _close_all(sets)
            raise StartFailure(f"Cluster ({definition.name}): Failed to open the partitions [location: "
                               f"'{config.location}', archiveLocation: '{config.archive_location}']: {error}") from None
        return sets

    # -- statistics -------------------------------------------------------------------------------------------------

    def start_statistics(self, process: Callable[[], ProcessState] = ProcessState) -> Statistics:
        """Create the statistics and the command executor, unless they exist; the first command calls this, too. The executor
        is imported here, because most brokers of tests execute no command. `process` returns the state of the process."""
        if self._executor is None:
            from bmqtwist.admin.executor import AdminExecutor
            stats = self.broker.configuration.app.stats
            statistics = Statistics(self.clock.now(), stats.snapshot_interval, stats.printer.print_interval)
            self._executor = AdminExecutor(self.broker, statistics, process, self.history)
            if self._started:
                self._sample_regularly()
        return self._executor.context.statistics

    def _begin_command(self, command: str, source: str) -> Steps[AdminAnswer | Awaited[AdminAnswer]]:
        return self._admin_executor().execute(command, source)

    @property
    def admin(self) -> AdminContext:
        """Context of admin operations."""
        return self._admin_executor().context

    def _admin_executor(self) -> AdminExecutor:
        self.start_statistics()
        assert self._executor is not None  # created by `start_statistics`
        return self._executor

    def _sample_regularly(self) -> None:
        statistics = self.start_statistics()
        if statistics.enabled:
            period = max(self.broker.configuration.app.stats.snapshot_interval, statistics.step_seconds)
            self.broker.loop.timers.every(self.clock.now(), period, self._sample)

    def _sample(self, now: float) -> None:
        loop = self.broker.loop
        loop.scheduler.start(Priority.COMMAND, self, self.sample_in_steps(now), partial(loop.isolation.alarm, "Statistics"))

    def sample_in_steps(self, now: float) -> Steps[None]:
        """Take a sample of all counters, in steps."""
        return self.start_statistics().sampling(now, snapshots.sources(self.broker))

    # -- end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close storage, authenticators and locks; later calls do nothing. A storage that cannot be closed cleanly raises a
        PANIC alarm."""
        if self._closed:
            return
        self._closed = True
        try:
            self.broker.close(self.clock.now())
        except OSError as error:
            self.broker.report.alarm(alarms.STORAGE_NOT_CLOSED, "Storage could not be closed cleanly: %s", error)
        self.broker.security.stop()
        for each in (*self._files, *self._locks):
            each.close()


def _name_of(configuration: Configuration) -> str:
    """Return the name of the node in its first cluster; without clusters the instance or host name."""
    names = (node.name for cluster in configuration.clusters.my_clusters for node in cluster.nodes
             if node.id == configuration.self_nodes[cluster.name])
    return next(names, configuration.app.broker_instance_name or configuration.app.host_name)


def _close_all(sets: list[FileSets]) -> None:
    for each in sets:
        each.close(truncate=False)
