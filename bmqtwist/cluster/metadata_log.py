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

`ACTIONS` says for every role and every input what is done.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bmqtwist.cluster.changes import LEADER_IS_MASTER_ALL, ChangeRefused, Judge, Primaries
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
from bmqtwist.cluster.record_log import LogRecord, RecordLog, follows, log_record, snapshot_record
from bmqtwist.cluster.state import ClusterState, StateMismatch, partition_infos
from bmqtwist.storage.ledger_format import read_ledger
from bmqtwist.wire.cluster_events import ClusterStateRecord, LedgerRecordType
from bmqtwist.wire.cluster_schema import ClusterMessage, LeaderAdvisoryCommit, LeaderMessageSequence

RETAINED_BYTES = 1 << 20  # of applied records that a leader of several keeps in memory for followers that lag
MESSAGE_BYTES = 1 << 20  # of records in one message, unless a single record is larger
WAITING_RECORDS_MAX = 10_000  # of a leader for their commit, of a follower for its disk; beyond that none is taken


class Role(Enum):
    """What a node is in the log."""

    WAITING = "no leader is known"
    FOLLOWING = "another node leads"
    LEADING = "this node leads"


@dataclass(slots=True)
class Peer:
    """What a leader knows of another node. All are LSNs."""

    sent: Lsn  # the newest record sent
    resume: Lsn  # what to send again begins after this record
    match: Lsn = NO_LSN  # the newest record known to be durable there


@dataclass(slots=True)
class Waiting:
    """A record that waits for its commit. `tokens`: who wants to know, with which result; `uri`: the queue it is about;
    `leaving`: keys of queues that are gone with it."""

    tokens: list[tuple[int, Any]]
    uri: str = ""
    leaving: frozenset[bytes] = frozenset()


class MetadataLog:
    """The log of one node. `state` is read freely, it holds what is committed; everything else goes through `step`.

    `head` is the state with all that waits for its commit, valid while leading. `members`: ids of all nodes of the
    cluster; `name`: this node's, for log ids and alarms; `max_bytes`: size at which a new file is begun.
    """

    def __init__(self, node_id: int, name: str, members: Collection[int], max_bytes: int,
                 algorithm: str = LEADER_IS_MASTER_ALL) -> None:
        self.node_id, self.name = node_id, name
        self.members = frozenset(members)
        self.quorum = self._majority = len(self.members) // 2 + 1
        self.alone = len(self.members) == 1
        self.state, self.head = ClusterState(), ClusterState()
        self.role = Role.WAITING
        self.leader: int | None = None
        self.term = self.sequence = 0  # the newest term known; the last sequence number given in it, if leading
        self.log = RecordLog(name, max_bytes, self.alone)
        self._judge = Judge(node_id, algorithm)
        self._primaries = Primaries(0)  # what a leader began with
        self.applied = NO_LSN  # the newest change that `state` has, since this process runs
        self._committed = NO_LSN  # everything up to here is
        self._matched = NO_LSN  # a follower's log is its leader's up to here
        self._acknowledged = NO_LSN  # by the last message to the leader
        self._arriving: Snapshot | None = None  # a follower is about to begin anew with it
        self._arriving_write = 0
        self._peers: dict[int, Peer] = {}
        self._waiting: dict[Lsn, Waiting] = {}
        self._newest: dict[str, Waiting] = {}  # queue -> the newest record about it that waits
        self._leaving: set[bytes] = set()
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

    def is_pending(self, uri: str) -> bool:
        """Whether a change of the queue waits for its commit."""
        return self._last_change(uri) is not None

    def _last_change(self, uri: str) -> Waiting | None:
        # what another leader left uncommitted is committed with the first record of our term
        return self._newest.get(uri) or self._waiting.get((self.term, 1))

    def step(self, event: Input, wall: int) -> list[Output]:
        """One input; what follows from it. `wall`: seconds since the epoch."""
        self._wall, self._out = wall, []
        getattr(self, ACTIONS[self.role][type(event)])(event)
        return self._out

    # -- the start --------------------------------------------------------------------------------------------------

    def open(self, data: bytes) -> tuple[int, list[Output]]:
        """The content of the file, b"" if there is none; how many bytes of it are good. Never fails for what is in it."""
        self._out = []
        found = read_ledger(data)
        for text in found.alarms:
            self._alarm(text)
        if data:
            records = [record for _, record in found.records]
            if self.alone:
                self._open_alone(records, found.end, found.log_id, found.damaged)
            else:
                self._open_one_of_many(records, found.end, found.log_id, found.damaged)
        return (len(data) if found.damaged else found.end), self._out

    def _open_alone(self, records: list[ClusterStateRecord], size: int, log_id: bytes, damaged: bool) -> None:
        starts = [at for at, record in enumerate(records) if record.type is LedgerRecordType.SNAPSHOT]
        for record in records[starts[-1] if starts else 0:]:
            if record.type in (LedgerRecordType.SNAPSHOT, LedgerRecordType.UPDATE):
                self._load(record)
        last = max(((record.term, record.sequence_number) for record in records), default=NO_LSN)
        self.term, self._committed = last[0], last
        self.log.opened(last, [], 0, size, log_id, damaged)

    def _open_one_of_many(self, records: list[ClusterStateRecord], size: int, log_id: bytes, damaged: bool) -> None:
        base, kept = NO_LSN, list[LogRecord]()
        each = [log_record(record) for record in records]
        for record in records:
            self._note_commit(record)
        starts = [at for at, entry in enumerate(each)
                  if at and entry.record.type is LedgerRecordType.SNAPSHOT and entry.lsn <= self._committed]
        if starts:  # it stands for all before it, even where the original left records out
            self._load(each[starts[-1]].record)
            base, each = each[starts[-1]].lsn, each[starts[-1] + 1:]
        elif each and each[0].record.type is LedgerRecordType.SNAPSHOT:
            stamp = each[0].lsn
            second = each[1].lsn if len(each) > 1 else (stamp[0], stamp[1] + 1)
            if stamp[1] != 1 or second <= stamp:  # a file that was begun when another one was full
                self._load(each.pop(0).record)
                base = stamp if second > stamp else (second[0], second[1] - 1)
        last = base
        for entry in each:
            if not follows(last, entry.lsn):
                self._alarm(f"record ({entry.lsn[0]}, {entry.lsn[1]}) of the ledger does not follow ({last[0]}, "
                            f"{last[1]}): it and all behind it are left to the other nodes")
                damaged = True
                break
            kept.append(entry)
            last = entry.lsn
        self.log.opened(base, kept, 0, size, log_id, damaged)
        self.term = last[0]
        self._apply_committed()

    def _load(self, record: ClusterStateRecord) -> None:
        try:
            self.state.apply(record.message)
        except StateMismatch as error:
            self._left_out((record.term, record.sequence_number), error)

    # -- leading ----------------------------------------------------------------------------------------------------

    def _lead(self, event: Lead) -> None:
        led = event.term == self.term and self.leader is not None
        if self._arriving is not None or event.term <= self.log.last[0] or event.term < self.term or led:
            self._decide(event.token, NotDone(f"node {self.node_id} cannot lead term {event.term}", False))
            self._alarm(f"node {self.node_id} was elected for term {event.term}, and knows of a record "
                        f"({self.log.last[0]}, {self.log.last[1]}) and of term {self.term}")
            return
        last = self.log.last
        self.role, self.leader, self.term, self.sequence = Role.LEADING, self.node_id, event.term, 0
        self._peers = {node_id: Peer(last, last) for node_id in self.members - {self.node_id}}
        self._build_head()
        stray = sorted({queue.partition_id for queue in self.head.queues.values()} - set(range(event.primaries.partitions)))
        if stray:
            self._alarm(f"queues are mapped to the partitions {stray}, but only {event.primaries.partitions} are configured")
        self._primaries = event.primaries
        self._begin_term([(event.token, None)])

    def _begin_term(self, tokens: list[tuple[int, Any]]) -> None:
        snapshot = self.head.snapshot()
        snapshot.partitions = partition_infos(self._judge.primaries(self.head, self._primaries))
        waiting = self._publish(LedgerRecordType.SNAPSHOT, "leaderAdvisory", snapshot, tokens)
        waiting.leaving = frozenset(self.state.keys - self.head.keys)
        self._leaving |= waiting.leaving

    def _build_head(self) -> None:
        self.head = ClusterState()
        self.head.apply(ClusterMessage("leaderAdvisory", self.state.snapshot()))
        for each in self.log.records[self.log.covered:]:
            if each.is_change:
                try:
                    self.head.apply(each.record.message)
                except StateMismatch:  # it is told when it is committed
                    continue

    def _propose(self, event: Propose) -> None:
        if len(self.log.records) - self.log.covered >= WAITING_RECORDS_MAX:
            self._decide(event.token, NotDone(f"{WAITING_RECORDS_MAX} records of the metadata wait for their commit", False))
            return
        if self.log.last[0] < self.term:  # what a leader says first could not be written
            self._begin_term([])
        try:
            plan = self._judge.plan(event.change, self.head, self._leaving)
        except ChangeRefused as refused:
            self._decide(event.token, NotDone(str(refused), False))
            return
        if plan.advisory is None:
            waiting = self._last_change(plan.uri)
            if waiting is None:
                self._decide(event.token, Done(plan.result))
            else:
                waiting.tokens.append((event.token, plan.result))
            return
        waiting = self._publish(LedgerRecordType.UPDATE, plan.choice, plan.advisory, [(event.token, plan.result)])
        if plan.uri:
            waiting.uri = plan.uri
            self._newest[plan.uri] = waiting
        if plan.choice == "queueUnAssignmentAdvisory":
            waiting.leaving = frozenset((plan.result.key,))
            self._leaving |= waiting.leaving

    def _publish(self, kind: LedgerRecordType, choice: str, advisory: Any, tokens: list[tuple[int, Any]]) -> Waiting:
        advisory.sequence_number = self._next()
        lsn = self.term, self.sequence
        record = ClusterStateRecord(kind, *lsn, self._wall, ClusterMessage(choice, advisory))
        self.log.append(record)
        self.head.apply(record.message)
        waiting = self._waiting[lsn] = Waiting(tokens)
        if self.alone:
            self._append_commit(lsn)
        return waiting

    def _next(self) -> LeaderMessageSequence:
        self.sequence += 1
        return LeaderMessageSequence(self.term, self.sequence)

    def _append_commit(self, lsn: Lsn) -> None:
        advisory = LeaderAdvisoryCommit(self._next(), LeaderMessageSequence(*lsn))
        self.log.append(ClusterStateRecord(LedgerRecordType.COMMIT, self.term, self.sequence, self._wall,
                                           ClusterMessage("leaderAdvisoryCommit", advisory)))

    def _on_acknowledged(self, event: Acknowledged) -> None:
        peer = self._peers.get(event.sender)
        if peer is None or event.term != self.term or event.lsn > self.log.last or event.lsn <= peer.match:
            return
        peer.match = peer.resume = event.lsn
        peer.sent = max(peer.sent, event.lsn)
        self._count()

    def _count(self) -> None:
        """Commit what a quorum has, if the newest of it is of our own term, and tell the followers."""
        own = self.lsn
        durable = sorted([own, *(peer.match for peer in self._peers.values())], reverse=True)
        reach = min(own, durable[self.quorum - 1]) if self.quorum <= len(durable) else NO_LSN
        if reach[0] != self.term:
            return
        self._committed = max(self._committed, reach)
        for lsn in self._apply_committed():
            if lsn[0] == self.term and not self.alone:
                self._append_commit(lsn)

    def _on_catch_up(self, event: CatchUp) -> None:
        peer = self._peers.get(event.sender)
        if peer is not None and event.term == self.term and event.last <= peer.sent:
            log = self.log
            peer.sent = peer.resume = min(event.last, log.lsn_at(log.after(event.last)))
            peer.match = min(peer.match, peer.sent)  # it may have lost its file

    def _resend(self, event: Resend) -> None:
        for peer in self._peers.values():
            peer.sent = peer.resume

    def _send(self, node_id: int, peer: Peer) -> None:
        log = self.log
        if peer.sent < log.base:
            covered = log.lsn_at(log.covered)
            record = snapshot_record(self.state, covered, self._wall)
            self._out.append(Send(node_id, Snapshot(self.node_id, self.term, record)))
            peer.sent = covered
        start = log.after(peer.sent)
        while start < len(log.records):
            stop, size = start, 0
            while stop < len(log.records) and (stop == start or size + len(log.records[stop].data) <= MESSAGE_BYTES):
                size += len(log.records[stop].data)
                stop += 1
            records = tuple(each.record for each in log.records[start:stop])
            self._out.append(Send(node_id, Entries(self.node_id, self.term, log.lsn_at(start), records)))
            peer.sent, start = log.lsn_at(stop), stop

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
                    self._note_commit(record)
                at += 1
            self._matched = max(self._matched, lsn)
        self._matched = max(self._matched, previous)
        self._apply_committed()

    # -- without a leader -------------------------------------------------------------------------------------------

    def _ask(self, event: Ask) -> None:
        for node_id in event.nodes:
            self._out.append(Send(node_id, CatchUp(self.node_id, self.term, self.log.last)))

    def _lend(self, event: CatchUp) -> None:
        """Another node asks for what is newer: all of it in one message."""
        log = self.log
        if event.sender not in self.members or event.last >= log.last or self._arriving is not None:
            return
        known = log.lsn_at(log.after(event.last))
        if event.last < log.base:
            known = log.lsn_at(log.covered)
            self._out.append(Send(event.sender, Snapshot(self.node_id, self.term, snapshot_record(
                self.state, known, self._wall))))
        records = tuple(each.record for each in log.records[log.after(known):])
        self._out.append(Send(event.sender, Entries(self.node_id, self.term, known, records)))

    def _borrow(self, event: Entries) -> None:
        """What another node has is newer as a whole: it takes the place of what is here."""
        newest = event.records[-1] if event.records else None
        if event.sender not in self.members or self._arriving is not None or newest is None:
            return
        lsn = newest.term, newest.sequence_number
        if lsn > self.log.last and len(self.log.records) - self.log.written < WAITING_RECORDS_MAX:
            self.term = max(self.term, lsn[0])
            self._append_entries(event)

    def _borrow_snapshot(self, event: Snapshot) -> None:
        lsn = event.record.term, event.record.sequence_number
        if (event.sender in self.members and self._arriving is None and lsn > self.log.last
                and event.record.type is LedgerRecordType.SNAPSHOT):
            self.term = max(self.term, lsn[0])
            self._arriving = event

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

    def _note_commit(self, record: ClusterStateRecord) -> None:
        advisory = record.message.value
        if isinstance(advisory, LeaderAdvisoryCommit):
            told = advisory.sequence_number_committed
            lsn = told.elector_term, told.sequence_number
            if lsn < (record.term, record.sequence_number):
                self._committed = max(self._committed, lsn)

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
        for token, result in self._settle(each.lsn):
            self._decide(token, Done(result))

    def _settle(self, lsn: Lsn) -> list[tuple[int, Any]]:
        """The record waits no longer; who waited for it."""
        waiting = self._waiting.pop(lsn, None)
        if waiting is None:
            return []
        self._leaving -= waiting.leaving
        if self._newest.get(waiting.uri) is waiting:
            del self._newest[waiting.uri]
        return waiting.tokens

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
        if self.role is Role.LEADING:
            for node_id, peer in self._peers.items():
                self._send(node_id, peer)
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
        leading = self.role is Role.LEADING
        gone = self.log.failed()
        self._committed = min(self._committed, self.log.last)  # of what is gone; what takes its place may be another's
        if leading and self.alone:
            self._give_up(gone, outcome)
            self._build_head()
        elif leading:
            self._leave(outcome)
            self._out.append(LeadershipLost(outcome.reason))

    def _follow(self, event: Follow) -> None:
        if event.term < self.term or event.term == self.term and self.role is Role.LEADING:
            return  # it is over already, or two lead one term, which an election rules out
        if self.role is Role.LEADING:
            self._leave(NotDone(f"node {event.leader} leads the cluster now", True))
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
        if self.role is Role.LEADING:
            self._leave(NotDone(f"node {self.node_id} leads the cluster no longer", True))
        self.role, self.leader = Role.WAITING, None

    def _leave(self, outcome: NotDone) -> None:
        """Lead no longer. What was neither sent nor written is taken back, of the rest nobody knows."""
        log = self.log
        spoken = max([log.written, *(log.after(peer.sent) for peer in self._peers.values())])
        self._give_up(log.cut(spoken), NotDone(outcome.reason, False, NOT_LEADER))
        for lsn in list(self._waiting):
            for token, _ in self._settle(lsn):
                self._decide(token, outcome)
        self.role, self.leader = Role.WAITING, None
        self._peers = {}

    def _give_up(self, gone: list[LogRecord], outcome: NotDone) -> None:
        for each in gone:
            for token, _ in self._settle(each.lsn):
                self._decide(token, outcome)

    def _refuse(self, event: Propose) -> None:
        where = "no node leads the cluster" if self.leader is None else f"node {self.leader} leads the cluster"
        self._decide(event.token, NotDone(where, False, NOT_LEADER))

    def _ignore(self, event: Input) -> None:
        """Meant for another role: a message that comes late."""

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


_EVERY_ROLE: dict[type, str] = {Flush: "_flush", Written: "_on_written", WriteFailed: "_on_write_failed", Lead: "_lead",
                                Follow: "_follow", StepDown: "_step_down", QuorumIs: "_quorum_is", Ask: "_ignore"}

ACTIONS: dict[Role, dict[type, str]] = {
    Role.WAITING: _EVERY_ROLE | {
        Propose: "_refuse", Resend: "_ignore", Entries: "_borrow", Snapshot: "_borrow_snapshot", Acknowledged: "_ignore",
        CatchUp: "_lend", Ask: "_ask"},
    Role.FOLLOWING: _EVERY_ROLE | {
        Propose: "_refuse", Resend: "_ignore", Entries: "_on_entries", Snapshot: "_on_snapshot",
        Acknowledged: "_ignore", CatchUp: "_ignore"},
    Role.LEADING: _EVERY_ROLE | {
        Propose: "_propose", Resend: "_resend", Entries: "_ignore", Snapshot: "_ignore",
        Acknowledged: "_on_acknowledged", CatchUp: "_on_catch_up"},
}
