"""Authentication and authorization of members and proxies at other members.

Tests `bmqtwist/link/credentials.py`, and `bmqtwist/security/authorization.py` for peers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from kit.client import Expired, RequestRefused

from bmqtwist.link.peer import PeerSession
from bmqtwist.peers.links import ClusterLinks
from bmqtwist.security.authenticators import BASIC_LIFETIME_MS
from bmqtwist.testing.cluster import PORT
from bmqtwist.testing.config import CLUSTER, member_configuration, proxy_configuration
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.cluster import PARTITION, SimulatedCluster

QUEUE = "bmq://bmq.test.persistent.priority/q"
REFUSED = "is not known as a broker"


def plugin(name: str, **settings: str) -> dict[str, Any]:
    """Return the configuration of a plugin."""
    return {"name": name, "settings": [{"key": key, "value": {"stringVal": value}} for key, value in settings.items()]}


def secure(credential: str = "", anonymous: bool = False, rules: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Return the appConfig of a broker with the users `node`, `proxy` and `alice`, all with the password `secret`.

    `credential`: the credential of the broker itself; `anonymous`: connections without credentials are authenticated.
    """
    authentication: dict[str, Any] = {"authenticators": [plugin("BasicAuthenticator", node="secret", proxy="secret",
                                                                alice="secret")]}
    if credential:
        user, _, password = credential.partition(":")
        authentication["credentialProvider"] = plugin("BasicCredentialProvider", username=user,
                                                      password=password or "secret")
    if anonymous:
        authentication["anonymousCredential"] = {"credential": {"mechanism": "ANONYMOUS", "identity": ""}}
    return {"authentication": authentication, "bmqtwist": {"authorization": {"rules": list(rules)}},
            "heartbeats": {"clusterPeer": 3}}


def allow(principal: str, action: str) -> dict[str, Any]:
    """Return an authorization rule."""
    return {"principal": principal, "actions": [action], "effect": "allow"}


class SecureCluster(SimulatedCluster):
    """A cluster with the appConfig of each broker by its name; "" = the default."""

    def __init__(self, count: int, apps: dict[str, dict[str, Any]], proxies: dict[str, list[str]] | None = None) -> None:
        self._apps, self._count = apps, count
        super().__init__(1, count, proxies=proxies)

    def on_node_created(self, node: SimulatedNode) -> None:
        """Give the node its configuration."""
        app = self._apps.get(node.name, self._apps[""])
        if node.name.startswith("n"):
            node._configure = partial(member_configuration, int(node.name[1:]), self._count, PORT, app=app,
                                      cluster={"partition": PARTITION})
        else:
            node._configure = partial(proxy_configuration, node.name, PORT, {"n1": 1}, app=app)


def peers(node: SimulatedNode) -> dict[int, PeerSession]:
    """Return the sessions of a member with other members, by node id."""
    links = node.broker.sessions.peers[CLUSTER]
    assert isinstance(links, ClusterLinks)
    found = {number: links.session(number) for number in range(1, 4)}
    return {number: session for number, session in found.items() if session is not None}


def log_lines(node: SimulatedNode, text: str) -> list[str]:
    """Return the log lines that contain a text."""
    return [line for _, line in node.report.lines if text in line]


def test_members_authenticate_and_renew_before_the_credential_expires() -> None:
    world = SecureCluster(3, {"": secure("node")})
    world.run(5.0)
    before = {node.name: peers(node) for node in world.nodes if isinstance(node, SimulatedNode)}
    assert {name: set(found) for name, found in before.items()} == {"n1": {2, 3}, "n2": {1, 3}, "n3": {1, 2}}
    principals = [peer.session.authentication.principal
                  for found in before.values() for peer in found.values() if not peer.dialled]
    assert principals == ["BASIC_USER-node"] * 3
    world.run(BASIC_LIFETIME_MS / 1000 + 60.0)
    assert {name: peers(world.node(name)) for name in before} == before, "no connection may be renewed"


@pytest.mark.parametrize("credential, why", [
    ("", "This node sent no credential"), ("node:wrong", "it refuses our credential: Invalid username or password"),
    ("alice", REFUSED)])
def test_a_peer_without_the_credential_of_a_member_is_refused(credential: str, why: str) -> None:
    world = SecureCluster(3, {"": secure("node"), "n1": secure(credential)})
    world.run(8.0)
    refused, other = world.node("n1"), world.node("n2")
    assert not peers(refused) and set(peers(other)) == {3}
    assert log_lines(refused, why) and len(log_lines(refused, "no connection to node")) == 2, "one line per member"
    assert log_lines(other, f"'BASIC_USER-alice' {REFUSED}" if credential == "alice" else "#AUTHENTICATION")


def test_an_authorization_rule_accepts_another_principal_as_member() -> None:
    rule = allow("BASIC_USER-alice", "ConnectClusterNode")
    world = SecureCluster(3, {"": secure("node", rules=(rule,)), "n1": secure("alice")})
    world.run(8.0)
    assert set(peers(world.node("n1"))) == {2, 3}


def test_an_authorization_rule_can_deny_the_cluster_credential() -> None:
    rule = {"principal": "BASIC_USER-node", "actions": ["ConnectClusterNode"], "effect": "deny"}
    world = SecureCluster(2, {"": secure("node", rules=(rule,))})
    world.run(8.0)
    assert not peers(world.node("n1")) and log_lines(world.node("n1"), "Connection not authorized")


def test_anonymous_peers_are_refused_unless_a_rule_allows_them() -> None:
    world = SecureCluster(2, {"": secure("node", anonymous=True), "n1": secure(anonymous=True)})
    world.run(8.0)
    assert not peers(world.node("n1")) and log_lines(world.node("n2"), f"'anonymous' {REFUSED}")
    rule = allow("anonymous", "ConnectClusterNode")
    opened = SecureCluster(2, {"": secure("node", anonymous=True, rules=(rule,)), "n1": secure(anonymous=True)})
    opened.run(8.0)
    assert set(peers(opened.node("n1"))) == {2}


def test_without_authenticator_members_connect_without_credentials() -> None:
    world = SecureCluster(2, {"": {}})
    world.run(5.0)
    assert set(peers(world.node("n1"))) == {2}


@pytest.mark.parametrize("credential, rules, fine", [
    ("node", (), True), ("proxy", (), False), ("proxy", (allow("BASIC_USER-proxy", "ConnectProxy"),), True),
    ("proxy", (allow("BASIC_USER-proxy", "ConnectClusterNode"),), False), ("", (), False)])
def test_a_proxy_needs_an_authorized_credential(credential: str, rules: tuple[dict[str, Any], ...], fine: bool) -> None:
    authentication = {key: value for key, value in secure(credential)["authentication"].items() if key != "authenticators"}
    world = SecureCluster(1, {"": secure("node", rules=rules), "p1": {"authentication": authentication}}, {"p1": ["n1"]})
    client = world.client("p1")
    if fine:
        assert client.open(QUEUE, write=1).post(b"x")
        return
    with pytest.raises((RequestRefused, Expired)):
        client.open(QUEUE, write=1)
    assert log_lines(world.node("p1"), "no connection to node")
