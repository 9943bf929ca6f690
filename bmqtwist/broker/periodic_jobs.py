"""Periodic jobs of a broker: sync points, expiry, space of the partitions, sessions and their heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from bmqtwist.broker.storage_turn import StorageTurn
from bmqtwist.broker.turn import Turn
from bmqtwist.config.broker import Configuration
from bmqtwist.link.session import Session
from bmqtwist.loop.error_isolation import Containment
from bmqtwist.loop.scheduler import Priority, Scheduler
from bmqtwist.loop.timers import Timers
from bmqtwist.member.cluster import Cluster
from bmqtwist.queue.root import RootQueue
from bmqtwist.relay.proxy import ProxyCluster
from bmqtwist.steps import ITEMS_AT_ONCE, Steps
from bmqtwist.wire.fast import HEARTBEAT_REQ

EXPIRY_PERIOD_S = 1.0
SYNC_POINT_PERIOD_S = 1.0
SPACE_CHECK_PERIOD_S = 20.0
SESSION_CHECK_PERIOD_S = 1.0


class PeriodicHost(Protocol):
    """The broker, as far as it is needed here."""

    configuration: Configuration
    contain: Containment
    scheduler: Scheduler
    timers: Timers
    now: float
    clusters: dict[str, Cluster]
    proxies: dict[str, ProxyCluster]
    sessions: dict[Session, None]

    @property
    def peers(self) -> Mapping[str, object]:
        """The other nodes of a cluster, by its name."""

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""


class PeriodicJobs:
    """Those of one broker."""

    def __init__(self, host: PeriodicHost, storage: StorageTurn, turn: Turn) -> None:
        self._host, self._storage, self._turn = host, storage, turn
        self._started = self._beating = False

    def start(self, now: float) -> None:
        """Set the timers going."""
        timers, host = self._host.timers, self._host
        timers.every(now, SYNC_POINT_PERIOD_S, self._sync_points)
        timers.every(now, EXPIRY_PERIOD_S, self._expire)
        timers.every(now, SPACE_CHECK_PERIOD_S, self._storage.check_space)
        timers.every(now, SESSION_CHECK_PERIOD_S, self._check_sessions)
        self._started = True
        limits = host.configuration.app.network_interfaces.heartbeats
        if limits.client or host.peers or host.proxies or limits.downstream_broker:
            self.start_heartbeats(now)

    def start_heartbeats(self, now: float) -> None:
        """Send heartbeats from now on, if they are configured and the broker has started."""
        interface = self._host.configuration.app.network_interfaces.tcp_interface
        if self._started and not self._beating and interface is not None and interface.heartbeat_interval_ms:
            self._beating = True
            self._host.timers.every(now, interface.heartbeat_interval_ms / 1000, self._heartbeats)

    def _sync_points(self, now: float) -> None:
        self._storage.write_sync_points(now)
        for cluster in self._host.clusters.values():
            cluster.report_alarms()

    def _expire(self, now: float) -> None:
        for proxy in list(self._host.proxies.values()):
            try:
                proxy.tick(now)
            except Exception as error:
                self._host.contain.told(f"ClusterProxy ({proxy.name}): what waited too long", error)
        for cluster in self._host.clusters.values():
            if cluster.relays is not None:
                try:
                    cluster.relays.tick(now)
                except Exception as error:
                    self._host.contain.told(f"Cluster ({cluster.name}): what waited too long", error)
            if not self._host.scheduler.holds(Priority.EXPIRY, cluster):
                self._host.scheduler.start(Priority.EXPIRY, cluster, self._expiry(cluster), partial(
                    self._host.contain.told, f"Cluster ({cluster.name}): expiry"))

    def _expiry(self, cluster: Cluster) -> Steps[None]:
        """Remove the messages of all queues that are too old."""
        for number, queue in enumerate(list(cluster.queues.values()), 1):
            more = True
            while more and cluster.queues.get(queue.uri) is queue:
                before = len(queue.messages)
                more = self._expire_some(queue)
                if before != len(queue.messages) or not number % ITEMS_AT_ONCE:
                    yield

    def _expire_some(self, queue: RootQueue) -> bool:
        """True: a queue has more messages that are too old."""
        now = self._host.now
        wall = self._host.wall(now)
        try:
            more = bool(queue.messages) and queue.expire(wall)
            if queue.uncommitted.puts:
                queue.uncommitted.expire(now, wall)
            queue.history.expire(now)
            return more
        except Exception as error:
            self._host.contain.queue_failed(queue, "expiry", error)
            return False

    def _check_sessions(self, now: float) -> None:
        self._each_session(self._check_session, now)

    def _heartbeats(self, now: float) -> None:
        self._each_session(self._heartbeat, now)

    def _each_session(self, action: Callable[[Session, float], None], now: float) -> None:
        for session in list(self._host.sessions):
            try:
                action(session, now)
            except Exception as error:
                self._host.contain.session_failed(session, "a timer", error)

    def _check_session(self, session: Session, now: float) -> None:
        patience = self._host.configuration.extension.unauthenticated_seconds_max
        session.tick(now, self._host.wall(now))
        self._turn.check_unread(session, now)
        if session.negotiated_at is None and patience and now - session.connected_at >= patience:
            session.close("#SESSION_NEGOTIATION %s: no negotiation within %d s", session.peer, patience)

    def _heartbeat(self, session: Session, now: float) -> None:
        interfaces = self._host.configuration.app.network_interfaces
        interval = interfaces.tcp_interface.heartbeat_interval_ms / 1000  # type: ignore[union-attr]
        limit = session.kind.missed_heartbeats_max(interfaces.heartbeats)
        if not limit or now - session.last_received < interval:
            return
        if session.missed_heartbeats >= limit:
            name = interfaces.tcp_interface.name  # type: ignore[union-attr]
            session.now, session.wall = now, self._host.wall(now)
            session.close(f"#TCP_DEAD_CHANNEL TCPSessionFactory '{name}': closing unresponsive channel after {limit} "
                          f"missed heartbeats [session: '{session.description}', channel: '{session.peer}', node: '' ]")
            return
        session.missed_heartbeats += 1
        session.send_event(HEARTBEAT_REQ)
