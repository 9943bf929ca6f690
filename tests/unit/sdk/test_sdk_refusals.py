"""Refused posts are always reported: `post` raises, and refusals without a waiting caller are raised at the latest at the
end of the queue's or session's block."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from kit.sdk_fronts_kit import FRONTS, URI, Front, w

from bmqtwist.sdk import Ack, PostRefused, PostsFailed, Result, SdkError
from bmqtwist.testing import Broker, run

FULL = Result.LIMIT_MESSAGES


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """Each front; no unhandled error remains."""
    made = FRONTS[request.param]()
    yield made
    assert not made.unhandled


def test_post_raises_with_status_and_guid(front: Front) -> None:
    front.broker.faults.refuse("post", status=FULL, times=1)

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True))
        with pytest.raises(PostRefused, match="^LIMIT_MESSAGES: the post [0-9A-F]{32} to bmq://.*/q was not") as raised:
            await w(queue.post(b"x", correlation="mine"))
        error = raised.value
        assert error.status is error.result is FULL and error.guid == error.ack.guid and error.ack.correlation == "mine"
        assert isinstance(error, SdkError) and not error.ok
        assert (await w(queue.post(b"y"))).ok
        await w(session.stop())
    front.run(scenario)


def test_post_many_raises_after_all_acks_or_returns_refusals_in_their_place(front: Front) -> None:
    front.broker.faults.refuse("post", status=FULL, times=2)

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True))
        with pytest.raises(PostsFailed) as raised:
            await w(queue.post_many([b"1", b"2", b"3"]))
        assert raised.value.failures == len(raised.value.acks) == 2 and raised.value.status is FULL
        assert len(front.broker.messages(URI)) == 1
        front.broker.faults.refuse("post", status=FULL, times=1)
        found = await w(queue.post_many([b"4", b"5"], return_exceptions=True))
        assert isinstance(found[0], PostRefused) and isinstance(found[1], Ack)
        assert [each.status for each in found] == [FULL, Result.SUCCESS] and found[0].guid != found[1].guid
        await w(session.stop())  # all were reported
    front.run(scenario)


async def exit_block(block: Any) -> None:
    """End a block without an error."""
    if hasattr(block, "__aexit__"):
        await block.__aexit__(None, None, None)
    else:
        block.__exit__(None, None, None)


def test_an_unreported_refusal_is_raised_at_the_end_of_the_queue_block(front: Front) -> None:
    front.broker.faults.refuse("post", status=FULL, times=1)

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True))
        queue.post_nowait(b"x")
        with pytest.raises(PostsFailed):
            await exit_block(queue)
        await exit_block(session)
    front.run(scenario)


@pytest.mark.parametrize("closed", [False, True])
def test_an_unreported_refusal_is_raised_at_the_end_of_the_session_block(front: Front, closed: bool) -> None:
    front.broker.faults.refuse("post", status=FULL, times=1)

    async def scenario() -> None:
        session = await front.start()
        queue = await w(session.open(URI, write=True))
        queue.post_nowait(b"x")
        await front.pass_time(1.0)
        if closed and front.name != "simple":  # their close is a flush
            await queue.close()
        with pytest.raises(PostsFailed, match="1 post.s. failed") as raised:
            await exit_block(session)
        assert raised.value.status is FULL and session.core.state.value == "stopped"
    front.run(scenario)


def test_posts_pending_at_the_close_of_a_queue_are_raised_at_the_end_of_its_block() -> None:
    for name in ("aio", "tx"):
        front = FRONTS[name]()
        front.broker.faults.drop("ack")

        async def scenario(front: Front = front) -> None:
            session = await front.start()
            queue = await w(session.open(URI, write=True))
            queue.post_nowait(b"x")
            await w(queue.close())
            with pytest.raises(PostsFailed) as raised:
                await w(session.stop())
            assert raised.value.status is Result.UNKNOWN
        front.run(scenario)


@pytest.mark.parametrize("how", ["on_ack", "on_nack", "flush", "no drain", "an error of the block"])
def test_a_reported_refusal_is_not_raised_again(front: Front, how: str) -> None:
    front.broker.faults.refuse("post", status=FULL, times=1)
    received: list[Ack] = []

    async def scenario() -> None:
        session = await front.start(**({"on_nack": received.append} if how == "on_nack" else {}))
        queue = await w(session.open(URI, write=True))
        queue.post_nowait(b"x", on_ack=received.append if how == "on_ack" else None)
        if how == "flush":
            with pytest.raises(PostsFailed):
                await w(queue.flush())
        await front.pass_time(1.0)
        if how == "no drain":
            await w(session.stop(False))
        elif how == "an error of the block" and front.name == "simple":
            session.__exit__(KeyError, None, None)
        elif how == "an error of the block":
            await session.__aexit__(KeyError, None, None)
        else:
            await w(session.stop())
        assert len(received) == how.startswith("on_")
    front.run(scenario)


def test_an_unreferenced_blocking_session_warns_of_lost_and_refused_posts() -> None:
    broker = Broker()
    broker.faults.refuse("post", status=FULL, times=1)
    session = broker.blocking_session()
    session.open(URI, write=True).post_nowait(b"x")
    with pytest.warns(UserWarning) as found:
        session.__del__()
    texts = [str(each.message) for each in found]
    assert len(texts) == 2 and "was not stopped" in texts[0] and not session.running
    assert "has lost posts: LIMIT_MESSAGES: 1 post(s) failed" in texts[1]


@pytest.mark.parametrize("lost", [0, 3])
def test_an_unreferenced_session_on_a_loop_warns(lost: int) -> None:
    broker = Broker()

    async def scenario() -> None:
        session = broker.session()
        session.__del__()  # not started: no warning
        await session.start()
        queue = await session.open(URI, write=True)
        with broker.faults.drop("ack"):
            for _ in range(lost):
                queue.post_nowait(b"x")
            await asyncio.sleep(1.0)
        with pytest.warns(UserWarning if lost else ResourceWarning, match="was not stopped: use it with") as found:
            session.__del__()
        assert ("; 3 posts are not acknowledged" in str(found[0].message)) == bool(lost)
        await session.stop(False)
        session.__del__()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(scenario())


@pytest.mark.parametrize("closed", [False, True])
def test_an_unreferenced_session_on_a_loop_warns_of_unreported_refusals(closed: bool) -> None:
    """All posts are acknowledged, but the refusals were not reported."""
    for name in ("aio", "tx"):
        front = FRONTS[name]()
        front.broker.faults.refuse("post", status=FULL, times=2)

        async def scenario(front: Front = front) -> None:
            session = await front.start()
            queue = await w(session.open(URI, write=True))
            for _ in range(3):
                queue.post_nowait(b"x")
            await front.pass_time(1.0)
            assert session.counters().unacked_now == 0
            if closed:
                await w(queue.close())
            with pytest.warns(UserWarning, match="was not stopped: .+; LIMIT_MESSAGES: 2 post.s. failed"):
                session.__del__()
            await w(session.stop())  # they are reported once
        front.run(scenario)
