"""Broker on a simulated disk: limits of output and input, turns, and misbehaving clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import codec
from kit.client import Client
from kit.memory import MemoryLink, MemoryWorld

from bmqtwist.limits import UNREAD_SECONDS_MAX
from bmqtwist.link.session import Session
from bmqtwist.link.states import ConnectionState
from bmqtwist.queue.delivery import deliver
from bmqtwist.testing.node import ImmediatePerformer

CAP = 100_000


class SlowReadersPerformer(ImmediatePerformer):
    """Collects the unread output of clients whose name is in `slow`."""

    def __init__(self, world: MemoryWorld) -> None:
        super().__init__(world)
        self.slow: set[str] = set()
        self.read_bytes = 0
        self.unread_bytes: dict[Session, int] = {}
        self.finished: list[str] = []
        self.reading: dict[str, bool] = {}

    def write(self, session: Session, parts: list[bytes]) -> int:
        if session.remote.identity.process_name not in self.slow:
            return super().write(session, parts)
        self.unread_bytes[session] = self.unread_bytes.get(session, 0) + sum(map(len, parts))
        return self.unread_bytes[session]

    def unsent_output(self, session: Session) -> tuple[int, int]:
        return self.unread_bytes.get(session, 0), self.read_bytes

    def close_when_sent(self, session: Session) -> None:
        self.finished.append(session.remote.identity.process_name)
        super().close_when_sent(session)

    def set_reading(self, session: Session, wanted: bool) -> None:
        self.reading[session.remote.identity.process_name] = wanted


def make(tmp_path: Path, **extension: Any) -> tuple[MemoryWorld, SlowReadersPerformer]:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"outboxBytesMax": CAP, **extension}})
    world.domain("d")
    performer = SlowReadersPerformer(world)
    world.stop()
    world.open_node(performer)
    return world, performer


def test_a_consumer_that_does_not_read_is_disconnected_and_its_messages_are_redelivered(tmp_path: Path) -> None:
    world, performer = make(tmp_path)
    world.domain("d", maxDeliveryAttempts=1)
    slow, producer = world.consumer(name="slow", m=100_000), world.producer(name="producer")
    performer.slow.add("slow")
    sent = 50
    for _ in range(sent):
        producer.post(b"x" * 5000)
    (unread,) = performer.unread_bytes.values()
    assert unread < CAP, "its unread output stays below the limit"
    world.advance(UNREAD_SECONDS_MAX - 2.0)
    assert "slow" not in performer.finished
    world.advance(3.0)
    slow.client.wait_closed()
    assert "does not read: " in world.expect_log("#CLIENT_SEND_FAILURE", "slow:4242")
    assert len(world.broker.sessions.open) == 1
    other = world.consumer(name="other")
    world.advance(1.0)
    assert len(world.new_payloads(other)) == sent, "no delivery attempts were counted"
    assert "producer" not in performer.finished


def test_a_consumer_that_reads_slowly_receives_all_messages_and_stays_connected(tmp_path: Path) -> None:
    """The limit applies to presently unread output."""
    world, performer = make(tmp_path)
    slow, producer = world.consumer(name="slow", m=100_000), world.producer(name="producer")
    performer.slow.add("slow")
    session = slow.client.link.session  # type: ignore[attr-defined]
    for _ in range(200):
        producer.post(b"x" * 5000)
        taken = min(4000, performer.unread_bytes[session])
        performer.unread_bytes[session] -= taken
        performer.read_bytes += taken
        if not performer.unread_bytes[session]:
            world.broker.sessions.on_drained(session, world.now)
        world.advance(1.0)
        assert performer.unread_bytes[session] < CAP
    assert performer.read_bytes > 5 * CAP and "slow" not in performer.finished


def test_disconnecting_a_consumer_schedules_a_turn_for_its_unconfirmed_messages(tmp_path: Path) -> None:
    world, performer = make(tmp_path, outboxBytesMax=1)
    world.consumer(name="slow")
    producer = world.producer()
    performer.slow.add("slow")
    producer.post(b"x")
    performer.close_when_sent = lambda session: None  # type: ignore[method-assign]  # the peer does not close
    calls: list[bool] = []
    performer.request_turn = lambda: calls.append(True)  # type: ignore[method-assign]
    world.advance(UNREAD_SECONDS_MAX + 2.0)
    assert calls, "a turn is due for the delivery of its messages"


def test_without_an_output_limit_all_output_of_an_unread_connection_is_kept(tmp_path: Path) -> None:
    world, performer = make(tmp_path, outboxBytesMax=0)
    world.consumer(name="slow", m=100_000)
    producer = world.producer()
    performer.slow.add("slow")
    for _ in range(40):
        producer.post(b"x" * 5000)
    assert performer.finished == [] and next(iter(performer.unread_bytes.values())) > 200_000


def test_a_producer_that_does_not_read_its_acks_is_not_read_from(tmp_path: Path) -> None:
    world, performer = make(tmp_path)
    producer = world.producer(name="slow")
    performer.slow.add("slow")
    producer.put(b"x")
    world.run()
    assert performer.reading == {"slow": False} and performer.finished == []


def test_a_consumer_that_does_not_read_is_still_read_from(tmp_path: Path) -> None:
    world, performer = make(tmp_path)
    world.consumer(name="slow")
    performer.slow.add("slow")
    world.producer().post(b"x")
    assert "slow" not in performer.reading


def test_the_number_of_open_sessions_of_one_identity_is_limited(tmp_path: Path) -> None:
    world, _ = make(tmp_path, sessionsPerIdentityMax=2)
    first = world.client("one")
    world.client("two")
    third = world.connect("three")
    result = third.negotiate()["result"]
    assert result["category"] == "E_REFUSED" and "limit: 2" in result["message"]
    third.wait_closed()
    first.kill()
    world.client("four")


def test_a_connection_without_negotiation_is_closed_after_the_configured_time(tmp_path: Path) -> None:
    world, _ = make(tmp_path, unauthenticatedSecondsMax=5)
    silent, polite = world.connect("silent"), world.client("polite")
    world.advance(4.0)
    silent.pump(0)
    assert not silent.link.closed
    world.advance(3.0)
    silent.wait_closed()
    assert world.logged("no negotiation within 5 s") and not polite.link.closed


def test_a_negotiation_time_limit_of_zero_disables_it(tmp_path: Path) -> None:
    world, _ = make(tmp_path, unauthenticatedSecondsMax=0)
    silent = world.connect("silent")
    world.advance(3600)
    silent.pump(0)
    assert not silent.link.closed


def test_an_event_header_above_the_size_limit_closes_the_connection(tmp_path: Path) -> None:
    world, _ = make(tmp_path, eventBytesMax=1000)
    client = world.client()
    client.send((1001).to_bytes(4, "big") + b"\x42\x02\0\0")
    client.wait_closed()
    assert world.logged("#TCP_READ_ERROR")


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_put_event_is_processed_for_every_chunk_size(tmp_path: Path, size: int) -> None:
    world, _ = make(tmp_path)
    producer = world.producer()
    data = codec.put_frame([codec.put_message(producer.q_id, producer.client.new_guid(), b"x" * 50)])
    for at in range(0, len(data), size):
        producer.client.send(data[at:at + size])
    assert producer.next_ack().status == 0


def test_puts_of_several_clients_in_one_turn_make_one_write_per_file(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    producers = [world.producer("bmq://d/q", f"p{number}") for number in range(5)]
    world.run()
    before = len(world.disk.log)
    for producer in producers:
        for _ in range(10):
            producer.put(b"x")
    world.run()
    writes = [path for operation, path in world.disk.log[before:] if operation == "write"]
    assert len(writes) == 2 and {path.rpartition(".")[2] for path in writes} == {"bmq_data", "bmq_journal"}


def test_ack_and_push_wait_for_the_sync(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    producer, consumer = world.producer(), world.consumer()
    with world.storage_stalled():
        producer.put(b"x")
        producer.client.pump(0)
        consumer.client.pump(0)
        assert not [event for client in (producer.client, consumer.client) for event in client.inbox
                    if event.kind in ("ack", "push")]
    assert producer.next_ack().status == 0 and consumer.next_push().payload == b"x"


def test_after_a_failed_sync_no_put_is_acknowledged_and_later_puts_are_refused(tmp_path: Path) -> None:
    world, performer = make(tmp_path)
    producer = world.producer()
    world.run()
    run_in_thread = performer.run_in_thread
    performer.run_in_thread = lambda work, done, failed: world.next_round.append(  # type: ignore[method-assign]
        lambda: failed(OSError(5, "EIO"), world.now))
    producer.put(b"first")
    world.run()
    assert producer.status_of(b"second") == 6 and not [e for e in producer.client.inbox if e.kind == "ack"]
    world.advance(1.0)
    assert world.alarms("FILE_IO")
    performer.run_in_thread = run_in_thread  # type: ignore[method-assign]


def test_a_message_for_a_consumer_lost_in_the_same_turn_goes_to_the_next_consumer(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    producer, consumer = world.producer(), world.consumer()
    producer.put(b"x")
    consumer.client.kill()
    producer.next_ack()
    again = world.consumer()
    assert world.new_payloads(again) == [b"x"]


def test_losing_a_session_twice_has_no_further_effect(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    client: Client = world.client()
    link = client.link
    assert isinstance(link, MemoryLink) and link.session is not None
    session = link.session
    session.on_lost(world.now, 0)
    session.on_lost(world.now, 0)
    assert session.state is ConnectionState.CLOSED and session not in world.broker.sessions.open


def test_open_requests_are_not_answered_while_the_broker_stops(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    client, consumer = world.client(), world.consumer()
    producer = world.producer()
    producer.post(b"x")
    assert len(consumer.take(1)) == 1
    world.broker.stop(world.now)
    client.send_request({"openQueue": {"handleParameters": client.handle_parameters("bmq://d/q", 9, write=1)}})
    client.pump(0)
    assert not [e for e in client.inbox if e.kind == "control"]
    assert world.broker.shutdown is not None and not world.broker.shutdown.done
    producer.post(b"y")
    assert world.new_payloads(consumer) == [], "no new deliveries"
    consumer.confirm(*[m.guid for m in world.broker.domains.by_name["d"].queues["q"].messages.values()])
    world.advance(2.0)
    assert world.broker.shutdown.done


def test_delivery_of_a_queue_without_consumers_keeps_its_messages(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    world.producer().post(b"x")
    deliver(world.broker.domains.by_name["d"].queues["q"], world.now)
    assert world.stored() == 1
