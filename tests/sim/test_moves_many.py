"""Moves of a partition while clients have up to 1000 of its queues open: in slices, without lost or reordered messages.

Tests `bmqtwist/member/activation.py` and `bmqtwist/member/retirement.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kit import codec
from kit.client import Client

from bmqtwist.broker.commands import BEGUN
from bmqtwist.cluster.partition_events import PartitionRole
from bmqtwist.limits import MOVED_AT_ONCE, MOVED_QUEUE, REOPENING_MAX
from bmqtwist.loop import scheduler
from bmqtwist.loop.scheduler import Priority, Scheduler
from bmqtwist.member.retirement import Retirement
from bmqtwist.queue.root import RootQueue
from bmqtwist.relay.relays import Relays
from bmqtwist.relay.upstream_queue import UpstreamQueue
from bmqtwist.testing.config import sample_domains
from bmqtwist.testing.simulated_node import SimulatedNode
from sim.assignments import move, wait_for_primary
from sim.elected import heal
from sim.replicated import ReplicatingCluster, available_cluster

STRONG = "bmq.test.persistent.priority.sc"
DOMAINS = STRONG, "bmq.test.persistent.priority"
MESSAGES_MAX = 50_000  # quota of each domain, messages: its consumers receive nothing while their queue is converted
PLACES = ["n1", "n2", "n3", "p1"]
SOON_S = 0.0002


class ManyQueues:
    """Clients at three members and a proxy: each has all queues open for writing, and every fourth for reading."""

    def __init__(self, nodes: ReplicatingCluster, queues: int, domains: tuple[str, ...]) -> None:
        self.nodes = nodes
        self.uris = [f"bmq://{domains[number % len(domains)]}/q{number}" for number in range(queues)]
        self.clients = [nodes.client(place) for place in PLACES]
        self.posted: dict[bytes, tuple[int, int, int]] = {}  # GUID -> producer, queue, number
        self.acked, self.got = Counter[bytes](), Counter[bytes]()
        self.order: dict[tuple[int, int], list[int]] = {}  # (producer, queue) -> numbers as they were first delivered
        self._number = 0
        for place, client in enumerate(self.clients):
            for number, uri in enumerate(self.uris):
                reads = self.reads(place, number)
                client.send_request({"openQueue": {"handleParameters": client.handle_parameters(
                    uri, number, read=reads, write=1)}})
                if reads:
                    client.send_request({"configureStream": {"qId": number, "streamParameters": {
                        "appId": "__default", "subscriptions": [{
                            "sId": number, "expression": {"version": "E_UNDEFINED", "text": ""},
                            "consumers": [large_window()]}]}}})
                if number % 100 == 99:
                    nodes.run(0.05)
            nodes.until(lambda: not self._unanswered(client), 20.0)  # noqa: B023 - called here

    def reads(self, place: int, number: int) -> int:
        """Return the read count of the client at this place for a queue: 0 or 1."""
        return int(number % len(PLACES) == place)

    def _unanswered(self, client: Client) -> int:
        client.pump(0.0)
        answers = [event.control for event in client.events if event.kind == "control" and "rId" in event.control]
        assert not any("status" in answer for answer in answers), answers[-1]
        return client._rid - len(answers)

    def post(self, step: int = 1) -> None:
        """Post a message of each client to every `step`-th queue."""
        for place, client in enumerate(self.clients):
            for number in range(self._number % step, len(self.uris), step):
                guid = client.new_guid()
                self.posted[guid] = place, number, self._number
                client.send(codec.put_frame([codec.put_message(number, guid, guid, ack=True)]))
            self._number += 1

    def take(self) -> None:
        """Process ACKs and confirm received messages."""
        for client in self.clients:
            client.pump(0.0)
            confirms = []
            while client.inbox:
                event = client.inbox.popleft()
                if event.ack is not None:
                    assert event.ack.status == 0, event.ack
                    self.acked[event.ack.guid] += 1
                elif event.push is not None:
                    guid = event.push.payload
                    self.got[guid] += 1
                    place, number, count = self.posted[guid]
                    if self.got[guid] == 1:
                        self.order.setdefault((place, number), []).append(count)
                    confirms.append((number, event.push.guid, 0))
            if confirms:
                client.send(codec.confirm_frame(confirms))
            client.events.clear()

    def live(self, seconds: float, step: int = 10, pause: float = 0.02) -> None:
        """Post, consume and confirm for some seconds."""
        end = self.nodes.now + seconds
        while self.nodes.now < end:
            self.post(step)
            self.nodes.run(pause)
            self.take()

    def until(self, wanted: Callable[[], bool], seconds: float = 60.0) -> None:
        """Consume and confirm until a condition holds; AssertionError after `seconds`."""
        end = self.nodes.now + seconds
        while not wanted():
            assert self.nodes.now < end, (
                len(self.posted), len(self.acked), len(self.got), self.nodes.transition_histories())
            self.nodes.run(0.02)
            self.take()

    def judge(self, again_max: float = 0.1) -> None:
        """Check that each PUT was acknowledged once and its message delivered in order and confirmed.

        `again_max`: largest share of repeated deliveries.
        """
        self.until(lambda: len(self.acked) == len(self.got) == len(self.posted))
        self.nodes.run(3.0)
        self.take()
        self.nodes.run(3.0)
        self.take()
        assert set(self.acked.values()) == {1}, "acknowledged twice"
        assert self.got.total() <= (1.0 + again_max) * len(self.posted), "too many repeated deliveries"
        assert all(numbers == sorted(numbers) for numbers in self.order.values()), "out of order"
        assert not any(client.link.closed for client in self.clients)
        primary = self.nodes.primary(0)
        assert not any(self.nodes.stored(primary, uri) for uri in self.uris), "not confirmed"
        for node in self.nodes.machines:
            if node.up:
                assert not self.retirement(node).in_progress and not any(self.retirement(node)._after_reading.values())
                relays = self.nodes.cluster(node.name).relays
                assert relays is not None and not relays._detaching

    def retirement(self, node: SimulatedNode) -> Retirement:
        """Return the retirement jobs of a node."""
        return self.nodes.cluster(node.name).retirement

    def is_midway(self, node: SimulatedNode) -> bool:
        """Return whether a former primary has converted some of its queues, but less than three quarters."""
        return 0 < len(self.retirement(node)._retired) < len(self.uris) * 3 // 4


def large_window() -> dict[str, int]:
    """Return the ConsumerInfo of a consumer with a large window."""
    return {"maxUnconfirmedMessages": 1000, "maxUnconfirmedBytes": 33554432, "consumerPriority": 0,
            "consumerPriorityCount": 1}


def is_attached(relays: Relays, opened: UpstreamQueue) -> bool:
    """Return whether a queue gets an upstream now; checks the limit of concurrent reopen requests."""
    assert len(relays._reopening) <= REOPENING_MAX
    return opened.upstream is None


@contextmanager
def counted_steps(monkeypatch: pytest.MonkeyPatch, steps_max: int) -> Iterator[list[int]]:
    """Yield a list of the numbers of queues that each job step converts, with `steps_max` steps of a class in a turn."""
    sizes, done = list[int](), set[Any]()

    def counting(place: type, method: str, moved: Callable[[Any, Any], bool]) -> None:
        whole = getattr(place, method)

        def count(self: Any, *arguments: Any) -> Any:
            if moved(self, arguments[-1]):
                done.add(arguments[-1])
            return whole(self, *arguments)
        patch.setattr(place, method, count)

    def measured(self: Scheduler, *arguments: Any) -> bool:
        done.clear()
        more = step(self, *arguments)
        if done and arguments[0] is self._classes[Priority.ACTIVATION]:
            sizes.append(len({each.uri if isinstance(each, RootQueue) else each.name for each in done}))
        return more
    step = Scheduler._step
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "STEPS_MAX", steps_max)
        patch.setattr(Scheduler, "_step", measured)
        counting(Retirement, "convert", lambda self, queue: queue.uri in self._retired)
        counting(Relays, "_attach", is_attached)
        counting(Relays, "_finish_detach", lambda self, opened: opened in self._detaching)
        yield sizes


def _with_quota(domain: str) -> tuple[str, str]:
    """Return name and text of a domain with a quota of MESSAGES_MAX."""
    document = json.loads(dict(sample_domains())[domain])
    storage = document["definition"]["parameters"]["storage"]
    storage["domainLimits"]["messages"] = MESSAGES_MAX
    return domain, json.dumps(document)


def very_slowly(convert: Callable[[Any, Any], Iterator[int]], turns: int = 10) -> Callable[[Any, Any], Iterator[int]]:
    """Return a conversion that takes `turns` more turns for each queue."""
    def steps(self: Any, leaver: Any) -> Iterator[int]:
        for _ in range(turns):
            yield MOVED_AT_ONCE
        yield from convert(self, leaver)
    return steps


def many_queues(seed: int, queues: int, app: dict[str, Any] | None = None,
                domains: tuple[str, ...] = DOMAINS) -> ManyQueues:
    """Return clients of `queues` queues in one partition, with some messages. With eventual consistency, a primary that is
    cut off or lost takes messages with it that it has acknowledged alone, to a proxy for example."""
    nodes = available_cluster(seed, proxies={"p1": ["n1", "n2", "n3"]}, texts=dict(map(_with_quota, domains)), app=app,
                              numPartitions=1, maxQlistFileSize=1 << 20)
    found = ManyQueues(nodes, queues, domains)
    found.live(0.1)
    return found


def test_a_partition_with_1000_open_queues_moves_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    many = many_queues(1, 1000)
    nodes = many.nodes
    former, target = nodes.primary(0), nodes.replicas(0)[0]
    with counted_steps(monkeypatch, 4) as sizes:
        many.post(10)
        assert move(nodes, 0, target) == BEGUN
        many.post(10)
        many.until(lambda: nodes.replication(target).is_active_primary(0))
        many.live(0.3, 50)
        wait_for_primary(nodes, 0, target)
        many.until(lambda: not many.retirement(former).in_progress)
        many.judge()
        assert max(sizes) <= MOVED_AT_ONCE // MOVED_QUEUE and sum(sizes) > 3000
    nodes.judge_partitions()


@pytest.mark.parametrize("seed", [2, 11])
def test_a_partition_can_move_back_while_its_queues_are_converted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    many = many_queues(seed, 400)
    nodes = many.nodes
    former, target = nodes.primary(0), nodes.replicas(0)[0]
    midway = 0
    with counted_steps(monkeypatch, 1):
        monkeypatch.setattr(Retirement, "_convert_in_steps", very_slowly(Retirement._convert_in_steps, 10))
        for node in (target, former, target):
            many.live(0.1)
            many.post(3)
            before = nodes.primary(0)
            assert move(nodes, 0, node) == BEGUN
            nodes.until(lambda: nodes.replication(node).is_active_primary(0), 5.0, SOON_S)  # noqa: B023 - called here
            midway += many.retirement(before).in_progress
        assert midway >= 2, "moves must end while queues are converted"
        many.live(0.2)
        many.judge(0.3)
    nodes.judge_partitions()


@pytest.mark.parametrize("victim", ["former", "successor"])
def test_a_crash_of_either_node_during_a_move_loses_no_message(victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of the crashed node disconnect; those of other nodes get all ACKs and messages."""
    many = many_queues(3, 300, domains=(STRONG,))
    nodes = many.nodes
    former, target = nodes.primary(0), nodes.replicas(0)[0]
    with counted_steps(monkeypatch, 1):
        many.post(2)
        assert move(nodes, 0, target) == BEGUN
        nodes.until(lambda: many.is_midway(former), 5.0, SOON_S)
        {"former": former, "successor": target}[victim].crash(power=True, down=None)
        for _ in range(300):
            nodes.run(0.05)
            many.take()
    nodes.wait_until_available()
    connected = {index for index, client in enumerate(many.clients) if not client.link.closed}
    assert len(connected) == 3
    wanted = {guid for guid, (place, _, _) in many.posted.items() if place in connected}
    many.until(lambda: wanted <= set(many.acked))
    assert set(many.acked.values()) == {1}
    assert {guid for guid in many.acked if many.posted[guid][1] % len(PLACES) in connected} <= set(many.got)
    assert all(numbers == sorted(numbers) for numbers in many.order.values())


@pytest.mark.parametrize("seconds", [4.0, 12.0])
def test_an_isolated_primary_keeps_the_unacknowledged_puts_of_its_clients(
        seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its uncommitted records are truncated; its relays send the PUTs again to the next primary."""
    many = many_queues(4, 300, domains=(STRONG,))
    nodes = many.nodes
    former = nodes.primary(0)
    with counted_steps(monkeypatch, 1) as sizes:
        nodes.isolate(former)
        many.post(2)
        nodes.until(lambda: many.is_midway(former), 10.0, SOON_S)
        many.post(5)
        nodes.run(seconds)
        heal(nodes)
        many.until(lambda: all(node.up and nodes.replication(node).known_primaries.all_active for node in nodes.machines))
        many.judge(0.5)
        assert max(sizes) <= MOVED_AT_ONCE // MOVED_QUEUE
    nodes.judge_partitions()


def test_a_log_is_cut_only_after_the_payloads_of_unacknowledged_puts_have_been_read_from_it(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The former primary is paused until another node is primary, and then retires its queues.

    Its reads of payloads take longer than the arrival of the records that replace its uncommitted ones.
    """
    many = many_queues(8, 300, {"bmqtwist": {"payloadCacheBytes": 0}}, (STRONG,))
    nodes = many.nodes
    former = nodes.primary(0)
    with counted_steps(monkeypatch, 1):
        monkeypatch.setattr(Retirement, "_convert_in_steps", very_slowly(Retirement._convert_in_steps, 60))
        nodes.isolate(former)
        many.post(2)
        nodes.run(0.2)
        former.pause()
        nodes.run(10.0)
        heal(nodes)
        former.resume()
        hosted = nodes.replication(former).hosted[0]
        many.until(lambda: hosted.machine.role is PartitionRole.REPLICA_HEALING)
        assert many.retirement(former)._reading[0] > 0, "the payloads were read before the next primary sent records"
        many.until(lambda: not many.retirement(former).in_progress)
        many.judge(0.5)
    log = former.log()
    assert any("are cut off" in line for line in log)
    assert not any("is damaged" in line for line in log)
    nodes.judge_partitions()


def test_close_configure_and_open_of_a_queue_during_its_conversion_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    many = many_queues(5, 200)
    nodes = many.nodes
    former, target = nodes.primary(0), nodes.replicas(0)[0]
    place = nodes.machines.index(former)
    client, queues = many.clients[place], [number for number in range(200) if many.reads(place, number)]
    with counted_steps(monkeypatch, 0):  # one step in a turn
        assert move(nodes, 0, target) == BEGUN
        nodes.until(lambda: many.is_midway(former), 5.0, SOON_S)
        left = [number for number in queues if many.uris[number] in many.retirement(former)._retired]
        closed, configured, opened = left[-1], left[-2], left[-3]
        asked = [client.send_request({"closeQueue": {"handleParameters": client.handle_parameters(
            many.uris[closed], closed, read=1, write=1), "isFinal": True}})]
        asked.append(client.send_request({"configureStream": {"qId": configured, "streamParameters": {
            "appId": "__default", "subscriptions": []}}}))
        other = nodes.client(former.name)
        also = other.send_request({"openQueue": {"handleParameters": other.handle_parameters(
            many.uris[opened], 7, write=1)}})
        guid = other.new_guid()
        other.send(codec.put_frame([codec.put_message(7, guid, b"early", ack=True)]))
        for each in asked:
            assert "status" not in client.response(each)
        assert "openQueueResponse" in other.response(also)
        acked = other.wait(lambda event: event.kind == "ack", "no ACK").ack
        assert acked is not None and (acked.guid, acked.status) == (guid, 0)
        nodes.until(lambda: not many.retirement(former).in_progress, 20.0)
    nodes.run(3.0)
    assert not any(handle.read_count for handle in nodes.cluster(target.name).queues[many.uris[closed]].handles)
    nodes.judge_partitions()


def test_a_graceful_stop_of_a_primary_keeps_the_puts_of_clients_at_other_nodes() -> None:
    many = many_queues(6, 300)
    nodes = many.nodes
    former = nodes.primary(0)
    many.post(2)
    former.stop(down=None)
    end = nodes.now + 60.0
    while former.up and nodes.now < end:
        nodes.run(0.05)
        many.take()
    assert not former.up
    assert any("partitions and leadership are handed over" in line for line in former.log())
    stopped = many.clients[nodes.machines.index(former)]
    nodes.run(5.0)
    many.take()
    assert all(many.acked[guid] == 1 for guid, (place, _, _) in many.posted.items() if many.clients[place] is not stopped)
