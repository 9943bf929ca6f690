"""What a machine went through lately, and why: for an admin command, the console, and whoever looks at a failed test."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

TRANSITIONS_MAX = 100  # of one machine; older ones are forgotten
TOLD_MAX = 20  # of them, with an alarm


@dataclass(frozen=True, slots=True)
class Transition:
    """At the moment `at` (seconds, monotonic) the machine went from one state to another, or did something in it."""

    at: float
    before: str
    after: str
    cause: str

    @property
    def change(self) -> str:
        """From where to where; the state alone, if it has stayed."""
        return self.before if self.before == self.after else f"{self.before} -> {self.after}"


def told(transitions: Iterable[Transition], now: float) -> str:
    """A line for each."""
    return "\n".join(f"{now - each.at:12.3f} s ago  {each.change:<22}  {each.cause}" for each in transitions)


class TransitionLog:
    """The last transitions of one machine, the oldest first."""

    def __init__(self) -> None:
        self._transitions: deque[Transition] = deque(maxlen=TRANSITIONS_MAX)

    def note(self, at: float, before: str, after: str, cause: str) -> None:
        """This happened."""
        self._transitions.append(Transition(at, before, after, cause))

    def lines(self, now: float, count: int = TRANSITIONS_MAX) -> str:
        """The last ones, as they are shown to people."""
        return told(self.transitions[-count:], now)

    def cause_of(self, after: str) -> str:
        """Why the machine is what it is, or was last; empty = that is forgotten."""
        return next((each.cause for each in reversed(self._transitions) if each.after == after), "")

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """What is remembered."""
        return tuple(self._transitions)
