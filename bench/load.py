"""Run of one cell against one target: starts the client processes and measures throughput, latency, CPU and memory.

Called by `run.py`, `compare.py`, `sdk.py`, `proxy.py` and `train.py`; the cells are in `cells.py`, the targets in
`broker.py`, `nodes.py` and `rabbit.py`. Percentiles are computed by `gauge.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from bench.cells import Cell
from bench.gauge import (
    DONE,
    GO,
    POSTED,
    READY,
    RECEIVED,
    STOP,
    Samples,
    SharedCounters,
    busy_seconds,
    cpu_seconds_of,
    memory_mib,
)

WARM_UP_SHARE = 0.2  # part of the run that rate and latency exclude
DRAIN_SECONDS = 120


class Target(Protocol):
    """A broker under load, or a cluster of them."""

    name: str

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of its processes."""

    def commands(self, cell: Cell, seconds: float, counters: Path, directory: Path) -> Plan:
        """Return the client processes of a cell."""


class Plan:
    """Commands of client processes in their start order, and the counters that they use."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.samples: list[Path] = []
        self.consumers: dict[int, int] = {}  # consumer slot -> producer slot whose messages it receives
        self.producers: list[int] = []


def run_cell(target: Target, cell: Cell, seconds: float,
             ready: Callable[[list[int]], object] = lambda pids: None) -> dict[str, Any]:
    """Run one cell and return a row of results; `ready` receives the ids of the client processes before they post."""
    with tempfile.TemporaryDirectory(prefix="bmq-bench-") as name:
        directory = Path(name)
        counters = SharedCounters.create(directory / "counters")
        plan = target.commands(cell, seconds, directory / "counters", directory)
        processes: list[subprocess.Popen[str]] = []
        try:
            for worker, command in enumerate(plan.commands):
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                counters.wait([READY + worker], 60, processes)
            time.sleep(0.3)
            ready([process.pid for process in processes])
            row = _measure(target, cell, seconds, plan, counters, processes)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        finally:
            counters.set(STOP, 1)
        reports = [json.loads(process.communicate(timeout=90)[0].splitlines()[-1]) for process in processes]
        row["acked"] = sum(report.get("acked", 0) for report in reports)
        row["nacked"] = sum(report.get("nacked", 0) for report in reports)
        row["longest_callback_ms"] = [report["longest_callback_ms"] for report in reports
                                      if report.get("longest_callback_ms")]
        cpu = sum(report["cpu_seconds"] for report in reports)
        row["client_cpu_us_per_message"] = round(cpu / max(row["posted"], 1) * 1e6, 1)
        row["other_cores"] = round(max(0.0, row.pop("busy_without_broker") - cpu) / row["seconds"], 2)
        samples = Samples()
        for path in plan.samples:
            samples.load(path)
        since, until = row.pop("since_ns"), row.pop("until_ns")
        row["messages_per_s"] = round(samples.rate(since, until) / cell.deliveries)
        row["latency_ms"] = samples.percentiles_ms(since)
        return row


def _measure(target: Target, cell: Cell, seconds: float, plan: Plan, counters: SharedCounters,
             processes: list[subprocess.Popen[str]]) -> dict[str, Any]:
    (user, system), busy, start_ns = cpu_seconds_of(target.pids), busy_seconds(), time.monotonic_ns()
    counters.set(GO, 1)
    counters.wait([DONE + slot for slot in plan.producers], seconds + 60, processes)
    complete = _drain(plan, counters, processes)
    (user_end, system_end), busy, stop_ns = cpu_seconds_of(target.pids), busy_seconds() - busy, time.monotonic_ns()
    cpu = user_end - user + system_end - system
    posted = sum(counters.get(POSTED + slot) for slot in plan.producers)
    delivered = sum(counters.get(RECEIVED + slot) for slot in plan.consumers)
    counters.set(STOP, 1)
    return {"target": target.name, "cell": cell.name, "posted": posted, "delivered": delivered, "complete": complete,
            "seconds": round((stop_ns - start_ns) / 1e9, 2),
            "broker_cpu_us_per_message": round(cpu / max(posted, 1) * 1e6, 1),
            "broker_system_share": round((system_end - system) / max(cpu, 0.01), 2),
            "broker_cpu_share": round(cpu / ((stop_ns - start_ns) / 1e9), 2),
            "rss_mib": max(map(memory_mib, target.pids), key=lambda each: each["peak"]), "busy_without_broker": busy - cpu,
            "since_ns": start_ns + int(seconds * WARM_UP_SHARE * 1e9), "until_ns": start_ns + int(seconds * 1e9)}


def _drain(plan: Plan, counters: SharedCounters, processes: list[subprocess.Popen[str]]) -> bool:
    """Wait until every consumer has received all that was posted to it."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        if all(counters.get(RECEIVED + consumer) >= counters.get(POSTED + producer)
               for consumer, producer in plan.consumers.items()):
            return True
        if any(process.poll() not in (None, 0) for process in processes):
            return False
        time.sleep(0.002)
    return False


def sdk_command(broker: str, counters: Path, worker: int, producers: list[dict[str, Any]],
                consumers: list[dict[str, Any]]) -> list[str]:
    """Return the command of a client process with the official SDK."""
    return [sys.executable, "-m", "bench.sdk_worker", json.dumps(
        {"broker": broker, "counters": str(counters), "worker": worker, "producers": producers, "consumers": consumers})]


def bmqtwist_command(broker: str, counters: Path, worker: int, producers: list[dict[str, Any]],
                consumers: list[dict[str, Any]], style: str, measure_loop: bool) -> list[str]:
    """Return the command of a client process with the SDK of bmqtwist."""
    return [sys.executable, "-m", "bench.bmqtwist_worker", json.dumps(
        {"broker": broker, "counters": str(counters), "worker": worker, "producers": producers, "consumers": consumers,
         "style": style, "measure_loop": measure_loop})]


def raw_command(broker: str, counters: Path, worker: int, producers: list[dict[str, Any]],
                consumers: list[dict[str, Any]], batch: int) -> list[str]:
    """Return the command of a client process with the raw client, which has one role."""
    role, fields = ("produce", producers[0]) if producers else ("consume", consumers[0])
    return [sys.executable, "-m", "bench.raw_worker", json.dumps(
        {"port": int(broker.rpartition(":")[2]), "counters": str(counters), "worker": worker, "role": role, "batch": batch,
         **fields})]
