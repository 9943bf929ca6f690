"""Domains of one broker: loaded at the first use, reconfigured and removed on the operator's command."""

from __future__ import annotations

from bmqtwist.config.broker import Configuration
from bmqtwist.config.engine_settings import domain_settings, throttle
from bmqtwist.config.provider import DomainProvider, LoadedDomain
from bmqtwist.errors import Category, LocalError, Refused
from bmqtwist.ids import parse_uri
from bmqtwist.loop.loop import Loop
from bmqtwist.member.cluster import Cluster
from bmqtwist.member.host import ReplicatedCluster
from bmqtwist.queue.root import Domain


class Domains:
    """`by_name`: the domains, by the name clients use; `loaded`: their files, by the name of the file."""

    def __init__(self, configuration: Configuration, provider: DomainProvider, clusters: dict[str, Cluster],
                 loop: Loop) -> None:
        self.provider, self._clusters, self._loop = provider, clusters, loop
        self.by_name: dict[str, Domain] = {}
        self.loaded: dict[str, LoadedDomain] = {}
        self._throttles = {cluster.name: throttle(cluster.message_throttle_config)
                           for cluster in configuration.clusters.my_clusters}

    def domain(self, name: str) -> Domain:
        """A domain by its qualified name, loaded at the first call; raises Refused."""
        domain = self.by_name.get(name)
        if domain is None:
            loaded = self.provider.load(name, self._loop.now)
            cluster = self._clusters.get(loaded.cluster)
            if cluster is None:
                self.provider.proxy_cluster(loaded.cluster)
                raise Refused(Category.E_REFUSED, f"Cluster '{loaded.cluster}' is not served by this node", -10)
            cluster.check_stored(name, loaded.config.mode.kind, loaded.config.in_memory)
            self.loaded[loaded.name] = loaded
            domain = self.by_name[name] = Domain(name, loaded.name, cluster.name, domain_settings(loaded.config),
                                                 self._throttles[cluster.name])
            self._loop.report.info(f"Domain '{name}' located at {cluster.name}")
            cluster.adopt_domain(domain)
        return domain

    def activate(self, cluster: ReplicatedCluster) -> None:
        """Activate the dormant queues of a cluster whose domains can be loaded."""
        for name in dict.fromkeys(parse_uri(uri).qualified_domain for uri in cluster.dormant):
            try:
                known = self.by_name.get(name)
                if known is None:
                    self.domain(name)
                else:
                    cluster.adopt_domain(known)
            except Refused as refused:
                self._loop.report.alarm("DOMAIN", f"Domain '{name}' of stored queues cannot be loaded: {refused.message}. "
                                                  f"Its messages are kept.")

    def reconfigure(self, name: str) -> None:
        """DOMAINS RECONFIGURE: read the domain's file again and apply it; LocalError with the reason."""
        loaded = self.provider.reconfigure(name, self.loaded, self._loop.now)
        known = [domain for domain in self.by_name.values() if domain.source == loaded.name]
        if not known:
            self.domain(name)
        elif loaded != self.loaded[loaded.name]:
            self.loaded[loaded.name] = loaded
            for domain in known:
                domain.reconfigure(domain_settings(loaded.config))
                cluster = self._clusters[domain.cluster]
                for queue in domain.queues.values():
                    cluster.changes.reconcile_apps(queue, self._loop.wall(self._loop.now))
        self._loop.report.note("config", f"Domain '{loaded.name}' is reconfigured", domain=loaded.name)

    def forget(self, name: str) -> None:
        """DOMAINS REMOVE with FINALIZE: the name of a removed domain can be used again. LocalError."""
        domain = self.by_name.get(name)
        if domain is None:
            raise LocalError(f"Domain '{name}' doesn't exist")
        if not domain.removing:
            raise LocalError(f"First round of DOMAINS REMOVE '{name}' is not completed.")
        del self.by_name[name]
        if all(other.source != domain.source for other in self.by_name.values()):
            self.loaded.pop(domain.source, None)
        self.provider.forget(name)
        self.provider.forget(domain.source)
