"""Time limits of a turn: the remaining queues and sessions are processed in the next turn, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.client import Queue
from kit.memory import MemoryWorld
from kit.paced import count_received, session_of

from bmqtwist.limits import TURN_WRITE_S
from bmqtwist.link.session import Session
from bmqtwist.loop.scheduler import BUDGETS, Priority
from bmqtwist.queue.root import RootQueue
from bmqtwist.testing.node import ImmediatePerformer

QUEUES = 5
TURN_DELIVERY_S = BUDGETS[Priority.DELIVERY]


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"durability": "none"}})
    world.domain("d")
    return world


def consumers_with_messages(world: MemoryWorld) -> list[Queue]:
    """Consumers of as many queues, each with a new undelivered message."""
    uris = [f"bmq://d/q{number}" for number in range(QUEUES)]
    consumers, producers = [world.consumer(uri) for uri in uris], [world.producer(uri) for uri in uris]
    for producer in producers:
        producer.put(ack=False)
    assert world.turn_requested
    return consumers


def served_after_each_turn(world: MemoryWorld, consumers: list[Queue]) -> list[int]:
    """The number of consumers with output after each turn, until no turn is due."""
    found = []
    while world.turn_requested:
        world.turn_requested = False
        world.broker.turn(world.now)
        found.append(sum(bool(each.client.link._arrived) for each in consumers))  # type: ignore[attr-defined]
    assert [count_received(consumer, "push") for consumer in consumers] == [1] * QUEUES
    return found


def test_queues_beyond_the_delivery_budget_deliver_in_the_next_turn(memory: MemoryWorld,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = consumers_with_messages(memory)
    deliver = RootQueue.deliver

    def advance_clock(queue: RootQueue, now: float) -> None:
        memory.now += 0.6 * TURN_DELIVERY_S
        deliver(queue, now)

    monkeypatch.setattr(RootQueue, "deliver", advance_clock)
    assert served_after_each_turn(memory, consumers) == [2, 4, 5]


@pytest.fixture
def slow_writes(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ImmediatePerformer.write

    def advance_clock(performer: ImmediatePerformer, session: Session, parts: list[bytes]) -> int:
        memory.now += 0.6 * TURN_WRITE_S
        return write(performer, session, parts)

    monkeypatch.setattr(ImmediatePerformer, "write", advance_clock)


@pytest.mark.usefixtures("slow_writes")
def test_sessions_beyond_the_write_budget_are_written_in_the_next_turn(memory: MemoryWorld) -> None:
    assert served_after_each_turn(memory, consumers_with_messages(memory)) == [2, 4, 5]


def test_each_turn_serves_at_least_one_queue_and_one_session(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = consumers_with_messages(memory)
    deliver, write = memory.broker.deliveries.run, memory.broker.output.write
    monkeypatch.setattr(memory.broker.deliveries, "run", lambda now: deliver(now - 1.0))
    monkeypatch.setattr(memory.broker.output, "write", lambda until: write(until - 1.0))
    assert served_after_each_turn(memory, consumers) == list(range(1, QUEUES + 1))


@pytest.mark.usefixtures("slow_writes")
def test_a_session_lost_before_its_write_does_not_affect_other_sessions(memory: MemoryWorld) -> None:
    consumers = consumers_with_messages(memory)
    memory.broker.turn(memory.now)
    lost = next(each for each in consumers if session_of(each).flush_due)
    lost.client.link.drop()
    memory.run()
    assert [count_received(each, "push") for each in consumers if each is not lost] == [1] * (QUEUES - 1)
    assert count_received(memory.consumer(lost.uri), "push") == 1
