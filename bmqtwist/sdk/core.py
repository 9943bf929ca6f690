"""A session without a connection: calls and chunks in, effects and bytes out.

    core.start(token, now) .. stop(token, now)      the application: open, configure, close, post, confirm
    core.connected / failed / received / lost       the channel
    core.tick(now), core.deadline()                 the clock
    core.take_effects(), core.take_output()         what to do and what to write, asked for after any of the above

`wake` is called once when there begins to be something to take: a front schedules its turn then, and everything that
is posted until that turn leaves in one event. What is done with which input in which state stands in `states.py`.
Nothing a broker sends raises out of `received`. Times are seconds of a monotonic clock, handed in with each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from bmqtwist.errors import PeerError
from bmqtwist.ids import parse_uri
from bmqtwist.sdk.counters import Counters
from bmqtwist.sdk.life import Life
from bmqtwist.sdk.options import QueueOptions, SessionOptions
from bmqtwist.sdk.queues import FLAG_READ, FLAG_WRITE, Job, Queue, QueueMachine
from bmqtwist.sdk.results import EventKind, Result, SdkError, result_of
from bmqtwist.sdk.states import Input, QueueInput, QueueState
from bmqtwist.wire import control, schema
from bmqtwist.wire.control import encoding_of


def _seconds(given: float | None, default: float) -> float:
    """How long a request may take; SdkError INVALID_ARGUMENT for what would be over before it began."""
    if given is not None and not given > 0:
        raise SdkError(Result.INVALID_ARGUMENT, f"timeout_s {given}: must be greater than 0")
    return default if given is None else given


class SessionCore(Life):
    """One session. `identity` says who we are; `make_guid` gives GUIDs; `random` numbers in [0, 1)."""

    machine: QueueMachine
    now: float
    healthy: bool

    def __init__(self, session_options: SessionOptions, identity: schema.ClientIdentity,
                 make_guid: Callable[[], bytes], now: float, *, wake: Callable[[], None] = lambda: None,
                 random: Callable[[], float] = lambda: 0.5) -> None:
        super().__init__(session_options, identity, make_guid, now, wake, random)
        self.machine = QueueMachine(self)

    # -- the clock --------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When `tick` is due."""
        return self.deadlines.next()

    def tick(self, now: float) -> None:
        """Do what is due."""
        self.now = now
        while (key := self.deadlines.expire(now)) is not None:
            if isinstance(key, str):
                getattr(self, f"_{key}_due")()
                continue
            queue, what = cast("tuple[Queue, str | Job]", key)
            if isinstance(what, Job):
                self.machine.job_timed_out(queue, what)
            else:
                self.machine.feed(queue, QueueInput.TIMED_OUT, Result.TIMEOUT, "no answer in time")

    def counters(self) -> Counters:
        """What was done so far, and how things stand."""
        tally, puts = self.tally, self.puts
        unacked = len(puts.kept)
        return Counters(
            state=self.state.value, posts=tally.acked + tally.failures + tally.unasked + unacked, acked=tally.acked,
            nacked=tally.failures, nacked_by_status=dict(tally.failed), unasked=tally.unasked, unacked_now=unacked,
            unacked_bytes_now=puts.held_bytes, retransmitted=tally.retransmitted, messages=tally.messages,
            redelivered=tally.redelivered, inbox_now=self.untaken, confirms=tally.confirms, attempts=tally.attempts,
            losses=tally.losses, reconnects=tally.reconnects, bytes_in=tally.bytes_in, bytes_out=tally.bytes_out,
            dropped=self.dropped, queues_now=sum(queue.is_open for queue in list(self.queues.values())),
            events=dict(tally.events))

    # -- requests ---------------------------------------------------------------------------------------------------

    def _on_control(self, buffer: bytes, specific: int, start: int, end: int) -> None:
        try:
            message = control.decode_control(buffer[start:end], encoding_of(specific))
        except PeerError as error:
            self._nonsense(error)
            return
        found = self._requests.get(message.r_id) if message.r_id is not None else None
        if found is None or message.choice not in ("status", found[2]):
            return  # a late answer, or something between brokers
        del self._requests[message.r_id]  # type: ignore[arg-type]
        queue, purpose, _ = found
        result, text = Result.SUCCESS, ""
        if message.choice == "status":
            text = message.value.message
            result = result_of(message.value.category)
            if result is Result.SUCCESS:
                result = Result.UNKNOWN
        if purpose == "disconnect":
            self._finish()
        elif queue is None:
            return
        elif isinstance(purpose, Job):
            self.machine.job_answered(queue, purpose, result, text)
        else:
            what = QueueInput.GRANTED if result is Result.SUCCESS else QueueInput.REFUSED
            self.machine.feed(queue, what, result, text, message.value)

    def open(self, uri: str, token: object, now: float, *, read: bool = False, write: bool = False,
             queue_options: QueueOptions | None = None, owner: object = None,
             timeout_s: float | None = None) -> Queue:
        """Open a queue, now or once there is a connection; `token` is completed when that is done."""
        self.now = now
        seconds = _seconds(timeout_s, self.options.open_timeout_s)
        target = parse_uri(uri)
        if not (read or write):
            raise SdkError(Result.INVALID_ARGUMENT, f"{uri}: open it for reading, for writing, or both")
        known = self.queues.get(uri)
        if known is not None:
            result = Result.ALREADY_OPENED if known.is_open else Result.ALREADY_IN_PROGRESS
            raise SdkError(result, uri)
        send = self._row[Input.REQUEST]()
        flags = (FLAG_READ if read else 0) | (FLAG_WRITE if write else 0)
        queue = self.machine.make(uri, target, flags, queue_options or QueueOptions(), owner or self, token)
        self.queues[uri] = queue
        self.deadlines.set((queue, "step"), now + seconds)
        if send:
            self.machine.feed(queue, QueueInput.CONNECTED)
        return queue

    def configure(self, queue: Queue, queue_options: QueueOptions, token: object, now: float,
                  timeout_s: float | None = None) -> None:
        """Change how a queue is read."""
        self.now = now
        seconds = _seconds(timeout_s, self.options.configure_timeout_s)
        if not queue.is_open:
            raise SdkError(Result.INVALID_QUEUE, f"{queue.uri} is not open")
        self._row[Input.REQUEST]()
        if any(job.kind == "configure" for job in (*queue.jobs, queue.job) if job):
            raise SdkError(Result.ALREADY_IN_PROGRESS, f"{queue.uri} is being configured")
        job = Job("configure", queue_options, token)
        self.machine.add_job(queue, job)
        self.deadlines.set((queue, job), now + seconds)
        self.machine.run_jobs(queue)

    def close(self, queue: Queue, token: object, now: float, timeout_s: float | None = None) -> None:
        """Close a queue; without a connection that is done at once."""
        self.now = now
        seconds = _seconds(timeout_s, self.options.close_timeout_s)
        self._row[Input.CLOSE](queue, token)
        if timeout_s is not None and queue.state in (QueueState.DECONFIGURING, QueueState.CLOSING):
            self.deadlines.set((queue, "step"), now + seconds)

    def _transmit(self) -> bool:
        return True

    def _hold(self) -> bool:
        return False

    def _refuse_request(self) -> bool:
        raise SdkError(Result.NOT_CONNECTED, "the session is stopped")

    def _close_remotely(self, queue: Queue, token: object) -> None:
        self.machine.feed(queue, QueueInput.CLOSE, token=token)

    def _close_locally(self, queue: Queue, token: object) -> None:
        self.machine.feed(queue, QueueInput.CLOSE_LOCALLY, token=token)

    def forget(self, queue: Queue) -> None:
        """A queue is closed."""
        if self.queues.get(queue.uri) is queue:
            del self.queues[queue.uri]

    # -- health -----------------------------------------------------------------------------------------------------

    def set_health(self, healthy: bool, now: float) -> None:
        """The host is well, or is not: queues that mind are suspended or resumed."""
        self.now = now
        if healthy == self.healthy:
            return
        self.healthy = healthy
        self._resuming.clear()
        if healthy:
            self._resuming = {queue for queue in self.queues.values() if queue.suspended}
            self._health_pending = True
        else:
            self._health_pending = False
            self.event(EventKind.HOST_UNHEALTHY)
        for queue in list(self.queues.values()):
            self.machine.check_health(queue)
            self.machine.run_jobs(queue)
        self.health_settled(None)

    def health_settled(self, queue: Queue | None) -> None:
        """A queue is resumed, could not be, or is gone; once that is so for all the host counts as restored."""
        if queue is not None:
            self._resuming.discard(queue)
        if self._health_pending and not self._resuming:
            self._health_pending = False
            self.event(EventKind.HOST_HEALTH_RESTORED)
