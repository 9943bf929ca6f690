"""The broker: sessions, domains, clusters, and when what happens.

    connect / received / lost     from the connections, any number of times
    turn(now)                     once after them: write, release, deliver, answer (broker/turn.py)
    tick(now)                     when `next_deadline` has come

No exception of a session, queue, partition or timer leaves these calls: loop/error_isolation.py deals with it.

Pure: files, clock, threads and sockets are given. A `Performer` (loop/performer.py) does the few things that need the world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bmqtwist.broker.access import QueueAccess
from bmqtwist.broker.graceful_stop import Shutdown
from bmqtwist.broker.periodic_jobs import PeriodicJobs
from bmqtwist.broker.storage_turn import StorageTurn
from bmqtwist.broker.turn import Turn
from bmqtwist.cluster.log_events import FileJob
from bmqtwist.cluster.membership import PROXY
from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import ClusterProxyDefinition, VirtualCluster
from bmqtwist.config.engine_settings import domain_settings, throttle
from bmqtwist.config.provider import DomainProvider, LoadedDomain
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import GuidGenerator, parse_uri
from bmqtwist.limits import NEWCOMERS_BYTES_MAX
from bmqtwist.link import negotiation
from bmqtwist.link.admin import AdminAnswer, AdminSession
from bmqtwist.link.authentication import Authenticate, Outcome
from bmqtwist.link.newcomers import Newcomers
from bmqtwist.link.pace import SHARE_S, WAIT_S
from bmqtwist.link.peer import PeerContext
from bmqtwist.link.session import Session
from bmqtwist.loop.error_isolation import Containment
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.scheduler import Priority, Scheduler
from bmqtwist.loop.timers import Timers
from bmqtwist.member.cluster import Cluster
from bmqtwist.member.metadata import ClusterMetadata
from bmqtwist.member.replication import Replication
from bmqtwist.peers import welcome
from bmqtwist.peers.downstreams import Downstreams
from bmqtwist.peers.identity import Identity
from bmqtwist.queue import describe, poison
from bmqtwist.queue.counters import AckLatency, ClientStats, QueueStats
from bmqtwist.queue.domain import Throttle
from bmqtwist.queue.queue import App, Queue
from bmqtwist.queue.root import Domain, RootQueue
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.report import Report, shown
from bmqtwist.security.authenticators import Security
from bmqtwist.security.authorization import Action
from bmqtwist.steps import Steps, at_once
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import Partition
from bmqtwist.wire.cluster_schema import NodeStatus
from bmqtwist.wire.frames import Held
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity, ClientType

LINGER_S = 0.005  # that output nobody waits for may wait for other output of the same connection
POISON_ALARM_PERIOD_S = 15.0
_BEFORE_WRITING = (Priority.QUEUE, Priority.COMMAND, Priority.ACTIVATION, Priority.EXPIRY)  # jobs that may store records


class Broker:
    """One node."""

    def __init__(self, configuration: Configuration, identity: Identity, report: Report, security: Security,
                 provider: DomainProvider, performer: Performer) -> None:
        self.configuration, self.identity, self.report = configuration, identity, report
        self.security, self.provider, self.performer = security, provider, performer
        self.serving = True
        self.clusters: dict[str, Cluster] = {}
        self._metadata: list[ClusterMetadata] = []  # of the clusters
        self._replications: list[Replication] = []  # of those of several nodes
        self.domains: dict[str, Domain] = {}  # by the name clients use
        self.loaded: dict[str, LoadedDomain] = {}  # by the name of the file
        self.sessions: dict[Session, None] = {}
        self.peers: dict[str, PeerContext] = {}  # the other nodes of a cluster, by its name; none = it has no others
        self.downstreams: dict[str, Downstreams] = {}  # its proxies, by the name of the cluster
        self.proxies: dict[str, ProxyCluster] = {}  # clusters that this node is a proxy of
        self.contain = Containment(report, performer, lambda: self.now)
        self.timers = Timers(lambda error: self.contain.told("A timer", error))
        self.shutdown: Shutdown | None = None
        self.invalid_queue = QueueStats()  # PUTs for queues that nobody knows
        self.ack_latency = AckLatency()  # of queue.queue.QueueContext
        self.past_traffic = ClientStats()  # of sessions of applications and proxies that are over
        self.begin_command: Callable[[str, str], Steps[AdminAnswer]]  # the command and who asks
        self.negotiations = 0
        self.now = identity.started
        self._wall_offset = identity.started_wall - identity.started
        self._guids = GuidGenerator(identity.client_id, 0)
        self.held = Held()
        self.input_bytes_max = configuration.extension.input_bytes_max
        extension = configuration.extension
        self.newcomers = Newcomers(extension.unauthenticated_connections_max, NEWCOMERS_BYTES_MAX,
                                   extension.unauthenticated_connections_per_address_max,
                                   extension.connections_per_address_and_second_max)
        self.event_bytes_max = configuration.extension.event_bytes_max  # of link.session.SessionContext
        self.output_bytes_max = configuration.extension.outbox_bytes_max  # of link.requests.QueueRequestsContext
        self.scheduler = Scheduler(lambda: performer.clock(), lambda: performer.turn_due())
        self._storage = StorageTurn(self, performer, self.contain, self.scheduler, self.timers)
        self._turn = Turn(self._storage, performer, self.contain, self.scheduler, self.timers, self.output_bytes_max)
        self._periodic = PeriodicJobs(self, self._storage, self._turn)
        self._access = access = QueueAccess(self)
        self.find_queue, self.configure_queue = access.find_queue, access.configure_queue  # of the same
        self.close_queue, self.request_timeout, self.unused = access.close_queue, access.request_timeout, access.unused
        self.touch, self.hold_until_written = self._turn.touch, self._turn.hold_until_written  # of queue.queue.QueueContext
        self.touch_next = self._turn.touch_next  # of the same
        self._sharing: deque[tuple[float, Session]] = deque()  # since when they wait for a turn
        self.flush_later, self.write_now = self._turn.flush_later, self._storage.write_now  # of link.session.SessionContext
        self.client_failed, self.queue_failed = self.contain.client_failed, self.contain.queue_failed  # of both
        self._throttles: Mapping[str, Throttle] = {
            cluster.name: throttle(cluster.message_throttle_config) for cluster in
            configuration.clusters.my_clusters}
        self._poison_alarm_at = float("-inf")
        mine = {cluster.name for cluster in configuration.clusters.my_clusters}
        for virtual in configuration.clusters.my_virtual_clusters:
            if virtual.name not in mine:
                self.downstreams[virtual.name] = Downstreams(virtual.name, NodeStatus.E_AVAILABLE, partial(
                    self._introduce_virtually, virtual), self)

    # -- life -------------------------------------------------------------------------------------------------------

    def add_cluster(self, cluster: Cluster) -> None:
        """A recovered cluster; its domains with stored queues are loaded."""
        self.clusters[cluster.name] = cluster
        self._metadata.append(cluster.metadata)
        self.downstreams[cluster.name] = Downstreams(
            cluster.name, NodeStatus.E_AVAILABLE if cluster.replication is None else NodeStatus.E_STARTING,
            lambda number: welcome.member_identity(self.identity, self.configuration.app, number, cluster.name,
                                                   cluster.node_id, console_of=cluster.definition), self)
        self.downstreams[cluster.name].receipts = cluster.receipts
        if cluster.replication is not None:
            self._replications.append(cluster.replication)
        if cluster.members is not None:
            cluster.members.statuses.tell_proxies = self.downstreams[cluster.name].announce
        self._storage.add(cluster.partitions, cluster.replication.runner if cluster.replication is not None else None)
        self.wake_queues(cluster)
        cluster.metadata.settle(int(self.identity.started_wall))
        cluster.report_alarms()

    def wake_queues(self, cluster: Cluster) -> None:
        """The dormant queues of a cluster come to life, if their domains can be loaded."""
        for name in dict.fromkeys(parse_uri(uri).qualified_domain for uri in cluster.dormant):
            try:
                known = self.domains.get(name)
                if known is None:
                    self.domain(name)
                else:
                    cluster.adopt_domain(known)
            except Refused as refused:
                self.report.alarm("DOMAIN", f"Domain '{name}' of stored queues cannot be loaded: {refused.message}. Its "
                                            f"messages are kept.")

    def replace_partition(self, old: Partition, new: Partition) -> None:
        """Another object stands for a partition now."""
        self._storage.replace(old, new)

    def add_proxy(self, definition: ClusterProxyDefinition) -> ProxyCluster:
        """A cluster that this node is a proxy of."""
        proxy = self.proxies[definition.name] = ProxyCluster(definition, self, self.now)
        self.downstreams.setdefault(definition.name, Downstreams(
            definition.name, NodeStatus.E_AVAILABLE, lambda number: welcome.proxy_identity(
                self.identity, self.configuration.app, number, definition.name), self))
        self._periodic.start_heartbeats(self.now)
        return proxy

    def _introduce_virtually(self, virtual: VirtualCluster, number: int) -> ClientIdentity:
        return welcome.proxy_identity(self.identity, self.configuration.app, number, virtual.name, virtual.self_node_id)

    def start(self, now: float) -> None:
        """Set the timers going."""
        self.now = now
        self._periodic.start(now)

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""
        return int(now + self._wall_offset)

    def flush_soon(self, session: Session) -> None:
        """What the session has to write may wait for something else that goes there."""
        self.timers.at(self.now + LINGER_S, session.lingered)

    def share_a_turn(self, session: Session) -> None:
        """The same, and goes with the next turn after SHARE_S."""
        self._sharing.append((self.now, session))

    def later(self, seconds: float, action: Callable[[float], None]) -> None:
        """Call `action(now)` after a while."""
        self.timers.at(self.now + seconds, action)

    def next_deadline(self) -> float | None:
        """When `tick` wants to be called."""
        due = self.timers.next_at
        if self._sharing:
            waits = self._sharing[0][0] + WAIT_S
            if due is None or waits < due:
                due = waits
        write_by = self._storage.write_by
        return write_by if write_by and (due is None or write_by < due) else due

    def tick(self, now: float) -> None:
        """Do what is due, then a turn."""
        self.now = now
        self.timers.run(now)
        self.turn(now)

    def stop(self, now: float, reason: str = "", by: str = "") -> None:
        """Begin the graceful stop; `shutdown.done` tells when it is over. `reason`, `by`: why, and who wants it."""
        if self.shutdown is None:
            self.serving = False
            for peers in (*self.peers.values(), *self.downstreams.values()):
                peers.stop()
            for proxy in self.proxies.values():
                proxy.stop()
            self.shutdown = Shutdown(self, now, reason, by)
            self.turn(now)

    def applications(self) -> int:
        """How many applications are connected."""
        return sum(session.negotiated_at is not None and session.identity.client_type == ClientType.E_TCPCLIENT
                   for session in self.sessions)

    def close(self, now: float) -> None:
        """The end: last sync points, files closed at their lengths."""
        self._turn.close(self.wall(now), self.flush_at_shutdown)
        for cluster in self.clusters.values():
            cluster.report_alarms()

    @property
    def flush_at_shutdown(self) -> bool:
        """Whether the files are synced at the end."""
        return all(each.partition_config.flush_at_shutdown for each in self.configuration.clusters.my_clusters)

    # -- the turn ---------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Continue the input that waits, write what was stored, release what waited for it, deliver, and write to every
        connection once."""
        self.now = now
        self.scheduler.run(Priority.INPUT)
        self.scheduler.run(Priority.NEWCOMER)
        self._finish_turn(now)

    def _finish_turn(self, now: float) -> None:
        scheduler = self.scheduler
        while self._sharing and now - self._sharing[0][0] >= SHARE_S:
            self._sharing.popleft()[1].lingered(now)
        for priority in _BEFORE_WRITING:
            scheduler.run(priority)
        for replication in self._replications:
            replication.runner.check(now)
        for metadata in self._metadata:
            if metadata.stirred:
                job = metadata.wants_write(self.wall(now))
                if job is not None:
                    self.in_thread(partial(metadata.perform, job), partial(self._metadata_written, metadata, job),
                                   partial(self._metadata_failed, metadata, job))
        self._turn.run(now)
        scheduler.end_turn()

    def in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run `work` off the reactor's thread, then `done(now)` or `failed(error, now)`, and a turn."""
        self.performer.in_thread(work, partial(self._done, done), partial(self._failed, failed))

    def _done(self, done: Callable[[float], None], now: float) -> None:
        self.now = now
        done(now)
        self._finish_turn(now)  # input that waits is continued in a turn of its own, not before the ACKs of a sync

    def _failed(self, failed: Callable[[OSError, float], None], error: OSError, now: float) -> None:
        self.now = now
        failed(error, now)
        self._finish_turn(now)

    def _metadata_written(self, metadata: ClusterMetadata, job: FileJob, now: float) -> None:
        """A write of a cluster's metadata has come through: what waited for it takes effect."""
        try:
            metadata.written(job, self.wall(now))
        except Exception as error:
            self.contain.told("metadata: after a write", error)

    def _metadata_failed(self, metadata: ClusterMetadata, job: FileJob, error: OSError, now: float) -> None:
        """A write of a cluster's metadata has failed: what waited for it is refused."""
        try:
            metadata.failed(job, error, self.wall(now))
        except Exception as mistake:
            self.contain.told("metadata: after a failed write", mistake)

    # -- from the connections; a turn follows -----------------------------------------------------------------------

    def received(self, session: Session, data: bytes, now: float, later: bool = False) -> None:
        """Bytes for a session; `later`: to be processed as a job, since the turn has lasted long."""
        self.now = now
        try:
            session.receive(data, now, self.wall(now), later)
        except Exception as error:
            self.contain.session_failed(session, "receiving", error)

    def lost(self, session: Session, now: float) -> None:
        """The channel of a session is gone."""
        self.now = now
        try:
            session.lost(now, self.wall(now))
        except Exception as error:
            self.contain.session_failed(session, "the loss of its connection", error)
            self.gone(session)

    def drained(self, session: Session) -> None:
        """A peer that was behind has taken everything."""
        try:
            session.drained()
        except Exception as error:
            self.contain.session_failed(session, "resuming", error)

    def judged(self, session: Session, token: int, outcome: Outcome, now: float) -> None:
        """An authenticator has judged."""
        try:
            session.authenticated(token, outcome, now, self.wall(now))
        except Exception as error:
            self.contain.session_failed(session, "authentication", error)

    # -- what queues ask (queue.queue.QueueContext, queue.root.RootContext) -----------------------------------------

    def wake_at(self, when: float, queue: Queue) -> None:
        """Deliver from the queue again later."""
        self.timers.at(when, lambda now: queue.touch())

    def poisoned(self, queue: RootQueue, app: App, message: Message) -> None:
        """Tell of a message that used up its attempts, and keep a copy for a person to look at."""
        if self.now - self._poison_alarm_at < POISON_ALARM_PERIOD_S:
            return
        self._poison_alarm_at = self.now
        try:
            self.report.alarm("POISON_PILL", poison.alarm(queue, app, message, self.performer.dump))
        except Exception as error:
            self.contain.told(f"Queue '{queue.uri}': the alarm about a poison pill", error)

    def metered(self, queue: RootQueue) -> None:
        """The meters of a queue or of its domain changed their state."""
        try:
            for event in queue.meter.take_events():
                if event.alarm:
                    self.report.alarm(event.category, f"{event.text}\n{describe.apps(queue)}")
                else:
                    self.report.info(event.text)
        except Exception as error:
            self.contain.told(f"Queue '{queue.uri}': the alarm about its meters", error)

    def in_slices(self, queue: Queue, doing: str, work: Steps[Any]) -> None:
        """Do work of a queue that may take long, in this turn and those that follow."""
        self.scheduler.start(Priority.QUEUE, queue, work, partial(self.contain.queue_failed, queue, doing, disable=True))

    # -- what sessions ask (link.negotiation.NegotiationContext) ----------------------------------------------------

    def connect(self, peer: str, now: float) -> Session:
        """A connection was accepted."""
        session = negotiation.accepted(self, peer, self.security.connection(peer), now)
        self.sessions[session] = None
        self.newcomers.add(session)
        return session

    def dialled(self, peer: str, identity: ClientIdentity, peers: PeerContext, now: float) -> Session:
        """A connection to another broker was made; `identity` introduces us."""
        provider = self.security.provider
        session = negotiation.dialled(self, peer, self.security.connection(peer), now, identity, peers,
                                      provider.credential if provider is not None else None)
        self.sessions[session] = None
        return session

    def start_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        """Process input of a session as a job; nothing is read from it until that is over."""
        session.has_jobs = True
        if not self.scheduler.start(self._input_class(session), session, steps, partial(self.contain.session_failed, session,
                                    "receiving"), partial(self._input_processed, session), first):
            self.performer.read(session, False)

    def add_input(self, session: Session, steps: Steps[None], first: bool = False) -> None:
        """The same, in a later turn."""
        session.has_jobs = True
        self.performer.read(session, False)
        self.scheduler.add(self._input_class(session), session, steps, partial(self.contain.session_failed, session,
                           "receiving"), partial(self._input_processed, session), first)

    def cancel_input(self, session: Session) -> None:
        """Drop the jobs of a session."""
        self.scheduler.cancel(session)
        self._input_processed(session, None)

    def _input_class(self, session: Session) -> Priority:
        """The jobs of a session run in order, so that they are of one class."""
        newcomer = session.negotiated_at is None or self.scheduler.holds(Priority.NEWCOMER, session)
        return Priority.NEWCOMER if newcomer else Priority.INPUT

    def _input_processed(self, session: Session, result: object) -> None:
        scheduler = self.scheduler
        if not scheduler.holds(Priority.INPUT, session) and not scheduler.holds(Priority.NEWCOMER, session):
            session.has_jobs = False
            # two brokers that both wait until the other one has read would wait for ever
            if not session.kind.may_be_slowed or not self.performer.unread(session)[0]:
                self.performer.read(session, True)

    def too_much_held(self) -> None:
        """Too much is held of incomplete events: close the connection with the most of it."""
        session = max(self.sessions, key=lambda each: each.frames.held_bytes)
        session.close("#TCP_READ_ERROR %s: it has the largest of the incomplete events, %d of %d bytes (limit: %d)",
                      session.description, session.frames.held_bytes, self.held.bytes, self.input_bytes_max)

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Let an authenticator judge."""
        self.performer.authenticate(session, effect)

    def welcome(self, session: Session, identity: ClientIdentity) -> BrokerResponse | None:
        """Decide on a negotiation."""
        if identity.client_type == ClientType.E_TCPBROKER:
            peers = self.peers_for(identity)
            if peers is not None:
                return peers.admit(session, identity)
            self.report.error(f"#CONNECTION_UNEXPECTED {session.description}: a broker of cluster "
                              f"'{shown(identity.cluster_name)}', which has no other members here")
            if not self.peers:
                return None
            refusal = welcome.answer(self.identity, self.configuration.app, session.session_number, identity)
            welcome.refuse(refusal, f"Cluster '{shown(identity.cluster_name)}' has no other members here")
            return refusal
        self.negotiations += 1
        session.session_number = self.negotiations
        interface = self.configuration.app.network_interfaces.tcp_interface
        response = welcome.answer(self.identity, self.configuration.app, session.session_number, identity)
        principal = session.guard.principal
        admin = identity.client_type == ClientType.E_TCPADMIN
        most = self.configuration.extension.sessions_per_identity_max
        if not self.security.allows(principal, Action.CONNECT_ADMIN if admin else Action.CONNECT_CLIENT):
            welcome.refuse(response, "Connection not authorized")
        elif most and sum(other.guard.principal == principal and other.negotiated_at is not None
                          for other in self.sessions) >= most:
            welcome.refuse(response, f"Too many sessions of '{shown(principal)}' (limit: {most})")
        elif response.result.category:
            self.report.warn(f"#CLIENT_SDKVERSION_UNSUPPORTED {session.description}: {response.result.message}")
        elif response.is_deprecated_sdk:
            self.report.warn(f"#CLIENT_SDKVERSION_DEPRECATED {session.description}: version {identity.sdk_version}")
        name = interface.name if interface is not None else "TCPInterface"
        if not response.result.category:
            self.report.info(f"TCPSessionFactory '{name}': successfully authenticated and negotiated a session [session: "
                             f"'{session.description}', channel: '{session.peer}', maxMissedHeartbeat: "
                             f"{response.max_missed_heartbeats}, userAgent: '{identity.user_agent}']")
            self.report.note("session", f"{session.description} is connected", client=session.description, peer=session.peer,
                             principal=principal, state="connected")
        return response

    def peers_for(self, identity: ClientIdentity) -> PeerContext | None:
        """Whoever speaks with a broker that introduces itself so."""
        name, members = identity.cluster_name, self.peers.get(identity.cluster_name)
        return self.downstreams.get(name) if identity.cluster_node_id == PROXY or members is None else members

    def domain(self, name: str) -> Domain:
        """A domain by its qualified name, loaded at the first call; raises Refused."""
        domain = self.domains.get(name)
        if domain is None:
            loaded = self.provider.load(name, self.now)
            cluster = self.clusters.get(loaded.cluster)
            if cluster is None:
                self.provider.proxy_cluster(loaded.cluster)
                raise Refused(Category.E_REFUSED, f"Cluster '{loaded.cluster}' is not served by this node", -10)
            cluster.check_stored(name, loaded.config.mode.kind, loaded.config.in_memory)
            self.loaded[loaded.name] = loaded
            domain = Domain(name, loaded.name, cluster.name, domain_settings(loaded.config),
                            self._throttles[cluster.name])
            self.domains[name] = domain
            self.report.info(f"Domain '{name}' located at {cluster.name}")
            cluster.adopt_domain(domain)
        return domain

    def reconfigure(self, name: str) -> None:
        """DOMAINS RECONFIGURE: read the domain's file again and apply it; LocalError with the reason."""
        loaded = self.provider.reconfigure(name, self.loaded, self.now)
        known = [domain for domain in self.domains.values() if domain.source == loaded.name]
        if not known:
            self.domain(name)
        elif loaded != self.loaded[loaded.name]:
            self.loaded[loaded.name] = loaded
            for domain in known:
                domain.reconfigure(domain_settings(loaded.config))
                cluster = self.clusters[domain.cluster]
                for queue in domain.queues.values():
                    cluster.changes.reconcile_apps(queue, self.wall(self.now))
        self.report.note("config", f"Domain '{loaded.name}' is reconfigured", domain=loaded.name)

    def set_replication_factor(self, cluster: Cluster, factor: int) -> None:
        """How many nodes must have a message of a strong queue before it is acknowledged and delivered."""
        cluster.set_replication_factor(factor, self.now)
        for queue in cluster.queues.values():
            queue.uncommitted.committed(self.now)

    def make_guid(self) -> bytes:
        """For a client that makes none."""
        return self._guids.make(int((self.now - self.identity.started) * 1e9))

    def invalid_put(self, size: int) -> None:
        """A PUT for a queue that nobody knows."""
        self.invalid_queue.put_msgs += 1
        self.invalid_queue.put_bytes += size
        self.invalid_queue.nack_msgs += 1

    def run_admin(self, admin: AdminSession, r_id: int, command: str) -> None:
        """Run a command of an admin session; the answer leaves when what the command changed is committed."""
        session = admin.session
        if not self.security.allows(session.guard.principal, Action.EXECUTE_ADMIN_COMMAND):
            admin.answer(r_id, "Command not authorized")
            return
        self.run_command(command, session.peer, partial(self._admin_answer, admin, r_id))

    def run_command(self, command: str, source: str, done: Callable[[AdminAnswer], None]) -> None:
        """Run an admin command; `done` is called when what it changed is committed."""
        def work() -> Steps[AdminAnswer]:
            return (yield from self.begin_command(command, source))
        self.carry_out(work(), done, partial(self.contain.told, f"Command '{shown(command)}'"))

    def carry_out(self, work: Steps[Any], done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
        """Do the work of an operator in steps; `done` gets its result when the metadata it changed are committed."""
        metadata = [cluster.metadata for cluster in self.clusters.values()]
        before = [each.proposals for each in metadata]

        def steps() -> Steps[None]:
            answer = partial(done, (yield from work))
            for each, proposals in zip(metadata, before, strict=True):
                if each.proposals != proposals:
                    answer = partial(each.after, answer)
            answer()
        self.scheduler.start(Priority.COMMAND, object(), steps(), failed)

    def admin(self, command: str, source: str) -> AdminAnswer:
        """Run an admin command at once, whatever it takes."""
        return at_once(self.begin_command(command, source))

    def _admin_answer(self, admin: AdminSession, r_id: int, answer: AdminAnswer) -> None:
        if admin.session in self.sessions:
            admin.answer(r_id, answer.text)

    def gone(self, session: Session) -> None:
        """A session is over."""
        if session in self.sessions:
            del self.sessions[session]
            if session.kind.is_from_outside:
                self.past_traffic.add(session.stats)
            if session.negotiated_at is not None and session.identity.client_type != ClientType.E_TCPBROKER:
                self.report.note("session", f"{session.description} is gone", client=session.description, peer=session.peer,
                                 state="gone")
