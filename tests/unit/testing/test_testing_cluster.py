"""In-process cluster `bmqtwist.testing.Cluster`, as tests of applications use it."""

from __future__ import annotations

import pytest

from bmqtwist.sdk import PostRefused
from bmqtwist.testing import Cluster, NotInTime


@pytest.fixture
def cluster() -> Cluster:
    """Three nodes with a leader."""
    made = Cluster(3)
    made.elect()
    return made


def other_names(cluster: Cluster, name: str) -> list[str]:
    return [each for each in cluster.names if each != name]


@pytest.mark.parametrize("power", [True, False])
def test_a_killed_leader_is_replaced_and_follows_after_its_restart(cluster: Cluster, power: bool) -> None:
    former = cluster.leader
    cluster.kill(former, power=power)
    assert former not in cluster.up and cluster.elect() != former
    cluster.start(former)
    with pytest.raises(AssertionError, match="runs already"):
        cluster.start(former)
    cluster.until(lambda: cluster.term(former) == cluster.term(cluster.leader or former))
    assert cluster.elect() != former


@pytest.mark.parametrize("seed", range(10))
def test_a_paused_leader_is_replaced_within_three_seconds(seed: int) -> None:
    """The limit is that of the fast profile of the sample configuration."""
    cluster = Cluster(3, seed)
    former, begun = cluster.elect(), cluster.now
    cluster.pause(former)
    assert cluster.elect(3.0) != former and cluster.now - begun < 3.0
    cluster.resume(former)
    cluster.until(lambda: cluster.leader and cluster.leader != former, 3.0)


def test_a_network_partition_leaves_a_leader_only_to_the_majority(cluster: Cluster) -> None:
    former = cluster.leader
    cluster.partition([former], other_names(cluster, former))
    cluster.run(10)
    assert cluster.leader == "" and "leader, term" in cluster.describe()
    assert [name for name in cluster.names if "STATE" in cluster.admin(name, "CLUSTERS CLUSTER c3 STATUS").upper()]
    cluster.heal()
    assert cluster.elect() != former


def test_a_cut_and_a_slow_link_do_not_change_leader_and_term(cluster: Cluster) -> None:
    leader = cluster.leader
    one, two = other_names(cluster, leader)
    term = cluster.term(leader)
    cluster.cut(one, two, both=False)
    cluster.slow(leader, one, 0.3)
    cluster.run(60)
    assert cluster.leader == leader and cluster.term(leader) == term


def test_a_cluster_elects_a_leader_after_clock_jumps_and_restarts_keep_the_term(cluster: Cluster) -> None:
    for name in cluster.names:
        cluster.jump(name, 3600, wall=-7200)
    cluster.elect()
    term = max(map(cluster.term, cluster.names))
    for name in cluster.names:
        cluster.restart(name)
        assert any("start" in line for line in cluster.log(name))
    cluster.elect()
    assert max(map(cluster.term, cluster.names)) > term


def test_the_same_seed_elects_the_same_leader_and_an_election_without_quorum_times_out() -> None:
    assert Cluster(3, 5).elect() == Cluster(3, 5).elect()
    cluster = Cluster(3)
    cluster.kill("n1")
    cluster.kill("n2")
    with pytest.raises(NotInTime, match="n1 down"):
        cluster.elect(5)


def test_each_node_logs_once_that_the_cluster_is_available() -> None:
    for seed in range(8):
        cluster = Cluster(3, seed=seed)
        cluster.until(lambda cluster=cluster: all(  # type: ignore[misc]
            any("Transitioning to AVAILABLE." in line for line in cluster.log(name)) for name in cluster.names))
        for name in cluster.names:
            assert sum(line.endswith("Cluster (c3) is available") for line in cluster.log(name)) == 1, (seed, name)


STRONG = "bmq://bmq.test.persistent.priority.sc/q"


def test_an_application_at_a_proxy_receives_no_event_when_the_primary_is_killed() -> None:
    cluster = Cluster(3, proxies=1)
    primary = cluster.elect()
    events: list[str] = []
    with cluster.blocking_session("p1", on_event=lambda event: events.append(event.kind.name)) as session:
        queue = session.open(STRONG, read=True, write=True)
        assert queue.post(b"before").ok
        cluster.kill(primary)
        began = cluster.now
        assert queue.post(b"after").ok and cluster.now - began < 5
        assert [queue.get(10).payload, queue.get(10).payload] == [b"before", b"after"]
        assert events == ["CONNECTED"]
    cluster.start(primary)
    assert cluster.elect() != primary


def test_an_application_continues_at_another_node_when_its_own_is_killed() -> None:
    cluster = Cluster(3)
    primary = cluster.elect()
    near, other = other_names(cluster, primary)
    uri = f"bmq://{cluster.domain('orders', consistency='strong')}/q"
    with cluster.blocking_session(near, other) as session:
        queue = session.open(uri, read=True, write=True)
        assert queue.post(b"1").ok
        cluster.kill(near)
        assert queue.post(b"2").ok
        got: set[bytes] = set()
        while got < {b"1", b"2"}:  # the first may be redelivered: it was not confirmed
            got.add(queue.get(10).payload)


def test_an_application_with_a_cut_link_continues_after_its_repair() -> None:
    cluster = Cluster(3)
    primary = cluster.elect()
    with cluster.blocking_session(primary, place="office") as session:
        queue = session.open(STRONG, write=True)
        cluster.cut("office", primary)
        cluster.run(1)
        queue.post_nowait(b"late")
        cluster.run(5)
        cluster.heal()
        queue.flush()
    with cluster.blocking_session() as session:
        assert session.open(STRONG, read=True).get(10).payload == b"late"


def test_a_changed_domain_takes_effect_at_all_nodes() -> None:
    cluster = Cluster(3, proxies=1)
    cluster.elect()
    cluster.domain("orders", max_messages=1)
    with cluster.blocking_session("p1") as session:
        queue = session.open("bmq://orders/q", write=True)
        assert queue.post(b"1").ok and queue.post(b"2").ok  # one message may exceed the limit
        with pytest.raises(PostRefused, match="LIMIT"):
            queue.post(b"3")
        cluster.domain("orders", max_messages=10)
        assert queue.post(b"3").ok
