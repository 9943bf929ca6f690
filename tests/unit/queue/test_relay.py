"""Relay queues: PUTs and CONFIRMs forwarded or kept until there is an upstream broker, and deliveries."""

from __future__ import annotations

from typing import Any

import pytest
from kit.engine_kit import Client

from bmqtwist.config.engine_settings import relayed_settings
from bmqtwist.errors import AckStatus
from bmqtwist.queue.counters import AckLatency
from bmqtwist.queue.domain import DomainRules, Throttle
from bmqtwist.queue.handles import OpenRequest, configure, drop_handle, open_queue
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import ConsumerSpec, Handle, Put
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.report import ListReport
from bmqtwist.storage.message import Message

START = 100.0


class FakeUpstream:
    """Context and uplink of a relay; `sent` records the output."""

    def __init__(self, mode: QueueMode = QueueMode.PRIORITY) -> None:
        self.report, self.ack_latency = ListReport(), AckLatency()
        self.sent: list[tuple[str, bytes]] = []
        self.kept, self.again_at, self.takes_back = 0, 0.0, False
        domain = DomainRules("d", "d", "c", relayed_settings(mode, 60_000), Throttle())
        self.queue = RelayQueue("bmq://d/q", "q", domain, self, self)  # type: ignore[arg-type]
        self.opened = 0

    def request_delivery(self, queue: RelayQueue) -> None:
        queue.delivery_requested = True

    def client_failed(self, client: Client, error: Exception) -> None:
        raise error

    def put(self, queue: RelayQueue, put: Put) -> None:
        self.sent.append(("put", put.message.guid))

    def confirm(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        self.sent.append(("confirm", guid))

    def reject(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        self.sent.append(("reject", guid))

    def return_messages(self, queue: RelayQueue, app_id: str, guids: list[bytes]) -> bool:
        self.sent += [("back", guid) for guid in guids] if self.takes_back else []
        return self.takes_back

    def count_pending(self, put: Put) -> None:
        self.kept += put.message.size

    def uncount_pending(self, put: Put) -> None:
        self.kept -= put.message.size

    def retry_pending_at(self, queue: RelayQueue, when: float) -> None:
        self.again_at = when

    def open(self, read: int = 0, write: int = 0, app_id: str = "") -> Handle:
        self.opened += 1
        flags = 2 * bool(read) + 4 * bool(write)
        handle = open_queue(self.queue, Client(f"client{self.opened}"), None,  # type: ignore[arg-type]
                            OpenRequest(self.opened, 1 if app_id else 0, app_id or None, flags, read, write, 0))
        if read:
            configure(handle, app_id, [ConsumerSpec(1, 0, "", 0, 1, 10, 1000)])
        return handle

    def post(self, handle: Handle, *guids: bytes) -> None:
        for guid in guids:
            assert not self.queue.post(Put(handle, message(guid), 0, True), START, 0)

    def push(self, *guids: bytes, late: bool = False) -> None:
        for guid in guids:
            self.queue.on_push(message(guid), [("__default", None)], late)
        self.queue.deliver(START)


def message(guid: bytes) -> Message:
    return Message(guid, b"data", arrived=START)


def guids(handle: Handle) -> list[bytes]:
    """Return the GUIDs of a consumer's unconfirmed messages."""
    return [guid for substream in handle.substreams.values() for guid in substream.unconfirmed]


def acks(handle: Handle) -> list[Any]:
    client: Any = handle.client
    return list(client.acks)


@pytest.mark.spec("cluster", 90)
def test_puts_are_forwarded_once_in_each_generation_in_order() -> None:
    upstream = FakeUpstream()
    writer = upstream.open(write=1)
    upstream.post(writer, b"1", b"2")
    assert not upstream.sent and upstream.kept == 8
    for _ in range(2):
        upstream.queue.resume_posts(1)
    upstream.post(writer, b"3")
    assert upstream.sent == [("put", b"1"), ("put", b"2"), ("put", b"3")]
    upstream.queue.on_ack(b"2", 0, START)
    upstream.queue.suspend_posts()
    upstream.sent.clear()
    upstream.queue.resume_posts(2)
    assert upstream.sent == [("put", b"1"), ("put", b"3")] and upstream.kept == 8 and len(acks(writer)) == 1


@pytest.mark.spec("cluster", 89)
def test_a_not_ready_ack_makes_all_puts_be_forwarded_again() -> None:
    upstream = FakeUpstream()
    writer = upstream.open(write=1)
    upstream.queue.resume_posts(1)
    upstream.post(writer, b"1", b"2")
    upstream.queue.on_ack(b"1", AckStatus.NOT_READY, START)
    upstream.post(writer, b"3")
    assert len(upstream.sent) == 2 and upstream.again_at > START and not acks(writer)
    upstream.queue.retry_pending(1)
    assert upstream.sent[2:] == [("put", b"1"), ("put", b"2"), ("put", b"3")]


@pytest.mark.spec("cluster", 91)
def test_a_put_without_ack_is_refused_after_60_seconds() -> None:
    upstream = FakeUpstream()
    writer = upstream.open(write=1)
    upstream.post(writer, b"1")
    upstream.queue.expire(START + 59.9)
    assert not acks(writer)
    upstream.queue.expire(START + 60.0)
    assert len(acks(writer)) == 1 and not upstream.kept


@pytest.mark.spec("cluster", 104)
def test_a_broadcast_put_is_forwarded_once_and_acknowledged_by_the_relay() -> None:
    upstream = FakeUpstream(QueueMode.BROADCAST)
    writer = upstream.open(write=1)
    upstream.post(writer, b"1")
    assert not acks(writer)
    upstream.queue.resume_posts(1)
    upstream.post(writer, b"2")
    upstream.queue.suspend_posts()
    upstream.queue.resume_posts(2)
    assert upstream.sent == [("put", b"1"), ("put", b"2")] and len(acks(writer)) == 2 and not upstream.kept


def test_undelivered_messages_are_dropped_at_the_loss_of_the_upstream_and_delivered_once() -> None:
    upstream = FakeUpstream()
    reader = upstream.open(read=1)
    upstream.push(*[b"%d" % number for number in range(12)])
    assert len(guids(reader)) == 10 and len(upstream.queue.messages) == 12
    upstream.queue.suspend_confirms("__default")
    assert len(upstream.queue.messages) == 10
    for guid in guids(reader)[:5]:
        upstream.queue.confirm(reader.substreams[0], guid, START, 0)
    upstream.push(*[b"%d" % number for number in range(5, 12)], late=True)
    assert guids(reader) == [b"%d" % number for number in range(5, 12)], "each message once"


@pytest.mark.spec("cluster", 96)
def test_confirms_without_an_upstream_are_forwarded_later_in_order() -> None:
    upstream = FakeUpstream()
    reader = upstream.open(read=1)
    upstream.push(b"1", b"2", b"3")
    for guid in (b"2", b"1"):
        upstream.queue.confirm(reader.substreams[0], guid, START, 0)
    assert not upstream.sent
    upstream.queue.resume_confirms("__default")
    upstream.queue.confirm(reader.substreams[0], b"3", START, 0)
    assert upstream.sent == [("confirm", b"2"), ("confirm", b"1"), ("confirm", b"3")] and not upstream.queue.messages


@pytest.mark.spec("cluster", 95)
def test_a_message_of_the_last_consumer_is_kept_until_the_upstream_confirms_the_close() -> None:
    upstream = FakeUpstream()
    reader = upstream.open(read=1)
    upstream.push(b"1")
    drop_handle(reader, True, 0)
    assert list(upstream.queue.messages) == [b"1"]
    second = upstream.open(read=1)
    upstream.queue.deliver(START)
    assert guids(second) == [b"1"]
    drop_handle(second, True, 0)
    upstream.queue.on_app_closed("__default")
    assert not upstream.queue.messages and not upstream.queue.apps


def test_a_message_without_matching_subscription_is_returned_upstream_if_supported() -> None:
    upstream = FakeUpstream()
    reader = upstream.open(read=1)
    configure(reader, "", [ConsumerSpec(1, 1, "n > 5", 0, 1, 10, 1000)])
    upstream.push(b"1")
    assert list(upstream.queue.messages) == [b"1"] and not upstream.sent
    upstream.takes_back = True
    upstream.queue.on_parameters_confirmed("__default")
    upstream.queue.deliver(START)
    assert upstream.sent == [("back", b"1")] and not upstream.queue.messages


def test_a_put_repeated_by_a_second_client_is_acknowledged_to_both() -> None:
    upstream = FakeUpstream()
    first, second = upstream.open(write=1), upstream.open(write=1)
    upstream.queue.resume_posts(1)
    upstream.post(first, b"1")
    upstream.post(second, b"1")
    assert upstream.sent == [("put", b"1")]
    upstream.queue.on_ack(b"1", 0, START)
    assert len(acks(first)) == len(acks(second)) == 1 and not upstream.queue.repeated


def message_with_psn(guid: bytes, sequence: int, lease: int = 1) -> Message:
    made = Message(guid, guid, arrived=START)
    made.lease, made.sequence = lease, sequence
    return made


def test_an_older_message_delivered_late_has_the_out_of_order_flag() -> None:
    """Regression: it was delivered after newer messages without the out-of-order flag."""
    upstream = FakeUpstream()
    reader = upstream.open(read=1)
    for guid, sequence in ((b"4", 4), (b"8", 8)):
        upstream.queue.on_push(message_with_psn(guid, sequence), [("__default", None)], False)
        upstream.queue.deliver(START)
    for guid, sequence, lease in ((b"5", 5, 1), (b"9", 9, 1), (b"2", 2, 2)):  # a new primary delivers its messages
        upstream.queue.on_push(message_with_psn(guid, sequence, lease), [("__default", None)], False)
    upstream.queue.deliver(START)
    client: Any = reader.client
    assert [(payload, late) for payload, _, late in client.got] == [
        (b"4", False), (b"8", False), (b"5", True), (b"9", False), (b"2", False)]


def test_messages_repeated_for_a_second_app_keep_their_order() -> None:
    """The relay has dropped the first two messages before the second app receives them; it still has the third."""
    upstream = FakeUpstream(QueueMode.FANOUT)
    foo, bar = upstream.open(read=1, app_id="foo"), upstream.open(read=1, app_id="bar")
    numbers = range(1, 6)
    for number in numbers:
        upstream.queue.on_push(message_with_psn(b"%d" % number, number), [("foo", None)], True)
    upstream.queue.deliver(START)
    substream = foo.substreams[1]
    for guid in (b"1", b"2"):
        upstream.queue.confirm(substream, guid, START, 0)
    for number in numbers:
        upstream.queue.on_push(message_with_psn(b"%d" % number, number), [("bar", None)], True)
    upstream.queue.deliver(START)
    assert guids(bar) == [b"%d" % number for number in numbers]


def test_a_message_marked_out_of_order_does_not_overtake_messages_that_arrived_before() -> None:
    """An original upstream marks messages to an app that has fallen behind other apps."""
    upstream = FakeUpstream()
    reader = upstream.open(read=1)
    upstream.queue.on_push(message(b"1"), [("__default", None)], False)
    upstream.push(b"2", late=True)
    assert guids(reader) == [b"1", b"2"]
    upstream.push(*(b"%d" % number for number in range(3, 10)), late=True)
    upstream.push(b"a", b"b")
    upstream.push(b"c", late=True)
    assert guids(reader) == [*(b"%d" % number for number in range(1, 10)), b"a"], "its limit is 10 messages"
    for guid in guids(reader)[:3]:
        upstream.queue.confirm(reader.substreams[0], guid, START, 0)
        upstream.queue.deliver(START)
    assert guids(reader)[-2:] == [b"b", b"c"]
