"""Member lists of a cluster: the first one, its changes, and the comparison with a configuration. Pure.

A list is a part of the replicated metadata; a configuration only has to agree with it. Called by
`member/storage_standing.py` (changes, at the leader), `daemon/storage_start.py` (comparison with a configuration) and
`peers/handshake.py` (comparison of two configurations); `electorate.py` counts votes by the lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from bmqtwist.cluster.electorate import Electorate
from bmqtwist.errors import LocalError
from bmqtwist.storage.identity import StorageState
from bmqtwist.wire.cluster_schema import MemberInfo, MemberList


def first_list(electorate: Electorate, nodes: Iterable[MemberInfo], cluster_id: int, partitions: int) -> MemberList | None:
    """Return the first list of a cluster, None until all nodes have announced their storage. `nodes`: as configured. If any
    node has records, new and incomplete storage is not intact."""
    storages = {each.node_id: electorate.storage(each.node_id) for each in nodes}
    if any(not each.incarnation for each in storages.values()):
        return None
    all_new = all(each.state is StorageState.FRESH for each in storages.values())
    registered = [replace(each, voting=True, incarnation=storages[each.node_id].incarnation
                          if all_new or storages[each.node_id].has_ledger else 0) for each in nodes]
    return MemberList(cluster_id, 1, partitions, registered)


def list_of_one(before: MemberList | None, voter: MemberInfo, learners: Iterable[MemberInfo], cluster_id: int,
                partitions: int) -> MemberList:
    """Return the list of a cluster with one voter, whose storage counts as complete, after the list `before`."""
    version = before.version + 1 if before is not None else 1
    return MemberList(cluster_id, version, partitions, [
        replace(voter, voting=True), *(replace(each, voting=False, incarnation=0) for each in learners)])


def with_recovered(electorate: Electorate, caught_up: Collection[int]) -> MemberList | None:
    """Return the next list, in which one recovering node of `caught_up` is intact with its present storage, or one learner a
    voter; None if there is none. Storage that claims to be complete is an old copy: its node takes a new incarnation."""
    for each in _present_list(electorate):
        storage = electorate.storage(each.node_id)
        has_recovered = storage.incarnation != each.incarnation and storage.state is not StorageState.COMPLETE
        if each.node_id in caught_up and storage.incarnation and (has_recovered or not each.voting):
            return _with_member(electorate, replace(each, voting=True, incarnation=storage.incarnation))
    return None


def without_storage(electorate: Electorate, regressed: Mapping[int, int]) -> MemberList | None:
    """Return the next list, in which the storage of one node does not count any more; None if there is none. `regressed`: by
    node, the incarnation of storage that lacks records that it has acknowledged."""
    for each in _present_list(electorate):
        if each.incarnation and regressed.get(each.node_id) == each.incarnation:
            return _with_member(electorate, replace(each, incarnation=0))
    return None


def _present_list(electorate: Electorate) -> list[MemberInfo]:
    """Return the nodes of the committed list, none while another list is pending: one change at a time."""
    return electorate.lists[0].nodes if len(electorate.lists) == 1 else []


def _with_member(electorate: Electorate, changed: MemberInfo) -> MemberList:
    members = electorate.lists[0]
    nodes = [changed if each.node_id == changed.node_id else each for each in members.nodes]
    return replace(members, version=members.version + 1, nodes=nodes)


def node_differences(known: Sequence[MemberInfo], configured: Sequence[MemberInfo]) -> list[str]:
    """Return how the nodes of a configuration differ from the known ones, a text for each node."""
    found, theirs = list[str](), {each.node_id: each for each in configured}
    names = {each.name: each for each in configured}
    for each in known:
        other = theirs.pop(each.node_id, None)
        if other is None:
            moved = names.get(each.name)
            found.append(f"{each.name} (id {each.node_id}) is missing" if moved is None else
                         f"{each.name} has the id {moved.node_id} instead of {each.node_id}")
        elif other.name != each.name:
            found.append(f"the node with the id {each.node_id} is named {other.name} instead of {each.name}")
        elif other.endpoint != each.endpoint:
            found.append(f"{each.name} (id {each.node_id}) has the endpoint {other.endpoint} instead of {each.endpoint}")
    known_names = {each.name for each in known}
    found += [f"{each.name} (id {each.node_id}) is not a member" for each in theirs.values() if each.name not in known_names]
    return found


def list_differences(members: MemberList, configured: Sequence[MemberInfo], partitions: int) -> list[str]:
    """Return how a configuration differs from the member list, and from the planned nodes. The endpoint of a single node
    does not matter."""
    if len(members.nodes) == len(configured) == 1:
        return [] if members.nodes[0].node_id == configured[0].node_id else node_differences(members.nodes, configured)
    if members.planned and not node_differences(members.planned, configured):
        found = []
    else:
        found = node_differences(members.nodes, configured)
    if partitions != members.partitions:
        found.append(f"numPartitions is {partitions} instead of {members.partitions}")
    return found


# -- changes by an operator -------------------------------------------------------------------------------------------------


def is_single_change(members: MemberList, configured: Sequence[MemberInfo]) -> bool:
    """Return whether at most one node is added or removed, and at least two nodes remain."""
    known, wanted = {each.node_id for each in members.nodes}, {each.node_id for each in configured}
    return len(known ^ wanted) <= 1 < len(wanted)


def with_planned(members: MemberList, planned: Sequence[MemberInfo]) -> MemberList:
    """Return the next list, with these planned nodes; none cancels the plan. Raises LocalError if it is no valid change."""
    if planned:
        _check_nodes(planned)
        if not is_single_change(members, planned):
            raise LocalError("one node can be added, removed or replaced at a time, and two must remain")
    return replace(members, version=members.version + 1, planned=list(planned))


def _check_nodes(nodes: Sequence[MemberInfo]) -> None:
    for name, values in (("id", [each.node_id for each in nodes]), ("name", [each.name for each in nodes]),
                         ("endpoint", [each.endpoint for each in nodes])):
        if len(set(values)) < len(values):
            raise LocalError(f"two nodes would have the same {name}: {', '.join(map(str, values))}")


def with_nodes(electorate: Electorate, configured: Sequence[MemberInfo]) -> MemberList | None:
    """Return the next list, with the nodes that all configurations have: new ones as learners; None if there is none."""
    known = {each.node_id: each for each in _present_list(electorate)}
    if not known or not node_differences(list(known.values()), configured) or not is_single_change(
            electorate.lists[0], configured):
        return None
    nodes = [replace(known[each.node_id], name=each.name, endpoint=each.endpoint) if each.node_id in known
             else replace(each, voting=False, incarnation=0) for each in configured]
    return replace(electorate.lists[0], version=electorate.lists[0].version + 1, nodes=nodes, planned=[])
