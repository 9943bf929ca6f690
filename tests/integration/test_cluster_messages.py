"""Three nodes of one cluster as processes: what the official client library was told to be stored survives `kill -9` of the
primary, again and again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from integration.test_cluster_processes import Node
from kit.sdk import application, heard, script

from bmqtwist.testing.process import free_port

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


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """Three nodes that run, with a strong domain; a lease of three quarters of two seconds."""
    ports = [free_port() for _ in range(3)]
    with ExitStack() as stack:
        made = [Node(tmp_path, number, ports) for number in (1, 2, 3)]
        for node in made:
            node.process.domain("d", consistency="strong")
            node.process.launch()
            stack.callback(node.process.close)
        yield made


def primary(nodes: list[Node], since: dict[int, int]) -> Node:
    """Who is active primary of the first partition, of those that have said so after so many lines."""
    end = time.monotonic() + 40.0
    while time.monotonic() < end:
        for node in nodes:
            if any(_ACTIVE in line for line in node.process.records[since[node.number]:]):
                return node
        time.sleep(0.02)
    raise AssertionError("\n".join(line for node in nodes for line in node.process.records[-20:]))


@pytest.mark.spec("cluster", 64)
def test_what_was_acknowledged_survives_the_primary(nodes: list[Node]) -> None:
    everybody, acknowledged, start = {node.number: 0 for node in nodes}, set[int](), 0
    assert sorted(node.leader(0) for node in nodes)[0] == sorted(node.leader(0) for node in nodes)[2]
    led = primary(nodes, everybody)
    for _ in range(ROUNDS):
        with script(led.process.url, PRODUCER) as producer:
            assert producer.stdin is not None and producer.stdout is not None
            producer.stdin.write(f"{start}\n")
            producer.stdin.flush()
            heard(producer, "opened")
            for _ in range(200):
                acknowledged.add(int(re.findall(r"\d+", heard(producer, "acked"))[0]))
            others = [node for node in nodes if node is not led]
            since = {node.number: node.said for node in others}
            led.process.kill()
            producer.kill()
            acknowledged |= {int(number) for number in re.findall(r"acked (\d+)\n", producer.stdout.read())}
        former, led = led, primary(others, since)
        former.process.launch()
        former.leader(former.said - 1)
        start += 1_000_000
    with application(led.process.url) as app:
        app.session.open_queue(QUEUE, read=True)
        found = [int(message.data.split()[1]) for message in app.take(len(acknowledged))]
        while not acknowledged <= set(found):
            found += [int(message.data.split()[1]) for message in app.take(1, deadline=5.0)]
    assert len(found) == len(set(found)), "delivered twice"
    assert not [line for node in nodes for line in node.process.records if "INTERNAL_ERROR" in line]
    assert [node.process.stop() for node in nodes] == [0, 0, 0]
