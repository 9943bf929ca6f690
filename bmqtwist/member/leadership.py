"""Leadership of a cluster at one of its nodes: connects the elector with its vote file, other nodes and the metadata log.

    elector        receives connections and election messages (`member/dispatch.py`); votes are durable before they are sent
    metadata log   follows the elector: it leads, follows a leader, or waits for one
    other nodes    receive the messages of both

Inputs of the elector are processed in order; an input that an output causes is queued. The elector of a cluster of one node
leads at once and needs neither file nor links.

Created by `daemon/assemble.py`. `dispatch.py` passes it connections and election messages; the rules of an election are
in `cluster/elector.py`, the appointment of primaries is in `appointments.py`. The timeouts are configured
(`config/clusters.py: ElectorConfig`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from bmqtwist import alarms
from bmqtwist.cluster.changes import PrimaryRules
from bmqtwist.cluster.election_events import (
    ElectionChanged,
    ElectionInput,
    ElectionMode,
    ElectionOutput,
    ElectionReason,
    ElectionState,
    ElectionTiming,
    ElectorStatus,
    NotElectable,
    Resign,
    SaveVote,
    SetMode,
    SetQuorum,
    Start,
    Stop,
    Tick,
    TickAt,
    Transfer,
    Voted,
)
from bmqtwist.cluster.elector import Elector
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.cluster.log_events import (
    Alarm,
    Follow,
    Message,
    NotDone,
    Outcome,
    RequestRecords,
    Resend,
    Send,
    SetCommitQuorum,
    StateChanged,
    StepDown,
    WriteFailed,
    Written,
    encode_log_message,
)
from bmqtwist.cluster.state import Changes
from bmqtwist.config.clusters import ElectorConfig
from bmqtwist.loop.loop import Loop
from bmqtwist.member.metadata import MetadataUnavailable
from bmqtwist.member.storage_standing import StorageStanding
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import RepeatLimiter, Report
from bmqtwist.storage.slot_file import VoteFile
from bmqtwist.wire import control
from bmqtwist.wire.cluster_schema import Lsn, MemberInfo

TRANSFER_SECONDS_MAX = 20.0  # until a command to transfer the leadership is answered
TRANSFER_CHECK_S = 0.1


class LeaderUser(Protocol):
    """The partitions of a cluster of several nodes (`member/replication.py`)."""

    def start(self, now: float) -> None:
        """Start: the node takes part in elections."""

    def stop(self, now: float) -> None:
        """Stop."""

    def primaries(self, partitions: int) -> PrimaryRules:
        """Return the primaries that this node appoints as a new leader."""

    def on_leader_active(self, now: float) -> None:
        """Follow a leader whose first record is committed."""


class Leadership:
    """Leadership of one cluster. `vote_file`, which was read, and `links`: None in a cluster of one node."""

    def __init__(self, storage: StorageStanding, loop: Loop, vote_file: VoteFile | None = None,
                 links: ClusterLinks | None = None) -> None:
        definition, metadata = storage.definition, storage.metadata
        self.storage, self.definition, self.metadata, self._loop = storage, definition, metadata, loop
        self.title = f"Cluster ({definition.name})"
        self._vote_file, self._links = vote_file, links
        self.elector = Elector(metadata.log.electorate, self.title, timing(definition.elector), loop.performer.chance,
                               lambda: metadata.log.lsn, definition.elector.quorum if links is not None else 0)
        if links is not None:
            self.elector.timers.data_received_at = links.data_received_at
        self.replication: LeaderUser | None = None  # None in a cluster of one node
        self.on_leader_changed: Callable[[], None] = lambda: None  # a leader has become active
        self.common_features: Callable[[], Collection[str]] = tuple  # that all members have announced
        self._first_input: Start | None = None  # until this node takes part in elections
        self.active = False  # the leader's first record is known to be committed
        self._primaries = PrimaryRules(definition.partition_config.num_partitions)
        self._inputs: deque[tuple[float, int, ElectionInput]] = deque()
        self._stepping = False
        self._refused: NotDone | None = None  # the reason why the log did not become leader
        self.on_state_changed: Callable[[Changes], None] = lambda changes: None  # a change of the metadata is applied
        self.on_write_failed: Callable[[str, str], None] = lambda what, error: None  # for `disk_health`
        self._repeats = RepeatLimiter()
        self._mode, self._able = ElectionMode.NORMAL, True

    # -- start and stop ---------------------------------------------------------------------------------------------

    def lead_alone(self, used_leases: Mapping[int, int], now: float, wall: int) -> None:
        """Begin the next term of a cluster of one node; raises MetadataUnavailable if it cannot be written."""
        self._primaries = PrimaryRules(self._primaries.partitions, used_leases=used_leases)
        self.step(now, Start(self.metadata.log.term), wall)
        self.step(now, Tick(), wall)
        self.metadata.perform_jobs(wall)
        if self._refused is not None:
            raise MetadataUnavailable(self._refused.reason)
        self.storage.on_members_applied(now)

    def start(self, now: float) -> None:
        """Start the elector, replication and connections."""
        if self._links is None or self._vote_file is None:
            return
        wall, newest = self._loop.wall(now), self.metadata.log.term
        self.metadata.step(SetCommitQuorum(self.definition.elector.quorum), wall)
        term, vote = self._vote_file.value
        self.metadata.user = self
        if newest > term:
            term, vote = newest, None
        self._first_input = Start(term, vote)
        self._stand(now)
        period = self.elector.timing.beat_period
        self._loop.timers.every(now, period, self._check)
        self._links.start(now)

    def _stand(self, now: float) -> None:
        """Take part in elections and replication, unless the configuration differs from the member list and not all nodes
        have agreed on it yet."""
        first, storage = self._first_input, self.storage
        if first is None:
            return
        if storage.mistake and not storage.agrees(self._connected()):
            return
        self._first_input, storage.mistake = None, ""
        self.step(now, first)
        if self.replication is not None:
            self.replication.start(now)

    def stop(self, now: float) -> None:
        """Leave the elections and notify the other nodes."""
        if self.replication is not None:
            self.replication.stop(now)
        if self._links is not None:
            self.step(now, Stop())

    @property
    def leads(self) -> bool:
        """True if this node may change the metadata."""
        return self.active and self.elector.state is ElectionState.LEADER

    def active_leader(self) -> int | None:
        """Return the leader, once its first record is committed."""
        return self.elector.leader if self.active else None

    def is_up(self, node_id: int) -> bool:
        """Return whether a node is connected."""
        return self._links is not None and self._links.is_up(node_id)

    @property
    def knows_leader(self) -> bool:
        """True if this node follows a leader, or is the leader."""
        return self.elector.leader is not None

    @property
    def may_be_cut_off_from_leader(self) -> bool:
        """True if other nodes may have a leader that this node cannot reach: one reports it, or too few are connected."""
        elector = self.elector
        return elector.reported_leader is not None or not elector.has_quorum(self._connected(elector.node_id))

    @property
    def has_quorum_without_self(self) -> bool:
        """True if the other connected nodes are enough for an election and a commit."""
        elector = self.elector
        return elector.has_quorum(self._connected())

    def _connected(self, *nodes: int) -> list[int]:
        """Return these nodes and the connected other nodes."""
        return [*nodes, *filter(self.is_up, self.elector.other_nodes)]

    def plan_members(self, nodes: Sequence[MemberInfo], done: Callable[[str], None]) -> None:
        """Plan other nodes of the cluster, none to cancel the plan; `done(reason)`: it is committed (""), or refused."""
        if self.leads:
            self.storage.plan(nodes, self._loop.now, done)
        else:
            done(self._not_leader_reason)

    def transfer(self, node_id: int) -> str:
        """Transfer leadership to another node; return the reason if it is refused."""
        elector, now = self.elector, self._loop.now
        if elector.state is not ElectionState.LEADER:
            return self._not_leader_reason
        if node_id not in elector.supporters - {elector.node_id}:
            return f"node {node_id} does not follow this node"
        self.step(now, Transfer(node_id))
        return ""

    def transfer_and_wait(self, node_id: int, done: Callable[[str], None]) -> None:
        """Transfer leadership to another node; `done(reason)`: it leads (""), or the transfer was refused or has failed."""
        reason = self.transfer(node_id)
        until = self._loop.now + TRANSFER_SECONDS_MAX

        def check(now: float) -> None:
            leader = self.elector.leader
            ended = self.elector.support.successor is None  # at the present leader
            if leader == node_id and self.active:
                done("")
            elif leader not in (None, node_id) and (leader != self.elector.node_id or ended):
                done(f"node {leader} leads the cluster: node {node_id} lacks metadata, does not answer, or is no candidate")
            elif now >= until:
                done(f"node {node_id} has not become leader within {TRANSFER_SECONDS_MAX:g} s")
            else:
                self._loop.timers.at(now + TRANSFER_CHECK_S, check)
        if reason:
            done(reason)
        else:
            check(self._loop.now)

    @property
    def _not_leader_reason(self) -> str:
        leader = self.elector.leader
        shown = "** NULL **" if leader is None or self._links is None else self._links.name(leader)
        return f"{shown} leads the cluster: run the command there"

    def set_mode(self, mode: ElectionMode) -> None:
        """Set whether this node stands for election; ignored in a cluster of one node."""
        self._mode = mode
        self._apply_mode()

    def set_able(self, able: bool) -> None:
        """Set whether this node can lead; if not, it stands for no election in any mode."""
        self._able = able
        self._apply_mode()

    def _apply_mode(self) -> None:
        mode = self._mode if self._able or self._mode is ElectionMode.LEAVING else ElectionMode.NEVER
        if self._links is not None and mode is not self.elector.mode:
            self.step(self._loop.now, SetMode(mode))

    def set_quorum(self, quorum: int) -> None:
        """Set the number of nodes that elections and commits of the metadata need; 0, and the minimum, is a majority."""
        if self._links is not None:
            now = self._loop.now
            self.step(now, SetQuorum(quorum))
            self.metadata.step(SetCommitQuorum(quorum), self._loop.wall(now))
            self._loop.performer.request_turn()

    @property
    def standing(self) -> ElectorStatus:
        """The elector's state, leader and term."""
        return ElectorStatus(self.elector.state, self.elector.leader, self.elector.term)

    # -- member.metadata.LogUser --------------------------------------------------------------------------------------

    def send(self, node_id: int, message: Message) -> None:
        """Send a message of the metadata log."""
        if self._links is not None:
            self._links.send_control(node_id, encode_log_message(message), in_order=True)

    def on_applied(self, change: StateChanged) -> None:
        """Handle a record that is committed and applied."""
        self._check_commit()
        self.on_state_changed(change.changes)
        if change.changes.members:
            self.storage.on_members_applied(self._loop.now)

    def on_leadership_lost(self, reason: str) -> None:
        """Resign: the log cannot lead any more."""
        self.step(self._loop.now, Resign(reason))

    # -- the elector ------------------------------------------------------------------------------------------------

    def step(self, now: float, event: ElectionInput, wall: int | None = None) -> None:
        """Pass an input to the elector and perform its outputs."""
        self._inputs.append((now, self._loop.wall(now) if wall is None else wall, event))
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs:
                now, wall, event = self._inputs.popleft()
                for output in self.elector.step(now, event):
                    self._perform(output, now, wall)
        finally:
            self._stepping = False

    def _perform(self, output: ElectionOutput, now: float, wall: int) -> None:
        match output:
            case Send():
                if self._links is not None:
                    self._links.send(output.node_id, control.encode_event(output.message))
            case SaveVote():
                self._save_vote(output)
            case TickAt():
                if output.moment is not None and self._links is not None:
                    self._loop.timers.at(output.moment, lambda now: self.step(now, Tick()))
            case Voted():
                self.metadata.step(Follow(output.term, None), wall)
            case NotElectable():
                self.metadata.step(RequestRecords(tuple(filter(self.is_up, self.elector.other_nodes))), wall)
            case ElectionChanged():
                self._on_election_changed(output, wall)
            case Alarm():
                times = self._repeats.suffix(output.kind.id, now) if output.kind is alarms.VOTE_NOT_WRITTEN else ""
                if times is not None:
                    self._loop.report.alarm(output.kind, "%s", output.text + times)
            case _:
                assert_never(output)

    def _save_vote(self, job: SaveVote) -> None:
        if self._vote_file is not None:
            self._loop.run_in_thread(partial(self._vote_file.write, (job.term, job.vote)),
                                     lambda now: self.step(now, Written(job.number)),
                                     partial(self._on_vote_failed, job.number))

    def _on_vote_failed(self, number: int, error: OSError, now: float) -> None:
        self.step(now, WriteFailed(number, str(error)))
        self.on_write_failed("its vote", str(error))

    def _on_election_changed(self, change: ElectionChanged, wall: int) -> None:
        """Pass a change of leader to the metadata log."""
        before, after = change.before, change.after
        self.active = False
        if self._links is not None:
            report_change(change, self.definition.name, self._links, self.metadata.log.lsn, self._loop.report)
        if after.state is ElectionState.LEADER:
            self.metadata.lead(after.term, self._choose_primaries(), self._on_first_record_decided, wall,
                               self.common_features())
        elif after.leader is not None:
            self.metadata.step(Follow(after.term, after.leader), wall)
            self._check_commit()
        elif before.leader is not None or after.state is ElectionState.DORMANT:
            self.metadata.step(StepDown(), wall)

    def _choose_primaries(self) -> PrimaryRules:
        rules = self._primaries if self.replication is None else self.replication.primaries(self._primaries.partitions)
        return replace(rules, members=self.storage.first_list())

    def _on_first_record_decided(self, outcome: Outcome, wall: int) -> None:
        """Handle the outcome of the first record of this node's term."""
        if isinstance(outcome, NotDone):
            self._refused = outcome
            self.step(self._loop.now, Resign(outcome.reason), wall)
        else:
            self._become_active()

    def _check(self, now: float) -> None:
        """Repeat unacknowledged messages and unfinished work, every beat."""
        if self.elector.state is ElectionState.LEADER:
            self.metadata.step(Resend(), self._loop.wall(now))
        self._stand(now)
        self.storage.check(now, self.active and self.elector.ballot.is_durable)
        if self.leads:
            self.storage.propose_change(now, self._connected())
        state, awaited = self.member_state
        self.storage.report(state, awaited, now)

    @property
    def member_state(self) -> tuple[MemberState, str]:
        """The state of this node in its cluster, and the names of the nodes that it waits for."""
        state, awaited = self.storage.state(self._connected())
        return state, ", ".join(map(self._links.name, awaited)) if self._links is not None else ""

    def _check_commit(self) -> None:
        """Activate the leader once a record of its term is committed."""
        if self.elector.leader is not None and self.metadata.log.committed >= (self.elector.term, 1):
            self._become_active()

    def _become_active(self) -> None:
        if self.active:
            return
        self.active = True
        if self._links is None:
            return
        if self.elector.leader is not None:
            report_active(self._links.name(self.elector.leader), self.definition.name, self.metadata.log.lsn,
                          self._loop.report)
        if self.replication is not None:  # logged before its consequences
            self.replication.on_leader_active(self._loop.now)
        self.on_leader_changed()


def timing(config: ElectorConfig) -> ElectionTiming:
    """Return the configured timing of elections, in seconds."""
    return ElectionTiming(config.initial_wait_timeout_ms / 1000, config.max_random_wait_timeout_ms / 1000,
                  config.scouting_result_timeout_ms / 1000, config.election_result_timeout_ms / 1000,
                  config.heartbeat_broadcast_period_ms / 1000, config.heartbeat_check_period_ms / 1000,
                  config.heartbeat_miss_count)


def report_change(change: ElectionChanged, cluster: str, links: ClusterLinks, lsn: Lsn, report: Report) -> None:
    """Log a change of the elector's state; `lsn`: of the metadata log."""
    before, after, title = change.before, change.after, f"Cluster ({cluster})"
    leaders = [-1 if each.leader is None else each.leader for each in (after, before)]
    report.info(f"{title}: ElectorStateChangeCb new state: {after.state.name}, new code: {change.reason.name}, "
                f"new leaderNodeId: {leaders[0]}, new term: {after.term}, old state: {before.state.name}, "
                f"old leaderNodeId: {leaders[1]}, old term: {before.term}")
    report.info(f"{title}: {change.cause}")
    report.record_event("election", election_text(change, links), cluster=cluster, term=after.term,
                leader=links.node_name(after.leader) if after.leader is not None else None, state=after.state.name,
                termBefore=before.term, reason=change.reason.name, cause=change.cause)
    if after.leader != before.leader:
        old, new = ("UNDEFINED" if leader is None else status for leader, status in
                    ((before.leader, "ACTIVE"), (after.leader, "PASSIVE")))
        report.info(f"#ELECTOR_INFO: transition old leader: {_shown(before.leader, links)}, status: {old}, "
                    f"{lsn_text(lsn)} to new leader: {_shown(after.leader, links)}, status: {new}, electorTerm: "
                    f"{after.term}. Transition elector state from {before.state.name} to {after.state.name}.")


def report_active(leader: str, cluster: str, lsn: Lsn, report: Report) -> None:
    """Log that the first record of a leader is committed."""
    report.info(f"#ELECTOR_INFO: leader: {leader}, {lsn_text(lsn)}, transitioning status from PASSIVE to ACTIVE")
    report.info(f"Cluster ({cluster}) onClusterLeader: new leader: {leader}, leader status: ACTIVE")


def lsn_text(lsn: Lsn) -> str:
    """Format an LSN as BlazingMQ's log lines do."""
    return f"LSN: [ electorTerm = {lsn[0]} sequenceNumber = {lsn[1]} ]"


def election_text(change: ElectionChanged, links: ClusterLinks) -> str:
    """Describe a change of the elector, with its cause, in one line."""
    before, after, name = change.before, change.after, links.node_name
    why = change.cause if change.reason is ElectionReason.NONE else change.reason.value
    if after.state is ElectionState.DORMANT:
        return "leaves the elections"
    if after.state is ElectionState.CANDIDATE:
        return f"asks for votes in term {after.term}: {why}"
    if after.leader is None and before.leader is not None:
        return f"gave up leader {name(before.leader)} of term {before.term}: {why}"
    if after.leader is None:
        return f"has no leader in term {after.term}: {why}"
    if (after.leader, after.term) == (before.leader, before.term):
        return f"node {name(after.leader)} still leads term {after.term}: {why}"
    return f"node {name(after.leader)} leads from term {after.term} on: {change.cause}"


def _shown(node_id: int | None, links: ClusterLinks) -> str:
    return "** NULL **" if node_id is None else links.name(node_id)
