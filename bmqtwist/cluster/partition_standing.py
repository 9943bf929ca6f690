"""Standing of a node in a partition: role, primary, leases and committed position, and the outputs of one step.

All parts of `PartitionMachine` share it: they read it, change the role with `change_role`, and add their outputs. The leases
that the node has promised, used or been assigned decide which primary may write.
"""

from __future__ import annotations

from collections.abc import Collection

from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster.log_events import Alarm
from bmqtwist.cluster.partition_events import (
    Assigned,
    LogView,
    PartitionEvent,
    PartitionOutput,
    PartitionRole,
    PartitionTalk,
    Promised,
    ReplicationTiming,
    RoleChanged,
    Say,
)
from bmqtwist.machine import TransitionLog
from bmqtwist.storage.psn import NO_PSN
from bmqtwist.wire.cluster_schema import Decline, Stale

UNKNOWN, STG1, STG2, HEALED, WAITING, HEALING, FOLLOWING, STOPPED = PartitionRole


class PartitionStanding:
    """Standing of one node. `promised`: lease in the promise file; `doubtful`: durable records may be lost;
    `factor`: number of nodes that must store a record before it is reported as committed, at least the majority; `goal`: PSN
    that a primary has to pull, or to commit, before it becomes active."""

    def __init__(self, node_id: int, members: Collection[int], log: LogView, timing: ReplicationTiming, promised: int,
                 name: str, doubtful: bool) -> None:
        self.node_id, self.log, self.timing, self.name, self.doubtful = node_id, log, timing, name, doubtful
        self.members = frozenset(members)
        self.majority = self.factor = len(self.members) // 2 + 1
        self.role = UNKNOWN
        self.primary: int | None = None
        self.lease = 0  # the lease under which this node leads or follows
        self.promised = self.requested = promised  # durably promised lease; highest lease to promise
        self.used = max(promised, log.summary.last[0])  # earlier runs of this process may have used leases up to it
        self.deferred = 0  # lease declined because another node has more records; not twice in a row
        self.assigned = Assigned(-1, 0)  # the newest assignment
        self.committed = self.goal = NO_PSN
        self.up: set[int] = set()  # connected nodes
        self.tick_at: float | None = None
        self.progressed_at = 0.0  # time of the last progress of a primary's healing
        self.transition_log = TransitionLog()
        self.now = 0.0
        self.event = ""  # name of the event in progress
        self.outputs: list[PartitionOutput] = []

    @property
    def leads(self) -> bool:
        role = self.role
        return role is HEALED or role is STG2 or role is STG1

    @property
    def has_begun(self) -> bool:
        return self.log.summary.last[0] == self.lease

    def change_role(self, role: PartitionRole, primary: int | None, cause: str) -> None:
        before, self.role, self.primary = self.role, role, primary
        event = PartitionEvent(self.event).name
        if before is not role:
            self.outputs.append(RoleChanged(event, before, role))
        self.transition_log.note(self.now, before.name, role.name, cause, event)

    def send(self, node_id: int, message: PartitionTalk) -> None:
        self.outputs.append(Say(node_id, message))

    def decline(self, lease: int, able: bool, cause: str, successor: int = 0) -> None:
        """Ask the leader for a newer lease, or for another primary."""
        self.outputs.append(Decline(lease, able, self.used, cause, successor))

    def alarm(self, kind: AlarmKind, text: str) -> None:
        self.outputs.append(Alarm(kind, f"{self.name}: {text}"))

    # -- leases ---------------------------------------------------------------------------------------------------------

    def assume_promised(self, lease: int) -> None:
        """Before the first event, if the promise file is lost: assume that this node promised up to this lease."""
        self.requested = self.used = max(lease, self.requested, self.used)

    def accept_assignment(self, assigned: Assigned) -> bool:
        """Store an assignment if it is newer than the one before; return whether it is."""
        is_newer = assigned.lease > self.assigned.lease
        if is_newer:
            self.assigned = assigned
        return is_newer

    def on_promised(self, event: Promised) -> None:
        self.promised = max(self.promised, event.lease)

    def reject_stale(self, event: PartitionTalk) -> bool:
        """True if a message has an older lease than this node promised; its sender receives a Stale then."""
        if event.lease >= self.requested:
            return False
        self.send(event.sender, Stale(self.node_id, self.requested))
        return True
