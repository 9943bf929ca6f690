"""Health of the host: set by the application, observed by sessions.

`_adapters/base.py` and `blazingmq/session.py` listen to it; `_core/queue_configuration.py` suspends the queues while the
host is unhealthy.
"""

from __future__ import annotations

from collections.abc import Callable


class HealthMonitor:
    """Health state, set by the application's health check. Callable from any thread."""

    def __init__(self, healthy: bool = True) -> None:
        self.healthy: bool = healthy
        self._listeners: list[Callable[[bool], object]] = []

    def set_healthy(self) -> None:
        """Set the host healthy: suspended queues are resumed."""
        self._set(True)

    def set_unhealthy(self) -> None:
        """Set the host unhealthy: queues opened with suspends_on_bad_host_health are suspended."""
        self._set(False)

    def _set(self, healthy: bool) -> None:
        if healthy != self.healthy:
            self.healthy = healthy
            for listener in list(self._listeners):
                listener(healthy)

    def __repr__(self) -> str:
        return f"<HealthMonitor {'healthy' if self.healthy else 'unhealthy'}>"

    def listen(self, listener: Callable[[bool], object]) -> Callable[[], None]:
        """Call `listener` at each change; return a function that removes it."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
        return remove
