"""Three members and a proxy as processes: the official SDK at a replica and at the proxy during changes of primaries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import blazingmq
import pytest
from blazingmq import session_events
from kit.sdk import Application, application

from bmqtwist.testing import BrokerProcess, ClusterProcess

STRONG = "bmq://bmq.test.persistent.priority.sc/q"
SERVED = 30.0  # seconds that a message may take while there is no primary
MESSAGES = 200

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ClusterProcess, BrokerProcess]]:
    """Yield available members and the proxy."""
    with ClusterProcess(tmp_path, proxies=1) as nodes:
        for name in nodes.names:
            nodes[name].expect("Transitioning to AVAILABLE", deadline=SERVED)
        yield nodes, nodes["p1"]


def restart(nodes: ClusterProcess, name: str) -> None:
    """Stop a node gracefully and start it again."""
    said = len(nodes[name].records)
    assert nodes[name].stop() == 0
    nodes[name].launch()
    nodes[name].expect("Transitioning to AVAILABLE", since=said, deadline=SERVED)


def finish(app: Application, got: set[bytes], expected: set[bytes]) -> None:
    """Wait until all messages are acknowledged and delivered."""
    acks = [app.next_ack(SERVED) for _ in expected]
    assert {ack.status for ack in acks} == {blazingmq.AckStatus.SUCCESS} and len({ack.guid for ack in acks}) == len(expected)
    while got < expected:
        got |= {message.data for message in app.take(deadline=SERVED)}
    assert got == expected
    assert [type(event) for event in app.events] == [session_events.Connected]


@pytest.mark.spec("cluster", 88)
@pytest.mark.spec("cluster", 102)
@pytest.mark.parametrize("place", ["replica", "proxy"])
def test_clients_at_other_members_are_not_disturbed_by_a_killed_primary(
        cluster: tuple[ClusterProcess, BrokerProcess], place: str) -> None:
    nodes, proxy = cluster
    primary = nodes.leader
    replica = next(name for name in nodes.names if name != primary)
    with application(nodes[replica].url if place == "replica" else proxy.url) as app:
        app.session.open_queue(STRONG, read=True, write=True)
        payloads = [b"%d" % number for number in range(MESSAGES)]
        for number, payload in enumerate(payloads):
            app.post(STRONG, payload, wait=False)
            if number == MESSAGES // 2:
                nodes[primary].kill()
        finish(app, set(), set(payloads))
    nodes[primary].launch()
    assert nodes.elect()
    assert not [line for name in nodes.names for line in nodes[name].records if "INTERNAL_ERROR" in line]


@pytest.mark.spec("cluster", 105)
def test_a_rolling_restart_of_member_processes_refuses_no_put(cluster: tuple[ClusterProcess, BrokerProcess]) -> None:
    nodes, proxy = cluster
    with application(proxy.url) as app:
        app.session.open_queue(STRONG, read=True, write=True)
        posted: list[bytes] = []
        got: set[bytes] = set()

        def live(count: int) -> None:
            for _ in range(count):
                posted.append(b"%d" % len(posted))
                app.post(STRONG, posted[-1], wait=False)
        for name in nodes.names:
            live(30)
            restart(nodes, name)
            live(30)
        finish(app, got, set(posted))
    assert [nodes[name].stop() for name in nodes.names] == [0, 0, 0]


def test_a_stop_does_not_wait_for_a_consumer_behind_a_proxy(cluster: tuple[ClusterProcess, BrokerProcess]) -> None:
    nodes, proxy = cluster
    with application(proxy.url) as app:
        app.session.open_queue(STRONG, read=True, write=True)
        for number in range(10):
            app.post(STRONG, b"%d" % number)
        app.take(10, confirm=False)
        [used] = [line for line in proxy.records if "is healthy and using node" in line]
        node = nodes[next(name for name in nodes.names if f"'[{name}, " in used)]
        begun = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - begun < 3.0, "shutdownTimeoutMs is 4 s here"
        assert not [line for line in node.records if "giving up" in line]
