"""Test kit: the in-process broker with clock, recorder and assertions, against each client API."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from bmqtwist.errors import LocalError
from bmqtwist.sdk import EventKind, QueueOptions, Result, SdkError, SessionOptions, aio, simple
from bmqtwist.sdk import blazingmq as official
from bmqtwist.testing import Broker, Stuck, Unmet, VirtualLoop, outcome, run
from bmqtwist.testing.config import sample_domains
from bmqtwist.testing.transport import MemoryTransport

PRIORITY, FANOUT = "bmq://bmq.test.persistent.priority/q", "bmq://bmq.test.persistent.fanout/q"
BROADCAST = "bmq://bmq.test.mem.broadcast/q"
READY_S_MAX = 0.050
ROOT = Path(__file__).resolve().parent.parent.parent.parent


@pytest.fixture
def broker() -> Any:
    """A broker."""
    with Broker() as made:
        yield made


def test_a_broker_is_ready_in_less_than_50_ms() -> None:
    """The limit is in CPU time, the minimum of several attempts, so that other load of the machine has no effect."""
    took = []
    for _ in range(5):
        begun = time.thread_time()
        assert Broker().up
        took.append(time.thread_time() - begun)
    assert min(took) < READY_S_MAX


def test_importing_the_kit_imports_no_other_module_of_the_package() -> None:
    code = ("import sys, bmqtwist.testing.plugin, bmqtwist.testing; "
            "print([m for m in sys.modules if m.startswith(('bmqtwist.', 'twisted'))])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(eval(done.stdout)) == {"bmqtwist.testing", "bmqtwist.testing.plugin"}


def test_an_unknown_name_of_the_kit_is_an_attribute_error() -> None:
    import bmqtwist.testing
    with pytest.raises(AttributeError, match="nonsense"):
        bmqtwist.testing.nonsense  # noqa: B018 - the access is the test
    assert all(getattr(bmqtwist.testing, name) for name in bmqtwist.testing.__all__)


def test_the_sample_domains_equal_those_of_the_sample_configuration() -> None:
    for name, text in sample_domains():
        sample = json.loads(text)["definition"]["parameters"]
        configured = json.loads((ROOT / "etc" / "domains" / f"{name}.json").read_text(encoding="utf-8"))
        configured = configured["definition"]["parameters"]
        assert {key: sample[key] for key in configured} == configured
    assert len(sample_domains()) == len(list((ROOT / "etc" / "domains").glob("*.json")))


# -- fronts -------------------------------------------------------------------------------------------------------


async def post_and_consume(broker: Broker) -> None:
    """Post one message and consume it."""
    async with broker.session(name="app") as session, session.open(PRIORITY, read=True, write=True) as queue:
        ack = await queue.post(b"hello", {"n": 1})
        async for message in queue:
            async with message:
                assert (message.payload, message.guid, message.properties) == (b"hello", ack.guid, {"n": 1})
            break


def test_an_asyncio_session_posts_and_consumes_in_virtual_time(broker: Broker) -> None:
    run(post_and_consume(broker))
    broker.assert_confirmed(PRIORITY, 1)
    broker.assert_empty(PRIORITY)


def test_an_asyncio_session_posts_and_consumes_on_an_ordinary_loop(broker: Broker) -> None:
    asyncio.run(post_and_consume(broker))
    asyncio.run(post_and_consume(broker))
    broker.assert_confirmed(PRIORITY, 2)


def test_a_twisted_session_posts_and_consumes_on_a_test_clock(broker: Broker) -> None:
    clock = Clock()
    session = broker.tx_session(clock, name="app")
    outcome(session.start(), clock)

    async def scenario() -> bytes:
        queue = await session.open(PRIORITY, read=True, write=True)
        await queue.post(b"hello")
        message = await queue.get()
        message.confirm()
        await queue.close()
        return message.payload

    assert outcome(scenario(), clock) == b"hello"
    outcome(session.stop(), clock)
    broker.assert_confirmed(PRIORITY, 1)


def test_a_reconnect_of_a_twisted_session_takes_only_time_of_its_clock(broker: Broker) -> None:
    clock = Clock()
    session = broker.tx_session(clock, name="app", backoff_first_s=20.0)
    outcome(session.start(), clock)
    queue = outcome(session.open(PRIORITY, write=True), clock)
    with broker.faults.refuse("connection", times=2) as refused:
        broker.disconnect()
        assert outcome(queue.post(b"kept"), clock).ok
        assert refused.hits == 2
    assert clock.seconds() > 5.0
    outcome(session.stop(), clock)
    assert [each.payload for each in broker.messages(PRIORITY)] == [b"kept"]


def test_the_outcome_of_a_deferred_that_never_fires_raises_stuck() -> None:
    from twisted.internet.defer import Deferred
    clock = Clock()
    with pytest.raises(Stuck):
        outcome(Deferred(), clock)
    clock.callLater(10, lambda: None)
    with pytest.raises(Stuck):
        outcome(Deferred(), clock, seconds_max=5)


def test_blocking_calls_take_no_time_while_the_clock_is_virtual(broker: Broker) -> None:
    begun = time.perf_counter()
    with broker.blocking_session(name="app") as session:
        queue = session.open(PRIORITY, read=True, write=True)
        queue.post_many([b"a", b"b"])
        assert [message.payload for message in queue.poll(10)] == [b"a", b"b"]
        before = broker.clock()
        assert queue.get(timeout_s=600) is None
        assert broker.clock() - before == pytest.approx(600, abs=1)
        with pytest.raises(Stuck):
            queue.get()
    assert time.perf_counter() - begun < 30


def test_an_official_session_posts_and_consumes_in_memory(broker: Broker) -> None:
    got: list[bytes] = []

    def take(message: official.Message, handle: official.MessageHandle) -> None:
        got.append(message.data)
        handle.confirm()

    session = broker.official_session(lambda event: None, take, name="app")
    session.open_queue(PRIORITY, read=True, write=True)
    session.post(PRIORITY, b"hello", on_ack=lambda ack: None)
    broker.wait_until(lambda: broker.recorder.confirms(PRIORITY))
    session.stop()
    assert got == [b"hello"]


def test_an_official_session_posts_and_consumes_over_a_port(broker: Broker) -> None:
    import blazingmq
    url = broker.listen()
    assert url == broker.listen()
    session = blazingmq.Session(lambda event: None, lambda message, handle: handle.confirm(), broker=url)
    session.open_queue(PRIORITY, read=True, write=True)
    session.post(PRIORITY, b"hello", {"s": "x"}, on_ack=lambda ack: None)
    broker.wait_until(lambda: broker.recorder.confirms(PRIORITY))
    assert broker.assert_posted(PRIORITY, b"hello", {"s": "x"}, client="client1")[0].status is Result.SUCCESS
    session.stop()


def test_clients_at_a_port_and_in_memory_share_the_queues(broker: Broker) -> None:
    url = broker.listen()

    async def scenario() -> None:
        async with aio.Session(url) as outside, broker.session(name="inside") as inside:
            writer = await outside.open(PRIORITY, write=True)
            reader = await inside.open(PRIORITY, read=True)
            await writer.post(b"through")
            assert (await asyncio.wait_for(reader.get(), 10)).payload == b"through"
    asyncio.run(scenario())


def test_listening_at_a_used_port_is_an_error(broker: Broker) -> None:
    port = int(broker.listen().rpartition(":")[2])
    with Broker() as other, pytest.raises(OSError):
        other.listen(port)


def test_sessions_of_the_application_are_intercepted(broker: Broker) -> None:
    async def application() -> None:
        async with aio.Session("tcp://production:30114") as session:
            await (await session.open(PRIORITY, write=True)).post(b"asyncio")

    with broker.intercept():
        run(application())
        with simple.Session("tcp://production:30114") as session:
            session.open(PRIORITY, write=True).post(b"blocking")
        shaped = official.Session(lambda event: None, broker="tcp://production:30114")
        shaped.open_queue(PRIORITY, write=True)
        shaped.post(PRIORITY, b"official", on_ack=lambda ack: None)
        shaped.stop()
    assert [post.payload for post in broker.recorder.posts(PRIORITY)] == [b"asyncio", b"blocking", b"official"]
    with pytest.raises(SdkError):
        simple.Session("tcp://127.0.0.1:1", connect_timeout_s=0.1)


def test_twisted_sessions_are_intercepted(broker: Broker) -> None:
    from bmqtwist.sdk import tx
    clock = Clock()
    with broker.intercept():
        session = tx.Session(clock, "tcp://production:30114")
        outcome(session.start(), clock)
    outcome(session.stop(), clock)
    assert len(broker.recorder.negotiations()) == 1


# -- time -----------------------------------------------------------------------------------------------------------


def test_sleeping_in_virtual_time_takes_no_real_time() -> None:
    async def scenario() -> float:
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(asyncio.sleep(30), asyncio.sleep(20))
        return asyncio.get_running_loop().time() - begun

    begun = time.perf_counter()
    assert run(scenario()) == pytest.approx(30)
    assert time.perf_counter() - begun < 5


def test_waiting_without_end_raises_stuck_with_the_waiting_task(broker: Broker) -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck, match="forever"):
        run(forever())

    async def with_timers() -> None:
        async with broker.session() as session:
            queue = await session.open(PRIORITY, read=True)
            await queue.get()

    with pytest.raises(Stuck, match="more than 100 s"):
        run(with_timers(), seconds_max=100)


class LockProbe:
    """Stands for a session core or a broker; `held` has an entry per read deadline: whether the thread held the lock."""

    def __init__(self, wrapped: Any, lock: Any) -> None:
        self._wrapped, self._lock = wrapped, lock
        self.held: list[bool] = []

    def next_deadline(self) -> float | None:
        self.held.append(self._lock._is_owned())
        return self._wrapped.next_deadline()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def test_a_step_of_a_blocking_session_holds_the_lock_of_the_session_or_broker_whose_deadline_it_reads(
        broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may change the deadlines during a step."""
    runner = broker._runner
    runner.clock.follow(time.monotonic, True)
    transport = MemoryTransport(runner, "", SessionOptions(), lambda effect: None)
    of_session, of_broker = LockProbe(transport.core, transport.lock), LockProbe(runner.node.broker, runner.lock)
    monkeypatch.setattr(transport, "core", of_session)
    monkeypatch.setattr(runner.node, "broker", of_broker)
    for _ in range(2):  # the first one is interrupted by the start
        transport.step(0.0)
    assert set(of_session.held) == set(of_broker.held) == {True}


def test_virtual_time_does_not_advance_while_a_thread_works() -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        begun = loop.time()
        released = threading.Event()
        loop.call_later(0.02, released.set)
        assert await asyncio.wait_for(asyncio.to_thread(released.wait, 10), 60)
        return loop.time() - begun

    assert 0.019 <= run(scenario()) < 10


def test_messages_expire_when_the_clock_jumps(broker: Broker) -> None:
    broker.domain("short", ttl=30)
    broker.put("bmq://short/q", b"x")
    broker.advance(20)
    assert len(broker.messages("bmq://short/q")) == 1
    broker.advance(20)
    broker.assert_empty("bmq://short/q")


def test_a_day_passes_quickly(broker: Broker) -> None:
    begun, before = time.perf_counter(), broker.clock()
    broker.advance(86400)
    assert time.perf_counter() - begun < 10
    assert broker.clock() - before == pytest.approx(86400)


def test_an_idle_session_stays_connected(broker: Broker) -> None:
    async def scenario() -> None:
        async with broker.session(name="app"):
            await asyncio.sleep(600)
            assert broker.clients == ["app"]
    run(scenario())
    assert len(broker.recorder.negotiations()) == 1
    assert "heartbeat" in [getattr(event, "what", "") for event in broker.recorder.events]


def test_a_session_left_open_at_the_end_of_its_loop_is_disconnected(broker: Broker) -> None:
    async def scenario() -> None:
        session = broker.session(name="left")
        await session.start()
        await session.open(PRIORITY, read=True)
    asyncio.run(scenario())
    broker.put(PRIORITY, b"x")
    broker.advance(5)
    assert broker.disconnect("left") == 1
    run(post_and_consume_first(broker))


async def post_and_consume_first(broker: Broker) -> None:
    """Messages put before the session are delivered first."""
    async with broker.session() as session:
        async with await (await session.open(PRIORITY, read=True)).get() as message:
            assert message.payload == b"x"


def test_a_client_stays_connected_when_the_clock_advances(broker: Broker) -> None:
    with broker.blocking_session(name="app"):
        broker.advance(3600)
        assert broker.clients == ["app"]


def test_the_clock_of_the_broker_follows_the_loop_and_continues_between_loops(broker: Broker) -> None:
    broker.domain("short", ttl=30)

    async def scenario() -> None:
        async with broker.session() as session:
            queue = await session.open("bmq://short/q", write=True)
            await queue.post(b"x")
            await asyncio.sleep(20)
            broker.assert_posted("bmq://short/q", b"x")
            assert broker.messages("bmq://short/q")
            await asyncio.sleep(20)
            broker.assert_empty("bmq://short/q")
    run(scenario())
    before = broker.clock()
    run(post_and_consume(broker))
    assert broker.clock() == pytest.approx(before, abs=1)


# -- domains and messages without a client ----------------------------------------------------------------------------


def test_the_options_of_a_domain_apply_to_its_queues(broker: Broker) -> None:
    uri = f"bmq://{broker.domain('orders', max_messages=1)}/q"  # one more is accepted, as by the original
    broker.put(uri, b"1")
    broker.put(uri, b"2")
    with pytest.raises(LocalError, match="LIMIT_MESSAGES"):
        broker.put(uri, b"3")
    broker.domain("orders", max_messages=2)
    broker.put(uri, b"3")
    assert [each.payload for each in broker.messages(uri)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("options", [{"mode": "fanout"}, {"app_ids": ["a"]}, {"mode": "broadcast", "app_ids": ["a"]},
                                     {"subscriptions": {"": "n <"}}, {"max_messages": -1}, {"nonsense": [1]}])
def test_a_domain_with_invalid_options_is_refused(broker: Broker, options: dict[str, Any]) -> None:
    with pytest.raises(LocalError):
        broker.domain("d", **options)
    with pytest.raises(LocalError, match="d.json"):
        broker.put("bmq://d/q", b"x")


@pytest.mark.parametrize(("options", "hint"), [
    ({"mode": "fanot"}, "mode is one of priority, fanout, broadcast, not 'fanot'"),
    ({"consistency": "stron"}, "consistency is one of eventual, strong, not 'stron'"),
])
def test_an_unknown_mode_of_a_domain_is_refused_with_the_valid_ones(broker: Broker, options: dict[str, Any],
                                                                    hint: str) -> None:
    """The error lists the valid modes."""
    with pytest.raises(LocalError, match=hint):
        broker.domain("d", **options)


def test_put_messages_are_delivered_and_drained_messages_removed(broker: Broker) -> None:
    guid = broker.put(PRIORITY, b"hello " * 1000, {"n": 1, "s": "x"}, compress=True)
    with broker.blocking_session() as session:
        queue = session.open(PRIORITY, read=True, write=True)
        message = queue.get()
        assert message is not None
        assert (message.guid, message.payload, message.properties) == (guid, b"hello " * 1000, {"n": 1, "s": "x"})
        assert broker.messages(PRIORITY)[0].held_by == ("client1",)
        queue.post(b"second")
        taken = broker.drain(PRIORITY)
        assert [each.payload for each in taken] == [b"hello " * 1000, b"second"]
        assert taken[0].properties == {"n": 1, "s": "x"}
    broker.assert_empty(PRIORITY)
    assert broker.drain(PRIORITY) == []


def test_messages_of_a_fanout_queue_list_the_apps_that_have_not_confirmed(broker: Broker) -> None:
    broker.put(FANOUT, b"x")
    assert broker.messages(FANOUT)[0].apps == ("foo", "bar", "baz")
    with broker.blocking_session() as session:
        queue = session.open(f"{FANOUT}?id=foo", read=True)
        with queue.get(10):  # type: ignore[union-attr]
            pass
        queue.close()
    broker.assert_confirmed(f"{FANOUT}?id=foo")
    with pytest.raises(Unmet):
        broker.assert_confirmed(f"{FANOUT}?id=bar", 1)
    broker.assert_empty(f"{FANOUT}?id=foo")
    assert broker.messages(FANOUT)[0].apps == ("bar", "baz")
    assert len(broker.drain(f"{FANOUT}?id=bar")) == 1
    assert broker.messages(FANOUT)[0].apps == ("baz",)
    with pytest.raises(LocalError, match="no app 'unknown'"):
        broker.messages(f"{FANOUT}?id=unknown")


def test_messages_have_their_remaining_delivery_attempts(broker: Broker) -> None:
    uri = f"bmq://{broker.domain('d', max_delivery_attempts=2)}/q"
    broker.put(uri, b"x")
    assert broker.messages(uri)[0].attempts_left == 2
    session = broker.blocking_session(name="app")
    queue = session.open(uri, read=True)
    assert queue.get(1) is not None
    broker.disconnect("app")
    assert broker.messages(uri)[0].attempts_left == 1
    session.stop()


@pytest.mark.parametrize(("uri", "payload"), [(PRIORITY, b""), (f"{FANOUT}?id=foo", b"x"), ("bmq://unknown/q", b"x"),
                                              ("nonsense", b"x")])
def test_putting_an_invalid_message_is_an_error(broker: Broker, uri: str, payload: bytes) -> None:
    with pytest.raises(LocalError):
        broker.put(uri, payload)


def test_draining_a_broadcast_queue_is_an_error(broker: Broker) -> None:
    with broker.blocking_session() as session:
        queue = session.open(BROADCAST, read=True)
        broker.put(BROADCAST, b"x")
        message = queue.get(1)
        assert message is not None and message.payload == b"x"
        with pytest.raises(LocalError, match="broadcast"):
            broker.drain(BROADCAST)


# -- recorder and assertions ------------------------------------------------------------------------------------------


def test_the_recorder_has_the_requests_of_clients_and_the_responses_of_the_broker(broker: Broker) -> None:
    async def scenario() -> None:
        async with broker.session(name="writer") as writer, broker.session(name="reader") as reader:
            out = await writer.open(PRIORITY, write=True)
            await out.post(b"one", {"n": 1})
            await out.post_many([b"two", b"three"])
            options = QueueOptions(max_unconfirmed_messages=7, consumer_priority=3)
            inbox = await reader.open(PRIORITY, read=True, options=options)
            async with await inbox.get():
                pass
            await inbox.close()
            with pytest.raises(SdkError):
                await writer.open("bmq://unknown/q", write=True)
    run(scenario())
    recorder = broker.recorder
    assert [(post.payload, post.status) for post in recorder.posts(PRIORITY)] == [
        (b"one", Result.SUCCESS), (b"two", Result.SUCCESS), (b"three", Result.SUCCESS)]
    assert recorder.posts(client="reader") == [] and recorder.posts(FANOUT) == []
    assert [ack.status for ack in recorder.acks(PRIORITY, "writer")] == [Result.SUCCESS] * 3
    assert recorder.deliveries(PRIORITY)[0].client == "reader"
    assert [confirm.guid for confirm in recorder.confirms()] == [recorder.posts()[0].guid]
    assert [(each.client, each.read, each.write, each.status) for each in recorder.opens()] == [
        ("writer", False, True, Result.SUCCESS), ("reader", True, False, Result.SUCCESS),
        ("writer", False, True, Result.UNKNOWN)]
    assert "unknown.json" in recorder.opens()[-1].reason
    first, last = recorder.configures(PRIORITY)
    assert first.subscriptions[0].max_unconfirmed_messages == 7 and first.subscriptions[0].consumer_priority == 3
    assert last.subscriptions == ()
    assert [each.client for each in recorder.closes()] == ["reader"]
    assert {each.client for each in recorder.negotiations()} == {"reader", "writer"}
    broker.assert_posted(PRIORITY, b"one", {"n": 1}, count=1)
    broker.assert_posted(PRIORITY, count=3)
    with pytest.raises(Unmet, match="at least one post expected, 0 found"):
        broker.assert_posted(PRIORITY, b"four")
    with pytest.raises(Unmet, match=r"(?s)contains 2 message.*b?'two'"):
        broker.assert_empty(PRIORITY)
    with pytest.raises(Unmet, match="2 of them|1 of them"):
        broker.assert_confirmed(PRIORITY)
    recorder.clear()
    assert recorder.events == []


def test_a_transcript_has_one_line_for_each_event_and_can_be_limited(broker: Broker) -> None:
    run(post_and_consume(broker))
    whole = broker.recorder.transcript(None)
    assert [line.split()[2] for line in whole.splitlines()][:9] == [
        "broker", "connected", "hello", "open", "configure", "post", "push", "ack", "confirm"]
    assert "5 B 'hello' {'n': 1}" in whole
    short = broker.recorder.transcript(3).splitlines()
    assert len(short) == 4 and short[0].startswith("... ") and short[1:] == whole.splitlines()[-3:]


def test_the_memory_of_the_recorder_is_limited(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmqtwist.testing.recorder.RECORD_BYTES_MAX", 10_000)
    with broker.blocking_session() as session:
        queue = session.open(PRIORITY, write=True)
        for number in range(20):
            queue.post(b"%d" % number * 1000)
    assert 0 < len(broker.recorder.posts()) < 10
    assert broker.recorder.dropped > 0
    assert broker.recorder.transcript(5).startswith("... ")


def test_until_waits_for_a_condition_or_raises_unmet(broker: Broker) -> None:
    async def scenario() -> None:
        async with broker.session() as session:
            queue = await session.open(PRIORITY, write=True)
            asyncio.get_running_loop().call_later(5, lambda: queue.post_nowait(b"late"))
            await broker.until(lambda: broker.messages(PRIORITY))
            with pytest.raises(Unmet, match="condition not met within 3 s"):
                await broker.until(lambda: False, 3)
    run(scenario())
    with pytest.raises(Unmet):
        broker.wait_until(lambda: False, 0.01)


def test_admin_commands_can_be_run_and_the_log_read(broker: Broker) -> None:
    broker.put(PRIORITY, b"x")
    assert PRIORITY in broker.admin("DOMAINS DOMAIN bmq.test.persistent.priority INFOS")
    assert any("Assigned queue" in line for line in broker.log())


def test_session_events_arrive_in_order_when_the_broker_restarts(broker: Broker) -> None:
    kinds: list[EventKind] = []

    async def scenario() -> None:
        async with broker.session(on_event=lambda event: kinds.append(event.kind)) as session:
            queue = await session.open(PRIORITY, read=True, write=True)
            await queue.post(b"before")
            broker.crash()
            later = asyncio.ensure_future(queue.post(b"meanwhile"))
            await asyncio.sleep(60)
            assert not later.done()
            broker.start()
            assert (await later).ok
            assert {(await queue.get()).payload for _ in range(3)} == {b"before", b"meanwhile"}
    run(scenario())
    assert [kind for kind in kinds if kind is not EventKind.CONNECTED][:4] == [
        EventKind.CONNECTION_LOST, EventKind.RECONNECTED, EventKind.QUEUE_REOPEN_RESULT, EventKind.STATE_RESTORED]


def test_a_misspelt_option_of_a_domain_is_refused() -> None:
    broker = Broker()
    with pytest.raises(LocalError, match="domain d: there is no 'max_mesages', did you mean 'max_messages'?"):
        broker.domain("d", max_mesages=3)
    with pytest.raises(LocalError, match="there is no 'maxConsumer', did you mean 'maxConsumers'?"):
        broker.domain("d", maxConsumer=3)
    assert broker.domain("d", maxConsumers=3) == "d"
