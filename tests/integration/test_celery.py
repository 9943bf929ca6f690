"""Celery workers with the kombu transport and broker processes, with results in files or in memory."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import celery_tasks
import pytest
from celery import chain, chord, group
from celery.contrib.testing.worker import start_worker
from kit.process import STARTED, ProcessWorld
from kombu import Connection, pools

DEADLINE = 120.0
HERE = str(Path(__file__).parent)
EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIONS = {"broadcast_domain": "b"}

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Restore the level of the root logger, which a worker in this process changes."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


def world_in(directory: Path) -> ProcessWorld:
    """Run a broker process with a persistent priority domain `d` and a broadcast domain `b`."""
    world = ProcessWorld(directory, start=False)
    world.broker.launch()
    world.broker.expect(STARTED, deadline=180.0)
    world.config.domain("d")
    world.config.domain("b", "broadcast", in_memory=True)
    return world


class Workers:
    """Worker processes of one broker, with one directory for results."""

    def __init__(self, world: ProcessWorld, directory: Path) -> None:
        self.directory, self.processes = directory, []  # type: ignore[var-annotated]
        self.url = f"bmq://127.0.0.1:{world.broker.port}/d"
        results = directory / "results"
        results.mkdir()
        self.app = celery_tasks.make(self.url, f"file://{results}")
        self.environment = {**os.environ, "BMQ_URL": self.url, "BMQ_RESULTS": f"file://{results}",
                            "PYTHONPATH": HERE}

    def start(self, name: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it is ready."""
        log = self.directory / f"{name}.log"
        environment = {**self.environment, "BMQ_OPTIONS": json.dumps(options)}
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-n", name, "-l", "INFO", *arguments],
            env=environment, cwd=self.directory, stdout=log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True)
        self.processes.append(process)
        until(lambda: " ready." in log.read_text() or process.poll() is not None, lambda: log.read_text())
        assert process.poll() is None, log.read_text()
        return process

    def task(self, name: str) -> Any:
        """Return a task, to be called or used in a canvas."""
        return self.app.tasks[name]

    def log(self, name: str) -> str:
        """Return the output of a worker."""
        return (self.directory / f"{name}.log").read_text()

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a worker after its running tasks."""
        process.terminate()
        assert process.wait(DEADLINE) == 0

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a worker and its child processes."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE)

    def cleanup(self) -> None:
        """Kill all workers."""
        for process in self.processes:
            self.kill(process)
        pools.reset()


def until(done: Callable[[], object], say: Callable[[], object] = lambda: "", deadline: float = DEADLINE) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + deadline
    while not done():
        assert time.monotonic() < end, say()
        time.sleep(0.02)


def lines(path: Path) -> list[str]:
    """Return the lines of a file; none if it does not exist yet."""
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessWorld]:
    """Yield one broker for tests that leave it unchanged."""
    world = world_in(tmp_path_factory.mktemp("broker"))
    yield world
    world.cleanup()


@pytest.fixture(scope="module")
def prefork(common: ProcessWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Yield a worker with two child processes, a prefetch count of four, and events."""
    workers = Workers(common, tmp_path_factory.mktemp("prefork"))
    try:
        workers.start("prefork@here", "-P", "prefork", "-c", "2", "-E", worker_prefetch_multiplier=2)
        yield workers
        for process in workers.processes:
            workers.stop(process)
        assert common.stored("bmq://d/celery") == 0
    finally:
        workers.cleanup()


def test_tasks_chains_groups_and_chords_return_results_in_files(prefork: Workers) -> None:
    add, total = prefork.task("add"), prefork.task("total")
    assert add.delay(2, 3).get(DEADLINE) == 5
    assert chain(add.s(1, 1), add.s(3), add.s(4))().get(DEADLINE) == 9
    assert group(add.s(n, n) for n in range(50))().get(DEADLINE) == [2 * n for n in range(50)]
    assert chord((add.s(n, 1) for n in range(10)), total.s())().get(DEADLINE) == 55


def test_a_retry_with_a_countdown_runs_later(prefork: Workers, tmp_path: Path) -> None:
    assert prefork.task("flaky").delay(str(tmp_path / "tries"), 2).get(DEADLINE) == 2
    assert lines(tmp_path / "tries") == ["0", "1", "2"]


def test_more_scheduled_tasks_than_the_prefetch_count_run_in_time(prefork: Workers) -> None:
    """Celery raises the prefetch count for each waiting task; the window of the consumer must follow."""
    since = time.monotonic()
    results = [prefork.task("add").apply_async((n, 1), countdown=2.0) for n in range(20)]
    assert prefork.task("add").delay(1, 1).get(DEADLINE) == 2
    assert [result.get(DEADLINE) for result in results] == [n + 1 for n in range(20)]
    assert time.monotonic() - since >= 2.0


def test_reject_with_requeue_and_a_lost_child_run_the_task_again(prefork: Workers, tmp_path: Path) -> None:
    """The new child process is forked from a worker with an open connection."""
    assert prefork.task("rejected_once").delay(str(tmp_path / "a")).get(DEADLINE) == "done"
    assert lines(tmp_path / "a") == ["rejected", "done"]
    assert prefork.task("dies_once").delay(str(tmp_path / "b")).get(DEADLINE) == "continues"
    assert lines(tmp_path / "b") == ["dies", "continues"]


def test_remote_control_reaches_every_worker_and_replies_come_back(prefork: Workers) -> None:
    control = prefork.app.control
    assert control.inspect(timeout=10.0, limit=1).ping() == {"prefork@here": {"ok": "pong"}}
    stats = control.inspect(["prefork@here"], timeout=10.0).stats()
    assert stats["prefork@here"]["prefetch_count"] == 4
    assert stats["prefork@here"]["broker"]["transport"] == "bmq"
    added = control.add_consumer("side", reply=True, limit=1, timeout=10.0)
    assert added == [{"prefork@here": {"ok": "add consumer side"}}]
    assert prefork.task("add").apply_async((4, 5), queue="side").get(DEADLINE) == 9
    control.cancel_consumer("side", reply=True, limit=1, timeout=10.0)


def test_a_broadcast_task_runs_at_every_worker(prefork: Workers, tmp_path: Path) -> None:
    prefork.task("note").apply_async((str(tmp_path / "notes"), "received"), queue="everyone")
    until(lambda: lines(tmp_path / "notes") == ["received"], lambda: prefork.log("prefork@here"))


def test_task_events_reach_an_event_receiver(prefork: Workers) -> None:
    received: list[str] = []
    with prefork.app.connection_for_read() as connection:
        receiver = prefork.app.events.Receiver(connection, handlers={"*": lambda event: received.append(event["type"])})
        capture = receiver.itercapture(limit=None, timeout=DEADLINE, wakeup=False)
        next(capture)  # consuming
        result = prefork.task("add").delay(1, 2)
        while "task-succeeded" not in received:
            next(capture)
        assert result.get(DEADLINE) == 3
    assert [kind for kind in received if kind.startswith("task-")][:1] == ["task-received"]


def test_a_task_of_a_killed_worker_runs_at_another_worker(common: ProcessWorld, tmp_path: Path) -> None:
    """With late acknowledgement a task is confirmed after its end."""
    workers = Workers(common, tmp_path)
    try:
        first = workers.start("first@here", "-P", "prefork", "-c", "1", "-Q", "killed", worker_prefetch_multiplier=1)
        result = workers.task("hold").apply_async((str(tmp_path), "x"), queue="killed")
        until(lambda: lines(tmp_path / "started"))
        second = workers.start("second@here", "-P", "solo", "-c", "1", "-Q", "killed", worker_prefetch_multiplier=1)
        workers.kill(first)
        until(lambda: len(lines(tmp_path / "started")) == 2, lambda: workers.log("second@here"))
        (tmp_path / "go").touch()
        assert result.get(DEADLINE)["redelivered"] is True
        assert lines(tmp_path / "started") == ["x first@here", "x second@here"]
        assert lines(tmp_path / "done") == ["x second@here"]
        workers.stop(second)
        assert common.stored("bmq://d/killed") == 0
    finally:
        workers.cleanup()


def test_a_busy_worker_receives_at_most_its_prefetch_count(common: ProcessWorld, tmp_path: Path) -> None:
    workers = Workers(common, tmp_path)
    try:
        worker = workers.start("solo@here", "-P", "solo", "-c", "1", "-Q", "window", worker_prefetch_multiplier=1)
        held = workers.task("hold").apply_async((str(tmp_path), "1"), queue="window")
        until(lambda: lines(tmp_path / "started"))
        for number in range(2, 6):
            workers.task("note").apply_async((str(tmp_path / "notes"), str(number)), queue="window")
        with Connection(workers.url, transport_options=OPTIONS) as connection:
            queue = connection.SimpleQueue("window")
            others = [queue.get(timeout=DEADLINE) for _ in range(4)]
            with pytest.raises(queue.Empty):
                queue.get(timeout=0.2)
            assert [message.headers["argsrepr"][-4:-1] for message in others] == ["'2'", "'3'", "'4'", "'5'"]
        (tmp_path / "go").touch()
        assert held.get(DEADLINE)["redelivered"] is False
        until(lambda: len(lines(tmp_path / "notes")) == 4)  # redelivered: the killed worker had not acknowledged it
        workers.stop(worker)
        assert common.stored("bmq://d/window") == 0
    finally:
        workers.cleanup()


def test_workers_reconnect_after_a_kill_of_the_broker_and_no_task_is_lost(tmp_path: Path) -> None:
    world = world_in(tmp_path / "broker")
    workers = Workers(world, tmp_path)
    try:
        worker = workers.start("threads@here", "-P", "threads", "-c", "2", worker_prefetch_multiplier=2)
        path = tmp_path / "notes"
        for number in range(50):
            workers.task("note").delay(str(path), str(number))
        world.crash()
        world.start()
        for number in range(50, 80):  # the connection for posts reconnects
            workers.task("note").delay(str(path), str(number))
        until(lambda: len(set(lines(path))) == 80, lambda: workers.log("threads@here"))
        assert "Connection to broker lost" in workers.log("threads@here")
        workers.stop(worker)
        assert world.stored("bmq://d/celery") == 0
    finally:
        workers.cleanup()
        world.cleanup()


def test_a_worker_in_the_test_process_stores_results_in_memory(common: ProcessWorld) -> None:
    app = celery_tasks.make(f"bmq://127.0.0.1:{common.broker.port}/d", "cache+memory://")
    app.conf.broker_transport_options = {**OPTIONS, "queue_name_prefix": "inside."}
    add, total = app.tasks["add"], app.tasks["total"]
    try:
        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=DEADLINE):
            assert add.delay(1, 2).get(DEADLINE) == 3
            assert chord((add.s(n, 1) for n in range(5)), total.s())().get(DEADLINE) == 15
            assert app.control.ping(timeout=10.0, limit=1)[0].popitem()[1] == {"ok": "pong"}
        assert common.stored("bmq://d/inside.celery") == 0
    finally:
        pools.reset()


def test_the_example_runs(common: ProcessWorld, tmp_path: Path) -> None:
    common.config.domain("bmq.test.persistent.priority")
    common.config.domain("bmq.test.mem.broadcast", "broadcast", in_memory=True)
    environment = {**os.environ, "BMQ_URL": f"bmq://127.0.0.1:{common.broker.port}", "TMPDIR": str(tmp_path)}
    celery = [sys.executable, "-m", "celery", "-A", "celery_app"]
    worker = subprocess.Popen([*celery, "worker", "-c", "1"], env=environment, cwd=EXAMPLES, start_new_session=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run([sys.executable, "celery_app.py"], env=environment, cwd=EXAMPLES, capture_output=True,
                              text=True, timeout=DEADLINE, check=False)
        assert (done.returncode, done.stdout) == (0, "30\n"), done.stderr
        done = subprocess.run([*celery, "inspect", "-t", "30", "-d", f"celery@{socket.gethostname()}", "ping"],
                              env=environment, cwd=EXAMPLES, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert (done.returncode, "1 node online" in done.stdout) == (0, True), done.stdout + done.stderr
        worker.terminate()
        assert worker.wait(DEADLINE) == 0
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait(DEADLINE)
