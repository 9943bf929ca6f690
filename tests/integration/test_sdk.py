"""The official SDK against a real broker process."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import blazingmq
import pytest
from blazingmq import AckStatus, BasicHealthMonitor, CompressionAlgorithmType, PropertyType, QueueOptions, Timeouts
from blazingmq import session_events as events
from blazingmq.exceptions import BrokerTimeoutError
from kit.client import DEADLINE
from kit.process import ProcessWorld
from kit.sdk import Application, application, expect_line, script

spec = pytest.mark.spec
PRIORITY, FANOUT, BROADCAST = "bmq://d/q", "bmq://f/q", "bmq://b/q"


@pytest.fixture
def app(node: ProcessWorld) -> Iterator[Application]:
    """Yield a session."""
    with application(node.broker.uri) as made:
        yield made


@spec("broker", 23, 24)
def test_post_and_consume_in_priority_mode(node: ProcessWorld, app: Application) -> None:
    """Open, post, ACK, push, confirm, configure, close."""
    app.session.open_queue(PRIORITY, read=True, write=True)
    ack = app.post(PRIORITY, b"hello")
    assert ack.status is AckStatus.SUCCESS
    message = app.take()[0]
    assert (message.data, message.guid, message.queue_uri) == (b"hello", ack.guid, PRIORITY)
    app.session.configure_queue(PRIORITY, QueueOptions(max_unconfirmed_messages=5, consumer_priority=3))
    assert app.session.get_queue_options(PRIORITY).max_unconfirmed_messages == 5
    app.post(PRIORITY, b"again")
    assert app.take()[0].data == b"again"
    app.session.close_queue(PRIORITY)
    assert node.stored(PRIORITY) == 0


@spec("broker", 89)
def test_post_and_consume_in_fanout_mode(node: ProcessWorld, app: Application) -> None:
    """Three consumers in one session, one in another."""
    for name in ("foo", "bar", "baz"):
        app.session.open_queue(f"{FANOUT}?id={name}", read=True)
    with application(node.broker.uri) as producer:
        producer.session.open_queue(FANOUT, write=True)
        producer.post(FANOUT, b"1")
        assert sorted(m.queue_uri for m in app.take(3)) == [f"{FANOUT}?id={n}" for n in ("bar", "baz", "foo")]
        app.session.close_queue(f"{FANOUT}?id=bar")
        producer.post(FANOUT, b"2")
        assert sorted(m.queue_uri for m in app.take(2)) == [f"{FANOUT}?id={n}" for n in ("baz", "foo")]
        app.session.open_queue(f"{FANOUT}?id=bar", read=True)
        assert app.take()[0].data == b"2"
    eventually(lambda: node.stored(FANOUT) == 0, "the last confirm did not arrive")


@spec("broker", 112)
def test_post_and_consume_in_broadcast_mode(node: ProcessWorld, app: Application) -> None:
    """Without confirms."""
    app.session.open_queue(BROADCAST, read=True, write=True)
    with application(node.broker.uri) as other:
        other.session.open_queue(BROADCAST, read=True)
        assert app.post(BROADCAST, b"1").status is AckStatus.SUCCESS
        assert app.take()[0].data == other.take()[0].data == b"1"


VALUES: dict[str, Any] = {"bool": True, "char": b"A", "short": -5, "int32": 1 << 30, "int64": -(1 << 62),
                          "string": "täxt", "binary": b"\0\1\xff", "empty": ""}
TYPES = {"bool": PropertyType.BOOL, "char": PropertyType.CHAR, "short": PropertyType.SHORT,
         "int32": PropertyType.INT32, "int64": PropertyType.INT64, "string": PropertyType.STRING,
         "binary": PropertyType.BINARY, "empty": PropertyType.STRING}


@spec("broker", 197)
@pytest.mark.parametrize("compression", list(CompressionAlgorithmType))
def test_properties_of_all_types_from_message_to_message(node: ProcessWorld, compression: CompressionAlgorithmType) -> None:
    """Sets that repeat, change, grow and shrink; payloads small and large enough for compression."""
    with application(node.broker.uri, message_compression_algorithm=compression) as app:
        app.session.open_queue(PRIORITY, read=True, write=True)
        names = list(VALUES)
        sets = [names, names[:3], names, [], names[2:], names[:3], ["char"], names]
        for size, chosen in zip((10, 5000, 2000, 10, 10, 5000, 2000, 5000), sets, strict=True):
            types = {n: TYPES[n] for n in chosen if n not in ("bool", "int64", "string", "binary", "empty")}
            app.post(PRIORITY, b"x" * size, properties={n: VALUES[n] for n in chosen}, property_type_overrides=types)
            message = app.take()[0]
            assert message.data == b"x" * size
            assert message.properties == {n: VALUES[n] for n in chosen}
            assert message.property_types == {n: TYPES[n] for n in chosen}


@spec("broker", 199)
def test_zlib_payloads_survive_a_restart(node: ProcessWorld) -> None:
    """With and without properties; the consumer gets the original bytes."""
    payload = b"repetition " * 1000
    with application(node.broker.uri, message_compression_algorithm=CompressionAlgorithmType.ZLIB) as producer:
        producer.session.open_queue(PRIORITY, write=True)
        producer.post(PRIORITY, payload)
        producer.post(PRIORITY, payload, properties={"k": "v"})
        producer.post(PRIORITY, b"small")
    assert node.admin_json("DOMAINS DOMAIN d INFOS")["domainInfo"]["storageContent"]["storages"][0]["numBytes"] < 2000
    node.restart()
    with application(node.broker.uri) as consumer:
        consumer.session.open_queue(PRIORITY, read=True)
        messages = consumer.take(3)
    assert [m.data for m in messages] == [payload, payload, b"small"]
    assert messages[1].properties == {"k": "v"}


@spec("broker", 78)
def test_flow_control_of_one_message_at_a_time(node: ProcessWorld, app: Application) -> None:
    """Each message is delivered after the confirm of the previous one."""
    with application(node.broker.uri) as producer:
        producer.session.open_queue(PRIORITY, write=True)
        for number in range(20):
            producer.post(PRIORITY, b"%d" % number)
    app.session.open_queue(PRIORITY, read=True, options=QueueOptions(max_unconfirmed_messages=1))
    for number in range(20):
        message, handle = app.messages.get(timeout=10)
        assert message.data == b"%d" % number
        assert "UnconfirmedMessages ...: 1" in node.admin("DOMAINS DOMAIN d QUEUE q INTERNALS")
        assert app.messages.empty()
        handle.confirm()


@spec("broker", 128)
def test_unconfirmed_messages_of_a_killed_process_go_to_another(node: ProcessWorld, app: Application) -> None:
    """With kill -9 at three unconfirmed messages and a confirmed one."""
    app.session.open_queue(PRIORITY, write=True)
    for number in range(4):
        app.post(PRIORITY, b"%d" % number)
    with script(node.broker.uri, f"""
        session = make()
        session.open_queue("{PRIORITY}", read=True)
        held = [messages.get(timeout=20) for _ in range(4)]
        held[0][1].confirm()
        say("holding", *[m.data.decode() for m, _ in held])
        sys.stdin.read()
    """) as victim:
        expect_line(victim, "holding 0 1 2 3")
        eventually(lambda: node.stored(PRIORITY) == 3, "the confirm did not arrive")
        victim.send_signal(signal.SIGKILL)
        node.expect_log("redelivering 3 message(s)")
    app.session.open_queue("bmq://d/other", write=True)
    with application(node.broker.uri) as heir:
        heir.session.open_queue(PRIORITY, read=True)
        assert [m.data for m in heir.take(3)] == [b"1", b"2", b"3"]


@spec("broker", 247)
@spec("wire", 8)
@pytest.mark.parametrize("how", ["crash", "stop"])
def test_a_broker_restart_while_posting_loses_and_duplicates_no_message(node: ProcessWorld, how: str) -> None:
    """With a kill and a graceful stop: the SDK reconnects and repeats unacknowledged posts; all ACKs are successful."""
    count = 2000
    with application(node.broker.uri) as app:
        app.session.open_queue(PRIORITY, write=True)
        half = threading.Event()

        def post() -> None:
            for number in range(count):
                if number == count // 2:
                    half.set()
                app.session.post(PRIORITY, b"%d" % number, on_ack=app.acks.put)

        poster = threading.Thread(target=post, daemon=True)
        poster.start()
        half.wait(30)
        node._admin = None
        getattr(node, how)()
        node.start()
        poster.join(60)
        statuses = [app.next_ack(30).status for _ in range(count)]
        assert set(statuses) == {AckStatus.SUCCESS}
    with application(node.broker.uri) as consumer:
        consumer.session.open_queue(PRIORITY, read=True)
        got = [int(m.data) for m in consumer.take(count, deadline=30)]
        assert sorted(got) == list(range(count))
        assert consumer.messages.empty()
    end = time.monotonic() + DEADLINE
    while node.stored(PRIORITY):  # the last CONFIRMs arrive before the end of the connection, and wait for their turn
        assert time.monotonic() < end
        time.sleep(0.05)


@spec("broker", 200)
@spec("wire", 9)
def test_a_message_of_64_mib_arrives_and_a_larger_one_is_refused_by_the_sdk(node: ProcessWorld, app: Application) -> None:
    """The session remains usable."""
    app.session.open_queue(PRIORITY, read=True, write=True,
                           options=QueueOptions(max_unconfirmed_bytes=256 << 20))
    payload = os.urandom(1 << 20) * 64
    app.session.post(PRIORITY, payload, on_ack=app.acks.put)
    assert app.next_ack(60).status is AckStatus.SUCCESS
    assert app.take(deadline=60)[0].data == payload
    with pytest.raises(blazingmq.Error):
        app.session.post(PRIORITY, payload + b"x")
    app.post(PRIORITY, b"fine")
    assert app.take()[0].data == b"fine"


@spec("broker", 201)
def test_255_properties_and_a_name_of_4095_bytes(node: ProcessWorld, app: Application) -> None:
    """Larger ones are refused by the SDK."""
    app.session.open_queue(PRIORITY, read=True, write=True)
    properties: dict[str, Any] = {f"p{i}": i for i in range(254)} | {"n" * 4095: "long"}
    app.post(PRIORITY, b"m", properties=properties)
    assert app.take()[0].properties == properties
    with pytest.raises((blazingmq.Error, ValueError)):
        app.session.post(PRIORITY, b"m", properties=properties | {"one": 1})


@spec("broker", 202)
def test_payloads_and_guids_are_the_same_at_both_ends(node: ProcessWorld, app: Application) -> None:
    """With no bytes, all byte values, and sizes near a multiple of the padding."""
    app.session.open_queue(PRIORITY, read=True, write=True)
    for payload in (b"\0", bytes(range(256)), b"abc", b"abcd", b"\4\4\4\4", b"\0" * 1023):
        ack = app.post(PRIORITY, payload)
        message = app.take()[0]
        assert (message.data, message.guid) == (payload, ack.guid)


def test_a_thousand_queues_in_one_session(node: ProcessWorld, app: Application) -> None:
    """They are opened, used and closed."""
    uris = [f"bmq://d/q{number}" for number in range(1000)]
    for uri in uris:
        app.session.open_queue(uri, read=True, write=True)
    for uri in uris:
        app.session.post(uri, uri.encode(), on_ack=app.acks.put)
    assert {app.next_ack(30).status for _ in uris} == {AckStatus.SUCCESS}
    assert sorted(m.data.decode() for m in app.take(1000, deadline=30)) == sorted(uris)
    for uri in uris:
        app.session.close_queue(uri)


def test_two_hundred_sessions_at_once(node: ProcessWorld) -> None:
    """In four processes of fifty; each session posts to one queue and reads its own."""
    text = """
        import os
        sessions = [make() for _ in range(50)]
        for number, session in enumerate(sessions):
            session.open_queue("bmq://d/shared", write=True)
            session.open_queue(f"bmq://d/own-{os.getpid()}-{number}", read=True, write=True)
        say("open")
        sys.stdin.readline()
        acks = queue.Queue()
        for number, session in enumerate(sessions):
            session.post("bmq://d/shared", b"m", on_ack=acks.put)
            session.post(f"bmq://d/own-{os.getpid()}-{number}", b"%d" % number, on_ack=acks.put)
        for _ in range(100):
            assert acks.get(timeout=60).status is blazingmq.AckStatus.SUCCESS
        assert sorted(int(messages.get(timeout=60)[0].data) for _ in range(50)) == list(range(50))
        say("done")
        sys.stdin.readline()
        for session in sessions:
            session.stop()
        say("bye")
    """
    with script(node.broker.uri, text) as a, script(node.broker.uri, text) as b, \
            script(node.broker.uri, text) as c, script(node.broker.uri, text) as d:
        for word in ("open", "done", "bye"):
            for process in (a, b, c, d):
                expect_line(process, word)
            for process in (a, b, c, d):
                if word != "bye":
                    process.stdin.write("\n")
                    process.stdin.flush()
    assert node.stored("bmq://d/shared") == 200


# -- refusals and timeouts


@pytest.mark.parametrize(("uri", "options", "word"), [
    ("bmq://nosuch/q", {"write": True}, "UNKNOWN"),
    ("bmq://f/q", {"read": True}, "UNKNOWN"),
    ("bmq://d/q?id=foo", {"read": True}, "UNKNOWN"),
    ("not a uri", {"write": True}, "INVALID_URI")])
@spec("broker", 30, 31, 7)
def test_a_refused_open_raises_with_its_reason(node: ProcessWorld, app: Application, uri: str,
                                               options: dict[str, bool], word: str) -> None:
    """The session remains usable."""
    with pytest.raises(blazingmq.Error, match=word):
        app.session.open_queue(uri, **options)
    app.session.open_queue(PRIORITY, write=True)
    app.post(PRIORITY, b"fine")


@spec("broker", 184)
def test_a_second_producer_beyond_the_limit_is_refused(node: ProcessWorld, app: Application) -> None:
    """It is accepted after the close of the first one."""
    node.domain("one", maxProducers=1)
    app.session.open_queue("bmq://one/q", write=True)
    with application(node.broker.uri) as other:
        with pytest.raises(blazingmq.Error, match="UNKNOWN"):
            other.session.open_queue("bmq://one/q", write=True)
        app.session.close_queue("bmq://one/q")
        other.session.open_queue("bmq://one/q", write=True)
        other.post("bmq://one/q", b"m")


@spec("broker", 176, 179)
@pytest.mark.parametrize(("limit", "status"), [({"queue_messages": 1}, AckStatus.LIMIT_MESSAGES),
                                               ({"queue_bytes": 1}, AckStatus.LIMIT_BYTES)])
def test_a_full_queue_nacks_with_the_right_status(node: ProcessWorld, app: Application, limit: dict[str, int],
                                                  status: AckStatus) -> None:
    """With a limit of one message, two are accepted, as by the original."""
    node.domain("full", **limit)
    app.session.open_queue("bmq://full/q", write=True)
    assert [app.post("bmq://full/q", b"x").status for _ in range(3)] == [AckStatus.SUCCESS] * 2 + [status]


def test_connecting_to_a_silent_port_times_out() -> None:
    """With BrokerTimeoutError."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(BrokerTimeoutError):
        Application(f"tcp://127.0.0.1:{silent.getsockname()[1]}", timeout=Timeouts(connect_timeout=0.5))


def test_a_too_large_window_of_reserved_operations_is_refused_locally(node: ProcessWorld, app: Application) -> None:
    """Posts to a queue opened for reading, and the close of a queue that is not open, are refused, too."""
    app.session.open_queue(PRIORITY, read=True)
    with pytest.raises(blazingmq.Error):
        app.session.post(PRIORITY, b"m")
    with pytest.raises(blazingmq.Error):
        app.session.close_queue("bmq://d/never")


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Send requests to the broker until a condition is true."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what


@spec("broker", 45)
def test_an_open_answered_after_its_timeout_leaves_no_handle(node: ProcessWorld, app: Application) -> None:
    """The broker is paused meanwhile."""
    with application(node.broker.uri) as witness:
        witness.session.open_queue(PRIORITY, write=True)
        process = node.broker.process
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(BrokerTimeoutError):
            app.session.open_queue(PRIORITY, read=True, timeout=0.5)
        process.send_signal(signal.SIGCONT)
        node.expect_log("Received control message", "closeQueue")  # the SDK closes a queue whose open was answered too late
        eventually(lambda: "1 handles:" in node.admin("DOMAINS DOMAIN d QUEUE q INTERNALS"), "a handle was left")
        witness.post(PRIORITY, b"m")
        assert node.stored(PRIORITY) == 1
        with application(node.broker.uri) as heir:
            heir.session.open_queue(PRIORITY, read=True)
            assert heir.take()[0].data == b"m"


@spec("broker", 46)
def test_a_close_answered_after_its_timeout_still_takes_effect(node: ProcessWorld, app: Application) -> None:
    """The client treats the queue as closed; later the broker does, too."""
    with application(node.broker.uri) as witness:
        witness.session.open_queue(PRIORITY, write=True)
        app.session.open_queue(PRIORITY, write=True)
        process = node.broker.process
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(blazingmq.Error):
            app.session.close_queue(PRIORITY, timeout=0.5)
        process.send_signal(signal.SIGCONT)
        node.expect_log("Received control message", "closeQueue")
        eventually(lambda: "1 handles:" in node.admin("DOMAINS DOMAIN d QUEUE q INTERNALS"), "a handle was left")


@spec("broker", 47)
def test_closing_a_queue_while_the_broker_is_down_succeeds(node: ProcessWorld, app: Application) -> None:
    """After the restart the queue is not opened again."""
    app.session.open_queue(PRIORITY, write=True)
    app.session.open_queue("bmq://d/kept", write=True)
    node._admin = None
    node.crash()
    app.wait_event(events.ConnectionLost)
    app.session.close_queue(PRIORITY)
    node.start()
    app.wait_event(events.StateRestored)
    app.post("bmq://d/kept", b"m")
    assert "bmq://d/kept" in node.admin("DOMAINS DOMAIN d INFOS")
    assert "ActiveQueues ..: 1" in node.admin("DOMAINS DOMAIN d INFOS")


@spec("broker", 232)
def test_a_cut_connection_is_repaired_by_the_sdk(node: ProcessWorld) -> None:
    """Over a relay that drops the connection: lost, reconnected, queues reopened, messages delivered."""
    with Relay(node.broker.port) as relay, application(relay.uri) as app:
        app.session.open_queue(PRIORITY, read=True, write=True)
        app.post(PRIORITY, b"before")
        assert app.take()[0].data == b"before"
        eventually(lambda: node.stored(PRIORITY) == 0, "the confirm did not arrive")
        relay.cut()
        app.wait_event(events.ConnectionLost)
        app.wait_event(events.Reconnected)
        app.wait_event(events.StateRestored)
        assert app.post(PRIORITY, b"after").status is AckStatus.SUCCESS
        assert app.take()[0].data == b"after"


def test_an_unhealthy_host_suspends_and_a_healthy_one_resumes(node: ProcessWorld) -> None:
    """Meanwhile another consumer gets the messages, and delivered ones can be confirmed."""
    monitor = BasicHealthMonitor()
    with application(node.broker.uri, host_health_monitor=monitor) as frail, application(node.broker.uri) as other:
        frail.session.open_queue(PRIORITY, read=True, options=QueueOptions(suspends_on_bad_host_health=True,
                                                                           consumer_priority=2))
        other.session.open_queue(PRIORITY, read=True, write=True)
        other.post(PRIORITY, b"1")
        held, handle = frail.messages.get(timeout=10)
        monitor.set_unhealthy()
        frail.wait_event(events.QueueSuspended)
        other.post(PRIORITY, b"2")
        assert [m.data for m in other.take()] == [b"2"]
        handle.confirm()
        eventually(lambda: node.stored(PRIORITY) == 0, "the confirm of a suspended consumer was lost")
        monitor.set_healthy()
        frail.wait_event(events.QueueResumed)
        other.post(PRIORITY, b"3")
        assert [held.data, *[m.data for m in frail.take()]] == [b"1", b"3"]


class Relay:
    """A TCP relay to the broker whose connections can be dropped."""

    def __init__(self, port: int) -> None:
        self._port, self._pairs = port, list[tuple[socket.socket, socket.socket]]()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.uri = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            self._pairs.append((near, far))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def cut(self) -> None:
        """Drop all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
