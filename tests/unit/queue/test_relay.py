"""Relay queues: forwarded PUTs and CONFIRMs, kept ones without an upstream, and deliveries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kit.engine_kit import Client

from bmqtwist.config.engine_settings import relayed_settings
from bmqtwist.errors import AckStatus
from bmqtwist.queue.counters import AckLatency
from bmqtwist.queue.domain import DomainRules, Limits, Throttle
from bmqtwist.queue.handles import OpenRequest, configure, drop_handle, open_queue
from bmqtwist.queue.mode import QueueMode
from bmqtwist.queue.queue import ConsumerSpec, Handle, Put
from bmqtwist.queue.relay import RelayQueue
from bmqtwist.report import ListReport
from bmqtwist.storage.message import Message

BEGIN = 100.0


class Above:
    """Context and uplink of a relay; `sent` records the output."""

    def __init__(self, mode: QueueMode = QueueMode.PRIORITY) -> None:
        self.report, self.ack_latency = ListReport(), AckLatency()
        self.sent: list[tuple[str, bytes]] = []
        self.kept, self.again_at, self.takes_back = 0, 0.0, False
        domain = DomainRules("d", "d", "c", relayed_settings(mode, 60_000), Throttle())
        self.queue = RelayQueue("bmq://d/q", "q", domain, self, self)  # type: ignore[arg-type]
        self.opened = 0

    def touch(self, queue: RelayQueue) -> None:
        queue.touched = True

    def client_failed(self, client: Client, error: Exception) -> None:
        raise error

    def put(self, queue: RelayQueue, put: Put) -> None:
        self.sent.append(("put", put.message.guid))

    def confirm(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        self.sent.append(("confirm", guid))

    def reject(self, queue: RelayQueue, app_id: str, guid: bytes) -> None:
        self.sent.append(("reject", guid))

    def give_back(self, queue: RelayQueue, app_id: str, guids: list[bytes]) -> bool:
        self.sent += [("back", guid) for guid in guids] if self.takes_back else []
        return self.takes_back

    def keep(self, put: Put) -> None:
        self.kept += put.message.size

    def let_go(self, put: Put) -> None:
        self.kept -= put.message.size

    def post_again_at(self, queue: RelayQueue, when: float) -> None:
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
            assert not self.queue.post(Put(handle, message(guid), 0, True), BEGIN, 0)

    def push(self, *guids: bytes, late: bool = False) -> None:
        for guid in guids:
            self.queue.pushed(message(guid), [("__default", None)], late)
        self.queue.deliver(BEGIN)


def message(guid: bytes) -> Message:
    return Message(guid, b"data", arrived=BEGIN)


def guids(handle: Handle) -> list[bytes]:
    """Return the GUIDs of a consumer's unconfirmed messages."""
    return [guid for substream in handle.substreams.values() for guid in substream.unconfirmed]


def acks(handle: Handle) -> list[Any]:
    client: Any = handle.client
    return list(client.acks)


@pytest.mark.spec("cluster", 90)
def test_puts_go_up_once_in_each_generation_in_order() -> None:
    above = Above()
    writer = above.open(write=1)
    above.post(writer, b"1", b"2")
    assert not above.sent and above.kept == 8
    for _ in range(2):
        above.queue.posts_open(1)
    above.post(writer, b"3")
    assert above.sent == [("put", b"1"), ("put", b"2"), ("put", b"3")]
    above.queue.acked(b"2", 0, BEGIN)
    above.queue.posts_stopped()
    above.sent.clear()
    above.queue.posts_open(2)
    assert above.sent == [("put", b"1"), ("put", b"3")] and above.kept == 8 and len(acks(writer)) == 1


@pytest.mark.spec("cluster", 89)
def test_not_ready_is_told_nobody_and_everything_waits_for_it() -> None:
    above = Above()
    writer = above.open(write=1)
    above.queue.posts_open(1)
    above.post(writer, b"1", b"2")
    above.queue.acked(b"1", AckStatus.NOT_READY, BEGIN)
    above.post(writer, b"3")
    assert len(above.sent) == 2 and above.again_at > BEGIN and not acks(writer)
    above.queue.post_again(1)
    assert above.sent[2:] == [("put", b"1"), ("put", b"2"), ("put", b"3")]


@pytest.mark.spec("cluster", 91)
def test_what_nobody_answers_is_given_up() -> None:
    above = Above()
    writer = above.open(write=1)
    above.post(writer, b"1")
    above.queue.expire(BEGIN + 59.9)
    assert not acks(writer)
    above.queue.expire(BEGIN + 60.0)
    assert len(acks(writer)) == 1 and not above.kept


@pytest.mark.spec("cluster", 104)
def test_what_is_broadcast_goes_up_once_and_is_acknowledged_here() -> None:
    above = Above(QueueMode.BROADCAST)
    writer = above.open(write=1)
    above.post(writer, b"1")
    assert not acks(writer)
    above.queue.posts_open(1)
    above.post(writer, b"2")
    above.queue.posts_stopped()
    above.queue.posts_open(2)
    assert above.sent == [("put", b"1"), ("put", b"2")] and len(acks(writer)) == 2 and not above.kept


def test_what_no_consumer_has_when_those_above_are_lost_is_new_when_it_comes_again() -> None:
    above = Above()
    reader = above.open(read=1)
    above.push(*[b"%d" % number for number in range(12)])
    assert len(guids(reader)) == 10 and len(above.queue.messages) == 12
    above.queue.confirms_stopped("__default")
    assert len(above.queue.messages) == 10
    for guid in guids(reader)[:5]:
        above.queue.confirm(reader.substreams[0], guid, BEGIN, 0)
    above.push(*[b"%d" % number for number in range(5, 12)], late=True)
    assert guids(reader) == [b"%d" % number for number in range(5, 12)], "each of them once"


@pytest.mark.spec("cluster", 96)
def test_confirms_wait_in_order() -> None:
    above = Above()
    reader = above.open(read=1)
    above.push(b"1", b"2", b"3")
    for guid in (b"2", b"1"):
        above.queue.confirm(reader.substreams[0], guid, BEGIN, 0)
    assert not above.sent
    above.queue.confirms_open("__default")
    above.queue.confirm(reader.substreams[0], b"3", BEGIN, 0)
    assert above.sent == [("confirm", b"2"), ("confirm", b"1"), ("confirm", b"3")] and not above.queue.messages


@pytest.mark.spec("cluster", 95)
def test_a_message_of_the_last_consumer_waits_until_those_above_have_it_back() -> None:
    above = Above()
    reader = above.open(read=1)
    above.push(b"1")
    drop_handle(reader, True, 0)
    assert list(above.queue.messages) == [b"1"]
    second = above.open(read=1)
    above.queue.deliver(BEGIN)
    assert guids(second) == [b"1"]
    drop_handle(second, True, 0)
    above.queue.app_closed("__default")
    assert not above.queue.messages and not above.queue.apps


def test_there_is_plenty_while_consumers_here_have_a_quarter_of_a_limit_that_is_known() -> None:
    above = Above()
    above.open(read=1)
    above.push(b"1", b"2")
    assert above.queue.has_plenty
    domain = above.queue.domain
    domain.settings = replace(domain.settings, queue_limits=Limits(11, 0))
    assert above.queue.has_plenty
    above.push(b"3")
    assert not above.queue.has_plenty


def test_what_nobody_wants_is_given_back_if_it_is_taken() -> None:
    above = Above()
    reader = above.open(read=1)
    configure(reader, "", [ConsumerSpec(1, 1, "n > 5", 0, 1, 10, 1000)])
    above.push(b"1")
    assert list(above.queue.messages) == [b"1"] and not above.sent
    above.takes_back = True
    above.queue.on_parameters_confirmed("__default")
    above.queue.deliver(BEGIN)
    assert above.sent == [("back", b"1")] and not above.queue.messages


def test_a_put_that_is_posted_again_is_answered_to_both() -> None:
    above = Above()
    first, second = above.open(write=1), above.open(write=1)
    above.queue.posts_open(1)
    above.post(first, b"1")
    above.post(second, b"1")
    assert above.sent == [("put", b"1")]
    above.queue.acked(b"1", 0, BEGIN)
    assert len(acks(first)) == len(acks(second)) == 1 and not above.queue.repeated


def stored(guid: bytes, sequence: int, lease: int = 1) -> Message:
    made = Message(guid, guid, arrived=BEGIN)
    made.lease, made.sequence = lease, sequence
    return made


def test_what_another_primary_had_meant_for_somebody_else_comes_late_and_says_so() -> None:
    """Regression: it was delivered after newer messages without the out-of-order flag."""
    above = Above()
    reader = above.open(read=1)
    for guid, sequence in ((b"4", 4), (b"8", 8)):
        above.queue.pushed(stored(guid, sequence), [("__default", None)], False)
        above.queue.deliver(BEGIN)
    for guid, sequence, lease in ((b"5", 5, 1), (b"9", 9, 1), (b"2", 2, 2)):  # a new primary delivers its messages
        above.queue.pushed(stored(guid, sequence, lease), [("__default", None)], False)
    above.queue.deliver(BEGIN)
    client: Any = reader.client
    assert [(payload, late) for payload, _, late in client.got] == [
        (b"4", False), (b"8", False), (b"5", True), (b"9", False), (b"2", False)]


def test_what_comes_again_for_one_app_after_another_has_confirmed_some_of_it_keeps_its_order() -> None:
    """The relay has dropped the first two messages before the second app receives them; it still has the third."""
    above = Above(QueueMode.FANOUT)
    foo, bar = above.open(read=1, app_id="foo"), above.open(read=1, app_id="bar")
    numbers = range(1, 6)
    for number in numbers:
        above.queue.pushed(stored(b"%d" % number, number), [("foo", None)], True)
    above.queue.deliver(BEGIN)
    substream = foo.substreams[1]
    for guid in (b"1", b"2"):
        above.queue.confirm(substream, guid, BEGIN, 0)
    for number in numbers:
        above.queue.pushed(stored(b"%d" % number, number), [("bar", None)], True)
    above.queue.deliver(BEGIN)
    assert guids(bar) == [b"%d" % number for number in numbers]
