"""Secure defaults and limits of a broker process that has users, rules, TLS and a console: small attacks, one test each."""

from __future__ import annotations

import os
import pty
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import codec
from kit.certificates import certificate
from kit.cli_kit import BMQ
from kit.client import Client
from kit.process import ProcessWorld, SocketLink, free_port
from soak.security.target import ORDERS, Target, read_all

from bmqtwist.testing.config import plain_domain
from bmqtwist.view.alarms import ALARMS_MAX

pytestmark = pytest.mark.process
INPUT_BYTES_MAX = 2 << 20
ATTACKERS, HELD_BYTES, LARGEST_BYTES = 10, 256 << 10, 400 << 10


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Path]]:
    """Start a broker whose listener for TLS requires certificates; yield it and the directory of the certificate."""
    root = tmp_path_factory.mktemp("locked")
    (root / "victim").write_text("unchanged")
    (root / "bmqbrkr.pid.new").symlink_to(root / "victim")
    cert, key = certificate(root)
    key.chmod(0o644)
    tls = {"certificateAuthority": str(cert), "certificate": str(cert), "key": str(key), "versions": "TLSv1.3"}
    target = Target(root, access="locked", tls=tls,
                    settings={"requireClientCertificate": True, "inputBytesMax": INPUT_BYTES_MAX})
    yield target, root
    target.close()


def test_the_pid_file_is_not_written_through_a_symbolic_link(locked: tuple[Target, Path]) -> None:
    target, root = locked
    assert target.broker.process is not None
    assert (root / "victim").read_text() == "unchanged"
    assert (root / "bmqbrkr.pid").read_text() == f"{target.broker.process.pid}\n"


def test_the_start_warns_of_a_key_that_every_user_can_read(locked: tuple[Target, Path]) -> None:
    target, _ = locked
    assert [line for line in target.broker.log() if "#SECURITY" in line and "tlsConfig.key: every user" in line]
    assert not [line for line in target.broker.log() if "http.keyFile: every user" in line], "its mode is 0600"


@pytest.mark.parametrize("request_line", ["GET /login", "GET /", "GET /nothing", "GET /metrics", "GET /static/style.css",
                                          "X /", "GET /%ff"])
def test_no_response_names_the_server(locked: tuple[Target, Path], request_line: str) -> None:
    with locked[0].connect() as channel:
        channel.sendall(f"{request_line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        head = read_all(channel).partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 ") and b"\r\nserver:" not in head and b"twisted" not in head


def test_a_user_of_the_console_publishes_as_a_principal_of_its_own(locked: tuple[Target, Path]) -> None:
    target, _ = locked
    status, answer = target.tab("ada").post("/api/v1/publish", {"uri": f"bmq://{ORDERS}/q", "payload": "x", "count": 1})
    assert status != 200, answer
    target.broker.expect("Authorize deny on QueueWrite", "CONSOLE_USER-ada")


@pytest.mark.parametrize("has_certificate", [True, False])
def test_a_listener_that_requires_certificates_admits_no_client_without(locked: tuple[Target, Path],
                                                                       has_certificate: bool) -> None:
    target, root = locked
    context = ssl.create_default_context(cafile=str(root / "cert.pem"))
    if has_certificate:
        context.load_cert_chain(root / "cert.pem", root / "key.pem")
    link = SocketLink(target.tls_port)
    try:
        link.socket = context.wrap_socket(link.socket, server_hostname="localhost")
        client = Client(link, "shop")
        client.authenticate("BASIC", b"shop:x")
        admitted = client.negotiate()["result"]["category"] == "E_SUCCESS"
    except (AssertionError, ssl.SSLError):
        admitted = False
    assert admitted is has_certificate


def test_the_principal_with_most_incomplete_input_loses_a_connection(locked: tuple[Target, Path]) -> None:
    """Not the one with the largest event."""
    target, _ = locked
    modest = target.client("shop")
    queue = modest.open(f"bmq://{ORDERS}/q", write=1)
    guid = modest.new_guid()
    event = codec.put_frame([codec.put_message(queue.q_id, guid, bytes(LARGEST_BYTES), ack=True)])
    modest.send(event[:-1000])
    greedy = [target.client("billing") for _ in range(ATTACKERS)]
    for each in greedy:
        each.send((40 << 20).to_bytes(4, "big") + event[4:8] + bytes(HELD_BYTES))
    target.broker.expect("'BASIC_USER-billing' has the most bytes of incomplete events", deadline=60.0)
    modest.send(event[-1000:])
    assert queue.next_ack(guid, 60.0).status == 0
    for each in (modest, *greedy):
        each.drop()


def test_alarms_that_a_client_causes_do_not_displace_a_panic(tmp_path: Path) -> None:
    port = free_port()
    world = ProcessWorld(tmp_path, app={"bmqtwist": {"http": {"port": port, "localRole": "viewer"}}})
    try:
        world.broker.config.domain_text("small", plain_domain("small", maxQueues=1))
        world.domain("f", "fanout")
        client = world.client("greedy")
        client.open("bmq://small/q0", write=1)
        with pytest.raises(AssertionError, match="E_"):
            client.open("bmq://small/q1", write=1)
        world.broker.expect("PANIC [DOMAIN_QUEUE_LIMIT_FULL]")
        for number in range(ALARMS_MAX + 10):
            client.open(f"bmq://f/q{number}", read=1, app_id="unregistered")
        panics = [line for line in world.broker.admin("ALARMS").splitlines() if "DOMAIN_QUEUE_LIMIT_FULL" in line]
        assert len(panics) == 1
        assert sum("FANOUT_UNREGISTERED_APPID" in line for line in world.broker.log()) > ALARMS_MAX
    finally:
        world.cleanup()


def test_consume_escapes_control_characters_on_a_terminal(locked: tuple[Target, Path]) -> None:
    target, _ = locked
    uri = "bmq://g/terminal"
    producer = target.client()
    producer.open(uri, write=1).post(b"\x1b]0;title\x07\x9b2J\rtext")
    producer.drop()
    master, slave = pty.openpty()
    done = subprocess.run([BMQ, "consume", "-b", target.broker.url, "--idle", "1", "-n", "1", uri], stdout=slave,
                          stderr=subprocess.PIPE, timeout=60, env={**os.environ, "TERM": "xterm"}, check=False)
    os.close(slave)
    shown = os.read(master, 1 << 16)
    os.close(master)
    assert done.returncode == 0, done.stderr
    assert b"title" in shown and b"text" in shown
    assert not set(shown) & {0x1b, 0x07, 0x9b} and b"\rtext" not in shown
