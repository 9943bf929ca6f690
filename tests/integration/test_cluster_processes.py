"""Three nodes of one cluster as processes on real sockets and files: they elect a leader, and another when it is killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from bmqtwist.storage.vote_file import NAME
from bmqtwist.testing.process import BrokerProcess, free_port

ELECTOR = {"initialWaitTimeoutMs": 300, "maxRandomWaitTimeoutMs": 200, "scoutingResultTimeoutMs": 500,
           "electionResultTimeoutMs": 500, "heartbeatBroadcastPeriodMs": 200, "heartbeatCheckPeriodMs": 100}
_ACTIVE = re.compile(r"onClusterLeader: new leader: \[n(\d), \d\], leader status: ACTIVE")


class Node:
    """One of them; `number` from 1 on."""

    def __init__(self, root: Path, number: int, ports: list[int]) -> None:
        nodes = [{"id": each, "name": f"n{each}", "dataCenter": "dc1",
                  "transport": {"tcp": {"endpoint": f"tcp://127.0.0.1:{port}"}}} for each, port in enumerate(ports, 1)]
        self.number, self.http = number, free_port()
        app = {"hostName": f"n{number}", "bmqtwist": {"http": {"port": self.http}}}
        self.process = BrokerProcess(root / f"n{number}", ports[number - 1], app=app,
                                     cluster={"nodes": nodes, "elector": ELECTOR}, samples=False)
        self.process.config.clusters["myVirtualClusters"] = [{"name": "c3", "selfNodeId": number}]
        self.process.config.write()

    def leader(self, since: int) -> int:
        """Who leads, as this node says after so many lines."""
        found = _ACTIVE.search(self.process.expect("leader status: ACTIVE", since=since, deadline=30.0))
        assert found is not None
        return int(found[1])

    def ready(self) -> str:
        """What it says when it is asked whether it serves clients."""
        try:
            with urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=20) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return error.read().decode()

    @property
    def said(self) -> int:
        """How many lines it has said."""
        return len(self.process.records)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """Three nodes that run."""
    ports = [free_port() for _ in range(3)]
    with ExitStack() as stack:
        made = [Node(tmp_path, number, ports) for number in (1, 2, 3)]
        for node in made:
            node.process.launch()
            stack.callback(node.process.close)
        yield made


def test_they_elect_a_leader_and_another_one_when_it_is_killed(nodes: list[Node], tmp_path: Path) -> None:
    leaders = {node.leader(0) for node in nodes}
    assert len(leaders) == 1
    for node in nodes:
        node.process.expect("Cluster (c3) is available")
        assert node.ready() == "ok\n"
    former = nodes[leaders.pop() - 1]
    others = [node for node in nodes if node is not former]
    said = {node.number: node.said for node in others}
    former.process.kill()
    successors = {node.leader(said[node.number]) for node in others}
    assert len(successors) == 1 and former.number not in successors
    since = former.said
    former.process.launch()
    assert former.leader(since) in successors
    assert all((tmp_path / f"n{node.number}" / "storage" / NAME).exists() for node in nodes)
    assert [node.process.stop() for node in nodes] == [0, 0, 0]
    assert not [line for node in nodes for line in node.process.records if "INTERNAL_ERROR" in line]
