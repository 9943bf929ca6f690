"""Celery application of the workers in test_celery.py. Environment: BMQ_URL, BMQ_RESULTS, BMQ_OPTIONS (JSON)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject
from kombu import Exchange, Queue
from kombu.common import Broadcast

import bmqtwist.kombu  # noqa: F401 - makes bmq:// known

DEADLINE_S = 120.0



def write(path: str, text: str) -> None:
    """Append a line to a file with one write."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")


def add(x: int, y: int) -> int:
    """Return the sum of two numbers."""
    return x + y


def total(numbers: list[int]) -> int:
    """Return the sum of a list; body of chords."""
    return sum(numbers)


def flaky(self: Task, path: str, failures: int) -> int:
    """Fail `failures` times, then return the number of retries."""
    write(path, str(self.request.retries))
    if self.request.retries < failures:
        raise self.retry(countdown=0.1)
    retries: int = self.request.retries
    return retries


def note(path: str, text: str) -> None:
    """Append a line to a file."""
    write(path, text)


def hold(self: Task, directory: str, name: str) -> dict[str, Any]:
    """Write `started`, wait for the file `go`; return how the task was delivered."""
    here = Path(directory)
    write(str(here / "started"), f"{name} {self.request.hostname}")
    end = time.monotonic() + DEADLINE_S
    while not (here / "go").exists():
        if time.monotonic() > end:
            raise TimeoutError("timeout while waiting for the file go")
        time.sleep(0.02)
    write(str(here / "done"), f"{name} {self.request.hostname}")
    info: dict[str, Any] = self.request.delivery_info
    return info


def rejected_once(self: Task, path: str) -> str:
    """Reject the first delivery with requeue."""
    if not self.request.delivery_info["redelivered"]:
        write(path, "rejected")
        raise Reject("not now", requeue=True)
    write(path, "done")
    return "done"


def dies_once(self: Task, path: str) -> str:
    """Kill the worker process at the first delivery."""
    if not self.request.delivery_info["redelivered"]:
        write(path, "dies")
        os._exit(9)
    write(path, "continues")
    return "continues"


def make(url: str, results: str, **options: Any) -> Celery:
    """Create the application; its tasks have the names of the functions above."""
    made = Celery("celery_tasks", broker=url, backend=results, set_as_current=False)
    made.conf.update(
        broker_transport_options={"broadcast_domain": "b"}, broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=True, result_chord_retry_interval=0.2, **options)
    made.conf.task_queues = (Queue("celery", Exchange("celery"), routing_key="celery"), Broadcast("everyone"))
    for function, how in ((add, {}), (total, {}), (flaky, {"bind": True, "max_retries": 3}), (note, {"acks_late": True}),
                          (hold, {"bind": True, "acks_late": True}), (rejected_once, {"bind": True, "acks_late": True}),
                          (dies_once, {"bind": True, "acks_late": True, "reject_on_worker_lost": True})):
        made.task(name=function.__name__, **how)(function)
    return made


if "BMQ_URL" in os.environ:  # a worker
    app = make(os.environ["BMQ_URL"], os.environ["BMQ_RESULTS"], **json.loads(os.environ["BMQ_OPTIONS"]))
