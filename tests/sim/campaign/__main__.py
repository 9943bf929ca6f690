"""Command line of campaigns: runs successive seeds and reports violations.

`PYTHONPATH=tests python -m sim.campaign --help` lists the options. The exit status is 1 if a run failed. `play.py` runs one
schedule; scenarios of a single broker are run by `sim/__main__.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

from bmqtwist import machine
from sim.campaign.actions import ACTIONS, LOSSES
from sim.campaign.canaries import CANARIES, PARTITION_CANARIES, inject
from sim.campaign.copies import PARTS
from sim.campaign.liveness import FAULTS
from sim.campaign.play import STEPS, Run, campaign, play
from sim.campaign.schedule import Schedule
from sim.campaign.shrink import shrink

SIZES = (1, 2, 3, 4, 5)


def main() -> int:
    """Run from the command line; return the exit status: 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m sim.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds (default: 100), each with every "
                        "cluster size, without and with clients")
    parser.add_argument("--first", type=int, help="first seed (default: current time)")
    parser.add_argument("--minutes", type=float, help="run for this many minutes instead of --seeds")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="cluster sizes (default: 1,2,3,4,5)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of each schedule (default: {STEPS})")
    parser.add_argument("--canary", choices=[*CANARIES, *PARTITION_CANARIES], help="inject this defect into the broker")
    parser.add_argument("--replay", type=Path, help="run the schedule in this JSON file")
    options = parser.parse_args()
    machine.STRICT = True
    first = int(time.time()) if options.first is None else options.first
    with inject(options.canary):
        if options.replay is not None:
            return _report([play(Schedule.read(options.replay.read_text(encoding="utf-8")))], False)
        sizes = [int(size) for size in options.sizes.split(",")]
        until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
        return _report(_runs(first, options.seeds, until, sizes, options.steps), True)


def _runs(first: int, seeds: int, until: float | None, sizes: list[int], steps: int):  # type: ignore[no-untyped-def]
    for seed in count(first):
        if seed - first >= seeds if until is None else time.monotonic() >= until:
            return
        for size in sizes:
            yield campaign(seed, size, steps)
            yield campaign(seed, size, steps, clients=True)


def _report(runs, shrink_first: bool) -> int:  # type: ignore[no-untyped-def]
    counts: Counter[str] = Counter()
    found = list[Run]()
    number = resumed = 0
    for number, run in enumerate(runs, 1):  # noqa: B007
        counts += run.counts
        resumed = max(resumed, run.counts["resumed after, s"])
        if run.rule:
            print(f"seed {run.schedule.seed}, {run.schedule.size} nodes: {run.text}", flush=True)
            if shrink_first and not found:
                smallest, played = shrink(run)
                print(f"smallest failing schedule, after {played} runs, for --replay:\n{smallest.schedule.text()}"
                      f"{smallest.text}", flush=True)
            found.append(run)
    print("final faults: " + ", ".join(f"{name} {counts['final fault ' + name]}" for name in FAULTS)
          + f"; longest resumption {resumed} s")
    print("storage: " + ", ".join(f"{name} {counts[name]}" for name in (
        *(f"lost {name}" for name in LOSSES), *(f"old copy of {part}" for part in PARTS))))
    print("operators: " + ", ".join(f"{name} {counts[name]}" for name in (
        "wrong lists of nodes", "directories swapped", "clusters founded by mistake", "members: add", "members: remove",
        "members: replace", "member changes cancelled", "member changes done", "removed nodes that return", "upgrades",
        "rollbacks", "late rollbacks")))
    faults = {name: counts[name] for name in ACTIONS if counts[name]}
    print(f"{number} runs, {counts['steps']} steps, {counts['events']} events, {counts['seconds']} simulated seconds, "
          f"{counts['elected']} elections won, {counts['votes']} votes, {counts['commits']} commits, "
          f"{counts['changes done']} changes done")
    outcomes = ("writes torn", "kills between disk operations", "bits flipped", "votes lost", "posted", "posted again",
                "acknowledged", "refused", "delivered", "relayed", "records", "leases", "truncations")
    print(f"outcomes: {', '.join(f'{name} {counts[name]}' for name in outcomes)}")
    print(f"faults and requests: {', '.join(f'{name} {number}' for name, number in faults.items())}")
    print(f"{len(found)} runs failed{': ' + str(dict(Counter(run.rule for run in found))) if found else ''}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
