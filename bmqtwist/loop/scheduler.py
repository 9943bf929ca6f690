"""Cooperative scheduler: runs long work as jobs, in steps, for a bounded time of each turn of the event loop. Pure.

A job is a generator that pauses about every millisecond. It belongs to a priority class and to an owner: the session, queue,
partition, domain or operator command that it works for. The jobs of one owner run in order; owners of a class take turns.

    start       run the first steps now, if the owner has no other job and the class has time left (half of that time, if
                other jobs are pending); add the rest
    add         run the job in a later turn, after (or before) the other jobs of its owner
    run         continue the jobs of one class, once in each turn: at least one step, then as many as its budget allows;
                an owner runs for up to QUANTUM_S before the next one
    end_turn    renew all budgets; request another turn if a job is pending
    cancel      drop the jobs of an owner, including the running one

The time of a step is charged to the class and to the turn. A step that raises ends its job, and `failed` receives the
exception; all other jobs continue. `done` receives the return value of a job.

`broker/broker.py` calls `run` for the classes of a turn, and `end_turn`; `loop.py` creates it. Jobs are written with
`bmqtwist/steps.py`; work of threads goes through `Loop.run_in_thread`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from bmqtwist.steps import Steps


class Priority(IntEnum):
    """The priority classes, in the order in which a turn runs them."""

    INPUT = 0  # deferred input: more than one slice, or received late in a turn
    UNAUTHENTICATED = 1  # input of unauthenticated connections
    HTTP = 2  # input, requests and responses of HTTP connections
    QUEUE = 3  # purges, lost consumers, memory to free
    COMMAND = 4  # operator commands, metrics, statistics
    ACTIVATION = 5  # queues of partitions whose primary changes
    EXPIRY = 6  # messages above their TTL, entries of the history of GUIDs
    SESSIONS = 7  # checks and heartbeats of all sessions
    DELIVERY = 8  # of a queue that has more messages than one turn may deliver
    ROLLOVER = 9  # of a partition whose files are full


TURN_S: Final = 0.012  # of all classes together, beside one step of each pending owner: the largest delay of a client
BUDGETS: Final = {  # seconds of one turn
    Priority.INPUT: 0.004,  # two bursts
    Priority.UNAUTHENTICATED: 0.002,  # an unauthenticated connection must not delay clients
    Priority.HTTP: 0.0004,  # one request: an ACK waits for several turns, and a flood must not delay it to three times
    Priority.QUEUE: 0.002,  # a million messages are purged in a second
    Priority.COMMAND: 0.002,  # as QUEUE
    Priority.ACTIVATION: 0.002,  # as QUEUE
    Priority.EXPIRY: 0.002,  # as QUEUE
    Priority.SESSIONS: 0.0004,  # 100 sessions: an ACK waits for several turns
    Priority.DELIVERY: 0.004,  # as much as the deliveries of all other queues
    Priority.ROLLOVER: 0.005,  # a file must not fill faster than its messages are copied
}
ROLLOVER_LATE_S: Final = 0.008  # of ROLLOVER, if a file fills faster
BURST_S: Final = 0.002  # of one job that starts, to leave time for the next one
QUANTUM_S: Final = 0.001  # of one owner while other owners wait: input of few sessions per turn means few writes per turn
STEPS_MAX: Final = 128  # of a class in one turn, for tests whose clock stands still

Failed = Callable[[Exception], None]
Done = Callable[[Any], None]


class Job:
    """One job. `failed(error)`: a step raised; `done(result)`: the job has ended; `cancelled`: neither is called."""

    __slots__ = ("steps", "failed", "done", "cancelled")

    def __init__(self, steps: Steps[Any], failed: Failed, done: Done | None) -> None:
        self.steps, self.failed, self.done = steps, failed, done
        self.cancelled = False


class Owner:
    """The jobs of one owner in one class, in order; the first one runs. `waits`: it is in `JobClass.waiting`."""

    __slots__ = ("key", "jobs", "waits")

    def __init__(self, key: object) -> None:
        self.key, self.waits = key, False
        self.jobs: deque[Job] = deque()


class JobClass:
    """One priority class: its owners by key, the owners that wait for a step, in order, and the time spent in this turn.
    `all_stepped`: every waiting owner has had a step in this turn."""

    __slots__ = ("budget", "spent", "steps", "all_stepped", "owners", "waiting")

    def __init__(self, budget: float) -> None:
        self.budget, self.spent, self.steps = budget, 0.0, 0
        self.all_stepped = False
        self.owners: dict[object, Owner] = {}
        self.waiting: deque[Owner] = deque()


class Scheduler:
    """The jobs of one broker. `clock`: `Performer.clock`, seconds from any origin; `request_turn` requests another turn."""

    def __init__(self, clock: Callable[[], float], request_turn: Callable[[], None]) -> None:
        self._clock, self._request_turn = clock, request_turn
        self._classes = [JobClass(BUDGETS[priority]) for priority in Priority]
        self._spent = 0.0  # of all classes in this turn

    def has_job(self, priority: Priority, owner: object) -> bool:
        """Return whether the owner has an unfinished job."""
        return owner in self._classes[priority].owners

    def start(self, priority: Priority, owner: object, steps: Steps[Any], failed: Failed, done: Done | None = None,
              first: bool = False) -> bool:
        """Run the first steps of a job; return True if it is finished. `first`: before the owner's other jobs."""
        jobs = self._classes[priority]
        runs = first or owner not in jobs.owners
        job = Job(steps, failed, done)
        entry = self._enter(jobs, owner, job, first)
        others = bool(jobs.waiting)
        left = min((jobs.budget / 2 if others else jobs.budget) - jobs.spent, TURN_S - self._spent)
        if runs and left > 0.0:
            jobs.all_stepped = not others
            began, left = self._clock(), min(left, QUANTUM_S if others else BURST_S)
            while jobs.steps < STEPS_MAX and self._step(jobs, entry, job) and self._clock() - began < left:
                pass
            self._charge(jobs, began)
        if job not in entry.jobs:
            return True
        self._wait(jobs, entry)
        self._request_turn()
        return False

    def add(self, priority: Priority, owner: object, steps: Steps[Any], failed: Failed, done: Done | None = None,
            first: bool = False) -> None:
        """Run a job in a later turn, or in this one if its class has not run yet."""
        jobs = self._classes[priority]
        self._wait(jobs, self._enter(jobs, owner, Job(steps, failed, done), first))
        self._request_turn()

    def run(self, priority: Priority, budget: float = 0.0) -> None:
        """Continue the jobs of a class. `budget`: seconds, instead of BUDGETS."""
        jobs = self._classes[priority]
        waiting = jobs.waiting
        if not waiting:
            return
        left = min((budget or jobs.budget) - jobs.spent, TURN_S - self._spent)
        if jobs.all_stepped and (left <= 0.0 or jobs.steps >= STEPS_MAX):
            return
        began = now = self._clock()
        until = began + left
        while waiting:
            entry = waiting.popleft()
            entry.waits = False
            next_owner = now + QUANTUM_S
            while entry.jobs:
                self._step(jobs, entry, entry.jobs[0])
                now = self._clock()
                if jobs.steps >= STEPS_MAX or now >= until or now >= next_owner:
                    break
            if entry.jobs:
                self._wait(jobs, entry)
            if jobs.steps >= STEPS_MAX or now >= until:
                break
        self._charge(jobs, began)

    def end_turn(self) -> None:
        self._spent = 0.0
        waits = False
        for jobs in self._classes:
            jobs.spent, jobs.steps, jobs.all_stepped = 0.0, 0, False
            waits = waits or bool(jobs.waiting)
        if waits:
            self._request_turn()

    def cancel(self, owner: object) -> bool:
        """Drop all jobs of an owner, without a call of `done` or `failed`; return False if it has none."""
        found = False
        for jobs in self._classes:
            entry = jobs.owners.pop(owner, None)
            if entry is not None:
                found = True
                for job in entry.jobs:
                    job.cancelled = True
                entry.jobs.clear()
        return found

    def _enter(self, jobs: JobClass, owner: object, job: Job, first: bool) -> Owner:
        entry = jobs.owners.get(owner)
        if entry is None:
            entry = jobs.owners[owner] = Owner(owner)
        if first:
            entry.jobs.appendleft(job)
        else:
            entry.jobs.append(job)
        return entry

    def _wait(self, jobs: JobClass, entry: Owner) -> None:
        """Append the owner to the waiting owners."""
        if not entry.waits:
            entry.waits = True
            jobs.waiting.append(entry)

    def _charge(self, jobs: JobClass, began: float) -> None:
        took = self._clock() - began
        jobs.spent += took
        self._spent += took

    def _step(self, jobs: JobClass, entry: Owner, job: Job) -> bool:
        """Run one step of a job; return False if it was the last one."""
        jobs.steps += 1
        try:
            next(job.steps)
            return not job.cancelled
        except StopIteration as end:
            result: object = end.value
        except Exception as error:
            self._leave(jobs, entry, job)
            job.failed(error)
            return False
        if not self._leave(jobs, entry, job) or job.done is None:
            return False
        try:
            job.done(result)
        except Exception as error:
            job.failed(error)
        return False

    def _leave(self, jobs: JobClass, entry: Owner, job: Job) -> bool:
        """Remove a finished job; return False if it was cancelled before."""
        if job.cancelled:
            return False
        entry.jobs.remove(job)
        if not entry.jobs:
            del jobs.owners[entry.key]
        return True

