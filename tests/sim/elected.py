"""Simulated cluster whose members elect a leader and replicate their metadata, with checks of both.

Used by `test_elected.py`; the campaigns (`campaign/world.py`) and `replicated.py` extend it.
"""

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
SETTLE_S = INACTIVITY_S + 4 * (1.0 + 1.0) + 35.0  # elections, and the longest delay before a node is dialled again
_LED = re.compile(r"ElectorStateChangeCb new state: LEADER, .* new term: (\d+), old state")


class ElectedCluster(SimulatedCluster):
    """`count` members with short elector timeouts. `members`: further keys of the cluster's configuration; `partition`: of
    its storage."""

    _counted = (0, 0)  # numbers of nodes and proxies at the last computation of `machines`
    _machines: list[SimulatedNode] = []  # noqa: RUF012 - replaced, never changed

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
        self.assigned: dict[str, bytes] = {}  # URI of each queue whose assignment was reported as committed -> its key
        self._asked = 0

    @property
    def machines(self) -> list[SimulatedNode]:
        """The members of the cluster, without proxies."""
        counted = len(self.nodes), len(self.proxies)
        if counted != self._counted:
            self._counted = counted
            self._machines = [node for node in self.nodes if isinstance(node, SimulatedNode) and node not in self.proxies]
        return self._machines

    def cluster(self, name: str) -> Cluster:
        """Return the cluster object of a node."""
        return self.node(name).broker.clusters[CLUSTER]

    def believed(self) -> list[SimulatedNode]:
        """Return the running members whose elector is in the state LEADER."""
        return [node for node in self.machines if node.up
                and node.broker.clusters[CLUSTER].leadership.standing.state is ElectionState.LEADER]

    @property
    def leader(self) -> SimulatedNode:
        """The member that all running members follow as active leader; AssertionError if they differ."""
        up = [node for node in self.machines if node.up]
        leaderships = {node.name: node.broker.clusters[CLUSTER].leadership for node in up}
        views = {(each.standing.leader, each.standing.term, each.active) for each in leaderships.values()}
        assert len(views) == 1, {name: (each.standing, each.active, each.elector.transition_log.transitions[-4:])
                                 for name, each in leaderships.items()}
        leader, _, active = views.pop()
        assert leader is not None and active
        return self.node(f"n{leader}")

    def assign(self, node: SimulatedNode, uri: str | None = None) -> str:
        """Propose the assignment of a queue, by default of a new one, at a member, and return its URI."""
        self._asked += 1
        uri = uri or f"bmq://bmq.test.persistent.priority/q{self._asked}"

        def on_outcome(outcome: Outcome, wall: int) -> None:
            if isinstance(outcome, Done):
                assert self.assigned.setdefault(uri, outcome.value.key) == outcome.value.key
        metadata = node.broker.clusters[CLUSTER].metadata
        metadata.propose(AssignQueue(uri, ("__default",), int(self.now * 1e9) + self._asked), on_outcome,
                         node.broker.loop.wall(node.local_now))
        node.request_turn()
        return uri

    def judge(self) -> None:
        """Check that each term had at most one leader, by the logs of all runs."""
        led: dict[int, str] = {}
        for node in self.machines:
            for line in node.log():
                found = _LED.search(line)
                if found:
                    term = int(found[1])
                    assert led.setdefault(term, node.name) == node.name, f"two leaders of term {term}"

    def judge_all(self) -> None:
        """Check, after `run_until_stable`, that all members have the same state with all assigned queues."""
        self.judge()
        states = [self.cluster(node.name).metadata.state for node in self.machines]
        for state in states:
            assert {uri: queue.key for uri, queue in state.queues.items()}.items() >= self.assigned.items()
            assert (state.queues, state.partitions, state.keys) == (states[0].queues, states[0].partitions, states[0].keys)


def heal(nodes: ElectedCluster) -> None:
    """Heal all links between members."""
    for one in nodes.machines:
        for two in nodes.machines:
            if one is not two:
                nodes.network.heal(one.name, two.name)


def resume(nodes: ElectedCluster) -> None:
    """Resume all paused members."""
    for node in nodes.machines:
        if node.up and node.paused:
            node.resume()
