"""A streaming query and everything around it killed again and again while messages pass into a table.

    python -m tests.soak spark [--count 100000] [--kills 10] [--broker-kills 5] [--drops 10] [--executor-kills 1]
                               [--sink parquet|foreach] [--seed N]

A producer posts numbered messages through broker and all. Each life of the query ends with kill -9 of all its processes,
or of the Python program alone, or of the JVM alone; in between the broker is killed and started, connections are dropped,
and in one life on two executor processes an executor is killed. In the end the query drains the queue, and the table is
judged: no message lost, none twice, nothing left in the queue.
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
LIFE_SECONDS_MAX = 300.0
LIVES_TRIED_MAX = 4
_CHUNK = 1 << 16


class Line:
    """A TCP relay to the broker whose connections can be dropped, all at once."""

    def __init__(self, port: int) -> None:
        self._target, self.drops = port, 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._held: dict[socket.socket, socket.socket] = {}  # from the query, to the broker
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5.0)
            except OSError:
                near.close()
                continue
            self._held[near] = far
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(_CHUNK)
                    if not data:
                        raise OSError("closed")
                    (far if source is near else near).sendall(data)
        self._held.pop(near, None)
        for each in (near, far):
            each.close()

    def drop(self) -> None:
        """Every connection is gone."""
        for pair in list(self._held.items()):
            self.drops += 1
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nobody is let in any more."""
        self._server.close()
        self.drop()


class Producer(threading.Thread):
    """Posts the numbers from 0 to `count`, however often the broker goes away."""

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
                began = time.monotonic()
                for number in range(self._count):
                    opened.post_nowait(b"%d" % number)
                    self.posted = number + 1
                    ahead = self.posted / self._rate - (time.monotonic() - began)
                    if ahead > 0.05:
                        session.step(ahead)
                opened.flush()
        except SdkError as error:
            self.error = str(error)


class Life:
    """One process of the query."""

    def __init__(self, what: str, root: Path, broker: str, count: int, batch: int, master: str, sink: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS.parent), str(_TESTS)]),
                       "SPARK_LOCAL_IP": "127.0.0.1"}
        self._log = open(root / "query.log", "ab")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "soak.spark_query", what, str(root), broker, QUEUE, str(count), str(batch), master, sink],
            cwd=root, env=environment, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True)
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.decode().strip())
        self.lines.put("")

    def expect(self, word: str, seconds: float = LIFE_SECONDS_MAX) -> str:
        """The next line that begins with that word; "" if the process ends or the time is over."""
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

    def family(self) -> dict[int, str]:
        """Process ids and command lines of the process and all that come from it."""
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

    def kill(self, whom: str) -> None:
        """kill -9 of `all`, of the Python `program`, or of the `jvm`; then wait for what is left to notice."""
        family = self.family()
        java = [pid for pid, line in family.items() if "java" in line.split(" ")[0] and "SparkSubmit" in line]
        chosen = {"all": list(family), "program": [self.process.pid], "jvm": java}[whom]
        for pid in chosen:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 30.0
        while any(os.path.exists(f"/proc/{pid}") and not _is_zombie(pid) for pid in family) and time.monotonic() < until:
            if self.process.poll() is None and whom == "jvm":
                self.process.kill()
            self.process.poll()
            time.sleep(0.05)
        left = [pid for pid in family if os.path.exists(f"/proc/{pid}") and not _is_zombie(pid)]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.close()
        if left:
            raise RuntimeError(f"{len(left)} processes were left 30 s after kill -9 of {whom}: "
                               f"{[family[pid][:200] for pid in left]}")

    def close(self) -> None:
        """Nothing of it is left."""
        for pid in self.family():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


class Campaign:
    """One broker, one producer, one query with many lives."""

    def __init__(self, root: Path, count: int, kills: int, broker_kills: int, drops: int, executor_kills: int, sink: str,
                 seed: int) -> None:
        self.root, self.count, self.sink, self.random = root, count, sink, Random(seed)
        self.kills, self.broker_kills, self.drops, self.executor_kills = kills, broker_kills, drops, executor_kills
        self.broker = BrokerProcess(root / "broker", samples=False)
        self.numbers: dict[str, Any] = {"messages": count, "killed queries": 0, "killed executors": 0, "killed brokers": 0}
        self.batch = max(min(count // 40, 5000), 200)

    def run(self) -> dict[str, Any]:
        """The numbers; RuntimeError if something is not as it must be."""
        began = time.monotonic()
        self.broker.start()
        self.broker.domain(DOMAIN)
        line = Line(self.broker.port)
        url = f"tcp://127.0.0.1:{line.port}"
        producer = Producer(self.broker.url, self.count, max(self.count / (8.0 * (self.kills + 1)), 100.0))
        try:
            producer.start()
            self.storm(url, line)
            producer.join(LIFE_SECONDS_MAX)
            if producer.is_alive() or producer.error:
                raise RuntimeError(f"the producer has not ended well: {producer.posted} posted, "
                                   f"{producer.error or 'it still runs'}")
            judged = json.loads(self.life("drain", url, "judged").removeprefix("judged "))
            left = self.left()
        finally:
            line.close()
            self.broker.close()
        self.numbers |= {"dropped connections": line.drops, **judged, "twice": judged["rows"] - judged["guids"],
                         "left in the queue": left, "seconds": round(time.monotonic() - began)}
        if judged["lost"] or judged["rows"] != self.count or judged["guids"] != self.count or left:
            raise RuntimeError(f"not every message is in the table once: {self.numbers}")
        return self.numbers

    def storm(self, url: str, line: Line) -> None:
        """The lives that end badly."""
        executors = set(self.random.sample(range(self.kills), min(self.executor_kills, self.kills)))
        brokers = [self.random.randrange(self.kills) for _ in range(self.broker_kills)] if self.kills else []
        cuts = [self.random.randrange(self.kills) for _ in range(self.drops)] if self.kills else []
        for number in range(self.kills):
            life = self.begun(url, "local-cluster[2,1,600]" if number in executors else "local[2]")
            try:
                for _ in range(cuts.count(number)):
                    time.sleep(self.random.uniform(0.0, 0.5))
                    line.drop()
                for _ in range(brokers.count(number)):
                    time.sleep(self.random.uniform(0.0, 0.5))
                    self.broker.kill()
                    self.broker.start()
                    self.numbers["killed brokers"] += 1
                if number in executors:
                    self.kill_executor(life)
                time.sleep(self.random.uniform(0.0, 1.5))
                life.kill(self.random.choice(["all", "program", "jvm"]))
                self.numbers["killed queries"] += 1
            finally:
                life.close()

    def begun(self, url: str, master: str) -> Life:
        """A life of the query that has made a batch. One that ends by itself before is begun again, as an operator would: on
        a busy machine Spark does not wait long enough for its Python processes."""
        for _ in range(LIVES_TRIED_MAX):
            life = self.start("run", url, master)
            if life.expect("batch"):
                return life
            life.close()
            self.numbers["queries that did not begin"] = self.numbers.get("queries that did not begin", 0) + 1
        raise RuntimeError(f"the query has made no batch\n{self.tail()}")

    def kill_executor(self, life: Life) -> None:
        """kill -9 of one executor; the query goes on."""
        found = [pid for pid, line in life.family().items() if "CoarseGrainedExecutorBackend" in line]
        if not found:
            raise RuntimeError("there is no executor process")
        os.kill(self.random.choice(found), signal.SIGKILL)
        self.numbers["killed executors"] += 1
        if not life.expect("batch"):
            raise RuntimeError(f"the query has not gone on without an executor\n{self.tail()}")

    def start(self, what: str, url: str, master: str = "local[2]") -> Life:
        """A life of the query, its session made."""
        life = Life(what, self.root, url, self.count, self.batch, master, self.sink)
        if not life.expect("session"):
            life.close()
            raise RuntimeError(f"there is no session\n{self.tail()}")
        return life

    def life(self, what: str, url: str, last: str) -> str:
        """A life that ends well; its last line."""
        for _ in range(LIVES_TRIED_MAX):
            life = self.start(what, url)
            try:
                line = life.expect(last)
            finally:
                life.close()
            if line:
                return line
        raise RuntimeError(f"{what} has not ended well\n{self.tail()}")

    def tail(self) -> str:
        """The end of what the query has said."""
        return (self.root / "query.log").read_text(errors="replace")[-4000:]

    def left(self) -> int:
        """Messages in the queue that nobody has confirmed."""
        answer = self.broker.admin(f"DOMAINS DOMAIN {DOMAIN} QUEUE q INTERNALS")
        found = re.search(r"(?:numMessages|Num messages|messages)\W+(\d+)", answer, re.IGNORECASE)
        with Session(self.broker.url) as session, session.open(QUEUE, read=True) as opened:
            seen = len(opened.poll(10, 1.0))
        return max(seen, int(found[1]) if found else 0)


def main(arguments: list[str]) -> int:
    """Command line."""
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
