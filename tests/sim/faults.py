"""World of the fault table of the specification (`cluster.md`, section 19): a cluster with clients of the client library.

    world = FaultWorld(seed)        an available cluster with active clients
    world.live(5.0)                 5 simulated seconds pass
    world.finish()                  ends all faults, waits for all ACKs and deliveries, and runs all judges of the campaigns

A test whose name starts with `test_row_03_` is the scenario of row 3. The tests are in `test_fault_nodes.py`,
`test_fault_links.py`, `test_fault_disks.py` and `test_fault_clients.py`; random faults are in `campaign/`.
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

ROWS = 37  # of the fault table
FAILOVER_S = INACTIVITY_S + 5.0  # longest time until another leader or primary is active
STEP_S = 0.05
MIB = 1 << 20


class FaultWorld(CampaignWorld):
    """`size` members n1, n2, ... and proxies p1 to p3. `spread`: the two partitions have different primaries.

    `clients`: with a producer and a consumer each of a strong and of an eventual queue at the members, and a producer at p2.
    """

    def __init__(self, seed: int = 1, size: int = 3, spread: bool = False, journal_bytes: int = MIB,
                 clients: bool = True) -> None:
        super().__init__(Schedule(seed, size, 1 << 18, MIB, MIB, 0.0, (), True, journal_bytes, spread), JUDGES)
        self.producers: list[SdkProducer] = []
        self.consumers: list[SdkConsumer] = []
        self.until(lambda: all(self.is_ready(node) for node in self.machines), 60.0)
        if clients:
            self.producer(STRONG)
            self.producer(STRONG, ["p2"])
            self.producer(EVENTUAL)
            for uri in (STRONG, EVENTUAL):
                self.consumer(uri)
            self.live(3.0)

    # -- simulated time -------------------------------------------------------------------------------------------------

    def live(self, seconds: float) -> None:
        """Run the simulation for some seconds, with active clients."""
        self.run(seconds)

    def until(self, condition: Callable[[], object], seconds: float = 30.0) -> float:
        """Run the simulation until a condition holds, and return the seconds; AssertionError after `seconds`."""
        begun = self.now
        while not condition():
            assert self.now < begun + seconds, f"the condition does not hold after {seconds:g} s\n{self.describe()}"
            self.run(STEP_S)
        return self.now - begun

    # -- clients --------------------------------------------------------------------------------------------------------

    def producer(self, uri: str = STRONG, places: list[str] | None = None, pause_s: float = 0.3) -> SdkProducer:
        """Add a producer that uses the first reachable node of `places`, by default n1, n2, ..."""
        client = SdkProducer(self, f"producer {len(self.producers)}", uri, places or self.names, pause_s)
        self.producers.append(client)
        return client

    def consumer(self, uri: str = STRONG, places: list[str] | None = None, app: str = "",
                 slow_s: float | None = 0.05) -> SdkConsumer:
        """Add a consumer that uses the first reachable node of `places`, by default the last member first."""
        client = SdkConsumer(self, f"consumer {len(self.consumers)}", uri, places or self.names[::-1], app, slow_s)
        self.consumers.append(client)
        return client

    def refusals(self) -> list[tuple[bytes, Result]]:
        """Return GUID and result of all failed ACKs of all producers."""
        return [refused for producer in self.producers for refused in producer.refused]

    def longest_wait(self) -> float:
        """Return the longest time from a PUT to its ACK, in seconds."""
        return max(wait for producer in self.producers for wait in producer.waits.values())

    def deliveries(self, guid: bytes) -> int:
        """Return how often a message was delivered, at all consumers."""
        return sum(consumer.got.count(guid) for consumer in self.consumers)

    # -- nodes ----------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of the members."""
        return [node.name for node in self.machines]

    def is_ready(self, node: SimulatedNode) -> bool:
        """Return whether a node is running, healed, and knows an active primary for each partition."""
        return node.up and not node.paused and self.cluster(node.name).unavailable == ""

    def partition_of(self, uri: str = STRONG) -> int:
        """Return the number of the partition of a queue."""
        record = self.queue_record(uri)
        assert record is not None, uri
        return record.partition_id

    def primary(self, uri: str = STRONG) -> SimulatedNode:
        """Return the active primary of a queue; AssertionError if not exactly one node acts as such."""
        found = self.primaries(self.partition_of(uri))
        assert len(found) == 1, self.describe()
        return found[0]

    def appoint(self, node: SimulatedNode) -> None:
        """Let the leader assign all partitions to a node."""
        self.propose(self.leader, AssignPartitions([int(node.name[1:])], []))

    def other_nodes(self, *nodes: SimulatedNode) -> list[SimulatedNode]:
        """Return all members except `nodes`."""
        return [node for node in self.machines if node not in nodes]

    def lease(self, uri: str = STRONG) -> int:
        """Return the current lease of a queue's partition."""
        return self.hosted(self.primary(uri), self.partition_of(uri)).machine.lease

    def leader_of(self, nodes: list[SimulatedNode]) -> SimulatedNode:
        """Return the leader that all `nodes` follow; AssertionError if they differ."""
        leaders = {self.cluster(node.name).leadership.standing.leader for node in nodes}
        assert len(leaders) == 1, self.describe()
        return self.node(f"n{leaders.pop()}")

    def count_timers(self, node: SimulatedNode) -> int:
        """Return the number of pending timers of a node."""
        return len(node.broker.loop.timers._heap)

    def terms(self) -> set[int]:
        """Return the terms of all running members."""
        return {self.cluster(node.name).leadership.elector.term for node in self.machines if node.up}

    def separate(self, nodes: list[SimulatedNode], others: list[SimulatedNode]) -> None:
        """Cut all links between two groups of members."""
        for one in nodes:
            for two in others:
                self.network.cut(one.name, two.name)

    def stored(self, node: SimulatedNode, uri: str = STRONG) -> list[bytes]:
        """Return the GUIDs of the messages that a node stores of a queue."""
        record = self.queue_record(uri)
        assert record is not None
        queue = self.hosted(node, record.partition_id).partition.state.queues.get(record.key)
        return [] if queue is None else list(queue.messages)

    def queues(self, node: SimulatedNode) -> dict[str, bytes]:
        """Return the key of each queue in the metadata of a node."""
        return {uri: record.key for uri, record in self.cluster(node.name).metadata.state.queues.items()}

    def describe(self) -> str:
        """Return the states of all members and clients, for messages of failed tests."""
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

    # -- final state ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End all faults, wait for all ACKs, deliveries and confirms, and let the judges check the final state."""
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
            producer.paused = True
        self._consume_all_queues()
        self.until(lambda: all(self.is_ready(node) for node in self.machines), 120.0)
        self.until(lambda: not any(producer.unanswered for producer in self.producers), 120.0)
        self.until(lambda: not any(self.stored(node, uri) for node in self.machines for uri in (STRONG, EVENTUAL)
                                   if self.queue_record(uri) is not None), 60.0)
        self.run(3.0)
        for index in range(len(self.replication(self.machines[0]).hosted)):
            roles = sorted(self.hosted(node, index).machine.role.name for node in self.machines)
            assert roles.count(PartitionRole.PRIMARY_HEALED.name) == 1, self.describe()
        for judge in self.judges:
            judge.check_final_state()

    def _consume_all_queues(self) -> None:
        for consumer in self.consumers:
            consumer.confirm_all()
        read = {consumer.uri for consumer in self.consumers}
        for uri in dict.fromkeys(producer.uri for producer in self.producers if producer.posted):
            for app in APPS[uri]:
                wanted = "" if len(APPS[uri]) == 1 else app
                if (f"{uri}?id={wanted}" if wanted else uri) not in read:
                    self.consumer(uri, app=wanted)
