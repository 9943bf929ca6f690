"""Which alarms are about something that is over, as the broker is now. What cannot be seen here is not over.

To be asked now and then: it looks at what the open alarms name, and at nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.queue.meter import Meter, MeterState
from bmqtwist.storage.room import SOFT_LIMIT_PERCENT
from bmqtwist.view.alarms import AlarmState

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.queue.root import RootQueue
    from bmqtwist.storage.partition import Partition

MOMENTARY_S = 300.0  # after which a moment that has not come again is past
_APP = re.compile(r"\?id=(.*)$")
_PARTITION = re.compile(r"Partition \[(\d+)\]")


def is_watched(category: str) -> bool:
    """Whether alarms of a category are over as soon as the broker sees it."""
    return category in _CONDITIONS


def settled(broker: Broker, alarms: Iterable[AlarmState], wall: float) -> list[AlarmState]:
    """Those of these alarms that are over; `wall`: seconds since the epoch, now."""
    found = []
    for alarm in alarms:
        condition = _CONDITIONS.get(alarm.category)
        if condition is not None and condition(broker, alarm, wall):
            found.append(alarm)
    return found


def _queue(broker: Broker, uri: str) -> RootQueue | None:
    plain = uri.partition("?")[0]
    return next((cluster.queues[plain] for cluster in broker.clusters.values() if plain in cluster.queues), None)


def _meter(broker: Broker, uri: str) -> Meter | None:
    queue = _queue(broker, uri)
    if queue is not None:
        return queue.meter
    domain = broker.domains.by_name.get(uri.removeprefix("bmq://"))
    return domain.meter if domain is not None else None


def _below(state: MeterState) -> Callable[[Broker, AlarmState, float], bool]:
    """The meter is not as full as that any more; one that is gone holds nothing here."""
    def condition(broker: Broker, alarm: AlarmState, wall: float) -> bool:
        meter = _meter(broker, alarm.subject)
        return meter is None or meter.state < state
    return condition


def _is_not_stuck(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    queue, named = _queue(broker, alarm.subject), _APP.search(alarm.subject)
    if queue is None or not queue.domain.max_idle_s:
        return True
    apps = [app for app in queue.active if named is None or app.app_id == named[1]]
    waiting = [messages[0] for messages in (app.undelivered() for app in apps) if messages]
    return all(broker.loop.now - message.arrived < queue.domain.max_idle_s for message in waiting)


def _is_registered(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    queue = _queue(broker, alarm.subject)
    return queue is None or all(app.registered or not app.substreams for app in queue.apps.values())


def _fewer_queues(percent: int) -> Callable[[Broker, AlarmState, float], bool]:
    def condition(broker: Broker, alarm: AlarmState, wall: float) -> bool:
        try:
            name = parse_uri(f"{alarm.subject}/q").qualified_domain
        except InvalidUri:
            return False
        domain = broker.domains.by_name.get(name)
        if domain is None or not domain.max_queues:
            return True
        return broker.clusters[domain.cluster].changes.queue_count(name) * 100 < domain.max_queues * percent
    return condition


def _partitions(broker: Broker, alarm: AlarmState) -> list[tuple[Cluster, Partition]]:
    named = _PARTITION.search(alarm.subject)
    return [(cluster, partition) for cluster in broker.clusters.values() for partition in cluster.partitions
            if named is not None and partition.partition_id == int(named[1])]


def _takes_records(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    found = _partitions(broker, alarm)
    return bool(found) and all(partition.available and partition.room.may_roll() for _, partition in found)


def _has_space(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    found = _partitions(broker, alarm)
    return bool(found) and not any(partition.files.sizes.passes(partition.state.outstanding(), SOFT_LIMIT_PERCENT)
                                   for _, partition in found)


def _is_led(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    """Of the alarms of a cluster the one that says that a primary is not active."""
    found = _partitions(broker, alarm)
    return alarm.text.endswith("is not active") and bool(found) and all(
        cluster.replication is not None
        and cluster.replication.known_primaries.active.find(partition.partition_id) is not None
        for cluster, partition in found)


def _has_upstream(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    return all(proxy.selector.active is not None for proxy in broker.proxies.values()
               if alarm.subject in ("", f"ClusterProxy ({proxy.name})"))


def _is_past(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    return wall - alarm.last_at >= MOMENTARY_S


_CONDITIONS: dict[str, Callable[[Broker, AlarmState, float], bool]] = {
    "CAPACITY_STATE_HIGH_WATERMARK": _below(MeterState.STATE_HIGH_WATERMARK),
    "CAPACITY_STATE_FULL": _below(MeterState.STATE_FULL),
    "QUEUE_STUCK": _is_not_stuck,
    "FANOUT_UNREGISTERED_APPID": _is_registered,
    "DOMAIN_QUEUE_LIMIT_FULL": _fewer_queues(100),
    "DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK": _fewer_queues(80),
    "PARTITION_READONLY": _takes_records,
    "FILE_IO": _takes_records,
    "PARTITION_AVAILABLESPACE_SOFTLIMIT": _has_space,
    "CLUSTER": _is_led,
    "CLUSTER_ACTIVE_NODE_UNKNOWN": _has_upstream,
    "DISPATCHER": _is_past,
}
