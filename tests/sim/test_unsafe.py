"""`bmq cluster unsafe-force`: one member of three that runs alone, and the members that join it later.

Tests `bmqtwist/cluster/metadata_log.py: rewrite_ledger`; the command is in `bmqtwist/cli/cluster/unsafe.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.client import Client

from bmqtwist.cluster.member_lists import list_of_one
from bmqtwist.cluster.metadata_log import open_alone, read_unsafe_info, rewrite_ledger
from bmqtwist.storage.identity import IdentityFile
from bmqtwist.storage.ledger_file import LedgerFile
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import MemberInfo, UnsafeInfo
from sim.replicated import STRONG, ReplicatingCluster

WALL = 1_700_000_000
LISTED = [MemberInfo(number, f"n{number}", f"tcp://n{number}:30114") for number in (1, 2, 3)]


def rewrite(node: SimulatedNode, unsafe: bool, node_id: int | None = None) -> None:
    """Rewrite the ledger as `bmq cluster unsafe-force` and `unsafe-clear` do."""
    number = int(node.name[1:])
    file = LedgerFile(node.disk, f"/memory/{node.name}/storage")
    file.open()
    info = UnsafeInfo(node_id or number, WALL) if unsafe else None
    identity, _ = IdentityFile(node.disk, f"/memory/{node.name}/storage").read()
    log = open_alone(file.read_all(), number, node.name)
    before = log.state.members
    assert identity is not None and before is not None
    known = {each.node_id: each for each in (before.nodes if unsafe else LISTED)}
    members = list_of_one(before, replace(known.pop(number), incarnation=identity.incarnation),
                          () if unsafe else known.values(), before.cluster_id + unsafe, 2)
    data = rewrite_ledger(log, b"ABCD" + bytes([1 + unsafe]), info, members, WALL)
    file.replace(b"ABCD" + bytes([1 + unsafe]), data, node.broker.loop.wall(node.local_now))
    assert (read_unsafe_info(file.read_all()) is not None) is unsafe
    file.close()


def wipe(node: SimulatedNode) -> None:
    """Remove all storage files of a member."""
    place = f"/memory/{node.name}"
    for directory in (f"{place}/storage", f"{place}/archive"):
        for name in node.disk.names(directory):
            node.disk.remove(f"{directory}/{name}")


def alarms(node: SimulatedNode) -> list[str]:
    """Return the alarms about the forced state."""
    return [text for severity, text in node.report.lines if severity == "ALARM" and "UNSAFE" in text]


@pytest.mark.parametrize("survivor", ["primary", "replica"])
def test_a_forced_single_member_serves_alone_until_other_members_join_again(survivor: str) -> None:
    nodes = ReplicatingCluster(7)
    nodes.run_until_stable()
    nodes.post(5)
    nodes.run(1.0)
    primary = nodes.primary()
    survivor_node = primary if survivor == "primary" else next(node for node in nodes.machines if node is not primary)
    others = [node for node in nodes.machines if node is not survivor_node]
    for node in others:
        node.crash(power=True, down=None)
    nodes.run(20.0)
    assert not nodes.replication(survivor_node).is_active_primary(0), "a single member is no majority"
    survivor_node.crash(power=True, down=None)
    rewrite(survivor_node, True)
    for _ in range(2):  # the forced state is permanent
        survivor_node.boot()
        nodes.run(8.0)
        assert nodes.replication(survivor_node).is_active_primary(0) and len(alarms(survivor_node)) == 1
        status = survivor_node.broker.commands.run_at_once(f"CLUSTERS CLUSTER {CLUSTER} STATUS", "test").text
        assert "UNSAFE        : runs alone since" in status and "Cluster size  : 1 node(s)" in status
        nodes.post(2)
        survivor_node.crash(power=True, down=None)
        survivor_node.report.lines.clear()
        survivor_node._lines_recorded = 0
    rewrite(survivor_node, False)
    for node in others:
        wipe(node)
    survivor_node.boot()
    nodes.run(8.0)
    assert nodes.replication(survivor_node).is_active_primary(0), "the only voter serves while the learners are absent"
    for node in others:
        node.boot()
        nodes.run_until_stable()
    members = nodes.cluster(others[1].name).metadata.state.members
    assert members is not None and all(each.voting and each.incarnation for each in members.nodes)
    assert not alarms(survivor_node) and len({primary.name for primary in [nodes.primary()]}) == 1
    nodes.post(3)
    nodes.run(2.0)
    nodes.judge_partitions()
    assert len(nodes.acknowledged[STRONG]) == 12 and len(nodes.stored(others[1])) == 12


def test_a_member_does_not_start_with_the_forced_ledger_of_another_member() -> None:
    nodes = ReplicatingCluster(8)
    nodes.run_until_stable()
    node = nodes.machines[0]
    node.crash(power=False, down=None)
    rewrite(node, True, node_id=3)
    node.boot()
    assert not node.up


def test_a_forced_single_member_refuses_connections_of_other_members() -> None:
    nodes = ReplicatingCluster(9)
    nodes.run_until_stable()
    survivor_node = nodes.machines[2]
    survivor_node.crash(power=False, down=None)
    rewrite(survivor_node, True)
    survivor_node.boot()
    nodes.run(5.0)
    assert [text for _, text in survivor_node.report.lines if "no node of the cluster has the id" in text]
    assert isinstance(nodes.client(survivor_node.name), Client) and not nodes.cluster(survivor_node.name).leadership.is_up(1)
