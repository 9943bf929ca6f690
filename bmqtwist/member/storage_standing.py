"""Standing of one node in its cluster: the identity of its storage, its place in the member list, and changes of the list.

    identity     written when the node is registered in the committed list, in a thread; a new incarnation if the list has
                 another one than complete storage, which is an old copy
    leader       proposes the first list, registers recovered nodes, promotes learners; one change at a time
    every node   names the members that it waits for, every WAITING_LOG_S

Called by `member/leadership.py`; the rules are in `cluster/electorate.py`, the start of a directory in
`daemon/storage_start.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from bmqtwist import alarms
from bmqtwist.cluster.changes import ChangeMembers
from bmqtwist.cluster.electorate import Electorate, MemberState, MemberStorage
from bmqtwist.cluster.log_events import NotDone, Outcome
from bmqtwist.cluster.member_lists import (
    first_list,
    node_differences,
    with_nodes,
    with_planned,
    with_recovered,
    without_storage,
)
from bmqtwist.config.clusters import ClusterDefinition
from bmqtwist.errors import LocalError
from bmqtwist.loop.loop import Loop
from bmqtwist.member.metadata import ClusterMetadata
from bmqtwist.storage.identity import IdentityFile, StorageIdentity, StorageState, id_text, random_id
from bmqtwist.versions import MEMBER_LIST
from bmqtwist.wire.cluster_schema import MemberInfo, MemberList

WAITING_LOG_S = 30.0


class StorageStanding:
    """Standing of one node. `identity`: of its storage, as in `file`; `is_available(node)`: True if a node has all records
    of all partitions; `has_saved_promises()`: True once the promises of the node are known and durable; `doubt_all()`: mark
    all partitions as doubtful; `reconnect()`: connect with all nodes again, with the present identity."""

    def __init__(self, definition: ClusterDefinition, metadata: ClusterMetadata, identity: StorageIdentity,
                 file: IdentityFile, loop: Loop) -> None:
        self.definition, self.metadata, self._file, self._loop = definition, metadata, file, loop
        self._title = f"Cluster ({definition.name})"
        self.electorate: Electorate = metadata.log.electorate
        self.identity = identity
        self.is_available: Callable[[int], bool] = lambda node_id: False
        self.has_saved_promises: Callable[[], bool] = lambda: True
        self.mistake = ""  # how the configuration differs from the member list; the node waits until all nodes agree
        self.doubt_all: Callable[[], None] = lambda: None
        self.reconnect: Callable[[], None] = lambda: None
        self._saving = self._proposing = self._renewing = False
        self._waiting_since, self._logged_at = float("inf"), float("-inf")
        self._state: MemberState | None = None  # the last one logged
        self._announce()

    def _announce(self) -> None:
        identity = self.identity
        self.electorate.announced[self.electorate.node_id] = MemberStorage(
            identity.incarnation, identity.state, identity.cluster_id, identity.previous)

    @property
    def is_new(self) -> bool:
        """True while the storage has never been part of a cluster."""
        return self.identity.state is StorageState.FRESH

    @property
    def is_founder(self) -> bool:
        """True if this node belongs to the first member list with the storage that it had when the cluster was formed, and
        the storage was new: no record is missing in it."""
        members = self.metadata.state.members
        return members is not None and members.version == 1 and self.is_new and self._is_registered

    @property
    def _is_registered(self) -> bool:
        members, own = self.metadata.state.members, self.identity
        return members is not None and any(
            each.voting and each.node_id == own.node_id and each.incarnation == own.incarnation for each in members.nodes)

    def on_members_applied(self, now: float) -> None:
        """Handle a committed member list: the storage of a registered node is complete."""
        if not self.has_saved_promises():
            return  # the next check repeats it
        state = StorageState.COMPLETE if self._is_registered else self.identity.state
        self._save(replace(self.identity, state=state, cluster_id=self.electorate.cluster_id,
                           previous=0 if self._is_registered else self.identity.previous))

    def _save(self, wanted: StorageIdentity) -> None:
        if wanted != self.identity and not self._saving:
            self._saving = True
            self._loop.run_in_thread(partial(self._file.write, wanted), partial(self._on_saved, wanted),
                                     self._on_save_failed)

    def _on_saved(self, identity: StorageIdentity, now: float) -> None:
        before, self.identity = self.identity, identity
        self._saving = self._renewing = False
        self._announce()
        is_completed = identity.state is not before.state and not self.electorate.is_formed  # no list tells it to others
        if identity.incarnation != before.incarnation or is_completed:
            self.reconnect()
        self.on_members_applied(now)

    def check(self, now: float, is_active: bool) -> None:
        """Repeat unfinished work. `is_active`: the node has all records that were committed before the leader's term.
        Complete storage that is not the registered one is an old copy, or lacks records that it acknowledged: it becomes
        lost, first its partitions, then its incarnation."""
        members, state = self.metadata.state.members, self.identity.state
        if is_active and members is None and self.has_saved_promises():  # there is no list to register it
            self._save(replace(self.identity, state=StorageState.COMPLETE, previous=0))
        elif not is_active or members is None or self._is_registered or state is not StorageState.COMPLETE:
            self.on_members_applied(now)
        elif not self._renewing:
            self._renewing = True
            self._loop.report.alarm(
                alarms.STORAGE_LOST, "%s", f"{self._title}: the other members know other storage of this node: its "
                "directory is an old copy, or lacks data that it has acknowledged. It copies the data of the other members")
            self.doubt_all()
        elif self.has_saved_promises():
            self._save(replace(self.identity, state=StorageState.LOST, previous=0,
                               incarnation=random_id(self._loop.performer.chance)))

    def _on_save_failed(self, error: OSError, now: float) -> None:
        """Keep the identity: the next check repeats the write."""
        self._saving = False
        self._loop.report.alarm(alarms.IDENTITY_NOT_WRITTEN, "%s", f"{self._title}: the identity of the storage cannot be "
                                f"written: {error}")

    # -- the leader -----------------------------------------------------------------------------------------------------

    def first_list(self) -> MemberList | None:
        """Return the first member list; None if there is one already, or a node has not announced its storage."""
        if self.electorate.is_formed:
            return None
        cluster_id = self.identity.cluster_id or random_id(self._loop.performer.chance)
        partitions = self.definition.partition_config.num_partitions
        return first_list(self.electorate, self.definition.members, cluster_id, partitions)

    def agrees(self, connected: Iterable[int]) -> bool:
        """Return whether all nodes of the configuration are connected, and have the same nodes in theirs."""
        nodes, configurations = self.definition.members, self.electorate.configurations
        others = {each.node_id for each in nodes} - {self.electorate.node_id}
        return others <= set(connected) and not any(node_differences(nodes, configurations[each]) for each in others)

    def propose(self, members: MemberList, now: float, done: Callable[[str], None] = lambda reason: None) -> None:
        """Propose a member list; `done(reason)`: it is committed (""), or not."""
        self._proposing = True
        self._loop.report.info(f"{self._title}: member list {members.version} is proposed: {members_text(members)}")
        self.metadata.propose(ChangeMembers(members), partial(self._on_decided, done), self._loop.wall(now))
        self._loop.performer.request_turn()

    def propose_change(self, now: float, connected: Iterable[int]) -> None:
        """Propose the next member list, as the leader whose first record is committed."""
        led = self.metadata.log.leader_term
        if self._proposing or led is None:
            return
        voters, caught_up = self.electorate.voters, [*led.caught_up, self.electorate.node_id]
        # a primary commits records by the voters that it knows: it has the present list before the voters change again
        is_known = {each.node_id for each in self.metadata.state.partitions.values()} <= set(caught_up)
        ready = [each for each in caught_up if each in voters or is_known and self.is_available(each)]
        first = self.first_list() if self.metadata.features.active(MEMBER_LIST) else None
        wanted = first or without_storage(self.electorate, led.regressed) or with_recovered(self.electorate, ready)
        if wanted is None and is_known and self.agrees(connected):
            wanted = with_nodes(self.electorate, self.definition.members)
        if wanted is not None:
            self.propose(wanted, now)

    def plan(self, nodes: Sequence[MemberInfo], now: float, done: Callable[[str], None]) -> None:
        """Propose the next nodes, which configurations may have from now on; none cancels the plan. `done(reason)`: the plan
        is committed (""), or it is refused."""
        lists = self.electorate.lists
        if self._proposing or len(lists) != 1:
            done("the member list is being changed, or the cluster is not formed yet: try again")
            return
        try:
            members = with_planned(lists[0], nodes)
        except LocalError as error:
            done(str(error))
        else:
            self.propose(members, now, done)

    def _on_decided(self, done: Callable[[str], None], outcome: Outcome, wall: int) -> None:
        self._proposing = False
        reason = ""
        if isinstance(outcome, NotDone):
            reason = f"{outcome.reason}; the next leader may still commit it" if outcome.unknown else outcome.reason
            self._loop.report.warn(f"{self._title}: the member list was not changed: {reason}")
        done(reason)

    # -- shown to operators -----------------------------------------------------------------------------------------------

    def state(self, connected: Iterable[int]) -> tuple[MemberState, list[int]]:
        """Return the state of this node and the nodes that it waits for. `connected`: the other nodes that are connected."""
        electorate = self.electorate
        state, awaited = electorate.state(), electorate.awaited(connected)
        if self.mistake:
            return MemberState.MISCONFIGURED, sorted(electorate.configured - {electorate.node_id, *connected})
        if awaited and state not in (MemberState.FORMING, MemberState.REMOVED):
            state = MemberState.WAITING_FOR_MEMBERS
        return state, awaited

    def report(self, state: MemberState, awaited: str, now: float) -> None:
        """Log a change of the state, and every WAITING_LOG_S the nodes that this node waits for."""
        if not awaited:
            self._waiting_since = float("inf")
        elif self._waiting_since == float("inf"):
            self._waiting_since = now
        is_due = awaited and now - max(self._logged_at, self._waiting_since) >= WAITING_LOG_S
        if state is not self._state or is_due:
            self._logged_at, self._state = now, state
            waits = f"; it waits for {awaited}" if awaited else ""
            why = f". {self.mistake}" if self.mistake else ""
            self._loop.report.info(f"{self._title}: this node is {state.name}: it {state.value}{waits}{why}")


def members_text(members: MemberList) -> str:
    """Return the nodes of a list, with the incarnations of their storage."""
    return ", ".join(f"{each.name} ({id_text(each.incarnation) if each.voting else 'learner'})" for each in members.nodes)
