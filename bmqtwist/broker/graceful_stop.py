"""Graceful stop of a broker, in stages with a timeout each.

Deliveries end, except of broadcasts. The broker sends StopRequest to its proxies, then to the other members, hands over its
partitions and its leadership, and waits for the CONFIRMs of delivered messages and the responses to pending requests.
Proxies of a cluster with other nodes are notified before that it stops: with their response they have left it, so that
nothing of them is waited for, and receive nothing more, no broadcasts either (`peers/downstreams.py`).
`TABLE` has the action of each stage, which runs at every check, and the stages that may follow.

The timeouts of CONFIRMs and answers are configured (`config/clusters.py: QueueOperations`); STOP_ANSWER_S is in
`peers/downstreams.py`. Started by `Broker.stop` and advanced by a timer; `view/stopping.py` shows its progress,
`daemon/service.py` ends the process after it. The consequences of a stop are predicted by `cluster/stop_preflight.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial

from bmqtwist.broker.sessions import Sessions
from bmqtwist.loop.loop import Loop
from bmqtwist.machine import TransitionLog, check, table, to
from bmqtwist.member.cluster import Cluster
from bmqtwist.peers.downstreams import STOP_ANSWER_S
from bmqtwist.queue.queue import Queue
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.wire.cluster_schema import NodeStatus

POLL_S = 1.0
STEP_S = 0.05  # between two checks while StopRequests are unanswered
HAND_OVER_S = 10.0  # timeout of the transfer of partitions and leadership


class Stage(Enum):
    """Stages of a stop, in order; the texts are shown to operators."""

    PROXIES = "notifies proxies"
    MEMBERS = "notifies members"
    HAND_OVER = "hands over partitions and leadership"
    ANSWERS = "waits for confirms and answers"
    DONE = "done"


class StopEvent(Enum):
    """Events of a stop."""

    POLL = "periodic check"


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """Remaining work for one cluster. `partitions`: ids of the partitions whose primary is this node; `leads`: this node is
    the leader; `seconds_left`: until the timeout of CONFIRMs and answers."""

    title: str
    partitions: tuple[int, ...]
    leads: bool
    unconfirmed: int
    unanswered: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class StopReport:
    """Result of a stop. `unconfirmed`, `unanswered`: messages and PUTs left at the timeout; `clients`: connected until the
    end; `moved`: partitions of which this node was primary, each with the name of the next primary, if any."""

    seconds: float
    unconfirmed: int
    unanswered: int
    clients: int
    reason: str
    by: str
    moved: list[dict[str, str | int | None]]

    def tree(self) -> dict[str, object]:
        """Return the result as JSON."""
        return asdict(self)

    @property
    def text(self) -> str:
        """The result in one line."""
        moved = ", ".join(f"Partition [{each['partition']}] to {each['to'] or 'no other node'}" for each in self.moved)
        return (f"this node has stopped in {self.seconds:.1f} s: {moved or 'no partition to move'}; "
                f"{self.unconfirmed} unconfirmed messages, {self.unanswered} PUTs without an answer, {self.clients} clients "
                "connected until the end")


@dataclass(frozen=True, slots=True)
class StopProgress:
    """Progress of a stop. `seconds`: since its begin; `clients`: connected clients; `report`: after its end."""

    stage: str
    seconds: float
    clients: int
    clusters: tuple[ClusterProgress, ...]
    reason: str = ""
    by: str = ""
    report: StopReport | None = None

    def __str__(self) -> str:
        unconfirmed = sum(each.unconfirmed for each in self.clusters)
        unanswered = sum(each.unanswered for each in self.clusters)
        return (f"{self.stage}; {unconfirmed} unconfirmed messages, {unanswered} PUTs without an answer, "
                f"{self.clients} clients")


class Shutdown:
    """One graceful stop; `done` when sessions may be closed. `reason`, `by`: of the operator who requested it."""

    def __init__(self, loop: Loop, clusters: Mapping[str, Cluster], proxies: Mapping[str, ProxyCluster], sessions: Sessions,
                 now: float, reason: str, by: str) -> None:
        self._loop, self._clusters, self._proxies, self._sessions = loop, clusters, proxies, sessions
        self._started, self._reason, self._by = now, reason, by
        self.report: StopReport | None = None  # after the end
        self.transitions = TransitionLog()
        self._all: tuple[Cluster | ProxyCluster, ...] = (*clusters.values(), *proxies.values())
        self._multi_node = [(cluster, cluster.members) for cluster in clusters.values() if cluster.members is not None]
        self._led = {name: _led(cluster) for name, cluster in clusters.items()}
        who = f" by {by}" if by else ""
        loop.report.record_event("stop", f"this node begins to stop{who}{f': {reason}' if reason else ''}", reason=reason,
                                 by=by, partitions={name: list(led) for name, led in self._led.items()}, state="begun")
        self._deadlines = {cluster.name: now + cluster.definition.queue_operations.shutdown_timeout_ms / 1000
                           for cluster in self._all}
        for cluster in self._all:
            self._end_deliveries(cluster)
        self._proxy_deadlines = dict.fromkeys(sessions.downstreams, now + STOP_ANSWER_S)
        for cluster in self._all:
            if sessions.downstreams[cluster.name].drains:
                timeout = max(STOP_ANSWER_S, cluster.definition.queue_operations.stop_timeout_ms / 1000)
                self._proxy_deadlines[cluster.name] = now + timeout
        self._stage = Stage.PROXIES if self._multi_node else Stage.ANSWERS
        self._stage_ends = now
        self._poll(now)

    def _end_deliveries(self, cluster: Cluster | ProxyCluster) -> None:
        for queue in queues_of(cluster):
            if queue.broadcast:
                continue  # its messages are neither stored nor confirmed
            for handle in queue.handles:
                for substream in handle.substreams.values():
                    substream.subscriptions = []
            try:
                for app in queue.apps.values():
                    app.invalidate_router()
            except Exception as error:
                self._loop.isolation.isolate_queue(queue, "the end of deliveries", error, disable=True)

    @property
    def done(self) -> bool:
        """True once the stop has ended: the sessions may be closed."""
        return self._stage is Stage.DONE

    def progress(self) -> StopProgress:
        """Return the present stage and the remaining work, for the admin command and the console."""
        now = self._loop.now
        return StopProgress(self._stage.value, now - self._started, self._sessions.client_count(),
                            tuple(self._progress(each, now) for each in self._all), self._reason, self._by, self.report)

    def _progress(self, cluster: Cluster | ProxyCluster, now: float) -> ClusterProgress:
        led, leads = (_led(cluster), cluster.leadership.leads) if isinstance(cluster, Cluster) else ((), False)
        return ClusterProgress(_title(cluster), led, leads, unconfirmed_of(cluster), _unanswered(cluster),
                               max(0.0, self._deadlines[cluster.name] - now))

    # -- stages -------------------------------------------------------------------------------------------------------

    def _poll(self, now: float) -> None:
        """Run the action of the present stage, and of each next one that it enters."""
        before = None
        while self._stage is not before:
            before = self._stage
            TABLE[before][StopEvent.POLL].action(self, now)
            check(TABLE, before, StopEvent.POLL, self._stage)
        if not self.done:
            self._loop.timers.at(now + (POLL_S if self._stage is Stage.ANSWERS else STEP_S), self._poll)

    def _enter_stage(self, stage: Stage, now: float, seconds: float, cause: str) -> None:
        self.transitions.record(now, self._stage.name, stage.name, cause, StopEvent.POLL.name)
        self._stage, self._stage_ends = stage, now + seconds

    def _is_complete(self, now: float, waiting: bool) -> bool:
        return not waiting or now >= self._stage_ends

    def _check_proxies(self, now: float) -> None:
        if self._waits_for_proxies(now):
            return
        self._enter_stage(Stage.MEMBERS, now, STOP_ANSWER_S, "proxies have answered, or timeout")
        for cluster, members in self._multi_node:
            self._loop.report.info(f"Cluster ({cluster.name}): sending StopRequest to the other members")
            members.statuses.ask_to_stop()

    def _check_members(self, now: float) -> None:
        if self._is_complete(now, any(members.statuses.stop_awaited for _, members in self._multi_node)):
            self._enter_stage(Stage.HAND_OVER, now, HAND_OVER_S, "members have answered, or timeout")
            for cluster, _ in self._multi_node:
                cluster.begin_hand_over()

    def _check_hand_over(self, now: float) -> None:
        left = [cluster for cluster, _ in self._multi_node if not cluster.advance_hand_over()]
        if self._is_complete(now, bool(left)):
            self._enter_stage(Stage.ANSWERS, now, 0.0, "timeout" if left else "partitions and leadership are handed over")
            for cluster, _ in self._multi_node:
                self._loop.report.info(f"Cluster ({cluster.name}): " + (
                    "giving up on handing over" if cluster in left else "partitions and leadership are handed over"))

    def _check_answers(self, now: float) -> None:
        waiting = [each for each in self._all if self._waits_for_confirms(each, now)]
        if self._waits_for_brokers(now) or waiting:
            return
        self._loop.isolation.run("The report of the stop", partial(self._report_end, now))  # must not block it
        self._enter_stage(Stage.DONE, now, 0.0, "all messages are confirmed and answered, or timeout")
        for each in self._sessions.downstreams.values():
            each.announce_unavailable()
        for cluster in self._clusters.values():
            if cluster.members is not None:
                cluster.members.statuses.set_own(NodeStatus.E_UNAVAILABLE)
            cluster.leadership.stop(now)

    def _no_action(self, now: float) -> None: ...

    # -- conditions ---------------------------------------------------------------------------------------------------

    def _waits_for_confirms(self, cluster: Cluster | ProxyCluster, now: float) -> bool:
        report, title, late = self._loop.report, f"Cluster ({cluster.name})", now >= self._deadlines[cluster.name]
        try:
            left = unconfirmed_of(cluster)
        except Exception as error:  # must not block the stop
            self._loop.isolation.alarm(f"{title}: the count of unconfirmed messages", error)
            left = 0
        if not left:
            report.info(f"{title}: no unconfirmed message")
        elif late:
            report.warn(f"{title}: giving up on {left} unconfirmed message(s)")
        else:
            report.info(f"{title}: waiting for {left} unconfirmed message(s)")
        busy = isinstance(cluster, Cluster) and cluster.metadata.has_pending and not late
        if busy:
            report.info(f"{title}: waiting for changes of the metadata")
        return busy or bool(left) and not late

    def _waits_for_proxies(self, now: float) -> bool:
        """Return whether answers of proxies to StopRequest are pending, within their timeout."""
        return any(each.stop_awaited and now < self._proxy_deadlines[name]
                   for name, each in self._sessions.downstreams.items())

    def _waits_for_brokers(self, now: float) -> bool:
        """Return whether answers to StopRequests or, from upstream nodes, to PUTs are pending, within their timeouts."""
        upstream = now < self._started + STOP_ANSWER_S and any(each.stop_awaited for each in self._proxies.values())
        waiting = self._waits_for_proxies(now) or upstream
        for each in self._all:
            left = _unanswered(each)
            if left and now < self._deadlines[each.name]:
                self._loop.report.info(f"{_title(each)}: waiting for the answers to {left} PUT(s)")
                waiting = True
        return waiting

    def _report_end(self, now: float) -> None:
        moved: list[dict[str, str | int | None]] = [
            {"cluster": name, "partition": index, "to": _next_primary(self._clusters[name], index)}
            for name, led in self._led.items() for index in led]
        ended = self.report = StopReport(
            now - self._started, sum(map(unconfirmed_of, self._all)), sum(map(_unanswered, self._all)),
            self._sessions.client_count(), self._reason, self._by, moved)
        self._loop.report.info(f"Shutdown: {ended.text}")
        self._loop.report.record_event("stop", ended.text, state="done", report=ended.tree())


TABLE = table(Stage, StopEvent, {
    Stage.PROXIES: {StopEvent.POLL: to(Shutdown._check_proxies, Stage.MEMBERS)},
    Stage.MEMBERS: {StopEvent.POLL: to(Shutdown._check_members, Stage.HAND_OVER)},
    Stage.HAND_OVER: {StopEvent.POLL: to(Shutdown._check_hand_over, Stage.ANSWERS)},
    Stage.ANSWERS: {StopEvent.POLL: to(Shutdown._check_answers, Stage.DONE)},
    Stage.DONE: {StopEvent.POLL: to(Shutdown._no_action)},
})


def _title(cluster: Cluster | ProxyCluster) -> str:
    return f"{'ClusterProxy' if isinstance(cluster, ProxyCluster) else 'Cluster'} ({cluster.name})"


def _led(cluster: Cluster) -> tuple[int, ...]:
    """Return the ids of the partitions whose primary is this node, according to the metadata."""
    known = cluster.metadata.state.partitions
    return tuple(sorted(index for index, primary in known.items() if primary.node_id == cluster.node_id))


def _next_primary(cluster: Cluster, index: int) -> str | None:
    """Return the name of the primary of a partition; None if it is this node or unknown."""
    primary = cluster.metadata.state.partitions.get(index)
    return next((node.name for node in cluster.definition.nodes if primary is not None and node.id == primary.node_id
                 and node.id != cluster.node_id), None)


def _unanswered(cluster: Cluster | ProxyCluster) -> int:
    """Return the number of PUTs of local clients without an answer from the upstream node."""
    return sum(len(queue.pending) for queue in cluster.relays.queues.values()) if cluster.relays is not None else 0


def unconfirmed_of(cluster: Cluster | ProxyCluster) -> int:
    """Return the number of unconfirmed messages of local clients."""
    return sum(len(substream.unconfirmed) for queue in queues_of(cluster) for handle in queue.handles
               for substream in handle.substreams.values())


def queues_of(cluster: Cluster | ProxyCluster) -> list[Queue]:
    """Return all queues that local clients may have open."""
    relayed = cluster.relays.queues.values() if cluster.relays is not None else ()
    return [*(cluster.queues.values() if isinstance(cluster, Cluster) else ()), *relayed]
