"""Configurations of open queues, sent one at a time: those of the application, pauses, and suspensions while the host is
unhealthy."""

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
    """Sends the settings of all queues. `healthy`: of the host."""

    def __init__(self, shared: Shared, requests: Requests) -> None:
        self._options, self._state = shared.options, shared.state
        self._outbox, self._deadlines = shared.outbox, shared.deadlines
        self._requests, self._registry = requests, requests.registry
        self.healthy = True
        self._resuming: set[Queue] = set()  # suspended when the host got well
        self._recovering = False  # the host is well, and the application has not been told yet

    # -- what the application asks for ------------------------------------------------------------------------------

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
        """Have no deliveries, or have them again; all options stay as they are. Without a connection that is done at
        once: the next one begins with it."""
        setting = Setting("pause" if paused else "unpause", queue.options, token)
        if queue.state is QueueState.REOPEN_HELD:
            self._paused(queue, setting)
        else:
            self._append(queue, setting, seconds)
            self.send_next(queue)

    def _paused(self, queue: Queue, setting: Setting) -> None:
        queue.paused = setting.kind == "pause"
        self._outbox.complete(setting.token)

    def send_next(self, queue: Queue) -> None:
        while queue.settings and queue.setting is None and queue.state is QueueState.OPEN and self._state.online:
            setting = queue.settings.popleft()
            if setting.kind != "configure":
                setting.options = queue.options  # they may have changed meanwhile
            suspended = setting.kind == "suspend" or queue.suspended and setting.kind != "resume"
            paused = setting.kind == "pause" or queue.paused and setting.kind != "unpause"
            silent = suspended or paused
            if not queue.readable or silent and queue.silent:
                self._done(queue, setting)
            elif self._requests.lacks(queue, setting.options):
                self._deadlines.clear((queue, setting))
                self._outbox.complete(setting.token, Result.NOT_SUPPORTED, "the broker does not know subscriptions")
            else:
                queue.setting = setting
                self._send(queue, setting, silent)

    def _send(self, queue: Queue, setting: Setting, silent: bool) -> None:
        setting.r_id = self._requests.configure(
            queue, () if silent else setting.options.effective(),
            lambda result, message, _: self._answered(queue, setting, result, message))

    # -- how it ends ------------------------------------------------------------------------------------------------

    def _answered(self, queue: Queue, setting: Setting, result: Result, message: str = "") -> None:
        """The setting under way was answered, or was not in time; answers to others come too late."""
        if queue.setting is not setting:
            return
        queue.setting = None
        current = queue.state is QueueState.OPEN  # else it is being closed: `routes_new` are those of its last request
        if result is Result.SUCCESS:
            if current:
                self._requests.commit(queue)
            self._done(queue, setting)
        else:
            if current and result is Result.TIMEOUT:
                self._requests.keep_both(queue)
            elif current:
                self._requests.revert(queue)
            self._failed(queue, setting, result, message)
        self.send_next(queue)

    def _done(self, queue: Queue, setting: Setting) -> None:
        self._deadlines.clear((queue, setting))
        if setting.kind == "configure":
            queue.options = setting.options
            self._outbox.complete(setting.token)
        elif setting.kind in _PAUSES:
            self._paused(queue, setting)
        else:
            queue.suspended = setting.kind == "suspend"
            self._outbox.event(EventKind.QUEUE_SUSPENDED if queue.suspended else EventKind.QUEUE_RESUMED, queue=queue)
            self.health_settled(queue)
        self._check_health(queue)

    def _failed(self, queue: Queue, setting: Setting, result: Result, message: str) -> None:
        self._deadlines.clear((queue, setting))
        self._outbox.note(WARNING, f"{queue.uri} could not be made to {setting.kind}: {result} {message}".rstrip())
        self._outbox.complete(setting.token, result, message)
        if setting.kind == "suspend":
            self._outbox.event(EventKind.QUEUE_SUSPENDED, result, message, queue)
            self._state.feed(Input.LOST, f"{queue.uri} could not be suspended")
        elif setting.kind == "resume":
            self._outbox.event(EventKind.QUEUE_RESUMED, result, message, queue)
            self.health_settled(queue)

    def due(self, queue: Queue, setting: Setting) -> None:
        if queue.setting is setting:
            self._requests.under_way.pop(setting.r_id, None)
            self._answered(queue, setting, Result.TIMEOUT, "no answer to configure")
        elif setting in queue.settings:
            queue.settings.remove(setting)
            self._outbox.complete(setting.token, Result.TIMEOUT, "no connection")

    def cancel(self, queue: Queue, reason: str) -> None:
        pending, queue.setting, queue.settings = queue.pending_settings, None, deque()
        for setting in pending:
            self._deadlines.clear((queue, setting))
            self._outbox.complete(setting.token, Result.CANCELED, reason)

    def hold(self, queue: Queue) -> None:
        """The connection is gone: the application's settings are sent again on the next one."""
        for setting in queue.pending_settings:
            if setting.kind != "configure":
                self._deadlines.clear((queue, setting))
            if setting.kind in _PAUSES:
                self._paused(queue, setting)
        queue.settings = deque(each for each in queue.pending_settings if each.kind == "configure")
        queue.setting = None

    # -- the health of the host -------------------------------------------------------------------------------------

    def suspends(self, queue: Queue) -> bool:
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
        self.health_settled(None)

    def _check_health(self, queue: Queue) -> None:
        suspend = self.suspends(queue)
        kind = "suspend" if suspend else "resume"
        if suspend != queue.suspended and queue.state is QueueState.OPEN and not any(
                each.kind == kind for each in queue.pending_settings):
            self._append(queue, Setting(kind, queue.options), self._options.configure_timeout_s)

    def opened(self, queue: Queue) -> None:
        """A queue that came up without a configuration, since the host is unhealthy, is suspended."""
        suspended = self.suspends(queue)
        if suspended and not queue.suspended:
            self._outbox.event(EventKind.QUEUE_SUSPENDED, queue=queue)
        elif queue.suspended and not suspended:
            self._outbox.event(EventKind.QUEUE_RESUMED, queue=queue)
        queue.suspended = suspended
        self.health_settled(queue)

    def health_settled(self, queue: Queue | None) -> None:
        """A queue is resumed, could not be, or is closed; after the last of them the host counts as restored."""
        if queue is not None:
            self._resuming.discard(queue)
        if self._recovering and not self._resuming:
            self._recovering = False
            self._outbox.event(EventKind.HOST_HEALTH_RESTORED)
