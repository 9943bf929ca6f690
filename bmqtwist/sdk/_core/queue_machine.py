"""Queue state machine of a session, and the queue requests of the application.

`Queues` checks requests of the application (timeouts, URIs, duplicates) and passes connection events to all queues;
`QueueMachine` executes the transitions of the table `QUEUE`: open, close, and reopen after a reconnect. Opening has two
phases: openQueue, then for readers a configure request. Closing has the same phases in reverse order.
`queue_configuration` configures open queues. `session.py` passes requests of the application and events of the
connection to `Queues`. Timeouts are declared in `options.py`, states and inputs in `states.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

from bmqtwist.ids import parse_uri
from bmqtwist.machine import Cell, check, table, to
from bmqtwist.sdk._core.deliveries import Deliveries
from bmqtwist.sdk._core.outbox import SharedParts
from bmqtwist.sdk._core.posts import Posts
from bmqtwist.sdk._core.queue import FLAG_READ, FLAG_WRITE, Queue, QueueRegistry
from bmqtwist.sdk._core.queue_configuration import QueueConfiguration
from bmqtwist.sdk._core.requests import OnAnswer, Requests
from bmqtwist.sdk._core.states import Input, QueueInput, QueueState, ignore
from bmqtwist.sdk.options import QueueOptions
from bmqtwist.sdk.results import EventKind, Result, SdkError
from bmqtwist.wire import schema

ROUTING_AT_MOST_ONCE = 1
ROUTING_UNREGISTERED_APP = 1 << 32  # extension of this broker


class QueueMachine:
    """Executes the transitions of `QUEUE` for all queues of a session."""

    def __init__(self, shared: SharedParts, requests: Requests, configuration: QueueConfiguration, posts: Posts) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self.registry: QueueRegistry = requests.registry
        self.requests, self.configuration, self._posts = requests, configuration, posts
        self._cause = QueueInput.CONNECTED

    def feed(self, queue: Queue, event: QueueInput, result: Result = Result.SUCCESS, message: str = "",
             value: Any = None) -> None:
        """Execute the transition for the state and this input. `value`: of a successful response."""
        before, outer, self._cause = queue.state, self._cause, event
        try:
            QUEUE[before][event].action(self, queue, result, message, value)
        finally:
            self._cause = outer
            check(QUEUE, before, event, queue.state)

    def _enter(self, queue: Queue, state: QueueState, why: str = "") -> None:
        queue.history.record(self._deadlines.now, queue.state.value, state.value, why or self._cause.value,
                             self._cause.value)
        queue.state = state

    def _on_answer(self, queue: Queue) -> OnAnswer:
        """Return the callback for the answer to the request of a phase."""
        return lambda result, message, value: self.feed(
            queue, QueueInput.GRANTED if result is Result.SUCCESS else QueueInput.REFUSED, result, message, value)

    def on_timeout(self, queue: Queue) -> None:
        self.feed(queue, QueueInput.TIMED_OUT, Result.TIMEOUT, "no answer in time")

    def _log_warning(self, queue: Queue, problem: str, result: Result, message: str) -> None:
        self._outbox.log(WARNING, f"{queue.uri} {problem}: {result} {message}".rstrip())

    def _finish_restore(self, queue: Queue) -> None:
        restoring = self.registry.restoring
        if queue in restoring:
            restoring.discard(queue)
            if not restoring:
                self._state.feed(Input.RESTORED)

    # -- opening ----------------------------------------------------------------------------------------------------

    def send_open(self, queue: Queue, *_: object) -> None:
        if self.requests.is_unsupported(queue, queue.options):
            self.fail_open(queue, Result.NOT_SUPPORTED, "the broker does not support subscriptions")
            return
        self._enter(queue, QueueState.OPENING)
        self.requests.open(queue, self._on_answer(queue))

    def _read_response(self, queue: Queue, value: Any) -> None:
        if isinstance(value, schema.OpenQueueResponse):
            flags = value.routing_configuration.flags
            queue.at_most_once = bool(flags & ROUTING_AT_MOST_ONCE)
            if flags & ROUTING_UNREGISTERED_APP:
                self._outbox.log(WARNING, f"{queue.uri}: the app is not registered in the domain: it receives no messages "
                                           "until an operator adds it")
            queue.deduplication_s = value.deduplication_time_ms / 1000

    def on_open_response(self, queue: Queue, _: Result, message: str, value: Any) -> None:
        """Complete phase one of opening or reopening; start phase two for a reader, unless it is paused or suspended."""
        self._read_response(queue, value)
        if queue.readable and not queue.paused and not self.configuration.must_suspend(queue):
            reopening = queue.state is QueueState.REOPENING
            self._enter(queue, QueueState.RECONFIGURING if reopening else QueueState.CONFIGURING)
            self.requests.configure(queue, queue.options.effective(), self._on_answer(queue))
        else:
            self.complete_open(queue)

    def complete_open(self, queue: Queue, *_: object) -> None:
        reopened = queue.state in (QueueState.REOPENING, QueueState.RECONFIGURING)
        self.requests.commit_routes(queue)
        self._deadlines.clear((queue, "step"))
        self._enter(queue, QueueState.OPEN)
        token, queue.token = queue.token, None
        self._outbox.complete(token)
        if reopened:
            self._outbox.event(EventKind.QUEUE_REOPEN_RESULT, queue=queue)
        self.configuration.on_open(queue)
        self._finish_restore(queue)
        if queue.close_tokens:
            self.start_close(queue)
        else:
            self.configuration.send_next(queue)

    def complete_close(self, queue: Queue, result: Result = Result.SUCCESS, message: str = "", *_: object) -> None:
        """Close the queue in this session, and complete all its requests and posts."""
        self._enter(queue, QueueState.CLOSED, message)
        self.registry.remove(queue)
        self.requests.remove_routes(queue)
        self._deadlines.clear((queue, "step"))
        self.configuration.cancel_requests(queue, "the queue was closed")
        self._posts.fail_all(queue)
        tokens, queue.close_tokens = queue.close_tokens, []
        for token in tokens:
            self._outbox.complete(token, result, message)
        self._finish_restore(queue)
        self.configuration.finish_resume(queue)

    def fail_open(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        if result is not Result.CANCELED:
            self._log_warning(queue, "was not opened", result, message)
        token, queue.token = queue.token, None
        self.complete_close(queue)
        self._outbox.complete(token, result, message)

    def cancel_open(self, queue: Queue, *_: object) -> None:
        self.fail_open(queue, Result.CANCELED, "closed by the application")

    def fail_open_and_reset(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """Fail the open and reconnect: without an answer the state at the broker is unknown."""
        self.fail_open(queue, result, message)
        self._state.feed(Input.LOST, f"no answer to openQueue for {queue.uri}")

    def roll_back_open(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """Phase two was refused: close the handle that phase one opened."""
        self.requests.close(queue)
        self.fail_open(queue, result, message)

    def defer_open(self, queue: Queue, *_: object) -> None:
        """Connection lost: repeat the open on the next connection; its timeout continues."""
        self.requests.remove_routes(queue)
        self._enter(queue, QueueState.OPEN_PENDING)

    # -- reopening --------------------------------------------------------------------------------------------------

    def defer_reopen(self, queue: Queue, *_: object) -> None:
        """Connection lost: reopen on the next connection, and repeat a change of options in progress."""
        self.requests.remove_routes(queue)
        self._deadlines.clear((queue, "step"))
        self.configuration.on_connection_lost(queue)
        self._enter(queue, QueueState.REOPEN_PENDING)
        if queue.close_tokens:
            self.complete_close(queue)

    def send_reopen(self, queue: Queue, *_: object) -> None:
        self._deadlines.set_after((queue, "step"), self._options.open_timeout_s)
        self._enter(queue, QueueState.REOPENING)
        self.requests.open(queue, self._on_answer(queue))

    def fail_reopen(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """Close a queue that the broker refuses to reopen. After TIMEOUT (no primary in time) reconnect instead."""
        if result is Result.TIMEOUT:
            self.reset_connection(queue)
            return
        self._log_warning(queue, "was not reopened and is closed", result, message)
        self._outbox.event(EventKind.QUEUE_REOPEN_RESULT, result, message, queue)
        self.complete_close(queue)

    def roll_back_reopen(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        if result is not Result.TIMEOUT:
            self.requests.close(queue)
        self.fail_reopen(queue, result, message)

    def reset_connection(self, queue: Queue, *_: object) -> None:
        """Reconnect after a reopen without an answer; the queue is reopened on the next connection."""
        self._state.feed(Input.LOST, f"no answer while reopening {queue.uri}")

    # -- closing ----------------------------------------------------------------------------------------------------

    def start_close(self, queue: Queue, *_: object) -> None:
        self._deadlines.set_after((queue, "step"), self._options.close_timeout_s)
        if queue.readable and queue.routes:
            self._enter(queue, QueueState.DECONFIGURING)
            self.requests.configure(queue, (), self._on_answer(queue))
        else:
            self.send_close(queue)

    def send_close(self, queue: Queue, *_: object) -> None:
        self.requests.remove_routes(queue)
        self._enter(queue, QueueState.CLOSING)
        self.requests.close(queue, self._on_answer(queue))

    def on_close_refused(self, queue: Queue, result: Result, message: str, *_: object) -> None:
        self._log_warning(queue, "is closed, but the broker refused the request", result, message)
        self.complete_close(queue, result, message)

    def fail_close_and_reset(self, queue: Queue, result: Result, message: str, *_: object) -> None:
        self._log_warning(queue, "is closed locally", result, message)
        self.complete_close(queue, result, message)
        self._state.feed(Input.LOST, f"no answer to closeQueue for {queue.uri}")

    def raise_closing(self, queue: Queue, *_: object) -> None:
        raise SdkError(Result.ALREADY_IN_PROGRESS, f"{queue.uri} is being closed")

    def raise_closed(self, queue: Queue, *_: object) -> None:
        raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is closed")


Cells = Mapping[QueueInput, Cell[QueueState]]
_IGNORED: Cells = dict.fromkeys(QueueInput, to(ignore))
_S, _I, _M = QueueState, QueueInput, QueueMachine
_CANCEL: Cells = {_I.CLOSE: to(_M.cancel_open, _S.CLOSED), _I.CLOSE_LOCALLY: to(_M.cancel_open, _S.CLOSED)}
_CLOSED: Cells = {_I.CLOSE: to(_M.complete_close, _S.CLOSED), _I.CLOSE_LOCALLY: to(_M.complete_close, _S.CLOSED)}
_OPENING: Cells = {**_IGNORED, _I.TIMED_OUT: to(_M.fail_open_and_reset, _S.CLOSED),
                   _I.LOST: to(_M.defer_open, _S.OPEN_PENDING), **_CANCEL,
                   _I.CLOSE: to(ignore)}  # deferred in `close_tokens` until the queue is open
_REOPENING: Cells = {**_IGNORED, _I.TIMED_OUT: to(_M.reset_connection, _S.REOPEN_PENDING, _S.CLOSED),
                     _I.LOST: to(_M.defer_reopen, _S.REOPEN_PENDING, _S.CLOSED), **_CLOSED, _I.CLOSE: to(ignore)}
_CLOSING: Cells = {**_IGNORED, _I.TIMED_OUT: to(_M.fail_close_and_reset, _S.CLOSED),
                   _I.LOST: to(_M.complete_close, _S.CLOSED),
                   _I.CLOSE: to(_M.raise_closing), _I.CLOSE_LOCALLY: to(_M.raise_closing)}
_OPENED = (_S.OPEN, _S.DECONFIGURING, _S.CLOSING)  # open; or closing, after a deferred close

_ROWS: dict[QueueState, Cells] = {
    _S.OPEN_PENDING: {**_IGNORED, _I.CONNECTED: to(_M.send_open, _S.OPENING, _S.CLOSED),
                      _I.TIMED_OUT: to(_M.fail_open, _S.CLOSED), **_CANCEL},
    _S.OPENING: {**_OPENING, _I.GRANTED: to(_M.on_open_response, _S.CONFIGURING, *_OPENED),
                 _I.REFUSED: to(_M.fail_open, _S.CLOSED)},
    _S.CONFIGURING: {**_OPENING, _I.GRANTED: to(_M.complete_open, *_OPENED), _I.REFUSED: to(_M.roll_back_open, _S.CLOSED)},
    _S.OPEN: {**_IGNORED, _I.LOST: to(_M.defer_reopen, _S.REOPEN_PENDING, _S.CLOSED),
              _I.CLOSE: to(_M.start_close, _S.DECONFIGURING, _S.CLOSING),
              _I.CLOSE_LOCALLY: to(_M.complete_close, _S.CLOSED)},
    _S.REOPEN_PENDING: {**_IGNORED, _I.CONNECTED: to(_M.send_reopen, _S.REOPENING), **_CLOSED},
    _S.REOPENING: {**_REOPENING, _I.GRANTED: to(_M.on_open_response, _S.RECONFIGURING, *_OPENED),
                   _I.REFUSED: to(_M.fail_reopen, _S.CLOSED, _S.REOPEN_PENDING)},
    _S.RECONFIGURING: {**_REOPENING, _I.GRANTED: to(_M.complete_open, *_OPENED),
                       _I.REFUSED: to(_M.roll_back_reopen, _S.CLOSED, _S.REOPEN_PENDING)},
    _S.DECONFIGURING: {**_CLOSING, _I.GRANTED: to(_M.send_close, _S.CLOSING), _I.REFUSED: to(_M.send_close, _S.CLOSING)},
    _S.CLOSING: {**_CLOSING, _I.GRANTED: to(_M.complete_close, _S.CLOSED), _I.REFUSED: to(_M.on_close_refused, _S.CLOSED)},
    _S.CLOSED: {**_IGNORED, _I.CLOSE: to(_M.raise_closed), _I.CLOSE_LOCALLY: to(_M.raise_closed)},
}
QUEUE = table(QueueState, QueueInput, _ROWS)


def _checked_timeout(given: float | None, default: float) -> float:
    """Return the timeout of a request, seconds; SdkError INVALID_ARGUMENT unless it is positive."""
    if given is not None and not given > 0:
        raise SdkError(Result.INVALID_ARGUMENT, f"timeout_s {given}: must be greater than 0")
    return default if given is None else given


class Queues:
    """Queue requests of the application, and connection events for all queues."""

    def __init__(self, shared: SharedParts, machine: QueueMachine, deliveries: Deliveries) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self.registry: QueueRegistry = machine.registry
        self._machine, self._configuration, self._deliveries = machine, machine.configuration, deliveries

    # -- the application --------------------------------------------------------------------------------------------

    def open(self, uri: str, token: object, now: float, *, read: bool = False, write: bool = False,
             queue_options: QueueOptions | None = None, timeout_s: float | None = None) -> Queue:
        """Open a queue, now or on the next connection; the result completes `token`."""
        self._deadlines.now = now
        seconds = _checked_timeout(timeout_s, self._options.open_timeout_s)
        target = parse_uri(uri)
        if not (read or write):
            raise SdkError(Result.INVALID_ARGUMENT, f"{uri}: open it for reading, for writing, or both")
        known = self.registry.by_uri.get(uri)
        if known is not None:
            raise SdkError(Result.ALREADY_OPENED if known.is_open else Result.ALREADY_IN_PROGRESS, uri)
        online = self._state.feed(Input.REQUEST)
        flags = (FLAG_READ if read else 0) | (FLAG_WRITE if write else 0)
        queue = self.registry.add(uri, target, flags, queue_options or QueueOptions(), self._deliveries, token)
        self._deadlines.set_after((queue, "step"), seconds)
        if online:
            self._machine.feed(queue, QueueInput.CONNECTED)
        return queue

    def _configure_timeout_s(self, queue: Queue, now: float, timeout_s: float | None) -> float:
        """Return the timeout of a configure request, seconds; SdkError if the queue is not open."""
        self._deadlines.now = now
        seconds = _checked_timeout(timeout_s, self._options.configure_timeout_s)
        if not queue.is_open:
            raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is not open")
        self._state.feed(Input.REQUEST)
        return seconds

    def configure(self, queue: Queue, queue_options: QueueOptions, token: object, now: float,
                  timeout_s: float | None = None) -> None:
        self._configuration.configure(queue, queue_options, token, self._configure_timeout_s(queue, now, timeout_s))

    def pause(self, queue: Queue, paused: bool, token: object, now: float, timeout_s: float | None = None) -> None:
        self._configuration.pause(queue, paused, token, self._configure_timeout_s(queue, now, timeout_s))

    def close(self, queue: Queue, token: object, now: float, timeout_s: float | None = None) -> None:
        """Close a queue; without a connection this completes at once."""
        self._deadlines.now = now
        seconds = _checked_timeout(timeout_s, self._options.close_timeout_s)
        self._state.feed(Input.CLOSE, queue, token)
        if timeout_s is not None and queue.state in (QueueState.DECONFIGURING, QueueState.CLOSING):
            self._deadlines.set_after((queue, "step"), seconds)

    def accept_online(self) -> bool:
        """Accept a request with a connection; True: it is sent at once."""
        return True

    def accept_offline(self) -> bool:
        """Accept a request without a connection; False: it is sent on the next connection."""
        return False

    def refuse_request(self) -> bool:
        raise SdkError(Result.NOT_CONNECTED, "the session is stopped")

    def close_remotely(self, queue: Queue, token: object, event: QueueInput = QueueInput.CLOSE) -> None:
        queue.close_tokens.append(token)
        try:
            self._machine.feed(queue, event)
        except SdkError:
            queue.close_tokens.pop()
            raise

    def close_locally(self, queue: Queue, token: object) -> None:
        self.close_remotely(queue, token, QueueInput.CLOSE_LOCALLY)

    # -- the connection ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.registry.by_uri)

    def on_connected(self, has_configure_stream: bool) -> bool:
        """Open and reopen the queues. Return True if none is reopened; else the last reopened one causes RESTORED."""
        self._machine.requests.has_configure_stream = has_configure_stream
        queues = self.registry.all()
        self.registry.restoring = {queue for queue in queues if queue.state is QueueState.REOPEN_PENDING}
        for queue in queues:
            self._machine.feed(queue, QueueInput.CONNECTED)
        return not self.registry.restoring

    def on_connection_lost(self) -> None:
        self.registry.restoring.clear()
        for queue in self.registry.all():
            self._machine.feed(queue, QueueInput.LOST)

    def on_stopping(self) -> None:
        """Close the queues that are not open. Open ones stay open for their posts, without configure requests."""
        self.registry.restoring.clear()
        for queue in self.registry.all():
            if queue.state not in (QueueState.OPEN, QueueState.DECONFIGURING, QueueState.CLOSING):
                self._machine.feed(queue, QueueInput.CLOSE_LOCALLY)
            else:
                self._configuration.cancel_requests(queue, "the session is stopping")

    def on_stopped(self) -> None:
        for queue in self.registry.all():
            token, queue.token = queue.token, None
            self._outbox.complete(token, Result.CANCELED, "the session was stopped")
            self._machine.feed(queue, QueueInput.LOST)
            if queue.state is not QueueState.CLOSED:
                self._machine.feed(queue, QueueInput.CLOSE_LOCALLY)
