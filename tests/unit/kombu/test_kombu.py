"""kombu transport without a broker: queue names, settings, and calls of channels to their link."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.transport import get_transport_cls

from bmqtwist.errors import LocalError
from bmqtwist.ids import parse_uri
from bmqtwist.kombu import LinkLost, Refused, SecureTransport, Transport, transport
from bmqtwist.kombu.link import (
    BROADCAST_DOMAIN,
    DOMAIN,
    BrokerLink,
    Reader,
    TransportSettings,
    error_of_result,
    tls_context,
    transport_settings,
)
from bmqtwist.kombu.transport import is_private, queue_name, queue_uri
from bmqtwist.sdk.options import Credential, QueueOptions
from bmqtwist.sdk.results import Result
from bmqtwist.testing import Broker

URL = "bmq://localhost/d"
OPTIONS = {"broadcast_domain": "b"}

# -- names ----------------------------------------------------------------------------------------------------------


@given(st.text(max_size=100))
def test_every_queue_name_has_a_valid_uri(name: str) -> None:
    assert parse_uri(queue_uri("d", name, "p.")).queue == queue_name("p." + name)


@given(st.lists(st.text(alphabet="ab_-.@é", max_size=70), min_size=2, max_size=2, unique=True))
def test_different_queue_names_have_different_uris(names: list[str]) -> None:
    assert queue_name(names[0]) != queue_name(names[1])


def test_valid_queue_names_are_unchanged_and_others_stay_readable() -> None:
    assert queue_name("celery") == "celery" and queue_name("a-b_c.D9") == "a-b_c.D9"
    assert queue_name("worker@host.celery.pidbox").startswith("worker_host.celery.pidbox-")
    assert len(queue_name("x" * 65)) == 64 and queue_name("x" * 64) == "x" * 64


@pytest.mark.parametrize(("kind", "exchange_durable", "queue_durable", "passing", "private"), [
    ("direct", True, True, False, False),  # tasks
    ("direct", True, False, True, False),  # tasks in an auto-delete queue
    ("direct", False, False, True, True),  # replies to remote control
    ("topic", True, False, True, True),  # receivers of events
    ("topic", True, True, True, False),
    ("fanout", False, False, True, True),  # mailboxes
    ("fanout", True, True, True, True),  # kombu.common.Broadcast
    ("fanout", True, True, False, False),
])
def test_a_queue_is_private_depending_on_its_durability_and_exchange(kind: str, exchange_durable: bool, queue_durable: bool,
                                                                     passing: bool, private: bool) -> None:
    assert is_private(kind, exchange_durable, queue_durable, passing) is private


# -- settings -------------------------------------------------------------------------------------------------------


def test_importing_the_package_registers_the_url_schemes() -> None:
    assert get_transport_cls("bmq") is Transport and get_transport_cls("bmqs") is SecureTransport
    assert Connection("bmq://", transport="bmqtwist.kombu:Transport").get_transport_cls() is Transport


def test_settings_are_read_from_the_url_and_the_transport_options() -> None:
    plain = transport_settings(Connection("bmq://"))
    assert (str(plain.session.brokers[0]), plain.domain, plain.broadcast_domain) == (
        "tcp://localhost:30114", DOMAIN, BROADCAST_DOMAIN)
    assert plain.session.credential is None and plain.tls is None and plain.confirm_publish
    given = transport_settings(Connection("bmq://ann:s%40crt@host:1//", connect_timeout=3, transport_options={
        "domain": "d", "broadcast_domain": None, "max_unconfirmed": 7, "compression": True, "confirm_publish": False,
        "session": {"drain_s": 1.0}, "visibility_timeout": 3600}))
    assert str(given.session.brokers[0]) == "tcp://host:1"
    assert given.session.credential == Credential.basic("ann", "s@crt")
    assert (given.domain, given.broadcast_domain, given.max_unconfirmed, given.confirm_publish) == ("d", None, 7, False)
    assert (given.session.connect_timeout_s, given.session.drain_s, given.session.compression) == (3.0, 1.0, True)
    assert transport_settings(Connection("bmq://h/e", transport_options={"domain": "d"})).domain == "e"
    assert transport_settings(Connection("bmqs://h"), secure=True).session.brokers[0].tls


@pytest.mark.parametrize("options", [{"max_unconfirmed": 0}, {"domain": "no/domain"}, {"post_timeout_s": -1}])
def test_invalid_transport_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(LocalError):
        transport_settings(Connection("bmq://", transport_options=options))


def test_the_ssl_option_of_kombu_gives_a_tls_context() -> None:
    assert tls_context(None) is None and tls_context(False) is None
    made = tls_context(True)
    assert made is not None and made.check_hostname and made.verify_mode is ssl.CERT_REQUIRED
    assert tls_context(made) is made
    lax = tls_context({"cert_reqs": ssl.CERT_NONE})
    assert lax is not None and not lax.check_hostname and lax.verify_mode is ssl.CERT_NONE
    assert transport_settings(Connection("bmq://h", ssl=True)).session.brokers[0].tls


def test_temporary_errors_are_link_lost_and_permanent_ones_refused() -> None:
    assert isinstance(error_of_result("x", Result.TIMEOUT), LinkLost)
    assert isinstance(error_of_result("x", Result.LIMIT_MESSAGES), Refused)
    assert str(error_of_result("open bmq://d/q", Result.REFUSED, "no")) == "open bmq://d/q: REFUSED no"
    assert LinkLost in Transport.connection_errors and Refused in Transport.channel_errors


# -- channels -------------------------------------------------------------------------------------------------------


class FakeMessage:
    """A delivered message."""

    redelivered = False
    made: list[FakeMessage] = []

    def __init__(self, reader: Reader, payload: bytes, properties: Mapping[str, Any]) -> None:
        self.queue, self.uri = self, reader.uri
        self.owner = reader
        FakeMessage.made.append(self)
        self.payload, self.properties, self.guid = payload, dict(properties), os.urandom(16)


class FakeLink:
    """Accepts and records all calls, and delivers posts to readers."""

    made: list[FakeLink] = []

    def __init__(self, settings: TransportSettings) -> None:
        self.settings, self.loss_reason, self.loss_raised = settings, "", False
        self.notifications = self.notify_calls = 0
        self.log: list[tuple[Any, ...]] = []
        self.readers: dict[str, Reader] = {}
        FakeLink.made.append(self)

    def check(self) -> None:
        if self.loss_reason:
            self.loss_raised = True
            raise LinkLost(self.loss_reason)

    def wait(self, done: Callable[[], object], timeout_s: float | None) -> bool:
        self.check()
        return bool(done())

    def wait_for_notification(self, seen: int, timeout_s: float | None) -> bool:
        return self.wait(lambda: self.notifications != seen, timeout_s)

    def post(self, uris: Iterable[str], payload: bytes, properties: Mapping[str, Any], *, confirm: bool,
             timeout_s: float) -> None:
        for uri in uris:
            self.log.append(("post", uri, confirm))
            self.deliver(uri, payload, properties)

    def broadcast(self, uri: str, payload: bytes, properties: Mapping[str, Any]) -> None:
        self.log.append(("broadcast", uri))
        self.deliver(uri, payload, properties)

    def deliver(self, uri: str, payload: bytes, properties: Mapping[str, Any]) -> None:
        reader = self.readers.get(uri)
        if reader is not None:
            reader.inbox.append(FakeMessage(reader, payload, properties))  # type: ignore[arg-type]
            self.notifications += 1

    def open_reader(self, uri: str, options: QueueOptions, inbox_max: int | None = None) -> Reader:
        self.log.append(("open_reader", uri, options.effective()[0].max_unconfirmed_messages))
        self.readers[uri] = Reader(uri, options, inbox_max)
        return self.readers[uri]

    def configure(self, reader: Reader, options: QueueOptions, wait: bool = False) -> None:
        if options != reader.options:
            reader.options = options
            self.log.append(("configure", reader.uri, options.effective()[0].max_unconfirmed_messages))

    def close_reader(self, reader: Reader) -> None:
        self.log.append(("close_reader", reader.uri))
        del self.readers[reader.uri]

    def pop_message(self, reader: Reader) -> Any:
        reader.unconfirmed += 1
        return reader.inbox.popleft()

    def confirm(self, message: Any) -> None:
        self.check()
        message.owner.unconfirmed -= 1
        self.log.append(("confirm", message.uri))

    def notify(self) -> None:
        self.notify_calls += 1
        self.notifications += 1

    def reset_fileno(self, seen: int) -> None:
        pass

    def fileno(self) -> int:
        return -1

    def stop(self) -> None:
        self.loss_reason = "stopped"

    abandon = stop


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    """Connection with a fake link."""
    FakeLink.made = []
    monkeypatch.setattr(transport, "BrokerLink", FakeLink)
    return Connection(URL, transport_options=OPTIONS)


def link() -> FakeLink:
    """The latest fake link."""
    return FakeLink.made[-1]


def consume(channel: Any, queue: Queue, **options: Any) -> list[Any]:
    """Consume a queue; return the list that receives its messages."""
    got: list[Any] = []
    Consumer(channel, [queue], on_message=got.append, **options).consume()
    return got


def test_the_unconfirmed_limit_follows_the_prefetch_count(connection: Connection) -> None:
    channel = connection.channel()
    channel.basic_qos(0, 4, False)
    consume(channel, Queue("q"))
    consume(channel, Queue("loud"), no_ack=True)
    channel.basic_qos(0, 5, False)
    channel.basic_qos(0, 5, False)
    channel.basic_qos(0, 0, False)
    assert link().log == [("open_reader", "bmq://d/q", 4), ("open_reader", "bmq://d/loud", 1000),
                          ("configure", "bmq://d/q", 5), ("configure", "bmq://d/q", 1000)]


def test_the_prefetch_count_limits_messages_over_all_queues_of_a_channel(connection: Connection) -> None:
    channel = connection.channel()
    channel.basic_qos(0, 2, False)
    got = consume(channel, Queue("a"))
    Consumer(channel, [Queue("b")], on_message=got.append).consume()
    for name in ("a", "a", "b", "b"):
        Producer(channel).publish("x", routing_key=name)
    for _ in range(2):
        connection.drain_events(timeout=0)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    before = link().notify_calls
    got[0].ack()
    assert link().notify_calls == before + 1  # the event loop polls again
    connection.drain_events(timeout=0)
    assert len(got) == 3
    channel.basic_qos(0, 3, False)
    connection.drain_events(timeout=0)
    assert len(got) == 4


def test_ack_and_reject_confirm_and_requeue_posts_before_the_confirm(connection: Connection) -> None:
    channel = connection.channel()
    got = consume(channel, Queue("q"))
    producer = Producer(channel)
    for number in range(3):
        producer.publish(number, routing_key="q")
    for _ in range(3):
        connection.drain_events(timeout=0)
    link().log.clear()
    got[0].ack()
    assert link().log == [("confirm", "bmq://d/q")]
    got[1].reject()
    got[2].reject(requeue=True)
    assert link().log[1:] == [("confirm", "bmq://d/q"), ("post", "bmq://d/q", True), ("confirm", "bmq://d/q")]
    connection.drain_events(timeout=0)
    assert (got[3].payload, got[3].delivery_info["redelivered"]) == (2, True)
    assert got[3].delivery_tag != got[2].delivery_tag


def test_a_cancelled_consumer_receives_no_message_and_closes_after_its_last_ack(connection: Connection) -> None:
    channel = connection.channel()
    got: list[Any] = []
    consumer = Consumer(channel, [Queue("q")], on_message=got.append)
    consumer.consume()
    Producer(channel).publish("x", routing_key="q")
    connection.drain_events(timeout=0)
    link().log.clear()
    consumer.cancel()
    assert link().log == [("configure", "bmq://d/q", 0)]
    got[0].ack()
    assert link().log[1:] == [("confirm", "bmq://d/q"), ("close_reader", "bmq://d/q")]


def test_a_closed_channel_closes_its_reader_without_confirms(connection: Connection) -> None:
    channel = connection.channel()
    got = consume(channel, Queue("q"))
    Producer(connection).publish("x", routing_key="q")
    connection.drain_events(timeout=0)
    link().log.clear()
    channel.close()
    assert link().log == [("close_reader", "bmq://d/q")]
    with pytest.raises(LinkLost):
        got[0].ack()


def test_a_message_acknowledged_after_the_close_is_confirmed_at_its_redelivery(connection: Connection) -> None:
    channel = connection.channel()
    got = consume(channel, Queue("q"))
    for number in range(2):
        Producer(connection).publish(number, routing_key="q")
        connection.drain_events(timeout=0)
    channel.close()
    with pytest.raises(LinkLost):
        got[1].ack()
    back = FakeMessage.made[-2:]
    again = consume(connection.channel(), Queue("q"))
    reader = link().readers["bmq://d/q"]
    for message in back:
        message.owner = reader
        reader.inbox.append(message)  # type: ignore[arg-type]
    link().log.clear()
    connection.drain_events(timeout=0)
    assert (again[0].payload, again[0].delivery_info["redelivered"]) == (0, True)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    assert link().log == [("confirm", "bmq://d/q")]


def test_exchanges_post_to_declared_queues_and_to_broadcast_for_remote_private_queues(connection: Connection) -> None:
    channel = connection.channel()
    producer = Producer(channel)
    for exchange, keys in ((Exchange("t", "topic"), ("a.*", "#", "b")), (Exchange("d", "direct"), ("a.x", "b", "a.x"))):
        for number, key in enumerate(keys):
            Queue(f"{exchange.name}{number}", exchange, key)(channel).declare()
        link().log.clear()
        producer.publish("x", exchange=exchange, routing_key="a.x")
        assert link().log == ([("post", "bmq://d/t0", True), ("post", "bmq://d/t1", True), ("broadcast", "bmq://b/t")]
                              if exchange.type == "topic" else [("post", "bmq://d/d0", True), ("post", "bmq://d/d2", True)])
    with pytest.raises(Refused):
        producer.publish("x", exchange="d", routing_key="unknown")
    link().log.clear()
    producer.publish("x", exchange="never declared", routing_key="k")
    assert [entry[0] for entry in link().log] == ["broadcast"]


def test_private_queues_receive_matching_messages_and_drop_the_oldest_when_full(
        connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAILBOX_MESSAGES_MAX", 2)
    channel = connection.channel()
    events = Exchange("ev", "topic")
    got = consume(channel, Queue("r1", events, "task.#", durable=False, auto_delete=True), no_ack=True)
    queue = Queue("r2", events, "worker", durable=False, exclusive=True)(channel)
    queue.declare()
    producer = Producer(connection)
    for key in ("task.1", "worker", "task.2", "task.3"):
        producer.publish(key, exchange=events, routing_key=key)
    for _ in range(2):
        connection.drain_events(timeout=0)
    assert [message.payload for message in got] == ["task.2", "task.3"] and queue.get() is None
    assert ("open_reader", "bmq://b/ev", 1000) in link().log and not [e for e in link().log if e[0] in ("post", "confirm")]
    link().log.clear()
    queue.delete()
    assert link().log == []
    channel.close()
    assert link().log == [("close_reader", "bmq://b/ev")]


def test_a_lost_link_is_raised_once_before_the_reconnect(connection: Connection) -> None:
    channel = connection.channel()
    consume(channel, Queue("q"))
    link().loss_reason = "gone"
    assert connection.connected
    with pytest.raises(LinkLost, match="gone"):
        connection.drain_events(timeout=0)
    assert not connection.connected
    connection.default_channel.basic_qos(0, 1, False)
    assert len(FakeLink.made) == 2 and channel.closed and not connection.transport.readers


def test_an_event_loop_receives_messages_in_bursts(connection: Connection) -> None:
    channel = connection.channel()
    got = consume(channel, Queue("q"))
    for number in range(150):
        Producer(channel).publish(number, routing_key="q")
    connection.transport.on_readable(connection.connection, None)
    assert len(got) == 100
    connection.transport.on_readable(connection.connection, None)
    assert len(got) == 150


def test_posts_without_confirm_wait_until_the_send_buffer_has_room() -> None:
    """Half of the room is used: the next post is sent when the broker has acknowledged the first."""
    broker = Broker()
    link = BrokerLink(transport_settings(Connection(broker.listen().replace("tcp", "bmq"), transport_options={
        "confirm_publish": False, "session": {"unacked_bytes_max": 10_000}})))
    try:
        for _ in range(20):
            link.post(["bmq://bmq.test.mem.priority/q"], b"x" * 6000, {}, confirm=False, timeout_s=5.0)
    finally:
        link.stop()
        broker.close()
