"""Metrics of a broker: one declaration for the tables (STAT SHOW, the printer's file), JSON and Prometheus.

In Prometheus the total of a counter has the plain name (`queue_put_msgs`), its increase in the window the suffix
`_delta`. Times are nanoseconds, as in the original's metrics. Called by `daemon/service.py`, and by
`admin/operations.py` for STAT SHOW; `statistics.py` samples the counters of `queue/counters.py`, other values are
fields of `snapshot.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct

from bmqtwist.ids import parse_uri
from bmqtwist.queue.counters import latency_bounds
from bmqtwist.queue.mode import QueueMode
from bmqtwist.steps import Steps, drain, in_steps
from bmqtwist.textformat import grouped, pretty_bytes, timestamp_text
from bmqtwist.view.snapshot import AppState, BrokerState, DomainState, NodeRole, ProcessState, QueueState, StorageState
from bmqtwist.view.statistics import INVALID_QUEUE, Record, Statistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of the result of `exposition_in_steps`
_POINTS_AT_ONCE = 256
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]")
Kind = Literal["counter", "gauge"]
Labels = tuple[tuple[str, str], ...]
Point = tuple[str, Kind, Labels, float]
Write = Callable[[int], str]
WriteText = Callable[[str], object]


class Sampled(Struct, frozen=True):
    """Queue or app (`stored`) with its samples in the window."""

    record: Record
    queue: QueueState
    stored: QueueState | AppState

    @property
    def messages(self) -> int:
        """Largest number of messages in the window."""
        return max(int(self.record.peak("content_msgs_max")), self.stored.messages)

    @property
    def bytes(self) -> int:
        """Largest number of bytes in the window."""
        return max(int(self.record.peak("content_bytes_max")), self.stored.bytes)


class Metric(Struct, frozen=True):
    """Metric of a queue. `name`: in JSON; `exported`: in Prometheus; `of_apps`: apps have it, too; `group` and `heading`: of
    its column in the table, "" = no column; `write` formats a value in that column."""

    name: str
    exported: str
    kind: Kind
    read: Callable[[Sampled], float]
    group: str = ""
    heading: str = ""
    write: Write = grouped
    of_apps: bool = False


def interval_text(nanoseconds: int) -> str:
    """Format a duration in the largest unit that fits, with two decimals."""
    for size, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.2f} {unit}"
    return f"{nanoseconds} ns"


def _delta(name: str, group: str = "", heading: str = "", write: Write = grouped) -> Metric:
    return Metric(f"queue_{name}", f"queue_{name}_delta", "gauge", lambda seen: seen.record.delta(name), group, heading,
                  write)


def _total(name: str, group: str = "", heading: str = "", write: Write = grouped) -> Metric:
    return Metric(f"queue_{name}_abs", f"queue_{name}", "counter", lambda seen: seen.record.total(name), group, heading,
                  write)


def _mean(name: str, events: str, group: str, heading: str, of_apps: bool = True) -> Metric:
    def read(seen: Sampled) -> float:
        count = seen.record.delta(events)
        return round(seen.record.delta(f"{name}_sum") / count * 1e9) if count else 0
    return _gauge(f"{name}_avg", read, group, heading, interval_text, of_apps)


def _longest(name: str, group: str, heading: str, of_apps: bool = True) -> Metric:
    return _gauge(f"{name}_max", lambda seen: round(seen.record.peak(f"{name}_max") * 1e9), group, heading, interval_text,
                  of_apps)


def _gauge(name: str, read: Callable[[Sampled], float], group: str = "", heading: str = "", write: Write = grouped,
           of_apps: bool = False, exported: str = "") -> Metric:
    return Metric(f"queue_{name}", f"queue_{exported or name}", "gauge", read, group, heading, write, of_apps)


METRICS = (
    _gauge("producers_count", lambda seen: seen.queue.writers, "Queue", "producer"),
    _gauge("consumers_count", lambda seen: seen.queue.readers, "Queue", "consumer"),
    _gauge("msgs_current", lambda seen: seen.stored.messages, "Current", "msgs", of_apps=True),
    _gauge("bytes_current", lambda seen: seen.stored.bytes, "Current", "bytes", pretty_bytes, of_apps=True),
    _delta("put_msgs", "Put", "msgs (d)"), _delta("put_bytes", "Put", "bytes (d)", pretty_bytes),
    _total("put_msgs", "Put", "msgs"), _total("put_bytes", "Put", "bytes", pretty_bytes),
    _delta("push_msgs", "Push", "msgs (d)"), _delta("push_bytes", "Push", "bytes (d)", pretty_bytes),
    _total("push_msgs", "Push", "msgs"), _total("push_bytes", "Push", "bytes", pretty_bytes),
    _mean("queue_time", "push_msgs", "Queue Time", "avg"), _longest("queue_time", "Queue Time", "max"),
    _delta("ack_msgs", "Ack", "delta"), _total("ack_msgs", "Ack", "abs"),
    _mean("ack_time", "ack_msgs", "Ack", "time avg", of_apps=False), _longest("ack_time", "Ack", "time max", of_apps=False),
    _delta("nack_msgs", "Nack", "delta"), _total("nack_msgs", "Nack", "abs"),
    _delta("confirm_msgs", "Confirm", "delta"), _total("confirm_msgs", "Confirm", "abs"),
    _mean("confirm_time", "confirm_msgs", "Confirm", "time avg"), _longest("confirm_time", "Confirm", "time max"),
    _delta("reject_msgs", "Reject", "delta"), _total("reject_msgs", "Reject", "abs"),
    _delta("gc_msgs", "GC", "delta"), _total("gc_msgs", "GC", "abs"),
    _delta("nack_noquorum_msgs"), _total("nack_noquorum_msgs"), _total("wrong_crc_msgs"),
    _gauge("content_msgs", lambda seen: seen.messages, of_apps=True, exported="content_msgs_max"),
    _gauge("content_bytes", lambda seen: seen.bytes, of_apps=True, exported="content_bytes_max"),
    _gauge("cfg_msgs", lambda seen: seen.queue.message_limit),
    _gauge("cfg_bytes", lambda seen: seen.queue.byte_limit),
    _gauge("msgs_utilization_max", lambda seen: _percent(seen.messages, seen.queue.message_limit)),
    _gauge("bytes_utilization_max", lambda seen: _percent(seen.bytes, seen.queue.byte_limit)),
    _gauge("role", lambda seen: int(seen.queue.role)),
    _gauge("history_abs", lambda seen: seen.queue.history, exported="history"),
)
# Metrics of a stored queue that is not open; the others would be 0.
_OF_STORED: Mapping[str, Callable[[StorageState], int]] = {
    "queue_msgs_current": lambda stored: stored.messages, "queue_bytes_current": lambda stored: stored.bytes,
    "queue_content_msgs_max": lambda stored: stored.messages, "queue_content_bytes_max": lambda stored: stored.bytes}
_EXPORTED = (_gauge("heartbeat", lambda seen: 0), *METRICS)  # in Prometheus
_PROMETHEUS_ONLY = {"queue_wrong_crc_msgs_abs"}  # not in STAT SHOW, whose members are those of BlazingMQ
QUEUE_METRICS = tuple(sorted({metric.name for metric in METRICS} - _PROMETHEUS_ONLY))


def _percent(value: int, limit: int) -> int:
    return value * 100 // limit if limit else 0


def queue_values(statistics: Statistics, queue: QueueState, app: AppState | None = None) -> dict[str, int]:
    """Return every metric of a queue or app, by name in alphabetical order; 0 = not a metric of apps."""
    seen = (Sampled(statistics.record(queue.uri), queue, queue) if app is None
            else Sampled(statistics.record((queue.uri, app.app_id)), queue, app))
    found = {metric.name: int(metric.read(seen)) if app is None or metric.of_apps else 0 for metric in METRICS}
    return {name: found[name] for name in QUEUE_METRICS}


def published_apps(domain: DomainState, queue: QueueState) -> bool:
    """Return whether the apps of a queue have metrics of their own."""
    return domain.mode == QueueMode.FANOUT and domain.publish_app_metrics and bool(queue.apps)


def exposition_in_steps(state: BrokerState, statistics: Statistics, write: WriteText, prefix: str = "", instance: str = "",
                        queues_max: int = 0) -> Steps[None]:
    """Write every metric of the broker for Prometheus, one metric after the other; the statistics must have been sampled for
    this state. `prefix` is prepended to every name, `instance` replaces the label Instance unless it is empty. `queues_max`
    (0 = no limit): with more stored queues, metrics are written for open queues only; with more open queues, for no single
    queue."""
    prefix, families = _NOT_IN_A_NAME.sub("_", prefix), dict[str, list[str]]()
    common = (("Instance", instance or state.instance), ("DataType", "host-data"))
    stored = yield from in_steps(_stored(state, common), lambda row: row)
    shows_open = not queues_max or len(state.queues) <= queues_max
    omitted = 0 if shows_open else len(state.queues)
    if queues_max and len(state.queues) + len(stored) > queues_max:
        omitted += len(stored)
        stored.clear()

    def add(point: Point) -> None:
        name, kind, labels, value = point
        lines = families.get(name) or families.setdefault(name, [_type_line(prefix + name, kind)])
        lines.append(sample_text(prefix + name, labels, value))
    yield from in_steps(chain(_broker(state, common, omitted), _domains(state, common), _clusters(state, common),
                              _sessions(state, common)), add, _POINTS_AT_ONCE)
    rows: list[tuple[str, Sampled]] = []
    if shows_open:
        rows = yield from in_steps(_queues(state, statistics, common), lambda row: row)
    for metric in _EXPORTED if rows or stored else ():
        name = prefix + metric.exported
        write(_type_line(name, metric.kind))
        for start in range(0, len(rows), _POINTS_AT_ONCE):
            write("".join([f"{name}{{{labels}}} {int(metric.read(seen))}\n"
                           for labels, seen in rows[start:start + _POINTS_AT_ONCE]
                           if metric.of_apps or seen.stored is seen.queue]))
            yield
        if (read := _OF_STORED.get(metric.exported)) is not None:
            for start in range(0, len(stored), _POINTS_AT_ONCE):
                write("".join([f"{name}{{{labels}}} {read(queue)}\n"
                               for labels, queue in stored[start:start + _POINTS_AT_ONCE]]))
                yield
        write("".join(families.pop(metric.exported, [])[1:]))  # of PUTs to unknown queues
    for lines in families.values():
        for start in range(0, len(lines), _POINTS_AT_ONCE):
            write("".join(lines[start:start + _POINTS_AT_ONCE]))
            yield
    parts: list[Any] = [*rows, *stored]
    rows.clear()
    stored.clear()
    for number, _ in enumerate(drain(parts), 1):
        if not number % _POINTS_AT_ONCE:
            yield


def _type_line(name: str, kind: Kind) -> str:
    return f"# TYPE {name} {kind}\n"


def sample_text(name: str, labels: Labels, value: float) -> str:
    """Format one sample as a line; labels without a value are omitted.

    >>> sample_text("a", (("Queue", 'q"'), ("Tier", "")), 2.0)
    'a{Queue="q\\\\""} 2\\n'
    """
    inside = labels_text(labels)
    number = int(value) if float(value).is_integer() else value
    return f"{name}{{{inside}}} {number}\n" if inside else f"{name} {number}\n"


def labels_text(labels: Labels) -> str:
    """Format labels; those without a value are omitted."""
    return ",".join([f'{key}="{_escaped(text)}"' for key, text in labels if text])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _broker(state: BrokerState, labels: Labels, omitted: int) -> Iterator[Point]:
    process = state.process
    readings: tuple[tuple[str, Kind, float], ...] = (
        ("summary_queues_count", "gauge", len(state.queues)),
        ("summary_queues_omitted", "gauge", omitted),
        ("summary_clients_count", "gauge", sum(session.kind == "client" for session in state.sessions)),
        ("system_cpu_sys", "counter", process.cpu_system),
        ("system_cpu_usr", "counter", process.cpu_user),
        ("system_cpu_all", "counter", process.cpu_system + process.cpu_user),
        ("system_mem_res", "gauge", process.memory_resident),
        ("system_mem_virt", "gauge", process.memory_virtual),
        ("system_os_pagefaults_minor", "counter", process.faults_minor),
        ("system_os_pagefaults_major", "counter", process.faults_major),
        ("system_os_swaps", "counter", process.swaps),
        ("system_os_ctxswitch_voluntary", "counter", process.switches_voluntary),
        ("system_os_ctxswitch_involuntary", "counter", process.switches_involuntary),
        ("system_loop_lag_seconds", "gauge", process.loop_lag),
        ("system_loop_lag_seconds_max", "gauge", process.loop_lag_max),
        ("system_turns_slow", "counter", process.turns_slow),
        ("system_turns_stalled", "counter", process.turns_stalled),
        ("system_turn_seconds_max", "gauge", process.turn_max),
        ("system_uptime_seconds", "gauge", state.wall - state.started_wall))
    for name, kind, value in readings:
        yield f"brkr_{name}", kind, labels, value
    for name, value in state.traffic.items():
        yield f"brkr_summary_{name}", "counter", labels, value


def _domain_labels(domain: DomainState, common: Labels) -> Labels:
    name, _, tier = domain.name.partition(".~")
    return ("Cluster", domain.cluster), ("Domain", name), ("Tier", tier), *common


def _domains(state: BrokerState, common: Labels) -> Iterator[Point]:
    for domain in state.domains:
        labels = _domain_labels(domain, common)
        yield "domain_cfg_msgs", "gauge", labels, domain.meter.message_capacity
        yield "domain_cfg_bytes", "gauge", labels, domain.meter.byte_capacity
        yield "domain_msgs_current", "gauge", labels, domain.meter.messages
        yield "domain_bytes_current", "gauge", labels, domain.meter.bytes
        yield "domain_queue_count", "gauge", labels, max(len(domain.storages), len(domain.queues))
        yield "domain_queue_count_open", "gauge", labels, sum(1 for queue in domain.queues if queue.handles)


def _stored(state: BrokerState, common: Labels) -> Iterator[tuple[str, StorageState]]:
    """Yield the stored queues that are not open at this node, with their labels. Their domain may not be loaded."""
    known = {queue.uri for queue in state.queues}
    for cluster in state.clusters:
        for partition in cluster.partitions:
            role = NodeRole.PRIMARY if partition.primary == cluster.self_node else NodeRole.REPLICA
            for stored in partition.storages:
                if stored.uri not in known:
                    uri = parse_uri(stored.uri)
                    yield labels_text((("Cluster", cluster.name), ("Domain", uri.domain), ("Tier", uri.tier), *common,
                                       ("Queue", uri.queue), ("Role", role.name))), stored


def _queues(state: BrokerState, statistics: Statistics, common: Labels) -> Iterator[tuple[str, Sampled]]:
    """Yield the queues, and the apps with metrics of their own, with their labels."""
    for domain in state.domains:
        of_domain = _domain_labels(domain, common)
        for queue in domain.queues:
            labels = labels_text((*of_domain, ("Queue", queue.name), ("Role", queue.role.name)))
            yield labels, Sampled(statistics.record(queue.uri), queue, queue)
            for app in queue.apps if published_apps(domain, queue) else ():
                record = statistics.record((queue.uri, app.app_id))
                yield f"{labels},{labels_text((('AppId', app.app_id),))}", Sampled(record, queue, app)


def _clusters(state: BrokerState, common: Labels) -> Iterator[Point]:
    for cluster in state.clusters:
        labels = ("Cluster", cluster.name), *common
        yield "cluster_healthiness", "gauge", labels, 1 if cluster.healthy else 2
        yield "cluster_member_state", "gauge", (*labels, ("State", cluster.member_state)), 1
        yield "cluster_csl_write_bytes", "counter", labels, cluster.ledger_bytes
        yield "cluster_csl_cfg_bytes", "gauge", labels, cluster.ledger_limit
        for part in cluster.partitions[:1]:
            yield "cluster_partition_cfg_journal_bytes", "gauge", labels, part.journal.total
            yield "cluster_partition_cfg_data_bytes", "gauge", labels, part.data.total
        for part in cluster.partitions:
            head = f"cluster_partition{part.partition_id}"
            yield f"{head}_rollover_time", "gauge", labels, 0
            yield f"{head}_sequence_number", "gauge", labels, part.sequence
            for name, value in (("damaged", part.damaged), ("repaired", part.repaired), ("discarded", part.discarded)):
                yield f"{head}_{name}_msgs", "counter", labels, value
            for name, file in (("journal", part.journal), ("data", part.data)):
                yield f"{head}_{name}_offset_bytes", "gauge", labels, file.used
                yield f"{head}_{name}_outstanding_bytes", "gauge", labels, file.outstanding
                yield f"{head}_{name}_utilization_max", "gauge", labels, _percent(file.used, file.total)


def _sessions(state: BrokerState, common: Labels) -> Iterator[Point]:
    for session in state.sessions:
        labels = *common, ("Client", session.description), ("RemoteHost", session.address)
        for name, value in session.counters.items():
            yield f"client_{name}", "counter", labels, value
    if state.sessions:
        labels, channels = (*common, ("Port", "0")), [session.channel for session in state.sessions]
        yield "brkr_system_net_remote_tcp_connections", "gauge", labels, len(channels)
        for name in ("in_bytes", "out_bytes"):
            yield f"brkr_system_net_remote_{name}", "gauge", labels, sum(each.get(name, 0) for each in channels)
    for name in ("put_msgs", "put_bytes", "nack_msgs"):
        yield f"queue_{name}", "counter", (*common, ("Queue", INVALID_QUEUE)), state.invalid_queue.get(name, 0)


Latencies = Mapping[Hashable, Mapping[int, int]]  # by the keys of `statistics.Source`: confirms in each bucket
_NONE: Latencies = MappingProxyType({})
_Row = tuple[str, dict[str, Any]]
_CLIENT_COLUMNS = (
    ("Put", "put_msgs", "msgs", grouped), ("Put", "put_bytes", "bytes", pretty_bytes),
    ("Push", "push_msgs", "msgs", grouped), ("Push", "push_bytes", "bytes", pretty_bytes),
    ("Ack", "ack_msgs", "msgs", grouped), ("Nack", "nack_msgs", "msgs", grouped),
    ("Confirm", "confirm_msgs", "msgs", grouped),
)
_LOOP_COLUMNS = (
    ("Lag", "lag", "last", interval_text), ("Lag", "lag_max", "max", interval_text),
    ("Turns", "turns_slow", "> 100 ms", grouped), ("Turns", "turns_stalled", "> 1 s", grouped),
    ("Turns", "turn_max", "longest", interval_text))
_CHANNEL_COLUMNS = (("Bytes In", "in_bytes", "bytes", pretty_bytes), ("Bytes Out", "out_bytes", "bytes", pretty_bytes))
_QUEUE_COLUMNS = tuple((metric.group, metric.name, metric.heading, metric.write) for metric in METRICS if metric.group)


def tree_in_steps(state: BrokerState, statistics: Statistics, latencies: Latencies = _NONE
                  ) -> Steps[dict[str, Any]]:
    """Return all queue metrics by domain, queue and app, in alphabetical order. `latencies`: the result of
    `snapshots.latencies_in_steps`."""
    domains: dict[str, Any] = {}
    for domain in sorted(state.domains, key=lambda domain: domain.name):
        def branch(queue: QueueState, domain: DomainState = domain) -> tuple[str, dict[str, Any]]:
            tree: dict[str, Any] = {}
            if published_apps(domain, queue):
                tree["appIds"] = {app.app_id: {**_histogram(latencies.get((queue.uri, app.app_id))),
                                               "values": queue_values(statistics, queue, app)}
                                  for app in sorted(queue.apps, key=lambda app: app.app_id)}
            tree |= _histogram(latencies.get(queue.uri))
            tree["values"] = queue_values(statistics, queue)
            return queue.uri, tree
        domains[domain.name] = dict((yield from in_steps(sorted(domain.queues, key=lambda queue: queue.uri), branch)))
    return {"_timestamp": timestamp_text(float(int(state.wall))).partition("+")[0],
            "domainQueues": {"domains": domains}}


def _histogram(counts: Mapping[int, int] | None) -> dict[str, dict[str, int]]:
    """Return the histogram of the time from arrival to confirmation: messages by upper bound (exclusive) in nanoseconds;
    empty if there were none."""
    if not counts:
        return {}
    return {"confirmLatency": {str(round(latency_bounds(bucket)[1] * 1e9)): count
                               for bucket, count in sorted(counts.items())}}


def json_in_steps(tree: dict[str, Any]) -> Steps[str]:
    """Format the result of `tree_in_steps` as one line, one queue per step; "domainQueues" must be the last member."""
    domains: dict[str, dict[str, Any]] = tree["domainQueues"]["domains"]
    texts = []
    for name, queues in domains.items():
        members = yield from in_steps(queues.items(), lambda member: f"{compact_json(member[0])}:{compact_json(member[1])}")
        texts.append(f"{compact_json(name)}:{{{','.join(members)}}}")
    around = compact_json({**tree, "domainQueues": {"domains": {}}})
    return f"{around[:-3]}{','.join(texts)}{around[-3:]}"


def compact_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def tables_in_steps(state: BrokerState, statistics: Statistics) -> Steps[str]:
    """Format the tables of domains and queues, clients, cluster nodes and connections; zeros are blank."""
    queues: list[_Row] = []
    for domain in state.domains:
        def rows(queue: QueueState, domain: DomainState = domain) -> list[_Row]:
            found = [("  " + queue.uri, queue_values(statistics, queue))]
            if published_apps(domain, queue):
                found += [("    " + app.app_id, queue_values(statistics, queue, app)) for app in queue.apps]
            return found
        queues.append((domain.name, {}))
        queues += chain.from_iterable((yield from in_steps(domain.queues, rows)))
    clients = [(session.description, dict(session.counters)) for session in state.sessions]
    if any(state.invalid_queue.values()):
        clients.append((INVALID_QUEUE, dict(state.invalid_queue)))
    nodes: list[_Row] = [
        (f"{cluster.name} {node.description}", {}) for cluster in state.clusters for node in cluster.nodes]
    channels = [(session.address, dict(session.channel)) for session in state.sessions]
    tables = []
    for title, columns, found in (("DOMAINQUEUES", _QUEUE_COLUMNS, queues), ("CLIENTS", _CLIENT_COLUMNS, clients),
                                  ("CLUSTERS", _CLIENT_COLUMNS, nodes), ("TCP CHANNELS", _CHANNEL_COLUMNS, channels),
                                  ("EVENT LOOP", _LOOP_COLUMNS, [("", _loop(state.process))])):
        tables.append((yield from _table(title, columns, found)))
    return "".join(tables)


def _loop(process: ProcessState) -> dict[str, int]:
    """Return the load of the event loop; times in nanoseconds."""
    times = {"lag": process.loop_lag, "lag_max": process.loop_lag_max, "turn_max": process.turn_max}
    return {"turns_slow": process.turns_slow, "turns_stalled": process.turns_stalled,
            **{name: round(seconds * 1e9) for name, seconds in times.items()}}


def _table(title: str, columns: Sequence[tuple[str, str, str, Write]], rows: list[_Row]) -> Steps[str]:
    """Format a table; empties `rows`."""
    headings = [""] + [heading for _, _, heading, _ in columns]
    widths = [len(heading) for heading in headings]

    def written(row: _Row) -> list[str]:
        found = [row[0]] + [write(int(value)) if (value := row[1].get(name)) else "" for _, name, _, write in columns]
        widths[:] = map(max, widths, map(len, found))
        return found
    texts = yield from in_steps(drain(rows), written)
    groups: dict[str, int] = {}
    for (group, _, _, _), width in zip(columns, widths[1:], strict=True):
        groups[group] = groups.get(group, -3) + width + 3
    for at, (group, _, _, _) in enumerate(columns, 1):  # a group's name may be wider than its columns
        if len(group) > groups[group]:
            widths[at] += len(group) - groups[group]
            groups[group] = len(group)
    head = " " * widths[0] + "".join(f" | {group:^{width}}" for group, width in groups.items())
    lines = [head.rstrip(), _row(headings, widths), "-+-".join("-" * width for width in widths)]
    lines += yield from in_steps(drain(texts), lambda row: _row(row, widths))
    return f"\n:::::::::: :::::::::: {title} >>\n" + "\n".join(lines) + "\n"


def _row(row: list[str], widths: list[int]) -> str:
    first = f"{row[0]:<{widths[0]}}"
    return (first + "".join(f" | {text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))).rstrip()
