"""What moves bytes for sessions without an event loop: `Transport` says what such a thing has to do, and does the common
part. Applications know it as `bmqtwist.sdk.pump.Pump`.

`perform` may be called by any thread that holds `lock`; `step` by one thread at a time, without it.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, assert_never

from bmqtwist.sdk._adapters.identity import make_core
from bmqtwist.sdk._adapters.log import LOG, emit
from bmqtwist.sdk._core.effects import Close, Completed, Connect, Note, Room, Settled
from bmqtwist.sdk._core.session import SessionCore
from bmqtwist.sdk.message import Message
from bmqtwist.sdk.options import SessionOptions
from bmqtwist.sdk.results import Ack, SessionEvent

Dispatch = Callable[[object], None]  # given an Effect


class Transport(ABC):
    """Moves bytes between `core` and a broker; every effect but `Connect` goes to `dispatch`, and notes to the log."""

    options: SessionOptions
    dispatch: Dispatch
    tls: ssl.SSLContext | None

    def __init__(self, options: SessionOptions, dispatch: Dispatch, tls: ssl.SSLContext | None = None) -> None:
        self.options, self.dispatch, self.tls = options, dispatch, tls
        self.logger: logging.Logger = LOG
        self.lock: Any = threading.RLock()
        self.core: SessionCore = make_core(options, self.clock(), self.poke)
        self._performing = False

    def clock(self) -> float:
        """Seconds of the clock that `core` lives by."""
        return time.monotonic()

    @abstractmethod
    def dial(self, effect: Connect) -> None:
        """Begin to open a channel to `effect.address`, with the lock held; `core.connected(effect.attempt, now)` or
        `core.failed(effect.attempt, reason, now)` says how that ended."""

    @abstractmethod
    def hang_up(self) -> None:
        """Close the channel, or give up opening it; nothing of it may be reported any more."""

    @abstractmethod
    def write(self, chunks: list[bytes]) -> None:
        """Hand bytes to the channel; without one they are void."""

    @abstractmethod
    def step(self, timeout_s: float | None = None) -> None:
        """Wait for the channel, a deadline or a poke, at most that long, and do what is due."""

    @abstractmethod
    def poke(self) -> None:
        """End a waiting step. Called from any thread, and before the constructor of a derived class has gone on."""

    @abstractmethod
    def dispose(self) -> None:
        """Let go of everything: there is no step after this."""

    def perform(self, flush: bool = False) -> None:
        """Perform effects and write; call it with the lock held, after calling the core. `flush`: batches that could
        still wait leave, too."""
        if self._performing:  # called back by an effect: the loop below goes on with what was added
            return
        self._performing = True
        try:
            while effects := self.core.take_effects():
                for effect in effects:
                    match effect:
                        case Message() | Ack() | Completed() | Settled() | SessionEvent() | Room():
                            self.dispatch(effect)
                        case Connect():
                            self.dial(effect)
                        case Close():
                            self.hang_up()
                            self.dispatch(effect)
                        case Note():
                            emit(effect, self.logger)
                        case _:
                            assert_never(effect)
        finally:
            self._performing = False
        chunks = self.core.take_output(flush)
        if chunks:
            self.write(chunks)

    def tick_and_perform(self) -> None:
        """Do what is due by now; with the lock held."""
        due = self.core.deadline()
        now = self.clock()
        if due is not None and due <= now:
            self.core.tick(now)
        self.perform()


TransportFactory = Callable[[SessionOptions, Dispatch, ssl.SSLContext | None], Transport]
