"""Simulated cluster of a campaign: its state machines report each input and output to the judges.

`CampaignWorld` replaces the methods of the machines of each new run of a node by wrappers, which call the judges after the
method. `play.py` and `sim.faults` use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from bmqtwist.cluster.changes import Change
from bmqtwist.cluster.election_events import ElectionInput, ElectionOutput
from bmqtwist.cluster.log_events import Done, Input, Outcome, Output
from bmqtwist.cluster.partition_events import PartitionInput, PartitionOutput
from bmqtwist.cluster.state import QueueRecord
from bmqtwist.config.broker import Configuration
from bmqtwist.config.clusters import ClusterNode
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.member.replication import Replication
from bmqtwist.queue.queue import Put
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.relay.relays import Relays
from bmqtwist.storage.identity import IdentityFile, StorageState
from bmqtwist.storage.ledger_file import LEDGER_SUFFIX
from bmqtwist.storage.partition_log import Batch
from bmqtwist.storage.slot_file import PromiseFile, VoteFile
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.versions import BASELINE, OWN, VersionRange
from bmqtwist.wire.cluster_schema import ClusterStateRecord, MemberList
from sim.campaign.judges import STORAGE, Judge, Loss, Violation, durable_promises, durable_vote
from sim.campaign.messages import DOMAINS, MessageJudge
from sim.campaign.schedule import Schedule
from sim.elected import INACTIVITY_S, ElectedCluster

ROLLBACK_S = 20  # before the features of a release become active, once all nodes have it
DATA_BYTES = 1 << 20  # of a DATA file

EVERYTHING = Loss(True, True, True, (0, 1))  # of a node with two partitions: its whole storage directory

# The first release with versions, and the one before, which announces none.
PREVIOUS = replace(OWN, release="0.0.9", features=BASELINE)
LEGACY = replace(PREVIOUS, release="0.0.1", protocol=VersionRange(0, 0), storage=VersionRange(0, 0))

CLOCK_SPREAD_S = 1000.0  # largest difference between the monotonic clocks of two nodes


class CampaignWorld(ElectedCluster):
    """The cluster of a schedule, with one judge for each of `judge_types`. It is a part of its own simulation, so that
    `record_events` runs after each event."""

    inactivity = INACTIVITY_S
    name = ""  # of no node

    def __init__(self, schedule: Schedule, judge_types: Sequence[Callable[[CampaignWorld], Judge]]) -> None:
        random = Random(f"{schedule.seed}/clocks")
        options: dict[str, dict[str, Any]] = {f"n{number}": {"clock_ahead": random.random() * CLOCK_SPREAD_S}
                                              for number in range(1, schedule.size + 1)}
        self.schedule = schedule
        self.counts: Counter[str] = Counter()
        self.partition_judge: Any = None  # `partitions.PartitionJudge`, which sets it
        self.judges = [judge_type(self) for judge_type in judge_types]
        self._checks = [judge.check_after_event for judge in self.judges
                        if type(judge).check_after_event is not Judge.check_after_event]
        self.violation: Violation | None = None  # the first one
        self.message_judge = next(judge for judge in self.judges if isinstance(judge, MessageJudge))
        self.proposals = 0
        self.damaged = set[str]()  # nodes that have lost files since their last start, or have a flipped bit in a journal
        self.mistaken: dict[str, Any] = {}  # node -> mistake of an operator, for `operator_mistakes.py`
        self.faults_ended = False
        self.members: MemberList | None = None  # the last committed list, from `metadata.MetadataJudge`
        self.change: Any = None  # `membership.MembershipChange` in progress
        self.files: dict[str, tuple[ClusterNode, ...]] = {}  # node -> nodes in its clusters.json, if they were changed
        self.retired = set[str]()  # nodes that are not members: removed, or not started yet
        self.foreign = set[str]()  # retired nodes that have founded a cluster by mistake
        self.copies: dict[str, dict[str, bytes]] = {}  # node -> former content of its disk, for `copies.py`
        self.undisturbed = False  # no node is stopped by its timer
        self.replaced = 0  # number of nodes that got another address
        self._voters: dict[int, frozenset[str]] = {}  # version of a list -> its voters
        self.campaign_clients: list[Any] = []  # `clients.CampaignClient`
        self.undecided: Counter[str] = Counter()  # queue URI -> proposed changes with unknown outcome
        nodes = list(options)
        super().__init__(schedule.seed, schedule.size, options,
                         "E_LEAST_ASSIGNED" if schedule.spread else "E_LEADER_IS_MASTER_ALL",
                         {"p1": nodes[:1], "p2": nodes, "p3": ["p1", "p2"]} if schedule.clients else None,
                         DOMAINS if schedule.clients else None,
                         maxCSLFileSize=schedule.ledger_bytes, maxJournalFileSize=schedule.journal_bytes,
                         app={"bmqtwist": {"rollbackSeconds": ROLLBACK_S}}, maxDataFileSize=DATA_BYTES)
        self.nodes.append(self)  # type: ignore[arg-type]

    # -- simulation.Participant ---------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return None: the world itself has no timers."""
        return None

    def tick(self) -> None:
        """Do nothing: the world itself has no timers."""

    def record_events(self) -> None:
        """Run the judges' checks after an event; raise the first Violation of this event."""
        self.counts["events"] += 1
        try:
            for check in self._checks:
                check()
        except Violation as violation:
            self.violation = self.violation or violation
        if self.violation is not None:
            raise self.violation

    def notify_judges(self, notify: Callable[[Judge], None]) -> None:
        """Call `notify` with each judge. A Violation is stored and raised after the event, because error isolation would
        catch it inside the broker."""
        try:
            for judge in self.judges:
                notify(judge)
        except Violation as violation:
            self.violation = self.violation or violation

    # -- the nodes ----------------------------------------------------------------------------------------------------

    def on_node_created(self, node: SimulatedNode) -> None:
        node.on_boot = partial(self._on_boot, node)
        node._configure = partial(self._configuration, node.name, node._configure)
        if node.name.startswith("n") and self.schedule.old_nodes >> int(node.name[1:]) - 1 & 1:
            node.versions = (PREVIOUS, LEGACY)[self.schedule.seed % 2]

    def _configuration(self, name: str, usual: Callable[[], Configuration]) -> Configuration:
        """Return the configuration of a node, with the nodes of `files`."""
        found, nodes = usual(), self.files.get(name)
        if nodes is None:
            return found
        definition, = found.clusters.my_clusters
        return replace(found, clusters=replace(found.clusters, my_clusters=(replace(definition, nodes=nodes),)))

    @property
    def machines(self) -> list[SimulatedNode]:
        """The members of the cluster, without proxies and without removed nodes."""
        found = super().machines
        return [node for node in found if node.name not in self.retired] if self.retired else found

    def node_by_number(self, number: int) -> SimulatedNode:
        """Return a member by its number, from 1 on: 1 is n1."""
        return self.machines[(number - 1) % len(self.machines)]

    def voters(self, members: MemberList | None) -> frozenset[str]:
        """Return the names of the voters in a list; None = the cluster has no list yet."""
        if members is None:
            return frozenset(f"n{number}" for number in range(1, self.schedule.size + 1))
        if members.version not in self._voters:
            self._voters[members.version] = frozenset(each.name for each in members.nodes if each.voting)
        return self._voters[members.version]

    def voters_at(self, node: SimulatedNode) -> frozenset[str]:
        """Return the names of the voters in the committed list as a running node knows it."""
        return self.voters(self.cluster(node.name).metadata.state.members)

    def _on_boot(self, node: SimulatedNode) -> None:
        if node.name in self.foreign:
            return
        self.counts["boots"] += 1
        self.damaged.discard(node.name)  # its identity says so from now on
        for proxy in node.broker.proxies.values():
            self._observe_relays(node, proxy.relays)
        if node in self.proxies:
            return
        self._observe_partitions(node)
        if self.cluster(node.name).relays is not None:
            self._observe_relays(node, self.cluster(node.name).relays)
        cluster = node.broker.clusters[CLUSTER]
        elector, log = cluster.leadership.elector, cluster.metadata.log
        step_elector, step_log, append = elector.step, log.step, log.log.append

        def elector_step(now: float, event: ElectionInput) -> list[ElectionOutput]:
            outputs = step_elector(now, event)
            self.notify_judges(lambda judge: judge.on_elector_step(node, now, event, outputs))
            return outputs

        def log_step(event: Input, wall: int) -> list[Output]:
            outputs = step_log(event, wall)
            self.notify_judges(lambda judge: judge.on_log_step(node, event, outputs))
            return outputs

        def log_append(record: ClusterStateRecord) -> None:
            previous = log.log.last
            append(record)
            appended = log.log.records[-1]
            self.notify_judges(lambda judge: judge.on_ledger_append(node, appended, previous))

        elector.step, log.step, log.log.append = elector_step, log_step, log_append  # type: ignore[method-assign]
        self.notify_judges(lambda judge: judge.on_boot(node))

    def _observe_partitions(self, node: SimulatedNode) -> None:
        replication = node.broker.clusters[CLUSTER].replication
        for hosted in replication.hosted if replication is not None else ():
            self._observe_partition(node, hosted)

    def _observe_partition(self, node: SimulatedNode, hosted: HostedPartition) -> None:
        step = hosted.machine.step

        def hosted_step(now: float, event: PartitionInput) -> list[PartitionOutput]:
            self._observe_writes(node, hosted)
            outputs = step(now, event)
            self.notify_judges(lambda judge: judge.on_partition_step(node, hosted, now, event, outputs))
            return outputs
        hosted.machine.step = hosted_step  # type: ignore[method-assign]

    def _observe_writes(self, node: SimulatedNode, hosted: HostedPartition) -> None:
        """Report the batches that the current log of a partition writes; a change of role replaces the log."""
        log = hosted.partition.log
        if "take_batches" in vars(log):  # observed already
            return
        take = log.take_batches

        def take_batches() -> list[Batch]:
            batches = take()
            self.notify_judges(lambda judge: judge.on_batches_written(node, hosted, batches))
            return batches
        log.take_batches = take_batches  # type: ignore[method-assign]

    def _observe_relays(self, node: SimulatedNode, relays: Relays) -> None:
        relays.uplink.put = partial(self._relay_put, node, relays, relays.uplink.put)  # type: ignore[method-assign]

    def _relay_put(self, node: SimulatedNode, relays: Relays, send: Callable[[RelayQueue, Put], None], queue: RelayQueue,
                   put: Put) -> None:
        self.notify_judges(lambda judge: judge.on_put_relayed(node, relays, queue, put))
        send(queue, put)

    def relays(self, node: SimulatedNode) -> list[Relays]:
        """Return the relays of a running node: to the clusters that it is a proxy of, or to the other members."""
        own = [] if node in self.proxies else [self.cluster(node.name).relays]
        return [*(proxy.relays for proxy in node.broker.proxies.values()), *(each for each in own if each is not None)]

    # -- partitions ---------------------------------------------------------------------------------------------------

    def replication(self, node: SimulatedNode) -> Replication:
        """Return the replication of a running node in a cluster of several nodes."""
        found = self.cluster(node.name).replication
        assert found is not None
        return found

    def hosted(self, node: SimulatedNode, index: int) -> HostedPartition:
        """Return a partition of a node by its number."""
        return self.replication(node).hosted[index]

    def queue_record(self, uri: str) -> QueueRecord | None:
        """Return the metadata of a queue from any running node; None = no node has it."""
        found = [self.cluster(node.name).metadata.state.queues.get(uri) for node in self.machines if node.up]
        return next((record for record in found if record is not None), None)

    def lease_at(self, name: str, uri: str) -> int:
        """Return the lease under which a node is the active primary of a queue; 0 = not primary, or the only node."""
        record, node = self.queue_record(uri), self.node(name)
        if node in self.proxies or len(self.machines) == 1 or not node.up or record is None:
            return 0
        serves = self.replication(node).is_active_primary(record.partition_id)
        return self.hosted(node, record.partition_id).machine.lease if serves else 0

    def primaries(self, index: int) -> list[SimulatedNode]:
        """Return the nodes that act as active primary of a partition."""
        if len(self.machines) == 1:
            return [node for node in self.machines if node.up]
        return [node for node in self.machines if node.up and self.replication(node).is_active_primary(index)]

    def damage_vote(self, node: SimulatedNode) -> None:
        """Overwrite the vote file of a stopped node with unreadable bytes."""
        path = f"/memory/{node.name}/storage/{VoteFile.name}"
        if path in node.disk.paths() and node.disk.content(path):
            node.disk.put(path, b"\xff" * len(node.disk.content(path)))
            self.counts["votes lost"] += 1
            self.notify_judges(lambda judge: judge.on_storage_lost(node, Loss(vote=True)))

    def lose_storage(self, node: SimulatedNode, lost: Loss) -> None:
        """Remove files of a stopped node."""
        self.notify_judges(lambda judge: judge.on_storage_lost(node, lost))
        sets = [f"bmq_{index}." for index in lost.partitions]
        for path in node.disk.paths():
            directory, _, name = path.rpartition("/")
            if directory.endswith("/storage") and (
                    lost.vote and name == VoteFile.name or lost.promises and name == PromiseFile.name
                    or lost.metadata and name.endswith(LEDGER_SUFFIX) or any(name.startswith(each) for each in sets)
                    or lost == EVERYTHING):
                node.disk.remove(path)
                node.disk.sync_directory(directory)
        self.damaged.add(node.name)

    def may_lose_vote(self, node: SimulatedNode) -> bool:
        """Return whether the cluster continues without an operator after the loss of a node's vote: enough members with
        intact storage remain, or every node has a ledger."""
        size = len(self.voters(self.members))
        identities = [IdentityFile(each.disk, STORAGE.format(each.name)).read()[0] for each in self.machines]
        if len(set(self.intact_members()) - {node.name}) >= size - size // 2:
            return True
        if self.foreign or self.members is None and self.schedule.old_nodes:  # which does not announce the loss
            return False
        without_ledger = {StorageState.LOST} if self.members is None else {StorageState.LOST, StorageState.FRESH}
        return not self.damaged and all(
            identity is not None and identity.state not in without_ledger for identity in identities)

    def intact_members(self) -> list[str]:
        """Return the nodes whose disk has the registered incarnation, and all records that it has acknowledged; none before
        the cluster is formed."""
        lists = [members for node in self.machines if node.up
                 for members in [self.cluster(node.name).metadata.state.members] if members is not None]
        newest = max(lists, key=lambda members: members.version, default=None)
        registered = {each.node_id: each.incarnation for each in newest.nodes} if newest is not None else {}
        found = []
        for node in self.machines:
            if node.name in self.damaged:
                continue
            identity, _ = IdentityFile(node.disk, STORAGE.format(node.name)).read()
            if (identity is not None and registered.get(identity.node_id) == identity.incarnation
                    and identity.state is StorageState.COMPLETE and not durable_vote(node)[1]
                    and not any(promise.doubt for promise in durable_promises(node))):
                found.append(node.name)
        return found

    def propose(self, node: SimulatedNode, change: Change, done: Callable[[Any], None] = lambda value: None,
                uri: str = "") -> None:
        """Propose a metadata change at a node; `uri`: the queue concerned. `done` receives the result of a success."""
        def on_outcome(outcome: Outcome, wall: int) -> None:
            if isinstance(outcome, Done) or not outcome.unknown:
                self.undecided[uri] -= 1
            if isinstance(outcome, Done):
                self.counts["changes done"] += 1
                done(outcome.value)
            else:
                self.counts["changes with unknown outcome" if outcome.unknown else "changes refused"] += 1
        self.proposals += 1
        self.undecided[uri] += 1
        node.broker.clusters[CLUSTER].metadata.propose(change, on_outcome, node.broker.loop.wall(node.local_now))
        node.request_turn()
