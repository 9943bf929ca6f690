"""A primary gives a partition to another node, and nothing is lost by it.

    begin       the queues of the partition take nothing any more: what clients post waits, as when a primary is lost. The
                last record is a sync point
    drained     everything that this node has is committed, and safe at the successor
    given       then it declines its lease in favour of the successor; the leader gives that one a newer lease. What a leader
                has not answered it is told again
    given up    a successor that takes too long does not become one: the queues come to life again; a node that stops lets
                the leader choose
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bmqtwist.cluster.partition_events import Serve
from bmqtwist.cluster.partition_machine import PartitionMachine
from bmqtwist.loop.loop import Loop
from bmqtwist.member.partition_logs import HostedPartition
from bmqtwist.wire.cluster_schema import Decline, Yield

CHECK_S = 0.05  # how often it is looked whether somebody has taken too long
REPEAT_S = 1.0  # a leader that has given out no newer lease


@dataclass(slots=True)
class Handover:
    """One partition that is given away."""

    wanted: Yield
    for_good: bool  # this node stops
    until: float  # then it is given up, or the leader is told once more
    given: bool = False


class Handovers:
    """Of one cluster at one node. `patience`: seconds that a successor has; `serve(partition, output, now)`: its queues are
    activated, or go away; `end_lease(partition, now)`: a sync point ends it; `decline(partition, output, now)`: the leader
    is told that this node is not to be primary."""

    def __init__(self, hosted: list[HostedPartition], host: Loop, patience: float,
                 serve: Callable[[int, Serve, float], None], end_lease: Callable[[int, float], None],
                 decline: Callable[[int, Decline, float], None]) -> None:
        self._hosted, self._host, self._patience = hosted, host, patience
        self._serve, self._end_lease, self._decline = serve, end_lease, decline
        self._in_progress: dict[int, Handover] = {}

    def is_leaving(self, index: int) -> bool:
        """Whether a partition is being given away."""
        return index in self._in_progress

    def begin(self, index: int, wanted: Yield, for_good: bool, now: float) -> None:
        """Give a partition away that this node serves; the same again changes nothing."""
        if index in self._in_progress:
            return
        machine = self._hosted[index].machine
        self._host.report.info(f"{machine.name}: it is handed over to node {wanted.successor}")
        if not self._in_progress:
            self._host.timers.at(now + CHECK_S, self._check_all)
        self._in_progress[index] = Handover(wanted, for_good, now + self._patience)
        self._serve(index, Serve(machine.lease, False, f"handed over to node {wanted.successor}"), now)
        self._end_lease(index, now)
        self.check(index, now)

    def forget(self, index: int) -> None:
        """Its machine says itself who is active from now on: whatever this node did about that is past."""
        self._in_progress.pop(index, None)

    def check(self, index: int, now: float) -> None:
        """Its log, or that of another node, has moved."""
        found = self._in_progress.get(index)
        if found is None:
            return
        machine = self._hosted[index].machine
        if found.given:
            if now >= found.until:
                self._give(index, found, machine, now)
        elif self._is_drained(machine, found.wanted.successor):
            self._give(index, found, machine, now)
        elif now >= found.until and found.for_good:
            self._give(index, found, machine, now)
        elif now >= found.until:
            del self._in_progress[index]
            self._host.report.warn(f"{machine.name}: node {found.wanted.successor} did not have all of it within "
                                   f"{self._patience:g} s: this node stays its primary")
            self._serve(index, Serve(machine.lease, True, "the handover was given up"), now)

    def _is_drained(self, machine: PartitionMachine, successor: int) -> bool:
        target, last = machine.targets.get(successor), machine.log.summary.last
        return machine.committed >= last and target is not None and target.durable >= last

    def _give(self, index: int, found: Handover, machine: PartitionMachine, now: float) -> None:
        found.given, found.until = True, now + REPEAT_S
        successor = found.wanted.successor
        self._decline(index, Decline(machine.lease, not found.for_good, machine.standing.used,
                                          f"it is handed over to node {successor}", successor), now)

    def _check_all(self, now: float) -> None:
        for index in list(self._in_progress):
            self.check(index, now)
        if self._in_progress:
            self._host.timers.at(now + CHECK_S, self._check_all)
