"""Virtual clusters: proxies that are the nodes of a cluster for other proxies.

The members of the configuration are in `bmqtwist/config/clusters.py: VirtualCluster`.
"""

from __future__ import annotations

import json
from functools import partial

from kit.client import payloads

from bmqtwist.testing.cluster import PORT
from bmqtwist.testing.config import DomainTable, proxy_configuration, sample_domains
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.cluster import SimulatedCluster

PRIORITY = "bmq://bmq.test.persistent.priority/q"
NAME, NUMBER = "virtual", 7


def test_a_proxy_uses_another_proxy_as_the_node_of_a_virtual_cluster() -> None:
    world = SimulatedCluster(1, 1, proxies={"p1": ["n1"]}, proxy_virtual=[{"name": NAME, "selfNodeId": NUMBER}])
    domains = DomainTable()
    for name, text in sample_domains():
        document = json.loads(text)
        document["definition"]["location"] = NAME
        domains.texts[name] = json.dumps(document)
    behind = SimulatedNode(world.network, "p2", f"p2:{PORT}", partial(
        proxy_configuration, "p2", PORT, {"p1": NUMBER}, cluster={"name": NAME}), lambda configuration: domains)
    world.proxies.append(behind)
    world.on_node_created(behind)
    behind.boot()
    reader = world.client("p2").consume(PRIORITY)
    world.client("n1").open(PRIORITY, write=1).post(b"down")
    [got] = reader.take(1)
    reader.confirm(got)
    world.client("p2").open(PRIORITY, write=1).post(b"up")
    assert payloads(reader.take(1)) == [b"up"]
    [proxy] = behind.broker.proxies.values()
    assert proxy.name == NAME and proxy.selector.active == NUMBER
    peer = proxy.links.session(NUMBER)
    assert peer is not None and peer.session.remote.identity.cluster_name == NAME
