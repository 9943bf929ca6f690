"""Scenario of one seed: the clients, the faults and their times, and the check of the outcome.

    0 s ............. FAULTS_S ....... queues are empty ....... another crash ....... end
    random faults      disk repaired, clients drain              confirmed messages
                                                                 stay confirmed

Run by `test_whole_broker.py` and `sim/__main__.py`. `judge.py` has the checks, `clients.py` the clients.
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

FAULTS_S = 6.0
DRAIN_S = 90.0  # at most; clients need it when they wait for heartbeats
STEP_S = 0.5
PRIORITY, OTHER, FANOUT, MEMORY, BROADCAST = "bmq://d/q", "bmq://d/r", "bmq://f/q", "bmq://m/q", "bmq://b/q"
SMALL = "bmq://s/q"  # with a quota
APPS = {PRIORITY: ("__default",), OTHER: ("__default",), SMALL: ("__default",), FANOUT: ("foo", "bar"),
        MEMORY: ("__default",), BROADCAST: ("__default",)}


@dataclass(frozen=True)
class ScenarioResult:
    """Outcome of a scenario."""

    digest: str  # of the trace of the simulation
    counts: Counter[str]


@contextmanager
def sliced_rollovers() -> Iterator[None]:
    """Reduce the limits of a sliced rollover to the amount of data that a scenario stores."""
    small = {"SMALL_RECORDS": 3, "SMALL_BYTES": 1000, "SLICE_RECORDS": 4, "SLICE_BYTES": 2000, "UPDATED_RECORDS": 5,
             "SYNC_BYTES": 4000, "ROLLOVER_BEGIN_PERCENT": 30}
    usual = {name: getattr(rollover, name) for name in small}
    try:
        for name, value in small.items():
            setattr(rollover, name, value)
        yield
    finally:
        for name, value in usual.items():
            setattr(rollover, name, value)


class Scenario:
    """A broker, its clients and faults, drawn from one seed; with `mistakes`, defects are injected into the broker."""

    def __init__(self, seed: int, root: Path, mistakes: Mistakes | None = None) -> None:
        self.seed, self.mistakes = seed, mistakes
        self.random = Random(f"{seed}/scenario")
        self.sliced = self.random.random() < 0.5  # rollovers run in slices
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
        self.judge.defective = node.allow_internal_errors = self.world.network.abrupt = mistakes is not None
        node.on_restart = self._on_restart
        node.boot()
        self.clients: list[SimulatedClient] = []
        self._create_clients()
        self._schedule_faults()

    def _on_restart(self, power: bool) -> None:
        self.judge.on_restart(power, self.durability != "none")
        if self.mistakes is not None and self.mistakes.active:
            self.judge.on_disk_fault()  # a failed partition stores no confirms

    def _random(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def _create_clients(self) -> None:
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

    def _schedule_faults(self) -> None:
        """Schedule 1 to 4 faults of the broker, and 3 to 12 disconnects of clients, before FAULTS_S."""
        draw, world = self.random, self.world
        faults: list[Callable[[], None]] = [self._kill, self._stop_at_disk_step, self._restart, self._fill_disk,
                                            self._fail_syncs]
        faults += [self._lose_power, self._lose_power, self._lose_power]
        for _ in range(draw.randint(1, 4)):
            world.at(world.now + 0.5 + draw.random() * (FAULTS_S - 1), draw.choice(faults))
        for _ in range(draw.randint(3, 12)):
            client, how = draw.choice(self.clients), draw.choice(("cut", "cut", "vanish", "disconnect"))
            world.at(world.now + draw.random() * FAULTS_S, lambda client=client, how=how: client.disconnect(how))  # type: ignore[misc]

    def _kill(self) -> None:
        if self.world.node.up:
            self.world.node.crash(power=False)

    def _lose_power(self) -> None:
        if self.world.node.up:
            self.world.node.crash(power=True)

    def _stop_at_disk_step(self) -> None:
        """Kill the process between two disk operations; perhaps again during its recovery."""
        disk = self.world.node.disk
        disk.stop_after = disk.steps + self.random.randint(0, 30)

    def _restart(self) -> None:
        self.world.node.stop()

    def _fill_disk(self) -> None:
        self.judge.on_disk_fault()
        fill_disk(self.world.node, self.random.choice((0, 100, 5000)))
        self.world.at(self.world.now + 0.2 + self.random.random() * 2, self.world.node.clear_disk_faults)

    def _fail_syncs(self) -> None:
        """Let all syncs fail, so that the broker closes its partitions, and restart it after 1 s."""
        self.judge.on_disk_fault()
        fail_syncs(self.world.node)
        self.world.at(self.world.now + 1.0, self.random.choice((self._lose_power, self._kill)))

    # -- run --------------------------------------------------------------------------------------------------------

    def run(self) -> ScenarioResult:
        """Run the scenario; raise Violation."""
        with sliced_rollovers() if self.sliced else nullcontext():
            return self._run()

    def _run(self) -> ScenarioResult:
        world, node = self.world, self.world.node
        end = world.now + FAULTS_S
        if self.mistakes is not None:
            self.judge.on_disk_fault()
            self.mistakes.active = True
            world.play(end)
            self.mistakes.active = False
            node.crash(power=False)
        world.play(end)
        node.clear_disk_faults()
        self._drain()
        self._check()
        node.crash(power=self.durability != "none" and self.random.random() < 0.5)
        world.play(world.now + 2.0)
        self._drain()
        self._check()
        counts = self.judge.counts + Counter({"torn": node.torn_writes, "died": node.disk_deaths,
                                              "slowed": node.stopped_reads})
        counts["rollovers"] = sum(operation == "rename" for operation, _ in node.disk.log) // 3
        return ScenarioResult(world.digest, counts)

    def _check(self) -> None:
        full = any("[PARTITION_READONLY]" in text for _, text in self.world.node.report.lines)
        self.judge.check_final_state(self._stored(), full)

    def _drain(self) -> None:
        """Let clients drain until all PUTs are acknowledged and all queues empty, for at most DRAIN_S."""
        world = self.world
        for client in self.clients:
            client.drain()
        end = world.now + DRAIN_S
        while world.now < end:
            world.play(world.now + STEP_S)
            if world.node.up and not any(client.unanswered for client in self.clients) and not any(self._stored().values()):
                break

    def _stored(self) -> dict[str, int]:
        """Return the number of messages of every queue, from the admin command INFOS."""
        found = dict.fromkeys(APPS, 0)
        for domain in ("d", "f", "s", "m"):
            command = f"ENCODING JSON_COMPACT DOMAINS DOMAIN {domain} INFOS"
            answer = json.loads(self.world.node.broker.commands.run_at_once(command, "judge").text)
            for storage in answer.get("domainInfo", {}).get("storageContent", {}).get("storages", []):
                found[storage["queueUri"]] = storage["numMessages"]
        return found
