"""Faults of the test kit, and the reactions of the client APIs to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kit import codec
from twisted.internet.task import Clock

from bmqtwist.errors import LocalError
from bmqtwist.sdk import EventKind, PostRefused, QueueOptions, Result, SdkError
from bmqtwist.testing import Broker, outcome, run

URI = "bmq://bmq.test.persistent.priority/q"
OTHER = "bmq://bmq.test.persistent.priority/other"
FANOUT = "bmq://bmq.test.persistent.fanout/q"


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker."""
    with Broker() as made:
        yield made


class RawClient:
    """A client that encodes the protocol itself, without GUIDs, and has a queue open for writing."""

    def __init__(self, broker: Broker) -> None:
        self.received: list[bytes] = []
        self.broker, self.link = broker, broker._runner.connect("old", self)
        self.send(codec.control_frame({"clientIdentity": {"protocolVersion": 1, "clientType": "E_TCPCLIENT",
                                                          "processName": "old", "pid": 1}}))
        self.send(codec.control_frame({"rId": 1, "openQueue": {"handleParameters": {
            "uri": URI, "qId": 0, "flags": 12, "readCount": 0, "writeCount": 1, "adminCount": 0}}}))

    def send(self, data: bytes) -> None:
        """Send bytes to the broker."""
        with self.broker._runner.lock:
            self.link.send(data)

    def on_data(self, data: bytes) -> None:
        """Receive bytes of the broker."""
        self.received.append(data)

    def on_lost(self, reason: str) -> None:
        """Receive bytes of the broker."""

    def on_room(self) -> None:
        """Receive bytes of the broker."""


# -- refuse ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Result.LIMIT_MESSAGES, Result.LIMIT_BYTES, Result.STORAGE_FAILURE, Result.NOT_READY,
                                    Result.UNKNOWN])
def test_the_refuse_fault_answers_posts_with_a_status(broker: Broker, status: Result) -> None:
    async def scenario() -> None:
        async with broker.session() as session:
            queue = await session.open(URI, write=True)
            with broker.faults.refuse("post", status=status, times=1) as fault:
                with pytest.raises(PostRefused) as refused:
                    await queue.post(b"no")
                assert refused.value.status is status
                assert fault.hits == 1 and not fault.active
                assert (await queue.post(b"yes")).ok
    run(scenario())
    assert [(post.status, post.fault_effect) for post in broker.recorder.posts(URI)] == [
        (status, "refused"), (Result.SUCCESS, "")]
    assert [each.payload for each in broker.messages(URI)] == [b"yes"]


def test_a_fault_applies_to_single_messages_of_a_batch(broker: Broker) -> None:
    broker.faults.refuse("post", uri=URI, times=2)

    async def scenario() -> list[bool]:
        async with broker.session() as session:
            queue, other = await session.open(URI, write=True), await session.open(OTHER, write=True)
            other.post_nowait(b"untouched")
            return [ack.ok for ack in await queue.post_many([b"1", b"2", b"3"], return_exceptions=True)]
    assert run(scenario()) == [False, False, True]
    assert [each.payload for each in broker.messages(URI)] == [b"3"]
    assert [each.payload for each in broker.messages(OTHER)] == [b"untouched"]


def test_the_refuse_fault_applies_to_opens_and_configures(broker: Broker) -> None:
    async def scenario() -> None:
        async with broker.session() as session:
            with broker.faults.refuse("open", uri=URI, status=Result.NOT_READY, reason="not today"):
                with pytest.raises(SdkError, match="not today") as caught:
                    await session.open(URI, write=True)
                assert caught.value.result is Result.NOT_READY
                await session.open(OTHER, write=True)
            queue = await session.open(URI, read=True)
            with broker.faults.refuse("configure", status=Result.INVALID_ARGUMENT), pytest.raises(SdkError) as caught:
                await queue.configure(QueueOptions(max_unconfirmed_messages=1))
            assert caught.value.result is Result.INVALID_ARGUMENT
    run(scenario())
    assert [(each.status, each.fault_effect) for each in broker.recorder.opens(URI)] == [
        (Result.NOT_READY, "refused"), (Result.SUCCESS, "")]


def test_the_refuse_fault_applies_to_negotiations(broker: Broker) -> None:
    broker.faults.refuse("negotiation", reason="wrong door")

    async def scenario() -> None:
        with pytest.raises(SdkError, match="wrong door"):
            await broker.session().start()
    run(scenario())


def test_the_refuse_fault_applies_to_a_number_of_connections(broker: Broker) -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with broker.session(name="app", backoff_first_s=1.0):
            return loop.time() - begun
    fault = broker.faults.refuse("connection", client="app", times=3)
    assert run(scenario()) > 1.0
    assert fault.hits == 3
    assert [note.what for note in broker.recorder.notes()].count("connection refused by the test") == 3


@pytest.mark.parametrize("arm", [
    lambda faults: faults.refuse("delivery"), lambda faults: faults.refuse("post", status=Result.REFUSED),
    lambda faults: faults.refuse("open", status=Result.LIMIT_BYTES), lambda faults: faults.drop("nonsense"),
    lambda faults: faults.drop("connection"), lambda faults: faults.drop(uri="nonsense")])
def test_an_invalid_fault_is_refused(broker: Broker, arm: Any) -> None:
    with pytest.raises(LocalError):
        arm(broker.faults)
    assert broker.faults.armed == []


# -- drop -----------------------------------------------------------------------------------------------------------


def test_a_post_with_a_dropped_ack_is_acknowledged_after_a_reconnect_and_stored_once(broker: Broker) -> None:
    async def scenario() -> None:
        async with broker.session() as session:
            queue = await session.open(URI, write=True)
            broker.faults.drop("ack", times=1)
            later = asyncio.ensure_future(queue.post(b"once"))
            await asyncio.sleep(1)
            assert not later.done()
            broker.disconnect()
            assert (await later).ok
    run(scenario())
    assert len(broker.recorder.posts(URI)) == 2
    assert len(broker.messages(URI)) == 1
    assert [ack.fault_effect for ack in broker.recorder.acks(URI)] == ["dropped", ""]


def test_a_client_disconnects_from_a_broker_that_sends_nothing(broker: Broker) -> None:
    kinds: list[EventKind] = []

    async def scenario() -> None:
        async with broker.session(name="app", on_event=lambda event: kinds.append(event.kind)) as session:
            queue = await session.open(URI, write=True)
            with broker.faults.drop(client="app") as silence:
                await broker.until(lambda: EventKind.CONNECTION_LOST in kinds, 600)
                assert silence.hits > 0
            assert (await queue.post(b"back")).ok
    run(scenario())
    assert EventKind.STATE_RESTORED in kinds


def test_a_message_with_a_dropped_confirm_is_redelivered(broker: Broker) -> None:
    broker.put(FANOUT, b"x")
    broker.faults.drop("confirm", uri=f"{FANOUT}?id=foo", times=1)
    with broker.blocking_session() as session:
        for app in ("foo", "bar"):
            queue = session.open(f"{FANOUT}?id={app}", read=True)
            with queue.get(10):  # type: ignore[union-attr]
                pass
            queue.close()
    assert broker.messages(FANOUT)[0].apps == ("foo", "baz")


# -- delay and stall --------------------------------------------------------------------------------------------------


def test_the_delay_fault_keeps_the_order_of_posts(broker: Broker) -> None:
    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        async with broker.session() as session:
            queue = await session.open(URI, write=True)
            begun, took = loop.time(), []
            with broker.faults.delay(30, "post", times=1):
                posts = [asyncio.ensure_future(queue.post(b"%d" % number)) for number in range(2)]
                for post in asyncio.as_completed(posts):
                    assert (await post).ok
                    took.append(loop.time() - begun)
            return took
    took = run(scenario())
    assert all(seconds == pytest.approx(30, abs=0.1) for seconds in took)
    assert [each.payload for each in broker.messages(URI)] == [b"0", b"1"]
    assert broker.recorder.posts(URI)[0].fault_effect == "delayed 30 s"


def test_a_delay_without_a_kind_applies_to_all_requests_and_responses(broker: Broker) -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with broker.session() as session:
            assert (await (await session.open(URI, write=True)).post(b"x")).ok
        return loop.time() - begun
    with broker.faults.delay(0.5):
        assert run(scenario()) == pytest.approx(4.0, abs=0.2)  # hello, open, post, disconnect: there and back
    assert len(broker.recorder.negotiations()) == 1


def test_deliveries_are_delayed_for_one_client_only(broker: Broker) -> None:
    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        async with broker.session(name="slow") as slow, broker.session(name="fast") as fast:
            queues = [await each.open(f"{FANOUT}?id={app}", read=True) for each, app in ((slow, "foo"), (fast, "bar"))]
            broker.faults.delay(5, "delivery", client="slow")
            begun = loop.time()
            broker.put(FANOUT, b"x")
            took = []
            for queue in reversed(queues):
                await queue.get()
                took.append(loop.time() - begun)
            return took
    fast, slow = run(scenario())
    assert fast == pytest.approx(0, abs=0.01) and slow == pytest.approx(5, abs=0.01)


def test_with_a_stalled_connection_posts_wait_for_room_in_the_send_buffer(broker: Broker) -> None:
    async def scenario() -> None:
        options = {"channel_high_bytes": 10_000, "channel_low_bytes": 5_000, "post_wait_s": 2.0}
        async with broker.session(**options) as session:
            queue = await session.open(URI, write=True)
            with broker.faults.stall("post"):
                first = [asyncio.ensure_future(queue.post(bytes([65 + n]) * 6000)) for n in range(2)]
                await asyncio.sleep(1)
                with pytest.raises(SdkError) as caught:
                    await queue.post(b"no room")
                assert caught.value.result is Result.BW_LIMIT
                assert broker.messages(URI) == []
            assert all(ack.ok for ack in await asyncio.gather(*first))
            assert (await queue.post(b"room")).ok
    run(scenario())
    assert [each.payload[:4] for each in broker.messages(URI)] == [b"AAAA", b"BBBB", b"room"]


def test_a_stall_pauses_twisted_and_blocking_producers(broker: Broker) -> None:
    clock = Clock()
    session = broker.tx_session(clock, channel_high_bytes=10_000, channel_low_bytes=5_000, post_wait_s=2.0)
    outcome(session.start(), clock)
    queue = outcome(session.open(URI, write=True), clock)
    with broker.faults.stall("post"):
        first = queue.post(b"A" * 12_000)
        clock.advance(1)
        with pytest.raises(SdkError):
            outcome(queue.post(b"no room"), clock)
    assert outcome(first, clock).ok
    outcome(session.stop(), clock)

    with broker.blocking_session(channel_high_bytes=10_000, channel_low_bytes=5_000, post_wait_s=2.0) as plain:
        out = plain.open(URI, write=True)
        stalled = broker.faults.stall("post")
        out.post_nowait(b"B" * 12_000)
        plain.step()
        with pytest.raises(SdkError):
            out.post_nowait(b"no room")
            out.post(b"no room")
        stalled.end()
        out.flush()
    assert [each.payload[:1] for each in broker.messages(URI)] == [b"A", b"B"]


def test_a_stalled_consumer_receives_all_messages_after_the_stall(broker: Broker) -> None:
    broker.domain("large")

    async def scenario() -> None:
        async with broker.session(name="app") as session:
            queue = await session.open("bmq://large/q", read=True)
            with broker.faults.stall("delivery"):
                for number in range(40):
                    broker.put("bmq://large/q", b"%02d" % number * 250_000)
                await asyncio.sleep(1)
            for number in range(40):
                async with await queue.get() as message:
                    assert message.payload[:2] == b"%02d" % number
    run(scenario())
    broker.assert_empty("bmq://large/q")


# -- kill -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
def test_a_connection_is_killed_before_or_after_a_post_arrives(broker: Broker, after: bool) -> None:
    held: list[int] = []

    async def scenario() -> None:
        async with broker.session() as session:
            queue = await session.open(URI, write=True)
            broker.faults.kill("post", after=after)
            later = asyncio.ensure_future(queue.post(b"x"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            held.append(len(broker.messages(URI)))
            assert (await later).ok
    run(scenario())
    assert held == [1 if after else 0]
    assert len(broker.messages(URI)) == 1, "the retransmitted post is stored once"
    assert [post.fault_effect for post in broker.recorder.posts(URI)] == ["then killed" if after else "killed", ""]
    assert len(broker.recorder.negotiations()) == 2


def test_posts_after_a_killing_one_in_the_same_write_are_lost_and_repeated(broker: Broker) -> None:
    async def scenario() -> None:
        async with broker.session() as session:
            queue = await session.open(URI, write=True)
            broker.faults.kill("post")
            assert all(ack.ok for ack in await queue.post_many([b"1", b"2"]))
    run(scenario())
    assert [post.fault_effect for post in broker.recorder.posts(URI)] == ["killed", "lost with the connection", "", ""]
    assert [each.payload for each in broker.messages(URI)] == [b"1", b"2"]


def test_a_delivery_that_killed_the_connection_is_redelivered(broker: Broker) -> None:
    broker.put(URI, b"x")
    broker.faults.kill("delivery", after=True)
    with broker.blocking_session() as session:
        queue = session.open(URI, read=True)
        messages = [queue.get(100), queue.get(100)]
    assert [message.redelivered for message in messages if message] == [False, True]


def test_a_crash_keeps_acknowledged_messages_except_in_memory_ones(broker: Broker) -> None:
    volatile = "bmq://bmq.test.mem.priority/q"
    for uri in (URI, volatile):
        broker.put(uri, b"x")
    broker.crash()
    assert not broker.up
    with pytest.raises(SdkError):
        broker.blocking_session(connect_timeout_s=5)
    broker.start()
    assert len(broker.messages(URI)) == 1
    broker.assert_empty(volatile)


@pytest.mark.parametrize("crash", [True, False])
def test_a_confirm_is_durable_after_a_stop_and_may_be_lost_in_a_crash(broker: Broker, crash: bool) -> None:
    broker.put(URI, b"x")
    with broker.blocking_session() as session:
        with session.open(URI, read=True).get(10):  # type: ignore[union-attr]
            pass
        session.step()
        broker.assert_confirmed(URI, 1)
        broker.crash() if crash else broker.stop()
        broker.start()
    assert len(broker.messages(URI)) == crash


def test_posts_of_clients_without_guids_survive_a_crash(broker: Broker) -> None:
    """Posts after the crash are not treated as repetitions of earlier ones."""
    for payload in (b"before", b"after"):
        client = RawClient(broker)
        client.send(codec.put_frame([codec.put_message(0, codec.correlation(7), payload)]))
        assert codec.ACK in {frame[4] & 63 for frame in codec.split_frames(b"".join(client.received))[0]}
        broker.crash()
        broker.start()
    assert [each.payload for each in broker.messages(URI)] == [b"before", b"after"]
    assert [post.status for post in broker.recorder.posts(URI)] == [Result.SUCCESS] * 2


def test_a_restart_redelivers_unconfirmed_messages_to_reconnected_consumers(broker: Broker) -> None:
    broker.put(URI, b"x")

    async def scenario() -> None:
        async with broker.session() as session:
            queue = await session.open(URI, read=True)
            held = await queue.get()
            broker.restart()
            again = await queue.get()
            assert again.guid == held.guid
            again.confirm()
    run(scenario())
    broker.assert_empty(URI)
    broker.restart()
    broker.assert_empty(URI)


def test_faults_work_for_clients_at_a_port(broker: Broker) -> None:
    import blazingmq
    url = broker.listen()
    acks: list[Any] = []
    session = blazingmq.Session(lambda event: None, broker=url)
    session.open_queue(URI, write=True)
    broker.faults.refuse("post", status=Result.STORAGE_FAILURE, times=1)
    broker.faults.delay(0.3, "ack", times=1)
    begun = time.monotonic()
    session.post(URI, b"x", on_ack=acks.append)
    broker.wait_until(lambda: acks)
    assert acks[0].status is blazingmq.AckStatus.STORAGE_FAILURE
    assert time.monotonic() - begun >= 0.29
    broker.faults.kill("post", after=True)
    session.post(URI, b"y", on_ack=acks.append)
    broker.wait_until(lambda: len(acks) == 2, 30)
    assert acks[1].status is blazingmq.AckStatus.SUCCESS
    session.stop()
    assert [each.payload for each in broker.messages(URI)] == [b"y"]


def test_client_names_are_kept_over_reconnects(broker: Broker) -> None:
    async def scenario() -> None:
        async with broker.session() as first, broker.session(name="second"):
            assert broker.clients == ["client1", "second"]
            await first.open(URI, write=True)
            assert broker.disconnect("client1") == 1
            await broker.until(lambda: "client1" in broker.clients)
    run(scenario())
    assert broker.clients == []
