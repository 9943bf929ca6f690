"""Cluster of broker processes: nodes and proxies on free ports, with files in a directory, killed at the end.

Each broker is started by `process.py`; clusters in this process are in `cluster.py`, those of operators in
`cli/cluster/local.py`.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bmqtwist.cli.cluster.processes import free_ports
from bmqtwist.config.sample import ELECTORS
from bmqtwist.errors import BmqError
from bmqtwist.testing.config import CLUSTER, node_config
from bmqtwist.testing.process import START_SECONDS_MAX, BrokerProcess, NotInTime, _Started

_POLL_S = 0.05
_ACTIVE = "ACTIVE"


def _with_console(app: dict[str, Any] | None, port: int) -> dict[str, Any]:
    """Return `app` with a console at this port, unless it configures one."""
    extension = (app or {}).get("bmqtwist", {})
    console = {"port": port, "localRole": "admin", **extension.get("http", {})}
    return {**(app or {}), "bmqtwist": {**extension, "http": console}}


class ClusterProcess(_Started):
    """Nodes n1, n2, ... and proxies p1, p2, ... below the directory `root`. As a context manager it starts them, waits for a
    leader, and kills them at the end. `app` and `cluster` as of `BrokerProcess`, equal for all brokers; the default of
    `elector` is the fast profile of `bmq cluster`."""

    def __init__(self, root: Path, nodes: int = 3, proxies: int = 0, *, app: dict[str, Any] | None = None,
                 cluster: dict[str, Any] | None = None) -> None:
        ports = free_ports(2 * nodes + proxies)
        members = [node_config(number, f"n{number}", f"127.0.0.1:{ports[number - 1]}") for number in range(1, nodes + 1)]
        definition = {"elector": ELECTORS["fast"], **(cluster or {}), "nodes": members}
        self.consoles: dict[str, str] = {}
        self._brokers: dict[str, BrokerProcess] = {}
        for number in range(1, nodes + 1):
            self._make_node(root, number, (ports[number - 1], ports[nodes + number - 1]), app, definition)
        self._proxies = {name: self._make_proxy(root / name, app, ports[2 * nodes + number]) for number, name in enumerate(
            f"p{number}" for number in range(1, proxies + 1))}

    def _make_node(self, root: Path, number: int, ports: tuple[int, int], app: dict[str, Any] | None,
                   definition: dict[str, Any]) -> None:
        name = f"n{number}"
        broker = BrokerProcess(root / name, ports[0], cluster=definition,
                               app={**_with_console(app, ports[1]), "hostName": name})
        self.consoles[name] = f"http://127.0.0.1:{ports[1]}"
        broker.config.clusters["myVirtualClusters"] = [{"name": CLUSTER, "selfNodeId": number}]
        broker.config.write()
        self._brokers[name] = broker

    def _make_proxy(self, root: Path, app: dict[str, Any] | None, http_port: int) -> BrokerProcess:
        broker = BrokerProcess(root, app={**_with_console(app, http_port), "hostName": root.name,
                                          "brokerInstanceName": root.name})
        self.consoles[root.name] = f"http://127.0.0.1:{http_port}"
        definition = self["n1"].config.clusters["myClusters"][0]
        broker.config.clusters.update(myClusters=[], myVirtualClusters=[], proxyClusters=[
            {key: definition[key] for key in ("name", "nodes", "queueOperations")}])
        broker.config.write()
        return broker

    def __getitem__(self, name: str) -> BrokerProcess:
        """Return a node or proxy, for `url`, `log()`, `expect(text)`, `admin(command)`, `kill()`, `stop()`, `launch()`,
        `restart()`, `pause()`, `resume()`."""
        return self._brokers.get(name) or self._proxies[name]

    @property
    def names(self) -> list[str]:
        """Names of all nodes."""
        return list(self._brokers)

    @property
    def proxies(self) -> list[str]:
        """Names of all proxies."""
        return list(self._proxies)

    @property
    def urls(self) -> list[str]:
        """URLs of the nodes, for clients."""
        return [broker.url for broker in self._brokers.values()]

    @property
    def leader(self) -> str:
        """The active leader that all running nodes follow, including itself; "" = none."""
        views = set()
        for broker in self._brokers.values():
            if broker.running:
                try:
                    answer = broker.admin(f"ENCODING JSON_COMPACT CLUSTERS CLUSTER {CLUSTER} STATUS")
                except (BmqError, OSError):
                    return ""
                elector = json.loads(answer)["clusterStatus"]["electorInfo"]
                views.add((elector["leaderNode"], elector["leaderStatus"]))
        found, status = views.pop() if len(views) == 1 else ("", "")
        name = str(found).strip("[]").partition(",")[0]
        return name if status == _ACTIVE and self._brokers[name].running else ""

    def elect(self, deadline: float = START_SECONDS_MAX) -> str:
        """Wait until there is a leader, and return its name. Raises NotInTime, with the last log lines, after `deadline`
        seconds."""
        end = time.monotonic() + deadline
        while not (leader := self.leader):
            if time.monotonic() > end:
                tails = "\n".join(f"{name}: {line}" for name, broker in self._brokers.items() for line in broker.log()[-15:])
                raise NotInTime(f"no leader within {deadline:g} s:\n{tails}")
            time.sleep(_POLL_S)
        return leader

    def start(self, deadline: float = START_SECONDS_MAX) -> str:
        """Start all stopped brokers, wait until proxies serve and there is a leader, and return its name."""
        for broker in self._brokers.values():
            if not broker.running:
                broker.launch()
        for broker in self._proxies.values():
            if not broker.running:
                broker.start(deadline)
        return self.elect(deadline)

    def close(self) -> None:
        """Kill all running processes."""
        with ExitStack() as stack:
            for broker in (*self._brokers.values(), *self._proxies.values()):
                stack.callback(broker.close)
