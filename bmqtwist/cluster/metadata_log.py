"""The metadata of a cluster as a replicated log: every change is a record first. A machine without files and sockets.

    propose      the leader gives the change the next LSN and appends a SNAPSHOT or UPDATE to its log
    flush        at the end of a turn everything appended in it is written with one sync, and sent to the followers
    follower     appends what follows a record it has, cutting off what another leader left there uncommitted; what it
                 lacks before that it asks for; it acknowledges only what is synced
    commit       when a quorum has synced a record of the leader's own term, this node among them, then that record and
                 all before it are committed, in order; a COMMIT record tells the followers
    no leader    a node with a newer log gives it to one that asks: whatever was committed with that one's help is in there,
                 so that one may have it, and be elected
    start        a cluster of one: from the last SNAPSHOT on apply everything, committed or not: what was written may
                 have been told to others before the process died. Several nodes: from the last committed SNAPSHOT on
                 apply up to the newest change that a COMMIT record names; the rest waits for a leader, whose first
                 record commits it or cuts it off
    file full    a new file (SNAPSHOT of the state, records not applied yet, new records) is complete and synced before
                 the old one goes

An LSN is (term, sequence): a leader begins a new term with sequence 1, and records and COMMITs both take a number. A
term begins with a SNAPSHOT of everything in the leader's log. With a quorum of one, record and COMMIT are written and
synced together.

A failed write leaves the state as it was, and the next one begins a new file, since nobody can tell what the old one ends
with. A cluster of one goes on; a leader of several steps down, since others may have what it could not write.

`TABLE` says for every role and every input what is done. What a leader has proposed, and how far its followers are, is in
`leader_term.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from bmqtwist.cluster.changes import LEADER_IS_MASTER_ALL, Judge
from bmqtwist.cluster.leader_term import LeaderTerm
from bmqtwist.cluster.log_events import (
    NO_LSN,
    NOT_LEADER,
    Acknowledged,
    Alarm,
    Ask,
    CatchUp,
    Decided,
    Done,
    Entries,
    Flush,
    Follow,
    Input,
    Lead,
    LeadershipLost,
    LogEvent,
    Lsn,
    Message,
    NotDone,
    Output,
    Propose,
    QuorumIs,
    Resend,
    Send,
    Snapshot,
    StateChanged,
    StepDown,
    WriteFailed,
    Written,
)
from bmqtwist.cluster.opened_log import commit_of, opened_alone, opened_log
from bmqtwist.cluster.record_log import LogRecord, RecordLog, follows, snapshot_record
from bmqtwist.cluster.state import ClusterState, StateMismatch
from bmqtwist.machine import Cell, TransitionLog, check, table, to
from bmqtwist.storage.ledger_file import read_ledger
from bmqtwist.wire.cluster_events import LedgerRecordType

RETAINED_BYTES = 1 << 20  # of applied records that a leader of several keeps in memory for followers that lag
WAITING_RECORDS_MAX = 10_000  # of a leader for their commit, of a follower for its disk; beyond that none is taken


class Role(Enum):
    """What a node is in the log."""

    WAITING = "no leader is known"
    FOLLOWING = "another node leads"
    LEADING = "this node leads"


class MetadataLog:
    """The log of one node. `state` is read freely, it holds what is committed; everything else goes through `step`.

    `members`: ids of all nodes of the cluster; `name`: this node's, for log ids and alarms; `max_bytes`: size at which a
    new file is begun.
    """

    def __init__(self, node_id: int, name: str, members: Collection[int], max_bytes: int,
                 algorithm: str = LEADER_IS_MASTER_ALL) -> None:
        self.node_id, self.name = node_id, name
        self.members = frozenset(members)
        self.quorum = self._majority = len(self.members) // 2 + 1
        self.alone = len(self.members) == 1
        self.state = ClusterState()
        self.leading: LeaderTerm | None = None  # while this node leads
        self.story = TransitionLog()  # with seconds since the epoch
        self.role = Role.WAITING
        self.leader: int | None = None
        self.term = 0  # the newest one known
        self.log = RecordLog(name, max_bytes, self.alone)
        self._judge = Judge(node_id, algorithm)
        self.applied = NO_LSN  # the newest change that `state` has, since this process runs
        self._committed = NO_LSN  # everything up to here is
        self._matched = NO_LSN  # a follower's log is its leader's up to here
        self._acknowledged = NO_LSN  # by the last message to the leader
        self._arriving: Snapshot | None = None  # a follower is about to begin anew with it
        self._arriving_write = 0
        self._out: list[Output] = []
        self._wall = 0

    @property
    def lsn(self) -> Lsn:
        """Of the newest record that survives a loss of power: what an election compares."""
        return self.log.lsn_at(self.log.durable)

    @property
    def committed(self) -> Lsn:
        """Everything up to here is committed, and `state` has it."""
        return self.log.lsn_at(self.log.covered)

    @property
    def head(self) -> ClusterState:
        """The state with all that waits for its commit, as far as this node knows."""
        return self.state if self.leading is None else self.leading.head

    def is_pending(self, uri: str) -> bool:
        """Whether a change of the queue waits for its commit."""
        return self.leading is not None and self.leading.last_change(uri) is not None

    def step(self, event: Input, wall: int) -> list[Output]:
        """One input; what follows from it. `wall`: seconds since the epoch."""
        self._wall, self._out = wall, []
        before, kind = self.role, LogEvent(type(event).__name__)
        TABLE[before][kind].action(self, event)
        check(TABLE, before, kind, self.role)
        if self.role is not before:
            self.story.note(wall, before.name, self.role.name, f"term {self.term}, leader {self.leader}", kind.name)
        return self._out

    # -- the start --------------------------------------------------------------------------------------------------

    def open(self, data: bytes) -> tuple[int, list[Output]]:
        """The content of the file, b"" if there is none; how many bytes of it are good. Never fails for what is in it."""
        self._out = []
        found = read_ledger(data)
        for text in found.alarms:
            self._alarm(text)
        if data:
            records = [each.record for each in found.entries]
            opened = opened_alone(records) if self.alone else opened_log(records)
            self._committed = opened.committed
            for record in opened.loaded:
                try:
                    self.state.apply(record.message)
                except StateMismatch as error:
                    self._left_out((record.term, record.sequence_number), error)
            if opened.alarm:
                self._alarm(opened.alarm)
            damaged = found.damaged or bool(opened.alarm)
            self.log.opened(opened.base, opened.kept, 0, found.end, found.log_id, damaged)
            self.term = self.log.last[0]
            self._apply_committed()
        return (len(data) if found.damaged else found.end), self._out

    # -- leading ----------------------------------------------------------------------------------------------------

    def _lead(self, event: Lead) -> None:
        taken = event.term == self.term and self.leader is not None
        if self._arriving is not None or event.term <= self.log.last[0] or event.term < self.term or taken:
            self._decide(event.token, NotDone(f"node {self.node_id} cannot lead term {event.term}", False))
            self._alarm(f"node {self.node_id} was elected for term {event.term}, and knows of a record "
                        f"({self.log.last[0]}, {self.log.last[1]}) and of term {self.term}")
            return
        self.role, self.leader, self.term = Role.LEADING, self.node_id, event.term
        before, led = self.leading, LeaderTerm(self.node_id, event.term, self.members - {self.node_id}, self.log, self.state,
                                               event.primaries, self._judge)
        stray = sorted({queue.partition_id for queue in led.head.queues.values()} - set(range(event.primaries.partitions)))
        if stray:
            self._alarm(f"queues are mapped to the partitions {stray}, but only {event.primaries.partitions} are configured")
        if before is not None:
            led.continue_from(before)
        self.leading = led
        led.begin([(event.token, None)], self._wall)

    def _propose(self, event: Propose) -> None:
        if len(self.log.records) - self.log.covered >= WAITING_RECORDS_MAX:
            outcome: Done | NotDone | None = NotDone(
                f"{WAITING_RECORDS_MAX} records of the metadata wait for their commit", False)
        else:
            outcome = self._led.propose(event.token, event.change, self._wall)
        if outcome is not None:
            self._decide(event.token, outcome)

    @property
    def _led(self) -> LeaderTerm:
        assert self.leading is not None
        return self.leading

    def _on_acknowledged(self, event: Acknowledged) -> None:
        if event.term == self.term and self._led.acknowledged(event.sender, event.lsn):
            self._count()

    def _count(self) -> None:
        """Commit what a quorum has, if the newest of it is of our own term, and tell the followers."""
        reach = self._led.reach(self.quorum)
        if reach[0] != self.term:
            return
        self._committed = max(self._committed, reach)
        for lsn in self._apply_committed():
            if lsn[0] == self.term and not self.alone:
                self._led.append_commit(lsn, self._wall)

    def _on_catch_up(self, event: CatchUp) -> None:
        if event.term == self.term:
            self._led.rewind(event.sender, event.last)

    def _resend(self, event: Resend) -> None:
        self._led.resend()

    # -- following --------------------------------------------------------------------------------------------------

    def _is_from_leader(self, event: Entries | Snapshot) -> bool:
        return event.sender == self.leader and event.term == self.term and self._arriving is None

    def _on_entries(self, event: Entries) -> None:
        log = self.log
        if not self._is_from_leader(event) or len(log.records) - log.written >= WAITING_RECORDS_MAX:
            return  # the leader sends it again
        self._append_entries(event)
        self._acknowledged = NO_LSN  # say it again: the last time may have been lost

    def _append_entries(self, event: Entries) -> None:
        log = self.log
        covered = log.lsn_at(log.covered)
        if event.previous > covered and not log.holds(event.previous):
            before = log.lsn_at(log.after((event.previous[0], event.previous[1] - 1)))
            self._out.append(Send(event.sender, CatchUp(self.node_id, self.term, before)))
            return
        at, previous = max(log.covered, log.after(event.previous)), event.previous
        for record in event.records:
            lsn = record.term, record.sequence_number
            if not follows(previous, lsn) or lsn[0] > self.term or record.type is LedgerRecordType.ACK:
                self._alarm(f"node {event.sender} sent a record ({lsn[0]}, {lsn[1]}) that does not follow ({previous[0]}, "
                            f"{previous[1]})")
                return
            previous = lsn
            if lsn > covered:
                if at == len(log.records) or log.records[at].lsn != lsn:
                    log.cut(at)
                    log.append(record)
                    self._committed = max(self._committed, commit_of(record))
                at += 1
            self._matched = max(self._matched, lsn)
        self._matched = max(self._matched, previous)
        self._apply_committed()

    def _on_snapshot(self, event: Snapshot) -> None:
        lsn = event.record.term, event.record.sequence_number
        if not self._is_from_leader(event) or event.record.type is not LedgerRecordType.SNAPSHOT:
            return
        if lsn <= self.log.lsn_at(self.log.covered) or self.log.holds(lsn):
            self._matched, self._acknowledged = max(self._matched, lsn), NO_LSN
            self._committed = max(self._committed, lsn)
            self._apply_committed()
        else:
            self._arriving = event

    def _adopt(self, arrived: Snapshot) -> None:
        """The file holds the snapshot and nothing else now."""
        lsn = arrived.record.term, arrived.record.sequence_number
        self.log.restart(lsn)
        self._committed, self.applied = max(self._committed, lsn), lsn
        if arrived.term == self.term:
            self._matched = lsn
        try:
            self._out.append(StateChanged(lsn, self.state.apply(arrived.record.message)))
        except StateMismatch as error:
            self._left_out(lsn, error)

    # -- committing -------------------------------------------------------------------------------------------------

    def _apply_committed(self) -> list[Lsn]:
        """Apply what is committed and durable here, in order; the LSNs of the changes."""
        log, applied = self.log, list[Lsn]()
        while log.covered < log.durable:
            each = log.records[log.covered]
            if each.is_change:
                if each.lsn > self._committed:
                    break
                applied.append(each.lsn)
                self._apply(each)
            log.covered += 1
        log.forget(0 if self.alone else RETAINED_BYTES)
        return applied

    def _apply(self, each: LogRecord) -> None:
        self.applied = each.lsn
        try:
            self._out.append(StateChanged(each.lsn, self.state.apply(each.record.message)))
        except StateMismatch as error:
            self._left_out(each.lsn, error)
        for token, result in self.leading.settle(each.lsn) if self.leading is not None else ():
            self._decide(token, Done(result))

    # -- what every role does -----------------------------------------------------------------------------------------

    def _flush(self, event: Flush) -> None:
        arriving = self._arriving
        if arriving is None:
            job = self.log.next_write(self.state, self._wall)
        elif self.log.writing:
            job = None
        else:
            job = self.log.replacement(arriving.record, self._wall)
            self._arriving_write = job.number
        if job is not None:
            self._out.append(job)
        if self.leading is not None:
            self._out += self.leading.send(self._wall)
        elif self.role is Role.FOLLOWING:
            reach = min(self.lsn, self._matched)
            if reach > self._acknowledged:
                self._acknowledged = reach
                self._say(Acknowledged(self.node_id, self.term, reach))

    def _on_written(self, event: Written) -> None:
        if event.number != self.log.writing:
            return
        self.log.came_through()
        arrived = self._arriving
        if arrived is not None and event.number == self._arriving_write:
            self._arriving = None
            self._adopt(arrived)
        elif self.role is Role.LEADING:
            self._count()
        else:
            self._apply_committed()

    def _on_write_failed(self, event: WriteFailed) -> None:
        if event.number != self.log.writing:
            return
        self._alarm(f"the ledger cannot be written: {event.reason}")
        self._arriving = None
        outcome = NotDone(f"the metadata ledger cannot be written: {event.reason}", True)
        led, gone = self.leading, self.log.failed()
        self._committed = min(self._committed, self.log.last)  # of what is gone; what takes its place may be another's
        if led is not None and self.alone:
            self._give_up(led, gone, outcome)
            led.build_head()
        elif led is not None:
            self._leave(led, outcome)
            self._out.append(LeadershipLost(outcome.reason))

    def _follow(self, event: Follow) -> None:
        if event.term < self.term or event.term == self.term and self.role is Role.LEADING:
            return  # it is over already, or two lead one term, which an election rules out
        if self.leading is not None:
            self._leave(self.leading, NotDone(f"node {event.leader} leads the cluster now", True))
        self.term = event.term
        self.leader = event.leader if event.leader in self.members - {self.node_id} else None
        self.role = Role.WAITING if self.leader is None else Role.FOLLOWING
        self._matched = self._acknowledged = NO_LSN
        self._say(CatchUp(self.node_id, self.term, self.lsn))

    def _quorum_is(self, event: QuorumIs) -> None:
        self.quorum = max(event.quorum, self._majority)
        if self.role is Role.LEADING:
            self._count()

    def _step_down(self, event: StepDown) -> None:
        if self.leading is not None:
            self._leave(self.leading, NotDone(f"node {self.node_id} leads the cluster no longer", True))
        self.role, self.leader = Role.WAITING, None

    def _leave(self, led: LeaderTerm, outcome: NotDone) -> None:
        """Lead no longer. What was neither sent nor written is taken back, of the rest nothing is known."""
        self._give_up(led, self.log.cut(led.spoken), NotDone(outcome.reason, False, NOT_LEADER))
        for lsn in list(led.waiting):
            for token, _ in led.settle(lsn):
                self._decide(token, outcome)
        self.role, self.leader, self.leading = Role.WAITING, None, None

    def _give_up(self, led: LeaderTerm, gone: list[LogRecord], outcome: NotDone) -> None:
        for each in gone:
            for token, _ in led.settle(each.lsn):
                self._decide(token, outcome)

    def _refuse(self, event: Propose) -> None:
        where = "no node leads the cluster" if self.leader is None else f"node {self.leader} leads the cluster"
        self._decide(event.token, NotDone(where, False, NOT_LEADER))

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        if self.leader is not None:
            self._out.append(Send(self.leader, message))

    def _decide(self, token: int, outcome: Done | NotDone) -> None:
        self._out.append(Decided(token, outcome))

    def _left_out(self, lsn: Lsn, error: StateMismatch) -> None:
        self._alarm(f"record ({lsn[0]}, {lsn[1]}) of the ledger is left out: {error}")

    def _alarm(self, text: str) -> None:
        self._out.append(Alarm(f"{self.name}: {text}"))


# -- without a leader -------------------------------------------------------------------------------------------


def _ask(node: MetadataLog, event: Ask) -> None:
    for node_id in event.nodes:
        node._out.append(Send(node_id, CatchUp(node.node_id, node.term, node.log.last)))


def _lend(node: MetadataLog, event: CatchUp) -> None:
    """Another node asks for what is newer: all of it in one message."""
    log = node.log
    if event.sender not in node.members or event.last >= log.last or node._arriving is not None:
        return
    known = log.lsn_at(log.after(event.last))
    if event.last < log.base:
        known = log.lsn_at(log.covered)
        node._out.append(Send(event.sender, Snapshot(node.node_id, node.term, snapshot_record(
            node.state, known, node._wall))))
    records = tuple(each.record for each in log.records[log.after(known):])
    node._out.append(Send(event.sender, Entries(node.node_id, node.term, known, records)))


def _borrow(node: MetadataLog, event: Entries) -> None:
    """What another node has is newer as a whole: it takes the place of what is here."""
    newest = event.records[-1] if event.records else None
    if event.sender not in node.members or node._arriving is not None or newest is None:
        return
    lsn = newest.term, newest.sequence_number
    if lsn > node.log.last and len(node.log.records) - node.log.written < WAITING_RECORDS_MAX:
        node.term = max(node.term, lsn[0])
        node._append_entries(event)


def _borrow_snapshot(node: MetadataLog, event: Snapshot) -> None:
    lsn = event.record.term, event.record.sequence_number
    if (event.sender in node.members and node._arriving is None and lsn > node.log.last
            and event.record.type is LedgerRecordType.SNAPSHOT):
        node.term = max(node.term, lsn[0])
        node._arriving = event


def _ignore(node: MetadataLog, event: Input) -> None:
    """Meant for another role: a message that comes late."""


E, M = LogEvent, MetadataLog
W, F, L = Role.WAITING, Role.FOLLOWING, Role.LEADING
_EVERY_ROLE: dict[LogEvent, Cell[Role]] = dict.fromkeys(E, to(_ignore)) | {
    E.FLUSH: to(M._flush), E.WRITTEN: to(M._on_written), E.WRITE_FAILED: to(M._on_write_failed), E.LEAD: to(M._lead, L),
    E.QUORUM: to(M._quorum_is), E.FOLLOW: to(M._follow, F, W), E.STEP_DOWN: to(M._step_down, W), E.PROPOSE: to(M._refuse)}
TABLE = table(Role, LogEvent, {
    W: _EVERY_ROLE | {
        E.ENTRIES: to(_borrow), E.SNAPSHOT: to(_borrow_snapshot), E.CATCH_UP: to(_lend), E.ASK: to(_ask)},
    F: _EVERY_ROLE | {E.ENTRIES: to(M._on_entries), E.SNAPSHOT: to(M._on_snapshot)},
    L: _EVERY_ROLE | {
        E.PROPOSE: to(M._propose), E.RESEND: to(M._resend), E.WRITE_FAILED: to(M._on_write_failed, W),
        E.ACKNOWLEDGED: to(M._on_acknowledged), E.CATCH_UP: to(M._on_catch_up)},
})
