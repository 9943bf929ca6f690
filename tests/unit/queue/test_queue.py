"""Queues at their primary: acceptance, refusal, deduplication, expiry and removal of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.engine_kit import AMPLE_LIMITS, WALL, Engine, got

from bmqtwist.errors import AckStatus
from bmqtwist.queue.domain import MeterLimits
from bmqtwist.queue.queue import Handle, Put
from bmqtwist.steps import at_once
from bmqtwist.storage.gate import Copies
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import COMMITTED_ALL

GUID = b"\x40" + bytes(15)


def post(engine: Engine, handle: Handle, guid: bytes = GUID, payload: bytes = b"x", wants_ack: bool = True) -> int:
    status = engine.queue.post(Put(handle, Message(guid, payload, arrived=engine.now, wall=WALL), 5, wants_ack), engine.now,
                               WALL)
    engine.turn()
    return status


def acks(handle: Handle) -> list[tuple[bytes, int]]:
    return handle.client.acks  # type: ignore[attr-defined, no-any-return]


def test_a_put_is_acknowledged_if_it_requests_an_ack() -> None:
    engine = Engine()
    producer = engine.open(write=1)
    assert post(engine, producer, b"a" * 16, wants_ack=False) == 0 and acks(producer) == []
    assert post(engine, producer, b"b" * 16) == 0 and acks(producer) == [(b"b" * 16, 0)]


def test_a_repeated_put_is_acknowledged_and_stored_once() -> None:
    engine = Engine()
    producer = engine.open(write=1)
    post(engine, producer)
    post(engine, producer)
    assert acks(producer) == [(GUID, 0)] * 2 and len(engine.queue.messages) == 1
    assert engine.log("Duplicate PUT message") == 1
    reader = engine.reader()
    engine.turn()
    engine.confirm(reader)
    post(engine, producer)
    assert got(reader) == [b"x"] and not engine.queue.messages, "a confirmed message is a duplicate, too"


def test_without_a_deduplication_time_only_stored_messages_are_duplicates() -> None:
    engine = Engine()
    engine.queue.history.window = 0.0
    producer, reader = engine.open(write=1), engine.reader()
    post(engine, producer)
    post(engine, producer)
    assert got(reader) == [b"x"]
    engine.confirm(reader)
    post(engine, producer)
    assert got(reader) == [b"x"]


@pytest.mark.parametrize("limits, status", [
    (MeterLimits(1, 1 << 40), AckStatus.LIMIT_MESSAGES), (MeterLimits(100, 1), AckStatus.LIMIT_BYTES)])
@pytest.mark.parametrize("whose", ["queue_limits", "domain_limits"])
def test_a_put_refused_by_a_quota_may_be_posted_again(limits: MeterLimits, status: int, whose: str) -> None:
    engine = Engine(**{whose: limits})
    producer, reader = engine.open(write=1), engine.reader()
    assert [post(engine, producer, bytes([0x40, n]) * 8, b"xy") for n in range(3)] == (
        [0, 0, status] if status == AckStatus.LIMIT_MESSAGES else [0, status, status])
    engine.confirm(reader)
    assert post(engine, producer, bytes([0x40, 2]) * 8, b"xy") == 0


def test_a_put_refused_by_an_unavailable_partition_changes_no_counter() -> None:
    engine = Engine()
    producer = engine.open(write=1)
    engine.partition.disable()
    assert post(engine, producer) == AckStatus.STORAGE_FAILURE
    assert not engine.queue.messages and engine.queue.meter.messages == 0 and engine.queue.stats.put_msgs == 0
    engine.partition.enable()
    assert post(engine, producer) == 0


def test_a_confirm_during_an_unavailable_partition_takes_effect_in_memory() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    foo, bar = engine.reader("foo"), engine.reader("bar")
    engine.post(b"1")
    engine.partition.disable()
    engine.confirm(foo)
    engine.confirm(bar)
    assert not engine.queue.messages and engine.queue.meter.messages == 0


def test_a_message_is_removed_when_the_last_app_has_confirmed_it() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    foo, bar = engine.reader("foo"), engine.reader("bar")
    (guid,) = engine.post(b"1")
    engine.confirm(foo)
    engine.confirm(foo)
    assert guid in engine.queue.messages
    engine.confirm(bar)
    assert not engine.queue.messages


def test_unknown_and_repeated_confirms_are_ignored() -> None:
    engine = Engine()
    reader = engine.reader()
    (guid,) = engine.post(b"1")
    engine.confirm(reader, b"?" * 16)
    engine.confirm(reader, guid)
    engine.confirm(reader, guid)
    assert engine.queue.stats.confirm_msgs == 1


def test_a_message_that_fails_the_condition_of_an_app_is_not_delivered_to_it() -> None:
    engine = Engine("fanout", ("foo", "bar"), conditions={"foo": "x > 5"})
    foo, bar = engine.reader("foo"), engine.reader("bar")
    engine.post(b"small", x=1)
    engine.post(b"large", x=9)
    assert (got(foo), got(bar)) == ([b"large"], [b"small", b"large"])
    engine.confirm(bar)
    assert len(engine.queue.messages) == 1


def test_a_message_that_fails_the_conditions_of_all_apps_is_acknowledged_and_not_stored() -> None:
    engine = Engine(conditions={"": "x > 5"})
    producer = engine.open(write=1)
    engine.post(b"1", handle=producer, x=1)
    assert len(acks(producer)) == 1 and not engine.queue.messages


def test_only_messages_older_than_the_time_to_live_expire() -> None:
    engine = Engine(ttl_s=10)
    engine.post(b"1", b"2")
    for age, message in zip((11, 10), engine.queue.messages.values(), strict=True):
        message.wall = WALL - age
    engine.queue.expire(WALL)
    assert [message.payload for message in engine.queue.messages.values()] == [b"2"] and engine.queue.stats.gc_msgs == 1
    reader = engine.reader()
    engine.turn()
    assert got(reader) == [b"2"]


def test_a_purge_removes_the_messages_of_one_app_or_of_all_apps() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    engine.post(b"1", b"22")
    assert at_once(engine.queue.purge(engine.queue.apps["foo"], WALL)) == (2, 3)
    foo, bar = engine.reader("foo"), engine.reader("bar", m=1)
    engine.turn()
    assert (got(foo), got(bar)) == ([], [b"1"])
    assert at_once(engine.queue.purge(None, WALL)) == (2, 3) and engine.queue.meter.messages == 0
    engine.confirm(bar)
    assert got(bar) == []
    engine.post(b"3")
    assert (got(foo), got(bar)) == ([b"3"], [b"3"])


def test_a_removed_app_releases_its_messages_and_starts_empty_when_it_is_added_again() -> None:
    engine = Engine("fanout", ("foo", "bar"))
    foo, bar = engine.reader("foo", m=1), engine.reader("bar")
    engine.post(b"1", b"2")
    engine.queue.remove_app(engine.queue.apps["foo"], WALL)
    engine.confirm(bar)
    assert not engine.queue.messages
    engine.post(b"3")
    assert got(foo) == [b"1"]
    engine.partition.queues.add_apps(b"queue", "bmq://d/q", [("foo", b"foo-2")], WALL)
    engine.queue.register_apps()
    engine.confirm(foo)
    engine.post(b"4")
    assert got(foo) == [b"4"]


def test_strong_puts_wait_for_the_commit_and_are_refused_after_the_deduplication_time() -> None:
    engine = Engine(copies=Copies.MAJORITY)
    engine.partition.copies.committed = engine.partition.position
    producer, reader = engine.open(write=1), engine.reader()
    post(engine, producer)
    assert not acks(producer) and not got(reader)
    assert engine.queue.domain.settings.deduplication_ms == 300_000
    engine.queue.uncommitted.expire(engine.now + 299, WALL)
    assert len(engine.queue.uncommitted.puts) == 1
    engine.queue.uncommitted.expire(engine.now + 300, WALL)
    assert not engine.queue.messages and acks(producer)[-1] == (GUID, AckStatus.UNKNOWN)
    assert not engine.queue.uncommitted.puts


def test_puts_are_released_up_to_the_committed_position() -> None:
    engine = Engine(copies=Copies.MAJORITY)
    engine.partition.copies.committed = engine.partition.position
    producer, reader = engine.open(write=1), engine.reader()
    for number in range(3):
        post(engine, producer, bytes([0x40, number]) * 8, b"%d" % number)
    engine.partition.copies.committed += 2
    engine.queue.uncommitted.on_commit(engine.now)
    engine.turn()
    assert [guid[1] for guid, _ in acks(producer)] == [0, 1] and got(reader) == [b"0", b"1"]
    engine.partition.copies.committed += 1
    engine.queue.uncommitted.on_commit(engine.now)
    engine.turn()
    assert got(reader) == [b"2"] and not engine.queue.uncommitted.puts


def test_messages_stay_in_order_when_the_consistency_of_the_domain_changes() -> None:
    """A message that needs no commit is not delivered before an earlier one that does."""
    engine = Engine(copies=Copies.MAJORITY)
    engine.partition.copies.committed = engine.partition.position
    producer, reader = engine.open(write=1), engine.reader()
    post(engine, producer, bytes([0x40, 1]) * 8, b"strong")
    engine.domain.reconfigure(replace(engine.domain.settings, copies=Copies.NONE))
    post(engine, producer, bytes([0x40, 2]) * 8, b"eventual")
    post(engine, producer, bytes([0x40, 1]) * 8, b"strong")
    assert got(reader) == [] and acks(producer) == []
    engine.partition.copies.committed = COMMITTED_ALL
    engine.queue.uncommitted.on_commit(engine.now)
    engine.turn()
    assert got(reader) == [b"strong", b"eventual"] and [guid[1] for guid, _ in acks(producer)] == [1, 2, 1]


def test_puts_after_a_put_refused_for_lack_of_a_commit_are_released() -> None:
    engine = Engine(copies=Copies.MAJORITY)
    engine.partition.copies.committed = engine.partition.position
    producer, reader = engine.open(write=1), engine.reader()
    post(engine, producer, bytes([0x40, 1]) * 8, b"strong")
    engine.domain.reconfigure(replace(engine.domain.settings, copies=Copies.NONE))
    post(engine, producer, bytes([0x40, 2]) * 8, b"eventual")
    engine.queue.uncommitted.expire(engine.now + 300, WALL)
    engine.turn()
    assert got(reader) == [b"eventual"]
    assert [(guid[1], status) for guid, status in acks(producer)] == [(1, AckStatus.UNKNOWN), (2, 0)]


def test_in_memory_queues_write_no_record() -> None:
    engine = Engine(in_memory=True, queue_limits=AMPLE_LIMITS)
    reader = engine.reader()
    written = engine.partition.tail.positions()
    engine.post(b"1")
    engine.confirm(reader)
    assert got(reader) == [b"1"] and engine.partition.tail.positions() == written
