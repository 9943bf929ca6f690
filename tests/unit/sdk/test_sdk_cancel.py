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


class Run:
    """One attempt: a session, a queue, and a call to cancel after a number of turns."""

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


async def every_turn(front: Front, call: Callable[[Run], Callable[[], Awaitable[Any]]],
                     after: Callable[[Run], Awaitable[None]], **options: Any) -> int:
    """Cancel after 0, 1, 2, ... turns until the call completes first; the session must be clean after each attempt."""
    for turns in range(TURNS_MAX):
        session = front.make(backoff_first_s=0.1, **options)
        await session.start()
        queue = await session.open(URI, read=True, write=True)
        run = Run(front, session, queue)
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
    raise AssertionError("it never ends")


async def nothing(run: Run) -> None:
    """No further check."""


def test_post(front: Front) -> None:
    async def scenario() -> None:
        async def after(run: Run) -> None:
            await run.queue.flush()
            assert (await run.queue.post(b"y")).ok
        assert await every_turn(front, lambda run: lambda: run.queue.post(b"x"), after) > 0
    front.run(scenario)


def test_post_that_waits_for_room(front: Front) -> None:
    async def scenario() -> None:
        def call(run: Run) -> Callable[[], Awaitable[Any]]:
            stalled = front.broker.faults.stall("ack")
            run.queue.post_nowait(b"x" * 900)

            async def post() -> None:
                front.broker.clock  # noqa: B018 - the acknowledgement may come from now on
                if front.name == "aio":
                    await front.pass_time(0)
                stalled.end()
                await run.queue.post(b"y" * 900)
            return post

        async def after(run: Run) -> None:
            front.broker.faults.clear()
            await run.queue.flush()
            await run.session.room(size=900)
            assert (await run.queue.post(b"z" * 900)).ok
        assert await every_turn(front, call, after, unacked_bytes_max=1000) > 1
    front.run(scenario)


def test_post_many_and_the_flush_after_it(front: Front) -> None:
    async def scenario() -> None:
        async def after(run: Run) -> None:
            await run.queue.flush()
            assert not run.queue._sealed
            counters = run.session.counters()
            assert counters.unacked_now == 0 and counters.acked == len(front.broker.messages(URI))
        payloads = [b"%d" % number for number in range(1000)]
        assert await every_turn(front, lambda run: lambda: run.queue.post_many(payloads), after) > 3
    front.run(scenario)


def test_flush(front: Front) -> None:
    async def scenario() -> None:
        def call(run: Run) -> Callable[[], Awaitable[Any]]:
            run.queue.post_nowait(b"x")
            return run.queue.flush

        async def after(run: Run) -> None:
            run.queue.post_nowait(b"y")
            await run.queue.flush()
            assert run.session.counters().acked == 2
        assert await every_turn(front, call, after) > 0
    front.run(scenario)


@pytest.mark.parametrize("how", ["get", "iteration"])
def test_get_loses_no_message(front: Front, how: str) -> None:
    async def scenario() -> None:
        def call(run: Run) -> Callable[[], Awaitable[Any]]:
            for number in range(3):
                front.broker.put(URI, b"%d" % number)
            return run.queue.get if how == "get" else run.queue.__anext__

        async def after(run: Run) -> None:
            got = [] if run.result is None else [run.result]
            got += [await run.queue.get() for _ in range(3 - len(got))]
            assert [message.payload for message in got] == [b"0", b"1", b"2"]
            for message in got:
                message.confirm()
        assert await every_turn(front, call, after) > 0
    front.run(scenario)


def test_one_of_several_getters(front: Front) -> None:
    """The message of a cancelled getter goes to the next waiting one."""
    async def scenario() -> None:
        def call(run: Run) -> Callable[[], Awaitable[Any]]:
            async def get() -> Any:
                front.broker.put(URI, b"the only one")
                return await run.queue.get()
            return get

        async def after(run: Run) -> None:
            if not front.broker.messages(URI):
                return  # it was cancelled before it began
            if run.result is None:
                got: list[Any] = []

                async def get() -> None:
                    got.append(await run.queue.get())
                second = front.begin(get())
                await front.until(lambda: got, 5.0)
                await second
                run.result = got[0]
            run.result.confirm()
        assert await every_turn(front, call, after) > 0
    front.run(scenario)


def test_open_leaves_nothing_open(front: Front) -> None:
    async def scenario() -> None:
        async def after(run: Run) -> None:
            if run.result is None:
                await front.until(lambda: OTHER not in run.session.core.queues, 5.0)
                assert not [queue for queue in run.session.open_queues if queue.uri == OTHER]
                async with await run.session.open(OTHER, read=True, write=True) as queue:
                    assert (await queue.post(b"x")).ok
            else:
                await run.result.close()

        def call(run: Run) -> Callable[[], Awaitable[Any]]:
            async def open_it() -> Any:
                return await run.session.open(OTHER, read=True)
            return open_it
        assert await every_turn(front, call, after) > 2
    front.run(scenario)


@pytest.mark.parametrize("what", ["configure", "close", "room"])
def test_requests(front: Front, what: str) -> None:
    async def scenario() -> None:
        def call(run: Run) -> Callable[[], Awaitable[Any]]:
            if what == "configure":
                return lambda: run.queue.configure(QueueOptions(5))
            return run.queue.close if what == "close" else run.session.room

        async def after(run: Run) -> None:
            if what == "close" and not run.queue.is_open:
                await front.until(lambda: run.queue.closed and URI not in run.session.core.queues, 5.0)
            elif what == "configure":
                await front.until(lambda: not run.queue.core.pending_configure_requests, 5.0)
                await run.queue.configure(QueueOptions(6))
                assert run.queue.options.max_unconfirmed_messages == 6
        await every_turn(front, call, after)
    front.run(scenario)


def test_stop_goes_on(front: Front) -> None:
    async def scenario() -> None:
        async def after(run: Run) -> None:
            if run.session.core.state is not State.READY:
                await front.until(lambda: run.session.core.state is State.STOPPED, 60.0)
                assert run.queue.closed
        assert await every_turn(front, lambda run: run.session.stop, after) > 0
    front.run(scenario)


def test_a_start_that_is_given_up_ends_the_session(front: Front) -> None:
    async def scenario() -> None:
        for turns in range(TURNS_MAX):
            session = front.make()
            run = Run(front, session, None)
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
        assert not await Run(front, session, None).cancel_after(20, session.start)
        attempts = session.counters().attempts
        await front.pass_time(100.0)
        assert session.counters().attempts == attempts
    front.run(scenario)


def test_a_request_that_is_given_up_leaves_nobody_waiting(front: Front) -> None:
    async def scenario() -> None:
        made: list[rpc.Requester] = []

        def call(run: Run) -> Callable[[], Awaitable[Any]]:
            async def ask() -> Any:
                async with rpc.Requester(run.session, DOMAIN) as requester:
                    made.append(requester)
                    return await requester.request(run.queue, b"?", timeout_s=0.5)

            async def quietly() -> Any:
                try:
                    return await ask()
                except SdkError:
                    return None
            return quietly

        async def after(run: Run) -> None:
            assert not made or not made[-1]._waiting
            await run.queue.flush()
            await front.until(lambda: len(run.session.core.queues) == 1, 5.0)
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34):
            session = await front.start()
            run = Run(front, session, await session.open(URI, read=True, write=True))
            await run.cancel_after(turns, call(run))
            await after(run)
            run.check_clean()
            await session.stop()
    front.run(scenario)


def test_a_message_that_woke_somebody_who_is_cancelled_then_goes_to_the_next() -> None:
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
