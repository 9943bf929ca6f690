"""Write coalescing (durability `none`): messages with delayed ACKs are delivered first and written in a later turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.client import Queue
from kit.memory import MemoryWorld
from kit.paced import OFTEN, SHARED, acked, come, post_often, session_of

from bmqtwist.broker.storage_turn import COALESCED_BYTES_MAX
from bmqtwist.link.batching import BATCH_MAX_S, DELAYED_ACKS_MAX, RUN_EVENTS, AckBatching
from bmqtwist.storage.partition import Partition


def pushed(queue: Queue) -> int:
    return come(queue, "push")


ALL = RUN_EVENTS + SHARED  # the last one has those before it written

def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


Going = tuple[MemoryWorld, Queue, Queue, Partition]


@pytest.fixture
def going(tmp_path: Path) -> Going:
    """A producer with delayed ACKs, all of them sent, and a consumer: (world, producer, consumer, partition)."""
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"durability": "none"}})
    world.domain("d")
    producer, consumer = world.producer(), world.consumer()
    post_often(world, producer, ALL)
    partition = world.broker.domains.by_name["d"].queues["q"].partition
    assert session_of(producer).delays_acks and acked(producer) == pushed(consumer) == ALL
    assert not partition.tail.unwritten_bytes and world.broker.storage.write_by == 0.0
    return world, producer, consumer, partition


def test_it_is_delivered_at_once_and_written_when_it_is_acknowledged(going: Going) -> None:
    world, producer, consumer, partition = going
    for count in range(1, SHARED):
        producer.put()
        world.run()
        assert pushed(consumer) == ALL + count, "no message waits"
        assert partition.tail.unwritten_bytes and acked(producer) == ALL
        world.advance(OFTEN)
    written = partition.files.current.data.end
    producer.put()
    world.run()
    assert partition.files.current.data.end == written
    world.advance(2 * OFTEN)
    world.broker.turn(world.now)
    assert not partition.tail.unwritten_bytes and partition.files.current.data.end > written
    assert acked(producer) == pushed(consumer) == ALL + SHARED, "each once"


def test_it_is_written_in_a_turn_of_its_own_when_there_is_no_other(going: Going) -> None:
    world, producer, _, partition = going
    producer.put()
    world.run()
    deadline = world.broker.next_deadline()
    assert partition.tail.unwritten_bytes and deadline is not None and deadline <= world.now + BATCH_MAX_S
    world.advance(BATCH_MAX_S)
    assert not partition.tail.unwritten_bytes and acked(producer) == ALL + 1


def test_what_somebody_else_waits_for_is_written_at_once_and_all_with_it(going: Going) -> None:
    world, producer, consumer, partition = going
    producer.put()
    world.run()
    other = world.producer()
    producer.put()
    world.run()
    assert partition.tail.unwritten_bytes and acked(producer) == ALL + 1, "the open had the first one written"
    other.put()
    world.run()
    assert not partition.tail.unwritten_bytes and acked(other) == 1 and acked(producer) == ALL + 2
    assert pushed(consumer) == ALL + 3, "each once"


def test_a_producer_is_not_judged_by_a_wait_that_others_cut_short(going: Going, monkeypatch: pytest.MonkeyPatch) -> None:
    world, producer, _, partition = going
    other = world.producer()
    told: list[float] = []
    monkeypatch.setattr(AckBatching, "on_acks_sent", lambda pace, now: told.append(now))
    producer.put()
    world.run()
    other.put()
    world.run()
    assert acked(producer) == ALL + 1 and not told
    producer.put()
    world.run()
    world.advance(BATCH_MAX_S)
    assert acked(producer) == ALL + 2 and len(told) == 1


def test_nobody_is_judged_by_what_others_gather(going: Going, monkeypatch: pytest.MonkeyPatch) -> None:
    world, producer, _, partition = going
    told: list[AckBatching] = []
    for queue in (producer, world.producer()):
        post_often(world, queue, RUN_EVENTS + 1)
        world.broker.output.write_now()
        world.broker.turn(world.now)
        monkeypatch.setattr(AckBatching, "on_acks_sent", lambda pace, now: told.append(pace))
        queue.put()
        world.run()
        assert partition.tail.unwritten_bytes
        world.advance(BATCH_MAX_S)
    assert len(told) == 2 == len(set(told))


def test_acks_of_a_turn_that_is_written_at_once_share_one_as_before(going: Going) -> None:
    world, producer, _, partition = going
    other = world.producer()
    producer.put()
    other.put()
    world.run()
    assert not partition.tail.unwritten_bytes and acked(other) == 1 and acked(producer) == ALL
    world.advance(BATCH_MAX_S)
    assert acked(producer) == ALL + 1


def test_a_message_without_an_ack_is_written_at_once(going: Going) -> None:
    world, producer, _, partition = going
    producer.put(ack=False)
    world.run()
    assert not partition.tail.unwritten_bytes


def test_a_duplicate_waits_like_others_and_is_not_delivered(going: Going) -> None:
    world, producer, consumer, partition = going
    guid = producer.put()
    producer.put(guid=guid)
    world.run()
    assert partition.tail.unwritten_bytes and pushed(consumer) == ALL + 1
    world.advance(BATCH_MAX_S)
    assert not partition.tail.unwritten_bytes and pushed(consumer) == ALL + 1


def test_a_consumer_that_leaves_is_answered_when_what_it_confirmed_is_stored(going: Going) -> None:
    world, producer, consumer, partition = going
    producer.put()
    world.run()
    consumer.client.pump(0)
    consumer.confirm([event.push for event in consumer.client.heard if event.push is not None][-1])
    world.run()
    assert partition.tail.journal, "a CONFIRM is coalesced, too"
    consumer.close()
    assert not partition.tail.journal and acked(producer) == ALL + 1


def test_no_more_is_gathered_than_so_much(going: Going) -> None:
    world, producer, consumer, partition = going
    producer.put(bytes(COALESCED_BYTES_MAX // 2))
    world.run()
    assert partition.tail.unwritten_bytes > COALESCED_BYTES_MAX // 2
    producer.put(bytes(COALESCED_BYTES_MAX))
    world.run()
    assert not partition.tail.unwritten_bytes and acked(producer) == pushed(consumer) == ALL + 2


def test_no_more_messages_are_gathered_than_so_many(going: Going) -> None:
    world, producer, consumer, partition = going
    for _ in range(DELAYED_ACKS_MAX):
        producer.put()
    world.run()
    assert partition.tail.unwritten_bytes and acked(producer) == ALL
    producer.put()
    world.run()
    assert not partition.tail.unwritten_bytes and acked(producer) == pushed(consumer) == ALL + 1 + DELAYED_ACKS_MAX


def test_a_producer_that_is_gone_leaves_nothing_unwritten(going: Going) -> None:
    world, producer, consumer, partition = going
    producer.put()
    world.run()
    producer.client.drop()
    world.run()
    world.advance(BATCH_MAX_S)
    assert not partition.tail.unwritten_bytes and pushed(consumer) == ALL + 1 and world.broker.storage.write_by == 0.0


def test_a_command_is_answered_when_what_it_changed_is_stored(going: Going) -> None:
    world, producer, _, partition = going
    admin = world.client(client_type="E_TCPADMIN")
    producer.put()
    world.run()
    assert partition.tail.unwritten_bytes
    assert "Purged" in admin.admin("DOMAINS DOMAIN d PURGE")
    assert not partition.tail.journal and acked(producer) == ALL + 1


def test_what_cannot_be_written_is_delivered_once_and_acknowledged_when_it_is(going: Going, monkeypatch: Any) -> None:
    world, producer, consumer, partition = going
    producer.put()
    world.run()
    append = partition.files.append
    monkeypatch.setattr(partition.files, "append", full)
    world.advance(BATCH_MAX_S)
    world.broker.turn(world.now)
    assert world.broker.storage.write_by == 0.0, "no write is pending"
    producer.put()
    world.run()
    assert not partition.available and pushed(consumer) == ALL + 1 == acked(producer)
    statuses = [event.ack.status for event in producer.client.heard if event.ack is not None]
    assert len(statuses) == ALL + 1 and statuses[-1] != 0 and not any(statuses[:-1]), "the second one is refused"
    monkeypatch.setattr(partition.files, "append", append)
    world.advance(1.0)
    producer.put()
    world.run()
    world.advance(BATCH_MAX_S)
    assert partition.available and not partition.tail.journal
    assert acked(producer) == ALL + 3 and pushed(consumer) == ALL + 2, "each once"


def test_what_is_handed_on_again_is_delivered_once(going: Going, monkeypatch: pytest.MonkeyPatch) -> None:
    world, producer, consumer, partition = going
    producer.put()
    world.run()
    with monkeypatch.context() as disk:
        disk.setattr(partition.files, "append", full)
        world.broker.output.write_now()
        world.broker.turn(world.now)
    assert not partition.available
    partition.sync_point(world.broker.loop.wall(world.now))
    assert partition.available and session_of(producer).delays_acks
    world.broker.turn(world.now)
    assert acked(producer) == ALL and pushed(consumer) == ALL + 1
    world.advance(BATCH_MAX_S)
    assert acked(producer) == pushed(consumer) == ALL + 1


def test_a_broker_that_stops_writes_what_is_gathered(going: Going) -> None:
    world, producer, _, partition = going
    producer.put()
    world.run()
    assert partition.tail.unwritten_bytes
    world.broker.close(world.now)
    assert not partition.tail.journal


@pytest.mark.parametrize("durability", ["group", "always"])
def test_other_durabilities_gather_nothing_of_this_kind(tmp_path: Path, durability: str) -> None:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"durability": durability}})
    world.domain("d")
    producer, consumer = world.producer(), world.consumer()
    post_often(world, producer, RUN_EVENTS + 2)
    with world.storage_stalled():
        before = pushed(consumer)
        producer.put()
        world.run()
        assert durability == "always" or pushed(consumer) == before
