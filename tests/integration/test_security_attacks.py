"""Attacks on a broker process: administration without a right, silent connections, very many queues, guessed passwords."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from kit.cli_kit import BMQ
from kit.client import RequestRefused
from kit.process import BrokerProcess, ProcessWorld, free_port
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


def test_silent_connections_from_several_addresses_do_not_lock_out_a_client(tmp_path: Path) -> None:
    limits = {"unauthenticatedConnectionsMax": 40, "unauthenticatedConnectionsPerAddressMax": 20}
    held = []
    with BrokerProcess(tmp_path, app={"bmqtwist": limits}) as broker:
        for address in ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"):
            held += [socket.create_connection(("127.0.0.1", broker.port), 30, (address, 0)) for _ in range(30)]
        done = subprocess.run([BMQ, "admin", "-b", broker.url, "--timeout", "20", "HELP"], capture_output=True, timeout=60,
                              check=False)
        assert done.returncode == 0, done.stderr
        lines = [line for line in broker.records if "unauthenticated connections are closed in favour of new ones" in line]
        assert 1 <= len(lines) < 20
    for each in held:
        each.close()


def test_very_many_queues_of_one_application_leave_the_broker_to_others(tmp_path: Path) -> None:
    """The partitions stay writable, also after a restart, and queues of other domains can be created."""
    world = ProcessWorld(tmp_path, cluster={"partition": {"numPartitions": 1, "maxQlistFileSize": 60_000}})
    try:
        for name in ("greedy", "modest"):
            world.domain(name)
        greedy, created = world.client("greedy"), 0
        with pytest.raises(RequestRefused):
            for created in range(2000):
                greedy.open(f"bmq://greedy/{created}", write=1)
        assert created > 100
        for _ in range(2):
            modest = world.client("modest")
            assert modest.open("bmq://modest/q", write=1).status_of(b"x") == 0
            assert modest.open(f"bmq://modest/{time.monotonic_ns()}", write=1).status_of(b"x") == 0
            world.stop()
            world.start()
        assert not [line for line in world.log() if "PANIC" in line]
        assert [line for line in world.log() if "queue-list-share" in line]
    finally:
        world.cleanup()


def test_guesses_of_a_password_at_the_broker_port_are_delayed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, app=secured_app(documented_rules())) as broker:
        command = [BMQ, "admin", "-b", broker.url, "--user", "ops1", "CLUSTERS", "LIST"]
        environment = {**os.environ, "BMQ_PASSWORD": "guess"}
        for _ in range(12):  # on a busy machine a command takes longer than the first delays
            last = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
            assert last.returncode == 4
            if "Too many failed logins of user 'ops1'" in last.stderr:
                break
        else:
            pytest.fail(last.stderr)
        assert admin(broker, "ops2", "CLUSTERS", "LIST") == 4, "no such user"
        broker.expect("Invalid username or password for user 'ops2'")
