"""Delayed ACKs, delayed PUSHes and read pauses, in a session and in the performer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.client import Queue
from kit.codec import Push
from kit.connections import Driver, Tls, Transport, connect
from kit.memory import MemoryWorld
from kit.paced import OFTEN, SHARED, acked, count_received, post_often, session_of

from bmqtwist.broker.batching import SYNC_DELAY_S
from bmqtwist.broker.storage_turn import COALESCED_BYTES_MAX, UNSYNCED_BYTES_MAX
from bmqtwist.limits import OUT_EVENT_BYTES_MAX
from bmqtwist.link.batching import (
    BATCH_MAX_S,
    BATCH_MIN_S,
    BUSY_MESSAGES,
    DELAYED_ACKS_MAX,
    DELAYED_PUSHES_MAX,
    PAUSED_READ_BYTES_MAX,
    RUN_EVENTS,
    USELESS_DELAYS_MAX,
    AckBatching,
)
from bmqtwist.queue.meter import AMPLE_BYTES_MIN, AMPLE_MESSAGES_MIN
from bmqtwist.queue.window import DeliveryWindow
from bmqtwist.reactor import performer as module
from bmqtwist.reactor.performer import TURN_INPUT_S, ReactorPerformer
from bmqtwist.reactor.tcp import EMPTY_POLLS_MAX, Connection
from bmqtwist.report import ListReport


def test_acks_of_a_steady_producer_are_sent_together(memory: MemoryWorld) -> None:
    producer = memory.producer()
    post_often(memory, producer, RUN_EVENTS)
    assert acked(producer) == RUN_EVENTS and not session_of(producer).delays_acks
    queue = producer
    counts: list[int] = []
    for _ in range(40):
        queue.put()
        before = acked(producer)
        memory.advance(OFTEN)
        counts.append(acked(producer) - before)
    assert sum(counts) >= 40 - BATCH_MIN_S / OFTEN - 1 and set(counts) == {0, BATCH_MIN_S / OFTEN}, "four at a time"


def test_delayed_acks_are_sent_at_their_deadline_without_other_input(memory: MemoryWorld) -> None:
    producer = memory.producer()
    post_often(memory, producer, RUN_EVENTS + 6)
    before = acked(producer)
    producer.put()
    assert acked(producer) == before < RUN_EVENTS + 7
    deadline = memory.broker.next_deadline()
    assert deadline is not None and deadline <= memory.now + BATCH_MAX_S
    memory.advance(BATCH_MAX_S)
    assert acked(producer) == RUN_EVENTS + 7


def test_a_producer_that_blocks_on_each_ack_soon_receives_acks_at_once(memory: MemoryWorld) -> None:
    producer = memory.producer()
    post_often(memory, producer, RUN_EVENTS + 2)
    memory.advance(BATCH_MAX_S)
    posted, waits = RUN_EVENTS + 2, 0
    for _ in range(3 * RUN_EVENTS):
        producer.put()
        posted += 1
        while acked(producer) < posted:
            memory.advance(BATCH_MAX_S)
            waits += 1
        memory.advance(OFTEN)
    assert not session_of(producer).delays_acks and waits <= USELESS_DELAYS_MAX + 1


def test_the_number_of_delayed_acks_is_limited(memory: MemoryWorld) -> None:
    producer = memory.producer()
    post_often(memory, producer, RUN_EVENTS + 2)
    memory.advance(BATCH_MIN_S)
    before = acked(producer)
    post_often(memory, producer, 1)
    for _ in range(DELAYED_ACKS_MAX):
        producer.put()
    assert acked(producer) >= before + DELAYED_ACKS_MAX


def test_a_negative_ack_is_not_delayed(memory: MemoryWorld) -> None:
    producer = memory.producer()
    post_often(memory, producer, RUN_EVENTS + 2)
    assert session_of(producer).delays_acks
    producer.put(guid=bytes(16))
    acked(producer)
    assert any(event.ack.status for event in producer.client.events if event.kind == "ack")


def test_a_control_response_sends_delayed_acks(memory: MemoryWorld) -> None:
    producer = memory.producer()
    post_often(memory, producer, RUN_EVENTS + 2)
    producer.put()
    assert acked(producer) < RUN_EVENTS + 3
    producer.client.barrier()
    assert acked(producer) == RUN_EVENTS + 3


def test_a_consumer_that_confirms_steadily_gets_read_pauses(memory: MemoryWorld) -> None:
    producer, consumer = memory.producer(), memory.consumer("bmq://d/q", m=200)
    seen: list[bool] = []
    for _ in range(2 * RUN_EVENTS):
        producer.put()
        consumer.confirm(*consumer.take(1))
        memory.advance(OFTEN)
        seen.append(session_of(consumer).pausable)
    assert seen == [False] * RUN_EVENTS + [True] * RUN_EVENTS
    consumer.client.barrier()
    assert not session_of(consumer).pausable, "the request needs a prompt answer"


@pytest.mark.parametrize("most, holds, later", [(200, 100, True), (200, 102, False), (4, 3, False)])
def test_a_consumer_near_its_unconfirmed_limit_gets_no_read_pause(memory: MemoryWorld, most: int, holds: int,
                                                                  later: bool) -> None:
    producer, consumer = memory.producer(), memory.consumer("bmq://d/q", m=most)
    producer.post_all(*[b"x"] * holds)
    kept = consumer.take(holds)
    for message in kept[:RUN_EVENTS + 1]:
        producer.put()
        consumer.confirm(message)
        memory.advance(OFTEN)
        if len(kept) <= RUN_EVENTS:
            kept += consumer.take(1)
    assert session_of(consumer).pausable == later


@pytest.mark.parametrize("limits, later", [
    ({"queue_messages": AMPLE_MESSAGES_MIN + 20}, True), ({"queue_messages": AMPLE_MESSAGES_MIN + 19}, False),
    ({"queue_bytes": AMPLE_BYTES_MIN + 20}, True), ({"queue_bytes": AMPLE_BYTES_MIN + 19}, False),
    ({"domain_messages": AMPLE_MESSAGES_MIN + 19}, False), ({"queue_messages": 79}, False)])
def test_a_consumer_of_a_queue_near_its_quota_gets_no_read_pause(memory: MemoryWorld, limits: dict[str, int],
                                                                 later: bool) -> None:
    """Otherwise producers would be refused although messages are already confirmed."""
    memory.reconfigure("d", **limits)
    producer, consumer = memory.producer(), memory.consumer("bmq://d/q", m=200)
    producer.post_all(*[b"x"] * 19)
    for _ in range(2 * RUN_EVENTS):
        producer.put(b"x")
        consumer.confirm(*consumer.take(1))
        memory.advance(OFTEN)
    assert session_of(consumer).pausable == later


@pytest.mark.parametrize("posts", [True, False])
def test_a_session_with_a_writer_handle_gets_no_read_pause(memory: MemoryWorld, posts: bool) -> None:
    client = memory.client()
    both = client.open("bmq://d/q", read=1, write=1)
    both.configure(m=200)
    other = both if posts else memory.producer()
    for _ in range(2 * RUN_EVENTS):
        other.put()
        both.confirm(*both.take(1))
        memory.advance(OFTEN)
    assert not session_of(both).pausable


def test_a_request_after_confirms_ends_the_read_pause(memory: MemoryWorld) -> None:
    producer, consumer = memory.producer(), memory.consumer("bmq://d/q", m=200)
    for _ in range(2 * RUN_EVENTS):
        producer.put()
        consumer.confirm(*consumer.take(1))
        memory.advance(OFTEN)
    assert session_of(consumer).pausable
    producer.put()
    (message,) = consumer.take(1)
    sent: list[bytes] = []
    link = consumer.client.link
    send = link.send
    link.send = sent.append  # type: ignore[method-assign]
    consumer.confirm(message)
    consumer.client.send_request({"closeQueue": {"handleParameters": {"uri": "bmq://d/none", "qId": 77, "flags": 2}}})
    link.send = send  # type: ignore[method-assign]
    send(b"".join(sent))
    assert not session_of(consumer).pausable


def pushes_received(queue: Queue) -> int:
    """The number of PUSHes that arrived."""
    return count_received(queue, "push")


def is_pushed_at_once(memory: MemoryWorld, producer: Queue, consumer: Queue) -> bool:
    """Return whether the next message is pushed in the turn of its PUT."""
    before = pushes_received(consumer)
    producer.put()
    memory.run()
    return pushes_received(consumer) == before + 1


Busy = tuple[Queue, Queue, list[Push]]


@pytest.fixture
def busy(memory: MemoryWorld) -> Busy:
    """A producer, a consumer that confirms steadily with more than BUSY_MESSAGES unconfirmed messages, and these."""
    producer, consumer = memory.producer(), memory.consumer("bmq://d/q", m=4 * BUSY_MESSAGES)
    producer.post_all(*[b"x"] * (BUSY_MESSAGES + 2 * RUN_EVENTS))
    kept = consumer.take(BUSY_MESSAGES + 2 * RUN_EVENTS)
    for message in kept[:RUN_EVENTS + 1]:
        consumer.confirm(message)
        memory.advance(OFTEN)
    assert session_of(consumer).pausable
    return producer, consumer, kept[RUN_EVENTS + 1:]


def test_pushes_for_a_busy_consumer_are_sent_together(memory: MemoryWorld, busy: Busy) -> None:
    producer, consumer, _ = busy
    counts: list[int] = []
    for number in range(3 * SHARED):
        producer.put(b"%d" % number)
        before = pushes_received(consumer)
        memory.advance(OFTEN)
        counts.append(pushes_received(consumer) - before)
    assert set(counts) == {0, SHARED} and sum(counts) >= 2 * SHARED
    payloads = [message.payload for message in consumer.take(2 * SHARED)]
    assert payloads == [b"%d" % number for number in range(2 * SHARED)]


def test_the_number_of_delayed_pushes_is_limited(memory: MemoryWorld, busy: Busy) -> None:
    producer, consumer, _ = busy
    before = pushes_received(consumer)
    for _ in range(DELAYED_PUSHES_MAX - 1):
        producer.put()
        memory.run()
    assert pushes_received(consumer) == before
    producer.put()
    memory.run()
    assert pushes_received(consumer) == before + DELAYED_PUSHES_MAX


@pytest.mark.parametrize("output_bytes_max, bytes_max", [(0, OUT_EVENT_BYTES_MAX), (4 << 16, 1 << 16)])
def test_the_bytes_of_delayed_pushes_are_limited(memory: MemoryWorld, busy: Busy, output_bytes_max: int,
                                                 bytes_max: int) -> None:
    """At most the bytes of one event; fewer with a small output limit."""
    producer, consumer, _ = busy
    session_of(consumer).kind.window = DeliveryWindow(output_bytes_max)
    before = pushes_received(consumer)
    producer.put(bytes(bytes_max // 2))
    memory.run()
    assert pushes_received(consumer) == before
    producer.put(bytes(bytes_max // 2 + 1))
    memory.run()
    assert pushes_received(consumer) == before + 2


def test_delayed_pushes_are_sent_at_their_deadline(memory: MemoryWorld, busy: Busy) -> None:
    producer, consumer, _ = busy
    before = pushes_received(consumer)
    producer.put()
    memory.run()
    assert pushes_received(consumer) == before
    memory.advance(BATCH_MAX_S)
    assert pushes_received(consumer) == before + 1


def test_pushes_are_not_delayed_for_a_consumer_that_stopped_confirming(memory: MemoryWorld, busy: Busy) -> None:
    producer, consumer, _ = busy
    memory.advance(2 * BATCH_MAX_S + OFTEN)
    assert is_pushed_at_once(memory, producer, consumer)


def test_pushes_are_not_delayed_for_a_consumer_with_few_unconfirmed_messages(memory: MemoryWorld, busy: Busy) -> None:
    producer, consumer, kept = busy
    for message in kept[:RUN_EVENTS + 1]:
        consumer.confirm(message)
    assert session_of(consumer).pausable
    assert is_pushed_at_once(memory, producer, consumer)


def test_pushes_are_not_delayed_for_a_consumer_near_its_unconfirmed_limit(memory: MemoryWorld, busy: Busy) -> None:
    producer, consumer, kept = busy
    producer.post_all(*[b"x"] * 2 * BUSY_MESSAGES)
    consumer.confirm(kept[0])
    assert not session_of(consumer).pausable
    assert is_pushed_at_once(memory, producer, consumer)


def test_delayed_pushes_do_not_count_as_useless_ack_delays(memory: MemoryWorld, busy: Busy,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    producer, consumer, _ = busy
    sent: list[float] = []
    monkeypatch.setattr(AckBatching, "on_acks_sent", lambda batching, now: sent.append(now))
    before = pushes_received(consumer)
    producer.put()
    memory.advance(BATCH_MAX_S)
    assert pushes_received(consumer) == before + 1 and not sent


# -- syncs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def partition_during_sync(tmp_path: Path) -> tuple[MemoryWorld, Any]:
    """A world with durability `group`, and its partition, which received a message during a sync."""
    world = MemoryWorld(tmp_path)
    world.domain("d")
    producer = world.producer()
    with world.storage_stalled():
        for _ in range(2):
            producer.put()
            world.run()
    partition = world.broker.domains.by_name["d"].queues["q"].partition
    return world, partition


def test_records_stored_during_a_sync_delay_are_written_at_its_end(partition_during_sync: Any) -> None:
    world, partition = partition_during_sync
    written = partition.files.current.data.end
    gate = partition.gate
    assert gate.newest_position and not gate.sync_running, "a message waits for a sync that has not begun"
    deadline = world.broker.next_deadline()
    assert deadline is not None and deadline <= world.now + SYNC_DELAY_S
    other = world.producer()
    other.put()
    world.run()
    assert partition.tail.unwritten_bytes > 0 and not acked(other)
    world.advance(SYNC_DELAY_S)
    assert not partition.tail.unwritten_bytes and partition.files.current.data.end > written and acked(other) == 1


def test_the_bytes_of_coalesced_records_are_limited_during_a_sync_delay(partition_during_sync: Any) -> None:
    world, partition = partition_during_sync
    other = world.producer()
    other.put(bytes(COALESCED_BYTES_MAX // 2))
    world.run()
    assert partition.tail.unwritten_bytes > COALESCED_BYTES_MAX // 2
    other.put(bytes(COALESCED_BYTES_MAX))
    world.run()
    assert not partition.tail.unwritten_bytes and not acked(other), "the records are written, and their sync stays delayed"
    world.advance(SYNC_DELAY_S)
    assert acked(other) == 2


def test_a_sync_with_many_unsynced_bytes_is_not_delayed(partition_during_sync: Any) -> None:
    world, partition = partition_during_sync
    other = world.producer()
    for size in (UNSYNCED_BYTES_MAX // 2, UNSYNCED_BYTES_MAX // 2):
        assert not acked(other)
        other.put(bytes(size))
        world.run()
    assert acked(other) == 2
    other.put()
    world.run()
    assert acked(other) == 2, "the next sync is delayed"
    world.advance(SYNC_DELAY_S)
    assert acked(other) == 3


def test_a_sync_point_writes_all_coalesced_records(partition_during_sync: Any) -> None:
    world, partition = partition_during_sync
    other = world.producer()
    other.put()
    world.run()
    partition.write_sync_point(world.broker.loop.wall(world.now))
    assert not partition.tail.unwritten_bytes


# -- the connection ---------------------------------------------------------------------------------------------------


def paused_connection(*, pausable: bool = True) -> tuple[Connection, Transport, Driver]:
    transport, driver = Transport(), Driver()
    driver.session = SimpleNamespace(remote=SimpleNamespace(sends_at_once=False), delays_acks=False, pausable=pausable)
    connection, _ = connect(transport, driver)
    assert connection.pause_reads() and connection.reads_paused and transport.producerState == "paused"
    return connection, transport, driver


def test_a_read_pause_ends_after_empty_polls() -> None:
    connection, transport, driver = paused_connection()
    transport.socket.comes = [b"abc"]
    connection.poll()
    assert driver.calls[1:] == [("received", driver.session, b"abc")] and connection.reads_paused
    assert not transport.socket.options, "the output carries the acknowledgement"
    for _ in range(EMPTY_POLLS_MAX):
        assert connection.reads_paused
        connection.poll()
    assert not connection.reads_paused and transport.producerState == "producing" and len(transport.socket.options) == 1
    connection.poll()
    assert len(driver.calls) == 2, "the socket is event-driven again"


def test_a_quick_tcp_ack_is_requested_once_after_each_delayed_ack() -> None:
    transport, driver = Transport(), Driver()
    session = driver.session = SimpleNamespace(remote=SimpleNamespace(sends_at_once=False), delays_acks=True, pausable=False)
    connection, _ = connect(transport, driver)
    option_counts: list[int] = []
    for sent in (False, False, True, False, True, True):
        connection.outgoing.sent = connection.outgoing.sent or sent
        connection.dataReceived(b"abc")
        option_counts.append(len(transport.socket.options))
    assert option_counts == [1, 1, 2, 2, 3, 4]
    session.delays_acks = False
    connection.dataReceived(b"abc")
    assert len(transport.socket.options) == 5


def test_the_session_writes_to_the_socket_directly_only_without_unsent_bytes() -> None:
    transport = Transport(2)
    connection, _ = connect(transport)
    assert connection.outgoing.send == transport.socket.send
    connection.write([b"abc"])
    assert connection.outgoing.send is None
    connection.resumeProducing()
    assert connection.outgoing.send == transport.socket.send
    connection.write_rest(b"abc", 1)
    assert connection.outgoing.send is None and connection.waiting_bytes == 2
    connection.resumeProducing()
    connection.connectionLost()
    assert connection.outgoing.send is None and connect(Tls())[0].outgoing.send is None


def test_a_read_pause_ends_when_the_session_is_not_pausable() -> None:
    connection, transport, driver = paused_connection(pausable=False)
    transport.socket.comes = [b"abc"]
    connection.poll()
    assert len(driver.calls) == 2 and not connection.reads_paused and transport.producerState == "producing"


@pytest.mark.parametrize("size", [PAUSED_READ_BYTES_MAX, PAUSED_READ_BYTES_MAX + 1])
def test_a_read_pause_ends_after_a_large_read(size: int) -> None:
    """Official SDKs have at most 4.6 kB in flight: with a read each 2 ms their CONFIRMs would pile up."""
    connection, transport, _ = paused_connection()
    transport.socket.comes = [bytes(size)]
    connection.poll()
    assert connection.reads_paused is (size == PAUSED_READ_BYTES_MAX)


def test_a_stopped_connection_is_not_polled() -> None:
    connection, transport, driver = paused_connection()
    connection.read(False)
    transport.socket.comes = [b"abc"]
    connection.poll()
    assert len(driver.calls) == 1 and not connection.pause_reads()
    connection.read(True)
    assert transport.producerState == "producing" and connection.pause_reads()


def test_a_connection_that_is_stopped_during_a_poll_stays_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, transport, driver = paused_connection()
    transport.socket.comes = [b"abc", b"def"]
    monkeypatch.setattr(driver, "on_received", lambda session, data: connection.read(False))
    connection.poll()
    assert len(transport.socket.comes) == 1 and transport.producerState == "paused" and not connection.reads_paused


@pytest.mark.parametrize("end", [b"", ConnectionResetError()])
def test_a_poll_that_meets_the_end_of_the_stream_leaves_it_to_the_reactor(end: Any) -> None:
    connection, transport, _ = paused_connection()
    transport.socket.comes = [end]
    connection.poll()
    assert not connection.reads_paused and transport.producerState == "producing"


def test_lost_connections_and_tls_connections_have_no_read_pause() -> None:
    assert not connect(Tls())[0].pause_reads()
    connection, _, driver = paused_connection()
    connection.connectionLost()
    connection.poll()
    assert not connection.pause_reads() and driver.calls[-1][0] == "lost"


# -- the loop -----------------------------------------------------------------------------------------------------------


class FakeReactor:
    """Rounds with exact delays. `work`: actions of the next rounds."""

    exact_delay = True
    goes_on: Any = None

    def __init__(self) -> None:
        self.now, self.delays, self.work = 100.0, list[float | None](), list[Any]()

    def run(self, delay: float | None) -> None:
        self.delays.append(delay)
        action = self.work.pop(0) if self.work else None
        if action is None:
            self.now += delay or 0.0
        else:
            self.now += OFTEN
            action()

    def next_delay(self) -> float | None:
        return None if self.work else -1.0


class FakeBroker:
    """Counts turns and ticks."""

    serving = True

    def __init__(self) -> None:
        self.sessions, self.turns, self.ticks, self.deadline = self, 0, list[float](), None

    def turn(self, now: float) -> None:
        self.turns += 1

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        self.deadline = None

    def next_deadline(self) -> float | None:
        return self.deadline

    def on_received(self, session: Any, data: bytes, now: float, later: bool = False) -> None:
        session.pausable = data == b"confirm"


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeReactor, Any, ReactorPerformer]]:
    """(rounds, broker, performer)."""
    rounds, broker = FakeReactor(), FakeBroker()

    def rounds_of(reactor: Any, goes_on: Any) -> FakeReactor:
        rounds.goes_on = goes_on
        return rounds

    monkeypatch.setattr(module, "rounds_of", rounds_of)
    monkeypatch.setattr(module.time, "monotonic", lambda: rounds.now)
    reactor = SimpleNamespace(doIteration=rounds.run, callLater=lambda *_: SimpleNamespace(active=lambda: False))
    performer = ReactorPerformer(reactor, ListReport(), 2, (1, 1), 0.0, 0.0)
    performer.broker = broker  # type: ignore[assignment]
    performer.start()
    yield rounds, broker, performer
    performer.stop()


def test_a_round_ends_for_a_due_turn_and_for_the_next_deadline(loop: Any) -> None:
    rounds, broker, performer = loop
    broker.deadline = rounds.now + 0.25
    performer.request_turn()
    performer.reactor.doIteration(1.0)
    assert broker.turns == 1 and rounds.delays == [0]
    performer.reactor.doIteration(1.0)
    assert rounds.delays[1:] == [0.25] and broker.ticks == [100.25]
    performer.reactor.doIteration(1.0)
    assert rounds.delays[2:] == [1.0] and len(broker.ticks) == 1


def test_a_round_continues_while_its_turn_has_input_time_left(loop: Any) -> None:
    rounds, _, performer = loop
    assert not rounds.goes_on(), "no input"
    client(performer)[0].dataReceived(b"something")
    assert rounds.goes_on()
    rounds.now += 0.9 * TURN_INPUT_S
    assert rounds.goes_on()
    rounds.now += 0.2 * TURN_INPUT_S
    assert not rounds.goes_on()
    performer.reactor.doIteration(0)
    assert not rounds.goes_on(), "the turn is over"


def client(performer: ReactorPerformer) -> tuple[Any, Transport]:
    transport = Transport()
    connection = Connection(performer, lambda *_: session)
    session: Any = SimpleNamespace(remote=SimpleNamespace(sends_at_once=True), channel=SimpleNamespace(negotiated_at=1.0),
                                   delays_acks=False, pausable=False, has_jobs=False, input_turn=0.0, transport=connection,
                                   outgoing=connection.outgoing)
    connection.makeConnection(transport)
    return connection, transport


def test_a_client_in_a_read_pause_is_polled_after_the_minimum_pause(loop: Any) -> None:
    rounds, broker, performer = loop
    connection, transport = client(performer)
    rounds.work = [lambda: connection.dataReceived(b"confirm")]
    performer.reactor.doIteration(None)
    assert connection.reads_paused and broker.turns == 1
    transport.socket.comes = [b"confirm", b"confirm"]
    rounds.work = [int] * int(BATCH_MIN_S / OFTEN + 1)
    performer.reactor.doIteration(None)
    assert len(transport.socket.comes) == 1 and broker.turns == 2, "polled, and followed by a turn"
    rounds.work = []
    performer.reactor.doIteration(None)
    assert rounds.delays[-1] == pytest.approx(BATCH_MAX_S) and not transport.socket.comes and broker.turns == 3
    for _ in range(EMPTY_POLLS_MAX):
        assert connection.reads_paused
        performer.reactor.doIteration(None)
    assert not connection.reads_paused, "empty polls"
    performer.reactor.doIteration(None)
    assert rounds.delays[-1] is None


def test_a_client_with_large_reads_gets_no_read_pause(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, broker, performer = loop
    connection, _ = client(performer)
    monkeypatch.setattr(broker, "on_received", lambda session, data, now, later=False: setattr(session, "pausable", True))
    for size, paused in ((PAUSED_READ_BYTES_MAX + 1, False), (PAUSED_READ_BYTES_MAX, True)):
        rounds.work = [partial(connection.dataReceived, bytes(size))]
        performer.reactor.doIteration(None)
        assert connection.reads_paused is paused


def test_the_read_pause_of_a_client_ends_with_a_request(loop: Any) -> None:
    rounds, broker, performer = loop
    connection, transport = client(performer)
    rounds.work = [lambda: connection.dataReceived(b"confirm")]
    performer.reactor.doIteration(None)
    transport.socket.comes = [b"close"]
    performer.reactor.doIteration(None)
    assert not connection.reads_paused and not transport.socket.comes and broker.turns == 2


def test_a_client_whose_read_pause_restarted_is_polled_once(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, _, performer = loop
    connection, _ = client(performer)
    polled: list[float] = []

    def slow_down_and_resume() -> None:
        connection.read(False)
        connection.read(True)
        connection.dataReceived(b"confirm")

    rounds.work = [lambda: connection.dataReceived(b"confirm"), slow_down_and_resume]
    performer.reactor.doIteration(None)
    assert connection.reads_paused
    monkeypatch.setattr(connection, "poll", lambda: polled.append(rounds.now))
    begun = rounds.now
    rounds.work = [int] * int(4 * BATCH_MIN_S / OFTEN)
    performer.reactor.doIteration(None)
    assert len(polled) == int((rounds.now - begun) / BATCH_MIN_S)
