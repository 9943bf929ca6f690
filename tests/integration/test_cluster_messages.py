"""Three nodes of a cluster as processes: acknowledged messages of the official SDK survive repeated kills of the primary."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from kit.sdk import application, expect_line, script

from bmqtwist.testing import BrokerProcess, ClusterProcess

QUEUE = "bmq://d/q"
ROUNDS = 3
_ACTIVE = "of Partition [0] to [E_ACTIVE]"

PRODUCER = """
from functools import partial
session = make()
session.open_queue("bmq://d/q", write=True)
start = int(sys.stdin.readline())
number = start
outstanding = set()
def acked(number, ack):
    outstanding.discard(number)
    if ack.status is blazingmq.AckStatus.SUCCESS:
        say("acked", number)
say("opened")
while True:
    outstanding.add(number)
    session.post("bmq://d/q", b"message %d" % number, on_ack=partial(acked, number))
    number += 1
    while len(outstanding) > 50:
        time.sleep(0.001)
"""


def primary(nodes: list[BrokerProcess], since: dict[BrokerProcess, int]) -> BrokerProcess:
    """Return the active primary of the first partition from the logs, each read from a given line on; None if unknown."""
    end = time.monotonic() + 40.0
    while time.monotonic() < end:
        for node in nodes:
            if any(_ACTIVE in line for line in node.records[since[node]:]):
                return node
        time.sleep(0.02)
    raise AssertionError("\n".join(line for node in nodes for line in node.records[-20:]))


@pytest.mark.spec("cluster", 64)
def test_acknowledged_messages_survive_repeated_kills_of_the_primary(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path)
    nodes = [cluster[name] for name in cluster.names]
    for node in nodes:
        node.domain("d", consistency="strong")
    with cluster:
        kill_primaries(nodes)
        assert [node.stop() for node in nodes] == [0, 0, 0]


def kill_primaries(nodes: list[BrokerProcess]) -> None:
    """Post to the primary and kill it, ROUNDS times; check that each acknowledged message is delivered once."""
    acknowledged, start = set[int](), 0
    led = primary(nodes, dict.fromkeys(nodes, 0))
    for _ in range(ROUNDS):
        with script(led.url, PRODUCER) as producer:
            assert producer.stdin is not None and producer.stdout is not None
            producer.stdin.write(f"{start}\n")
            producer.stdin.flush()
            expect_line(producer, "opened")
            for _ in range(200):
                acknowledged.add(int(re.findall(r"\d+", expect_line(producer, "acked"))[0]))
            others = [node for node in nodes if node is not led]
            since = {node: len(node.records) for node in others}
            led.kill()
            producer.kill()
            acknowledged |= {int(number) for number in re.findall(r"acked (\d+)\n", producer.stdout.read())}
        former, led = led, primary(others, since)
        said = len(former.records)
        former.launch()
        former.expect("leader status: ACTIVE", since=said, deadline=30.0)
        start += 1_000_000
    with application(led.url) as app:
        app.session.open_queue(QUEUE, read=True)
        found = [int(message.data.split()[1]) for message in app.take(len(acknowledged))]
        while not acknowledged <= set(found):
            found += [int(message.data.split()[1]) for message in app.take(1, deadline=5.0)]
    assert len(found) == len(set(found)), "delivered twice"
    assert not [line for node in nodes for line in node.records if "INTERNAL_ERROR" in line]
