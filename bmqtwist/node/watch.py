"""What looks after a broker from the side: statistics, stuck queues, unused queues, admin commands, the console's data.

The broker runs without it; `Watch.start` sets its timers going in the broker's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bmqtwist.node import observe
from bmqtwist.node.admin import AdminExecutor
from bmqtwist.node.monitor import CATEGORY, STUCK_POLL_S, StuckMonitor, is_collectable
from bmqtwist.node.prometheus import Family, families
from bmqtwist.node.snapshot import BrokerState, ProcessState
from bmqtwist.node.stats import Statistics

if TYPE_CHECKING:
    from bmqtwist.node.broker import Broker

COLLECT_PERIOD_S = 1.0  # how often unused queues are looked for


class Watch:
    """One broker's watch. `process` reads what the operating system says about us; `admin.execute` runs commands."""

    def __init__(self, broker: Broker, process: Callable[[], ProcessState] = ProcessState) -> None:
        self._broker, self._process = broker, process
        stats = broker.configuration.app.stats
        self.statistics = Statistics(broker.now, stats.snapshot_interval, stats.printer.print_interval or 60)
        definitions = broker.configuration.clusters.my_clusters
        self._keepalive = {each.name: each.queue_operations.keepalive_duration_ms / 1000 for each in definitions}
        periods = [each.queue_operations.consumption_monitor_period_ms / 1000 for each in definitions]
        self._monitor = StuckMonitor(min(periods, default=30.0))
        self.admin = AdminExecutor(broker, self.statistics)

    def start(self, now: float) -> None:
        """Set the timers going."""
        timers = self._broker.timers
        if self.statistics.enabled:
            timers.every(now, self.statistics.step_seconds, self._sample)
        timers.every(now, COLLECT_PERIOD_S, self._collect)
        timers.every(now, STUCK_POLL_S, self._check)

    # -- what the console asks --------------------------------------------------------------------------------------

    def state(self) -> BrokerState:
        """The broker now."""
        return observe.broker_state(self._broker, self._broker.now, self._process())

    def families(self) -> list[Family]:
        """Its metrics now."""
        self._sample(self._broker.now)
        return families(self.state(), self.statistics)

    def unready(self) -> str:
        """Why clients are not served; empty = they are."""
        if not self._broker.serving:
            return "stopping"
        return "" if self._broker.clusters else "no cluster is ready"

    # -- timers -----------------------------------------------------------------------------------------------------

    def _sample(self, now: float) -> None:
        self.statistics.sample(now, observe.sources(self._broker))

    def _check(self, now: float) -> None:
        broker = self._broker
        queues = [queue for cluster in broker.clusters.values() for queue in cluster.queues.values()]
        for notice in self._monitor.check(queues, now, observe.wall_offset(broker)):
            if notice.alarm:
                broker.report.alarm(CATEGORY, "%s", notice.text)
            else:
                broker.report.info("%s", notice.text)

    def _collect(self, now: float) -> None:
        """Delete queues that are empty and have been open nowhere for long enough."""
        broker = self._broker
        for cluster in broker.clusters.values():
            keepalive = self._keepalive[cluster.name]
            for queue in list(cluster.queues.values()):
                if is_collectable(queue, now, keepalive, broker.identity.started):
                    cluster.delete_queue(queue, broker.wall(now))
