"""Attacks on broker processes: short forms of the campaign `security`, silent connections, many queues, guesses."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time
from pathlib import Path

import pytest
from kit.cli_kit import BMQ
from kit.client import RequestRefused
from kit.process import BrokerProcess, ProcessWorld
from kit.roles import documented_rules, secured_app
from soak.security.campaign import ATTACKS
from soak.security.target import Target

pytestmark = pytest.mark.process


def admin(broker: BrokerProcess, user: str, *command: str) -> int:
    """Return the exit code of an admin command with the credential of a user."""
    done = subprocess.run([BMQ, "admin", "-b", broker.url, "--user", user, *command], capture_output=True, timeout=60,
                          env={**os.environ, "BMQ_PASSWORD": "x"}, check=False)
    return done.returncode


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["administration", "announced addresses", "federation", "stolen logins",
                                  "forwarded requests", "forwarded requests, open console"])
def test_an_attack_of_the_campaign_has_no_effect(tmp_path: Path, name: str) -> None:
    attack = ATTACKS[name]
    target = Target(tmp_path, attack.nodes, attack.queues, attack.access)
    try:
        assert not attack.run(target, 3.0)["violations"]
        assert not [line for line in target.broker.log() if "Starting factory" in line]
    finally:
        target.close()


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


def test_the_descriptor_table_has_room_for_all_connections_at_the_start(tmp_path: Path) -> None:
    """A regression: accept(2) waited 6 to 18 ms each time when the table of the kernel doubled."""
    with BrokerProcess(tmp_path) as broker:
        assert broker.process is not None
        status = Path(f"/proc/{broker.process.pid}/status").read_text(encoding="utf-8")
        (room,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize:")]
        assert room >= min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


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
