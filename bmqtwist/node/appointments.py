"""Who is primary of which partition, as far as the leader of a cluster of several nodes decides it.

A partition gets another primary when the node that has it is gone or says that it goes, when it declines, or when it does
not become active for `maxTimeMaster`. Every node has this object; it does something while its node leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from bmqtwist.cluster.changes import AssignPartitions
from bmqtwist.cluster.election_events import ElectionState
from bmqtwist.cluster.log_events import Outcome
from bmqtwist.cluster.partition_events import Decline
from bmqtwist.cluster.state import Primary
from bmqtwist.node.leadership import Leadership
from bmqtwist.node.node_status import NodeStatuses
from bmqtwist.node.performer import Performer
from bmqtwist.node.timers import Timers
from bmqtwist.report import Report
from bmqtwist.wire.cluster_schema import NodeStatus

WATCH_PERIOD_S = 1.0  # how often primaries that are not active are looked at


class AppointmentHost(Protocol):
    """The broker, as far as appointments need it."""

    report: Report
    performer: Performer
    timers: Timers

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""


class Appointments:
    """See above. `is_active(partition, primary)`: whether a primary has said that it is; `passive_seconds_max`: for so long
    it may be appointed without, 0 = for ever."""

    def __init__(self, name: str, node_id: int, members: Iterable[int], statuses: NodeStatuses, host: AppointmentHost,
                 is_active: Callable[[int, Primary], bool], passive_seconds_max: float) -> None:
        self.name, self.node_id, self._members = name, node_id, list(members)
        self._statuses, self._host, self._is_active = statuses, host, is_active
        self._passive_seconds_max = passive_seconds_max
        self.leadership: Leadership
        self._passive: dict[int, tuple[Primary, float]] = {}  # partition -> its primary, and since when it is not active

    def start(self, now: float) -> None:
        """The node runs."""
        self._host.timers.every(now, WATCH_PERIOD_S, self._watch)

    # -- what happens -------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Another node is different now, or there is a new leader: partitions whose primary is gone get another one."""
        if self._leads:
            up = self._alive()
            if up and any(primary.node_id not in up for primary in self._head.values()):
                self._propose(AssignPartitions(self._fit(up), up), now)

    def declined(self, sender: int, index: int, declined: Decline, now: float) -> None:
        """A node cannot be primary under the lease that it was given."""
        if self._leads and self._head.get(index) == Primary(sender, declined.lease):
            up = self._alive() or [self.node_id]
            candidates = [node_id for node_id in up if declined.able or node_id != sender] or up
            self._propose(AssignPartitions(candidates, up, {index: declined.used}), now)

    def _watch(self, now: float) -> None:
        """Replace primaries that have not become active in time."""
        if not self._leads or not self._passive_seconds_max:
            self._passive.clear()
            return
        for index, primary in self._head.items():
            if self._is_active(index, primary):
                self._passive.pop(index, None)
            elif self._passive.get(index, (None, 0.0))[0] != primary:
                self._passive[index] = primary, now
            elif now - self._passive[index][1] >= self._passive_seconds_max:
                del self._passive[index]
                self._replace(index, primary, now)

    def _replace(self, index: int, primary: Primary, now: float) -> None:
        up = self._alive()
        others = [node_id for node_id in up if node_id != primary.node_id]
        text = (f"Cluster ({self.name}) Partition [{index}]: node {primary.node_id} has been its primary for "
                f"{self._passive_seconds_max:g} s and is not active")
        self._host.report.alarm("CLUSTER", "%s", text)
        if others:
            self._propose(AssignPartitions(self._fit(others), up, {index: primary.lease}), now)

    # -- who may be chosen --------------------------------------------------------------------------------------------

    def _alive(self) -> list[int]:
        """Who is here, and stays."""
        statuses = self._statuses
        return [node_id for node_id in self._members if (
            statuses.stays(node_id) if node_id != self.node_id else not statuses.is_going)]

    def _fit(self, up: list[int]) -> list[int]:
        """Who gets what a leader that goes is primary of: those that lack nothing, if there are any."""
        if not self._statuses.is_going:
            return up
        return [node_id for node_id in up if self._statuses.others[node_id] is NodeStatus.E_AVAILABLE] or up

    def successor(self) -> int | None:
        """Who is to lead instead of this node."""
        return next(iter(self._fit(self._alive())), None)

    # -- the metadata -------------------------------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        return self.leadership.elector.state is ElectionState.LEADER and self.leadership.active

    @property
    def _head(self) -> dict[int, Primary]:
        return self.leadership.metadata.log.head.partitions

    def _propose(self, change: AssignPartitions, now: float) -> None:
        self.leadership.metadata.propose(change, self._proposed, self._host.wall(now))
        self._host.performer.turn_due()

    def _proposed(self, outcome: Outcome, wall: int) -> None:
        """Who is primary is told by the change itself; one that failed is proposed again by who lacks it."""
