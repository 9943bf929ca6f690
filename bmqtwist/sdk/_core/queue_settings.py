"""Configuration of open queues: changes of options, pauses, and suspensions while the host is unhealthy.

A queue has one configure request in progress; further settings wait in `Queue.settings`.
"""

from __future__ import annotations

from collections import deque
from logging import WARNING

from bmqtwist.sdk._core.outbox import Shared
from bmqtwist.sdk._core.queue import Queue, Setting
from bmqtwist.sdk._core.requests import Requests
from bmqtwist.sdk._core.states import Input, QueueState
from bmqtwist.sdk.options import QueueOptions
from bmqtwist.sdk.results import EventKind, Result, SdkError

_PAUSES = ("pause", "unpause")


class QueueSettings:
    """Sends the settings of all queues of a session. `healthy`: state of the host."""

    def __init__(self, shared: Shared, requests: Requests) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self._requests, self._registry = requests, requests.registry
        self.healthy = True
        self._resuming: set[Queue] = set()  # queues suspended when the host became healthy, until they are resumed
        self._recovering = False  # the host is healthy, HOST_HEALTH_RESTORED is not reported yet

    # -- requests of the application --------------------------------------------------------------------------------

    def configure(self, queue: Queue, options: QueueOptions, token: object, seconds: float) -> None:
        if any(each.kind == "configure" for each in queue.pending_settings):
            raise SdkError(Result.ALREADY_IN_PROGRESS, f"{queue.uri} is being configured")
        setting = Setting("configure", options, token)
        self._append(queue, setting, seconds)
        self.send_next(queue)

    def _append(self, queue: Queue, setting: Setting, seconds: float) -> None:
        queue.settings.append(setting)
        self._deadlines.after((queue, setting), seconds)

    def pause(self, queue: Queue, paused: bool, token: object, seconds: float) -> None:
        """Stop or resume deliveries; all options stay. Without a connection the request completes at once, and the state
        applies when the queue is reopened."""
        setting = Setting("pause" if paused else "unpause", queue.options, token)
        if queue.state is QueueState.REOPEN_HELD:
            self._complete_pause(queue, setting)
        else:
            self._append(queue, setting, seconds)
            self.send_next(queue)

    def _complete_pause(self, queue: Queue, setting: Setting) -> None:
        queue.paused = setting.kind == "pause"
        self._outbox.complete(setting.token)

    def send_next(self, queue: Queue) -> None:
        while queue.settings and queue.setting is None and queue.state is QueueState.OPEN and self._state.online:
            setting = queue.settings.popleft()
            if setting.kind != "configure":
                setting.options = queue.options  # may have changed since the request
            suspended = setting.kind == "suspend" or queue.suspended and setting.kind != "resume"
            paused = setting.kind == "pause" or queue.paused and setting.kind != "unpause"
            deliveries_off = suspended or paused
            if not queue.readable or deliveries_off and queue.deliveries_off:
                self._apply(queue, setting)
            elif self._requests.is_unsupported(queue, setting.options):
                self._deadlines.clear((queue, setting))
                self._outbox.complete(setting.token, Result.NOT_SUPPORTED, "the broker does not support subscriptions")
            else:
                queue.setting = setting
                self._send(queue, setting, deliveries_off)

    def _send(self, queue: Queue, setting: Setting, deliveries_off: bool) -> None:
        setting.r_id = self._requests.configure(
            queue, () if deliveries_off else setting.options.effective(),
            lambda result, message, _: self._on_answer(queue, setting, result, message))

    # -- answers ----------------------------------------------------------------------------------------------------

    def _on_answer(self, queue: Queue, setting: Setting, result: Result, message: str = "") -> None:
        """Handle the answer, or its timeout; an answer to a setting that is no longer in progress is ignored."""
        if queue.setting is not setting:
            return
        queue.setting = None
        current = queue.state is QueueState.OPEN  # while the queue closes, `routes_new` belong to the close's own request
        if result is Result.SUCCESS:
            if current:
                self._requests.commit(queue)
            self._apply(queue, setting)
        else:
            if current and result is Result.TIMEOUT:
                self._requests.merge_routes(queue)
            elif current:
                self._requests.revert(queue)
            self._on_failure(queue, setting, result, message)
        self.send_next(queue)

    def _apply(self, queue: Queue, setting: Setting) -> None:
        self._deadlines.clear((queue, setting))
        if setting.kind == "configure":
            queue.options = setting.options
            self._outbox.complete(setting.token)
        elif setting.kind in _PAUSES:
            self._complete_pause(queue, setting)
        else:
            queue.suspended = setting.kind == "suspend"
            self._outbox.event(EventKind.QUEUE_SUSPENDED if queue.suspended else EventKind.QUEUE_RESUMED, queue=queue)
            self.finish_resume(queue)
        self._check_health(queue)

    def _on_failure(self, queue: Queue, setting: Setting, result: Result, message: str) -> None:
        self._deadlines.clear((queue, setting))
        self._outbox.note(WARNING, f"{queue.uri}: {setting.kind} failed: {result} {message}".rstrip())
        self._outbox.complete(setting.token, result, message)
        if setting.kind == "suspend":
            self._outbox.event(EventKind.QUEUE_SUSPENDED, result, message, queue)
            self._state.feed(Input.LOST, f"{queue.uri} could not be suspended")
        elif setting.kind == "resume":
            self._outbox.event(EventKind.QUEUE_RESUMED, result, message, queue)
            self.finish_resume(queue)

    def on_timeout(self, queue: Queue, setting: Setting) -> None:
        if queue.setting is setting:
            self._requests.pending.pop(setting.r_id, None)
            self._on_answer(queue, setting, Result.TIMEOUT, "no answer to configure")
        elif setting in queue.settings:
            queue.settings.remove(setting)
            self._outbox.complete(setting.token, Result.TIMEOUT, "no connection")

    def cancel(self, queue: Queue, reason: str) -> None:
        pending, queue.setting, queue.settings = queue.pending_settings, None, deque()
        for setting in pending:
            self._deadlines.clear((queue, setting))
            self._outbox.complete(setting.token, Result.CANCELED, reason)

    def on_connection_lost(self, queue: Queue) -> None:
        """Complete pauses, and queue configurations for the next connection."""
        for setting in queue.pending_settings:
            if setting.kind != "configure":
                self._deadlines.clear((queue, setting))
            if setting.kind in _PAUSES:
                self._complete_pause(queue, setting)
        queue.settings = deque(each for each in queue.pending_settings if each.kind == "configure")
        queue.setting = None

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
            self._check_health(queue)
            self.send_next(queue)
        self.finish_resume(None)

    def _check_health(self, queue: Queue) -> None:
        suspend = self.must_suspend(queue)
        kind = "suspend" if suspend else "resume"
        if suspend != queue.suspended and queue.state is QueueState.OPEN and not any(
                each.kind == kind for each in queue.pending_settings):
            self._append(queue, Setting(kind, queue.options), self._options.configure_timeout_s)

    def on_open(self, queue: Queue) -> None:
        """Set and report the suspension of an opened queue: with an unhealthy host it was not configured."""
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
