"""What is looked at now and then without anybody asking: queues that are stuck, queues that nobody uses any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bmqtwist.daemon.stuck import STUCK_GAP_S, STUCK_POLL_S, StuckMonitor
from bmqtwist.view import cluster_facts
from bmqtwist.view.alarm_conditions import settled
from bmqtwist.view.alarms import AlarmBook

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker

COLLECT_PERIOD_S = 1.0  # how often unused queues are looked for


class Watch:
    """The watch of one broker; `start` sets its timers going among the broker's own."""

    def __init__(self, broker: Broker, alarms: AlarmBook | None = None) -> None:
        self._broker, self._alarms = broker, alarms
        operations = {each.name: each.queue_operations for each in broker.configuration.clusters.my_clusters}
        self._keepalive = {name: each.keepalive_duration_ms / 1000 for name, each in operations.items()}
        periods = (each.consumption_monitor_period_ms / 1000 for each in operations.values())
        self._monitor = StuckMonitor(broker.report, min(periods, default=STUCK_POLL_S))
        self._between = float("-inf")  # when `check` is called once more between two regular times

    def start(self, now: float) -> None:
        """To be called once, when the broker starts."""
        self._broker.loop.timers.every(now, STUCK_POLL_S, self.check)
        self._broker.loop.timers.every(now, COLLECT_PERIOD_S, self.collect)

    def check(self, now: float) -> None:
        """Raise an alarm for queues that became stuck, and tell of those that are not any more."""
        broker = self._broker
        queues = [queue for cluster in broker.clusters.values() for queue in cluster.queues.values()]
        self._monitor.check(queues, now, cluster_facts.wall_offset(broker))
        overdue = self._monitor.next_overdue(now)
        if overdue is not None and self._between <= now:
            self._between = max(overdue, self._between + STUCK_GAP_S)
            broker.loop.timers.at(self._between, self.check)

    def collect(self, now: float) -> None:
        """Delete queues that are empty and have been open nowhere for long enough; see which alarms are over."""
        broker = self._broker
        if self._alarms is not None and self._alarms.active:
            try:
                self._alarms.settle(settled(broker, self._alarms.active, now + cluster_facts.wall_offset(broker)))
            except Exception as error:
                broker.loop.contain.told("A look at the alarms", error)
        for cluster in broker.clusters.values():
            keepalive = self._keepalive[cluster.name]
            for queue in list(cluster.queues.values()):
                try:
                    if queue.is_collectable(now, keepalive, broker.identity.started):
                        cluster.changes.delete_queue(queue, broker.loop.wall(now))
                except Exception as error:
                    broker.loop.contain.told(f"Queue '{queue.uri}': the deletion of an unused queue", error)
