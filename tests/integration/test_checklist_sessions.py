"""Sessions, security and shutdown: broker.md 21.14."""

from __future__ import annotations

import concurrent.futures
import datetime
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from kit import codec
from kit.client import Client, Closed, Expired, payloads
from kit.process import BrokerProcess, ProcessWorld, SocketLink
from kit.world import World

spec = pytest.mark.spec


@spec("broker", 228)
def test_a_client_with_an_unsupported_sdk_version_is_told_so_and_served(world: World) -> None:
    """Official SDKs give up; a client of another origin may have version numbers of its own."""
    world.domain()
    old = world.connect(sdk_version=10400)
    response = old.negotiate()
    assert response["result"]["category"] == "E_NOT_SUPPORTED"
    assert response["result"]["code"] == -1
    assert response["isDeprecatedSdk"]
    old.open("bmq://d/q", write=1).post()
    assert world.logged("#CLIENT_SDKVERSION_UNSUPPORTED")
    deprecated = world.connect(sdk_version=10800)
    response = deprecated.negotiate()
    assert response["result"]["category"] == "E_SUCCESS"
    assert response["isDeprecatedSdk"]
    assert world.logged("#CLIENT_SDKVERSION_DEPRECATED")
    deprecated.open("bmq://d/q", write=1).post()
    current = world.connect(sdk_version=11300)
    assert not current.negotiate()["isDeprecatedSdk"]


def test_the_user_agent_of_a_client_appears_in_the_log(world: World) -> None:
    world.client(user_agent="my-app:1.2.3")
    assert world.logged("my-app:1.2.3")


@pytest.mark.real
@spec("broker", 230)
@pytest.mark.parametrize("garbage", [bytes(8), b"\0\0\0\4ABCD", b"\x80\0\0\x10" + bytes(12),
                                     codec.put_frame([codec.put_message(0, bytes(16))]), codec.heartbeat()])
def test_a_connection_with_invalid_negotiation_is_closed_without_effect_on_others(world: World, garbage: bytes) -> None:
    """An invalid length at once, another event in a valid frame when it is complete."""
    world.domain()
    producer = world.producer()
    invalid_client = world.connect()
    invalid_client.send(garbage)
    invalid_client.wait_closed()
    producer.post()


@pytest.mark.real
@spec("broker", 231)
@pytest.mark.parametrize("body", [b"\x30\x80\x80\x01", b"not json at all\1", b"\x30\x80\x80\x01\x05\0\0\1"])
def test_a_well_framed_message_that_cannot_be_decoded_is_dropped(world: World, body: bytes) -> None:
    """The connection remains open."""
    world.domain()
    producer = world.producer()
    producer.client.send(codec.frame(codec.CONTROL, body))
    producer.post()
    assert not producer.client.link.closed


@spec("broker", 233)
@pytest.mark.setting(app={"heartbeats": {"client": 10, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 0}})
def test_a_silent_client_is_disconnected_after_the_configured_number_of_missed_heartbeats(world: World) -> None:
    """Any received byte resets the count; the disconnect counts as a crash."""
    world.domain(maxDeliveryAttempts=1)
    producer, lively = world.producer(), world.client()
    silent = world.client(answer_heartbeats=False)
    consumer = silent.consume("bmq://d/q")
    producer.post(b"m")
    assert payloads(consumer.pushes()) == [b"m"]
    for _ in range(9):
        world.advance(3)
        lively.pump(0.1)
        producer.client.pump(0.1)
    assert not silent.link.closed
    for _ in range(4):
        world.advance(3)
        lively.pump(0.1)
        producer.client.pump(0.1)
    silent.wait_closed()
    assert [e.kind for e in silent.events].count("heartbeat_req") >= 9
    assert world.logged("#TCP_DEAD_CHANNEL", "closing unresponsive channel after 10 missed heartbeats")
    assert not lively.link.closed
    assert world.alarms("POISON_PILL")


@spec("broker", 233)
def test_without_heartbeats_a_silent_client_stays_connected(world: World) -> None:
    """An interval of 0 disables heartbeats."""
    silent = world.client(answer_heartbeats=False)
    world.advance(3600)
    assert not silent.link.closed
    assert [e for e in silent.events if e.kind == "heartbeat_req"] == []


@pytest.mark.real
def test_a_heartbeat_request_is_answered(world: World) -> None:
    """Newer SDKs close a connection without responses."""
    client = world.client()
    client.heartbeat()


# -- authentication


def security(*authenticators: dict[str, Any], anonymous: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `authentication` object of a broker configuration."""
    found: dict[str, Any] = {"authenticators": list(authenticators)}
    if anonymous is not None:
        found["anonymousCredential"] = anonymous
    return {"authentication": found}


def authenticator(name: str, **settings: Any) -> dict[str, Any]:
    """Return the configuration of one authenticator; settings have the types of their Python values."""
    kinds = {bool: "boolVal", int: "intVal", str: "stringVal"}
    return {"name": name, "settings": [{"key": k, "value": {kinds[type(v)]: v}} for k, v in settings.items()]}


BASIC = security(authenticator("BasicAuthenticator", alice="secret", bob="hidden"), anonymous={"disallow": {}})
OPEN = security(authenticator("BasicAuthenticator", alice="secret", bob="hidden"),
                authenticator("AnonAuthenticator", shouldPass=True),
                anonymous={"credential": {"mechanism": "ANONYMOUS", "identity": ""}})


def check_usable(client: Client, world: World) -> None:
    """Check that the session is usable."""
    assert client.negotiate()["result"]["category"] == "E_SUCCESS"
    world.domain()
    client.open("bmq://d/q", write=1).post()


@spec("broker", 234)
@pytest.mark.setting(app=BASIC)
def test_basic_authentication(world: World) -> None:
    """Valid credentials: SUCCESS with a lifetime; wrong password or mechanism: refused and closed."""
    good = world.connect()
    answer = good.authenticate("BASIC", b"alice:secret")
    assert answer["status"]["category"] == "E_SUCCESS"
    assert answer["lifetimeMs"] == 600000
    check_usable(good, world)
    for mechanism, data in (("BASIC", b"alice:wrong"), ("BASIC", b"bob:secret"), ("BASIC", b"alice"),
                            ("NOPE", b"x")):
        bad = world.connect()
        answer = bad.authenticate(mechanism, data)
        assert answer["status"]["category"] == "E_REFUSED"
        assert answer["status"]["code"] != 0
        bad.wait_closed()
    unknown = world.connect()
    assert unknown.authenticate("NOPE")["status"]["message"] == "Authentication mechanism 'NOPE' not supported."


@pytest.mark.only_real
@spec("broker", 235)
@pytest.mark.setting(app=BASIC)
def test_ten_concurrent_authentications_get_each_its_own_result(world: World) -> None:
    """Passwords are checked in threads; the wrong ones are fewer than the limit of failed logins."""
    def login(number: int) -> str:
        client = world.connect(f"user{number}")
        answer = client.authenticate("BASIC", b"alice:secret" if number % 3 else b"alice:wrong")
        return str(answer["status"]["category"])

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        results = list(pool.map(login, range(10)))
    assert results == ["E_SUCCESS" if number % 3 else "E_REFUSED" for number in range(10)]


@spec("broker", 236)
def test_without_an_authentication_request_the_anonymous_credential_is_used(world: World) -> None:
    """It is accepted by default."""
    check_usable(world.connect(), world)


@spec("broker", 236, 242)
@pytest.mark.parametrize("client_type", ["E_TCPCLIENT", "E_TCPADMIN"])
@pytest.mark.setting(app=BASIC)
def test_without_anonymous_access_an_unauthenticated_negotiation_is_refused(world: World, client_type: str) -> None:
    """For clients and admin clients."""
    client = world.connect(client_type=client_type)
    with pytest.raises(Closed):
        client.negotiate()


@spec("broker", 236)
@pytest.mark.setting(app=security(authenticator("AnonAuthenticator", shouldPass=False),
                                  anonymous={"credential": {"mechanism": "ANONYMOUS", "identity": ""}}))
def test_an_anonymous_credential_that_fails_closes_the_connection(world: World) -> None:
    """An operator can disable anonymous access with the authenticator."""
    with pytest.raises(Closed):
        world.connect().negotiate()


@spec("broker", 237, 239)
@pytest.mark.setting(app=OPEN)
def test_authenticating_again_on_a_live_session(world: World) -> None:
    """Same user: success.

    Other mechanism: closed without a response. Other user or wrong password: refused with a response, then closed.
    """
    def session() -> Client:
        client = world.connect()
        assert client.authenticate("basic", b"alice:secret")["status"]["category"] == "E_SUCCESS"
        check_usable(client, world)
        return client

    same = session()
    assert same.authenticate("BASIC", b"alice:secret")["status"]["category"] == "E_SUCCESS"
    assert not same.link.closed
    other_mechanism = session()
    with pytest.raises(Closed):
        other_mechanism.authenticate("ANONYMOUS")
    for data in (b"bob:hidden", b"alice:wrong"):
        changed = session()
        assert changed.authenticate("BASIC", data)["status"]["category"] != "E_SUCCESS"
        changed.wait_closed()


@spec("broker", 238)
@pytest.mark.setting(app=BASIC)
def test_a_session_whose_authentication_has_expired_is_closed(world: World) -> None:
    """Unless it has authenticated again before."""
    def session() -> Client:
        client = world.connect()
        client.authenticate("BASIC", b"alice:secret")
        client.negotiate()
        return client

    renewing, forgetful = session(), session()
    world.advance(500)
    assert renewing.authenticate("BASIC", b"alice:secret")["status"]["category"] == "E_SUCCESS"
    world.advance(110)
    forgetful.wait_closed()
    renewing.barrier()
    assert not renewing.link.closed


@spec("broker", 240)
@pytest.mark.parametrize("broken", [
    security(authenticator("BasicAuthenticator", a="b"), authenticator("BasicAuthenticator", c="d")),
    security(authenticator("BasicAuthenticator", a="b"),
             anonymous={"credential": {"mechanism": "NOPE", "identity": ""}}),
    security(authenticator("AnonAuthenticator", shouldPass=True)),
    security(authenticator("NoSuchAuthenticator"))])
def test_an_inconsistent_security_configuration_fails_the_start(broker_process: BrokerProcess,
                                                                broken: dict[str, Any]) -> None:
    broker_process.config.broker["appConfig"].update(broken)
    broker_process.config.write()
    broker_process.launch()
    assert broker_process.wait() != 0
    assert "PANIC [STARTUP]" in "\n".join(broker_process.records)


@pytest.mark.only_real
@spec("broker", 241)
@pytest.mark.setting(app=security(authenticator("TestAuthenticator", sleepTimeMs=300), anonymous={"disallow": {}}))
def test_a_client_that_disconnects_during_authentication_leaves_no_session(world: World) -> None:
    """The result is dropped; the next client can authenticate."""
    for _ in range(3):
        leaver = world.connect()
        leaver.send_authentication("TEST", b"x")
        leaver.link.drop()
    client = world.connect()
    assert client.authenticate("TEST", b"x")["status"]["category"] == "E_SUCCESS"
    check_usable(client, world)


@spec("broker", 242)
def test_an_admin_session_works_with_the_default_anonymous_credential(world: World) -> None:
    assert world.admin("CLUSTERS LIST").startswith("The following clusters")


# -- TLS


def certificate(directory: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate of `localhost`; return the paths of (certificate, key) in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
             .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
             .not_valid_after(now + datetime.timedelta(days=1))
             .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
             .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
             .sign(key, hashes.SHA256()))
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                           serialization.NoEncryption()))
    return paths


@spec("broker", 243)
def test_a_tls_listener_carries_the_same_traffic(broker_process: BrokerProcess) -> None:
    """A second listener without TLS has the same queues."""
    from kit.process import free_port
    cert, key = certificate(broker_process.root)
    port = free_port()
    app = broker_process.config.broker["appConfig"]
    app["tlsConfig"] = {"certificateAuthority": str(cert), "certificate": str(cert), "key": str(key),
                        "versions": "TLSv1.3"}
    app["networkInterfaces"]["tcpInterface"]["listeners"].append(
        {"name": "tls", "address": "127.0.0.1", "port": port, "tls": True})
    broker_process.config.write()
    broker_process.config.domain("d")
    broker_process.start()
    context = ssl.create_default_context(cafile=str(cert))
    link = SocketLink(port)
    link.socket = context.wrap_socket(link.socket, server_hostname="localhost")
    assert link.socket.version() == "TLSv1.3"
    secure, plain = Client(link, "secure"), Client(SocketLink(broker_process.port), "plain")
    for client in (secure, plain):
        assert client.negotiate()["result"]["category"] == "E_SUCCESS"
    consumer = secure.consume("bmq://d/q")
    plain.open("bmq://d/q", write=1).post(b"m" * 100_000)
    assert consumer.next_push().payload == b"m" * 100_000
    secure.drop()
    plain.drop()


# -- graceful stop


@pytest.mark.only_real
@spec("broker", 244)
def test_a_graceful_stop_waits_for_the_unconfirmed_messages_of_its_clients(world: ProcessWorld) -> None:
    """Two, then one, then none; then the broker exits."""
    world.domain()
    world.producer().post_all(b"1", b"2")
    consumer = world.consumer()
    held = world.pushes(consumer)
    world.broker.process.terminate()
    world.expect_log("waiting for 2 unconfirmed message")
    consumer.confirm(held[0])
    world.expect_log("waiting for 1 unconfirmed message")
    consumer.confirm(held[1])
    world.expect_log("no unconfirmed message")
    world.expect_log("BMQbrkr stopped (shutdown took")
    assert world.broker.wait() == 0
    consumer.client.wait_closed()


@pytest.mark.only_real
@spec("broker", 245)
def test_a_graceful_stop_ends_after_its_timeout_with_unconfirmed_messages(world: ProcessWorld) -> None:
    """They are delivered again after the next start."""
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    producer.post(b"1")
    assert world.new_payloads(consumer) == [b"1"]
    world.broker.process.terminate()
    world.expect_log("waiting for 1 unconfirmed message")
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", world.broker.port), timeout=2)
    assert producer.status_of(b"2") == 0
    world.expect_log("giving up on 1 unconfirmed message")
    assert world.broker.wait() == 0
    with pytest.raises((Closed, Expired)):
        consumer.next_push(2)
    world._drop_clients()
    world.start()
    assert world.new_payloads(world.consumer()) == [b"1", b"2"]


@pytest.mark.only_real
@spec("broker", 232)
def test_a_client_reconnects_after_a_cut_and_its_queues_are_usable(world: World) -> None:
    """Unacknowledged messages are sent again and stored once."""
    world.domain()
    producer, consumer = world.producer(name="p"), world.consumer(name="c")
    guid = producer.put(b"1")
    producer.client.kill()
    consumer.client.kill()
    producer, consumer = world.producer(name="p"), world.consumer(name="c")
    producer.post(b"1", guid=guid)
    producer.put(b"2", guid=guid[:-6] + codec.client_id("other"))
    producer.next_ack()
    assert world.new_payloads(consumer) == [b"1", b"2"]


@spec("broker", 247)
@pytest.mark.only_real
def test_puts_repeated_after_a_crash_of_the_broker_are_stored_once(world: World) -> None:
    """Every message is acknowledged, none is lost."""
    world.domain()
    producer = world.producer(name="p")
    sent: dict[bytes, bytes] = {}
    acked: set[bytes] = set()
    for round_ in range(3):
        for number in range(200):
            payload = b"%d-%d" % (round_, number)
            sent[producer.put(payload)] = payload
        acked |= {producer.next_ack().guid for _ in range(50)}
        counter = producer.client._guid_counter
        world.crash_and_start()
        producer = world.producer(name="p")
        producer.client._guid_counter = counter
        for guid, payload in sent.items():
            if guid not in acked:
                producer.put(payload, guid=guid)
        acked |= {producer.next_ack().guid for _ in range(len(sent) - len(acked))}
    assert acked == set(sent)
    assert world.new_payloads(world.consumer()) == list(sent.values())


@spec("broker", 249)
@pytest.mark.parametrize("end", ["restart", "crash_and_start"])
def test_a_confirm_sent_before_a_crash_of_the_broker_takes_effect_or_the_message_is_redelivered(
        world: World, end: str) -> None:
    world.domain()
    producer, consumer = world.producer(), world.consumer()
    producer.post_all(b"1", b"2")
    held = world.pushes(consumer)
    consumer.confirm(held[0])
    getattr(world, end)()
    late = world.client()
    queue = late.consume("bmq://d/q")
    again = world.pushes(queue)
    assert payloads(again) in ([b"1", b"2"], [b"2"])
    queue.confirm(*held)
    queue.confirm(*again)
    assert world.stored() == 0


@pytest.mark.only_real
@spec("broker", 252)
def test_a_client_that_does_not_read_does_not_delay_others(world: World) -> None:
    """Later it reads all messages in order."""
    world.domain(in_memory=True)
    producer = world.producer()
    lazy = world.consumer(m=100_000, b=1 << 30)
    quick = world.producer("bmq://d/other")
    payload = bytes(64 << 10)
    for number in range(600):
        producer.post(b"%06d" % number + payload)
    quick.post(b"still responsive")
    assert world.new_payloads(world.consumer("bmq://d/other")) == [b"still responsive"]
    assert [push.payload[:6] for push in lazy.take(600)] == [b"%06d" % number for number in range(600)]


@pytest.mark.real
@spec("broker", 253)
def test_a_session_lost_during_opens_leaves_no_handle(world: World) -> None:
    """INTERNALS shows handles of other sessions only."""
    world.domain()
    witness = world.producer()
    client = world.client("hasty")
    for q_id in range(20):
        client.send_request({"openQueue": {"handleParameters": client.handle_parameters(
            "bmq://d/q", q_id, read=1)}})
    client.queues[0] = [witness]  # its handle must be closed
    client.kill()
    world.wait_idle()
    internals = world.admin("DOMAINS DOMAIN d QUEUE q INTERNALS")
    assert "hasty" not in internals
    assert "1 handles:" in internals


def test_requests_in_one_write_with_the_negotiation_are_answered(world: World) -> None:
    """The original reads them only when more bytes arrive."""
    world.domain()
    client = world.connect()
    client._rid = 1
    request = {"rId": 1, "openQueue": {"handleParameters": client.handle_parameters("bmq://d/q", 0, write=1)}}
    client.send(codec.control_frame({"clientIdentity": client.identity}) + codec.control_frame(request))
    client.wait(lambda e: "brokerResponse" in e.control, "no brokerResponse")
    assert "openQueueResponse" in client.response(1)


@spec("wire", 11)
@pytest.mark.setting(app={"heartbeats": {"client": 10, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 0}})
def test_a_client_with_json_and_without_guids_gets_json_and_broker_guids(world: World) -> None:
    """As the Java SDK: JSON answers, correlation ids, GUIDs of the broker, no heartbeats."""
    world.domain()
    client = world.client(encoding="JSON", features="PROTOCOL_ENCODING:JSON;MPS:MESSAGE_PROPERTIES_EX", guids=False,
                          language="E_JAVA")
    queue = client.open("bmq://d/q", read=1, write=1)
    queue.configure()
    queue.put(b"asks", guid=codec.correlation(7))
    queue.put(b"does not", guid=codec.correlation(0), ack=False)
    ack = queue.next_ack()
    pushes = world.pushes(queue)
    assert (ack.status, ack.correlation_id) == (0, 7)
    assert payloads(pushes) == [b"asks", b"does not"]
    assert ack.guid == pushes[0].guid
    assert len({push.guid for push in pushes}) == 2
    assert {e.encoding for e in client.events if e.kind == "control"} == {"JSON"}
    assert {push.option_type for push in pushes} == {1}
    world.advance(20)
    client.pump(0.1)
    assert [e for e in client.events if e.kind.startswith("heartbeat")] == []


def test_two_sessions_may_carry_the_same_name(world: World) -> None:
    world.domain()
    assert world.producer(name="same").post() != world.producer(name="same", session_id=2).post(
        guid=codec.make_guid(77, b"other!"))
