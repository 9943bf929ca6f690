"""Admin operations that read the state of this node: statistics, events, alarms, log, replicas, stored messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bmqtwist.admin.commands import StopStatus
from bmqtwist.config.text import pretty_json
from bmqtwist.errors import LocalError
from bmqtwist.report import LogLine
from bmqtwist.steps import Steps
from bmqtwist.view import cluster_facts, replicas, snapshots, stopping, stored_queue, subscriptions
from bmqtwist.view.alarms import AlarmState
from bmqtwist.view.events import NodeEvent
from bmqtwist.view.metrics import tables_in_steps, tree_in_steps
from bmqtwist.view.snapshot import BrokerState

if TYPE_CHECKING:
    from bmqtwist.admin.context import AdminContext

EVENTS_SHOWN = 100
SUBSCRIPTION_MESSAGES = 50  # the last stored ones, on which an expression is tried
Tree = dict[str, Any]


def show_statistics(context: AdminContext) -> Steps[tuple[str, Tree]]:
    broker, statistics = context.broker, context.statistics
    if not statistics.enabled:
        raise LocalError("Statistics are switched off (appConfig.stats.snapshotInterval is 0)")
    statistics.admit(broker.loop.now)
    yield from statistics.sampling(broker.loop.now, snapshots.sources(broker))

    def printed(state: BrokerState) -> Steps[tuple[str, Tree]]:
        tables = yield from tables_in_steps(state, statistics)
        return tables, (yield from tree_in_steps(state, statistics))
    return (yield from snapshots.seen_in_steps(broker, broker.loop.now, context.process(), printed))


def show_configuration(context: AdminContext) -> str:
    return pretty_json(context.broker.configuration.app)


def show_events(context: AdminContext, after: int | None) -> list[NodeEvent]:
    """Events younger than event `after`; None = the last ones."""
    log = context.history.events
    return log.last(EVENTS_SHOWN) if after is None else log.after(after)


def show_alarms(context: AdminContext) -> list[AlarmState]:
    return context.history.alarms.alarms()


def mark_alarm(context: AdminContext, alarm_id: str, mark: str) -> AlarmState:
    """ACKNOWLEDGE or CLEAR an alarm."""
    book = context.history.alarms
    return (book.clear if mark == "CLEAR" else book.acknowledge)(alarm_id, context.source)


def show_log(context: AdminContext, count: int) -> list[LogLine]:
    return list(context.broker.report.tail(count or 1 << 31))


def show_stop(context: AdminContext) -> StopStatus:
    broker = context.broker
    return StopStatus(broker.shutdown.progress() if broker.shutdown is not None else None)


def show_stop_preflight(context: AdminContext) -> Tree:
    return stopping.preflight(context.broker)


def show_replicas(context: AdminContext, cluster: str) -> list[Tree]:
    return replicas.partitions(context.broker, cluster)


def show_terms(context: AdminContext, cluster: str) -> Tree:
    return cluster_facts.elections(context.broker, context.history.events, cluster)


def browse_messages(context: AdminContext, domain: str, queue: str, after: str | None, count: int) -> Steps[Tree]:
    """Stored messages after the GUID `after`; `count` < 0: the newest ones, backwards."""
    selection = stored_queue.Selection(after or "", abs(count) or stored_queue.LIMIT_MAX, newest=count < 0)
    return stored_queue.listing(context.broker, f"bmq://{domain}/{queue}", selection)


def show_message(context: AdminContext, domain: str, queue: str, guid: str) -> Steps[Tree]:
    return stored_queue.whole(context.broker, f"bmq://{domain}/{queue}", guid)


def try_subscription(context: AdminContext, domain: str, queue: str, expression: str) -> Steps[tuple[str, Tree]]:
    found = yield from subscriptions.test(context.broker, f"bmq://{domain}/{queue}", expression, None, SUBSCRIPTION_MESSAGES)
    return expression, found
