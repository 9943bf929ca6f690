"""Proxies of the original kind at our nodes, and the reverse: order of messages, and progress.

Tests `bmqtwist/queue/delivery.py`, `bmqtwist/link/peer.py` and `bmqtwist/queue/relay.py`.
"""

from __future__ import annotations

import json
from random import Random

import pytest

from bmqtwist.testing.config import domain_config
from bmqtwist.wire.fast import OUT_OF_ORDER
from sim.cluster import SimulatedCluster
from sim.original_proxy import OriginalProxy, TwoSubscriptions

FANOUT = "bmq://all/f"
PRIORITY = "bmq://bmq.test.persistent.priority/q"
APPS = ("foo", "bar", "baz")


def world_with_proxy(seed: int, flushes: bool = True) -> tuple[SimulatedCluster, OriginalProxy]:
    """Return a node with a proxy of the original kind."""
    world = SimulatedCluster(seed, 1, texts={"all": json.dumps(domain_config("all", "fanout", apps=APPS))})
    return world, OriginalProxy(world, "n1", flushes)


@pytest.mark.parametrize("size", [1, 50_000], ids=["small", "large"])
@pytest.mark.parametrize("texts", [("",), ("a < 5", "a >= 5")], ids=["one", "two"])
@pytest.mark.parametrize("seed", range(3))
def test_an_original_proxy_receives_each_message_in_one_push_and_in_order(seed: int, texts: tuple[str, ...],
                                                                          size: int) -> None:
    world, proxy = world_with_proxy(seed, flushes=False)
    random = Random(seed)
    producer = world.client("n1").open(FANOUT, write=1)
    for app in APPS:
        proxy.open(FANOUT, app, 1000, texts)
    payloads = [b"%d " % number + bytes(size) for number in range(30)]
    for payload in payloads:
        producer.put(payload, ack=False, properties={"a": random.randrange(10)})
    proxy.receive_for(2.0)
    proxy.flush()
    assert proxy.misplaced == 0
    assert [push.data.endswith(payload) for push, payload in zip(proxy.pushes, payloads, strict=True)] == [True] * 30
    assert all(len(proxy.delivered[app]) == 30 for app in APPS)


@pytest.mark.parametrize("seed", range(5))
def test_apps_with_different_windows_behind_an_original_proxy_receive_all_messages_in_order(seed: int) -> None:
    world, proxy = world_with_proxy(seed)
    random = Random(seed)
    producer = world.client("n1").open(FANOUT, write=1)
    for app, window in zip(APPS, (1000, 40, 5), strict=True):
        proxy.open(FANOUT, app, window)
    payloads = [b"%d" % number for number in range(300)]
    for start in range(0, 300, 10):
        for payload in payloads[start:start + 10]:
            producer.put(payload, ack=False)
        for _ in range(random.randrange(3)):
            proxy.receive_for(random.choice((0.002, 0.01)))
            proxy.flush()
            app = random.choice(APPS)
            proxy.confirm(app, random.randrange(1, 20))
    for _ in range(300):
        proxy.receive_for(0.005)
        for app in APPS:
            proxy.confirm(app, 1000)
    assert proxy.misplaced == 0
    assert {app: got == payloads for app, got in proxy.delivered.items()} == dict.fromkeys(APPS, True)
    flagged = sum(bool(push.flags & OUT_OF_ORDER) for push in proxy.pushes)
    assert 0 < flagged, "of apps that had fallen behind"


@pytest.mark.parametrize("seed", range(3))
def test_no_message_stays_in_an_original_proxy_whose_consumer_has_two_subscriptions(seed: int) -> None:
    world, random = SimulatedCluster(seed, 1), Random(seed)
    proxy = TwoSubscriptions(world, "n1", PRIORITY, 50)
    producer = world.client("n1").open(PRIORITY, write=1)
    for _ in range(300):
        producer.put(b"x", ack=False, properties={"a": random.randrange(2)})
    for _ in range(400):
        proxy.receive_for(0.005)
        proxy.confirm(random.randrange(2), random.randrange(1, 8))
    for _ in range(100):
        proxy.receive_for(0.005)
        for number in (0, 1):
            proxy.confirm(number, 50)
    assert proxy.delivered == 300
    assert not world.node("n1").broker.clusters["c3"].queues[PRIORITY].messages
