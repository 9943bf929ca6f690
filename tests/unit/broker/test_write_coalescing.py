"""Write coalescing (durability `none`): messages with delayed ACKs are delivered first and written in a later turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.client import Queue
from kit.memory import MemoryWorld
from kit.paced import OFTEN, SHARED, acked, count_received, post_often, session_of

from bmqtwist.broker.storage_turn import COALESCED_BYTES_MAX
from bmqtwist.link.batching import BATCH_MAX_S, DELAYED_ACKS_MAX, RUN_EVENTS, AckBatching
from bmqtwist.storage.partition import Partition


def pushes_received(queue: Queue) -> int:
    return count_received(queue, "push")


POSTED = RUN_EVENTS + SHARED  # the last PUT causes the write of the earlier ones

def raise_disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device")


Steady = tuple[MemoryWorld, Queue, Queue, Partition]


@pytest.fixture
def steady(tmp_path: Path) -> Steady:
    """A producer with delayed ACKs, all of them sent, and a consumer: (world, producer, consumer, partition)."""
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"durability": "none"}})
    world.domain("d")
    producer, consumer = world.producer(), world.consumer()
    post_often(world, producer, POSTED)
    partition = world.broker.domains.by_name["d"].queues["q"].partition
    assert session_of(producer).delays_acks and acked(producer) == pushes_received(consumer) == POSTED
    assert not partition.tail.unwritten_bytes and world.broker.storage.write_by == 0.0
    return world, producer, consumer, partition


def test_a_message_is_delivered_at_once_and_written_before_its_delayed_ack(steady: Steady) -> None:
    world, producer, consumer, partition = steady
    for count in range(1, SHARED):
        producer.put()
        world.run()
        assert pushes_received(consumer) == POSTED + count, "no message is delayed"
        assert partition.tail.unwritten_bytes and acked(producer) == POSTED
        world.advance(OFTEN)
    written = partition.files.current.data.end
    producer.put()
    world.run()
    assert partition.files.current.data.end == written
    world.advance(2 * OFTEN)
    world.broker.turn(world.now)
    assert not partition.tail.unwritten_bytes and partition.files.current.data.end > written
    assert acked(producer) == pushes_received(consumer) == POSTED + SHARED, "each once"


def test_coalesced_records_are_written_at_their_deadline_without_other_input(steady: Steady) -> None:
    world, producer, _, partition = steady
    producer.put()
    world.run()
    deadline = world.broker.next_deadline()
    assert partition.tail.unwritten_bytes and deadline is not None and deadline <= world.now + BATCH_MAX_S
    world.advance(BATCH_MAX_S)
    assert not partition.tail.unwritten_bytes and acked(producer) == POSTED + 1


def test_a_put_of_a_producer_without_delays_writes_all_coalesced_records(steady: Steady) -> None:
    world, producer, consumer, partition = steady
    producer.put()
    world.run()
    other = world.producer()
    producer.put()
    world.run()
    assert partition.tail.unwritten_bytes and acked(producer) == POSTED + 1, "the open wrote the first PUT"
    other.put()
    world.run()
    assert not partition.tail.unwritten_bytes and acked(other) == 1 and acked(producer) == POSTED + 2
    assert pushes_received(consumer) == POSTED + 3, "each once"


def test_a_delay_ended_by_another_producer_does_not_count_for_batching(steady: Steady,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    world, producer, _, partition = steady
    other = world.producer()
    sent: list[float] = []
    monkeypatch.setattr(AckBatching, "on_acks_sent", lambda batching, now: sent.append(now))
    producer.put()
    world.run()
    other.put()
    world.run()
    assert acked(producer) == POSTED + 1 and not sent
    producer.put()
    world.run()
    world.advance(BATCH_MAX_S)
    assert acked(producer) == POSTED + 2 and len(sent) == 1


def test_coalescing_for_another_producer_does_not_count_for_batching(steady: Steady,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    world, producer, _, partition = steady
    sent: list[AckBatching] = []
    for queue in (producer, world.producer()):
        post_often(world, queue, RUN_EVENTS + 1)
        world.broker.output.write_records_first()
        world.broker.turn(world.now)
        monkeypatch.setattr(AckBatching, "on_acks_sent", lambda batching, now: sent.append(batching))
        queue.put()
        world.run()
        assert partition.tail.unwritten_bytes
        world.advance(BATCH_MAX_S)
    assert len(sent) == 2 == len(set(sent))


def test_acks_stay_delayed_when_another_producer_causes_the_write(steady: Steady) -> None:
    world, producer, _, partition = steady
    other = world.producer()
    producer.put()
    other.put()
    world.run()
    assert not partition.tail.unwritten_bytes and acked(other) == 1 and acked(producer) == POSTED
    world.advance(BATCH_MAX_S)
    assert acked(producer) == POSTED + 1


def test_a_message_without_an_ack_is_written_at_once(steady: Steady) -> None:
    world, producer, _, partition = steady
    producer.put(ack=False)
    world.run()
    assert not partition.tail.unwritten_bytes


def test_a_duplicate_put_is_coalesced_and_not_delivered(steady: Steady) -> None:
    world, producer, consumer, partition = steady
    guid = producer.put()
    producer.put(guid=guid)
    world.run()
    assert partition.tail.unwritten_bytes and pushes_received(consumer) == POSTED + 1
    world.advance(BATCH_MAX_S)
    assert not partition.tail.unwritten_bytes and pushes_received(consumer) == POSTED + 1


def test_a_close_is_answered_after_the_write_of_the_confirms_before_it(steady: Steady) -> None:
    world, producer, consumer, partition = steady
    producer.put()
    world.run()
    consumer.client.pump(0)
    consumer.confirm([event.push for event in consumer.client.events if event.push is not None][-1])
    world.run()
    assert partition.tail.journal, "a CONFIRM is coalesced, too"
    consumer.close()
    assert not partition.tail.journal and acked(producer) == POSTED + 1


def test_the_bytes_of_coalesced_records_are_limited(steady: Steady) -> None:
    world, producer, consumer, partition = steady
    producer.put(bytes(COALESCED_BYTES_MAX // 2))
    world.run()
    assert partition.tail.unwritten_bytes > COALESCED_BYTES_MAX // 2
    producer.put(bytes(COALESCED_BYTES_MAX))
    world.run()
    assert not partition.tail.unwritten_bytes and acked(producer) == pushes_received(consumer) == POSTED + 2


def test_the_number_of_coalesced_messages_is_limited(steady: Steady) -> None:
    world, producer, consumer, partition = steady
    for _ in range(DELAYED_ACKS_MAX):
        producer.put()
    world.run()
    assert partition.tail.unwritten_bytes and acked(producer) == POSTED
    producer.put()
    world.run()
    assert not partition.tail.unwritten_bytes
    assert acked(producer) == pushes_received(consumer) == POSTED + 1 + DELAYED_ACKS_MAX


def test_coalesced_records_of_a_lost_producer_are_written(steady: Steady) -> None:
    world, producer, consumer, partition = steady
    producer.put()
    world.run()
    producer.client.drop()
    world.run()
    world.advance(BATCH_MAX_S)
    assert not partition.tail.unwritten_bytes and pushes_received(consumer) == POSTED + 1
    assert world.broker.storage.write_by == 0.0


def test_an_admin_command_is_answered_after_the_write_of_its_changes(steady: Steady) -> None:
    world, producer, _, partition = steady
    admin = world.client(client_type="E_TCPADMIN")
    producer.put()
    world.run()
    assert partition.tail.unwritten_bytes
    assert "Purged" in admin.admin("DOMAINS DOMAIN d PURGE")
    assert not partition.tail.journal and acked(producer) == POSTED + 1


def test_a_message_whose_write_failed_is_delivered_once_and_acknowledged_after_the_retry(steady: Steady,
                                                                                         monkeypatch: Any) -> None:
    world, producer, consumer, partition = steady
    producer.put()
    world.run()
    append = partition.files.append
    monkeypatch.setattr(partition.files, "append", raise_disk_full)
    world.advance(BATCH_MAX_S)
    world.broker.turn(world.now)
    assert world.broker.storage.write_by == 0.0, "no write is pending"
    producer.put()
    world.run()
    assert not partition.available and pushes_received(consumer) == POSTED + 1 == acked(producer)
    statuses = [event.ack.status for event in producer.client.events if event.ack is not None]
    assert len(statuses) == POSTED + 1 and statuses[-1] != 0 and not any(statuses[:-1]), "the second one is refused"
    monkeypatch.setattr(partition.files, "append", append)
    world.advance(1.0)
    producer.put()
    world.run()
    world.advance(BATCH_MAX_S)
    assert partition.available and not partition.tail.journal
    assert acked(producer) == POSTED + 3 and pushes_received(consumer) == POSTED + 2, "each once"


def test_a_message_whose_write_is_repeated_is_delivered_once(steady: Steady, monkeypatch: pytest.MonkeyPatch) -> None:
    world, producer, consumer, partition = steady
    producer.put()
    world.run()
    with monkeypatch.context() as disk:
        disk.setattr(partition.files, "append", raise_disk_full)
        world.broker.output.write_records_first()
        world.broker.turn(world.now)
    assert not partition.available
    partition.write_sync_point(world.broker.loop.wall(world.now))
    assert partition.available and session_of(producer).delays_acks
    world.broker.turn(world.now)
    assert acked(producer) == POSTED and pushes_received(consumer) == POSTED + 1
    world.advance(BATCH_MAX_S)
    assert acked(producer) == pushes_received(consumer) == POSTED + 1


def test_a_stop_writes_coalesced_records(steady: Steady) -> None:
    world, producer, _, partition = steady
    producer.put()
    world.run()
    assert partition.tail.unwritten_bytes
    world.broker.close(world.now)
    assert not partition.tail.journal


@pytest.mark.parametrize("durability", ["group", "always"])
def test_durabilities_group_and_always_deliver_only_after_the_sync(tmp_path: Path, durability: str) -> None:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"durability": durability}})
    world.domain("d")
    producer, consumer = world.producer(), world.consumer()
    post_often(world, producer, RUN_EVENTS + 2)
    with world.storage_stalled():
        before = pushes_received(consumer)
        producer.put()
        world.run()
        assert durability == "always" or pushes_received(consumer) == before
