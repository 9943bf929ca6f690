"""What time it is for one node: the only place it may ask. Whoever runs the node says which clock that is."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The clock of one machine."""

    @property
    def wall_offset(self) -> float:
        """What turns `now()` into seconds since the epoch; fixed for one life of the node."""
        ...

    def now(self) -> float:
        """Seconds that never go back, from any origin."""
        ...

    def timer_ns(self) -> int:
        """Nanoseconds; never the same number twice. Feeds the keys of queues and apps."""
        ...

    def sleep(self, seconds: float) -> None:
        """Hold up the calling thread: for authenticators, which run on threads of their own."""
