"""Handover of a partition from its primary to another node, without loss of messages.

    begin        queues of the partition retire: PUTs of clients wait for the next primary. The last record is a sync point
    drained      all records are committed, and durable at the successor
    declined     the primary declines its lease in favour of the successor, and repeats that until the leader has appointed
                 the successor under a newer lease
    cancelled    the successor was not up to date in time: the queues are activated again. A forced handover, of a node that
                 stops or cannot write, declines instead

While this node cannot write, records that are not in its files do not count: no effect of them was released.
`partition_runner.py` creates it and advances it with each step; `replication.py` begins a handover for a move, a stop or a
failed disk. The target is chosen in `appointments.py`; the first steps of the next primary are in `cluster/take_over.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bmqtwist.cluster.partition_events import SetActive
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.loop.loop import Loop
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.storage.availability import WriterState
from bmqtwist.wire.cluster_schema import Decline, Yield

CHECK_S = 0.05  # interval of the checks of timeouts
REPEAT_S = 1.0  # from a declined lease to its repetition, if the leader has appointed no successor


@dataclass(slots=True)
class Handover:
    """The handover of one partition."""

    wanted: Yield
    forced: bool  # it ends with the declined lease, even if the successor lacks records
    until: float  # time of the cancellation, or of the next repetition
    declined: bool = False


class Handovers:
    """Handovers of one cluster at one node. `patience`: seconds until the successor must have stored all records;
    `set_serving(partition, output, now)`: activate or retire its queues; `end_lease(partition, now)`: append the sync point;
    `decline(partition, output, now)`: report to the leader that this node gives the lease up; `give_up(partition, reason)`:
    report that it stays primary."""

    def __init__(self, hosted: list[HostedPartition], loop: Loop, patience: float,
                 set_serving: Callable[[int, SetActive, float], None], end_lease: Callable[[int, float], None],
                 decline: Callable[[int, Decline, float], None], give_up: Callable[[int, str], None]) -> None:
        self._hosted, self._loop, self._patience, self._give_up = hosted, loop, patience, give_up
        self._set_serving, self._end_lease, self._decline = set_serving, end_lease, decline
        self._in_progress: dict[int, Handover] = {}

    def is_leaving(self, index: int) -> bool:
        """Return whether a partition is being handed over."""
        return index in self._in_progress

    def begin(self, index: int, wanted: Yield, now: float, forced: bool = False, patience: float | None = None) -> None:
        """Begin to hand over a partition of which this node is active primary; ignored if already begun."""
        if index in self._in_progress:
            return
        machine = self._hosted[index].machine
        self._loop.report.info(f"{machine.name}: it is handed over to node {wanted.successor}")
        if not self._in_progress:
            self._loop.timers.at(now + CHECK_S, self._check_all)
        self._in_progress[index] = Handover(wanted, forced, now + (self._patience if patience is None else patience))
        self._set_serving(index, SetActive(machine.lease, False, f"handed over to node {wanted.successor}"), now)
        self._end_lease(index, now)
        self.advance(index, now)

    def end(self, index: int) -> None:
        """End a handover: the partition's machine has decided on its primary."""
        self._in_progress.pop(index, None)

    def advance(self, index: int, now: float) -> None:
        """Continue a handover after progress of a log, or after a timeout."""
        found = self._in_progress.get(index)
        if found is None:
            return
        machine = self._hosted[index].machine
        if found.declined:
            if now >= found.until:
                self._decline_lease(index, found, machine, now)
        elif self._is_drained(self._hosted[index], found.wanted.successor):
            self._decline_lease(index, found, machine, now)
        elif now >= found.until and found.forced:
            self._decline_lease(index, found, machine, now)
        elif now >= found.until:
            del self._in_progress[index]
            self._set_serving(index, SetActive(machine.lease, True, "the handover was given up"), now)
            self._give_up(index, f"node {found.wanted.successor} did not store all records within {self._patience:g} s")

    def _is_drained(self, hosted: HostedPartition, successor: int) -> bool:
        machine, writes_fail = hosted.machine, hosted.partition.log.availability.has_reason(WriterState.FAILING)
        target, last = machine.targets.by_node.get(successor), hosted.written if writes_fail else hosted.summary.last
        return machine.committed >= last and target is not None and target.durable >= last

    def _decline_lease(self, index: int, found: Handover, machine: PartitionMachine, now: float) -> None:
        found.declined, found.until = True, now + REPEAT_S
        successor = found.wanted.successor
        self._decline(index, Decline(machine.lease, not found.forced, machine.standing.used_lease,
                                          f"it is handed over to node {successor}", successor), now)

    def _check_all(self, now: float) -> None:
        for index in list(self._in_progress):
            self.advance(index, now)
        if self._in_progress:
            self._loop.timers.at(now + CHECK_S, self._check_all)
