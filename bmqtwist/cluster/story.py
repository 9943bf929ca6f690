"""What a machine went through lately, and why: for an admin command, the console, and whoever looks at a failed test."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

TRANSITIONS_MAX = 100  # of one machine; older ones are forgotten


@dataclass(frozen=True, slots=True)
class Transition:
    """At the moment `at` (seconds, monotonic) the machine went from one state to another, or did something in it."""

    at: float
    before: str
    after: str
    cause: str


class TransitionLog:
    """The last transitions of one machine, the oldest first."""

    def __init__(self) -> None:
        self._transitions: deque[Transition] = deque(maxlen=TRANSITIONS_MAX)

    def note(self, at: float, before: str, after: str, cause: str) -> None:
        """This happened."""
        self._transitions.append(Transition(at, before, after, cause))

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """What is remembered."""
        return tuple(self._transitions)
