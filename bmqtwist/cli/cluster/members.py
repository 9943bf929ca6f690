"""`bmq cluster add-node`, `remove-node`, `replace-node`: changes of the nodes of a running cluster on this machine.

Each plans the change at the leader, writes `clusters.json` of all brokers, restarts them one by one, and waits until the
member list has the new nodes. A command that was interrupted is repeated. Started by `command.py`; on several machines an
operator does the same (docs/operations.md).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace

from bmqtwist.cli.adminclient import AdminClient
from bmqtwist.cli.cluster.local import CONFIGURATION, LocalCluster, leader_of, problems
from bmqtwist.cli.cluster.processes import free_ports
from bmqtwist.cli.exits import Unreachable
from bmqtwist.config.load import BROKER_FILE
from bmqtwist.config.sample import CLUSTER, SampleBroker
from bmqtwist.errors import LocalError

_HOST = "localhost"
_POLL_S = 0.2
_STORAGE = ("storage", "archive")  # in the working directory of a broker

Restart = Callable[[SampleBroker], None]


def add_node(found: LocalCluster, restart: Restart, seconds: float) -> SampleBroker:
    """Add a node with the next id, and return it."""
    number = max(each.node_id for each in found.brokers) + 1
    port, http_port = free_ports(2)
    added = SampleBroker(f"n{number}", port, http_port, number)
    _plan(found, f"ADD {number} {added.name} tcp://{_HOST}:{port}")
    at = sum(1 for each in found.brokers if each.node_id)
    found.record.brokers.insert(at, added)
    _apply(found, [each for each in found.brokers if each is not added], restart)
    found.start([added])
    _wait_for_members(found, seconds)
    return added


def remove_node(found: LocalCluster, name: str, restart: Restart, seconds: float) -> None:
    """Remove a node; its directory stays."""
    removed = _node(found, name)
    _plan(found, f"REMOVE {removed.name}", removed.name)
    found.stop([removed], seconds)
    found.record.brokers.remove(removed)
    _apply(found, found.brokers, restart)
    _wait_for_members(found, seconds)


def replace_node(found: LocalCluster, name: str, restart: Restart, seconds: float) -> None:
    """Replace a node by one with empty storage at other ports, with the same name and id."""
    former = _node(found, name)
    port, http_port = free_ports(2)
    _plan(found, f"REPLACE {former.name} tcp://{_HOST}:{port}", former.name)
    found.stop([former], seconds)
    for each in _STORAGE:
        shutil.rmtree(found.directory_of(former) / each, ignore_errors=True)
    moved = replace(former, port=port, http_port=http_port)
    found.record.brokers[found.record.brokers.index(former)] = moved
    (found.directory_of(former) / CONFIGURATION / BROKER_FILE).unlink()  # it has the ports
    _apply(found, [each for each in found.brokers if each is not moved], restart)
    found.start([moved])
    _wait_for_members(found, seconds)


def _node(found: LocalCluster, name: str) -> SampleBroker:
    node = found.broker(name)
    if not node.node_id:
        raise LocalError(f"{node.name} is a proxy, and no member of the cluster")
    return node


def _apply(found: LocalCluster, brokers: list[SampleBroker], restart: Restart) -> None:
    """Write the files of all brokers, and restart the running ones, the leader last."""
    found.save()
    found.write_missing_files()
    found.write_nodes()
    leader = leader_of(found.brokers, found.inspect_all())[0]
    for each in sorted(brokers, key=lambda broker: broker.name == leader):
        restart(each)


def _plan(found: LocalCluster, change: str, leaving: str = "") -> None:
    """Plan a change at the leader; the cluster must be healthy, except for the node that leaves."""
    views = found.inspect_all()
    wrong = problems([each for each in found.brokers if each.name != leaving], views)
    if wrong:
        raise LocalError(f"the cluster is not healthy ({'; '.join(wrong)}): correct this first")
    leader = found.broker(leader_of(found.brokers, views)[0])
    with AdminClient(_HOST, leader.port, 10.0) as client:
        client.negotiate()
        answer = client.run(f"CLUSTERS CLUSTER {CLUSTER} MEMBERS {change}")
    if answer.strip() != "SUCCESS":
        raise LocalError(f"the change was refused: {answer.strip()}")


def _wait_for_members(found: LocalCluster, seconds: float) -> None:
    """Wait until all nodes are voters of the member list, and the cluster is healthy."""
    wanted = sorted(each.name for each in found.brokers if each.node_id)
    end = time.monotonic() + seconds
    while _voters(found) != wanted:
        if time.monotonic() > end:
            raise Unreachable(f"the voters are {', '.join(_voters(found))} after {seconds:g} s, not {', '.join(wanted)}: "
                              "read the logs with `bmq cluster logs`")
        time.sleep(_POLL_S)
    found.wait_until_healthy(max(1.0, end - time.monotonic()), found.brokers)


def _voters(found: LocalCluster) -> list[str]:
    """Return the names of the voters, as the leader knows them."""
    leader = leader_of(found.brokers, found.inspect_all())[0]
    if not leader:
        return []
    with AdminClient(_HOST, found.broker(leader).port, 10.0) as client:
        client.negotiate()
        answer = client.run(f"ENCODING JSON_COMPACT CLUSTERS CLUSTER {CLUSTER} STATUS")
    return sorted(json.loads(answer)["clusterStatus"]["voters"])
