"""Metrics as Prometheus wants them: families of samples with labels, as data; somebody else writes the text.

A counter's total keeps the plain name (`queue_put_msgs`), what it gained in the window is `queue_put_msgs_delta`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from bmqtwist.steps import Steps, in_steps
from bmqtwist.view.snapshot import BrokerState, DomainState, QueueState
from bmqtwist.view.statistics import COUNTED, GAUGES, INVALID_QUEUE, TIMED, Statistics
from bmqtwist.view.tables import published_apps

Labels = tuple[tuple[str, str], ...]
Kind = Literal["counter", "gauge"]
POINTS_AT_ONCE = 512
_PEAKS = ("queue_content_msgs", "queue_content_bytes")
_NOW = ("queue_msgs_current", "queue_bytes_current")
_APP_METRICS = (*_NOW, *_PEAKS, *(f"queue_{name}_{kind}" for name in ("confirm_time", "queue_time")
                                 for kind in ("avg", "max")))
_QUEUE_GAUGES = (*_NOW, *_PEAKS, *GAUGES, *(f"queue_{name}_{kind}" for name in TIMED for kind in ("avg", "max")))


@dataclass(slots=True)
class Family:
    """All samples of one metric: (labels, value)."""

    name: str
    kind: Kind
    samples: list[tuple[Labels, float]] = field(default_factory=list)


Point = tuple[str, Kind, Labels, float]


def families_in_steps(state: BrokerState, statistics: Statistics) -> Steps[list[Family]]:
    """Every metric of the broker, in a steady order; the statistics must have been sampled for this state."""
    found: dict[str, Family] = {}

    def add(point: Point) -> None:
        name, kind, labels, value = point
        found.setdefault(name, Family(name, kind)).samples.append((labels, value))
    yield from in_steps(chain(_broker(state), _domains(state, statistics), _clusters(state), _sessions(state, statistics)),
                        add, POINTS_AT_ONCE)
    return list(found.values())


def _common(state: BrokerState) -> Labels:
    return (("Instance", state.instance), ("DataType", "host-data"))


def _domain_labels(state: BrokerState, domain: DomainState) -> Labels:
    name, _, tier = domain.name.partition(".~")
    return (("Cluster", domain.cluster), ("Domain", name), ("Tier", tier), *_common(state))


def _queue_labels(state: BrokerState, domain: DomainState, queue: QueueState) -> Labels:
    return (*_domain_labels(state, domain), ("Queue", queue.name), ("Role", queue.role.name))


def _broker(state: BrokerState) -> Iterator[Point]:
    labels, process = _common(state), state.process
    readings: tuple[tuple[str, Kind, float], ...] = (
        ("brkr_summary_queues_count", "gauge", len(state.queues)),
        ("brkr_summary_clients_count", "gauge", sum(session.kind == "client" for session in state.sessions)),
        ("brkr_system_cpu_sys", "counter", process.cpu_system),
        ("brkr_system_cpu_usr", "counter", process.cpu_user),
        ("brkr_system_cpu_all", "counter", process.cpu_system + process.cpu_user),
        ("brkr_system_mem_res", "gauge", process.memory_resident),
        ("brkr_system_mem_virt", "gauge", process.memory_virtual),
        ("brkr_system_os_pagefaults_minor", "counter", process.faults_minor),
        ("brkr_system_os_pagefaults_major", "counter", process.faults_major),
        ("brkr_system_os_swaps", "counter", process.swaps),
        ("brkr_system_os_ctxswitch_voluntary", "counter", process.switches_voluntary),
        ("brkr_system_os_ctxswitch_involuntary", "counter", process.switches_involuntary),
        ("brkr_system_loop_lag_seconds", "gauge", process.loop_lag),
        ("brkr_system_loop_lag_seconds_max", "gauge", process.loop_lag_max),
        ("brkr_system_turns_slow", "counter", process.turns_slow),
        ("brkr_system_turns_stalled", "counter", process.turns_stalled),
        ("brkr_system_turn_seconds_max", "gauge", process.turn_max),
        ("brkr_system_uptime_seconds", "gauge", state.wall - state.started_wall))
    for name, kind, value in readings:
        yield name, kind, labels, value


def _domains(state: BrokerState, statistics: Statistics) -> Iterator[Point]:
    for domain in state.domains:
        labels = _domain_labels(state, domain)
        yield "domain_cfg_msgs", "gauge", labels, domain.meter.message_capacity
        yield "domain_cfg_bytes", "gauge", labels, domain.meter.byte_capacity
        yield "domain_queue_count", "gauge", labels, max(len(domain.storages), len(domain.queues))
        yield "domain_queue_count_open", "gauge", labels, sum(1 for queue in domain.queues if queue.handles)
        for queue in domain.queues:
            yield from _queue(state, domain, queue, statistics)


def _queue(state: BrokerState, domain: DomainState, queue: QueueState, statistics: Statistics) -> Iterator[Point]:
    labels = _queue_labels(state, domain, queue)
    values = statistics.queue_values(queue)
    yield "queue_heartbeat", "gauge", labels, 0
    yield from _gauges(_QUEUE_GAUGES, labels, values)
    for name in COUNTED:
        yield f"queue_{name}", "counter", labels, values[f"queue_{name}_abs"]
        yield f"queue_{name}_delta", "gauge", labels, values[f"queue_{name}"]
    if published_apps(domain, queue):
        for app in queue.apps:
            yield from _gauges(_APP_METRICS, (*labels, ("AppId", app.app_id)), statistics.app_values(queue, app))


def _gauges(names: Iterable[str], labels: Labels, values: dict[str, int]) -> Iterator[Point]:
    for name in names:
        shown = f"{name}_max" if name in _PEAKS else name.removesuffix("_abs")
        yield shown, "gauge", labels, values[name]


def _clusters(state: BrokerState) -> Iterator[Point]:
    for cluster in state.clusters:
        labels = (("Cluster", cluster.name), *_common(state))
        yield "cluster_healthiness", "gauge", labels, 1 if cluster.healthy else 2
        yield "cluster_csl_write_bytes", "counter", labels, cluster.ledger_bytes
        yield "cluster_csl_cfg_bytes", "gauge", labels, cluster.ledger_limit
        for part in cluster.partitions[:1]:
            yield "cluster_partition_cfg_journal_bytes", "gauge", labels, part.journal.total
            yield "cluster_partition_cfg_data_bytes", "gauge", labels, part.data.total
        for part in cluster.partitions:
            head = f"cluster_partition{part.partition_id}"
            yield f"{head}_rollover_time", "gauge", labels, 0
            yield f"{head}_sequence_number", "gauge", labels, part.sequence
            for name, file in (("journal", part.journal), ("data", part.data)):
                yield f"{head}_{name}_offset_bytes", "gauge", labels, file.used
                yield f"{head}_{name}_outstanding_bytes", "gauge", labels, file.outstanding
                yield (f"{head}_{name}_utilization_max", "gauge", labels,
                       file.used * 100 // file.total if file.total else 0)


def _sessions(state: BrokerState, statistics: Statistics) -> Iterator[Point]:
    ports: dict[int, list[float]] = {}
    for session in state.sessions:
        labels = (*_common(state), ("Client", session.description), ("RemoteHost", session.address))
        for name, value in session.counters.items():
            yield f"client_{name}", "counter", labels, value
        sums = ports.setdefault(session.port, [0, 0, 0])
        sums[0] += 1
        sums[1] += session.channel.get("in_bytes", 0)
        sums[2] += session.channel.get("out_bytes", 0)
    for port, (connections, received, sent) in ports.items():
        labels = (*_common(state), ("Port", str(port)))
        yield "brkr_system_net_remote_tcp_connections", "gauge", labels, connections
        yield "brkr_system_net_remote_in_bytes", "gauge", labels, received
        yield "brkr_system_net_remote_out_bytes", "gauge", labels, sent
    for name in ("put_msgs", "put_bytes", "nack_msgs"):
        labels = (*_common(state), ("Queue", INVALID_QUEUE))
        yield f"queue_{name}", "counter", labels, state.invalid_queue.get(name, 0)
