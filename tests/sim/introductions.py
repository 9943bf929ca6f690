"""Access to the cluster links of a simulated node, and negotiation of scripted brokers with it.

Used by `test_links.py`, `test_stops.py` and `test_returning_nodes.py`.
"""

from __future__ import annotations

from kit.client import Client

from bmqtwist.peers.links import ClusterLinks
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.versions import OWN
from bmqtwist.wire import control
from bmqtwist.wire.control import Encoding, NegotiationMessage
from bmqtwist.wire.schema import BrokerResponse, ClientIdentity, ClientType
from sim.cluster import SimulatedCluster, SimulatedLink

FEATURES = f"PROTOCOL_ENCODING:BER;{OWN.announcement()}"


def links(node: SimulatedNode) -> ClusterLinks:
    """Return the links of a member to the other members."""
    found = node.broker.sessions.peers[CLUSTER]
    assert isinstance(found, ClusterLinks)
    return found


def introduce(nodes: SimulatedCluster, name: str, **changed: object) -> tuple[BrokerResponse | None, Client]:
    """Negotiate with a node as the broker n1 with some `changed` members of its identity.

    Returns the response, None = the node closed the connection, and the client.
    """
    end = nodes.network.connect(nodes.node(name).address, "another host")
    assert end is not None
    client = Client(SimulatedLink(nodes, end), "broker")
    identity = ClientIdentity(protocol_version=1, client_type=ClientType.E_TCPBROKER, features=FEATURES,
                              cluster_name=CLUSTER, cluster_node_id=1)
    for attribute, value in changed.items():
        setattr(identity, attribute, value)
    end.send(control.encode_event(NegotiationMessage("clientIdentity", identity)))
    data = client.link.receive(5.0)
    while data and len(data) < (length := int.from_bytes(data[:4], "big")):  # the network hands over slices of any size
        more = client.link.receive(5.0)
        assert more, f"the answer is cut short after {len(data)} of {length} bytes"
        data += more
    return (control.decode_negotiation(data[8:], Encoding.BER).value if data else None), client
