"""Promises of all partitions in one file: a promise made during a write is in the next one; failed writes are retried."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from bmqtwist.loop.loop import Timers
from bmqtwist.member.promises import RETRY_S, Promises
from bmqtwist.storage.slot_file import Doubt, StoredPromise


class PromisesBench:
    """A promise file whose writes complete on the test's command."""

    def __init__(self, stored: list[StoredPromise]) -> None:
        self.written: list[list[StoredPromise]] = []
        self.jobs: list[tuple[Callable[[], None], Callable[[float], None], Callable[[OSError, float], None]]] = []
        self.saved: list[tuple[int, int, float]] = []
        self.alarms: list[str] = []
        self.timers = Timers()
        file: Any = SimpleNamespace(value=stored, write=self.written.append)
        host: Any = SimpleNamespace(
            now=1.0, timers=self.timers, run_in_thread=lambda *job: self.jobs.append(job),
            report=SimpleNamespace(alarm=lambda kind, form, text: self.alarms.append(text)))
        self.promises = Promises("Cluster (c)", file, host, lambda *saved: self.saved.append(saved))
        self.promises.load(2)

    def work(self) -> None:
        """Complete the write."""
        write, done, _ = self.jobs.pop(0)
        write()
        done(2.0)


def test_a_promise_takes_effect_when_written_and_the_next_write_has_those_made_meanwhile() -> None:
    bench = PromisesBench([StoredPromise(3)])
    bench.promises.save(0, 4, False)
    bench.promises.save(1, 7, False)
    assert len(bench.jobs) == 1 and not bench.saved
    bench.work()
    assert bench.saved == [(0, 4, 2.0)] and bench.written == [[StoredPromise(4), StoredPromise()]]
    bench.work()
    assert bench.saved[1:] == [(1, 7, 2.0)] and bench.written[1] == [StoredPromise(4), StoredPromise(7)]
    assert not bench.jobs


def test_an_older_lease_does_not_lower_a_promise_and_the_end_of_a_doubt_makes_none() -> None:
    bench = PromisesBench([StoredPromise(3, Doubt.TAIL), StoredPromise(3)])
    bench.promises.save(0, 0, False)
    bench.work()
    assert bench.written == [[StoredPromise(3), StoredPromise(3)]] and not bench.saved
    bench.promises.save(1, 2, False)
    assert not bench.jobs, "the promise is already written"


def test_a_failed_write_of_promises_is_retried_with_an_alarm() -> None:
    bench = PromisesBench([])
    bench.promises.save(0, 1, False)
    bench.jobs.pop(0)[2](OSError("disk"), 2.0)
    assert bench.alarms == ["Cluster (c): a promise cannot be written: disk"] and not bench.jobs and not bench.saved
    bench.timers.run(2.0 + RETRY_S)
    bench.work()
    assert bench.saved == [(0, 1, 2.0)]


def test_a_doubt_is_written_at_once() -> None:
    bench = PromisesBench([StoredPromise(5), StoredPromise(6)])
    bench.promises.mark_doubtful(1, Doubt.TAIL)
    assert bench.written == [[StoredPromise(5), StoredPromise(6, Doubt.TAIL)]] and not bench.jobs
