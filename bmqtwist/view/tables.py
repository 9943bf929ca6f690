"""Statistics as tables for people (STAT SHOW, the printer's file) and as the JSON that test suites read."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

from bmqtwist.queue.counters import latency_bounds
from bmqtwist.queue.mode import QueueMode
from bmqtwist.steps import Steps, in_steps, taken
from bmqtwist.textformat import grouped, pretty_bytes, timestamp_text
from bmqtwist.view.snapshot import BrokerState, DomainState, ProcessState, QueueState
from bmqtwist.view.statistics import INVALID_QUEUE, Statistics

Latencies = Mapping[Hashable, Mapping[int, int]]  # by the keys of `statistics.Source`: confirms in each bucket
_NONE: Latencies = MappingProxyType({})
_Row = tuple[str, dict[str, Any]]
_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))
# group, metric without "queue_", heading, how it is written
_COLUMNS = (
    ("Queue", "producers_count", "producer", grouped), ("Queue", "consumers_count", "consumer", grouped),
    ("Current", "msgs_current", "msgs", grouped), ("Current", "bytes_current", "bytes", pretty_bytes),
    ("Put", "put_msgs", "msgs (d)", grouped), ("Put", "put_bytes", "bytes (d)", pretty_bytes),
    ("Put", "put_msgs_abs", "msgs", grouped), ("Put", "put_bytes_abs", "bytes", pretty_bytes),
    ("Push", "push_msgs", "msgs (d)", grouped), ("Push", "push_bytes", "bytes (d)", pretty_bytes),
    ("Push", "push_msgs_abs", "msgs", grouped), ("Push", "push_bytes_abs", "bytes", pretty_bytes),
    ("Queue Time", "queue_time_avg", "avg", None), ("Queue Time", "queue_time_max", "max", None),
    ("Ack", "ack_msgs", "delta", grouped), ("Ack", "ack_msgs_abs", "abs", grouped),
    ("Ack", "ack_time_avg", "time avg", None), ("Ack", "ack_time_max", "time max", None),
    ("Nack", "nack_msgs", "delta", grouped), ("Nack", "nack_msgs_abs", "abs", grouped),
    ("Confirm", "confirm_msgs", "delta", grouped), ("Confirm", "confirm_msgs_abs", "abs", grouped),
    ("Confirm", "confirm_time_avg", "time avg", None), ("Confirm", "confirm_time_max", "time max", None),
    ("Reject", "reject_msgs", "delta", grouped), ("Reject", "reject_msgs_abs", "abs", grouped),
    ("GC", "gc_msgs", "delta", grouped), ("GC", "gc_msgs_abs", "abs", grouped),
)
_CLIENT_COLUMNS = (
    ("Put", "put_msgs", "msgs", grouped), ("Put", "put_bytes", "bytes", pretty_bytes),
    ("Push", "push_msgs", "msgs", grouped), ("Push", "push_bytes", "bytes", pretty_bytes),
    ("Ack", "ack_msgs", "msgs", grouped), ("Nack", "nack_msgs", "msgs", grouped),
    ("Confirm", "confirm_msgs", "msgs", grouped),
)
_LOOP_COLUMNS = (
    ("Lag", "lag", "last", None), ("Lag", "lag_max", "max", None),
    ("Turns", "turns_slow", "> 100 ms", grouped), ("Turns", "turns_stalled", "> 1 s", grouped),
    ("Turns", "turn_max", "longest", None))
_CHANNEL_COLUMNS = (("Bytes In", "in_bytes", "bytes", pretty_bytes), ("Bytes Out", "out_bytes", "bytes", pretty_bytes))


def published_apps(domain: DomainState, queue: QueueState) -> bool:
    """Whether the apps of a queue have metrics of their own."""
    return domain.mode == QueueMode.FANOUT and domain.publish_app_metrics and bool(queue.apps)


def tree_in_steps(state: BrokerState, statistics: Statistics, latencies: Latencies = _NONE
                  ) -> Steps[dict[str, Any]]:
    """All queue metrics, by domain, queue and app; members in alphabetical order. `latencies`: as
    `snapshots.latencies_in_steps` gives them."""
    domains: dict[str, Any] = {}
    for domain in sorted(state.domains, key=lambda domain: domain.name):
        def branch(queue: QueueState, domain: DomainState = domain) -> tuple[str, dict[str, Any]]:
            tree: dict[str, Any] = {}
            if published_apps(domain, queue):
                tree["appIds"] = {app.app_id: {**_histogram(latencies.get((queue.uri, app.app_id))),
                                               "values": statistics.app_values(queue, app)}
                                  for app in sorted(queue.apps, key=lambda app: app.app_id)}
            tree |= _histogram(latencies.get(queue.uri))
            tree["values"] = statistics.queue_values(queue)
            return queue.uri, tree
        domains[domain.name] = dict((yield from in_steps(sorted(domain.queues, key=lambda queue: queue.uri), branch)))
    return {"_timestamp": timestamp_text(float(int(state.wall))).partition("+")[0],
            "domainQueues": {"domains": domains}}


def _histogram(counts: Mapping[int, int] | None) -> dict[str, dict[str, int]]:
    """How long it took from the arrival of messages to their confirmation: how many took less than so many nanoseconds, and
    not less than the bound before; nothing if there were none."""
    if not counts:
        return {}
    return {"confirmLatency": {str(round(latency_bounds(bucket)[1] * 1e9)): count
                               for bucket, count in sorted(counts.items())}}


def json_in_steps(tree: dict[str, Any]) -> Steps[str]:
    """Such a tree as text, in one line: its domains, its last member, are put into what is around them."""
    domains: dict[str, dict[str, Any]] = tree["domainQueues"]["domains"]
    texts = []
    for name, queues in domains.items():
        members = yield from in_steps(queues.items(), lambda member: f"{_json(member[0])}:{_json(member[1])}")
        texts.append(f"{_json(name)}:{{{','.join(members)}}}")
    around = _json({**tree, "domainQueues": {"domains": {}}})
    return f"{around[:-3]}{','.join(texts)}{around[-3:]}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def tables_in_steps(state: BrokerState, statistics: Statistics) -> Steps[str]:
    """The tables of domains and queues, clients, cluster nodes and connections; zeros are left blank."""
    queues: list[_Row] = []
    for domain in state.domains:
        def rows(queue: QueueState, domain: DomainState = domain) -> list[_Row]:
            found = [("  " + queue.uri, _unprefixed(statistics.queue_values(queue)))]
            if published_apps(domain, queue):
                found += [("    " + app.app_id, _unprefixed(statistics.app_values(queue, app))) for app in queue.apps]
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
    for title, columns, found in (("DOMAINQUEUES", _COLUMNS, queues), ("CLIENTS", _CLIENT_COLUMNS, clients),
                                  ("CLUSTERS", _CLIENT_COLUMNS, nodes), ("TCP CHANNELS", _CHANNEL_COLUMNS, channels),
                                  ("EVENT LOOP", _LOOP_COLUMNS, [("", _loop(state.process))])):
        tables.append((yield from _table(title, columns, found)))
    return "".join(tables)


def _loop(process: ProcessState) -> dict[str, int]:
    """How busy the event loop was; times in nanoseconds."""
    times = {"lag": process.loop_lag, "lag_max": process.loop_lag_max, "turn_max": process.turn_max}
    return {"turns_slow": process.turns_slow, "turns_stalled": process.turns_stalled,
            **{name: round(seconds * 1e9) for name, seconds in times.items()}}


def interval_text(nanoseconds: int) -> str:
    """A duration in the largest unit that fits, with two decimals."""
    for size, unit in _UNITS:
        if nanoseconds >= size:
            return f"{nanoseconds / size:.2f} {unit}"
    return f"{nanoseconds} ns"


def _unprefixed(values: dict[str, int]) -> dict[str, Any]:
    return {name.removeprefix("queue_"): value for name, value in values.items()}


def _table(title: str, columns: Sequence[tuple[str, str, str, Any]], rows: list[_Row]) -> Steps[str]:
    """`rows` is empty afterwards."""
    headings = [""] + [heading for _, _, heading, _ in columns]
    widths = [len(heading) for heading in headings]

    def written(row: _Row) -> list[str]:
        found = [row[0]] + [_cell(row[1].get(name, 0), write) for _, name, _, write in columns]
        widths[:] = map(max, widths, map(len, found))
        return found
    cells = yield from in_steps(taken(rows), written)
    groups: dict[str, int] = {}
    for (group, _, _, _), width in zip(columns, widths[1:], strict=True):
        groups[group] = groups.get(group, -3) + width + 3
    for at, (group, _, _, _) in enumerate(columns, 1):  # a group's name may be wider than its columns
        if len(group) > groups[group]:
            widths[at] += len(group) - groups[group]
            groups[group] = len(group)
    head = " " * widths[0] + "".join(f" | {group:^{width}}" for group, width in groups.items())
    lines = [head.rstrip(), _row(headings, widths), "-+-".join("-" * width for width in widths)]
    lines += yield from in_steps(taken(cells), lambda row: _row(row, widths))
    return f"\n:::::::::: :::::::::: {title} >>\n" + "\n".join(lines) + "\n"


def _cell(value: Any, write: Any) -> str:
    if not value:
        return ""
    return interval_text(int(value)) if write is None else str(write(int(value)))


def _row(row: list[str], widths: list[int]) -> str:
    first = f"{row[0]:<{widths[0]}}"
    return (first + "".join(f" | {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))).rstrip()
