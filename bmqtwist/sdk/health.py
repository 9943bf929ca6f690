"""Whether this host is fit to work: somebody says so, sessions listen."""

from __future__ import annotations

from collections.abc import Callable


class HealthMonitor:
    """A switch that a health check of one's own operates. Calls may come from any thread."""

    def __init__(self, healthy: bool = True) -> None:
        self.healthy: bool = healthy
        self._listeners: list[Callable[[bool], object]] = []

    def set_healthy(self) -> None:
        """The host is well: suspended queues are resumed."""
        self._set(True)

    def set_unhealthy(self) -> None:
        """The host is not well: queues opened with suspends_on_bad_host_health are suspended."""
        self._set(False)

    def _set(self, healthy: bool) -> None:
        if healthy != self.healthy:
            self.healthy = healthy
            for listener in list(self._listeners):
                listener(healthy)

    def __repr__(self) -> str:
        return f"<HealthMonitor {'healthy' if self.healthy else 'unhealthy'}>"

    def listen(self, listener: Callable[[bool], object]) -> Callable[[], None]:
        """Call `listener` at each change; gives what ends that."""
        self._listeners.append(listener)

        def forget() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
        return forget
