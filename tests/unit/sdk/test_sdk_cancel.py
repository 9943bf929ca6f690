"""Cancellation of each awaitable after any number of loop turns: no hang, no leak, no lost message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from kit.sdk_fronts_kit import DOMAIN, FRONTS, URI, Front

from bmqtwist.sdk import QueueOptions, SdkError, rpc
from bmqtwist.sdk._core.states import State

OTHER = "bmq://bmq.test.mem.priority/other"
TURNS_MAX = 60


@pytest.fixture(params=["aio", "tx"])
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """Each front with an event loop."""
    made = FRONTS[request.param]()
    yield made
    assert not made.unhandled


class CancelAttempt:
    """One attempt to cancel a call on a session or queue after a number of loop turns."""

    def __init__(self, front: Front, session: Any, queue: Any) -> None:
        self.front, self.session, self.queue = front, session, queue
        self.result: Any = None
        self.ended = False

    async def cancel_after(self, turns: int, call: Callable[[], Awaitable[Any]]) -> bool:
        """Start a call, run loop turns, cancel; return whether the call completed first."""
        started = False

        async def work() -> None:
            nonlocal started
            started = True
            try:
                self.result = await call()
            finally:
                self.ended = True
        waiting = self.front.begin(work())
        for _ in range(turns):
            await self.front.pass_time(0)
            if self.ended:
                break
        done = self.ended
        waiting.cancel()
        try:
            await waiting
        except BaseException as error:
            assert type(error).__name__ == "CancelledError"
        assert self.ended or not started
        return done

    def check_clean(self) -> None:
        """Check that no caller is waiting."""
        assert not self.session._room_waiters
        assert not self.queue._get_waiters and not self.queue._flush_waiters


async def cancel_at_every_turn(front: Front, call: Callable[[CancelAttempt], Callable[[], Awaitable[Any]]],
                               after: Callable[[CancelAttempt], Awaitable[None]], **options: Any) -> int:
    """Cancel after 0, 1, 2, ... turns until the call completes first; the session must be clean after each attempt."""
    for turns in range(TURNS_MAX):
        session = front.make(backoff_first_s=0.1, **options)
        await session.start()
        queue = await session.open(URI, read=True, write=True)
        run = CancelAttempt(front, session, queue)
        done = await run.cancel_after(turns, call(run))
        await after(run)
        run.check_clean()
        if session.core.state is State.READY:
            async with await session.open(f"{OTHER}{turns}", read=True, write=True) as other:
                assert (await other.post(b"still good")).ok
                async with await other.get() as message:
                    assert message.payload == b"still good"
        await session.stop()
        assert not session.open_queues and not front.broker.clients
        if front.name == "tx":
            await front.pass_time(0)
        front.broker.drain(URI)
        if done:
            return turns
    raise AssertionError(f"the call does not complete within {TURNS_MAX} turns")


async def no_check(run: CancelAttempt) -> None:
    """No further check."""


def test_a_post_can_be_cancelled_at_any_turn(front: Front) -> None:
    async def scenario() -> None:
        async def after(run: CancelAttempt) -> None:
            await run.queue.flush()
            assert (await run.queue.post(b"y")).ok
        assert await cancel_at_every_turn(front, lambda run: lambda: run.queue.post(b"x"), after) > 0
    front.run(scenario)


def test_a_post_that_waits_for_room_can_be_cancelled_at_any_turn(front: Front) -> None:
    async def scenario() -> None:
        def call(run: CancelAttempt) -> Callable[[], Awaitable[Any]]:
            stalled = front.broker.faults.stall("ack")
            run.queue.post_nowait(b"x" * 900)

            async def post() -> None:
                if front.name == "aio":
                    await front.pass_time(0)
                stalled.end()
                await run.queue.post(b"y" * 900)
            return post

        async def after(run: CancelAttempt) -> None:
            front.broker.faults.clear()
            await run.queue.flush()
            await run.session.room(size=900)
            assert (await run.queue.post(b"z" * 900)).ok
        assert await cancel_at_every_turn(front, call, after, unacked_bytes_max=1000) > 1
    front.run(scenario)


def test_post_many_can_be_cancelled_at_any_turn_and_flush_waits_for_its_posts(front: Front) -> None:
    async def scenario() -> None:
        async def after(run: CancelAttempt) -> None:
            await run.queue.flush()
            assert not run.queue._sealed
            counters = run.session.counters()
            assert counters.unacked_now == 0 and counters.acked == len(front.broker.messages(URI))
        payloads = [b"%d" % number for number in range(1000)]
        assert await cancel_at_every_turn(front, lambda run: lambda: run.queue.post_many(payloads), after) > 3
    front.run(scenario)


def test_a_flush_can_be_cancelled_at_any_turn(front: Front) -> None:
    async def scenario() -> None:
        def call(run: CancelAttempt) -> Callable[[], Awaitable[Any]]:
            run.queue.post_nowait(b"x")
            return run.queue.flush

        async def after(run: CancelAttempt) -> None:
            run.queue.post_nowait(b"y")
            await run.queue.flush()
            assert run.session.counters().acked == 2
        assert await cancel_at_every_turn(front, call, after) > 0
    front.run(scenario)


@pytest.mark.parametrize("how", ["get", "iteration"])
def test_a_cancelled_get_loses_no_message(front: Front, how: str) -> None:
    async def scenario() -> None:
        def call(run: CancelAttempt) -> Callable[[], Awaitable[Any]]:
            for number in range(3):
                front.broker.put(URI, b"%d" % number)
            return run.queue.get if how == "get" else run.queue.__anext__

        async def after(run: CancelAttempt) -> None:
            got = [] if run.result is None else [run.result]
            got += [await run.queue.get() for _ in range(3 - len(got))]
            assert [message.payload for message in got] == [b"0", b"1", b"2"]
            for message in got:
                message.confirm()
        assert await cancel_at_every_turn(front, call, after) > 0
    front.run(scenario)


def test_the_message_of_a_cancelled_get_goes_to_the_next_get(front: Front) -> None:
    """The message of a cancelled `get` goes to the next `get` that waits."""
    async def scenario() -> None:
        def call(run: CancelAttempt) -> Callable[[], Awaitable[Any]]:
            async def get() -> Any:
                front.broker.put(URI, b"the only one")
                return await run.queue.get()
            return get

        async def after(run: CancelAttempt) -> None:
            if not front.broker.messages(URI):
                return  # cancelled before it began
            if run.result is None:
                got: list[Any] = []

                async def get() -> None:
                    got.append(await run.queue.get())
                second = front.begin(get())
                await front.until(lambda: got, 5.0)
                await second
                run.result = got[0]
            run.result.confirm()
        assert await cancel_at_every_turn(front, call, after) > 0
    front.run(scenario)


def test_a_cancelled_open_leaves_no_queue_open(front: Front) -> None:
    async def scenario() -> None:
        async def after(run: CancelAttempt) -> None:
            if run.result is None:
                await front.until(lambda: OTHER not in run.session.core.queues, 5.0)
                assert not [queue for queue in run.session.open_queues if queue.uri == OTHER]
                async with await run.session.open(OTHER, read=True, write=True) as queue:
                    assert (await queue.post(b"x")).ok
            else:
                await run.result.close()

        def call(run: CancelAttempt) -> Callable[[], Awaitable[Any]]:
            async def open_it() -> Any:
                return await run.session.open(OTHER, read=True)
            return open_it
        assert await cancel_at_every_turn(front, call, after) > 2
    front.run(scenario)


@pytest.mark.parametrize("what", ["configure", "close", "room"])
def test_requests_can_be_cancelled_at_any_turn(front: Front, what: str) -> None:
    async def scenario() -> None:
        def call(run: CancelAttempt) -> Callable[[], Awaitable[Any]]:
            if what == "configure":
                return lambda: run.queue.configure(QueueOptions(5))
            return run.queue.close if what == "close" else run.session.room

        async def after(run: CancelAttempt) -> None:
            if what == "close" and not run.queue.is_open:
                await front.until(lambda: run.queue.closed and URI not in run.session.core.queues, 5.0)
            elif what == "configure":
                await front.until(lambda: not run.queue.core.pending_configure_requests, 5.0)
                await run.queue.configure(QueueOptions(6))
                assert run.queue.options.max_unconfirmed_messages == 6
        await cancel_at_every_turn(front, call, after)
    front.run(scenario)


def test_a_cancelled_stop_continues(front: Front) -> None:
    async def scenario() -> None:
        async def after(run: CancelAttempt) -> None:
            if run.session.core.state is not State.READY:
                await front.until(lambda: run.session.core.state is State.STOPPED, 60.0)
                assert run.queue.closed
        assert await cancel_at_every_turn(front, lambda run: run.session.stop, after) > 0
    front.run(scenario)


def test_a_cancelled_start_ends_the_session(front: Front) -> None:
    async def scenario() -> None:
        for turns in range(TURNS_MAX):
            session = front.make()
            run = CancelAttempt(front, session, None)
            done = await run.cancel_after(turns, session.start)
            if done:
                await session.stop()
            elif turns:
                await front.until(lambda session=session: session.core.state is State.STOPPED, 60.0)  # type: ignore[misc]
            await front.until(lambda: not front.broker.clients, 1.0)
            if done:
                break
        assert done and turns > 1
        front.broker.crash()
        session = front.make()
        assert not await CancelAttempt(front, session, None).cancel_after(20, session.start)
        attempts = session.counters().attempts
        await front.pass_time(100.0)
        assert session.counters().attempts == attempts
    front.run(scenario)


def test_a_cancelled_rpc_request_leaves_no_pending_request(front: Front) -> None:
    async def scenario() -> None:
        made: list[rpc.Requester] = []

        def call(run: CancelAttempt) -> Callable[[], Awaitable[Any]]:
            async def ask() -> Any:
                async with rpc.Requester(run.session, DOMAIN) as requester:
                    made.append(requester)
                    return await requester.request(run.queue, b"?", timeout_s=0.5)

            async def ask_without_error() -> Any:
                try:
                    return await ask()
                except SdkError:
                    return None
            return ask_without_error

        async def after(run: CancelAttempt) -> None:
            assert not made or not made[-1]._waiting
            await run.queue.flush()
            await front.until(lambda: len(run.session.core.queues) == 1, 5.0)
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34):
            session = await front.start()
            run = CancelAttempt(front, session, await session.open(URI, read=True, write=True))
            await run.cancel_after(turns, call(run))
            await after(run)
            run.check_clean()
            await session.stop()
    front.run(scenario)


def test_a_message_for_a_get_cancelled_in_the_same_turn_goes_to_the_next_get() -> None:
    front = FRONTS["aio"]()

    async def scenario() -> None:
        session = await front.start()
        queue = await session.open(URI, read=True)
        first, second = front.begin(queue.get()), front.begin(queue.get())
        await front.pass_time(0)
        deliver = queue.deliver

        def deliver_and_cancel(message: Any) -> None:
            deliver(message)
            first.cancel()
        queue.deliver = deliver_and_cancel
        front.broker.put(URI, b"x")
        (await second).confirm()
        assert first.cancelled()
        await session.stop()
    front.run(scenario)
