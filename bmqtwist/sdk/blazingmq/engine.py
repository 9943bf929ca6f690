"""What works for one session of the official interface: a core with its thread, and the thread that calls the application
back.

The threads hold the engine and never the session, so that a session which nobody holds any more is collected: the engine is
told (`abandon`), stops by itself, and delivers what was posted. At the exit of the program engines that still run are
stopped, each at the place in the order of exit handlers where its session was made.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from bmqtwist.errors import BmqError
from bmqtwist.sdk import message as sdk_message
from bmqtwist.sdk import results
from bmqtwist.sdk._adapters.threaded import ThreadedCore
from bmqtwist.sdk._adapters.transport import TransportFactory
from bmqtwist.sdk._core.states import State
from bmqtwist.sdk.blazingmq import session_events as events
from bmqtwist.sdk.blazingmq.errors import STOPPED, confirm_error
from bmqtwist.sdk.blazingmq.exceptions import Error
from bmqtwist.sdk.blazingmq.values import Message, MessageHandle, make_ack, make_handle, make_message
from bmqtwist.sdk.health import HealthMonitor
from bmqtwist.sdk.options import SessionOptions
from bmqtwist.sdk.results import EventKind, Result, SdkError

LOG = logging.getLogger("blazingmq.session")
LOG.addHandler(logging.NullHandler())
_EVENTS = {
    EventKind.CONNECTED: events.Connected, EventKind.DISCONNECTED: events.Disconnected,
    EventKind.CONNECTION_LOST: events.ConnectionLost, EventKind.RECONNECTED: events.Reconnected,
    EventKind.STATE_RESTORED: events.StateRestored, EventKind.CONNECTION_TIMEOUT: events.ConnectionTimeout,
    EventKind.SLOWCONSUMER_NORMAL: events.SlowConsumerNormal,
    EventKind.SLOWCONSUMER_HIGHWATERMARK: events.SlowConsumerHighWaterMark,
    EventKind.HOST_UNHEALTHY: events.HostUnhealthy, EventKind.HOST_HEALTH_RESTORED: events.HostHealthRestored,
    EventKind.ERROR: events.Error,
}
_EVENTS_OF_QUEUES = {
    EventKind.QUEUE_REOPEN_RESULT: (events.QueueReopened, events.QueueReopenFailed),
    EventKind.QUEUE_SUSPENDED: (events.QueueSuspended, events.QueueSuspendFailed),
    EventKind.QUEUE_RESUMED: (events.QueueResumed, events.QueueResumeFailed),
}
UNSTOPPED = "stop() not invoked before destruction of Session<{}> object"


class Engine(ThreadedCore):
    """Runs one session core. `started`: the application has not stopped the session."""

    def __init__(self, options: SessionOptions, make_transport: TransportFactory,
                 on_session_event: Callable[[events.SessionEvent], object],
                 on_message: Callable[[Message, MessageHandle], object] | None, health: HealthMonitor | None) -> None:
        self._on_session_event, self._on_message = on_session_event, on_message
        self._calls: SimpleQueue[tuple[Callable[[Any], object], Any] | None] = SimpleQueue()
        super().__init__(options, self._call_back, make_transport=make_transport, step_done=self._look)
        self.transport.logger = LOG
        self.started: bool = True
        self._abandoned = self._stopping = False
        self._process = os.getpid()
        self._forget_health: Callable[[], None] = lambda: None
        if health is not None:
            self._set_health(health.healthy)
            self._forget_health = health.listen(self._set_health)
        self._caller = threading.Thread(target=self._call, name="bmqtwist-callbacks", daemon=True)
        self.start()
        self._caller.start()
        try:
            self.request(self.core.start)
        except BaseException:
            self.started = False
            self._end()
            raise
        self._exit_handler = partial(_at_exit, weakref.ref(self))
        atexit.register(self._exit_handler)

    # -- for the session --------------------------------------------------------------------------------------------

    def wait_for_callbacks(self) -> None:
        """Wait until all callbacks that are due by now have returned, unless this is one of them."""
        if threading.current_thread() is not self._caller:
            called = threading.Event()
            self._calls.put((_set, called))
            while not called.wait(1.0) and self._caller.is_alive():
                pass

    def stop(self) -> None:
        """Wait for acknowledgements a little, disconnect; no callback is running after this, but the one it is called
        from."""
        with self.lock:
            started, self.started = self.started, False
            self.changed.notify_all()
        if started:
            self.request(self.core.stop)
            self._end()

    def abandon(self) -> None:
        """Nobody holds the session any more: stop, some time. Called wherever that was noticed, so without a lock."""
        if self.started and self._process == os.getpid():
            self._abandoned, self.started = True, False
            warnings.warn(UNSTOPPED.format(hex(id(self))), UserWarning, stacklevel=3)
            self.transport.poke()

    def stop_at_exit(self) -> None:
        """The program ends: deliver what was posted. Not in a child process, whose parent has the threads."""
        if self._process != os.getpid():
            return
        if self.started:
            warnings.warn(UNSTOPPED.format(hex(id(self))), UserWarning, stacklevel=2)
        failed = self.core.counters().nacked
        if self._abandoned:
            self.join()
            self._caller.join()
        else:
            self.stop()
        lost = self.core.counters().nacked - failed
        if lost:
            warnings.warn(f"{lost} posts were not acknowledged before the program ended", UserWarning, stacklevel=2)

    def _set_health(self, healthy: bool) -> None:
        with self.lock:
            self.core.set_health(healthy, self.clock())

    def _end(self) -> None:
        """Nothing moves any more."""
        self._forget_health()
        self.end()
        self._calls.put(None)
        self.join()
        if threading.current_thread() is not self._caller:
            self._caller.join()
        if hasattr(self, "_exit_handler"):
            atexit.unregister(self._exit_handler)

    # -- the threads ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """After each step: is the session abandoned, and over with that?"""
        if self._abandoned and not self._stopping:
            self._stopping = True
            with self.lock:
                self.core.stop(None, self.clock())
                self.transport.perform()
        if self._stopping and self.core.state is State.STOPPED:
            self._end()

    def _call_back(self, effect: object) -> None:
        """Callbacks go to their thread."""
        if isinstance(effect, sdk_message.Message):
            self._calls.put((self._give_message, effect))
        elif isinstance(effect, results.Ack):
            if effect.token is not None:
                self._calls.put((self._give_ack, effect))
        elif isinstance(effect, results.SessionEvent):
            self._calls.put((self._give_event, effect))

    def _call(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call[0](call[1])
            except Exception as error:  # noqa: BLE001 - the application's own: it is printed as of a main program
                sys.excepthook(type(error), error, error.__traceback__)
                del error
            del call  # what was called may be of no use to anybody else

    def _give_message(self, message: sdk_message.Message) -> None:
        with self.lock:
            self.core.consumed(1)
        if self._on_message is not None:
            try:
                given = make_message(message)
            except BmqError as error:  # it cannot be read: as the official library, say so and go on
                self._on_session_event(events.Error(f"message {message.guid.hex().upper()}: {error}"))
                return
            self._on_message(given, make_handle(given, self.confirm))

    def confirm(self, message: Message) -> None:
        """Done with a message."""
        with self.lock:
            if self.core.state is State.STOPPED:
                raise Error(STOPPED)
            try:
                self.core.confirm(message._message)
            except SdkError as error:
                raise confirm_error(error, message.guid) from error

    def _give_ack(self, ack: results.Ack) -> None:
        ack.token(make_ack(ack))  # type: ignore[operator]

    def _give_event(self, event: results.SessionEvent) -> None:
        failed = event.result is not Result.SUCCESS
        text = None
        if failed or event.kind is EventKind.ERROR:
            text = ": ".join(part for part in (event.result.value if failed else "", event.message) if part)
        if event.kind in _EVENTS_OF_QUEUES:
            self._on_session_event(_EVENTS_OF_QUEUES[event.kind][failed](event.uri, text))
        elif event.kind in _EVENTS:
            self._on_session_event(_EVENTS[event.kind](text))


def _set(event: threading.Event) -> None:
    event.set()


def _at_exit(reference: weakref.ref[Engine]) -> None:
    engine = reference()
    if engine is not None:
        with contextlib.suppress(SdkError):
            engine.stop_at_exit()
