"""The pure broker on a simulated disk: limits, turns, and misbehaving clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import codec
from kit.client import Client
from kit.memory import MemoryLink, MemoryWorld

from bmqtwist.limits import UNREAD_SECONDS_MAX
from bmqtwist.link.session import Session
from bmqtwist.link.states import State
from bmqtwist.queue.delivery import deliver
from bmqtwist.testing.node import ImmediatePerformer

CAP = 100_000


class LazyPerformer(ImmediatePerformer):
    """Clients of some names do not read: their output is collected here."""

    def __init__(self, world: MemoryWorld) -> None:
        super().__init__(world)
        self.lazy: set[str] = set()
        self.read_bytes = 0
        self.piles: dict[Session, int] = {}
        self.finished: list[str] = []
        self.reading: dict[str, bool] = {}

    def write(self, session: Session, parts: list[bytes]) -> int:
        if session.remote.identity.process_name not in self.lazy:
            return super().write(session, parts)
        self.piles[session] = self.piles.get(session, 0) + sum(map(len, parts))
        return self.piles[session]

    def unread(self, session: Session) -> tuple[int, int]:
        return self.piles.get(session, 0), self.read_bytes

    def finish(self, session: Session) -> None:
        self.finished.append(session.remote.identity.process_name)
        super().finish(session)

    def read(self, session: Session, wanted: bool) -> None:
        self.reading[session.remote.identity.process_name] = wanted


def make(tmp_path: Path, **extension: Any) -> tuple[MemoryWorld, LazyPerformer]:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"outboxBytesMax": CAP, **extension}})
    world.domain("d")
    shell = LazyPerformer(world)
    world.stop()
    world.open_node(shell)
    return world, shell


def test_a_consumer_that_does_not_read_is_disconnected_at_the_cap_and_loses_nothing(tmp_path: Path) -> None:
    world, shell = make(tmp_path)
    world.domain("d", maxDeliveryAttempts=1)
    lazy, producer = world.consumer(name="lazy", m=100_000), world.producer(name="busy")
    shell.lazy.add("lazy")
    sent = 50
    for _ in range(sent):
        producer.post(b"x" * 5000)
    (pile,) = shell.piles.values()
    assert pile < CAP, "no more is kept for it than the cap"
    world.advance(UNREAD_SECONDS_MAX - 2.0)
    assert "lazy" not in shell.finished
    world.advance(3.0)
    lazy.client.wait_closed()
    assert "does not read: " in world.expect_log("#CLIENT_SEND_FAILURE", "lazy:4242")
    assert len(world.broker.sessions.open) == 1
    other = world.consumer(name="other")
    world.advance(1.0)
    assert len(world.got(other)) == sent, "not its mistake: it costs no delivery attempt"
    assert "busy" not in shell.finished


def test_a_consumer_that_reads_slowly_is_given_the_rest_as_it_reads_and_stays(tmp_path: Path) -> None:
    """The limit applies to presently unread output."""
    world, shell = make(tmp_path)
    slow, producer = world.consumer(name="lazy", m=100_000), world.producer(name="busy")
    shell.lazy.add("lazy")
    session = slow.client.link.session  # type: ignore[attr-defined]
    for _ in range(200):
        producer.post(b"x" * 5000)
        taken = min(4000, shell.piles[session])
        shell.piles[session] -= taken
        shell.read_bytes += taken
        if not shell.piles[session]:
            world.broker.sessions.drained(session)
        world.advance(1.0)
        assert shell.piles[session] < CAP
    assert shell.read_bytes > 5 * CAP and "lazy" not in shell.finished


def test_what_a_disconnected_consumer_held_goes_to_others_without_waiting_for_something_else(tmp_path: Path) -> None:
    world, shell = make(tmp_path, outboxBytesMax=1)
    world.consumer(name="lazy")
    producer = world.producer()
    shell.lazy.add("lazy")
    producer.post(b"x")
    shell.finish = lambda session: None  # type: ignore[method-assign]  # a peer that lingers
    asked: list[bool] = []
    shell.turn_due = lambda: asked.append(True)  # type: ignore[method-assign]
    world.advance(UNREAD_SECONDS_MAX + 2.0)
    assert asked, "its queues have something to deliver: a turn is due"


def test_without_a_cap_everything_is_kept(tmp_path: Path) -> None:
    world, shell = make(tmp_path, outboxBytesMax=0)
    world.consumer(name="lazy", m=100_000)
    producer = world.producer()
    shell.lazy.add("lazy")
    for _ in range(40):
        producer.post(b"x" * 5000)
    assert shell.finished == [] and next(iter(shell.piles.values())) > 200_000


def test_a_producer_that_does_not_read_its_acks_is_slowed_down(tmp_path: Path) -> None:
    world, shell = make(tmp_path)
    producer = world.producer(name="lazy")
    shell.lazy.add("lazy")
    producer.put(b"x")
    world.run()
    assert shell.reading == {"lazy": False} and shell.finished == []


def test_a_consumer_that_is_behind_is_not_slowed_down_since_its_confirms_are_wanted(tmp_path: Path) -> None:
    world, shell = make(tmp_path)
    world.consumer(name="lazy")
    shell.lazy.add("lazy")
    world.producer().post(b"x")
    assert "lazy" not in shell.reading


def test_sessions_of_one_principal_are_limited_and_an_ended_one_makes_room(tmp_path: Path) -> None:
    world, _ = make(tmp_path, sessionsPerIdentityMax=2)
    first = world.client("one")
    world.client("two")
    third = world.connect("three")
    result = third.negotiate()["result"]
    assert result["category"] == "E_REFUSED" and "limit: 2" in result["message"]
    third.wait_closed()
    first.kill()
    world.client("four")


def test_a_connection_that_says_nothing_is_closed_in_time(tmp_path: Path) -> None:
    world, _ = make(tmp_path, unauthenticatedSecondsMax=5)
    silent, polite = world.connect("silent"), world.client("polite")
    world.advance(4.0)
    silent.pump(0)
    assert not silent.link.closed
    world.advance(3.0)
    silent.wait_closed()
    assert world.logged("no negotiation within 5 s") and not polite.link.closed


def test_zero_means_that_a_silent_connection_may_stay(tmp_path: Path) -> None:
    world, _ = make(tmp_path, unauthenticatedSecondsMax=0)
    silent = world.connect("silent")
    world.advance(3600)
    silent.pump(0)
    assert not silent.link.closed


def test_an_event_that_announces_too_much_ends_the_connection_before_it_is_collected(tmp_path: Path) -> None:
    world, _ = make(tmp_path, eventBytesMax=1000)
    client = world.client()
    client.send((1001).to_bytes(4, "big") + b"\x42\x02\0\0")
    client.wait_closed()
    assert world.logged("#TCP_READ_ERROR")


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_stream_may_come_in_any_pieces(tmp_path: Path, size: int) -> None:
    world, _ = make(tmp_path)
    producer = world.producer()
    data = codec.put_frame([codec.put_message(producer.q_id, producer.client.new_guid(), b"x" * 50)])
    for at in range(0, len(data), size):
        producer.client.send(data[at:at + size])
    assert producer.next_ack().status == 0


def test_many_chunks_and_clients_make_one_turn_with_one_write_per_file(tmp_path: Path) -> None:
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


def test_an_ack_waits_for_the_sync_and_so_does_the_delivery(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    producer, consumer = world.producer(), world.consumer()
    with world.storage_stalled():
        producer.put(b"x")
        producer.client.pump(0)
        consumer.client.pump(0)
        assert not [event for client in (producer.client, consumer.client) for event in client.inbox
                    if event.kind in ("ack", "push")]
    assert producer.next_ack().status == 0 and consumer.next_push().payload == b"x"


def test_after_a_failed_sync_nothing_is_acknowledged_and_nothing_more_is_taken(tmp_path: Path) -> None:
    world, shell = make(tmp_path)
    producer = world.producer()
    world.run()
    in_thread = shell.in_thread
    shell.in_thread = lambda work, done, failed: world.next_round.append(  # type: ignore[method-assign]
        lambda: failed(OSError(5, "EIO"), world.now))
    producer.put(b"first")
    world.run()
    assert producer.status_of(b"second") == 6 and not [e for e in producer.client.inbox if e.kind == "ack"]
    world.advance(1.0)
    assert world.alarms("FILE_IO")
    shell.in_thread = in_thread  # type: ignore[method-assign]


def test_a_consumer_that_leaves_within_the_turn_gets_nothing_of_it(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    producer, consumer = world.producer(), world.consumer()
    producer.put(b"x")
    consumer.client.kill()
    producer.next_ack()
    again = world.consumer()
    assert world.got(again) == [b"x"]


def test_a_session_that_is_lost_twice_is_gone_once(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    client: Client = world.client()
    link = client.link
    assert isinstance(link, MemoryLink) and link.session is not None
    session = link.session
    session.on_lost(world.now, 0)
    session.on_lost(world.now, 0)
    assert session.state is State.CLOSED and session not in world.broker.sessions.open


def test_while_stopping_opens_are_left_for_the_next_broker(tmp_path: Path) -> None:
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
    assert world.got(consumer) == [], "no new deliveries"
    consumer.confirm(*[m.guid for m in world.broker.domains.by_name["d"].queues["q"].messages.values()])
    world.advance(2.0)
    assert world.broker.shutdown.done


def test_delivery_to_a_queue_nobody_reads_does_nothing(tmp_path: Path) -> None:
    world, _ = make(tmp_path)
    world.producer().post(b"x")
    deliver(world.broker.domains.by_name["d"].queues["q"], world.now)
    assert world.stored() == 1
