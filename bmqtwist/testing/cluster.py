"""In-process cluster of nodes and proxies, with a simulated network, disks in memory and simulated time.

    cluster = Cluster(nodes=3, proxies=1)
    leader = cluster.elect()
    with cluster.blocking_session("p1") as session: ...
    cluster.partition([leader], ["n2", "n3"])
    cluster.run(60)                             # a simulated minute takes milliseconds

Time passes in `run`, `until` and `elect`, and in waiting sessions only. Runs with the same seed are equal. The nodes are
`simulated_node.SimulatedNode`, the network is in `network.py`; clusters of processes are in `cluster_process.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any

from bmqtwist.config.sample import ELECTORS
from bmqtwist.testing.config import (
    CLUSTER,
    DomainTable,
    member_configuration,
    plain_domain,
    proxy_configuration,
    sample_domains,
)
from bmqtwist.testing.network import LOOPBACK, Network
from bmqtwist.testing.process import NotInTime
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.testing.simulated_pump import SimulatedPump
from bmqtwist.testing.simulation import Simulation

if TYPE_CHECKING:
    from bmqtwist.sdk import simple

PORT = 30114  # of each node, at its own host in the simulated network
UNTIL_SECONDS_MAX = 120.0
_STEP_S = 0.01
_HEARTBEATS = {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 3}
_APP = {"heartbeats": _HEARTBEATS, "tcp": {"heartbeatIntervalMs": 1000}}
_PARTITION = {"maxJournalFileSize": 1 << 20, "maxDataFileSize": 1 << 22, "maxQlistFileSize": 1 << 16,
              "maxCSLFileSize": 1 << 18}


def make_nodes(network: Network, count: int, options: Mapping[str, Mapping[str, Any]], alone: bool, domains: DomainTable,
               **configured: Mapping[str, Any]) -> list[SimulatedNode]:
    """Create nodes n1, n2, ..., not started. `options`: arguments of `SimulatedNode`, by name of the node; `alone`: each
    node is a separate cluster."""
    return [SimulatedNode(network, f"n{number}", f"n{number}:{PORT}",
                          cache(partial(member_configuration, number, count, PORT, alone=alone, **configured)),
                          lambda configuration: domains, **options.get(f"n{number}", {}))
            for number in range(1, count + 1)]


class Cluster:
    """A running cluster of nodes n1, n2, ... and proxies p1, p2, ... `app` and `cluster` replace members of the
    configuration, as for `BrokerProcess`; the default of `elector` is the fast profile of `bmq cluster`."""

    def __init__(self, nodes: int = 3, seed: int = 0, *, proxies: int = 0, app: Mapping[str, Any] | None = None,
                 cluster: Mapping[str, Any] | None = None) -> None:
        self._simulation = Simulation(Random(f"{seed}/cluster"))
        self._network = Network(self._simulation)
        definition = {"elector": ELECTORS["fast"], "partition": _PARTITION, **(cluster or {})}
        self._domains = domains = DomainTable()
        domains.texts.update(sample_domains())
        configured = {**_APP, **(app or {})}
        made = make_nodes(self._network, nodes, {}, False, domains, app=configured, cluster=definition)
        self._nodes = {node.name: node for node in made}
        numbers = {node.name: number for number, node in enumerate(made, 1)}
        self._proxies = {name: SimulatedNode(self._network, name, f"{name}:{PORT}",
                                             partial(proxy_configuration, name, PORT, numbers, app=configured),
                                             lambda configuration: domains)
                         for name in (f"p{number}" for number in range(1, proxies + 1))}
        for node in self._brokers.values():
            node.boot()

    @property
    def _brokers(self) -> dict[str, SimulatedNode]:
        return {**self._nodes, **self._proxies}

    # -- applications -------------------------------------------------------------------------------------------------

    def domain(self, name: str, mode: str = "priority", **options: Any) -> str:
        """Create or reconfigure a domain at all nodes, and return its name; options as of `Broker.domain`. A stopped node
        reads it when it starts."""
        self._domains.texts[name] = plain_domain(name, mode, **options)
        for node in self._nodes.values():
            if node.up:
                node.act(partial(node.broker.domains.reconfigure, name))
                node.request_turn()
        return name

    def blocking_session(self, *names: str, place: str = LOOPBACK, **options: Any) -> simple.Session:
        """Return a blocking session with the named brokers, without names with all nodes; options as of
        `bmqtwist.sdk.simple.Session`. Its waits advance simulated time. `place`: the client's host, for `cut` and `slow`."""
        from bmqtwist.sdk import simple
        brokers = [f"tcp://{self._brokers[name].address}" for name in names or self._nodes]
        return simple.Session(brokers, pump=partial(SimulatedPump, self._network, place), **options)

    # -- time -------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Simulated time in seconds."""
        return self._simulation.now

    def run(self, seconds: float) -> None:
        """Advance the simulated time."""
        self._simulation.play(self._simulation.now + seconds)

    def until(self, condition: Callable[[], object], seconds: float = UNTIL_SECONDS_MAX) -> None:
        """Advance the simulated time until a condition is true. Raises NotInTime after `seconds`."""
        end = self.now + seconds
        while not condition():
            if self.now >= end:
                raise NotInTime(f"condition not met within {seconds:g} s:\n{self.describe()}")
            self.run(_STEP_S)

    def jump(self, name: str, seconds: float, wall: float = 0.0) -> None:
        """Advance the monotonic clock of a node, as a suspension of its machine does; `wall`: shift of its wall clock in
        seconds, positive or negative, with effect from its next start."""
        self._nodes[name].jump(seconds, wall)

    # -- leader -----------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of all nodes."""
        return list(self._nodes)

    @property
    def up(self) -> list[str]:
        """Names of the running nodes, including paused ones."""
        return [name for name, node in self._nodes.items() if node.up]

    @property
    def leader(self) -> str:
        """The active leader that all running, unpaused nodes follow, including itself; "" = none."""
        running = {name: node for name, node in self._nodes.items() if node.up and not node.paused}
        views = {(leadership.standing.leader, leadership.standing.term, leadership.active)
                 for node in running.values() for leadership in [node.broker.clusters[CLUSTER].leadership]}
        leader, _, active = views.pop() if len(views) == 1 else (None, 0, False)
        return f"n{leader}" if active and f"n{leader}" in running else ""

    def elect(self, seconds: float = UNTIL_SECONDS_MAX) -> str:
        """Advance the simulated time until there is a leader, and return its name."""
        self.until(lambda: self.leader, seconds)
        return self.leader

    def term(self, name: str) -> int:
        """Return the current term of a node."""
        return self._nodes[name].broker.clusters[CLUSTER].leadership.standing.term

    # -- processes and machines ---------------------------------------------------------------------------------------

    def kill(self, name: str, power: bool = False, silently: bool = False) -> None:
        """Kill a node; `power`: its machine loses power and unsynced data; `silently`: peers are not notified of the end of
        their connections."""
        self._brokers[name].crash(power=power, down=None, silently=silently)

    def stop(self, name: str) -> None:
        """Stop a node gracefully and wait for its end."""
        node = self._brokers[name]
        node.stop(down=None)
        self.until(lambda: not node.up)

    def start(self, name: str) -> None:
        """Start a stopped node from its disk."""
        if self._brokers[name].up:
            raise AssertionError(f"{name} runs already")
        self._brokers[name].boot()

    def restart(self, name: str) -> None:
        """Stop a node if it runs, and start it."""
        if self._brokers[name].up:
            self.stop(name)
        self.start(name)

    def pause(self, name: str) -> None:
        """Pause a node: its connections remain, but it does not respond."""
        self._brokers[name].pause()

    def resume(self, name: str) -> None:
        """Resume a node, which processes the deferred events."""
        self._brokers[name].resume()

    # -- the network --------------------------------------------------------------------------------------------------

    def partition(self, *groups: Iterable[str]) -> None:
        """Cut all links between different groups. Nodes in no group are connected to all."""
        sides = [list(group) for group in groups]
        for at, side in enumerate(sides):
            for other in sides[at + 1:]:
                for one in side:
                    for two in other:
                        self.cut(one, two)

    def cut(self, one: str, two: str, both: bool = True) -> None:
        """Cut the link from one node to another, and (`both`) back."""
        self._network.cut(one, two, both)

    def slow(self, one: str, two: str, seconds: float, jitter: float = 0.0) -> None:
        """Delay data from one node to another by additional seconds, each packet by up to `jitter` more or less."""
        self._network.slow(one, two, seconds, jitter)

    def limit(self, one: str, two: str, bytes_per_second: int, both: bool = True) -> None:
        """Limit the bandwidth from one node to another, and (`both`) back; 0 = unlimited."""
        self._network.limit(one, two, bytes_per_second, both)

    def heal(self) -> None:
        """Restore all cut, slow and limited links; waiting data arrives."""
        self._network.heal_all()

    # -- inspection -----------------------------------------------------------------------------------------------------

    def admin(self, name: str, command: str) -> str:
        """Run an admin command at a node and return the text of the answer."""
        return self._brokers[name].broker.commands.run_at_once(command, "test").text

    def log(self, name: str) -> list[str]:
        """Return the log of a node, of all its runs."""
        return self._brokers[name].log()

    def describe(self) -> str:
        """Return a line with state, term and leader for each node."""
        lines = []
        for name, node in self._nodes.items():
            state = "down" if not node.up else "paused" if node.paused else ""
            standing = node.broker.clusters[CLUSTER].leadership.standing
            lines.append(f"{name} {state or standing.state.name.lower()}, term {standing.term}, leader {standing.leader}")
        return "\n".join(lines)
