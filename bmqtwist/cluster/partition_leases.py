"""Leases of one partition that a node has promised, used or been assigned: they decide which primary may write."""

from __future__ import annotations

from bmqtwist.cluster.partition_events import (
    Assigned,
    Decline,
    ImagePart,
    Keepalive,
    Prepare,
    Promised,
    Pull,
    Records,
    Stale,
)
from bmqtwist.cluster.partition_standing import PartitionStanding


class Leases:
    """`promised`: as the promise file has it. Leases up to `used` cannot be used by this node: they may be those of earlier
    runs of its process."""

    def __init__(self, standing: PartitionStanding, promised: int) -> None:
        self._standing = standing
        self.promised = self.requested = promised  # durably; and the highest one that a promise was asked for
        self.used = max(promised, standing.log.summary.last[0])
        self.assigned = Assigned(-1, 0)  # the newest assignment
        self.deferred = 0  # declined because another node has more; a node does not decline twice in a row

    def assume_promised(self, lease: int) -> None:
        """Before any event: the promise file is lost, but it promised no newer lease than this one."""
        self.requested = self.used = max(lease, self.requested, self.used)

    def assign(self, assigned: Assigned) -> bool:
        """Keep an assignment; whether it is newer than the one before."""
        is_newer = assigned.lease > self.assigned.lease
        if is_newer:
            self.assigned = assigned
        return is_newer

    def on_promised(self, event: Promised) -> None:
        """A promise is durable."""
        self.promised = max(self.promised, event.lease)

    def reject_stale(self, event: Prepare | Pull | Records | ImagePart | Keepalive) -> bool:
        """Whether a message comes under an older lease than a promised one; its sender is answered then."""
        if event.lease >= self.requested:
            return False
        self._standing.say(event.sender, Stale(self._standing.node_id, self.requested))
        return True

    def decline(self, lease: int, able: bool, cause: str, successor: int | None = None) -> None:
        """Ask the leader for a newer lease, or for another primary."""
        self._standing.outputs.append(Decline(lease, able, self.used, cause, successor))
