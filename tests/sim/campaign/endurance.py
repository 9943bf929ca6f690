"""Endurance run: hours of random faults in a simulated cluster, without growth of its resource usage.

`PYTHONPATH=tests python -m sim.campaign.endurance --hours 24` (a part of `make sim`). Clients post and consume; faults occur
for 60 s of every 10 minutes. After each period, when all queues are empty, the nodes must have about as many sessions,
timers, handles and pending requests as at the beginning. Uses the actions and the world of the campaigns (`actions.py`,
`world.py`) and the schedule of `schedule.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from random import Random

from bmqtwist.broker.broker import Broker
from bmqtwist.sdk.results import Result
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.actions import DISKS, ELECTIONS, NETWORK, PARTITIONS, PROCESSES, Action, end_faults
from sim.campaign.schedule import Step
from sim.faults import FaultWorld

FAULT_S = 60.0  # of each period
PERIOD_S = 600.0
WARM_UP = 6  # periods before the baseline is measured
PAUSE_S = 15.0  # mean time between two posts of a producer
GROWTH_FACTOR, GROWTH_NUMBER = 1.1, 4  # usage may be up to 1.1 times the baseline, plus 4
EXPECTED_REFUSALS = (Result.STORAGE_FAILURE, Result.UNKNOWN)  # after disk faults; when a queue was not opened in time
EXCLUDED = ("domain apps", "purge", "disconnect", "burst", "lost acks", "isolate busy primary")  # need clients of campaigns
FAULTS: dict[str, Action] = {name: action for name, action in (PROCESSES | NETWORK | DISKS | ELECTIONS | PARTITIONS).items()
                             if name not in EXCLUDED}


class Endurance:
    """A cluster with clients. `baseline`: resource usage of its nodes after `warm_up` periods."""

    def __init__(self, seed: int, period_s: float = PERIOD_S, warm_up: int = WARM_UP) -> None:
        self.period_s = period_s
        self.random = Random(f"{seed}/endurance")
        self.world = world = FaultWorld(seed, spread=True, journal_bytes=1 << 16, clients=False)
        for places in (world.names, ["p2"], ["p3"]):
            world.producer(places=places, pause_s=PAUSE_S)
        world.consumer()
        world.consumer(places=["p3"])
        self.faults: Counter[str] = Counter()
        for _ in range(warm_up):
            self._disturb(FAULT_S)
            world.run(period_s - FAULT_S)
        self.baseline = self.measure_idle()

    def run(self, seconds: float) -> None:
        """Run periods of faults and check the resource usage after each; raise AssertionError if it grows."""
        until = self.world.now + seconds
        while self.world.now < until:
            self._disturb(FAULT_S)
            self.world.run(self.period_s - FAULT_S)
            self.check_usage()

    def _disturb(self, seconds: float) -> None:
        world, random = self.world, self.random
        until = world.now + seconds
        world.faults_ended = False
        while world.now < until:
            name = random.choices(list(FAULTS), [action.weight for action in FAULTS.values()])[0]
            step = Step(name, random.randint(1, 3), random.randint(1, 3), random.random(), random.random(), 0.0)
            FAULTS[name].perform(world, world.node_by_number(step.node), world.node_by_number(step.other), step)
            self.faults[name] += 1
            world.run(random.random() * seconds / 4)
        for _ in range(2):
            end_faults(world)
            world.until(lambda: all(world.is_ready(node) for node in world.machines), 120.0)

    def measure_idle(self) -> dict[str, int]:
        """Pause the producers until all PUTs are answered and all queues empty, and return the resource usage."""
        world = self.world
        pauses = [producer.pause_s for producer in world.producers]
        for producer in world.producers:
            producer.pause_s = 1e9
        world.until(lambda: not any(producer.unanswered for producer in world.producers), 120.0)
        world.until(lambda: not any(world.stored(node) for node in world.machines), 60.0)
        world.run(2.0)
        found = self._count()
        for producer, pause in zip(world.producers, pauses, strict=True):
            producer.pause_s = pause
            producer.start_posting()
        return found

    def _count(self) -> dict[str, int]:
        found = Counter[str]()
        for node in (*self.world.machines, *self.world.proxies):
            broker = node.broker
            found["sessions"] += len(broker.sessions.open)
            found["timers"] += self.world.count_timers(node)
            found["pending PUTs"] += sum(
                len(queue.pending) for relays in self.world.relays(node) for queue in relays.queues.values())
            found["pending requests"] += sum(len(relays.requests._pending) for relays in self.world.relays(node))
            found["handles"] += sum(len(queue.handles) for queue in _queues(node, broker))
            found["open files"] += len(node.disk.locked)
            node.report.lines.clear()
            node.disk.log.clear()
            node._lines_recorded = node._steps_recorded = 0
        return dict(found)

    def check_usage(self) -> None:
        """Raise AssertionError if a resource usage exceeds the baseline, or a PUT was refused for an unexpected reason."""
        now = self.measure_idle()
        grown = {name: (self.baseline[name], count) for name, count in now.items()
                if count > self.baseline[name] * GROWTH_FACTOR + GROWTH_NUMBER}
        assert not grown, f"baseline and current usage: {grown}; after {dict(self.faults)}"
        unexpected = [refused for refused in self.world.refusals() if refused[1] not in EXPECTED_REFUSALS]
        assert not unexpected, unexpected


def _queues(node: SimulatedNode, broker: Broker) -> list[object]:
    return [queue for cluster in broker.clusters.values() for queue in cluster.queues.values()]


def main() -> int:
    """Run from the command line; return the exit status 0, or raise."""
    parser = argparse.ArgumentParser(prog="python -m sim.campaign.endurance", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours (default: 24)")
    parser.add_argument("--seed", type=int, help="seed of the run (default: current time)")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    endurance = Endurance(seed)
    for hour in range(1, int(options.hours) + 1):
        endurance.run(3600.0)
        print(f"hour {hour}: {sum(endurance.faults.values())} faults, "
              f"{len(endurance.world.message_judge.messages)} messages, {endurance.measure_idle()}", flush=True)
    endurance.world.finish()
    print(f"baseline: {endurance.baseline}; faults: {dict(endurance.faults)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
