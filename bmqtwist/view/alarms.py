"""Alarm state of a node: raised, repeated, acknowledged, cleared.

An alarm repeats an active alarm if both have the same kind and category and name the same queue, domain, partition, node or
cluster; then only the count of the active alarm increases. The broker clears `ended_alarms`, whose condition it can check;
all other alarms stay active until an operator clears them. `events.NodeHistory` raises alarms, `daemon/housekeeping.py`
calls `ended_alarms` every second. `bmqtwist/alarms.py` declares the kinds of alarms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from bmqtwist import alarms as kinds
from bmqtwist.alarms import AlarmKind
from bmqtwist.errors import LocalError
from bmqtwist.ids import InvalidUri, parse_uri
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.queue.meter import Meter, MeterState
from bmqtwist.storage.room import SOFT_LIMIT_PERCENT

if TYPE_CHECKING:
    from bmqtwist.broker.broker import Broker
    from bmqtwist.member.cluster import Cluster
    from bmqtwist.queue.root import RootQueue
    from bmqtwist.storage.partition import Partition

ALARMS_MAX = 500  # retained; dropped in this order: cleared ones, ALARMs, PANICs; of each, acknowledged ones, the oldest
TEXT_CHARS_MAX = 4_000  # per alarm
_URI = re.compile(r"bmq://[^\s'\"\],]+")
_NODE_OR_CLUSTER = re.compile(r"File '[^']*'|[Nn]ode \S+|Cluster(?:Proxy)? \([^)]*\)|[Dd]omain '[^']*'")
_NUMBER = re.compile(r"\d+")
_ID = re.compile(r"[0-9]{1,18}")
_LOCATOR_CHARS = 100  # of a text that names no subject: its beginning identifies the alarm
MOMENTARY_S = 300.0  # an alarm about an event, not a condition, is cleared this long after its last repetition
_APP = re.compile(r"\?id=(.*)$")
_PARTITION = re.compile(r"Partition \[(\d+)\]")


def subject_of(text: str) -> str:
    """Return the subject of an alarm: the first queue or domain that the text names, else the partition, else the node or
    cluster or file, else the beginning of the text with `#` for each number.

    >>> subject_of("Queue 'bmq://d/q' seems to be stuck"), subject_of("Cluster (c) Partition [3]: is full")
    ('bmq://d/q', 'Partition [3]')
    """
    found = _URI.search(text)
    if found is not None:
        return found[0].rstrip(".:;")
    found = _PARTITION.search(text) or _NODE_OR_CLUSTER.search(text)
    if found is not None:
        return found[0].rstrip(".:;,")
    return _NUMBER.sub("#", text.partition("\n")[0])[:_LOCATOR_CHARS]


class AlarmState(Struct, frozen=True):
    """Alarm. `kind`: id of its declaration in `alarms.CATALOGUE`; times are seconds since the epoch, 0 = never; `text` is
    that of the last repetition; `cleared_by` is empty if the broker cleared it."""

    number: int
    kind: str
    severity: str
    category: str
    subject: str
    text: str
    raised_at: float
    last_at: float
    count: int = 1
    acknowledged_by: str = ""
    acknowledged_at: float = 0.0
    cleared_by: str = ""
    cleared_at: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, category and subject; an alarm with the same key repeats this one."""
        return self.kind, self.category, self.subject

    def tree(self) -> dict[str, Any]:
        return {"id": str(self.number), "kind": self.kind, "severity": self.severity, "category": self.category,
                "subject": self.subject, "text": self.text, "raisedAt": self.raised_at, "lastAt": self.last_at,
                "count": self.count, "acknowledgedBy": self.acknowledged_by or None,
                "acknowledgedAt": self.acknowledged_at or None,
                "clearedBy": self.cleared_by or None, "clearedAt": self.cleared_at or None}


class AlarmBook:
    """Alarms of one node. `wall` returns the present time (seconds since the epoch); `record` receives each change as an
    event."""

    def __init__(self, wall: Callable[[], float], record: Callable[[str, dict[str, object]], None]) -> None:
        self._wall, self._record = wall, record
        self._alarms: dict[int, AlarmState] = {}
        self._active: dict[tuple[str, str, str], int] = {}  # (kind, category, subject) -> number of the alarm not cleared
        self._newest = 0

    def raise_alarm(self, kind: AlarmKind, text: str) -> None:
        """Add an alarm, or count the repetition of an active one."""
        now, subject, category = self._wall(), subject_of(text), kind.category
        key = kind.id, category, subject
        if len(text) > TEXT_CHARS_MAX:
            text = f"{text[:TEXT_CHARS_MAX]}... ({len(text)} characters)"
        number = self._active.get(key)
        if number is not None:
            known = self._alarms[number]
            self._alarms[number] = replace(known, severity=kind.severity, text=text, last_at=now, count=known.count + 1)
            return
        self._newest += 1
        self._alarms[self._newest] = AlarmState(self._newest, kind.id, kind.severity, category, subject, text, now, now)
        self._active[key] = self._newest
        self._record(f"[{category}] {text.partition(chr(10))[0]}",
                     {"id": str(self._newest), "kind": kind.id, "category": category, "subject": subject, "state": "raised"})
        if len(self._alarms) > ALARMS_MAX:
            self._drop_least_relevant()

    def _drop_least_relevant(self) -> None:
        least = min(self._alarms.values(), key=lambda each: (
            not each.cleared_at, each.severity == "PANIC", not each.acknowledged_by, each.number))
        del self._alarms[least.number]
        if self._active.get(least.key) == least.number:
            del self._active[least.key]

    @property
    def active(self) -> list[AlarmState]:
        """Alarms that are not cleared."""
        return [self._alarms[number] for number in self._active.values()]

    def alarms(self) -> list[AlarmState]:
        """Return all retained alarms, newest first."""
        return sorted(self._alarms.values(), key=lambda each: -each.number)

    def clear_ended(self, ended: Iterable[AlarmState]) -> None:
        """Clear alarms whose condition has ended."""
        for alarm in ended:
            if self._active.get(alarm.key) == alarm.number:
                self._clear(alarm.number, "")

    def acknowledge(self, alarm_id: str, by: str) -> AlarmState:
        """Record that an operator has taken note of an alarm; the first operator stays recorded. Raises LocalError if the
        alarm is unknown."""
        known = self._find(alarm_id)
        if not known.acknowledged_by:
            known = self._alarms[known.number] = replace(known, acknowledged_by=by, acknowledged_at=self._wall())
            self._record_change(known, "acknowledged", by)
        return known

    def clear(self, alarm_id: str, by: str) -> AlarmState:
        """Clear an alarm for an operator. Raises LocalError if the alarm is unknown."""
        known = self._find(alarm_id)
        return known if known.cleared_at else self._clear(known.number, by)

    def _find(self, alarm_id: str) -> AlarmState:
        known = self._alarms.get(int(alarm_id)) if _ID.fullmatch(alarm_id) else None
        if known is None:
            raise LocalError(f"There is no alarm '{alarm_id[:20]}'")
        return known

    def _clear(self, number: int, by: str) -> AlarmState:
        known = self._alarms[number] = replace(self._alarms[number], cleared_by=by, cleared_at=self._wall())
        self._active.pop(known.key, None)
        self._record_change(known, "cleared", by)
        return known

    def _record_change(self, alarm: AlarmState, state: str, by: str) -> None:
        self._record(f"[{alarm.category}] {alarm.subject}: {state}{f' by {by}' if by else ''}",
                     {"id": str(alarm.number), "kind": alarm.kind, "category": alarm.category, "subject": alarm.subject,
                      "state": state, "by": by})


def ended_alarms(broker: Broker, alarms: Iterable[AlarmState], wall: float) -> list[AlarmState]:
    """Return the alarms whose condition has ended. `wall`: present time, seconds since the epoch."""
    found = []
    for alarm in alarms:
        condition = CONDITIONS.get(alarm.kind)
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
    """Return the condition that the meter is below `state`; a removed meter is below every state."""
    def condition(broker: Broker, alarm: AlarmState, wall: float) -> bool:
        meter = _meter(broker, alarm.subject)
        return meter is None or meter.state < state
    return condition


def _is_not_stuck(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    queue, named = _queue(broker, alarm.subject), _APP.search(alarm.subject)
    if queue is None or not queue.domain.max_idle_s:
        return True
    apps = [app for app in queue.active if named is None or app.app_id == named[1]]
    waiting = [messages[0] for messages in (app.oldest_undelivered() for app in apps) if messages]
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
    return bool(found) and all(partition.available and partition.room.can_roll_over() for _, partition in found)


def _has_space(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    found = _partitions(broker, alarm)
    return bool(found) and not any(partition.files.sizes.exceeds_percent(partition.state.outstanding(), SOFT_LIMIT_PERCENT)
                                   for _, partition in found)


def _is_repaired(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    return not any(partition.payloads.damaged for _, partition in _partitions(broker, alarm))


def _is_led(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    """Return whether the partition of an alarm has an active primary."""
    found = _partitions(broker, alarm)
    return bool(found) and all(
        cluster.replication is not None
        and cluster.replication.known_primaries.active.find(partition.partition_id) is not None
        for cluster, partition in found)


def _can_write(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    return not any(cluster.release is not None and cluster.release.health.reason for cluster in broker.clusters.values()
                   if alarm.subject == f"Cluster ({cluster.name})")


def _versions_fit(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    return not any(links.refusals for links in broker.sessions.peers.values() if isinstance(links, ClusterLinks))


def _has_upstream(broker: Broker, alarm: AlarmState, wall: float) -> bool:
    return all(proxy.selector.active is not None for proxy in broker.proxies.values()
               if alarm.subject in ("", f"ClusterProxy ({proxy.name})"))


# Ids of the alarms that the broker clears, each with the condition under which it does.
CONDITIONS: dict[str, Callable[[Broker, AlarmState, float], bool]] = {
    kinds.CAPACITY_STATE_HIGH_WATERMARK.id: _below(MeterState.STATE_HIGH_WATERMARK),
    kinds.CAPACITY_STATE_FULL.id: _below(MeterState.STATE_FULL),
    kinds.QUEUE_STUCK.id: _is_not_stuck,
    kinds.FANOUT_UNREGISTERED_APPID.id: _is_registered,
    kinds.DOMAIN_QUEUE_LIMIT_FULL.id: _fewer_queues(100),
    kinds.DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK.id: _fewer_queues(80),
    kinds.PARTITION_READONLY.id: _takes_records,
    **dict.fromkeys((each.id for each in kinds.CATALOGUE.values()
                     if each.category == kinds.WRITE_FAILED.category and each.clears), _takes_records),
    kinds.PARTITION_AVAILABLESPACE_SOFTLIMIT.id: _has_space,
    **dict.fromkeys((kinds.PAYLOAD_DAMAGED.id, kinds.PAYLOAD_NOT_REPAIRED.id), _is_repaired),
    kinds.PRIMARY_NOT_ACTIVE.id: _is_led,
    kinds.NODE_CANNOT_WRITE.id: _can_write,
    kinds.CLUSTER_ACTIVE_NODE_UNKNOWN.id: _has_upstream,
    kinds.NODE_VERSION_DIFFERS.id: _versions_fit,
    kinds.FILE_NOT_WRITTEN.id: lambda broker, alarm, wall: not broker.report.failed_files.has(alarm.subject),
    **dict.fromkeys((kinds.DISPATCHER.id, kinds.QUEUE_LIST_SHARE.id),
                    lambda broker, alarm, wall: wall - alarm.last_at >= MOMENTARY_S),
}
