"""Partitions: A5-A9 leases and promises, R1-R8 and R10 their logs.

The judge keeps the history of every partition: each record that any node ever had, with the record before it.
"""

from __future__ import annotations

from bmqtwist.cluster.partition_events import (
    Activate,
    Committed,
    Cut,
    LogMoved,
    PartitionInput,
    PartitionOutput,
    PartitionRole,
    PartitionTalk,
    ReplicaReceipt,
    Say,
    TakeImage,
)
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.storage.partition_log import Batch
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.storage.records import RECORD, RECORD_BYTES, SEQUENCE_MASK, FileType, placed
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import Promise
from sim.campaign.judges import Judge, Violation, durable_promises
from sim.campaign.world import CampaignWorld

GRACE_S = 1e-3  # of rounding


class History:
    """Of one partition."""

    def __init__(self) -> None:
        self.records: dict[Psn, tuple[bytes, Psn]] = {}  # as it is without offsets, and which one is before it
        self.committed = NO_PSN

    def previous(self, psn: Psn) -> Psn:
        """Of which record it is the next one."""
        return self.records[psn][1] if psn in self.records else NO_PSN

    def common(self, one: Psn, two: Psn) -> Psn:
        """The newest record that is in the logs that end with these."""
        while one[0] != two[0]:
            if one > two:
                one = self.previous((one[0], 1))
            else:
                two = self.previous((two[0], 1))
        return min(one, two)

    def has(self, log: Psn, psn: Psn) -> bool:
        """Whether a record is in the log that ends with `log`."""
        return self.common(log, psn) == psn

    def is_committed(self, psn: Psn) -> bool:
        """Whether a majority has it, for all that was ever told."""
        return self.has(self.committed, psn)


class PartitionJudge(Judge):
    """See above."""

    def __init__(self, world: CampaignWorld) -> None:
        super().__init__(world)
        world.logs = self
        self.histories: dict[int, History] = {}
        self._seen: dict[tuple[str, int], Psn] = {}  # (node, partition): up to here its log was looked at
        self._safe: dict[tuple[str, int], Psn] = {}  # up to here it is on its disk
        self._safe_in_time: dict[tuple[str, int], Psn] = {}  # the same, before the node had promised a newer lease
        self._promised: dict[tuple[str, int], int] = {}  # the highest lease that it has promised to anybody
        self._begun: dict[tuple[int, int], tuple[str, int]] = {}  # (partition, lease): node and run that write under it
        self._known: dict[tuple[str, int], tuple[int, Psn]] = {}  # (node, partition): run, and what was committed there
        self._heard: dict[tuple[str, int], tuple[int, dict[int, float]]] = {}  # lease, node -> newest stamp it answered
        self._images: dict[tuple[str, int], tuple[SimulatedNode, HostedPartition]] = {}  # that take one
        self._active: dict[tuple[str, int], tuple[SimulatedNode, HostedPartition]] = {}

    def history(self, index: int) -> History:
        """Of one partition."""
        return self.histories.setdefault(index, History())

    def booted(self, node: SimulatedNode) -> None:
        replication = self.world.cluster(node.name).replication
        for hosted in replication.hosted if replication is not None else ():
            key = node.name, hosted.index
            self._images.pop(key, None)
            self._active.pop(key, None)
            self._seen[key] = hosted.summary.base
            self._look(node, hosted)
            if hosted.machine.standing.promised < self._promised.get(key, 0):
                raise Violation("A7", f"{node.name} has promised lease {self._promised[key]} of partition {hosted.index}, "
                                      f"and knows of {hosted.machine.standing.promised}")

    # -- records ------------------------------------------------------------------------------------------------------

    def _look(self, node: SimulatedNode, hosted: HostedPartition) -> None:
        """At what is new in its log."""
        if hosted.busy:
            return
        key, summary, files = (node.name, hosted.index), hosted.summary, hosted.partition.files
        seen = self._seen.get(key, NO_PSN)
        if not summary.holds(seen):
            seen = self.history(hosted.index).common(seen, summary.last)
            seen = seen if summary.holds(seen) else summary.base
        count = summary.distance(seen) - len(hosted.partition.tail.journal)
        if count <= 0:
            self._seen[key] = min(seen, summary.last)
            return
        journal = files.read_journal(files.current.journal.end - RECORD_BYTES * count, RECORD_BYTES * count)
        for at in range(0, len(journal), RECORD_BYTES):
            record = journal[at:at + RECORD_BYTES]
            head, lease, *_ = RECORD.unpack(record)
            psn = lease, head & SEQUENCE_MASK
            self._one(node, hosted, psn, placed(record, head, 0, 0), seen)
            seen = psn
        self._seen[key] = seen

    def written(self, node: SimulatedNode, hosted: HostedPartition, batches: list[Batch]) -> None:
        for batch in batches:
            seen = hosted.partition.psn_at(batch.first - 1)
            for record in batch.journal:
                head, lease, *_ = RECORD.unpack(record)
                psn = lease, head & SEQUENCE_MASK
                self._one(node, hosted, psn, placed(record, head, 0, 0), seen)
                seen = psn

    def _one(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn, record: bytes, previous: Psn) -> None:
        history = self.history(hosted.index)
        if psn != (previous[0], previous[1] + 1) and (psn[0] <= previous[0] or psn[1] != 1):
            raise Violation("R2", f"{node.name}, partition {hosted.index}: {psn} follows {previous}")
        known = history.records.get(psn)
        if known is None:
            history.records[psn] = record, previous
            self.world.counts["records"] += 1
            self.world.ask(lambda judge: judge.recorded(hosted.index, psn, record, hosted.summary.base))
        elif known != (record, previous):
            raise Violation("R1", f"{node.name}, partition {hosted.index}: {psn} is {record.hex()} behind {previous}; it "
                                  f"was {known[0].hex()} behind {known[1]}")

    def _shared(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn) -> Psn:
        """The newest record of its log that is in a log that ends with `psn`; what is not in its files yet was not seen."""
        if hosted.summary.holds(psn):
            return psn
        return self.history(hosted.index).common(self._seen[node.name, hosted.index], psn)

    def _is_safe(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn) -> bool:
        """Whether a loss of power would leave it."""
        summary, files = hosted.summary, hosted.partition.files
        if psn <= summary.base:
            return True
        if not summary.holds(psn):
            return False
        end = files.current.journal.end - RECORD_BYTES * (summary.distance(psn) - len(hosted.partition.tail.journal))
        file = node.disk._durable_names.get(files.directory.path(files.current.base, FileType.JOURNAL))
        if file is None:
            return False
        record = bytes(file.durable[end - RECORD_BYTES:end])
        return len(record) == RECORD_BYTES and placed(record, int.from_bytes(record[:8], "big"), 0, 0) == self.history(
            hosted.index).records[psn][0]

    # -- machines -----------------------------------------------------------------------------------------------------

    def partition_stepped(self, node: SimulatedNode, hosted: HostedPartition, now: float, event: PartitionInput,
                          outputs: list[PartitionOutput]) -> None:
        key, machine = (node.name, hosted.index), hosted.machine
        self._look(node, hosted)
        if isinstance(event, ReplicaReceipt) and event.lease == machine.lease and machine.leads:
            self._stamp(key, event, now)
        if isinstance(event, LogMoved) and machine.leads and self._is_safe(node, hosted, hosted.durable):
            self._has_safe(key, machine.lease, hosted.durable)
        for output in outputs:
            if isinstance(output, Say):
                self._said(node, hosted, output.message)
            elif isinstance(output, Activate):
                self._begins(node, hosted, output.lease)
            elif isinstance(output, Cut):
                self._cuts(node, hosted, output.psn)
            elif isinstance(output, TakeImage):
                self._images[key] = node, hosted
                if output.part.final:
                    del self._images[key]
                    self._cuts(node, hosted, output.part.at)
            elif isinstance(output, Committed) and not machine.leads and not self.history(hosted.index).is_committed(
                    output.psn):
                raise Violation("R8", f"{node.name}, partition {hosted.index}: {output.psn} counts as committed, but "
                                      f"{self.history(hosted.index).committed} was")
        run_number, before = self._known.get(key, (0, NO_PSN))
        if machine.leads and machine.committed > (before if run_number == node.run_number else machine.committed):
            self._commits(node, hosted, machine.committed)
        if run_number == node.run_number and machine.committed < before:
            raise Violation("R4", f"{node.name}, partition {hosted.index}: {before} was committed, now {machine.committed}")
        self._known[key] = node.run_number, machine.committed
        if machine.role is PartitionRole.PRIMARY_HEALED:
            self._active[key] = node, hosted
        else:
            self._active.pop(key, None)

    def _stamp(self, key: tuple[str, int], receipt: ReplicaReceipt, now: float) -> None:
        lease, heard = self._heard.get(key, (0, {}))
        if lease != receipt.lease:
            lease, heard = receipt.lease, {}
        heard[receipt.sender] = max(heard.get(receipt.sender, 0.0), min(now, receipt.stamp / 1000))
        self._heard[key] = lease, heard

    def _said(self, node: SimulatedNode, hosted: HostedPartition, message: PartitionTalk) -> None:
        key = node.name, hosted.index
        if isinstance(message, (Promise, ReplicaReceipt)) and not hosted.machine.leads:
            stored = durable_promises(node)
            durable = stored[hosted.index].lease if hosted.index < len(stored) else 0
            rule = "A7" if isinstance(message, Promise) else "A6"
            if durable != message.lease or durable < self._promised.get(key, 0):
                raise Violation(rule, f"{node.name} says {type(message).__name__} under lease {message.lease} of partition "
                                      f"{hosted.index}; its disk says {durable}, it has promised "
                                      f"{self._promised.get(key, 0)}")
            self._promised[key] = durable
            if isinstance(message, Promise) and not hosted.busy and self._is_safe(node, hosted, hosted.durable):
                self._has_safe(key, message.lease, hosted.durable)  # an image brings records, too
        if isinstance(message, ReplicaReceipt) and message.durable != NO_PSN:
            if not hosted.busy and not self._is_safe(node, hosted, message.durable):
                raise Violation("R3", f"{node.name}, partition {hosted.index}: {message.durable} is safe, it says, and "
                                      "is not")
            self._has_safe(key, message.lease, message.durable)

    def _has_safe(self, key: tuple[str, int], lease: int, psn: Psn) -> None:
        """What a majority has safe under the lease that wrote it is committed, before anybody knows."""
        self._safe[key], index = psn, key[1]
        if psn[0] != lease:
            return
        history, needed = self.history(index), len(self.world.machines) // 2 + 1
        self._safe_in_time[key] = psn
        reached = sorted((safe for (_, each), safe in self._safe_in_time.items() if each == index and safe[0] == lease),
                         reverse=True)
        if len(reached) >= needed and reached[needed - 1] > history.committed:
            self._now_committed(history, key, reached[needed - 1])

    def _now_committed(self, history: History, key: tuple[str, int], psn: Psn) -> None:
        if not history.has(psn, history.committed):
            raise Violation("R6", f"{key[0]}, partition {key[1]}: {psn} is committed without {history.committed}")
        history.committed = psn
        self.world.counts["records committed"] += 1

    def _begins(self, node: SimulatedNode, hosted: HostedPartition, lease: int) -> None:
        """The first record of a lease."""
        who = self._begun.setdefault((hosted.index, lease), (node.name, node.run_number))
        if who != (node.name, node.run_number):
            rule = "A9" if who[0] == node.name else "A5"
            raise Violation(rule, f"lease {lease} of partition {hosted.index} is that of {who}, and of "
                                  f"{node.name}, {node.run_number}")
        committed = self.history(hosted.index).committed
        # a node that was paused when it had the promises may begin when others are leases ahead: it can commit nothing
        if lease > committed[0] and self._shared(node, hosted, committed) < committed:
            raise Violation("R6", f"{node.name} begins lease {lease} of partition {hosted.index} with a log up to "
                                  f"{hosted.summary.last}; {committed} is committed")
        self.world.counts["leases"] += 1

    def _cuts(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn) -> None:
        """What follows the record is taken away."""
        history, key = self.history(hosted.index), (node.name, hosted.index)
        kept = self._shared(node, hosted, history.committed)
        if kept > self._shared(node, hosted, psn):
            raise Violation("R6", f"{node.name}, partition {hosted.index}: cut off behind {psn}, and {kept} is committed")
        for safe in self._safe, self._safe_in_time:
            safe[key] = history.common(safe.get(key, NO_PSN), psn)
        self.world.counts["cuts"] += 1

    def _commits(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn) -> None:
        history = self.history(hosted.index)
        if psn[0] != hosted.machine.lease:
            raise Violation("R5", f"{node.name}, partition {hosted.index}: {psn} is counted under lease "
                                  f"{hosted.machine.lease}")
        if history.committed >= psn:
            return
        own = node.name, hosted.index
        if self._is_safe(node, hosted, psn):
            self._safe[own] = psn
        holders = [name for (name, index), safe in self._safe.items() if index == hosted.index and history.has(safe, psn)]
        if len(holders) < len(self.world.machines) // 2 + 1:
            raise Violation("R5", f"{node.name}, partition {hosted.index}: {psn} is committed, and safe at {holders}")
        self._now_committed(history, own, psn)

    # -- at any moment ------------------------------------------------------------------------------------------------

    def looked(self) -> None:
        for (name, index), (node, hosted) in self._images.items():
            if node.up:
                safe = self._safe.get((name, index), NO_PSN)
                if not hosted.busy and hosted.summary.holds(safe) and not self._is_safe(node, hosted, safe):
                    raise Violation("R7", f"{name}, partition {index}: {safe} was safe, and an image is not complete yet")
        needed = len(self.world.machines) // 2 if self._active else 0
        for key, (node, hosted) in self._active.items():
            if not node.up or node.paused or not needed:
                continue
            lease, heard = self._heard.get(key, (0, {}))
            timing = hosted.machine.standing.timing
            oldest = node.local_now - timing.lease - timing.keepalive - GRACE_S
            recent = [number for number, moment in heard.items() if moment >= oldest]
            if lease != hosted.machine.lease or len(recent) < needed:
                deadline = node.next_deadline()
                if deadline is None or deadline > self.world.now:  # else it is about to notice
                    raise Violation("A8", f"{key[0]} is active in partition {key[1]}, and {recent} have answered lately")

    def quiet(self) -> None:
        """R10: the same log everywhere."""
        machines = self.world.machines
        if len(machines) == 1:
            return
        for index in range(len(self.world.replication(machines[0]).hosted)):
            all_hosted = {node.name: self.world.hosted(node, index) for node in machines}
            serving = [name for name, hosted in all_hosted.items() if hosted.machine.role is PartitionRole.PRIMARY_HEALED]
            if len(serving) != 1:
                raise Violation("L2", f"{serving} serve partition {index} when all is quiet: "
                                      f"{ {name: hosted.machine.role.name for name, hosted in all_hosted.items()} }")
            logs = {name: hosted.summary.last for name, hosted in all_hosted.items()}
            if len(set(logs.values())) != 1:
                raise Violation("R10", f"partition {index} when all is quiet: {logs}")
            for name, hosted in all_hosted.items():
                stored = {queue.uri: [message.guid for message in queue.messages.values()]
                          for queue in hosted.partition.state.queues.values()}
                first = {queue.uri: [message.guid for message in queue.messages.values()]
                         for queue in all_hosted[machines[0].name].partition.state.queues.values()}
                if {uri: sorted(each) for uri, each in stored.items()} != {uri: sorted(each) for uri, each in first.items()}:
                    raise Violation("R9", f"{name}, partition {index}: {stored}; {machines[0].name}: {first}")
