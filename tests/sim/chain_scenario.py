"""Scenario of a member n1, its proxies p1 and p3, and p2, a proxy of p1, with clients at all of them and random faults.

The judge checks the guarantees of `sim.judge`, except that CONFIRMs may be lost: no acknowledged message is lost, deliveries
match posts, limits and subscriptions, every PUT is answered, and in the end all queues are empty. Run by `test_proxy.py`.
The scenario of one broker is in `scenario.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from kit.config import domain_config

from bmqtwist.testing.network import ConnectionEnd
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.clients import SimulatedClient, SimulatedConsumer, SimulatedProducer
from sim.cluster import SimulatedCluster
from sim.judge import OutsideJudge

FAULTS_S, DRAIN_S, STEP_S = 6.0, 120.0, 0.5
PRIORITY, OTHER, FANOUT, BROADCAST = "bmq://d/q", "bmq://d/r", "bmq://f/q", "bmq://b/q"
APPS = {PRIORITY: ("__default",), OTHER: ("__default",), FANOUT: ("foo", "bar"), BROADCAST: ("__default",)}
PLACES = ("n1", "p1", "p2", "p3")
UPSTREAMS = {"p1": ["n1"], "p2": ["p1"], "p3": ["n1"]}


class RelayedJudge(OutsideJudge):
    """Judge that allows redelivery of confirmed messages to any consumer: a relay may lose CONFIRMs."""

    disturbed = False  # a broker or a link has failed

    def on_push_received(self, uri: str, app: str, guid: bytes, payload: bytes, connection: object, late: bool,
                         last: dict[str, int]) -> None:
        view = self.views[uri, app]
        if guid in view.owner or guid in view.processed:
            self.counts["again"] += 1
            view.owner.pop(guid, None)
            view.processed.discard(guid)
        stored = uri not in self.unstored
        if stored and (guid in view.seen or self.disturbed):
            late, last = True, {}  # the upstream brokers may not know the earlier deliveries
        super().on_push_received(uri, app, guid, payload, connection, late, last)


class BrokerView:
    """The simulation as a client of one broker uses it."""

    def __init__(self, world: SimulatedCluster, name: str) -> None:
        self._world, self._name = world, name
        self.at = world.at

    @property
    def now(self) -> float:
        """Simulated time in seconds."""
        return self._world.now

    def dial(self) -> ConnectionEnd | None:
        """Connect to the broker; return None if it does not listen."""
        return self._world.network.connect(self._world.node(self._name).address)


class ChainScenario:
    """The brokers, clients and faults, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(f"{seed}/chain")
        texts = {"d": domain_config("d"), "f": domain_config("f", "fanout", apps=("foo", "bar")),
                 "b": domain_config("b", "broadcast", in_memory=True)}
        heartbeats = {"client": 3, "downstreamBroker": 3, "upstreamBroker": 3, "clusterPeer": 0}
        app = {"heartbeats": heartbeats, "tcp": {"heartbeatIntervalMs": 1000},
               "bmqtwist": {"relayBytesMax": self.random.choice((20_000, 1 << 24))}}
        operations = {"queue_operations": {"shutdownTimeoutMs": 1000}}
        self.world = SimulatedCluster(seed, 1, proxies=UPSTREAMS, app=app, proxy_app=app, cluster=operations,
                                      texts={name: json.dumps(text) for name, text in texts.items()})
        self.judge = RelayedJudge(APPS, volatile={BROADCAST}, unstored={BROADCAST})
        self.world.node("n1").on_restart = lambda power: self.judge.on_restart(power, True)
        self.clients: list[SimulatedClient] = []
        self.counts: Counter[str] = Counter()
        self._create_clients()
        self._schedule_faults()

    def _create_clients(self) -> None:
        draw = self.random
        for number, name in enumerate(PLACES):
            self.clients.append(SimulatedProducer(
                BrokerView(self.world, name), self.judge, Random(f"{self.seed}/producer{number}"),  # type: ignore[arg-type]
                f"producer{number}", sorted(draw.sample(list(APPS), draw.randint(2, 4))), draw.choice((0.03, 0.1))))
        for uri, apps in APPS.items():
            for number in range(draw.randint(1, 3)):
                name = f"consumer{uri[6]}{uri[8]}{number}"
                named = list(apps) if len(apps) == 1 else draw.choice([["foo"], ["bar"], ["foo", "bar"]])
                self._create_consumer(name, uri, named, draw.random() < 0.5)
        self._create_consumer("last", FANOUT, ["foo", "bar"], False)

    def _create_consumer(self, name: str, uri: str, apps: list[str], splits: bool) -> None:
        place = BrokerView(self.world, self.random.choice(PLACES))
        self.clients.append(SimulatedConsumer(place, self.judge, Random(f"{self.seed}/{name}"), name, uri,  # type: ignore[arg-type]
                                              apps, self.random.choice((0.005, 0.05, 0.5)), splits))

    def _schedule_faults(self) -> None:
        draw, world = self.random, self.world
        for _ in range(draw.randint(1, 5)):
            fault: Callable[[], None] = draw.choice([
                self._kill, self._kill, self._lose_power, self._stop, self._reset, self._cut])
            world.at(world.now + 0.5 + draw.random() * (FAULTS_S - 1), fault)
        for _ in range(draw.randint(3, 12)):
            client, how = draw.choice(self.clients), draw.choice(("cut", "cut", "vanish", "disconnect"))
            world.at(world.now + draw.random() * FAULTS_S, partial(client.disconnect, how))

    def _choose_node(self, fault: str) -> SimulatedNode:
        """Choose the node of a fault, and count the fault."""
        name = self.random.choice(PLACES)
        self.judge.disturbed = True
        self.counts[f"{fault} of {'a member' if name == 'n1' else 'a proxy'}"] += 1
        return self.world.node(name)

    def _kill(self) -> None:
        node = self._choose_node("kill")
        if node.up:
            node.crash(power=False, down=self.random.choice((0.2, 2.0)))

    def _lose_power(self) -> None:
        node = self._choose_node("loss of power")
        if node.up:
            node.crash(power=True, down=self.random.choice((0.2, 2.0)), silently=False)

    def _stop(self) -> None:
        self._choose_node("stop").stop()

    def _reset(self) -> None:
        node = self._choose_node("reset")
        for session in list(node.broker.sessions.open) if node.up else ():
            if isinstance(session.transport, ConnectionEnd) and session.remote.identity.cluster_name:
                session.transport.reset()

    def _cut(self) -> None:
        name = self.random.choice(list(UPSTREAMS))
        link, both = (name, UPSTREAMS[name][0]), self.random.random() < 0.5
        if self.random.random() < 0.5:
            link = link[::-1]
        self.judge.disturbed = True
        self.counts["cut link"] += 1
        self.world.network.cut(*link, both=both)
        self.world.at(self.world.now + self.random.choice((0.5, 5.0)), lambda: self.world.network.heal(*link, both=both))

    def run(self) -> Counter[str]:
        """Run the scenario and return counts of events and faults; raise Violation."""
        world = self.world
        world.play(world.now + FAULTS_S)
        for client in self.clients:
            client.drain()
        end = world.now + DRAIN_S
        while world.now < end:
            world.play(world.now + STEP_S)
            if not any(client.unanswered for client in self.clients) and not any(self.stored().values()):
                break
        self.judge.check_final_state(self.stored(), full=False)
        return self.judge.counts + self.counts

    def stored(self) -> dict[str, int]:
        """Return the number of messages of every queue at all brokers."""
        found = dict.fromkeys(APPS, 0)
        for name in PLACES:
            node = self.world.node(name)
            if not node.up:
                return dict.fromkeys(APPS, 1)
            for cluster in (*node.broker.clusters.values(), *node.broker.proxies.values()):
                for uri, queue in cluster.queues.items():
                    found[uri] += len(queue.messages)
        return found
