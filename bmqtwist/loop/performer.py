"""What a node has done for it by the process or the test that runs it: time, threads, connections, files of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.link.authentication import Authenticate
from bmqtwist.link.session import Session


class Performer(Protocol):
    """What the broker cannot do itself."""

    def turn_due(self) -> None:
        """Call `turn` soon: something happened outside of it."""

    def clock(self) -> float:
        """Seconds of some monotonic clock, now: to end in time what may wait for a disk."""

    def in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run `work` off the reactor's thread, then `done(now)` or `failed(error, now)`."""

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Run an authenticator off the reactor's thread, then session.authenticated and turn."""

    def write(self, session: Session, parts: list[bytes]) -> int:
        """Write to the connection of a session; returns the bytes it has not taken yet."""

    def unread(self, session: Session) -> tuple[int, int]:
        """How many bytes the connection has not taken yet, and how many it has ever taken that had to wait."""

    def dial(self, host: str, port: int, tls: bool, connected: Callable[[str, float], Session],
             failed: Callable[[str, float], None]) -> None:
        """Connect to another node, by TLS or without; then, once, either `connected(peer, now)`, which gives the session of
        the connection, or `failed(reason, now)`. A turn follows."""

    def chance(self) -> float:
        """A number in [0, 1), drawn anew: for waits that have to differ from node to node."""

    def finish(self, session: Session) -> None:
        """Close the connection of a session once all is written."""

    def read(self, session: Session, wanted: bool) -> None:
        """Go on reading from a session, or stop."""

    def dump(self, text: str) -> str:
        """Keep a text in a file of its own; returns where."""


class Clock(Protocol):
    """The clock of one machine: the only source of time of a node."""

    @property
    def wall_offset(self) -> float:
        """Added to `now()` for seconds since the epoch; fixed while the node runs."""

    def now(self) -> float:
        """Seconds that never go back, from any origin."""

    def timer_ns(self) -> int:
        """Nanoseconds; never the same number twice. Feeds the keys of queues and apps."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread: for authenticators, which run on threads of their own."""
