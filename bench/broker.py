"""Broker process of a benchmark, with a generated configuration in its own directory.

Used by `run.py`, `compare.py` and the other benchmarks; clusters are in `nodes.py`, RabbitMQ in `rabbit.py`. The
members of the configuration are declared in `bmqtwist/config/`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from bench.cells import Cell
from bench.load import Plan, bmqtwist_command, raw_command, sdk_command
from bench.rabbit import free_port
from bmqtwist.cli.adminclient import AdminClient
from bmqtwist.config.sample import ELECTORS

STARTED = "BMQbrkr started successfully"
CLUSTER = "bench"
FANOUT_APPS = tuple(f"app{number}" for number in range(5))
DOMAINS = {"priority": "bench.priority", "fanout": "bench.fanout", "broadcast": "bench.broadcast"}
_PLENTY = {"messages": 1 << 40, "messagesWatermarkRatio": 0.8, "bytes": 1 << 50, "bytesWatermarkRatio": 0.8}
_MODES: dict[str, Any] = {"priority": {"priority": {}}, "broadcast": {"broadcast": {}},
                          "fanout": {"fanout": {"appIDs": list(FANOUT_APPS)}}}


def _milliseconds(text: str) -> float:
    """Parse a duration of a statistics table; empty = 0."""
    number, _, unit = text.strip().partition(" ")
    return round(float(number or 0) * {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6, "": 0.0}[unit], 2)


def _command() -> list[str]:
    """Return the broker command with absolute paths: BMQBRKR, which may have arguments, else that of this environment."""
    words = shlex.split(os.environ.get("BMQBRKR", "")) or [str(Path(sys.executable).parent / "bmqbrkr")]
    return [str(Path(word).absolute()) if Path(word).exists() else word for word in words]


class Broker:
    """A broker with its directory, which can be killed and started again. `pid`: its process.

    `nodes`: ports of all nodes of its cluster, if several; `number`: its number among them, from 1.
    """

    name = "bmqtwist"

    def __init__(self, root: Path, durability: str = "none", partitions: int = 1, data_bytes: int = 4 << 30,
                 journal_bytes: int = 1 << 30, nodes: Sequence[int] = (), number: int = 1) -> None:
        self.root, self.durability = root, durability
        self._nodes, self._number = list(nodes) or [free_port()], number
        self.port = self._nodes[number - 1]
        self.pid = 0
        self.style = ""  # posting style of clients with the SDK of bmqtwist (bench.bmqtwist_worker); "" = official SDK
        self.measure_loop = False  # clients with the SDK of bmqtwist measure their longest callback
        self.log = root / "out.log"
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("etc/domains", "storage", "archive", "logs"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self._write(partitions, data_bytes, journal_bytes)

    def _write(self, partitions: int, data_bytes: int, journal_bytes: int) -> None:
        tcp = {"name": "bench", "port": self.port, "ioThreads": 1, "maxConnections": 20000, "lowWatermark": 4 << 20,
               "highWatermark": 64 << 20, "nodeLowWatermark": 4 << 20, "nodeHighWatermark": 64 << 20,
               "listeners": [{"name": "bench", "address": "127.0.0.1", "port": self.port, "tls": False}]}
        processors = {"numProcessors": 1, "processorConfig": {
            "queueSize": 1000, "queueSizeLowWatermark": 100, "queueSizeHighWatermark": 500}}
        log = {"fileName": "", "fileMaxAgeDays": 1, "rotationBytes": 1 << 28, "loggingVerbosity": "INFO",
               "logfileFormat": "%d %s %m\n", "consoleFormat": "%d %s %m\n", "consoleSeverityThreshold": "INFO",
               "categories": [], "syslog": {"enabled": False, "appName": "", "logFormat": "", "verbosity": ""}}
        app = {"brokerInstanceName": "bench", "brokerVersion": 999999, "configVersion": 1, "etcDir": "etc",
               "hostName": "localhost", "hostTags": "", "hostDataCenter": "", "logsObserverMaxSize": 0,
               "dispatcherConfig": {kind: processors for kind in ("sessions", "queues", "clusters")},
               "stats": {"snapshotInterval": 1, "plugins": [], "printer": {
                   "printInterval": 60, "file": "", "maxAgeDays": 1, "rotateBytes": 1 << 28, "rotateDays": 1}},
               "networkInterfaces": {"heartbeats": {}, "tcpInterface": tcp}, "bmqconfConfig": {"cacheTTLSeconds": 30},
               "plugins": {"libraries": [], "enabled": []}, "bmqtwist": {"durability": self.durability}}
        self._json("etc/bmqbrkrcfg.json", {"taskConfig": {
            "allocatorType": "NEWDELETE", "allocationLimit": 1 << 35, "logController": log}, "appConfig": app})
        self._json("etc/clusters.json", {"myClusters": [{
            "name": CLUSTER, "masterAssignment": "E_LEADER_IS_MASTER_ALL",
            "elector": ELECTORS["fast"],
            "nodes": [{"id": number, "name": f"n{number}", "dataCenter": "", "transport": {
                "tcp": {"endpoint": f"tcp://localhost:{port}"}}} for number, port in enumerate(self._nodes, 1)],
            "partitionConfig": {
                "numPartitions": partitions, "location": str(self.root / "storage"),
                "archiveLocation": str(self.root / "archive"), "maxDataFileSize": data_bytes,
                "maxJournalFileSize": journal_bytes, "maxQlistFileSize": 32 << 20, "maxArchivedFileSets": 0},
            "queueOperations": {"shutdownTimeoutMs": 1000, "stopTimeoutMs": 1000}}],
            "myVirtualClusters": [{"name": CLUSTER, "selfNodeId": self._number}], "proxyClusters": []})
        for mode, name in DOMAINS.items():
            self._json(f"etc/domains/{name}.json", {"definition": {"location": CLUSTER, "parameters": {
                "name": name, "mode": _MODES[mode], "maxConsumers": 0, "maxProducers": 0, "maxQueues": 0,
                "storage": {"config": {"inMemory" if mode == "broadcast" else "fileBacked": {}},
                            "domainLimits": _PLENTY, "queueLimits": _PLENTY},
                "maxIdleTime": 0, "messageTtl": 86400, "maxDeliveryAttempts": 0, "deduplicationTimeMs": 300000,
                "consistency": {"strong" if len(self._nodes) > 1 else "eventual": {}}, "subscriptions": []}}})

    def _json(self, name: str, value: object) -> None:
        (self.root / name).write_text(json.dumps(value, indent=1))

    @property
    def pids(self) -> tuple[int, ...]:
        """Id of the process."""
        return (self.pid,)

    @property
    def uri(self) -> str:
        """URI for the official SDK."""
        return f"tcp://127.0.0.1:{self.port}"

    def start(self, seconds: float = 120) -> float:
        """Start the process and return the seconds until it accepts clients."""
        begin = time.monotonic()
        with self.log.open("ab") as log:
            position = log.tell()
            self._process = subprocess.Popen(
                [*_command(), str(self.root / "etc")],
                cwd=self.root, stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        self.pid = self._process.pid
        while STARTED not in self.output(position):
            if self._process.poll() is not None or time.monotonic() - begin > seconds:
                raise RuntimeError(f"the broker did not start: {self.output(position)[-2000:]}")
            time.sleep(0.005)
        return time.monotonic() - begin

    def loop_stalls_ms(self) -> dict[str, float]:
        """Return the longest turn and the longest timer delay since the start of the process, in milliseconds."""
        with AdminClient("127.0.0.1", self.port) as client:
            client.negotiate()
            cells = client.run("STAT SHOW").rpartition("EVENT LOOP")[2].rstrip().rpartition("\n")[2].split("|")
        return {"max_turn": _milliseconds(cells[-1]), "max_delay": _milliseconds(cells[2])}

    def output(self, position: int = 0) -> str:
        """Return the log output from a position on."""
        with self.log.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")

    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def stop(self) -> int:
        """Stop the process with SIGTERM, after 30 s with SIGKILL; return the exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def commands(self, cell: Cell, seconds: float, counters: Path, directory: Path) -> Plan:
        """Return the client processes of a cell: with the official SDK, with that of bmqtwist if a style is set, or raw."""
        plan = Plan()
        readers: list[dict[str, Any]] = []
        writers: list[dict[str, Any]] = []
        for queue in range(cell.queues):
            uri = f"bmq://{DOMAINS[cell.mode]}/{cell.name}.{queue}"
            slots = list(range(queue * cell.consumers, (queue + 1) * cell.consumers))
            for slot in slots:
                samples = directory / f"samples{slot}"
                plan.samples.append(samples)
                plan.consumers[slot] = queue
                app_id = FANOUT_APPS[slot - slots[0]] if cell.mode == "fanout" else ""
                readers.append({"slot": slot, "uri": uri, "app_id": app_id, "samples": str(samples),
                                "confirms": cell.mode != "broadcast"})
            plan.producers.append(queue)
            writers.append({"slot": queue, "uri": uri, "size": cell.size, "rate": cell.rate / cell.queues,
                            "window": cell.window, "consumers": slots, "seconds": seconds})
        make: Callable[..., list[str]] = sdk_command
        extra: dict[str, Any] = {}
        if self.style:
            make, extra = bmqtwist_command, {"style": self.style, "measure_loop": self.measure_loop}
        elif cell.batch > 1:
            make, extra = raw_command, {"batch": cell.batch}
        groups = [(writers, readers)] if cell.together else [([], [r]) for r in readers] + [([w], []) for w in writers]
        for some_writers, some_readers in groups:
            plan.commands.append(make(self.uri, counters, len(plan.commands), some_writers, some_readers, **extra))
        return plan
