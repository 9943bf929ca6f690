"""The steps of "Harden a cluster" in SECURITY.md, executed on three nodes: they work, and refuse what they promise."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kit.cli_kit import BMQ

from bmqtwist.testing import BrokerProcess, ClusterProcess

PAGE = Path(__file__).parents[2] / "SECURITY.md"
ENVIRONMENT = {**os.environ, "HOST": "localhost", "PATH": f"{Path(BMQ).parent}:{os.environ['PATH']}"}
USERS = ("node", "ops", "shop", "ada")
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def steps() -> dict[str, str]:
    """Return the sections of the guide by title."""
    guide = PAGE.read_text(encoding="utf-8").partition("## Harden a cluster\n")[2]
    return {title: text for title, text in re.findall(r"^### \d\. (\w[\w ]*)\n(.*?)(?=^### |\Z)", guide, re.M | re.S)}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def shell(text: str, directory: Path) -> str:
    """Run a block of commands; return the output."""
    done = subprocess.run(["bash", "-ec", text], cwd=directory, check=False, capture_output=True, text=True, timeout=120,
                          env=ENVIRONMENT)
    assert done.returncode == 0, (text, done.stdout, done.stderr)
    return done.stdout


def merge(target: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            merge(target[name], value)
        else:
            target[name] = value


def substituted(value: Any, words: dict[str, str], broker: BrokerProcess, http_port: int) -> Any:
    """Return a block of the guide with the hashes, passwords, ports and paths of a node."""
    if isinstance(value, dict):
        return {name: {30114: broker.port, 8080: http_port}[each] if name == "port" else
                substituted(each, words, broker, http_port) for name, each in value.items()}
    if isinstance(value, list):
        return [substituted(each, words, broker, http_port) for each in value]
    if isinstance(value, str):
        return str(broker.config.etc / value[4:]) if value.startswith("etc/") else words.get(value, value)
    return value


def test_the_hardening_guide_closes_a_cluster_of_three_nodes(tmp_path: Path) -> None:
    guide, cluster = steps(), ClusterProcess(tmp_path)
    for user in USERS:
        (tmp_path / f"{user}.password").write_text(f"{user}-password\n")
    authority, node_certificate = blocks(guide["Certificates"], "sh")
    shell(authority, tmp_path)
    console_key, console_copy = blocks(guide["Console"], "sh")
    shell(console_key, tmp_path)
    hashing, console_hashing = blocks(guide["Credentials"], "sh")[0], console_copy.splitlines()[1]
    words = {f"PASSWORD OF {user}": f"{user}-password" for user in USERS}
    words |= {f"HASH OF {user}": shell(hashing.replace("shop", user), tmp_path).strip() for user in USERS[:3]}
    words["CONSOLE HASH OF ada"] = shell(console_hashing, tmp_path).strip()
    for name in cluster.names:
        broker, directory = cluster[name], tmp_path / name
        for file in ("authority.pem", "authority.key", "console.key"):
            (directory / file).write_bytes((tmp_path / file).read_bytes())
        shell(node_certificate, directory)
        shell(console_copy.splitlines()[0], directory)
        app = broker.config.broker["appConfig"]
        http_port = int(cluster.consoles[name].rpartition(":")[2])
        app["bmqtwist"].pop("http")
        for title in ("Certificates", "Credentials", "Rules", "Limits", "Console"):
            for block in blocks(guide[title], "json"):
                merge(app, substituted(json.loads(block), words, broker, http_port))
        for node in broker.config.clusters["myClusters"][0]["nodes"]:
            tcp = node["transport"]["tcp"]
            tcp["endpoint"] = tcp["endpoint"].replace("tcp://127.0.0.1", "tls://localhost")
        broker.config.write()
        for domain in ("bmq.orders", "bmq.billing"):
            broker.config.domain(domain, strong=True)
        shell(blocks(guide["Files"], "sh")[0], directory)
        assert "Nothing is open." in shell(blocks(guide["Check"], "sh")[0], directory)
    with_leader(cluster)
    try:
        for name in cluster.names:
            for command, code in re.findall(r"^\| `(bmq .*?)` \| (\d) \|$", guide["Check"], re.M):
                line = command.replace("HOST:30114", f"localhost:{cluster[name].port}")
                done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                                      check=False, env=ENVIRONMENT)
                assert done.returncode == int(code), (name, command, done.stderr)
    finally:
        cluster.close()


def with_leader(cluster: ClusterProcess) -> None:
    """Start the nodes, and wait until each serves."""
    for name in cluster.names:
        cluster[name].launch()
    for name in cluster.names:
        cluster[name].expect("BMQbrkr started successfully", deadline=120)
