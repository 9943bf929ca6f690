"""Term of a leader in the metadata log: its proposed records, and the progress of each follower. Pure.

Part of `metadata_log.py`, which has the transition table and creates a `LeaderTerm` when this node leads. Changes are
validated by `changes.py`; records are kept in `record_log.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bmqtwist.cluster.changes import Change, ChangePlanner, ChangeRefused, PrimaryRules
from bmqtwist.cluster.electorate import Electorate, quorum_value
from bmqtwist.cluster.log_events import Done, Message, NotDone, Send
from bmqtwist.cluster.record_log import RecordLog, log_record, snapshot_record
from bmqtwist.cluster.state import ClusterState, StateMismatch, partition_infos
from bmqtwist.versions import MEMBER_LIST
from bmqtwist.wire.cluster_schema import (
    NO_LSN,
    ClusterMessage,
    ClusterStateRecord,
    Entries,
    LeaderAdvisory,
    LeaderAdvisoryCommit,
    LedgerRecordType,
    Lsn,
    QueueUnAssignmentAdvisory,
    Snapshot,
)

MESSAGE_BYTES = 1 << 20  # limit of the records in one message; a single record may be larger
RESEND_BYTES = 1 << 15  # per period of `Resend`: sent records are given this time to arrive


@dataclass(slots=True)
class Follower:
    """Progress of one follower, as LSNs."""

    sent: Lsn  # the newest record sent
    resend_after: Lsn  # a resend begins after this record
    sent_bytes: int = 0  # without an acknowledgement, RESEND_BYTES less with each period
    durable: Lsn = NO_LSN  # the newest record known to be durable at the follower
    incarnation: int = 0  # of the storage in which it is durable
    goal: Lsn = NO_LSN  # the newest record at the first acknowledgement with this incarnation


@dataclass(slots=True)
class PendingRecord:
    """An uncommitted record. `tokens`: proposals that its commit completes, each with its result; `uri`: the changed queue;
    `removed_keys`: keys of the removed queues."""

    tokens: list[tuple[int, Any]]
    uri: str = ""
    removed_keys: frozenset[bytes] = frozenset()


class LeaderTerm:
    """One term that this node leads. `head`: the state with all pending records applied; `state`: the committed state;
    `primaries`: rules for the choice of primaries in the first record."""

    def __init__(self, electorate: Electorate, term: int, log: RecordLog, state: ClusterState, primaries: PrimaryRules,
                 planner: ChangePlanner) -> None:
        self.node_id, self.term, self.sequence = electorate.node_id, term, 0  # last assigned sequence number
        self._electorate = electorate
        self.followers = {other: Follower(log.last, log.last) for other in electorate.configured - {self.node_id}}
        self.regressed: dict[int, int] = {}  # node -> incarnation of storage that lacks records that it has acknowledged
        self.head = ClusterState()
        self._log, self._state, self._primaries, self._planner = log, state, primaries, planner
        self.pending: dict[Lsn, PendingRecord] = {}
        self._newest_changes: dict[str, PendingRecord] = {}  # queue -> newest pending record that changes it
        self._removed_keys: set[bytes] = set()
        self.build_head()

    def build_head(self) -> None:
        """Rebuild `head` from the committed state and all pending records."""
        self.head = ClusterState()
        self.head.apply(ClusterMessage.of(self._state.snapshot()))
        for each in self._log.records[self._log.covered:]:
            if each.is_change:
                try:
                    self.head.apply(each.record.message)
                except StateMismatch:  # reported at the commit
                    continue

    def continue_from(self, before: LeaderTerm) -> None:
        """Adopt the pending records of an earlier term; they are committed with the first record of this one."""
        self.pending, self._removed_keys = before.pending, before._removed_keys
        self._newest_changes = before._newest_changes

    # -- proposals ----------------------------------------------------------------------------------------------------

    def begin_term(self, tokens: list[tuple[int, Any]], wall: int, features: Collection[str] = ()) -> None:
        """Append the first record of the term: a SNAPSHOT of `head`, with further `features`."""
        snapshot = self.head.snapshot()
        snapshot.partitions = partition_infos(self._planner.primaries(self.head, self._primaries))
        active = self.head.features.extended(features)
        snapshot.features = ",".join(active) or None
        if active.active(MEMBER_LIST):
            snapshot.members = snapshot.members or self._primaries.members
        pending = self._publish(LedgerRecordType.SNAPSHOT, snapshot, tokens, wall)
        pending.removed_keys = frozenset(self._state.keys - self.head.keys)
        self._removed_keys |= pending.removed_keys

    def propose(self, token: int, change: Change, wall: int) -> Done | NotDone | None:
        """Append the record of a change; return the outcome if it is known at once, else None."""
        if self._log.last[0] < self.term:  # the first record could not be written
            self.begin_term([], wall)
        try:
            plan = self._planner.plan(change, self.head, self._removed_keys)
        except ChangeRefused as refused:
            return NotDone(str(refused), False)
        if plan.advisory is None:
            last = self.last_change(plan.uri)
            if last is None:
                return Done(plan.result)
            last.tokens.append((token, plan.result))
            return None
        kind = LedgerRecordType.SNAPSHOT if isinstance(plan.advisory, LeaderAdvisory) else LedgerRecordType.UPDATE
        pending = self._publish(kind, plan.advisory, [(token, plan.result)], wall)
        if plan.uri:
            pending.uri = plan.uri
            self._newest_changes[plan.uri] = pending
        if isinstance(plan.advisory, QueueUnAssignmentAdvisory):
            pending.removed_keys = frozenset((plan.result.key,))
            self._removed_keys |= pending.removed_keys
        return None

    def last_change(self, uri: str) -> PendingRecord | None:
        """Return the newest pending record that changes a queue."""
        # records of earlier leaders are committed with the first record of this term
        return self._newest_changes.get(uri) or self.pending.get((self.term, 1))

    def _publish(self, kind: LedgerRecordType, advisory: Any, tokens: list[tuple[int, Any]], wall: int) -> PendingRecord:
        lsn = advisory.sequence_number = self._next_lsn()
        record = ClusterStateRecord(kind, *lsn, wall, ClusterMessage.of(advisory))
        self._log.append(record)
        self.head.apply(record.message)
        pending = self.pending[lsn] = PendingRecord(tokens)
        if not self.followers:
            self.append_commit(lsn, wall)
        return pending

    def _next_lsn(self) -> Lsn:
        self.sequence += 1
        return self.term, self.sequence

    def append_commit(self, lsn: Lsn, wall: int) -> None:
        """Append a COMMIT record, which reports the commit of `lsn`."""
        advisory = LeaderAdvisoryCommit(self._next_lsn(), lsn)
        self._log.append(ClusterStateRecord(LedgerRecordType.COMMIT, self.term, self.sequence, wall,
                                            ClusterMessage.of(advisory)))

    def complete(self, lsn: Lsn) -> list[tuple[int, Any]]:
        """Remove a pending record; return the tokens of the proposals that it completes."""
        pending = self.pending.pop(lsn, None)
        if pending is None:
            return []
        self._removed_keys -= pending.removed_keys
        if self._newest_changes.get(pending.uri) is pending:
            del self._newest_changes[pending.uri]
        return pending.tokens

    # -- followers ----------------------------------------------------------------------------------------------------

    def on_acknowledged(self, sender: int, lsn: Lsn) -> bool:
        """Record that the log is durable up to `lsn` at a follower; return False if that was known or `lsn` is unknown."""
        follower = self._follower(sender)
        if follower is None or not follower.durable < lsn <= self._log.last:
            return False
        follower.durable = follower.resend_after = lsn
        follower.sent = max(follower.sent, lsn)
        if lsn == follower.sent:
            follower.sent_bytes = 0
        return True

    def _follower(self, node_id: int) -> Follower | None:
        """Return a follower. With other storage it has acknowledged nothing yet."""
        follower, incarnation = self.followers.get(node_id), self._electorate.storage(node_id).incarnation
        if follower is not None and follower.incarnation != incarnation:
            follower.incarnation = incarnation
            self._expect_acknowledgement(follower)
        return follower

    def _expect_acknowledgement(self, follower: Follower) -> None:
        """Let a follower acknowledge the whole log again: the newest record is sent to it again, even if it has it."""
        log = self._log
        follower.durable, follower.goal = NO_LSN, log.last
        before_last = log.lsn_at(len(log.records) - 1) if log.records else NO_LSN
        follower.sent = follower.resend_after = min(follower.sent, before_last)

    def durable_at(self, least: int) -> Lsn:
        """Return the LSN up to which the log is durable at a quorum, this node included, and at `least` nodes."""
        own = self._log.lsn_at(self._log.durable)
        durable = {node_id: follower.durable for node_id, follower in self.followers.items() if self._is_present(node_id)}
        reached = quorum_value(self._electorate, {self.node_id: own, **durable}, least, lambda lsn: lsn)
        return NO_LSN if reached is None else min(own, reached)

    def _is_present(self, node_id: int) -> bool:
        """True if a follower still has the storage of its last acknowledgement."""
        return self.followers[node_id].incarnation == self._electorate.storage(node_id).incarnation

    @property
    def caught_up(self) -> list[int]:
        """The followers whose present storage has all that the log had when they began to acknowledge with it."""
        return [node_id for node_id, follower in self.followers.items()
                if follower.durable >= max(follower.goal, (self.term, 1)) and self._is_present(node_id)]

    def rewind_follower(self, sender: int, last: Lsn) -> None:
        """Send a follower the records after `last` again: its CatchUp says that it lacks them."""
        follower, log = self._follower(sender), self._log
        if follower is not None and last < follower.durable:
            self.regressed[sender] = follower.incarnation
            self._expect_acknowledgement(follower)
        if follower is not None and last <= follower.sent:
            follower.sent = follower.resend_after = min(last, log.lsn_at(log.count_up_to(last)))
            follower.durable = min(follower.durable, follower.sent)  # the follower may have lost its file

    def resend(self) -> None:
        """Send each follower the unacknowledged records again, once the last ones have had time to arrive."""
        for follower in self.followers.values():
            follower.sent_bytes -= RESEND_BYTES
            if follower.sent_bytes <= 0:
                follower.sent, follower.sent_bytes = follower.resend_after, 0

    def next_messages(self, wall: int) -> list[Send]:
        """Return the messages with all records that were not sent to a follower yet."""
        return [Send(node_id, message) for node_id, follower in self.followers.items()
                for message in self._messages_for(follower, wall)]

    def _messages_for(self, follower: Follower, wall: int) -> list[Message]:
        log, found = self._log, list[Message]()
        if follower.sent < log.base:
            covered = log.lsn_at(log.covered)
            snapshot = log_record(snapshot_record(self._state, covered, wall))
            found.append(Snapshot(self.node_id, self.term, snapshot.record))
            follower.sent = covered
            follower.sent_bytes += len(snapshot.data)
        start = log.count_up_to(follower.sent)
        while start < len(log.records):
            stop, size = start, 0
            while stop < len(log.records) and (stop == start or size + len(log.records[stop].data) <= MESSAGE_BYTES):
                size += len(log.records[stop].data)
                stop += 1
            records = tuple(each.record for each in log.records[start:stop])
            found.append(Entries(self.node_id, self.term, log.lsn_at(start), records))
            follower.sent_bytes += size
            follower.sent, start = log.lsn_at(stop), stop
        return found

    @property
    def published_count(self) -> int:
        """Number of records that were written or sent."""
        log = self._log
        return max([log.written, *(log.count_up_to(follower.sent) for follower in self.followers.values())])
