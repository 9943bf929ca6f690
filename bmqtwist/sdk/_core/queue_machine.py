"""The machine that opens, reopens and closes queues: `QUEUE` says what is done with which input in which state.

A queue is opened in two phases, openQueue and for readers a configuration, and closed in two, the other way round. What is
configured while it is open is the business of `queue_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

from bmqtwist.machine import Cell, check, table, to
from bmqtwist.sdk._core.posts import Posts
from bmqtwist.sdk._core.queue import Queue, QueueRegistry
from bmqtwist.sdk._core.queue_settings import QueueSettings
from bmqtwist.sdk._core.requests import Answer, OnAnswer, QueueRequests
from bmqtwist.sdk._core.session_state import Shared, ignore
from bmqtwist.sdk._core.states import Input, QueueInput, QueueState
from bmqtwist.sdk.results import EventKind, Result, SdkError
from bmqtwist.wire import schema

ROUTING_AT_MOST_ONCE = 1
ROUTING_UNREGISTERED_APP = 1 << 32  # of our broker alone


class QueueMachine:
    """Performs the cells of `QUEUE` for all queues of a session."""

    def __init__(self, shared: Shared, requests: QueueRequests, settings: QueueSettings, posts: Posts) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self.registry: QueueRegistry = requests.registry
        self.requests, self.settings, self._posts = requests, settings, posts
        self._cause = QueueInput.CONNECTED

    def feed(self, queue: Queue, what: QueueInput, result: Result = Result.SUCCESS, message: str = "",
             value: Any = None, token: object = None) -> None:
        """Let something happen to a queue. `value`: what a request was granted with; `token`: of a close."""
        before, outer, self._cause = queue.state, self._cause, what
        try:
            QUEUE[before][what].action(self, queue, result, message, value, token)
        finally:
            self._cause = outer
            check(QUEUE, before, what, queue.state)

    def _enter(self, queue: Queue, state: QueueState, why: str = "") -> None:
        queue.history.note(self._deadlines.now, queue.state.value, state.value, why or self._cause.value, self._cause.value)
        queue.state = state

    def _hears(self, queue: Queue) -> OnAnswer:
        """Who hears the answer to the request of a phase."""
        def answered(answer: Answer) -> None:
            what = QueueInput.GRANTED if answer.result is Result.SUCCESS else QueueInput.REFUSED
            self.feed(queue, what, answer.result, answer.message, answer.value)
        return answered

    def due(self, queue: Queue) -> None:
        """A phase took too long."""
        self.feed(queue, QueueInput.TIMED_OUT, Result.TIMEOUT, "no answer in time")

    def _warn(self, queue: Queue, what: str, result: Result, message: str) -> None:
        self._outbox.note(WARNING, f"{queue.uri} {what}: {result} {message}".rstrip())

    def _restored(self, queue: Queue) -> None:
        """A queue is back, or will not come back."""
        restoring = self.registry.restoring
        if queue in restoring:
            restoring.discard(queue)
            if not restoring:
                self._state.feed(Input.RESTORED)

    # -- opening ----------------------------------------------------------------------------------------------------

    def send_open(self, queue: Queue, *_: object) -> None:
        """Phase one."""
        if self.requests.lacks(queue, queue.options):
            self.fail_open(queue, Result.NOT_SUPPORTED, "the broker does not know subscriptions")
            return
        self._enter(queue, QueueState.OPENING)
        self.requests.open(queue, self._hears(queue))

    def _granted(self, queue: Queue, value: Any) -> None:
        if isinstance(value, schema.OpenQueueResponse):
            flags = value.routing_configuration.flags
            queue.at_most_once = bool(flags & ROUTING_AT_MOST_ONCE)
            if flags & ROUTING_UNREGISTERED_APP:
                self._outbox.note(WARNING, f"{queue.uri}: the domain does not name this app: it gets no messages until "
                                           "an operator adds it")
            queue.deduplication_s = value.deduplication_time_ms / 1000

    def opened(self, queue: Queue, _: Result, message: str, value: Any, token: object) -> None:
        """Phase one of opening or reopening succeeded. Phase two is for readers, and not while the host is unhealthy or the
        application has paused them."""
        self._granted(queue, value)
        if queue.readable and not queue.paused and not self.settings.suspends(queue):
            again = queue.state is QueueState.REOPENING
            self._enter(queue, QueueState.RECONFIGURING if again else QueueState.CONFIGURING)
            self.requests.configure(queue, queue.options.effective(), self._hears(queue))
        else:
            self.open_complete(queue)

    def open_complete(self, queue: Queue, *_: object) -> None:
        """The queue is open, for the first time or as before the loss."""
        again = queue.state in (QueueState.REOPENING, QueueState.RECONFIGURING)
        self.requests.commit(queue)
        self._deadlines.clear((queue, "step"))
        self._enter(queue, QueueState.OPEN)
        token, queue.token = queue.token, None
        self._outbox.complete(token)
        if again:
            self._outbox.event(EventKind.QUEUE_REOPEN_RESULT, queue=queue)
        self.settings.opened(queue)
        self._restored(queue)
        self._after_open(queue)

    def _after_open(self, queue: Queue) -> None:
        if queue.close_tokens:
            self.start_close(queue, Result.SUCCESS, "", None, None)
        else:
            self.settings.send_next(queue)

    def _end(self, queue: Queue, result: Result = Result.SUCCESS, message: str = "") -> None:
        """The queue is closed, however that came: nothing of it is left waiting."""
        self._enter(queue, QueueState.CLOSED, message)
        self.registry.forget(queue)
        self.requests.forget_routes(queue)
        self._deadlines.clear((queue, "step"))
        self.settings.cancel(queue, "the queue was closed")
        self._posts.fail_all(queue)
        tokens, queue.close_tokens = queue.close_tokens, []
        for token in tokens:
            self._outbox.complete(token, result, message)
        self._restored(queue)
        self.settings.health_settled(queue)

    def fail_open(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """The open ends with an error."""
        if result is not Result.CANCELED:
            self._warn(queue, "was not opened", result, message)
        token, queue.token = queue.token, None
        self._end(queue)
        self._outbox.complete(token, result, message)

    def cancel_open(self, queue: Queue, _result: Result, _message: str, _value: Any, token: object) -> None:
        """Closed before it was open."""
        queue.close_tokens.append(token)
        self.fail_open(queue, Result.CANCELED, "closed by the application")

    def fail_open_and_reset(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """No answer: what the broker holds is unknown, only a new connection is sure."""
        self.fail_open(queue, result, message)
        self._state.feed(Input.LOST, f"no answer to openQueue for {queue.uri}")

    def roll_back_open(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """Phase two was refused: give back what phase one took."""
        self.requests.close(queue, None)
        self.fail_open(queue, result, message)

    def hold_open(self, queue: Queue, *_: object) -> None:
        """The connection is gone: open from the start on the next one, within the same time."""
        self.requests.forget_routes(queue)
        self._enter(queue, QueueState.OPEN_HELD)

    # -- reopening --------------------------------------------------------------------------------------------------

    def hold_reopen(self, queue: Queue, *_: object) -> None:
        """The connection is gone: wait for the next one. A configuration under way is sent again then."""
        self.requests.forget_routes(queue)
        self._deadlines.clear((queue, "step"))
        self.settings.hold(queue)
        self._enter(queue, QueueState.REOPEN_HELD)
        if queue.close_tokens:
            self._end(queue)

    def send_reopen(self, queue: Queue, *_: object) -> None:
        """Phase one, with the ids it had."""
        self._deadlines.after((queue, "step"), self._options.open_timeout_s)
        self._enter(queue, QueueState.REOPENING)
        self.requests.open(queue, self._hears(queue))

    def fail_reopen(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """The broker does not want it any more; or had no primary for it in time, which is as if there were no answer."""
        if result is Result.TIMEOUT:
            self.reset(queue)
            return
        self._warn(queue, "was not reopened and is closed now", result, message)
        self._outbox.event(EventKind.QUEUE_REOPEN_RESULT, result, message, queue)
        self._end(queue)

    def roll_back_reopen(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """It was reopened and could not be configured."""
        if result is not Result.TIMEOUT:
            self.requests.close(queue, None)
        self.fail_reopen(queue, result, message)

    def reset(self, queue: Queue, *_: object) -> None:
        """No answer to a reopen: a new connection, and another try."""
        self._state.feed(Input.LOST, f"no answer while reopening {queue.uri}")

    # -- closing ----------------------------------------------------------------------------------------------------

    def close_later(self, queue: Queue, _result: Result, _message: str, _value: Any, token: object) -> None:
        queue.close_tokens.append(token)

    def start_close(self, queue: Queue, _result: Result, _message: str, _value: Any, token: object) -> None:
        """Phase one, for readers: no more deliveries."""
        if token is not None or not queue.close_tokens:
            queue.close_tokens.append(token)
        self._deadlines.after((queue, "step"), self._options.close_timeout_s)
        if queue.readable and queue.routes:
            self._enter(queue, QueueState.DECONFIGURING)
            self.requests.configure(queue, (), self._hears(queue))
        else:
            self.send_close(queue)

    def send_close(self, queue: Queue, *_: object) -> None:
        """Phase two."""
        self.requests.forget_routes(queue)
        self._enter(queue, QueueState.CLOSING)
        self.requests.close(queue, self._hears(queue))

    def closed(self, queue: Queue, _result: Result, _message: str, _value: Any, token: object) -> None:
        """Closed, at the broker or because there is none."""
        if token is not None:
            queue.close_tokens.append(token)
        self._end(queue)

    def close_refused(self, queue: Queue, result: Result, message: str, *_: object) -> None:
        """The broker says no; the queue is closed all the same."""
        self._warn(queue, "is closed, but the broker refused that", result, message)
        self._end(queue, result, message)

    def fail_close_and_reset(self, queue: Queue, result: Result, message: str, *_: object) -> None:
        """No answer to a close."""
        self._warn(queue, "is closed, without the broker", result, message)
        self._end(queue, result, message)
        self._state.feed(Input.LOST, f"no answer to closeQueue for {queue.uri}")

    def refuse_close(self, queue: Queue, *_: object) -> None:
        raise SdkError(Result.ALREADY_IN_PROGRESS, f"{queue.uri} is being closed")

    def already_closed(self, queue: Queue, *_: object) -> None:
        raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is closed")


Cells = Mapping[QueueInput, Cell[QueueState]]
_IGNORED: Cells = dict.fromkeys(QueueInput, to(ignore))
_S, _I, _M = QueueState, QueueInput, QueueMachine
_CANCEL: Cells = {_I.CLOSE: to(_M.cancel_open, _S.CLOSED), _I.CLOSE_LOCALLY: to(_M.cancel_open, _S.CLOSED)}
_CLOSED: Cells = {_I.CLOSE: to(_M.closed, _S.CLOSED), _I.CLOSE_LOCALLY: to(_M.closed, _S.CLOSED)}
_COMING: Cells = {**_IGNORED, _I.TIMED_OUT: to(_M.fail_open_and_reset, _S.CLOSED), _I.LOST: to(_M.hold_open, _S.OPEN_HELD),
                  **_CANCEL, _I.CLOSE: to(_M.close_later)}
_BACK: Cells = {**_IGNORED, _I.TIMED_OUT: to(_M.reset, _S.REOPEN_HELD, _S.CLOSED),
                _I.LOST: to(_M.hold_reopen, _S.REOPEN_HELD, _S.CLOSED), **_CLOSED, _I.CLOSE: to(_M.close_later)}
_GOING: Cells = {**_IGNORED, _I.TIMED_OUT: to(_M.fail_close_and_reset, _S.CLOSED), _I.LOST: to(_M.closed, _S.CLOSED),
                 _I.CLOSE: to(_M.refuse_close), _I.CLOSE_LOCALLY: to(_M.refuse_close)}
_UP = (_S.OPEN, _S.DECONFIGURING, _S.CLOSING)  # open; or closed at once, if that was asked for meanwhile

_ROWS: dict[QueueState, Cells] = {
    _S.OPEN_HELD: {**_IGNORED, _I.CONNECTED: to(_M.send_open, _S.OPENING, _S.CLOSED),
                   _I.TIMED_OUT: to(_M.fail_open, _S.CLOSED), **_CANCEL},
    _S.OPENING: {**_COMING, _I.GRANTED: to(_M.opened, _S.CONFIGURING, *_UP), _I.REFUSED: to(_M.fail_open, _S.CLOSED)},
    _S.CONFIGURING: {**_COMING, _I.GRANTED: to(_M.open_complete, *_UP), _I.REFUSED: to(_M.roll_back_open, _S.CLOSED)},
    _S.OPEN: {**_IGNORED, _I.LOST: to(_M.hold_reopen, _S.REOPEN_HELD, _S.CLOSED),
              _I.CLOSE: to(_M.start_close, _S.DECONFIGURING, _S.CLOSING), _I.CLOSE_LOCALLY: to(_M.closed, _S.CLOSED)},
    _S.REOPEN_HELD: {**_IGNORED, _I.CONNECTED: to(_M.send_reopen, _S.REOPENING), **_CLOSED},
    _S.REOPENING: {**_BACK, _I.GRANTED: to(_M.opened, _S.RECONFIGURING, *_UP),
                   _I.REFUSED: to(_M.fail_reopen, _S.CLOSED, _S.REOPEN_HELD)},
    _S.RECONFIGURING: {**_BACK, _I.GRANTED: to(_M.open_complete, *_UP),
                       _I.REFUSED: to(_M.roll_back_reopen, _S.CLOSED, _S.REOPEN_HELD)},
    _S.DECONFIGURING: {**_GOING, _I.GRANTED: to(_M.send_close, _S.CLOSING), _I.REFUSED: to(_M.send_close, _S.CLOSING)},
    _S.CLOSING: {**_GOING, _I.GRANTED: to(_M.closed, _S.CLOSED), _I.REFUSED: to(_M.close_refused, _S.CLOSED)},
    _S.CLOSED: {**_IGNORED, _I.CLOSE: to(_M.already_closed), _I.CLOSE_LOCALLY: to(_M.already_closed)},
}
QUEUE = table(QueueState, QueueInput, _ROWS)
