"""A member and proxies as processes: the official SDK at proxies is not affected by restarts of the member."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import blazingmq
import pytest
from blazingmq import session_events
from kit.cli_kit import Cli
from kit.sdk import application

from bmqtwist.testing.process import BrokerProcess, free_port

PRIORITY = "bmq://bmq.test.persistent.priority/q"
FANOUT = "bmq://bmq.test.persistent.fanout/f"
SERVED = 20.0  # s, limit for a message while the member is down
MESSAGES = 200


def proxy_of(root: Path, name: str, port: int) -> BrokerProcess:
    """Create a proxy whose upstream broker listens on a port."""
    made = BrokerProcess(root / name, app={"hostName": name})
    definition = made.config.clusters["myClusters"][0]
    definition["nodes"][0]["transport"]["tcp"]["endpoint"] = f"tcp://127.0.0.1:{port}"
    made.config.clusters.update(myClusters=[], myVirtualClusters=[], proxyClusters=[
        {key: definition[key] for key in ("name", "nodes", "queueOperations")}])
    made.config.write()
    return made


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Yield a member, a proxy of it, and a proxy of that proxy."""
    with ExitStack() as stack:
        member = stack.enter_context(BrokerProcess(tmp_path / "n1", free_port()))
        near = proxy_of(tmp_path, "p1", member.port)
        stack.enter_context(near)
        yield [member, near, stack.enter_context(proxy_of(tmp_path, "p2", near.port))]


pytestmark = pytest.mark.process


@pytest.mark.spec("cluster", 88)
@pytest.mark.parametrize("level", [1, 2])
def test_applications_at_a_proxy_are_not_disturbed_by_a_killed_member(chain: list[BrokerProcess], level: int) -> None:
    member, proxy = chain[0], chain[level]
    with application(proxy.url) as producer, application(proxy.url) as consumer:
        producer.session.open_queue(PRIORITY, write=True)
        consumer.session.open_queue(PRIORITY, read=True)
        for number in range(MESSAGES):
            producer.post(PRIORITY, b"%d" % number, wait=False)
            if number == MESSAGES // 4:
                member.kill()
            elif number == MESSAGES // 2:
                member.start()
        acks = [producer.next_ack(SERVED) for _ in range(MESSAGES)]
        assert {ack.status for ack in acks} == {blazingmq.AckStatus.SUCCESS} and len({ack.guid for ack in acks}) == MESSAGES
        got = {message.data for message in consumer.take(MESSAGES, deadline=SERVED)}
        while len(got) < MESSAGES:  # confirms on the closed connection are lost, so messages are delivered again
            got |= {message.data for message in consumer.take(deadline=SERVED)}
        assert got == {b"%d" % number for number in range(MESSAGES)}
        for app in (producer, consumer):
            assert [type(event) for event in app.events] == [session_events.Connected]
    assert not [line for each in chain for line in each.records if "INTERNAL_ERROR" in line]
    assert [each.stop() for each in reversed(chain)] == [0, 0, 0]


@pytest.mark.spec("cluster", 94)
def test_applications_at_every_level_share_queues(chain: list[BrokerProcess]) -> None:
    apps = dict(zip(("foo", "bar", "baz"), chain, strict=True))
    with ExitStack() as stack:
        readers = {app: stack.enter_context(application(broker.url)) for app, broker in apps.items()}
        for app, reader in readers.items():
            reader.session.open_queue(f"{FANOUT}?id={app}", read=True, options=blazingmq.QueueOptions(
                max_unconfirmed_messages=5))
        for broker in chain:
            producer = stack.enter_context(application(broker.url))
            producer.session.open_queue(FANOUT, write=True)
            for number in range(10):
                producer.post(FANOUT, b"%d" % number, properties={"n": number, "from": broker.root.name})
        for reader in readers.values():
            assert sorted((message.properties["from"], message.data) for message in reader.take(30)) == sorted(
                (name, b"%d" % number) for name in ("n1", "p1", "p2") for number in range(10))


def test_consume_reaches_a_count_above_its_window(chain: list[BrokerProcess]) -> None:
    for broker in chain:
        bmq = Cli(broker.url)
        bmq("produce", "-q", PRIORITY, stdin=b"".join(b"%d\n" % number for number in range(105)))
        for first, end in ((0, 101), (101, 105)):
            done = bmq("consume", PRIORITY, "-n", str(end - first), "--max-unconfirmed", "100",
                       "-F", "{payload} {redelivered}\n")
            assert done.lines == [f"{number} false" for number in range(first, end)]


def test_a_proxy_reads_only_the_location_from_a_domain_file(chain: list[BrokerProcess]) -> None:
    member, proxy = chain[:2]
    member.config.domain("other")
    proxy.config.domain("other", "fanout", queue_messages=1, domain_messages=1)
    with application(proxy.url) as app:
        app.session.open_queue("bmq://other/q", read=True, write=True)
        for number in range(5):
            app.post("bmq://other/q", b"%d" % number)
        assert len(app.take(5, confirm=False)) == 5
