"""The roles of docs/configuration.md: each may do what the page says, and a broker refuses everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.client import Client
from kit.memory import MemoryWorld
from kit.roles import OPEN_RULES, USERS, documented_rules, secured_app

from bmqtwist.config.broker import BrokerConfig
from bmqtwist.config.declare import decode_text
from bmqtwist.report import ListReport
from bmqtwist.security.authenticators import Security, build_security
from bmqtwist.security.authorization import Action

ORDERS, TEST = "bmq.orders", "bmq.test.x"
CLIENT, ADMIN = Action.CONNECT_CLIENT, {Action.CONNECT_ADMIN, Action.EXECUTE_ADMIN_COMMAND}
READ, WRITE, EVERY_DOMAIN = Action.QUEUE_READ, Action.QUEUE_WRITE, (ORDERS, TEST)
ALLOWED: dict[str, set[tuple[Action, str]]] = {
    "ops1": {(action, domain) for action in ADMIN for domain in EVERY_DOMAIN},
    "node": {(Action.CONNECT_CLUSTER_NODE, domain) for domain in EVERY_DOMAIN},
    "proxy": {(action, domain) for action in (Action.CONNECT_PROXY, READ, WRITE) for domain in EVERY_DOMAIN},
    "shop": {(CLIENT, ORDERS), (CLIENT, TEST), (WRITE, ORDERS)},
    "billing": {(CLIENT, ORDERS), (CLIENT, TEST), (READ, ORDERS)},
    "team-a": {(CLIENT, ORDERS), (CLIENT, TEST), (READ, TEST), (WRITE, TEST)},
    "other": set()}


def build(rules: dict[str, Any] | None, report: ListReport | None = None) -> Security:
    config = decode_text(BrokerConfig, json.dumps({"appConfig": secured_app(rules)}), "f", [])
    return build_security(config.app_config, report or ListReport(), lambda seconds: None, lambda name: dict, lambda: 0.0)


@pytest.mark.parametrize("user", USERS)
def test_each_documented_role_may_do_exactly_what_the_page_says(user: str) -> None:
    security = build(documented_rules())
    allowed = {(action, domain) for action in Action for domain in EVERY_DOMAIN
               if security.allows(f"BASIC_USER-{user}", action, domain)}
    assert allowed == ALLOWED[user]


@pytest.mark.parametrize("user", USERS)
def test_only_the_documented_brokers_may_connect_as_brokers(user: str) -> None:
    security = build(documented_rules())
    brokers = {action for action in (Action.CONNECT_CLUSTER_NODE, Action.CONNECT_PROXY)
               if not security.broker_refusal(f"BASIC_USER-{user}", action, "local")}
    assert brokers == {action for action, _ in ALLOWED[user]} & {Action.CONNECT_CLUSTER_NODE, Action.CONNECT_PROXY}


@pytest.mark.parametrize("actions", [{}, {"actions": ["*"]}])
@pytest.mark.parametrize("default", ["allow", "deny"])
def test_a_rule_without_actions_makes_no_client_an_administrator_or_a_broker(actions: dict[str, Any], default: str) -> None:
    security = build({"rules": [{**actions, "effect": "allow"}], "default": default})
    assert security.allows("BASIC_USER-shop", CLIENT) and security.allows("BASIC_USER-shop", WRITE, ORDERS)
    assert not any(security.allows("BASIC_USER-shop", action) for action in ADMIN)
    assert all(security.broker_refusal("BASIC_USER-shop", action) for action in (
        Action.CONNECT_CLUSTER_NODE, Action.CONNECT_PROXY))


def test_a_rule_without_actions_that_denies_includes_all_actions() -> None:
    rules = [{"principal": "BASIC_USER-shop", "effect": "deny"},
             {"actions": [each.value for each in Action], "effect": "allow"}]
    security = build({"rules": rules})
    assert not any(security.allows("BASIC_USER-shop", action) for action in Action)
    assert all(security.allows("BASIC_USER-other", action) for action in Action)


@pytest.mark.parametrize(("rules", "is_open"), [
    (None, True), ({"default": "allow"}, True), (OPEN_RULES, False), ({"default": "deny"}, False),
    ({"rules": [{"actions": [each.value for each in ADMIN], "effect": "allow"}]}, True),
    ({"rules": [{"principal": "BASIC_USER-*", "actions": [each.value for each in ADMIN], "effect": "allow"}]}, True),
    ({"rules": [{"principal": "BASIC_USER-ops*", "actions": [each.value for each in ADMIN], "effect": "allow"}]}, False)])
def test_open_administration_causes_a_warning(rules: dict[str, Any] | None, is_open: bool) -> None:
    report = ListReport()
    assert build(rules, report).is_administration_open is is_open
    assert any("may run admin commands" in text for text in report.texts("WARN")) is is_open


def connect(world: MemoryWorld, user: str, client_type: str) -> tuple[Client, dict[str, Any]]:
    client = world.connect(user, client_type=client_type)
    assert client.authenticate("BASIC", f"{user}:x".encode())["status"]["category"] == "E_SUCCESS"
    return client, client.negotiate()["result"]


@pytest.mark.parametrize("rules", [OPEN_RULES, documented_rules()])
def test_an_application_cannot_administer_a_broker_with_rules(tmp_path: Path, rules: dict[str, Any]) -> None:
    world = MemoryWorld(tmp_path, app=secured_app(rules))
    _, refused = connect(world, "shop", "E_TCPADMIN")
    assert refused["category"] == "E_REFUSED", refused
