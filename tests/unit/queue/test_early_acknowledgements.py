"""Early acknowledgements: ACKs and PUSHes that a primary sends to members before the commit is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.engine_kit import WALL, Engine, got

from bmqtwist.errors import AckStatus
from bmqtwist.queue.queue import Handle, Put
from bmqtwist.storage.gate import Copies
from bmqtwist.storage.message import Message


def _engine(**settings: object) -> Engine:
    """Return an engine of a primary with strong consistency, whose replicas have stored nothing."""
    engine = Engine(copies=Copies.MAJORITY, **settings)
    engine.partition.copies.pair_commits = True
    engine.partition.copies.committed = engine.partition.position
    return engine


def _commit(engine: Engine, records: int) -> None:
    """Commit the next records."""
    engine.partition.copies.committed += records
    engine.queue.uncommitted.on_commit(engine.now)
    engine.turn()


def _acks(handle: Handle) -> list[int]:
    return [guid[15] for guid, _ in handle.client.acks]  # type: ignore[attr-defined]


def test_a_member_receives_pushes_before_the_commit_and_acks_wait_for_it() -> None:
    engine = _engine()
    producer, member = engine.open(write=1), engine.reader(member=True)
    engine.post(b"1", b"2", handle=producer)
    assert got(member) == [b"1", b"2"] and _acks(producer) == []
    _commit(engine, 1)
    assert got(member) == [] and _acks(producer) == [1]
    engine.confirm(member)
    _commit(engine, 3)
    assert got(member) == [] and _acks(producer) == [1, 2] and not engine.queue.messages
    assert not engine.queue.uncommitted.puts


@pytest.mark.parametrize("why", ["nodes", "client", "both", "copies", "no consumer"])
def test_pushes_wait_for_the_commit_unless_the_member_can_detect_it(why: str) -> None:
    """Clusters above three nodes, consumers here, more copies than a majority, and apps without consumers."""
    engine = _engine()
    engine.partition.copies.pair_commits = why != "nodes"
    readers = [engine.reader(member=why != "client")] if why != "no consumer" else []
    if why == "both":
        readers.append(engine.reader())
    if why == "copies":
        engine.domain.reconfigure(replace(engine.domain.settings, copies=Copies.ALL))
    engine.post(b"1", b"2")
    assert not any(got(each) for each in readers)
    _commit(engine, 2)
    if why == "no consumer":
        readers.append(engine.reader())
        engine.turn()
    assert sorted(sum((got(each) for each in readers), [])) == [b"1", b"2"]


def test_a_later_consumer_waits_for_the_commit_of_messages_pushed_early_to_another() -> None:
    engine = _engine()
    member = engine.reader(member=True, m=2)
    engine.post(b"1", b"2", b"3")
    assert got(member) == [b"1", b"2"], "its limit is reached"
    client = engine.reader(name="client")
    engine.post(b"4")
    assert got(client) == got(member) == []
    _commit(engine, 2)
    assert got(client) == [], "the third message is the member's"
    _commit(engine, 1)
    assert got(client) == [b"3"]
    _commit(engine, 1)
    assert got(client) == [b"4"] and got(member) == []
    engine.post(b"5")
    assert got(client) == got(member) == []


def test_messages_pushed_early_to_a_lost_member_go_to_another_consumer_after_the_commit() -> None:
    engine = _engine(max_attempts=1)
    member = engine.reader(member=True)
    engine.post(b"1", b"2")
    assert got(member) == [b"1", b"2"]
    client = engine.reader(name="client")
    engine.leave(member)
    assert got(client) == []
    _commit(engine, 2)
    assert got(client) == [b"1", b"2"]


def test_early_pushes_of_one_app_do_not_depend_on_other_apps() -> None:
    engine = _engine(mode="fanout", apps=("foo", "bar"))
    member, client = engine.reader("foo", member=True), engine.reader("bar")
    engine.post(b"1", b"2")
    assert got(member) == [b"1", b"2"] and got(client) == []
    _commit(engine, 1)
    assert got(client) == [b"1"]
    _commit(engine, 1)
    assert got(client) == [b"2"] and got(member) == []


def test_an_early_push_does_not_overtake_a_message_that_waits_for_its_commit() -> None:
    """A local consumer existed at the first message and has closed since."""
    engine = _engine()
    member, client = engine.reader(member=True), engine.reader(name="client")
    engine.post(b"1")
    engine.leave(client)
    engine.post(b"2")
    assert got(member) == []
    _commit(engine, 1)
    assert got(member) == [b"1"]
    engine.post(b"3")
    assert got(member) == [], "the second one waits as well"
    _commit(engine, 2)
    assert got(member) == [b"2", b"3"]
    engine.post(b"4")
    assert got(member) == [b"4"]


@pytest.mark.parametrize("who", ["consumer", "producer"])
def test_a_message_sent_early_to_a_member_is_not_removed_when_its_commit_times_out(who: str) -> None:
    engine = _engine()
    producer, reader = engine.open(write=1), engine.reader(member=who == "consumer", m=1)
    producer.client.is_broker = producer.client.is_member = who == "producer"
    engine.post(b"1", b"2", handle=producer)
    assert got(reader) == ([b"1"] if who == "consumer" else [])
    engine.queue.uncommitted.expire(engine.now + 300, WALL)
    engine.queue.uncommitted.expire(engine.now + 301, WALL)
    assert len(engine.queue.messages) == len(engine.queue.uncommitted.puts) == 2
    expected = [(number, AckStatus.UNKNOWN) for number in (1, 2)] if who == "consumer" else []
    assert [(guid[15], status) for guid, status in producer.client.acks] == expected
    _commit(engine, 2)
    before = got(reader)
    assert before == ([] if who == "consumer" else [b"1"])
    engine.confirm(reader)
    assert got(reader) == [b"2"] and len(engine.queue.messages) == 1


def test_a_producer_at_a_member_receives_one_early_acknowledgement() -> None:
    engine = _engine()
    producer = engine.open(write=1)
    producer.client.is_broker = producer.client.is_member = True
    first, second = engine.post(b"1", b"2", handle=producer)
    assert producer.client.acks_ahead == [first, second]
    again = Put(producer, Message(first, b"1", arrived=engine.now, wall=WALL), 0, True)
    assert engine.queue.post(again, engine.now, WALL) == 0
    engine.turn()
    assert _acks(producer) == [], "a repeated early acknowledgement is not sent"
    _commit(engine, 2)
    assert _acks(producer) == [1] and len(producer.client.acks_ahead) == 2
    engine.queue.uncommitted.expire(engine.now + 300, WALL)
    assert _acks(producer) == [1]


@pytest.mark.parametrize("copies", [Copies.ONE, Copies.ALL, Copies.NONE])
def test_early_acknowledgements_are_sent_only_when_a_put_waits_for_a_majority(copies: Copies) -> None:
    engine = _engine()
    engine.domain.reconfigure(replace(engine.domain.settings, copies=copies))
    producer = engine.open(write=1)
    producer.client.is_broker = producer.client.is_member = True
    engine.post(b"1", handle=producer)
    assert not producer.client.acks_ahead and _acks(producer) == ([1] if copies is Copies.NONE else [])
