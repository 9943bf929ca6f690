"""The graceful stop: no new deliveries, wait until what was delivered is confirmed and what was asked of the metadata is
committed, give up after a while."""

from __future__ import annotations

from collections.abc import Mapping

from bmqtwist.node.cluster import Cluster
from bmqtwist.node.containment import Containment
from bmqtwist.node.proxy import ProxyCluster
from bmqtwist.node.timers import Timers
from bmqtwist.report import Report

POLL_S = 1.0


class Shutdown:
    """One stop in progress; `done` once sessions may be closed."""

    def __init__(self, clusters: Mapping[str, Cluster], proxies: Mapping[str, ProxyCluster], contain: Containment,
                 timers: Timers, report: Report, now: float) -> None:
        self._clusters, self._contain, self._timers, self._report = clusters, contain, timers, report
        self._all: tuple[Cluster | ProxyCluster, ...] = (*clusters.values(), *proxies.values())
        self.done = False
        self._deadlines = {cluster.name: now + cluster.definition.queue_operations.shutdown_timeout_ms / 1000
                           for cluster in self._all}
        for cluster in self._all:
            for queue in cluster.queues.values():
                for handle in queue.handles:
                    for substream in handle.substreams.values():
                        substream.subscriptions = []
                try:
                    for app in queue.apps.values():
                        app.reroute()
                except Exception as error:
                    contain.queue_failed(queue, "the end of deliveries", error, disable=True)
        self._poll(now)

    def _poll(self, now: float) -> None:
        report = self._report
        waiting = False
        for cluster in self._all:
            try:
                left = sum(len(substream.unconfirmed) for queue in cluster.queues.values() for handle in queue.handles
                           for substream in handle.substreams.values())
            except Exception as error:  # the stop must come to an end
                self._contain.told(f"Cluster ({cluster.name}): the count of unconfirmed messages", error)
                left = 0
            if not left:
                report.info(f"Cluster ({cluster.name}): no unconfirmed message")
            elif now >= self._deadlines[cluster.name]:
                report.warn(f"Cluster ({cluster.name}): giving up on {left} unconfirmed message(s)")
            else:
                report.info(f"Cluster ({cluster.name}): waiting for {left} unconfirmed message(s)")
                waiting = True
            if isinstance(cluster, Cluster) and cluster.metadata.busy and now < self._deadlines[cluster.name]:
                report.info(f"Cluster ({cluster.name}): waiting for changes of the metadata")
                waiting = True
        if waiting:
            self._timers.at(now + POLL_S, self._poll)
        else:
            self.done = True
            for cluster in self._clusters.values():
                cluster.leadership.stop(now)
