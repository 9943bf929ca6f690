"""Electorate of a cluster: its member lists, the storage that each node announces, and the rule of a quorum. Pure.

A voter is a pair of node and incarnation. A storage directory has a random incarnation; one that has lost acknowledged data
takes a new one. The member list, a part of the replicated metadata, has the incarnation of each member. A node counts as
*intact* if it announces that one; otherwise it is *recovering*: its votes and acknowledgements only complete a quorum.

    N voters, majority = N // 2 + 1: a quorum has a majority of the voters, and N - majority + 1 intact voters

So each quorum has an intact voter in common with each earlier one, which still has its vote and its records. If every voter
is present and has lost at most its vote, all voters together are a quorum, too: every ledger is there.

All lists that count need a quorum: the committed one, and each later one in the own log. So a change is committed under the
old and the new list. Before the first list (*forming*) all configured nodes are needed; storage of a version without member
lists counts as intact.

Read by the elector, the metadata log and the partitions; changed by `metadata_log.py` (lists), `peers/links.py` and
`member/storage_standing.py` (announced storage).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from bmqtwist.storage.identity import StorageState
from bmqtwist.wire.cluster_schema import MemberInfo, MemberList


@dataclass(frozen=True, slots=True)
class MemberStorage:
    """Storage that a node announces. `incarnation`: 0 for a node of a version without incarnations; `previous`: the one
    before the loss of the vote; `cluster_id`: 0 = it belongs to no cluster yet."""

    incarnation: int = 0
    state: StorageState = StorageState.COMPLETE
    cluster_id: int = 0
    previous: int = 0

    @property
    def is_new(self) -> bool:
        """True if it has stored nothing yet, or may have: the release of its node does not announce it."""
        return self.state is StorageState.FRESH or not self.incarnation

    @property
    def has_ledger(self) -> bool:
        """True if it has all records of the metadata log that it has acknowledged."""
        return self.state in (StorageState.COMPLETE, StorageState.VOTE_LOST)


class MemberState(Enum):
    """State of a node in its cluster, as shown to operators."""

    MEMBER = "has the storage that the other members know"
    FORMING = "waits for all members, to form the cluster"
    RECOVERING = "has lost storage: it copies the data of the other members, and does not lead"
    WAITING_FOR_MEMBERS = "waits for members with intact storage"
    LEARNER = "copies the data of the members before it becomes one"
    REMOVED = "leaves the cluster, or was removed from it"
    MISCONFIGURED = "has another list of nodes in clusters.json than the cluster, and does not serve"


_UNKNOWN = MemberStorage()
V = TypeVar("V")


class Electorate:
    """Electorate as one node knows it. `configured`: ids of the nodes in its configuration, the members until the first
    list; `announced`: storage of this and of each other node that has connected; `configurations`: the nodes in the
    configuration of each other node that has connected; `lists`: the committed list, and each later one in the own log,
    oldest first."""

    def __init__(self, node_id: int, configured: Collection[int]) -> None:
        self.node_id, self.configured = node_id, frozenset(configured)
        self.announced: dict[int, MemberStorage] = {}
        self.configurations: dict[int, list[MemberInfo]] = {}
        self.lists: tuple[MemberList, ...] = ()
        self._voters: list[Mapping[int, int]] = [dict.fromkeys(sorted(self.configured), 0)]

    def set_lists(self, lists: Sequence[MemberList]) -> None:
        """Set the lists that count; none if the first one was not committed."""
        self.lists = tuple(lists)
        self._voters = ([voters_of(each) for each in lists]
                        or [dict.fromkeys(sorted(self.configured), 0)])

    @property
    def is_formed(self) -> bool:
        """True once this node knows a member list."""
        return bool(self.lists)

    @property
    def cluster_id(self) -> int:
        """The id of the cluster; 0 until it is known."""
        return self.lists[0].cluster_id if self.lists else self.storage(self.node_id).cluster_id

    @property
    def nodes(self) -> frozenset[int]:
        """All nodes of the cluster, learners included."""
        return frozenset(each.node_id for members in self.lists for each in members.nodes) or self.configured

    @property
    def voters(self) -> Mapping[int, int]:
        """The voters of the committed list, with their incarnations; 0 before the first list."""
        return self._voters[0]

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def intact_needed(self) -> int:
        """Number of intact voters in a quorum."""
        return len(self.voters) - self.majority + 1

    def storage(self, node_id: int) -> MemberStorage:
        """Return the storage that a node has announced. That of another node is complete once the list has it."""
        storage = self.announced.get(node_id, _UNKNOWN)
        if self.lists and node_id != self.node_id and storage.incarnation and any(
                each.node_id == node_id and each.incarnation == storage.incarnation for each in self.lists[0].nodes):
            return replace(storage, state=StorageState.COMPLETE)
        return storage

    def is_intact(self, node_id: int) -> bool:
        """True if the storage of a node is the one in all lists that count."""
        return all(self._is_intact(node_id, voters) for voters in self._voters)

    def is_foreign(self, node_id: int, storage: MemberStorage) -> bool:
        """Return whether the storage of another node has a history that is not the one of this cluster: the id of another
        cluster, or none and a ledger, as a node writes that founds a cluster alone with an earlier release."""
        own = self.cluster_id
        if not own or storage.cluster_id:
            return bool(own) and storage.cluster_id != own
        return storage.has_ledger and not any(
            each.node_id == node_id and each.incarnation in (storage.incarnation, storage.previous)
            for members in self.lists for each in members.nodes)

    def has_records(self, node_id: int) -> bool:
        """True if the partitions of a node have all records that it acknowledged, unless they are doubtful: False for an old
        copy of its storage."""
        return self.is_intact(node_id) or self.storage(node_id).state is not StorageState.COMPLETE

    def _is_intact(self, node_id: int, voters: Mapping[int, int]) -> bool:
        storage = self.announced.get(node_id, _UNKNOWN)
        if self.lists:
            return node_id in voters and storage.incarnation == voters[node_id] != 0
        return storage.state is StorageState.COMPLETE

    def _has_ledger(self, node_id: int, voters: Mapping[int, int]) -> bool:
        """True if a voter has lost at most its vote."""
        storage = self.storage(node_id)
        if not self.lists:
            return storage.has_ledger
        return self._is_intact(node_id, voters) or (
            storage.state is StorageState.VOTE_LOST and storage.previous == voters[node_id])

    def has_quorum(self, nodes: Collection[int]) -> bool:
        """Return whether these nodes are a quorum of all lists that count."""
        return all(self._has_quorum(nodes, voters) for voters in self._voters)

    def relies_on_lost_votes(self, nodes: Collection[int]) -> bool:
        """Return whether these nodes, a quorum, are one only because all voters are present, and the vote of one is lost:
        its newest term is unknown."""
        return any(self.storage(each).state is StorageState.VOTE_LOST for each in nodes) and not all(
            self._has_intact_quorum(nodes, voters) for voters in self._voters)

    def _has_intact_quorum(self, nodes: Collection[int], voters: Mapping[int, int]) -> bool:
        present = [each for each in nodes if each in voters]
        majority = len(voters) // 2 + 1
        return len(present) >= majority and sum(
            self._is_intact(each, voters) for each in present) > len(voters) - majority

    def _has_quorum(self, nodes: Collection[int], voters: Mapping[int, int]) -> bool:
        if self._has_intact_quorum(nodes, voters):
            return True
        present = [each for each in nodes if each in voters]
        return len(present) == len(voters) and (
            all(self._has_ledger(each, voters) for each in present)
            or not self.lists and all(self.storage(each).is_new for each in present))

    @property
    def may_stand(self) -> bool:
        """True if this node may lead: it is a voter, and its ledger has all that it acknowledged."""
        if any(self.node_id not in voters or not self._has_ledger(self.node_id, voters) for voters in self._voters):
            return not self.lists and self.storage(self.node_id).state is StorageState.FRESH and not any(
                each.has_ledger and not each.is_new for each in self.announced.values())
        return True

    def state(self) -> MemberState:
        """Return the state of this node, without regard to connections."""
        if not self.lists:
            return MemberState.MEMBER if self.storage(self.node_id).has_ledger else MemberState.FORMING
        members = self.lists[0]
        own = next((each for each in members.nodes if each.node_id == self.node_id), None)
        if own is None or members.planned and all(each.node_id != self.node_id for each in members.planned):
            return MemberState.REMOVED
        if not own.voting:
            return MemberState.LEARNER
        return MemberState.MEMBER if self.is_intact(self.node_id) else MemberState.RECOVERING

    def awaited(self, connected: Iterable[int]) -> list[int]:
        """Return the nodes that are missing for a quorum: voters that are neither this node nor connected, and voters that
        have lost storage; none if the connected nodes are a quorum."""
        present = {self.node_id, *connected}
        if self.has_quorum(present):
            return []
        is_new = not self.lists and all(self.storage(each).state is StorageState.FRESH for each in present)
        return sorted(each for each in self.voters if each not in present or not (is_new or self.is_intact(each)))


def voters_of(members: MemberList) -> dict[int, int]:
    """Return the voters of a list, with their incarnations."""
    return {each.node_id: each.incarnation for each in members.nodes if each.voting}


def quorum_value(electorate: Electorate, values: Mapping[int, V], least: int, key: Callable[[V], Any]) -> V | None:
    """Return the highest of `values` that a quorum of nodes, at least `least`, has reached; None if there is none."""
    reached: list[int] = []
    for node_id in sorted(values, key=lambda each: key(values[each]), reverse=True):
        reached.append(node_id)
        if len(reached) >= least and electorate.has_quorum(reached):
            return values[node_id]
    return None
