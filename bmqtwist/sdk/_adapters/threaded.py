"""Session core with an I/O thread and blocking calls from other threads, for `blazingmq/session.py`, `kombu/link.py`
and `spark/receiver.py`.

An effect that completes a waiting call ends the wait of its thread; `on_effect` receives all other effects, under the
lock and usually in the I/O thread. The I/O thread does not reference the owner of this object, so that the owner can be
garbage-collected; its finalizer calls `end_thread`. Producers of Spark use `simple.py`.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from bmqtwist.sdk._adapters import forks
from bmqtwist.sdk._core.outbox import Completed, RoomAvailable
from bmqtwist.sdk._core.posts import Post
from bmqtwist.sdk._core.queue import Queue
from bmqtwist.sdk.options import SessionOptions
from bmqtwist.sdk.pump import Dispatch, PumpFactory, SocketPump
from bmqtwist.sdk.results import Ack, Result, SdkError
from bmqtwist.wire.properties import PropertyType


class Completion:
    """Token of one request or post, with its outcome; None = no outcome yet."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome: Completed | Ack | None = None


class ThreadedCore:
    """`lock` protects `core`; `changed` is notified when a waiting call may continue. The thread calls `on_step` without
    the lock after each step."""

    def __init__(self, options: SessionOptions, on_effect: Dispatch, tls: ssl.SSLContext | None = None, *,
                 name: str = "bmqtwist-io", make_transport: PumpFactory = SocketPump,
                 on_step: Callable[[], object] = lambda: None) -> None:
        self._on_effect, self._on_step = on_effect, on_step
        self.transport: Final = make_transport(options, self._dispatch, tls)
        self.core = self.transport.core
        self.lock = self.transport.lock
        self.clock: Final = self.transport.clock
        self.changed = threading.Condition(self.lock)
        self.error: BaseException | None = None  # exception that ended the thread
        self._running = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        forks.register(self)

    def start(self) -> None:
        self._thread.start()

    def on_forked(self, core: Any) -> None:
        """Called in a child process, which has no I/O thread: end this copy of the session without sending anything."""
        self._running = False
        self.transport.on_forked(core)
        self.core, self.lock = core, self.transport.lock
        self.changed = threading.Condition(self.lock)

    def wait(self, done: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Wait for a condition, evaluated under the lock; return its value."""
        with self.changed:
            self.changed.wait_for(lambda: done() or not self._running, timeout_s)
            return bool(done())

    def request(self, make: Callable[[object, float], object], timeout_s: float | None = None) -> bool:
        """Start a request of the core and wait until it completes; False after the timeout, SdkError if it fails."""
        completion = Completion()
        with self.changed:
            make(completion, self.clock())
            self.transport.perform()
            self.wait(lambda: completion.outcome is not None, timeout_s)
        outcome = completion.outcome
        if isinstance(outcome, Completed) and outcome.result is not Result.SUCCESS:
            raise SdkError(outcome.result, outcome.message)
        return outcome is not None

    def post(self, queue: Queue, payload: bytes, values: Mapping[str, object] | None = None,
             types: Mapping[str, PropertyType] | None = None, post: Post | None = None, wait_s: float = 0.0,
             check: Callable[[], object] = lambda: None) -> None:
        """Post; wait up to `wait_s` for room. `check` may raise after each wait."""
        end = 0.0
        with self.changed:
            while True:
                now = self.clock()
                try:
                    self.core.post(queue, payload, now, values, types, post)
                    return
                except SdkError as error:
                    end = end or now + wait_s
                    if error.result is not Result.BW_LIMIT or now >= end:
                        raise
                self.changed.wait(end - now)
                check()

    def end_thread(self) -> None:
        """End the thread without a disconnect request. Callable from any thread, with or without the lock."""
        self._running = False
        self.transport.interrupt_step()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended; return at once in the thread itself."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while self._running:
                self.transport.step()
                self._on_step()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._running = False
            self.transport.dispose()
            with self.changed:
                self.changed.notify_all()

    def _dispatch(self, effect: object) -> None:
        if isinstance(effect, (Completed, Ack)) and isinstance(effect.token, Completion):
            effect.token.outcome = effect
            self.changed.notify_all()
        elif isinstance(effect, RoomAvailable):
            self.changed.notify_all()
        else:
            self._on_effect(effect)
