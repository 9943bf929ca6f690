"""Objects that a cluster retains after many short connections: no more than after few of them.

Objects of this project are counted, not bytes of the process, by class, and the entries of the GUID histories. Rings reach
their limits before the first count.
"""

from __future__ import annotations

import gc
import json
from collections import Counter

import pytest

from bmqtwist.broker import periodic_jobs
from bmqtwist.ids import domain_of
from bmqtwist.storage import replica
from bmqtwist.storage.history import CLIENTS_KEPT
from bmqtwist.testing.config import domain_config
from bmqtwist.view import events
from sim.replicated import EVENTUAL, ReplicatingCluster, available_cluster

WARM_UP, CYCLES = 60, 60
RING_BYTES = 24 << 10  # about 50 runs of one or two records


def run_cycles(nodes: ReplicatingCluster, place: str, end: str, count: int) -> None:
    """Let a producer and a consumer connect at a node, exchange a message and disconnect or crash, `count` times."""
    for _ in range(count):
        producer, consumer = nodes.client(place), nodes.client(place)
        reader, queue = consumer.consume(EVENTUAL), producer.open(EVENTUAL, write=1)
        queue.post(b"message")
        reader.confirm(*reader.take(1))
        nodes.run(0.1)  # until the primary has the CONFIRM
        for client in (producer, consumer):
            if end == "kill":
                client.kill()
            else:
                client.disconnect()
        nodes.run(0.1)
    nodes.run(15.0)  # dedup windows, statistics of connections and delayed calls end


def count_objects(nodes: ReplicatingCluster) -> Counter[str]:
    """Return the number of objects of each class of this project, after a reading of the statistics."""
    for node in (*nodes.machines, *nodes.proxies):
        node.broker.deliveries.ack_latency.counts()
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    found = Counter({f"{kind.__module__}.{kind.__qualname__}": count for kind, count in kinds.items()
                     if str(kind.__module__).startswith("bmqtwist.")})
    for node in nodes.machines:
        for partition in nodes.cluster(node.name).partitions:
            for queue in partition.state.queues.values():
                found["GUIDs"] += len(queue.history)
                found["client ids"] += max(0, queue.history.client_count - CLIENTS_KEPT)
    return found


@pytest.mark.parametrize("end", ["disconnect", "kill"])
@pytest.mark.parametrize("place", ["primary", "replica", "p1"])
def test_short_connections_leave_no_objects(place: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "RECENT_BYTES", RING_BYTES)
    monkeypatch.setattr(events, "EVENTS_MAX", 20)
    monkeypatch.setattr(periodic_jobs, "GUID_EXPIRY_PERIOD_S", 2.0)
    nodes = available_cluster(31, proxies={"p1": ["n1", "n2", "n3"]})
    domain = domain_of(EVENTUAL)
    nodes.domains.texts[domain] = json.dumps(domain_config(domain, deduplicationTimeMs=2000))
    name = {"primary": nodes.primary().name, "replica": nodes.replicas()[0].name}.get(place, place)
    run_cycles(nodes, name, end, WARM_UP)
    before = count_objects(nodes)
    run_cycles(nodes, name, end, CYCLES)
    more = count_objects(nodes) - before
    assert all(count < CYCLES / 4 for count in more.values()), more.most_common(10)
