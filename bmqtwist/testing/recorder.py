"""Recorder of events at an in-process broker: objects for assertions, a transcript for readers of failed tests.

`connection.py` adds the events, which `events.py` declares; `Broker.recorder` is one.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from bmqtwist.testing.events import (
    Ack,
    Close,
    Configure,
    Confirm,
    ContentEvent,
    Delivery,
    Event,
    Negotiation,
    Note,
    Open,
    Other,
    Post,
    QueueEvent,
)
from bmqtwist.testing.faults import matches_uri

RECORD_BYTES_MAX = 64 << 20  # limit of the recorded size; the oldest events are dropped
EVENT_BYTES = 200  # counted size of an event without its message
TRANSCRIPT_LINES = 60
E = TypeVar("E", bound=Event)


class Recorder:
    """Events in order. `dropped`: number of old events dropped beyond RECORD_BYTES_MAX."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._bytes = 0
        self.dropped = 0

    def add(self, event: Event) -> None:
        """From the broker: record an event."""
        self._events.append(event)
        self._bytes += _recorded_size(event)
        while self._bytes > RECORD_BYTES_MAX:
            self._bytes -= _recorded_size(self._events.popleft())
            self.dropped += 1

    def clear(self) -> None:
        """Remove all events."""
        self._events.clear()
        self._bytes = self.dropped = 0

    @property
    def events(self) -> list[Event]:
        """The recorded events, oldest first."""
        return list(self._events)

    def _find(self, kind: type[E], uri: str | None, client: str | None) -> list[E]:
        return [event for event in self._events if isinstance(event, kind) and client in (None, event.client)
                and (uri is None or isinstance(event, QueueEvent) and matches_uri(uri, event.uri, event.app))]

    def posts(self, uri: str | None = None, client: str | None = None) -> list[Post]:
        """Return the posts (to a queue, of a client); `post.status`: result of the acknowledgement."""
        return self._find(Post, uri, client)

    def acks(self, uri: str | None = None, client: str | None = None) -> list[Ack]:
        """Return the acknowledgements of posts, positive and negative."""
        return self._find(Ack, uri, client)

    def deliveries(self, uri: str | None = None, client: str | None = None) -> list[Delivery]:
        """Return the deliveries to consumers; with `?id=` in the URI, to consumers of that app."""
        return self._find(Delivery, uri, client)

    def confirms(self, uri: str | None = None, client: str | None = None) -> list[Confirm]:
        """Return the confirms of consumers; with `?id=` in the URI, of consumers of that app."""
        return self._find(Confirm, uri, client)

    def opens(self, uri: str | None = None, client: str | None = None) -> list[Open]:
        """Return the open requests, with the broker's answers."""
        return self._find(Open, uri, client)

    def configures(self, uri: str | None = None, client: str | None = None) -> list[Configure]:
        """Return the configure requests, with the broker's answers."""
        return self._find(Configure, uri, client)

    def closes(self, uri: str | None = None, client: str | None = None) -> list[Close]:
        """Return the close requests, with the broker's answers."""
        return self._find(Close, uri, client)

    def negotiations(self, client: str | None = None) -> list[Negotiation]:
        """Return the negotiations, one for each connection with data."""
        return self._find(Negotiation, None, client)

    def notes(self) -> list[Note]:
        """Return the notes about actions of the test and the broker: connections made and cut, puts, crashes, starts."""
        return self._find(Note, None, None)

    def transcript(self, lines: int | None = TRANSCRIPT_LINES) -> str:
        """Format the last events (None = all), a line each. Answers are part of the line of their request; heartbeats are
        omitted."""
        shown = [event for event in self._events if not (isinstance(event, Other) and event.quiet)]
        cut = len(shown) - lines if lines is not None and len(shown) > lines else 0
        text = [f"... {cut + self.dropped} earlier"] if cut or self.dropped else []
        return "\n".join(text + [str(event) for event in shown[cut:]])


def _recorded_size(event: Event) -> int:
    return EVENT_BYTES + (len(event.data) if isinstance(event, ContentEvent) else 0)
