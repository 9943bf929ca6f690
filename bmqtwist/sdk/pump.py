"""Transport of sessions without an event loop: base class `Pump`, and `SocketPump`, the default. Another transport (a test's
in-memory channel, a tunnel) is a subclass of `Pump`, passed to `simple.Session(..., pump=...)` as a factory.

Calls of the core and `perform`, which follows them, need `lock`, in any thread. One thread at a time calls `step`, without
the lock; `interrupt_step` ends its wait. `simple.py` and `_adapters/threaded.py` step it; sockets on an event loop are in
`aio.py` and `tx.py`.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from bmqtwist.sdk._adapters.dialing import ConnectFailed, connect_first
from bmqtwist.sdk._adapters.identity import make_core, tls_context
from bmqtwist.sdk._adapters.log import LOG, reason_of
from bmqtwist.sdk._core.outbox import Close, Connect, WriteLog
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk.options import SessionOptions

__all__ = ["Connect", "Dispatch", "Pump", "PumpFactory", "SocketPump"]

Dispatch = Callable[[object], None]  # takes an Effect
_READ_BYTES = 1 << 18
_WAIT_S = 60.0  # maximum wait of a step without a deadline
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # `select` supports descriptors up to 1023
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Pump(ABC):
    """Moves bytes between `core` and a broker; log lines go to `logger`, all other effects except `Connect` to
    `dispatch`."""

    options: SessionOptions
    dispatch: Dispatch
    tls: ssl.SSLContext | None

    def __init__(self, options: SessionOptions, dispatch: Dispatch, tls: ssl.SSLContext | None = None) -> None:
        self.options, self.dispatch, self.tls = options, dispatch, tls
        self.logger: logging.Logger = LOG
        self.lock: Any = threading.RLock()
        self.core: SessionCore = make_core(options, self.clock(), self.interrupt_step)
        self._performing = False

    def clock(self) -> float:
        """Return the time of the core's clock, seconds."""
        return time.monotonic()

    @abstractmethod
    def dial(self, effect: Connect) -> None:
        """Start opening a channel to `effect.address`, with the lock held; report the result with
        `core.on_connected(effect.attempt, now, broker)` or `core.on_connect_failed(effect.attempt, reason, now)`."""

    @abstractmethod
    def close_channel(self) -> None:
        """Close the channel, or cancel the attempt; report no further event of it."""

    @abstractmethod
    def write(self, chunks: list[bytes]) -> None:
        """Write bytes to the channel; drop them without a channel."""

    @abstractmethod
    def step(self, timeout_s: float | None = None) -> None:
        """Wait for the channel, a deadline or `interrupt_step`, at most `timeout_s` seconds, and process it."""

    @abstractmethod
    def interrupt_step(self) -> None:
        """End the wait of a step. Callable from any thread, also while the base constructor runs."""

    @abstractmethod
    def dispose(self) -> None:
        """Release all resources; no step follows."""

    def on_forked(self, core: Any) -> None:
        """Release all resources in a child process, without sending anything; the lock may be held by no thread."""
        self.lock, self.core = threading.RLock(), core
        self.dispose()

    def perform(self, flush: bool = False) -> None:
        """Perform effects and write; call it with the lock held, after calls of the core. `flush`: including batches whose
        delay has not passed."""
        if self._performing:  # called by an effect: the running loop performs the new effects
            return
        self._performing = True
        try:
            while effects := self.core.take_effects():
                for effect in effects:
                    match effect:
                        case Connect():
                            self.dial(effect)
                        case WriteLog():
                            self.logger.log(effect.level, "%s", effect.text)
                        case Close():
                            self.close_channel()
                            self.dispatch(effect)
                        case _:
                            self.dispatch(effect)
        finally:
            self._performing = False
        chunks = self.core.take_output(flush)
        if chunks:
            self.write(chunks)

    def tick_and_perform(self) -> None:
        due = self.core.next_deadline()
        now = self.clock()
        if due is not None and due <= now:
            self.core.tick(now)
        self.perform()


PumpFactory = Callable[[SessionOptions, Dispatch, ssl.SSLContext | None], Pump]


class SocketPump(Pump):
    """Moves bytes between `core` and a socket."""

    def __init__(self, options: SessionOptions, dispatch: Dispatch, tls: ssl.SSLContext | None = None) -> None:
        self._socket: socket.socket | None = None
        self._attempt = 0
        self._dial: Connect | None = None
        self._unsent = bytearray()
        self._wakeup_writer, self._wakeup_reader = socket.socketpair()
        self._wakeup_writer.setblocking(False)
        self._wakeup_reader.setblocking(False)
        self._interrupted = False
        super().__init__(options, dispatch, tls)

    def interrupt_step(self) -> None:
        if not self._interrupted:
            self._interrupted = True
            with contextlib.suppress(OSError):
                self._wakeup_writer.send(b"\0")

    def dial(self, effect: Connect) -> None:
        self._dial = effect
        self.interrupt_step()

    def step(self, timeout_s: float | None = None) -> None:
        with self.lock:
            self.tick_and_perform()
            dial, self._dial = self._dial, None
        if dial is not None:
            self._connect(dial)
            return
        with self.lock:
            due = self.core.next_deadline()
            now = self.clock()
            wait = min(_WAIT_S if due is None else max(due - now, 0.0), _WAIT_S if timeout_s is None else timeout_s)
            channel = self._socket
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        try:
            with _Selector() as selector:
                selector.register(self._wakeup_reader, selectors.EVENT_READ)
                if channel is not None:
                    selector.register(channel, events)
                ready = {key.fileobj: mask for key, mask in selector.select(wait)}
        except (OSError, ValueError):  # closed by another thread meanwhile
            return
        with self.lock:
            if self._wakeup_reader in ready:
                with contextlib.suppress(*_WOULD_BLOCK):
                    self._wakeup_reader.recv(1024)
                self._interrupted = False  # only after recv: else all later interrupts would be lost
            if channel is not None and channel is self._socket:
                mask = ready.get(channel, 0)
                if mask & selectors.EVENT_WRITE:
                    self.write([])
                if mask & selectors.EVENT_READ and channel is self._socket:
                    self._read(channel)
            self.tick_and_perform()

    def _connect(self, dial: Connect) -> None:
        """Connect without the lock, so that other threads can use the core."""
        made = None
        try:
            made, address = connect_first((dial.address, *dial.others), dial.timeout_s or None)
            made.settimeout(dial.timeout_s or None)  # of the TLS handshake
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = tls_context(address, self.tls)
            if context is not None:
                made = context.wrap_socket(made, server_hostname=address.host)
            made.setblocking(False)
        except Exception as error:  # noqa: BLE001 - any error, such as an invalid host name, is a failed attempt
            if made is not None:
                made.close()
            causes = {broker: reason_of(each) for broker, each in error.causes.items()} if isinstance(
                error, ConnectFailed) else None
            with self.lock:
                self.core.on_connect_failed(dial.attempt, reason_of(error), self.clock(), causes)
                self.perform()
            return
        with self.lock:
            if dial.attempt != self.core.attempt:
                made.close()
                return
            self._socket, self._attempt = made, dial.attempt
            self.core.on_connected(dial.attempt, self.clock(), address)
            self.perform()

    def write(self, chunks: list[bytes]) -> None:
        channel, unsent = self._socket, self._unsent
        if channel is None:
            return
        data: bytes | bytearray = b"".join(chunks)
        if unsent:
            unsent += data
            data = unsent
        try:
            sent = channel.send(data) if data else 0
        except _WOULD_BLOCK:
            sent = 0
        except OSError as error:
            self._on_lost(reason_of(error))
            return
        if data is unsent:
            del unsent[:sent]
        elif sent < len(data):
            unsent += memoryview(data)[sent:]
        if unsent:
            self.interrupt_step()  # a waiting `step` must wait for writability as well
        if len(unsent) > self.options.channel_high_bytes:
            self.core.pause_posts(self.clock())
        elif self.core.blocked and len(unsent) <= self.options.channel_low_bytes:
            self.core.resume_posts(self.clock())

    def _read(self, channel: socket.socket) -> None:
        more = True
        while more and channel is self._socket:
            try:
                data = channel.recv(_READ_BYTES)
            except _WOULD_BLOCK:
                return
            except OSError as error:
                self._on_lost(reason_of(error))
                return
            if not data:
                self._on_lost("closed by the broker")
                return
            self.core.on_data(data, self.clock())
            self.perform()
            more = isinstance(channel, ssl.SSLSocket) and channel.pending() > 0

    def _on_lost(self, reason: str) -> None:
        attempt = self._attempt
        self.close_channel()
        self.core.on_connection_lost(attempt, reason, self.clock())
        self.perform()

    def close_channel(self) -> None:
        channel, self._socket = self._socket, None
        self._dial = None
        self._unsent.clear()
        if channel is not None:
            channel.close()

    def dispose(self) -> None:
        with self.lock:
            self.close_channel()
            self._wakeup_writer.close()
            self._wakeup_reader.close()
