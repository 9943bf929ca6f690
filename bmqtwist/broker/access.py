"""Where the queue of a client's request is: in a cluster of this node, or at nodes above it. And who may have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.cluster.streams import NOT_PRIMARY
from bmqtwist.config.clusters import ClusterProxyDefinition, QueueOperations
from bmqtwist.config.provider import DomainProvider
from bmqtwist.errors import Category, Refused
from bmqtwist.ids import QueueUri
from bmqtwist.link.peer import PeerRole, PeerSession
from bmqtwist.link.session import Session
from bmqtwist.member.cluster import Cluster
from bmqtwist.queue.handles import OpenRequest, close_queue, configure
from bmqtwist.queue.queue import FLAG_READ, FLAG_WRITE, ConsumerSpec, Handle, Queue
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.queue.root import Domain
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.relay.relays import Relays
from bmqtwist.relay.requester import Asker
from bmqtwist.report import Report, shown
from bmqtwist.security.authenticators import Security
from bmqtwist.security.authorization import Action


class AccessHost(Protocol):
    """The broker, as far as requests about queues need it."""

    clusters: dict[str, Cluster]
    proxies: dict[str, ProxyCluster]
    domains: dict[str, Domain]
    provider: DomainProvider
    security: Security
    report: Report
    now: float

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""

    def domain(self, name: str) -> Domain:
        """A domain by its qualified name, loaded at the first call; raises Refused."""

    def add_proxy(self, definition: ClusterProxyDefinition) -> ProxyCluster:
        """A cluster that this node is a proxy of."""


class QueueAccess:
    """Of one broker: what `link.requests.QueueRequestsContext` says about queues."""

    def __init__(self, host: AccessHost) -> None:
        self._host = host
        self._proxied: dict[str, ProxyCluster] = {}  # where the queues of a domain are, if not here

    def find_queue(self, session: Asker, uri: QueueUri, request: OpenRequest,
                   answer: Callable[[Queue | Refused], None]) -> None:
        """The queue of an open; created at the first one."""
        host = self._host
        try:
            proxy = self._proxy_for(uri.qualified_domain)
            if proxy is not None:
                self._check_authorized(session, uri.qualified_domain, request)
                proxy.open(session, uri, request, answer)
                return
            domain = self._openable(session, uri, request)
        except Refused as refused:
            answer(refused)
            return
        queue, cluster = domain.queues.get(uri.queue), host.clusters[domain.cluster]
        if queue is not None and not cluster.changes.is_changing(queue):
            answer(queue)
            return
        domain.opening += 1

        def created(found: Queue | Refused) -> None:
            domain.opening -= 1
            led_elsewhere = isinstance(found, Refused) and found.code == NOT_PRIMARY
            if led_elsewhere and cluster.relays is not None and not _is_of_member(session):
                cluster.relays.open(session, uri, request, answer)
            else:
                answer(found)
        cluster.changes.create_queue(domain, uri.canonical, host.now, host.wall(host.now), created)

    def _check_authorized(self, session: Asker, domain: str, request: OpenRequest) -> None:
        """Refused if the open is not allowed. Another member has asked this of its own clients."""
        principal, security = session.guard.principal, self._host.security
        for flag, action in ((FLAG_READ, Action.QUEUE_READ), (FLAG_WRITE, Action.QUEUE_WRITE)):
            if request.flags & flag and not _is_of_member(session) and not security.allows(principal, action, domain):
                raise Refused(Category.E_REFUSED, f"'{shown(principal)}' is not authorized: {action.value} on '{domain}'")

    def _proxy_for(self, name: str) -> ProxyCluster | None:
        """The cluster where the queues of a domain are, if this node is a proxy of it."""
        host, proxy = self._host, self._proxied.get(name)
        if proxy is None and name not in host.domains:
            located = host.provider.resolve(name, host.now).cluster
            if located not in host.clusters:
                proxy = host.proxies.get(located) or host.add_proxy(host.provider.proxy_cluster(located))
                self._proxied[name] = proxy
                host.report.info(f"Domain '{name}' located at {located}")
        return proxy

    def _openable(self, session: Asker, uri: QueueUri, request: OpenRequest) -> Domain:
        """The domain of an open that is allowed."""
        domain = self._host.domain(uri.qualified_domain)
        self._check_authorized(session, domain.name, request)
        if domain.removing:
            raise Refused(Category.E_REFUSED, "Domain is removing or removed", -10)
        return domain

    def _relays(self, queue: RelayQueue) -> Relays:
        """Where a queue is open above."""
        name = queue.domain.cluster
        relays = self._host.clusters[name].relays if name in self._host.clusters else None
        return relays if relays is not None else self._host.proxies[name].relays

    def configure_queue(self, session: Session, handle: Handle, app_id: str, consumers: list[ConsumerSpec],
                        answer: Callable[[Refused | None], None]) -> None:
        """Replace the subscriptions of one substream."""
        if isinstance(handle.queue, RelayQueue):
            self._relays(handle.queue).configure(handle, app_id, consumers, answer)
            return
        refused: Refused | None = None
        try:
            configure(handle, app_id, consumers)
        except Refused as reason:
            refused = reason.with_traceback(None)  # that leads back here: the request would have to be collected
        answer(refused)

    def close_queue(self, session: Asker, handle: Handle, request: OpenRequest, final: bool,
                    answer: Callable[[bool | Refused], None]) -> None:
        """Subtract counts from a handle."""
        if isinstance(handle.queue, RelayQueue):
            self._relays(handle.queue).close(handle, request, final, session.wall, answer)
            return
        try:
            gone: bool | Refused = close_queue(handle, request, final, session.wall)
        except Refused as reason:
            gone = reason.with_traceback(None)
        answer(gone)

    def unused(self, queue: Queue) -> None:
        """A handle is gone, or did not come to be."""
        if isinstance(queue, RelayQueue):
            self._relays(queue).unused(queue)
        elif not queue.handles:
            queue.idle_since = self._host.now

    def request_timeout(self, choice: str, domain: str) -> float:
        """Seconds for a request about a queue: as the cluster of its domain has it."""
        known, proxy = self._host.domains.get(domain), self._proxied.get(domain)
        operations = QueueOperations()
        if proxy is not None:
            operations = proxy.definition.queue_operations
        elif known is not None:
            operations = self._host.clusters[known.cluster].definition.queue_operations
        if choice == "openQueue":
            return operations.open_timeout_ms / 1000
        if choice == "closeQueue":
            return operations.close_timeout_ms / 1000
        return operations.configure_timeout_ms / 1000


def _is_of_member(session: Asker) -> bool:
    """Whether another member of a cluster asks, for clients of its own."""
    return isinstance(session.kind, PeerSession) and session.kind.role is PeerRole.MEMBER
