"""Pause, resume, drain and configure of consumer queues, on each front."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kit.sdk_fronts_kit import FRONTS, URI, Front, w
from kit.sdk_kit import Bench

from bmqtwist.errors import LocalError
from bmqtwist.sdk import HealthMonitor, QueueOptions, Result, SdkError, Subscription
from bmqtwist.sdk._core.states import QueueState
from bmqtwist.wire import schema

OPTIONS = QueueOptions(consumer_priority=3, subscriptions=(
    Subscription("x > 1", consumer_priority=5, max_unconfirmed_messages=7), Subscription("x < 0")))


# -- the core -------------------------------------------------------------------------------------------------------


def set_paused(bench: Bench, queue: Any, yes: bool, token: object) -> None:
    """Pause or resume, and let the broker answer."""
    bench.core.pause_deliveries(queue, yes, token, bench.now)
    bench.turn()


def test_a_pause_removes_the_subscriptions_and_a_resume_restores_them() -> None:
    bench = Bench().start()
    queue = bench.open(read=True, options=OPTIONS)
    before = bench.last(schema.ConfigureStream).stream_parameters.subscriptions
    set_paused(bench, queue, True, "pause")
    assert bench.last(schema.ConfigureStream).stream_parameters.subscriptions == []
    assert bench.done["pause"].result is Result.SUCCESS and queue.paused and queue.options is OPTIONS
    set_paused(bench, queue, False, "resume")
    after = bench.last(schema.ConfigureStream).stream_parameters.subscriptions
    assert [(each.expression, each.consumers) for each in after] == [(each.expression, each.consumers) for each in before]
    assert not queue.paused


def test_options_configured_during_a_pause_are_sent_with_the_resume() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    set_paused(bench, queue, True, 1)
    asked = bench.count(schema.ConfigureStream)
    set_paused(bench, queue, True, 2)
    bench.core.configure(queue, OPTIONS, 3, bench.now)
    bench.turn()
    assert bench.count(schema.ConfigureStream) == asked and {1, 2, 3} <= set(bench.done)
    set_paused(bench, queue, False, 4)
    assert len(bench.last(schema.ConfigureStream).stream_parameters.subscriptions) == 2


@pytest.mark.parametrize("when", ["before", "in progress", "while disconnected"])
def test_a_paused_queue_stays_paused_over_a_reconnect(when: str) -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    if when == "before":
        set_paused(bench, queue, True, "pause")
    elif when == "in progress":
        bench.silent.add("configureStream")
        set_paused(bench, queue, True, "pause")
        bench.silent.clear()
    bench.cut_connection()
    if when == "while disconnected":
        set_paused(bench, queue, True, "pause")
    assert bench.done["pause"].result is Result.SUCCESS
    asked = bench.count(schema.ConfigureStream)
    bench.restore_broker()
    assert queue.state is QueueState.OPEN and bench.count(schema.ConfigureStream) == asked
    set_paused(bench, queue, False, "resume")
    assert bench.count(schema.ConfigureStream) == asked + 1 and bench.done["resume"].result is Result.SUCCESS


def test_deliveries_resume_only_if_the_queue_is_neither_paused_nor_suspended() -> None:
    bench = Bench().start()
    queue = bench.open(read=True, options=QueueOptions(suspends_on_bad_host_health=True))
    set_paused(bench, queue, True, 1)
    asked = bench.count(schema.ConfigureStream)
    bench.core.set_health(False, bench.now)
    bench.turn()
    set_paused(bench, queue, False, 2)
    assert bench.count(schema.ConfigureStream) == asked and queue.suspended and not queue.paused
    bench.core.set_health(True, bench.now)
    bench.turn()
    assert bench.count(schema.ConfigureStream) == asked + 1 and not queue.suspended
    assert len(bench.last(schema.ConfigureStream).stream_parameters.subscriptions) == 1


def test_a_refused_or_unanswered_pause_reports_its_result() -> None:
    bench = Bench().start()
    queue = bench.open(read=True)
    bench.silent.add("configureStream")
    bench.core.pause_deliveries(queue, True, "late", bench.now, 5.0)
    bench.turn()
    bench.advance(6.0)
    assert bench.done["late"].result is Result.TIMEOUT and not queue.paused
    bench.core.close(queue, None, bench.now)
    bench.turn()
    bench.silent.clear()
    bench.advance(400.0)
    with pytest.raises(SdkError, match="INVALID_QUEUE"):
        bench.core.pause_deliveries(queue, True, None, bench.now)


# -- each kind of session -------------------------------------------------------------------------------------------


def test_a_paused_queue_receives_no_message_until_it_is_resumed(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True, options=QueueOptions(consumer_priority=2)))
        await w(queue.pause())
        front.broker.put(URI, b"x")
        await front.pass_time(1.0)
        assert session.counters().messages == 0 and queue.options.consumer_priority == 2
        await w(queue.resume())
        with await w(queue.get()) as message:
            assert message.payload == b"x"
        await w(session.stop())
    front.run(scenario)
    front.broker.assert_empty(URI)


def test_configure_changes_only_the_given_options(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, options=QueueOptions(10, 1000, 3)))
        await w(queue.configure(max_unconfirmed_messages=5))
        assert queue.options == QueueOptions(5, 1000, 3)
        await w(queue.configure(QueueOptions(consumer_priority=1), max_unconfirmed_bytes=7))
        assert queue.options == QueueOptions(max_unconfirmed_bytes=7, consumer_priority=1)
        with pytest.raises(TypeError, match="a queue has no option 'max_unconfirmed', did you mean 'max_unconfirmed_"):
            await w(queue.configure(max_unconfirmed=5))
        await w(queue.configure(subscriptions=[Subscription("x > 1")]))
        with pytest.raises(LocalError, match="max_unconfirmed_messages: the queue has subscriptions"):
            await w(queue.configure(max_unconfirmed_messages=0))
        assert len(queue.options.subscriptions) == 1
        await w(session.stop())
    front.run(scenario)


def test_drain_waits_for_delivered_messages_and_ends_iterations(loop_front: Front) -> None:
    front, done = loop_front, []

    async def worker(queue: Any) -> None:
        async for message in queue:
            async with message:
                await front.pass_time(1.0)
                done.append(message.payload)

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True))
        working = [front.begin(worker(queue)) for _ in range(3)]
        await w(queue.post_many([b"%d" % number for number in range(10)]))
        await front.until(lambda: queue._in_process == 3)
        await w(queue.drain())
        assert len(done) == 3
        for each in working:
            await each
        await w(queue.close())
        await w(session.stop())
    front.run(scenario)
    assert len(front.broker.messages(URI)) == 7


def test_closing_a_queue_does_not_raise_in_its_workers(loop_front: Front) -> None:
    front = loop_front

    async def worker(queue: Any) -> str:
        async for message in queue:
            async with message:
                await front.pass_time(1.0)
        return "ended"

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True))
        working = [front.begin(worker(queue)) for _ in range(3)]
        await w(queue.post_many([b"1", b"2", b"3"]))
        await front.until(lambda: queue._in_process == 3)
        await w(queue.close())
        assert [await each for each in working] == ["ended"] * 3
        await w(session.stop())
    front.run(scenario)
    assert len(front.broker.messages(URI)) == 3


def test_drain_returns_the_numbers_of_messages_and_times_out(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True))
        await w(queue.post_many([b"%d" % number for number in range(5)]))
        first, second, third, fourth = [await w(queue.get()) for _ in range(4)]
        with pytest.raises(ZeroDivisionError), first:
            raise ZeroDivisionError
        second.confirm()
        third.give_back()
        third.give_back()
        with pytest.raises(SdkError, match="TIMEOUT: 1 messages of .* are neither confirmed nor given back after 2 s"):
            await w(queue.drain(2.0))
        fourth.confirm()
        await w(queue.drain(2.0))
        if front.name == "simple":
            assert queue.get() is None and not list(queue)
        else:
            with pytest.raises(SdkError, match="CANCELED: .* is drained"):
                await w(queue.get())
        await w(queue.resume())
        await w(queue.post(b"again"))
        assert (await w(queue.get())).payload == b"again"
        await w(session.stop(False))
    front.run(scenario)
    assert len(front.broker.messages(URI)) == 4


def test_drain_waits_for_running_callbacks(loop_front: Front) -> None:
    front, done = loop_front, []

    async def on_message(message: Any) -> None:
        async with message:
            await front.pass_time(1.0)
            done.append(message.payload)

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True, on_message=on_message))
        await w(queue.post_many([b"1", b"2"]))
        await front.until(lambda: queue._in_process == 2)
        await w(queue.drain())
        assert sorted(done) == [b"1", b"2"]
        await w(session.stop())
    front.run(scenario)
    front.broker.assert_empty(URI)


def test_a_drain_ends_when_its_queue_is_closed(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, read=True, write=True))
        await w(queue.post(b"1"))
        await w(queue.get())
        draining = front.begin(_drain(queue))
        await front.pass_time(1.0)
        await w(session.stop())
        await draining
    front.run(scenario)


async def _drain(queue: Any) -> None:
    await w(queue.drain())


def test_a_cancelled_drain_leaves_no_state() -> None:
    front = FRONTS["aio"]()

    async def scenario() -> None:
        session = await front.start()
        queue = await session.open(URI, read=True, write=True)
        await queue.post(b"1")
        message = await queue.get()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(queue.drain(), 1.0)
        assert not queue._drain_waiters
        message.confirm()
        await session.stop()
    front.run(scenario)
    front.broker.assert_empty(URI)


@pytest.mark.parametrize("name", ["aio", "tx"])
def test_an_unhealthy_host_does_not_undo_a_pause(name: str) -> None:
    front = FRONTS[name]()
    health = HealthMonitor()

    async def scenario() -> None:
        session = await front.start(health=health)
        queue = await w(session.open(URI, read=True, options=QueueOptions(suspends_on_bad_host_health=True)))
        await w(queue.pause())
        health.set_unhealthy()
        await front.pass_time(0.1)
        health.set_healthy()
        await front.pass_time(0.1)
        front.broker.put(URI, b"x")
        await front.pass_time(1.0)
        assert session.counters().messages == 0
        await w(queue.resume())
        assert (await w(queue.get())).payload == b"x"
        await w(session.stop(False))
    front.run(scenario)
