"""The fault table of the specification (cluster.md, section 19) as scenarios: whole nodes over simulated networks and disks,
sessions of the client library as clients, and every judge of the campaigns on.

    @row(3)                         this scenario is row 3 of the table
    world = FaultWorld(seed)        a cluster that has settled, with clients at work
    world.live(5.0)                 time passes
    world.finish()                  all is healed, everything is answered and delivered, and the judges agree
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.changes import AssignPartitions
from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.sdk.results import Result
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.campaign.messages import APPS, EVENTUAL, STRONG
from sim.campaign.play import JUDGES
from sim.campaign.schedule import Schedule
from sim.campaign.world import CampaignWorld
from sim.elected import INACTIVITY_S, heal, resume
from sim.sdk_sessions import SdkConsumer, SdkProducer

ROWS = 37  # of the table
FAILOVER_S = INACTIVITY_S + 5.0  # a leader or primary that is silent is given up, and another one is active
STEP_S = 0.05
MIB = 1 << 20


class FaultWorld(CampaignWorld):
    """`size` nodes n1, n2, ... and proxies. `spread`: the two partitions have different primaries. Where nothing else is
    asked for, a producer and a consumer of a strong and of an eventual queue are at work at the nodes, and a producer behind
    proxies."""

    def __init__(self, seed: int = 1, size: int = 3, spread: bool = False, journal_bytes: int = MIB,
                 cast: bool = True) -> None:
        super().__init__(Schedule(seed, size, 1 << 18, MIB, MIB, 0.0, (), True, journal_bytes, spread), JUDGES)
        self.producers: list[SdkProducer] = []
        self.consumers: list[SdkConsumer] = []
        self.until(lambda: all(self.is_ready(node) for node in self.machines), 60.0)
        if cast:
            self.producer(STRONG)
            self.producer(STRONG, ["p2"])
            self.producer(EVENTUAL)
            for uri in (STRONG, EVENTUAL):
                self.consumer(uri)
            self.live(3.0)

    # -- time -------------------------------------------------------------------------------------------------------------

    def live(self, seconds: float) -> None:
        """Time passes, and clients work."""
        self.run(seconds)

    def until(self, condition: Callable[[], object], seconds: float = 30.0) -> float:
        """Time passes until something is so; how much it was."""
        begun = self.now
        while not condition():
            assert self.now < begun + seconds, f"not so after {seconds:g} s\n{self.story()}"
            self.run(STEP_S)
        return self.now - begun

    # -- clients ------------------------------------------------------------------------------------------------------------

    def producer(self, uri: str = STRONG, places: list[str] | None = None, pause_s: float = 0.3) -> SdkProducer:
        """One more, that tries the nodes in this order."""
        made = SdkProducer(self, f"producer {len(self.producers)}", uri, places or self.names, pause_s)
        self.producers.append(made)
        return made

    def consumer(self, uri: str = STRONG, places: list[str] | None = None, app: str = "",
                 slow_s: float | None = 0.05) -> SdkConsumer:
        """One more, likewise."""
        made = SdkConsumer(self, f"consumer {len(self.consumers)}", uri, places or self.names[::-1], app, slow_s)
        self.consumers.append(made)
        return made

    def refusals(self) -> list[tuple[bytes, Result]]:
        """Everything that a producer was told but success."""
        return [refused for producer in self.producers for refused in producer.refused]

    def longest_wait(self) -> float:
        """Seconds that a producer has waited for an answer."""
        return max(wait for producer in self.producers for wait in producer.waits.values())

    def deliveries(self, guid: bytes) -> int:
        """How often a message was delivered to anybody."""
        return sum(consumer.got.count(guid) for consumer in self.consumers)

    # -- nodes --------------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Of the nodes."""
        return [node.name for node in self.machines]

    def is_ready(self, node: SimulatedNode) -> bool:
        """Whether a node is up, healed, and everything has an active primary."""
        return node.up and not node.paused and self.cluster(node.name).unavailable == ""

    def index(self, uri: str = STRONG) -> int:
        """The partition of a queue."""
        record = self.queue_record(uri)
        assert record is not None, uri
        return record.partition_id

    def primary(self, uri: str = STRONG) -> SimulatedNode:
        """The active primary of a queue."""
        found = self.primaries(self.index(uri))
        assert len(found) == 1, self.story()
        return found[0]

    def appoint(self, node: SimulatedNode) -> None:
        """The leader gives all partitions to a node."""
        self.propose(self.leader, AssignPartitions([int(node.name[1:])], []))

    def others(self, *nodes: SimulatedNode) -> list[SimulatedNode]:
        """All nodes but these."""
        return [node for node in self.machines if node not in nodes]

    def lease(self, uri: str = STRONG) -> int:
        """Of the primary, as it stands."""
        return self.hosted(self.primary(uri), self.index(uri)).machine.lease

    def leader_of(self, nodes: list[SimulatedNode]) -> SimulatedNode:
        """Whom all of these follow."""
        leaders = {self.cluster(node.name).leadership.standing.leader for node in nodes}
        assert len(leaders) == 1, self.story()
        return self.node(f"n{leaders.pop()}")

    def timers(self, node: SimulatedNode) -> int:
        """How many a node has waiting."""
        return len(node.broker.loop.timers._heap)

    def terms(self) -> set[int]:
        """Of all nodes that are up."""
        return {self.cluster(node.name).leadership.elector.term for node in self.machines if node.up}

    def apart(self, nodes: list[SimulatedNode], others: list[SimulatedNode]) -> None:
        """Nothing gets from one group to the other."""
        for one in nodes:
            for two in others:
                self.network.cut(one.name, two.name)

    def stored(self, node: SimulatedNode, uri: str = STRONG) -> list[bytes]:
        """GUIDs of the messages that a node has of a queue."""
        record = self.queue_record(uri)
        assert record is not None
        queue = self.hosted(node, record.partition_id).partition.state.queues.get(record.key)
        return [] if queue is None else list(queue.messages)

    def queues(self, node: SimulatedNode) -> dict[str, bytes]:
        """What the metadata of a node say: the key of each queue."""
        return {uri: record.key for uri, record in self.cluster(node.name).metadata.state.queues.items()}

    def story(self) -> str:
        """Where everybody stands, for whoever looks at a failed test."""
        lines = []
        for node in self.machines:
            if not node.up:
                lines.append(f"{node.name}: down")
                continue
            standing = node.broker.clusters[CLUSTER].leadership.standing
            roles = [hosted.machine.role.name for hosted in self.replication(node).hosted]
            lines.append(f"{node.name}: {standing.state.name}, term {standing.term}, leader {standing.leader}, {roles}, "
                         f"{node.broker.clusters[CLUSTER].unavailable}{', paused' if node.paused else ''}")
        for each in (*self.producers, *self.consumers):
            lines.append(f"{each.name}: {each.core.state.value} at {each.place}, {each.events[-4:]}")
        return "\n".join(lines)

    # -- the end ------------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything is repaired, and settles: producers have all their answers, consumers all messages, nodes agree."""
        heal(self)
        resume(self)
        for node in self.nodes:
            if isinstance(node, SimulatedNode):
                if node.paused:
                    node.resume()
                node.clear_disk_faults()
                if not node.up:
                    node.boot()
        for producer in self.producers:
            producer.rests = True
        self._read_everything()
        self.until(lambda: all(self.is_ready(node) for node in self.machines), 120.0)
        self.until(lambda: not any(producer.unanswered for producer in self.producers), 120.0)
        self.until(lambda: not any(self.stored(node, uri) for node in self.machines for uri in (STRONG, EVENTUAL)
                                   if self.queue_record(uri) is not None), 60.0)
        self.run(3.0)
        for index in range(len(self.replication(self.machines[0]).hosted)):
            roles = sorted(self.hosted(node, index).machine.role.name for node in self.machines)
            assert roles.count(PartitionRole.PRIMARY_HEALED.name) == 1, self.story()
        for judge in self.judges:
            judge.quiet()

    def _read_everything(self) -> None:
        for consumer in self.consumers:
            consumer.confirm_all()
        read = {consumer.uri for consumer in self.consumers}
        for uri in dict.fromkeys(producer.uri for producer in self.producers if producer.posted):
            for app in APPS[uri]:
                wanted = "" if len(APPS[uri]) == 1 else app
                if (f"{uri}?id={wanted}" if wanted else uri) not in read:
                    self.consumer(uri, app=wanted)
