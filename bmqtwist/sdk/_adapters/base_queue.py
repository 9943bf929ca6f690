"""One opened queue as all sessions that wait have it: posts that wait for room, groups of posts, the inbox.

Coroutines here wait with the promises of their session, so each session can run them: as they are (asyncio), as Deferreds
(Twisted), or by moving bytes until they are done (no loop).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic

from bmqtwist.errors import LocalError
from bmqtwist.sdk._adapters.base_session import BaseSession, OnAck
from bmqtwist.sdk._adapters.identity import queue_options
from bmqtwist.sdk._core import queue as core_queue
from bmqtwist.sdk._core.effects import FAILED_KEPT_MAX, Group
from bmqtwist.sdk._core.unacked import Post
from bmqtwist.sdk.codecs import Codec, ValueT
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import QueueMembers, QueueOptions
from bmqtwist.sdk.results import Ack, PostRefused, PostsFailed, Result, SdkError
from bmqtwist.wire.properties import PropertyType

Properties = Mapping[str, object]
Types = Mapping[str, PropertyType]
_POSTS_A_TURN = 256  # of `post_many`: then everybody else has a turn


def accepted(ack: Ack) -> Ack:
    """An acknowledgement, if it is one; PostRefused if the broker has not taken the message into its care."""
    if not ack.ok:
        raise PostRefused(ack)
    return ack


class BaseQueue(Generic[ValueT]):
    """One opened queue. Values are what its codec makes of payloads; without a codec they are bytes."""

    core: core_queue.Queue  # what the session core knows of it
    session: Any

    def __init__(self, session: BaseSession, uri: str, codec: Codec[ValueT] | None,
                 on_message: Callable[[Message[ValueT]], object] | None) -> None:
        self._session = self.session = session
        self.uri: str = uri
        self.codec: Codec[ValueT] | None = codec
        self.on_message: Callable[[Message[ValueT]], object] | None = on_message
        self.error: SdkError | None = None  # why it is closed, if that was not our wish
        self.ended: bool = False
        self._inbox: deque[Message[ValueT]] = deque()
        self._streak = 0  # messages that an iteration was given without a wait
        self._getters: deque[Any] = deque()
        self._group = Group()  # of posts that nobody waits for
        self._sealed: list[Group] = []  # of earlier ones, not reported yet
        self._flushing: deque[Any] = deque()
        self._draining = False
        self._unfinished = 0  # messages that the application has, neither confirmed nor given back
        self._finishing: deque[Any] = deque()  # who waits for these

    @property
    def is_open(self) -> bool:
        """Can it be used, connected or not?"""
        return not self.ended and self.core.is_open

    @property
    def options(self) -> QueueOptions:
        """The options in force."""
        return self.core.options

    def __repr__(self) -> str:
        core = getattr(self, "core", None)  # not before the request to open it is made
        return f"<{type(self).__name__} {self.uri} {'closed' if self.ended or core is None else core.state.value}>"

    # -- posting ----------------------------------------------------------------------------------------------------

    def _encoded(self, payload: Any) -> bytes:
        if self.codec is not None:
            payload = self.codec.encode(payload)
        if type(payload) is bytes:
            return payload
        if isinstance(payload, (bytes, bytearray, memoryview)):
            return bytes(payload)
        whose = "a payload is bytes" if self.codec is None else f"{type(self.codec).__name__}.encode must give bytes"
        hint = ": encode it, or open the queue with a codec" if self.codec is None else ""
        raise TypeError(f"{whose}, not {type(payload).__name__}{hint}")

    def _put(self, data: bytes, properties: Properties | None, types: Types | None, post: Post) -> bytes:
        session = self._session
        return session.core.post(self.core, data, session.clock(), properties, types, post)

    async def _place(self, error: SdkError, data: bytes, properties: Properties | None, types: Types | None,
                     post: Post, latest: float = math.inf) -> bytes:
        """A post did not find room: try again when there is some, within the time that the options give."""
        if error.result is not Result.BW_LIMIT:
            raise error
        session = self._session
        end = min(session.clock() + session.options.post_wait_s, latest)
        while True:
            await session._room(end, len(data))
            try:
                return self._put(data, properties, types, post)
            except SdkError as again:
                if again.result is not Result.BW_LIMIT or session.clock() >= end:
                    raise

    async def _post(self, payload: ValueT, properties: Properties | None, types: Types | None, correlation: object,
                    compress: bool | None) -> Ack:
        data = self._encoded(payload)
        promise = self._session.promise()
        post = Post(True, promise, correlation, None, compress)
        try:
            self._put(data, properties, types, post)
        except SdkError as error:
            await self._place(error, data, properties, types, post)
        return accepted(await promise)

    def _noted(self, ack: bool, on_ack: OnAck | None, correlation: object, compress: bool | None) -> Post:
        """What goes with a post that nobody waits for."""
        if on_ack is not None and not ack:
            raise LocalError("on_ack is never called with ack=False: leave one of them out")
        return Post(ack, on_ack, correlation, self._group, compress)

    async def _post_many(self, payloads: Iterable[Any], return_exceptions: bool) -> list[Any]:
        session = self._session
        group = Group(acks={})
        guids: list[bytes] = []
        try:
            for each in payloads:
                payload, properties = each if isinstance(each, tuple) else (each, None)
                data, post = self._encoded(payload), Post(group=group)
                try:
                    guids.append(self._put(data, properties, None, post))
                except SdkError as error:
                    guids.append(await self._place(error, data, properties, None, post))
                if not len(guids) % _POSTS_A_TURN:
                    await session.breathe()
            self._seal(group)
            await self._settled([group])
        except BaseException:  # what is posted is posted: the next flush waits for it
            if not group.sealed:
                self._seal(group)
            self._sealed.append(group)
            raise
        if group.failures and not return_exceptions:
            raise PostsFailed(group.failures, group.failed)
        acks = group.acks or {}
        return [ack if (ack := acks[guid]).ok else PostRefused(ack) for guid in guids]

    def _seal(self, group: Group) -> None:
        group.token = self._on_settled
        self._session.core.seal(group)

    def _on_settled(self) -> None:
        self._session.fire_all(self._flushing)

    async def _settled(self, groups: list[Group]) -> None:
        while any(group.outstanding for group in groups):
            await self._session.stand_in(self._flushing)

    async def _flush(self) -> None:
        group = self._group
        if group.outstanding or group.failures:
            self._group = Group()
            self._sealed.append(group)
            self._seal(group)
        groups = list(self._sealed)
        self._session.turn(flush=True)
        await self._settled(groups)
        failures, failed = 0, []
        for group in groups:
            if group in self._sealed:  # no other flush has reported it
                self._sealed.remove(group)
                group.reported = True
                failures += group.failures
                failed += group.failed
        if failures:
            raise PostsFailed(failures, failed[:FAILED_KEPT_MAX])

    # -- consuming --------------------------------------------------------------------------------------------------

    def _closed(self) -> SdkError:
        return self.error or SdkError(Result.INVALID_QUEUE, f"{self.uri} is closed")

    def _check_readable(self) -> None:
        if not self.core.readable:
            raise SdkError(Result.INVALID_QUEUE, f"{self.uri} is not open for reading: open it with read=True")
        if self.on_message is not None:
            raise SdkError(Result.INVALID_ARGUMENT, f"messages of {self.uri} go to its on_message")

    async def _get(self, end: float | None = None) -> Message[ValueT] | None:
        """The next message; None if none has come by that time."""
        session, getters = self._session, self._getters
        while not self._inbox:
            self._check_readable()
            if self.ended:
                raise self._closed()
            if self._draining:
                raise SdkError(Result.CANCELED, f"{self.uri} is drained: no more messages come, unless it is resumed")
            if end is not None and session.clock() >= end:
                return None
            try:
                await session.stand_in(getters, end)
            except BaseException:
                if self._inbox:  # the message this was woken for is for somebody else
                    self._wake_getter()
                raise
        return self.get_nowait()

    def get_nowait(self) -> Message[ValueT]:
        """The next message if it is here already; IndexError if not."""
        message = self._inbox.popleft()
        message._taken = True
        self._unfinished += 1
        self._session.core.consumed(1)
        return message

    def get_all_nowait(self) -> list[Message[ValueT]]:
        """All messages that are here already, in order."""
        messages = list(self._inbox)
        self._inbox.clear()
        for message in messages:
            message._taken = True
        self._unfinished += len(messages)
        self._session.core.consumed(len(messages))
        return messages

    def _wake_getter(self) -> None:
        if self._getters:
            self._session.fire(self._getters.popleft(), None)

    def confirm(self, message: Message[Any]) -> None:
        """Confirm a message, as `message.confirm()` does."""
        self._session.core.confirm(message)
        if message._taken:
            self.give_back(message)

    def give_back(self, message: Message[Any]) -> None:
        """Be done with a message, confirmed or not, as `message.give_back()` is."""
        if message._taken:
            message._taken = False
            self._unfinished -= 1
            if self._finishing and not self._unfinished:
                self._session.fire_all(self._finishing)

    @property
    def _over(self) -> bool:
        """Does an iteration end, without an error?"""
        return self._draining or self.ended and self.error is None

    # -- from the session -------------------------------------------------------------------------------------------

    def deliver(self, message: Message[ValueT]) -> None:
        """From the session: a message."""
        if self.ended or self._draining:  # it crossed our close or pause: others get it
            self._session.core.consumed(1)
            return
        if self.on_message is not None:
            message._taken = True
            self._unfinished += 1
            self._session.core.consumed(1)
            self._session.call(self.on_message, message)
            return
        self._inbox.append(message)
        self._wake_getter()

    def end(self, error: SdkError | None = None) -> None:
        """From the session: no more messages come, and what is here cannot be confirmed."""
        if not self.ended:
            self.ended, self.error = True, error
            self._session.open_queues.discard(self)
            self.leave_failures()
            self._empty_inbox()
            self._session.fire_all(self._finishing)

    def leave_failures(self) -> None:
        """From the session: what failed of the posts that nobody waits for is the session's to tell."""
        self._session.leave_to_report([self._group, *self._sealed])

    def _empty_inbox(self) -> None:
        """What was not taken goes to others; whoever waits for a message hears that there will be none."""
        self._session.core.consumed(len(self._inbox))
        self._inbox.clear()
        while self._getters:
            self._wake_getter()

    # -- requests ---------------------------------------------------------------------------------------------------

    async def _configure(self, options: QueueOptions | None, timeout_s: float | None, changes: QueueMembers) -> None:
        session = self._session
        wanted = queue_options(self.core.options, options, changes)
        await session._request(lambda token, now: session.core.configure(self.core, wanted, token, now, timeout_s))

    async def _pause(self, paused: bool, timeout_s: float | None) -> None:
        session = self._session
        await session._request(lambda token, now: session.core.pause_deliveries(self.core, paused, token, now, timeout_s))

    async def _resume(self, timeout_s: float | None) -> None:
        self._draining = False
        await self._pause(False, timeout_s)

    async def _drain(self, timeout_s: float | None) -> None:
        session = self._session
        end = None if timeout_s is None else session.clock() + timeout_s
        self._draining = True
        self._empty_inbox()
        await self._pause(True, timeout_s)
        while self._unfinished and not self.ended:
            if end is not None and session.clock() >= end:
                raise SdkError(Result.TIMEOUT, f"{self._unfinished} messages of {self.uri} are neither confirmed nor given "
                                               f"back after {timeout_s:g} s")
            await session.stand_in(self._finishing, end)

    async def _close(self, timeout_s: float | None) -> None:
        session = self._session
        try:
            await session._request(lambda token, now: session.core.close(self.core, token, now, timeout_s))
        finally:
            if not self.core.is_open:
                self.end()

    async def _leave(self, failed: bool) -> None:
        """The end of a block: flush, unless it failed, and close. What fails here is not to hide why the block did."""
        if not self.is_open:
            return
        try:
            if not failed:
                await self._flush()
        finally:
            try:
                await self._close(None)
            except SdkError:
                if not failed:
                    raise
