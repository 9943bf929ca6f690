"""Model of one partition at 1, 3 or 5 nodes, with faulty links and disks; invariants are checked after every step.

The partition machines are those of the product; the log of a node is a list of records, and the model appoints the
primaries in place of a leader. Run by `property/test_partition_machines.py`; single rules are in `partition_rules.py`,
whole clusters in tests/sim.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bmqtwist.cluster.election_events import PeerDown, PeerUp, Tick
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.log_events import Alarm
from bmqtwist.cluster.partition_events import (
    Append,
    Assigned,
    BeginLease,
    Committed,
    ImageLost,
    LogAdvanced,
    LogReady,
    PartitionInput,
    PartitionOutput,
    PartitionRole,
    PromiseWritten,
    Records,
    ReplicaReceipt,
    ReplicationTiming,
    RoleChanged,
    SavePromise,
    SendCompleted,
    SendImagePart,
    SendMessage,
    SendRecords,
    SetActive,
    StoreImagePart,
    Truncate,
)
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.storage.psn import NO_PSN, LogSummary, Psn, leases_of
from bmqtwist.wire.cluster_schema import Decline, ImagePart, Renewal

TIMING = ReplicationTiming(3.0, 0.5, 2.0, 4.0)
RUN_RECORDS = 4  # records in one event
PART_RECORDS = 3  # records in one part of an image

Record = tuple[Psn, int]  # PSN and value


@dataclass(frozen=True)
class Run:
    """Consecutive records; takes the place of `storage.psn.RecordRun`."""

    previous: Psn
    last: Psn
    records: tuple[Record, ...] = ()

    @property
    def size(self) -> int:
        return 1 << 20

    def leases(self) -> tuple[Psn, ...]:
        return leases_of(psn for psn, _ in self.records)


@dataclass
class Log:
    """Log of a node: the process reads `records`; the first `safe` of them survive a loss of power.

    Records before `base` count as compacted.
    """

    records: list[Record] = field(default_factory=list)
    safe: int = 0
    base: Psn = NO_PSN
    busy: bool = False
    broken: bool = False
    parts: list[Record] = field(default_factory=list)  # received parts of an image
    replacing: Any = None  # (records, base) after LogReady

    @property
    def summary(self) -> LogSummary:
        last = self.records[-1][0] if self.records else NO_PSN
        return LogSummary(last, self.base, tuple(each for each in leases_of(psn for psn, _ in self.records)
                                              if each[0] >= self.base[0]))

    def can_send_after(self, after: Psn) -> bool:
        return self.summary.contains(after)

    @property
    def written(self) -> Psn:
        return self.summary.last

    @property
    def durable(self) -> Psn:
        return self.records[self.safe - 1][0] if self.safe else NO_PSN

    def at(self, psn: Psn) -> int:
        """Return the number of records up to and including a PSN."""
        return 0 if psn == NO_PSN else next(number for number, each in enumerate(self.records, 1) if each[0] == psn)


@dataclass
class PartitionNode:
    """A node: a process that restarts, and a disk that persists."""

    node_id: int
    log: Log = field(default_factory=Log)
    machine: PartitionMachine | None = None
    promised: int = 0  # durable
    saving: int = 0
    granted: int = 0  # number of grants that the node has received
    inputs: deque[PartitionInput] = field(default_factory=deque)
    active: int = 0  # lease under which the node is the active primary; 0: none
    images: dict[int, tuple[list[Record], Psn]] = field(default_factory=dict)
    paused: bool = False


class Partitions:
    """All nodes of the model. `mistake`: name of a planted defect."""

    def __init__(self, seed: int, size: int, mistake: str = "") -> None:
        self.random, self.mistake = Random(seed), mistake
        self.now = 0.0
        self.nodes = {number: PartitionNode(number) for number in range(1, size + 1)}
        self.majority = size // 2 + 1
        self.links: dict[tuple[int, int], deque[Any]] = {}  # (from, to) of connected nodes -> messages in flight
        self.grants: list[Assigned] = []
        self.written: dict[Psn, tuple[int, Psn]] = {}  # PSN -> value, and the PSN before it
        self.committed: list[Record] = []
        self.begun: dict[int, int] = {}  # lease -> the node that has written with it
        self.served = self.values = self.cuts = self.images = 0
        self.loss_rate = 0.0  # share of lost messages
        self.ignored_rate = 0.5  # of the declined leases, which the leader does not notice
        for number in self.nodes:
            self.boot(number)
        for one in self.nodes:
            for two in self.nodes:
                self.connect(one, two)

    # -- starts and ends of nodes and links

    def boot(self, number: int) -> None:
        node = self.nodes[number]
        if node.machine is not None:
            return
        node.log = Log(node.log.records[:], node.log.safe, node.log.base)
        node.machine = PartitionMachine(Electorate(number, self.nodes), node.log, TIMING, node.promised, f"n{number}")
        node.saving, node.active, node.images = node.promised, 0, {}
        node.inputs.clear()
        node.granted = 0
        node.paused = False

    def crash(self, number: int, power: bool) -> None:
        node = self.nodes[number]
        if node.machine is None:
            return
        node.machine = None
        node.active = 0
        if power:
            kept = self.random.randint(node.log.safe, len(node.log.records))
            del node.log.records[kept:]
        node.log.safe = len(node.log.records) if not power else min(node.log.safe, len(node.log.records))
        if self.mistake == "promise lost":
            node.promised = 0
        for other in self.nodes:
            self.disconnect(number, other)

    def connect(self, one: int, two: int) -> None:
        if one == two or (one, two) in self.links or None in (self.nodes[one].machine, self.nodes[two].machine):
            return
        for source, target in ((one, two), (two, one)):
            self.links[source, target] = deque()
            self.put(source, PeerUp(target))

    def disconnect(self, one: int, two: int) -> None:
        if self.links.pop((one, two), None) is None:
            return
        del self.links[two, one]
        for source, target in ((one, two), (two, one)):
            if self.nodes[source].machine is not None:
                self.put(source, PeerDown(target))

    # -- one node

    def put(self, number: int, event: PartitionInput) -> None:
        """Handle an input, and perform all outputs at this node."""
        node = self.nodes[number]
        idle = not node.inputs
        node.inputs.append(event)
        if idle and not node.paused:
            self.drain(node)

    def drain(self, node: PartitionNode) -> None:
        """Handle the pending inputs."""
        while node.inputs and node.machine is not None:
            for output in node.machine.step(self.now, node.inputs[0]):
                self.perform(node, output)
            node.inputs.popleft()
        self.judge(node)

    def enqueue(self, link: deque[Any], message: Any) -> None:
        """Add a message to a link. Control messages overtake some of the other messages, in order."""
        at = len(link)
        if isinstance(message, (Renewal, ReplicaReceipt)):
            last = max((index for index, each in enumerate(link) if isinstance(each, (Renewal, ReplicaReceipt))), default=-1)
            at = self.random.randint(last + 1, at)
        link.insert(at, message)

    def perform(self, node: PartitionNode, output: PartitionOutput) -> None:
        log, number = node.log, node.node_id
        if isinstance(output, SendMessage):
            link = self.links.get((number, output.node_id))
            if link is not None and self.random.random() >= self.loss_rate:
                self.enqueue(link, output.message)
        elif isinstance(output, SavePromise):
            node.saving = max(node.saving, output.lease)
        elif isinstance(output, Append):
            assert not log.busy and log.summary.last == output.after, (log.summary, output)
            records = output.run.records  # type: ignore[attr-defined]  # of `Run`
            psns = [psn for psn, _ in records]
            log.records += records[psns.index(output.after) + 1 if output.after in psns else 0:]
            node.inputs.append(LogAdvanced())
        elif isinstance(output, Truncate):
            assert not log.busy
            self.cuts += 1
            keep = log.at(output.psn)
            for record in log.records[keep:]:
                assert record not in self.committed or self.mistake, f"n{number} truncates {record}, which is committed"
            log.busy, log.replacing = True, (log.records[:keep], log.base)
        elif isinstance(output, StoreImagePart):
            part = output.part
            log.parts = (log.parts if part.number else []) + list(part.journal.records)  # type: ignore[attr-defined]
            if part.final:
                self.images += 1
                log.busy, log.replacing = True, (log.parts, part.at)
        elif isinstance(output, BeginLease):
            assert output.lease not in self.begun, "a lease is used twice"
            self.begun[output.lease] = number
            missing = [record for record in self.committed if record not in log.records]
            assert not missing, f"n{number} begins lease {output.lease} without {missing}"
            self.write(node, (output.lease, 1))
            node.inputs.append(LogAdvanced())
        elif isinstance(output, SendRecords):
            self.feed(node, output)
        elif isinstance(output, SendImagePart):
            self.feed_image(node, output)
        elif isinstance(output, Committed):
            if node.machine is not None and node.machine.leads:
                self.commit(node, output.psn)
        elif isinstance(output, SetActive):
            node.active = output.lease if output.active else 0
            self.served += output.active
        elif isinstance(output, Decline):
            self.decline(number, output)
        elif isinstance(output, Alarm):
            raise AssertionError(output.text)
        else:
            assert isinstance(output, RoleChanged) or type(output).__name__ == "TickAt"

    def write(self, node: PartitionNode, psn: Psn) -> None:
        self.values += 1
        before = node.log.summary.last
        assert psn not in self.written, f"{psn} is written twice"
        self.written[psn] = self.values, before
        node.log.records.append((psn, self.values))

    def feed(self, node: PartitionNode, output: SendRecords) -> None:
        log = node.log
        start = log.at(output.after)
        records = tuple(log.records[start:start + RUN_RECORDS])
        last = records[-1][0] if records else output.after
        assert node.machine is not None
        if records:
            self.perform(node, SendMessage(output.node_id, Records(node.node_id, node.machine.lease, node.machine.committed,
                                                           Run(output.after, last, records))))  # type: ignore[arg-type]
        node.inputs.append(SendCompleted(output.node_id, last, 1 << 20 if records else 0))

    def feed_image(self, node: PartitionNode, output: SendImagePart) -> None:
        assert node.machine is not None
        if output.number == 0:
            node.images[output.node_id] = list(node.log.records), node.log.summary.last
        image = node.images.get(output.node_id)
        if image is None:
            node.inputs.append(ImageLost(output.node_id))
            return
        records, at = image
        start = output.number * PART_RECORDS
        final = start + PART_RECORDS >= len(records)
        part = ImagePart(node.node_id, node.machine.lease, output.number, at, final,
                         Run(NO_PSN, at, tuple(records[start:start + PART_RECORDS])))  # type: ignore[arg-type]
        self.perform(node, SendMessage(output.node_id, part))
        node.inputs.append(SendCompleted(output.node_id, None, 1, final))

    def commit(self, node: PartitionNode, psn: Psn) -> None:
        log = node.log
        upto = log.records[:log.at(psn)]
        assert len(upto) < len(self.committed) or self.committed == upto[:len(self.committed)], "other records"
        holders = sum(each.log.records[:each.log.safe][:len(upto)] == upto for each in self.nodes.values())
        assert holders >= self.majority, f"{psn} is on {holders} disks"
        if len(upto) > len(self.committed):
            self.committed = upto

    def judge(self, node: PartitionNode) -> None:
        """Check the invariants of a node after every step."""
        log, before = node.log, NO_PSN
        for psn, value in log.records:
            assert self.written[psn] == (value, before), f"n{node.node_id}: {psn} differs"
            before = psn
        assert self.committed == log.records[:len(self.committed)] or not log.records or len(
            log.records) < len(self.committed) or node.machine is None or not node.active or node.active < max(self.begun)
        machine = node.machine
        if machine is not None:
            assert machine.standing.promised_lease == node.promised
            if node.active:
                assert machine.role is PartitionRole.PRIMARY_HEALED and self.begun[node.active] == node.node_id
                assert machine.lease == node.active

    # -- actions of the model

    def grant(self, number: int | None = None) -> None:
        """Appoint a primary; each node receives the assignment with its own delay."""
        number = number or self.random.choice(list(self.nodes))
        self.grants.append(Assigned(number, len(self.grants) + 1))

    def decline(self, number: int, declined: Decline) -> None:
        if self.grants[-1].lease == declined.lease and self.random.random() >= self.ignored_rate:
            self.grant(declined.successor or (number if declined.able else None))

    def learn(self, number: int) -> None:
        node = self.nodes[number]
        if node.machine is not None and not node.paused and node.granted < len(self.grants):
            node.granted += 1
            self.put(number, self.grants[node.granted - 1])

    def deliver(self, source: int, target: int) -> None:
        link = self.links.get((source, target))
        if link and not self.nodes[target].paused:
            self.put(target, link.popleft())

    def work(self, number: int) -> None:
        """Complete the jobs of threads."""
        node, log = self.nodes[number], self.nodes[number].log
        if node.machine is None or node.paused:
            return
        if node.saving > node.promised:
            node.promised = node.saving
            self.put(number, PromiseWritten(node.saving))
        if log.busy:
            log.records, log.base = log.replacing[0][:], log.replacing[1]
            log.safe, log.busy, log.parts = len(log.records), False, []
            node.images = {}
            self.put(number, LogReady())
        elif log.safe < len(log.records):
            log.safe = len(log.records)
            self.put(number, LogAdvanced())

    def post(self, number: int) -> None:
        node = self.nodes[number]
        if node.machine is None or node.paused or not node.active:
            return
        assert not node.log.busy
        self.write(node, (node.active, node.log.summary.last[1] + 1))
        self.put(number, LogAdvanced())

    def compact(self, number: int) -> None:
        node = self.nodes[number]
        if node.machine is not None and not node.log.busy and not node.paused:
            node.log.base = node.log.summary.last
            node.images = {}

    def resume(self, number: int) -> None:
        """Resume a paused node with its pending inputs."""
        node = self.nodes[number]
        if node.paused:
            node.paused = False
            self.drain(node)

    def tick(self, number: int) -> None:
        node = self.nodes[number]
        if node.machine is not None and not node.paused:
            self.put(number, Tick())
            assert not node.active or node.machine.targets.supported_until > self.now, "active without answers of a quorum"

    def round(self) -> None:
        """Advance all nodes by 0.05 s."""
        self.now += 0.05
        for number in self.nodes:
            self.learn(number)
            self.work(number)
            self.tick(number)
        for source, target in list(self.links):
            for _ in range(len(self.links.get((source, target), ()))):
                self.deliver(source, target)

    def recover(self) -> PartitionNode:
        """End all faults; return the primary once all nodes have all records."""
        self.loss_rate = self.ignored_rate = 0.0
        for number in self.nodes:
            self.resume(number)
            self.boot(number)
            self.work(number)
        for one in self.nodes:
            for two in self.nodes:
                self.connect(one, two)
        if not self.grants:
            self.grant()
        for _ in range(1200):
            self.round()
            active = [node for node in self.nodes.values() if node.active]
            if active and len({node.log.summary.last for node in self.nodes.values()}) == 1:
                break
        assert len(active) == 1, {number: (node.machine.role, node.machine.lease, node.log.summary)
                                  for number, node in self.nodes.items() if node.machine is not None}
        for _ in range(5):
            self.post(active[0].node_id)
            for _ in range(10):
                self.round()
        logs = [node.log.records for node in self.nodes.values()]
        assert all(log == logs[0] for log in logs) and self.committed == logs[0], [node.log.summary for node
                                                                                   in self.nodes.values()]
        return active[0]


FAULTS = (["deliver"] * 14 + ["work"] * 6 + ["learn"] * 3 + ["post"] * 6 + ["round"] * 3 + [
    "grant", "crash", "power", "boot", "boot", "boot", "cut", "connect", "connect", "connect", "compact", "tick", "pause",
    "resume", "resume", "later"] + ["strand"] * 3)


def disturb(world: Partitions, kind: str) -> None:
    """Perform one random step of a kind."""
    random = world.random
    one, two = random.choice(list(world.nodes)), random.choice(list(world.nodes))
    if kind == "deliver" and world.links:
        world.deliver(*random.choice(sorted(world.links)))
    elif kind in ("work", "learn", "post", "compact", "tick", "boot"):
        getattr(world, kind)(one)
    elif kind == "round":
        world.round()
    elif kind == "grant":
        leaders = [node.node_id for node in world.nodes.values() if node.active]
        if not leaders or random.random() < 0.3:
            world.grant(one)
    elif kind in ("crash", "power"):
        world.crash(one, kind == "power")
    elif kind == "cut" and one != two:
        world.disconnect(one, two)
    elif kind == "connect":
        world.connect(one, two)
    elif kind == "pause" and random.random() < 0.3:
        world.nodes[one].paused = True
    elif kind == "resume":
        world.resume(one)
    elif kind == "later":
        world.now += random.random() * 2
    elif kind == "strand":
        strand(world)


def strand(world: Partitions) -> None:
    """Let a primary write records that less than a quorum receives; then appoint another primary."""
    random = world.random
    for node in [node for node in world.nodes.values() if node.active]:
        receivers = random.sample(list(world.nodes), random.randint(0, world.majority - 1))
        for other in world.nodes:
            if other not in receivers:
                world.disconnect(node.node_id, other)
        for _ in range(random.randint(1, 4)):
            world.post(node.node_id)
        for other in receivers:
            for _ in range(random.randint(0, 3)):
                world.deliver(node.node_id, other)
        if random.random() < 0.5:
            world.work(node.node_id)
        if random.random() < 0.5:
            world.crash(node.node_id, power=random.random() < 0.3)
        world.grant(random.choice([number for number in world.nodes if number != node.node_id] or [node.node_id]))
        for _ in range(random.randint(0, 12)):
            world.round()
