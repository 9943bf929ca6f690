"""Socket pump: `interrupt_step` while it waits for its socket."""

from __future__ import annotations

import socket
import time

from bmqtwist.sdk import SessionOptions
from bmqtwist.sdk.pump import SocketPump

WAIT_S = 30.0


class InterruptingSocket:
    """Receiving end of the socket pair; a second interrupt arrives just before it is read."""

    def __init__(self, transport: SocketPump, end: socket.socket) -> None:
        self._transport, self._end = transport, end
        self.fileno, self.close = end.fileno, end.close

    def recv(self, size: int) -> bytes:
        self._transport.interrupt_step()
        return self._end.recv(size)


def test_an_interrupt_after_two_concurrent_ones_ends_the_wait() -> None:
    """`interrupt_step` may be called without the lock, by a health monitor's thread or by the garbage collector."""
    transport = SocketPump(SessionOptions(), lambda effect: None)
    try:
        transport._wakeup_reader = InterruptingSocket(transport, transport._wakeup_reader)  # type: ignore[assignment]
        for _ in range(3):
            transport.interrupt_step()
            began = time.monotonic()
            transport.step(WAIT_S)
            assert time.monotonic() - began < WAIT_S / 2
    finally:
        transport.dispose()
