"""Attacks on a broker process: administration with an application's credential, and through a bare reverse proxy."""

from __future__ import annotations

import http.client
import os
import subprocess
from pathlib import Path

import pytest
from kit.cli_kit import BMQ
from kit.process import BrokerProcess, free_port
from kit.roles import OPEN_RULES, documented_rules, secured_app

from bmqtwist.console.access import OPEN_SECRET, NodeRequest, NodeTokens, receiver_of

pytestmark = pytest.mark.process
COMMANDS = (("DOMAINS", "DOMAIN", "bmq.orders", "PURGE"), ("DOMAINS", "RECONFIGURE", "bmq.orders"),
            ("DOMAINS", "REMOVE", "bmq.orders"), ("CLUSTERS", "LIST"))


def admin(broker: BrokerProcess, user: str, *command: str) -> int:
    """Return the exit code of an admin command with the credential of a user."""
    done = subprocess.run([BMQ, "admin", "-b", broker.url, "--user", user, *command], capture_output=True, timeout=60,
                          env={**os.environ, "BMQ_PASSWORD": "x"}, check=False)
    return done.returncode


@pytest.mark.parametrize("rules", [documented_rules(), OPEN_RULES])
def test_the_credential_of_an_application_runs_no_admin_command(tmp_path: Path, rules: dict[str, object]) -> None:
    with BrokerProcess(tmp_path, app=secured_app(rules)) as broker:
        broker.config.domain("bmq.orders")
        for command in COMMANDS:
            assert admin(broker, "shop", *command) == 4, command
        broker.expect("Authorize deny on ConnectAdmin")
        if rules is not OPEN_RULES:
            assert admin(broker, "ops1", "CLUSTERS", "LIST") == 0


def test_requests_that_a_bare_reverse_proxy_forwards_have_no_rights(tmp_path: Path) -> None:
    """It connects from loopback, and its Host is the address that it connects to: as a browser on this machine."""
    port = free_port()
    with BrokerProcess(tmp_path, app={"bmqtwist": {"http": {"port": port}}}) as broker:
        token = NodeTokens(OPEN_SECRET).make(
            NodeRequest("n2", receiver_of("n1", f"http://127.0.0.1:{port}"), "POST", "/api/v1/nodes/n1/stop", b"{}", "x",
                        "admin"), 0.0, "n")

        def status(method: str, path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request(method, path, b"{}" if method == "POST" else None, headers)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.status

        assert status("GET", "/", Accept="text/html") == status("GET", "/api/v1/cluster") == 403
        assert status("POST", "/api/v1/nodes/n1/stop", **{"Content-Type": "application/json"}) == 403
        assert status("POST", "/api/v1/nodes/n1/stop", **{"X-Bmqtwist-Node": token}) == 403
        assert status("GET", "/livez") == 200
        assert broker.running
