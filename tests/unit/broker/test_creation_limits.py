"""Limit of the queues of a domain without `maxQueues`, and of the queue creations of a principal per second."""

from __future__ import annotations

from pathlib import Path

from kit.client import refusal
from kit.memory import MemoryWorld

from bmqtwist.broker.creation_rate import OWNERS_MAX, CreationRate
from bmqtwist.limits import QUEUE_CREATIONS_AT_ONCE


def test_a_principal_creates_some_queues_at_once_and_then_a_number_per_second() -> None:
    rate = CreationRate(10)
    assert {rate.reserve("eve", 60.0, 0.0) for _ in range(QUEUE_CREATIONS_AT_ONCE)} == {0.0}
    assert [rate.reserve("eve", 60.0, 0.0) for _ in range(3)] == [0.1, 0.2, 0.3]
    assert rate.reserve("ada", 60.0, 0.0) == 0.0
    assert rate.reserve("eve", 0.3, 0.0) is None and rate.reserve("eve", 0.3, 1.0) == 0.0
    for number in range(OWNERS_MAX + 5):
        rate.reserve(f"p{number}", 60.0, 1.0)
    assert len(rate._left) == OWNERS_MAX and CreationRate(0).reserve("eve", 0.0, 0.0) == 0.0


def test_opens_beyond_the_rate_wait_and_known_queues_open_at_once(tmp_path: Path) -> None:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"queueCreationsPerSecondMax": 10}})
    world.domain("d")
    client = world.client("c")
    client.open("bmq://d/known", write=1)
    while world.broker.domains.creations.reserve("127.0.0.1", 0.0, world.now) == 0.0:
        pass
    asked = client.send_request({"openQueue": {"handleParameters": client.handle_parameters("bmq://d/new", 7, write=1)}})
    world.run()
    queues = world.broker.clusters["c3"].queues
    assert "bmq://d/new" not in queues
    world.client("other").open("bmq://d/known", write=1)
    assert len(queues["bmq://d/known"].handles) == 2
    world.advance(0.2)
    assert client.response(asked)["openQueueResponse"] and "bmq://d/new" in queues


def test_an_open_that_would_wait_beyond_its_timeout_is_refused(tmp_path: Path) -> None:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"queueCreationsPerSecondMax": 10}})
    world.domain("d")
    client = world.client("c")
    while world.broker.domains.creations.reserve("127.0.0.1", 10.0, world.now) is not None:
        pass
    assert "creates too many queues" in refusal(client.open, "bmq://d/new", write=1).message
    assert not world.broker.clusters["c3"].queues


def test_a_domain_without_a_limit_has_that_of_the_broker(tmp_path: Path) -> None:
    world = MemoryWorld(tmp_path, app={"bmqtwist": {"queuesPerDomainMax": 2}})
    world.domain("d", maxQueues=0)
    world.domain("own", maxQueues=1)
    assert world.broker.domains.get_or_load("d").max_queues == 2
    assert world.broker.domains.get_or_load("own").max_queues == 1
    unlimited = MemoryWorld(tmp_path / "unlimited", app={"bmqtwist": {"queuesPerDomainMax": 0}})
    unlimited.domain("d")
    assert unlimited.broker.domains.get_or_load("d").max_queues == 0
