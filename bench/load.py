"""One cell against one broker: start the client processes, let them run, read the gauges."""

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
    Board,
    Samples,
    busy_seconds,
    cpu_seconds_of,
    memory_mib,
)

WARM_UP_SHARE = 0.2  # of the run, left out of rate and latency
DRAIN_SECONDS = 120


class Target(Protocol):
    """A broker under load, or several of one cluster. `pids`: of its processes."""

    name: str

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes."""

    def commands(self, cell: Cell, seconds: float, board: Path, directory: Path) -> Plan:
        """The client processes of a cell."""


class Plan:
    """Client processes in order of start, with what each of them counts."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.samples: list[Path] = []
        self.consumers: dict[int, int] = {}  # consumer slot -> producer slot whose messages it receives
        self.producers: list[int] = []


def run_cell(target: Target, cell: Cell, seconds: float,
             ready: Callable[[list[int]], object] = lambda pids: None) -> dict[str, Any]:
    """Run one cell; a flat mapping of what was measured. `ready` is called with the ids of the clients' processes when they
    are about to begin."""
    with tempfile.TemporaryDirectory(prefix="bmq-bench-") as name:
        directory = Path(name)
        board = Board.create(directory / "board")
        plan = target.commands(cell, seconds, directory / "board", directory)
        processes: list[subprocess.Popen[str]] = []
        try:
            for worker, command in enumerate(plan.commands):
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                board.wait([READY + worker], 60, processes)
            time.sleep(0.3)
            ready([process.pid for process in processes])
            row = _measure(target, cell, seconds, plan, board, processes)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        finally:
            board.set(STOP, 1)
        reports = [json.loads(process.communicate(timeout=90)[0].splitlines()[-1]) for process in processes]
        row["acked"] = sum(report.get("acked", 0) for report in reports)
        row["nacked"] = sum(report.get("nacked", 0) for report in reports)
        row["blocked_ms"] = [report["blocked_ms"] for report in reports if report.get("blocked_ms")]
        cpu = sum(report["cpu_seconds"] for report in reports)
        row["client_cpu_us_per_message"] = round(cpu / max(row["posted"], 1) * 1e6, 1)
        row["foreign_cores"] = round(max(0.0, row.pop("busy_without_broker") - cpu) / row["seconds"], 2)
        samples = Samples()
        for path in plan.samples:
            samples.load(path)
        since, until = row.pop("since_ns"), row.pop("until_ns")
        row["messages_per_s"] = round(samples.rate(since, until) / cell.deliveries)
        row["latency_ms"] = samples.percentiles_ms(since)
        return row


def _measure(target: Target, cell: Cell, seconds: float, plan: Plan, board: Board,
             processes: list[subprocess.Popen[str]]) -> dict[str, Any]:
    (user, system), busy, start_ns = cpu_seconds_of(target.pids), busy_seconds(), time.monotonic_ns()
    board.set(GO, 1)
    board.wait([DONE + slot for slot in plan.producers], seconds + 60, processes)
    complete = _drain(plan, board, processes)
    (user_end, system_end), busy, stop_ns = cpu_seconds_of(target.pids), busy_seconds() - busy, time.monotonic_ns()
    cpu = user_end - user + system_end - system
    posted = sum(board.get(POSTED + slot) for slot in plan.producers)
    delivered = sum(board.get(RECEIVED + slot) for slot in plan.consumers)
    board.set(STOP, 1)
    return {"target": target.name, "cell": cell.name, "posted": posted, "delivered": delivered, "complete": complete,
            "seconds": round((stop_ns - start_ns) / 1e9, 2),
            "broker_cpu_us_per_message": round(cpu / max(posted, 1) * 1e6, 1),
            "broker_system_share": round((system_end - system) / max(cpu, 0.01), 2),
            "broker_cpu_share": round(cpu / ((stop_ns - start_ns) / 1e9), 2),
            "rss_mib": max(map(memory_mib, target.pids), key=lambda each: each["peak"]), "busy_without_broker": busy - cpu,
            "since_ns": start_ns + int(seconds * WARM_UP_SHARE * 1e9), "until_ns": start_ns + int(seconds * 1e9)}


def _drain(plan: Plan, board: Board, processes: list[subprocess.Popen[str]]) -> bool:
    """Wait until every consumer has received all that was posted to it."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        if all(board.get(RECEIVED + consumer) >= board.get(POSTED + producer)
               for consumer, producer in plan.consumers.items()):
            return True
        if any(process.poll() not in (None, 0) for process in processes):
            return False
        time.sleep(0.002)
    return False


def sdk_command(broker: str, board: Path, worker: int, producers: list[dict[str, Any]],
                consumers: list[dict[str, Any]]) -> list[str]:
    """A client process on the official SDK."""
    return [sys.executable, "-m", "bench.sdk_worker", json.dumps(
        {"broker": broker, "board": str(board), "worker": worker, "producers": producers, "consumers": consumers})]


def our_command(broker: str, board: Path, worker: int, producers: list[dict[str, Any]],
                consumers: list[dict[str, Any]], style: str, gauge: bool) -> list[str]:
    """A client process on our SDK."""
    return [sys.executable, "-m", "bench.our_worker", json.dumps(
        {"broker": broker, "board": str(board), "worker": worker, "producers": producers, "consumers": consumers,
         "style": style, "gauge": gauge})]


def raw_command(broker: str, board: Path, worker: int, producers: list[dict[str, Any]],
                consumers: list[dict[str, Any]], batch: int) -> list[str]:
    """A client process on the raw client; it has one role."""
    role, fields = ("produce", producers[0]) if producers else ("consume", consumers[0])
    return [sys.executable, "-m", "bench.raw_worker", json.dumps(
        {"port": int(broker.rpartition(":")[2]), "board": str(board), "worker": worker, "role": role, "batch": batch,
         **fields})]
