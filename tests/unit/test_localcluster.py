"""A cluster of one: queues that are assigned, found again, kept while their domain is missing, and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.client import refusal
from kit.memory import MemoryWorld

from bmqtwist.storage.partition import PartitionUnavailable


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    return world



def test_leases_rise_with_every_start(memory: MemoryWorld) -> None:
    leases = []
    for _ in range(3):
        leases.append([partition.lease for partition in memory.broker.clusters["c3"].partitions])
        memory.crash_and_start()
    assert all(later > earlier for first, second in zip(leases, leases[1:], strict=False)
               for earlier, later in zip(first, second, strict=True))


def test_queues_are_spread_and_found_where_they_were(memory: MemoryWorld) -> None:
    for name in "abcd":
        memory.producer(f"bmq://d/{name}").post(name.encode())
    where = {uri: (queue.partition_id, queue.key) for uri, queue in memory.broker.clusters["c3"].queues.items()}
    assert {partition for partition, _ in where.values()} == {0, 1} and len(set(where.values())) == 4
    memory.restart()
    assert {uri: (queue.partition_id, queue.key) for uri, queue in memory.broker.clusters["c3"].queues.items()} == where


def test_a_queue_whose_domain_is_missing_sleeps_and_keeps_its_messages(memory: MemoryWorld) -> None:
    memory.producer().post(b"kept")
    memory.config.remove_domain("d")
    memory.restart()
    assert list(memory.broker.clusters["c3"].dormant) == ["bmq://d/q"] and memory.alarms("DOMAIN")
    assert refusal(memory.client().open, "bmq://d/q", read=1).category == "E_UNKNOWN"
    memory.restart()
    memory.domain("d")
    consumer = memory.consumer()
    assert memory.got(consumer) == [b"kept"] and not memory.broker.clusters["c3"].dormant


def test_a_partition_that_takes_nothing_leaves_no_half_of_a_queue(memory: MemoryWorld) -> None:
    partitions = memory.broker.clusters["c3"].partitions
    for partition in partitions:
        partition.disable()
    assert refusal(memory.client().open, "bmq://d/q", write=1).category == "E_UNKNOWN"
    assert not memory.broker.clusters["c3"].ledger.state.queues and not memory.broker.clusters["c3"].queues
    for partition in partitions:
        partition.enable()
    memory.producer().post()


def test_apps_follow_the_domain_over_a_restart(memory: MemoryWorld) -> None:
    memory.domain("f", "fanout", apps=("foo", "bar"))
    memory.producer("bmq://f/q").post(b"1")
    memory.domain("f", "fanout", apps=("bar", "new"))
    memory.restart()
    bar, new, foo = (memory.consumer("bmq://f/q", app) for app in ("bar", "new", "foo"))
    memory.producer("bmq://f/q").post(b"2")
    assert (memory.got(bar), memory.got(new), memory.got(foo)) == ([b"1", b"2"], [b"2"], [])
    assert memory.logged("Unregistered appId 'foo'") and memory.logged("Registered appId 'new'")


def test_a_deleted_queue_is_gone_from_ledger_and_partition(memory: MemoryWorld) -> None:
    memory.producer().client.disconnect()
    owner = memory.broker.clusters["c3"]
    owner.delete_queue(owner.queues["bmq://d/q"], 1)
    memory.restart()
    assert not memory.broker.clusters["c3"].ledger.state.queues and not memory.broker.clusters["c3"].dormant


def test_the_number_of_queues_is_limited_with_an_alarm_before(memory: MemoryWorld) -> None:
    memory.domain("few", maxQueues=5)
    client = memory.client()
    for number in range(5):
        client.open(f"bmq://few/{number}", write=1)
    assert len(memory.alarms("DOMAIN_QUEUE_LIMIT_HIGH_WATERMARK")) == 1
    refused = refusal(client.open, "bmq://few/5", write=1)
    assert (refused.category, refused.message) == ("E_REFUSED", "maximum number of queues reached")
    assert memory.alarms("DOMAIN_QUEUE_LIMIT_FULL")


def test_a_record_that_cannot_be_written_is_told_and_changes_nothing_else(memory: MemoryWorld) -> None:
    owner = memory.broker.clusters["c3"]

    def append() -> None:
        raise PartitionUnavailable("it is full")

    owner._record(append)
    assert memory.logged("Cluster (c3): it is full")


def test_duplicates_are_known_over_a_restart_only_as_long_as_they_would_be_without(memory: MemoryWorld) -> None:
    producer, consumer = memory.producer(name="p"), memory.consumer()
    guid = producer.post(b"x")
    consumer.confirm(*consumer.take(1))
    memory.settle()
    memory.crash_and_start()
    producer = memory.producer(name="p")
    producer.post(b"x", guid=guid)
    assert memory.stored() == 0
    memory.advance(400)
    producer.post(b"x", guid=guid)
    assert memory.stored() == 1
