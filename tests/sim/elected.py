"""Several simulated nodes of one cluster that elect a leader and replicate their metadata, with judges outside."""

from __future__ import annotations

import re
from typing import Any

from bmqtwist.cluster.changes import AssignQueue
from bmqtwist.cluster.election_events import ElectionState
from bmqtwist.cluster.log_events import Done, Outcome
from bmqtwist.member.cluster import Cluster
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.cluster import PARTITION, SimulatedCluster

ELECTOR = {"initialWaitTimeoutMs": 2000, "maxRandomWaitTimeoutMs": 1000, "scoutingResultTimeoutMs": 1000,
           "electionResultTimeoutMs": 1000, "heartbeatBroadcastPeriodMs": 500, "heartbeatCheckPeriodMs": 250,
           "heartbeatMissCount": 6}
INACTIVITY_S = 3.0
SETTLE_S = INACTIVITY_S + 4 * (1.0 + 1.0) + 35.0  # and the longest wait before a node is dialled again
_LED = re.compile(r"ElectorStateChangeCb new state: LEADER, .* new term: (\d+), old state")


class ElectedCluster(SimulatedCluster):
    """`count` nodes with a quick elector; what was committed is remembered outside. `members`: of the configuration of the
    cluster, `partition`: of its storage."""

    _counted = (0, 0)  # nodes and proxies when `machines` was made
    _machines: list[SimulatedNode] = []  # noqa: RUF012 - never changed, replaced

    def __init__(self, seed: int, count: int, options: dict[str, dict[str, Any]] | None = None,
                 masterAssignment: str = "E_LEADER_IS_MASTER_ALL", proxies: dict[str, list[str]] | None = None,
                 texts: dict[str, str] | None = None, members: dict[str, Any] | None = None,
                 app: dict[str, Any] | None = None, **partition: int) -> None:
        heartbeats = {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 3}
        super().__init__(seed, count, options, proxies=proxies, texts=texts,
                         proxy_app={"heartbeats": {**heartbeats, "upstreamBroker": 3}, "tcp": {"heartbeatIntervalMs": 1000}},
                         app={"heartbeats": heartbeats, "tcp": {"heartbeatIntervalMs": 1000}, **(app or {})},
                         cluster={"elector": ELECTOR, "partition": {**PARTITION, **partition},
                                  "masterAssignment": masterAssignment, **(members or {})})
        self.assigned: dict[str, bytes] = {}  # uri of each queue whose assignment was told to be committed -> its key
        self._asked = 0

    @property
    def machines(self) -> list[SimulatedNode]:
        """The nodes of the cluster; proxies are none."""
        counted = len(self.nodes), len(self.proxies)
        if counted != self._counted:
            self._counted = counted
            self._machines = [node for node in self.nodes if isinstance(node, SimulatedNode) and node not in self.proxies]
        return self._machines

    def cluster(self, name: str) -> Cluster:
        """The cluster as a node sees it."""
        return self.node(name).broker.clusters[CLUSTER]

    def believed(self) -> list[SimulatedNode]:
        """Who believes that it leads."""
        return [node for node in self.machines if node.up
                and node.broker.clusters[CLUSTER].leadership.standing.state is ElectionState.LEADER]

    @property
    def leader(self) -> SimulatedNode:
        """The one that all nodes that are up follow, with its first record committed everywhere."""
        up = [node for node in self.machines if node.up]
        leaderships = {node.name: node.broker.clusters[CLUSTER].leadership for node in up}
        views = {(each.standing.leader, each.standing.term, each.active) for each in leaderships.values()}
        assert len(views) == 1, {name: (each.standing, each.active, each.elector.transition_log.transitions[-4:])
                                 for name, each in leaderships.items()}
        leader, _, active = views.pop()
        assert leader is not None and active
        return self.node(f"n{leader}")

    def assign(self, node: SimulatedNode, uri: str | None = None) -> str:
        """Ask a node to assign a queue."""
        self._asked += 1
        uri = uri or f"bmq://bmq.test.persistent.priority/q{self._asked}"

        def told(outcome: Outcome, wall: int) -> None:
            if isinstance(outcome, Done):
                assert self.assigned.setdefault(uri, outcome.value.key) == outcome.value.key
        metadata = node.broker.clusters[CLUSTER].metadata
        metadata.propose(AssignQueue(uri, ("__default",), int(self.now * 1e9) + self._asked), told,
                         node.broker.loop.wall(node.local_now))
        node.turn_due()
        return uri

    def judge(self) -> None:
        """One leader in a term, over all lives; what was told to be committed is at whoever leads."""
        led: dict[int, str] = {}
        for node in self.machines:
            for line in node.log():
                found = _LED.search(line)
                if found:
                    term = int(found[1])
                    assert led.setdefault(term, node.name) == node.name, f"two leaders of term {term}"

    def judge_all(self) -> None:
        """When all is quiet: every node has everything, and the same."""
        self.judge()
        states = [self.cluster(node.name).metadata.state for node in self.machines]
        for state in states:
            assert {uri: queue.key for uri, queue in state.queues.items()}.items() >= self.assigned.items()
            assert (state.queues, state.partitions, state.keys) == (states[0].queues, states[0].partitions, states[0].keys)


def heal(nodes: ElectedCluster) -> None:
    """Every link carries everything again."""
    for one in nodes.machines:
        for two in nodes.machines:
            if one is not two:
                nodes.network.heal(one.name, two.name)


def resume(nodes: ElectedCluster) -> None:
    """Whoever was paused goes on."""
    for node in nodes.machines:
        if node.up and node.paused:
            node.resume()
