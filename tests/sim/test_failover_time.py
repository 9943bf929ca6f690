"""Duration of a failover with the profile `fast`, which `bmq cluster up` and `etc/cluster` use.

The profiles are in `bmqtwist/config/sample.py: ELECTORS`.
"""

from __future__ import annotations

import pytest
from kit.profiles import FAST_APP

from bmqtwist.testing.cluster import Cluster
from bmqtwist.testing.config import CLUSTER

FAILOVER_SECONDS_MAX = 3.0


def primaries(cluster: Cluster) -> dict[int, str]:
    """Return the active primary of each partition, from the running nodes."""
    found = {}
    for name in cluster.up:
        node = cluster._nodes[name]
        replication = node.broker.clusters[CLUSTER].replication
        if replication is not None and not node.paused:
            found.update({hosted.index: name for hosted in replication.hosted
                          if replication.is_active_primary(hosted.index)})
    return found


@pytest.mark.parametrize("how", ["process", "machine", "hangs"])
@pytest.mark.parametrize("assignment", ["E_LEADER_IS_MASTER_ALL", "E_LEAST_ASSIGNED"])
def test_another_primary_is_active_within_3_s_after_a_primary_fails(how: str, assignment: str) -> None:
    took = []
    for seed in range(12):
        cluster = Cluster(3, seed, app=FAST_APP, cluster={"masterAssignment": assignment})
        leader = cluster.elect()
        cluster.until(lambda c=cluster: len(primaries(c)) == 2)
        cluster.run(5.0 + seed / 10)
        assert cluster.leader == leader
        lost = next(name for name in primaries(cluster).values() if name != leader or assignment == "E_LEADER_IS_MASTER_ALL")
        begun = cluster.now
        if how == "hangs":
            cluster.pause(lost)
        else:
            cluster.kill(lost, power=how == "machine", silently=how == "machine")
        cluster.until(lambda c=cluster, gone=lost: len(primaries(c)) == 2 and gone not in primaries(c).values(), 30.0)
        took.append(cluster.now - begun)
        reports = [line for name in cluster.names if name != lost for line in cluster.log(name)
                   if "reporting to proxies" in line]
        assert not reports, "an election must not make proxies switch their upstream"
    assert max(took) < FAILOVER_SECONDS_MAX, sorted(took)
    assert how != "process" or max(took) < 1.5, sorted(took)


def cut_links(cluster: Cluster, lost: str, how: str) -> None:
    """Cut the links of a node: "isolated" both ways, "no input", "no output", or "pair" only those with the leader."""
    others = [name for name in cluster.names if name != lost]
    if how == "pair":
        others = [cluster.leader if cluster.leader != lost else others[0]]
    for other in others:
        one, two = (lost, other) if how == "no output" else (other, lost)
        cluster.cut(one, two, both=how in ("isolated", "pair"))


@pytest.mark.parametrize("how", ["isolated", "no input", "no output", "pair"])
@pytest.mark.parametrize("leads", [True, False])
def test_a_post_at_a_proxy_waits_at_most_3_s_when_its_upstream_is_isolated(leads: bool, how: str) -> None:
    """The upstream reports that it is unavailable, and the proxy switches to another node."""
    took = []
    for seed in range(12):
        cluster = Cluster(3, seed, proxies=1, app=FAST_APP)
        leader = cluster.elect()
        cluster.until(lambda c=cluster: len(primaries(c)) == 2)
        with cluster.blocking_session("p1") as session:
            queue = session.open("bmq://bmq.test.persistent.priority.sc/q", write=True)
            selector = cluster._proxies["p1"].broker.proxies[CLUSTER].selector
            assert queue.post(b"before").ok
            used = f"n{selector.active}"
            if (used == leader) is not leads:
                continue
            cluster.run(5.0 + seed / 10)
            cut_links(cluster, used, how)
            begun = cluster.now
            assert queue.post(b"after").ok
            took.append(cluster.now - begun)
            cluster.heal()
    assert took and max(took) < FAILOVER_SECONDS_MAX, sorted(took)
