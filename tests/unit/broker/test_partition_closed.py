"""Requests of consumers and operators while a partition is unavailable, and a refused RECONFIGURE."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.memory import MemoryWorld

from bmqtwist.testing.config import CLUSTER

FANOUT = "bmq://f/q"


@pytest.fixture
def memory(tmp_path: Path) -> MemoryWorld:
    world = MemoryWorld(tmp_path)
    world.domain("d")
    world.domain("f", "fanout", apps=("foo", "bar"))
    return world


def switch_partitions(memory: MemoryWorld, command: str) -> None:
    """ENABLE or DISABLE all partitions."""
    for number in range(2):
        memory.admin(f"CLUSTERS CLUSTER {CLUSTER} STORAGE PARTITION {number} {command}")


@pytest.mark.parametrize("crash", [False, True])
def test_confirms_during_an_unavailable_partition_become_pending_records(memory: MemoryWorld, crash: bool) -> None:
    """A regression: they were dropped. Without the pending records a restart redelivers the messages."""
    producer, consumer = memory.producer(), memory.consumer()
    producer.post_all(b"1", b"2")
    switch_partitions(memory, "DISABLE")
    consumer.confirm(*memory.pushes(consumer))
    memory.wait_idle()
    if not crash:
        switch_partitions(memory, "ENABLE")
        memory.wait_idle()
    memory.crash_and_start()
    assert memory.new_payloads(memory.consumer()) == ([b"1", b"2"] if crash else [])


@pytest.mark.parametrize("command", ["DOMAINS DOMAIN f QUEUE q PURGE *", "DOMAINS DOMAIN f QUEUE q PURGE foo",
                                     "DOMAINS DOMAIN f PURGE"])
def test_a_purge_that_cannot_be_recorded_is_an_error_and_removes_no_message(memory: MemoryWorld, command: str) -> None:
    """Neither at once nor after a restart."""
    memory.producer(FANOUT).post_all(b"1", b"2")
    switch_partitions(memory, "DISABLE")
    answer = memory.admin(command)
    assert "Purged" not in answer and answer, answer
    switch_partitions(memory, "ENABLE")
    assert memory.new_payloads(memory.consumer(FANOUT, "foo")) == [b"1", b"2"]
    memory.crash_and_start()
    assert [memory.new_payloads(memory.consumer(FANOUT, app)) for app in ("foo", "bar")] == [[b"1", b"2"]] * 2


def test_a_refused_reconfigure_changes_no_setting(memory: MemoryWorld) -> None:
    """An allowed change precedes the refused one."""
    producer = memory.producer(FANOUT)
    consumers = {app: memory.consumer(FANOUT, app) for app in ("foo", "bar")}
    before = memory.broker.domains.by_name["f"].settings
    for refused in ({"mode": "priority"}, {"mode": "fanout", "in_memory": True}):
        mode = str(refused.pop("mode"))
        answer = memory.reconfigure("f", mode, apps=("foo", "new"), queue_messages=1, maxDeliveryAttempts=7, messageTtl=1,
                                    **refused)  # type: ignore[arg-type]
        assert "SUCCESS" not in answer
        assert memory.broker.domains.by_name["f"].settings == before
        producer.post_all(b"1", b"2")
        for consumer in consumers.values():
            pushed = memory.pushes(consumer)
            assert [push.payload for push in pushed] == [b"1", b"2"]
            consumer.confirm(*pushed)
    assert memory.reconfigure("f", "fanout", apps=("foo", "new"), queue_messages=100) == "SUCCESS"
    producer.post(b"3")
    assert memory.new_payloads(memory.consumer(FANOUT, "new")) == [b"3"] and memory.new_payloads(consumers["bar"]) == []
