"""Keeps what happened, and tells it: to assertions as objects, to people as a transcript."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from bmqtwist.testing import events
from bmqtwist.testing.faults import covers

RECORD_BYTES_MAX = 64 << 20  # of messages kept; the oldest are dropped beyond it
EVENT_BYTES = 200  # what an event without a message is counted as
TRANSCRIPT_LINES = 60
_QUIET = ("heartbeat", "answer", "openQueueResponse", "closeQueueResponse", "configureStreamResponse",
          "configureQueueStreamResponse", "status")
E = TypeVar("E", bound=events.Event)


class Recorder:
    """Events in the order in which they happened. `dropped` counts those that were too old to be kept."""

    def __init__(self) -> None:
        self._events: deque[events.Event] = deque()
        self._bytes = 0
        self.dropped = 0

    def add(self, event: events.Event) -> None:
        """From the broker: something happened."""
        self._events.append(event)
        self._bytes += _size(event)
        while self._bytes > RECORD_BYTES_MAX:
            self._bytes -= _size(self._events.popleft())
            self.dropped += 1

    def clear(self) -> None:
        """Forget everything so far."""
        self._events.clear()
        self._bytes = self.dropped = 0

    @property
    def events(self) -> list[events.Event]:
        """Everything that is kept, oldest first."""
        return list(self._events)

    def _find(self, kind: type[E], uri: str | None, client: str | None) -> list[E]:
        return [event for event in self._events if isinstance(event, kind) and client in (None, event.client)
                and (uri is None or isinstance(event, events.OfQueue) and covers(uri, event.uri, event.app))]

    def posts(self, uri: str | None = None, client: str | None = None) -> list[events.Post]:
        """What was posted (to that queue, by that client); `post.status` is how it was acknowledged."""
        return self._find(events.Post, uri, client)

    def acks(self, uri: str | None = None, client: str | None = None) -> list[events.Ack]:
        """What the broker acknowledged or refused of posts."""
        return self._find(events.Ack, uri, client)

    def deliveries(self, uri: str | None = None, client: str | None = None) -> list[events.Delivery]:
        """What the broker sent to consumers; a URI with `?id=` means the readers of that app."""
        return self._find(events.Delivery, uri, client)

    def confirms(self, uri: str | None = None, client: str | None = None) -> list[events.Confirm]:
        """What consumers confirmed; a URI with `?id=` means the readers of that app."""
        return self._find(events.Confirm, uri, client)

    def opens(self, uri: str | None = None, client: str | None = None) -> list[events.Open]:
        """Which queues were opened, and how the broker answered."""
        return self._find(events.Open, uri, client)

    def configures(self, uri: str | None = None, client: str | None = None) -> list[events.Configure]:
        """How queues are read."""
        return self._find(events.Configure, uri, client)

    def closes(self, uri: str | None = None, client: str | None = None) -> list[events.Close]:
        """Which queues were closed."""
        return self._find(events.Close, uri, client)

    def negotiations(self, client: str | None = None) -> list[events.Negotiation]:
        """Who introduced itself: one for each connection that was used."""
        return self._find(events.Negotiation, None, client)

    def notes(self) -> list[events.Note]:
        """What the test and the broker's lives added: connections made and cut, puts, crashes, starts."""
        return self._find(events.Note, None, None)

    def transcript(self, lines: int | None = TRANSCRIPT_LINES, heartbeats: bool = False) -> str:
        """The last so many things that happened (None = all), a line each; answers show at what they answer."""
        shown = [event for event in self._events if heartbeats or not (
            isinstance(event, events.Other) and event.what in _QUIET)]
        cut = len(shown) - lines if lines is not None and len(shown) > lines else 0
        text = [f"... {cut + self.dropped} earlier"] if cut or self.dropped else []
        return "\n".join(text + [str(event) for event in shown[cut:]])


def _size(event: events.Event) -> int:
    return EVENT_BYTES + (len(event.data) if isinstance(event, events.Content) else 0)
