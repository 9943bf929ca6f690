"""`bmqtwist.testing.Cluster`: what happens to a cluster in memory, as tests of applications use it."""

from __future__ import annotations

import pytest

from bmqtwist.testing import Cluster, NotInTime


@pytest.fixture
def cluster() -> Cluster:
    """Three nodes with a leader."""
    made = Cluster(3)
    made.elect()
    return made


def others(cluster: Cluster, name: str) -> list[str]:
    return [each for each in cluster.names if each != name]


@pytest.mark.parametrize("power", [True, False])
def test_a_node_that_is_killed_is_replaced_and_follows_when_it_is_back(cluster: Cluster, power: bool) -> None:
    former = cluster.leader
    cluster.kill(former, power=power)
    assert former not in cluster.up and cluster.elect() != former
    cluster.start(former)
    with pytest.raises(AssertionError, match="runs already"):
        cluster.start(former)
    cluster.until(lambda: cluster.term(former) == cluster.term(cluster.leader or former))
    assert cluster.elect() != former


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_hangs_is_replaced_within_three_seconds(seed: int) -> None:
    """As the fast profile of the sample configuration promises."""
    cluster = Cluster(3, seed)
    former, begun = cluster.elect(), cluster.now
    cluster.pause(former)
    assert cluster.elect(3.0) != former and cluster.now - begun < 3.0
    cluster.resume(former)
    cluster.until(lambda: cluster.leader and cluster.leader != former, 3.0)


def test_a_partition_leaves_the_majority_a_leader_and_the_other_side_none(cluster: Cluster) -> None:
    former = cluster.leader
    cluster.partition([former], others(cluster, former))
    cluster.run(10)
    assert cluster.leader == "" and "leader, term" in cluster.story()
    assert [name for name in cluster.names if "STATE" in cluster.admin(name, "CLUSTERS CLUSTER c3 STATUS").upper()]
    cluster.heal()
    assert cluster.elect() != former


def test_a_link_that_is_cut_or_slow_changes_nothing_among_the_others(cluster: Cluster) -> None:
    leader = cluster.leader
    one, two = others(cluster, leader)
    term = cluster.term(leader)
    cluster.cut(one, two, both=False)
    cluster.slow(leader, one, 0.3)
    cluster.run(60)
    assert cluster.leader == leader and cluster.term(leader) == term


def test_a_clock_that_jumps_is_survived_and_a_restart_keeps_the_term(cluster: Cluster) -> None:
    for name in cluster.names:
        cluster.jump(name, 3600, wall=-7200)
    cluster.elect()
    term = max(map(cluster.term, cluster.names))
    for name in cluster.names:
        cluster.restart(name)
        assert any("start" in line for line in cluster.log(name))
    cluster.elect()
    assert max(map(cluster.term, cluster.names)) > term


def test_the_same_seed_is_the_same_life_and_waiting_in_vain_ends() -> None:
    assert Cluster(3, 5).elect() == Cluster(3, 5).elect()
    cluster = Cluster(3)
    cluster.kill("n1")
    cluster.kill("n2")
    with pytest.raises(NotInTime, match="n1 down"):
        cluster.elect(5)


def test_every_node_says_once_that_the_cluster_is_available() -> None:
    for seed in range(8):
        cluster = Cluster(3, seed=seed)
        cluster.until(lambda cluster=cluster: all(  # type: ignore[misc]
            any("Transitioning to AVAILABLE." in line for line in cluster.log(name)) for name in cluster.names))
        for name in cluster.names:
            assert sum(line.endswith("Cluster (c3) is available") for line in cluster.log(name)) == 1, (seed, name)
