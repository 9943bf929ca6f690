"""Who leads a cluster, at one of its nodes: the elector joined to its file, to the other nodes, and to the metadata log.

    the elector       is told who is connected and what they say; its votes are written before they are said
    the metadata log  is told who leads: it leads itself, follows, or waits
    other nodes       are sent what both of them say

Inputs of the elector are taken one after the other: what follows from one may be the next. A cluster of one has an elector,
too, which leads at once and needs neither file nor links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, assert_never

from bmqtwist.cluster.changes import Primaries
from bmqtwist.cluster.election_events import (
    ElectionChanged,
    ElectionInput,
    ElectionMode,
    ElectionOutput,
    ElectionState,
    Outvoted,
    PeerDown,
    PeerUp,
    Received,
    Resign,
    SaveVote,
    SetMode,
    SetQuorum,
    Standing,
    Start,
    Stop,
    Tell,
    Tick,
    Timing,
    Transfer,
    Voted,
    WakeAt,
)
from bmqtwist.cluster.election_story import election_text
from bmqtwist.cluster.elector import Elector
from bmqtwist.cluster.log_events import Alarm, Message, NotDone, Outcome, StateChanged, WriteFailed, Written
from bmqtwist.cluster.log_wire import encode_log_message, log_message_of
from bmqtwist.cluster.partition_events import Decline, PartitionTalk, Yield
from bmqtwist.cluster.partition_wire import partition_event_of, partition_message_of
from bmqtwist.cluster.state import Changes
from bmqtwist.config.clusters import ClusterDefinition, ElectorConfig
from bmqtwist.errors import PeerError
from bmqtwist.loop.performer import Performer
from bmqtwist.loop.timers import Timers
from bmqtwist.member.metadata import ClusterMetadata, MetadataUnavailable
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.report import LineLimiter, Report
from bmqtwist.storage.vote_file import VoteFile
from bmqtwist.wire import control
from bmqtwist.wire.cluster_schema import ClusterMessage
from bmqtwist.wire.control import ControlMessage, encoding_of
from bmqtwist.wire.fast import EventType


class LeadershipHost(Protocol):
    """The broker, as far as a leadership needs it."""

    report: Report
    performer: Performer
    timers: Timers
    now: float

    def wall(self, now: float) -> int:
        """Seconds since the epoch at a moment of the monotonic clock."""


class PartitionUser(Protocol):
    """Who looks after the partitions of a cluster of several nodes."""

    def start(self, now: float) -> None:
        """The node takes part in elections from now on."""

    def stop(self, now: float) -> None:
        """It goes away."""

    def peer_up(self, node_id: int, now: float) -> None:
        """A node can be spoken with."""

    def peer_down(self, node_id: int, now: float) -> None:
        """A node cannot be spoken with any more."""

    def primaries(self, partitions: int) -> Primaries:
        """What this node begins with as a leader."""

    def leader_known(self, now: float) -> None:
        """The first record of a leader is committed."""

    def received(self, sender: int, partition_id: int, message: PartitionTalk | Decline | Yield, now: float) -> None:
        """A node says something about a partition."""

    def advised(self, sender: int, message: ClusterMessage) -> None:
        """A node says something else about the cluster."""


class ProposalUser(Protocol):
    """Who asks the leader for changes, and hears its answers."""

    def leader_changed(self) -> None:
        """Another node is to be asked."""

    def received(self, sender: int, message: ClusterMessage, wall: int) -> bool:
        """A node says something; False: it is about something else."""


ABOUT_NODES = ("nodeStatusAdvisory", "stopRequest", "stopResponse", "confirmReceipt")


class QueueUser(Protocol):
    """Who has queues open at other nodes, and for them."""

    def said(self, node_id: int, kind: EventType, specific: int, body: bytes, now: float) -> None:
        """An event about queues. PeerError: it makes no sense."""

    def control(self, node_id: int, message: ControlMessage, now: float) -> None:
        """A request about queues, or an answer, or how a node is."""


class Leadership:
    """See above. `vote_file` and `links` are those of a cluster of several nodes."""

    def __init__(self, definition: ClusterDefinition, node_id: int, metadata: ClusterMetadata, host: LeadershipHost,
                 vote_file: VoteFile | None = None, links: ClusterLinks | None = None) -> None:
        self.definition, self.metadata, self._host = definition, metadata, host
        self._vote_file, self._links = vote_file, links
        members = [node.id for node in definition.nodes] if links is not None else [node_id]
        quorum = definition.elector.quorum if links is not None else 0
        self.elector = Elector(node_id, self._name, members, timing(definition.elector), host.performer.chance,
                               lambda: metadata.log.lsn, quorum)
        self.replication: PartitionUser | None = None  # of the partitions of a cluster of several nodes
        self.proposals: ProposalUser | None = None  # of the same
        self.queues: QueueUser | None = None  # of the same
        self.active = False  # the leader's first record is committed, as far as this node knows
        self._primaries = Primaries(definition.partition_config.num_partitions)
        self._inputs: deque[tuple[float, int, ElectionInput]] = deque()
        self._busy = False
        self._refused: NotDone | None = None  # why the log did not take the lead
        self.state_changed: Callable[[Changes], None] = lambda changes: None  # who is told what the metadata say now
        self._lines = LineLimiter()
        self._found: tuple[int, int | None, bool] = (0, None, False)  # in the file: term, vote, whether they are lost

    # -- life -------------------------------------------------------------------------------------------------------

    def lead_alone(self, used_leases: Mapping[int, int], now: float, wall: int) -> None:
        """Begin the next term of a cluster of one; MetadataUnavailable if it cannot be written."""
        self._primaries = Primaries(self._primaries.partitions, used_leases=used_leases)
        self._step(now, wall, Start(self.metadata.log.term))
        self._step(now, wall, Tick())
        self.metadata.settle(wall)
        if self._refused is not None:
            raise MetadataUnavailable(self._refused.reason)

    def open(self) -> None:
        """Read what was voted, after the metadata were read; OSError."""
        if self._vote_file is not None:
            self._found = self._vote_file.read()

    def start(self, now: float) -> None:
        """Take part in elections."""
        if self._links is None:
            return
        wall, newest = self._host.wall(now), self.metadata.log.term
        self.metadata.need_quorum(self.definition.elector.quorum, wall)
        term, vote, damaged = self._found
        self.metadata.user = self._links.user = self
        if newest > term:
            term, vote = newest, None
        self._step(now, wall, Start(term, vote, damaged))
        if self.replication is not None:
            self.replication.start(now)
        period = self.elector.timing.beat_period
        self._host.timers.every(now, period, self._resend)
        self._links.start(now)

    def stop(self, now: float) -> None:
        """Take part in no election any more; the others are told."""
        if self.replication is not None:
            self.replication.stop(now)
        if self._links is not None:
            self._step(now, self._host.wall(now), Stop())

    @property
    def leads(self) -> bool:
        """Whether this node may change the metadata."""
        return self.active and self.elector.state is ElectionState.LEADER

    def whom_to_ask(self) -> int | None:
        """The leader, once its first record is committed."""
        return self.elector.leader if self.active else None

    def is_up(self, node_id: int) -> bool:
        """Whether a node can be spoken with."""
        return self._links is not None and self._links.is_up(node_id)

    @property
    def knows_leader(self) -> bool:
        """Whether this node hears one, or is one."""
        return self.elector.leader is not None

    @property
    def others_may_have_one(self) -> bool:
        """Whether other nodes may have a leader while this one has none: one of them says so, or too few can be asked."""
        elector = self.elector
        return elector.elsewhere is not None or sum(map(self.is_up, elector.others)) + 1 < elector.quorum

    @property
    def can_decide(self) -> bool:
        """Whether there are as many nodes without this one as a leader and a change of the metadata need."""
        elector = self.elector
        return sum(map(self.is_up, elector.others)) >= elector.quorum

    def transfer(self, node_id: int) -> str:
        """Let another node lead; why that cannot be, if it cannot."""
        elector, now = self.elector, self._host.now
        if elector.state is not ElectionState.LEADER:
            return f"{self._shown(elector.leader)} leads the cluster: ask there"
        if node_id not in elector.supporters - {elector.node_id}:
            return f"node {node_id} does not follow this node"
        self._step(now, self._host.wall(now), Transfer(node_id))
        return ""

    def set_mode(self, mode: ElectionMode) -> None:
        """Whether this node wants to lead, from now on; the only node of a cluster always does."""
        if self._links is not None:
            now = self._host.now
            self._step(now, self._host.wall(now), SetMode(mode))

    def set_quorum(self, quorum: int) -> None:
        """So many votes are needed from now on, and so many nodes must have a change of the metadata; 0 = more than half of
        the nodes, which is also the least."""
        if self._links is not None:
            now = self._host.now
            wall = self._host.wall(now)
            self._step(now, wall, SetQuorum(quorum))
            self.metadata.need_quorum(quorum, wall)
            self._host.performer.turn_due()

    @property
    def standing(self) -> Standing:
        """Where this node stands."""
        return Standing(self.elector.state, self.elector.leader, self.elector.term)

    # -- node.links.LinkUser ----------------------------------------------------------------------------------------

    def peer_up(self, node_id: int, now: float) -> None:
        """A node can be spoken with."""
        self._step(now, self._host.wall(now), PeerUp(node_id))
        if self.replication is not None:
            self.replication.peer_up(node_id, now)

    def peer_down(self, node_id: int, now: float) -> None:
        """A node cannot be spoken with any more."""
        self._step(now, self._host.wall(now), PeerDown(node_id))
        if self.replication is not None:
            self.replication.peer_down(node_id, now)

    def peer_said(self, node_id: int, kind: EventType, specific: int, body: bytes, now: float) -> None:
        """One event of a node."""
        wall = self._host.wall(now)
        try:
            if kind == EventType.ELECTOR:
                self._step(now, wall, Received(node_id, control.decode_elector(body)))
            elif kind == EventType.CONTROL:
                message = control.decode_control(body, encoding_of(specific))
                if message.choice == "clusterMessage" and message.value.choice not in ABOUT_NODES:
                    self._about_cluster(node_id, message.value, now, wall)
                elif self.queues is not None:
                    self.queues.control(node_id, message, now)
            elif kind in (EventType.STORAGE, EventType.REPLICATION_RECEIPT):
                if self.replication is not None:
                    self.replication.received(node_id, *partition_event_of(node_id, kind, body), now)
            elif self.queues is not None:
                self.queues.said(node_id, kind, specific, body, now)
        except PeerError as error:
            if self._lines.admits(now):
                self._host.report.error(f"#CORRUPTED_EVENT {self._name}: node {self._shown(node_id)}: {error}")

    def _about_cluster(self, node_id: int, message: ClusterMessage, now: float, wall: int) -> None:
        about_log = log_message_of(node_id, message)
        if about_log is not None:
            self.metadata.received(about_log, wall)
        elif self.proposals is not None and self.proposals.received(node_id, message, wall):
            self._host.performer.turn_due()
        elif self.replication is not None:
            about_partition = partition_message_of(node_id, message)
            if about_partition is not None:
                self.replication.received(node_id, *about_partition, now)
            else:
                self.replication.advised(node_id, message)

    # -- node.metadata.LogUser --------------------------------------------------------------------------------------

    def send(self, node_id: int, message: Message) -> None:
        """The metadata log speaks to another node."""
        if self._links is not None:
            self._links.send(node_id, encode_log_message(message))

    def changed(self, change: StateChanged) -> None:
        """A record is committed and applied."""
        self._look_for_commit()
        self.state_changed(change.changes)

    def leadership_lost(self, reason: str) -> None:
        """The log cannot lead any more."""
        now = self._host.now
        self._step(now, self._host.wall(now), Resign(reason))

    # -- the elector ------------------------------------------------------------------------------------------------

    def _step(self, now: float, wall: int, event: ElectionInput) -> None:
        self._inputs.append((now, wall, event))
        if self._busy:
            return
        self._busy = True
        try:
            while self._inputs:
                now, wall, event = self._inputs.popleft()
                for output in self.elector.step(now, event):
                    self._perform(output, now, wall)
        finally:
            self._busy = False

    def _perform(self, output: ElectionOutput, now: float, wall: int) -> None:
        match output:
            case Tell():
                if self._links is not None:
                    self._links.send(output.node_id, control.encode_event(output.message))
            case SaveVote():
                self._save(output)
            case WakeAt():
                if output.moment is not None and self._links is not None:
                    self._host.timers.at(output.moment, self._tick)
            case Voted():
                self.metadata.follow(output.term, None, wall)
            case Outvoted():
                self.metadata.ask([node_id for node_id in self.elector.others if self.is_up(node_id)], wall)
            case ElectionChanged():
                self._elected(output, wall)
            case Alarm():
                self._host.report.alarm("CLUSTER", "%s", output.text)
            case _:
                assert_never(output)

    def _tick(self, now: float) -> None:
        self._step(now, self._host.wall(now), Tick())

    def _save(self, job: SaveVote) -> None:
        if self._vote_file is not None:
            self._host.performer.in_thread(partial(self._vote_file.write, job.term, job.vote),
                                           partial(self._saved, job.number), partial(self._not_saved, job.number))

    def _saved(self, number: int, now: float) -> None:
        self._step(now, self._host.wall(now), Written(number))

    def _not_saved(self, number: int, error: OSError, now: float) -> None:
        self._step(now, self._host.wall(now), WriteFailed(number, str(error)))

    def _elected(self, change: ElectionChanged, wall: int) -> None:
        """Somebody leads now, or nobody does: the metadata log is told."""
        before, after = change.before, change.after
        self.active = False
        if self._links is not None:
            self._tell_of(change)
        if after.state is ElectionState.LEADER:
            self.metadata.lead(after.term, self._assignment(), self._led, wall)
        elif after.leader is not None:
            self.metadata.follow(after.term, after.leader, wall)
            self._look_for_commit()
        elif before.leader is not None or after.state is ElectionState.DORMANT:
            self.metadata.step_down(wall)

    def _assignment(self) -> Primaries:
        return self._primaries if self.replication is None else self.replication.primaries(self._primaries.partitions)

    def _led(self, outcome: Outcome, wall: int) -> None:
        """The first record of our term is committed, or is not."""
        if isinstance(outcome, NotDone):
            self._refused = outcome
            self._step(self._host.now, wall, Resign(outcome.reason))
        else:
            self._become_active()

    def _resend(self, now: float) -> None:
        if self.elector.state is ElectionState.LEADER:
            self.metadata.resend(self._host.wall(now))

    # -- what people are told ---------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"Cluster ({self.definition.name})"

    def _shown(self, node_id: int | None) -> str:
        return "** NULL **" if node_id is None or self._links is None else self._links.name(node_id)

    def _tell_of(self, change: ElectionChanged) -> None:
        before, after, report = change.before, change.after, self._host.report
        leaders = [-1 if each.leader is None else each.leader for each in (after, before)]
        report.info(f"{self._name}: ElectorStateChangeCb new state: {after.state.name}, new code: {change.reason.name}, "
                    f"new leaderNodeId: {leaders[0]}, new term: {after.term}, old state: {before.state.name}, "
                    f"old leaderNodeId: {leaders[1]}, old term: {before.term}")
        report.info(f"{self._name}: {change.cause}")
        self._note(change)
        if after.leader != before.leader:
            term, sequence = self.metadata.log.lsn
            old, new = ("UNDEFINED" if leader is None else status for leader, status in
                        ((before.leader, "ACTIVE"), (after.leader, "PASSIVE")))
            report.info(f"#ELECTOR_INFO: transition old leader: {self._shown(before.leader)}, status: {old}, LSN: "
                        f"[ electorTerm = {term} sequenceNumber = {sequence} ] to new leader: {self._shown(after.leader)}, "
                        f"status: {new}, electorTerm: {after.term}. Transition elector state from {before.state.name} to "
                        f"{after.state.name}.")

    def _note(self, change: ElectionChanged) -> None:
        after, links = change.after, self._links
        if links is None:
            return
        self._host.report.note(
            "election", election_text(change, links.node_name), cluster=self.definition.name, term=after.term,
            leader=links.node_name(after.leader) if after.leader is not None else None, state=after.state.name,
            termBefore=change.before.term, reason=change.reason.name, cause=change.cause)

    def _look_for_commit(self) -> None:
        """A leader is active when a record of its term is committed."""
        if self.elector.leader is not None and self.metadata.log.committed >= (self.elector.term, 1):
            self._become_active()

    def _become_active(self) -> None:
        if self.active:
            return
        self.active = True
        if self._links is None:
            return
        leader = self._shown(self.elector.leader)
        term, sequence = self.metadata.log.lsn
        report = self._host.report
        report.info(f"#ELECTOR_INFO: leader: {leader}, LSN: [ electorTerm = {term} sequenceNumber = {sequence} ], "
                    "transitioning status from PASSIVE to ACTIVE")
        report.info(f"{self._name} onClusterLeader: new leader: {leader}, leader status: ACTIVE")
        if self.replication is not None:  # what follows from it is told after it
            self.replication.leader_known(self._host.now)
        if self.proposals is not None:
            self.proposals.leader_changed()


def timing(config: ElectorConfig) -> Timing:
    """As the configuration of the elector has it."""
    return Timing(config.initial_wait_timeout_ms / 1000, config.max_random_wait_timeout_ms / 1000,
                  config.scouting_result_timeout_ms / 1000, config.election_result_timeout_ms / 1000,
                  config.heartbeat_broadcast_period_ms / 1000, config.heartbeat_check_period_ms / 1000,
                  config.heartbeat_miss_count)
