"""The kombu transport for Celery, used by kombu programs with broker processes."""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.process import STARTED, ProcessWorld
from kombu import Connection, Consumer, Exchange, Queue
from kombu.common import Broadcast
from kombu.exceptions import OperationalError

from bmqtwist.kombu import LinkLost, Refused
from bmqtwist.kombu.transport import queue_name
from bmqtwist.sdk import simple

DEADLINE = 60.0
SILENCE = 0.3
OPTIONS = {"broadcast_domain": "b"}

pytestmark = pytest.mark.process


def world_in(directory: Path, **app: Any) -> ProcessWorld:
    """Run a broker process with a persistent priority domain `d` and a broadcast domain `b`."""
    world = ProcessWorld(directory, start=False, app=app)
    world.broker.launch()
    world.broker.expect(STARTED, deadline=180.0)
    world.config.domain("d")
    world.config.domain("b", "broadcast", in_memory=True)
    return world


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessWorld]:
    """Yield a broker for tests that leave it unchanged."""
    world = world_in(tmp_path_factory.mktemp("broker"))
    yield world
    world.cleanup()


def connect(world: ProcessWorld, **options: Any) -> Connection:
    """Open a connection; `options` are transport_options."""
    return Connection(f"bmq://127.0.0.1:{world.broker.port}/d", transport_options={**OPTIONS, **options})


class Collector:
    """A consumer that collects bodies and messages, without acknowledgement."""

    def __init__(self, channel: Any, *queues: Queue, prefetch: int = 0, **options: Any) -> None:
        self.bodies: list[Any] = []
        self.messages: list[Any] = []
        self.connection = channel.connection.client
        if prefetch:
            channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(channel, list(queues), callbacks=[self.take], **options)
        self.consumer.consume()

    def take(self, body: Any, message: Any) -> None:
        """Collect a message from kombu."""
        self.bodies.append(body)
        self.messages.append(message)

    def until(self, count: int) -> list[Any]:
        """Drain events until there are `count` messages; return their bodies."""
        while len(self.bodies) < count:
            self.connection.drain_events(timeout=DEADLINE)
        return self.bodies

    def is_idle(self) -> bool:
        """Return whether no message arrives."""
        with pytest.raises(socket.timeout):
            self.connection.drain_events(timeout=SILENCE)
        return True


def test_messages_keep_body_type_and_headers(node: ProcessWorld) -> None:
    with connect(node) as connection:
        assert connection.connected is False and "bmq://" in connection.as_uri()
        queue = connection.SimpleQueue("a name@with, signs " + "x" * 80)
        queue.put({"ü": [1, None]}, headers={"h": "1"}, correlation_id="c")
        queue.put(b"\xff\x00")
        queue.put("text", compression="zlib")
        first, second, third = (queue.get(timeout=DEADLINE) for _ in range(3))
        assert (first.payload, first.headers["h"], first.properties["correlation_id"]) == ({"ü": [1, None]}, "1", "c")
        assert (second.body, third.payload) == (b"\xff\x00", "text")
        for message in (first, second, third):
            message.ack()
        queue.close()
        assert node.stored("bmq://d/" + queue_name("a name@with, signs " + "x" * 80)) == 0


def test_the_prefetch_count_limits_unconfirmed_messages_and_can_change(node: ProcessWorld) -> None:
    queue = Queue("window")
    with connect(node) as connection, connect(node) as other:
        producer = other.Producer()
        for number in range(10):
            producer.publish(number, routing_key="window")
        channel = connection.channel()
        mine = Collector(channel, queue, prefetch=2)
        assert mine.until(2) == [0, 1] and mine.is_idle()
        theirs = Collector(other.channel(), queue, prefetch=1)
        assert theirs.until(1) == [2] and theirs.is_idle()
        mine.consumer.qos(prefetch_count=4)
        assert mine.until(4) == [0, 1, 3, 4] and mine.is_idle()
        mine.consumer.qos(prefetch_count=1)
        mine.messages[0].ack()
        assert mine.is_idle()
        mine.consumer.qos(prefetch_count=0)
        assert mine.until(9) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
        mine.consumer.cancel()  # delivered messages can still be acknowledged
        producer.publish(10, routing_key="window")
        theirs.messages[0].ack()
        assert theirs.until(2) == [2, 10]
        for message in mine.messages[1:-1]:
            message.ack()
        channel.close()  # unacknowledged messages go to other consumers
        theirs.messages[1].ack()
        assert theirs.until(3) == [2, 10, 9]
        assert theirs.messages[2].delivery_info["redelivered"] is True
        theirs.messages[2].ack()
    assert node.stored("bmq://d/window") == 0


def test_get_reject_requeue_recover_and_purge(node: ProcessWorld) -> None:
    with connect(node) as connection:
        channel = connection.channel()
        queue = Queue("taken")(channel)
        assert queue.get() is None
        producer = connection.Producer()
        for number in range(3):
            producer.publish(number, routing_key="taken")
        first, second = queue.get(), queue.get()
        assert (first.payload, second.payload) == (0, 1)
        first.reject(requeue=True)  # to the end
        second.reject()
        got = [queue.get(), queue.get()]
        assert [(each.payload, each.delivery_info["redelivered"]) for each in got] == [(2, False), (0, True)]
        channel.basic_recover(requeue=True)
        assert node.stored("bmq://d/taken") == 2
        with pytest.raises(LinkLost):
            held = queue.get()
            channel.close()
            held.ack()
        queue = Queue("taken")(connection.channel())
        assert queue.purge() == 2
        assert queue.get() is None
    assert node.stored("bmq://d/taken") == 0


def test_topic_and_fanout_exchanges_reach_queues_that_other_programs_declared(node: ProcessWorld) -> None:
    news, all_of_it = Exchange("news", "topic"), Exchange("shout", "fanout")
    passing = {"durable": False, "auto_delete": True}
    with connect(node) as reader, connect(node) as writer:
        sport = Collector(reader.channel(), Queue("sport", news, "sport.*", **passing), no_ack=True)
        everything = Collector(reader.channel(), Queue("everything", news, "#", **passing), no_ack=True)
        broadcast = Collector(reader.channel(), Broadcast("shout", exchange=all_of_it), no_ack=True)
        producer = writer.Producer()
        archive = Queue("archive", news, "sport.#")
        for key in ("sport.ski", "sport.run", "weather.sun"):
            producer.publish(key, exchange=news, routing_key=key, declare=[news, archive])
        producer.publish("all", exchange=all_of_it, declare=[all_of_it])
        assert everything.until(3) == ["sport.ski", "sport.run", "weather.sun"]
        assert sport.until(2) == ["sport.ski", "sport.run"]
        assert broadcast.until(1) == ["all"] and broadcast.is_idle() and len(sport.bodies) == 2
        assert [archive(writer).get(no_ack=True).payload for _ in range(2)] == ["sport.ski", "sport.run"]
        assert node.stored("bmq://d/archive") == 0


def test_unroutable_messages_and_unknown_queues_are_refused(node: ProcessWorld) -> None:
    with connect(node) as connection:
        with pytest.raises(Refused, match="declare the queue"):
            unbound = Exchange("unbound", "direct")
            connection.Producer().publish(1, exchange=unbound, routing_key="k", declare=[unbound])
    with Connection(f"bmq://127.0.0.1:{node.broker.port}/nowhere", transport_options=OPTIONS) as connection:
        with pytest.raises(OperationalError, match="bmq://nowhere/q"):
            connection.Producer().publish(1, routing_key="q")
    with connect(node, broadcast_domain=None) as connection:
        assert not connection.supports_exchange_type("fanout") and connection.supports_exchange_type("topic")


def test_a_full_queue_refuses_only_producers_that_wait_for_acks(node: ProcessWorld) -> None:
    node.domain("small", queue_messages=1)  # and one more
    url = f"bmq://127.0.0.1:{node.broker.port}/small"
    with Connection(url, transport_options=OPTIONS) as connection:
        producer = connection.Producer()
        for number in range(2):
            producer.publish(number, routing_key="q")
        with pytest.raises(Refused, match="LIMIT_MESSAGES"):
            connection.ensure(producer, producer.publish, max_retries=3)(2, routing_key="q")
    with Connection(url, transport_options={**OPTIONS, "confirm_publish": False}) as connection:
        connection.Producer().publish(3, routing_key="q")
        assert [message.payload for message in map(Queue("q")(connection).get, [True, True])] == [0, 1]
        connection.Producer().publish(4, routing_key="q")
    assert node.stored("bmq://small/q") == 1  # close waits for outstanding posts


def test_messages_of_other_producers_with_subscriptions_and_priorities_are_consumed(node: ProcessWorld) -> None:
    with simple.Session(node.broker.uri) as session, connect(node) as connection, connect(node) as other:
        raw = session.open("bmq://d/mixed", write=True)
        large = Queue("mixed", consumer_arguments={"x-expression": "size > 10"})
        spare = Queue("mixed", consumer_arguments={"x-priority": -1})
        mine, theirs = Collector(connection.channel(), large), Collector(other.channel(), spare)
        raw.post(b"\x01", {"size": 20})
        raw.post(b"\x02", {"size": 5})
        assert mine.until(1) == [b"\x01"] and mine.messages[0].headers == {"size": 20}
        assert theirs.until(1) == [b"\x02"]
        for message in mine.messages + theirs.messages:
            message.ack()
        tasks = Collector(connection.channel(), Queue("typed", consumer_arguments={"x-expression": 'task == "resize"'}))
        producer = other.Producer()
        producer.publish("no", routing_key="typed", headers={"task": "send"})
        producer.publish("yes", routing_key="typed", headers={"task": "resize"})
        assert tasks.until(1) == ["yes"] and tasks.is_idle()
        tasks.messages[0].ack()


def test_a_program_that_does_not_drain_keeps_its_connection_and_its_messages(tmp_path: Path) -> None:
    """The broker disconnects clients that are silent for about a second.

    The transport sends heartbeats during long tasks.
    """
    world = world_in(tmp_path, tcp={"heartbeatIntervalMs": 400},
                     heartbeats={"client": 2, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 0})
    try:
        with connect(world) as connection, connect(world) as other:
            connection.Producer().publish("work", routing_key="q")
            mine = Collector(connection.channel(), Queue("q"))
            mine.until(1)
            time.sleep(3.0)  # the task
            theirs = Collector(other.channel(), Queue("q"))
            assert theirs.is_idle()
            mine.messages[0].ack()
        assert world.stored() == 0
    finally:
        world.cleanup()


def test_posts_during_a_kill_of_the_broker_are_stored_once_and_consumers_get_a_connection_error(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    try:
        with connect(world) as reader, connect(world, post_timeout_s=DEADLINE) as writer:
            mine = Collector(reader.channel(), Queue("q"), prefetch=2)
            producer = writer.Producer()
            producer.publish("done too late", routing_key="q")
            producer.publish(0, routing_key="q")
            mine.until(2)
            sent = threading.Event()

            def publish() -> None:
                for number in range(1, 200):
                    producer.publish(number, routing_key="q")
                    if number == 50:
                        sent.set()

            publisher = threading.Thread(target=publish, daemon=True)
            publisher.start()
            assert sent.wait(DEADLINE)
            world.crash()
            world.start()
            publisher.join(DEADLINE)
            assert not publisher.is_alive()
            with pytest.raises(LinkLost):
                reader.drain_events(timeout=DEADLINE)
            with pytest.raises(LinkLost):
                mine.messages[0].ack()
            assert not reader.connected
            reader.collect()
            again = Collector(reader.default_channel, Queue("q"))  # a new connection
            assert again.until(200) == list(range(200))  # late acknowledgements count
            assert [message.delivery_info["redelivered"] for message in again.messages[:2]] == [True, True]
            for message in again.messages:
                message.ack()
        assert world.stored() == 0
    finally:
        world.cleanup()


def test_a_forked_child_opens_its_own_connection_and_closes_the_inherited_one(node: ProcessWorld) -> None:
    """The broker detects the end of a killed parent while its children run."""
    program = f"""
import os, sys, time
from kombu import Connection, Consumer, Queue
import bmqtwist.kombu
connection = Connection("bmq://127.0.0.1:{node.broker.port}/d", transport_options={OPTIONS!r})
producer = connection.Producer()
producer.publish("parent", routing_key="forked")
channel = connection.channel()
with Consumer(channel, [Queue("forked")], callbacks=[lambda body, message: None]):
    connection.drain_events(timeout={DEADLINE})
    if os.fork() == 0:
        connection.ensure(producer, producer.publish)("child", routing_key="child")
        print("ready", flush=True)
    time.sleep({DEADLINE})
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None and select.select([process.stdout], [], [], DEADLINE)[0]
        assert process.stdout.readline() == b"ready\n"
        with connect(node) as connection:
            assert Collector(connection.channel(), Queue("child"), no_ack=True).until(1) == ["child"]
            os.kill(process.pid, signal.SIGKILL)
            mine = Collector(connection.channel(), Queue("forked"))
            assert mine.until(1) == ["parent"] and mine.messages[0].delivery_info["redelivered"]
            mine.messages[0].ack()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)


def test_a_missing_broker_is_a_timely_error_and_a_retry_connects(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    try:
        world.crash()
        connection = Connection(f"bmq://127.0.0.1:{world.broker.port}/d", connect_timeout=0.5)
        with pytest.raises(OperationalError, match="no connection to tcp://127.0.0.1"):
            connection.ensure_connection(max_retries=1, interval_start=0.0)
        world.start()
        connection.ensure_connection(max_retries=100, interval_start=0.1, interval_step=0.0)
        assert connection.connected
        connection.release()
        with Connection(f"bmq://127.0.0.1:9;bmq://127.0.0.1:{world.broker.port}/d", connect_timeout=0.5) as several:
            several.ensure_connection(max_retries=10, interval_start=0.1, interval_step=0.0)
            assert several.connected
    finally:
        world.cleanup()


def test_tls_and_a_password(secure: tuple[str, Path]) -> None:  # noqa: F811
    address, cert = secure
    host = address.removeprefix("tls://")
    with Connection(f"bmqs://alice:secret@{host}/d", ssl={"ca_certs": str(cert)}) as connection:
        queue = connection.SimpleQueue("q")
        queue.put("x" * 1_000_000)
        message = queue.get(timeout=DEADLINE)
        assert len(message.payload) == 1_000_000
        message.ack()
        assert "secret" not in connection.as_uri()
        queue.close()
    context = ssl.create_default_context(cafile=str(cert))
    with pytest.raises(Refused), Connection(f"bmq://alice:guess@{host}/d", ssl=context) as connection:
        connection.connect()
    with Connection(f"bmqs://alice:secret@{host}/d", connect_timeout=0.5) as connection:
        with pytest.raises(OperationalError):  # a certificate without a known authority
            connection.ensure_connection(max_retries=1, interval_start=0.0)
