"""The graceful stop: no new deliveries, wait until what was delivered is confirmed, what was asked of the metadata is
committed, and other brokers have answered; give up after a while."""

from __future__ import annotations

from collections.abc import Mapping

from bmqtwist.node.cluster import Cluster
from bmqtwist.node.containment import Containment
from bmqtwist.node.downstreams import STOP_ANSWER_S, Downstreams
from bmqtwist.node.proxy import ProxyCluster
from bmqtwist.node.timers import Timers
from bmqtwist.report import Report

POLL_S = 1.0


class Shutdown:
    """One stop in progress; `done` once sessions may be closed."""

    def __init__(self, clusters: Mapping[str, Cluster], proxies: Mapping[str, ProxyCluster],
                 downstreams: Mapping[str, Downstreams], contain: Containment, timers: Timers, report: Report,
                 now: float) -> None:
        self._proxies, self._downstreams, self._begun = proxies, downstreams, now
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
        waiting = self._waits_for_brokers(now) or waiting
        if waiting:
            self._timers.at(now + POLL_S, self._poll)
        else:
            self.done = True
            for each in self._downstreams.values():
                each.gone()
            for cluster in self._clusters.values():
                cluster.leadership.stop(now)

    def _waits_for_brokers(self, now: float) -> bool:
        """Other brokers are to know that we go, and those above us to answer what they were sent."""
        waiting = False
        if now < self._begun + STOP_ANSWER_S:
            waiting = (any(each.stop_awaited for each in self._proxies.values())
                       or any(each.stop_awaited for each in self._downstreams.values()))
        for proxy in self._proxies.values():
            left = proxy.relays.unanswered
            if left and now < self._deadlines[proxy.name]:
                self._report.info(f"ClusterProxy ({proxy.name}): waiting for the answers to {left} PUT(s)")
                waiting = True
        return waiting
