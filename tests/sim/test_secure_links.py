"""Nodes and proxies that show each other credentials: who is taken as a broker, and who is not."""

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
    return {"name": name, "settings": [{"key": key, "value": {"stringVal": value}} for key, value in settings.items()]}


def secure(shows: str = "", anonymous: bool = False, rules: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """appConfig of a broker that knows `node`, `proxy` and `alice`, all with the password `secret`, and shows one of them.
    `anonymous`: applications that present nothing are let in."""
    authentication: dict[str, Any] = {"authenticators": [plugin("BasicAuthenticator", node="secret", proxy="secret",
                                                                alice="secret")]}
    if shows:
        user, _, password = shows.partition(":")
        authentication["credentialProvider"] = plugin("BasicCredentialProvider", username=user,
                                                      password=password or "secret")
    if anonymous:
        authentication["anonymousCredential"] = {"credential": {"mechanism": "ANONYMOUS", "identity": ""}}
    return {"authentication": authentication, "bmqtwist": {"authorization": {"rules": list(rules)}},
            "heartbeats": {"clusterPeer": 3}}


def allow(principal: str, action: str) -> dict[str, Any]:
    return {"principal": principal, "actions": [action], "effect": "allow"}


class SecureCluster(SimulatedCluster):
    """`apps`: appConfig of each broker by its name, that of "" for those without one of their own."""

    def __init__(self, count: int, apps: dict[str, dict[str, Any]], proxies: dict[str, list[str]] | None = None) -> None:
        self._apps, self._count = apps, count
        super().__init__(1, count, proxies=proxies)

    def on_node_created(self, node: SimulatedNode) -> None:
        """Its own configuration."""
        app = self._apps.get(node.name, self._apps[""])
        if node.name.startswith("n"):
            node._configure = partial(member_configuration, int(node.name[1:]), self._count, PORT, app=app,
                                      cluster={"partition": PARTITION})
        else:
            node._configure = partial(proxy_configuration, node.name, PORT, {"n1": 1}, app=app)


def peers(node: SimulatedNode) -> dict[int, PeerSession]:
    """The nodes that it can speak with."""
    links = node.broker.sessions.peers[CLUSTER]
    assert isinstance(links, ClusterLinks)
    found = {number: links.session(number) for number in range(1, 4)}
    return {number: session for number, session in found.items() if session is not None}


def said(node: SimulatedNode, text: str) -> list[str]:
    return [line for _, line in node.report.lines if text in line]


def test_nodes_show_their_credential_and_show_it_again_before_it_ends() -> None:
    world = SecureCluster(3, {"": secure("node")})
    world.run(5.0)
    before = {node.name: peers(node) for node in world.nodes if isinstance(node, SimulatedNode)}
    assert {name: set(found) for name, found in before.items()} == {"n1": {2, 3}, "n2": {1, 3}, "n3": {1, 2}}
    taken = [peer.session.guard.principal for found in before.values() for peer in found.values() if not peer.dialled]
    assert taken == ["BASIC_USER-node"] * 3
    world.run(BASIC_LIFETIME_MS / 1000 + 60.0)
    assert {name: peers(world.node(name)) for name in before} == before, "a connection was made anew"


@pytest.mark.parametrize("shows, why", [
    ("", "This node presents no credential"), ("node:wrong", "it refuses our credential: Invalid username or password"),
    ("alice", REFUSED)])
def test_who_does_not_show_the_credential_of_a_node_is_none(shows: str, why: str) -> None:
    world = SecureCluster(3, {"": secure("node"), "n1": secure(shows)})
    world.run(8.0)
    stranger, other = world.node("n1"), world.node("n2")
    assert not peers(stranger) and set(peers(other)) == {3}
    assert said(stranger, why) and len(said(stranger, "came about")) == 2, "one line for each of the other nodes"
    assert said(other, "#AUTHENTICATION") if shows != "alice" else said(other, f"'BASIC_USER-alice' {REFUSED}")


def test_a_rule_says_who_else_is_a_node() -> None:
    rule = allow("BASIC_USER-alice", "ConnectClusterNode")
    world = SecureCluster(3, {"": secure("node", rules=(rule,)), "n1": secure("alice")})
    world.run(8.0)
    assert set(peers(world.node("n1"))) == {2, 3}


def test_a_rule_may_forbid_the_own_credential_too() -> None:
    rule = {"principal": "BASIC_USER-node", "actions": ["ConnectClusterNode"], "effect": "deny"}
    world = SecureCluster(2, {"": secure("node", rules=(rule,))})
    world.run(8.0)
    assert not peers(world.node("n1")) and said(world.node("n1"), "Connection not authorized")


def test_a_door_that_is_open_for_applications_is_not_for_nodes_unless_a_rule_opens_it() -> None:
    world = SecureCluster(2, {"": secure("node", anonymous=True), "n1": secure(anonymous=True)})
    world.run(8.0)
    assert not peers(world.node("n1")) and said(world.node("n2"), f"'anonymous' {REFUSED}")
    rule = allow("anonymous", "ConnectClusterNode")
    opened = SecureCluster(2, {"": secure("node", anonymous=True, rules=(rule,)), "n1": secure(anonymous=True)})
    opened.run(8.0)
    assert set(peers(opened.node("n1"))) == {2}


def test_where_no_authenticator_is_configured_everybody_is_taken_at_his_word() -> None:
    world = SecureCluster(2, {"": {}})
    world.run(5.0)
    assert set(peers(world.node("n1"))) == {2}


@pytest.mark.parametrize("shows, rules, fine", [
    ("node", (), True), ("proxy", (), False), ("proxy", (allow("BASIC_USER-proxy", "ConnectProxy"),), True),
    ("proxy", (allow("BASIC_USER-proxy", "ConnectClusterNode"),), False), ("", (), False)])
def test_proxies_show_a_credential_to_members(shows: str, rules: tuple[dict[str, Any], ...], fine: bool) -> None:
    authentication = {key: value for key, value in secure(shows)["authentication"].items() if key != "authenticators"}
    world = SecureCluster(1, {"": secure("node", rules=rules), "p1": {"authentication": authentication}}, {"p1": ["n1"]})
    client = world.client("p1")
    if fine:
        assert client.open(QUEUE, write=1).post(b"x")
        return
    with pytest.raises((RequestRefused, Expired)):
        client.open(QUEUE, write=1)
    assert said(world.node("p1"), "came about")
