"""asyncio's end of a connection to an in-process broker, and what wakes the broker on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from bmqtwist.testing.connection import TappedConnection
from bmqtwist.testing.loop import VirtualLoop
from bmqtwist.testing.runner import BrokerRunner

_HIGH_BYTES = 64 << 10  # as of asyncio's own transports


def settle(future: asyncio.Future[None]) -> None:
    """Let whoever waits go on."""
    if not future.done():
        future.set_result(None)


class LoopWaker:
    """Runs the broker on an event loop."""

    def __init__(self, runner: BrokerRunner, loop: asyncio.AbstractEventLoop) -> None:
        self._runner, self.loop = runner, loop
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Is the loop closed?"""
        return self.loop.is_closed()

    def soon(self, action: Callable[..., object], *arguments: Any) -> None:
        """Call it from the loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there any more
            if threading.get_ident() == self._thread:
                self.loop.call_soon(action, *arguments)
            else:
                self.loop.call_soon_threadsafe(action, *arguments)

    def arm(self, seconds: float | None) -> None:
        """Run the broker after so many seconds; None = there is nothing to do."""
        if threading.get_ident() != self._thread:
            self.soon(self.arm, seconds)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and not self.loop.is_closed():
            self._timer = self.loop.call_later(max(0.0, seconds), self._runner.run)


def loop_waker(runner: BrokerRunner, loop: asyncio.AbstractEventLoop) -> LoopWaker:
    """What wakes the broker on an asyncio loop."""
    return runner.waker(loop, partial(LoopWaker, runner, loop), loop.time, isinstance(loop, VirtualLoop))


class AsyncioTransport(asyncio.Transport):
    """A transport whose other end is a broker in this process."""

    def __init__(self, runner: BrokerRunner, waker: LoopWaker, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 0), "sockname": ("127.0.0.1", 0)})
        self._runner, self._waker = runner, waker
        self._protocol: Any = protocol
        self._connection: TappedConnection | None = None
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._full = self._closing = self._lost = False
        self._paused: list[bytes] | None = None

    def open(self, name: str) -> None:
        """Connect; ConnectionRefusedError if nobody is there."""
        self._connection = self._runner.connect(name, self)
        self._protocol.connection_made(self)

    # -- ClientEnd --------------------------------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        """From the connection: bytes."""
        self._waker.soon(self._data, data)

    def _data(self, data: bytes) -> None:
        if self._paused is not None:
            self._paused.append(data)
        elif not self._lost and not self._closing:
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        at = 0
        while at < len(data) and not self._closing:
            buffer = memoryview(protocol.get_buffer(len(data) - at))
            size = min(len(buffer), len(data) - at)
            buffer[:size] = data[at:at + size]
            protocol.buffer_updated(size)
            at += size

    def lost(self, reason: str) -> None:
        """From the connection: it is gone."""
        self._waker.soon(self._connection_lost, ConnectionResetError(reason) if reason else None)

    def _connection_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._protocol.connection_lost(error)

    def room(self) -> None:
        """From the connection: something is through."""
        self._waker.soon(self._check_room)

    def _check_room(self) -> None:
        waiting = self.get_write_buffer_size()
        if waiting > self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()
        elif self._full and waiting <= self._low:
            self._full = False
            self._protocol.resume_writing()

    # -- asyncio.Transport ------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """To the broker."""
        if self._connection is not None and not self._closing:
            with self._runner.lock:
                self._connection.send(bytes(data))
            self._check_room()

    def get_write_buffer_size(self) -> int:
        """What a fault holds back, bytes."""
        return self._connection.waiting_bytes if self._connection is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As of asyncio."""
        self._high = (_HIGH_BYTES if low is None else 4 * low) if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high), bytes."""
        return self._low, self._high

    def close(self) -> None:
        """Close; `connection_lost` follows."""
        self.abort()

    def abort(self) -> None:
        """Close; `connection_lost` follows."""
        if not self._closing:
            self._closing = True
            if self._connection is not None:
                with self._runner.lock:
                    self._connection.close()
            self._waker.soon(self._connection_lost, None)

    def is_closing(self) -> bool:
        """Is it closed, or about to be?"""
        return self._closing

    def can_write_eof(self) -> bool:
        """No half-closed connections."""
        return False

    def pause_reading(self) -> None:
        """Keep what comes."""
        if self._paused is None:
            self._paused = []

    def resume_reading(self) -> None:
        """Hand on what was kept."""
        kept, self._paused = self._paused or [], None
        for data in kept:
            self._waker.soon(self._data, data)

    def is_reading(self) -> bool:
        """Is it not paused?"""
        return self._paused is None and not self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol have it."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whose transport it is."""
        return self._protocol  # type: ignore[no-any-return]
