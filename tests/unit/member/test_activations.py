"""Activation of stored queues in slices: they restore the stored messages, and opens of them wait."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.memory import MemoryWorld

from bmqtwist.cluster.state import QueueRecord
from bmqtwist.limits import RESTORED_AT_ONCE, RESTORED_QUEUE
from bmqtwist.loop.scheduler import Priority
from bmqtwist.member import activation as waking
from bmqtwist.member.activation import Activations
from bmqtwist.queue import handover, restored, root
from bmqtwist.queue.restored import Restored, restore
from bmqtwist.steps import Steps, at_once
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.storage.records import ConfirmReason
from bmqtwist.storage.state import StoredQueue
from bmqtwist.testing.node import ImmediatePerformer

WALL, KEY = 1000, b"queue"
URI = "bmq://d/q"


def stored(walls: list[int], pending: list[int] | None = None) -> StoredQueue:
    """Return a queue with one message per arrival time, in seconds."""
    store = StoredQueue(KEY, URI)
    store.join([("a", b"key-a"), ("b", b"key-b")])
    for index, wall in enumerate(walls):
        message = Message(b"%016d" % index, b"x" * index, wall=wall)
        store.hold(message)
        message.pending = pending[index] if pending is not None else 0b11
    return store


@given(st.lists(st.tuples(st.integers(WALL - 5, WALL + 5), st.integers(1, 3)), max_size=30))
def test_what_a_queue_finds_is_what_was_stored(messages: list[tuple[int, int]]) -> None:
    store = stored([wall for wall, _ in messages], [pending for _, pending in messages])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restored, "RESTORED_AT_ONCE", 4)
        work = restore(store, WALL)
        steps = list[int]()
        while True:
            try:
                steps.append(next(work))
            except StopIteration as over:
                found: Restored = over.value
                break
    held = list(store.messages.values())
    assert sum(steps) == found.messages == len(held) and all(step == 4 for step in steps[:-1])
    assert found.bytes == sum(message.size for message in held)
    assert [message.order for message in held] == list(range(len(held)))
    assert {bit: list(place) for bit, place in found.fresh.items()} == {
        bit: [message for message in held if message.pending & bit] for bit in (1, 2)}
    for index, message in enumerate(held):  # not younger than now, or than one that came after it
        assert message.wall == min([WALL, *(wall for wall, _ in messages[index:])])


@given(st.lists(st.booleans(), max_size=12))
def test_what_consumers_hold_is_left_out_and_all_else_is_as_it_was(held: list[bool]) -> None:
    store = stored([WALL] * len(held))
    fresh = at_once(restore(store, WALL)).fresh[1]
    messages = list(fresh)
    handover._leave_out(fresh, {message.guid: message for message in messages if held[message.order]})
    assert list(fresh) == [message for message in messages if not held[message.order]]


class User:
    """A stub of the cluster and of its broker, whose jobs run step by step."""

    def __init__(self) -> None:
        self.now, self.told, self.work = 0.0, list[tuple[Any, ...]](), list[Steps[None]]()
        self.isolation: Any = SimpleNamespace(alarm=lambda *each: self.told.append(each))
        self.stores: dict[str, StoredQueue | Exception] = {}
        self.scheduler: Any = self
        self.activations = Activations(self.stored, self.on_activated, self.on_activation_failed, self)
        self.domain: Any = SimpleNamespace(name="d", opening=0)

    def wall(self, now: float) -> int:
        return WALL

    def start(self, priority: Priority, owner: object, work: Steps[None], failed: Callable[[Exception], None]) -> None:
        self.work.append(work)
        self.step()

    def step(self) -> bool:
        """Run one step; False if no job is left."""
        self.work = [work for work in self.work if next(work, self) is not self]
        return bool(self.work)

    def stored(self, record: QueueRecord) -> StoredQueue:
        store = self.stores[record.uri]
        if isinstance(store, Exception):
            raise store
        return store

    def on_activated(self, domain: Any, record: QueueRecord, store: StoredQueue, found: Restored, opened: bool) -> None:
        assert domain is self.domain and record.uri not in self.activations
        self.told.append((record.uri, found.messages, opened))

    def on_activation_failed(self, record: QueueRecord, opened: bool, error: Exception) -> None:
        self.told.append((record.uri, error, opened))

    def wake(self, **messages: int | Exception) -> None:
        """Start queues with numbers of messages, by name; the last digit of a name is the partition."""
        self.stores.update({uri: each if isinstance(each, Exception) else stored([WALL] * each)
                            for uri, each in messages.items()})
        self.activations.start(self.domain, [QueueRecord(uri, KEY, int(uri[-1]), {}) for uri in messages])


def test_small_queues_live_at_once_and_very_many_take_turns() -> None:
    user = User()
    user.wake(a0=1, b0=0, c1=RESTORED_AT_ONCE - 2 - 3 * RESTORED_QUEUE)
    assert user.told == [("a0", 1, False), ("b0", 0, False), ("c1", RESTORED_AT_ONCE - 2 - 3 * RESTORED_QUEUE, False)]
    assert not user.work and user.domain.opening == 0
    at_one_time = RESTORED_AT_ONCE // RESTORED_QUEUE
    user.told.clear()
    user.wake(**{f"q{index}_0": 0 for index in range(3 * at_one_time)})
    for steps in count(1):
        assert len(user.told) == at_one_time * steps and user.domain.opening == at_one_time * (3 - steps)
        if not user.step():
            break
    assert steps == 3


def test_a_queue_that_takes_long_is_waited_for_and_those_behind_it_too() -> None:
    user = User()
    user.wake(a0=3 * RESTORED_AT_ONCE, b0=5)
    assert "a0" in user.activations and "b0" in user.activations and user.domain.opening == 2 and not user.told
    user.activations.open("b0")
    while user.step():
        pass
    assert user.told == [("a0", 3 * RESTORED_AT_ONCE, False), ("b0", 5, True)]
    assert "a0" not in user.activations and user.domain.opening == 0


def test_queues_that_are_not_to_live_any_more_do_not() -> None:
    user = User()
    user.wake(a0=3 * RESTORED_AT_ONCE, b0=5, c1=5, d0=5)
    for uri in ("a0", "d0"):
        user.activations.open(uri)
    assert user.activations.cancel("d0") and not user.activations.cancel("d0") and not user.activations.cancel("unknown")
    assert user.activations.cancel_all(0) == ["a0"] and user.domain.opening == 1
    while user.step():
        pass
    assert user.told == [("c1", 5, False)] and user.domain.opening == 0


def test_a_queue_that_ends_and_is_to_live_again_meanwhile_lives_once() -> None:
    user = User()
    user.wake(a0=3 * RESTORED_AT_ONCE)
    user.activations.cancel("a0")
    user.wake(a0=3 * RESTORED_AT_ONCE)
    while user.step():
        pass
    assert user.told == [("a0", 3 * RESTORED_AT_ONCE, False)] and user.domain.opening == 0


def test_one_that_cannot_live_costs_the_others_nothing() -> None:
    user, unavailable, mistake = User(), PartitionUnavailable("it is full"), KeyError("mistake")
    user.wake(a0=unavailable, b0=2, c0=mistake, d0=3)
    assert user.told == [("a0", unavailable, False), ("b0", 2, False), ("c0", mistake, False), ("d0", 3, False)]
    assert user.domain.opening == 0 and "a0" not in user.activations


# -- a broker ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def woken_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryWorld:
    """A restarted broker with 20 messages in a queue, which restores one message per turn."""
    world = MemoryWorld(tmp_path)
    world.domain("d")
    producer = world.producer(URI)
    for number in range(20):
        producer.post(b"%d" % number)
    for module in (restored, waking):
        monkeypatch.setattr(module, "RESTORED_AT_ONCE", 1)
    ticks = count()
    monkeypatch.setattr(ImmediatePerformer, "clock", lambda self: next(ticks) * 1.0)
    world._forget_clients()
    world.stop()
    world.open_node(ImmediatePerformer(world))
    assert not world.broker.clusters["c3"].queues and not world.broker.clusters["c3"].dormant
    return world


def test_an_open_waits_for_a_queue_that_is_coming_to_life(woken_slowly: MemoryWorld) -> None:
    world = woken_slowly
    assert world.broker.domains.by_name["d"].opening == 1
    producer, consumer = world.producer(URI), world.consumer(URI)
    producer.post(b"20")
    assert world.got(consumer) == [b"%d" % number for number in range(21)]
    assert world.broker.domains.by_name["d"].opening == 0 and not world.broker.clusters["c3"].changes.is_changing(
        world.broker.clusters["c3"].queues[URI])


def test_an_open_that_fails_when_its_queue_lives_costs_no_other_queue_its_life(woken_slowly: MemoryWorld) -> None:
    world = woken_slowly
    world.allow_internal_errors = True
    cluster = world.broker.clusters["c3"]

    def mistaken(found: Any) -> None:
        raise ValueError("mistake")
    cluster.changes.pending_opens[URI] = [mistaken]
    cluster.activations.open(URI)
    world.run()
    assert URI in cluster.queues and not cluster.changes.pending_opens and URI not in cluster.activations
    assert world.broker.domains.by_name["d"].opening == 0
    [told] = [text for _, text in world.report.lines if "activation" in text]
    assert "ValueError: mistake" in told and not any("activation of its queues" in text for _, text in world.report.lines)


@pytest.mark.parametrize("gone", ["", "purged", "retired"])
def test_what_all_have_confirmed_is_deleted_when_its_queue_lives_if_its_last_primary_had_not(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    """The messages are deleted in slices, unless they are removed meanwhile."""
    monkeypatch.setattr(root, "MESSAGES_AT_ONCE", 2)
    world = MemoryWorld(tmp_path)
    world.domain("f", "fanout", apps=("a", "b"))
    producer = world.producer("bmq://f/q")
    for number in range(9):
        producer.post(b"%d" % number)
    queue = world.broker.clusters["c3"].queues["bmq://f/q"]
    partition, apps = queue.partition, queue.active
    for message in list(queue.messages.values())[:-1]:
        for app in apps:
            partition.append_confirm(queue.key, app.key, message, ConfirmReason.CONFIRMED, WALL)
    world.broker.turn(world.now)
    world._forget_clients()
    world.crash()
    ticks = count()
    monkeypatch.setattr(ImmediatePerformer, "clock", lambda self: next(ticks) * 1.0)
    world.open_node(ImmediatePerformer(world))
    queue = world.broker.clusters["c3"].queues["bmq://f/q"]
    assert 1 < len(queue.messages) == queue.meter.messages < 9
    if gone == "purged":
        queue.in_slices(queue.purge(None, WALL), "")  # type: ignore[arg-type]
    elif gone:
        queue.disabled = True
    before = len(queue.messages)
    world.run()
    assert len(queue.messages) == queue.meter.messages == {"": 1, "purged": 0}.get(gone, before)
    if not gone:
        assert world.got(world.consumer("bmq://f/q", app="a")) == [b"8"]
        world._forget_clients()
        world.restart()
        assert len(world.broker.clusters["c3"].queues["bmq://f/q"].messages) == 1
