"""A node that a primary feeds with records."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bmqtwist.storage.psn import NO_PSN, Psn


@dataclass(slots=True)
class Target:
    """A node that is fed. `flight`: (last record, bytes) of what it has not taken yet; `parts`: of an image, sent and taken,
    `image` while one is under way."""

    sent: Psn
    matched: Psn = NO_PSN
    durable: Psn = NO_PSN
    flight: deque[tuple[Psn, int]] = field(default_factory=deque)
    flying: int = 0
    image: bool = False
    complete: bool = False  # of an image, everything was sent
    parts_sent: int = 0
    parts_taken: int = 0
    feeding: bool = False  # a Fed is to come
