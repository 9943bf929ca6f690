"""Judge of partitions: their leases, promises and logs.

A5  Each lease belongs to one node.
A6  A replica sends receipts only under a lease that it has durably promised.
A7  A promise is durable before it is sent, and its lease never decreases.
A8  A primary is active only while a majority has answered within its lease time.
A9  No lease is used in two runs of a node.
R1  Two records with the same PSN are equal, and the records before them too.
R2  Sequence numbers in a lease are 1, 2, 3, ...; leases increase.
R3  Records up to the durable PSN of a receipt are durable at its sender.
R4  The commit position of a partition never decreases in a run of a node.
R5  A committed record is of the current lease and durable at a majority.
R6  A committed record is never truncated, and each new lease and commit contains all committed records.
R7  An incomplete image does not reduce the durable records of a node.
R8  A replica counts only records as committed that are.
R9  In the end all nodes store the same messages.
R10 In the end the logs of all nodes are equal.
R11 In the end the stored data of all live messages are intact.
R12 A node that has lost its promises, or a file set, starts with a doubt about the partition.
L2  In the end each partition has exactly one active primary.

The judge stores each record that any node ever had, with the PSN of the record before it. Created by `play.py`; it checks
`bmqtwist/cluster/partition_machine.py` and the logs on the disks. `test_campaign_judges.py` tests it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from bmqtwist.cluster.log_events import Input, Output
from bmqtwist.cluster.partition_events import (
    BeginLease,
    Committed,
    LogAdvanced,
    PartitionInput,
    PartitionMessage,
    PartitionOutput,
    PartitionRole,
    ReplicaReceipt,
    SendMessage,
    StoreImagePart,
    Truncate,
)
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.storage.partition_log import Batch
from bmqtwist.storage.psn import NO_PSN, Psn
from bmqtwist.storage.records import RECORD, RECORD_BYTES, SEQUENCE_MASK, FileType, with_offsets
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import Promise
from sim.campaign.judges import Judge, Loss, Violation, damaged_messages, durable_promises
from sim.campaign.world import EVERYTHING, CampaignWorld

ROUNDING_S = 1e-3


class History:
    """Every record that any node ever had of a partition, by PSN."""

    def __init__(self) -> None:
        self.records: dict[Psn, tuple[bytes, Psn]] = {}  # PSN -> record with offsets of 0, PSN of the record before it
        self.committed = NO_PSN

    def previous(self, psn: Psn) -> Psn:
        """Return the PSN of the record before this one."""
        return self.records[psn][1] if psn in self.records else NO_PSN

    def common(self, one: Psn, two: Psn) -> Psn:
        """Return the PSN of the newest record that is in both logs, the one that ends with `one` and the one with `two`."""
        while one[0] != two[0]:
            if one > two:
                one = self.previous((one[0], 1))
            else:
                two = self.previous((two[0], 1))
        return min(one, two)

    def has(self, log: Psn, psn: Psn) -> bool:
        """Return whether a record is in the log that ends with `log`."""
        return self.common(log, psn) == psn

    def is_committed(self, psn: Psn) -> bool:
        """Return whether a record was ever committed."""
        return self.has(self.committed, psn)


class PartitionJudge(Judge):
    """Checks A5 to A9, R1 to R12 and L2."""

    def __init__(self, world: CampaignWorld) -> None:
        super().__init__(world)
        world.partition_judge = self
        self.histories: dict[int, History] = {}
        # By name of the node and partition:
        self._inspected: dict[tuple[str, int], Psn] = {}  # last record of its log that was inspected
        self._durable: dict[tuple[str, int], Psn] = {}  # last record that is durable
        self._lost_records: list[tuple[tuple[str, int], Psn]] = []  # last durable record before a loss of storage
        self._durable_in_time: dict[tuple[str, int], Psn] = {}  # the same, before the node promised a newer lease
        self._promised: dict[tuple[str, int], int] = {}  # highest lease that it has promised
        self._positions: dict[tuple[str, int], tuple[int, Psn]] = {}  # number of the run, commit position
        self._stamps: dict[tuple[str, int], tuple[int, dict[int, float]]] = {}  # lease, replica -> newest stamp it answered
        self._images: dict[tuple[str, int], tuple[SimulatedNode, HostedPartition]] = {}  # image transfers in progress
        self._active: dict[tuple[str, int], tuple[SimulatedNode, HostedPartition]] = {}  # active primaries
        self._supported_until: dict[tuple[str, int], float] = {}  # primary -> time until which A8 holds if nothing changes
        self._doubtful: dict[str, Sequence[int]] = {}  # node -> partitions of which it has lost data since its last run
        self._lease_owners: dict[tuple[int, int], tuple[str, int]] = {}  # (partition, lease) -> node, number of its run

    def history(self, index: int) -> History:
        """Return the history of a partition."""
        return self.histories.setdefault(index, History())

    def on_boot(self, node: SimulatedNode) -> None:
        replication = self.world.cluster(node.name).replication
        for hosted in replication.hosted if replication is not None else ():
            key = node.name, hosted.index
            self._images.pop(key, None)
            self._active.pop(key, None)
            if hosted.index in self._doubtful.get(node.name, ()) and not hosted.machine.standing.doubt:
                raise Violation("R12", f"{node.name} has lost data of partition {hosted.index}, and does not doubt its log")
            self._inspected[key] = hosted.summary.base
            self._inspect_log(node, hosted)
            if hosted.machine.standing.promised_lease < self._promised.get(key, 0):
                raise Violation("A7", f"{node.name} has promised lease {self._promised[key]} of partition {hosted.index}, "
                                      f"and restarts with {hosted.machine.standing.promised_lease}")
        self._doubtful.pop(node.name, None)

    def on_storage_lost(self, node: SimulatedNode, lost: Loss) -> None:
        """Discard the lost promises and records of the node. Records that were durable count for a commit, as a receipt does
        that the primary has received."""
        if not lost.is_old and lost != EVERYTHING:
            self._doubtful[node.name] = range(len(EVERYTHING.partitions)) if lost.promises else lost.partitions
        for key in [key for key in self._promised if key[0] == node.name and lost.promises]:
            del self._promised[key]
        for index in lost.partitions:
            self._active.pop((node.name, index), None)
            self._images.pop((node.name, index), None)
            if (node.name, index) in self._durable:
                self._lost_records.append(((node.name, index), self._durable.pop((node.name, index))))

    # -- records ------------------------------------------------------------------------------------------------------

    def _inspect_log(self, node: SimulatedNode, hosted: HostedPartition) -> None:
        """Check the records that a node has written since the last call."""
        if hosted.busy:
            return
        key, summary, files = (node.name, hosted.index), hosted.summary, hosted.partition.files
        last = self._inspected.get(key, NO_PSN)
        if not summary.contains(last):
            last = self.history(hosted.index).common(last, summary.last)
            last = last if summary.contains(last) else summary.base
        count = summary.distance(last) - len(hosted.partition.tail.journal)
        if count <= 0:
            self._inspected[key] = min(last, summary.last)
            return
        journal = files.read_journal(files.current.journal.end - RECORD_BYTES * count, RECORD_BYTES * count)
        for at in range(0, len(journal), RECORD_BYTES):
            record = journal[at:at + RECORD_BYTES]
            head, lease, *_ = RECORD.unpack(record)
            psn = lease, head & SEQUENCE_MASK
            self._check_record(node, hosted, psn, with_offsets(record, head, 0, 0), last)
            last = psn
        self._inspected[key] = last

    def on_batches_written(self, node: SimulatedNode, hosted: HostedPartition, batches: list[Batch]) -> None:
        for batch in batches:
            last = hosted.partition.psn_at(batch.first - 1)
            for record in batch.journal:
                head, lease, *_ = RECORD.unpack(record)
                psn = lease, head & SEQUENCE_MASK
                self._check_record(node, hosted, psn, with_offsets(record, head, 0, 0), last)
                last = psn

    def _check_record(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn, record: bytes, previous: Psn) -> None:
        history = self.history(hosted.index)
        if psn != (previous[0], previous[1] + 1) and (psn[0] <= previous[0] or psn[1] != 1):
            raise Violation("R2", f"{node.name}, partition {hosted.index}: {psn} follows {previous}")
        known = history.records.get(psn)
        if known is None:
            history.records[psn] = record, previous
            self.world.counts["records"] += 1
            self.world.notify_judges(lambda judge: judge.on_new_record(hosted.index, psn, record, hosted.summary.base))
        elif known != (record, previous):
            raise Violation("R1", f"{node.name}, partition {hosted.index}: {psn} is {record.hex()} after {previous}; it "
                                  f"was {known[0].hex()} after {known[1]} before")

    def _common_record(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn) -> Psn:
        """Return the newest record of a node's log that is also in the log that ends with `psn`.

        Records that are not in the files yet are not found unless the summary of the log contains `psn`.
        """
        if hosted.summary.contains(psn):
            return psn
        return self.history(hosted.index).common(self._inspected[node.name, hosted.index], psn)

    def _is_durable(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn) -> bool:
        """Return whether a record of a node would survive a loss of power."""
        summary, files = hosted.summary, hosted.partition.files
        if psn <= summary.base:
            return True
        if not summary.contains(psn):
            return False
        end = files.current.journal.end - RECORD_BYTES * (summary.distance(psn) - len(hosted.partition.tail.journal))
        file = node.disk._durable_names.get(files.directory.path(files.current.base, FileType.JOURNAL))
        if file is None:
            return False
        record = bytes(file.durable[end - RECORD_BYTES:end])
        return len(record) == RECORD_BYTES and with_offsets(record, int.from_bytes(record[:8], "big"), 0, 0) == self.history(
            hosted.index).records[psn][0]

    # -- machines -----------------------------------------------------------------------------------------------------

    def on_log_step(self, node: SimulatedNode, event: Input, outputs: list[Output]) -> None:
        """Check A8 again: the voters may have changed."""
        for key in [key for key in self._supported_until if key[0] == node.name]:
            del self._supported_until[key]

    def on_partition_step(self, node: SimulatedNode, hosted: HostedPartition, now: float, event: PartitionInput,
                          outputs: list[PartitionOutput]) -> None:
        key, machine = (node.name, hosted.index), hosted.machine
        self._supported_until.pop(key, None)
        self._inspect_log(node, hosted)
        if isinstance(event, ReplicaReceipt) and event.lease == machine.lease and machine.leads:
            self._add_stamp(key, event, now)
        if isinstance(event, LogAdvanced) and machine.leads and self._is_durable(node, hosted, hosted.durable):
            self._add_durable(key, machine.lease, hosted.durable)
        for output in outputs:
            if isinstance(output, SendMessage):
                self._check_sent(node, hosted, output.message)
            elif isinstance(output, BeginLease):
                self._check_new_lease(node, hosted, output.lease)
            elif isinstance(output, Truncate):
                self._check_truncation(node, hosted, output.psn)
            elif isinstance(output, StoreImagePart):
                self._images[key] = node, hosted
                if output.part.final:
                    del self._images[key]
                    self._check_truncation(node, hosted, output.part.at)
            elif isinstance(output, Committed) and not machine.leads and not self.history(hosted.index).is_committed(
                    output.psn):
                raise Violation("R8", f"{node.name}, partition {hosted.index}: {output.psn} counts as committed, but the "
                                      f"commit position is {self.history(hosted.index).committed}")
        run, before = self._positions.get(key, (0, NO_PSN))
        if machine.leads and machine.committed > (before if run == node.run_number else machine.committed):
            self._check_commit(node, hosted, machine.committed)
        if run == node.run_number and machine.committed < before:
            raise Violation("R4", f"{node.name}, partition {hosted.index}: the commit position went from {before} back to "
                                  f"{machine.committed}")
        self._positions[key] = node.run_number, machine.committed
        if machine.role is PartitionRole.PRIMARY_HEALED:
            self._active[key] = node, hosted
        else:
            self._active.pop(key, None)

    def _add_stamp(self, key: tuple[str, int], receipt: ReplicaReceipt, now: float) -> None:
        lease, stamps = self._stamps.get(key, (0, {}))
        if lease != receipt.lease:
            lease, stamps = receipt.lease, {}
        stamps[receipt.sender] = max(stamps.get(receipt.sender, 0.0), min(now, receipt.stamp / 1000))
        self._stamps[key] = lease, stamps

    def _check_sent(self, node: SimulatedNode, hosted: HostedPartition, message: PartitionMessage) -> None:
        key = node.name, hosted.index
        if isinstance(message, (Promise, ReplicaReceipt)) and not hosted.machine.leads:
            stored = durable_promises(node)
            durable = stored[hosted.index].lease if hosted.index < len(stored) else 0
            rule = "A7" if isinstance(message, Promise) else "A6"
            if durable != message.lease or durable < self._promised.get(key, 0):
                raise Violation(rule, f"{node.name} sends a {type(message).__name__} for lease {message.lease} of partition "
                                      f"{hosted.index}; the promise on its disk is {durable}, the highest one that it sent "
                                      f"{self._promised.get(key, 0)}")
            self._promised[key] = durable
            if isinstance(message, Promise) and not hosted.busy and self._is_durable(node, hosted, hosted.durable):
                self._add_durable(key, message.lease, hosted.durable)  # e.g. records of an image
        if isinstance(message, ReplicaReceipt) and message.durable != NO_PSN:
            if not hosted.busy and not self._is_durable(node, hosted, message.durable):
                raise Violation("R3", f"{node.name}, partition {hosted.index}: its receipt says that {message.durable} is "
                                      "durable, but it is not")
            self._add_durable(key, message.lease, message.durable)

    def _add_durable(self, key: tuple[str, int], lease: int, psn: Psn) -> None:
        """Store the last durable record of a node.

        A record is committed as soon as a majority has it durable under the lease that wrote it, even before the primary
        knows.
        """
        self._durable[key], index = psn, key[1]
        if psn[0] != lease:
            return
        history, voters = self.history(index), self.world.voters(self.world.members)
        needed = len(voters) // 2 + 1
        self._durable_in_time[key] = psn
        reached = sorted((durable for (name, each), durable in self._durable_in_time.items()
                          if each == index and durable[0] == lease and name in voters), reverse=True)
        if len(reached) >= needed and reached[needed - 1] > history.committed:
            self._add_committed(history, key, reached[needed - 1])

    def _add_committed(self, history: History, key: tuple[str, int], psn: Psn) -> None:
        if not history.has(psn, history.committed):
            raise Violation("R6", f"{key[0]}, partition {key[1]}: {psn} is committed without {history.committed}")
        history.committed = psn
        self.world.counts["records committed"] += 1

    def _check_new_lease(self, node: SimulatedNode, hosted: HostedPartition, lease: int) -> None:
        """Check the start of a lease: its owner, and the log that it starts with."""
        owner = self._lease_owners.setdefault((hosted.index, lease), (node.name, node.run_number))
        if owner != (node.name, node.run_number):
            rule = "A9" if owner[0] == node.name else "A5"
            raise Violation(rule, f"lease {lease} of partition {hosted.index} belongs to {owner[0]} in run {owner[1]}; "
                                  f"{node.name} uses it in run {node.run_number}")
        committed = self.history(hosted.index).committed
        # committed records of later leases do not count: a paused node may process old promises, and commits nothing
        if lease > committed[0] and self._common_record(node, hosted, committed) < committed:
            raise Violation("R6", f"{node.name} starts lease {lease} of partition {hosted.index} with a log up to "
                                  f"{hosted.summary.last}; {committed} is committed")
        self.world.counts["leases"] += 1

    def _check_truncation(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn) -> None:
        """Check that no committed record follows `psn`, behind which a node truncates its log."""
        history, key = self.history(hosted.index), (node.name, hosted.index)
        committed = self._common_record(node, hosted, history.committed)
        if committed > self._common_record(node, hosted, psn):
            raise Violation("R6", f"{node.name}, partition {hosted.index}: truncated after {psn}; {committed} is committed")
        for durable in self._durable, self._durable_in_time:
            durable[key] = history.common(durable.get(key, NO_PSN), psn)
        self.world.counts["truncations"] += 1

    def _check_commit(self, node: SimulatedNode, hosted: HostedPartition, psn: Psn) -> None:
        history = self.history(hosted.index)
        if psn[0] != hosted.machine.lease:
            raise Violation("R5", f"{node.name}, partition {hosted.index}: {psn} is committed under lease "
                                  f"{hosted.machine.lease}")
        if history.committed >= psn:
            return
        own, voters = (node.name, hosted.index), self.world.voters_at(node)
        if self._is_durable(node, hosted, psn):
            self._durable[own] = psn
        # a receipt counts, also if the replica has lost its storage since
        holders = {name for (name, index), durable in (*self._durable.items(), *self._lost_records)
                   if index == hosted.index and name in voters and history.has(durable, psn)}
        if len(holders) < len(voters) // 2 + 1:
            raise Violation("R5", f"{node.name}, partition {hosted.index}: {psn} is committed, durable only at "
                                  f"{sorted(holders)}")
        self._add_committed(history, own, psn)

    # -- after each event ---------------------------------------------------------------------------------------------

    def check_after_event(self) -> None:
        for (name, index), (node, hosted) in self._images.items():
            if node.up:
                durable = self._durable.get((name, index), NO_PSN)
                if not hosted.busy and hosted.summary.contains(durable) and not self._is_durable(node, hosted, durable):
                    raise Violation("R7", f"{name}, partition {index}: {durable} was durable, and is lost before the "
                                          "image is complete")
        for key, (node, hosted) in self._active.items():
            if node.local_now <= self._supported_until.get(key, 0.0) or not node.up or node.paused:
                continue
            voters = self.world.voters_at(node)
            needed = len(voters) // 2 + 1 - (node.name in voters)
            lease, stamps = self._stamps.get(key, (0, {}))
            timing = hosted.machine.standing.timing
            answered = sorted((moment for number, moment in stamps.items() if f"n{number}" in voters), reverse=True)
            until = inf if needed <= 0 else answered[needed - 1] + timing.lease_max + timing.keepalive + ROUNDING_S if len(
                answered) >= needed else 0.0
            if lease == hosted.machine.lease and node.local_now <= until:
                self._supported_until[key] = until
                continue
            deadline = node.next_deadline()
            if deadline is None or deadline > self.world.now:  # else its timer, which is due now, will end the role
                raise Violation("A8", f"{key[0]} is active primary of partition {key[1]} at {node.local_now}, but the last "
                                      f"requests that the voters have answered are of {answered}")

    def check_final_state(self) -> None:
        """Check L2, R9, R10 and R11."""
        machines = self.world.machines
        if len(machines) == 1:
            return
        for index in range(len(self.world.replication(machines[0]).hosted)):
            all_hosted = {node.name: self.world.hosted(node, index) for node in machines}
            serving = [name for name, hosted in all_hosted.items() if hosted.machine.role is PartitionRole.PRIMARY_HEALED]
            if len(serving) != 1:
                raise Violation("L2", f"{serving} are active primaries of partition {index} in the end: "
                                      f"{ {name: hosted.machine.role.name for name, hosted in all_hosted.items()} }")
            for name, hosted in all_hosted.items():
                damaged = [guid.hex() for guid in damaged_messages([hosted])]
                if damaged:
                    raise Violation("R11", f"partition {index}: {name} has damaged data of {damaged}")
            logs = {name: hosted.summary.last for name, hosted in all_hosted.items()}
            if len(set(logs.values())) != 1:
                raise Violation("R10", f"partition {index} ends with different logs: {logs}")
            for name, hosted in all_hosted.items():
                stored = {queue.uri: [message.guid for message in queue.messages.values()]
                          for queue in hosted.partition.state.queues.values()}
                first = {queue.uri: [message.guid for message in queue.messages.values()]
                         for queue in all_hosted[machines[0].name].partition.state.queues.values()}
                if {uri: sorted(each) for uri, each in stored.items()} != {uri: sorted(each) for uri, each in first.items()}:
                    raise Violation("R9", f"partition {index}: {name} stores {stored}, {machines[0].name} {first}")
