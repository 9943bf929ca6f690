"""Activation of stored queues in slices: it restores the stored messages, and opens wait for it."""

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
from bmqtwist.queue import handover, restored_messages, root
from bmqtwist.queue.restored_messages import RestoredMessages, restore
from bmqtwist.steps import Steps, at_once
from bmqtwist.storage.message import Message
from bmqtwist.storage.partition import PartitionUnavailable
from bmqtwist.storage.records import ConfirmReason
from bmqtwist.storage.state import StoredQueue
from bmqtwist.testing.node import ImmediatePerformer

WALL, KEY = 1000, b"queue"
URI = "bmq://d/q"


def stored_queue(walls: list[int], pending: list[int] | None = None) -> StoredQueue:
    """Return a queue with one message per arrival time, in seconds."""
    store = StoredQueue(KEY, URI)
    store.register_apps([("a", b"key-a"), ("b", b"key-b")])
    for index, wall in enumerate(walls):
        message = Message(b"%016d" % index, b"x" * index, wall=wall)
        store.add_message(message)
        message.pending = pending[index] if pending is not None else 0b11
    return store


@given(st.lists(st.tuples(st.integers(WALL - 5, WALL + 5), st.integers(1, 3)), max_size=30))
def test_an_activated_queue_has_all_stored_messages(messages: list[tuple[int, int]]) -> None:
    store = stored_queue([wall for wall, _ in messages], [pending for _, pending in messages])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restored_messages, "RESTORED_AT_ONCE", 4)
        work = restore(store, WALL)
        steps = list[int]()
        while True:
            try:
                steps.append(next(work))
            except StopIteration as over:
                found: RestoredMessages = over.value
                break
    held = list(store.messages.values())
    assert sum(steps) == found.messages == len(held) and all(step == 4 for step in steps[:-1])
    assert found.bytes == sum(message.size for message in held)
    assert [message.order for message in held] == list(range(len(held)))
    assert {bit: list(place) for bit, place in found.undelivered.items()} == {
        bit: [message for message in held if message.pending & bit] for bit in (1, 2)}
    for index, message in enumerate(held):  # not younger than now, or than one that came after it
        assert message.wall == min([WALL, *(wall for wall, _ in messages[index:])])


@given(st.lists(st.booleans(), max_size=12))
def test_messages_held_by_consumers_are_not_new_after_a_handover(held: list[bool]) -> None:
    store = stored_queue([WALL] * len(held))
    fresh = at_once(restore(store, WALL)).undelivered[1]
    messages = list(fresh)
    handover._remove_unconfirmed(fresh, {message.guid: message for message in messages if held[message.order]})
    assert list(fresh) == [message for message in messages if not held[message.order]]


class FakeCluster:
    """A stub of the cluster and of its broker, whose jobs run step by step."""

    def __init__(self) -> None:
        self.now, self.results, self.work = 0.0, list[tuple[Any, ...]](), list[Steps[None]]()
        self.isolation: Any = SimpleNamespace(alarm=lambda *each: self.results.append(each))
        self.stores: dict[str, StoredQueue | Exception] = {}
        self.scheduler: Any = self
        self.activations = Activations(self.stored_queue, self.on_activated, self.on_activation_failed, self)
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

    def stored_queue(self, record: QueueRecord) -> StoredQueue:
        store = self.stores[record.uri]
        if isinstance(store, Exception):
            raise store
        return store

    def on_activated(self, domain: Any, record: QueueRecord, store: StoredQueue, found: RestoredMessages,
                     opened: bool) -> None:
        assert domain is self.domain and record.uri not in self.activations
        self.results.append((record.uri, found.messages, opened))

    def on_activation_failed(self, record: QueueRecord, opened: bool, error: Exception) -> None:
        self.results.append((record.uri, error, opened))

    def activate(self, **messages: int | Exception) -> None:
        """Start queues with numbers of messages, by name; the last digit of a name is the partition."""
        self.stores.update({uri: each if isinstance(each, Exception) else stored_queue([WALL] * each)
                            for uri, each in messages.items()})
        self.activations.start(self.domain, [QueueRecord(uri, KEY, int(uri[-1]), {}) for uri in messages])


def test_small_queues_are_activated_at_once_and_very_many_in_slices() -> None:
    cluster = FakeCluster()
    cluster.activate(a0=1, b0=0, c1=RESTORED_AT_ONCE - 2 - 3 * RESTORED_QUEUE)
    assert cluster.results == [("a0", 1, False), ("b0", 0, False), ("c1", RESTORED_AT_ONCE - 2 - 3 * RESTORED_QUEUE, False)]
    assert not cluster.work and cluster.domain.opening == 0
    at_one_time = RESTORED_AT_ONCE // RESTORED_QUEUE
    cluster.results.clear()
    cluster.activate(**{f"q{index}_0": 0 for index in range(3 * at_one_time)})
    for steps in count(1):
        assert len(cluster.results) == at_one_time * steps and cluster.domain.opening == at_one_time * (3 - steps)
        if not cluster.step():
            break
    assert steps == 3


def test_a_slow_activation_delays_the_activations_after_it() -> None:
    cluster = FakeCluster()
    cluster.activate(a0=3 * RESTORED_AT_ONCE, b0=5)
    assert "a0" in cluster.activations and "b0" in cluster.activations
    assert cluster.domain.opening == 2 and not cluster.results
    cluster.activations.open("b0")
    while cluster.step():
        pass
    assert cluster.results == [("a0", 3 * RESTORED_AT_ONCE, False), ("b0", 5, True)]
    assert "a0" not in cluster.activations and cluster.domain.opening == 0


def test_cancelled_activations_do_not_activate_their_queues() -> None:
    cluster = FakeCluster()
    cluster.activate(a0=3 * RESTORED_AT_ONCE, b0=5, c1=5, d0=5)
    for uri in ("a0", "d0"):
        cluster.activations.open(uri)
    assert cluster.activations.cancel("d0") and not cluster.activations.cancel("d0")
    assert not cluster.activations.cancel("unknown")
    assert cluster.activations.cancel_all(0) == ["a0"] and cluster.domain.opening == 1
    while cluster.step():
        pass
    assert cluster.results == [("c1", 5, False)] and cluster.domain.opening == 0


def test_a_cancelled_and_restarted_activation_activates_the_queue_once() -> None:
    cluster = FakeCluster()
    cluster.activate(a0=3 * RESTORED_AT_ONCE)
    cluster.activations.cancel("a0")
    cluster.activate(a0=3 * RESTORED_AT_ONCE)
    while cluster.step():
        pass
    assert cluster.results == [("a0", 3 * RESTORED_AT_ONCE, False)] and cluster.domain.opening == 0


def test_a_failed_activation_does_not_affect_other_queues() -> None:
    cluster, unavailable, mistake = FakeCluster(), PartitionUnavailable("it is full"), KeyError("mistake")
    cluster.activate(a0=unavailable, b0=2, c0=mistake, d0=3)
    assert cluster.results == [("a0", unavailable, False), ("b0", 2, False), ("c0", mistake, False), ("d0", 3, False)]
    assert cluster.domain.opening == 0 and "a0" not in cluster.activations


# -- a broker ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slowly_activated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryWorld:
    """A restarted broker with 20 messages in a queue, which restores one message per turn."""
    world = MemoryWorld(tmp_path)
    world.domain("d")
    producer = world.producer(URI)
    for number in range(20):
        producer.post(b"%d" % number)
    for module in (restored_messages, waking):
        monkeypatch.setattr(module, "RESTORED_AT_ONCE", 1)
    ticks = count()
    monkeypatch.setattr(ImmediatePerformer, "clock", lambda self: next(ticks) * 1.0)
    world._drop_clients()
    world.stop()
    world.open_node(ImmediatePerformer(world))
    assert not world.broker.clusters["c3"].queues and not world.broker.clusters["c3"].dormant
    return world


def test_an_open_waits_for_the_activation_of_its_queue(slowly_activated: MemoryWorld) -> None:
    world = slowly_activated
    assert world.broker.domains.by_name["d"].opening == 1
    producer, consumer = world.producer(URI), world.consumer(URI)
    producer.post(b"20")
    assert world.new_payloads(consumer) == [b"%d" % number for number in range(21)]
    assert world.broker.domains.by_name["d"].opening == 0 and not world.broker.clusters["c3"].changes.is_changing(
        world.broker.clusters["c3"].queues[URI])


def test_an_error_in_a_waiting_open_does_not_affect_other_activations(slowly_activated: MemoryWorld) -> None:
    world = slowly_activated
    world.allow_internal_errors = True
    cluster = world.broker.clusters["c3"]

    def mistaken(found: Any) -> None:
        raise ValueError("mistake")
    cluster.changes.pending_opens[URI] = [mistaken]
    cluster.activations.open(URI)
    world.run()
    assert URI in cluster.queues and not cluster.changes.pending_opens and URI not in cluster.activations
    assert world.broker.domains.by_name["d"].opening == 0
    [line] = [text for _, text in world.report.lines if "activation" in text]
    assert "ValueError: mistake" in line and not any("activation of its queues" in text for _, text in world.report.lines)


@pytest.mark.parametrize("gone", ["", "purged", "retired"])
def test_activation_deletes_messages_that_all_apps_have_confirmed(
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
    world._drop_clients()
    world.crash()
    ticks = count()
    monkeypatch.setattr(ImmediatePerformer, "clock", lambda self: next(ticks) * 1.0)
    world.open_node(ImmediatePerformer(world))
    queue = world.broker.clusters["c3"].queues["bmq://f/q"]
    assert 1 < len(queue.messages) == queue.meter.messages < 9
    if gone == "purged":
        queue.run_in_slices(queue.purge(None, WALL), "")  # type: ignore[arg-type]
    elif gone:
        queue.disabled = True
    before = len(queue.messages)
    world.run()
    assert len(queue.messages) == queue.meter.messages == {"": 1, "purged": 0}.get(gone, before)
    if not gone:
        assert world.new_payloads(world.consumer("bmq://f/q", app="a")) == [b"8"]
        world._drop_clients()
        world.restart()
        assert len(world.broker.clusters["c3"].queues["bmq://f/q"].messages) == 1
