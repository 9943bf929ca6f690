"""Periodic jobs of a broker: sync points, expiry, checks of partition space and sessions, heartbeats.

The check of a session expires its requests and credentials, ends an accepted connection without a negotiation in time,
and disconnects a client that does not read its output (`Output.check_unread`). It takes 3 us of a silent connection, so that
checks and heartbeats are jobs of the scheduler. The limits of a session are configured (`config/broker.py`) or declared by
its kind (`link/peer.py`). A replica removes GUIDs older than the deduplication time of their domain, also if no client of
this node uses the domain. Started by `broker.py`. Alarms for stuck queues and the deletion of unused queues are in
`daemon/housekeeping.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bmqtwist.broker.sessions import Sessions
from bmqtwist.broker.storage_turn import StorageTurn
from bmqtwist.ids import domain_of
from bmqtwist.link.session import Session
from bmqtwist.loop.loop import Loop
from bmqtwist.loop.scheduler import Priority
from bmqtwist.member.cluster import Cluster
from bmqtwist.queue.root import RootQueue
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.steps import ITEMS_AT_ONCE, Steps
from bmqtwist.wire.fast import HEARTBEAT_REQ

EXPIRY_PERIOD_S = 1.0
GUID_EXPIRY_PERIOD_S = 30.0  # at replicas
SYNC_POINT_PERIOD_S = 1.0
SPACE_CHECK_PERIOD_S = 20.0
SESSION_CHECK_PERIOD_S = 1.0


class PeriodicJobs:
    """Periodic jobs of one broker. Heartbeats begin at `start` if a kind of session needs them, else with the first proxied
    cluster."""

    def __init__(self, loop: Loop, sessions: Sessions, storage: StorageTurn, clusters: dict[str, Cluster],
                 proxies: dict[str, ProxyCluster]) -> None:
        self._loop, self._sessions, self._storage = loop, sessions, storage
        self._clusters, self._proxies = clusters, proxies
        self._interfaces = sessions.configuration.app.network_interfaces
        self._patience = sessions.configuration.extension.unauthenticated_seconds_max
        self._started = self._beating = False

    def start(self, now: float) -> None:
        timers = self._loop.timers
        timers.every(now, SYNC_POINT_PERIOD_S, self._sync_points)
        timers.every(now, EXPIRY_PERIOD_S, self._expire)
        timers.every(now, GUID_EXPIRY_PERIOD_S, self._expire_guids)
        timers.every(now, SPACE_CHECK_PERIOD_S, self._storage.check_space)
        timers.every(now, SESSION_CHECK_PERIOD_S, self._check_sessions)
        self._started = True
        limits = self._interfaces.heartbeats
        if limits.client or self._sessions.peers or self._proxies or limits.downstream_broker:
            self.start_heartbeats(now)

    def start_heartbeats(self, now: float) -> None:
        """Send heartbeats from now on, if they are configured and `start` was called."""
        interface = self._interfaces.tcp_interface
        if self._started and not self._beating and interface is not None and interface.heartbeat_interval_ms:
            self._beating = True
            self._loop.timers.every(now, interface.heartbeat_interval_ms / 1000, self._heartbeats)

    def _sync_points(self, now: float) -> None:
        self._storage.write_sync_points(now)
        for cluster in self._clusters.values():
            cluster.report_alarms()

    def _expire(self, now: float) -> None:
        isolation = self._loop.isolation
        for proxy in list(self._proxies.values()):
            isolation.run(f"ClusterProxy ({proxy.name}): timeouts", partial(proxy.tick, now))
        for cluster in self._clusters.values():
            if cluster.relays is not None:
                isolation.run(f"Cluster ({cluster.name}): timeouts of requests", partial(cluster.relays.tick, now))
            if not self._loop.scheduler.has_job(Priority.EXPIRY, cluster):
                self._loop.scheduler.start(Priority.EXPIRY, cluster, self._expiry(cluster), partial(
                    isolation.alarm, f"Cluster ({cluster.name}): expiry"))

    def _expiry(self, cluster: Cluster) -> Steps[None]:
        """Remove the expired messages of all queues, in steps."""
        for number, queue in enumerate(list(cluster.queues.values()), 1):
            more = True
            while more and cluster.queues.get(queue.uri) is queue:
                before = len(queue.messages)
                more = self._expire_some(queue)
                if before != len(queue.messages) or not number % ITEMS_AT_ONCE:
                    yield

    def _expire_some(self, queue: RootQueue) -> bool:
        """Remove one slice of expired messages; return True if the queue has more."""
        now = self._loop.now
        wall = self._loop.wall(now)
        try:
            more = bool(queue.messages) and queue.expire(wall)
            if queue.uncommitted.puts:
                queue.uncommitted.expire(now, wall)
            queue.history.expire(now)
            return more
        except Exception as error:
            self._loop.isolation.isolate_queue(queue, "expiry", error)
            return False

    def _expire_guids(self, now: float) -> None:
        what = "expiry of GUIDs"
        if not self._loop.scheduler.has_job(Priority.EXPIRY, what):
            self._loop.scheduler.start(Priority.EXPIRY, what, self._guid_expiry(), partial(
                self._loop.isolation.alarm, what))

    def _guid_expiry(self) -> Steps[None]:
        """Remove the old GUIDs of the queues without a primary at this node, in steps."""
        for cluster in list(self._clusters.values()):
            windows: dict[str, float | None] = {}
            for partition in list(cluster.partitions):
                for number, queue in enumerate(list(partition.state.queues.values()), 1):
                    domain = domain_of(queue.uri)
                    if domain not in windows:
                        windows[domain] = cluster.domains.deduplication_s(domain)
                        yield
                    if queue.uri not in cluster.queues:
                        while queue.history.expire(self._loop.now, windows[domain]):
                            yield
                    if not number % ITEMS_AT_ONCE:
                        yield

    def _check_sessions(self, now: float) -> None:
        self._start_for_sessions("checks of sessions", self._check_session)

    def _heartbeats(self, now: float) -> None:
        self._start_for_sessions("heartbeats", self._heartbeat)

    def _start_for_sessions(self, what: str, action: Callable[[Session, float], None]) -> None:
        """Start a job that calls `action(session, now)` for all open sessions, unless the previous one still runs."""
        if not self._loop.scheduler.has_job(Priority.SESSIONS, what):
            self._loop.scheduler.start(Priority.SESSIONS, what, self._each_session(action), partial(
                self._loop.isolation.alarm, what))

    def _each_session(self, action: Callable[[Session, float], None]) -> Steps[None]:
        for number, session in enumerate(list(self._sessions.open), 1):
            try:
                if session in self._sessions.open:  # else it has ended since the job started
                    action(session, self._loop.now)
            except Exception as error:
                self._loop.isolation.isolate_session(session, "a timer", error)
            if not number % ITEMS_AT_ONCE:
                yield

    def _check_session(self, session: Session, now: float) -> None:
        patience = self._patience
        session.tick(now, self._loop.wall(now))
        self._sessions.output.check_unread(session, now)
        if session.channel.negotiated_at is None and patience and now - session.channel.connected_at >= patience:
            session.close("#SESSION_NEGOTIATION %s: no negotiation within %d s", session.peer, patience)

    def _heartbeat(self, session: Session, now: float) -> None:
        interfaces = self._interfaces
        interval = interfaces.tcp_interface.heartbeat_interval_ms / 1000  # type: ignore[union-attr]
        limit = session.kind.missed_heartbeats_max(interfaces.heartbeats)
        if not limit or now - session.channel.last_received < interval:
            return
        if session.channel.missed_heartbeats >= limit:
            name = interfaces.tcp_interface.name  # type: ignore[union-attr]
            session.now, session.wall = now, self._loop.wall(now)
            session.close(f"#TCP_DEAD_CHANNEL TCPSessionFactory '{name}': closing unresponsive channel after {limit} "
                          f"missed heartbeats [session: '{session.description}', channel: '{session.peer}', node: '' ]")
            return
        session.channel.missed_heartbeats += 1
        session.send_event(HEARTBEAT_REQ)
