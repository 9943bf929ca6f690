"""Metadata log of a cluster: a replicated log with one record for each change. A state machine without files and sockets.

docs/internals.md, "The metadata log", lists its rules. An LSN is (term, sequence number): the changes and COMMITs of a
term are numbered together, from 1 on. A term begins with a SNAPSHOT of the leader's whole state. When a quorum has
synced a record of the leader's own term, it is committed, with all records before it; the leader reports this to the
followers with a COMMIT record.

`TABLE` has the action for every role and input. `leader_term.py` has the proposals of a leader and the progress of its
followers. `member/metadata.py` calls `MetadataLog.step` and performs the outputs.
"""

from __future__ import annotations

from enum import Enum
from typing import get_args

from bmqtwist import alarms
from bmqtwist.alarms import AlarmKind
from bmqtwist.cluster import log_events as ev
from bmqtwist.cluster.changes import LEADER_IS_MASTER_ALL, ChangePlanner
from bmqtwist.cluster.electorate import Electorate
from bmqtwist.cluster.leader_term import LeaderTerm
from bmqtwist.cluster.log_events import Done, NotDone
from bmqtwist.cluster.record_log import LogRecord, RecordLog, committed_by, follows, load_log, load_single, snapshot_record
from bmqtwist.cluster.state import ClusterState, StateMismatch
from bmqtwist.errors import PeerError
from bmqtwist.machine import Cell, TransitionLog, check, table, to
from bmqtwist.storage.ledger_file import LEDGER_HEADER_BYTES, encode_ledger, read_ledger
from bmqtwist.versions import FEATURE_RECORDS, MEMBER_LIST
from bmqtwist.wire.cluster_schema import (
    NO_LSN,
    Acknowledged,
    CatchUp,
    ClusterStateRecord,
    Entries,
    LeaderAdvisory,
    LedgerRecordType,
    Lsn,
    MemberList,
    Snapshot,
    UnsafeInfo,
    read_cluster_state_record,
)

RETAINED_BYTES = 1 << 20  # applied records that a leader retains in memory for lagging followers
PENDING_RECORDS_MAX = 10_000  # uncommitted at a leader, unwritten at a follower; further records are refused


class Role(Enum):
    """Role of a node in the log."""

    WAITING = "no leader is known"
    FOLLOWING = "another node leads"
    LEADING = "this node leads"


class MetadataLog:
    """Metadata log of one node. `state`: the committed state. Only `open` and `step` change it.

    `electorate`: the voters, whose lists the log sets; `name`: of this node, for log ids and alarms; `max_bytes`: file size
    above which a new file begins.
    """

    def __init__(self, electorate: Electorate, name: str, max_bytes: int, algorithm: str = LEADER_IS_MASTER_ALL) -> None:
        self.node_id, self.name, self.electorate = electorate.node_id, name, electorate
        self.members = electorate.configured
        self.quorum = 0  # configured number of nodes that must store a record before its commit
        self.is_only_member = len(self.members) == 1
        self.state = ClusterState()
        self.leader_term: LeaderTerm | None = None  # None unless this node leads
        self.transition_log = TransitionLog()  # times: seconds since the epoch
        self.role = Role.WAITING
        self.leader: int | None = None
        self.term = 0  # newest known term
        self.log = RecordLog(name, max_bytes, self.is_only_member)
        self._planner = ChangePlanner(self.node_id, algorithm)
        self.applied = NO_LSN  # newest change applied to `state` by this process
        self._committed = NO_LSN  # all records up to this one are committed
        self._matched = NO_LSN  # up to this record the log of a follower equals the leader's
        self._acknowledged = NO_LSN  # in the last acknowledgement to the leader
        self._incoming: Snapshot | None = None  # replaces the log of this follower
        self._incoming_write = 0
        self._out: list[ev.Output] = []
        self._wall = 0

    @property
    def lsn(self) -> Lsn:
        """LSN of the newest durable record, which elections compare."""
        return self.log.lsn_at(self.log.durable)

    @property
    def committed(self) -> Lsn:
        """LSN up to which all records are committed and applied to `state`."""
        return self.log.lsn_at(self.log.covered)

    @property
    def head(self) -> ClusterState:
        """The committed state; at a leader, the state with all pending records applied."""
        return self.state if self.leader_term is None else self.leader_term.head

    def is_pending(self, uri: str) -> bool:
        """True if this node leads and a change of the queue is not committed yet."""
        return self.leader_term is not None and self.leader_term.last_change(uri) is not None

    def step(self, event: ev.Input, wall: int) -> list[ev.Output]:
        """Handle one input and return the outputs. `wall`: seconds since the epoch."""
        self._wall, self._out = wall, []
        before, kind = self.role, type(event)
        TABLE[before][kind].action(self, event)
        check(TABLE, before, kind, self.role)
        self._update_lists()
        if self.role is not before:
            cause = f"term {self.term}, leader {self.leader}"
            self.transition_log.record(wall, before.name, self.role.name, cause, kind.__name__)
        return self._out

    def _update_lists(self) -> None:
        """Set the lists that count: the committed one, and each later one."""
        lists = [self.state.members] if self.state.members is not None else []
        lists += self.log.pending_lists
        if len(lists) != len(self.electorate.lists) or any(
                one is not two for one, two in zip(lists, self.electorate.lists, strict=True)):
            self.electorate.set_lists(lists)

    # -- the start --------------------------------------------------------------------------------------------------

    def open(self, data: bytes) -> tuple[int, list[ev.Output]]:
        """Load the content of the file (b"" = there is none); return the number of valid bytes, and alarms about defects."""
        self._out = []
        found = read_ledger(data)
        for text in found.alarms:
            self._alarm(alarms.LEDGER_DAMAGED, text)
        if data:
            records = [each.record for each in found.entries]
            loaded = load_single(records) if self.is_only_member else load_log(records)
            self._committed = loaded.committed
            for record in loaded.applied:
                self._apply_record(record, False)
            if loaded.alarm:
                self._alarm(alarms.LEDGER_DAMAGED, loaded.alarm)
            damaged = found.damaged or bool(loaded.alarm)
            self.log.load(loaded.base, loaded.records, 0, found.end, found.log_id, damaged)
            self.term = self.log.last[0]
            self._apply_committed()
            self._update_lists()
        return (len(data) if found.damaged else found.end), self._out

    # -- leading ----------------------------------------------------------------------------------------------------

    def _on_lead(self, event: ev.Lead) -> None:
        has_leader = event.term == self.term and self.leader is not None
        if self._incoming is not None or event.term <= self.log.last[0] or event.term < self.term or has_leader:
            self._decide(event.token, NotDone(f"node {self.node_id} cannot lead term {event.term}", False))
            last = self.log.last
            self._alarm(
                alarms.ELECTED_WITH_STALE_TERM,
                f"node {self.node_id} was elected for term {event.term}, but its ledger ends with record ({last[0]}, "
                f"{last[1]}), and its newest term is {self.term}: it does not lead, another election follows")
            return
        self.role, self.leader, self.term = Role.LEADING, self.node_id, event.term
        before = self.leader_term
        led = LeaderTerm(self.electorate, event.term, self.log, self.state, event.primaries, self._planner)
        count = event.primaries.partitions
        missing = sorted({queue.partition_id for queue in led.head.queues.values()} - set(range(count)))
        if missing:
            self._alarm(
                alarms.PARTITIONS_NOT_CONFIGURED,
                f"queues are mapped to the partitions {missing}, but only {count} are configured: these queues are "
                "unavailable")
        if before is not None:
            led.continue_from(before)
        self.leader_term = led
        led.begin_term([(event.token, None)], self._wall, event.features if self.log.last == NO_LSN else ())

    def _on_propose(self, event: ev.Propose) -> None:
        if len(self.log.records) - self.log.covered >= PENDING_RECORDS_MAX:
            outcome: Done | NotDone | None = NotDone(
                f"{PENDING_RECORDS_MAX} changes of the metadata are not committed yet", False)
        else:
            outcome = self._present_term.propose(event.token, event.change, self._wall)
        if outcome is not None:
            self._decide(event.token, outcome)

    @property
    def _present_term(self) -> LeaderTerm:
        """The term of a node that leads."""
        assert self.leader_term is not None
        return self.leader_term

    def _on_acknowledged(self, event: Acknowledged) -> None:
        if event.term == self.term and self._present_term.on_acknowledged(event.sender, event.last):
            self._advance_commit()

    def _advance_commit(self) -> None:
        """Commit the records that are durable at a quorum, if the newest one is of the own term; append COMMITs for
        followers."""
        reached = self._present_term.durable_at(self.quorum)
        if reached[0] != self.term:
            return
        self._committed = max(self._committed, reached)
        for lsn in self._apply_committed():
            if lsn[0] == self.term and not self.is_only_member:
                self._present_term.append_commit(lsn, self._wall)

    def _on_catch_up(self, event: CatchUp) -> None:
        if event.term == self.term:
            self._present_term.rewind_follower(event.sender, event.last)

    def _on_resend(self, event: ev.Resend) -> None:
        self._present_term.resend()

    # -- following --------------------------------------------------------------------------------------------------

    def _is_from_leader(self, event: Entries | Snapshot) -> bool:
        return event.sender == self.leader and event.term == self.term and self._incoming is None

    def _on_entries(self, event: Entries) -> None:
        log = self.log
        if not self._is_from_leader(event) or len(log.records) - log.written >= PENDING_RECORDS_MAX:
            return  # the leader sends them again
        self._append_entries(event)
        self._acknowledged = NO_LSN  # the next Flush sends an acknowledgement, even if it is the same: the last may be lost

    def _append_entries(self, event: Entries) -> None:
        """Append records after `event.previous`; replace conflicting ones. Send a CatchUp if this log lacks `previous`."""
        log = self.log
        covered = log.lsn_at(log.covered)
        if event.previous > covered and not log.has_record(event.previous):
            before = log.lsn_at(log.count_up_to((event.previous[0], event.previous[1] - 1)))
            self._out.append(ev.Send(event.sender, CatchUp(self.node_id, self.term, before)))
            return
        at, previous = max(log.covered, log.count_up_to(event.previous)), event.previous
        for record in event.records:
            lsn = record.term, record.sequence_number
            if not follows(previous, lsn) or lsn[0] > self.term or record.type is LedgerRecordType.ACK:
                self._alarm(
                    alarms.LEDGER_RECORD_OUT_OF_ORDER,
                    f"record ({lsn[0]}, {lsn[1]}) of node {event.sender} does not follow record ({previous[0]}, "
                    f"{previous[1]}): it and all later ones are ignored")
                return
            previous = lsn
            if lsn > covered:
                if at == len(log.records) or log.records[at].lsn != lsn:
                    log.truncate(at)
                    log.append(record)
                    self._committed = max(self._committed, committed_by(record))
                at += 1
            self._matched = max(self._matched, lsn)
        self._matched = max(self._matched, previous)
        self._apply_committed()

    def _on_snapshot(self, event: Snapshot) -> None:
        lsn = event.record.term, event.record.sequence_number
        if not self._is_from_leader(event) or event.record.type is not LedgerRecordType.SNAPSHOT:
            return
        if lsn <= self.log.lsn_at(self.log.covered) or self.log.has_record(lsn):
            self._matched, self._acknowledged = max(self._matched, lsn), NO_LSN
            self._committed = max(self._committed, lsn)
            self._apply_committed()
        else:
            self._incoming = event

    def _adopt_snapshot(self, incoming: Snapshot) -> None:
        """Restart the log with a snapshot, now the only record of the file."""
        lsn = incoming.record.term, incoming.record.sequence_number
        self.log.restart(lsn)
        self._committed, self.applied = max(self._committed, lsn), lsn
        if incoming.term == self.term:
            self._matched = lsn
        self._apply_record(incoming.record)

    # -- committing -------------------------------------------------------------------------------------------------

    def _apply_committed(self) -> list[Lsn]:
        """Apply all committed and durable records in order; return the LSNs of the changes."""
        log, applied = self.log, list[Lsn]()
        while log.covered < log.durable:
            each = log.records[log.covered]
            if each.is_change:
                if each.lsn > self._committed:
                    break
                applied.append(each.lsn)
                self._apply_change(each)
            log.covered += 1
        log.drop_covered(0 if self.is_only_member else RETAINED_BYTES)
        return applied

    def _apply_change(self, each: LogRecord) -> None:
        self.applied = each.lsn
        self._apply_record(each.record)
        for token, result in self.leader_term.complete(each.lsn) if self.leader_term is not None else ():
            self._decide(token, Done(result))

    # -- all roles ----------------------------------------------------------------------------------------------------

    def _on_flush(self, event: ev.Flush) -> None:
        incoming = self._incoming
        if incoming is None:
            job = self.log.next_write(self.state, self._wall)
        elif self.log.writing:
            job = None
        else:
            job = self.log.replacement(incoming.record, self._wall)
            self._incoming_write = job.number
        if job is not None:
            self._out.append(job)
        if self.leader_term is not None:
            self._out += self.leader_term.next_messages(self._wall)
        elif self.role is Role.FOLLOWING:
            reached = min(self.lsn, self._matched)
            if reached > self._acknowledged:
                self._acknowledged = reached
                self._send_to_leader(Acknowledged(self.node_id, self.term, reached))

    def _on_written(self, event: ev.Written) -> None:
        if event.number != self.log.writing:
            return
        self.log.on_written()
        incoming = self._incoming
        if incoming is not None and event.number == self._incoming_write:
            self._incoming = None
            self._adopt_snapshot(incoming)
        elif self.role is Role.LEADING:
            self._advance_commit()
        else:
            self._apply_committed()

    def _on_write_failed(self, event: ev.WriteFailed) -> None:
        if event.number != self.log.writing:
            return
        self._alarm(
            alarms.LEDGER_NOT_WRITTEN,
            f"the metadata ledger cannot be written: {event.reason}. Until it can, this node stores no change of queues "
            "and primaries")
        self._incoming = None
        outcome = NotDone(f"the metadata ledger cannot be written: {event.reason}", True)
        led, removed = self.leader_term, self.log.on_write_failed()
        self._committed = min(self._committed, self.log.last)  # other records may replace the removed ones
        if led is not None and self.is_only_member:
            self._reject_records(led, removed, outcome)
            led.build_head()
        elif led is not None:
            self._stop_leading(led, outcome)
            self._out.append(ev.LeadershipLost(outcome.reason))

    def _on_follow(self, event: ev.Follow) -> None:
        if event.term < self.term or event.term == self.term and self.role is Role.LEADING:
            return  # an older term, or a second leader of this term, which the election excludes
        if self.leader_term is not None:
            self._stop_leading(self.leader_term, NotDone(f"node {self.node_id} lost the leadership of the cluster", True))
        self.term = event.term
        self.leader = event.leader if event.leader in self.members - {self.node_id} else None
        self.role = Role.WAITING if self.leader is None else Role.FOLLOWING
        self._matched = self._acknowledged = NO_LSN
        self._send_to_leader(CatchUp(self.node_id, self.term, self.lsn))

    def _on_set_commit_quorum(self, event: ev.SetCommitQuorum) -> None:
        self.quorum = event.quorum
        if self.role is Role.LEADING:
            self._advance_commit()

    def _on_step_down(self, event: ev.StepDown) -> None:
        if self.leader_term is not None:
            self._stop_leading(self.leader_term, NotDone(f"node {self.node_id} lost the leadership of the cluster", True))
        self.role, self.leader = Role.WAITING, None

    def _stop_leading(self, led: LeaderTerm, outcome: NotDone) -> None:
        """Stop leading. Records neither sent nor written are removed; the outcome of other pending records is unknown."""
        self._reject_records(led, self.log.truncate(led.published_count), NotDone(outcome.reason, False, ev.NOT_LEADER))
        for lsn in list(led.pending):
            for token, _ in led.complete(lsn):
                self._decide(token, outcome)
        self.role, self.leader, self.leader_term = Role.WAITING, None, None

    def _reject_records(self, led: LeaderTerm, removed: list[LogRecord], outcome: NotDone) -> None:
        for each in removed:
            for token, _ in led.complete(each.lsn):
                self._decide(token, outcome)

    def _reject_proposal(self, event: ev.Propose) -> None:
        reason = "no node leads the cluster" if self.leader is None else f"node {self.leader} leads the cluster"
        self._decide(event.token, NotDone(reason, False, ev.NOT_LEADER))

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _send_to_leader(self, message: ev.Message) -> None:
        if self.leader is not None:
            self._out.append(ev.Send(self.leader, message))

    def _decide(self, token: int, outcome: Done | NotDone) -> None:
        self._out.append(ev.Decided(token, outcome))

    def _apply_record(self, record: ClusterStateRecord, is_reported: bool = True) -> None:
        lsn = record.term, record.sequence_number
        try:
            changes = self.state.apply(record.message)
        except StateMismatch as error:
            self._alarm(
                alarms.LEDGER_RECORD_SKIPPED,
                f"record ({lsn[0]}, {lsn[1]}) of the metadata ledger is not applied: {error}")
            return
        if is_reported:
            self._out.append(ev.StateChanged(lsn, changes))

    def _alarm(self, kind: AlarmKind, text: str) -> None:
        self._out.append(ev.Alarm(kind, f"{self.name}: {text}"))


# -- without a leader -------------------------------------------------------------------------------------------


def _on_request_records(node: MetadataLog, event: ev.RequestRecords) -> None:
    for node_id in event.nodes:
        node._out.append(ev.Send(node_id, CatchUp(node.node_id, node.term, node.log.last)))


def _send_newer_records(node: MetadataLog, event: CatchUp) -> None:
    """Send another node all records that it lacks, in one message."""
    log = node.log
    if event.sender not in node.members or event.last >= log.last or node._incoming is not None:
        return
    known = log.lsn_at(log.count_up_to(event.last))
    if event.last < log.base:
        known = log.lsn_at(log.covered)
        node._out.append(ev.Send(event.sender, Snapshot(node.node_id, node.term, snapshot_record(
            node.state, known, node._wall))))
    records = tuple(each.record for each in log.records[log.count_up_to(known):])
    if records:
        node._out.append(ev.Send(event.sender, Entries(node.node_id, node.term, known, records)))


def _adopt_newer_records(node: MetadataLog, event: Entries) -> None:
    """Append the records of another node whose log is newer; they replace conflicting ones."""
    newest = event.records[-1] if event.records else None
    if event.sender not in node.members or node._incoming is not None or newest is None:
        return
    lsn = newest.term, newest.sequence_number
    if lsn > node.log.last and len(node.log.records) - node.log.written < PENDING_RECORDS_MAX:
        node.term = max(node.term, lsn[0])
        node._append_entries(event)


def _adopt_newer_snapshot(node: MetadataLog, event: Snapshot) -> None:
    """Replace this log by the snapshot of another node whose log is newer."""
    lsn = event.record.term, event.record.sequence_number
    if (event.sender in node.members and node._incoming is None and lsn > node.log.last
            and event.record.type is LedgerRecordType.SNAPSHOT):
        node.term = max(node.term, lsn[0])
        node._incoming = event


def _ignore(node: MetadataLog, event: ev.Input) -> None:
    """Ignore a late message, or an input of another role."""


M, INPUTS = MetadataLog, get_args(ev.Input)
W, F, L = Role.WAITING, Role.FOLLOWING, Role.LEADING
_EVERY_ROLE: dict[type, Cell[Role]] = dict.fromkeys(INPUTS, to(_ignore)) | {
    ev.Flush: to(M._on_flush), ev.Written: to(M._on_written), ev.WriteFailed: to(M._on_write_failed),
    ev.Lead: to(M._on_lead, L), ev.SetCommitQuorum: to(M._on_set_commit_quorum), ev.Follow: to(M._on_follow, F, W),
    ev.StepDown: to(M._on_step_down, W), ev.Propose: to(M._reject_proposal)}
TABLE = table(Role, INPUTS, {
    W: _EVERY_ROLE | {
        Entries: to(_adopt_newer_records), Snapshot: to(_adopt_newer_snapshot),
        CatchUp: to(_send_newer_records), ev.RequestRecords: to(_on_request_records)},
    F: _EVERY_ROLE | {Entries: to(M._on_entries), Snapshot: to(M._on_snapshot)},
    L: _EVERY_ROLE | {
        ev.Propose: to(M._on_propose), ev.Resend: to(M._on_resend), ev.WriteFailed: to(M._on_write_failed, W),
        Acknowledged: to(M._on_acknowledged), CatchUp: to(M._on_catch_up)},
})


# -- a node that runs alone ----------------------------------------------------------------------------------


def read_unsafe_info(data: bytes) -> UnsafeInfo | None:
    """Return the UnsafeInfo of a ledger whose node runs alone, else None. Its first and all later SNAPSHOTs contain it."""
    if len(data) <= LEDGER_HEADER_BYTES:
        return None
    try:
        record, _ = read_cluster_state_record(data, LEDGER_HEADER_BYTES, len(data))
    except PeerError:
        return None
    advisory = record.message.value
    return advisory.unsafe if record.type is LedgerRecordType.SNAPSHOT and isinstance(advisory, LeaderAdvisory) else None


def open_alone(data: bytes, node_id: int, name: str) -> MetadataLog:
    """Return the log in a ledger, with all records committed."""
    log = MetadataLog(Electorate(node_id, [node_id]), name, len(data) + 1)
    log.open(data)
    return log


def rewrite_ledger(log: MetadataLog, log_id: bytes, unsafe: UnsafeInfo | None, members: MemberList, wall: int) -> bytes:
    """Return a ledger with the state of a log of `open_alone`, with `unsafe` (None: the node no longer runs alone) and
    `members`."""
    log.state.unsafe, log.state.members = unsafe, members
    log.state.features = log.state.features.extended((FEATURE_RECORDS, MEMBER_LIST))
    # any sequence number but 1, that of a leader's first record, which would be pending
    return encode_ledger(log_id, [snapshot_record(log.state, (log.term + 1, 2), wall)])
