"""RabbitMQ as a benchmark target: a node in a temporary directory on a free port, and a C client that is compiled here.

Used by `run.py`, for clusters through `nodes.py`; the client is `rabbit_client.c`, the broker of the project is in
`broker.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bench.cells import Cell
from bench.load import Plan

HERE = Path(__file__).parent
PREFETCH = 2000  # unconfirmed messages of a consumer; more was not faster
_SERVER = "/usr/lib/rabbitmq/lib"


class Missing(Exception):
    """RabbitMQ or a library of its client is not installed; the text names the packages."""


def free_port() -> int:
    """Return a free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def find_server() -> Path:
    """Return the start script of the server; the wrapper of the system requires its own user and directories."""
    scripts = sorted(Path(_SERVER).glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if not scripts:
        raise Missing("RabbitMQ is not installed: apt-get install rabbitmq-server librabbitmq-dev gcc")
    return scripts[-1]


def build_client(directory: Path) -> Path:
    """Compile rabbit_client.c to `directory` and return the program."""
    target = directory / "rabbit_client"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Missing("No C compiler for the RabbitMQ client: apt-get install gcc librabbitmq-dev")
    built = subprocess.run([compiler, "-O2", "-o", str(target), str(HERE / "rabbit_client.c"), "-lrabbitmq"],
                           capture_output=True, text=True, check=False)
    if built.returncode:
        raise Missing(f"The RabbitMQ client does not compile (apt-get install librabbitmq-dev): {built.stderr[:300]}")
    return target


class Rabbit:
    """A RabbitMQ node. `pid`: its process beam.smp.

    `epmd_port`: port of the name server that it starts or shares; `others`: names of the nodes of its cluster.
    """

    name = "rabbitmq"

    def __init__(self, directory: Path, epmd_port: int = 0, others: Sequence[str] = ()) -> None:
        self.directory = directory
        self.port, self.pid = free_port(), 0
        self.leader_port, self.quorum = self.port, False  # where queues are declared, and whether they are quorum queues
        self.node = f"bench{self.port}@localhost"
        self._others = others
        self._epmd_port = epmd_port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.client = build_client(directory)
        self._script = find_server()
        self.version = self._script.parent.parent.name.rpartition("-")[2]

    def start(self) -> None:
        """Start the node and wait until it accepts connections."""
        home = self.directory / "rabbit"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text("BENCH")
        cookie.chmod(0o400)
        joined = "".join(f"cluster_formation.classic_config.nodes.{number} = {node}\n"
                         for number, node in enumerate((self.node, *self._others), 1))
        (home / "rabbit.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlog.console = false\nlog.file.level = warning\n"
            "vm_memory_high_watermark.relative = 0.6\ndisk_free_limit.absolute = 50MB\n"
            "collect_statistics_interval = 60000\ncluster_formation.discovery_retry_limit = 1\n"
            f"cluster_formation.peer_discovery_backend = classic_config\n{joined}")
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": self.node, "RABBITMQ_CONFIG_FILE": str(home / "rabbit"),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"), "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"), "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self._process = subprocess.Popen([str(self._script)], env=environment, start_new_session=True,
                                         stdout=(home / "out").open("wb"), stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 90
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise Missing(f"RabbitMQ did not start: {(home / 'out').read_text()[-500:]}") from None
                time.sleep(0.2)
        self.pid = _worker(self._process.pid)
        time.sleep(2)

    def stop(self) -> None:
        """Stop the node and the name server it started."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None
            epmd = shutil.which("epmd")
            if epmd:
                subprocess.run([epmd, "-port", str(self._epmd_port), "-kill"], capture_output=True, check=False)

    @property
    def pids(self) -> tuple[int, ...]:
        """Id of the process."""
        return (self.pid,)

    def commands(self, cell: Cell, seconds: float, counters: Path, directory: Path) -> Plan:
        """Return the client processes of a cell.

        Queues are durable, messages persistent, with publisher confirms; broadcast is transient and without
        acknowledgements.

        Each message is acknowledged on its own, or every `batch` messages with `multiple` set.
        """
        plan, durable = Plan(), 0 if cell.mode == "broadcast" else 2 if self.quorum else 1
        ack_every = cell.batch if durable else 0

        def add(*words: object) -> None:
            plan.commands.append([str(self.client), *(str(word) for word in words)])

        for queue in range(cell.queues):
            exchange = "" if cell.mode == "priority" else f"x{queue}.{cell.name}"
            slots = list(range(queue * cell.consumers, (queue + 1) * cell.consumers))
            for slot in slots:
                samples = directory / f"samples{slot}"
                plan.samples.append(samples)
                plan.consumers[slot] = queue
                name = f"q{queue}.{slot if exchange else 0}.{cell.name}"
                add("consume", self.port, counters, len(plan.commands), slot, exchange, name, durable, PREFETCH,
                    ack_every, samples, self.leader_port)
        for queue in range(cell.queues):
            exchange = "" if cell.mode == "priority" else f"x{queue}.{cell.name}"
            slots = [slot for slot, producer in plan.consumers.items() if producer == queue]
            plan.producers.append(queue)
            add("produce", self.port, counters, len(plan.commands), queue, exchange, f"q{queue}.0.{cell.name}", cell.size,
                cell.batch, cell.rate / cell.queues, cell.window, int(durable > 0), ",".join(map(str, slots)), seconds)
        return plan

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _worker(pid: int) -> int:
    """Return the id of the descendant process beam.smp."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text().strip() == "beam.smp" and _descends(int(entry.name), pid):
                    return int(entry.name)
            except OSError:
                continue
    raise Missing("the RabbitMQ process cannot be found below its start script")


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False
