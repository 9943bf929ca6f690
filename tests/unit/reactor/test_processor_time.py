"""Processor time of the event loop's thread: calls of the system, and time of other processes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bmqtwist.reactor.processor_time import ASK_AFTER_S, ProcessorTime


class Machine:
    """A clock and a processor. `calls`: of the system."""

    def __init__(self) -> None:
        self.now, self.worked, self.calls = 100.0, 7.0, 0

    def processor(self) -> float:
        self.calls += 1
        return self.worked

    def work(self, seconds: float) -> None:
        self.now, self.worked = self.now + seconds, self.worked + seconds


def test_the_system_is_asked_once_a_millisecond() -> None:
    machine = Machine()
    processor_time = ProcessorTime(lambda: machine.now, machine.processor)
    found = [processor_time()]
    for _ in range(1000):
        machine.work(ASK_AFTER_S / 100)
        found.append(processor_time())
    assert machine.calls <= 11
    assert found[-1] == pytest.approx(machine.worked)
    assert all(later > earlier for earlier, later in pairwise(found))


def test_time_of_other_processes_does_not_count() -> None:
    machine = Machine()
    processor_time = ProcessorTime(lambda: machine.now, machine.processor)
    start = processor_time()
    machine.work(ASK_AFTER_S / 2)
    machine.now += 50.0
    assert processor_time() - start == pytest.approx(ASK_AFTER_S / 2)
    machine.now += ASK_AFTER_S / 4  # counts until the system is asked again
    assert processor_time() - start == pytest.approx(ASK_AFTER_S * 3 / 4)
