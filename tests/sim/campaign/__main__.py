"""`PYTHONPATH=tests python -m sim.campaign`: seed after seed, and what was found. Ends with 1 if anything was."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

from bmqtwist import machine
from sim.campaign.actions import ACTIONS
from sim.campaign.canaries import CANARIES, PARTITION_CANARIES, planted
from sim.campaign.play import STEPS, Run, campaign, play
from sim.campaign.schedule import Schedule
from sim.campaign.shrink import shrink

SIZES = (1, 2, 3, 4, 5)


def main() -> int:
    """0 = all is well."""
    parser = argparse.ArgumentParser(prog="python -m sim.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (default: 100), each with every "
                        "size, without and with clients")
    parser.add_argument("--first", type=int, help="the first of them; the time of day where nothing is said")
    parser.add_argument("--minutes", type=float, help="as many seeds as fit into so many minutes")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of nodes (default: 1,2,3,4,5)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each schedule (default: {STEPS})")
    parser.add_argument("--canary", choices=[*CANARIES, *PARTITION_CANARIES], help="with this mistake planted into the code")
    parser.add_argument("--replay", type=Path, help="play the schedule of a file instead")
    options = parser.parse_args()
    machine.STRICT = True
    first = int(time.time()) if options.first is None else options.first
    with planted(options.canary):
        if options.replay is not None:
            return _tell([play(Schedule.read(options.replay.read_text(encoding="utf-8")))], False)
        sizes = [int(size) for size in options.sizes.split(",")]
        until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
        return _tell(_runs(first, options.seeds, until, sizes, options.steps), True)


def _runs(first: int, seeds: int, until: float | None, sizes: list[int], steps: int):  # type: ignore[no-untyped-def]
    for seed in count(first):
        if seed - first >= seeds if until is None else time.monotonic() >= until:
            return
        for size in sizes:
            yield campaign(seed, size, steps)
            yield campaign(seed, size, steps, clients=True)


def _tell(runs, small: bool) -> int:  # type: ignore[no-untyped-def]
    counts: Counter[str] = Counter()
    found = list[Run]()
    number = 0
    for number, run in enumerate(runs, 1):  # noqa: B007
        counts += run.counts
        if run.rule:
            print(f"seed {run.schedule.seed}, {run.schedule.size} nodes: {run.text}", flush=True)
            if small and not found:
                smallest, played = shrink(run)
                print(f"the smallest part that fails, after {played} runs, for --replay:\n{smallest.schedule.text()}"
                      f"{smallest.text}", flush=True)
            found.append(run)
    faults = {name: counts[name] for name in ACTIONS if counts[name]}
    print(f"{number} runs, {counts['steps']} steps, {counts['events']} events, {counts['seconds']} simulated seconds, "
          f"{counts['elected']} elections won, {counts['votes']} votes, {counts['commits']} commits, "
          f"{counts['changes done']} changes done")
    told = ("writes torn", "deaths between operations on a disk", "bits flipped", "votes lost", "posted",
            "posted again", "acknowledged", "refused", "delivered", "relayed", "records", "leases", "cuts")
    print(f"what came of it: {', '.join(f'{name} {counts[name]}' for name in told)}")
    print(f"faults and requests: {', '.join(f'{name} {number}' for name, number in faults.items())}")
    print(f"{len(found)} runs failed{': ' + str(dict(Counter(run.rule for run in found))) if found else ''}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
