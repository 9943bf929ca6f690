"""One node of three that is brought up alone by force, and a cluster that grows from it again."""

from __future__ import annotations

import pytest
from kit.client import Client

from bmqtwist.cluster.metadata_log import rewritten, unsafe_of
from bmqtwist.storage.ledger_file import LedgerFile
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.wire.cluster_schema import UnsafeInfo
from sim.replicated import STRONG, ReplicatingCluster

WALL = 1_700_000_000


def rewrite(node: SimulatedNode, unsafe: bool, node_id: int | None = None) -> None:
    """What `bmq cluster unsafe-force` and `unsafe-clear` do."""
    number = int(node.name[1:])
    file = LedgerFile(node.disk, f"/memory/{node.name}/storage")
    file.open()
    info = UnsafeInfo(node_id or number, WALL) if unsafe else None
    data = rewritten(file.read_all(), number, node.name, b"ABCD" + bytes([1 + unsafe]), info, WALL)
    file.replace(b"ABCD" + bytes([1 + unsafe]), data, node.broker.loop.wall(node.local_now))
    assert (unsafe_of(file.read_all()) is not None) is unsafe
    file.close()


def wipe(node: SimulatedNode) -> None:
    place = f"/memory/{node.name}"
    for directory in (f"{place}/storage", f"{place}/archive"):
        for name in node.disk.names(directory):
            node.disk.remove(f"{directory}/{name}")


def alarms(node: SimulatedNode) -> list[str]:
    return [text for severity, text in node.report.lines if severity == "ALARM" and "UNSAFE" in text]


@pytest.mark.parametrize("survivor", ["primary", "replica"])
def test_the_one_that_is_left_goes_on_alone_until_it_is_one_of_several_again(survivor: str) -> None:
    nodes = ReplicatingCluster(7)
    nodes.settle()
    nodes.post(5)
    nodes.run(1.0)
    primary = nodes.primary()
    left = primary if survivor == "primary" else next(node for node in nodes.machines if node is not primary)
    others = [node for node in nodes.machines if node is not left]
    for node in others:
        node.crash(power=True, down=None)
    nodes.run(20.0)
    assert not nodes.replication(left).is_active_primary(0), "alone it is no majority"
    left.crash(power=True, down=None)
    rewrite(left, True)
    for _ in range(2):  # it stays so
        left.boot()
        nodes.run(8.0)
        assert nodes.replication(left).is_active_primary(0) and len(alarms(left)) == 1
        status = left.broker.commands.run_at_once(f"CLUSTERS CLUSTER {CLUSTER} STATUS", "test").text
        assert "UNSAFE        : runs alone since" in status and "Cluster size  : 1 node(s)" in status
        nodes.post(2)
        left.crash(power=True, down=None)
        left.report.lines.clear()
        left._told = 0
    rewrite(left, False)
    for node in others:
        wipe(node)
    left.boot()
    others[0].boot()
    nodes.settle()
    others[1].boot()
    nodes.settle()
    assert not alarms(left) and len({primary.name for primary in [nodes.primary()]}) == 1
    nodes.post(3)
    nodes.run(2.0)
    nodes.judge_partitions()
    assert len(nodes.acknowledged[STRONG]) == 12 and len(nodes.stored(others[1])) == 12


def test_a_ledger_of_another_node_that_goes_on_alone_is_not_taken() -> None:
    nodes = ReplicatingCluster(8)
    nodes.settle()
    node = nodes.machines[0]
    node.crash(power=False, down=None)
    rewrite(node, True, node_id=3)
    node.boot()
    assert not node.up


def test_the_others_are_not_let_in() -> None:
    nodes = ReplicatingCluster(9)
    nodes.settle()
    left = nodes.machines[2]
    left.crash(power=False, down=None)
    rewrite(left, True)
    left.boot()
    nodes.run(5.0)
    assert [text for _, text in left.report.lines if "no node of the cluster has the id" in text]
    assert isinstance(nodes.client(left.name), Client) and not nodes.cluster(left.name).leadership.is_up(1)
