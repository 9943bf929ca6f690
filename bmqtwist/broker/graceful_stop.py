"""The graceful stop: no new deliveries but of broadcasts, wait until what was delivered is confirmed, what was asked of the
metadata is committed, and other brokers have answered; give up after a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from bmqtwist.broker.stop_progress import ClusterProgress, MovedPartition, StopProgress, StopReport
from bmqtwist.loop.error_isolation import Containment
from bmqtwist.loop.timers import Timers
from bmqtwist.member.cluster import Cluster
from bmqtwist.peers.downstreams import STOP_ANSWER_S, Downstreams
from bmqtwist.queue.queue import Queue
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.report import Report
from bmqtwist.wire.cluster_schema import NodeStatus

POLL_S = 1.0
STEP_S = 0.05  # while other members are told
HAND_OVER_S = 10.0  # that are waited for others to lead


class Stage(Enum):
    """Who knows that this node goes."""

    PROXIES = "proxies are told"
    MEMBERS = "members are told"
    HAND_OVER = "others take over what this node leads"
    OVER = "everybody knows"


class Shutdown:
    """One stop in progress; `done` once sessions may be closed."""

    def __init__(self, clusters: Mapping[str, Cluster], proxies: Mapping[str, ProxyCluster],
                 downstreams: Mapping[str, Downstreams], contain: Containment, timers: Timers, report: Report,
                 now: float, reason: str = "", by: str = "", applications: Callable[[], int] = lambda: 0) -> None:
        self._reason, self._by, self._applications = reason, by, applications
        self.report: StopReport | None = None  # once it is done
        self._proxies, self._downstreams, self._begun = proxies, downstreams, now
        self._clusters, self._contain, self._timers, self._report = clusters, contain, timers, report
        self._all: tuple[Cluster | ProxyCluster, ...] = (*clusters.values(), *proxies.values())
        self.done = False
        self._led = {name: _led(cluster) for name, cluster in clusters.items()}
        who = f" by {by}" if by else ""
        report.note("stop", f"this node begins to stop{who}{f': {reason}' if reason else ''}", reason=reason, by=by,
                    partitions={name: list(led) for name, led in self._led.items()}, state="begun")
        self._deadlines = {cluster.name: now + cluster.definition.queue_operations.shutdown_timeout_ms / 1000
                           for cluster in self._all}
        for cluster in self._all:
            for queue in _queues(cluster):
                if queue.broadcast:
                    continue  # nobody keeps what its consumers miss, and there is nothing to be confirmed
                for handle in queue.handles:
                    for substream in handle.substreams.values():
                        substream.subscriptions = []
                try:
                    for app in queue.apps.values():
                        app.reroute()
                except Exception as error:
                    contain.queue_failed(queue, "the end of deliveries", error, disable=True)
        self._proxies_end = dict.fromkeys(downstreams, now + STOP_ANSWER_S)
        for cluster in self._all:
            if downstreams[cluster.name].drains:
                patience = max(STOP_ANSWER_S, cluster.definition.queue_operations.stop_timeout_ms / 1000)
                self._proxies_end[cluster.name] = now + patience
        self._stage, self._stage_ends = Stage.PROXIES, now
        self._poll(now)

    def progress(self, now: float, clients: int) -> StopProgress:
        """How far it is; `clients`: applications that are connected."""
        stage = "done" if self.done else "waits for confirms and answers" if self._is_told else self._stage.value
        return StopProgress(stage, now - self._begun, clients, tuple(self._progress(each, now) for each in self._all),
                            self._reason, self._by, self.report)

    def _progress(self, cluster: Cluster | ProxyCluster, now: float) -> ClusterProgress:
        led, leads = (_led(cluster), cluster.leadership.leads) if isinstance(cluster, Cluster) else ((), False)
        return ClusterProgress(_title(cluster), led, leads, _unconfirmed(cluster), _unanswered(cluster),
                               max(0.0, self._deadlines[cluster.name] - now))

    @property
    def _is_told(self) -> bool:
        """Whether all brokers know that are told one after the other."""
        return self._stage is Stage.OVER or all(cluster.members is None for cluster in self._clusters.values())

    def _poll(self, now: float) -> None:
        report = self._report
        if not self._others_know(now):
            self._timers.at(now + STEP_S, self._poll)
            return
        waiting = False
        for cluster in self._all:
            try:
                left = _unconfirmed(cluster)
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
            self._tell_end(now)
            self.done = True
            for each in self._downstreams.values():
                each.gone()
            for cluster in self._clusters.values():
                if cluster.members is not None:
                    cluster.members.statuses.become(NodeStatus.E_UNAVAILABLE)
                cluster.leadership.stop(now)

    def _tell_end(self, now: float) -> None:
        try:
            moved = tuple(MovedPartition(name, index, _leader_elsewhere(self._clusters[name], index))
                          for name, led in self._led.items() for index in led)
            ended = self.report = StopReport(now - self._begun, moved, sum(map(_unconfirmed, self._all)),
                                             sum(map(_unanswered, self._all)), self._applications(), self._reason, self._by)
        except Exception as error:  # the stop must come to an end
            self._contain.told("The report of the stop", error)
            return
        self._report.info(f"Shutdown: {ended.text}")
        self._report.note("stop", ended.text, state="done", report=ended.tree())

    def _others_know(self, now: float) -> bool:
        """Whether other members know that we go, and lead what we have led: proxies first, each step for a while."""
        several = [(cluster, cluster.members) for cluster in self._clusters.values() if cluster.members is not None]
        if not several:
            return True
        if self._stage is Stage.PROXIES and not self._waits_for_proxies(now):
            self._stage, self._stage_ends = Stage.MEMBERS, now + STOP_ANSWER_S
            for cluster, members in several:
                self._report.info(f"Cluster ({cluster.name}): telling the other members that this node stops")
                members.statuses.ask_to_stop()
        if self._stage is Stage.MEMBERS and self._is_over(now, any(members.statuses.stop_awaited for _, members in several)):
            self._stage, self._stage_ends = Stage.HAND_OVER, now + HAND_OVER_S
            for cluster, _ in several:
                cluster.hand_over()
        if self._stage is Stage.HAND_OVER:
            left = [cluster for cluster, _ in several if not cluster.handed_over]
            if self._is_over(now, bool(left)):
                self._stage = Stage.OVER
                for cluster, _ in several:
                    self._report.info(f"Cluster ({cluster.name}): " + (
                        "giving up on handing over" if cluster in left else "other members lead all of it"))
        return self._stage is Stage.OVER

    def _waits_for_proxies(self, now: float) -> bool:
        """Brokers behind us are to know that we go; those that know version 1 alone finish their work here first."""
        return any(each.stop_awaited and now < self._proxies_end[name] for name, each in self._downstreams.items())

    def _is_over(self, now: float, waiting: bool) -> bool:
        return not waiting or now >= self._stage_ends

    def _waits_for_brokers(self, now: float) -> bool:
        """Other brokers are to know that we go, and those above us to answer what they were sent."""
        above = now < self._begun + STOP_ANSWER_S and any(each.stop_awaited for each in self._proxies.values())
        waiting = self._waits_for_proxies(now) or above
        for each in self._all:
            left = _unanswered(each)
            if left and now < self._deadlines[each.name]:
                self._report.info(f"{_title(each)}: waiting for the answers to {left} PUT(s)")
                waiting = True
        return waiting


def _title(cluster: Cluster | ProxyCluster) -> str:
    return f"{'ClusterProxy' if isinstance(cluster, ProxyCluster) else 'Cluster'} ({cluster.name})"


def _led(cluster: Cluster) -> tuple[int, ...]:
    """The partitions that this node is primary of, as the metadata say."""
    known = cluster.metadata.state.partitions
    return tuple(sorted(index for index, primary in known.items() if primary.node_id == cluster.node_id))


def _leader_elsewhere(cluster: Cluster, index: int) -> str:
    """The name of the other node that is primary of a partition; empty = there is none."""
    primary = cluster.metadata.state.partitions.get(index)
    return next((node.name for node in cluster.definition.nodes if primary is not None and node.id == primary.node_id
                 and node.id != cluster.node_id), "")


def _unanswered(cluster: Cluster | ProxyCluster) -> int:
    """PUTs of clients here that wait for an answer of another node."""
    return cluster.relays.unanswered if cluster.relays is not None else 0


def _unconfirmed(cluster: Cluster | ProxyCluster) -> int:
    """Messages that clients here have been given and have not confirmed."""
    return sum(len(substream.unconfirmed) for queue in _queues(cluster) for handle in queue.handles
               for substream in handle.substreams.values())


def _queues(cluster: Cluster | ProxyCluster) -> list[Queue]:
    """All queues that clients here may have open."""
    relayed = cluster.relays.queues.values() if cluster.relays is not None else ()
    return [*(cluster.queues.values() if isinstance(cluster, Cluster) else ()), *relayed]
