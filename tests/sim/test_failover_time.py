"""How long nobody is primary, with the profile `fast` as `bmq cluster up` and `etc/cluster` have it."""

from __future__ import annotations

import json

import pytest

from bmqtwist.config.load import BROKER_FILE
from bmqtwist.config.sample import SAMPLE_CLUSTER, cluster_files
from bmqtwist.testing.cluster import Cluster
from bmqtwist.testing.config import CLUSTER

FAILOVER_SECONDS_MAX = 3.0
_APP = json.loads(cluster_files(SAMPLE_CLUSTER, "fast")["n1"][BROKER_FILE])["appConfig"]["networkInterfaces"]
APP = {"heartbeats": _APP["heartbeats"], "tcp": {"heartbeatIntervalMs": _APP["tcpInterface"]["heartbeatIntervalMs"]}}


def primaries(cluster: Cluster) -> dict[int, str]:
    """Who is active primary of each partition, as the nodes that run say."""
    found = {}
    for name in cluster.up:
        node = cluster._nodes[name]
        replication = node.broker.clusters[CLUSTER].replication
        if replication is not None and not node.paused:
            found.update({cell.index: name for cell in replication.cells if replication.serves(cell.index)})
    return found


@pytest.mark.parametrize("how", ["process", "machine", "hangs"])
@pytest.mark.parametrize("assignment", ["E_LEADER_IS_MASTER_ALL", "E_LEAST_ASSIGNED"])
def test_another_primary_serves_within_three_seconds(how: str, assignment: str) -> None:
    took = []
    for seed in range(12):
        cluster = Cluster(3, seed, app=APP, cluster={"masterAssignment": assignment})
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
    assert max(took) < FAILOVER_SECONDS_MAX, sorted(took)
    assert how != "process" or max(took) < 1.5, sorted(took)
