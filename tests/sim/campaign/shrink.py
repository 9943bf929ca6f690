"""Reduction of a failed schedule to its smallest part that breaks the same invariant.

Called by `campaign/__main__.py` after a violation; it runs `play.py` for each candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sim.campaign.play import Run, play
from sim.campaign.schedule import Schedule

RUNS_MAX = 300


def shrink(failed: Run, run_schedule: Callable[[Schedule], Run] = play, runs_max: int = RUNS_MAX) -> tuple[Run, int]:
    """Remove steps in halves, quarters, and so on down to single ones, then remove waits, while the rule is still broken.

    Returns the smallest run and the number of runs, at most `runs_max`.
    """
    best, played = failed, 0

    def fails(schedule: Schedule) -> bool:
        nonlocal best, played
        played += 1
        run = run_schedule(schedule)
        if run.rule != failed.rule:
            return False
        best = run
        return True

    size = max(1, len(failed.schedule.steps) // 2)
    while played < runs_max:
        steps, at, smaller = best.schedule.steps, 0, False
        while at < len(steps) and played < runs_max:
            if fails(best.schedule.with_steps(steps[:at] + steps[at + size:])):
                steps, smaller = best.schedule.steps, True
            else:
                at += size
        if size == 1 and not smaller:
            break
        size = max(1, size // 2)
    for at, step in enumerate(best.schedule.steps):
        if step.wait and played < runs_max:
            steps = best.schedule.steps
            fails(best.schedule.with_steps((*steps[:at], replace(step, wait=0.0), *steps[at + 1:])))
    return best, played
