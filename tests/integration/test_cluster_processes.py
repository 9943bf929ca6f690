"""Three nodes of a cluster as processes: they elect a leader, and another one when it is killed."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from bmqtwist.storage.slot_file import VoteFile
from bmqtwist.testing import BrokerProcess, ClusterProcess

_ACTIVE = re.compile(r"onClusterLeader: new leader: \[(n\d), \d\], leader status: ACTIVE")


def leader_in_log(broker: BrokerProcess, since: int) -> str:
    """Return the leader from the log of a node, read from a given line on."""
    found = _ACTIVE.search(broker.expect("leader status: ACTIVE", since=since, deadline=30.0))
    assert found is not None
    return found[1]


def ready(console: str) -> str:
    """Return the answer of a node to a readiness request."""
    try:
        with urlopen(f"{console}/readyz", timeout=20) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return error.read().decode()


def wait_until_ready(console: str) -> None:
    """Wait until a node is ready: it may be available before it is connected with all nodes."""
    end = time.monotonic() + 30.0
    while (answer := ready(console)) != "ok\n":
        assert time.monotonic() < end, answer
        time.sleep(0.1)


def test_three_member_processes_replace_a_killed_leader(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path) as cluster:
        leader = cluster.leader
        assert {leader_in_log(cluster[name], 0) for name in cluster.names} == {leader}
        for name in cluster.names:
            cluster[name].expect("Cluster (c3) is available")
            wait_until_ready(cluster.consoles[name])
        others = [name for name in cluster.names if name != leader]
        log_lengths = {name: len(cluster[name].records) for name in cluster.names}
        cluster[leader].kill()
        successors = {leader_in_log(cluster[name], log_lengths[name]) for name in others}
        assert len(successors) == 1 and leader not in successors
        cluster[leader].launch()
        assert leader_in_log(cluster[leader], log_lengths[leader]) in successors
        assert {cluster.elect()} == successors and len(cluster.urls) == 3
        assert all((tmp_path / name / "storage" / VoteFile.name).exists() for name in cluster.names)
        assert [cluster[name].stop() for name in cluster.names] == [0, 0, 0]
        assert cluster.leader == "" and not [line for name in cluster.names for line in cluster[name].records
                                             if "INTERNAL_ERROR" in line]
