"""Shared state of a partition's machine: role, primary, leases and committed PSN of this node, and the outputs of one step.

`PartitionMachine` (`partition_machine.py`) creates one and gives it to its parts `take_over.py`, `replication_targets.py`
and `partition_reception.py`: they read it, change the role with `change_role`, and append their outputs. The leases that
were promised, used and assigned decide which primary may append records. The election of the leader has a machine of its
own, `elector.py`.
"""

from __future__ import annotations

from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.log_events import Alarm
from bmqtwist.cluster.partition_events import (
    Assigned,
    LogView,
    PartitionEvent,
    PartitionMessage,
    PartitionOutput,
    PartitionRole,
    PromiseWritten,
    ReplicationTiming,
    RoleChanged,
    SendMessage,
)
from bmqtwist.machine import TransitionLog
from bmqtwist.storage.psn import NO_PSN
from bmqtwist.storage.slot_file import Doubt
from bmqtwist.wire.cluster_schema import Decline, Stale

UNKNOWN, STG1, STG2, HEALED, WAITING, HEALING, FOLLOWING, STOPPED = PartitionRole


class PartitionStanding:
    """Standing of one node. `promised`: lease in the promise file; `doubt`: about the log;
    `replication_factor`: number of nodes that must store a record before it is reported as committed, besides a majority;
    `goal`: PSN that a primary has to pull, or to commit, before it becomes active."""

    def __init__(self, electorate: Electorate, log: LogView, timing: ReplicationTiming, promised: int, name: str,
                 doubt: Doubt) -> None:
        self.electorate, self.log, self.timing, self.name, self.doubt = electorate, log, timing, name, doubt
        self.node_id = electorate.node_id
        self.replication_factor = 0
        self.role = UNKNOWN
        self.primary: int | None = None
        self.lease = 0  # of `primary`
        self.promised_lease = self.requested_lease = promised  # durably promised lease; highest lease to promise
        self.used_lease = max(promised, log.summary.last[0])  # earlier runs of this node may have used leases up to it
        self.deferred_lease = 0  # lease declined because another node has more records; 0 = none since the last healing
        self.assigned = Assigned(-1, 0)  # the newest assignment
        self.committed = self.goal = NO_PSN
        self.connected_nodes: set[int] = set()
        self.tick_at: float | None = None
        self.progressed_at = 0.0  # time of the last progress of a primary's healing
        self.transition_log = TransitionLog()
        self.now = 0.0
        self.event = ""  # name of the event in progress
        self.outputs: list[PartitionOutput] = []

    @property
    def majority(self) -> int:
        """Number of voters that commit a record, support a primary, and promise a lease."""
        return self.electorate.majority

    @property
    def leads(self) -> bool:
        role = self.role
        return role is HEALED or role is STG2 or role is STG1

    @property
    def stamp(self) -> int:
        """The present moment in milliseconds of this node's own clock."""
        return int(self.now * 1000)

    @property
    def has_begun(self) -> bool:
        """True if the log has a record of the present lease."""
        return self.log.summary.last[0] == self.lease

    def change_role(self, role: PartitionRole, primary: int | None, cause: str) -> None:
        before, self.role, self.primary = self.role, role, primary
        event = PartitionEvent(self.event).name
        if before is not role:
            self.outputs.append(RoleChanged(event, before, role))
        self.transition_log.record(self.now, before.name, role.name, cause, event)

    def send(self, node_id: int, message: PartitionMessage) -> None:
        self.outputs.append(SendMessage(node_id, message))

    def decline(self, lease: int, able: bool, cause: str, successor: int = 0) -> None:
        """Request a newer lease (`able`) or another primary from the leader; `successor`: the proposed one, 0 = none."""
        self.outputs.append(Decline(lease, able, self.used_lease, cause, successor))

    def alarm(self, kind: AlarmKind, text: str) -> None:
        self.outputs.append(Alarm(kind, f"{self.name}: {text}"))

    # -- leases ---------------------------------------------------------------------------------------------------------

    def assume_promised(self, lease: int) -> None:
        """Assume that this node promised all leases up to this one: its promise file is lost. Called before any event."""
        self.requested_lease = self.used_lease = max(lease, self.requested_lease, self.used_lease)

    def accept_assignment(self, assigned: Assigned) -> bool:
        """Store an assignment; return False if it is not newer than the one before."""
        is_newer = assigned.lease > self.assigned.lease
        if is_newer:
            self.assigned = assigned
        return is_newer

    def on_promise_written(self, event: PromiseWritten) -> None:
        self.promised_lease = max(self.promised_lease, event.lease)

    def reject_stale(self, event: PartitionMessage) -> bool:
        """Answer a message with a Stale if its lease is older than a promised one; return True if it is."""
        if event.lease >= self.requested_lease:
            return False
        self.send(event.sender, Stale(self.node_id, self.requested_lease))
        return True
