"""A cluster of whole nodes whose machines are watched: judges see every input and every output of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from bmqtwist.cluster.changes import Change
from bmqtwist.cluster.election_events import ElectionInput, ElectionOutput
from bmqtwist.cluster.log_events import Done, Input, Outcome, Output
from bmqtwist.cluster.partition_events import PartitionInput, PartitionOutput
from bmqtwist.cluster.record_log import LogRecord
from bmqtwist.cluster.state import QueueRecord
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.member.replication import Replication
from bmqtwist.queue.queue import Put
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.relays import Relays
from bmqtwist.storage.partition_log import Batch
from bmqtwist.storage.slot_file import VoteFile
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import ClusterStateRecord
from sim.campaign.judges import Judge, Violation
from sim.campaign.messages import DOMAINS, MessageJudge
from sim.campaign.schedule import Schedule
from sim.elected import INACTIVITY_S, ElectedCluster

DATA_BYTES = 1 << 20  # of a DATA file
CLOCK_SPREAD_S = 1000.0  # the clocks of nodes differ by up to so much



class CampaignWorld(ElectedCluster):
    """The cluster of a schedule. `makers`: of the judges. Itself a participant of the simulation, which is told when
    something has happened."""

    inactivity = INACTIVITY_S

    def __init__(self, schedule: Schedule, makers: Sequence[Callable[[CampaignWorld], Judge]]) -> None:
        random = Random(f"{schedule.seed}/clocks")
        options: dict[str, dict[str, Any]] = {f"n{number}": {"clock_ahead": random.random() * CLOCK_SPREAD_S}
                                              for number in range(1, schedule.size + 1)}
        self.schedule = schedule
        self.counts: Counter[str] = Counter()
        self.logs: Any = None  # the `partitions.PartitionJudge`
        self.judges = [make(self) for make in makers]
        self._looks = [judge.looked for judge in self.judges if type(judge).looked is not Judge.looked]
        self.violation: Violation | None = None  # the first one
        self.messages = next(judge for judge in self.judges if isinstance(judge, MessageJudge))
        self.proposals = 0
        self.over = False  # nothing more is to happen
        self.clients_at_work: list[Any] = []  # `clients.CampaignClient`
        self.unsettled: Counter[str] = Counter()  # queues -> changes of which it is not known what became of them
        nodes = list(options)
        super().__init__(schedule.seed, schedule.size, options,
                         "E_LEAST_ASSIGNED" if schedule.spread else "E_LEADER_IS_MASTER_ALL",
                         {"p1": nodes[:1], "p2": nodes, "p3": ["p1", "p2"]} if schedule.clients else None,
                         DOMAINS if schedule.clients else None,
                         maxCSLFileSize=schedule.ledger_bytes, maxJournalFileSize=schedule.journal_bytes,
                         maxDataFileSize=DATA_BYTES)
        self.nodes.append(self)  # type: ignore[arg-type]

    # -- simulation.Participant ---------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Nothing is due here."""
        return None

    def tick(self) -> None:
        """Nothing is due here."""

    def record_events(self) -> None:
        """Something has happened."""
        self.counts["events"] += 1
        try:
            for look in self._looks:
                look()
        except Violation as violation:
            self.violation = self.violation or violation
        if self.violation is not None:
            raise self.violation

    def ask(self, question: Callable[[Judge], None]) -> None:
        """A judge that says no within the broker would be taken for a mistake of that: it is heard afterwards."""
        try:
            for judge in self.judges:
                question(judge)
        except Violation as violation:
            self.violation = self.violation or violation

    # -- the nodes ----------------------------------------------------------------------------------------------------

    def made(self, node: SimulatedNode) -> None:
        """Before its first life."""
        node.on_boot = partial(self._booted, node)

    def by_number(self, number: int) -> SimulatedNode:
        """n1 is 1."""
        return self.node(f"n{number}")

    def _booted(self, node: SimulatedNode) -> None:
        self.counts["boots"] += 1
        for proxy in node.broker.proxies.values():
            self._relays_watched(node, proxy.relays)
        if node in self.proxies:
            return
        self._machines_watched(node)
        if self.cluster(node.name).relays is not None:
            self._relays_watched(node, self.cluster(node.name).relays)
        cluster = node.broker.clusters[CLUSTER]
        elector, log = cluster.leadership.elector, cluster.metadata.log
        step, take, append = elector.step, log.step, log.log.append

        def elector_step(now: float, event: ElectionInput) -> list[ElectionOutput]:
            outputs = step(now, event)
            self.ask(lambda judge: judge.elector_stepped(node, now, event, outputs))
            return outputs

        def log_step(event: Input, wall: int) -> list[Output]:
            outputs = take(event, wall)
            self.ask(lambda judge: judge.log_stepped(node, event, outputs))
            return outputs

        def log_append(record: ClusterStateRecord) -> LogRecord:
            previous = log.log.last
            made = append(record)
            self.ask(lambda judge: judge.appended(node, made, previous))
            return made

        elector.step, log.step, log.log.append = elector_step, log_step, log_append  # type: ignore[method-assign]
        self.ask(lambda judge: judge.booted(node))

    def _machines_watched(self, node: SimulatedNode) -> None:
        """Those of its partitions."""
        replication = node.broker.clusters[CLUSTER].replication
        for hosted in replication.hosted if replication is not None else ():
            self._machine_watched(node, hosted)

    def _machine_watched(self, node: SimulatedNode, hosted: HostedPartition) -> None:
        step = hosted.machine.step

        def hosted_step(now: float, event: PartitionInput) -> list[PartitionOutput]:
            self._writing_watched(node, hosted)
            outputs = step(now, event)
            self.ask(lambda judge: judge.partition_stepped(node, hosted, now, event, outputs))
            return outputs
        hosted.machine.step = hosted_step  # type: ignore[method-assign]

    def _writing_watched(self, node: SimulatedNode, hosted: HostedPartition) -> None:
        """Of the partition that stands for it now."""
        log = hosted.partition.log
        if "take_batches" in vars(log):
            return
        take = log.take_batches

        def take_batches() -> list[Batch]:
            batches = take()
            self.ask(lambda judge: judge.written(node, hosted, batches))
            return batches
        log.take_batches = take_batches  # type: ignore[method-assign]

    def _relays_watched(self, node: SimulatedNode, relays: Relays) -> None:
        relays.uplink.put = partial(self._relayed, node, relays, relays.uplink.put)  # type: ignore[method-assign]

    def _relayed(self, node: SimulatedNode, relays: Relays, send: Callable[[RelayQueue, Put], None], queue: RelayQueue,
                 put: Put) -> None:
        self.ask(lambda judge: judge.relayed(node, relays, queue, put))
        send(queue, put)

    def relays(self, node: SimulatedNode) -> list[Relays]:
        """Of a node that is up: towards the clusters that it is a proxy of, or towards other members."""
        own = [] if node in self.proxies else [self.cluster(node.name).relays]
        return [*(proxy.relays for proxy in node.broker.proxies.values()), *(each for each in own if each is not None)]

    # -- partitions ---------------------------------------------------------------------------------------------------

    def replication(self, node: SimulatedNode) -> Replication:
        """Of a node that is up, in a cluster of several."""
        found = self.cluster(node.name).replication
        assert found is not None
        return found

    def hosted(self, node: SimulatedNode, index: int) -> HostedPartition:
        """One partition of a node."""
        return self.replication(node).hosted[index]

    def queue_record(self, uri: str) -> QueueRecord | None:
        """As any node that is up knows it."""
        found = [self.cluster(node.name).metadata.state.queues.get(uri) for node in self.machines if node.up]
        return next((record for record in found if record is not None), None)

    def lease_at(self, name: str, uri: str) -> int:
        """Under which lease a node is primary of a queue; 0 = it is not, or it is alone."""
        record, node = self.queue_record(uri), self.node(name)
        if node in self.proxies or len(self.machines) == 1 or not node.up or record is None:
            return 0
        serves = self.replication(node).is_active_primary(record.partition_id)
        return self.hosted(node, record.partition_id).machine.lease if serves else 0

    def primaries(self, index: int) -> list[SimulatedNode]:
        """Who believes that it is the active primary of a partition."""
        if len(self.machines) == 1:
            return [node for node in self.machines if node.up]
        return [node for node in self.machines if node.up and self.replication(node).is_active_primary(index)]

    def damage_vote(self, node: SimulatedNode) -> None:
        """Nobody can tell any more how a node that is down has voted."""
        path = f"/memory/{node.name}/storage/{VoteFile.name}"
        if path in node.disk.paths() and node.disk.content(path):
            node.disk.put(path, b"\xff" * len(node.disk.content(path)))
            self.counts["votes lost"] += 1
            self.ask(lambda judge: judge.damaged(node))

    def propose(self, node: SimulatedNode, change: Change, told: Callable[[Any], None] = lambda value: None,
                uri: str = "") -> None:
        """Ask a node for a change, of a queue if that is named; `told` what was done, if it was."""
        def decided(outcome: Outcome, wall: int) -> None:
            if isinstance(outcome, Done) or not outcome.unknown:
                self.unsettled[uri] -= 1
            if isinstance(outcome, Done):
                self.counts["changes done"] += 1
                told(outcome.value)
            else:
                self.counts["changes not known" if outcome.unknown else "changes refused"] += 1
        self.proposals += 1
        self.unsettled[uri] += 1
        node.broker.clusters[CLUSTER].metadata.propose(change, decided, node.broker.loop.wall(node.local_now))
        node.turn_due()
