"""asyncio transport to an in-process broker, and the bridge between the broker and an asyncio loop.

`broker.py` makes it for asyncio sessions, `port.py` for its sockets. Virtual time is in `loop.py`; Twisted sessions use
`tx.py`, blocking ones `transport.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bmqtwist.testing.loop import VirtualLoop
from bmqtwist.testing.runner import BrokerRunner, EventLoop, LoopBridge, LoopEnd

_HIGH_BYTES = 64 << 10  # default of asyncio's transports


def complete(future: asyncio.Future[None]) -> None:
    """Complete a future unless it is done."""
    if not future.done():
        future.set_result(None)


def loop_bridge(runner: BrokerRunner, loop: asyncio.AbstractEventLoop) -> LoopBridge:
    """Return the bridge between the broker and an asyncio loop."""
    return runner.bridge(loop, lambda loop: EventLoop(
        loop.time, isinstance(loop, VirtualLoop), loop.call_soon, loop.call_soon_threadsafe,
        lambda seconds, action: loop.call_later(seconds, action).cancel, loop.is_closed))


class AsyncioTransport(LoopEnd, asyncio.Transport):
    """asyncio transport whose peer is an in-process broker."""

    def __init__(self, runner: BrokerRunner, bridge: LoopBridge, protocol: asyncio.BaseProtocol) -> None:
        LoopEnd.__init__(self, runner, bridge)
        asyncio.Transport.__init__(self, {"peername": ("127.0.0.1", 0), "sockname": ("127.0.0.1", 0)})
        self._protocol: Any = protocol
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._full = self._closing = self._lost = False
        self._paused: list[bytes] | None = None

    def open(self, name: str) -> None:
        """Connect. Raises ConnectionRefusedError if the broker does not accept the connection."""
        self.connect(name)
        self._protocol.connection_made(self)

    # -- LoopEnd ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if self._paused is not None:
            self._paused.append(data)
        elif not self._lost and not self._closing:
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
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

    def end(self, reason: str) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._protocol.connection_lost(ConnectionResetError(reason) if reason else None)

    def check_room(self) -> None:
        if self.waiting_bytes > self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()
        elif self._full and self.waiting_bytes <= self._low:
            self._full = False
            self._protocol.resume_writing()

    # -- asyncio.Transport ------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self.send(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (_HIGH_BYTES if low is None else 4 * low) if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self.disconnect()
            self._bridge.call_soon(self.end, "")

    close = abort

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        if self._paused is None:
            self._paused = []

    def resume_reading(self) -> None:
        deferred, self._paused = self._paused or [], None
        for data in deferred:
            self._bridge.call_soon(self.receive, data)

    def is_reading(self) -> bool:
        return self._paused is None and not self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]
