"""Soak test of a Spark streaming query: kills of the query, its executors and the broker, while it fills a table.

    python -m tests.soak spark [--count 100000] [--kills 10] [--broker-kills 5] [--drops 10] [--executor-kills 1]
                               [--sink parquet|foreach] [--seed N]

A producer posts numbered messages. Each run of the query ends with kill -9 of all its processes, of the Python program only,
or of the JVM only; meanwhile the broker is killed and started, connections are dropped, and in one run on two executor
processes an executor is killed. At the end the query drains the queue, and the table is checked: no message is lost or
duplicated, and the queue is empty. Called by `command.py`; `tests/spark/test_campaign.py` is its short run. The query is
`spark_query.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from bmqtwist.sdk.results import SdkError
from bmqtwist.sdk.simple import Session
from bmqtwist.testing.process import BrokerProcess

_TESTS = Path(__file__).resolve().parent.parent
DOMAIN = "campaign"
QUEUE = f"bmq://{DOMAIN}/q"
RUN_SECONDS_MAX = 300.0
ATTEMPTS_MAX = 4
_CHUNK = 1 << 16


class Relay:
    """A TCP relay to the broker; `drop` closes all its connections."""

    def __init__(self, port: int) -> None:
        self._target, self.drops = port, 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._connections: dict[socket.socket, socket.socket] = {}  # from the query, to the broker
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                broker_end = socket.create_connection(("127.0.0.1", self._target), 5.0)
            except OSError:
                client.close()
                continue
            self._connections[client] = broker_end
            threading.Thread(target=self._forward, args=(client, broker_end), daemon=True).start()

    def _forward(self, client: socket.socket, broker_end: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                for source in select.select([client, broker_end], [], [])[0]:
                    data = source.recv(_CHUNK)
                    if not data:
                        raise OSError("closed")
                    (broker_end if source is client else client).sendall(data)
        self._connections.pop(client, None)
        for each in (client, broker_end):
            each.close()

    def drop(self) -> None:
        """Close all connections."""
        for pair in list(self._connections.items()):
            self.drops += 1
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the listening socket and all connections."""
        self._server.close()
        self.drop()


class Producer(threading.Thread):
    """Posts the numbers from 0 to `count` - 1, over all restarts of the broker, at most `rate` per second."""

    def __init__(self, broker: str, count: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._broker, self._count, self._rate = broker, count, rate
        self.posted = 0
        self.error = ""

    def run(self) -> None:
        """Post, and wait for all acknowledgements."""
        try:
            with Session(self._broker, post_wait_s=120.0, backoff_max_s=0.5) as session, session.open(
                    QUEUE, write=True) as opened:
                start_time = time.monotonic()
                for number in range(self._count):
                    opened.post_nowait(b"%d" % number)
                    self.posted = number + 1
                    ahead = self.posted / self._rate - (time.monotonic() - start_time)
                    if ahead > 0.05:
                        session.step(ahead)
                opened.flush()
        except SdkError as error:
            self.error = str(error)


class QueryProcess:
    """Process of the query; `lines` has its output."""

    def __init__(self, mode: str, root: Path, broker: str, count: int, batch: int, master: str, sink: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS.parent), str(_TESTS)]),
                       "SPARK_LOCAL_IP": "127.0.0.1"}
        self._log = open(root / "query.log", "ab")  # noqa: SIM115 - closed after the end of the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "soak.spark_query", mode, str(root), broker, QUEUE, str(count), str(batch), master, sink],
            cwd=root, env=environment, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True)
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.decode().strip())
        self.lines.put("")

    def expect(self, word: str, seconds: float = RUN_SECONDS_MAX) -> str:
        """Wait for the next line that starts with `word`; return "" if the process ends or after `seconds`."""
        until = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(until - time.monotonic(), 0.01))
            except queue.Empty:
                return ""
            if not line:
                self.lines.put("")
                return ""
            if line.startswith(word):
                return line

    def processes(self) -> dict[int, str]:
        """Return ids and command lines of the process and its descendants."""
        parents: dict[int, int] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        lines = {}
        for pid in found:
            with contextlib.suppress(OSError):
                lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return lines

    def kill(self, target: str) -> None:
        """Kill -9 `all` processes, the Python `program`, or the `jvm`; then wait 30 s for the others to end."""
        processes = self.processes()
        java = [pid for pid, line in processes.items() if "java" in line.split(" ")[0] and "SparkSubmit" in line]
        chosen = {"all": list(processes), "program": [self.process.pid], "jvm": java}[target]
        for pid in chosen:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 30.0
        while any(os.path.exists(f"/proc/{pid}") and not _is_zombie(pid) for pid in processes) and time.monotonic() < until:
            if self.process.poll() is None and target == "jvm":
                self.process.kill()
            self.process.poll()
            time.sleep(0.05)
        remaining = [pid for pid in processes if os.path.exists(f"/proc/{pid}") and not _is_zombie(pid)]
        for pid in remaining:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.close()
        if remaining:
            raise RuntimeError(f"{len(remaining)} processes still run 30 s after kill -9 of {target}: "
                               f"{[processes[pid][:200] for pid in remaining]}")

    def close(self) -> None:
        """Kill all processes of the query and close its log."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


class Campaign:
    """Soak test with one broker, one producer and one query that is started repeatedly."""

    def __init__(self, root: Path, count: int, kills: int, broker_kills: int, drops: int, executor_kills: int, sink: str,
                 seed: int) -> None:
        self.root, self.count, self.sink, self.random = root, count, sink, Random(seed)
        self.kills, self.broker_kills, self.drops, self.executor_kills = kills, broker_kills, drops, executor_kills
        self.broker = BrokerProcess(root / "broker", samples=False)
        self.numbers: dict[str, Any] = {"messages": count, "killed queries": 0, "killed executors": 0, "killed brokers": 0}
        self.batch = max(min(count // 40, 5000), 200)

    def run(self) -> dict[str, Any]:
        """Run the test; return the counts; raises RuntimeError on a violation."""
        start_time = time.monotonic()
        self.broker.start()
        self.broker.domain(DOMAIN)
        relay = Relay(self.broker.port)
        url = f"tcp://127.0.0.1:{relay.port}"
        producer = Producer(self.broker.url, self.count, max(self.count / (8.0 * (self.kills + 1)), 100.0))
        try:
            producer.start()
            self.kill_queries(url, relay)
            producer.join(RUN_SECONDS_MAX)
            if producer.is_alive() or producer.error:
                raise RuntimeError(f"the producer failed: {producer.posted} posted, "
                                   f"{producer.error or 'it still runs'}")
            counts = json.loads(self.run_to_end("drain", url, "result").removeprefix("result "))
            remaining = self.count_remaining()
        finally:
            relay.close()
            self.broker.close()
        self.numbers |= {"dropped connections": relay.drops, **counts, "twice": counts["rows"] - counts["guids"],
                         "left in the queue": remaining, "seconds": round(time.monotonic() - start_time)}
        if counts["lost"] or counts["rows"] != self.count or counts["guids"] != self.count or remaining:
            raise RuntimeError(f"the table does not have every message exactly once: {self.numbers}")
        return self.numbers

    def kill_queries(self, url: str, relay: Relay) -> None:
        """Run and kill the query `kills` times, with the other faults in between."""
        executors = set(self.random.sample(range(self.kills), min(self.executor_kills, self.kills)))
        brokers = [self.random.randrange(self.kills) for _ in range(self.broker_kills)] if self.kills else []
        cuts = [self.random.randrange(self.kills) for _ in range(self.drops)] if self.kills else []
        for number in range(self.kills):
            process = self.start_run(url, "local-cluster[2,1,600]" if number in executors else "local[2]")
            try:
                for _ in range(cuts.count(number)):
                    time.sleep(self.random.uniform(0.0, 0.5))
                    relay.drop()
                for _ in range(brokers.count(number)):
                    time.sleep(self.random.uniform(0.0, 0.5))
                    self.broker.kill()
                    self.broker.start()
                    self.numbers["killed brokers"] += 1
                if number in executors:
                    self.kill_executor(process)
                time.sleep(self.random.uniform(0.0, 1.5))
                process.kill(self.random.choice(["all", "program", "jvm"]))
                self.numbers["killed queries"] += 1
            finally:
                process.close()

    def start_run(self, url: str, master: str) -> QueryProcess:
        """Start the query and wait for its first batch.

        If it ends before, it is started again, at most `ATTEMPTS_MAX` times: on a busy machine Spark does not wait long
        enough for its Python processes.
        """
        for _ in range(ATTEMPTS_MAX):
            process = self.start("run", url, master)
            if process.expect("batch"):
                return process
            process.close()
            self.numbers["failed starts"] = self.numbers.get("failed starts", 0) + 1
        raise RuntimeError(f"the query has processed no batch\n{self.tail()}")

    def kill_executor(self, process: QueryProcess) -> None:
        """Kill -9 one executor; the query must continue."""
        found = [pid for pid, line in process.processes().items() if "CoarseGrainedExecutorBackend" in line]
        if not found:
            raise RuntimeError("there is no executor process")
        os.kill(self.random.choice(found), signal.SIGKILL)
        self.numbers["killed executors"] += 1
        if not process.expect("batch"):
            raise RuntimeError(f"the query does not continue after the kill of an executor\n{self.tail()}")

    def start(self, mode: str, url: str, master: str = "local[2]") -> QueryProcess:
        """Start the query and wait until its Spark session exists."""
        process = QueryProcess(mode, self.root, url, self.count, self.batch, master, self.sink)
        if not process.expect("session"):
            process.close()
            raise RuntimeError(f"the query has created no session\n{self.tail()}")
        return process

    def run_to_end(self, mode: str, url: str, last: str) -> str:
        """Run the query until it prints a line that starts with `last`; return the line. At most `ATTEMPTS_MAX` attempts."""
        for _ in range(ATTEMPTS_MAX):
            process = self.start(mode, url)
            try:
                line = process.expect(last)
            finally:
                process.close()
            if line:
                return line
        raise RuntimeError(f"{mode} has not completed\n{self.tail()}")

    def tail(self) -> str:
        """Return the end of the log of the query."""
        return (self.root / "query.log").read_text(errors="replace")[-4000:]

    def count_remaining(self) -> int:
        """Return the number of unconfirmed messages in the queue."""
        answer = self.broker.admin(f"DOMAINS DOMAIN {DOMAIN} QUEUE q INTERNALS")
        found = re.search(r"(?:numMessages|Num messages|messages)\W+(\d+)", answer, re.IGNORECASE)
        with Session(self.broker.url) as session, session.open(QUEUE, read=True) as opened:
            seen = len(opened.poll(10, 1.0))
        return max(seen, int(found[1]) if found else 0)


def main(arguments: list[str]) -> int:
    """Run the command line; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(prog="tests.soak spark", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--broker-kills", type=int, default=5)
    parser.add_argument("--drops", type=int, default=10)
    parser.add_argument("--executor-kills", type=int, default=1)
    parser.add_argument("--sink", choices=["parquet", "foreach"], default="parquet")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bmq-spark-") as root:
        try:
            numbers = Campaign(Path(root), options.count, options.kills, options.broker_kills, options.drops,
                               options.executor_kills, options.sink, options.seed).run()
        except RuntimeError as error:
            print(json.dumps({"run": "spark", "seed": options.seed, "finding": str(error)}))
            return 1
    print(json.dumps({"run": "spark", "seed": options.seed, **numbers}), flush=True)
    return 0
