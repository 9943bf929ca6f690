"""Changes of the members of a cluster under load: a node is added, removed, or replaced by one at another port.

Each does what `docs/operations.md` tells an operator of several machines: plan the change at the leader, write
`clusters.json` of all brokers, restart them one by one, start the new node with an empty directory, and wait until the
member list has the new nodes. Called by `cluster_faults.py`.
"""

from __future__ import annotations

import json
import shutil
from typing import Any

from bmqtwist.cli.cluster.processes import free_ports
from bmqtwist.errors import BmqError
from bmqtwist.testing import BrokerProcess
from bmqtwist.testing.config import CLUSTER, node_config
from soak.cluster_load import LoadedCluster


def add_node(load: LoadedCluster) -> None:
    """Add a node with the next id."""
    cluster = load.cluster
    number = 1 + max(int(name[1:]) for name in (*cluster.names, *load.former))
    port, (http_port,) = load.spare_ports.pop(0), free_ports(1)
    _plan(load, f"ADD {number} n{number} tcp://127.0.0.1:{port}")
    nodes = [*_nodes(load), node_config(number, f"n{number}", f"127.0.0.1:{port}")]
    _restart_all(load, nodes)
    cluster._make_node(load.root, number, (port, http_port), load.app, {**load.definition, "nodes": nodes})
    added = cluster[f"n{number}"]
    load.add_domains(added)
    _write(load, added, nodes)
    added.launch()
    _wait_for_members(load)


def remove_node(load: LoadedCluster, name: str) -> None:
    """Remove a node; its directory stays."""
    _plan(load, f"REMOVE {name}")
    nodes = [each for each in _nodes(load) if each["name"] != name]
    load.stop(name)
    load.former[name] = load.cluster._brokers.pop(name)
    load.spare_ports.append(load.former[name].port)
    _restart_all(load, nodes)
    _wait_for_members(load)


def replace_node(load: LoadedCluster, name: str) -> None:
    """Replace a node by one with empty storage at another port."""
    node, port = load.cluster[name], load.spare_ports.pop(0)
    _plan(load, f"REPLACE {name} tcp://127.0.0.1:{port}")
    nodes = [node_config(each["id"], name, f"127.0.0.1:{port}") if each["name"] == name else each for each in _nodes(load)]
    load.stop(name)
    load.spare_ports.append(node.port)
    for directory in (node.config.storage, node.root / "archive"):
        shutil.rmtree(directory)
    interface = node.config.broker["appConfig"]["networkInterfaces"]["tcpInterface"]
    node.config.port = interface["port"] = interface["listeners"][0]["port"] = port
    _write(load, node, nodes)
    _restart_all(load, nodes, name)
    node.launch()
    _wait_for_members(load)


def _nodes(load: LoadedCluster) -> list[dict[str, Any]]:
    """Return the nodes of the cluster, as in the proxy's configuration."""
    return list(load.cluster["p1"].config.clusters["proxyClusters"][0]["nodes"])


def _plan(load: LoadedCluster, change: str) -> None:
    answer = load.cluster[load.cluster.leader].admin(f"CLUSTERS CLUSTER {CLUSTER} MEMBERS {change}").strip()
    if answer != "SUCCESS":
        raise RuntimeError(f"{change} was refused: {answer}")


def _write(load: LoadedCluster, broker: BrokerProcess, nodes: list[dict[str, Any]]) -> None:
    """Write the nodes to the configuration of a broker; nodes dial through relays if there are any."""
    clusters, name = broker.config.clusters, broker.root.name
    kind = "myClusters" if clusters["myClusters"] else "proxyClusters"
    dialled = load.relays.dialled(name, nodes) if load.relays is not None and kind == "myClusters" else nodes
    clusters[kind] = [{**clusters[kind][0], "nodes": dialled}]
    broker.config.write()


def _restart_all(load: LoadedCluster, nodes: list[dict[str, Any]], stopped: str = "") -> None:
    """Give all running brokers another list of nodes: one after the other, the leader last."""
    cluster, leader = load.cluster, load.cluster.leader
    names = sorted((name for name in cluster.names if name != stopped), key=lambda name: name == leader)
    for name in (*names, *cluster.proxies):
        _write(load, cluster[name], nodes)
        load.stop(name)
        cluster[name].launch()
        load.until(lambda name=name: not load.reason(name), f"{name} to be ready")  # type: ignore[misc]
    load.proxy_restarts += len(cluster.proxies)


def _wait_for_members(load: LoadedCluster) -> None:
    """Wait until the voters are the nodes of the configuration."""
    load.until(lambda: _voters(load) == sorted(load.cluster.names), f"the voters {', '.join(load.cluster.names)}")


def _voters(load: LoadedCluster) -> list[str]:
    try:
        answer = load.cluster[load.cluster.leader].admin(f"ENCODING JSON_COMPACT CLUSTERS CLUSTER {CLUSTER} STATUS")
    except (BmqError, OSError, KeyError):
        return []
    return sorted(json.loads(answer)["clusterStatus"]["voters"])
