"""Requests and replies over queues, for asyncio.

    async with Requester(session, "bmq.test.mem.priority") as requester:       # domain of the reply queue
        reply = await requester.request(queue, b"2 + 3", timeout_s=5)

    async with Responder(session) as responder:
        await responder.serve(queue, handler)          # async def handler(message) -> bytes

A request names its reply queue and its number in two properties; the reply carries the number back. Delivery is that
of queues, at least once: a handler may see a request twice, a second reply to the same request is confirmed and ignored.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

from bmqtwist.errors import PeerError
from bmqtwist.ids import SCHEME
from bmqtwist.sdk.aio import Queue, Session
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.results import Result, SdkError

REPLY_TO = "replyTo"
REQUEST_ID = "requestId"
QUEUES_MAX = 1000  # reply queues a responder keeps open


class Requester:
    """Makes requests; owns one reply queue with a name of its own."""

    def __init__(self, session: Session, domain: str) -> None:
        self.uri = f"{SCHEME}{domain}/reply-{os.urandom(8).hex()}"
        self._session = session
        self._queue: Queue | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    async def __aenter__(self) -> Self:
        self._queue = await self._session.open(self.uri, read=True, on_message=self._on_reply)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        for future in self._waiting.values():
            future.cancel()
        if self._queue is not None and self._queue.core.is_open:
            await self._queue.close()

    async def request(self, queue: Queue, payload: Any, properties: Mapping[str, object] | None = None, *,
                      timeout_s: float = 30.0) -> Message:
        """Post a request and wait for its reply; SdkError TIMEOUT if none comes, or the status if it is refused."""
        number = next(self._numbers)
        future: asyncio.Future[Message] = self._session.loop.create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(timeout_s):
                ack = await queue.post(payload, {**(properties or {}), REPLY_TO: self.uri, REQUEST_ID: number})
                if not ack.ok:
                    raise SdkError(ack.status, "the request was not accepted")
                return await future
        except TimeoutError:
            raise SdkError(Result.TIMEOUT, f"no reply within {timeout_s:g} s") from None
        finally:
            del self._waiting[number]

    def _on_reply(self, message: Message) -> None:
        message.confirm()
        try:
            number = message.properties.get(REQUEST_ID)
        except PeerError:
            return
        future = self._waiting.get(number) if isinstance(number, int) else None
        if future is not None and not future.done():
            future.set_result(message)


class Responder:
    """Answers requests; keeps the reply queues it has answered to open, the latest QUEUES_MAX of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._queues: dict[str, Queue] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        while self._queues:
            await self._drop(next(iter(self._queues)))

    async def _drop(self, uri: str) -> None:
        queue = self._queues.pop(uri)
        if queue.core.is_open:
            await queue.close()

    async def reply(self, request: Message, payload: Any, properties: Mapping[str, object] | None = None) -> None:
        """Answer a request; SdkError INVALID_ARGUMENT if it does not ask for that, or what went wrong."""
        found = request.properties
        uri, number = found.get(REPLY_TO), found.get(REQUEST_ID)
        if not isinstance(uri, str) or not isinstance(number, int):
            raise SdkError(Result.INVALID_ARGUMENT, "the message asks for no reply")
        queue = self._queues.pop(uri, None)
        if queue is None or not queue.core.is_open:
            if len(self._queues) >= QUEUES_MAX:
                await self._drop(next(iter(self._queues)))
            queue = await self._session.open(uri, write=True)
        self._queues[uri] = queue
        ack = await queue.post(payload, {**(properties or {}), REQUEST_ID: number})
        if not ack.ok:
            raise SdkError(ack.status, "the reply was not accepted")

    async def serve(self, queue: Queue, handler: Callable[[Message], Awaitable[Any]]) -> None:
        """Answer every message of a queue, one at a time, until it is closed. A handler that raises ends this, and its
        message is not confirmed."""
        async for message in queue:
            async with message:
                await self.reply(message, await handler(message))
