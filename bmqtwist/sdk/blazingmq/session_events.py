"""Session events of the official library's interface.

`CallbackEngine` in `session.py` creates them from the events of the core; its tables `_EVENTS` and `_QUEUE_EVENTS`
select the class. Kinds of events are declared in `results.py: EventKind`.
"""

from __future__ import annotations

import logging

_LOG = logging.getLogger("blazingmq.session_events")  # name of the official library


class SessionEvent:
    """Event of a session."""

    def __init__(self, message: str | None = None) -> None:
        self._message = message

    def _parts(self) -> tuple[str | None, ...]:
        return (self._message,)

    def __repr__(self) -> str:
        text = " ".join(part for part in self._parts() if part)
        return f"<{type(self).__name__}: {text}>" if text else f"<{type(self).__name__}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionEvent) and type(self) is type(other) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash((type(self), self._parts()))


class QueueEvent(SessionEvent):
    """Event of one queue."""

    def __init__(self, queue_uri: str, message: str | None = None) -> None:
        super().__init__(message)
        self.queue_uri = queue_uri

    def _parts(self) -> tuple[str | None, ...]:
        return self.queue_uri, self._message


class Connected(SessionEvent):
    """The first connection is established."""


class Disconnected(SessionEvent):
    """The session has ended."""


class ConnectionLost(SessionEvent):
    """The connection is lost; the session reconnects."""


class Reconnected(SessionEvent):
    """The session has reconnected; queues are being reopened."""


class StateRestored(SessionEvent):
    """All queues are reopened after a reconnect."""


class ConnectionTimeout(SessionEvent):
    """The first connection was not established in time."""


class HostUnhealthy(SessionEvent):
    """The health monitor reports an unhealthy host."""


class HostHealthRestored(SessionEvent):
    """The host is healthy and all suspended queues are resumed."""


class QueueSuspended(QueueEvent):
    """No deliveries and no posts until the host is healthy."""


class QueueSuspendFailed(QueueEvent):
    """A queue could not be suspended; the connection is closed."""


class QueueResumed(QueueEvent):
    """A suspended queue is resumed."""


class QueueResumeFailed(QueueEvent):
    """A suspended queue could not be resumed."""


class QueueReopened(QueueEvent):
    """A queue is reopened after a reconnect."""


class QueueReopenFailed(QueueEvent):
    """A queue could not be reopened after a reconnect: it is closed."""


class SlowConsumerNormal(SessionEvent):
    """The number of waiting messages fell to the low watermark."""


class SlowConsumerHighWaterMark(SessionEvent):
    """The number of waiting messages reached the high watermark."""


class Error(SessionEvent):
    """An error; the session continues."""


class InterfaceError(SessionEvent):
    """An event without a class of its own."""


_FINE = (Connected, Disconnected, StateRestored, SlowConsumerNormal, QueueReopened, HostUnhealthy, HostHealthRestored,
         QueueSuspended, QueueResumed)
_NOTABLE = (ConnectionLost, Reconnected, SlowConsumerHighWaterMark)


def log_session_event(event: SessionEvent) -> None:
    """Callback that logs each event with this module's logger, at INFO, WARNING or ERROR."""
    level = logging.INFO if isinstance(event, _FINE) else (
        logging.WARNING if isinstance(event, _NOTABLE) else logging.ERROR)
    _LOG.log(level, "Received session event: %s", event)
