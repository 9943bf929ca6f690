"""Operations on queues with very many messages: they run in slices over several turns, without loss."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kit import codec
from kit.client import Queue
from kit.engine_kit import WALL, Client, Engine, got, spec_of
from kit.memory import MemoryWorld

from bmqtwist import steps
from bmqtwist.limits import MESSAGES_AT_ONCE
from bmqtwist.link import puts
from bmqtwist.link.client import ClientSession
from bmqtwist.loop.scheduler import Priority, Scheduler
from bmqtwist.queue import delivery, handles, root
from bmqtwist.queue import queue as queue_module
from bmqtwist.queue.handles import close_queue, drop_handle
from bmqtwist.queue.queue import Handle, Router
from bmqtwist.queue.root import RootQueue
from bmqtwist.storage import state
from bmqtwist.storage.gate import Copies
from bmqtwist.testing.node import ImmediatePerformer
from bmqtwist.view import queue_facts

STEP = 10  # messages
MANY = 12 * STEP + 3


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small slices, and a clock that advances so far at each call that a turn has one step."""
    for module, name in ((state, "MESSAGES_AT_ONCE"), (handles, "MESSAGES_AT_ONCE"), (steps, "FREED_AT_ONCE")):
        monkeypatch.setattr(module, name, STEP)
    ticks = count()
    monkeypatch.setattr(ImmediatePerformer, "clock", lambda self: next(ticks) * 1.0)


class SlowEngine(Engine):
    """A queue engine with the same clock."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        ticks = count()
        self.scheduler = Scheduler(lambda: next(ticks) * 1.0, self._step_due)

    def step(self) -> None:
        """Run one turn."""
        self.scheduler.run(Priority.QUEUE)
        self.turn()
        self.scheduler.end_turn()


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    return MemoryWorld(tmp_path)


class TurnCounts:
    """Counts the messages that each turn processed, and records the result of `look` after each."""

    def __init__(self, memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch, owner: type, name: str,
                 look: Any = lambda: None) -> None:
        self.counts, self.seen = [0], list[Any]()
        action, turn = getattr(owner, name), memory.broker.turn

        def counted(*arguments: Any) -> Any:
            self.counts[-1] += 1
            return action(*arguments)

        def next_turn(now: float) -> None:
            turn(now)
            self.seen.append(look())
            self.counts.append(0)

        monkeypatch.setattr(owner, name, counted)
        monkeypatch.setattr(memory.broker, "turn", next_turn)


def post_messages(queue: Queue, number: int = MANY) -> list[bytes]:
    """Post messages; return their GUIDs."""
    guids = [queue.client.new_guid() for _ in range(number)]
    queue.client.send(codec.put_frame([codec.put_message(queue.q_id, guid) for guid in guids]))
    queue.client.barrier()
    return guids


# -- purges ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("in_memory", [False, True])
def test_a_purge_removes_a_bounded_number_of_messages_per_turn(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch,
                                                               in_memory: bool) -> None:
    """A million messages took 0.9 s in one turn. The queue is empty at once; the answer follows at the end."""
    memory.domain("d", in_memory=in_memory)
    post_messages(memory.producer())
    queue = memory.broker.domains.by_name["d"].queues["q"]
    memory.admin("CLUSTERS LIST")
    turn_counts = TurnCounts(memory, monkeypatch, state.StoredQueue if in_memory else state.PartitionState,
                             "remove_message" if in_memory else "apply_deletion",
                             lambda: (len(queue.messages), queue.meter.messages))
    assert f"Purged {MANY} message(s)" in memory.admin("DOMAINS DOMAIN d QUEUE q PURGE *")
    assert max(turn_counts.counts) <= 2 * STEP and sum(turn_counts.counts) == MANY
    assert len(turn_counts.seen) >= 11 and set(turn_counts.seen) == {(0, 0)}
    live = queue.partition.state.live
    assert len(live) == (2 if not in_memory else 1) and not queue.partition.state.purging and not queue.purges


def test_producers_and_consumers_use_a_queue_during_its_purge(memory: MemoryWorld) -> None:
    """Messages posted meanwhile stay, CONFIRMs of purged messages are ignored, and unconfirmed ones are not redelivered."""
    memory.domain("d")
    producer, consumer, other = memory.producer(), memory.consumer(m=1 << 20), memory.consumer(m=0)
    guids = post_messages(producer)
    assert len(memory.pushes(consumer)) == MANY
    admin = memory.client("admin", client_type="E_TCPADMIN")
    r_id = admin.send_request({"adminCommand": {"command": "DOMAINS DOMAIN d QUEUE q PURGE *"}})
    queue = memory.broker.domains.by_name["d"].queues["q"]
    assert queue.purges and not queue.messages
    consumer.client.send(codec.confirm_frame([(consumer.q_id, guid, consumer.sub_id) for guid in guids[:7]]))
    kept = producer.client.new_guid()
    producer.client.send(codec.put_frame([codec.put_message(producer.q_id, kept, b"kept")]))
    memory.broker.turn(memory.now)
    assert queue.purges
    consumer.client.link.drop()
    memory.run()
    assert f"Purged {MANY} message(s)" in admin.response(r_id)["adminCommandResponse"]["text"]
    other.configure(m=100)
    assert [push.guid for push in memory.pushes(other)] == [kept]
    memory.crash_and_start()
    assert [push.payload for push in memory.pushes(memory.consumer())] == [b"kept"]


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_purge_of_an_app_processes_a_bounded_number_of_messages_per_turn(memory: MemoryWorld,
                                                                             monkeypatch: pytest.MonkeyPatch,
                                                                             in_memory: bool) -> None:
    """A message that no other app needs gets a DELETION: a million of them took 4 s in one turn."""
    memory.domain("d", "fanout", apps=("foo", "bar"), in_memory=in_memory)
    producer = memory.producer()
    post_messages(producer)
    queue = memory.broker.domains.by_name["d"].queues["q"]
    assert f"Purged {MANY} message(s)" in memory.admin("DOMAINS DOMAIN d QUEUE q PURGE bar")
    turn_counts = TurnCounts(memory, monkeypatch, RootQueue, "remove", lambda: len(queue.messages))
    assert f"Purged {MANY} message(s)" in memory.admin("DOMAINS DOMAIN d QUEUE q PURGE foo")
    assert max(turn_counts.counts) <= STEP and sum(turn_counts.counts) == MANY
    assert len(set(turn_counts.seen)) >= 11 and not queue.messages and queue.meter.messages == 0


def test_no_message_being_purged_is_delivered_to_its_app(memory: MemoryWorld) -> None:
    """Neither a lost consumer's unconfirmed messages nor those for a new consumer; the other app receives all messages."""
    memory.domain("d", "fanout", apps=("foo", "bar"))
    producer, foo, bar = memory.producer(), memory.consumer(app="foo", m=1 << 20), memory.consumer(app="bar", m=1 << 20)
    guids = post_messages(producer)
    assert len(memory.pushes(foo)) == MANY == len(memory.pushes(bar))
    bar.confirm(*guids[::2])
    admin = memory.client("admin", client_type="E_TCPADMIN")
    r_id = admin.send_request({"adminCommand": {"command": "DOMAINS DOMAIN d QUEUE q PURGE foo"}})
    queue = memory.broker.domains.by_name["d"].queues["q"]
    assert queue.purges
    late = memory.consumer(app="foo", m=1 << 20)
    foo.client.link.drop()
    kept = producer.put(b"kept")
    memory.run()
    assert f"Purged {MANY} message(s)" in admin.response(r_id)["adminCommandResponse"]["text"]
    assert [push.guid for push in memory.pushes(late)] == [kept]
    assert memory.stored() == MANY // 2 + 1
    bar.client.link.drop()
    again = memory.consumer(app="bar", m=1 << 20)
    assert [push.guid for push in memory.pushes(again)] == [*guids[1::2], kept]


@pytest.mark.parametrize("command", ["PURGE *", "PURGE foo", "RECONFIGURE"])
def test_a_purge_interrupted_by_a_crash_is_completed_at_the_next_start(memory: MemoryWorld, command: str) -> None:
    memory.domain("d", "fanout", apps=("foo", "bar"))
    producer = memory.producer()
    guids = post_messages(producer)
    admin = memory.client("admin", client_type="E_TCPADMIN")
    if command == "RECONFIGURE":
        memory.domain("d", "fanout", apps=("bar",))
    whole = "DOMAINS RECONFIGURE d" if command == "RECONFIGURE" else f"DOMAINS DOMAIN d QUEUE q {command}"
    admin.send_request({"adminCommand": {"command": whole}})
    queue = memory.broker.domains.by_name["d"].queues["q"]
    for _ in range(100):
        memory.broker.turn(memory.now)
        syncs, memory.syncs = memory.syncs, []
        for complete in syncs:
            complete()
        if queue.purges:
            break
    memory.broker.turn(memory.now)
    assert queue.purges
    memory.crash_and_start()
    assert len(memory.pushes(memory.consumer(app="bar", m=1 << 20))) == (0 if command == "PURGE *" else len(guids))
    if command != "RECONFIGURE":
        assert not memory.pushes(memory.consumer(app="foo", m=1 << 20))


def test_the_removal_of_an_app_processes_a_bounded_number_of_messages_per_turn(memory: MemoryWorld,
                                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    memory.domain("d", "fanout", apps=("foo", "bar"))
    post_messages(memory.producer())
    memory.admin("DOMAINS DOMAIN d QUEUE q PURGE bar")
    turn_counts = TurnCounts(memory, monkeypatch, RootQueue, "remove")
    assert "SUCCESS" in memory.reconfigure("d", "fanout", apps=("bar",))
    memory.run()
    assert max(turn_counts.counts) <= 2 * STEP and sum(turn_counts.counts) == MANY and memory.stored() == 0


def test_remove_of_a_domain_is_answered_after_the_purge_of_its_queues(memory: MemoryWorld,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollover must not copy messages of a deleted queue."""
    memory.domain("d")
    producer = memory.producer()
    post_messages(producer)
    partition = memory.broker.domains.by_name["d"].queues["q"].partition
    producer.client.disconnect()
    queues = memory.broker.domains.by_name["d"].queues
    turn_counts = TurnCounts(memory, monkeypatch, state.PartitionState, "apply_deletion", lambda: "q" in queues)
    assert f"Purged {MANY} message(s)" in memory.admin("DOMAINS REMOVE d")
    assert max(turn_counts.counts) <= 2 * STEP and turn_counts.seen[:10] == [True] * 10
    memory.run()
    assert not partition.state.live and not memory.broker.domains.by_name["d"].queues


def test_a_queue_is_not_deleted_during_its_purge(memory: MemoryWorld) -> None:
    memory.domain("d")
    producer = memory.producer()
    post_messages(producer)
    producer.client.disconnect()
    admin = memory.client("admin", client_type="E_TCPADMIN")
    admin.send_request({"adminCommand": {"command": "DOMAINS DOMAIN d QUEUE q PURGE *"}})
    queue = memory.broker.domains.by_name["d"].queues["q"]
    assert queue.purges
    admin.send_request({"adminCommand": {"command": "CLUSTERS CLUSTER c3 FORCE_GC_QUEUES"}})
    memory.run()
    assert "q" in memory.broker.domains.by_name["d"].queues and not queue.purges
    memory.admin("CLUSTERS CLUSTER c3 FORCE_GC_QUEUES")
    memory.run()
    assert "q" not in memory.broker.domains.by_name["d"].queues


def test_a_purge_includes_messages_that_are_not_durable_yet() -> None:
    """A message without an ACK yet: it is acknowledged and not delivered."""
    engine = SlowEngine()
    reader = engine.reader(m=1 << 20)
    engine.turn()
    turn, engine.turn = engine.turn, lambda: None  # type: ignore[method-assign]
    engine.post(*[b"%d" % number for number in range(MANY)])
    work = engine.queue.purge(None, WALL)
    next(work)
    engine.turn = turn  # type: ignore[method-assign]
    engine.turn()
    assert got(reader) == [] and not engine.queue.apps["__default"].new_messages


# -- lost consumers ----------------------------------------------------------------------------------------------------

def consumer_with_unconfirmed(engine: Engine, number: int = MANY) -> Handle:
    """A consumer with `count` unconfirmed messages."""
    reader = engine.reader(m=1 << 20)
    engine.post(*[b"%d" % each for each in range(number)])
    assert len(got(reader)) == number
    return reader


@pytest.mark.parametrize("crashed", [False, True])
def test_messages_of_a_lost_consumer_are_returned_over_several_turns_in_order(crashed: bool) -> None:
    """A million took 0.8 s in one turn; until all are returned, no consumer receives them or later messages."""
    engine = SlowEngine()
    first, second = consumer_with_unconfirmed(engine), engine.reader(m=1 << 20)
    drop_handle(first, crashed, WALL)
    back, default = [], engine.queue.apps["__default"]
    while default.pending_returns:
        engine.post(b"later")
        assert got(second) == []
        back.append(len(default.redelivery))
        engine.step()
    later = len(back)
    assert len(back) > 12 and all(after - before <= STEP for before, after in zip(back, back[1:], strict=False))
    engine.rest()
    assert got(second) == [*[b"%d" % each for each in range(MANY)], *[b"later"] * later]


def test_messages_of_two_lost_consumers_are_redelivered_in_the_order_of_arrival() -> None:
    engine = SlowEngine()
    first, second = engine.reader(m=1 << 20), engine.reader(m=1 << 20)
    engine.post(*[b"%d" % each for each in range(MANY)])
    third = engine.reader(m=1 << 20)
    drop_handle(second, False, WALL)
    drop_handle(first, False, WALL)
    engine.rest()
    assert got(third) == [b"%d" % each for each in range(MANY)]


def test_delivery_attempts_of_a_lost_consumer_are_counted_over_several_turns() -> None:
    """A message without attempts is rejected, with a record and a log line: a million took 5 s in one turn."""
    engine = SlowEngine(max_attempts=1)
    reader = consumer_with_unconfirmed(engine)
    drop_handle(reader, True, WALL)
    left = [len(engine.queue.messages)]
    while engine.queue.apps["__default"].pending_returns:
        engine.step()
        left.append(len(engine.queue.messages))
    assert left[-1] == 0 and all(before - after <= STEP for before, after in zip(left, left[1:], strict=False))
    assert len(engine.poisons) == MANY and engine.log(f"redelivering {MANY} message(s)") == 1


def test_a_close_is_answered_before_the_messages_of_the_consumer_are_returned() -> None:
    engine = SlowEngine()
    first, second = consumer_with_unconfirmed(engine), engine.reader(m=1 << 20)
    request = close_request(first)
    assert close_queue(first, request, True, WALL) and engine.queue.apps["__default"].pending_returns
    engine.rest()
    assert len(got(second)) == MANY


def close_request(handle: Handle) -> Any:
    """The close request of a reader."""
    from bmqtwist.queue.handles import OpenRequest
    return OpenRequest(handle.q_id, 0, None, 1, 1, 0, 0)


def test_a_purge_includes_messages_that_are_being_returned() -> None:
    engine = SlowEngine()
    first, second = consumer_with_unconfirmed(engine), engine.reader(m=1 << 20)
    drop_handle(first, False, WALL)
    engine.step()
    engine.step()
    engine.scheduler.start(Priority.QUEUE, "a command", engine.queue.purge(None, WALL), engine.job_failed)
    engine.rest()
    assert got(second) == [] and not engine.queue.messages and not engine.queue.partition.state.purging


def test_the_loss_of_many_consumers_in_one_turn_runs_one_slice() -> None:
    engine = SlowEngine()
    readers = [engine.reader(m=1 << 20) for _ in range(20)]
    engine.post(*[b"x"] * 200)
    calls, step = [0], engine.scheduler._step
    engine.scheduler._step = lambda *each: (calls.__setitem__(-1, calls[-1] + 1), step(*each))[1]  # type: ignore[method-assign]
    for reader in readers:
        drop_handle(reader, False, WALL)
    assert calls == [1]
    engine.rest()
    assert engine.queue.apps["__default"].pending_returns == 0 and len(engine.queue.apps["__default"].redelivery) == 200


# -- very many readers -------------------------------------------------------------------------------------------------

READERS = 30


@pytest.mark.parametrize("events", [1, 20])
def test_a_broadcast_put_counts_once_for_each_consumer_against_the_slice(memory: MemoryWorld,
                                                                         monkeypatch: pytest.MonkeyPatch,
                                                                         events: int) -> None:
    """400 small PUTs of one slice to 1,000 readers of a broadcast queue took a turn of 0.8 s. All arrive, in order."""
    monkeypatch.setattr(puts, "REACH_MAX", 3 * READERS)
    memory.domain("d", "broadcast", in_memory=True)
    producer, readers = memory.producer(), [memory.consumer() for _ in range(READERS)]
    producer.put(b"first")
    memory.run()
    turn_counts = TurnCounts(memory, monkeypatch, ClientSession, "push")
    guids = [producer.client.new_guid() for _ in range(40)]
    share = len(guids) // events
    for at in range(0, len(guids), share):
        producer.client.send(codec.put_frame([codec.put_message(producer.q_id, guid) for guid in guids[at:at + share]]))
    memory.run()
    assert max(turn_counts.counts) <= (4 + 4 + share) * READERS if events > 1 else max(turn_counts.counts) <= 8 * READERS
    assert sum(turn_counts.counts) == len(guids) * READERS
    for reader in readers:
        assert [push.guid for push in memory.pushes(reader)][1:] == guids


def test_a_fanout_put_counts_once_for_each_app_against_the_slice(memory: MemoryWorld,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored message is released to all 1,000 apps in one turn: the number of messages is limited."""
    monkeypatch.setattr(puts, "REACH_MAX", 3 * READERS)
    apps = tuple(f"a{number}" for number in range(READERS))
    memory.domain("d", "fanout", apps=apps)
    producer, last = memory.producer(), memory.consumer(app=apps[-1])
    turn_counts = TurnCounts(memory, monkeypatch, RootQueue, "post")
    guids = post_messages(producer, 60)
    assert max(turn_counts.counts) <= 8
    assert [push.guid for push in memory.pushes(last)] == guids


def test_the_loss_of_many_consumers_rebuilds_the_routes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rebuilt the routes of the remaining consumers: 0.25 s for 1,000 disconnects in one turn."""
    engine = Engine()
    readers = [engine.reader() for _ in range(READERS)]
    engine.post(b"1")
    built: list[int] = []
    monkeypatch.setattr(queue_module, "Router", lambda found: (built.append(1), Router(found))[1])
    for reader in readers[1:]:
        drop_handle(reader, False, WALL)
    engine.rest()
    engine.post(b"2", b"3")
    assert len(built) == 1 and got(readers[0])[-2:] == [b"2", b"3"]


def test_all_apps_receive_messages_when_a_turn_has_fewer_messages_than_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A regression: the share of each app was 0 messages, and no message was delivered."""
    monkeypatch.setattr(delivery, "TURN_MESSAGES_MAX", 3)
    apps = tuple(f"a{number}" for number in range(5))
    engine = Engine("fanout", apps)
    readers = [engine.reader(app) for app in apps]
    engine.post(b"1", b"2")
    assert [got(reader) for reader in readers] == [[b"1", b"2"]] * 5


# -- expiry ------------------------------------------------------------------------------------------------------------

def test_queues_with_expired_messages_are_processed_in_different_turns(memory: MemoryWorld,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """2048 messages of each queue were removed in one turn; now one queue at least, more if there is time."""
    memory.domain("d", messageTtl=1)
    for name in "abcdef":
        post_messages(memory.producer(f"bmq://d/{name}"), 20)
    turn_counts = TurnCounts(memory, monkeypatch, RootQueue, "remove")
    memory.advance(4)
    assert max(turn_counts.counts) == 20 and sum(turn_counts.counts) == 120


def test_expiry_counts_a_message_once_for_each_app_against_the_slice() -> None:
    """2048 messages of 1,000 apps took 2 s."""
    apps = tuple(f"a{number}" for number in range(41))
    engine = Engine("fanout", apps, ttl_s=1)
    engine.post(*[b"x"] * 500)
    most = MESSAGES_AT_ONCE * 8 // 48
    assert engine.queue.expire(WALL + 5) and len(engine.queue.messages) == 500 - most
    assert all(len(each.new_messages) == 500 - most for each in engine.queue.active)


def test_uncommitted_puts_that_time_out_are_refused_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "MESSAGES_AT_ONCE", STEP)
    engine = Engine(copies=Copies.MAJORITY, deduplication_ms=1000)
    engine.partition.copies.committed = 0
    producer = engine.open(write=1)
    engine.post(*[b"%d" % number for number in range(3 * STEP)], handle=producer)
    engine.now += 2
    for left in (2 * STEP, STEP, 0):
        engine.queue.uncommitted.expire(engine.now, WALL)
        assert len(engine.queue.messages) == len(engine.queue.uncommitted.puts) == left
    assert len(producer.client.acks) == 3 * STEP  # type: ignore[attr-defined]


# -- capacity ----------------------------------------------------------------------------------------------------------

class NotIterableDict(dict[Any, Any]):
    """A dictionary that must not be iterated."""

    def items(self) -> Any:
        raise AssertionError("iterated over")

    values = __iter__ = keys = items


@pytest.mark.parametrize("texts", [("", ""), ("x > 1", "x > 1"), ("x > 1", "x > 2")])
def test_configure_does_not_iterate_over_unconfirmed_messages(texts: tuple[str, str]) -> None:
    """With a million of them it took 0.7 s. Unconfirmed messages count against the new limit."""
    engine = Engine()
    reader = engine.reader(m=100, x=texts[0])
    engine.post(*[b"%d" % each for each in range(50)], x=2)
    substream, = reader.substreams.values()
    held = list(substream.unconfirmed)
    substream.unconfirmed = NotIterableDict(substream.unconfirmed)
    engine.configure(reader, spec_of(s_id=7, m=20, x=texts[1]))
    subscription, = substream.subscriptions
    assert (subscription.messages, subscription.max_messages, subscription.full, subscription.s_id) == (50, 20, True, 7)
    for guid in held[:34]:
        engine.queue.confirm(substream, guid, engine.now, WALL)
    assert subscription.messages == 16 and not subscription.full
    assert isinstance(reader.client, Client)
    reader.client.take()
    engine.post(b"new", x=3)
    assert reader.client.got == [(b"new", 7, False)]


def test_a_paused_consumer_resumes_with_its_unconfirmed_messages_counted() -> None:
    engine = Engine()
    reader = engine.reader(m=100)
    engine.post(*[b"x"] * 50)
    engine.configure(reader)
    engine.configure(reader, spec_of(m=60))
    substream, = reader.substreams.values()
    assert [each.messages for each in substream.subscriptions] == [50]


def test_a_subscription_that_replaces_several_has_the_sum_of_their_unconfirmed_messages() -> None:
    engine = Engine()
    reader = engine.open(read=1)
    engine.configure(reader, spec_of(s_id=1, x="x == 1"), spec_of(s_id=2, x="x == 2"))
    guids = engine.post(*[b"x"] * 5, x=1) + engine.post(*[b"y"] * 3, x=2)
    engine.configure(reader, spec_of(s_id=3))
    substream, = reader.substreams.values()
    subscription, = substream.subscriptions
    assert (subscription.messages, subscription.s_id) == (8, 3)
    engine.confirm(reader, *guids)
    assert subscription.messages == 0 == subscription.bytes


# -- statistics ------------------------------------------------------------------------------------------------------

def test_unconfirmed_messages_are_counted_exactly_only_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics iterated over a million messages each second."""
    monkeypatch.setattr(queue_facts, "EXACT_MESSAGES_MAX", 20)
    engine = Engine("fanout", ("foo", "bar"))
    reader = engine.reader("foo", m=1000)
    engine.post(*[b"x"] * 20)
    foo, (substream,) = engine.queue.apps["foo"], reader.substreams.values()
    assert queue_facts.app_messages(engine.queue, foo) == 20
    engine.post(b"y")
    substream.unconfirmed = NotIterableDict(substream.unconfirmed)
    assert queue_facts.app_messages(engine.queue, foo) == 21
