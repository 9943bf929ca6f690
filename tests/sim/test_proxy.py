"""A member, a proxy of it, and a proxy of that proxy, with clients at each of them."""

from __future__ import annotations

import pytest
from kit.client import Client, payloads

from sim.cluster import SimulatedCluster

PRIORITY = "bmq://bmq.test.persistent.priority/q"
FANOUT = "bmq://bmq.test.persistent.fanout/f"
BROADCAST = "bmq://bmq.test.mem.broadcast/b"
PLACES = ["n1", "p1", "p2"]


def chain(seed: int = 1, **options: object) -> SimulatedCluster:
    return SimulatedCluster(seed, 1, proxies={"p1": ["n1"], "p2": ["p1"]}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("producer", PLACES)
@pytest.mark.parametrize("consumer", PLACES)
def test_messages_go_from_anywhere_to_anywhere(producer: str, consumer: str) -> None:
    world = chain()
    source, sink = world.client(producer), world.client(consumer)
    queue = source.open(PRIORITY, write=1)
    reader = sink.consume(PRIORITY)
    guids = [queue.post(b"message %d" % number) for number in range(10)]
    got = reader.take(10)
    assert [each.guid for each in got] == guids
    assert payloads(got) == [b"message %d" % number for number in range(10)]
    reader.confirm(*got)
    world.run(1.0)
    assert not world.node("n1").broker.clusters["c3"].queues[PRIORITY].messages
