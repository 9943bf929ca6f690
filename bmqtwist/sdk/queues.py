"""Queues of a session: what is known of each, and the machine that opens, reopens, configures and closes them.

`states.QUEUE` says what is done with which input in which state; the methods named there are those of QueueMachine.
Beside that life a queue has a list of configurations to send, one at a time, while it is open (`Job`).

Ids, as the other SDKs give them: one queue id per canonical URI, kept over reconnects; one sub-queue id per reader with
an application id; a new subscription id for each subscription in each configure request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from logging import WARNING
from typing import TYPE_CHECKING, Any

from bmqtwist.ids import DEFAULT_APP_ID, QueueUri
from bmqtwist.sdk.codecs import Codec
from bmqtwist.sdk.effects import Completed
from bmqtwist.sdk.options import QueueOptions, Subscription
from bmqtwist.sdk.results import EventKind, Result, SdkError
from bmqtwist.sdk.states import QUEUE, QueueInput, QueueState
from bmqtwist.wire import schema

if TYPE_CHECKING:
    from bmqtwist.sdk.core import SessionCore

FLAG_READ, FLAG_WRITE = 2, 4
ROUTING_AT_MOST_ONCE = 1
_DEDUPLICATION_S = 300.0


@dataclass(eq=False, slots=True)
class Handle:
    """What all queues of one canonical URI share."""

    q_id: int
    next_sub_id: int = 1
    users: set[Queue] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Job:
    """One configuration to send: the application's (`options`, `token`), or a suspension, or its end."""

    kind: str  # configure, suspend, resume
    options: QueueOptions
    token: object = None


class Queue:
    """One opened URI. `owner` and `codec` belong to the front; `owner.confirm(message)` is what Message.confirm calls."""

    __slots__ = ("at_most_once", "close_tokens", "codec", "deduplication_s", "flags", "handle", "job", "jobs",
                 "options", "owner", "q_id", "routes", "routes_new", "state", "sub_id", "suspended", "target",
                 "token", "uri")

    uri: str
    target: QueueUri
    flags: int
    options: QueueOptions
    handle: Handle
    q_id: int
    sub_id: int
    owner: Any
    token: object

    def __init__(self, uri: str, target: QueueUri, flags: int, options: QueueOptions, handle: Handle, sub_id: int,
                 owner: Any, token: object) -> None:
        self.uri, self.target, self.flags, self.options, self.handle = uri, target, flags, options, handle
        self.q_id, self.sub_id = handle.q_id, sub_id
        self.owner, self.token = owner, token
        self.codec: Codec[Any] | None = None
        self.state: QueueState = QueueState.OPEN_HELD
        self.close_tokens: list[object] = []
        self.at_most_once: bool = False
        self.deduplication_s: float = _DEDUPLICATION_S
        self.suspended: bool = False
        self.job: Job | None = None  # under way
        self.jobs: deque[Job] = deque()
        self.routes: dict[int, Subscription] = {}
        self.routes_new: dict[int, Subscription] = {}

    @property
    def readable(self) -> bool:
        """Opened for reading?"""
        return bool(self.flags & FLAG_READ)

    @property
    def writable(self) -> bool:
        """Opened for writing?"""
        return bool(self.flags & FLAG_WRITE)

    @property
    def is_open(self) -> bool:
        """Can the application use it, connected or not?"""
        return self.state in _USABLE

    @property
    def sub_id_info(self) -> schema.SubQueueIdInfo | None:
        """How the wire names the application of a reader."""
        return schema.SubQueueIdInfo(self.sub_id, self.target.app_id) if self.sub_id else None

    def __repr__(self) -> str:
        return f"<Queue {self.uri} {self.state.value}>"


_USABLE = frozenset((QueueState.OPEN, QueueState.REOPEN_HELD, QueueState.REOPENING, QueueState.RECONFIGURING))


class QueueMachine:
    """Performs the cells of `states.QUEUE` for all queues of one core."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._cells = {state: {what: getattr(self, name) for what, name in row.items()} for state, row in QUEUE.items()}
        self.handles: dict[str, Handle] = {}
        self._next_q_id = 0
        self._next_s_id = 1

    def feed(self, queue: Queue, what: QueueInput, result: Result = Result.SUCCESS, message: str = "",
             value: Any = None, token: object = None) -> None:
        """Let something happen to a queue. `value`: what a request was granted with; `token`: of a close."""
        self._cells[queue.state][what](queue, result, message, value, token)

    def make(self, uri: str, target: QueueUri, flags: int, options: QueueOptions, owner: Any, token: object) -> Queue:
        """A queue that waits to be opened, with its ids."""
        handle = self.handles.get(target.canonical)
        if handle is None:
            handle = self.handles[target.canonical] = Handle(self._next_q_id)
            self._next_q_id += 1
        sub_id = 0
        if flags & FLAG_READ and target.app_id:
            sub_id, handle.next_sub_id = handle.next_sub_id, handle.next_sub_id + 1
        queue = Queue(uri, target, flags, options, handle, sub_id, owner, token)
        handle.users.add(queue)
        return queue

    def _release(self, queue: Queue) -> None:
        handle = queue.handle
        handle.users.discard(queue)
        if not handle.users and self.handles.get(queue.target.canonical) is handle:
            del self.handles[queue.target.canonical]

    # -- requests ---------------------------------------------------------------------------------------------------

    def _parameters(self, queue: Queue) -> schema.QueueHandleParameters:
        return schema.QueueHandleParameters(queue.uri, queue.q_id, queue.sub_id_info, queue.flags,
                                            int(queue.readable), int(queue.writable), 0)

    def _send_open(self, queue: Queue, state: QueueState) -> None:
        queue.state = state
        self._core.request(queue, "openQueue", schema.OpenQueue(self._parameters(queue)), "step")

    def _send_configure(self, queue: Queue, subscriptions: tuple[Subscription, ...], purpose: str | Job) -> None:
        """Send a configuration in the form that the broker understands; the routes to it wait for the answer."""
        core = self._core
        app_id = queue.target.app_id or DEFAULT_APP_ID
        if queue.routes_new:  # of a configuration that is not answered yet and that this one replaces
            queue.routes = {**queue.routes, **queue.routes_new}
        queue.routes_new = routes = {}
        if core.has_configure_stream:
            found = []
            for each in subscriptions:
                s_id, self._next_s_id = self._next_s_id, self._next_s_id + 1
                routes[queue.q_id << 32 | s_id] = each
                version = schema.ExpressionVersion.E_VERSION_1 if each.expression else (
                    schema.ExpressionVersion.E_UNDEFINED)
                found.append(schema.Subscription(s_id, schema.Expression(version, each.expression), [
                    schema.ConsumerInfo(each.max_unconfirmed_messages, each.max_unconfirmed_bytes,
                                        each.consumer_priority, 1)]))
            core.request(queue, "configureStream",
                         schema.ConfigureStream(queue.q_id, schema.StreamParameters(app_id, found)), purpose)
        else:
            parameters = schema.QueueStreamParameters(queue.sub_id_info)
            if subscriptions:
                first = subscriptions[0]
                routes[queue.q_id << 32 | queue.sub_id] = first
                parameters = schema.QueueStreamParameters(
                    queue.sub_id_info, first.max_unconfirmed_messages, first.max_unconfirmed_bytes,
                    first.consumer_priority, 1)
            core.request(queue, "configureQueueStream", schema.ConfigureQueueStream(queue.q_id, parameters), purpose)
        for key, each in routes.items():
            core.routes[key] = queue, each

    def _unsupported(self, queue: Queue, options: QueueOptions) -> bool:
        """Does the broker lack what these options need?"""
        wanted = options.effective()
        return queue.readable and not self._core.has_configure_stream and (
            len(wanted) > 1 or any(each.expression for each in wanted))

    def _commit(self, queue: Queue) -> None:
        """The configuration was accepted: its routes are the only ones."""
        for key in queue.routes.keys() - queue.routes_new.keys():
            self._core.routes.pop(key, None)
        queue.routes, queue.routes_new = queue.routes_new, {}

    def _revert(self, queue: Queue) -> None:
        """It was refused: the old routes hold."""
        for key in queue.routes_new:
            self._core.routes.pop(key, None)
        queue.routes_new = {}
        for key, each in queue.routes.items():
            self._core.routes[key] = queue, each

    def _forget_routes(self, queue: Queue) -> None:
        for key in (*queue.routes, *queue.routes_new):
            self._core.routes.pop(key, None)
        queue.routes, queue.routes_new = {}, {}

    def _close_params(self, queue: Queue) -> schema.CloseQueue:
        self._release(queue)
        return schema.CloseQueue(self._parameters(queue), not queue.handle.users)

    def _warn(self, queue: Queue, what: str, result: Result, message: str) -> None:
        self._core.note(WARNING, f"{queue.uri} {what}: {result} {message}".rstrip())

    def _complete(self, token: object, result: Result = Result.SUCCESS, message: str = "") -> None:
        if token is not None:
            self._core.effect(Completed(token, result, message))

    # -- opening ----------------------------------------------------------------------------------------------------

    def ignore(self, queue: Queue, *_: object) -> None:
        """Nothing to do."""

    def send_open(self, queue: Queue, *_: object) -> None:
        """Phase one."""
        if self._unsupported(queue, queue.options):
            self.fail_open(queue, Result.NOT_SUPPORTED, "the broker does not know subscriptions")
            return
        self._send_open(queue, QueueState.OPENING)

    def _granted(self, queue: Queue, value: Any) -> None:
        if isinstance(value, schema.OpenQueueResponse):
            queue.at_most_once = bool(value.routing_configuration.flags & ROUTING_AT_MOST_ONCE)
            queue.deduplication_s = value.deduplication_time_ms / 1000

    def _wants_configure(self, queue: Queue) -> bool:
        """Phase two is for readers, and not while the host is unhealthy."""
        return queue.readable and not (queue.options.suspends_on_bad_host_health and not self._core.healthy)

    def opened(self, queue: Queue, _: Result, message: str, value: Any, token: object) -> None:
        """Phase one succeeded."""
        self._granted(queue, value)
        if self._wants_configure(queue):
            queue.state = QueueState.CONFIGURING
            self._send_configure(queue, queue.options.effective(), "step")
        else:
            self.open_complete(queue, Result.SUCCESS, message, value, token)

    def open_complete(self, queue: Queue, *_: object) -> None:
        """The queue is open."""
        self._commit(queue)
        self._core.deadlines.clear((queue, "step"))
        queue.state = QueueState.OPEN
        token, queue.token = queue.token, None
        self._complete(token)
        self._suspend_quietly(queue)
        self._after_open(queue)

    def _suspend_quietly(self, queue: Queue) -> None:
        """A queue that came up without a configuration, since the host is unhealthy, is suspended."""
        bad = queue.options.suspends_on_bad_host_health and not self._core.healthy
        if bad and not queue.suspended:
            self._core.event(EventKind.QUEUE_SUSPENDED, queue=queue)
        elif queue.suspended and not bad:
            self._core.event(EventKind.QUEUE_RESUMED, queue=queue)
        queue.suspended = bad
        self._core.health_settled(queue)

    def _after_open(self, queue: Queue) -> None:
        if queue.close_tokens:
            self.start_close(queue, Result.SUCCESS, "", None, None)
        else:
            self.run_jobs(queue)

    def _end(self, queue: Queue, result: Result = Result.SUCCESS, message: str = "") -> None:
        """The queue is closed, however that came: nothing of it is left waiting."""
        core = self._core
        queue.state = QueueState.CLOSED
        self._release(queue)
        self._forget_routes(queue)
        core.deadlines.clear((queue, "step"))
        core.forget(queue)
        jobs, queue.job, queue.jobs = [*([queue.job] if queue.job else []), *queue.jobs], None, deque()
        for job in jobs:
            core.deadlines.clear((queue, job))
            self._complete(job.token, Result.CANCELED, "the queue was closed")
        core.fail_puts(queue)
        tokens, queue.close_tokens = queue.close_tokens, []
        for token in tokens:
            self._complete(token, result, message)
        core.restored(queue)
        core.health_settled(queue)

    def fail_open(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """The open ends with an error."""
        if result is not Result.CANCELED:
            self._warn(queue, "was not opened", result, message)
        token, queue.token = queue.token, None
        self._end(queue)
        self._complete(token, result, message)

    def cancel_open(self, queue: Queue, _result: Result, _message: str, _value: Any, token: object) -> None:
        """Closed before it was open."""
        queue.close_tokens.append(token)
        self.fail_open(queue, Result.CANCELED, "closed by the application")

    def fail_open_and_reset(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """No answer: what the broker holds is unknown, only a new connection is sure."""
        self.fail_open(queue, result, message)
        self._core.reset(f"no answer to openQueue for {queue.uri}")

    def roll_back_open(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """Phase two was refused: give back what phase one took."""
        self._core.request(None, "closeQueue", self._close_params(queue), "none")
        self.fail_open(queue, result, message)

    def hold_open(self, queue: Queue, *_: object) -> None:
        """The connection is gone: open from the start on the next one, within the same time."""
        self._forget_routes(queue)
        queue.state = QueueState.OPEN_HELD

    # -- reopening --------------------------------------------------------------------------------------------------

    def hold_reopen(self, queue: Queue, *_: object) -> None:
        """The connection is gone: wait for the next one. A configuration under way is sent again then."""
        self._forget_routes(queue)
        self._core.deadlines.clear((queue, "step"))
        if queue.job is not None:
            queue.jobs.appendleft(queue.job)
            queue.job = None
        for job in queue.jobs:
            if job.kind != "configure":
                self._core.deadlines.clear((queue, job))
        queue.jobs = deque(job for job in queue.jobs if job.kind == "configure")
        queue.state = QueueState.REOPEN_HELD
        if queue.close_tokens:
            self._end(queue)

    def send_reopen(self, queue: Queue, *_: object) -> None:
        """Phase one, with the ids it had."""
        core = self._core
        core.deadlines.set((queue, "step"), core.now + core.options.open_timeout_s)
        self._send_open(queue, QueueState.REOPENING)

    def reopened(self, queue: Queue, _: Result, message: str, value: Any, token: object) -> None:
        """Phase one succeeded."""
        self._granted(queue, value)
        if self._wants_configure(queue):
            queue.state = QueueState.RECONFIGURING
            self._send_configure(queue, queue.options.effective(), "step")
        else:
            self.reopen_complete(queue, Result.SUCCESS, message, value, token)

    def reopen_complete(self, queue: Queue, *_: object) -> None:
        """As before the loss."""
        core = self._core
        self._commit(queue)
        core.deadlines.clear((queue, "step"))
        queue.state = QueueState.OPEN
        core.event(EventKind.QUEUE_REOPEN_RESULT, queue=queue)
        self._suspend_quietly(queue)
        core.restored(queue)
        self._after_open(queue)

    def fail_reopen(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """The broker does not want it any more."""
        self._warn(queue, "was not reopened and is closed now", result, message)
        self._core.event(EventKind.QUEUE_REOPEN_RESULT, result, message, queue)
        self._end(queue)

    def roll_back_reopen(self, queue: Queue, result: Result, message: str = "", *_: object) -> None:
        """It was reopened and could not be configured."""
        self._core.request(None, "closeQueue", self._close_params(queue), "none")
        self.fail_reopen(queue, result, message)

    def reset(self, queue: Queue, *_: object) -> None:
        """No answer to a reopen: a new connection, and another try."""
        self._core.reset(f"no answer while reopening {queue.uri}")

    # -- closing ----------------------------------------------------------------------------------------------------

    def close_later(self, queue: Queue, _result: Result, _message: str, _value: Any, token: object) -> None:
        """Close as soon as it is open."""
        queue.close_tokens.append(token)

    def start_close(self, queue: Queue, _result: Result, _message: str, _value: Any, token: object) -> None:
        """Phase one, for readers: no more deliveries."""
        core = self._core
        if token is not None or not queue.close_tokens:
            queue.close_tokens.append(token)
        core.deadlines.set((queue, "step"), core.now + core.options.close_timeout_s)
        if queue.readable and queue.routes:
            queue.state = QueueState.DECONFIGURING
            self._send_configure(queue, (), "step")
        else:
            self.send_close(queue)

    def send_close(self, queue: Queue, *_: object) -> None:
        """Phase two."""
        self._forget_routes(queue)
        queue.state = QueueState.CLOSING
        self._core.request(queue, "closeQueue", self._close_params(queue), "step")

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
        self._core.reset(f"no answer to closeQueue for {queue.uri}")

    def refuse_close(self, queue: Queue, *_: object) -> None:
        """It is being closed."""
        raise SdkError(Result.ALREADY_IN_PROGRESS, f"{queue.uri} is being closed")

    def already_closed(self, queue: Queue, *_: object) -> None:
        """It is closed."""
        raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is closed")

    # -- configurations of an open queue ----------------------------------------------------------------------------

    def run_jobs(self, queue: Queue) -> None:
        """Send the next configuration if nothing is in its way."""
        core = self._core
        while queue.jobs and queue.job is None and queue.state is QueueState.OPEN and core.online:
            job = queue.jobs.popleft()
            suspended = queue.suspended if job.kind == "configure" else job.kind == "suspend"
            if not queue.readable or (job.kind == "configure" and suspended):
                self._job_done(queue, job)
            elif self._unsupported(queue, job.options):
                core.deadlines.clear((queue, job))
                self._complete(job.token, Result.NOT_SUPPORTED, "the broker does not know subscriptions")
            else:
                queue.job = job
                self._send_configure(queue, () if suspended else job.options.effective(), job)

    def _job_done(self, queue: Queue, job: Job) -> None:
        core = self._core
        core.deadlines.clear((queue, job))
        if job.kind == "configure":
            queue.options = job.options
            self._complete(job.token)
        else:
            queue.suspended = job.kind == "suspend"
            core.event(EventKind.QUEUE_SUSPENDED if queue.suspended else EventKind.QUEUE_RESUMED, queue=queue)
            core.health_settled(queue)
        self.check_health(queue)

    def check_health(self, queue: Queue) -> None:
        """Have the queue suspended or resumed, if the health of the host asks for that."""
        bad = queue.options.suspends_on_bad_host_health and not self._core.healthy
        kind = "suspend" if bad else "resume"
        if bad != queue.suspended and queue.state is QueueState.OPEN and not any(
                job.kind == kind for job in (*queue.jobs, queue.job) if job):
            self.add_job(queue, Job(kind, queue.options))

    def add_job(self, queue: Queue, job: Job) -> None:
        """Append a configuration; `run_jobs` sends it."""
        queue.jobs.append(job)
        core = self._core
        core.deadlines.set((queue, job), core.now + core.options.configure_timeout_s)

    def job_answered(self, queue: Queue, job: Job, result: Result, message: str = "") -> None:
        """The configuration under way was answered, or was not in time; answers to others come too late."""
        if queue.job is not job:
            return
        queue.job = None
        current = queue.state is QueueState.OPEN  # else it is being closed: `routes_new` are those of its last request
        if result is Result.SUCCESS:
            if current:
                self._commit(queue)
            self._job_done(queue, job)
        else:
            if current and result is Result.TIMEOUT:
                queue.routes, queue.routes_new = {**queue.routes, **queue.routes_new}, {}  # either may be in force
            elif current:
                self._revert(queue)
            self._job_failed(queue, job, result, message)
        self.run_jobs(queue)

    def _job_failed(self, queue: Queue, job: Job, result: Result, message: str) -> None:
        core = self._core
        core.deadlines.clear((queue, job))
        self._warn(queue, f"could not be made to {job.kind}", result, message)
        self._complete(job.token, result, message)
        if job.kind == "suspend":
            core.event(EventKind.QUEUE_SUSPENDED, result, message, queue)
            core.reset(f"{queue.uri} could not be suspended")
        elif job.kind == "resume":
            core.event(EventKind.QUEUE_RESUMED, result, message, queue)
            core.health_settled(queue)

    def job_timed_out(self, queue: Queue, job: Job) -> None:
        """A configuration took too long, sent or not."""
        if queue.job is job:
            self._core.forget_request(job)
            self.job_answered(queue, job, Result.TIMEOUT, "no answer to configure")
        elif job in queue.jobs:
            queue.jobs.remove(job)
            self._complete(job.token, Result.TIMEOUT, "no connection")
