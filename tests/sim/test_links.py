"""Connections between the members of a cluster: dialling, refusals, heartbeats, reconnects.

Tests `bmqtwist/peers/links.py`; sessions of peers are in `test_peers.py`.
"""

from __future__ import annotations

import pytest

from bmqtwist.link import peer
from bmqtwist.link.peer import PeerSession
from bmqtwist.peers.links import DUPLICATE_S
from bmqtwist.security.authorization import Action
from bmqtwist.testing.config import CLUSTER
from bmqtwist.testing.network import ConnectionEnd
from bmqtwist.testing.simulated_node import SimulatedNode
from bmqtwist.versions import OWN
from bmqtwist.wire.fast import HEARTBEAT_REQ, HEARTBEAT_RSP
from bmqtwist.wire.schema import ClientType
from sim.cluster import SimulatedCluster
from sim.introductions import introduce, links

PATIENT = {"heartbeats": {"clusterPeer": 4}, "tcp": {"heartbeatIntervalMs": 3000}}


def peers(node: SimulatedNode) -> dict[int, bool]:
    """Return the id of each connected member -> whether this node has dialled it."""
    sessions = [each.kind for each in node.broker.sessions.open if isinstance(each.kind, PeerSession)]
    found = {each.session.remote.identity.cluster_node_id: each.dialled for each in sessions}
    assert len(found) == len(sessions), "two connections with one member"
    assert {number for number in found if links(node).is_up(number)} == set(found)
    return found


def full_mesh(size: int) -> dict[str, dict[int, bool]]:
    """Return the peers of all members when each pair is connected, dialled by the smaller id."""
    numbers = range(1, size + 1)
    return {f"n{one}": {two: one < two for two in numbers if two != one} for one in numbers}


def all_peers(nodes: SimulatedCluster) -> dict[str, dict[int, bool]]:
    """Return the peers of each member."""
    return {node.name: peers(node) for node in nodes.nodes if isinstance(node, SimulatedNode)}


@pytest.mark.spec("cluster", 1)
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_members_that_start_in_any_order_have_one_connection_per_pair(size: int, seed: int) -> None:
    nodes = SimulatedCluster(seed, size)
    late = nodes.random.sample(range(1, size + 1), size // 2)
    for number in late:
        nodes.node(f"n{number}").crash(power=False, down=nodes.random.random() * 5)
    nodes.run(12.0)
    assert all_peers(nodes) == full_mesh(size)


@pytest.mark.parametrize("how", ["kill", "power", "stop", "reset"])
@pytest.mark.parametrize("name", ["n1", "n2", "n3"])
def test_members_reconnect_after_a_crash_stop_or_reset(how: str, name: str) -> None:
    nodes = SimulatedCluster(4, 3)
    nodes.run(2.0)
    node = nodes.node(name)
    if how == "stop":
        node.stop(down=1.0)
    elif how == "reset":
        for session in list(node.broker.sessions.open):
            assert isinstance(session.transport, ConnectionEnd)
            session.transport.reset()
    else:
        node.crash(power=how == "power", down=1.0)
    nodes.run(12.0)
    assert all_peers(nodes) == full_mesh(3)


@pytest.mark.spec("cluster", 3)
@pytest.mark.parametrize("changed, reason", [
    ({"cluster_node_id": 2}, "2 is the id of this node itself"),
    ({"cluster_node_id": 9}, "no node of the cluster has the id 9"),
    ({"cluster_node_id": 3}, "node 3 must not dial node 2"),
    ({"features": "PROTOCOL_ENCODING:BER"}, "support DURABLE_VOTE, METADATA_LOG")], ids=lambda each: str(each)[:40])
def test_a_peer_with_an_unsuitable_identity_is_refused_with_the_reason(changed: dict[str, object], reason: str) -> None:
    nodes = SimulatedCluster(5, 3)
    nodes.node("n1").crash(power=False, down=None)
    nodes.run(2.0)
    answer, client = introduce(nodes, "n2", **changed)
    assert answer is not None and answer.result.category < 0 and reason in answer.result.message
    nodes.run(1.0)
    assert client.link.closed and peers(nodes.node("n2")) == {3: True}


def test_several_proxies_are_accepted_without_a_node_id_or_features() -> None:
    nodes = SimulatedCluster(5, 3)
    nodes.run(2.0)
    for _ in range(3):
        answer, client = introduce(nodes, "n2", cluster_node_id=-1, features="PROTOCOL_ENCODING:BER")
        assert answer is not None and answer.result.category == 0 and answer.broker_identity.cluster_node_id == 2
        nodes.run(1.0)
        assert not client.link.closed
    assert links(nodes.node("n2")).is_up(1) and links(nodes.node("n2")).is_up(3)


@pytest.mark.spec("cluster", 3)
def test_a_broker_of_an_unknown_cluster_is_refused() -> None:
    nodes = SimulatedCluster(5, 3)
    nodes.run(2.0)
    answer, client = introduce(nodes, "n2", cluster_name="other")
    assert answer is not None and "Cluster 'other' has no other members here" in answer.result.message
    nodes.run(1.0)
    assert client.link.closed


@pytest.mark.spec("cluster", 2)
def test_a_second_connection_of_a_member_is_refused_and_the_first_one_stays() -> None:
    nodes = SimulatedCluster(5, 3)
    nodes.run(2.0)
    before = set(nodes.node("n2").broker.sessions.open)
    answer, client = introduce(nodes, "n2")
    assert answer is not None and "node 1 is connected already" in answer.result.message
    nodes.run(1.0)
    assert client.link.closed and set(nodes.node("n2").broker.sessions.open) == before


def test_a_member_that_connects_again_replaces_its_former_connection() -> None:
    """n1 has closed the connection; on a slow link n2 is not notified before n1 dials again."""
    nodes = SimulatedCluster(5, 3, app=PATIENT)
    nodes.run(4.0)
    one, two = nodes.node("n1"), nodes.node("n2")
    former = links(two).session(1)
    session = links(one).session(2).session  # type: ignore[union-attr]
    assert isinstance(session.transport, ConnectionEnd)
    session.transport.drop(silently=True)
    one.broker.sessions.on_lost(session, one.local_now)
    one.request_turn()
    nodes.run(4.0)  # less than the heartbeats need
    assert links(one).is_up(2) and links(two).is_up(1) and links(two).session(1) is not former
    assert [line for line in two.log() if "#PEER_RECONNECTED" in line] and not [
        line for line in two.log() if "ALARM" in line]


def test_another_broker_with_the_id_of_a_connected_node_is_refused_and_reported_after_a_time() -> None:
    """For DUPLICATE_S it may be the same node after a restart, whose former connection has not ended yet."""
    nodes = SimulatedCluster(4, 3)
    nodes.run(4.0)
    for seconds, alarmed in ((0.0, False), (DUPLICATE_S / 2, False), (DUPLICATE_S, True)):
        nodes.run(seconds)
        answer, _ = introduce(nodes, "n2", pid=7)
        assert answer is not None and "its former connection has not ended here yet" in answer.result.message
        assert any("duplicate-node-id" in line for line in nodes.node("n2").log()) == alarmed


def test_an_accepted_member_receives_the_identity_of_the_other_member() -> None:
    nodes = SimulatedCluster(5, 3)
    nodes.node("n1").crash(power=False, down=None)
    nodes.run(2.0)
    answer, _ = introduce(nodes, "n2")
    assert answer is not None and answer.result.category == 0
    identity = answer.broker_identity
    assert (identity.cluster_name, identity.cluster_node_id, identity.client_type) == (CLUSTER, 2, ClientType.E_TCPBROKER)
    assert {*OWN.announcement().split(";"), "BMQTWIST_PAIR:RECORD_COPIES"} <= set(identity.features.split(";"))
    assert peers(nodes.node("n2")) == {1: False, 3: True}


def test_a_member_at_the_address_of_another_member_is_not_used() -> None:
    nodes = SimulatedCluster(7, 3)
    swapped = nodes.network._nodes
    swapped["n2:30114"], swapped["n3:30114"] = swapped["n3:30114"], swapped["n2:30114"]
    nodes.run(3.0)
    assert not peers(nodes.node("n1"))
    assert any("node 2 is at the address of node 3" in line for line in nodes.node("n1").log())


@pytest.mark.spec("cluster", 6)
@pytest.mark.parametrize("limit", [2, 4])
def test_a_silent_connection_is_closed_after_the_configured_number_of_unanswered_heartbeats(limit: int) -> None:
    heartbeats = {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": limit}
    nodes = SimulatedCluster(7, 3, app={"heartbeats": heartbeats})
    nodes.run(60.0)
    assert all_peers(nodes) == full_mesh(3), "members that answer stay connected"
    nodes.network.cut("n3", "n1", both=False)
    nodes.run(3.0 * limit - 0.5)
    assert 3 in peers(nodes.node("n1"))
    nodes.run(7.0)
    assert 3 not in peers(nodes.node("n1")) and 2 in peers(nodes.node("n1"))
    nodes.network.heal("n3", "n1", both=False)
    nodes.run(40.0)
    assert all_peers(nodes) == full_mesh(3)


@pytest.mark.spec("cluster", 6)
def test_with_a_heartbeat_limit_of_0_a_silent_connection_stays_open() -> None:
    nodes = SimulatedCluster(7, 2)
    nodes.run(2.0)
    nodes.network.cut("n2", "n1", both=False)
    nodes.run(300.0)
    assert all_peers(nodes) == full_mesh(2)


def test_a_heartbeat_is_answered() -> None:
    nodes = SimulatedCluster(5, 3)
    nodes.node("n1").crash(power=False, down=None)
    nodes.run(2.0)
    _, client = introduce(nodes, "n2")
    client.link.send(HEARTBEAT_REQ)
    assert client.link.receive(1.0)[4] & 0x3F == HEARTBEAT_REQ[4] + 1 & 0x3F


@pytest.mark.spec("cluster", 11)
def test_a_member_that_does_not_read_is_disconnected_at_the_output_limit_and_reconnects(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.PeerSession, "output_bytes_max", 100_000)
    nodes = SimulatedCluster(11, 2)
    nodes.run(2.0)
    one, two = nodes.node("n1"), nodes.node("n2")
    two.pause()
    links(one).send(2, HEARTBEAT_RSP * 20_000)
    one.request_turn()
    nodes.run(0.1)
    assert peers(one) == {2: True}, "160 kB, of which 64 kB are in the kernel"
    links(one).send(2, HEARTBEAT_RSP * 20_000)
    one.request_turn()
    nodes.run(0.1)
    assert not peers(one) and any("the broker does not read" in line for line in one.log())
    two.resume()
    nodes.run(40.0)
    assert all_peers(nodes) == full_mesh(2)


def test_a_stopping_member_does_not_dial_other_members(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = SimulatedCluster(8, 2)
    nodes.node("n2").crash(power=False, down=None)
    nodes.run(1.0)
    dialled: list[str] = []
    monkeypatch.setattr(nodes.node("n1"), "dial", lambda address, done: dialled.append(address))
    nodes.node("n1").broker.stop(nodes.node("n1").local_now)
    nodes.node("n2").boot()
    nodes.run(40.0)
    assert not peers(nodes.node("n2")) and not dialled


def test_a_simulation_is_determined_by_its_seed() -> None:
    digests = []
    for seed in (9, 9, 10):
        nodes = SimulatedCluster(seed, 3)
        nodes.node("n2").crash(power=True, down=3.0)
        nodes.run(20.0)
        digests.append(nodes.digest)
    assert digests[0] == digests[1] != digests[2]


def test_an_unauthorized_peer_cannot_raise_alarms_about_a_node() -> None:
    """Authorization is checked before conflicts with the connected node."""
    class DenyingAuthorizer:
        def authorize(self, principal: str, action: Action, subject: str = "") -> bool:
            return False

    nodes = SimulatedCluster(4, 3)
    nodes.run(4.0)
    node = nodes.node("n2")
    node.broker.security.authorizer = DenyingAuthorizer()
    for seconds in (0.0, DUPLICATE_S / 2, DUPLICATE_S):
        nodes.run(seconds)
        answer, _ = introduce(nodes, "n2", pid=7, features="BMQTWIST_VERSIONS:PROTOCOL_90_91")
        assert answer is not None and "Connection not authorized" in answer.result.message
    assert not [line for line in node.log() if "ALARM" in line]
