"""Release of the roles of a member that cannot write, to members that can.

    check    every second, and after a change of a member's status or ability:
             1. begin to hand over each partition: PUTs wait for the next primary. The lease is declined after at most
                DRAIN_SECONDS_MAX for the records that are in the partition's files, and again until a leader replaces it
             2. as leader, transfer the leadership to a member that can write; cede it after TRANSFER_SECONDS_MAX. A leader
                whose ledger cannot be written appoints no primary: its successor does
             3. stand for no election

The turn in which a write of a partition fails begins these steps. While no connected member can write, the member keeps its
roles: it refuses writes until it has space. A partition with
messages of queues in memory stays, since no other member has them. `disk_health.py` decides whether a member can write;
called by `cluster.py` and by a timer.
"""

from __future__ import annotations

from collections.abc import Callable

from bmqtwist.cluster.election_events import ElectionState
from bmqtwist.loop.loop import Loop
from bmqtwist.member.disk_health import CHECK_S, DiskHealth
from bmqtwist.member.leadership import Leadership
from bmqtwist.member.node_status import NodeStatuses
from bmqtwist.member.replication import Replication

TRANSFER_SECONDS_MAX = 5.0
DRAIN_SECONDS_MAX = 2.0


class RoleRelease:
    """Release of the roles of one member. `probe`: see `DiskHealth`."""

    def __init__(self, probe: Callable[[], None], statuses: NodeStatuses, leadership: Leadership, replication: Replication,
                 loop: Loop) -> None:
        self._statuses, self._leadership, self._replication, self._loop = statuses, leadership, replication, loop
        self.health = health = DiskHealth(leadership.title, probe, replication.write_reports, loop, self._on_changed)
        leadership.on_write_failed = leadership.metadata.on_write_failed = health.on_failed
        replication.runner.promises.on_write_failed = health.on_failed
        replication.runner.on_write_failed = health.check
        self._cede_at: float | None = None  # the leadership is being transferred until then

    def start(self, now: float) -> None:
        """Start the periodic checks."""
        self.health.start(now)
        self._loop.timers.every(now, CHECK_S, self.check)

    def _on_changed(self, reason: str) -> None:
        self._replication.trust_reports(bool(reason))
        self._statuses.set_own_unable(reason)

    def check(self, now: float) -> None:
        """Take the next step."""
        leadership = self._leadership
        if not self.health.reason or not self._statuses.able_other_nodes:
            self._cede_at = None
            leadership.set_able(True)
            return
        self._replication.hand_over_all(now, self.health.reason, DRAIN_SECONDS_MAX)
        successor = self._replication.appointments.successor()
        if leadership.elector.state is ElectionState.LEADER and successor is not None:
            if self._cede_at is None:
                self._cede_at = now + TRANSFER_SECONDS_MAX
                leadership.transfer(successor)
            if now < self._cede_at:
                return
        leadership.set_able(False)
