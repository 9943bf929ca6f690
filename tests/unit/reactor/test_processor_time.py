"""What the processor has done for a thread, asked for often."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bmqtwist.reactor.processor_time import ASK_AFTER_S, ProcessorTime


class Machine:
    """A clock and a processor; `questions`: how often the system was asked."""

    def __init__(self) -> None:
        self.now, self.work, self.questions = 100.0, 7.0, 0

    def processor(self) -> float:
        self.questions += 1
        return self.work

    def works(self, seconds: float) -> None:
        self.now, self.work = self.now + seconds, self.work + seconds


def test_the_system_is_asked_once_a_millisecond_and_what_it_says_counts() -> None:
    machine = Machine()
    worked = ProcessorTime(lambda: machine.now, machine.processor)
    found = [worked()]
    for _ in range(1000):
        machine.works(ASK_AFTER_S / 100)
        found.append(worked())
    assert machine.questions <= 11
    assert abs(found[-1] - machine.work) < 1e-9
    assert all(later > earlier for earlier, later in pairwise(found))


def test_time_in_which_others_had_the_processor_does_not_count() -> None:
    machine = Machine()
    worked = ProcessorTime(lambda: machine.now, machine.processor)
    began = worked()
    machine.works(ASK_AFTER_S / 2)
    machine.now += 50.0
    assert worked() - began == pytest.approx(ASK_AFTER_S / 2)
    machine.now += ASK_AFTER_S / 4  # this much may count until the system is asked again
    assert worked() - began == pytest.approx(ASK_AFTER_S * 3 / 4)
