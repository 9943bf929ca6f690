"""Domains of one broker, and the opening, configuring and closing of their queues, in a cluster of this node or through a
proxy at upstream nodes.

A domain is loaded at its first use, and reconfigured or removed by a command of the operator. `QueueAccess` checks
whether a client may open a queue; `link/requests.py` calls it. Domains are read by `config/provider.py` and their
members declared in `config/domain.py`; rules are in `security/authorization.py`, numbers of producers and consumers are
limited in `queue/handles.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmqtwist import alarms
from bmqtwist.broker.creation_rate import CreationRate
from bmqtwist.cluster.log_events import LIMIT_REACHED
from bmqtwist.cluster.streams import NOT_PRIMARY
from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import ClusterProxyDefinition, QueueOperations
from bmqtwist.config.engine_settings import domain_settings, throttle
from bmqtwist.config.provider import DomainProvider, LoadedDomain
from bmqtwist.errors import Category, LocalError, Refused
from bmqtwist.ids import GuidGenerator, QueueUri, domain_of
from bmqtwist.link.peer import PeerRole, PeerSession
from bmqtwist.link.session import Session
from bmqtwist.link.states import ConnectionState
from bmqtwist.loop.loop import Loop
from bmqtwist.member.cluster import Cluster
from bmqtwist.member.interfaces import ReplicatedCluster
from bmqtwist.peers.handshake import Identity
from bmqtwist.queue.counters import QueueStats
from bmqtwist.queue.handles import OpenRequest, close_queue, configure
from bmqtwist.queue.queue import FLAG_READ, FLAG_WRITE, ConsumerSpec, Handle, Queue
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.queue.root import Domain
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.relay.relays import Relays, Requester
from bmqtwist.report import shown
from bmqtwist.security.authenticators import Security
from bmqtwist.security.authorization import Action


class Domains:
    """`by_name`: domains by the name in queue URIs; `loaded`: their configurations by the name of the file."""

    def __init__(self, configuration: Configuration, provider: DomainProvider, clusters: dict[str, Cluster],
                 loop: Loop) -> None:
        self.provider, self._clusters, self._loop = provider, clusters, loop
        self.by_name: dict[str, Domain] = {}
        self.loaded: dict[str, LoadedDomain] = {}
        self._queues_max = configuration.extension.queues_per_domain_max
        self.creations = CreationRate(configuration.extension.queue_creations_per_second_max)
        self._throttles = {cluster.name: throttle(cluster.message_throttle_config)
                           for cluster in configuration.clusters.my_clusters}

    def get_or_load(self, name: str) -> Domain:
        """Return a domain by its qualified name; load it at the first call. Raises Refused."""
        domain = self.by_name.get(name)
        if domain is None:
            loaded = self.provider.load(name, self._loop.now)
            cluster = self._clusters.get(loaded.cluster)
            if cluster is None:
                self.provider.proxy_cluster(loaded.cluster)
                raise Refused(Category.E_REFUSED, f"Cluster '{loaded.cluster}' is not served by this node", -10)
            cluster.check_stored(name, loaded.config.mode.kind, loaded.config.in_memory)
            self.loaded[loaded.name] = loaded
            domain = self.by_name[name] = Domain(name, loaded.name, cluster.name, domain_settings(
                loaded.config, self._queues_max), self._throttles[cluster.name])
            self._loop.report.info(f"Domain '{name}' located at {cluster.name}")
            cluster.adopt_domain(domain)
        return domain

    def activate_queues(self, cluster: ReplicatedCluster) -> None:
        """Activate the dormant queues of a cluster whose domains can be loaded."""
        for name in dict.fromkeys(map(domain_of, cluster.dormant)):
            try:
                known = self.by_name.get(name)
                if known is None:
                    self.get_or_load(name)
                else:
                    cluster.adopt_domain(known)
            except Refused as refused:
                self._loop.report.alarm(
                    alarms.DOMAIN_NOT_LOADED,
                    f"Domain '{name}' of stored queues cannot be loaded: {refused.message}. "
                    f"Its messages are kept.")

    def deduplication_s(self, name: str) -> float | None:
        """Return the deduplication time of a domain without loading it, None if its file is invalid."""
        domain = self.by_name.get(name)
        return self.provider.deduplication_s(name) if domain is None else domain.settings.deduplication_ms / 1000

    def reconfigure(self, name: str) -> None:
        """DOMAINS RECONFIGURE: read the domain's file again and apply it. Raises LocalError."""
        loaded = self.provider.reconfigure(name, self.loaded, self._loop.now)
        known = [domain for domain in self.by_name.values() if domain.source == loaded.name]
        if not known:
            self.get_or_load(name)
        elif loaded != self.loaded[loaded.name]:
            self.loaded[loaded.name] = loaded
            for domain in known:
                domain.reconfigure(domain_settings(loaded.config, self._queues_max))
                cluster = self._clusters[domain.cluster]
                for queue in domain.queues.values():
                    cluster.changes.reconcile_apps(queue, self._loop.wall(self._loop.now))
        self._loop.report.record_event("config", f"Domain '{loaded.name}' is reconfigured", domain=loaded.name)

    def finalize_removal(self, name: str) -> None:
        """DOMAINS REMOVE with FINALIZE: make the name of a removed domain available again. Raises LocalError."""
        domain = self.by_name.get(name)
        if domain is None:
            raise LocalError(f"Domain '{name}' doesn't exist")
        if not domain.removing:
            raise LocalError(f"First round of DOMAINS REMOVE '{name}' is not completed.")
        del self.by_name[name]
        if all(other.source != domain.source for other in self.by_name.values()):
            self.loaded.pop(domain.source, None)
        self.provider.drop_domain(name)
        self.provider.drop_domain(domain.source)


class QueueAccess:
    """`link.requests.QueueRequestsContext` of one broker. `add_proxy`: makes this node a proxy of a cluster."""

    def __init__(self, loop: Loop, domains: Domains, clusters: dict[str, Cluster], proxies: dict[str, ProxyCluster],
                 add_proxy: Callable[[ClusterProxyDefinition], ProxyCluster], security: Security,
                 identity: Identity) -> None:
        self.loop, self._domains, self._clusters, self._proxies = loop, domains, clusters, proxies
        self._add_proxy, self._security, self._started = add_proxy, security, identity.started
        self._proxied: dict[str, ProxyCluster] = {}  # by domain: its cluster, if this node is a proxy of that cluster
        self._guids = GuidGenerator(identity.client_id, 0)
        self.invalid_put_stats = QueueStats()  # PUTs for unknown queues

    def make_guid(self) -> bytes:
        return self._guids.make(int((self.loop.now - self._started) * 1e9))

    def count_invalid_put(self, size: int) -> None:
        self.invalid_put_stats.put_msgs += 1
        self.invalid_put_stats.put_bytes += size
        self.invalid_put_stats.nack_msgs += 1

    def isolate_queue(self, queue: Queue, doing: str, error: Exception, disable: bool = False) -> None:
        self.loop.isolation.isolate_queue(queue, doing, error, disable)

    def find_queue(self, session: Requester, uri: QueueUri, request: OpenRequest,
                   answer: Callable[[Queue | Refused], None]) -> None:
        try:
            proxy = self._proxy_for(uri.qualified_domain)
            if proxy is not None:
                self._check_authorized(session, uri.qualified_domain, request)
                for other in self._proxies.values():
                    other.moves.move_now(uri.canonical)
                proxy.open(session, uri, request, partial(self._on_proxy_answer, proxy, session, uri, request, answer))
                return
            wait = self._seconds_to_wait(session, uri, self._domain_to_open(session, uri, request))
        except Refused as refused:
            answer(refused)
            return
        if wait:
            self.loop.call_later(wait, lambda now: self._find_later(session, uri, request, answer))
        else:
            self._find_in_cluster(session, uri, request, answer)

    def _on_proxy_answer(self, proxy: ProxyCluster, session: Requester, uri: QueueUri, request: OpenRequest,
                         answer: Callable[[Queue | Refused], None], found: Queue | Refused) -> None:
        """Answer a client, or open the queue at another cluster if its domain was moved meanwhile."""
        if self._proxied.get(uri.qualified_domain) is proxy:
            answer(found)
        else:
            self.find_queue(session, uri, request, answer)

    def relocate(self, name: str) -> bool:
        """DOMAINS RECONFIGURE of a domain that this node is a proxy of: read `location` again, and move the domain to that
        cluster. False = this node is a member of the domain's cluster. Raises LocalError."""
        provider, known = self._domains.provider, self._domains.by_name
        if name in known or name in self._domains.loaded:
            return False
        names: list[str] = []
        try:
            names = [each for each in self._proxied if each == name or provider.resolve(each, self.loop.now).name == name]
            provider.drop_domain(name)
            for each in names:
                self._relocate(each)
            return bool(names) or provider.resolve(name, self.loop.now).cluster not in self._clusters
        except Refused as refused:
            if not names:
                return False
            raise LocalError(refused.message) from None

    def _relocate(self, name: str) -> None:
        old, located = self._proxied[name], self._domains.provider.resolve(name, self.loop.now).cluster
        if located == old.name:
            return
        if located in self._clusters:
            raise LocalError(f"Domain '{name}' cannot be moved to '{located}': this node is a member of that cluster")
        for proxy in self._proxies.values():
            proxy.moves.move_waiting(name)
        old.moves.check(name)
        new = self._find_proxy(located)
        self._proxied[name] = new
        old.move_domain(name, new)

    def _find_proxy(self, cluster: str) -> ProxyCluster:
        return self._proxies.get(cluster) or self._add_proxy(self._domains.provider.proxy_cluster(cluster))

    def _seconds_to_wait(self, session: Requester, uri: QueueUri, domain: Domain) -> float:
        """Return the seconds until a new queue may be created. A member has limited its clients itself. Raises Refused."""
        if _is_of_member(session) or not self._clusters[domain.cluster].changes.is_new(uri.canonical):
            return 0.0
        owner, timeout = session.authentication.owner, self.request_timeout("openQueue", domain.name)
        wait = self._domains.creations.reserve(owner, timeout, self.loop.now)
        if wait is None:
            raise Refused(Category.E_REFUSED, f"'{shown(owner)}' creates too many queues (queueCreationsPerSecondMax)",
                          LIMIT_REACHED)
        return wait

    def _find_later(self, session: Requester, uri: QueueUri, request: OpenRequest,
                    answer: Callable[[Queue | Refused], None]) -> None:
        """Continue an open that has waited, unless its client has disconnected."""
        if session.state is not ConnectionState.CLOSED:
            self._find_in_cluster(session, uri, request, answer)
            self.loop.performer.request_turn()

    def _find_in_cluster(self, session: Requester, uri: QueueUri, request: OpenRequest,
                         answer: Callable[[Queue | Refused], None]) -> None:
        """Find or create a queue of a cluster of this node."""
        try:
            domain = self._domain_to_open(session, uri, request)
        except Refused as refused:
            answer(refused)
            return
        cluster = self._clusters[domain.cluster]
        cluster.retirement.convert_now(uri.canonical)
        queue = domain.queues.get(uri.queue)
        if queue is not None and not cluster.changes.is_changing(queue):
            answer(queue)
            return
        domain.opening += 1

        def created(found: Queue | Refused) -> None:
            domain.opening -= 1
            has_other_primary = isinstance(found, Refused) and found.code == NOT_PRIMARY
            if has_other_primary and cluster.relays is not None and not _is_of_member(session):
                cluster.relays.open(session, uri, request, answer)
            else:
                answer(found)
        cluster.changes.create_queue(domain, uri.canonical, self.loop.now, self.loop.wall(self.loop.now), created)

    def _check_authorized(self, session: Requester, domain: str, request: OpenRequest) -> None:
        """Raise Refused if the open is not authorized. A member of the cluster has authorized its clients itself."""
        principal, security = session.authentication.principal, self._security
        for flag, action in ((FLAG_READ, Action.QUEUE_READ), (FLAG_WRITE, Action.QUEUE_WRITE)):
            if request.flags & flag and not _is_of_member(session) and not security.allows(principal, action, domain):
                raise Refused(Category.E_REFUSED, f"'{shown(principal)}' is not authorized: {action.value} on '{domain}'")

    def _proxy_for(self, name: str) -> ProxyCluster | None:
        """Return the cluster of a domain if this node is a proxy of that cluster, else None."""
        proxy, provider = self._proxied.get(name), self._domains.provider
        if proxy is None and name not in self._domains.by_name:
            located = provider.resolve(name, self.loop.now).cluster
            if located not in self._clusters:
                proxy = self._proxied[name] = self._find_proxy(located)
                self.loop.report.info(f"Domain '{name}' located at {located}")
        return proxy

    def _domain_to_open(self, session: Requester, uri: QueueUri, request: OpenRequest) -> Domain:
        """Return the domain of an authorized open. Raises Refused."""
        domain = self._domains.get_or_load(uri.qualified_domain)
        self._check_authorized(session, domain.name, request)
        if domain.removing:
            raise Refused(Category.E_REFUSED, "Domain is removing or removed", -10)
        return domain

    def _relays_of(self, queue: RelayQueue) -> Relays:
        """Return the relays of the cluster of a queue."""
        name = queue.domain.cluster
        relays = self._clusters[name].relays if name in self._clusters else None
        return relays if relays is not None else self._proxies[name].relays

    def configure_queue(self, session: Session, handle: Handle, app_id: str, consumers: list[ConsumerSpec],
                        answer: Callable[[Refused | None], None]) -> None:
        handle.queue.complete_conversion()
        if isinstance(handle.queue, RelayQueue):
            self._relays_of(handle.queue).configure(handle, app_id, consumers, answer)
            return
        refused: Refused | None = None
        try:
            configure(handle, app_id, consumers)
        except Refused as reason:
            refused = reason.with_traceback(None)  # the traceback would keep the request until a garbage collection
        answer(refused)

    def close_queue(self, session: Requester, handle: Handle, request: OpenRequest, final: bool,
                    answer: Callable[[bool | Refused], None]) -> None:
        handle.queue.complete_conversion()
        if isinstance(handle.queue, RelayQueue):
            self._relays_of(handle.queue).close(handle, request, final, session.wall, answer)
            return
        try:
            closed: bool | Refused = close_queue(handle, request, final, session.wall)
        except Refused as reason:
            closed = reason.with_traceback(None)
        answer(closed)

    def release_unused(self, queue: Queue) -> None:
        if isinstance(queue, RelayQueue):
            self._relays_of(queue).release_unused(queue)
        elif not queue.handles:
            queue.idle_since = self.loop.now

    def request_timeout(self, choice: str, domain: str) -> float:
        known, proxy = self._domains.by_name.get(domain), self._proxied.get(domain)
        operations = QueueOperations()
        if proxy is not None:
            operations = proxy.definition.queue_operations
        elif known is not None:
            operations = self._clusters[known.cluster].definition.queue_operations
        return {"openQueue": operations.open_timeout_ms, "closeQueue": operations.close_timeout_ms}.get(
            choice, operations.configure_timeout_ms) / 1000


def _is_of_member(session: Requester) -> bool:
    """Return whether the requester is another member of the cluster, which opens queues for its own clients."""
    return isinstance(session.kind, PeerSession) and session.kind.role is PeerRole.MEMBER
