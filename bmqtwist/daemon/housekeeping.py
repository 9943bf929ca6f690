"""Housekeeping of one broker: alarms for stuck queues and files, deletion of unused queues, clearing of ended alarms.

A queue is stuck for an app when the oldest undelivered message of the app is older than the domain's `maxIdleTime`.
Delivered but unconfirmed messages do not count. An alarm is raised once per episode, which ends when no message is
overdue. `config/domain.py` declares `maxIdleTime`, `bmqtwist/alarms.py` the alarms. Started by `assemble.py`. Expiry,
heartbeats and sync points are in `broker/periodic_jobs.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bmqtwist import alarms
from bmqtwist.admin.commands import QueueContents
from bmqtwist.admin.operations import list_entry
from bmqtwist.admin.text import handle_parameters, message_rows, queue_contents, window_text
from bmqtwist.queue.describe import app_uri, describe_app
from bmqtwist.report import Report
from bmqtwist.view import queue_facts
from bmqtwist.view.alarms import AlarmBook, ended_alarms
from bmqtwist.view.metrics import interval_text

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.queue.queue import App
    from bmqtwist.queue.root import RootQueue
    from bmqtwist.storage.message import Message

STUCK_POLL_S = 0.5  # period of the check for due and stuck queues
STUCK_GAP_S = 0.1  # shortest time between two additional checks, which run when a message becomes overdue
LISTED_MAX = 10  # oldest messages in the alarm
COLLECT_PERIOD_S = 1.0  # period of the check for unused queues and ended alarms


@dataclass(slots=True)
class _Inspection:
    """The last inspection of a queue. `due`: moment of the next one; `idle_max`: the maxIdleTime it used; `apps`: ids of the
    stuck apps; `overdue`: moment at which its oldest undelivered message becomes overdue, if any."""

    due: float
    idle_max: float
    apps: set[str]
    overdue: float | None = None


class StuckMonitor:
    """Detects stuck queues. Inspects a queue when its oldest undelivered message becomes overdue, after maxIdleTime if there
    is none, and at least every `period` seconds."""

    def __init__(self, report: Report, period: float) -> None:
        self._report, self.period = report, period
        self._queues: dict[RootQueue, _Inspection] = {}

    def next_overdue(self, now: float) -> float | None:
        """Return the next known moment at which a message becomes overdue; None = not before the next regular check."""
        return min((each.overdue for each in self._queues.values()
                    if each.overdue is not None and now < each.overdue < now + STUCK_POLL_S), default=None)

    def check(self, queues: Iterable[RootQueue], now: float, wall_offset: float) -> None:
        """Inspect the due queues: raise an alarm for each that became stuck, log each that is no longer stuck.

        Called with all queues of the broker, every `STUCK_POLL_S` seconds and at `next_overdue`. `now + wall_offset`:
        seconds since the epoch.
        """
        before, self._queues = self._queues, {}
        for queue in queues:
            idle_max = queue.domain.max_idle_s
            if idle_max and not queue.broadcast:
                last = before.get(queue)
                if last is None or now >= last.due or last.idle_max != idle_max:
                    last = self._inspect(queue, last.apps if last is not None else set(), now, wall_offset)
                self._queues[queue] = last

    def _inspect(self, queue: RootQueue, before: set[str], now: float, wall_offset: float) -> _Inspection:
        idle_max = queue.domain.max_idle_s
        regular = now + min(self.period, idle_max)
        found = _Inspection(regular, idle_max, set())
        for app in queue.active:
            waiting = app.oldest_undelivered()
            overdue_at = waiting[0].arrived + idle_max if waiting else None
            if overdue_at is not None and overdue_at <= now:
                found.apps.add(app.app_id)
                found.due = now
                if app.app_id not in before:
                    self._report.alarm(alarms.QUEUE_STUCK, "%s", stuck_text(queue, app, waiting[0], wall_offset))
                continue
            if overdue_at is not None:
                found.due = min(found.due, overdue_at)
            if app.app_id in before:
                self._report.info("Queue '%s?id=%s' no longer appears to be stuck.", queue.uri, app.app_id)
        if found.due < regular:
            found.overdue = found.due
        return found


def stuck_text(queue: RootQueue, app: App, head: Message, wall_offset: float) -> str:
    """Return the text of the alarm: the queue, its consumers, the lists of the app, the oldest messages, the overdue
    message."""
    consumers = []
    for number, substream in enumerate(app.substreams, 1):
        handle, seen = substream.handle, queue_facts.substream_state(substream)
        parameters = handle_parameters(queue.uri, handle.q_id, handle.flags, handle.read_count, handle.write_count)
        consumers += [f"  {number}. {handle.client.description}", f"    Handle Parameters .....: {parameters}",
                      f"    Number of unconfirmed messages .....: {seen.unconfirmed}", "    UnconfirmedMonitors ....:",
                      *(f"   {window_text(sub)}" for sub in seen.subscriptions)]
    idle = interval_text(queue.domain.max_idle_s * 1_000_000_000)
    first = (f"Queue '{app_uri(queue, app)}' {queue.meter.summary()}, max idle time {idle} appears to be stuck."
             f" It currently has {app.reader_count()} consumers.")
    held = [message for message in queue.messages.values() if message.pending & app.bit]
    oldest = QueueContents(tuple(list_entry(message, wall_offset) for message in held[:LISTED_MAX]), 0, len(held))
    header, row = message_rows([list_entry(head, wall_offset)], 0)
    return "\n".join([first, *consumers, "", describe_app(queue, app), "", f"{LISTED_MAX} oldest messages in the queue:",
                      queue_contents(oldest), "Current head of the queue:", header[7:], row[7:], ""])


class Housekeeping:
    """Periodic inspections of one broker and their timers."""

    def __init__(self, broker: Broker, alarms: AlarmBook | None = None) -> None:
        self._broker, self._alarms = broker, alarms
        operations = {each.name: each.queue_operations for each in broker.configuration.clusters.my_clusters}
        self._keepalive = {name: each.keepalive_duration_ms / 1000 for name, each in operations.items()}
        periods = (each.consumption_monitor_period_ms / 1000 for each in operations.values())
        self._monitor = StuckMonitor(broker.report, min(periods, default=STUCK_POLL_S))
        self._extra_check_at = float("-inf")  # moment of the additional check
        self._failed_files: set[str] = set()  # with an alarm

    def start(self, now: float) -> None:
        self._broker.loop.timers.every(now, STUCK_POLL_S, self.check_stuck_queues)
        self._broker.loop.timers.every(now, COLLECT_PERIOD_S, self._on_collect_timer)

    def check_stuck_queues(self, now: float) -> None:
        """Inspect the queues that may be stuck."""
        broker = self._broker
        queues = [queue for cluster in broker.clusters.values() for queue in cluster.queues.values()]
        self._monitor.check(queues, now, broker.loop.wall_offset)
        overdue = self._monitor.next_overdue(now)
        if overdue is not None and self._extra_check_at <= now:
            self._extra_check_at = max(overdue, self._extra_check_at + STUCK_GAP_S)
            broker.loop.timers.at(self._extra_check_at, self.check_stuck_queues)

    def _on_collect_timer(self, now: float) -> None:
        self.retry_failed_files()
        self.clear_ended_alarms(now)
        self.delete_unused_queues(now)

    def retry_failed_files(self) -> None:
        """Raise an alarm for each file that cannot be written since the last call, and try all of them again."""
        report = self._broker.report
        failed = report.failed_files.items()
        for path, (reason, _) in failed:
            if path not in self._failed_files:
                report.alarm(alarms.FILE_NOT_WRITTEN, "File '%s': %s", path, reason)
        self._failed_files = {path for path, _ in failed}
        for _, (_, retry) in failed:
            retry()

    def clear_ended_alarms(self, now: float) -> None:
        """Clear alarms whose condition has ended."""
        broker = self._broker
        if self._alarms is not None and self._alarms.active:
            try:
                self._alarms.clear_ended(ended_alarms(broker, self._alarms.active, now + broker.loop.wall_offset))
            except Exception as error:
                broker.loop.isolation.alarm("The check of active alarms", error)

    def delete_unused_queues(self, now: float) -> None:
        """Delete queues that are empty and unused for the configured time (`keepaliveDurationMs`)."""
        broker = self._broker
        for cluster in broker.clusters.values():
            keepalive = self._keepalive[cluster.name]
            for queue in list(cluster.queues.values()):
                try:
                    if queue.is_collectable(now, keepalive, broker.identity.started):
                        cluster.changes.delete_queue(queue, broker.loop.wall(now))
                except Exception as error:
                    broker.loop.isolation.alarm(f"Queue '{queue.uri}': the deletion of an unused queue", error,
                                                alarms.QUEUE_FAILED)
