"""A node's standing in a partition: role, primary, lease and committed position, and the outputs of one step.

The parts of `PartitionMachine` share it: they read it, change the role with `become`, and add their outputs.
"""

from __future__ import annotations

from collections.abc import Collection

from bmqtwist.cluster.log_events import Alarm
from bmqtwist.cluster.partition_events import (
    LogView,
    PartitionEvent,
    PartitionOutput,
    PartitionRole,
    PartitionTalk,
    ReplicationTiming,
    RoleChanged,
    Say,
)
from bmqtwist.machine import TransitionLog
from bmqtwist.storage.psn import NO_PSN

UNKNOWN, STG1, STG2, HEALED, WAITING, HEALING, FOLLOWING, STOPPED = PartitionRole


class PartitionStanding:
    """`doubtful`: records that were durable here may be missing; `factor`: how many nodes must have a record before it is
    reported as committed, at least the majority."""

    def __init__(self, node_id: int, members: Collection[int], log: LogView, timing: ReplicationTiming, name: str,
                 doubtful: bool) -> None:
        self.node_id, self.log, self.timing, self.name, self.doubtful = node_id, log, timing, name, doubtful
        self.members = frozenset(members)
        self.majority = self.factor = len(self.members) // 2 + 1
        self.role = UNKNOWN
        self.primary: int | None = None
        self.lease = 0  # under which this node leads, or follows
        self.committed = NO_PSN
        self.up: set[int] = set()  # connected nodes
        self.wake_at: float | None = None
        self.progressed_at = 0.0  # when a primary's healing last came forward
        self.story = TransitionLog()
        self.now = 0.0
        self.event = ""  # that is being handled
        self.outputs: list[PartitionOutput] = []

    @property
    def leads(self) -> bool:
        """Whether this node is primary, active or not."""
        role = self.role
        return role is HEALED or role is STG2 or role is STG1

    @property
    def has_begun(self) -> bool:
        """Whether the lease has its first record."""
        return self.log.summary.last[0] == self.lease

    def become(self, role: PartitionRole, primary: int | None, cause: str) -> None:
        """Change the role."""
        before, self.role, self.primary = self.role, role, primary
        event = PartitionEvent(self.event).name
        if before is not role:
            self.outputs.append(RoleChanged(event, before, role))
        self.story.note(self.now, before.name, role.name, cause, event)

    def say(self, node_id: int, message: PartitionTalk) -> None:
        """Send a message to another node."""
        self.outputs.append(Say(node_id, message))

    def alarm(self, text: str) -> None:
        """Raise an alarm."""
        self.outputs.append(Alarm(f"{self.name}: {text}"))
