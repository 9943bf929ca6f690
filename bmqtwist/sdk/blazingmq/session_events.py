"""Session events with the names of the official library."""

from __future__ import annotations

import logging

_LOG = logging.getLogger("blazingmq.session_events")  # as applications configure it


class SessionEvent:
    """Something happened to the session."""

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
    """Something happened to one queue."""

    def __init__(self, queue_uri: str, message: str | None = None) -> None:
        super().__init__(message)
        self.queue_uri = queue_uri

    def _parts(self) -> tuple[str | None, ...]:
        return self.queue_uri, self._message


class Connected(SessionEvent):
    """The first connection is up."""


class Disconnected(SessionEvent):
    """The session has ended."""


class ConnectionLost(SessionEvent):
    """The connection is gone; another one is being tried for."""


class Reconnected(SessionEvent):
    """There is a connection again; queues are being reopened."""


class StateRestored(SessionEvent):
    """All queues are as they were before the loss."""


class ConnectionTimeout(SessionEvent):
    """No broker could be reached in time."""


class HostUnhealthy(SessionEvent):
    """The health monitor says that this host is not well."""


class HostHealthRestored(SessionEvent):
    """The host is well again and all suspended queues are resumed."""


class QueueSuspended(QueueEvent):
    """No deliveries and no posts until the host is well."""


class QueueSuspendFailed(QueueEvent):
    """A queue could not be suspended; the connection is given up."""


class QueueResumed(QueueEvent):
    """A suspended queue works again."""


class QueueResumeFailed(QueueEvent):
    """A suspended queue could not be resumed."""


class QueueReopened(QueueEvent):
    """A queue is back after a reconnect."""


class QueueReopenFailed(QueueEvent):
    """A queue could not be reopened after a reconnect: it is closed."""


class SlowConsumerNormal(SessionEvent):
    """The application has caught up with its messages."""


class SlowConsumerHighWaterMark(SessionEvent):
    """Many messages wait for the application."""


class Error(SessionEvent):
    """Something else went wrong."""


class InterfaceError(SessionEvent):
    """An event that has no class here."""


_FINE = (Connected, Disconnected, StateRestored, SlowConsumerNormal, QueueReopened, HostUnhealthy, HostHealthRestored,
         QueueSuspended, QueueResumed)
_NOTABLE = (ConnectionLost, Reconnected, SlowConsumerHighWaterMark)


def log_session_event(event: SessionEvent) -> None:
    """A ready-made callback: writes each event to the log of this module, at a level that fits it."""
    level = logging.INFO if isinstance(event, _FINE) else (
        logging.WARNING if isinstance(event, _NOTABLE) else logging.ERROR)
    _LOG.log(level, "Received session event: %s", event)
