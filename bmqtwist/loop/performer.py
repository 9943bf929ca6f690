"""Interfaces between a pure node and the process, test or simulator that runs it: threads, connections, time, dump files.

`reactor/performer.py` implements `Performer` for a process, `testing/simulated_node.py` for the simulation,
`testing/node.py` for tests of one broker. The broker calls it through `loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmqtwist.link.authentication import Authenticate
from bmqtwist.link.session import Session


class Performer(Protocol):
    """Performs the effects of a broker."""

    def request_turn(self) -> None:
        """Request a turn: an event occurred outside of one."""

    def clock(self) -> float:
        """The present moment, in seconds, monotonic; for the time limits of deliveries and writes of a turn."""

    def processor_time(self) -> float:
        """Seconds of work of the event loop's thread, from any origin; for the budgets of the scheduler."""

    def run_in_thread(self, work: Callable[[], None], done: Callable[[float], None],
                  failed: Callable[[OSError, float], None]) -> None:
        """Run `work` on a thread, then `done(now)` or `failed(error, now)` in the event loop."""

    def authenticate(self, session: Session, effect: Authenticate) -> None:
        """Run an authenticator on a thread, then `session.on_authenticated` and a turn in the event loop."""

    def write(self, session: Session, parts: list[bytes | memoryview]) -> int:
        """Write to the connection of a session; return its unsent bytes."""

    def unsent_output(self, session: Session) -> tuple[int, int]:
        """Return the unsent bytes of the connection of a session, and the total of the bytes that were sent after a wait."""

    def dial(self, host: str, port: int, tls: bool, connected: Callable[[str, float], Session],
             failed: Callable[[str, float], None]) -> None:
        """Connect to another node, then call either `connected(peer, now)`, which returns the session of the connection, or
        `failed(reason, now)`, once. A turn follows."""

    def chance(self) -> float:
        """A random number in [0, 1), for delays that must differ between nodes."""

    def close_when_sent(self, session: Session) -> None:
        """Close the connection of a session when all its output is sent."""

    def set_reading(self, session: Session, wanted: bool) -> None:
        """Resume or stop reading from a session."""

    def write_dump(self, text: str) -> str:
        """Write a text to a new file; return its path."""


class Clock(Protocol):
    """The clock of one machine: the only source of time of a node."""

    @property
    def wall_offset(self) -> float:
        """`now() + wall_offset`: seconds since the epoch; constant while the node runs."""

    def now(self) -> float:
        """Seconds, monotonic, from any origin."""

    def timer_ns(self) -> int:
        """Nanoseconds, a different number in each call; source of the keys of queues and apps."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread, which is a thread of an authenticator."""
