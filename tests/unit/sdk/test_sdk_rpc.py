"""Requests and replies, on each front, in virtual time."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from kit.sdk_fronts_kit import DOMAIN, URI, Front, w

from bmqtwist.sdk import JsonCodec, Message, Result, SdkError, rpc


def async_object(front: Any) -> Any:
    """Return the asynchronous object of the blocking front, else the object itself."""
    return getattr(front, "_requester", getattr(front, "_responder", front))


async def enter(manager: Any) -> Any:
    """Enter `async with` or `with`."""
    return await w(manager.__aenter__() if hasattr(manager, "__aenter__") else manager.__enter__())


async def leave(manager: Any) -> None:
    """Exit `async with` or `with`."""
    exits = manager.__aexit__ if hasattr(manager, "__aexit__") else manager.__exit__
    await w(exits(None, None, None))


def double(message: Message) -> bytes:
    """The service."""
    return b"%d" % (2 * int(message.payload))


async def double_later(message: Message) -> bytes:
    """Service as a coroutine function."""
    return double(message)


class Service:
    """A responder that answers received requests on demand, also on the blocking front."""

    def __init__(self, front: Front) -> None:
        self.front, self.served = front, 0

    async def begin(self) -> Service:
        """Start with a separate session."""
        self.session = await self.front.start()
        self.responder = await enter(self.front.responder(self.session))
        self.queue = await w(self.session.open(URI, read=True, on_message=self._serve))
        return self

    def _serve(self, message: Message) -> Any:
        self.served += 1

        async def answer() -> None:
            await self.responder.reply(message, double(message), {"by": "service"})
            message.confirm()
        if self.front.name == "simple":
            self.responder.reply(message, double(message), {"by": "service"})
            message.confirm()
            return None
        return answer()

    async def end(self) -> None:
        """Stop."""
        await leave(self.responder)
        await w(self.session.stop())


def test_a_request_receives_its_reply(front: Front) -> None:
    async def scenario() -> None:
        service = await Service(front).begin()
        session = await front.start()
        requester = await enter(front.requester(session))
        queue = await w(session.open(URI, write=True))
        reply = await w(requester.request(queue, b"21", {"k": "v"}, timeout_s=5.0))
        assert (reply.payload, reply.properties["by"]) == (b"42", "service")
        await leave(requester)
        assert not async_object(requester)._waiting
        await w(session.stop())
        await service.end()
    if front.name == "simple":
        _two_blocking_sessions(front)
    else:
        front.run(scenario)
    front.broker.assert_empty(URI)


def _two_blocking_sessions(front: Front) -> None:
    """The service runs in a second session, driven by a callback while the requester waits."""
    async def scenario() -> None:
        service = await Service(front).begin()
        session = await front.start()
        with rpc.BlockingRequester(session, DOMAIN) as requester:
            queue = session.open(URI, write=True)
            step = session._transport.step
            session._transport.step = lambda timeout_s=None: (service.session.step(), step(0.01))
            reply = requester.request(queue, b"21", timeout_s=5.0)
            assert (reply.payload, reply.properties["by"]) == (b"42", "service")
            session._transport.step = step
        session.stop()
        await service.end()
    front.run(scenario)


def test_requester_and_responders_may_share_a_session(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        session = await front.start()
        async with rpc.Requester(session, DOMAIN) as requester:
            queue = await session.open(URI, read=True, write=True)
            for _ in range(2):
                async with rpc.Responder(session) as responder:
                    asking = front.begin(requester.request(queue, b"21", timeout_s=5.0))
                    request = await queue.get()
                    await responder.reply(request, b"42")
                    request.confirm()
                    assert (await asking).payload == b"42"
            assert async_object(requester)._queue.is_open
        await session.stop()
    front.run(scenario)


def test_concurrent_requests_each_receive_their_own_reply(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        session, other = await front.start(), await front.start()
        async with rpc.Responder(other) as responder, rpc.Requester(session, DOMAIN) as requester:
            requests = await other.open(URI, read=True)
            serving = [front.begin(responder.serve(requests, double_later)) for _ in range(4)]
            queue = await session.open(URI, write=True)
            replies: dict[int, bytes] = {}

            async def ask(number: int) -> None:
                replies[number] = (await requester.request(queue, b"%d" % number, timeout_s=30.0)).payload
            asking = [front.begin(ask(number)) for number in range(200)]
            for each in asking:
                await each
            assert replies == {number: b"%d" % (2 * number) for number in range(200)}
            assert not async_object(requester)._waiting
            assert len(async_object(responder)._queues) == 1
            assert not async_object(responder)._replies_in_progress
            await requests.close()
            for each in serving:
                await each
        await session.stop()
        await other.stop()
    front.run(scenario)
    front.broker.assert_empty(URI)


def test_a_request_without_reply_times_out_and_a_late_one_is_ignored(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        requester = await enter(front.requester(session))
        queue = await w(session.open(URI, write=True))
        before = session.clock()
        with pytest.raises(SdkError, match="no reply within 2 s") as caught:
            await w(requester.request(queue, b"1", timeout_s=2.0))
        assert caught.value.result is Result.TIMEOUT and 2.0 <= session.clock() - before < 2.5
        service = await Service(front).begin()
        await front.until(lambda: service.served == 1 and not front.broker.messages(URI))
        await front.until(lambda: not front.broker.messages(requester.uri))  # confirmed without a waiting caller
        await leave(requester)
        await service.end()
        await w(session.stop())
    front.run(scenario)


def test_a_refused_request_fails_at_once_with_its_status(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start()
        requester = await enter(front.requester(session))
        queue = await w(session.open(URI, write=True))
        before = session.clock()
        with front.broker.faults.refuse("post", status=Result.LIMIT_BYTES), pytest.raises(SdkError) as caught:
            await w(requester.request(queue, b"1"))
        assert caught.value.result is Result.LIMIT_BYTES and session.clock() - before < 1.0
        with pytest.raises(SdkError) as caught:
            await w(requester.request(queue, b""))
        assert caught.value.result is Result.PAYLOAD_EMPTY and not async_object(requester)._waiting
        await leave(requester)
        with pytest.raises(SdkError, match="use the requester inside"):
            await w(requester.request(queue, b"1"))
        await w(session.stop())
    front.run(scenario)


def test_a_request_without_room_waits_no_longer_than_its_timeout(front: Front) -> None:
    async def scenario() -> None:
        session = await front.start(unacked_bytes_max=2000, post_wait_s=60.0)
        requester = await enter(front.requester(session))
        queue = await w(session.open(URI, write=True))
        with front.broker.faults.drop("ack"):
            queue.post_nowait(b"x" * 1900)
            before = session.clock()
            with pytest.raises(SdkError) as caught:
                await w(requester.request(queue, b"y" * 1000, timeout_s=1.0))
            assert caught.value.result is Result.BW_LIMIT and session.clock() - before < 2.0
        await leave(requester)
        await w(session.stop(drain=False))
    front.run(scenario)


def test_closing_a_requester_cancels_pending_requests(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        session = await front.start()
        results: list[Result] = []
        async with rpc.Requester(session, DOMAIN) as requester:
            queue = await session.open(URI, write=True)

            async def ask() -> None:
                try:
                    await requester.request(queue, b"1")
                except SdkError as error:
                    results.append(error.result)
            asking = front.begin(ask())
            await front.pass_time(1.0)
        await asking
        assert results == [Result.CANCELED]
        await session.stop()
    front.run(scenario)


def test_a_service_continues_after_messages_that_cannot_be_answered(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bytes] = []

    async def scenario() -> None:
        session = await front.start()
        responder = await enter(front.responder(session))
        queue = await w(session.open(URI, read=True))
        front.broker.put(URI, b"1")  # requests no reply
        front.broker.put(URI, b"2", {rpc.REPLY_TO: "bmq://nowhere.at.all/reply", rpc.REQUEST_ID: 1})
        front.broker.put(URI, b"3", {rpc.REPLY_TO: "no uri", rpc.REQUEST_ID: 1})
        front.broker.put(URI, b"4", {rpc.REPLY_TO: f"bmq://{DOMAIN}/replies", rpc.REQUEST_ID: 7})

        def handler(message: Message) -> Any:
            seen.append(message.payload)
            if message.payload == b"4" and front.name == "simple":
                front.broker.faults.drop("answer")  # the close below must not wait for the broker

            async def later() -> bytes:
                return b"reply"
            return b"reply" if front.name == "simple" else later()
        if front.name == "simple":
            from functools import partial
            counted = partial(_stop_after, handler, queue, 4)
            with pytest.raises(_StopService):
                responder.serve(queue, counted)
            front.broker.faults.clear()
        else:
            serving = front.begin(responder.serve(queue, handler))
            await front.until(lambda: not front.broker.messages(URI))
            await queue.close()
            await serving
        await leave(responder)
        await w(session.stop())
    front.run(scenario)
    assert seen == [b"1", b"2", b"3", b"4"]
    assert sum("no reply to" in record.message for record in caplog.records) == 3
    if front.name != "simple":
        reply = front.broker.messages(f"bmq://{DOMAIN}/replies")
        assert [(each.payload, each.properties[rpc.REQUEST_ID]) for each in reply] == [(b"reply", 7)]


class _StopService(Exception):
    pass


def _stop_after(handler: Any, queue: Any, count: int, message: Message) -> Any:
    answer = handler(message)
    if int(message.payload) == count:
        raise _StopService  # a handler that raises ends the service
    return answer


def test_an_exception_in_a_handler_ends_the_service_and_its_message_is_redelivered(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        session = await front.start()
        async with rpc.Responder(session) as responder:
            queue = await session.open(URI, read=True)
            front.broker.put(URI, b"x", {rpc.REPLY_TO: f"bmq://{DOMAIN}/replies", rpc.REQUEST_ID: 7})

            async def handler(message: Message) -> bytes:
                raise ZeroDivisionError
            with pytest.raises(ZeroDivisionError):
                await responder.serve(queue, handler)
        await session.stop()
    front.run(scenario)
    assert len(front.broker.messages(URI)) == 1


def test_replies_continue_after_a_reconnect(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        service = await Service(front).begin()
        session = await front.start(backoff_first_s=0.1)
        async with rpc.Requester(session, DOMAIN) as requester:
            queue = await session.open(URI, write=True)
            assert (await requester.request(queue, b"1")).payload == b"2"
            front.broker.disconnect()
            assert (await requester.request(queue, b"2")).payload == b"4"
        await session.stop()
        await service.end()
    front.run(scenario)


def test_the_number_of_open_reply_queues_is_limited(loop_front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "QUEUES_MAX", 3)
    front = loop_front

    async def scenario() -> None:
        session = await front.start()
        async with rpc.Responder(session) as responder:
            queue = await session.open(URI, read=True)
            for number in range(10):
                front.broker.put(URI, b"1", {rpc.REPLY_TO: f"bmq://{DOMAIN}/reply-{number}", rpc.REQUEST_ID: number})
                message = await queue.get()
                await responder.reply(message, b"x")
                message.confirm()
            assert len(async_object(responder)._queues) == 3 and len(session.core.queues) == 4
        assert len(session.core.queues) == 1
        await session.stop()
    front.run(scenario)
    assert all(len(front.broker.messages(f"bmq://{DOMAIN}/reply-{number}")) == 1 for number in range(10))


def test_requests_and_replies_are_encoded_with_codecs(loop_front: Front) -> None:
    front = loop_front

    async def scenario() -> None:
        session, other = await front.start(), await front.start()
        async with rpc.Responder(other, JsonCodec()) as responder, rpc.Requester(session, DOMAIN, JsonCodec()) as asks:
            requests = await other.open(URI, read=True, codec=JsonCodec())

            async def handler(message: Message[Any]) -> Any:
                return {"sum": sum(message.value)}
            serving = front.begin(responder.serve(requests, handler))
            queue = await session.open(URI, write=True, codec=JsonCodec())
            assert (await asks.request(queue, [1, 2, 3])).value == {"sum": 6}
            await requests.close()
            await serving
        await session.stop()
        await other.stop()
    assert inspect.iscoroutinefunction(scenario)
    front.run(scenario)
