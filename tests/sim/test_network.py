"""Tests of the simulated network and nodes: crashes, cuts, delays, resets and pauses, and their scope.

Tests `bmqtwist/testing/network.py` and `bmqtwist/testing/simulated_node.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.client import Client, Closed, Expired, Queue

from bmqtwist.storage.message import Message
from bmqtwist.testing.cluster import PORT
from bmqtwist.testing.network import CONNECT_SECONDS_MAX, KERNEL_BYTES, ConnectionEnd, ConnectionHandler
from sim.cluster import SimulatedCluster, SimulatedLink

QUEUE = "bmq://bmq.test.persistent.priority/q"
SEEDS = range(4)
OFFICE = "office"  # place of some clients


@pytest.fixture(params=SEEDS)
def nodes(request: pytest.FixtureRequest) -> SimulatedCluster:
    """Three nodes, each a cluster of its own."""
    return SimulatedCluster(request.param, 3, alone=True)


def writer_at(nodes: SimulatedCluster, name: str, place: str = OFFICE) -> Queue:
    """Open a queue of a node for writing."""
    return nodes.client(name, place).open(QUEUE, write=1)


def received(nodes: SimulatedCluster, name: str) -> list[bytes]:
    """Return the payloads that a new consumer at a node receives within 1 s."""
    consumer = nodes.client(name).consume(QUEUE)
    nodes.run(1.0)
    found = [push.payload for push in consumer.pushes()]
    consumer.client.drop()
    return found


def stored(nodes: SimulatedCluster, name: str) -> list[Message]:
    """Return the messages in the queue of a node."""
    return list(nodes.node(name).broker.domains.by_name["bmq.test.persistent.priority"].queues["q"].messages.values())


def test_nodes_have_separate_disks_and_runs(nodes: SimulatedCluster) -> None:
    for name in ("n1", "n2", "n3"):
        writer_at(nodes, name).post(name.encode())
    nodes.node("n1").crash(power=True)
    nodes.node("n2").stop()
    assert not nodes.node("n1").up and nodes.node("n3").up
    nodes.run(5.0)
    assert [nodes.node(name).run_number for name in ("n1", "n2", "n3")] == [3, 3, 1]
    assert [received(nodes, name) for name in ("n1", "n2", "n3")] == [[b"n1"], [b"n2"], [b"n3"]]


def test_a_node_that_is_down_stays_down_until_it_is_booted(nodes: SimulatedCluster) -> None:
    queue = writer_at(nodes, "n1")
    queue.post(b"kept")
    nodes.node("n1").crash(power=False, down=None)
    nodes.run(10.0)
    assert not nodes.node("n1").up and nodes.network.connect(f"n1:{PORT}") is None
    with pytest.raises(Closed):
        queue.client.heartbeat()
    nodes.node("n1").boot()
    assert received(nodes, "n1") == [b"kept"]


def test_data_on_a_cut_link_arrives_in_order_after_it_is_healed(nodes: SimulatedCluster) -> None:
    queue, other = writer_at(nodes, "n1"), writer_at(nodes, "n1", "home")
    nodes.network.cut(OFFICE, "n1")
    sent = [queue.put(b"%d" % number) for number in range(20)]
    other.post(b"meanwhile")
    with pytest.raises(Expired):
        queue.next_ack(deadline=2.0)
    assert [message.guid for message in stored(nodes, "n1")] != sent and len(stored(nodes, "n1")) == 1
    nodes.network.heal(OFFICE, "n1")
    assert {queue.next_ack().guid for _ in sent} == set(sent)
    assert [message.guid for message in stored(nodes, "n1")][1:] == sent


def test_a_link_can_be_cut_one_way(nodes: SimulatedCluster) -> None:
    queue = writer_at(nodes, "n1")
    nodes.network.cut("n1", OFFICE, both=False)
    guid = queue.put(b"x")
    with pytest.raises(Expired):
        queue.next_ack(deadline=2.0)
    assert [message.guid for message in stored(nodes, "n1")] == [guid], "the PUT arrives, the ACK does not"
    nodes.network.heal("n1", OFFICE, both=False)
    assert queue.next_ack().guid == guid


def test_a_slow_link_delays_one_direction_between_two_places(nodes: SimulatedCluster) -> None:
    far, near = nodes.client("n1", OFFICE), nodes.client("n1", "home")
    nodes.network.slow(OFFICE, "n1", 3.0)
    begun = nodes.now
    near.heartbeat()
    assert nodes.now - begun < 0.3
    far.heartbeat()
    assert 3.0 < nodes.now - begun < 3.6


def test_a_reset_closes_both_ends_and_discards_data_in_flight(nodes: SimulatedCluster) -> None:
    queue = writer_at(nodes, "n1")
    queue.post(b"before")
    queue.put(b"lost")
    assert isinstance(queue.client.link, SimulatedLink)
    queue.client.link.end.reset()
    nodes.run(1.0)
    assert queue.client.link.closed and not nodes.node("n1").broker.sessions.open
    writer_at(nodes, "n1").post(b"after")
    assert received(nodes, "n1") == [b"before", b"after"]


def test_a_silent_power_loss_leaves_half_open_connections_until_a_client_sends_data(nodes: SimulatedCluster) -> None:
    idle, asking = nodes.client("n1", OFFICE), nodes.client("n1", OFFICE)
    nodes.node("n1").crash(power=True, down=20.0, silently=True)
    with pytest.raises(Expired):
        asking.heartbeat()
    nodes.run(15.0)
    assert nodes.node("n1").up and not asking.link.closed and not idle.link.closed
    with pytest.raises(Closed):
        asking.heartbeat()
    assert not idle.link.closed, "a client that sends no data does not detect it"


def test_a_paused_node_processes_its_events_after_it_resumes(nodes: SimulatedCluster) -> None:
    queue = writer_at(nodes, "n1")
    node = nodes.node("n1")
    node.request_turn()
    node.pause()
    stood = node.broker.loop.now
    guid = queue.put(b"x")
    late = nodes.network.connect(node.address, OFFICE)
    assert late is not None, "its kernel still accepts connections"
    client = Client(SimulatedLink(nodes, late), "late")
    with pytest.raises(Expired):
        client.negotiate()
    with pytest.raises(Expired):
        queue.next_ack(deadline=30.0)
    writer_at(nodes, "n2").post(b"not paused")
    assert node.broker.loop.now == stood, "no turn, no timer"
    node.resume()
    assert queue.next_ack().guid == guid
    client.wait(lambda event: "brokerResponse" in event.control, "the response to its negotiation during the pause")


def test_a_connection_buffers_a_limited_number_of_bytes_while_the_receiver_does_not_read(nodes: SimulatedCluster) -> None:
    node = nodes.node("n1")
    end = nodes.network.connect(node.address, OFFICE)
    assert end is not None
    node.pause()
    drained_at = []
    end.handler = receiver = ConnectionHandler()
    receiver.on_drained = lambda: drained_at.append(nodes.now)  # type: ignore[method-assign]
    assert end.send(bytes(KERNEL_BYTES)) == 0
    assert end.send(bytes(1000)) == 1000
    nodes.run(1.0)
    assert not drained_at
    node.resume()
    nodes.run(1.0)
    assert drained_at


def test_timers_are_correct_on_nodes_with_different_clocks() -> None:
    nodes = SimulatedCluster(1, 2, {"n1": {"clock_ahead": 12_345.678}, "n2": {"wall_ahead": -3600.0}}, alone=True)
    wall_times = []
    for name in ("n1", "n2"):
        writer_at(nodes, name).post(b"x")
        wall_times.append(stored(nodes, name)[0].wall)
    assert abs(wall_times[0] - wall_times[1] - 3600) <= 1
    nodes.run(301.0)  # the time to live of the sample domains
    assert not stored(nodes, "n1") and not stored(nodes, "n2")


def test_a_dial_succeeds_fails_at_once_or_waits_for_a_cut_link(nodes: SimulatedCluster) -> None:
    node, found = nodes.node("n1"), dict[str, ConnectionEnd | None]()
    nodes.node("n3").crash(power=False, down=None)
    nodes.network.cut("n1", "n2")
    begun = nodes.now
    for name in ("n2", "n3"):
        node.dial(f"{name}:{PORT}", lambda end, name=name: found.update({name: end}))  # type: ignore[misc]
    nodes.run(CONNECT_SECONDS_MAX / 2)
    assert found == {"n3": None}, "n3 does not listen; n2 has not answered yet"
    nodes.network.heal("n1", "n2")
    nodes.run(CONNECT_SECONDS_MAX)
    end = found["n2"]
    assert end is not None and nodes.now > begun + CONNECT_SECONDS_MAX and nodes.node("n2").broker.sessions.open
    node.crash(power=False)
    nodes.run(1.0)
    assert not end.open and not nodes.node("n2").broker.sessions.open, "the kernel of the crashed node closes it"


def test_the_result_of_a_dial_is_not_reported_to_the_next_run_of_a_node(nodes: SimulatedCluster) -> None:
    node, found = nodes.node("n1"), list[ConnectionEnd | None]()
    node.dial(f"n2:{PORT}", found.append)
    node.crash(power=False, down=0.0)
    nodes.run(1.0)
    assert node.up and node.run_number == 3 and not found
    assert not nodes.node("n2").broker.sessions.open, "the kernel of the crashed node closes the connection"


def run_digest(seed: int) -> str:
    """Run three nodes with clients and faults; return the digest of the trace."""
    nodes = SimulatedCluster(seed, 3, {"n2": {"clock_ahead": 77.7}}, alone=True)
    for number in range(3):
        for name in ("n1", "n2", "n3"):
            writer_at(nodes, name).post(b"x" * 3000)
        nodes.nodes[number].crash(power=True, silently=number == 1)
        nodes.network.cut("n1", OFFICE)
        nodes.run(1.0)
        nodes.network.heal("n1", OFFICE)
        nodes.nodes[number].pause()
        nodes.run(0.5)
        nodes.nodes[number].resume()
        nodes.run(0.5)
    return nodes.digest


def test_a_simulation_of_several_nodes_is_determined_by_its_seed() -> None:
    """Twice in this process and once in another, which hashes strings differently."""
    first = run_digest(7)
    assert first == run_digest(7) != run_digest(8)
    root = Path(__file__).resolve().parent.parent
    other = subprocess.run([sys.executable, "-c", "from sim.test_network import run_digest; print(run_digest(7))"],
                           capture_output=True, text=True, check=True, env={
                               **os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": f"{root}:{root.parent}"})
    assert other.stdout.strip() == first
