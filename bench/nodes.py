"""Clusters as benchmark targets: of bmqtwist and of RabbitMQ, with clients at a node that is not the leader.

Used by `run.py` and `compare.py`, and by `catch_up.py` and `take_over.py`; single brokers are in `broker.py` and
`rabbit.py`.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from bench.broker import CLUSTER, Broker
from bench.cells import Cell
from bench.load import Plan
from bench.rabbit import Rabbit, free_port
from bmqtwist.cli.adminclient import AdminClient, Unreachable

READY_SECONDS_MAX = 60
_POLL_S = 0.1


class BrokerCluster:
    """`count` brokers below one directory, with strongly consistent domains; all clients connect to one replica."""

    name = "bmqtwist"

    def __init__(self, root: Path, durability: str = "none", count: int = 3) -> None:
        ports = [free_port() for _ in range(count)]
        self.brokers = [Broker(root / f"n{number}", durability, nodes=ports, number=number)
                        for number in range(1, count + 1)]
        self._stack = ExitStack()

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the broker processes."""
        return tuple(broker.pid for broker in self.brokers)

    def __enter__(self) -> Self:
        for broker in self.brokers:
            self._stack.enter_context(broker)
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not (all("is available" in broker.output() for broker in self.brokers) and self._leader()):
            if time.monotonic() > deadline:
                self._stack.close()
                raise RuntimeError(f"the cluster has no leader: {self.brokers[0].output()[-1000:]}")
            time.sleep(_POLL_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _leader(self) -> str:
        """Return the name of the leader, which is primary of all partitions; "" = no active leader."""
        try:
            with AdminClient("127.0.0.1", self.brokers[0].port) as client:
                client.negotiate()
                answer = json.loads(client.run(f"ENCODING JSON_COMPACT CLUSTERS CLUSTER {CLUSTER} STATUS"))
        except Unreachable:
            return ""
        elector = answer["clusterStatus"]["electorInfo"]
        return str(elector["leaderNode"]).strip("[]").partition(",")[0] if elector["leaderStatus"] == "ACTIVE" else ""

    def loop_stalls_ms(self) -> dict[str, float]:
        """Return the longest stalls of all nodes, as `Broker.loop_stalls_ms`."""
        found = [broker.loop_stalls_ms() for broker in self.brokers]
        return {name: max(each[name] for each in found) for name in found[0]}

    @property
    def leader(self) -> Broker:
        """The leader, which is primary of all partitions."""
        return self.brokers[int(self._leader().removeprefix("n")) - 1]

    def commands(self, cell: Cell, seconds: float, counters: Path, directory: Path) -> Plan:
        """Return the client processes of a cell, all at the first node that is not the leader."""
        leader = self.leader
        replica = next(broker for broker in self.brokers if broker is not leader)
        return replica.commands(cell, seconds, counters, directory)


class RabbitCluster:
    """`count` nodes of RabbitMQ with quorum queues; the first is the leader, all clients connect to the second."""

    name = "rabbitmq"

    def __init__(self, root: Path, count: int = 3) -> None:
        epmd = free_port()
        self.nodes: list[Rabbit] = []
        for number in range(1, count + 1):
            home = root / f"r{number}"
            home.mkdir()
            self.nodes.append(Rabbit(home, epmd, [node.node for node in self.nodes]))
        self._stack = ExitStack()

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the broker processes."""
        return tuple(node.pid for node in self.nodes)

    def __enter__(self) -> Self:
        for node in self.nodes:
            self._stack.enter_context(node)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def commands(self, cell: Cell, seconds: float, counters: Path, directory: Path) -> Plan:
        """Return the client processes of a cell, all at the second node."""
        client = self.nodes[1]
        client.leader_port, client.quorum = self.nodes[0].port, True
        return client.commands(cell, seconds, counters, directory)
