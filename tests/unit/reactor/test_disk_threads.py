"""Disk threads: results arrive in the event loop, and a stop waits for all jobs."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from bmqtwist.reactor.disk_threads import DiskThreads


def started_pool(threads: int) -> tuple[DiskThreads, SimpleQueue[Any]]:
    """Started threads, and the calls that they schedule in the event loop."""
    calls: SimpleQueue[Any] = SimpleQueue()
    pool = DiskThreads(SimpleNamespace(callFromThread=calls.put), threads)
    pool.start()
    return pool, calls


def test_jobs_run_in_order_and_their_results_arrive_in_the_event_loop() -> None:
    pool, calls = started_pool(1)
    worked: list[tuple[int, int]] = []
    reported: list[tuple[int, int]] = []
    for number in range(20):
        pool.submit(lambda number=number: worked.append((number, threading.get_ident())),
                lambda number=number: reported.append((number, threading.get_ident())), pytest.fail)
    pool.stop()
    assert [number for number, _ in worked] == list(range(20)) and not reported
    while not calls.empty():
        calls.get()()
    here = threading.get_ident()
    assert reported == [(number, here) for number in range(20)] and all(thread != here for _, thread in worked)


def test_as_many_jobs_run_at_once_as_there_are_threads() -> None:
    pool, calls = started_pool(3)
    together = threading.Barrier(3)
    for _ in range(3):
        pool.submit(lambda: together.wait(10), lambda: None, pytest.fail)
    for _ in range(3):
        calls.get(timeout=10)()
    pool.stop()


@pytest.mark.parametrize("error", [OSError(5, "EIO"), ValueError("ours"), SystemExit(1)])
def test_any_exception_of_a_job_is_reported_and_the_thread_continues(error: BaseException) -> None:
    pool, calls = started_pool(1)
    found: list[object] = []

    def work() -> None:
        raise error

    pool.submit(work, pytest.fail, found.append)
    pool.submit(lambda: None, lambda: found.append("next"), pytest.fail)
    for _ in range(2):
        calls.get(timeout=10)()
    assert found == [error, "next"]
    pool.stop()


def test_stopping_threads_that_were_not_started_returns_at_once() -> None:
    DiskThreads(SimpleNamespace(callFromThread=pytest.fail), 2).stop()
