"""State machine of one partition at one member: decides which node may append to it, and which records are committed.

It uses no files, sockets or clock; the log is a `LogView`. docs/internals.md, "The partitions of several nodes", lists
its rules. Parts: `partition_standing` (role and leases), `take_over` (promises, and the choice of a new primary's log),
`replication_targets` (nodes that receive records; commits), `partition_reception` (records from another node). A
primary without answers from a quorum for `ReplicationTiming.lease` seconds is passive until all its records are
committed; `member/replication.py: replication_timing` derives the times.

`TABLE` has the action for every role and event. `member/partition_runner.py` performs the outputs. `now`: seconds,
monotonic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bmqtwist import alarms
from bmqtwist.cluster.election_events import PeerDown, PeerUp, Stop, TickAt
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.partition_events import (
    Assigned,
    LogFailed,
    LogReady,
    LogView,
    PartitionEvent,
    PartitionInput,
    PartitionOutput,
    PartitionRole,
    PromiseWritten,
    ReplicationTiming,
    SavePromise,
    SetActive,
)
from bmqtwist.cluster.partition_reception import Reception
from bmqtwist.cluster.partition_standing import PartitionStanding
from bmqtwist.cluster.replication_targets import ReplicationTargets
from bmqtwist.cluster.take_over import TakeOver
from bmqtwist.machine import Cell, check, table, to
from bmqtwist.storage.psn import Psn
from bmqtwist.storage.slot_file import Doubt
from bmqtwist.wire.cluster_schema import Prepare, Stale

UNKNOWN, STG1, STG2, HEALED, WAITING, HEALING, FOLLOWING, STOPPED = PartitionRole

STALLED_RETRIES_MAX = 3  # a primary declines its lease after this number of `ReplicationTiming.retry` without progress


class PartitionMachine:
    """One partition. `promised`: lease in the promise file; `doubt`: about the log."""

    def __init__(self, electorate: Electorate, log: LogView, timing: ReplicationTiming, promised: int = 0, name: str = "",
                 doubt: Doubt = Doubt.NONE) -> None:
        self.log, self.name = log, name
        self.other_nodes = tuple(sorted(electorate.configured - {electorate.node_id}))
        standing = self.standing = PartitionStanding(electorate, log, timing, promised, name, doubt)
        self.connected_nodes, self.transition_log = standing.connected_nodes, standing.transition_log
        self.targets = ReplicationTargets(standing)
        self.reception = Reception(standing, self.targets)
        self.take_over = TakeOver(standing, self.targets, self.reception)
        self._row, self._row_role = _ROWS[UNKNOWN], UNKNOWN
        self._reported_tick_at: float | None = None

    def step(self, now: float, event: PartitionInput) -> list[PartitionOutput]:
        """Handle one input and return the outputs, which the caller performs."""
        standing = self.standing
        outputs: list[PartitionOutput] = []
        standing.now, standing.outputs = now, outputs
        name = type(event).__name__
        if isinstance(event, Assigned):
            name = "AssignedSelf" if event.primary == standing.node_id else "AssignedOther"
        if getattr(event, "sender", standing.node_id) in standing.electorate.configured:
            before, standing.event = standing.role, name
            if before is not self._row_role:
                self._row, self._row_role = _ROWS[before], before
            self._row[name](self, event)
            if standing.role is not before:
                check(TABLE, before, PartitionEvent(name), standing.role)
        if standing.tick_at != self._reported_tick_at:
            self._reported_tick_at = standing.tick_at
            outputs.append(TickAt(self._reported_tick_at))
        return outputs

    @property
    def role(self) -> PartitionRole:
        return self.standing.role

    @property
    def lease(self) -> int:
        return self.standing.lease

    @property
    def committed(self) -> Psn:
        return self.standing.committed

    @property
    def leads(self) -> bool:
        return self.standing.leads

    # -- roles ----------------------------------------------------------------------------------------------------------

    def on_assigned_self(self, event: Assigned) -> None:
        standing = self.standing
        if not standing.accept_assignment(event) or event.lease <= standing.lease and standing.role is not UNKNOWN:
            return  # an older assignment
        if event.lease < standing.requested_lease:  # the metadata were lost, or a newer assignment follows
            self.decline_lease(event)
            return
        self._reset("a newer lease is assigned")
        if event.lease <= standing.used_lease or self.log.broken:
            standing.change_role(UNKNOWN, None, f"lease {event.lease} was used before, or the files cannot be written")
            self.decline_lease(event)
            return
        standing.used_lease = standing.requested_lease = event.lease
        self.take_over.start(event.lease)

    def on_assigned_other(self, event: Assigned) -> None:
        standing = self.standing
        if not self.standing.accept_assignment(event) or event.lease < self.standing.requested_lease:
            return
        if event.lease != standing.lease or standing.primary != event.primary:
            self._wait_for_primary(event.primary, event.lease, f"node {event.primary} is primary under lease {event.lease}")

    def decline_lease(self, event: object) -> None:
        """Decline the assigned lease, which this node cannot use, every `retry` seconds until a newer one follows."""
        standing = self.standing
        primary, lease = standing.assigned.primary, standing.assigned.lease
        if primary != standing.node_id:
            standing.tick_at = None
            return
        standing.used_lease = max(standing.used_lease, standing.requested_lease)
        able = not self.log.broken
        why = "an earlier run of the node may have used it" if able else "the files of the partition cannot be written"
        standing.decline(lease, able, f"lease {lease} cannot be used: {why}")
        standing.tick_at = standing.now + standing.timing.retry

    def _reset(self, cause: str) -> None:
        standing = self.standing
        if standing.role is HEALED:
            standing.outputs.append(SetActive(standing.lease, False, cause))
        standing.tick_at = None
        self.targets.clear()
        self.take_over.promises.clear()
        self.reception.restart(None)

    def _wait_for_primary(self, primary: int, lease: int, cause: str) -> None:
        self._reset(cause)
        self.standing.lease = lease
        self.standing.change_role(WAITING, primary, cause)

    def _step_down(self, cause: str) -> None:
        self._reset(cause)
        self.standing.change_role(UNKNOWN, None, cause)
        self.decline_lease(cause)

    def on_stop(self, event: Stop) -> None:
        self._reset("the node stops")
        self.standing.change_role(STOPPED, None, "the node stops")

    # -- promises -------------------------------------------------------------------------------------------------------

    def on_prepare(self, event: Prepare) -> None:
        standing, sender = self.standing, event.sender
        if standing.reject_stale(event):
            return
        if event.lease == standing.lease and standing.leads:
            standing.alarm(
                alarms.SECOND_PRIMARY,
                f"node {sender} is primary under lease {event.lease}, too: its request is ignored")
            return
        if event.lease > standing.lease or standing.primary != sender or standing.role in (UNKNOWN, WAITING):
            self._wait_for_primary(sender, event.lease, f"node {sender} is primary under lease {event.lease}")
        if event.lease > standing.requested_lease:
            standing.requested_lease = event.lease
            standing.outputs.append(SavePromise(event.lease))
        self._answer_prepare()

    def on_promise_written_waiting(self, event: PromiseWritten) -> None:
        self.standing.on_promise_written(event)
        self._answer_prepare()

    def _answer_prepare(self) -> None:
        """Send the primary this node's promise and the summary of its log, once the promise is durable."""
        standing, primary = self.standing, self.standing.primary
        if not standing.promised_lease == standing.requested_lease == standing.lease or primary not in self.connected_nodes:
            return
        self.reception.restart(primary)
        self.targets.by_node.clear()
        standing.change_role(HEALING, primary, f"promise of lease {standing.lease} is sent")
        self.reception.send_report()

    def on_stale(self, event: Stale) -> None:
        """Step down: another node has promised a newer lease."""
        if event.lease > self.lease:
            self.standing.used_lease = max(self.standing.used_lease, event.lease)
            self._step_down(f"node {event.sender} has promised lease {event.lease}")

    # -- connections ----------------------------------------------------------------------------------------------------

    def on_peer_up(self, event: PeerUp) -> None:
        self.connected_nodes.add(event.node_id)

    def on_peer_up_leading(self, event: PeerUp) -> None:
        self.connected_nodes.add(event.node_id)
        self.standing.send(event.node_id, Prepare(self.standing.node_id, self.lease))

    def on_peer_down(self, event: PeerDown) -> None:
        self.connected_nodes.discard(event.node_id)

    def on_peer_down_following(self, event: PeerDown) -> None:
        """Handle a lost connection; if it was the primary's, wait for the primary."""
        self.connected_nodes.discard(event.node_id)
        if event.node_id == self.standing.primary:
            self._wait_for_primary(event.node_id, self.lease, "the connection to the primary is lost")

    # -- the log of a primary -------------------------------------------------------------------------------------------

    def check_files(self, event: object) -> bool:
        """Step down if the files cannot be written; return True if they can."""
        if self.log.broken:
            self._step_down("the files of the partition cannot be written")
        return not self.log.broken

    def on_own_log_advanced(self, event: object) -> None:
        if self.check_files(event):
            self.take_over.on_log_advanced()

    def on_own_log_ready(self, event: LogReady) -> None:
        if self.take_over.source is not None:
            self.take_over.on_log_ready()
        else:
            self.on_own_log_advanced(event)

    def on_tick_leading(self, event: object) -> None:
        """Become passive without a majority, query the other nodes, restart a healing without progress."""
        standing = self.standing
        if not self.check_files(event):
            return
        if standing.role is HEALED and not self.targets.is_supported:
            standing.goal, standing.progressed_at = self.log.summary.last, standing.now  # the last progress may be long ago
            cause = f"no majority has answered for {standing.timing.lease:g} s"
            standing.outputs.append(SetActive(standing.lease, False, cause))
            standing.change_role(STG2, standing.node_id, cause)
        if standing.tick_at is not None and standing.now >= standing.tick_at:
            standing.tick_at = standing.now + standing.timing.keepalive
            self.take_over.query_nodes()
            if standing.role is STG1:
                self.take_over.choose_log(event)  # a node may have been registered since its promise
        stalled, retry = standing.now - max(standing.progressed_at, self.take_over.data_moved_at), standing.timing.retry
        if standing.role is HEALED or stalled < retry:
            return
        if self.take_over.source is not None:
            standing.progressed_at = standing.now
            self.take_over.replace_source()
        elif stalled >= STALLED_RETRIES_MAX * retry and len(self.connected_nodes) >= standing.majority - 1:
            standing.progressed_at = standing.now
            lacking = self.take_over.lacking
            cause = f": durable records may be missing at nodes {', '.join(map(str, lacking))}" if lacking else ""
            standing.decline(standing.lease, False, f"no progress for {stalled:g} s{cause}")

    def on_log_failed(self, event: LogFailed) -> None:
        self.standing.alarm(alarms.PARTITION_LOG_FAILED, event.reason)
        self.reception.cancel_append()

    def on_log_failed_stg2(self, event: LogFailed) -> None:
        """Raise the alarm; step down if the first record of the lease could not be appended."""
        self.on_log_failed(event)
        if not self.standing.has_begun and self.take_over.source is None:
            self._step_down(event.reason)

    def ignore(self, event: object) -> None:
        """Ignore an event of another role, or a late one."""


Action = Callable[[PartitionMachine, Any], object]
_Row = dict[PartitionEvent, Cell[PartitionRole]]


def _standing(action: Callable[[PartitionStanding, Any], object]) -> Action:
    return lambda machine, event: action(machine.standing, event)


def _targets(action: Callable[[ReplicationTargets, Any], object]) -> Action:
    return lambda machine, event: action(machine.targets, event)


def _reception(action: Callable[[Reception, Any], object]) -> Action:
    return lambda machine, event: action(machine.reception, event)


def _take_over(action: Callable[[TakeOver, Any], object]) -> Action:
    return lambda machine, event: action(machine.take_over, event)


_E, _M = PartitionEvent, PartitionMachine
_IGNORE: Cell[PartitionRole] = to(_M.ignore)
_REJECT: Cell[PartitionRole] = to(_standing(PartitionStanding.reject_stale))
_ANY_ROLE: _Row = {
    _E.ASSIGNED_SELF: to(_M.on_assigned_self, STG1, UNKNOWN),
    _E.ASSIGNED_OTHER: to(_M.on_assigned_other, WAITING),
    _E.PEER_UP: to(_M.on_peer_up),
    _E.PEER_DOWN: to(_M.on_peer_down),
    _E.PROMISE_WRITTEN: to(_standing(PartitionStanding.on_promise_written)),
    _E.LOG_FAILED: to(_M.on_log_failed),
    _E.STOP: to(_M.on_stop, STOPPED),
    _E.PREPARE: to(_M.on_prepare, WAITING, HEALING),
    **dict.fromkeys((_E.PULL, _E.RECORDS, _E.IMAGE_PART, _E.KEEPALIVE, _E.RENEWAL), _REJECT),
    **dict.fromkeys((_E.LOG_ADVANCED, _E.LOG_READY, _E.SEND_COMPLETED, _E.IMAGE_LOST, _E.SEND_FAILED, _E.TICK, _E.PROMISE,
                     _E.STALE, _E.RECEIPT), _IGNORE),
}
_SENDING: _Row = {
    _E.SEND_COMPLETED: to(_targets(ReplicationTargets.on_send_completed)),
    _E.IMAGE_LOST: to(_targets(ReplicationTargets.on_image_lost)),
    _E.SEND_FAILED: to(_targets(ReplicationTargets.on_send_failed)),
}
_LEADING: _Row = _ANY_ROLE | {
    _E.PEER_UP: to(_M.on_peer_up_leading),
    _E.PEER_DOWN: to(_take_over(TakeOver.on_peer_down)),
    _E.LOG_ADVANCED: to(_M.on_own_log_advanced, UNKNOWN),
    _E.LOG_READY: to(_M.on_own_log_ready, UNKNOWN),
    _E.TICK: to(_M.on_tick_leading, UNKNOWN, STG2),
    _E.PROMISE: to(_take_over(TakeOver.on_later_promise)),
    _E.STALE: to(_M.on_stale, UNKNOWN),
    _E.RECEIPT: to(_targets(ReplicationTargets.on_receipt_leading)),
}
_REPLICA: _Row = _ANY_ROLE | {
    _E.PEER_DOWN: to(_M.on_peer_down_following, WAITING),
    _E.LOG_ADVANCED: to(_reception(Reception.on_log_advanced), FOLLOWING),
    _E.LOG_READY: to(_reception(Reception.on_log_ready)),
    _E.SEND_COMPLETED: to(_targets(ReplicationTargets.on_send_completed)),
    _E.RECORDS: to(_reception(Reception.on_records), FOLLOWING),
    _E.IMAGE_PART: to(_reception(Reception.on_image_part)),
    _E.RECEIPT: to(_targets(ReplicationTargets.on_receipt)),
    _E.KEEPALIVE: to(_reception(Reception.on_keepalive), FOLLOWING),
    _E.RENEWAL: to(_reception(Reception.on_renewal)),
}
TABLE = table(PartitionRole, PartitionEvent, {
    UNKNOWN: _ANY_ROLE | {_E.TICK: to(_M.decline_lease)},
    STG1: _LEADING | {
        _E.PROMISE_WRITTEN: to(_take_over(TakeOver.on_promise_written), STG2),
        _E.LOG_ADVANCED: to(_M.check_files, UNKNOWN),
        _E.LOG_READY: to(_take_over(TakeOver.choose_log), STG2),
        _E.TICK: to(_M.on_tick_leading, UNKNOWN, STG2),
        _E.PROMISE: to(_take_over(TakeOver.on_promise), STG2),
        _E.RECEIPT: _IGNORE,
    },
    STG2: _LEADING | _SENDING | {
        _E.PEER_DOWN: to(_take_over(TakeOver.on_peer_down), STG1),
        _E.LOG_ADVANCED: to(_M.on_own_log_advanced, UNKNOWN, HEALED),
        _E.LOG_READY: to(_M.on_own_log_ready, UNKNOWN, HEALED),
        _E.LOG_FAILED: to(_M.on_log_failed_stg2, UNKNOWN),
        _E.TICK: to(_M.on_tick_leading, UNKNOWN, STG1),
        _E.RECORDS: to(_reception(Reception.on_records)),
        _E.IMAGE_PART: to(_reception(Reception.on_image_part)),
        _E.RECEIPT: to(_targets(ReplicationTargets.on_receipt_leading), HEALED),
    },
    HEALED: _LEADING | _SENDING,
    WAITING: _ANY_ROLE | {_E.PROMISE_WRITTEN: to(_M.on_promise_written_waiting, HEALING)},
    HEALING: _REPLICA | _SENDING | {_E.PULL: to(_targets(ReplicationTargets.on_pull))},
    FOLLOWING: _REPLICA,
    STOPPED: dict.fromkeys(PartitionEvent, _IGNORE),
})
_ROWS = {role: {event.value: cell.action for event, cell in row.items()} for role, row in TABLE.items()}  # by class name
