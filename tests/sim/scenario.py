"""One seed: who takes part, what goes wrong when, and the verdict over it.

    0 s ............. CHAOS_S ....... until calm ....... another crash ....... the end
    everything drawn   disk mended, producers rest,       what was confirmed
                       consumers take everything          stays confirmed
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random

from kit.config import domain_config
from kit.disks import fail_syncs, fill_disk

from bmqtwist.storage import rollover
from sim.clients import SimulatedClient, SimulatedConsumer, SimulatedProducer
from sim.judge import OutsideJudge
from sim.mistakes import Mistakes
from sim.world import SimulatedWorld

CHAOS_S = 6.0
CALM_S = 90.0  # at most; clients need it when they wait for heartbeats
STEP_S = 0.5
PRIORITY, OTHER, FANOUT, MEMORY, BROADCAST = "bmq://d/q", "bmq://d/r", "bmq://f/q", "bmq://m/q", "bmq://b/q"
SMALL = "bmq://s/q"  # with a quota
APPS = {PRIORITY: ("__default",), OTHER: ("__default",), SMALL: ("__default",), FANOUT: ("foo", "bar"),
        MEMORY: ("__default",), BROADCAST: ("__default",)}


@dataclass(frozen=True)
class ScenarioResult:
    """What a seed came to."""

    digest: str  # of everything that happened
    counts: Counter[str]


@contextmanager
def sliced_rollovers() -> Iterator[None]:
    """What counts as a large partition otherwise is what a scenario stores."""
    small = {"SMALL_RECORDS": 3, "SMALL_BYTES": 1000, "SLICE_RECORDS": 4, "SLICE_BYTES": 2000, "UPDATED_RECORDS": 5,
             "SYNC_BYTES": 4000, "BEGIN_PERCENT": 30}
    usual = {name: getattr(rollover, name) for name in small}
    try:
        for name, value in small.items():
            setattr(rollover, name, value)
        yield
    finally:
        for name, value in usual.items():
            setattr(rollover, name, value)


class Scenario:
    """Everything that takes part, drawn from one seed."""

    def __init__(self, seed: int, root: Path, mistakes: Mistakes | None = None) -> None:
        self.seed, self.mistakes = seed, mistakes
        self.random = Random(f"{seed}/scenario")
        self.sliced = self.random.random() < 0.5  # rollovers go in slices
        self.durability = self.random.choice(("group", "group", "group", "always", "none"))
        partition = {"maxDataFileSize": self.random.choice((1 << 18, 1 << 24)),
                     "maxJournalFileSize": self.random.choice((3 << 16, 1 << 20)), "maxQlistFileSize": 1 << 14,
                     "maxCSLFileSize": 1 << 16, "preallocate": self.random.random() < 0.5}
        self.world = SimulatedWorld(
            root, Random(f"{seed}/world"), app={
                "bmqtwist": {"durability": self.durability,
                             "payloadCacheBytes": self.random.choice((0, 20000, 1 << 26))},
                "heartbeats": {"client": 3, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 0},
                "tcp": {"heartbeatIntervalMs": 1000}},
            cluster={"partition": partition, "queue_operations": {"shutdownTimeoutMs": 1000}})
        domains = {"d": domain_config("d"), "f": domain_config("f", "fanout", apps=("foo", "bar")),
                   "s": domain_config("s", queue_messages=20), "m": domain_config("m", in_memory=True),
                   "b": domain_config("b", "broadcast", in_memory=True)}
        for name, content in domains.items():
            self.world.config.domain_text(name, json.dumps(content))
        self.judge = OutsideJudge(APPS, volatile={MEMORY, BROADCAST}, unstored={BROADCAST})
        self.judge.bounded.add(SMALL)
        node = self.world.node
        self.judge.mistaken = node.allow_internal_errors = self.world.network.abrupt = mistakes is not None
        node.on_restart = self._restarted
        node.boot()
        self.clients: list[SimulatedClient] = []
        self._cast()
        self._plot()

    def _restarted(self, power: bool) -> None:
        self.judge.restarted(power, self.durability != "none")
        if self.mistakes is not None and self.mistakes.active:
            self.judge.faulty()  # a partition that fails records no confirms

    def _random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def _cast(self) -> None:
        draw, world, judge = self.random, self.world, self.judge
        uris = list(APPS)
        for number in range(draw.randint(2, 4)):
            name = f"producer{number}"
            self.clients.append(SimulatedProducer(world, judge, self._random(name), name,
                                                  sorted(draw.sample(uris, draw.randint(2, 4))),
                                                  draw.choice((0.03, 0.05, 0.1))))
        for uri, apps in APPS.items():
            for number in range(draw.randint(1, 3)):
                name = f"consumer{uri[6]}{uri[8]}{number}"
                named = list(apps) if len(apps) == 1 else draw.choice([["foo"], ["bar"], ["foo", "bar"]])
                self.clients.append(SimulatedConsumer(world, judge, self._random(name), name, uri, named,
                                             draw.choice((0.005, 0.05, 0.5)), draw.random() < 0.5))
        self.clients.append(SimulatedConsumer(world, judge, self._random("last"), "last", FANOUT, ["foo", "bar"], 0.05,
                                              False))

    def _plot(self) -> None:
        """What goes wrong, and when."""
        draw, world = self.random, self.world
        faults: list[Callable[[], None]] = [self._kill, self._die, self._restart, self._fill_disk, self._fail_syncs]
        faults += [self._power, self._power, self._power]
        for _ in range(draw.randint(1, 4)):
            world.at(world.now + 0.5 + draw.random() * (CHAOS_S - 1), draw.choice(faults))
        for _ in range(draw.randint(3, 12)):
            client, how = draw.choice(self.clients), draw.choice(("cut", "cut", "vanish", "disconnect"))
            world.at(world.now + draw.random() * CHAOS_S, lambda client=client, how=how: client.leave(how))  # type: ignore[misc]

    def _kill(self) -> None:
        if self.world.node.up:
            self.world.node.crash(power=False)

    def _power(self) -> None:
        if self.world.node.up:
            self.world.node.crash(power=True)

    def _die(self) -> None:
        """Between two operations on the disk; perhaps once more while it recovers."""
        disk = self.world.node.disk
        disk.stop_after = disk.steps + self.random.randint(0, 30)

    def _restart(self) -> None:
        self.world.node.stop()

    def _fill_disk(self) -> None:
        self.judge.faulty()
        fill_disk(self.world.node, self.random.choice((0, 100, 5000)))
        self.world.at(self.world.now + 0.2 + self.random.random() * 2, self.world.node.clear_disk_faults)

    def _fail_syncs(self) -> None:
        """The broker closes its partitions then; somebody restarts it."""
        self.judge.faulty()
        fail_syncs(self.world.node)
        self.world.at(self.world.now + 1.0, self.random.choice((self._power, self._kill)))

    # -- the end

    def run(self) -> ScenarioResult:
        """Play it; raises Violation."""
        with sliced_rollovers() if self.sliced else nullcontext():
            return self._run()

    def _run(self) -> ScenarioResult:
        world, node = self.world, self.world.node
        end = world.now + CHAOS_S
        if self.mistakes is not None:
            self.judge.faulty()
            self.mistakes.active = True
            world.play(end)
            self.mistakes.active = False
            node.crash(power=False)
        world.play(end)
        node.clear_disk_faults()
        self._settle()
        self._close()
        node.crash(power=self.durability != "none" and self.random.random() < 0.5)
        world.play(world.now + 2.0)
        self._settle()
        self._close()
        counts = self.judge.counts + Counter({"torn": node.torn_writes, "died": node.disk_deaths,
                                              "slowed": node.stopped_reads})
        counts["rollovers"] = sum(operation == "rename" for operation, _ in node.disk.log) // 3
        return ScenarioResult(world.digest, counts)

    def _close(self) -> None:
        self.judge.close(self._stored(), any("[PARTITION_READONLY]" in text for _, text in self.world.node.report.lines))

    def _settle(self) -> None:
        """Producers rest, consumers take everything, until nothing is left."""
        world = self.world
        for client in self.clients:
            client.settle_down()
        end = world.now + CALM_S
        while world.now < end:
            world.play(world.now + STEP_S)
            if world.node.up and not any(client.waiting for client in self.clients) and not any(self._stored().values()):
                break

    def _stored(self) -> dict[str, int]:
        """Messages in every queue, as an administrator is told."""
        found = dict.fromkeys(APPS, 0)
        for domain in ("d", "f", "s", "m"):
            command = f"ENCODING JSON_COMPACT DOMAINS DOMAIN {domain} INFOS"
            answer = json.loads(self.world.node.broker.commands.run_at_once(command, "judge").text)
            for storage in answer.get("domainInfo", {}).get("storageContent", {}).get("storages", []):
                found[storage["queueUri"]] = storage["numMessages"]
        return found
