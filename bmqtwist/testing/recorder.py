"""Keeps what happened, and tells it: to assertions as objects, to people as a transcript."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from bmqtwist.testing.events import (
    Ack,
    Close,
    Configure,
    Confirm,
    Content,
    Delivery,
    Event,
    Negotiation,
    Note,
    OfQueue,
    Open,
    Other,
    Post,
)
from bmqtwist.testing.faults import covers

RECORD_BYTES_MAX = 64 << 20  # of messages kept; the oldest are dropped beyond it
EVENT_BYTES = 200  # what an event without a message is counted as
TRANSCRIPT_LINES = 60
E = TypeVar("E", bound=Event)


class Recorder:
    """Events in the order in which they happened. `dropped` counts those that were too old to be kept."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._bytes = 0
        self.dropped = 0

    def add(self, event: Event) -> None:
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
    def events(self) -> list[Event]:
        """Everything that is kept, oldest first."""
        return list(self._events)

    def _find(self, kind: type[E], uri: str | None, client: str | None) -> list[E]:
        return [event for event in self._events if isinstance(event, kind) and client in (None, event.client)
                and (uri is None or isinstance(event, OfQueue) and covers(uri, event.uri, event.app))]

    def posts(self, uri: str | None = None, client: str | None = None) -> list[Post]:
        """What was posted (to that queue, by that client); `post.status` is how it was acknowledged."""
        return self._find(Post, uri, client)

    def acks(self, uri: str | None = None, client: str | None = None) -> list[Ack]:
        """What the broker acknowledged or refused of posts."""
        return self._find(Ack, uri, client)

    def deliveries(self, uri: str | None = None, client: str | None = None) -> list[Delivery]:
        """What the broker sent to consumers; a URI with `?id=` means the readers of that app."""
        return self._find(Delivery, uri, client)

    def confirms(self, uri: str | None = None, client: str | None = None) -> list[Confirm]:
        """What consumers confirmed; a URI with `?id=` means the readers of that app."""
        return self._find(Confirm, uri, client)

    def opens(self, uri: str | None = None, client: str | None = None) -> list[Open]:
        """Which queues were opened, and how the broker answered."""
        return self._find(Open, uri, client)

    def configures(self, uri: str | None = None, client: str | None = None) -> list[Configure]:
        """How queues are read."""
        return self._find(Configure, uri, client)

    def closes(self, uri: str | None = None, client: str | None = None) -> list[Close]:
        """Which queues were closed."""
        return self._find(Close, uri, client)

    def negotiations(self, client: str | None = None) -> list[Negotiation]:
        """Who introduced itself: one for each connection that was used."""
        return self._find(Negotiation, None, client)

    def notes(self) -> list[Note]:
        """What the test and the broker's lives added: connections made and cut, puts, crashes, starts."""
        return self._find(Note, None, None)

    def transcript(self, lines: int | None = TRANSCRIPT_LINES) -> str:
        """The last so many things that happened (None = all), a line each. Answers stand with what they answer;
        heartbeats are left out."""
        shown = [event for event in self._events if not (isinstance(event, Other) and event.quiet)]
        cut = len(shown) - lines if lines is not None and len(shown) > lines else 0
        text = [f"... {cut + self.dropped} earlier"] if cut or self.dropped else []
        return "\n".join(text + [str(event) for event in shown[cut:]])


def _size(event: Event) -> int:
    return EVENT_BYTES + (len(event.data) if isinstance(event, Content) else 0)
