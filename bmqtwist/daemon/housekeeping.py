"""What is looked at now and then without anybody asking: queues that are stuck, queues that nobody uses any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bmqtwist.daemon.stuck import CATEGORY, STUCK_GAP_S, STUCK_POLL_S, StuckMonitor
from bmqtwist.monitor import snapshots
from bmqtwist.node.cluster import is_collectable

if TYPE_CHECKING:
    from bmqtwist.node.broker import Broker

COLLECT_PERIOD_S = 1.0  # how often unused queues are looked for


class Watch:
    """The watch of one broker; `start` sets its timers going among the broker's own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        operations = {each.name: each.queue_operations for each in broker.configuration.clusters.my_clusters}
        self._keepalive = {name: each.keepalive_duration_ms / 1000 for name, each in operations.items()}
        self._monitor = StuckMonitor(min((each.consumption_monitor_period_ms / 1000 for each in operations.values()),
                                         default=STUCK_POLL_S))
        self._between = float("-inf")  # when `check` is called once more between two regular times

    def start(self, now: float) -> None:
        """To be called once, when the broker starts."""
        self._broker.timers.every(now, STUCK_POLL_S, self.check)
        self._broker.timers.every(now, COLLECT_PERIOD_S, self.collect)

    def check(self, now: float) -> None:
        """Raise an alarm for queues that became stuck, and tell of those that are not any more."""
        broker = self._broker
        queues = [queue for cluster in broker.clusters.values() for queue in cluster.queues.values()]
        for notice in self._monitor.check(queues, now, snapshots.wall_offset(broker)):
            if notice.alarm:
                broker.report.alarm(CATEGORY, "%s", notice.text)
            else:
                broker.report.info("%s", notice.text)
        overdue = self._monitor.next_overdue(now)
        if overdue is not None and self._between <= now:
            self._between = max(overdue, self._between + STUCK_GAP_S)
            broker.timers.at(self._between, self.check)

    def collect(self, now: float) -> None:
        """Delete queues that are empty and have been open nowhere for long enough."""
        broker = self._broker
        for cluster in broker.clusters.values():
            keepalive = self._keepalive[cluster.name]
            for queue in list(cluster.queues.values()):
                try:
                    if is_collectable(queue, now, keepalive, broker.identity.started):
                        cluster.delete_queue(queue, broker.wall(now))
                except Exception as error:
                    broker.contain.told(f"Queue '{queue.uri}': the deletion of an unused queue", error)
