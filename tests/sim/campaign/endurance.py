"""A day in the life of a cluster: faults at random, and after each of them everything is what it was before.

`PYTHONPATH=tests python -m sim.campaign.endurance --hours 24` (a part of `make sim`). Clients post and consume; every ten
minutes something goes wrong for a while. When all is calm again, and nothing is stored, the nodes have as many sessions,
timers, handles and waiting requests as at the beginning.
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
from sim.campaign.actions import DISKS, ELECTIONS, NETWORK, PARTITIONS, PROCESSES, Action, calm
from sim.campaign.schedule import Step
from sim.faults import FaultWorld

FAULT_S = 60.0  # of each ten minutes
PERIOD_S = 600.0
WARM_UP = 6  # periods before anything is compared
PAUSE_S = 15.0  # between two posts of a producer, on average
SPARE = 1.1  # as many times what it was
SPARE_NUMBER = 4
REFUSALS = (Result.STORAGE_FAILURE, Result.UNKNOWN)  # of a disk that fails; of a session whose queue is not opened in time
WITHOUT = ("more apps", "purge", "leave", "press", "lost acks", "strand primary")  # they concern clients of campaigns
FAULTS: dict[str, Action] = {name: action for name, action in (PROCESSES | NETWORK | DISKS | ELECTIONS | PARTITIONS).items()
                             if name not in WITHOUT}


class Endurance:
    """One cluster; `baseline`: what its nodes had when they had settled after some faults, of which so much is kept."""

    def __init__(self, seed: int, period_s: float = PERIOD_S, warm_up: int = WARM_UP) -> None:
        self.period_s = period_s
        self.random = Random(f"{seed}/endurance")
        self.world = world = FaultWorld(seed, spread=True, journal_bytes=1 << 16, cast=False)
        for places in (world.names, ["p2"], ["p3"]):
            world.producer(places=places, pause_s=PAUSE_S)
        world.consumer()
        world.consumer(places=["p3"])
        self.faults: Counter[str] = Counter()
        for _ in range(warm_up):
            self._disturb(FAULT_S)
            world.run(period_s - FAULT_S)
        self.baseline = self.settled()

    def live(self, seconds: float) -> None:
        """Faults, and what comes of them."""
        until = self.world.now + seconds
        while self.world.now < until:
            self._disturb(FAULT_S)
            self.world.run(self.period_s - FAULT_S)
            self.compare()

    def _disturb(self, seconds: float) -> None:
        world, random = self.world, self.random
        until = world.now + seconds
        world.over = False
        while world.now < until:
            name = random.choices(list(FAULTS), [action.weight for action in FAULTS.values()])[0]
            step = Step(name, random.randint(1, 3), random.randint(1, 3), random.random(), random.random(), 0.0)
            FAULTS[name].do(world, world.by_number(step.node), world.by_number(step.other), step)
            self.faults[name] += 1
            world.run(random.random() * seconds / 4)
        for _ in range(2):
            calm(world)
            world.until(lambda: all(world.is_ready(node) for node in world.machines), 120.0)

    def settled(self) -> dict[str, int]:
        """What there is, when nothing is stored and everything is answered."""
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
            producer.go_on()
        return found

    def _count(self) -> dict[str, int]:
        found = Counter[str]()
        for node in (*self.world.machines, *self.world.proxies):
            broker = node.broker
            found["sessions"] += len(broker.sessions.open)
            found["timers"] += self.world.timers(node)
            found["PUTs that wait"] += sum(
                len(queue.pending) for relays in self.world.relays(node) for queue in relays.queues.values())
            found["requests that wait"] += sum(len(relays.requests._pending) for relays in self.world.relays(node))
            found["handles"] += sum(len(queue.handles) for queue in _queues(node, broker))
            found["files that are open"] += len(node.disk.locked)
            node.report.lines.clear()
            node.disk.log.clear()
            node._told = node._written = 0
        return dict(found)

    def compare(self) -> None:
        """Everything is as it was at the beginning, or less."""
        now = self.settled()
        more = {name: (self.baseline[name], count) for name, count in now.items()
                if count > self.baseline[name] * SPARE + SPARE_NUMBER}
        assert not more, f"at the beginning, and now: {more}; after {dict(self.faults)}"
        wrong = [refused for refused in self.world.refusals() if refused[1] not in REFUSALS]
        assert not wrong, wrong


def _queues(node: SimulatedNode, broker: Broker) -> list[object]:
    return [queue for cluster in broker.clusters.values() for queue in cluster.queues.values()]


def main() -> int:
    """0 = all is well."""
    parser = argparse.ArgumentParser(prog="python -m sim.campaign.endurance", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="of simulated time (default: 24)")
    parser.add_argument("--seed", type=int, help="the time of day where nothing is said")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    endurance = Endurance(seed)
    for hour in range(1, int(options.hours) + 1):
        endurance.live(3600.0)
        print(f"hour {hour}: {sum(endurance.faults.values())} faults, {len(endurance.world.messages.messages)} messages, "
              f"{endurance.settled()}", flush=True)
    endurance.world.finish()
    print(f"at the beginning: {endurance.baseline}; faults: {dict(endurance.faults)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
