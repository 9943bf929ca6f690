"""A node that a primary feeds with records."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bmqtwist.storage.psn import NO_PSN, Psn


@dataclass(slots=True)
class Target:
    """A node that is fed. `behind`: as of `FeedImage`; `flight`: (last record, bytes) of what it has not taken yet;
    `parts`: of an image, sent and taken, `image` while one is under way."""

    sent: Psn
    behind: Psn = NO_PSN
    matched: Psn = NO_PSN
    durable: Psn = NO_PSN
    flight: deque[tuple[Psn, int]] = field(default_factory=deque)
    flying: int = 0
    image: bool = False
    complete: bool = False  # of an image, everything was sent
    parts_sent: int = 0
    parts_taken: int = 0
    feeding: bool = False  # a Fed is to come
    rests_until: float = 0.0  # it is sent nothing before

    def begin_image(self, when: float = 0.0) -> None:
        """It gets an image, from its beginning, not before that moment."""
        self.image, self.complete, self.feeding, self.rests_until = True, False, False, when
        self.parts_sent = self.parts_taken = 0

    def fed(self, last: Psn, size: int) -> None:
        """It was sent records up to `last`, of so many bytes."""
        self.sent = last
        self.flight.append((last, size))
        self.flying += size

    def took(self, matched: Psn, durable: Psn, parts: int) -> None:
        """It has so much by now."""
        self.matched, self.durable = max(self.matched, matched), max(self.durable, durable)
        self.parts_taken = min(max(self.parts_taken, parts), self.parts_sent)
        while self.flight and self.flight[0][0] <= self.matched:
            self.flying -= self.flight.popleft()[1]
