"""Configure requests of open queues: changes of options, pauses, and suspensions while the host is unhealthy.

A queue has at most one configure request in progress (`Queue.configure_request`); further ones wait in its
`configure_backlog`. Called by `queue_machine.py`; `session.py` passes changes of the health of the host, and expired
requests.
"""

from __future__ import annotations

from collections import deque
from logging import WARNING

from bmqtwist.sdk._core.outbox import SharedParts
from bmqtwist.sdk._core.queue import ConfigureRequest, Queue
from bmqtwist.sdk._core.requests import Requests
from bmqtwist.sdk._core.states import Input, QueueState
from bmqtwist.sdk.options import QueueOptions
from bmqtwist.sdk.results import EventKind, Result, SdkError

_PAUSES = ("pause", "unpause")


class QueueConfiguration:
    """Sends the configure requests of all queues of a session. `healthy`: state of the host."""

    def __init__(self, shared: SharedParts, requests: Requests) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self._requests, self._registry = requests, requests.registry
        self.healthy = True
        self._resuming: set[Queue] = set()  # queues that are still suspended after the host became healthy
        self._recovering = False  # the host is healthy, HOST_HEALTH_RESTORED is not reported yet

    # -- requests of the application --------------------------------------------------------------------------------

    def configure(self, queue: Queue, options: QueueOptions, token: object, seconds: float) -> None:
        if any(each.kind == "configure" for each in queue.pending_configure_requests):
            raise SdkError(Result.ALREADY_IN_PROGRESS, f"{queue.uri} is being configured")
        request = ConfigureRequest("configure", options, token)
        self._enqueue(queue, request, seconds)
        self.send_next(queue)

    def _enqueue(self, queue: Queue, request: ConfigureRequest, seconds: float) -> None:
        queue.configure_backlog.append(request)
        self._deadlines.set_after((queue, request), seconds)

    def pause(self, queue: Queue, paused: bool, token: object, seconds: float) -> None:
        """Pause or resume deliveries; all options stay. Without a connection the request completes at once, and takes effect
        when the queue is reopened."""
        request = ConfigureRequest("pause" if paused else "unpause", queue.options, token)
        if queue.state is QueueState.REOPEN_PENDING:
            self._complete_pause(queue, request)
        else:
            self._enqueue(queue, request, seconds)
            self.send_next(queue)

    def _complete_pause(self, queue: Queue, request: ConfigureRequest) -> None:
        queue.paused = request.kind == "pause"
        self._outbox.complete(request.token)

    def send_next(self, queue: Queue) -> None:
        """Send the next request of the backlog; complete requests that need no message to the broker."""
        while (queue.configure_backlog and queue.configure_request is None and queue.state is QueueState.OPEN
               and self._state.online):
            request = queue.configure_backlog.popleft()
            if request.kind != "configure":
                request.options = queue.options  # may have changed since the request
            suspended = request.kind == "suspend" or queue.suspended and request.kind != "resume"
            paused = request.kind == "pause" or queue.paused and request.kind != "unpause"
            deliveries_off = suspended or paused
            if not queue.readable or deliveries_off and queue.deliveries_off:
                self._apply_request(queue, request)
            elif self._requests.is_unsupported(queue, request.options):
                self._deadlines.clear((queue, request))
                self._outbox.complete(request.token, Result.NOT_SUPPORTED, "the broker does not support subscriptions")
            else:
                queue.configure_request = request
                self._send_request(queue, request, deliveries_off)

    def _send_request(self, queue: Queue, request: ConfigureRequest, deliveries_off: bool) -> None:
        request.r_id = self._requests.configure(
            queue, () if deliveries_off else request.options.effective(),
            lambda result, message, _: self._on_answer(queue, request, result, message))

    # -- answers ----------------------------------------------------------------------------------------------------

    def _on_answer(self, queue: Queue, request: ConfigureRequest, result: Result, message: str = "") -> None:
        """Handle the answer, or its timeout; an answer to a request that is no longer in progress is ignored."""
        if queue.configure_request is not request:
            return
        queue.configure_request = None
        is_open = queue.state is QueueState.OPEN  # while the queue closes, `routes_new` belong to the close's own request
        if result is Result.SUCCESS:
            if is_open:
                self._requests.commit_routes(queue)
            self._apply_request(queue, request)
        else:
            if is_open and result is Result.TIMEOUT:
                self._requests.merge_routes(queue)
            elif is_open:
                self._requests.revert_routes(queue)
            self._on_failed(queue, request, result, message)
        self.send_next(queue)

    def _apply_request(self, queue: Queue, request: ConfigureRequest) -> None:
        self._deadlines.clear((queue, request))
        if request.kind == "configure":
            queue.options = request.options
            self._outbox.complete(request.token)
        elif request.kind in _PAUSES:
            self._complete_pause(queue, request)
        else:
            queue.suspended = request.kind == "suspend"
            self._outbox.event(EventKind.QUEUE_SUSPENDED if queue.suspended else EventKind.QUEUE_RESUMED, queue=queue)
            self.finish_resume(queue)
        self._suspend_or_resume(queue)

    def _on_failed(self, queue: Queue, request: ConfigureRequest, result: Result, message: str) -> None:
        self._deadlines.clear((queue, request))
        self._outbox.log(WARNING, f"{queue.uri}: {request.kind} failed: {result} {message}".rstrip())
        self._outbox.complete(request.token, result, message)
        if request.kind == "suspend":
            self._outbox.event(EventKind.QUEUE_SUSPENDED, result, message, queue)
            self._state.feed(Input.LOST, f"{queue.uri} could not be suspended")
        elif request.kind == "resume":
            self._outbox.event(EventKind.QUEUE_RESUMED, result, message, queue)
            self.finish_resume(queue)

    def on_timeout(self, queue: Queue, request: ConfigureRequest) -> None:
        if queue.configure_request is request:
            self._requests.pending.pop(request.r_id, None)
            self._on_answer(queue, request, Result.TIMEOUT, "no answer to configure")
        elif request in queue.configure_backlog:
            queue.configure_backlog.remove(request)
            self._outbox.complete(request.token, Result.TIMEOUT, "no connection")

    def cancel_requests(self, queue: Queue, reason: str) -> None:
        pending, queue.configure_request, queue.configure_backlog = queue.pending_configure_requests, None, deque()
        for request in pending:
            self._deadlines.clear((queue, request))
            self._outbox.complete(request.token, Result.CANCELED, reason)

    def on_connection_lost(self, queue: Queue) -> None:
        """Complete pauses, drop suspensions, and keep changes of options for the next connection."""
        for request in queue.pending_configure_requests:
            if request.kind != "configure":
                self._deadlines.clear((queue, request))
            if request.kind in _PAUSES:
                self._complete_pause(queue, request)
        queue.configure_backlog = deque(each for each in queue.pending_configure_requests if each.kind == "configure")
        queue.configure_request = None

    # -- host health ------------------------------------------------------------------------------------------------

    def must_suspend(self, queue: Queue) -> bool:
        return queue.options.suspends_on_bad_host_health and not self.healthy

    def set_health(self, healthy: bool) -> None:
        if healthy == self.healthy:
            return
        self.healthy = healthy
        self._resuming.clear()
        if healthy:
            self._resuming = {queue for queue in self._registry.all() if queue.suspended}
            self._recovering = True
        else:
            self._recovering = False
            self._outbox.event(EventKind.HOST_UNHEALTHY)
        for queue in self._registry.all():
            self._suspend_or_resume(queue)
            self.send_next(queue)
        self.finish_resume(None)

    def _suspend_or_resume(self, queue: Queue) -> None:
        """Request a suspension or its end if the state of the host requires it."""
        suspend = self.must_suspend(queue)
        kind = "suspend" if suspend else "resume"
        if suspend != queue.suspended and queue.state is QueueState.OPEN and not any(
                each.kind == kind for each in queue.pending_configure_requests):
            self._enqueue(queue, ConfigureRequest(kind, queue.options), self._options.configure_timeout_s)

    def on_open(self, queue: Queue) -> None:
        """Set and report the suspension of an opened queue, which was opened without deliveries if the host is unhealthy."""
        suspended = self.must_suspend(queue)
        if suspended and not queue.suspended:
            self._outbox.event(EventKind.QUEUE_SUSPENDED, queue=queue)
        elif queue.suspended and not suspended:
            self._outbox.event(EventKind.QUEUE_RESUMED, queue=queue)
        queue.suspended = suspended
        self.finish_resume(queue)

    def finish_resume(self, queue: Queue | None) -> None:
        """Report HOST_HEALTH_RESTORED after the last suspended queue is resumed, has failed to resume, or is closed."""
        if queue is not None:
            self._resuming.discard(queue)
        if self._recovering and not self._resuming:
            self._recovering = False
            self._outbox.event(EventKind.HOST_HEALTH_RESTORED)
