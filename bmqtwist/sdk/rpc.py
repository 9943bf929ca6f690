"""Requests and replies over queues, for asyncio and Twisted coroutines.

    async with Requester(session, "bmq.test.mem.priority") as requester:       # domain of the reply queue
        reply = await requester.request(queue, b"2 + 3", timeout_s=5)

    async with Responder(session) as responder:
        await responder.serve(queue, handler)          # async def handler(message) -> bytes

`BlockingRequester` and `BlockingResponder` have the same calls for `simple.Session`, without `async` and `await`.

A request contains its reply queue and its number in two properties; the reply contains the number. Delivery is at least
once: a handler may receive a request twice, and a second reply to a request is ignored. Used by applications only; the
sessions are those of `aio.py`, `tx.py` and `simple.py`.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Self, cast

from bmqtwist.errors import BmqError, PeerError
from bmqtwist.ids import SCHEME
from bmqtwist.sdk._adapters.base import BaseQueue
from bmqtwist.sdk._adapters.event_loop import LoopSession
from bmqtwist.sdk._adapters.log import LOG
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk.codecs import Codec, ValueT
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.results import Ack, PostRefused, Result, SdkError
from bmqtwist.sdk.simple import Session as BlockingSession

__all__ = ["BlockingRequester", "BlockingResponder", "REPLY_TO", "REQUEST_ID", "Requester", "Responder"]

REPLY_TO = "replyTo"
REQUEST_ID = "requestId"
QUEUES_MAX = 1000  # open reply queues of a responder
TIMEOUT_S = 30.0


Properties = Mapping[str, object]


class Requester(Generic[ValueT]):
    """Sends requests; owns one reply queue with a random name. `codec` decodes replies."""

    def __init__(self, session: LoopSession, domain: str, codec: Codec[ValueT] | None = None) -> None:
        self.uri: str = f"{SCHEME}{domain}/reply-{os.urandom(8).hex()}"
        self._session, self._codec = session, codec
        self._queue: BaseQueue[Any] | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Any] = {}

    async def __aenter__(self) -> Self:
        queue = self._session.make_queue(self.uri, self._codec, self._on_reply)
        self._queue = await self._session._open(queue, True, True, None, None)  # a Responder of this session may write to it
        return self

    async def __aexit__(self, *_: object) -> None:
        for promise in list(self._waiting.values()):
            self._session.fire(promise, SdkError(Result.CANCELED, "the requester is closed"))
        if self._queue is not None:
            await self._queue._exit_block(True)

    async def request(self, queue: BaseQueue[Any], payload: Any, properties: Properties | None = None, *,
                      timeout_s: float = TIMEOUT_S) -> Message[ValueT]:
        """Post a request and return its reply, already confirmed.

        SdkError TIMEOUT without a reply in time, or the status of the acknowledgement if the request is refused.
        """
        session = self._session
        if self._queue is None or not self._queue.is_open:
            raise SdkError(Result.INVALID_QUEUE, f"{self.uri} is not open: use the requester inside of its `with` block")
        number, promise, end = next(self._numbers), session.promise(), session.clock() + timeout_s

        def on_ack(ack: Ack) -> None:
            if not ack.ok:
                session.fire(promise, PostRefused(ack))
        self._waiting[number] = promise
        cancel = session.call_at(end, lambda: session.fire(promise, None))
        try:
            data = queue._encode(payload)
            values, post = {**(properties or {}), REPLY_TO: self.uri, REQUEST_ID: number}, Post(token=on_ack)
            try:
                queue._post_now(data, values, None, post)
            except SdkError as error:
                await queue._post_when_room(error, data, values, None, post, end)
            outcome = await promise
        finally:
            cancel()
            del self._waiting[number]
        if isinstance(outcome, SdkError):
            raise outcome
        if outcome is None:
            raise SdkError(Result.TIMEOUT, f"no reply within {timeout_s:g} s")
        reply: Message[ValueT] = outcome
        return reply

    def _on_reply(self, message: Message[Any]) -> None:
        with contextlib.suppress(SdkError):  # no connection: redelivered, then ignored
            message.confirm()
        try:
            number = message.properties.get(REQUEST_ID)
        except PeerError:
            return
        promise = self._waiting.get(number) if isinstance(number, int) else None
        if promise is not None:
            self._session.fire(promise, message)


class BlockingRequester(Generic[ValueT]):
    """Requester for `simple.Session`: the calls block."""

    def __init__(self, session: BlockingSession, domain: str, codec: Codec[ValueT] | None = None) -> None:
        self._session = session
        self._requester: Requester[Any] = Requester(cast(Any, session), domain, cast(Any, codec))
        self.uri: str = self._requester.uri

    def __enter__(self) -> Self:
        self._session.run(self._requester.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        if self._session.running:
            self._session.run(self._requester.__aexit__())

    def request(self, queue: BaseQueue[Any], payload: Any, properties: Properties | None = None, *,
                timeout_s: float = TIMEOUT_S) -> Message[ValueT]:
        """Post a request and return its reply, already confirmed.

        SdkError TIMEOUT without a reply in time, or the status of the acknowledgement if the request is refused.
        """
        return self._session.run(self._requester.request(queue, payload, properties, timeout_s=timeout_s))


class Responder:
    """Answers requests; the last QUEUES_MAX reply queues stay open. `codec` encodes replies."""

    def __init__(self, session: LoopSession, codec: Codec[Any] | None = None) -> None:
        self._session, self._codec = session, codec
        self._queues: dict[str, BaseQueue[Any]] = {}
        self._opening: dict[str, deque[Any]] = {}  # waiters for a queue that another call is opening or closing
        self._replies_in_progress: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._queues:
            await self._queues.pop(next(iter(self._queues)))._exit_block(True)

    async def _reply_queue(self, uri: str) -> BaseQueue[Any]:
        session = self._session
        while uri in self._opening:
            await session.wait_in(self._opening[uri])
        queue = self._queues.pop(uri, None)
        known = session.core.queues.get(uri)
        if queue is None and known is not None and known.writable and known.is_open:  # the application opened it
            queue = session.make_queue(uri, self._codec, None)
            queue.core = known
        elif queue is not None and queue.is_open:
            self._queues[uri] = queue  # moved to the end: the last used one
        else:
            self._opening[uri] = deque()
            try:
                if len(self._queues) >= QUEUES_MAX:
                    idle = next((each for each in self._queues if not self._replies_in_progress[each]), None)
                    if idle is not None:
                        await self._close_reply_queue(idle)
                made: BaseQueue[Any] = session.make_queue(uri, self._codec, None)
                queue = self._queues[uri] = await session._open(made, False, True, None, None)
            finally:
                session.fire_all(self._opening.pop(uri))
        return queue

    async def _close_reply_queue(self, uri: str) -> None:
        self._opening[uri] = deque()  # other calls open it only after it is closed
        try:
            await self._queues.pop(uri)._exit_block(True)
        finally:
            self._session.fire_all(self._opening.pop(uri))

    async def reply(self, request: Message[Any], payload: Any, properties: Properties | None = None) -> None:
        """Answer a request; SdkError INVALID_ARGUMENT if the message is not a request, or the error of the post."""
        found = request.properties
        uri, number = found.get(REPLY_TO), found.get(REQUEST_ID)
        if not isinstance(uri, str) or not isinstance(number, int):
            raise SdkError(Result.INVALID_ARGUMENT, f"the message is not a request: it has no {REPLY_TO} and {REQUEST_ID}")
        self._replies_in_progress[uri] += 1
        try:
            queue = await self._reply_queue(uri)
            await queue._post(payload, {**(properties or {}), REQUEST_ID: number}, None, None, None)
        finally:
            self._replies_in_progress[uri] -= 1
            if not self._replies_in_progress[uri]:
                del self._replies_in_progress[uri]

    async def serve(self, queue: BaseQueue[ValueT], handler: Callable[[Message[ValueT]], Awaitable[Any]]) -> None:
        """Answer the messages of a queue, one at a time, until it is closed; call it several times for concurrency.

        An exception of the handler ends the call, and its message is not confirmed. A reply that fails is logged.
        """
        while True:
            try:
                message = await queue._get()
            except SdkError:
                if queue._is_exhausted:
                    return
                raise
            assert message is not None
            try:
                answer: Any = handler(message)
                if inspect.isawaitable(answer):
                    answer = await answer
            except BaseException:
                message.give_back()
                raise
            try:
                await self.reply(message, answer)
            except BmqError as error:  # usually the requester has disconnected: continue with the next request
                if queue.closed:
                    return
                LOG.warning("no reply to %r: %s", message, error)
            message._end_block(True)


class BlockingResponder:
    """Responder for `simple.Session`; handlers are functions."""

    def __init__(self, session: BlockingSession, codec: Codec[Any] | None = None) -> None:
        self._session, self._responder = session, Responder(cast(Any, session), codec)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session.running:
            self._session.run(self._responder.__aexit__())

    def reply(self, request: Message[Any], payload: Any, properties: Properties | None = None) -> None:
        """Answer a request; SdkError INVALID_ARGUMENT if the message is not a request, or the error of the post."""
        self._session.run(self._responder.reply(request, payload, properties))

    def serve(self, queue: BaseQueue[ValueT], handler: Callable[[Message[ValueT]], Any]) -> None:
        """Answer the messages of a queue until it is closed. An exception of the handler ends the call, and its message is
        not confirmed. A reply that fails is logged."""
        self._session.run(self._responder.serve(queue, handler))
