"""Three members as processes whose links have little bandwidth: saturated, or with a large message, they lose no role."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import blazingmq
import pytest
from kit.sdk import Application, application
from soak.cutting import CuttingRelays

from bmqtwist.testing import ClusterProcess

DOMAIN = "bmq.test.narrow"
STRONG = f"bmq://{DOMAIN}/q"
SERVED = 30.0
SATURATED, NARROW = 5_000_000, 2_500_000  # bytes per second
SECONDS = 12.0
PAYLOAD = bytes(20_000)
OUTSTANDING = 750  # posts of a producer without an ACK: 15 MB, 3 s at SATURATED, twice the longest timeout
MIB = 1 << 20
ROLES = ("ElectorStateChangeCb", "Setting status of primary", "is not connected any more", "DEAD_CHANNEL", "Partition FSM")

pytestmark = pytest.mark.process


@pytest.fixture
def links(tmp_path: Path) -> Iterator[tuple[ClusterProcess, CuttingRelays]]:
    """Yield available members and the relays between them."""
    partition = {"maxDataFileSize": 256 * MIB, "maxJournalFileSize": 16 * MIB, "maxQlistFileSize": MIB}
    heartbeats = {"heartbeats": {"client": 0, "downstreamBroker": 0, "upstreamBroker": 0, "clusterPeer": 2},
                  "tcp": {"heartbeatIntervalMs": 500}}
    cluster = ClusterProcess(tmp_path, app=heartbeats, cluster={"partition": partition})
    with CuttingRelays() as relays:
        for name in cluster.names:
            cluster[name].domain(DOMAIN, consistency="strong")
        relays.insert(cluster)
        with cluster:
            for name in cluster.names:
                cluster[name].expect("Transitioning to AVAILABLE", deadline=SERVED)
            yield cluster, relays


def roles(cluster: ClusterProcess) -> dict[str, list[str]]:
    """Return the log lines about roles and lost connections, by node."""
    return {name: [line for line in cluster[name].records if any(text in line for text in ROLES)] for name in cluster.names}


def replicas(cluster: ClusterProcess) -> list[str]:
    leader = cluster.leader
    return [name for name in cluster.names if name != leader]


def post_and_count(app: Application, outstanding: int) -> tuple[int, int]:
    """Post until OUTSTANDING posts have no ACK; return their number less the ACKs that have arrived, and the ACKs."""
    for _ in range(OUTSTANDING - outstanding):
        app.post(STRONG, PAYLOAD, wait=False)
    acknowledged = app.acks.qsize()
    for _ in range(acknowledged):
        assert app.next_ack().status == blazingmq.AckStatus.SUCCESS
    return OUTSTANDING - acknowledged, acknowledged


def test_saturated_links_lose_no_role(links: tuple[ClusterProcess, CuttingRelays]) -> None:
    cluster, relays = links
    one, two = replicas(cluster)
    with application(cluster[one].url) as first, application(cluster[two].url) as second:
        for app in (first, second):
            app.session.open_queue(STRONG, write=True)
            app.post(STRONG, PAYLOAD)
        before, outstanding, acknowledged = roles(cluster), [0, 0], [0, 0]
        relays.limit(SATURATED)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for number, app in enumerate((first, second)):
                outstanding[number], more = post_and_count(app, outstanding[number])
                acknowledged[number] += more
            time.sleep(0.02)
        assert roles(cluster) == before
        assert min(acknowledged) * len(PAYLOAD) > 0.2 * SATURATED * SECONDS
        relays.limit(0)


def test_a_message_that_takes_longer_than_all_timeouts_loses_no_role(
        links: tuple[ClusterProcess, CuttingRelays]) -> None:
    cluster, relays = links
    with application(cluster[replicas(cluster)[0]].url) as app:
        app.session.open_queue(STRONG, write=True)
        app.post(STRONG, PAYLOAD)
        before = roles(cluster)
        relays.limit(NARROW)
        app.post(STRONG, bytes(64 * MIB), wait=False)  # 27 s for each of two links
        assert app.next_ack(150.0).status == blazingmq.AckStatus.SUCCESS
        assert roles(cluster) == before
        relays.limit(0)
