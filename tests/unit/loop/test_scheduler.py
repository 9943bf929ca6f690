"""The cooperative scheduler: budgets, fairness, order, cancellation and isolation of its jobs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import count, groupby
from typing import Any

import pytest

from bmqtwist.loop.scheduler import BUDGETS, QUANTUM_S, STEPS_MAX, TURN_S, Priority, Scheduler
from bmqtwist.steps import Steps

MS = 0.001


class SchedulerBench:
    """A scheduler whose clock advances with the steps of its jobs."""

    def __init__(self) -> None:
        self.now, self.due = 100.0, False
        self.scheduler = Scheduler(lambda: self.now, self._turn_due)
        self.log: list[object] = []
        self.errors: list[Exception] = []

    def _turn_due(self) -> None:
        self.due = True

    def job(self, name: object, steps: int, seconds: float = MS, act: Callable[[int], None] = lambda number: None
            ) -> Steps[object]:
        """A job of `steps` steps that returns its name."""
        for number in range(steps):
            self.now += seconds
            self.log.append(name)
            act(number)
            if number < steps - 1:
                yield
        return name

    def start(self, owner: object, steps: Steps[Any], priority: Priority = Priority.QUEUE, **options: Any) -> bool:
        return self.scheduler.start(priority, owner, steps, self.errors.append, **options)

    def add(self, owner: object, steps: Steps[Any], priority: Priority = Priority.QUEUE, **options: Any) -> None:
        self.scheduler.add(priority, owner, steps, self.errors.append, **options)

    def turn(self) -> list[object]:
        """Run one turn; return the jobs that made steps."""
        self.due, before = False, len(self.log)
        for priority in Priority:
            self.scheduler.run(priority)
        self.scheduler.end_turn()
        return self.log[before:]

    def rest(self) -> int:
        """Run turns until none is due; return their number."""
        turns = 0
        while self.due:
            self.turn()
            turns += 1
        return turns


@pytest.fixture
def world() -> SchedulerBench:
    return SchedulerBench()


# -- one job -----------------------------------------------------------------------------------------------------------


def test_a_short_job_ends_in_the_call_that_starts_it(world: SchedulerBench) -> None:
    done: list[object] = []
    assert world.start("owner", world.job("a", 1), done=done.append)
    assert done == ["a"] and not world.due and not world.scheduler.has_job(Priority.QUEUE, "owner")


def test_a_long_job_continues_in_later_turns_and_returns_its_result(world: SchedulerBench) -> None:
    done: list[object] = []
    assert not world.start("owner", world.job("a", 10), done=done.append)
    assert world.due and world.scheduler.has_job(Priority.QUEUE, "owner") and len(world.log) == 2
    assert world.turn() == [], "its first steps used the budget of this turn"
    assert len(world.turn()) == 2 and not done
    world.rest()
    assert done == ["a"] and len(world.log) == 10 and not world.scheduler.has_job(Priority.QUEUE, "owner")


def test_an_added_job_runs_its_first_step_in_the_next_turn(world: SchedulerBench) -> None:
    world.add("owner", world.job("a", 1))
    assert world.due and not world.log
    assert world.turn() == ["a"] and not world.due


def test_the_number_of_steps_of_a_turn_is_limited_when_the_clock_stands_still(world: SchedulerBench) -> None:
    world.add("owner", world.job("a", 3 * STEPS_MAX, 0.0))
    assert len(world.turn()) == STEPS_MAX and world.rest() == 2


def test_a_step_above_the_budget_is_the_only_one_of_its_turn(world: SchedulerBench) -> None:
    for owner in "ab":
        world.add(owner, world.job(owner, 3, 1.0))
    assert [world.turn() for _ in range(6)] == [["a"], ["b"]] * 3 and not world.due


# -- owners ------------------------------------------------------------------------------------------------------------


def test_the_jobs_of_one_owner_run_in_order(world: SchedulerBench) -> None:
    world.add("owner", world.job(1, 3))
    world.start("owner", world.job(2, 2))
    world.add("owner", world.job(0, 2), first=True)
    world.rest()
    assert world.log == [0, 0, 1, 1, 1, 2, 2]


def test_a_job_started_first_runs_before_pending_jobs(world: SchedulerBench) -> None:
    world.add("owner", world.job(1, 2))
    assert world.start("owner", world.job(0, 1), first=True) and world.log == [0]
    world.rest()
    assert world.log == [0, 1, 1]


def test_a_job_may_add_another_job_before_its_own_remaining_steps(world: SchedulerBench) -> None:
    def act(number: int) -> None:
        if not number:
            world.add("owner", world.job("b", 1), first=True)

    world.add("owner", world.job("a", 2, act=act))
    world.rest()
    assert world.log == ["a", "b", "a"]


def test_a_job_may_start_and_add_other_jobs(world: SchedulerBench) -> None:
    def act(number: int) -> None:
        world.start("other", world.job("b", 1))
        world.add("owner", world.job("c", 1))

    assert not world.start("owner", world.job("a", 1, act=act)) or world.due
    world.rest()
    assert Counter(world.log) == {"a": 1, "b": 1, "c": 1}


def test_new_jobs_leave_half_of_the_time_to_pending_jobs(world: SchedulerBench) -> None:
    """Jobs that start in a turn take no step from pending jobs."""
    world.add("waits", world.job("waits", 20))
    for turn in range(20):
        assert world.start(turn, world.job("new", 1))
        world.turn()
    assert not world.scheduler.has_job(Priority.QUEUE, "waits")


def test_every_priority_class_has_a_step_in_each_turn(world: SchedulerBench) -> None:
    for priority in Priority:
        for owner in range(50):
            world.add(owner, world.job(priority, 50), priority)
    steps = Counter(world.turn())
    assert set(steps) == set(Priority)
    assert sum(steps.values()) * MS <= TURN_S + len(Priority) * MS
    assert all(steps[priority] * MS <= BUDGETS[priority] + MS for priority in Priority)


# -- cancellation and errors -------------------------------------------------------------------------------------------


def test_jobs_of_a_cancelled_owner_have_no_more_steps_and_no_result(world: SchedulerBench) -> None:
    done: list[object] = []
    for name in (1, 2):
        world.add("owner", world.job(name, 3, 1.0), done=done.append)
    world.add("other", world.job("other", 1))
    world.turn()
    assert world.scheduler.cancel("owner") and not world.scheduler.cancel("owner")
    world.rest()
    assert world.log == [1, "other"] and not done and not world.errors


@pytest.mark.parametrize("last", [False, True])
def test_a_job_that_cancels_its_owner_ends(world: SchedulerBench, last: bool) -> None:
    done: list[object] = []

    def act(number: int) -> None:
        world.scheduler.cancel("owner")

    for begin in (world.start, world.add):
        begin("owner", world.job("a", 1 if last else 3, act=act), done=done.append)
        world.rest()
    assert world.log == ["a", "a"] and not done and not world.scheduler.has_job(Priority.QUEUE, "owner")


def test_an_owner_may_have_new_jobs_after_its_cancellation(world: SchedulerBench) -> None:
    world.add("owner", world.job("a", 2))
    world.scheduler.cancel("owner")
    world.add("owner", world.job("b", 1))
    world.rest()
    assert world.log == ["b"]


def test_an_error_in_a_job_ends_only_that_job(world: SchedulerBench) -> None:
    def act(number: int) -> None:
        if number == 1:
            raise ValueError("planted")

    world.add("owner", world.job("bad", 5, act=act))
    world.add("owner", world.job("good", 2))
    world.add("other", world.job("other", 2))
    world.rest()
    assert Counter(world.log) == {"bad": 2, "good": 2, "other": 2}
    assert [str(error) for error in world.errors] == ["planted"]


def test_an_error_in_the_result_callback_is_an_error_of_the_job(world: SchedulerBench) -> None:
    def done(result: object) -> None:
        raise ValueError(f"{result} is not wanted")

    assert world.start("owner", world.job("a", 1), done=done)
    assert [str(error) for error in world.errors] == ["a is not wanted"]


# -- at random ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_random_jobs_run_in_order_and_within_their_budgets(seed: int) -> None:
    """Each job has all its steps once, in order, unless it was cancelled; no turn exceeds the budget by more than a step of
    each class; and all end."""
    chance, world = random.Random(seed), SchedulerBench()
    longest, expected, ended = 2 * MS, dict[object, int](), list[object]()
    owners = [(priority, f"{priority.name}{number}") for priority in Priority for number in range(3)]
    numbers = count()
    order: dict[str, list[object]] = {owner: [] for _, owner in owners}
    for _ in range(150):
        for _ in range(chance.randrange(3)):
            priority, owner = chance.choice(owners)
            name, steps = (owner, next(numbers)), chance.randrange(1, 12)
            expected[name] = steps
            order[owner].append(name)
            begin = chance.choice([world.start, world.add])
            begin(owner, world.job(name, steps, chance.random() * longest), priority, done=ended.append)
        if not chance.randrange(10):
            _, owner = chance.choice(owners)
            if world.scheduler.cancel(owner):
                for name in order[owner]:
                    if name not in ended:
                        expected.pop(name, None)
        began = world.now
        world.turn()
        assert world.now - began <= TURN_S + len(Priority) * longest
    turns = world.rest()
    assert turns < 400 and not world.errors
    counts = Counter(world.log)
    assert {name: counts[name] for name in expected} == expected and set(ended) >= set(expected)
    for owner, names in order.items():
        assert [name for name in ended if name in names] == [name for name in names if name in ended], owner


@pytest.mark.parametrize("owners", [2, 7, 40])
def test_owners_of_a_class_get_the_same_number_of_steps(world: SchedulerBench, owners: int) -> None:
    for owner in range(owners):
        for _ in range(1 + owner % 3):  # more jobs do not get more time
            world.add(owner, world.job(owner, 1000))
    for _ in range(10 * owners):
        world.turn()
    steps = Counter(world.log)
    assert max(steps.values()) - min(steps.values()) <= 1 and len(steps) == owners


def test_the_same_jobs_and_the_same_clock_give_the_same_steps() -> None:
    logs = []
    for _ in range(2):
        chance, world = random.Random(7), SchedulerBench()
        for number in range(60):
            world.add(number % 9, world.job(number, chance.randrange(1, 9), chance.random() * MS), Priority(number % 3))
        world.rest()
        logs.append(world.log)
    assert logs[0] == logs[1]


def test_an_owner_with_short_steps_runs_for_a_quantum_before_the_next_owner(world: SchedulerBench) -> None:
    """Input of few sessions per turn means few writes per turn."""
    for owner in ("a", "b", "c"):
        world.add(owner, world.job(owner, 100, QUANTUM_S / 8))
    turn = [(name, sum(1 for _ in steps)) for name, steps in groupby(world.turn())]
    assert [name for name, _ in turn] == ["a", "b"] and all(8 <= steps <= 9 for _, steps in turn)


def test_a_job_that_starts_while_another_owner_waits_runs_for_a_quantum(world: SchedulerBench) -> None:
    world.add("waits", world.job("waits", 20))
    world.start("new", world.job("new", 100, QUANTUM_S / 8))
    assert 8 <= world.log.count("new") <= 9
