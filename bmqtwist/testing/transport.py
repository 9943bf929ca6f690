"""Transports of blocking sessions to an in-process broker.

A step without work advances the broker's virtual clock; if this clock follows the machine's (threads, ports, real event
loops), the step waits. The bytes pass through a `TappedConnection` (`connection.py`), which has the delays and faults.
`broker.py` passes `MemoryTransport` to blocking sessions (`sdk/pump.py`); that of a simulated node is in
`simulated_pump.py`.
"""

from __future__ import annotations

import ssl
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from bmqtwist.sdk._core.outbox import Connect
from bmqtwist.sdk.options import SessionOptions
from bmqtwist.sdk.pump import Dispatch, Pump
from bmqtwist.testing.loop import SECONDS_MAX, Stuck

if TYPE_CHECKING:
    from bmqtwist.testing.connection import TappedConnection
    from bmqtwist.testing.runner import BrokerRunner

_WAIT_S = 1.0  # maximum wait of a step before it runs the broker's timers


class Inbox:
    """ClientEnd that queues the received bytes of one connection, then the reason of its end, and calls `notify`."""

    def __init__(self, attempt: int, notify: Callable[[], None]) -> None:
        self.attempt, self._notify = attempt, notify
        self.arrived: deque[bytes] = deque()
        self.reason: str | None = None

    def on_data(self, data: bytes) -> None:
        self.arrived.append(data)
        self._notify()

    def on_lost(self, reason: str) -> None:
        self.reason = reason or "closed by the broker"
        self._notify()

    def on_room(self) -> None:
        self._notify()


class VirtualTransport(Pump):
    """Pump without sockets; a wait without timeout raises Stuck after SECONDS_MAX seconds without an effect."""

    def __init__(self, options: SessionOptions, dispatch: Dispatch, tls: ssl.SSLContext | None = None) -> None:
        self._idle_s = 0.0
        self._inbox: Inbox | None = None  # None without a connection

        def on_effect(effect: object) -> None:
            self._idle_s = 0.0
            dispatch(effect)
        super().__init__(options, on_effect, tls)

    def deliver_inbox(self) -> None:
        """Pass received bytes, and the end of the connection, to the core."""
        inbox = self._inbox
        while inbox is not None and inbox is self._inbox:
            if inbox.arrived:
                self.core.on_data(inbox.arrived.popleft(), self.clock())
            elif inbox.reason is not None:
                self._inbox = None
                self.core.on_connection_lost(inbox.attempt, inbox.reason, self.clock())
            else:
                return
            self.perform()

    def count_idle(self, seconds: float, timeout_s: float | None, more: Callable[[], str] = str) -> None:
        """Count the virtual time of a step. Raises Stuck, with the text of `more`, when the limit is reached."""
        self._idle_s = self._idle_s + seconds if timeout_s is None else 0.0
        if self._idle_s > SECONDS_MAX:
            raise Stuck(f"nothing has arrived in {SECONDS_MAX:g} s of virtual time; a timeout would end this wait{more()}")

    def apply_watermarks(self, waiting: int) -> None:
        """Pause or resume posts by the number of bytes that wait in the channel."""
        if waiting > self.options.channel_high_bytes:
            self.core.pause_posts(self.clock())
        elif self.core.blocked and waiting <= self.options.channel_low_bytes:
            self.core.resume_posts(self.clock())


class MemoryTransport(VirtualTransport):
    """Transport between a core and an in-process broker."""

    def __init__(self, runner: BrokerRunner, name: str, options: SessionOptions, dispatch: Dispatch,
                 tls: ssl.SSLContext | None = None) -> None:
        self._runner, self._name = runner, name
        self._work_available = threading.Condition()
        self._interrupted = False
        self._dial: Connect | None = None
        self._connection: TappedConnection | None = None
        super().__init__(options, dispatch, tls)

    def clock(self) -> float:
        return self._runner.clock()

    def interrupt_step(self) -> None:
        with self._work_available:
            self._interrupted = True
            self._work_available.notify_all()

    def dial(self, effect: Connect) -> None:
        """Connect in the next step."""
        self._dial = effect
        self.interrupt_step()

    def close_channel(self) -> None:
        connection, self._connection, self._inbox, self._dial = self._connection, None, None, None
        if connection is not None:
            with self._runner.lock:
                connection.disconnect()

    def dispose(self) -> None:
        with self.lock:
            self.close_channel()

    def write(self, chunks: list[bytes]) -> None:
        connection = self._connection
        if connection is None or self._inbox is None:
            return
        data = b"".join(chunks)
        with self._runner.lock:
            if data:
                connection.send(data)
            waiting = connection.waiting_bytes
        self.apply_watermarks(waiting)

    def step(self, timeout_s: float | None = None) -> None:
        """Process pending work. Without any, wait, or advance the virtual clock, for at most `timeout_s` seconds."""
        if self._work():
            return
        with self.lock:
            due, now = self.core.next_deadline(), self.clock()
        wait = [each for each in (timeout_s, None if due is None else due - now) if each is not None]
        if self._runner.clock.real:
            self._wait(max(0.0, min([*wait, _WAIT_S])))
        else:
            passed = self._runner.advance_to_next_timer(min(wait) if wait else None)
            self.count_idle(passed, timeout_s, lambda: f"\n{self._runner.recorder.transcript()}")
        self._work()

    def _wait(self, seconds: float) -> None:
        deadline = self._runner.next_deadline()
        if deadline is not None:
            seconds = max(0.0, min(seconds, deadline - self.clock()))
        with self._work_available:
            if not self._interrupted:
                self._work_available.wait(seconds)
        self._runner.run()

    def _work(self) -> bool:
        with self._work_available:
            interrupted, self._interrupted = self._interrupted, False
        with self.lock:
            dial, self._dial = self._dial, None
            if dial is not None and dial.attempt == self.core.attempt:
                self._connect(dial)
            self.deliver_inbox()
            self.tick_and_perform()
            self.write([])
        return interrupted

    def _connect(self, dial: Connect) -> None:
        inbox = Inbox(dial.attempt, self.interrupt_step)
        try:
            self._connection = self._runner.connect(self._name, inbox)
        except ConnectionError as error:
            self.core.on_connect_failed(dial.attempt, str(error), self.clock())
        else:
            self._inbox = inbox
            self.core.on_connected(dial.attempt, self.clock())
        self.perform()
