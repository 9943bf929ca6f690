"""What a node remembers of its life: events, and alarms as a state. It is what watches the node's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bmqtwist.view.alarms import AlarmBook
from bmqtwist.view.events import EventLog


class NodeHistory:
    """`report.Watcher`. `node`: its name; `wall`: seconds since the epoch, now."""

    def __init__(self, node: str, wall: Callable[[], float]) -> None:
        self.events = EventLog(node, wall)
        self.alarms = AlarmBook(wall, lambda text, detail: self.events.note("alarm", text, detail))

    def happened(self, kind: str, text: str, detail: Mapping[str, object]) -> None:
        """From the report: an event."""
        self.events.note(kind, text, detail)

    def alarmed(self, severity: str, category: str, text: str) -> None:
        """From the report: an alarm."""
        self.alarms.raised(severity, category, text)
