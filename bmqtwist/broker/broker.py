"""Broker of one node: clusters, proxies and sessions, and the order of work in a turn.

    sessions.add_accepted, on_received, on_lost    called by the connections, any number of times
    turn(now)                                      once after them: write, release, deliver, answer
    tick(now)                                      at `next_deadline`

Steps of a turn, each once for all input since the last turn:

    deferred input        sessions.py, jobs of the scheduler
    other jobs            commands, expired messages, lost consumers
    metadata              written if changed
    partitions            storage_turn.py
    queues                deliveries.py
    sessions with output  output.py, up to TURN_WRITE_S (`bmqtwist/limits.py`)
    rollovers             continued within their budget (`loop/scheduler.py: BUDGETS`)

Exceptions of sessions, queues, partitions and timers do not leave these calls (loop/error_isolation.py).

Pure: files, clock, threads and sockets are arguments; a `Performer` (loop/performer.py) performs effects.
`reactor/performer.py` calls `turn` and `tick`, in tests `testing/node.py` and `testing/simulated_node.py` do;
`daemon/assemble.py` creates the Broker.

docs/architecture.md, "A message's way", shows when this module is called.
"""

from __future__ import annotations

import math
from functools import partial

from bmqtwist.broker.access import Domains, QueueAccess
from bmqtwist.broker.commands import Commands
from bmqtwist.broker.deliveries import Deliveries
from bmqtwist.broker.graceful_stop import Shutdown
from bmqtwist.broker.output import Output
from bmqtwist.broker.periodic_jobs import PeriodicJobs
from bmqtwist.broker.scrubbing import Scrubbing
from bmqtwist.broker.sessions import Sessions
from bmqtwist.broker.storage_turn import StorageTurn
from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import ClusterProxyDefinition
from bmqtwist.config.provider import DomainProvider
from bmqtwist.limits import TURN_WRITE_S
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.scheduler import Priority
from bmqtwist.member.cluster import Cluster
from bmqtwist.member.metadata import ClusterMetadata
from bmqtwist.member.replication import Replication
from bmqtwist.peers import handshake
from bmqtwist.peers.downstreams import Downstreams
from bmqtwist.peers.handshake import Identity
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.report import Report
from bmqtwist.security.authenticators import Security
from bmqtwist.wire.cluster_schema import NodeStatus

# jobs that may store records or write output
_BEFORE_WRITING = (Priority.QUEUE, Priority.COMMAND, Priority.ACTIVATION, Priority.EXPIRY, Priority.SESSIONS)


class Broker:
    """One node. `clusters`: clusters of which it is a member; `proxies`: clusters of which it is a proxy."""

    def __init__(self, configuration: Configuration, identity: Identity, report: Report, security: Security,
                 provider: DomainProvider, performer: Performer) -> None:
        self.configuration, self.identity, self.report, self.security = configuration, identity, report, security
        self.clusters: dict[str, Cluster] = {}
        self.proxies: dict[str, ProxyCluster] = {}
        self._metadata: list[ClusterMetadata] = []  # of all clusters
        self._replications: list[Replication] = []  # of clusters of several nodes
        self.shutdown: Shutdown | None = None
        self.loop = loop = Loop(performer, report, identity.started, identity.started_wall - identity.started,
                                self._finish_turn)
        self.storage = StorageTurn(loop)
        extension = configuration.extension
        self.scrubbing = Scrubbing(loop, self.storage.partitions, extension.scrub_interval_seconds,
                                   extension.scrub_bytes_per_second)
        self.deliveries = Deliveries(loop, self.storage)
        self.output = Output(loop, extension.outbox_bytes_max)
        self.domains = Domains(configuration, provider, self.clusters, loop)
        self.queues = QueueAccess(loop, self.domains, self.clusters, self.proxies, self.add_proxy, security, identity)
        self.commands = Commands(loop, self.clusters, security)
        self.sessions = Sessions(configuration, identity, security, loop, self.output, self.queues, self.commands)
        self.periodic = PeriodicJobs(loop, self.sessions, self.storage, self.clusters, self.proxies)
        mine = {cluster.name for cluster in configuration.clusters.my_clusters}
        for virtual in configuration.clusters.my_virtual_clusters:
            if virtual.name not in mine:
                self.sessions.downstreams[virtual.name] = self._proxy_downstreams(virtual.name, virtual.self_node_id)

    # -- clusters ---------------------------------------------------------------------------------------------------

    def add_cluster(self, cluster: Cluster) -> None:
        """Add a recovered cluster and load its domains that have stored queues."""
        self.clusters[cluster.name] = cluster
        self._metadata.append(cluster.metadata)
        self.sessions.downstreams[cluster.name] = downstreams = Downstreams(
            cluster.name, NodeStatus.E_AVAILABLE if cluster.replication is None else NodeStatus.E_STARTING,
            lambda number: handshake.member_identity(self.identity, self.configuration.app, number, cluster.name,
                                                   cluster.node_id, console_of=cluster.definition), self.sessions)
        downstreams.receipts = cluster.receipts
        downstreams.has_alternatives = cluster.members is not None
        if cluster.members is not None:
            cluster.members.statuses.announce_to_proxies = downstreams.announce
        if cluster.replication is not None:
            self._replications.append(cluster.replication)
        self.storage.add(cluster.partitions, cluster.replication.runner if cluster.replication is not None else None)
        self.domains.activate_queues(cluster)
        cluster.metadata.perform_jobs(int(self.identity.started_wall))
        cluster.report_alarms()

    def add_proxy(self, definition: ClusterProxyDefinition) -> ProxyCluster:
        """Make this node a proxy of a cluster."""
        proxy = self.proxies[definition.name] = ProxyCluster(definition, self.sessions, self.deliveries)
        self.sessions.downstreams.setdefault(definition.name, self._proxy_downstreams(definition.name))
        self.periodic.start_heartbeats(self.loop.now)
        return proxy

    def _proxy_downstreams(self, name: str, node_id: int = -1) -> Downstreams:
        return Downstreams(name, NodeStatus.E_AVAILABLE, lambda number: handshake.proxy_identity(
            self.identity, self.configuration.app, number, name, node_id), self.sessions)

    # -- lifecycle --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Start the timers."""
        self.loop.now = now
        self.periodic.start(now)
        self.scrubbing.start(now)

    def next_deadline(self) -> float | None:
        """Return the moment at which `tick` is due; None = not before the next event."""
        due, write_by = self.loop.timers.next_at, self.storage.write_by
        moment = min(math.inf if due is None else due, self.output.delayed_until, write_by or math.inf)
        return None if moment == math.inf else moment

    def tick(self, now: float) -> None:
        """Call the due timers, then run a turn."""
        self.loop.now = now
        self.loop.timers.run(now)
        self.turn(now)

    def stop(self, now: float, reason: str = "", by: str = "") -> None:
        """Start the graceful stop; `shutdown.done` is True at its end. `reason`, `by`: of the operator who requested it."""
        if self.shutdown is None:
            self.sessions.stop()
            for proxy in self.proxies.values():
                proxy.stop()
            self.shutdown = Shutdown(self.loop, self.clusters, self.proxies, self.sessions, now, reason, by)
            self.turn(now)

    def close(self, now: float) -> None:
        """Write the last sync points and close all files at their lengths; then raise the first OSError, if any."""
        sync = all(each.partition_config.flush_at_shutdown for each in self.configuration.clusters.my_clusters)
        failed = self.storage.close(self.loop.wall(now), sync)
        self.deliveries.drop_requests()
        self.output.write()
        if failed is not None:
            raise failed
        for cluster in self.clusters.values():
            cluster.report_alarms()

    # -- the turn ---------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Process deferred input, write records, release PUTs, deliver, and write to each connection once."""
        loop = self.loop
        loop.now = now
        loop.scheduler.run(Priority.INPUT)
        loop.scheduler.run(Priority.UNAUTHENTICATED)
        loop.scheduler.run(Priority.HTTP)
        self._finish_turn(now)

    def _finish_turn(self, now: float) -> None:
        """Run the turn without deferred input: after the result of a thread, so that the ACKs of a sync are not delayed."""
        scheduler, output = self.loop.scheduler, self.output
        output.flush_delayed(now)
        for priority in _BEFORE_WRITING:
            scheduler.run(priority)
        for replication in self._replications:
            replication.runner.expire_leases(now)
        for metadata in self._metadata:
            if metadata.flush_due:
                self._write_metadata(metadata, now)
        writes_now, output.storage_first = output.storage_first, False
        self.storage.run(now, writes_now)
        self.deliveries.run(now)
        output.write(now + TURN_WRITE_S)
        self.storage.run_rollovers()
        scheduler.end_turn()

    def _write_metadata(self, metadata: ClusterMetadata, now: float) -> None:
        loop, isolation = self.loop, self.loop.isolation
        job = metadata.next_job(loop.wall(now))
        if job is not None:
            loop.run_in_thread(
                partial(metadata.perform, job),
                lambda now: isolation.run("metadata: after a write", partial(metadata.on_written, job, loop.wall(now))),
                lambda error, now: isolation.run("metadata: after a failed write",
                                               partial(metadata.on_failed, job, error, loop.wall(now))))
