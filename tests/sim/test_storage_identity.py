"""Members that lose their storage: it is not counted until they have copied the data of members with intact storage."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from kit.client import payloads

from bmqtwist.cluster.elector import UNKNOWN_TERMS
from bmqtwist.cluster.electorate import MemberState
from bmqtwist.daemon.assemble import StartFailure
from bmqtwist.storage.identity import IDENTITY_FILE, IdentityFile, StorageIdentity, StorageState, id_text
from bmqtwist.storage.ledger_file import LEDGER_SUFFIX, encode_ledger, read_ledger
from bmqtwist.storage.slot_file import PromiseFile, VoteFile
from bmqtwist.testing.config import member_configuration, node_config
from bmqtwist.testing.simulated_node import SimulatedNode, SimulatedPerformer
from bmqtwist.wire.cluster_schema import LeaderAdvisory, MemberList, PartitionPrimaryAdvisory
from sim.cluster import PARTITION
from sim.elected import ELECTOR, SETTLE_S
from sim.replicated import STRONG, ReplicatingCluster, available_cluster

LEDGER, VOTE, PROMISES, EVERYTHING = (".bmq_csl",), (VoteFile.name,), (PromiseFile.name,), ("/storage/",)
FILE_SETS = (".bmq_journal", ".bmq_data", ".bmq_qlist")


def lose(node: SimulatedNode, *kinds: str) -> None:
    """Remove files of a stopped node."""
    for path in node.disk.paths():
        if any(kind in path for kind in kinds):
            node.disk.remove(path)
            node.disk.sync_directory(path.rpartition("/")[0])


def kill_all(nodes: ReplicatingCluster) -> None:
    """Kill all nodes at once."""
    for node in nodes.machines:
        if node.up:
            node.crash(power=True, down=None)


def recover_and_judge(nodes: ReplicatingCluster, seconds: float) -> None:
    """Wait until the cluster is available, run for some time, and check that no acknowledged message is lost."""
    nodes.wait_until_available()
    nodes.run(seconds)
    nodes.judge_partitions()
    nodes.judge_all()


def state(nodes: ReplicatingCluster, node: SimulatedNode) -> tuple[MemberState, str]:
    """Return the state of a node, and the nodes that it waits for."""
    return nodes.cluster(node.name).leadership.member_state


def serving(nodes: ReplicatingCluster) -> list[str]:
    """Return the nodes that are active primary of a partition, or leader with a committed record."""
    return [node.name for node in nodes.machines if node.up and (
        nodes.cluster(node.name).leadership.leads or any(
            nodes.replication(node).is_active_primary(hosted.index) for hosted in nodes.replication(node).hosted))]


def stale_third(nodes: ReplicatingCluster) -> tuple[SimulatedNode, SimulatedNode, SimulatedNode]:
    """Post 200 messages while one of three nodes is down, then kill all; return the replica that has them, the node that
    lacks them, and the primary."""
    nodes.post(5)
    nodes.run(1.0)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    replica, stale = (node for node in nodes.machines if node is not primary)
    stale.crash(power=False, down=None)
    nodes.run(8.0)
    nodes.post(200)
    nodes.run(1.0)
    kill_all(nodes)
    return replica, stale, primary


def test_an_empty_node_and_a_stale_one_serve_nothing_until_a_node_with_the_messages_is_there() -> None:
    nodes = available_cluster(1)
    lost, stale, late = stale_third(nodes)
    lose(lost, *EVERYTHING)
    lost.boot()
    stale.boot()
    for _ in range(60):
        nodes.run(1.0)
        assert not serving(nodes)
    assert state(nodes, stale) == (MemberState.WAITING_FOR_MEMBERS, f"[{lost.name}, {lost.name[1:]}], [{late.name}, "
                                   f"{late.name[1:]}]" if lost.name < late.name else
                                   f"[{late.name}, {late.name[1:]}], [{lost.name}, {lost.name[1:]}]")
    assert "WAITING_FOR_MEMBERS" in nodes.cluster(stale.name).unready and late.name in nodes.cluster(stale.name).unready
    late.boot()
    recover_and_judge(nodes, 5.0)
    assert all(state(nodes, node) == (MemberState.MEMBER, "") for node in nodes.machines)
    assert payloads(nodes.client(lost.name).consume(STRONG).take(205)) == nodes.acknowledged[STRONG]


@pytest.mark.parametrize("kinds", [EVERYTHING, LEDGER, FILE_SETS, PROMISES, (*PROMISES, *FILE_SETS), (*LEDGER, *VOTE)],
                         ids=["everything", "ledger", "file sets", "promises", "partitions", "metadata"])
def test_each_kind_of_lost_files_at_the_node_with_the_messages_stops_what_needs_them(kinds: tuple[str, ...]) -> None:
    """One node has lost files, one is stale, and the third is down: neither an election nor a partition may need the lost
    files and go on. Nothing acknowledged is missing once the third node is there."""
    nodes = available_cluster(2)
    lost, stale, late = stale_third(nodes)
    lose(lost, *kinds)
    lost.boot()
    stale.boot()
    nodes.run(60.0)
    index = 0
    assert not any(nodes.replication(node).is_active_primary(index) for node in (lost, stale))
    late.boot()
    recover_and_judge(nodes, 5.0)


def test_a_replaced_disk_needs_no_command_while_a_majority_runs() -> None:
    nodes = available_cluster(3)
    nodes.post(20)
    for node in list(nodes.machines):
        node.crash(power=False, down=None)
        lose(node, *EVERYTHING)
        nodes.run(5.0)
        nodes.post(3)
        node.boot()
        seen = set[MemberState]()
        while nodes.cluster(node.name).unavailable:
            seen.add(state(nodes, node)[0])
            nodes.run(0.05)
        assert MemberState.RECOVERING in seen or MemberState.FORMING in seen
        nodes.wait_until_available()
        nodes.run(2.0)
        identity, _ = IdentityFile(node.disk, f"/memory/{node.name}/storage").read()
        assert identity is not None and identity.state is StorageState.COMPLETE
    nodes.judge_partitions()
    nodes.judge_all()


def test_a_recovering_node_is_never_candidate_and_does_not_become_primary() -> None:
    nodes = available_cluster(4, masterAssignment="E_LEAST_ASSIGNED")
    nodes.post(5)
    lost = nodes.machines[1]
    lost.crash(power=False, down=None)
    lose(lost, *EVERYTHING)
    nodes.run(5.0)
    lost.boot()
    while state(nodes, lost)[0] is not MemberState.MEMBER:
        assert lost not in nodes.believed() and lost.name not in serving(nodes)
        nodes.run(0.05)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_votes_lost_at_all_nodes_at_once_are_no_reason_to_wait_for_an_operator(size: int) -> None:
    nodes = available_cluster(5, size)
    nodes.post(10)
    kill_all(nodes)
    terms = [nodes.cluster(node.name).leadership.standing.term for node in nodes.machines]
    for node in nodes.machines:
        lose(node, *VOTE)
    for node in nodes.machines[:-1]:
        node.boot()
    nodes.run(30.0)
    assert not serving(nodes), "the last node may have the newest term"
    nodes.machines[-1].boot()
    nodes.wait_until_available()
    assert nodes.cluster(nodes.leader.name).leadership.standing.term > max(terms) + UNKNOWN_TERMS - 1, "it was never used"
    nodes.post(3)
    nodes.run(3.0)
    nodes.judge_partitions()
    nodes.judge_all()
    assert all(state(nodes, node) == (MemberState.MEMBER, "") for node in nodes.machines)


@pytest.mark.parametrize("size", [2, 3])
def test_a_new_cluster_is_formed_by_all_of_its_nodes(size: int) -> None:
    nodes = ReplicatingCluster(6, size)
    late = nodes.machines[-1]
    late.crash(power=False, down=None)
    nodes.run(40.0)
    assert not serving(nodes)
    for node in nodes.machines[:-1]:
        assert state(nodes, node) == (MemberState.FORMING, f"[{late.name}, {size}]")
        assert sum("this node is FORMING" in line and f"waits for [{late.name}, {size}]" in line for line in node.log()) >= 1
        assert nodes.cluster(node.name).unready == f"c3 (FORMING: waits for [{late.name}, {size}])"
    late.boot()
    nodes.wait_until_available()
    lists = {repr(nodes.cluster(node.name).metadata.state.members) for node in nodes.machines}
    assert len(lists) == 1 and nodes.cluster("n1").metadata.state.members is not None
    late.crash(power=True, down=None)
    if size == 3:
        nodes.run(8.0)
        nodes.post(3)


def test_all_nodes_of_a_cluster_that_was_just_formed_may_crash_at_any_moment() -> None:
    for seed in range(12):
        nodes = ReplicatingCluster(seed, 3)
        nodes.until(lambda: any(node.up and nodes.cluster(node.name).leadership.leads for node in nodes.machines), SETTLE_S,  # noqa: B023
                    step=0.001)
        nodes.run(seed * 0.004)
        kill_all(nodes)
        for node in nodes.machines:
            node.boot()
        nodes.wait_until_available()
        nodes.post(3)
        nodes.run(1.0)
        nodes.judge_partitions()


@pytest.mark.parametrize("kept", range(3))
def test_two_members_without_storage_wait_for_the_operator(kept: int) -> None:
    nodes = available_cluster(7)
    nodes.post(20)
    kill_all(nodes)
    for node in nodes.machines:
        if node is not nodes.machines[kept]:
            lose(node, *EVERYTHING)
        node.boot()
    nodes.run(60.0)
    assert not serving(nodes)
    keeper = nodes.machines[kept]
    others = ", ".join(f"[{node.name}, {node.name[1:]}]" for node in nodes.machines if node is not keeper)
    assert state(nodes, keeper) == (MemberState.WAITING_FOR_MEMBERS, others)


def damage_logs(nodes: ReplicatingCluster, index: int, *nodes_with_damage: SimulatedNode) -> None:
    """Flip bits of a durable record in the journals of stopped nodes."""
    for node in nodes_with_damage:
        path = next(path for path in node.disk.paths()
                    if f"/storage/bmq_{index}." in path and path.endswith("journal"))
        node.disk.flip(path, 704, 0xFF)


def test_logs_that_may_lack_their_last_records_at_a_majority_need_all_members_and_no_operator() -> None:
    nodes = available_cluster(15)
    for _ in range(4):
        nodes.post(10)
        nodes.run(1.5)
    index = nodes.record(STRONG).partition_id
    kill_all(nodes)
    first, second, third = nodes.machines
    damage_logs(nodes, index, first, second)
    first.boot()
    second.boot()
    nodes.run(30.0)
    assert not any(nodes.replication(node).is_active_primary(index) for node in (first, second))
    third.boot()
    recover_and_judge(nodes, 2.0)


def test_lost_file_sets_at_a_majority_wait_for_the_operator_and_the_members_are_named() -> None:
    nodes = available_cluster(16)
    nodes.post(20)
    index = nodes.record(STRONG).partition_id
    kill_all(nodes)
    first, second, third = nodes.machines
    for node in (first, third):
        lose(node, f"/storage/bmq_{index}.")
    for node in nodes.machines:
        node.boot()
    nodes.run(90.0)
    assert not any(nodes.replication(node).is_active_primary(index) for node in nodes.machines)
    assert any("durable records may be missing at nodes 1, 3" in line for node in nodes.machines for line in node.log())


def test_a_directory_of_another_node_is_refused_and_not_changed() -> None:
    nodes = available_cluster(8)
    nodes.post(5)
    kill_all(nodes)
    first, second, third = nodes.machines
    first.disk, second.disk = second.disk, first.disk
    for disk, old, new in ((first.disk, "n2", "n1"), (second.disk, "n1", "n2")):
        for path in disk.paths():
            disk.rename(path, path.replace(f"/memory/{old}/", f"/memory/{new}/"))
    before = {path: bytes(first.disk.content(path)) for path in first.disk.paths()}
    for node in nodes.machines:
        node.boot()
    nodes.run(10.0)
    assert not first.up and not second.up and not serving(nodes)
    assert {path: bytes(first.disk.content(path)) for path in first.disk.paths()} == before


def make_directories_of_an_earlier_version(*nodes: SimulatedNode) -> None:
    """Remove the identities and the member lists of stopped nodes."""
    for node in nodes:
        lose(node, IDENTITY_FILE)
        for path in [path for path in node.disk.paths() if path.endswith(LEDGER_SUFFIX)]:
            contents = read_ledger(node.disk.content(path))
            for each in contents.entries:
                advisory = each.record.message.value
                if isinstance(advisory, LeaderAdvisory | PartitionPrimaryAdvisory):
                    advisory.members = None
            node.disk.put(path, encode_ledger(contents.log_id, [each.record for each in contents.entries]))


def test_directories_of_an_earlier_version_are_served_by_a_majority_and_registered_when_all_are_there() -> None:
    nodes = available_cluster(9)
    nodes.post(20)
    kill_all(nodes)
    make_directories_of_an_earlier_version(*nodes.machines)
    first, second, third = nodes.machines
    for node in (first, second):
        node.boot()
    nodes.run(20.0)
    nodes.post(3)
    assert not nodes.cluster("n1").leadership.elector.electorate.is_formed
    third.boot()
    nodes.wait_until_available()
    nodes.run(2.0)
    lists = {repr(nodes.cluster(node.name).metadata.state.members) for node in nodes.machines}
    members = nodes.cluster("n1").metadata.state.members
    assert len(lists) == 1 and members is not None and members.version == 1
    assert all(each.incarnation for each in members.nodes)
    for node in nodes.machines:
        identity, _ = IdentityFile(node.disk, f"/memory/{node.name}/storage").read()
        assert identity is not None and (identity.state, identity.cluster_id) == (StorageState.COMPLETE, members.cluster_id)
    kill_all(nodes)
    for node in nodes.machines:
        node.boot()
    recover_and_judge(nodes, 2.0)


def test_an_empty_node_among_directories_of_an_earlier_version_does_not_count() -> None:
    nodes = available_cluster(10)
    lost, stale, late = stale_third(nodes)
    make_directories_of_an_earlier_version(*nodes.machines)
    lose(lost, *EVERYTHING)
    lost.boot()
    stale.boot()
    nodes.run(60.0)
    assert not serving(nodes)
    late.boot()
    recover_and_judge(nodes, 5.0)
    assert all(state(nodes, node) == (MemberState.MEMBER, "") for node in nodes.machines)


def wrong_nodes(nodes: ReplicatingCluster, name: str) -> list[dict[str, Any]]:
    """Return the nodes in the configuration of a node, for a change."""
    return [node_config(number, f"n{number}", f"n{number}:30114") for number in range(1, len(nodes.machines) + 1)]


@pytest.mark.parametrize("mistake, text", [
    ("missing", "n1 (id 1) is missing; n2 (id 2) is missing"), ("added", "n4 (id 4) is not a member"),
    ("renamed", "the node with the id 2 is named other instead of n2"),
    ("swapped", "n1 (id 1) has the endpoint tcp://n2:30114 instead of tcp://n1:30114; n2 (id 2) has the endpoint "
     "tcp://n1:30114 instead of tcp://n2:30114"),
    ("partitions", "numPartitions is 5 instead of 2"), ("quorum", "elector.quorum is 1 and must be at least 2"),
    ("cluster", "it belongs to node 3 of cluster 'c3'")])
def test_a_node_with_a_wrong_configuration_does_not_serve_and_names_the_mistake(mistake: str, text: str) -> None:
    nodes = available_cluster(11)
    nodes.post(10)
    node = nodes.machines[2]
    node.crash(power=False, down=None)
    before = {path: bytes(node.disk.content(path)) for path in node.disk.paths()}
    usual = node._configure
    members = wrong_nodes(nodes, node.name)
    changed: dict[str, Any] = {
        "missing": {"nodes": members[2:]}, "added": {"nodes": [*members, node_config(4, "n4", "n4:30114")]},
        "renamed": {"nodes": [members[0], node_config(2, "other", "n2:30114"), members[2]]},
        "swapped": {"nodes": [node_config(1, "n1", "n2:30114"), node_config(2, "n2", "n1:30114"), members[2]]},
        "partitions": {"partition": {**PARTITION, "numPartitions": 5}},
        "quorum": {"elector": {**ELECTOR, "quorum": 1}}, "cluster": {"name": "other"}}[mistake]
    node._configure = partial(member_configuration, 3, 3, 30114, cluster={
        "elector": ELECTOR, "partition": PARTITION, **changed})
    if mistake in ("added", "renamed", "swapped"):  # the other configurations may follow
        node.boot()
        nodes.run(10.0)
        assert state(nodes, node)[0] is MemberState.MISCONFIGURED
        assert text in nodes.cluster(node.name).leadership.storage.mistake
        assert any(text in line for line in node.log()) and node.name not in serving(nodes)
        node.crash(power=False, down=None)
    else:
        with pytest.raises(StartFailure, match=re.escape(text)):
            node.open_node(SimulatedPerformer(node))
        assert {path: bytes(node.disk.content(path)) for path in node.disk.paths()} == before
    nodes.post(10)
    node._configure = usual
    node.boot()
    recover_and_judge(nodes, 2.0)


def found_alone(nodes: ReplicatingCluster, node: SimulatedNode) -> MemberList:
    """Let a node found a cluster of its own, and stop it; its configuration is correct again. Return its member list."""
    node.crash(power=False, down=None)
    lose(node, *EVERYTHING)
    usual = node._configure
    node._configure = partial(member_configuration, 3, 3, 30114, cluster={
        "elector": ELECTOR, "partition": PARTITION, "nodes": wrong_nodes(nodes, node.name)[2:]})
    node.boot()
    nodes.run(10.0)
    members = nodes.cluster(node.name).metadata.state.members
    assert members is not None
    node.crash(power=False, down=None)
    node._configure = usual
    return members


def test_a_history_founded_alone_with_an_earlier_version_is_refused() -> None:
    nodes = available_cluster(12)
    nodes.post(5)
    node = nodes.machines[2]
    for _ in range(8):  # each restart begins a term: its records are newer
        found_alone(nodes, node)
    make_directories_of_an_earlier_version(node)
    nodes.machines[0].crash(power=False, down=None)
    node.boot()
    nodes.run(10.0)
    assert not serving(nodes), "no records of its ledger are adopted"
    assert any("belongs to an unknown cluster" in line for line in nodes.machines[1].log() if line.startswith("ALARM"))
    nodes.machines[0].boot()
    nodes.run(10.0)
    node.crash(power=False, down=None)
    nodes.post(5)
    lose(node, *EVERYTHING)
    node.boot()
    recover_and_judge(nodes, 5.0)


def test_nodes_of_two_histories_refuse_each_other_and_name_both_ids() -> None:
    nodes = available_cluster(12)
    nodes.post(5)
    node, known = nodes.machines[2], nodes.cluster("n1").metadata.state.members
    members = found_alone(nodes, node)
    assert known is not None and members.cluster_id != known.cluster_id
    with pytest.raises(StartFailure, match=re.escape("n1 (id 1) is not a member; n2 (id 2) is not a member")):
        node.open_node(SimulatedPerformer(node))
    node.disk.kill()
    lose(node, LEDGER[0])
    node.boot()
    nodes.run(10.0)
    for each in nodes.machines:
        assert any(id_text(members.cluster_id) in line and id_text(known.cluster_id) in line for line in each.log()
                   if line.startswith("ALARM")), each.name
    assert not any(nodes.cluster(each.name).leadership.is_up(3) for each in nodes.machines[:2])
    node.crash(power=False, down=None)
    nodes.post(5)


def copy_of(node: SimulatedNode) -> dict[str, bytes]:
    """Return the files of a stopped node."""
    return {path: bytes(node.disk.content(path)) for path in node.disk.paths()}


def restore(node: SimulatedNode, files: dict[str, bytes]) -> None:
    """Replace the files of a stopped node."""
    lose(node, "/memory/")
    for path, data in files.items():
        node.disk.put(path, data)


def test_a_disk_that_was_replaced_earlier_does_not_count_when_it_returns() -> None:
    nodes = available_cluster(13)
    nodes.post(5)
    nodes.run(1.0)
    primary = nodes.primary(nodes.record(STRONG).partition_id)
    node, stale = (each for each in nodes.machines if each is not primary)
    node.crash(power=False, down=None)
    former = copy_of(node)
    lose(node, *EVERYTHING)
    node.boot()
    nodes.wait_until_available()
    nodes.run(2.0)
    stale.crash(power=False, down=None)
    nodes.run(8.0)
    nodes.post(200)
    nodes.run(1.0)
    kill_all(nodes)
    restore(node, former)
    node.boot()
    stale.boot()
    nodes.run(30.0)
    assert not serving(nodes)
    primary.boot()
    recover_and_judge(nodes, 5.0)
    assert any("its directory is an old copy" in line for line in node.log())
    assert all(state(nodes, each) == (MemberState.MEMBER, "") for each in nodes.machines)
    known, _ = IdentityFile(node.disk, f"/memory/{node.name}/storage").read()
    before = StorageIdentity.decode(former[f"/memory/{node.name}/storage/{IDENTITY_FILE}"])
    assert known is not None and before is not None and known.incarnation != before.incarnation


def test_storage_that_lacks_acknowledged_records_of_the_metadata_becomes_lost() -> None:
    nodes = available_cluster(14)
    nodes.post(5)
    nodes.run(1.0)
    leader = nodes.leader
    node = next(each for each in nodes.machines if each is not leader)
    former = dict(node.disk._durable_names)
    files = {path: bytes(file.durable) for path, file in former.items()}
    for _ in range(3):
        nodes.assign(leader)
        nodes.run(0.5)
    node.crash(power=False, down=None)
    restore(node, files)
    node.boot()
    nodes.run(10.0)
    nodes.wait_until_available()
    assert any("its directory is an old copy" in line for line in node.log())
    members = nodes.cluster(leader.name).metadata.state.members
    assert members is not None and members.version == 3
    nodes.judge_all()
    nodes.judge_partitions()
