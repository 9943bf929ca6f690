"""Exposures of a configuration: order of weight, and the exit code of `bmq check --security`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from kit.roles import documented_rules

from bmqtwist.cli.check import run_security_check
from bmqtwist.security.exposure import Weight
from bmqtwist.testing.config import ConfigDirectory

HASH = "$argon2id$v=19$m=8,t=1,p=1$" + "a" * 22 + "$" + "b" * 43
HASHED = "$scrypt$ln=14,r=8,p=1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
NETWORK, LOCAL = {"address": "0.0.0.0"}, {"address": "127.0.0.1"}
ADMIN_RULES = [{"actions": ["ConnectAdmin", "ExecuteAdminCommand"], "effect": "allow"}]
ANONYMOUS = {"credential": {"mechanism": "ANONYMOUS", "identity": ""}}


def authenticated(password: str = HASHED, **more: Any) -> dict[str, Any]:
    return {"authenticators": [{"name": "BasicAuthenticator", "settings": [
        {"key": "shop", "value": {"stringVal": password}}]}], **more}


def checked(root: Path, listener: dict[str, Any], members: dict[str, Any], **options: bool
            ) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the exposures of a configuration with one listener."""
    config = ConfigDirectory(root, 30114)
    app = config.broker["appConfig"]
    app["networkInterfaces"]["tcpInterface"]["listeners"] = [{"name": "l", "port": 30114, **listener}]
    app.pop("authentication", None)
    app.setdefault("bmqtwist", {}).pop("http", None)
    for name, value in members.items():
        app[name] = {**app.get(name, {}), **value}
    config.write()
    out = io.StringIO()
    code = run_security_check(str(config.etc), out=out, as_json=True, **options)
    return code, json.loads(out.getvalue())["exposures"]


@pytest.mark.parametrize(("listener", "members", "code", "kinds"), [
    (LOCAL, {}, 0, ["LOCAL_USERS", "LOCAL_USERS"]),
    (NETWORK, {}, 1, ["NETWORK_ADMINISTERS", "NETWORK_USES_QUEUES", "UNENCRYPTED"]),
    (NETWORK, {"authentication": authenticated()}, 0, ["USERS_ADMINISTER", "UNENCRYPTED"]),
    (NETWORK, {"authentication": authenticated(password="clear")}, 0,
     ["USERS_ADMINISTER", "UNENCRYPTED", "READABLE_SECRET", "SECRET_IN_FILE"]),
    (NETWORK, {"authentication": authenticated(), "bmqtwist": {"authorization": documented_rules()}}, 0, ["UNENCRYPTED"]),
    (NETWORK, {"authentication": authenticated(anonymousCredential=ANONYMOUS)}, 1,
     ["NETWORK_ADMINISTERS", "NETWORK_USES_QUEUES", "USERS_ADMINISTER", "UNENCRYPTED"]),
    (NETWORK, {"authentication": authenticated(anonymousCredential=ANONYMOUS),
               "bmqtwist": {"authorization": {"rules": ADMIN_RULES, "default": "deny"}}}, 1,
     ["NETWORK_ADMINISTERS", "USERS_ADMINISTER", "UNENCRYPTED"]),
    (NETWORK, {"bmqtwist": {"authorization": {"default": "deny", "rules": [
        {"actions": ["ConnectClient", "QueueRead"], "domain": "open.*", "effect": "allow"}]}}}, 0,
     ["NETWORK_USES_QUEUES", "UNENCRYPTED"]),
    (NETWORK, {"authentication": {"authenticators": [{"name": "TestAuthenticator"}]}}, 1,
     ["NETWORK_ADMINISTERS", "NETWORK_USES_QUEUES", "USERS_ADMINISTER", "UNENCRYPTED"]),
    (LOCAL, {"authentication": authenticated(), "bmqtwist": {
        "authorization": documented_rules(), "http": {"port": 8, "address": "0.0.0.0", "users": [
            {"name": "ada", "passwordHash": HASH, "role": "admin"}]}}}, 0, ["UNENCRYPTED", "NETWORK_READS_STATUS"]),
    (LOCAL, {"authentication": authenticated(), "bmqtwist": {
        "authorization": documented_rules(), "http": {"port": 8, "localRole": "viewer"}}}, 0, ["LOCAL_USERS"]),
    (LOCAL, {"authentication": authenticated(), "bmqtwist": {
        "authorization": documented_rules(), "http": {"port": 8}}}, 0, [])])
def test_exposures_are_listed_in_order_of_weight(tmp_path: Path, listener: dict[str, Any], members: dict[str, Any],
                                                 code: int, kinds: list[str]) -> None:
    found_code, found = checked(tmp_path, listener, members)
    assert (found_code, [each["kind"] for each in found]) == (code, kinds)
    assert [each["weight"] for each in found] == sorted(Weight[kind].value for kind in kinds)
    assert checked(tmp_path, listener, members, strict=True)[0] == (1 if kinds else 0)


def test_an_invalid_configuration_has_the_exit_code_of_a_usage_error(tmp_path: Path) -> None:
    out = io.StringIO()
    assert run_security_check(str(tmp_path), out=out) == 2 and "error:" in out.getvalue()


def test_the_text_names_party_right_and_remedy(tmp_path: Path) -> None:
    checked(tmp_path, NETWORK, {})
    out = io.StringIO()
    assert run_security_check(str(ConfigDirectory(tmp_path, 30114).etc), out=out) in (0, 1)
    lines = out.getvalue().splitlines()
    assert all(" Remedy: " in line for line in lines[:-1]) and lines[-1].endswith("administer the broker.")


def test_a_peer_that_may_connect_as_a_node_administers(tmp_path: Path) -> None:
    """Without an authenticator, a node of a cluster is trusted with its partitions."""
    rules = {"rules": [{"actions": ["ExecuteAdminCommand", "ConnectAdmin", "ConnectClient"], "effect": "deny"}]}
    config = ConfigDirectory(tmp_path, 30114)
    nodes = config.clusters["myClusters"][0]["nodes"]
    nodes += [{**nodes[0], "id": nodes[0]["id"] + at, "name": f"n{at}", "transport": {"tcp": {
        "endpoint": f"tcp://10.0.0.{at}:30114"}}} for at in (1, 2)]
    app = config.broker["appConfig"]
    app["networkInterfaces"]["tcpInterface"]["listeners"] = [{"name": "l", "port": 30114, **NETWORK}]
    app["bmqtwist"] = {"authorization": rules}
    config.write()
    out = io.StringIO()
    assert run_security_check(str(config.etc), out=out) == 1
    assert "can connect as a node of the cluster" in out.getvalue().splitlines()[0]


@pytest.mark.parametrize(("mode", "texts"), [(0o644, 2), (0o640, 0)])
def test_key_files_that_other_users_can_read_are_reported(tmp_path: Path, mode: int, texts: int) -> None:
    key, secret = tmp_path / "key.pem", tmp_path / "secret"
    for each in (key, secret):
        each.write_text("x" * 64)
        each.chmod(mode)
    _, found = checked(tmp_path / "b", LOCAL, {
        "tlsConfig": {"certificateAuthority": "", "certificate": str(key), "key": str(key), "versions": "TLSv1.3"},
        "bmqtwist": {"http": {"port": 8, "keyFile": str(secret)}}})
    assert sum(each["kind"] == "READABLE_SECRET" for each in found) == texts
