"""Event log of a node, and the recorder of its report.

    report.record_event(kind, text, detail)  -->  NodeHistory  -->  EventLog      one ring of events for each kind
    report.alarm(...)                -->               -->  AlarmBook     alarm state, see `alarms.py`

Each kind drops its own oldest events, so the creation of a thousand queues does not drop the last election.
`daemon/assemble.py` creates the NodeHistory; log lines are written by `logs/observer.py`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import takewhile
from typing import Any

from msgspec import Struct, field

from bmqtwist.alarms import AlarmKind
from bmqtwist.view.alarms import AlarmBook

KINDS = ("election", "primary", "node", "session", "alarm", "stop", "queue", "config")
EVENTS_MAX = 500  # per kind
RETAINED_MAX = len(KINDS) * EVENTS_MAX
CHARS_MAX = 256 << 10  # per kind, texts and details together
TEXT_CHARS_MAX = 1_000  # per event
DETAIL_CHARS_MAX = 32 << 10  # per event, as JSON


class NodeEvent(Struct, frozen=True):
    """Event. `at`: seconds since the epoch; `detail`: JSON values; `size`: characters."""

    n: int
    at: float
    kind: str
    text: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0

    def tree(self) -> dict[str, Any]:
        return {"n": self.n, "at": self.at, "kind": self.kind, "text": self.text, "detail": dict(self.detail)}


class EventLog:
    """Events of one node. `node`: its name; `wall` returns the present time (seconds since the epoch)."""

    def __init__(self, node: str, wall: Callable[[], float]) -> None:
        self.node, self._wall = node, wall
        self.newest = 0  # number of the last event
        self._rings = {kind: deque[NodeEvent]() for kind in KINDS}
        self._chars = dict.fromkeys(KINDS, 0)

    def record(self, kind: str, text: str, detail: Mapping[str, object] | None = None) -> None:
        """Add an event; an unknown kind is stored among those of kind `config`."""
        text = text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}..."
        encoded = json.dumps(detail or {}, default=str)
        if len(encoded) > DETAIL_CHARS_MAX:
            encoded = json.dumps({"omittedChars": len(encoded)})
        self.newest += 1
        known = kind if kind in self._rings else "config"
        ring, event = self._rings[known], NodeEvent(self.newest, self._wall(), kind, text, json.loads(encoded),
                                                    len(text) + len(encoded))
        ring.append(event)
        self._chars[known] += event.size
        while len(ring) > EVENTS_MAX or self._chars[known] > CHARS_MAX and len(ring) > 1:
            self._chars[known] -= ring.popleft().size

    def after(self, number: int = 0, kinds: Collection[str] = (), limit: int = 200) -> list[NodeEvent]:
        """Return the first `limit` events after event `number`, oldest first; no kinds = all."""
        return self._events_after(number, kinds)[:max(0, limit)]

    def last(self, limit: int = 50, kinds: Collection[str] = ()) -> list[NodeEvent]:
        """Return the last `limit` events, oldest first."""
        return self._events_after(0, kinds)[-limit:] if limit > 0 else []

    def _events_after(self, number: int, kinds: Collection[str]) -> list[NodeEvent]:
        found: list[NodeEvent] = []
        for kind, ring in self._rings.items():
            if not kinds or kind in kinds:
                found += takewhile(lambda event: event.n > number, reversed(ring))
        return sorted(found, key=lambda event: event.n)


class NodeHistory:
    """Receiver of a report's events and alarms (`report.EventRecorder`). Arguments as for EventLog."""

    def __init__(self, node: str, wall: Callable[[], float]) -> None:
        self.events = EventLog(node, wall)
        self.alarms = AlarmBook(wall, lambda text, detail: self.events.record("alarm", text, detail))

    def on_event(self, kind: str, text: str, detail: Mapping[str, object]) -> None:
        """Called by the report for an event."""
        self.events.record(kind, text, detail)

    def on_alarm(self, kind: AlarmKind, text: str) -> None:
        """Called by the report for an alarm."""
        if kind.is_notice:
            self.events.record("alarm", f"[{kind.category}] {text}", {"kind": kind.id, "category": kind.category})
        else:
            self.alarms.raise_alarm(kind, text)
