"""What the application asks of queues, and what the connection does to all of them at once."""

from __future__ import annotations

from bmqtwist.ids import parse_uri
from bmqtwist.sdk._core.deliveries import Deliveries
from bmqtwist.sdk._core.queue import FLAG_READ, FLAG_WRITE, Queue, QueueRegistry
from bmqtwist.sdk._core.queue_machine import QueueMachine
from bmqtwist.sdk._core.session_state import Shared
from bmqtwist.sdk._core.states import Input, QueueInput, QueueState
from bmqtwist.sdk.options import QueueOptions
from bmqtwist.sdk.results import Result, SdkError


def _seconds(given: float | None, default: float) -> float:
    """How long a request may take; SdkError INVALID_ARGUMENT for what would be over before it began."""
    if given is not None and not given > 0:
        raise SdkError(Result.INVALID_ARGUMENT, f"timeout_s {given}: must be greater than 0")
    return default if given is None else given


class Queues:
    """All queues of a session."""

    def __init__(self, shared: Shared, machine: QueueMachine, deliveries: Deliveries) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self.registry: QueueRegistry = machine.registry
        self._machine, self._settings, self._deliveries = machine, machine.settings, deliveries

    # -- the application --------------------------------------------------------------------------------------------

    def open(self, uri: str, token: object, now: float, *, read: bool = False, write: bool = False,
             queue_options: QueueOptions | None = None, timeout_s: float | None = None) -> Queue:
        """Open a queue, now or once there is a connection; `token` is completed when that is done."""
        self._deadlines.now = now
        seconds = _seconds(timeout_s, self._options.open_timeout_s)
        target = parse_uri(uri)
        if not (read or write):
            raise SdkError(Result.INVALID_ARGUMENT, f"{uri}: open it for reading, for writing, or both")
        known = self.registry.by_uri.get(uri)
        if known is not None:
            raise SdkError(Result.ALREADY_OPENED if known.is_open else Result.ALREADY_IN_PROGRESS, uri)
        online = self._state.feed(Input.REQUEST)
        flags = (FLAG_READ if read else 0) | (FLAG_WRITE if write else 0)
        queue = self.registry.make(uri, target, flags, queue_options or QueueOptions(), self._deliveries, token)
        self._deadlines.after((queue, "step"), seconds)
        if online:
            self._machine.feed(queue, QueueInput.CONNECTED)
        return queue

    def _setting_seconds(self, queue: Queue, now: float, timeout_s: float | None) -> float:
        """How long a change of an open queue may take; SdkError if there can be none."""
        self._deadlines.now = now
        seconds = _seconds(timeout_s, self._options.configure_timeout_s)
        if not queue.is_open:
            raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is not open")
        self._state.feed(Input.REQUEST)
        return seconds

    def configure(self, queue: Queue, queue_options: QueueOptions, token: object, now: float,
                  timeout_s: float | None = None) -> None:
        """Change how a queue is read."""
        self._settings.configure(queue, queue_options, token, self._setting_seconds(queue, now, timeout_s))

    def pause(self, queue: Queue, paused: bool, token: object, now: float, timeout_s: float | None = None) -> None:
        """Have no deliveries, or have them again."""
        self._settings.pause(queue, paused, token, self._setting_seconds(queue, now, timeout_s))

    def close(self, queue: Queue, token: object, now: float, timeout_s: float | None = None) -> None:
        """Close a queue; without a connection that is done at once."""
        self._deadlines.now = now
        seconds = _seconds(timeout_s, self._options.close_timeout_s)
        self._state.feed(Input.CLOSE, queue, token)
        if timeout_s is not None and queue.state in (QueueState.DECONFIGURING, QueueState.CLOSING):
            self._deadlines.after((queue, "step"), seconds)

    def transmit(self) -> bool:
        return True

    def hold(self) -> bool:
        return False

    def refuse_request(self) -> bool:
        raise SdkError(Result.NOT_CONNECTED, "the session is stopped")

    def close_remotely(self, queue: Queue, token: object) -> None:
        self._machine.feed(queue, QueueInput.CLOSE, token=token)

    def close_locally(self, queue: Queue, token: object) -> None:
        self._machine.feed(queue, QueueInput.CLOSE_LOCALLY, token=token)

    # -- the connection ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.registry.by_uri)

    def connected(self, has_configure_stream: bool) -> bool:
        """Send what waits for a connection; are all queues back with that? Else RESTORED is fed when they are."""
        self._machine.requests.has_configure_stream = has_configure_stream
        queues = self.registry.all()
        self.registry.restoring = {queue for queue in queues if queue.state is QueueState.REOPEN_HELD}
        for queue in queues:
            self._machine.feed(queue, QueueInput.CONNECTED)
        return not self.registry.restoring

    def lost(self) -> None:
        """The connection is gone: keep everything."""
        self.registry.restoring.clear()
        for queue in self.registry.all():
            self._machine.feed(queue, QueueInput.LOST)

    def stopping(self) -> None:
        """The session is about to leave: only queues that are open stay so, for their posts."""
        self.registry.restoring.clear()
        for queue in self.registry.all():
            if queue.state not in (QueueState.OPEN, QueueState.DECONFIGURING, QueueState.CLOSING):
                self._machine.feed(queue, QueueInput.CLOSE_LOCALLY)
            else:
                self._settings.cancel(queue, "the session is stopping")

    def stopped(self) -> None:
        """The session is over: no queue stays open."""
        for queue in self.registry.all():
            token, queue.token = queue.token, None
            self._outbox.complete(token, Result.CANCELED, "the session was stopped")
            self._machine.feed(queue, QueueInput.LOST)
            if queue.state is not QueueState.CLOSED:
                self._machine.feed(queue, QueueInput.CLOSE_LOCALLY)
